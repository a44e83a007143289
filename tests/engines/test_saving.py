"""Steps that save memory: batches in parts, values computed again; the same bits as without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import vtrain
from tests.engines.compare import assert_same_state
from tests.engines.random_batches import make_random_batch
from tests.engines.steps import Step, make_step
from tests.engines.test_cpu_session import make_overflowing_step
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key
from vtrain.engines import cpu
from vtrain.engines.cpu import CpuSession
from vtrain.engines.registry import open_session
from vtrain.engines.saving import Saving, SavingSession
from vtrain.errors import EncodingError, GraphError
from vtrain.graph import rewrite
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import check_graph
from vtrain.graph.rewrite import recompute, split_batch
from vtrain.ops import TABLE
from vtrain.wire import cbor
from vtrain.wire.graph import AttrValue, Node, Ref, StepGraph, count_items, encode_graph

KINDS = [
    ("mlp", "cross_entropy", "sgd"),
    ("mlp", "mse", "sgd"),
    ("wide", "cross_entropy", "sgd"),
    ("cnn", "cross_entropy", "sgd"),
    ("attention", "cross_entropy", "adamw"),
    ("gates", "mse", "lion"),
    ("upnet", "cross_entropy", "sgd"),
]
SAVINGS = [Saving(2), Saving(8), Saving(1, True), Saving(4, True)]


def test_items_of_a_graph_are_those_that_a_decoder_counts() -> None:
    for kind, loss, optimizer in KINDS:
        graph = make_step(kind, loss, optimizer=optimizer).graph
        count, data = count_items(graph), encode_graph(graph)
        assert cbor.decode(data, cbor.Limits(items=count))
        with pytest.raises(EncodingError, match="more items than the limit"):
            cbor.decode(data, cbor.Limits(items=count - 1))


def test_a_graph_of_too_many_items_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is encoded, and naming what makes it smaller."""
    step = make_step("mlp")
    rewritten = Saving(8).rewrite(step.graph).graph
    most = count_items(rewritten) - 1
    monkeypatch.setattr(cbor, "LIMITS", cbor.Limits(items=most))
    monkeypatch.setattr(cpu, "encode_graph", lambda graph: pytest.fail("is encoded"))
    with pytest.raises(GraphError, match="in fewer parts") as caught:
        CpuSession(rewritten, step.samples)
    assert f"reads {most}" in caught.value.message


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


def outcome(step: Step, saving: Saving) -> tuple[object, object, dict[str, int]]:
    """All that is seen from outside of a session after a few steps."""
    session = open_session("cpu", step.graph, step.samples, threads=1, saving=saving)
    session.load_state(step.state)
    records = [session.step() for _ in range(3)]
    state = {name: value.tobytes() for name, value in session.read_state().items()}
    return records, state, session.saturation()


def find_other_outcomes(seeds: Sequence[int]) -> tuple[list[str], int]:
    """The savings that change a bit of these random steps, and how many batches were split."""
    other, split = [], 0
    for seed in seeds:
        step, parts = make_random_batch(seed)
        plain = outcome(step, Saving())
        for saving in (Saving(1, True), Saving(parts), Saving(parts, True)):
            try:
                found = outcome(step, saving)
            except GraphError:
                # Few are such that they need all samples at once.
                assert saving.accumulate > 1
                continue
            split += saving.accumulate > 1
            if found != plain:
                other.append(f"{seed}: {saving}")
    return other, split


def test_no_bit_of_a_random_step_changes() -> None:
    """Operators on samples in any wiring and shape: ones, a batch that lies along a row, extents
    that are those of the batch, names that parts have, nodes for nothing between others."""
    other, split = find_other_outcomes([*range(20), 207])
    assert other == []
    assert split > 30, "the batch can be done in parts mostly, or this shows little"


@pytest.mark.exhaustive
def test_no_bit_of_many_random_steps_changes() -> None:
    assert find_other_outcomes(range(100, 500))[0] == []


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


def test_masks_are_drawn_in_parts() -> None:
    """A step in 64 parts takes less than the masks of its whole batch would."""
    task = make_tiny_task("dropout", batch=512, optimizer="adamw")
    masks = [node.outputs[0] for node in task.graph.nodes if node.op == "dropout_mask"]
    whole, parts = (
        CpuSession(saving.rewrite(task.graph).graph, task.samples, threads=1)
        for saving in (Saving(), Saving(64))
    )
    assert parts.memory < sum(mask.byte_length for mask in masks) < whole.memory
    for session in (whole, parts):
        session.load_state(task.initial_state)
    for _ in range(2):
        assert whole.step() == parts.step()


def begin(step: Step) -> tuple[GraphBuilder, Ref]:
    """A graph that has the batch and x of its samples."""
    b = GraphBuilder(FixedExponents({}))
    for node in step.graph.nodes[: step.graph.find("sample_index") + 1]:
        b.emit(node.op, node.name, node.inputs, **node.attrs)
    x = next(node for node in step.graph.nodes if node.op == "gather_samples")
    return b, b.emit(x.op, "x", (Ref(step.graph.find("sample_index")),), **x.attrs)


def build(step: Step, *, late: bool) -> StepGraph:
    """The batch, and a node that reads the samples: beside their sum (``late``) or turned round."""
    b, rows = begin(step)
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


_WINDOW: dict[str, AttrValue] = {"kernel": (3, 1), "strides": (1, 1), "pads": (1, 0, 1, 0)}
ALONG_A_ROW: dict[str, tuple[tuple[int, ...], dict[str, AttrValue]]] = {
    "center": ((1, 160), {"shift": 0}),
    "column_sum": ((160,), {}),
    "im2col": ((1, 8, 20, 1), _WINDOW),
    "max_pool": ((1, 8, 20, 1), _WINDOW),
    "sum_pool": ((1, 8, 20, 1), _WINDOW),
    "matmul": ((1, 160), {"transpose_a": 1, "transpose_b": 0}),
    "softmax_grad": ((1, 160), {}),
}
"""A batch of eight samples of twenty numbers in a shape that makes one row or image of it."""


@pytest.mark.parametrize("op", ALONG_A_ROW)
def test_samples_along_a_row_are_refused(op: str) -> None:
    shape, attrs = ALONG_A_ROW[op]
    b, x = begin(make_step("mlp"))
    x = b.emit("normalize", "x/normal", (x,), multiplier=1, offset=0, shift=0, exponent=14)
    turned = b.emit("reshape", "turned", (x,), shape=shape)
    inputs = (turned, turned) if op in ("matmul", "softmax_grad") else (turned,)
    b.emit(op, "mixed", inputs, **attrs)
    with pytest.raises(GraphError, match="no operator on single samples") as error:
        split_batch(b.graph(), 2)
    assert f"mixed ({op})" in str(error.value)


def test_spans_of_samples_are_those_of_every_so_many_rows() -> None:
    b, x = begin(make_step("mlp"))
    rows = b.emit("reshape", "rows", (x,), shape=(16, 10))
    spans = b.emit("sign", "spans", (b.emit("slice", "cut", (rows,), axis=1, start=0, stop=1),))
    spans = b.emit("reshape", "paired", (spans,), shape=(8, 2))
    b.emit("keep_span", "kept", (rows, spans), fill=0)
    with pytest.raises(GraphError, match=r"kept \(keep_span\)"):
        split_batch(b.graph(), 2)


def update_on(step: Step, count: int) -> Step:
    """Another ``count`` updates of one weight after its first, all by the same momentum."""
    nodes: list[Node] = []
    new: dict[int, int] = {}
    (first, *_) = (i for i, node in enumerate(step.graph.nodes) if node.op == "sgd_update")
    for index, node in enumerate(step.graph.nodes):
        nodes.append(replace(node, inputs=tuple(Ref(new[ref.node]) for ref in node.inputs)))
        for more in range(count if index == first else 0):
            before = Ref(len(nodes) - 1)
            inputs = (before, *nodes[before.node].inputs[1:])
            nodes.append(replace(nodes[before.node], name=f"more/{more}", inputs=inputs))
        new[index] = len(nodes) - 1
    return replace(step, graph=StepGraph(tuple(nodes)))


def test_updates_that_follow_from_each_other_are_each_done_once() -> None:
    step = update_on(make_step("mlp"), 3)
    check_graph(step.graph)
    assert outcome(step, Saving(1, True)) == outcome(step, Saving())
    # The second are more than Python's stack is deep.
    for graph, count in ((step.graph, 3), (update_on(make_step("mlp"), 3000).graph, 3000)):
        names = [node.name for node in recompute(graph).graph.nodes]
        assert sum(name.startswith("more/") for name in names) == count


def read_by_the_way(step: Step) -> Step:
    """Each int16 value is read once more, at once, for nothing."""
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for index, node in enumerate(step.graph.nodes):
        nodes.append(replace(node, inputs=tuple(Ref(new[ref.node]) for ref in node.inputs)))
        new[index] = len(nodes) - 1
        (claim,) = node.outputs
        if claim.dtype == "i16":
            found = TABLE["relu"].infer({}, [claim])
            nodes.append(Node(f"idle/{index}", "relu", {}, (Ref(new[index]),), (found,)))
    return replace(step, graph=StepGraph(tuple(nodes)))


@pytest.mark.parametrize("kind", ["cnn", "gates"])
def test_what_is_read_before_the_backward_pass_is_there(kind: str) -> None:
    step = read_by_the_way(make_step(kind))
    check_graph(step.graph)
    assert outcome(step, Saving(2, True)) == outcome(step, Saving())


def rename(step: Step, name: str, other: str) -> Step:
    nodes = (replace(n, name=other) if n.name == name else n for n in step.graph.nodes)
    return replace(step, graph=StepGraph(tuple(nodes)))


@pytest.mark.parametrize("saving", [Saving(2), Saving(1, True)], ids=str)
def test_names_that_a_rewriting_gives_may_be_taken(saving: Saving) -> None:
    """What is clamped is counted under the names of the task."""
    step = make_overflowing_step("cnn", 8)
    counts = outcome(step, Saving())[2]
    assert counts["momentum/k1/next"] > 0
    ends = ("/again", "/part_1")
    given = [n.name for n in saving.rewrite(step.graph).graph.nodes if n.name.endswith(ends)]
    assert given
    for name in given[:20]:
        taken = rename(step, "momentum/k1/next", name)
        check_graph(taken.graph)
        assert outcome(taken, saving) == outcome(taken, Saving())


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


def test_an_auditor_who_asks_for_parts_that_there_are_not_has_no_verdict(tmp_path: Path) -> None:
    key = generate_key(tmp_path / "key.pem")
    vtrain.train(make_tiny_task("mlp"), tmp_path / "run", key=key)
    with pytest.raises(GraphError, match="no 7 equal parts"):
        vtrain.verify(tmp_path / "run", accumulate=7)
