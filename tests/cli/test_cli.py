"""Every command by its exit code and output; heavy modules stay out of start-up."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
import tomlkit
from safetensors.numpy import load_file

from tests.cli.calls import TASK, Call, parse
from vtrain.cli.common import TerminatedError
from vtrain.cli.demo import CHEAT_AT
from vtrain.engines.registry import ENGINES
from vtrain.errors import MissingExtraError
from vtrain.train.store import RunDirectory
from vtrain.wire.record import StepRecord


def test_help_lists_every_command_and_each_explains_itself(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for name in ("demo", "eval", "export", "graph", "inspect", "key", "profile", "task", "train"):
        assert f"  {name} " in out
        assert call(name, "--help")[0] == 0
    assert "verify" in out


def test_version(call: Call) -> None:
    from vtrain import __version__

    assert call("--version")[1].strip().endswith(__version__)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("verify",),
        ("verify", "no/such/run"),
        ("verify", ".", "--samples", "-1"),
        ("verify", ".", "--samples", "many"),
        ("verify", ".", "--seed", "xyz"),
        ("verify", ".", "--seed", ""),
        ("verify", ".", "--seed", "00" * 65),
        ("verify", ".", "--task-id", "00"),
        ("verify", ".", "--all", "--samples", "2"),
        ("verify", ".", "--engine", "abacus"),
        ("train", "no/such/task.toml", "--out", "x"),
        ("train", "pyproject.toml"),
        ("inspect", "no/such/run"),
        ("key", "show", "no/such/key"),
        ("eval", ".", "--task", "pyproject.toml", "--data", "pyproject.toml"),
        ("demo", "--task", "no/such/task.toml"),
        ("task", "check", "pyproject.toml"),
    ],
)
def test_bad_usage_is_2(call: Call, repository: Path, arguments: tuple[str, ...]) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert (out + err).strip()


def test_profile_writes_what_check_then_confirms(call: Call, folder: Path, tmp_path: Path) -> None:
    task = Path(shutil.copytree(folder, tmp_path / "task")) / "task.toml"
    code, out, _ = call("profile", task, "--check", "--json")
    assert code == 0
    exponents = parse(out)["exponents"]
    assert exponents
    site, exponent = next(iter(exponents.items()))
    text = task.read_text()
    (line,) = (line for line in text.splitlines() if line.replace('"', "").startswith(f"{site} ="))
    task.write_text(text.replace(line, f'"{site}" = {exponent - 1}\nno_site = 3'))
    code, out, err = call("profile", task, "--check", "--json")
    assert code == 2
    assert parse(out)["error"]["code"] == "task"
    assert f"exponents.{site} is {exponent - 1}, calibration gives {exponent}" in out
    # Those that differ, and no others.
    count, *differ = err.splitlines()
    assert f"2 of {len(exponents) + 1} exponents are not those" in count
    assert f"`vtrain profile {task}`" in count
    assert [line.split()[2] for line in differ] == sorted(
        [f"exponents.{site}", "exponents.no_site"]
    )
    assert call("profile", task)[0] == 0
    code, out, _ = call("profile", task, "--check")
    assert (code, out.splitlines()) == (
        0, [f"the exponents of all {len(exponents)} sites are those of calibration"],
    )  # fmt: skip
    assert task.read_text() == text


def test_a_task_without_exponents_names_file_and_command(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    task = Path(shutil.copytree(folder, tmp_path / "task")) / "not profiled.toml"
    task.write_text(TASK)
    code, _, err = call("task", "check", task)
    assert code == 2
    assert f"has no exponent for this site: `vtrain profile '{task}'` writes it" in err


def test_calibration_within_the_warm_up_is_warned_of(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    task = Path(shutil.copytree(folder, tmp_path / "task")) / "warm.toml"
    warm = TASK + '\n[schedule]\nkind = "constant"\nwarmup = '
    task.write_text(f"{warm}5\n")
    code, _, err = call("profile", task, "--json")
    assert code == 0
    (warning,) = [line for line in err.splitlines() if "warm-up" in line]
    assert "calibration_steps = 4 lies within the warm-up" in warning
    assert f"set calibration_steps = 10 in [format] of {task} and run `vtrain profile" in warning
    for command in (("task", "check", task), ("train", task, "--out", tmp_path / "run")):
        assert "lies within the warm-up" in call(*command)[2]
    # Its last step has the largest rate.
    task.write_text(f"{warm}4\n")
    assert "warm-up" not in call("profile", task)[2]


def test_task_check_shows_graph_ranges_exponents_and_roots(call: Call, folder: Path) -> None:
    code, out, _ = call("task", "check", folder / "task.toml", "--json")
    assert code == 0
    data = parse(out)
    matmul = next(node for node in data["nodes"] if node["op"] == "matmul")
    assert set(matmul) == {"name", "op", "dtype", "shape", "exponent", "lo", "hi"}
    assert (matmul["dtype"], matmul["shape"]) == ("i64", [4, 8])
    assert data["task_id"] == parse(call("inspect", folder / "run", "--json")[1])["task_id"]
    state = sum(
        np.prod(node["shape"], dtype=int) * int(node["dtype"][1:]) // 8
        for node in data["nodes"]
        if node["op"] == "state"
    )
    assert data["step_memory"] > state
    code, text, _ = call("task", "check", folder / "task.toml", "--recompute")
    assert code == 0
    assert int(text.split()[-1]) > state
    for value in ("matmul", str(matmul["lo"]), data["task_id"], data["graph_root"], "data_root"):
        assert value in text


def test_train_stops_resumes_and_ends_in_the_same_root(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    arguments = ("train", folder / "task.toml", "--key", folder / "solver.pem", "--json")
    code, out, err = call(*arguments, "--out", tmp_path / "run", "--steps", 6, "--engine", "numpy")
    assert code == 0, err
    assert parse(out)["steps"] == 6
    partial = parse(call("inspect", tmp_path / "run", "--json")[1])
    assert partial["complete"] is False
    assert call("verify", tmp_path / "run", "--all")[0] == 0
    agreed = ("--task-id", str(partial["task_id"]))
    assert call("verify", tmp_path / "run", "--all", *agreed)[0] == 3
    code, out, _ = call(*arguments, "--out", tmp_path / "run")
    assert code == 0
    data = parse(out)
    whole = parse(call("inspect", folder / "run", "--json")[1])
    assert (data["root"], data["log_root"]) == (whole["root"], whole["log_root"])
    assert data["resumed_from"] == 6
    assert call("verify", tmp_path / "run", "--all")[0] == 0
    assert call(*arguments, "--out", tmp_path / "run", "--steps", 5)[0] == 2


def test_train_looks_at_the_task_before_it_makes_a_key(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click, "get_app_dir", lambda name: str(tmp_path / "home" / name))
    (tmp_path / "task.toml").write_text("[task]\n")
    code, _, err = call("train", tmp_path / "task.toml", "--out", tmp_path / "a")
    assert code == 2
    assert "made a solver key" not in err
    assert not (tmp_path / "home").exists()


def test_threads_beyond_reason_are_2(call: Call, folder: Path, tmp_path: Path) -> None:
    task, key = folder / "task.toml", folder / "solver.pem"
    for command in (
        ("train", task, "--out", tmp_path / "r", "--key", key),
        ("verify", folder / "run"),
    ):
        code, out, _ = call(*command, "--threads", 1025, "--json")
        assert code == 2
        assert parse(out)["error"]["where"] == "threads 1025"


def test_profile_names_a_label_out_of_range(call: Call, folder: Path, tmp_path: Path) -> None:
    task = Path(shutil.copytree(folder, tmp_path / "task")) / "task.toml"
    before = task.read_text()
    labels = np.load(task.parent / "y.npy")
    labels[17] = 4
    np.save(task.parent / "y.npy", labels)
    code, out, err = call("profile", task, "--json")
    assert (code, parse(out)["error"]["code"]) == (2, "data")
    assert "sample 17: label 4 is not in [0, 4)" in err
    assert task.read_text() == before


@pytest.mark.parametrize(
    ("right", "wrong", "where"),
    [
        ("steps =", "stpes =", "task.stpes: unknown key, and steps is missing"),
        ("onnx =", "onx =", "model.onx: unknown key, and onnx is missing"),
        ("[model]", "[modle]", "modle: unknown table, and model is missing"),
        ("[optimizer]", "[optimizerr]", "optimizerr: unknown table, and optimizer is missing"),
        ("[optimizer]", "[Optimizer]", "Optimizer: unknown table, and optimizer is missing"),
        ("[data.prepare]", "[data.prepar]", "data.prepar: unknown table, and prepare is missing"),
        ("[format]", "[optimizers]", "optimizers: unknown table, and optimizer is there too"),
        ("count = 30", "validaton = 0.1", "data.validaton: unknown key, and validation is missing"),
        ('kind = "npy"', 'kind = "numpy"', "data.kind: must be one of idx, npy, npz, text, tokens"),
        ('kind = "npy"', 'kind = "numpy"', 'tokens: take "npy"'),
        ('kind = "npy"\nx =', 'kind = "npy"\nxs =', "data.xs: unknown key, and x is missing"),
        ("scale =", "scal =", "data.prepare.scal: unknown key, and scale is missing"),
        ("seed = 3", "seed = 3\nzzz = 1", "task.zzz: unknown key ["),
        ("seed = 3\n", "", "task.seed: is missing"),
    ],
)
def test_a_mistyped_key_is_named_with_the_one_that_is_missing(
    call: Call, folder: Path, tmp_path: Path, right: str, wrong: str, where: str
) -> None:
    assert right in TASK
    path = tmp_path / "task.toml"
    path.write_text(TASK.replace(right, wrong, 1))
    code, _, err = call("task", "check", path)
    assert code == 2
    assert where in err


def test_train_makes_a_key_on_first_use_and_says_so(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click, "get_app_dir", lambda name: str(tmp_path / "home" / name))
    code, _, err = call("key", "show")
    assert code == 2
    assert "`vtrain train` makes one" in err
    code, out, err = call("train", folder / "task.toml", "--out", tmp_path / "a", "--json")
    own = tmp_path / "home" / "vtrain" / "solver.pem"
    assert code == 0
    assert call("key", "show")[1] == call("key", "show", own)[1]
    assert str(own) in err
    assert own.stat().st_mode & 0o777 == 0o600
    shown = parse(call("key", "show", own, "--json")[1])
    assert parse(out)["solver"] == shown["solver"]
    code, out, err = call("train", folder / "task.toml", "--out", tmp_path / "b", "--json")
    assert (code, err) == (0, "")
    assert parse(out)["solver"] == shown["solver"]


def test_a_run_without_data_is_verified_with_it(call: Call, folder: Path, tmp_path: Path) -> None:
    key = ("--key", folder / "solver.pem")
    assert call("train", folder / "task.toml", "--out", tmp_path / "r", "--no-data", *key)[0] == 0
    assert call("verify", tmp_path / "r")[0] == 3
    table = folder / "run" / "data" / "samples.bin"
    assert call("verify", tmp_path / "r", "--data", table)[0] == 0


def test_verify_an_honest_run(call: Call, folder: Path) -> None:
    code, out, err = call("verify", folder / "run", "--samples", 1)
    assert (code, err) == (0, "")
    assert out.strip().endswith("Verdict: VERIFIED")
    assert "Not checked" in out
    assert "33.33 %" in out
    code, out, _ = call("verify", folder / "run", "--samples", 1, "--json")
    data = parse(out)
    assert (code, data["verdict"], data["exit_code"]) == (0, "verified", 0)
    assert data["randomness"]["predictable"] is False


def test_a_seed_is_called_predictable_and_repeats_its_draw(call: Call, folder: Path) -> None:
    code, out, _ = call("verify", folder / "run", "--samples", 1, "--seed", "c0ffee")
    assert code == 4
    assert "it holds only if whoever made this claim did not know" in out
    arguments = ("verify", folder / "run", "--samples", 1, "--seed", "c0ffee", "--json")
    # A second may pass between the two.
    first, second = (parse(call(*arguments)[1]) | {"date": ""} for _ in range(2))
    assert first == second
    assert first["randomness"]["predictable"] is True


def test_verify_calls_damage_inconclusive(call: Call, run: Path) -> None:
    (run / "log.bin").write_bytes((run / "log.bin").read_bytes()[:-1])
    code, out, _ = call("verify", run)
    assert code == 3
    assert "INCONCLUSIVE" in out
    assert "log.bin" in out
    assert parse(call("verify", run, "--json")[1])["exit_code"] == 3


def test_verify_compares_the_task_asked_for(call: Call, folder: Path) -> None:
    task_id = parse(call("inspect", folder / "run", "--json")[1])["task_id"]
    assert call("verify", folder / "run", "--task-id", task_id)[0] == 0
    assert call("verify", folder / "run", "--task-id", "00" * 32)[0] == 3


def test_inspect_says_what_the_run_says(call: Call, folder: Path, run: Path) -> None:
    code, out, _ = call("inspect", run, "--json")
    assert code == 0
    data = parse(out)
    assert (data["steps"], data["task_steps"], data["complete"]) == (12, 12, True)
    assert data["checkpoints"] == [0, 4, 8, 12]
    report = parse(call("verify", run, "--json")[1])
    for name in ("root", "log_root", "task_id", "run_id", "solver"):
        assert data[name] == report[name]
    code, out, _ = call("inspect", run)
    assert code == 0
    assert data["root"] in out
    (run / "claim.cbor").unlink()
    code, out, _ = call("inspect", run)
    assert code == 0
    assert re.search(r"^solver +unknown$", out, re.MULTILINE)
    assert re.search(r"^run_id +[0-9a-f]{64}$", out, re.MULTILINE)
    assert "nothing is claimed yet" in out
    assert parse(call("inspect", run, "--json")[1])["solver"] is None
    (run / "manifest.json").unlink()
    with (run / "log.bin").open("ab") as file:
        file.write(b"\x01")
    code, out, err = call("inspect", run, "--json")
    assert code == 0
    assert parse(out)["complete"] is False
    assert "the log ends early" in err
    (run / "task.cbor").write_bytes(b"")
    code, out, _ = call("inspect", run, "--json")
    assert code == 2
    assert parse(out)["error"]["code"] == "encoding"


def test_train_names_the_site_that_clamps_and_what_helps(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    """One exponent is eight bits too fine: that site alone is told, on stderr and in the JSON."""
    for name in ("x.npy", "y.npy", "model.onnx"):
        shutil.copy(folder / name, tmp_path)
    document = tomlkit.parse((folder / "task.toml").read_text())
    document["exponents"]["h"] += 8
    (tmp_path / "task.toml").write_text(tomlkit.dumps(document))
    out = ("--out", tmp_path / "run", "--key", folder / "solver.pem", "--json")
    code, text, err = call("train", tmp_path / "task.toml", *out)
    assert code == 0, err
    (told,) = parse(text)["warnings"]
    assert re.search(r"clamped at h \(\d+\), which costs accuracy; give more calib", told), told
    assert f"warning: {told}" in err
    assert [found["site"] for found in parse(text)["saturation"]] == ["h"]


def test_eval_on_training_test_and_given_data(call: Call, folder: Path) -> None:
    run = folder / "run"
    code, out, _ = call("eval", run, "--json")
    assert code == 0
    after = parse(out)
    assert after["samples"] == 30
    before = parse(call("eval", run, "--step", 0, "--json")[1])
    assert after["loss"] < before["loss"]
    table = run / "data" / "samples.bin"
    same = parse(call("eval", run, "--data", table, "--json")[1])
    assert (same["loss"], same["accuracy"]) == (after["loss"], after["accuracy"])
    code, out, _ = call("eval", run, "--task", folder / "task.toml", "--json")
    assert parse(out)["samples"] == 10
    assert after["loss_unit"] == "nats a label"
    assert after["accuracy_unit"] == "share of right answers"
    text = call("eval", run)[1]
    assert re.search(r"^loss +[0-9.]+ nats a label$", text, re.MULTILINE)
    assert re.search(r"^accuracy +[0-9.]+ \([0-9.]+ % right\)$", text, re.MULTILINE)
    assert call("eval", run, "--step", 5)[0] == 2


@pytest.mark.parametrize("step", [4, 12])
def test_what_the_claim_does_not_commit_to_is_not_delivered(
    call: Call, run: Path, tmp_path: Path, step: int
) -> None:
    path = run / "checkpoints" / f"{step:012d}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    out_option = ("--out", tmp_path / "out")
    for command in (("eval", run), ("export", run, *out_option)):
        code, out, _ = call(*command, "--step", step, "--json")
        assert code == 2
        assert path.name in parse(out)["error"]["where"]
    assert call("eval", run, "--step", 8)[0] == 0
    table = run / "data" / "samples.bin"
    table.write_bytes(bytes(table.stat().st_size))
    code, out, _ = call("eval", run, "--step", 8, "--json")
    assert (code, parse(out)["error"]["code"]) == (2, "data")


def test_export_gives_the_model_as_floats(call: Call, folder: Path, tmp_path: Path) -> None:
    code, out, _ = call("export", folder / "run", "--out", tmp_path / "out", "--json")
    assert code == 0
    paths = parse(out)
    onnx.checker.check_model(onnx.load(paths["onnx"]))
    assert load_file(paths["safetensors"])["w1"].shape == (8, 16)


def test_graph_export_takes_a_run_or_a_task(call: Call, folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert call("graph", "export-onnx", folder / "run", "--out", first)[0] == 0
    code, out, _ = call("graph", "export-onnx", folder / "task.toml", "--out", second, "--json")
    assert code == 0
    assert parse(out)["nodes"] == len(onnx.load(second).graph.node)
    assert first.read_bytes() == second.read_bytes()


def test_keys_are_never_overwritten(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("key", "new", tmp_path / "k.pem", "--json")
    assert code == 0
    assert parse(call("key", "show", tmp_path / "k.pem", "--json")[1]) == parse(out)
    code, shown, words = call("key", "show", tmp_path / "k.pem")
    assert (code, shown) == (0, parse(out)["public"] + "\n"), "the key alone, for scripts"
    assert str(tmp_path / "k.pem") in words
    code, out, err = call("key", "new", tmp_path / "k.pem", "--json")
    assert code == 2
    assert parse(out)["error"]["code"] == "storage"
    assert "never overwritten" in err


def test_the_demo_on_another_task_catches_every_cheat(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    task = Path(shutil.copytree(folder, tmp_path / "task")) / "task.toml"
    code, out, err = call("demo", "--task", task, "--keep", tmp_path / "kept", "--json")
    assert code == 0, err
    data = parse(out)
    assert data["good"] is True
    assert data["honest"]["verdict"] == "verified"
    assert [case["reason"]["where"] for case in data["cheats"]] == [f"step {CHEAT_AT}"] * 3
    assert call("verify", tmp_path / "kept" / "honest")[0] == 0
    for number in (1, 2, 3):
        assert call("verify", tmp_path / "kept" / f"cheat-{number}", "--all")[0] == 10
    code, out, _ = call("demo", "--task", task)
    assert code == 0
    assert out.count("fraud, at step 33") == 3


def test_a_missing_extra_is_3(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vtrain.audit.verify

    def lack(*_: object, **__: object) -> None:
        raise MissingExtraError("pip install 'vtrain[cuda]'", where="engine cuda")

    monkeypatch.setattr(vtrain.audit.verify, "verify", lack)
    code, out, err = call("verify", folder / "run", "--json")
    assert code == 3
    assert "pip install" in err
    assert parse(out)["error"]["code"] == "missing-extra"


@pytest.mark.parametrize(
    ("raised", "code", "name", "said"),
    [
        (ZeroDivisionError("a defect"), 1, "unexpected", "ZeroDivisionError: a defect"),
        (ImportError("libx.so: no such file"), 1, "unexpected", "ImportError: libx.so"),
        (ImportError("x.so: Cannot allocate memory"), 3, "resources", "memory"),
        (MemoryError(), 3, "resources", "this machine has not enough for it: memory"),
        (OSError(errno.EMFILE, "Too many open files"), 3, "resources", "Too many open files"),
        (RuntimeError("can't start new thread"), 3, "resources", "threads"),
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
        (TerminatedError(), 143, "terminated", "terminated"),
        (click.UsageError("no such thing"), 2, "usage", "no such thing"),
    ],
)
def test_however_a_command_ends_it_is_no_verdict_and_has_its_json(
    call: Call,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    name: str,
    said: str,
) -> None:
    import vtrain.audit.verify

    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(vtrain.audit.verify, "verify", fail)
    found, out, err = call("verify", folder / "run", "--json")
    assert found == code
    assert said in err
    assert ("Traceback" in err) == isinstance(raised, ZeroDivisionError), "a defect alone has one"
    error = parse(out)["error"]
    assert error["code"] == name
    assert said in error["message"]
    found, out, _ = call("verify", folder / "run")
    assert (found, out) == (code, "")


@pytest.mark.parametrize("words", [("verify",), ("verify", "/none"), ("verfy",), ("train", "--x")])
def test_wrong_calls_have_their_json_too(call: Call, words: tuple[str, ...]) -> None:
    code, out, err = call(*words, "--json")
    assert (code, parse(out)["error"]["code"]) == (2, "usage")
    assert parse(out)["error"]["message"] in err


def test_an_import_that_fails_is_said_in_json(tmp_path: Path) -> None:
    """A machine that lacks the core, or memory for it: the entry point needs Python alone."""
    script = (
        "import sys\nsys.modules['vtrain._core'] = None\nsys.modules['click'] = None\n"
        "from vtrain.cli import run\nsys.exit(run(['verify', sys.argv[1], '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert parse(done.stdout)["error"]["code"] == "unexpected"
    assert "Traceback" not in done.stderr


def test_an_interrupted_training_names_its_step_and_what_goes_on(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, run = RunDirectory.append, tmp_path / "run"

    def interrupt(directory: RunDirectory, record: StepRecord) -> None:
        append(directory, record)
        if record.step == 6:
            raise KeyboardInterrupt

    words = ("train", folder / "task.toml", "--out", run, "--key", folder / "solver.pem", "--json")
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "append", interrupt)
        code, out, err = call(*words)
    assert code == 130
    assert "stopped after step 5 of 12; the same command goes on" in err
    assert "after step 5 of 12" in parse(out)["error"]["message"]
    code, out, _ = call("verify", run, "--json")
    report = parse(out)
    assert (code, report["reason"]["name"], report["reason"]["status"]) == (3, "claim", "not_done")
    assert "unfinished: nothing is claimed yet, and it stands at 4 of 12 steps" in out
    code, out, _ = call(*words)
    assert (code, parse(out)["resumed_from"]) == (0, 4)
    assert call("verify", run)[0] == 0


def test_progress_is_drawn_on_stderr_and_only_on_a_terminal(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", folder / "task.toml", "--key", folder / "solver.pem", "--json")
    verify = ("verify", folder / "run", "--all", "--json")
    for number, (is_terminal, arguments) in enumerate(
        ((False, train), (False, verify), (True, train), (True, verify))
    ):
        monkeypatch.setattr("sys.stderr.isatty", lambda shown=is_terminal: shown)
        out_option = ("--out", tmp_path / str(number)) if arguments is train else ()
        code, out, err = call(*arguments, *out_option)
        assert code == 0
        assert parse(out)["steps"] == 12
        assert bool(err) is is_terminal


def test_engines_offered_are_those_that_exist() -> None:
    from vtrain.cli.verify import command

    [option] = [param for param in command.params if param.name == "engine"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == ENGINES


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["train", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom vtrain.cli import run\ncode = run(sys.argv[1:])\n"
        "heavy = {'numpy', 'onnx', 'rich.progress', 'torch', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(code or len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert done.returncode == 0


def test_verify_loads_neither_torch_nor_onnx(folder: Path) -> None:
    program = (
        "import sys\nfrom vtrain.cli import run\ncode = run(sys.argv[1:])\n"
        "sys.exit(code or len({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, "verify", str(folder / "run"), "--all"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_claim_shows_and_keeps_what_an_auditor_pins(
    call: Call, folder: Path, run: Path, tmp_path: Path
) -> None:
    code, out, _ = call("claim", run, "--json")
    assert code == 0
    shown = parse(out)
    told = parse(call("inspect", run, "--json")[1])
    assert all(shown[name] == told[name] for name in ("solver", "task_id", "run_id", "log_root"))
    kept = tmp_path / "kept"
    code, out, _ = call("claim", run, "--out", kept)
    assert (code, shown["claim"] in out) == (0, True)
    assert kept.read_bytes() == (run / "claim.cbor").read_bytes()
    code, _, err = call("claim", run, "--out", kept)
    assert (code, "exists already, and is not replaced" in err) == (2, True)
    given = ("verify", run, "--samples", 1, "--seed", "c0ffee", "--solver", shown["solver"])
    for claim in (shown["claim"], kept):
        code, out, _ = call(*given, "--claim", claim)
        assert (code, "the one that was pinned" in out) == (0, True)
    code, out, _ = call(*given, "--claim", "00" * 32, "--json")
    assert (code, parse(out)["reason"]["name"]) == (3, "claim")
    code, _, err = call(*given, "--claim", "c0ffee")
    assert (code, "neither the 64 hexadecimal digits of a digest nor a file" in err) == (2, True)
    code, out, _ = call("verify", run, "--solver", "00" * 32, "--json")
    assert (code, "as asked for" in parse(out)["reason"]["detail"]) == (3, True)
    code, out, _ = call("verify", run, "--samples", 0)
    assert (code, "structure alone was asked for" in out) == (0, True)
    (run / "claim.cbor").write_bytes(kept.read_bytes()[:-1])
    assert call("claim", run)[0] == 2
