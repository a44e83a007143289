"""Steps that save memory: batches in parts, values computed again; the same bits as without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import vtrain
from tests.engines.compare import assert_same_state
from tests.engines.steps import Step, make_step
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key
from vtrain.engines.registry import open_session
from vtrain.engines.saving import Saving, SavingSession
from vtrain.errors import GraphError
from vtrain.graph import rewrite
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import check_graph
from vtrain.graph.rewrite import recompute, split_batch
from vtrain.wire.graph import AttrValue, Ref, StepGraph

KINDS = [
    ("mlp", "cross_entropy", "sgd"),
    ("mlp", "mse", "sgd"),
    ("wide", "cross_entropy", "sgd"),
    ("cnn", "cross_entropy", "sgd"),
    ("attention", "cross_entropy", "adamw"),
    ("gates", "mse", "lion"),
]
SAVINGS = [Saving(2), Saving(8), Saving(1, True), Saving(4, True)]


def find_peak(graph: StepGraph) -> int:
    """Bytes of the values that are needed at once, at most, when nodes are done in their order."""
    roots: list[int] = []
    for index, node in enumerate(graph.nodes):
        roots.append(roots[node.inputs[0].node] if node.op in ("reshape", "next_state") else index)
    last = dict(enumerate(range(len(roots))))
    for index, node in enumerate(graph.nodes):
        last |= {roots[ref.node]: index for ref in node.inputs}
    live: set[int] = set()
    peak = 0
    for index, root in enumerate(roots):
        live.add(root)
        peak = max(peak, sum(graph.type_of(Ref(at)).byte_length for at in live))
        live = {at for at in live if last[at] > index}
    return peak


@pytest.mark.parametrize("saving", SAVINGS, ids=str)
@pytest.mark.parametrize(("kind", "loss", "optimizer"), KINDS)
@pytest.mark.parametrize("engine", ["cpu", "numpy"])
def test_no_bit_changes(engine: str, kind: str, loss: str, optimizer: str, saving: Saving) -> None:
    step = make_step(kind, loss, optimizer=optimizer)
    check_graph(saving.rewrite(step.graph).graph)
    plain, saved = (
        open_session(engine, step.graph, step.samples, threads=2, saving=how)
        for how in (Saving(), saving)
    )
    for session in (plain, saved):
        session.load_state(step.state)
    assert isinstance(saved, SavingSession)
    for _ in range(4):
        assert saved.step() == plain.step()
    assert_same_state(saved, plain)
    assert saved.saturation() == plain.saturation()


def test_traces_and_values_are_those_of_the_task() -> None:
    step = make_step("cnn")
    plain, saved = (
        open_session("cpu", step.graph, step.samples, threads=1, saving=how)
        for how in (Saving(), Saving(4, True))
    )
    for session in (plain, saved):
        session.load_state(step.state)
    nodes = range(len(step.graph.nodes))
    for ours, theirs in zip(saved.evaluate_all(nodes), plain.evaluate_all(nodes), strict=True):
        assert (ours == theirs).all()
    assert (saved.evaluate(9) == plain.evaluate(9)).all()
    assert saved.trace() == plain.trace()
    assert saved.step() == plain.step()
    assert_same_state(saved, plain)


@pytest.mark.parametrize("fault", ["a part is left out", "a value is made otherwise"])
def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    step = make_step("cnn")

    def run(saving: Saving) -> object:
        session = open_session("cpu", step.graph, step.samples, threads=1, saving=saving)
        session.load_state(step.state)
        return [session.step() for _ in range(3)]

    right = run(Saving())
    if fault == "a part is left out":
        honest = rewrite._Splitting._take
        monkeypatch.setattr(
            rewrite._Splitting, "_take", lambda self, ref, part: honest(self, ref, min(part, 2))
        )
        assert run(Saving(4)) != right
        return
    emit = GraphBuilder.emit

    def lie(
        self: GraphBuilder, op: str, name: str, inputs: Sequence[Ref], /, **attrs: AttrValue
    ) -> Ref:
        if name.endswith("/again") and op == "rescale":
            attrs["multiplier"] = 3
        return emit(self, op, name, inputs, **attrs)

    monkeypatch.setattr(GraphBuilder, "emit", lie)
    assert run(Saving(1, True)) != right


@pytest.mark.parametrize("kind", ["cnn", "attention", "gates"])
def test_memory_is_saved(kind: str) -> None:
    graph = make_step(kind, batch=32).graph
    whole = find_peak(graph)
    assert find_peak(split_batch(graph, 16).graph) < 0.5 * whole
    assert find_peak(recompute(graph).graph) < (0.9 if kind == "gates" else 1) * whole
    assert find_peak(Saving(16, True).rewrite(graph).graph) < 0.5 * whole


def build(step: Step, *, late: bool) -> StepGraph:
    """The batch, and a node that reads the samples: beside their sum (``late``) or turned round."""
    b = GraphBuilder(FixedExponents({}))
    for node in step.graph.nodes[: step.graph.find("sample_index") + 1]:
        b.emit(node.op, node.name, node.inputs, **node.attrs)
    x = next(node for node in step.graph.nodes if node.op == "gather_samples")
    rows = b.emit(x.op, "x", (Ref(step.graph.find("sample_index")),), **x.attrs)
    if late:
        b.emit("scale_by", "scaled", (rows, b.emit("sum", "total", (rows,))), shift=20)
    else:
        b.emit("transpose", "turned", (rows,), perm=(1, 0))
    return b.graph()


def test_what_needs_all_samples_is_refused() -> None:
    step = make_step("mlp")
    with pytest.raises(GraphError, match=r"sum over all samples.*parts") as late:
        split_batch(build(step, late=True), 2)
    assert "scaled (scale_by)" in str(late.value)
    with pytest.raises(GraphError, match="no operator on single samples") as turned:
        split_batch(build(step, late=False), 2)
    assert "turned (transpose)" in str(turned.value)


@pytest.mark.parametrize("parts", [0, 3, 16])
def test_parts_are_equal(parts: int) -> None:
    with pytest.raises(GraphError, match=f"a batch of 8 has no {parts} equal parts"):
        split_batch(make_step("mlp").graph, parts)


def test_parts_are_not_too_many() -> None:
    with pytest.raises(GraphError, match="take fewer parts"):
        split_batch(make_step("mlp", batch=4096).graph, 4096)


@pytest.mark.parametrize("kind", ["cnn", "dropout", "packed gpt"])
def test_a_run_ends_in_the_same_root(tmp_path: Path, kind: str) -> None:
    task = make_tiny_task(kind, optimizer="adamw")
    key = generate_key(tmp_path / "key.pem")
    plain, saved = (
        vtrain.train(task, tmp_path / name, key=key, accumulate=parts, recompute=again)
        for name, parts, again in (("plain", 1, False), ("saved", 4, True))
    )
    assert saved.root == plain.root
    assert saved.saturation == plain.saturation
    report = vtrain.verify(tmp_path / "plain", all=True, accumulate=2, recompute=True)
    assert report.verdict == "verified"
    report = vtrain.verify(tmp_path / "saved", all=True)
    assert report.verdict == "verified"


def test_parts_that_there_are_not_leave_no_run(tmp_path: Path) -> None:
    task = make_tiny_task("mlp")
    with pytest.raises(GraphError, match="no 7 equal parts"):
        vtrain.train(task, tmp_path / "run", key=generate_key(tmp_path / "key.pem"), accumulate=7)
    assert not (tmp_path / "run").exists()
