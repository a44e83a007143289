"""What meets a newcomer on the command line: init, lint, completion, hints, pictures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.calls import TASK, Call, parse
from tests.tasks import CONTEXT, VOCABULARY, make_gpt_onnx, make_mlp_onnx
from vtrain.train.data import find_exponent
from vtrain.train.history import read_history


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    """Model and data of the tiny task, in a folder of one's own."""
    for name in ("model.onnx", "x.npy", "y.npy"):
        shutil.copy(folder / name, tmp_path)
    return tmp_path


# --- init


def test_a_task_that_was_written_trains(call: Call, place: Path) -> None:
    task = place / "new.toml"
    rows = np.load(place / "x.npy")
    np.save(place / "x.npy", rows / np.float32(255))
    code, out, err = call(
        "init", place / "model.onnx", place / "x.npy", place / "y.npy", "--out", task
    )
    assert (code, str(task) in out) == (0, True), err
    assert f"next: vtrain profile {task}" in err
    text = task.read_text()
    assert f"x_exponent = {find_exponent(rows / 255)}" in text
    assert text.count("#") > 10, "with comments"
    # All that is wrong with it is that nobody has calibrated it yet.
    code, out, _ = call("task", "check", "--lint", task, "--json")
    assert code == 2
    assert [problem["path"] for problem in parse(out)["problems"]] == ["exponents"]
    assert call("profile", task)[0] == 0
    assert call("task", "check", "--lint", task)[0] == 0
    code, out, err = call(
        "train", task, "--out", place / "run", "--key", make_key(place), "--eval-every", 10
    )
    assert code == 0, err
    history = read_history(place / "run")
    assert history[-1].loss < history[0].loss
    assert history[-1].test_loss is not None
    # Nothing is replaced.
    before = task.read_text()
    assert call("init", place / "model.onnx", place / "x.npy", "--out", task)[0] == 2
    assert task.read_text() == before


def make_key(place: Path) -> Path:
    from vtrain.attest.keys import generate_key

    path = place / "solver.pem"
    if not path.exists():
        generate_key(path)
    return path


def make_npz(place: Path) -> list[str]:
    np.savez(place / "d.npz", x_train=np.load(place / "x.npy"), y_train=np.load(place / "y.npy"))
    return ["model.onnx", "d.npz"]


def make_tokens(place: Path) -> list[str]:
    (place / "gpt.onnx").write_bytes(make_gpt_onnx())
    (np.arange(400) * 5 % VOCABULARY).astype("<u2").tofile(place / "t.bin")
    return ["gpt.onnx", "t.bin"]


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (make_npz, ['kind = "npz"', 'x_key = "x_train"', 'scale = "1/255"', "momentum = 0.9"]),
        (
            make_tokens,
            ['dtype = "u16"', f"context = {CONTEXT}", "validation = 0.1", 'kind = "ids"'],
        ),
    ],
)
def test_what_can_be_read_off_the_files_is_written(
    call: Call,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], list[str]],
    lines: list[str],
) -> None:
    monkeypatch.chdir(place)
    code, _, err = call("init", *make(place), "--out", "deep.toml")
    assert code == 0, err
    text = Path("deep.toml").read_text()
    assert [line for line in lines if line not in text] == []
    assert call("profile", "deep.toml")[0] == 0
    code, out, _ = call("task", "check", "--lint", "deep.toml", "--json")
    assert (code, parse(out)) == (0, {"problems": [], "advice": []})


def test_what_no_task_can_be_made_of_is_refused(call: Call, place: Path) -> None:
    task = place / "new.toml"
    model, x = place / "model.onnx", place / "x.npy"
    np.savez(place / "many.npz", a=1, b=2, c=3)
    for words, reason in (
        ((x, x), "[model]"),
        ((model, place), "is a folder"),
        ((model, place / "many.npz"), "which are inputs and targets"),
        ((model, x), "the model takes 16 numbers"),
        ((model, x, x, x), "one file or two"),
    ):
        code, _, err = call("init", *words, "--out", task)
        assert (code, reason in err) == (2, True), err
    assert not task.exists()


def test_the_exponent_that_fits_is_named(call: Call, place: Path) -> None:
    rows = np.load(place / "x.npy").astype(np.float64) / 255 * 3.9
    np.save(place / "x.npy", rows)
    task = place / "task.toml"
    task.write_text(TASK)
    code, _, err = call("profile", task)
    assert (code, ": 13 fits" in err) == (2, True), err
    task.write_text(TASK.replace('y = "y.npy"\ncount', 'y = "y.npy"\nx_exponent = 14\ncount'))
    code, _, err = call("profile", task)
    assert (code, "saturates at exponent 14: 13 fits" in err) == (2, True), err


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [(1.0, 14), (1.99, 14), (2.0, 13), (32639.0, 0), (32640.0, -1), (0.0, 0), (1e-30, None)],
)
def test_the_finest_exponent_that_fits(largest: float, exponent: int | None) -> None:
    assert find_exponent(np.array([[0.0], [-largest]])) == exponent
    assert find_exponent(np.array([[np.nan]])) is None


def move_weights(model: Path) -> None:
    """Save a model again with its tensors in a file beside it."""
    onnx.save(
        onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=0
    )


def test_a_model_in_several_files_gives_the_same_task(
    call: Call, folder: Path, place: Path
) -> None:
    one = (place / "model.onnx").read_bytes()
    move_weights(place / "model.onnx")
    assert (place / "model.onnx").read_bytes() != one
    task = place / "task.toml"
    shutil.copy(folder / "task.toml", task)
    assert call("task", "check", "--lint", task)[0] == 0
    ids = [
        parse(call("task", "check", where / "task.toml", "--json")[1])["task_id"]
        for where in (folder, place)
    ]
    assert ids[0] == ids[1]
    assert call("train", task, "--out", place / "run", "--key", make_key(place))[0] == 0
    assert (place / "run" / "model.onnx").read_bytes() == one
    new = ("init", place / "model.onnx", place / "x.npy", place / "y.npy", "--out")
    assert call(*new, place / "new.toml")[0] == 0
    (place / "weights").unlink()
    for words in (("task", "check", task), (*new, place / "more.toml")):
        code, _, err = call(*words)
        assert (code, "weights: cannot be read: the file is missing" in err) == (2, True), err
    assert str(place / "weights") in call("task", "check", "--lint", task)[1]


# --- lint


def lint(call: Call, task: Path) -> dict[str, str]:
    code, out, _ = call("task", "check", "--lint", task, "--json")
    found = parse(out)
    assert code == (2 if found["problems"] else 0)
    assert all(problem["reason"] and problem["fix"] for problem in found["problems"])
    return {problem["path"]: problem["fix"] for problem in found["problems"]}


def test_every_problem_is_listed_with_its_fix(call: Call, place: Path) -> None:
    task = place / "task.toml"
    text = TASK
    for right, wrong in (
        ("steps = 12", "epochs = 3"),
        ("batch = 4", "batch_size = 4"),
        ("seed = 3", "seed = -3"),
        ("checkpoint_every = 4", "checkpoint_every = 5"),
        ('onnx = "model.onnx"', 'onnx = "none.onnx"'),
        ('kind = "sgd"\nmomentum = 0.9', 'kind = "adam"\nbetas = 3'),
        ("learning_rate = 0.5", "lr = 0.5"),
        ("scale =", "scal ="),
        ("start = 30", 'start = "30"'),
        ("calibration_steps = 4", "calibration_steps = 0"),
    ):
        assert right in text
        text = text.replace(right, wrong, 1)
    task.write_text(text)
    found = lint(call, task)
    assert "epochs * samples / batch" in found.pop("task.epochs")
    assert found.pop("task.batch_size") == "call it batch"
    assert found.pop("optimizer.lr") == "call it learning_rate"
    assert found.pop("data.prepare.scal") == "call it scale"
    assert "multiple" in found.pop("task.checkpoint_every")
    assert found.pop("optimizer.kind") == 'write kind = "adamw" and weight_decay = 0'
    assert found.keys() == {
        "task.seed", "task.steps", "optimizer.betas", "test.start",
        "format.calibration_steps", "model.onnx",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "fix"),
    [
        ('"cross_entropy"', '"CrossEntropyLoss"', 'loss = "cross_entropy"'),
        ('kind = "sgd"', 'kind = "AdamW"', 'kind = "adamw"'),
        ('kind = "sgd"', 'kind = "nesterov"', 'kind = "sgd" and nesterov = true'),
        ("[format]", '[schedule]\nkind = "onecycle"\n[format]', 'kind = "cosine" and warmup = 100'),
    ],
)
def test_a_word_that_is_like_one_is_mended_by_it(
    call: Call, place: Path, right: str, wrong: str, fix: str
) -> None:
    task = place / "task.toml"
    task.write_text(TASK.replace(right, wrong))
    assert f"write {fix}" in lint(call, task).values()


def test_what_would_be_trained_from_a_bad_task_names_the_list(call: Call, place: Path) -> None:
    task = place / "my task.toml"
    task.write_text(TASK.replace('kind = "sgd"', 'kind = "adam"').replace("seed = 3", "seed = -3"))
    hint = f"`vtrain task check --lint '{task}'` lists every problem of the task"
    for words in (("train", "--out", place / "run"), ("profile",), ("task", "check")):
        code, out, err = call(*words, task, "--json")
        assert (code, hint in err, hint in parse(out)["error"]["message"]) == (2, True, True)
    # Where there is one problem alone, no list is longer.
    for text in ("no TOML", TASK):
        task.write_text(text)
        code, _, err = call("train", task, "--out", place / "run")
        assert (code, "--lint" in err) == (2, False)


def test_what_the_file_names_is_looked_at_too(call: Call, place: Path) -> None:
    task = place / "task.toml"
    task.write_text(TASK)
    assert list(lint(call, task)) == ["exponents"]
    assert call("profile", task)[0] == 0
    assert lint(call, task) == {}
    whole = task.read_text()
    task.write_text(whole.replace("h = ", "hh = "))
    code, out, _ = call("task", "check", "--lint", task)
    assert code == 2
    assert "lacks h and has hh, which the model does not have" in out
    labels = np.load(place / "y.npy")
    np.save(place / "y.npy", labels[:-1])
    (place / "model.onnx").write_bytes(b"\x08\x07")
    task.write_text(whole)
    assert {path.partition(":")[0] for path in lint(call, task)} == {"model.onnx", "data", "test"}


def test_one_line_a_place_at_most(call: Call, place: Path) -> None:
    """Whatever is in a file, each place is named once, and it ends."""
    task = place / "task.toml"
    for text in (
        "",
        "task = 3\nmodel = []\ndata = 1\noptimizer = false\n",
        '[task]\nname = ""\n[data]\nkind = "cloud"\n[data.prepare]\nstd = -1\n',
        TASK + '\n[proof]\nk = 99\n[beacon]\nchain = "x"\n[schedule]\nkind = "wsd"\n',
    ):
        task.write_text(text)
        code, out, _ = call("task", "check", "--lint", task, "--json")
        paths = [problem["path"] for problem in parse(out)["problems"]]
        assert code == 2
        assert paths
        assert len(paths) == len(set(paths))


# --- hints


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("verfy", "."), "Did you mean 'verify'?"),
        (("task", "chek", "x"), "Did you mean 'check'?"),
        (("verify", ".", "--sample", "3"), "--samples"),
    ],
)
def test_what_was_meant_is_suggested(call: Call, words: tuple[str, ...], hint: str) -> None:
    code, _, err = call(*words)
    assert (code, hint in err) == (2, True), err


def test_a_model_in_place_of_a_task_is_told(call: Call, place: Path) -> None:
    (place / "binary").write_bytes(b"\xff\xfe" + make_mlp_onnx(3))
    (place / "text.txt").write_text("Shall I compare thee\n")
    for name in ("binary", "text.txt"):
        code, _, err = call("train", place / name, "--out", place / "run")
        assert (code, "a task file (TOML) was expected: `vtrain init" in err) == (2, True), err


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(call: Call, shell: str) -> None:
    code, out, _ = call("completion", shell)
    assert (code, f"_VTRAIN_COMPLETE={shell}_complete" in out) == (0, True)


def test_a_shell_completes_commands_and_options() -> None:
    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        program = "from vtrain.cli import main\nmain()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | words | {"_VTRAIN_COMPLETE": "bash_complete"},
            capture_output=True,
            text=True,
            check=True,
        )
        return [row.partition(",")[2] for row in done.stdout.split()]

    assert complete("vtrain ver") == ["verify"]
    assert complete("vtrain task che") == ["check"]
    assert "--eval-every" in complete("vtrain train --ev")


# --- pictures


def test_plot_draws_runs(call: Call, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "p.svg"
    code, text, _ = call("plot", folder / "run", folder / "run", "--out", out, "--json")
    assert (code, parse(text)["picture"]) == (0, str(out))
    assert out.read_bytes().startswith(b"<?xml")
    assert call("plot", folder / "run", "--out", tmp_path / "p.gif")[0] == 2
    assert call("plot", folder, "--out", out)[0] == 2
