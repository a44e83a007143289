"""Audits by proofs: every way to spoil a run or its proofs ends in a report that says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.runs import (
    KEY,
    failed,
    read_kzg_leaves,
    read_leaves,
    reason_of,
    sign_again,
    write_kzg_leaves,
    write_leaves,
)
from tests.kzg import make_kzg_task
from tests.prove import steps as made
from tests.prove.steps import (
    STEPS,
    FakeEzkl,
    alter,
    make_audit,
    make_bundle,
    make_proof_task,
    make_setup,
    open_key,
    put_bundle,
    train_run,
)
from tests.tasks import make_tiny_task
from vtrain.attest.keys import public_key
from vtrain.errors import CircuitError, MissingExtraError, ProverError, RunError, SrsError
from vtrain.prove import audit as module
from vtrain.prove.audit import choose_steps, verify_proofs
from vtrain.prove.batches import sign_batches
from vtrain.prove.runs import ProofSetup, read_run
from vtrain.prove.srs import generate_srs
from vtrain.train.layout import RunPaths
from vtrain.train.task import CompiledTask
from vtrain.wire.bundle import ProofBundle, decode_bundle, encode_bundle
from vtrain.wire.proof import decode_kzg_record, encode_kzg_record
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.report import Report
from vtrain.wire.task import encode_task

PUBLIC = ("task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor")


@pytest.fixture(scope="module")
def srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("srs") / "srs"
    open_key(path)
    return path


@pytest.fixture(scope="module")
def task(srs: Path) -> CompiledTask:
    return make_proof_task(srs)


@pytest.fixture(scope="module")
def whole(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all of its tensors."""
    return train_run(task, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def bundle(whole: Path, srs: Path) -> ProofBundle:
    return make_bundle(whole, srs, 5)


@pytest.fixture
def ezkl(bundle: ProofBundle, monkeypatch: pytest.MonkeyPatch) -> FakeEzkl:
    fake = FakeEzkl({bundle.proof}, [])
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def run(whole: Path, bundle: ProofBundle, tmp_path: Path) -> Path:
    """A copy of the run with a proof of step 5."""
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    put_bundle(copy, bundle)
    return copy


@pytest.fixture
def public(run: Path) -> Path:
    return publish(run)


def publish(run: Path) -> Path:
    """Only what a private audit needs, in a folder of its own."""
    folder = run.with_name("public")
    folder.mkdir()
    for name in PUBLIC:
        shutil.copy(run / name, folder / name)
    shutil.copytree(run / "proofs", folder / "proofs")
    return folder


def audit(run: Path, srs: Path, **options: Any) -> Report:
    return verify_proofs(run, make_audit(srs, run.parent / "cache", **options))


def check_refused(report: Report, name: str, detail: str, fault: str = "nobody") -> None:
    found = next(check for check in failed(report) if check.name == name)
    assert detail in found.detail
    assert found.fault == fault
    assert report.verdict == ("fraud" if fault == "solver" else "inconclusive")
    if name != "srs":
        assert report.segments == ()


# --- the steps asked for


def test_named_steps_are_taken_once_and_in_order(whole: Path) -> None:
    run = read_run(whole)
    drawn, randomness = choose_steps(run, every=1, steps=(5, 2, 5), sample=None, seed=None)
    assert (drawn, randomness) == ((2, 5), None)
    assert choose_steps(run, every=1, steps=(), sample=None, seed=None)[0] == ()


@pytest.mark.parametrize(("every", "step"), [(1, 0), (1, STEPS + 1), (3, 2), (4, 5), (4, 8)])
def test_a_step_that_cannot_be_proven_is_a_bad_argument(whole: Path, every: int, step: int) -> None:
    with pytest.raises(RunError, match=f"step {step}: proofs are of multiples of {every} up to"):
        choose_steps(read_run(whole), every=every, steps=(every, step), sample=None, seed=None)


def test_drawn_steps_follow_from_claim_and_seed(whole: Path) -> None:
    run = read_run(whole)

    def draw(seed: bytes, sample: int | None, every: int = 1) -> tuple[int, ...]:
        drawn, randomness = choose_steps(run, every=every, steps=None, sample=sample, seed=seed)
        assert randomness is not None
        assert randomness.predictable
        return drawn

    assert draw(b"a", 3) == draw(b"a", 3)
    assert len({draw(bytes([i]), 3) for i in range(20)}) > 5
    assert len(draw(b"a", None)) == 1
    assert draw(b"a", 100) == tuple(range(1, STEPS + 1))
    assert draw(b"a", 100, 2) == (2, 4, 6)
    assert draw(b"a", 0) == ()
    assert draw(b"a", 3, STEPS + 1) == ()
    fresh = [
        choose_steps(run, every=1, steps=None, sample=1, seed=None, random=lambda count: b"f" * 32)
        for _ in range(2)
    ]
    assert fresh[0] == fresh[1]
    assert fresh[0][1] is not None
    assert not fresh[0][1].predictable
    with pytest.raises(RunError, match="1 to 64 bytes"):
        choose_steps(run, every=1, steps=None, sample=1, seed=b"")


# --- good proofs


@pytest.mark.usefixtures("ezkl")
def test_a_proof_with_public_files_alone(public: Path, srs: Path) -> None:
    report = audit(public, srs)
    assert report.verdict == "verified"
    assert report.segments == ((5, 5),)
    assert report.detections == ()
    checked, unchecked = report.strength.checked, report.strength.unchecked
    assert checked[0].startswith("1 of 6 steps that can be proven, each whole, by ZK proof (steps")
    assert "each proof is of the commitments in the signed log" in checked
    for words in (
        "KZG and BLAKE3 roots were not compared",
        "where the batches came from",
        "can be guessed",
        f"INSECURE SRS {open_key(srs).srs.sha256.hex()}",
        "the steps were named, not drawn",
        "5 steps without a proof",
        "its id was taken from the run itself",
    ):
        assert any(words in line for line in unchecked), words


@pytest.mark.usefixtures("ezkl")
def test_a_proof_with_the_tensors(run: Path, srs: Path, task: CompiledTask) -> None:
    report = audit(run, srs, private=False)
    assert report.verdict == "verified"
    assert {"batches", "checkpoints", "samples"} <= {check.name for check in report.checks}
    assert any("of the tensors in the run" in line for line in report.strength.checked)
    assert not any("roots were not compared" in line for line in report.strength.unchecked)
    shutil.move(run / "data" / "samples.bin", run.parent / "table")
    report = audit(run, srs, private=False, data=run.parent / "table")
    assert report.verdict == "verified"
    report = audit(run, srs, private=False)
    check_refused(report, "proof", "needs the samples")


@pytest.mark.usefixtures("ezkl")
def test_a_drawn_step(public: Path, srs: Path, bundle: ProofBundle) -> None:
    options = {"steps": None, "sample": 1}
    seeds = (bytes([i]) for i in range(100))
    signed = read_run(public)
    seed = next(
        s for s in seeds if choose_steps(signed, every=1, steps=None, sample=1, seed=s)[0] == (5,)
    )
    report = audit(public, srs, seed=seed, **options)
    assert report.verdict == "verified"
    assert report.randomness is not None
    assert report.randomness.value == seed
    assert [item.segments for item in report.detections] == [6] * 5
    assert report.detections[0].probability == pytest.approx(1 / 6)
    given = make_audit(srs, public, **options)
    report = verify_proofs(public, given, random=lambda count: seed.ljust(count, b"\0"))
    assert report.randomness is not None
    assert not report.randomness.predictable


def test_every_third_step(tmp_path: Path, srs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only steps that are logged can be asked for, and the record is that of the step."""
    run = train_run(make_proof_task(srs, every=3), tmp_path / "run")
    bundles = [make_bundle(run, srs, step) for step in (3, 6)]
    FakeEzkl({bundle.proof for bundle in bundles}, []).install(monkeypatch)
    for bundle in bundles:
        put_bundle(run, bundle)
    report = audit(publish(run), srs, steps=None, sample=2, seed=b"s")
    assert report.verdict == "verified"
    assert report.segments == ((3, 3), (6, 6))
    assert any(line.startswith("2 of 2 steps") for line in report.strength.checked)
    with pytest.raises(RunError, match="multiples of 3 up to 6"):
        audit(run, srs, steps=(2,))
    put_bundle(run, bundles[0], 6)
    report = audit(run, srs, steps=(6,))
    check_refused(report, "proof", "step is not that of this step")


def test_a_task_that_pins_nothing(
    tmp_path: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any SRS serves an auditor with the tensors; without them there is nothing to go by."""
    task = make_tiny_task(steps=4, commit_every=2, checkpoint_every=2, samples=10, batch=4)
    run = train_run(task, tmp_path / "run")
    bundle = make_bundle(run, srs, 3)
    FakeEzkl({bundle.proof}, []).install(monkeypatch)
    put_bundle(run, bundle)
    report = audit(run, srs, steps=(3,), private=False)
    assert report.verdict == "verified"
    report = audit(run, srs, steps=(3,))
    check_refused(report, "proof", "no signed commitments")


@pytest.mark.usefixtures("ezkl")
def test_no_step_is_no_verdict(public: Path, srs: Path) -> None:
    report = audit(public, srs, steps=())
    assert (report.verdict, reason_of(report).detail) == ("inconclusive", "no step was asked for")


# --- the SRS


@pytest.mark.usefixtures("ezkl")
def test_an_insecure_srs_must_be_allowed(public: Path, srs: Path) -> None:
    report = audit(public, srs, allow_insecure_srs=False)
    check_refused(report, "srs", "whoever made it can forge proofs")
    assert report.segments == ((5, 5),), "the proof is looked at all the same"


@pytest.mark.usefixtures("ezkl")
def test_another_srs_than_the_tasks(public: Path, srs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    generate_srs(other, 8)
    check_refused(audit(public, other), "srs", "the task has")
    other.write_bytes(srs.read_bytes()[:-1])
    with pytest.raises(SrsError):
        audit(public, other)
    with pytest.raises(RunError, match="k 18: the task has 17"):
        verify_proofs(
            public,
            replace(
                make_audit(srs, tmp_path),
                setup=lambda task: ProofSetup.for_task(
                    task, srs, tmp_path, made.LIMITS, made.MEMORY, 18
                ),
            ),
        )


# --- proofs that are none


def drop(path: Path, bundle: ProofBundle) -> None:
    path.unlink()


def cut(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def extend(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(b"")


def make_folder(path: Path, bundle: ProofBundle) -> None:
    path.unlink()
    path.mkdir()


def make_loop(path: Path, bundle: ProofBundle) -> None:
    path.unlink()
    path.symlink_to(path)


def make_pipe(path: Path, bundle: ProofBundle) -> None:
    path.unlink()
    path.parent.joinpath("x").touch()
    import os

    os.mkfifo(path)


def make_giant(path: Path, bundle: ProofBundle) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nest(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(b"\x81" * 100_000)


def cut_proof(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(encode_bundle(replace(bundle, proof=bundle.proof[:-1])))


def extend_proof(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(encode_bundle(replace(bundle, proof=bundle.proof + b"\0")))


def change_end(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(encode_bundle(replace(bundle, proof=bundle.proof[:-1] + b"\1")))


def shortest(path: Path, bundle: ProofBundle) -> None:
    path.write_bytes(encode_bundle(replace(bundle, proof=bytes(64))))


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        (drop, "the file is missing"),
        (cut, "bytes"),
        (extend, "bytes"),
        (empty, "an item is missing"),
        (make_folder, "is not a regular file"),
        (make_loop, "symbolic links"),
        (make_pipe, "is not a regular file"),
        (make_giant, "more than 16777216"),
        (nest, "nest"),
        (cut_proof, "the proof has"),
        (extend_proof, "the proof has"),
        (shortest, "the proof has 64 bytes"),
        (change_end, "ezkl said no"),
    ],
)
@pytest.mark.usefixtures("ezkl")
def test_bytes_that_are_no_proof(
    public: Path,
    srs: Path,
    bundle: ProofBundle,
    spoil: Callable[[Path, ProofBundle], None],
    detail: str,
) -> None:
    path = public / "proofs" / "step-000000000005.cbor"
    spoil(path, bundle)
    check_refused(audit(public, srs), "proof", detail)


@pytest.mark.usefixtures("ezkl")
def test_flipped_bits_of_a_proof_file(public: Path, srs: Path) -> None:
    """One in each byte of the statement, and some of the proof: none is taken for a proof."""
    path = public / "proofs" / "step-000000000005.cbor"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    places = rng.choice(len(data), 40, replace=False)
    for byte in map(int, places):
        changed = bytearray(data)
        changed[byte] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        report = audit(public, srs)
        assert report.verdict == "inconclusive", byte
        assert [check.name for check in failed(report)] == ["proof"], byte


FALSE: dict[str, Any] = {
    "kind": "tile",
    "task_id": b"\1" * 32,
    "run_id": b"\1" * 32,
    "claim": b"\1" * 32,
    "step": 4,
    "name": "another",
    "index": 1,
    "circuit": b"\1" * 32,
    "key": b"\1" * 32,
    "srs": b"\1" * 32,
    "insecure": False,
    "k": 18,
    "ezkl": "23.0.4",
    "parameters": {"loss": (1,), "rate": (40960,)},
}


@pytest.mark.parametrize("name", FALSE)
@pytest.mark.usefixtures("ezkl")
def test_an_altered_field(public: Path, srs: Path, bundle: ProofBundle, name: str) -> None:
    put_bundle(public, alter(bundle, **{name: FALSE[name]}), 5)
    check_refused(audit(public, srs), "proof", f"{name} is not that of this step")


@pytest.mark.parametrize("name", ["step-clamp", "", "../step"])
def test_a_circuit_that_is_none(
    public: Path, srs: Path, bundle: ProofBundle, ezkl: FakeEzkl, name: str
) -> None:
    put_bundle(public, alter(bundle, circuit_name=name))
    check_refused(audit(public, srs), "proof", "is none that the task allows")
    assert ezkl.prepared == []


@pytest.mark.usefixtures("ezkl")
def test_the_other_circuit(public: Path, srs: Path, bundle: ProofBundle) -> None:
    put_bundle(public, alter(bundle, circuit_name="step-clamps"))
    check_refused(audit(public, srs), "proof", "circuit is not that of this step")


def test_a_proof_of_another_step(
    public: Path, run: Path, srs: Path, bundle: ProofBundle, ezkl: FakeEzkl
) -> None:
    """As it is, and with a statement that says it is of this one: commitments differ then."""
    other = make_bundle(run, srs, 3)
    ezkl.good.add(other.proof)
    put_bundle(public, other, 5)
    check_refused(audit(public, srs), "proof", "step is not that of this step")
    put_bundle(public, replace(bundle, proof=other.proof))
    check_refused(audit(public, srs), "proof", "commitment of before is not the one expected")
    put_bundle(public, other)
    assert audit(public, srs, steps=(3,)).verdict == "verified"
    report = audit(public, srs, steps=(3, 5))
    assert report.verdict == "inconclusive"
    assert report.segments == ((3, 3),)


def test_a_proof_of_another_run(
    public: Path, task: CompiledTask, srs: Path, tmp_path: Path, ezkl: FakeEzkl
) -> None:
    """The same task done again is another run, though each commitment is the same."""
    other = make_bundle(train_run(task, tmp_path / "other"), srs, 5)
    ezkl.good.add(other.proof)
    put_bundle(public, other)
    check_refused(audit(public, srs), "proof", "run_id is not that of this step")


@pytest.mark.parametrize("name", ["before", "batch", "after"])
@pytest.mark.usefixtures("ezkl")
def test_a_proof_of_other_tensors_than_logged(
    run: Path, public: Path, srs: Path, ezkl: FakeEzkl, name: str
) -> None:
    """A step that the solver never logged, were there a proof of it."""
    honest = np.zeros(0)
    signed = read_run(run)
    values = module.StepSource(signed, signed.task.proof.usable, engine="numpy").values(5)  # type: ignore[union-attr]
    honest = values.given[name].copy()
    honest[0] += 1
    other = make_bundle(run, srs, 5, changed={name: honest})
    ezkl.good.add(other.proof)
    put_bundle(public, other)
    check_refused(audit(public, srs), "proof", f"commitment of {name} is not the one expected")
