"""Verdicts: honest runs are verified, cheats are fraud at their step; how strong, reports say."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import vtrain
from tests.audit.runs import KEY, read_leaves, reason_of, sign_again, write_leaves
from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.audit.plan import REPLAY_DOMAIN, draw
from vtrain.audit.replay import describe_state_difference, replay_segment
from vtrain.audit.verify import DEFAULT_SAMPLES, verify
from vtrain.commit.checkpoint import read_checkpoint
from vtrain.demo import cheats
from vtrain.engines.numpy_engine import NumpySession
from vtrain.engines.registry import resolve_engine
from vtrain.errors import (
    ConditionalError,
    FraudError,
    InconclusiveError,
    RunError,
    TaskError,
)
from vtrain.printable import make_printable
from vtrain.report.json import format_percent, format_report
from vtrain.report.terminal import print_report
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.report import Check, Report, compute_verdict

ALL_CHEATS = {**cheats.CHEATS, "a swapped batch, admitted": cheats.swap_batch_openly}


def show(report: Report) -> str:
    text = io.StringIO()
    print_report(report, Console(width=200, file=text))
    return text.getvalue()


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_an_honest_run_is_verified_by_any_engine(tmp_path: Path, kind: str, engine: str) -> None:
    task = make_tiny_task(kind, steps=12, commit_every=2, checkpoint_every=4, samples=10, batch=4)
    other = {"cpu": "numpy", "numpy": "cpu"}[engine]
    train(task, tmp_path / "run", key=KEY, engine=other)
    report = verify(tmp_path / "run", all_=True, engine=engine, task_id=task.task_id)
    assert (report.verdict, report.exit_code, report.reason) == ("verified", 0, None)
    assert report.engine == engine
    # No audit opens the model: one that names data outside of it, which no export takes, passes.
    assert any(line.startswith("what model.onnx holds: ") for line in report.strength.unchecked)
    assert report.segments == ((1, 4), (5, 8), (9, 12))
    assert (report.detections, report.randomness) == ((), None), "nothing was drawn"
    assert "Chance that this draw" not in show(report)


@pytest.mark.parametrize("step", [1, 7, 8, 9])
@pytest.mark.parametrize("name", ALL_CHEATS)
def test_every_cheat_is_caught_and_located_at_its_step(
    tmp_path: Path, name: str, step: int
) -> None:
    """With a commitment in every step; step 8 is one with a checkpoint."""
    task = make_tiny_task(steps=12, commit_every=1, checkpoint_every=4, samples=10, batch=4)
    cheats.train_falsely(task, tmp_path / "run", key=KEY, cheat=ALL_CHEATS[name], step=step)
    report = verify(tmp_path / "run", all_=True)
    assert (report.verdict, report.exit_code) == ("fraud", 10)
    reason = reason_of(report)
    assert (reason.where, reason.fault) == (f"step {step}", "solver")


@pytest.mark.parametrize("name", ALL_CHEATS)
def test_without_a_commitment_in_every_step_the_place_is_a_range(tmp_path: Path, name: str) -> None:
    task = make_tiny_task(steps=20, commit_every=5, checkpoint_every=10, samples=10, batch=4)
    cheats.train_falsely(task, tmp_path / "run", key=KEY, cheat=ALL_CHEATS[name], step=13)
    assert read_manifest(RunPaths(tmp_path / "run")).engine == resolve_engine("auto")
    report = verify(tmp_path / "run", all_=True)
    assert report.verdict == "fraud"
    where = reason_of(report).where
    assert where == "step 13" or where.startswith("steps 11 to 1")


def test_a_report_of_fraud_says_that_the_replay_stopped_there(tmp_path: Path) -> None:
    task = make_tiny_task(steps=12, commit_every=1, checkpoint_every=4, samples=10, batch=4)
    cheat = cheats.CHEATS["a skipped step"]
    cheats.train_falsely(task, tmp_path / "run", key=KEY, cheat=cheat, step=2)
    report = verify(tmp_path / "run", all_=True)
    assert report.verdict == "fraud"
    assert report.segments == ((1, 2),)
    [line] = [line for line in report.strength.unchecked if "the replay stopped there" in line]
    assert "2 of the segments chosen were not begun" in line
    assert line in show(report)


def test_the_segment_without_the_cheat_is_fine(tmp_path: Path) -> None:
    """What sampling can miss: a replay of other segments is no proof, and the report says so."""
    task = make_tiny_task(steps=12, commit_every=1, checkpoint_every=4, samples=10, batch=4)
    run = tmp_path / "run"
    cheats.train_falsely(task, run, key=KEY, cheat=cheats.skip_step, step=6)
    verdicts = {}
    claim = decode_signed_claim(RunPaths(run).claim.read_bytes()).claim
    for seed in (bytes([i]) for i in range(20)):
        report = verify(run, samples=1, seed=seed)
        [drawn] = draw(seed, compute_claim_digest(claim), REPLAY_DOMAIN, 3, 1)
        verdicts[drawn] = report.verdict
        last = 6 if drawn == 1 else drawn * 4 + 4
        assert report.segments == ((drawn * 4 + 1, last),)
        left = f"{11 - last + drawn * 4 + 1} steps that were not replayed"
        assert any(left in line for line in report.strength.unchecked)
    assert verdicts == {0: "conditional", 1: "fraud", 2: "conditional"}


def test_a_difference_in_a_stored_state_is_named_to_the_element(tmp_path: Path) -> None:
    task = make_tiny_task(steps=12, commit_every=1, checkpoint_every=4, samples=10, batch=4)
    run = tmp_path / "run"
    cheats.train_falsely(task, run, key=KEY, cheat=cheats.alter_gradient, step=8)
    detail = reason_of(verify(run, all_=True)).detail
    assert "1 of its" in detail
    assert "momentum/" in detail.split(" the log claims ")[1].split(";")[1]


def test_a_state_difference_names_the_tensor_that_a_step_computes_first(task: CompiledTask) -> None:
    state = {name: value.copy() for name, value in task.initial_state.items()}
    assert describe_state_difference(task.graph, state, task.initial_state) == ""
    state["param/w1"][3, 2] += 1
    state["momentum/w1"][1, 4] = 5
    text = describe_state_difference(task.graph, state, task.initial_state)
    assert text.startswith("momentum/w1[1, 4] is 5, the checkpoint has 0; 1 of its 128 elements")
    assert text.endswith("and so do param/w1")
    state["step"] = np.asarray(3, dtype=np.int64)
    text = describe_state_difference(task.graph, state, task.initial_state)
    assert text.startswith("step is 3, the checkpoint has 0")


def test_a_replay_reports_each_step_and_stops_at_the_difference(
    honest: Path, task: CompiledTask
) -> None:
    records = [decode_record(leaf) for leaf in read_leaves(honest)]
    state = read_checkpoint(RunPaths(honest).checkpoint(4), task.graph)
    seen: list[int] = []
    session = NumpySession(task.graph, task.samples)
    session.load_state(state)
    assert replay_segment(session, records, 4, 8, seen.append) is None
    assert seen == [1, 2, 3, 4]

    def spoil(step: int, **fields: object) -> list[StepRecord]:
        false = replace(records[step - 1], **fields)  # type: ignore[arg-type]
        return [*records[: step - 1], false, *records[step:]]

    for changes, step, field, where in (
        ({"loss": 1}, 5, "loss", "step 5"),
        ({"loss": 1}, 8, "loss", "steps 7 to 8"),
        ({"batch_digest": bytes(32)}, 8, "batch_digest", "step 8"),
        ({"state_root": bytes(32)}, 6, "state_root", "steps 5 to 6"),
        ({"state_root": b""}, 6, "state_root", "steps 5 to 6"),
    ):
        session.load_state(state)
        found = replay_segment(session, spoil(step, **changes), 4, 8)
        assert found is not None
        assert (found.step, found.field, found.where) == (step, field, where)


def test_fresh_randomness_is_asked_for_after_the_claim_was_read(honest: Path) -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    report = verify(honest, samples=2, random=random)
    assert asked == [32]
    assert report.randomness is not None
    assert not report.randomness.predictable
    assert report.assumptions == ()
    assert "Assumed" not in show(report)
    assert len(report.segments) == 2
    verify(honest, all_=True, random=random)
    assert asked == [32]


def test_a_seed_is_reported_as_predictable(honest: Path) -> None:
    report = verify(honest, samples=1, seed=b"public")
    assert report.randomness is not None
    assert report.randomness.predictable
    assert "(predictable-sample, not accepted)" in show(report)
    assert verify(honest, samples=1, seed=b"public") == report


def test_the_default_number_of_segments(tmp_path: Path) -> None:
    task = make_tiny_task(steps=12, commit_every=2, checkpoint_every=2, samples=10, batch=4)
    train(task, tmp_path / "run", key=KEY)
    assert len(verify(tmp_path / "run").segments) == DEFAULT_SAMPLES


def test_structure_alone_can_pass_and_its_strength_is_said(honest: Path, run: Path) -> None:
    report = verify(honest, samples=0)
    assert (report.verdict, report.segments, report.detections) == ("verified", (), ())
    assert "replay" not in [check.name for check in report.checks]
    for line in ("structure alone was asked for: no step was done again", "arithmetic of 12 steps"):
        assert any(line in item for item in report.strength.unchecked)
    (run / "log.bin").unlink()
    assert verify(run, samples=0).verdict == "inconclusive"


def test_a_report_is_true_only_when_verified(honest: Path, run: Path) -> None:
    """`assert vtrain.verify(cheat, all=True)` passed on a fraud."""
    report = verify(honest)
    assert report
    report.raise_for_verdict()
    conditional = verify(honest, samples=1, seed=b"s")
    leaves = read_leaves(run)
    record = decode_record(leaves[0])
    write_leaves(run, [encode_record(replace(record, loss=0)), *leaves[1:]])
    missing = verify(run)
    sign_again(run)
    fraud = verify(run, all_=True)
    kinds = {
        ConditionalError: conditional,
        InconclusiveError: missing,
        FraudError: fraud,
    }
    for kind, other in kinds.items():
        assert not other
        with pytest.raises(kind) as caught:
            other.raise_for_verdict()
        assert (caught.value.report, caught.value.code) == (other, other.verdict)
    with pytest.raises(FraudError, match="step 1: replay: loss of step 1"):
        fraud.raise_for_verdict()


@pytest.mark.parametrize("lost", [(4,), (4, 8), (0,), (0, 4), (8, 12)])
def test_lost_checkpoints_shield_no_step(run: Path, lost: tuple[int, ...]) -> None:
    """Their segments are done again from the last checkpoint before; only where there is none is
    something left out.  The verdict stays open: the bytes were not produced."""
    false = Path(shutil.copytree(run, run.with_name("false")))
    leaves = read_leaves(false)
    record = decode_record(leaves[10])
    write_leaves(false, [*leaves[:10], encode_record(replace(record, loss=0)), leaves[11]])
    sign_again(false)
    for step in lost:
        RunPaths(run).checkpoint(step).unlink()
        RunPaths(false).checkpoint(step).unlink()
    report = verify(false, all_=True)
    assert report.verdict == "fraud"
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    first = 1 if 0 not in lost else 5 if 4 not in lost else 9
    assert sum(b - a + 1 for a, b in report.segments) == 12 - first + 1
    for seed in (bytes([i]) for i in range(9)):
        [*segments] = verify(run, samples=1, seed=seed).segments
        assert all(b - a + 1 in (4, 8, 12) for a, b in segments)


@pytest.mark.parametrize(
    "call",
    [
        lambda run: verify(run, samples=-1),
        lambda run: verify(run, seed=b""),
        lambda run: verify(run, seed=bytes(65)),
        lambda run: verify(run, seed="c0ffee"),  # type: ignore[arg-type]
        lambda run: verify(run, task_id="00" * 32),  # type: ignore[arg-type]
        lambda run: verify(run, task_id=bytes(31)),
        lambda run: vtrain.verify(str(run), task_id="00" * 31),
        lambda run: vtrain.verify(str(run), solver="zz" * 32),
        lambda run: verify(run, engine="abacus"),
        lambda run: verify(run / "log.bin"),
    ],
)
def test_bad_usage_raises(honest: Path, call: Callable[[Path], Report]) -> None:
    with pytest.raises(RunError):
        call(honest)


def test_progress_reaches_the_end_of_what_it_counts(honest: Path) -> None:
    seen: dict[str, tuple[int, int]] = {}
    verify(honest, all_=True, progress=lambda what, done, total: seen.update({what: (done, total)}))
    assert seen["replay"] == (12, 12)
    assert set(seen) == {"files", "batches", "checkpoints", "replay"}


def test_json_holds_the_whole_report(honest: Path) -> None:
    report = verify(honest, samples=2, seed=b"s")
    data = json.loads(format_report(report))
    assert data["verdict"] == "conditional"
    assert data["exit_code"] == 4
    assert data["reason"] is None
    assert data["claim"] == report.claim.hex()
    [assumption] = data["assumptions"]
    assert (assumption["code"], assumption["accepted"]) == ("predictable-sample", False)
    assert data["task_id"] == report.task_id.hex()
    assert [check["name"] for check in data["checks"]] == [check.name for check in report.checks]
    assert data["replayed"] == [{"first": a, "last": b} for a, b in report.segments]
    assert data["randomness"] == {
        "value": b"s".hex(),
        "source": "a seed that was given",
        "predictable": True,
    }
    assert data["detection"][0] == {
        "fraction": None,
        "bad_steps": 1,
        "bad_segments": 1,
        "segments": 3,
        "unit": "segment",
        "drawn": 2,
        "formula": "1 - C(2,2)/C(3,2)",
        "probability": "2/3",
        "percent": "66.66",
    }


def test_text_has_the_parts_and_the_verdict_last(honest: Path, run: Path) -> None:
    text = show(verify(honest, samples=1))
    for part in ("Checked", "Not checked", "Chance that this draw hits a cheat", "33.33 %"):
        assert part in text
    assert text.strip().splitlines()[-1] == "Verdict: VERIFIED"
    leaves = read_leaves(run)
    record = decode_record(leaves[0])
    write_leaves(run, [encode_record(replace(record, loss=0)), *leaves[1:]])
    sign_again(run)
    last = show(verify(run, all_=True)).strip().splitlines()[-1]
    assert last == "Verdict: FRAUD", "where no text of a stranger's stands"


def test_where_there_is_no_terminal_nothing_is_wrapped_cut_or_padded(run: Path) -> None:
    (run / "log.bin").unlink()
    for number in range(5):
        (run / f"{number}{'x' * 150}").write_text("")
    text = io.StringIO()
    report = verify(run)
    print_report(report, Console(width=40, file=text))
    lines = text.getvalue().splitlines()
    assert all(line == line.rstrip() for line in lines)
    said = [*report.strength.checked, *report.strength.unchecked]
    assert {f"  - {line}" for line in said} <= set(lines)
    for check in report.checks:
        assert any(line.endswith(check.detail) and check.name in line for line in lines)


def test_names_in_a_run_cannot_draw_a_verdict(run: Path) -> None:
    (run / "x\n\nVerdict: VERIFIED\x1b[2J").write_text("")
    (run / "log.bin").unlink()
    text = show(verify(run))
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line.startswith("Verdict")] == [
        "Verdict: INCONCLUSIVE"
    ]
    assert make_printable("a\x1b[31m\u202eb\nc [bold]") == "a\\x1b[31m\\u202eb\\nc [bold]"


def test_an_engine_that_gives_up_leaves_the_run_inconclusive(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(self: NumpySession) -> StepRecord:
        raise TaskError("no such batch", where="order")

    monkeypatch.setattr(NumpySession, "step", give_up)
    report = verify(honest, engine="numpy", all_=True)
    assert report.verdict == "inconclusive"
    assert "no such batch" in reason_of(report).detail


def test_percent_is_never_overstated() -> None:
    assert format_percent(Fraction(1)) == "100.00"
    assert format_percent(Fraction(99999, 100000)) == "99.99"
    assert format_percent(Fraction(0)) == "0.00"
    assert format_percent(Fraction(1, 14)) == "7.14"


PASSED = Check("a", "passed", "")
NOT_DONE = Check("b", "not_done", "")
LOST = Check("c", "failed", "", "", "nobody")
BAD_TASK = Check("d", "failed", "", "", "task")
FRAUD = Check("e", "failed", "", "", "solver")


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ((), "inconclusive"),
        ((PASSED,), "verified"),
        ((PASSED, NOT_DONE), "inconclusive"),
        ((PASSED, LOST), "inconclusive"),
        ((PASSED, BAD_TASK), "inconclusive"),
        ((LOST, FRAUD, NOT_DONE), "fraud"),
    ],
)
def test_the_verdict_follows_from_the_checks(checks: tuple[Check, ...], verdict: str) -> None:
    assert compute_verdict(checks) == verdict


def test_a_gradient_that_feels_no_unit_cannot_be_altered(task: CompiledTask) -> None:
    """With a shift of 64 bits every gradient rounds to nothing, and one unit more is nothing."""
    nodes = tuple(
        replace(node, attrs={**node.attrs, "shift": 64}) if node.op == "momentum" else node
        for node in task.graph.nodes
    )
    dull = replace(task, graph=replace(task.graph, nodes=nodes))
    session = NumpySession(dull.graph, dull.samples)
    session.load_state(dull.initial_state)
    with pytest.raises(RunError, match="feels one unit"):
        cheats.alter_gradient(dull, session)
