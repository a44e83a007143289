"""An audit by rows: honest steps pass, a false row is found when it is drawn, and as often as the
report says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import numpy.typing as npt
import pytest

from tests.audit.runs import KEY, reason_of
from tests.audit.spoil import Spoiler
from tests.audit.test_algebraic import Case, judge, make_case, make_subject, pin_of
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.audit.algebraic import AlgebraicAudit, make_traces_pin, verify_algebraic
from vtrain.audit.rows import NodePlan, RowChecker, RowDraw, RowPlan, _cut, plan_rows
from vtrain.audit.traces import TraceChecker, WrongValue, choose_arithmetic
from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.pieces import GRAIN_BYTES, PIECE_BYTES
from vtrain.commit.traces import TraceFolder
from vtrain.dispute.refutation import compose_refutation
from vtrain.errors import NotProducedError, RunError, StorageError
from vtrain.graph.values import PRODUCTS, VIEWS
from vtrain.report.document import decode_document, encode_document, explain, make_document
from vtrain.report.html import render_html
from vtrain.spec.algebraic import compute_vector
from vtrain.train.traces import write_traces
from vtrain.wire.graph import StepGraph, TensorType
from vtrain.wire.report import Report
from vtrain.wire.traces import TensorTrace

Array = npt.NDArray[Any]
ALL = 1 << 40
ABOVE = 2000
KINDS = ("mlp", "cnn", "gpt", "llama", "dropout")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """A single step of each; of the last that of two steps between state roots.  Of the first two
    some tensors have many chunks."""
    found = {}
    for kind in KINDS:
        every = 2 if kind == "dropout" else 1
        batch = {"mlp": 512, "gpt": 32}.get(kind, 8)
        task = make_tiny_task(
            kind, steps=2, batch=batch, commit_every=every, checkpoint_every=every
        )
        found[kind] = make_case(task, tmp_path_factory.mktemp(kind), (2,))
    return found


def verify(case: Case, folder: Path | None = None, **given: Any) -> Report:
    given = {"steps": (2,), "pin": pin_of(case.run), "rows": 2, "rows_above": ABOVE} | given
    return verify_algebraic(case.run, AlgebraicAudit(folder=folder or case.traces, **given))


def plan_all(graph: StepGraph, rows: int = ALL) -> RowPlan:
    """Every node that can be, by rows."""
    nodes = {
        index: _cut(node, rows)
        for index, node in enumerate(graph.nodes)
        if node.op not in VIEWS | {"tensor_digest"}
    }
    return RowPlan(nodes, ())


def make_checker(
    case: Case, plan: RowPlan, randomness: bytes = b"any", *, store: Any = None, law: bool = False
) -> RowChecker:
    task = case.task
    vectors = [compute_vector(b"any", bytes(32), 0, 4096)]
    checker = TraceChecker(
        task.graph,
        task.samples,
        store or TraceFolder(case.traces),
        vectors,
        choose_arithmetic("numpy" if law else "cpu"),
        1 << 60,
    )
    rows = RowDraw(1, 0, randomness, bytes(32))
    return RowChecker(checker, store or TraceFolder(case.traces), plan, rows, by_law=law)


def read_trace(folder: TraceFolder, step: int = 2) -> tuple[TensorTrace, list[bytes]]:
    trace = next(item for item in folder.read_claim().traces.traces if item.step == step)
    return trace, folder.read_leaves(trace)


# --- honest steps


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_an_honest_step_is_verified(cases: dict[str, Case], name: str, engine: str) -> None:
    report = verify(cases[name], engine=engine)
    assert report.verdict == "verified", report.reason
    assert report.sampled is not None
    assert {item.rung for item in report.coverage} == {"structure", "rows"}
    worst = report.sampled.worst
    assert worst.missed == 1 - Fraction(worst.drawn, worst.units)
    assert worst.drawn == 2 < worst.units
    said, left = " ".join(report.strength.checked), " ".join(report.strength.unchecked)
    assert f"of {worst.name}, of which 2 of {worst.units} were drawn" in said
    assert "a false value in them passes" not in said
    assert "the rows that were not drawn" in left
    assert not any("no false one among them was left out" in line for line in report_lines(report))
    assert any("only some rows were looked at" in line for line in report_lines(report))


def report_lines(report: Report) -> Sequence[str]:
    return explain(report)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        *((name, False) for name in KINDS),
        *((name, True) for name in KINDS[:3]),
        *(pytest.param(name, True, marks=pytest.mark.exhaustive) for name in KINDS[3:]),
    ],
)
def test_rows_are_what_the_law_gives(cases: dict[str, Case], name: str, law: bool) -> None:
    """All rows of all nodes, each by itself: rows never err."""
    case = cases[name]
    rows = 1 if law else ALL  # by the law an element takes a while
    trace = read_trace(TraceFolder(case.traces))
    assert make_checker(case, plan_all(case.task.graph, rows), law=law).check(*trace) is None


@pytest.mark.parametrize("length", [3, 5])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_parts_of_rows_of_products_are_what_the_law_gives(
    cases: dict[str, Case], name: str, length: int
) -> None:
    """As of results whose rows are longer than what is read at once."""
    case = cases[name]
    nodes = {
        index: NodePlan("chunk", length, -(-node.outputs[0].size // length), 40)
        for index, node in enumerate(case.task.graph.nodes)
        if node.op in PRODUCTS
    }
    trace = read_trace(TraceFolder(case.traces))
    assert make_checker(case, RowPlan(nodes, ())).check(*trace) is None


def test_what_is_small_is_looked_at_whole(cases: dict[str, Case]) -> None:
    report = verify(cases["mlp"], rows_above=1 << 20)
    assert report.verdict == "verified"
    assert report.sampled is None
    assert {item.rung for item in report.coverage} == {"structure", "algebraic"}


def test_what_rows_do_not_tell_is_looked_at_whole(cases: dict[str, Case]) -> None:
    """Gradients of weights and sums over all rows, by name; and nothing is left out."""
    case = cases["mlp"]
    graph = case.task.graph
    plan = plan_rows(graph, case.task.samples, 1, ABOVE)
    ops = {graph.nodes[index].op for index in plan.whole}
    assert "matmul" in {graph.nodes[index].op for index in plan.nodes}
    assert ops & {"square_sum", "sum", "column_sum", "matmul", "cross_entropy"}
    large = {
        index
        for index, node in enumerate(graph.nodes)
        if node.op not in VIEWS | {"tensor_digest"}
        for kind in (node.outputs[0], *(graph.type_of(ref) for ref in node.inputs))
        if kind.byte_length > ABOVE
    }
    assert large == set(plan.nodes) | set(plan.whole)
    report = verify(case)
    assert report.sampled is not None
    assert report.sampled.whole


def test_a_report_by_rows_is_handed_on(cases: dict[str, Case], repository: Path) -> None:
    report = verify(cases["mlp"])
    data = encode_document(make_document(report, datetime.now(UTC), "0", "law"))
    schema = json.loads((repository / "docs" / "report.schema.json").read_text())
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(data))
    assert decode_document(data).report == replace(
        report, randomness=decode_document(data).report.randomness,
        traced=decode_document(data).report.traced,
    )  # fmt: skip


def test_a_chance_is_that_of_both_draws(tmp_path: Path) -> None:
    """A false step is found if it is drawn, and a false row of it is."""
    task = make_tiny_task("mlp", steps=4, batch=512, commit_every=1, checkpoint_every=1)
    case = make_case(task, tmp_path, (1, 2, 3, 4))
    report = verify(case, steps=None, sample=2, seed=b"seed")
    assert report.verdict == "verified", report.reason
    assert report.sampled is not None
    one = report.detections[0]
    assert one.caught == 1 - report.sampled.worst.missed < 1
    assert one.probability == Fraction(2, 4) * one.caught
    assert str(one.caught) in one.formula


# --- false rows


def list_faults(case: Case, spoiler: Spoiler, seed: int) -> Iterator[tuple[int, int]]:
    """(node, element): one of each operator and dtype."""
    rng = np.random.default_rng(seed)
    strata: dict[tuple[str, str], list[int]] = {}
    for index, node in enumerate(case.task.graph.nodes):
        if node.op not in VIEWS | {"state"}:
            strata.setdefault((node.op, node.outputs[0].dtype), []).append(index)
    for nodes in strata.values():
        index = int(rng.choice(nodes))
        yield index, int(rng.integers(case.task.graph.nodes[index].outputs[0].size))


def nudge(value: Array, element: int, kind: TensorType) -> Array:
    """One unit more, or less where more is out of range."""
    flat = value.reshape(-1)
    flat[element] += 1 if flat[element] < kind.hi else -1
    return value


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_every_false_row_that_is_drawn_is_found(
    cases: dict[str, Case], tmp_path: Path, name: str
) -> None:
    """Node and element are named, and a referee says so too."""
    case = cases[name]
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    subject, graph = make_subject(case), case.task.graph
    honest = spoiler.leaves()
    for index, element in list_faults(case, spoiler, seed=len(name)):
        kind = graph.nodes[index].outputs[0]
        leaves = spoiler.alter(
            honest, index, lambda value, e=element, k=kind: nudge(value, e, k)  # type: ignore[misc]
        )  # fmt: skip
        spoiler.sign(leaves)
        checker = make_checker(case, plan_all(graph), store=spoiler.folder)
        wrong = checker.check(*read_trace(spoiler.folder))
        assert wrong is not None, graph.nodes[index]
        # What reads the value differs from what was signed, too, and may come no earlier.
        assert (wrong.index, wrong.element) == (index, element)
        assert wrong.computed is None if kind.lo == kind.hi else judge(wrong, subject)


def alter_one(case: Case, spoiler: Spoiler, index: int, element: int) -> None:
    kind = case.task.graph.nodes[index].outputs[0]
    leaves = spoiler.alter(spoiler.leaves(), index, lambda value: nudge(value, element, kind))
    spoiler.sign(leaves)


def find_product(case: Case, least: int = 8) -> int:
    """A product of some rows."""
    return next(
        index
        for index, node in enumerate(case.task.graph.nodes)
        if node.op in PRODUCTS and node.outputs[0].shape[-2] >= least
    )


@pytest.mark.parametrize("drawn", [1, 3])
def test_a_false_row_is_found_as_often_as_is_said(
    cases: dict[str, Case], tmp_path: Path, drawn: int
) -> None:
    """By 400 draws, of seeds that are fixed; and of two false rows."""
    case = cases["mlp"]
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = find_product(case)
    node = _cut(case.task.graph.nodes[index], drawn)
    plan, tries = RowPlan({index: node}, ()), 400
    for false in (1, 2):
        alter_one(case, spoiler, index, 3 * (false - 1) * node.length)
        trace, leaves = read_trace(spoiler.folder)
        found = 0
        for number in range(tries):
            checker = make_checker(
                case, plan, number.to_bytes(2, "little") + b"!", store=spoiler.folder
            )
            found += look_at(checker, trace, leaves, index) is not None
        chance = 1 - math.comb(node.units - false, drawn) / math.comb(node.units, drawn)
        spread = math.sqrt(tries * chance * (1 - chance))
        assert abs(found - tries * chance) < 4 * spread + 1, (found, tries * chance)


def look_at(
    checker: RowChecker, trace: TensorTrace, leaves: Sequence[bytes], index: int
) -> WrongValue | None:
    """The rows drawn of one node alone, which is what there is to be found of it."""
    from vtrain.audit.rows import _RowWalk

    return _RowWalk(checker, trace, leaves, 0, {}).visit(index)


def test_a_false_input_is_laid_to_the_node_that_puts_it_out(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """Rows are computed from what was signed: what follows from a false value by the law is right,
    and a value outside its range is wrong wherever it is read."""
    case = cases["mlp"]
    graph = case.task.graph
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = next(
        i for i, n in enumerate(graph.nodes) if n.op == "rescale" and n.outputs[0].size > 8
    )
    kind = graph.nodes[index].outputs[0]
    assert np.iinfo(np.int16).max > kind.hi
    outside = spoiler.alter(spoiler.leaves(), index, lambda value: np.full_like(value, kind.hi + 1))
    spoiler.sign(outside)
    plan = plan_all(graph)
    reader = next(i for i, n in enumerate(graph.nodes) if any(r.node == index for r in n.inputs))
    checker = make_checker(case, plan, store=spoiler.folder)
    wrong = look_at(checker, *read_trace(spoiler.folder), reader)
    assert wrong is not None
    assert (wrong.index, wrong.computed, wrong.fault) == (index, None, "solver")
    assert "outside" in wrong.describe()


def test_only_what_is_asked_for_is_held_to_its_range(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """Of a tensor without hashes of parts everything is read: still a chunk that no row takes says
    nothing, as it does where it is not read."""
    case = cases["mlp"]
    graph = case.task.graph
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = next(
        i
        for i, node in enumerate(graph.nodes)
        if node.op == "rescale" and node.outputs[0].byte_length > 3 * 1024
    )
    node = graph.nodes[index]

    def leave_range(value: Array) -> Array:
        value.reshape(-1)[-1] = node.outputs[0].hi + 1
        return value

    spoiler.sign(spoiler.alter(spoiler.leaves(), index, lambda value: leave_range(value.copy())))
    plan = _cut(node, 1)
    found = set()
    for number in range(32):
        checker = make_checker(
            case, RowPlan({index: plan}, ()), bytes([number]), store=spoiler.folder
        )
        wrong = look_at(checker, *read_trace(spoiler.folder), index)
        drawn = checker.rows.draw(2, index, plan) == [plan.units - 1]
        assert (wrong is not None) == drawn
        found.add(drawn)
    assert found == {True, False}


# --- a hostile solver


def test_rows_that_follow_from_what_is_signed_are_refused(cases: dict[str, Case]) -> None:
    """Whoever signs could try traces until its false rows are not drawn."""
    with pytest.raises(RunError, match="leave --derived out"):
        verify(cases["mlp"], derived=True)
    with pytest.raises(RunError, match="draws no row"):
        verify(cases["mlp"], rows=0)
    with pytest.raises(RunError, match="no number of bytes"):
        verify(cases["mlp"], rows_above=-1)


def test_who_knows_the_draw_places_its_faults_outside_it(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """Which is why the randomness comes after what was signed, and a verdict by other randomness is
    conditional; the statement about it changes with what is signed."""
    case, known = cases["mlp"], b"known before"
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = find_product(case)
    length = _cut(case.task.graph.nodes[index], 1).length
    verdicts = set()
    for row in range(4):
        alter_one(case, spoiler, index, row * length)
        report = verify(case, spoiler.folder.root, challenge=known, rows=1)
        verdicts.add(report.verdict)
        spoiler.folder.write_leaves(2, read_trace(TraceFolder(case.traces))[1])
    assert "conditional" in verdicts  # it got away with one, for an auditor who accepts nothing
    assert "verified" not in verdicts


def test_what_is_kept_back_is_owed_by_the_same_draw(cases: dict[str, Case], tmp_path: Path) -> None:
    """A solver that keeps back what a draw asks for is not rid of it by the next."""
    case = cases["mlp"]
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = find_product(case)
    alter_one(case, spoiler, index, 0)
    path = spoiler.folder.chunk(read_trace(spoiler.folder)[1][index])
    kept = path.read_bytes()
    path.unlink()
    owed = verify(case, spoiler.folder.root)
    assert owed.verdict == "inconclusive"
    reason = reason_of(owed)
    assert f"the output of node {index}" in reason.detail
    assert "the solver owes it" in reason.detail
    assert owed.randomness is not None
    challenge = owed.randomness.value
    assert f"--challenge {challenge.hex()}" in reason.detail
    path.write_bytes(kept)
    pin = make_traces_pin(_digest(spoiler))
    again = verify(case, spoiler.folder.root, traces_pin=pin, challenge=challenge)
    plan = plan_rows(case.task.graph, case.task.samples, 2, ABOVE).nodes
    rows = RowDraw(2, ABOVE, challenge, pin.digest)
    nodes = case.task.graph.nodes
    readers = {at for at, node in enumerate(nodes) if any(r.node == index for r in node.inputs)}
    # Rows that follow from the honest value do not follow from the false one.
    seen = any(0 in rows.draw(2, at, plan[at]) for at in ({index} | readers) & set(plan))
    assert again.verdict == ("fraud" if seen else "verified")


def test_what_cannot_be_opened_shields_no_false_row(cases: dict[str, Case], tmp_path: Path) -> None:
    """The rows that show it are read; what a statement would take besides may be kept back."""
    case = cases["mlp"]
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    index = find_product(case)
    alter_one(case, spoiler, index, 0)
    trace, leaves = read_trace(spoiler.folder)
    read = {leaves[ref.node] for ref in case.task.graph.nodes[index].inputs}

    class Closed(TraceFolder):
        def read_chunk(self, digest: bytes, kind: Any) -> Array:
            if digest in read:
                raise StorageError("Permission denied", where=digest.hex())
            return super().read_chunk(digest, kind)

        def read_parts(self, digest: bytes, kind: Any, wanted: Any) -> Any:
            yield 0, TraceFolder(self.root).read_chunk(digest, kind).tobytes()

    checker = make_checker(case, plan_all(case.task.graph), store=Closed(spoiler.folder.root))
    wrong = look_at(checker, trace, leaves, index)
    assert wrong is not None
    assert (wrong.index, wrong.element, wrong.inputs, wrong.fault) == (index, 0, (), "solver")
    assert not list(compose_refutation(wrong, make_subject(case)))


def _digest(spoiler: Spoiler) -> bytes:
    from vtrain.attest.traces import compute_traces_digest

    return compute_traces_digest(spoiler.folder.read_claim().traces)


def test_rows_of_nodes_and_steps_are_drawn_apart() -> None:
    """Two nodes of one form have rows of their own, so that no place is safe in all of them."""
    plan = NodePlan("row", 4, 1000, 5)
    rows = RowDraw(5, 0, b"any", bytes(32))
    drawn = {tuple(rows.draw(step, node, plan)) for step in range(3) for node in range(3)}
    assert len(drawn) == 9
    other = replace(rows, traces=bytes(31) + b"\1")
    assert tuple(other.draw(0, 0, plan)) not in drawn


# --- parts of files


def test_parts_of_a_large_tensor_are_read_alone(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path)
    folder.make()
    value = np.random.default_rng(0).integers(-99, 99, 3 * PIECE_BYTES // 2 + 77, np.int16)
    kind = TensorType("i16", value.shape, 0, -99, 99)
    digest = folder.write_chunk(value)
    assert digest == compute_tensor_digest(value)
    data = value.tobytes()
    last = -(-len(data) // 1024)
    wanted = [(0, 1), (5, 6), (700, 702), (last - 1, last)]
    found = list(folder.read_parts(digest, kind, wanted))
    assert sum(len(part) for _, part in found) <= 3 * GRAIN_BYTES
    for start, part in found:
        assert data[start : start + len(part)] == part
    have = {chunk for start, part in found for chunk in
            range(start // 1024, -(-(start + len(part)) // 1024))}  # fmt: skip
    assert all(set(range(first, end)) <= have for first, end in wanted)
    # One wrong byte is found where it is read, and nowhere else.
    path = folder.chunk(digest)
    spoiled = bytearray(data)
    spoiled[700 * 1024] ^= 1
    path.write_bytes(spoiled)
    assert list(folder.read_parts(digest, kind, [(0, 1)]))
    with pytest.raises(NotProducedError, match="do not have the digest"):
        list(folder.read_parts(digest, kind, wanted))
    path.write_bytes(data)
    # Hashes of grains that are no such hashes are as good as none: all of it is read.
    for hashes in (b"", bytes(32 * -(-len(data) // GRAIN_BYTES))):
        folder.grains(digest).write_bytes(hashes)
        assert [(at, len(part)) for at, part in folder.read_parts(digest, kind, wanted)] == [
            (0, len(data))
        ]
    path.write_bytes(data[:-1])
    with pytest.raises(NotProducedError):
        list(folder.read_parts(digest, kind, wanted))


def test_the_solver_writes_what_rows_take(cases: dict[str, Case], tmp_path: Path) -> None:
    write_traces(cases["mlp"].run, (2,), key=KEY, out=tmp_path)
    assert verify(cases["mlp"], tmp_path).verdict == "verified"


# --- digests, and the command


def test_digests_that_follow_from_others_are_compared(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """States of later steps, views and digests: none of their bytes are read where they are
    right, and a wrong one is named."""
    case = cases["dropout"]
    graph = case.task.graph
    spoiler = Spoiler(case.run, case.traces, tmp_path / "traces")
    for op, offset in (("state", 1), ("next_state", 0), ("reshape", 1), ("tensor_digest", 1)):
        index = next(i for i, n in enumerate(graph.nodes) if n.op == op and n.outputs[0].size > 1)
        kind = graph.nodes[index].outputs[0]
        leaves = spoiler.alter(
            spoiler.leaves(), index, lambda value, k=kind: nudge(value, 1, k), offset  # type: ignore[misc]
        )  # fmt: skip
        spoiler.sign(leaves)
        checker = make_checker(case, plan_all(graph, 1), store=spoiler.folder)
        wrong = checker.check(*read_trace(spoiler.folder))
        spoiler.folder.write_leaves(2, read_trace(TraceFolder(case.traces))[1])
        assert wrong is not None, op
        assert (wrong.index, wrong.offset, wrong.element) == (index, offset, 1), op
        assert judge(wrong, make_subject(case))


def test_the_command_says_what_rows_show(
    cases: dict[str, Case], capsys: pytest.CaptureFixture[str]
) -> None:
    case = cases["mlp"]
    arguments = ["verify", str(case.run), "--traces", str(case.traces), "--steps", "2"]
    arguments += ["--claim", pin_of(case.run).digest.hex()]
    rows = ["--rows", "2", "--rows-above", str(ABOVE)]
    assert cli.run([*arguments, "--mode", "algebraic", *rows]) == 0
    shown = capsys.readouterr().out
    assert "2 of 32 chunks of 1 KiB, one false one missed with 93.75 %: " in shown
    assert "whole, since rows take most of what they read: " in shown
    assert shown.rstrip().endswith("VERIFIED")
    assert cli.run([*arguments, "--mode", "algebraic", *rows[:2]]) == 0
    assert "--rows drew nothing: no node has a tensor of more than" in capsys.readouterr().err
    for wrong in (["--mode", "algebraic", *rows[2:]], rows, ["--mode", "proof", *rows]):
        assert cli.run([*arguments, *wrong]) == 2
    page = render_html(make_document(verify(case), datetime.now(UTC), "0", "law"))
    assert "one false one missed with 93.75 %" in page
