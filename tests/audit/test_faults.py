"""Every fault in a run directory is caught with its place, or shown not to matter."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit.runs import (
    KEY,
    failed,
    make_smallest_task,
    read_leaves,
    reason_of,
    refit_manifest,
    sign_again,
    write_leaves,
)
from tests.exhaustive import spare
from tests.tasks import make_tiny_task
from vtrain import limits
from vtrain.audit.structure import check_structure
from vtrain.audit.verify import verify
from vtrain.commit.checkpoint import read_checkpoint, write_checkpoint
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import RunError
from vtrain.limits import LIMITS, Limits, measure_memory
from vtrain.spec.commitment import compute_graph_root
from vtrain.train.layout import RunPaths, decode_manifest, encode_manifest
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire.graph import Node, StepGraph
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.report import compute_verdict

FILES = (
    "task.cbor",
    "claim.cbor",
    "manifest.json",
    "log.bin",
    "graph.cbor",
    "model.onnx",
    "data/samples.bin",
    "checkpoints/000000000004.safetensors",
)
SMALLEST = {
    "task.cbor": ("task", 2),
    "claim.cbor": ("claim", 1),
    "manifest.json": ("", 6),
    "log.bin": ("log", 1),
    "graph.cbor": ("graph", 3),
    "model.onnx": ("model", 1),
    "data/samples.bin": ("samples", 1),
    "checkpoints/000000000000.safetensors": ("checkpoints", 1),
    "checkpoints/000000000002.safetensors": ("checkpoints", 1),
}
"""Every file of the smallest run -> the check that holds it against the signature, and into how
many parts its bits are divided, for workers to share."""
LISTED = ("task.cbor", "graph.cbor", "model.onnx", "log.bin", "data/samples.bin")
PARTS = 4


def judge(run: Path) -> tuple[str, list[tuple[str, str]]]:
    """Verdict of the structure check, and (name, place) of what failed."""
    evidence = check_structure(run, threads=1)
    bad = [(check.name, check.where) for check in evidence.checks if check.status == "failed"]
    return compute_verdict(evidence.checks), bad


def flips(data: bytes, name: str, count: int) -> list[tuple[int, int]]:
    """(byte, bit) to change: one bit of each of ``count`` bytes."""
    source = random.Random(name)  # noqa: S311 - a choice of test cases
    bytes_ = sorted(source.sample(range(len(data)), min(count, len(data))))
    return [(byte, source.randrange(8)) for byte in bytes_]


def flip(data: bytes, byte: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[byte] ^= 1 << bit
    return bytes(changed)


@pytest.fixture(scope="session")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a few kilobytes; not to be changed."""
    run = tmp_path_factory.mktemp("smallest") / "run"
    train(make_smallest_task(), run, key=KEY, threads=1)
    return run


def test_the_smallest_run_is_verified_and_every_file_of_it_is_tried(smallest: Path) -> None:
    report = verify(smallest, all_=True)
    assert report.verdict == "verified"
    assert report.segments == ((1, 2),)
    files = {
        path.relative_to(smallest).as_posix() for path in smallest.rglob("*") if path.is_file()
    }
    # The history is the solver's own, and no part of what is claimed.
    assert files - {".lock", "history.jsonl"} == SMALLEST.keys()
    assert (smallest / ".lock").read_bytes() == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    spare(
        [(name, part) for name in SMALLEST for part in range(8 * SMALLEST[name][1])],
        lambda case: case[1] % 16 == 0,
    ),
)
def test_every_flipped_bit_is_caught_or_does_not_matter(
    smallest: Path, tmp_path: Path, name: str, part: int
) -> None:
    """Each bit of each byte of each file (``make test``: a sixteenth of them), all of the structure
    check, no fraud ever.

    A bit that the structure check passes is tried with the whole audit: it must be one of what the
    manifest says for people alone.
    """
    run = Path(shutil.copytree(smallest, tmp_path / "run"))
    path, data = run / name, (run / name).read_bytes()
    guard, parts = SMALLEST[name]
    bits = list(product(range(len(data)), range(8)))
    random.Random(name).shuffle(bits)  # noqa: S311 - a part has all kinds of bits
    for byte, bit in bits[part :: 8 * parts]:
        changed = flip(data, byte, bit)
        path.write_bytes(changed)
        verdict, bad = judge(run)
        place = f"{name}: byte {byte} bit {bit}"
        if verdict == "verified":
            assert name == "manifest.json", f"{place} went unseen"
            before, after = decode_manifest(data), decode_manifest(changed)
            words = {"software": "", "engine": "", "counted_steps": 0, "saturation": {}}
            assert replace(before, **words) == replace(after, **words)  # type: ignore[arg-type]
            assert verify(run, all_=True, engine="numpy", threads=1).verdict == "verified"
            continue
        assert verdict == "inconclusive", f"{place} is no fraud"
        if name == "manifest.json":
            assert all(check in ("manifest", "index", "files") for check, _ in bad), (place, bad)
        else:
            # The manifest and, without it, the chain from the signature: either would do.
            assert name == "claim.cbor" or ("files", name) in bad, (place, bad)
            assert (guard, name) in [(check, where[: len(name)]) for check, where in bad], place


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", LISTED[1:] + FILES[-1:] + ("task.cbor",))
def test_a_manifest_that_fits_the_flipped_bit_does_not_hide_it(
    run: Path, name: str, part: int
) -> None:
    path, data = run / name, (run / name).read_bytes()
    for byte, bit in flips(data, name, 80)[part::PARTS]:
        path.write_bytes(flip(data, byte, bit))
        refit_manifest(run)
        verdict, bad = judge(run)
        assert verdict == "inconclusive", f"{name}: byte {byte} bit {bit}"
        assert any(where.startswith(name) for _, where in bad), bad


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def double(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def remove(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def make_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def make_unreadable_name(path: Path) -> None:
    path.rename(path.with_name("x" * 200))


DAMAGES = (
    truncate,
    empty,
    extend,
    double,
    remove,
    make_folder,
    make_pipe,
    make_loop,
    make_device,
    make_huge,
    make_unreadable_name,
)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_inconclusive_and_named(
    run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(run / name)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    wrong = [check for check in report.checks if check.status != "passed"]
    assert any(check.where.startswith(name) for check in wrong)


def test_swapped_files_are_inconclusive(run: Path) -> None:
    paths = RunPaths(run)
    a, b = paths.checkpoint(4), paths.checkpoint(8)
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    refit_manifest(run)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert [check.where for check in failed(report)] == [paths.name_of(a), paths.name_of(b)]
    paths.log.write_bytes(paths.graph.read_bytes())
    assert verify(run).verdict == "inconclusive"


def test_extra_and_duplicated_files_are_noted_and_ignored(run: Path) -> None:
    paths = RunPaths(run)
    shutil.copy(paths.checkpoint(4), paths.checkpoint(5))
    shutil.copy(paths.log, run / "log.bin.bak")
    (run / "deep").mkdir()
    (run / "deep" / "note.txt").write_text("hello")
    report = verify(run, all_=True)
    assert report.verdict == "verified"
    [note] = [line for line in report.strength.unchecked if "belong to no run" in line]
    for name in ("checkpoints/000000000005.safetensors", "deep/note.txt", "log.bin.bak"):
        assert name in note


def test_proofs_are_of_a_run_and_not_for_a_replay_to_check(run: Path) -> None:
    (run / "proofs").mkdir()
    (run / "proofs" / "step-000000000003.cbor").write_bytes(b"")
    report = verify(run, all_=True)
    assert report.verdict == "verified"
    assert not any("belong to no run" in line for line in report.strength.unchecked)
    assert any(line.startswith("what lies in proofs/: ") for line in report.strength.unchecked)
    (run / "proof").write_bytes(b"")
    [note] = [line for line in verify(run).strength.unchecked if "belong to no run" in line]
    assert note.endswith("ignored: 'proof'")


def test_a_folder_that_is_no_run_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of something else")
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="is not a run directory") as caught:
            verify(place)
        assert caught.value.where == str(place)
    with pytest.raises(RunError, match=r"neither task\.cbor, .* `vtrain train TASK --out RUN`"):
        verify(tmp_path)


@pytest.mark.parametrize("name", ["task.cbor", "claim.cbor", "manifest.json"])
def test_a_run_of_which_one_file_is_left_is_inconclusive(tmp_path: Path, name: str) -> None:
    # A link without an end is something that a solver put there.
    (tmp_path / name).symlink_to("nowhere")
    assert verify(tmp_path).verdict == "inconclusive"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "log.bin/../task.cbor", "other"])
def test_a_manifest_cannot_point_outside_the_run(run: Path, name: str) -> None:
    paths = RunPaths(run)
    (run.parent / "outside").write_text("not yours")
    manifest = decode_manifest(paths.manifest.read_bytes())
    files = {**manifest.files, name: manifest.files["log.bin"]}
    paths.manifest.write_bytes(encode_manifest(replace(manifest, files=files)))
    report = verify(run)
    assert report.verdict == "inconclusive"
    assert [(check.where, check.detail) for check in failed(report)] == [
        ("manifest.json", f"lists {name!r}, which is no file of a run")
    ]


def test_one_bad_checkpoint_leaves_the_other_segments_checked(run: Path) -> None:
    truncate(RunPaths(run).checkpoint(4))
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    # The state after step 4 is known from replaying the segment before it.
    assert report.segments == ((1, 4), (5, 8), (9, 12))
    assert not [
        check for check in report.checks if check.name == "replay" and check.status == "failed"
    ]


def test_fraud_wins_over_inconclusive(run: Path) -> None:
    rewrite_loss(run, 6)
    sign_again(run)
    RunPaths(run).model.unlink()
    report = verify(run, all_=True)
    assert report.verdict == "fraud"
    assert reason_of(report).where == "steps 5 to 6"
    assert ("files", "model.onnx") in [(check.name, check.where) for check in failed(report)]


def rewrite_loss(run: Path, step: int) -> None:
    leaves = read_leaves(run)
    record = decode_record(leaves[step - 1])
    leaves[step - 1] = encode_record(replace(record, loss=record.loss + 1))
    write_leaves(run, leaves)


def test_a_rewritten_past_is_fraud_only_when_the_solver_signs_it(run: Path) -> None:
    rewrite_loss(run, 5)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert reason_of(report).where == "log.bin"
    sign_again(run)
    report = verify(run, all_=True)
    assert report.verdict == "fraud"
    assert reason_of(report).where == "step 5"
    assert "loss of step 5" in reason_of(report).detail


def test_somebody_elses_signature_convicts_nobody(run: Path) -> None:
    """A changed log that another key signs in the solver's name is no claim at all."""
    rewrite_loss(run, 5)
    other = Ed25519PrivateKey.generate()
    with pytest.raises(Exception, match="another solver"):
        sign_again(run, other)
    paths = RunPaths(run)
    signed = bytearray(paths.claim.read_bytes())
    signed[-1] ^= 1
    paths.claim.write_bytes(bytes(signed))
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert ("claim", "claim.cbor: signature") in [(c.name, c.where[:21]) for c in failed(report)]


def swap_leaves(leaves: list[bytes]) -> list[bytes]:
    return [*leaves[:2], leaves[3], leaves[2], *leaves[4:]]


def repeat_leaf(leaves: list[bytes]) -> list[bytes]:
    return [*leaves[:3], leaves[2], *leaves[4:]]


def drop_root(leaves: list[bytes]) -> list[bytes]:
    record = replace(decode_record(leaves[3]), state_root=b"")
    return [*leaves[:3], encode_record(record), *leaves[4:]]


def add_root(leaves: list[bytes]) -> list[bytes]:
    record = replace(decode_record(leaves[2]), state_root=bytes(32))
    return [*leaves[:2], encode_record(record), *leaves[3:]]


def spoil_leaf(leaves: list[bytes]) -> list[bytes]:
    return [*leaves[:4], b"\xff no record", *leaves[5:]]


def spoil_batch(leaves: list[bytes]) -> list[bytes]:
    record = replace(decode_record(leaves[6]), batch_digest=bytes(32))
    return [*leaves[:6], encode_record(record), *leaves[7:]]


def borrow_batch(leaves: list[bytes]) -> list[bytes]:
    other = decode_record(leaves[8]).batch_digest
    record = replace(decode_record(leaves[6]), batch_digest=other)
    return [*leaves[:6], encode_record(record), *leaves[7:]]


def add_step(leaves: list[bytes]) -> list[bytes]:
    last = decode_record(leaves[-1])
    return [*leaves, encode_record(replace(last, step=last.step + 1, state_root=b""))]


@pytest.mark.parametrize(
    ("change", "check", "where", "detail"),
    [
        (swap_leaves, "records", "step 3", "recorded as step 4"),
        (repeat_leaf, "records", "step 4", "recorded as step 3"),
        (drop_root, "records", "step 4", "has no state root"),
        (add_root, "records", "step 3", "has a state root"),
        (spoil_leaf, "records", "step 5", "is no record"),
        (spoil_batch, "batches", "step 7", "no batch of this run"),
        (borrow_batch, "batches", "step 7", "the batch of step 9"),
        (add_step, "complete", "claim.log_size", "claims 13 steps of a task of 12"),
    ],
)
def test_a_signed_log_that_contradicts_the_task_is_fraud(
    run: Path,
    change: Callable[[list[bytes]], list[bytes]],
    check: str,
    where: str,
    detail: str,
) -> None:
    write_leaves(run, change(read_leaves(run)))
    assert verify(run).verdict == "inconclusive"
    sign_again(run)
    report = verify(run, all_=True)
    assert report.verdict == "fraud"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == (check, where, "solver")
    assert detail in reason.detail


def test_an_unfinished_run_is_checked_as_far_as_claimed_but_is_not_the_task(run: Path) -> None:
    write_leaves(run, read_leaves(run)[:8])
    sign_again(run)
    report = verify(run, all_=True)
    assert report.verdict == "verified"
    assert report.segments == ((1, 4), (5, 8))
    assert "steps 9 to 12 of the task, which nobody has claimed yet" in report.strength.unchecked
    report = verify(run, all_=True, task_id=report.task_id)
    assert report.verdict == "inconclusive"
    assert [(check.name, check.detail) for check in failed(report)] == [
        ("complete", "the run is not finished: 8 of 12 steps")
    ]
    assert report.segments == ((1, 4), (5, 8))


@pytest.mark.parametrize("count", [0, 1])
def test_a_claim_that_commits_to_no_state(run: Path, count: int) -> None:
    write_leaves(run, read_leaves(run)[:count])
    sign_again(run)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    undone = {check.name for check in report.checks if check.status == "not_done"}
    assert {"checkpoints", "replay"} <= undone


def test_a_state_that_no_step_leads_to_is_fraud(run: Path, task: CompiledTask) -> None:
    """The solver commits to a checkpoint whose step counter is not that of its step."""
    paths = RunPaths(run)
    state = read_checkpoint(paths.checkpoint(8), task.graph)
    state["step"] = np.asarray(9, dtype=np.int64)
    write_checkpoint(paths.checkpoint(8), task.graph, state)
    leaves = read_leaves(run)
    root = compute_root_of_state(task.graph, state)
    leaves[7] = encode_record(replace(decode_record(leaves[7]), state_root=root))
    write_leaves(run, leaves)
    sign_again(run)
    report = verify(run, samples=0)
    assert report.verdict == "fraud"
    place = "checkpoints/000000000008.safetensors: state.step"
    assert reason_of(report).where == place


def test_however_many_false_states_were_signed_a_report_is_short(tmp_path: Path) -> None:
    """One file under every name: it costs a solver nothing."""
    task = make_tiny_task(steps=30, commit_every=2, checkpoint_every=2, samples=10, batch=4)
    paths = RunPaths(tmp_path / "run")
    train(task, paths.root, key=KEY)
    leaves, step = read_leaves(paths.root), 2
    root = decode_record(leaves[step - 1]).state_root
    for later in range(4, 31, 2):
        shutil.copy(paths.checkpoint(step), paths.checkpoint(later))
        record = decode_record(leaves[later - 1])
        leaves[later - 1] = encode_record(replace(record, state_root=root))
    write_leaves(paths.root, leaves)
    sign_again(paths.root)
    refit_manifest(paths.root)
    report = verify(paths.root, samples=0)
    assert report.verdict == "fraud"
    assert [(check.where, check.fault) for check in failed(report)] == [
        *((f"checkpoints/{bad:012d}.safetensors: state.step", "solver") for bad in range(4, 24, 2)),
        ("checkpoints", "nobody"),
    ]
    assert failed(report)[-1].detail == "14 of 16 fail"


def test_a_checkpoint_of_another_task_is_inconclusive(run: Path, tmp_path: Path) -> None:
    other = make_tiny_task(
        steps=12, commit_every=2, checkpoint_every=4, samples=10, batch=4, seed=8
    )
    train(other, tmp_path / "other", key=KEY)
    for step, place in ((0, "000000000000"), (8, "000000000008")):
        target = RunPaths(run).checkpoint(step)
        kept = target.read_bytes()
        shutil.copy(RunPaths(tmp_path / "other").checkpoint(step), target)
        refit_manifest(run)
        report = verify(run, all_=True)
        assert report.verdict == "inconclusive"
        assert [check.where for check in failed(report)] == [f"checkpoints/{place}.safetensors"]
        target.write_bytes(kept)


def test_a_claim_of_another_run_is_inconclusive(
    run: Path, tmp_path: Path, task: CompiledTask
) -> None:
    train(task, tmp_path / "other", key=KEY)
    shutil.copy(RunPaths(tmp_path / "other").claim, RunPaths(run).claim)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert failed(report)[0].where == "manifest.json: manifest.run_id"


def test_the_task_asked_for_is_the_one_that_counts(run: Path, task: CompiledTask) -> None:
    report = verify(run, task_id=task.task_id)
    assert report.verdict == "verified"
    assert "the task is the one asked for" in report.strength.checked
    report = verify(run, task_id=bytes(32))
    assert report.verdict == "inconclusive"
    assert reason_of(report).where == "task.cbor"
    assert not any("taken from the run" in line for line in report.strength.unchecked)
    assert any("taken from the run" in line for line in verify(run).strength.unchecked)


def test_data_may_come_from_elsewhere(run: Path, tmp_path: Path) -> None:
    paths, table = RunPaths(run), tmp_path / "table.bin"
    paths.samples.rename(table)
    report = verify(run)
    assert report.verdict == "inconclusive"
    assert "data/samples.bin" in [check.where for check in failed(report)]
    assert verify(run, data=table).verdict == "verified"
    table.write_bytes(flip(table.read_bytes(), 5, 0))
    report = verify(run, data=table)
    assert report.verdict == "inconclusive"
    assert [(check.name, check.where) for check in failed(report)] == [("samples", str(table))]
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(RunError, match="is no file"):
            verify(run, data=missing)


def retask(task: CompiledTask, **changes: object) -> CompiledTask:
    return replace(task, spec=replace(task.spec, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"seed": 99}, "task.seed"),
        ({"batch": 5}, "task.batch"),
        ({"commit_every": 1, "checkpoint_every": 4}, "task.commit_every"),
        ({"exponents": {"nowhere": 3}}, "task.exponents.nowhere"),
    ],
)
def test_a_task_that_contradicts_its_graph_is_the_tasks_fault(
    task: CompiledTask, tmp_path: Path, changes: dict[str, object], where: str
) -> None:
    train(retask(task, **changes), tmp_path / "run", key=KEY, engine="numpy")
    report = verify(tmp_path / "run")
    assert report.verdict == "inconclusive"
    reason = reason_of(report)
    assert (reason.name, reason.where, reason.fault) == ("legality", where, "task")


def test_exponents_in_the_task_are_those_of_the_graph(task: CompiledTask, tmp_path: Path) -> None:
    site, exponent = next(iter(task.spec.exponents.items()))
    false = retask(task, exponents={**task.spec.exponents, site: exponent + 1})
    train(false, tmp_path / "run", key=KEY)
    assert reason_of(verify(tmp_path / "run")).where == f"task.exponents.{site}"


def test_an_illegal_graph_is_the_tasks_fault(task: CompiledTask, tmp_path: Path) -> None:
    """A graph whose claimed range is smaller than what its operators allow."""
    index = next(i for i, node in enumerate(task.graph.nodes) if node.op == "matmul")
    node = task.graph.nodes[index]
    narrow = Node(
        node.name, node.op, node.attrs, node.inputs, (replace(node.outputs[0], lo=0, hi=1),)
    )
    nodes = (*task.graph.nodes[:index], narrow, *task.graph.nodes[index + 1 :])
    graph = StepGraph(nodes)
    spec = replace(task.spec, graph_root=compute_graph_root(graph))
    train(replace(task, spec=spec, graph=graph), tmp_path / "run", key=KEY, engine="numpy")
    report = verify(tmp_path / "run")
    assert report.verdict == "inconclusive"
    assert reason_of(report).fault == "task"
    assert node.name in reason_of(report).where


def test_limits_are_cut_down_to_the_machines_memory(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LIMITS.within(1 << 50) == LIMITS
    small = LIMITS.within(1 << 30)
    assert small.state_bytes == small.held_samples_bytes == 1 << 28
    assert (small.step_bytes, small.log_bytes) == (1 << 29, 1 << 27)
    assert Limits(state_bytes=5).within(1 << 30).state_bytes == 5
    assert verify(honest, all_=True, limits=LIMITS.within(1 << 20)).verdict == "verified"
    assert measure_memory() > 1 << 28
    # A machine too small for one state of this run (1984 bytes), and one too small for its log.
    for memory, where in ((4000, "graph.cbor"), (1000, "log.bin")):
        monkeypatch.setattr(limits, "measure_memory", lambda memory=memory: memory)
        report = verify(honest, all_=True)
        assert report.verdict == "inconclusive"
        assert where in [check.where for check in failed(report)]


@pytest.mark.parametrize(
    ("limits", "where"),
    [
        (Limits(task_bytes=10), "task.cbor"),
        (Limits(claim_bytes=10), "claim.cbor"),
        (Limits(graph_bytes=10), "graph.cbor"),
        (Limits(log_bytes=10), "log.bin"),
        (Limits(model_bytes=10), "model.onnx"),
        (Limits(samples_bytes=10), "data/samples.bin"),
        (Limits(state_bytes=10), "graph.cbor"),
        (Limits(step_bytes=10), "graph.cbor"),
    ],
)
def test_what_is_beyond_an_auditors_limits_is_inconclusive(
    honest: Path, limits: Limits, where: str
) -> None:
    report = verify(honest, limits=limits)
    assert report.verdict == "inconclusive"
    assert where in [check.where for check in failed(report)]
