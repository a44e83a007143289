"""``vtrain prove`` and ``vtrain verify --mode proof``: usage, exit codes, what they print."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.audit.runs import KEY
from tests.cli.calls import TASK, Call
from tests.cli.test_kzg import PROOF
from tests.kzg import add_kzg, make_key
from tests.prove import step_runs
from tests.prove.steps import FakeEzkl, make_ready, open_key, put_bundle, train_run
from tests.tasks import make_mlp_onnx, make_samples, make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import public_key
from vtrain.commit.hiding import read_batch_secret, read_hiding
from vtrain.commit.kzg_log import iterate_kzg_log
from vtrain.errors import ProverError
from vtrain.prove import jobs
from vtrain.prove.backend.ezkl import Call as EzklCall
from vtrain.prove.backend.ezkl import require_extra, run_ezkl
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.settings import PinnedCircuit, pin
from vtrain.prove.batches import read_batches, sign_batches
from vtrain.prove.jobs import JobQueue
from vtrain.prove.proof_files import Item
from vtrain.prove.runs import read_run
from vtrain.prove.steps.prover import StepProver
from vtrain.prove.tiles.circuits import build_tile_circuit
from vtrain.prove.tiles.prover import TileProver
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.train.data import build_samples, gather_batch
from vtrain.train.task import CompiledTask
from vtrain.wire.batches import encode_batches
from vtrain.wire.bundle import ProofBundle, encode_bundle

STAGE = re.compile(r" +\d+\.\d s  (.*)")
PUBLIC = ("task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor")


srs, task, whole, bundle = step_runs.FIXTURES


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def public(run: Path, bundle: ProofBundle, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The public files of the run with a proof of step 5, and an ezkl that takes it."""
    FakeEzkl({bundle.proof}, []).install(monkeypatch)
    folder = run.with_name("public")
    folder.mkdir()
    for name in PUBLIC:
        shutil.copy(run / name, folder / name)
    put_bundle(folder, bundle)
    return folder


# --- vtrain prove


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name --steps, or draw them with --sample and --seed"),
        (["--sample", "1"], "name --steps, or draw them with --sample and --seed"),
        (["--seed", "00"], "name --steps, or draw them with --sample and --seed"),
        (["--steps", "1", "--seed", "00"], "--sample and --seed have no meaning"),
        (["--steps", "1", "--sample", "1"], "--sample and --seed have no meaning"),
        (["--steps", "0"], "'0': steps count from 1"),
        (["--steps", "3,0-2"], "'0-2': steps count from 1"),
        (["--steps", "3-2"], "no range"),
        (["--steps", "1-100000"], "no range"),
        (["--steps", "1,,2"], "neither a step nor a range"),
        (["--steps", "one"], "neither a step nor a range"),
        (["--steps", "1", "--k", "16"], "16 is not in the range"),
        (["--sample", "0", "--seed", "00"], "0 is not in the range"),
        (["--sample", "1", "--seed", "0x"], "needs 1 to 64 bytes"),
        (["--sample", "1", "--seed", "123"], "'123' has an odd number of hexadecimal digits, 3"),
        (["--sample", "1", "--seed", "12x"], "'12x' is not hexadecimal"),
    ],
)
def test_bad_usage_of_prove(
    call: Call, whole: Path, srs: Path, arguments: list[str], message: str
) -> None:
    code, out, err = call("prove", whole, "--srs", srs, *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert out == ""


def test_prove_needs_an_srs(call: Call, whole: Path) -> None:
    code, _, err = call("prove", whole, "--steps", 1)
    assert code == 2
    assert "Missing option '--srs'" in err


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch, bundle: ProofBundle) -> list[int]:
    """The steps that a prover was asked for; it hands out the proof of step 5 for each."""
    asked: list[int] = []

    def stand_in(prover: StepProver, item: Item, *more: Any) -> bytes:
        asked.append(item.step)
        return encode_bundle(bundle)

    monkeypatch.setattr(StepProver, "prove", stand_in)
    return asked


def test_steps_are_proven_once(
    call: Call, run: Path, srs: Path, prove: list[int], tmp_path: Path
) -> None:
    arguments = ("prove", run, "--srs", srs, "--cache", tmp_path, "--json")
    code, out, _ = call(*arguments, "--steps", "2-3,5,2")
    assert code == 0
    answer = json.loads(out)
    files = [run / "proofs" / f"step-{step:012d}.cbor" for step in (2, 3, 5)]
    assert answer["proofs"] == [str(path) for path in files]
    assert (answer["made"], sorted(prove)) == (3, [2, 3, 5])
    assert answer["srs"] == open_key(srs).srs.sha256.hex()
    assert all(path.is_file() for path in files)
    prove.clear()
    code, out, _ = call(*arguments, "--steps", "1-3")
    assert (code, json.loads(out)["made"], prove) == (0, 1, [1])
    code, out, _ = call(*arguments[:-1], "--steps", "1-3")
    assert code == 0
    assert "0 made, 3 there before" in out
    assert prove == [1]


def test_the_draw_is_that_of_verify(
    call: Call, run: Path, srs: Path, prove: list[int], tmp_path: Path
) -> None:
    draw = ("--seed", "0a0b")
    code, _, _ = call("prove", run, "--srs", srs, "--sample", 3, *draw, "--cache", tmp_path)
    assert code == 0
    with pytest.MonkeyPatch.context() as patch:
        FakeEzkl(set(), []).install(patch)
        code, out, _ = call(
            *("verify", run, "--mode", "proof", "--private", "--srs", srs, "--samples", 3),
            *(*draw, "--cache", tmp_path, "--json"),
        )
    assert code == 3
    asked = [c["where"] for c in json.loads(out)["checks"] if c["name"] == "proof"]
    assert asked == [f"step {step}" for step in sorted(prove)]


def test_a_step_that_cannot_be_proven_leaves_the_others(
    call: Call,
    run: Path,
    srs: Path,
    bundle: ProofBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(prover: StepProver, item: Item, *more: Any) -> bytes:
        if item.step == 6:
            raise ProverError("the process died", where="prove")
        return encode_bundle(bundle)

    monkeypatch.setattr(StepProver, "prove", fail)
    arguments = ("prove", run, "--srs", srs, "--cache", tmp_path)
    code, _, err = call(*arguments, "--steps", "5-6")
    assert code == 2
    assert "step 6: 1 of 2 not proven: prove: the process died [prover]" in err
    again = [line for line in err.splitlines() if "step 6: begin" in line]
    assert [line.partition("begin")[2] for line in again] == [
        "",
        " (attempt 2 of 3)",
        " (attempt 3 of 3)",
    ]
    assert err.count("step 6: prove: the process died\n") == 3
    assert (run / "proofs" / "step-000000000005.cbor").is_file()


def test_what_prove_refuses_at_once(
    call: Call, run: Path, srs: Path, prove: list[int], tmp_path: Path
) -> None:
    arguments = ("prove", run, "--steps", 5, "--cache", tmp_path)
    code, _, err = call(*arguments, "--srs", srs, "--memory", 1)
    assert code == 2
    assert "GiB of memory" in err
    assert "1.0 GiB are allowed" in err
    code, _, err = call(*arguments, "--srs", srs, "--k", 18)
    assert (code, "--k 18: the task has k = 17" in err) == (2, True)
    code, _, err = call("prove", run, "--steps", 7, "--srs", srs)
    assert (code, "step 7: the run has the steps 1 to 6" in err) == (2, True)
    other = tmp_path / "other"
    assert call("srs", "generate", "--k", 8, "--out", other)[0] == 0
    code, _, err = call(*arguments, "--srs", other)
    assert (code, "the task has" in err) == (2, True)
    code, _, err = call("prove", "setup", run, "--srs", other, "--cache", tmp_path / "keys")
    assert (code, "the task has" in err) == (2, True)
    assert not (tmp_path / "keys").exists()
    code, _, err = call(*arguments, "--srs", srs, "--circuit", "tiles")
    assert (code, 'it would need circuit = "tiles"' in " ".join(err.split())) == (2, True)
    (run / "data" / "samples.bin").rename(tmp_path / "table")
    code, _, err = call(*arguments, "--srs", srs)
    assert (code, "needs --data FILE" in err) == (2, True)
    assert call(*arguments, "--srs", srs, "--data", tmp_path / "table")[0] == 0
    (run / "log.bin").write_bytes(b"")
    code, out, err = call(*arguments, "--srs", srs, "--json")
    assert code == 2
    assert "log.bin" in json.loads(out)["error"]["where"]
    (run / "claim.cbor").unlink()
    for more in ((), ("--steps", 5, "--srs", srs)):
        code, _, err = call("prove", *(() if more else ("jobs",)), run, *more)
        assert (code, "holds no claim.cbor" in err) == (2, True)
    assert prove == [5]


def test_a_run_that_is_named_like_a_command(
    call: Call, run: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the new user's run is "run"."""
    monkeypatch.chdir(run.parent)
    assert run.name == "run"
    code, _, err = call("prove", "run", "--steps", 5, "--srs", srs)
    assert (code, "for the run of this name write ./run" in " ".join(err.split())) == (2, True)
    code, _, err = call("prove", "jobs")
    assert (code, "Missing argument 'RUN'" in err) == (2, True)
    code, _, err = call("prove", "./run", "--steps", 7, "--srs", srs)
    assert (code, "the run has the steps" in err) == (2, True)


def test_fewer_steps_than_were_to_be_drawn(
    call: Call, run: Path, srs: Path, prove: list[int], tmp_path: Path
) -> None:
    arguments = ("prove", run, "--srs", srs, "--cache", tmp_path, "--seed", "0a", "--json")
    said = "there are 6 steps that can be proven, all of them are drawn"
    for sample, drawn in ((6, 6), (1000, 6)):
        code, out, err = call(*arguments, "--sample", sample)
        answer = json.loads(out)
        assert (code, answer["asked"], answer["drawn"]) == (0, sample, drawn)
        assert (f"--sample {sample}: {said}" in err) == (sample > drawn)
    assert len(prove) == 6


def test_stages_are_told_where_there_is_no_terminal(
    call: Call, run: Path, srs: Path, bundle: ProofBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_in(
        prover: StepProver, item: Item, openings: Any, progress: Any, cancelled: Any
    ) -> bytes:
        for number, stage in enumerate(("witness", "witness", "prove", "verify", "verify")):
            progress(stage, number, 4)
        return encode_bundle(bundle)

    monkeypatch.setattr(StepProver, "prove", stand_in)
    code, _, err = call("prove", run, "--srs", srs, "--steps", "2,5")
    assert code == 0
    stages = [found[1] for line in err.splitlines() if (found := STAGE.fullmatch(line))]
    told = ("begin", "witness", "prove", "verify", "proven")
    assert stages == [f"step {step}: {stage}" for step in (2, 5) for stage in told]


def test_too_little_time_is_no_reason_to_try_again(
    call: Call, run: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(prover: StepProver, item: Item, *more: Any) -> bytes:
        asked.append(item.step)
        slow = EzklCall("gen_srs", {"srs_path": str(run / "big"), "logrows": 20})
        run_ezkl([slow], replace(prover._setup.limits, seconds=prover._setup.limits.seconds / 10))
        raise AssertionError("it has ended in time")

    monkeypatch.setattr(StepProver, "prove", fail)
    code, _, err = call("prove", run, "--srs", srs, "--steps", 5, "--timeout", 1)
    assert (code, asked) == (2, [5])
    assert "1 of 1 not proven: gen_srs: took more than 0.1 seconds, the limit (--timeout" in err
    code, _, err = call("prove", run, "--srs", srs, "--steps", 5, "--timeout", 1)
    assert (code, asked) == (2, [5, 5]), "whoever asks again has it tried again"


def test_labels_that_are_no_class(
    call: Call, task: CompiledTask, srs: Path, tmp_path: Path, prove: list[int]
) -> None:
    """The law takes the nearest class; such a run can be made by others, and trained by the law."""
    x, y = (np.array(task.samples.part(part)) for part in ("x", "y"))
    y[4] = 7
    samples = build_samples(x, y)
    spec = replace(task.spec, data=samples.spec)
    run = train_run(replace(task, spec=spec, samples=samples), tmp_path / "run")
    drawn = [
        step
        for step in range(1, 7)
        if 7 in gather_batch(samples, spec.seed, spec.batch, step)[1].tolist()
    ]
    assert 0 < len(drawn) < 6
    for step in range(1, 7):
        code, _, err = call("prove", run, "--srs", srs, "--steps", step)
        if step in drawn:
            assert code == 2
            assert f"step {step}: cannot be proven: its batch has the label 7" in err
            assert "none of the 4 classes (0 to 3)" in err
        else:
            assert code == 0
    assert not {*prove} & {*drawn}
    assert not (run / "proofs" / f"step-{drawn[0]:012d}.cbor").exists()


def test_jobs_of_workers_that_are_not_heard_of(call: Call, run: Path) -> None:
    """On the real clock, which went on since a minute and a half, or has an hour to go."""
    (run / "proofs").mkdir()
    run_id = read_run(run).signed.claim.run_id
    url, now = f"sqlite:///{run}/proofs/jobs.db", time.time_ns() // 1_000_000
    with JobQueue(url, now=lambda: now - 95_000) as queue:
        queue.add(run_id, [Item("step", 5)])
        assert queue.take("ann") is not None
    code, out, _ = call("prove", "jobs", run, "--json")
    (job,) = json.loads(out)["taken"]
    assert (code, job["worker"]) == (0, "ann")
    assert job["heard_s"] >= 95
    assert job["lease_s"] <= -35
    code, out, _ = call("prove", "jobs", run)
    assert re.search(r"^heard of +\d+ s ago$", out, re.MULTILINE)
    assert re.search(r"^lease +ran out \d+ s ago: the next worker", out, re.MULTILINE)
    with JobQueue(url, now=lambda: now + 3_600_000) as queue:
        assert queue.take("bob") is not None
    code, out, _ = call("prove", "jobs", run)
    assert re.search(r"^lease +runs out in \d+ s$", out, re.MULTILINE)


def open_queue(run: Path, name: str = "jobs.db", **options: Any) -> JobQueue:
    (run / "proofs").mkdir(exist_ok=True)
    return JobQueue(f"sqlite:///{run}/proofs/{name}", **options)


def pace_work(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[float]:
    """The seconds for which a worker waits for a job, where it waits none: it acts instead."""
    waits: list[float] = []

    def wait(event: threading.Event, seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            event.wait(seconds)  # a heartbeat
            return
        waits.append(seconds)
        act()

    monkeypatch.setattr(jobs, "work", partial(jobs.work, pace=jobs.Pace(wait=wait)))
    return waits


def test_prove_does_what_it_is_asked_for(
    call: Call, run: Path, srs: Path, prove: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier call that was interrupted had asked for is mentioned, and left."""
    waits = pace_work(monkeypatch, lambda: pytest.fail("there is nothing to wait for"))
    run_id = read_run(run).signed.claim.run_id
    with open_queue(run) as queue:
        queue.add(run_id, [Item("step", step) for step in (1, 2)])
        code, _, err = call("prove", run, "--srs", srs, "--steps", 5)
        assert (code, prove) == (0, [5])
        assert f"2 more, asked for before, wait: `vtrain prove jobs {run} --cancel` drops" in err
        code, _, err = call("prove", run, "--srs", srs, "--steps", 1)
        assert (code, prove) == (0, [5, 1])
        assert "1 more, asked for before, waits: " in err
        assert call("prove", "jobs", run, "--cancel")[0] == 0
        code, _, err = call("prove", run, "--srs", srs, "--steps", 3)
        assert (code, "asked for before" in err) == (0, False)
        assert queue.status(run_id).counts["cancelled"] == 1
    assert waits == []


def test_prove_says_whom_it_waits_for_and_who_made_what(
    call: Call, run: Path, srs: Path, prove: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = read_run(run).signed.claim.run_id
    with open_queue(run) as queue:
        queue.add(run_id, [Item("step", 6)])
        theirs = queue.take("bob\n:1", 3600.0)
        assert theirs is not None
        waits = pace_work(monkeypatch, lambda: len(waits) == 2 and queue.finish(theirs, b"proof"))
        code, out, err = call("prove", run, "--srs", srs, "--steps", "5,6")
    assert (code, prove, len(waits)) == (0, [5], 2)
    said = re.findall(r"^step 6: waiting for bob :1, whose lease runs out in \d+ s$", err, re.M)
    assert len(said) == 1
    assert "1 made, 1 found in the queue, 0 there before" in out
    code, out, _ = call("prove", run, "--srs", srs, "--steps", "5,6", "--json")
    assert (code, json.loads(out)["made"]) == (0, 0)


def test_sigterm_interrupts_and_cleans_up(
    call: Call, run: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = []

    def stand_in(prover: StepProver, item: Item, *more: Any) -> bytes:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # one more does not disturb
            cleaned.append(item.step)
        return b""

    def ours(number: int, frame: object) -> None:
        """Of the test, which a command that takes no notice would end."""

    monkeypatch.setattr(StepProver, "prove", stand_in)
    before = signal.signal(signal.SIGTERM, ours)
    try:
        run_id = read_run(run).signed.claim.run_id
        with open_queue(run) as queue:
            url = ("--queue", f"sqlite:///{run}/proofs/jobs.db")
            for words in (("prove", run, "--steps", 5), ("prove", "work", run, *url)):
                code, _, err = call(*words, "--srs", srs)
                assert (code, "vtrain: terminated" in err.splitlines()) == (143, True)
                assert queue.status(run_id).counts["waiting"] == 1, "given back"
                assert signal.getsignal(signal.SIGTERM) is ours
        assert cleaned == [5, 5]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_queue_that_is_not_there(call: Call, run: Path, srs: Path, prove: list[int]) -> None:
    absent = run.parent / "none.db"
    url = ("--queue", f"sqlite:///{absent}")
    for words in (("jobs", run), ("jobs", run, "--cancel"), ("work", run, "--srs", srs, "--once")):
        code, _, err = call("prove", *words, *url)
        assert (code, "there is no queue" in err) == (2, True)
        assert not absent.exists()
    assert call("prove", run, "--srs", srs, "--steps", 5, *url)[0] == 0
    code, out, _ = call("prove", "work", run, "--srs", srs, "--once", *url)
    assert (code, out) == (0, "0 proofs made\n")
    with JobQueue(url[1]) as queue:
        queue.add(read_run(run).signed.claim.run_id, [Item("step", 6)])
    code, out, _ = call("prove", "work", run, "--srs", srs, "--once", *url)
    assert (code, out) == (0, "1 proof made\n")


def test_setup_of_each_circuit(
    call: Call, run: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeEzkl(set(), [])
    monkeypatch.setattr("vtrain.prove.steps.prepare.prepare_circuit", fake.prepare)
    setup = ("prove", "setup", run, "--srs", srs)
    digests: dict[str, str] = {}
    for more, names in (
        ((), ["step"]),
        (("--circuit", "step-clamps"), ["step-clamps"]),
        (("--circuit", "step", "--circuit", "step-clamps"), ["step", "step-clamps"]),
        (("--circuit", "step", "--circuit", "step"), ["step"]),
    ):
        fake.prepared.clear()
        code, out, _ = call(*setup, *more, "--json")
        found = json.loads(out)["circuits"]
        assert (code, sorted(found), sorted(fake.prepared)) == (0, names, names)
        for name in names:
            assert digests.setdefault(name, found[name]["circuit"]) == found[name]["circuit"]
    assert digests["step"] != digests["step-clamps"]
    code, out, _ = call(*setup, "--circuit", "step-clamps")
    assert code == 0
    assert out.startswith("[proof.circuits.step-clamps]")
    assert f'circuit = "{digests["step-clamps"]}"' in out
    code, _, err = call(*setup, "--circuit", "square")
    assert (code, 'circuit = "step", of which square is none' in " ".join(err.split())) == (2, True)
    code, _, err = call(*setup, "--circuit", "squares")
    assert (code, "'squares' is not one of 'step', 'step-clamps'" in err) == (2, True)


# --- tiles


@pytest.fixture(scope="module")
def tile_srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "srs"
    make_key(path, 15)
    return path


@pytest.fixture(scope="module")
def tiles(tile_srs: Path) -> Path:
    """A run whose commitments are to tiles, without traces.  Tests may add them."""
    tiny = make_tiny_task(steps=2, commit_every=1, checkpoint_every=2, samples=10, batch=4)
    task = add_kzg(tiny, make_key(tile_srs, 15), circuit="tiles")
    return train_run(task, tile_srs.parent / "run")


def test_setup_of_tiles(
    call: Call, tiles: Path, tile_srs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All circuits that a step needs, or those that are asked for, with their digests at this k."""
    (tmp_path / "vk").write_bytes(b"key")
    key = blake3(b"key").digest()

    def load(pinned: PinnedCircuit, *others: Any, **options: Any) -> Keys:
        return Keys(tmp_path, pinned.digest, b"\2" * 32, key, 1000)

    monkeypatch.setattr("vtrain.prove.setup.load_keys", load)
    setup = ("prove", "setup", tiles, "--srs", tile_srs)
    code, out, _ = call(*setup, "--json")
    tiling = Tiling(read_run(tiles).graph)
    made = {tiling.statement(i, StepFacts(1, 0)).circuit for i in range(len(tiling))}
    assert (code, {*json.loads(out)["circuits"]}) == (0, made)
    code, out, _ = call(*setup, "--circuit", "square")
    digest = pin(build_tile_circuit("square"), 15).digest.hex()
    assert (code, f'circuit = "{digest}"' in out, f'key = "{key.hex()}"' in out) == (0, True, True)
    assert "# on chain: no contract: proof.hash is blake3, and contracts draw" in out
    export = tmp_path / "out"
    for _ in range(2):
        code, out, _ = call(*setup, "--circuit", "square", "--export", export)
        assert (code, f"# exported to {export}" in out) == (0, True)
    index = json.loads((export / "index.json").read_text())["circuits"]
    assert {name: entry["circuit"] for name, entry in index.items()} == {"square": digest}
    code, out, _ = call(*setup, "--export", tmp_path / "all", "--json")
    assert (code, json.loads(out)["export"]) == (0, str(tmp_path / "all"))
    assert {path.parent.name for path in (tmp_path / "all").glob("*/vk")} == made
    code, _, err = call(*setup, "--circuit", "mul", "--export", export)
    assert (code, "holds something else" in " ".join(err.split())) == (2, True)
    code, _, err = call(*setup, "--circuit", "step")
    assert (code, 'circuit = "tiles", of which step is none' in " ".join(err.split())) == (2, True)


def test_two_draws_of_tiles(
    call: Call, tiles: Path, tile_srs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(tiles, tmp_path / "run"))
    given = (run, "--srs", tile_srs)
    second = ("prove", *given, "--sample", 1000, "--seed", "bb")
    code, _, err = call(*second)
    assert code == 2
    assert "no steps are traced yet: the auditor's first draw is answered before, by" in err
    assert f"vtrain prove traces {run} --sample N --seed HEX --key KEY --srs {tile_srs}" in err
    code, _, err = call("prove", *given, "--steps", 1)
    assert (code, "tiles are drawn" in err) == (2, True)
    audit = ("verify", *given, "--mode", "proof", "--private")
    code, _, err = call(*audit, "--samples", 3, "--seed", "bb")
    assert (code, "--trace-seed and --trace-samples drew the steps" in err) == (2, True)
    first = ("--trace-seed", "aa", "--trace-samples", 2, "--allow-insecure-srs", "--json")
    code, out, err = call(*audit, "--samples", 3, "--seed", "bb", *first)
    assert (code, "the solver claimed no traces" in json.loads(out)["reason"]["detail"]) == (
        3,
        True,
    )

    key = tmp_path / "key.pem"
    pem = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    key.write_bytes(KEY.private_bytes(*pem))
    traces = ("prove", "traces", *given, "--seed", "aa", "--key", key, "--json")
    code, out, err = call(*traces, "--sample", 7)
    answer = json.loads(out)
    assert (code, answer["asked"], sorted(answer["steps"])) == (0, 7, [1, 2])
    assert "--sample 7: there are 2 steps that can be proven, all of them are drawn" in err

    monkeypatch.setattr(TileProver, "prove", lambda *others: b"")
    code, out, err = call(*second, "--json")
    answer, count = json.loads(out), answer["statements"]
    assert (code, answer["asked"], answer["drawn"]) == (0, 1000, count)
    said = f"there are {count} statements about the steps traced, all of them are drawn"
    assert f"--sample 1000: {said}" in err


# --- vtrain prove batches


def test_batches_are_signed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(make_mlp_onnx())
    samples = make_samples((16,), 60, 1)
    for part in ("x", "y"):
        np.save(tmp_path / f"{part}.npy", samples.part(part))
    task, srs, key, out = (tmp_path / name for name in ("task.toml", "a.srs", "key.pem", "out"))
    made = json.loads(call("srs", "generate", "--k", 10, "--out", srs, "--json")[1])
    text = TASK.replace("[model]", 'commitments = ["blake3", "kzg"]\n[model]')
    task.write_text(text + PROOF + f'sha256 = "{made["sha256"]}"\n')
    assert call("profile", task)[0] == 0
    owner = json.loads(call("key", "new", key, "--json")[1])["public"]
    secret = tmp_path / "hiding.key"
    signing = ("prove", "batches", task, "--key", key, "--out", out, "--hiding", secret)
    code, answer, _ = call(*signing, "--srs", srs, "--json")
    assert code == 0
    shown = {"file": str(out), "secret": str(secret), "owner": owner, "batches": 4}
    assert json.loads(answer) == shown
    signed = read_batches(out)
    assert (signed.owner.hex(), len(signed.commitments)) == (owner, 4)
    assert secret.stat().st_mode & 0o777 == 0o600
    kept = read_batch_secret(secret)
    code, _, err = call(*signing, "--srs", srs)
    assert (code, "exists already" in err) == (2, True)
    out.unlink()
    assert json.loads(call(*signing, "--srs", srs, "--json")[1])["batches"] == 4
    assert read_batches(out) == signed, "the secret that is there is taken"
    run = tmp_path / "run"
    assert call("train", task, "--srs", srs, "--out", run, "--batch-hiding", secret)[0] == 0
    with (run / "kzg.bin").open("rb") as file:
        logged = [record.batch for record in iterate_kzg_log(file)]
    assert logged == [*signed.commitments]
    secret.write_bytes((run / "hiding.key").read_bytes())
    out.unlink()
    for command in (signing, ("train", task, "--out", run, "--batch-hiding", secret)):
        code, _, err = call(*command, "--srs", srs)
        assert (code, "is not what an owner of batches hands over" in err) == (2, True)
    secret.unlink()
    assert call(*signing, "--srs", srs)[0] == 0
    assert read_batch_secret(secret) != kept
    assert read_batches(out).commitments != signed.commitments
    out.unlink()
    code, _, err = call("train", task, "--srs", srs, "--out", run, "--batch-hiding", secret)
    assert (code, "has another secret of batches than the one given" in err) == (2, True)
    code, _, err = call(*signing)
    assert (code, "lost.srs" in err) == (2, True)
    task.write_text(TASK)
    assert call("profile", task)[0] == 0
    code, _, err = call(*signing)
    assert (code, "TASK asks for no KZG commitments" in err) == (2, True)


# --- vtrain verify --mode proof


def verify(call: Call, run: Path, *arguments: object) -> tuple[int, Any]:
    code, out, err = call("verify", run, "--mode", "proof", *arguments, "--json")
    assert all(STAGE.fullmatch(line) for line in err.splitlines())
    return code, json.loads(out)


def pinning(run: Path) -> tuple[str, str]:
    """The options of an auditor who had pinned the claim of this run."""
    return "--claim", compute_claim_digest(read_run(run).signed.claim).hex()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "proof", "--samples", "0", "SRS"], "--samples 0 asks for no proof"),
        (["--mode", "proof", "--steps", "5"], "--mode proof needs --srs"),
        (["--mode", "proof", "--all"], "name --steps in mode proof"),
        (["--private"], "--private has a meaning in --mode proof alone"),
        (["--steps", "5"], "--steps has a meaning in --mode proof alone"),
        (["--allow-insecure-srs"], "--allow-insecure-srs has a meaning in --mode proof alone"),
        (["--owner", "00" * 32], "--owner has a meaning in --mode proof alone"),
        (["--k", "17"], "--k has a meaning in --mode proof alone"),
        (["--mode", "proof", "--steps", "5", "--samples", "1", "SRS"], "--steps names them"),
        (["--mode", "proof", "--steps", "5", "--seed", "00", "SRS"], "--steps names them"),
        (["--mode", "proof", "--owner", "00" * 32, "SRS"], "belong together"),
        (["--mode", "proof", "--owner", "00" * 31, "SRS"], "needs 32 bytes"),
        (["--mode", "prove"], "is not one of"),
    ],
)
def test_bad_usage_of_verify(
    call: Call, whole: Path, srs: Path, arguments: list[str], message: str
) -> None:
    given = [more for item in arguments for more in (("--srs", srs) if item == "SRS" else (item,))]
    code, out, err = call("verify", whole, *given)
    assert code == 2
    assert message in " ".join(err.split())
    assert out == ""


def test_an_insecure_srs_is_said_and_decides_the_exit_code(
    call: Call, public: Path, srs: Path
) -> None:
    given = ("--private", "--steps", 5, "--srs", srs, *pinning(public))
    code, report = verify(call, public, *given)
    assert (code, report["verdict"], report["reason"]) == (4, "conditional", None)
    [assumption] = report["assumptions"]
    assert (assumption["code"], assumption["accepted"]) == ("insecure-srs", False)
    code, report = verify(call, public, *given, "--allow-insecure-srs")
    assert (code, report["verdict"]) == (0, "verified")
    assert report["assumptions"] == [{**assumption, "accepted": True}]
    assert any("INSECURE SRS" in line for line in report["strength"]["unchecked"])
    code, out, _ = call("verify", public, "--mode", "proof", *given, "--allow-insecure-srs")
    assert code == 0
    assert "Verdict: VERIFIED" in out
    assert "INSECURE SRS" in out
    _, out, _ = call("verify", public, "--mode", "proof", *given)
    assert "it holds only if whoever made the SRS" in out


def test_steps_named_without_a_pinned_claim_are_predictable(
    call: Call, public: Path, srs: Path
) -> None:
    """Proofs are made after the steps are named: a claim could have been made to fit them."""
    given = ("--private", "--steps", 5, "--srs", srs, "--allow-insecure-srs")
    code, report = verify(call, public, *given)
    assert (code, report["verdict"]) == (4, "conditional")
    codes = [(item["code"], item["accepted"]) for item in report["assumptions"]]
    assert codes == [("predictable-sample", False), ("insecure-srs", True)]
    assert verify(call, public, *given, *pinning(public))[0] == 0
    code, report = verify(call, public, *given, "--claim", "00" * 32)
    assert (code, report["reason"]["name"]) == (3, "claim")


def test_what_is_wrong_with_the_run_is_a_verdict(call: Call, public: Path, srs: Path) -> None:
    given = ("--private", "--steps", 5, "--srs", srs, "--allow-insecure-srs", *pinning(public))
    path = public / "proofs" / "step-000000000005.cbor"
    good = path.read_bytes()
    for data in (b"", good[:-1], b"\xff" * 100):
        path.write_bytes(data)
        assert verify(call, public, *given)[0] == 3
    path.unlink()
    code, report = verify(call, public, *given)
    assert (code, report["reason"]["detail"]) == (3, "the file is missing")
    path.write_bytes(good)
    assert verify(call, public, *given)[0] == 0
    for name in PUBLIC:
        data = (public / name).read_bytes()
        for other in (data[:-1], b""):
            (public / name).write_bytes(other)
            code, report = verify(call, public, *given)
            assert (code, report["verdict"]) == (3, "inconclusive"), name
        (public / name).write_bytes(data)


def test_what_is_wrong_with_the_arguments_is_an_error(
    call: Call, public: Path, srs: Path, tmp_path: Path
) -> None:
    given = ("verify", public, "--mode", "proof", "--private", "--allow-insecure-srs")
    code, _, err = call(*given, "--srs", srs, "--steps", 7)
    assert (code, "step 7: the run has the steps 1 to 6" in err) == (2, True)
    code, _, err = call(*given, "--srs", srs, "--steps", 5, "--k", 18)
    assert (code, "--k 18: the task has k = 17" in err) == (2, True)
    code, _, err = call(*given, "--srs", srs, "--steps", 5, "--trace-claim", "00" * 32)
    assert (code, "the task commits to whole steps" in err) == (2, True)
    code, _, err = call(*given, "--srs", public / "log.bin", "--steps", 5)
    assert (code, "[srs]" in err) == (2, True)
    (tmp_path / "batches").write_bytes(b"none")
    code, _, err = call(
        *(*given, "--srs", srs, "--steps", 5, "--owner", "00" * 32),
        *("--batches", tmp_path / "batches"),
    )
    assert (code, "[encoding]" in err, f"{tmp_path}/batches: " in err) == (2, True, True)
    other = tmp_path / "other"
    assert call("srs", "generate", "--k", 8, "--out", other)[0] == 0
    code, report = verify(call, public, "--private", "--steps", 5, "--srs", other)
    assert (code, report["reason"]["name"]) == (3, "srs")


def test_stages_of_verifying_are_told_where_there_is_no_terminal(
    call: Call, public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_key(graph: Any, setup: Any, name: str, *, progress: Any, **options: Any) -> Any:
        progress("keys", 0, 3)
        return make_ready(graph, setup, name)

    monkeypatch.setattr("vtrain.prove.steps.verifier.prepare_circuit", make_key)
    named = ("--steps", 5, "--srs", srs, "--allow-insecure-srs", *pinning(public))
    given = ("--mode", "proof", "--private", *named)
    code, _, err = call("verify", public, *given)
    assert code == 0
    assert [found[1] for line in err.splitlines() if (found := STAGE.fullmatch(line))][-3:] == [
        "proofs",
        "keys",
        "proofs",
    ]
    file = public / "proofs" / "step-000000000005.cbor"
    file.write_bytes(file.read_bytes()[:-1])
    _, report = verify(call, public, *given[2:])
    where = report["reason"]["where"]
    assert re.fullmatch(r"step 5: proofs/step-000000000005\.cbor: byte \d+", where)


def test_batches_of_the_owner(
    call: Call, run: Path, public: Path, srs: Path, task: CompiledTask, tmp_path: Path
) -> None:
    file = tmp_path / "batches"
    secret = read_hiding(run / "hiding.key").batches
    signed = sign_batches(task.spec, task.graph, task.samples, open_key(srs), KEY, secret)
    file.write_bytes(encode_batches(signed))
    named = ("--steps", 5, "--srs", srs, "--allow-insecure-srs", *pinning(public))
    given = ("--private", *named, "--batches", file)
    owner = public_key(KEY).hex()
    code, report = verify(call, public, *given, "--owner", owner)
    assert code == 0
    assert "owner" in [check["name"] for check in report["checks"]]
    code, report = verify(call, public, *given, "--owner", "00" * 32)
    assert (code, report["reason"]["name"]) == (3, "owner")


def test_the_task_agreed_on(call: Call, public: Path, srs: Path, task: CompiledTask) -> None:
    named = ("--steps", 5, "--srs", srs, "--allow-insecure-srs", *pinning(public))
    given = ("--private", *named, "--task-id")
    assert verify(call, public, *given, task.task_id.hex())[0] == 0
    assert verify(call, public, *given, "00" * 32)[0] == 3


def test_without_the_extra(
    call: Call, public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, and what to install."""
    monkeypatch.setattr("vtrain.prove.backend.ezkl.util.find_spec", lambda name: None)
    monkeypatch.setattr("vtrain.prove.audit.require_extra", require_extra)
    code, _, err = call("verify", public, "--mode", "proof", "--steps", 5, "--srs", srs)
    assert code == 3
    assert "pip install 'vtrain[zk]'" in err
