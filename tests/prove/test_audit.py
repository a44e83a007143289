"""Audits by proofs: every way to spoil a run or its proofs ends in a report that says so."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

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
from tests.kzg import SECRET, make_kzg_task
from tests.prove import step_runs
from tests.prove import steps as made
from tests.prove.compiler import install_solc
from tests.prove.steps import (
    LIMITS,
    STEPS,
    FakeEzkl,
    alter,
    hiding_of,
    make_audit,
    make_bundle,
    make_proof_task,
    make_setup,
    open_key,
    put_bundle,
    train_run,
)
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.audit.pin import Pin, make_pin
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.errors import (
    CircuitError,
    MissingExtraError,
    ProverError,
    RunError,
    SrsError,
    VtrainError,
)
from vtrain.prove import audit as module
from vtrain.prove.audit import choose_steps, verify_proofs
from vtrain.prove.backend.ezkl import Proof
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.batches import sign_batches
from vtrain.prove.chain.evm import (
    encode_calldata,
    encode_parameters_calldata,
    encode_statement_calldata,
    export_evm,
    write_verifier,
)
from vtrain.prove.chain.size import estimate_code
from vtrain.prove.chain.statement import (
    bind_circuit,
    commit_parameters,
    flatten_parameters,
    join_given,
)
from vtrain.prove.circuit.values import Ints
from vtrain.prove.runs import StepSource, read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.steps import prover as step_prover
from vtrain.prove.steps import verifier as step_verifier
from vtrain.prove.steps.prepare import prepare_circuit
from vtrain.prove.steps.statement import compute_parameters, describe_step, expect
from vtrain.prove.tiles.verifier import TracePin
from vtrain.report.json import report_to_dict
from vtrain.report.terminal import print_report
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_claim, read_kzg_record
from vtrain.train.task import CompiledTask
from vtrain.wire.bundle import ProofBundle, decode_bundle, encode_bundle
from vtrain.wire.claim import encode_signed_claim
from vtrain.wire.proof import decode_kzg_record, encode_kzg_record
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.report import Report

PUBLIC = ("task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor")


srs, task, whole, bundle = step_runs.FIXTURES


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


def pin_of(run: Path) -> Pin | None:
    """The pin of an auditor who had kept the claim that lies in the run, if that is one."""
    try:
        return make_pin(read_claim(RunPaths(run)))
    except VtrainError:
        return None


def audit(run: Path, srs: Path, **options: Any) -> Report:
    options = {"pin": pin_of(run), **options}
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


@pytest.mark.parametrize(
    ("every", "step", "there"),
    [
        (1, 0, "the run has the steps 1 to 6"),
        (1, STEPS + 1, "the run has the steps 1 to 6"),
        (3, 2, "of the 6 steps of the run, the multiples of 3 can be proven"),
        (4, 5, "the multiples of 4"),
        (4, 8, "the multiples of 4"),
    ],
)
def test_a_step_that_cannot_be_proven_is_a_bad_argument(
    whole: Path, every: int, step: int, there: str
) -> None:
    with pytest.raises(RunError, match=f"step {step}: .*{there}"):
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
    assert checked[0].startswith("the claim is the one that was pinned")
    assert checked[1].startswith("1 of 6 steps that can be proven, each whole, by ZK proof (steps")
    assert "each proof is of the commitments in the signed log" in checked
    for words in (
        "KZG and BLAKE3 roots were not compared",
        "where the batches came from",
        "can test guesses of it",
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
    report = audit(public, srs, seed=seed, pin=None, **options)
    assert (report.verdict, bool(report)) == ("conditional", False)
    report = audit(public, srs, seed=seed, **options)
    assert report.verdict == "verified"
    assert report.randomness is not None
    assert (report.randomness.value, report.randomness.predictable) == (seed, False)
    assert [item.segments for item in report.detections] == [6] * 5
    assert report.detections[0].probability == pytest.approx(1 / 6)
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console)
    said = console.export_text()
    assert "a single false step among the 6 that can be proven: 16.66 % = 1 - C(5,1)/C(6,1)" in said
    assert "25 % of the steps that can be proven are false (2 of 6): 33.33 %" in said
    assert "segment" not in said
    assert {item["unit"] for item in report_to_dict(report)["detection"]} == {"step"}
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
    with pytest.raises(RunError, match=r"step 2: .* the multiples of 3 can be proven"):
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
    (run / "proofs" / "step-000000000003.cbor").unlink()
    for options in ({"steps": (3,)}, {"steps": None, "sample": 2, "seed": b"s"}):
        report = audit(run, srs, **options)
        reason = reason_of(report)
        assert (report.verdict, reason.name, reason.status) == ("inconclusive", "proof", "not_done")
        assert "logs no KZG commitments" in reason.detail, "not that the proof is missing"
        assert 'commitments = ["blake3", "kzg"]' in reason.detail


@pytest.mark.usefixtures("ezkl")
@pytest.mark.parametrize("sample", [None, 1, STEPS, STEPS + 1, 1000])
def test_fewer_steps_than_were_to_be_drawn(public: Path, srs: Path, sample: int | None) -> None:
    report = audit(public, srs, steps=None, sample=sample, seed=b"s")
    said = [check.detail for check in report.checks if check.name == "sample"]
    there = "and there are 6 steps that can be proven: all of them were drawn"
    more = sample is not None and sample > STEPS
    assert said == ([f"{sample} were to be drawn, {there}"] if more else [])


@pytest.mark.usefixtures("ezkl")
@pytest.mark.parametrize("options", [{"traces": (b"s", 1)}, {"trace_pin": TracePin(bytes(32))}])
def test_draws_of_tiles_for_whole_steps(public: Path, srs: Path, options: Any) -> None:
    with pytest.raises(RunError, match="the task commits to whole steps"):
        audit(public, srs, **options)


@pytest.mark.usefixtures("ezkl")
def test_no_step_is_no_verdict(public: Path, srs: Path) -> None:
    report = audit(public, srs, steps=())
    assert (report.verdict, reason_of(report).detail) == ("inconclusive", "no step was asked for")


# --- the SRS


@pytest.mark.usefixtures("ezkl")
def test_an_insecure_srs_must_be_allowed(public: Path, srs: Path) -> None:
    report = audit(public, srs, allow_insecure_srs=False)
    assert (report.verdict, report.exit_code, report.reason) == ("conditional", 4, None)
    [assumption] = report.unaccepted
    assert assumption.code == "insecure-srs"
    assert report.segments == ((5, 5),), "the proof is looked at all the same"


@pytest.mark.usefixtures("ezkl")
def test_steps_that_are_named_need_a_pin_unless_all_are(public: Path, srs: Path) -> None:
    report = audit(public, srs, pin=None)
    assert (report.verdict, report.segments) == ("conditional", ((5, 5),))
    assert [item.code for item in report.unaccepted] == ["predictable-sample"]
    report = audit(public, srs, pin=Pin(bytes(32)))
    check_refused(report, "claim", "as pinned")
    report = audit(public, srs, pin=None, steps=range(1, 7))
    assert "predictable-sample" not in [item.code for item in report.assumptions]


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
        (make_loop, "is taken as it lies"),
        (make_pipe, "is not a regular file"),
        (make_giant, "more than the 16777216 "),
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
    signed = read_run(run)
    proof = make_setup(signed.task, srs, run).proof
    values = StepSource(signed, proof, hiding_of(signed)).values(5)
    column = values.given[name].copy()
    column[0] += 1
    other = make_bundle(run, srs, 5, changed={name: column})
    ezkl.good.add(other.proof)
    put_bundle(public, other)
    check_refused(audit(public, srs), "proof", f"commitment of {name} is not the one expected")


# --- runs that are false, or spoiled


def change_kzg(run: Path, step: int, part: str) -> None:
    """Let the solver sign commitments to other tensors: those of the part's first commitment, to
    zeros."""
    leaves = read_kzg_leaves(run)
    records = [decode_kzg_record(leaf) for leaf in leaves]
    other = records[0].batch
    for index, record in enumerate(records):
        if record.step == step:
            changed: dict[str, Any] = {part: other}
            records[index] = replace(record, **changed)
        if part == "after" and record.step == step + 1:  # else the next record would not go on
            records[index] = replace(record, before=other)
    write_kzg_leaves(run, [encode_kzg_record(record) for record in records])
    sign_again(run)


@pytest.mark.parametrize("part", ["after", "batch"])
@pytest.mark.usefixtures("ezkl")
def test_logged_commitments_to_other_tensors(run: Path, srs: Path, part: str) -> None:
    """Whoever has the tensors sees fraud; in private, no proof fits."""
    change_kzg(run, 5, part)
    put_bundle(run, resign(run, 5))
    report = audit(run, srs, private=False)
    check_refused(report, "kzg", f"the logged commitment of {part} is of other tensors", "solver")
    report = audit(publish(run), srs)
    check_refused(report, "proof", f"commitment of {part} is not the one expected")


def resign(run: Path, step: int) -> ProofBundle:
    """The proof that lies there, said to be of the claim as it is now."""
    bundle = decode_bundle((run / "proofs" / f"step-{step:012d}.cbor").read_bytes())
    claim = compute_claim_digest(read_run(run).signed.claim)
    return alter(bundle, claim=claim)


@pytest.mark.usefixtures("ezkl")
def test_a_good_proof_for_a_log_of_a_false_step(
    task: CompiledTask, whole: Path, srs: Path, bundle: ProofBundle, tmp_path: Path
) -> None:
    """One unit in one element of one gradient: what was proven is not what was logged."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(whole / "hiding.key", run)
    train_falsely(task, run, key=KEY, cheat=alter_gradient, step=5)
    claim = read_run(run).signed.claim
    put_bundle(run, alter(bundle, run_id=claim.run_id, claim=compute_claim_digest(claim)))
    report = audit(publish(run), srs)
    assert {check.name for check in failed(report)} == {"proof"}
    check_refused(report, "proof", "commitment of after is not the one expected")
    check_refused(audit(run, srs, private=False), "replay", "is not the step logged", "solver")


@pytest.mark.usefixtures("ezkl")
def test_initial_commitments_that_are_false_are_the_tasks_fault(
    task: CompiledTask, srs: Path, tmp_path: Path
) -> None:
    """The solver goes on from what the task says; commitments to the state are another's."""
    proof = task.spec.proof
    assert proof is not None
    other = replace(proof, initial=(open_key(srs).zero,))
    spec = replace(task.spec, proof=other)
    run = tmp_path / "run"
    train_falsely(
        replace(task, spec=spec), run, key=KEY, cheat=lambda task, session: session.step(), step=1
    )
    first = decode_kzg_record(read_kzg_leaves(run)[0])
    leaves = [encode_kzg_record(replace(first, before=other.initial)), *read_kzg_leaves(run)[1:]]
    write_kzg_leaves(run, leaves)
    sign_again(run)
    put_bundle(run, make_bundle(run, srs, 1))
    report = audit(run, srs, private=False, steps=(1,))
    check_refused(report, "kzg", "the logged commitment of before is of other tensors", "task")


@pytest.mark.usefixtures("ezkl")
def test_a_step_that_is_not_the_one_logged(run: Path, srs: Path) -> None:
    """A loss that is too good, between two checkpoints: redoing the steps shows it."""
    leaves = read_leaves(run)
    record = decode_record(leaves[3])
    leaves[3] = encode_record(replace(record, loss=record.loss - 1))
    write_leaves(run, leaves)
    sign_again(run)
    put_bundle(run, resign(run, 5))
    report = audit(run, srs, private=False)
    check_refused(report, "replay", "is not the step logged", "solver")
    assert reason_of(report).where == "step 4"
    # Without tensors nobody sees the loss of step 4; but a proof serves the claim it was made for.
    check_refused(audit(publish(run), srs), "proof", "commitment of computed")
    put_bundle(run, resign(run, 5), 4)
    report = audit(run, srs, steps=(4,))
    check_refused(report, "proof", "step is not that of this step")


@pytest.mark.usefixtures("ezkl")
def test_a_loss_that_is_not_the_proven_one(run: Path, srs: Path) -> None:
    leaves = read_leaves(run)
    record = decode_record(leaves[4])
    leaves[4] = encode_record(replace(record, loss=record.loss - 1))
    write_leaves(run, leaves)
    sign_again(run)
    bundle = resign(run, 5)
    put_bundle(run, bundle)
    check_refused(audit(run, srs), "proof", "parameters is not that of this step")
    parameters = {**bundle.statement.parameters, "loss": (record.loss - 1,)}
    put_bundle(run, alter(bundle, parameters=parameters))
    check_refused(audit(run, srs), "proof", "commitment of computed is not the one computed")


@pytest.mark.usefixtures("ezkl")
def test_an_altered_checkpoint_is_no_start(run: Path, srs: Path) -> None:
    """It is not what was signed, and the steps are redone from the one before."""
    path = RunPaths(run).checkpoint(3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    report = audit(run, srs, private=False)
    assert {check.name for check in failed(report)} == {"files", "checkpoints"}
    assert report.verdict == "inconclusive"
    assert report.segments == ((5, 5),)
    for step in (0, 3, 6):
        RunPaths(run).checkpoint(step).unlink()
    report = audit(run, srs, private=False)
    check_refused(report, "proof", "has no checkpoint before step 5")


@pytest.mark.usefixtures("ezkl")
def test_fraud_that_is_in_plain_sight_is_not_passed_over_in_private(run: Path, srs: Path) -> None:
    leaves = read_leaves(run)
    first, second = (decode_record(leaf) for leaf in leaves[:2])
    leaves[0] = encode_record(replace(first, batch_digest=second.batch_digest))
    write_leaves(run, leaves)
    sign_again(run)
    put_bundle(run, resign(run, 5))
    report = audit(run, srs)
    assert (report.verdict, reason_of(report).name) == ("fraud", "batches")


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.usefixtures("ezkl")
def test_public_files_that_are_missing_or_spoiled(public: Path, srs: Path, name: str) -> None:
    path = public / name
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for place in map(int, rng.choice(len(data), 6, replace=False)):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        report = audit(public, srs)
        assert report.verdict == "inconclusive", place
    for spoiled in (data[:-1], data + b"\0", b"", bytes(1000)):
        path.write_bytes(spoiled)
        assert audit(public, srs).verdict == "inconclusive"
    path.unlink()
    report = audit(public, srs)
    assert report.verdict == "inconclusive"
    assert report.segments == ()


@pytest.mark.usefixtures("ezkl")
def test_another_task_than_the_one_agreed_on(public: Path, srs: Path, task: CompiledTask) -> None:
    assert audit(public, srs, task_id=task.task_id).verdict == "verified"
    report = audit(public, srs, task_id=bytes(32))
    assert report.verdict == "inconclusive"
    assert reason_of(report).name == "task"
    with pytest.raises(RunError, match="is not a run directory"):
        audit(public / "task.cbor", srs)


@pytest.mark.usefixtures("ezkl")
def test_a_task_whose_circuits_are_no_whole_steps(
    srs: Path, tmp_path: Path, bundle: ProofBundle, task: CompiledTask
) -> None:
    """Few rows, as k = 8 leaves them: such a run is well, and has no proof."""
    small = tmp_path / "small"
    run = train_run(make_kzg_task(small), tmp_path / "run")
    put_bundle(run, bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_verifier, "prepare_circuit", prepare_circuit)
        # Of other fields, it is refused before keys are made, which would take minutes.
        check_refused(audit(run, small), "proof", "task_id is not that of this step")
        signed = read_run(run)
        setup = make_setup(signed.task, small, tmp_path)
        about = describe_step(signed, setup, 5, "step", bytes(32), bytes(32))
        put_bundle(run, ProofBundle(about, bundle.proof))
        check_refused(audit(run, small), "proof", "whole steps need k of 17 at least, not 8")


# --- circuits that cannot be had


@pytest.mark.parametrize(
    "error", [CircuitError("too large", where="memory"), ProverError("died", where="setup")]
)
def test_a_circuit_that_cannot_be_had_is_asked_for_once(
    public: Path, run: Path, srs: Path, ezkl: FakeEzkl, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    calls = []

    def prepare(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        raise error

    monkeypatch.setattr(step_verifier, "prepare_circuit", prepare)
    put_bundle(public, make_bundle(run, srs, 3))
    report = audit(public, srs, steps=(3, 5))
    assert report.verdict == "inconclusive"
    assert [check.where for check in failed(report)] == [
        f"step {step}: {error.where}" for step in (3, 5)
    ]
    assert len(calls) == 1


def test_without_ezkl_nothing_is_begun(
    public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*modules: str) -> None:
        raise MissingExtraError("needs it", where=modules[0])

    monkeypatch.setattr(module, "require_extra", refuse)
    with pytest.raises(MissingExtraError):
        audit(public, srs)


# --- the page


def test_the_page_proves_verifies_and_calls_a_contract(
    whole: Path,
    srs: Path,
    bundle: ProofBundle,
    ezkl: FakeEzkl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Python of docs/proofs.md, as it stands there; keys and ezkl are stand-ins."""
    run = Path(shutil.copytree(whole, tmp_path / "RUN"))
    (tmp_path / "local.srs").symlink_to(srs)
    shutil.copy(RunPaths(run).claim, tmp_path / "claim.kept")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step_prover, "prepare_circuit", ezkl.prepare)
    monkeypatch.setattr(step_prover, "prove", lambda *_, **__: Proof(bundle.proof, ()))
    page = (Path(__file__).resolve().parents[2] / "docs" / "proofs.md").read_text()
    names: dict[str, Any] = {}
    for begin in ("### In Python", "From a proof in `RUN/proofs/`"):
        found = re.search(r"\n\n((?: {4}.*\n|\n)+)", page.split(begin)[1])
        assert found is not None
        exec(textwrap.dedent(found[1]), names)  # noqa: S102 - of a page of our own
    path = run / "proofs" / "step-000000000005.cbor"
    assert path.read_bytes() == encode_bundle(bundle)
    report = names["report"]
    assert isinstance(report, Report)
    assert (report.verdict, report.segments) == ("verified", ((5, 5),))
    data = bytes.fromhex((tmp_path / "calldata.hex").read_text())
    given = bundle.proof[: 64 * len(names["circuit"].given)]
    asked = {"claim": bundle.statement.claim, "given": given, "parameters": names["public"]}
    assert data == encode_statement_calldata(bundle.proof, **asked)


# --- the data's owner


@pytest.mark.usefixtures("ezkl")
def test_batches_that_the_owner_signed(
    public: Path, run: Path, srs: Path, task: CompiledTask
) -> None:
    batches = sign_batches(task.spec, task.graph, task.samples, open_key(srs), KEY, SECRET)
    owner = public_key(KEY)
    report = audit(public, srs, batches=batches, owner=owner)
    assert report.verdict == "verified"
    assert "owner" in {check.name for check in report.checks}
    assert any("are those that the data's owner signed" in s for s in report.strength.checked)
    assert not any("where the batches came from" in s for s in report.strength.unchecked)
    assert audit(run, srs, batches=batches, owner=owner, private=False).verdict == "verified"

    # Without a proof the log's commitments are the owner's all the same.
    path = public / "proofs" / "step-000000000005.cbor"
    proof = path.read_bytes()
    path.unlink()
    report = audit(public, srs, batches=batches, owner=owner)
    assert report.verdict == "inconclusive"
    assert "the logged commitments to batches are those" in " ".join(report.strength.checked)
    assert not any("where the batches came from" in s for s in report.strength.unchecked)
    (public / "kzg.bin").rename(public / "log")
    report = audit(public, srs, batches=batches, owner=owner)
    assert not any("batches" in s for s in report.strength.checked)
    assert any("could be held against the log" in s for s in report.strength.unchecked)
    (public / "log").rename(public / "kzg.bin")
    path.write_bytes(proof)

    report = audit(public, srs, batches=batches, owner=bytes(32))
    assert [check.name for check in failed(report)] == ["owner"]
    assert any("where the batches came from" in s for s in report.strength.unchecked)
    altered = replace(batches, commitments=batches.commitments[::-1])
    assert failed(audit(public, srs, batches=altered, owner=owner))[0].name == "owner"
    with pytest.raises(RunError, match="batches and owner"):
        audit(public, srs, batches=batches)
    with pytest.raises(RunError, match="batches and owner"):
        audit(public, srs, owner=owner)

    change_kzg(run, 5, "batch")
    put_bundle(run, resign(run, 5))
    report = audit(run, srs, batches=batches, owner=owner)
    check_refused(report, "owner", "not the one that its owner signed")
    swapped = replace(task.spec, seed=task.spec.seed + 1)
    others = sign_batches(swapped, task.graph, task.samples, open_key(srs), KEY, SECRET)
    report = audit(public, srs, batches=others, owner=owner)
    assert "about other batches" in failed(report)[0].detail


# --- with ezkl itself


def by_keccak256(task: CompiledTask) -> CompiledTask:
    """The task, with challenges that contracts can draw."""
    assert task.spec.proof is not None
    pinned = replace(task.spec.proof, hash="keccak256")
    return replace(task, spec=replace(task.spec, proof=pinned))


@pytest.fixture(scope="module")
def proven(
    task: CompiledTask, srs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A run with a real proof of step 5, and the keys; tests only read it."""
    folder = tmp_path_factory.mktemp("proven")
    run = train_run(by_keccak256(task), folder / "run")
    arguments = ["prove", run, "--steps", 5, "--srs", srs, "--cache", folder / "keys"]
    assert cli.run([*map(str, arguments), "--threads", "1"]) == 0
    return run, folder / "keys"


def copy_public(run: Path, folder: Path) -> Path:
    return publish(Path(shutil.copytree(run, folder / "run")))


@pytest.mark.slow
def test_a_proof_holds_in_a_fresh_process_that_has_public_files_alone(
    proven: tuple[Path, Path], srs: Path, tmp_path: Path
) -> None:
    run, keys = proven
    public = copy_public(run, tmp_path)
    vtrain = Path(sys.executable).with_name("vtrain")
    command: list[object] = [vtrain, "verify", public, "--mode", "proof", "--private"]
    command += ["--steps", 5, "--srs", srs, "--cache", keys, "--threads", 1, "--json"]
    command += ["--claim", compute_claim_digest(read_run(run).signed.claim).hex()]
    for more, code in (([], 4), (["--allow-insecure-srs"], 0)):
        done = subprocess.run(
            [str(part) for part in [*command, *more]], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        report = json.loads(done.stdout)
        proof = next(check for check in report["checks"] if check["name"] == "proof")
        assert proof["status"] == "passed"
    given = make_audit(srs, keys, private=False, pin=pin_of(run))
    assert verify_proofs(run, given).verdict == "verified"


@pytest.mark.slow
def test_proving_again_makes_nothing(
    proven: tuple[Path, Path],
    srs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, keys = proven
    files = {path: path.read_bytes() for path in (run / "proofs").glob("*.cbor")}
    arguments = ["prove", run, "--steps", "5", "--srs", srs, "--cache", keys, "--json"]
    capsys.readouterr()
    assert cli.run([str(argument) for argument in arguments]) == 0
    assert json.loads(capsys.readouterr().out)["made"] == 0
    assert files == {path: path.read_bytes() for path in (run / "proofs").glob("*.cbor")}


@pytest.mark.slow
def test_a_real_proof_shows_nothing_else(
    proven: tuple[Path, Path], task: CompiledTask, srs: Path, tmp_path: Path
) -> None:
    """Fields, steps, runs and bytes of the proof: what is altered is refused."""
    run, keys = proven
    public = copy_public(run, tmp_path)
    path = public / "proofs" / "step-000000000005.cbor"
    good = decode_bundle(path.read_bytes())
    given = make_audit(srs, keys)
    for name, value in FALSE.items():
        put_bundle(public, alter(good, **{name: value}), 5)
        check_refused(verify_proofs(public, given), "proof", f"{name} is not that of this step")

    # Said to be of step 4, whose parameters are other ones.
    loss = decode_record(read_leaves(run)[3]).loss
    said = {"step": 4, "parameters": {**good.statement.parameters, "loss": (loss,)}}
    put_bundle(public, alter(good, **said), 4)
    four = replace(given, steps=(4,))
    check_refused(verify_proofs(public, four), "proof", "commitment of before is not")

    # A good proof of the step done right, for a log that commits to the step done falsely.
    false = tmp_path / "false"
    false.mkdir()
    shutil.copy(run / "hiding.key", false)  # so that what is true is committed to alike
    train_falsely(by_keccak256(task), false, key=KEY, cheat=alter_gradient, step=5)
    claim = read_run(false).signed.claim
    said = {"run_id": claim.run_id, "claim": compute_claim_digest(claim)}
    put_bundle(false, alter(good, **said))
    check_refused(verify_proofs(false, given), "proof", "commitment of after is not")
    report = verify_proofs(false, replace(given, private=False))
    check_refused(report, "replay", "is not the step logged", "solver")

    commitments = 64 * 10
    for proof in (good.proof[:-1], good.proof + b"\0", good.proof[:64], good.proof[32:]):
        put_bundle(public, replace(good, proof=proof))
        check_refused(verify_proofs(public, given), "proof", "the proof has")
    rng = np.random.default_rng(2)
    for place in (
        *rng.integers(commitments, size=6),
        *rng.integers(commitments, len(good.proof), size=8),
    ):
        changed = bytearray(good.proof)
        changed[place] ^= 1 << int(rng.integers(8))
        put_bundle(public, replace(good, proof=bytes(changed)))
        report = verify_proofs(public, given)
        assert [check.name for check in failed(report)] == ["proof"], place
        assert report.verdict == "inconclusive"


@pytest.mark.slow
def test_the_proof_of_a_whole_step_holds_on_chain(
    proven: tuple[Path, Path], srs: Path, tmp_path: Path
) -> None:
    """It holds of its own step, and of nothing else."""
    pytest.importorskip("pyrevm", reason="pyrevm has no wheel for this Python")
    from tests.prove.chain import Chain
    from tests.prove.forgery import forge_call

    run, folder = proven
    signed = read_run(run)
    claim, setup = signed.signed.claim, make_setup(signed.task, srs, folder)
    ready, key = prepare_circuit(signed.graph, setup, "step", proving=False), setup.open_key()
    files = {"settings": ready.keys.settings, "vk": ready.keys.vk, "srs": srs}
    solc, chain, circuit = install_solc(), Chain(), ready.circuit
    binding = bind_circuit(circuit, ready.pinned, key)
    exported = export_evm(**files, out=tmp_path / "out", limits=LIMITS, binding=binding, solc=solc)
    assert estimate_code(circuit, setup.proof.k).size == pytest.approx(
        exported.verifier.size, rel=0.05
    )
    verifier, _ = chain.deploy(exported.verifier.creation)
    statement, _ = chain.deploy(exported.deploy_statement(verifier))
    path = run / "proofs" / "step-000000000005.cbor"
    proof = decode_bundle(path.read_bytes()).proof

    def read_expected(step: int) -> dict[str, bytes]:
        return expect(read_kzg_record(signed.paths, signed.task, claim, step))

    own = read_expected(5)
    rates = compute_parameters(signed.graph, signed.records[4])

    def holds(
        data: bytes = proof,
        expected: Mapping[str, bytes] = own,
        parameters: Mapping[str, Ints] = rates,
        digest: bytes = compute_claim_digest(claim),
    ) -> bool:
        given = join_given(circuit, expected)
        public = commit_parameters(circuit, parameters, key)
        asked = {"claim": digest, "given": given, "parameters": public}
        return chain.call(statement, encode_statement_calldata(data, **asked)).holds

    assert holds()
    assert chain.call(verifier, encode_calldata(Proof(proof, ()))).holds
    wanted = encode_parameters_calldata(flatten_parameters(circuit, rates))
    computed = chain.call(statement, wanted).output or b""
    assert computed[64:] == commit_parameters(circuit, rates, key)
    assert not holds(digest=bytes(32)), "another solver's claim"
    others = read_expected(3)
    assert own.keys() == others.keys()
    for name in own:
        assert not holds(expected={**own, name: others[name]}), name
    for name, value in rates.items():
        assert not holds(parameters={**rates, name: value + 1}), name
    points = Proof(proof, ()).commitments(len(circuit.columns))
    for index, name in enumerate(circuit.columns):
        head, tail = proof[: 64 * index], proof[64 * index + 64 :]
        assert not holds(head + points[index - 1] + tail), name
        if name in own:  # asked for what the proof says: it is of another
            asked = {**own, name: points[index - 1]}
            assert not holds(head + points[index - 1] + tail, asked), name
    for at in (*range(0, len(proof), 149), len(proof) - 65, len(proof) - 1):
        data = bytearray(proof)
        data[at] ^= 1
        assert not holds(bytes(data)), at
        said = dict(zip(circuit.given, Proof(bytes(data), ()).commitments(3), strict=True))
        assert not holds(bytes(data), said), at

    forged = forge_call(write_verifier(**files, limits=LIMITS), exported.length)
    assert chain.call(verifier, forged).output is None


@pytest.mark.usefixtures("ezkl")
def test_what_one_solver_proved_serves_nobody_else(
    public: Path, bundle: ProofBundle, srs: Path
) -> None:
    """A log copied byte by byte, under a claim of one's own, with the proof of who made it."""
    paths, thief = RunPaths(public), PrivateKey.generate()
    claim = read_run(public).signed.claim
    own = sign_claim(replace(claim, solver=public_key(thief)), thief)
    paths.claim.write_bytes(encode_signed_claim(own))
    put_bundle(public, alter(bundle, claim=compute_claim_digest(own.claim)))
    report = audit(public, srs)
    check_refused(report, "proof", "commitment of computed is not the one computed")
