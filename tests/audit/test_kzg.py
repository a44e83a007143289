"""The KZG log under audit: every way to spoil it is found and located, and blamed rightly."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vtrain
from tests.audit.runs import (
    KEY,
    failed,
    read_kzg_leaves,
    read_leaves,
    reason_of,
    refit_manifest,
    sign_again,
    write_kzg_leaves,
    write_leaves,
)
from tests.kzg import add_kzg, make_key, make_kzg_task, make_srs_fixture, place_secrets
from tests.tasks import make_tiny_task
from vtrain.attest.claims import sign_claim
from vtrain.audit.pin import make_pin
from vtrain.audit.verify import verify
from vtrain.commit.hiding import derive_key, read_hiding
from vtrain.commit.kzg_layout import find_blocks
from vtrain.dispute.game import start
from vtrain.dispute.genesis import make_genesis
from vtrain.errors import RunError
from vtrain.prove.backend.kzg import CommitKey
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.claim import decode_signed_claim, encode_signed_claim
from vtrain.wire.hiding import Hiding, HidingKey
from vtrain.wire.proof import KzgRecord, decode_kzg_record, encode_kzg_record
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.report import Check, Report
from vtrain.wire.task import encode_task

NOT_COMPARED = "whether KZG commitments and BLAKE3 roots are of the same tensors in {} of {} steps"


srs = make_srs_fixture()


@pytest.fixture(scope="module")
def kzg_task(srs: Path) -> CompiledTask:
    return make_kzg_task(srs)


@pytest.fixture(scope="module")
def kzg_honest(kzg_task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("honest") / "run"
    train(kzg_task, run, key=KEY)
    return run


@pytest.fixture
def kzg_run(kzg_honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kzg_honest, tmp_path / "run"))


def audit(run: Path, srs: Path | None = None, **options: Any) -> Report:
    return verify(run, srs=srs, open_key=CommitKey, **{"all_": True, **options})


def unchecked(report: Report, start: str) -> bool:
    return any(line.startswith(start) for line in report.strength.unchecked)


def passed(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.status == "passed"}


# --- an honest run


def test_an_honest_run_with_its_srs(kzg_honest: Path, srs: Path) -> None:
    report = audit(kzg_honest, srs)
    assert report.verdict == "verified"
    assert passed(report) >= {"kzg_log", "kzg_records", "kzg", "replay"}
    assert any("12 of 12 steps that have them" in line for line in report.strength.checked)
    assert not unchecked(report, "whether KZG")
    assert not unchecked(report, "whether the KZG")
    assert vtrain.verify(kzg_honest, all=True, srs=srs).checks == report.checks


def test_without_the_srs_the_report_says_what_was_not_compared(kzg_honest: Path) -> None:
    report = audit(kzg_honest)
    assert report.verdict == "verified"
    assert "kzg" not in passed(report)
    assert unchecked(report, "whether the KZG commitments of the steps replayed")
    assert unchecked(report, NOT_COMPARED.format(12, 12))


def test_what_was_not_replayed_was_not_compared(kzg_honest: Path, srs: Path) -> None:
    report = audit(kzg_honest, srs, all_=False, samples=1)
    assert report.verdict == "verified"
    assert any("4 of 12 steps that have them" in line for line in report.strength.checked)
    assert unchecked(report, NOT_COMPARED.format(8, 12))


@pytest.mark.parametrize(("every", "logged"), [(5, 2), (13, 0)])
def test_records_now_and_then(tmp_path: Path, srs: Path, every: int, logged: int) -> None:
    train(make_kzg_task(srs, every=every), tmp_path / "run", key=KEY)
    assert len(read_kzg_leaves(tmp_path / "run")) == logged
    report = audit(tmp_path / "run", srs)
    assert report.verdict == "verified"
    assert ("kzg" in passed(report)) == bool(logged)


def test_tiles(tmp_path: Path) -> None:
    """A weight of 8 x 640 has five blocks, its momentum too; the other six tensors one each."""
    srs, run = tmp_path / "srs", tmp_path / "run"
    wide = make_tiny_task("wide", steps=2, commit_every=1, checkpoint_every=1)
    task = add_kzg(wide, make_key(srs, 15), circuit="tiles")
    train(task, run, key=KEY)
    record = decode_kzg_record(read_kzg_leaves(run)[1])
    assert [len(part) for part in (record.before, record.batch, record.after)] == [16, 6, 16]
    weight = find_blocks(task.graph, "param/w1")
    assert len(weight) == 5
    assert len({record.after[i] for i in weight}) == 5
    report = audit(run, srs)
    assert report.verdict == "verified"
    assert "kzg" in passed(report)


def test_an_unfinished_run(tmp_path: Path, kzg_task: CompiledTask, srs: Path) -> None:
    train(kzg_task, tmp_path / "run", key=KEY, steps=6)
    report = audit(tmp_path / "run", srs)
    assert report.verdict == "verified"
    assert len(read_kzg_leaves(tmp_path / "run")) == 6


def test_a_strange_task_file_makes_no_contradiction_of_a_run_that_went_on(
    tmp_path: Path, srs: Path
) -> None:
    """How many KZG records the kept claim is about follows from the task: with another task's
    ``every`` it would be none of them, and an honest solver a liar."""
    plain = make_tiny_task(steps=8, commit_every=1, checkpoint_every=4, samples=10, batch=4)
    task, run = add_kzg(plain, make_key(srs), 4), tmp_path / "run"
    train(task, run, key=KEY, steps=4)
    kept = make_pin(decode_signed_claim(RunPaths(run).claim.read_bytes()))
    train(task, run, key=KEY, steps=7)
    assert "the run went on from that one" in reason_of(verify(run, pin=kept)).detail
    assert task.spec.proof is not None
    other = replace(task.spec, proof=replace(task.spec.proof, every=5))
    RunPaths(run).task.write_bytes(encode_task(other))
    refit_manifest(run)
    report = verify(run, pin=kept)
    assert report.verdict == "inconclusive"
    assert "cannot be told" in reason_of(report).detail


def test_a_dispute_is_about_the_claim_with_its_kzg_root(
    kzg_honest: Path, kzg_task: CompiledTask
) -> None:
    signed = decode_signed_claim(RunPaths(kzg_honest).claim.read_bytes())
    host = bytes(32)
    genesis = make_genesis(kzg_task.spec, kzg_task.graph, signed, host=host, opened=0)
    assert genesis.kzg_root == signed.claim.kzg_root
    assert start(genesis, kzg_task.graph).genesis == genesis
    bare = sign_claim(replace(signed.claim, kzg_root=b""), KEY)
    with pytest.raises(RunError) as caught:
        make_genesis(kzg_task.spec, kzg_task.graph, bare, host=host, opened=0)
    assert caught.value.where == "claim.kzg_root"


# --- bytes that are missing or are not those signed for: nobody's fault


def drop_file(run: Path) -> None:
    RunPaths(run).kzg.unlink()


def cut_file(run: Path) -> None:
    RunPaths(run).kzg.write_bytes(RunPaths(run).kzg.read_bytes()[:-1])
    refit_manifest(run)


def other_header(run: Path) -> None:
    data = RunPaths(run).kzg.read_bytes()
    RunPaths(run).kzg.write_bytes(b"V" + data[1:])
    refit_manifest(run)


def flip_file(run: Path) -> None:
    data = bytearray(RunPaths(run).kzg.read_bytes())
    data[-1] ^= 1
    RunPaths(run).kzg.write_bytes(bytes(data))
    refit_manifest(run)


def drop_leaf(run: Path) -> None:
    write_kzg_leaves(run, read_kzg_leaves(run)[:-1])


def add_leaf(run: Path) -> None:
    leaves = read_kzg_leaves(run)
    write_kzg_leaves(run, [*leaves, leaves[-1]])


def swap_leaves(run: Path) -> None:
    leaves = read_kzg_leaves(run)
    write_kzg_leaves(run, [leaves[1], leaves[0], *leaves[2:]])


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        (drop_file, "missing"),
        (cut_file, "ends within the record"),
        (other_header, "is not that of a kzg log"),
        (flip_file, "root differs"),
        (drop_leaf, "has 11 records, the claim is about 12"),
        (add_leaf, "more than the 12 records"),
        (swap_leaves, "root differs"),
    ],
)
def test_a_spoiled_log_convicts_nobody(
    kzg_run: Path, srs: Path, spoil: Callable[[Path], None], detail: str
) -> None:
    spoil(kzg_run)
    report = audit(kzg_run, srs)
    assert report.verdict == "inconclusive"
    found = next(check for check in failed(report) if check.name == "kzg_log")
    assert found.where.startswith("kzg.bin")
    assert detail in found.detail
    assert found.fault == "nobody"
    assert {"log", "records", "replay"} <= passed(report), "the rest is checked all the same"
    assert next(c for c in report.checks if c.name == "kzg").status == "not_done"


def test_the_manifest_must_list_it(kzg_run: Path) -> None:
    paths = RunPaths(kzg_run)
    paths.manifest.write_text(paths.manifest.read_text().replace('"kzg.bin"', '"kzg.bim"'))
    report = audit(kzg_run)
    assert report.verdict == "inconclusive"
    assert ("files", "kzg.bin") in [(check.name, check.where) for check in failed(report)]


def test_a_log_that_no_task_asks_for_is_a_file_like_any_other(run: Path) -> None:
    (run / "kzg.bin").write_bytes(b"whatever")
    report = verify(run, all_=True)
    assert report.verdict == "verified"
    assert unchecked(report, "files that belong to no run, ignored: 'kzg.bin'")


# --- a signed log that contradicts the task: fraud


Change = Callable[[KzgRecord], KzgRecord]
POINT = (1).to_bytes(32) + (2).to_bytes(32)


def drop_commitment(record: KzgRecord) -> KzgRecord:
    return replace(record, after=record.after[:-1])


def add_commitment(record: KzgRecord) -> KzgRecord:
    return replace(record, batch=(*record.batch, POINT))


def off_the_curve(record: KzgRecord) -> KzgRecord:
    return replace(record, after=(record.after[0], POINT[:-1] + b"\3"))


def at_infinity(record: KzgRecord) -> KzgRecord:
    return replace(record, batch=(bytes(64), *record.batch[1:]))


def not_reduced(record: KzgRecord) -> KzgRecord:
    prime = 21888242871839275222246405745257275088696311157297823662689037894645226208583
    return replace(record, before=((1 + prime).to_bytes(32) + POINT[32:], *record.before[1:]))


def start_elsewhere(record: KzgRecord) -> KzgRecord:
    return replace(record, before=(POINT, *record.before[1:]))


def end_elsewhere(record: KzgRecord) -> KzgRecord:
    return replace(record, after=(POINT, *record.after[1:]))


def start_with_another_key(record: KzgRecord) -> KzgRecord:
    return replace(record, before_key=record.after_key)


def end_with_another_key(record: KzgRecord) -> KzgRecord:
    return replace(record, after_key=record.before_key)


def count_on(record: KzgRecord) -> KzgRecord:
    return replace(record, step=record.step + 1)


@pytest.mark.parametrize(
    ("step", "change", "where", "detail"),
    [
        (3, drop_commitment, "step 3: after", "has 1 commitments, 2 are due"),
        (3, add_commitment, "step 3: batch", "has 2 commitments, 1 are due"),
        (3, off_the_curve, "step 3: after", "commitment 1 is no point"),
        (3, at_infinity, "step 3: batch", "commitment 0 is no point"),
        (3, not_reduced, "step 3: before", "commitment 0 is no point"),
        (3, start_elsewhere, "step 3: before", "the state after step 2"),
        (3, end_elsewhere, "step 4: before", "the state after step 3"),
        (1, start_elsewhere, "step 1: before", "the state that the task begins with"),
        (3, start_with_another_key, "step 3: before", "the state after step 2"),
        (3, end_with_another_key, "step 4: before", "the state after step 3"),
        (1, start_with_another_key, "step 1: before", "the state that the task begins with"),
        (3, count_on, "step 3", "is recorded as step 4"),
    ],
)
def test_a_signed_record_that_contradicts_the_task_is_fraud(
    kzg_run: Path, step: int, change: Change, where: str, detail: str
) -> None:
    leaves = read_kzg_leaves(kzg_run)
    leaves[step - 1] = encode_kzg_record(change(decode_kzg_record(leaves[step - 1])))
    write_kzg_leaves(kzg_run, leaves)
    assert audit(kzg_run).verdict == "inconclusive", "nobody has signed it yet"
    sign_again(kzg_run)
    report = audit(kzg_run, samples=0, all_=False)
    assert report.verdict == "fraud"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("kzg_records", where, "solver")
    assert detail in reason.detail


def test_a_signed_leaf_that_is_no_record_is_fraud(kzg_run: Path) -> None:
    leaves = read_kzg_leaves(kzg_run)
    write_kzg_leaves(kzg_run, [*leaves[:4], b"\xff", *leaves[5:]])
    sign_again(kzg_run)
    reason = reason_of(audit(kzg_run))
    assert (reason.name, reason.where, reason.fault) == ("kzg_records", "step 5", "solver")


@pytest.mark.parametrize("logged", [True, False])
def test_a_claim_has_a_root_just_where_the_task_asks_for_one(
    kzg_honest: Path, honest: Path, tmp_path: Path, logged: bool
) -> None:
    source = kzg_honest if logged else honest
    subject = Path(shutil.copytree(source, tmp_path / "run"))
    path = RunPaths(subject).claim
    claim = decode_signed_claim(path.read_bytes()).claim
    other = replace(claim, kzg_root=b"" if logged else bytes(32))
    path.write_bytes(encode_signed_claim(sign_claim(other, KEY)))
    report = audit(subject)
    assert report.verdict == "fraud"
    reason = reason_of(report)
    assert (reason.name, reason.where) == ("complete", "claim.kzg_root")


# --- commitments to other tensors: found by replay with the SRS


class LyingKey:
    """Commits to something else, the ``lie``-th time that it commits."""

    def __init__(self, key: CommitKey, lie: int) -> None:
        self._key, self._calls, self._lie = key, 0, lie
        self.srs, self.k, self.blinding = key.srs, key.k, key.blinding

    def commit_many(
        self, arrays: Iterable[npt.NDArray[Any]], hiding: Iterable[bytes], *, threads: int = 0
    ) -> list[bytes]:
        given = [np.array(array) for array in arrays]
        self._calls += 1
        if self._calls == self._lie:
            given[-1][-1] += 1  # one unit of one element
        return self._key.commit_many(given, hiding, threads=threads)


# Training commits to the initial state, then to batch and state after of each step.
@pytest.mark.parametrize(
    ("lie", "where", "what"),
    [
        (2, "step 1", "KZG commitment 0 (batch) of step 1"),
        (3, "step 1", "KZG commitment 1 (after) of step 1"),
        (5, "step 2", "KZG commitment 1 (after) of step 2"),
        (10, "step 5", "KZG commitment 0 (batch) of step 5"),
        (11, "step 5", "KZG commitment 1 (after) of step 5"),
        (12, "step 6", "KZG commitment 0 (batch) of step 6"),
        (25, "step 12", "KZG commitment 1 (after) of step 12"),
    ],
)
def test_commitments_to_other_tensors_are_caught_by_replay(
    tmp_path: Path, srs: Path, kzg_task: CompiledTask, lie: int, where: str, what: str
) -> None:
    run = tmp_path / "run"
    train(replace(kzg_task, kzg=LyingKey(make_key(srs), lie)), run, key=KEY)
    assert audit(run).verdict == "verified", "nothing else shows it"
    report = audit(run, srs)
    assert report.verdict == "fraud"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("kzg", where, "solver")
    assert reason.detail.startswith(what)


def test_a_lie_in_a_segment_that_is_not_replayed_is_not_found(
    tmp_path: Path, srs: Path, kzg_task: CompiledTask
) -> None:
    run = tmp_path / "run"
    train(replace(kzg_task, kzg=LyingKey(make_key(srs), 25)), run, key=KEY)
    seeds = (bytes([i]) for i in range(100))
    report = next(
        report
        for report in (audit(run, srs, all_=False, samples=1, seed=seed) for seed in seeds)
        if report.verdict == "conditional"
    )
    assert report.segments != ((9, 12),)
    assert unchecked(report, NOT_COMPARED.format(8, 12))


def test_without_a_state_root_in_every_step_the_place_is_a_range(tmp_path: Path, srs: Path) -> None:
    task = make_kzg_task(srs, commit_every=4, every=3)
    run = tmp_path / "run"
    # Commitments: initial; before, batch and after of steps 3, 6, 9 and 12.
    train(replace(task, kzg=LyingKey(make_key(srs), 7)), run, key=KEY)
    reason = reason_of(audit(run, srs))
    assert (reason.name, reason.where) == ("kzg", "steps 5 to 6")
    assert "(after) of step 6" in reason.detail


def test_a_false_step_is_found_as_without_kzg(kzg_run: Path, srs: Path) -> None:
    leaves = read_leaves(kzg_run)
    record = decode_record(leaves[4])
    leaves[4] = encode_record(replace(record, loss=record.loss + 1))
    write_leaves(kzg_run, leaves)
    sign_again(kzg_run)
    reason = reason_of(audit(kzg_run, srs))
    assert (reason.name, reason.where) == ("replay", "step 5")


# --- a task that contradicts itself, and an SRS that is another


def retask(task: CompiledTask, initial: tuple[bytes, ...], run: Path) -> None:
    """Let the run in ``run`` be one of ``task`` with other initial commitments."""
    assert task.spec.proof is not None
    spec = replace(task.spec, proof=replace(task.spec.proof, initial=initial))
    paths = RunPaths(run)
    other = replace(task, spec=spec)
    paths.task.write_bytes(encode_task(other.spec))
    text = paths.manifest.read_text().replace(task.task_id.hex(), other.task_id.hex())
    paths.manifest.write_text(text)
    refit_manifest(run)
    claim = decode_signed_claim(paths.claim.read_bytes()).claim
    signed = sign_claim(replace(claim, task_id=other.task_id), KEY)
    paths.claim.write_bytes(encode_signed_claim(signed))


@pytest.mark.parametrize(
    ("initial", "detail"),
    [
        ((POINT,), "has 1 commitments, the graph's state 2 columns"),
        ((POINT, bytes(64)), "is not made of points of the curve"),
    ],
)
def test_initial_commitments_that_cannot_be_are_the_tasks_fault(
    kzg_run: Path, kzg_task: CompiledTask, initial: tuple[bytes, ...], detail: str
) -> None:
    retask(kzg_task, initial, kzg_run)
    report = audit(kzg_run)
    assert report.verdict == "inconclusive"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("legality", "task.proof.initial", "task")
    assert detail in reason.detail


def test_false_initial_commitments_are_the_tasks_fault(
    kzg_run: Path, kzg_task: CompiledTask, srs: Path
) -> None:
    """The solver, who began with what the task says, is not to blame: only the SRS shows it."""
    leaves = read_kzg_leaves(kzg_run)
    first = decode_kzg_record(leaves[0])
    false = (POINT, first.before[1])
    write_kzg_leaves(kzg_run, [encode_kzg_record(replace(first, before=false)), *leaves[1:]])
    retask(kzg_task, false, kzg_run)
    sign_again(kzg_run)
    assert audit(kzg_run).verdict == "verified"
    report = audit(kzg_run, srs)
    assert report.verdict == "inconclusive"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("kzg", "task.proof.initial", "task")


def test_another_srs_compares_nothing(kzg_honest: Path, tmp_path: Path, srs: Path) -> None:
    other, junk = tmp_path / "other", tmp_path / "junk"
    make_key(other, 9)
    junk.write_bytes(b"no SRS")
    for path in (other, junk):
        report = audit(kzg_honest, path)
        assert report.verdict == "inconclusive"
        reason = reason_of(report)
        assert (reason.name, reason.status) == ("kzg", "not_done")
        assert "the files given are of no use here" in reason.detail
    with pytest.raises(RunError, match="is no file"):
        audit(kzg_honest, tmp_path / "none")
    with pytest.raises(RunError, match="needs open_key"):
        verify(kzg_honest, srs=srs)


def test_an_srs_for_a_run_without_kzg_is_noted(run: Path, srs: Path) -> None:
    make_key(srs)
    report = audit(run, srs)
    assert report.verdict == "verified"
    assert unchecked(report, "the SRS given: the task asks for no KZG commitments")


def test_the_same_steps_in_another_layout_are_another_task(
    kzg_task: CompiledTask, srs: Path
) -> None:
    assert add_kzg(kzg_task, make_key(srs), every=2).task_id != kzg_task.task_id


def test_every_flipped_bit_is_caught(tmp_path: Path, srs: Path) -> None:
    """One in 37 of them, in a run of two steps whose manifest fits what is there."""
    run = tmp_path / "run"
    train(make_kzg_task(srs, steps=2, commit_every=1, checkpoint_every=2), run, key=KEY)
    path = RunPaths(run).kzg
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 37):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        refit_manifest(run)
        report = audit(run, all_=False, samples=0)
        assert {check.name for check in failed(report)} == {"kzg_log"}, bit


# --- what hides the commitments


def list_keys(run: Path, task: CompiledTask) -> tuple[HidingKey, ...]:
    """All keys of a run, as its solver has them."""
    hiding, paths = read_hiding(run / "hiding.key"), RunPaths(run)
    found = []
    for record in map(decode_record, read_leaves(run)):
        key = derive_key(hiding.batches, task.task_id, "batch", record.step, record.batch_digest)
        found.append(HidingKey("batch", record.step, key))
        if record.state_root:
            key = derive_key(hiding.states, task.task_id, "state", record.step, record.state_root)
            found.append(HidingKey("state", record.step, key))
    assert paths.kzg.exists()
    return tuple(sorted(found, key=lambda item: (item.kind, item.index)))


@pytest.fixture(scope="module")
def told_task(srs: Path) -> CompiledTask:
    return make_kzg_task(srs, steps=6, commit_every=1, checkpoint_every=2)


@pytest.fixture(scope="module")
def told(told_task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("told") / "run"
    train(told_task, run, key=KEY)
    return run


@pytest.fixture
def published(told: Path, tmp_path: Path) -> Path:
    """The run without its secrets."""
    run = Path(shutil.copytree(told, tmp_path / "run"))
    (run / "hiding.key").unlink()
    return run


def tell(folder: Path, hiding: Hiding) -> Path:
    path = folder / "told.key"
    path.write_bytes(structs.encode(hiding))
    return path


def kzg_check(report: Report) -> Check:
    return next(check for check in report.checks if check.name == "kzg")


def test_without_keys_nothing_is_compared_and_nobody_to_blame(published: Path, srs: Path) -> None:
    report = audit(published, srs)
    check = kzg_check(report)
    assert (report.verdict, check.status, check.where) == (
        *("inconclusive", "not_done"),
        "step 1: batch",
    )
    assert "could not be compared: no key of it was given" in check.detail
    assert audit(published).verdict == "verified", "without an SRS nothing was to be compared"
    assert unchecked(report, NOT_COMPARED.format(6, 6))


def test_keys_disclosed_are_enough(
    published: Path, told: Path, told_task: CompiledTask, srs: Path, tmp_path: Path
) -> None:
    keys = list_keys(told, told_task)
    report = audit(published, srs, hiding=tell(tmp_path, Hiding(keys=keys)))
    assert report.verdict == "verified"
    assert any("6 of 6 steps that have them" in line for line in report.strength.checked)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_keys_of_some_steps(
    published: Path, told: Path, told_task: CompiledTask, srs: Path, tmp_path: Path, last: int
) -> None:
    keys = tuple(key for key in list_keys(told, told_task) if key.index <= last)
    report = audit(published, srs, hiding=tell(tmp_path, Hiding(keys=keys)))
    check = kzg_check(report)
    assert (report.verdict, check.status) == ("inconclusive", "not_done")
    assert check.where == f"step {last + 1}: batch"
    assert any(f"{last} of 6 steps that have them" in line for line in report.strength.checked)


def exchange(keys: tuple[HidingKey, ...]) -> tuple[HidingKey, ...]:
    """Each with the key of another."""
    others = keys[1:] + keys[:1]
    return tuple(replace(item, key=other.key) for item, other in zip(keys, others, strict=True))


def invent(keys: tuple[HidingKey, ...]) -> tuple[HidingKey, ...]:
    return tuple(replace(item, key=bytes(32)) for item in keys)


@pytest.mark.parametrize("change", [exchange, invent])
@pytest.mark.parametrize("kinds", [("batch", "state"), ("batch",), ("state",)])
def test_wrong_keys_convict_nobody(
    published: Path,
    told: Path,
    told_task: CompiledTask,
    srs: Path,
    tmp_path: Path,
    change: Callable[[tuple[HidingKey, ...]], tuple[HidingKey, ...]],
    kinds: tuple[str, ...],
) -> None:
    keys = list_keys(told, told_task)
    wrong = dict(zip(keys, change(keys), strict=True))
    given = tuple(wrong[item] if item.kind in kinds else item for item in keys)
    report = audit(published, srs, hiding=tell(tmp_path, Hiding(keys=given)))
    check = kzg_check(report)
    assert (report.verdict, check.status) == ("inconclusive", "not_done")
    assert "its key, as given, is not the one in the log" in check.detail


def test_another_runs_secrets_convict_nobody(published: Path, srs: Path) -> None:
    place_secrets(published)
    report = audit(published, srs)
    assert report.verdict == "inconclusive"
    assert "its key, as given, is not the one in the log" in kzg_check(report).detail


@pytest.mark.parametrize("data", [b"", b"\xa0", b"no secrets"])
def test_a_file_that_is_none_convicts_nobody(
    published: Path, srs: Path, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "told.key"
    path.write_bytes(data)
    for hiding in (path, None):
        if hiding is None:
            (published / "hiding.key").write_bytes(data)
        report = audit(published, srs, hiding=hiding)
        assert report.verdict == "inconclusive"
        assert "the files given are of no use here" in kzg_check(report).detail


@pytest.mark.parametrize(
    ("lie", "part", "step"), [(3, "after", 1), (4, "batch", 2), (8, "batch", 4)]
)
def test_a_false_commitment_under_the_right_key_is_fraud(
    tmp_path: Path, srs: Path, told_task: CompiledTask, lie: int, part: str, step: int
) -> None:
    """Also where its key alone is disclosed; and where it is not, nobody can tell."""
    run = tmp_path / "run"
    train(replace(told_task, kzg=LyingKey(make_key(srs), lie)), run, key=KEY)
    keys = list_keys(run, told_task)
    (run / "hiding.key").unlink()
    kind = "batch" if part == "batch" else "state"
    about = [item for item in keys if (item.kind, item.index) == (kind, step)]
    report = audit(run, srs, hiding=tell(tmp_path, Hiding(keys=tuple(about))))
    assert report.verdict == "fraud"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("kzg", f"step {step}", "solver")
    assert f"({part}) of step {step} is" in reason.detail
    rest = tuple(item for item in keys if item not in about)
    assert audit(run, srs, hiding=tell(tmp_path, Hiding(keys=rest))).verdict == "inconclusive"


def test_a_false_id_of_a_key_is_no_fraud_and_never_verified(published: Path, srs: Path) -> None:
    """Nobody but its solver knows what the right one is."""
    leaves = read_kzg_leaves(published)
    record = decode_kzg_record(leaves[2])
    leaves[2] = encode_kzg_record(replace(record, batch_key=bytes(32)))
    write_kzg_leaves(published, leaves)
    sign_again(published)
    assert audit(published, srs).verdict == "inconclusive"
