"""What a step graph must be, whoever wrote it: tampered, miswired and random graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.steps import make_step
from vtrain.errors import EncodingError, GraphError, RangeError, VtrainError
from vtrain.graph import legality
from vtrain.graph.legality import check_graph
from vtrain.ops import TABLE
from vtrain.wire.graph import (
    DTYPES,
    Attrs,
    Node,
    Ref,
    StepGraph,
    TensorType,
    decode_graph,
    encode_graph,
)

HONEST = make_step("mlp").graph


def index_of(name: str) -> int:
    return next(i for i, node in enumerate(HONEST.nodes) if node.name == name)


def ref(name: str) -> Ref:
    return Ref(index_of(name))


def edit(name: str, /, **changes: Any) -> StepGraph:
    """The honest graph with fields of one node changed."""
    at = index_of(name)
    node = replace(HONEST.nodes[at], **changes)
    return StepGraph((*HONEST.nodes[:at], node, *HONEST.nodes[at + 1 :]))


def insert(before: str, *nodes: Node, **rewired: tuple[Ref, ...]) -> StepGraph:
    """Nodes put before another, references moved on; then inputs of nodes, by name, replaced."""
    at = index_of(before)

    def moved(node: Node) -> Node:
        shift = len(nodes)
        inputs = tuple(r if r.node < at else Ref(r.node + shift, r.output) for r in node.inputs)
        return replace(node, inputs=inputs)

    tail = [
        replace(moved(node), inputs=rewired[node.name]) if node.name in rewired else moved(node)
        for node in HONEST.nodes[at:]
    ]
    return StepGraph((*HONEST.nodes[:at], *nodes, *tail))


def make_node(name: str, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Node:
    out = TABLE[op].infer(attrs, [HONEST.type_of(r) for r in inputs])
    return Node(name, op, attrs, inputs, (out,))


def assert_refused(graph: StepGraph, message: str, where: str) -> GraphError:
    # What cannot be encoded and decoded cannot be in a run; what is refused here can be.
    assert decode_graph(encode_graph(graph)) == graph
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    assert message in caught.value.message
    assert where in caught.value.where
    return caught.value


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_honest_graphs_are_legal(kind: str, loss: str) -> None:
    check_graph(make_step(kind, loss).graph)


# --- claims of a node

TYPED = "fc0/acc"
TYPE = HONEST.nodes[index_of(TYPED)].outputs[0]


@pytest.mark.parametrize(
    "claim",
    [
        replace(TYPE, dtype="i32"),
        replace(TYPE, shape=TYPE.shape[::-1]),
        replace(TYPE, exponent=TYPE.exponent + 1),
        replace(TYPE, lo=TYPE.lo + 1),
        replace(TYPE, hi=TYPE.hi - 1),
        replace(TYPE, lo=TYPE.lo - 1),
    ],
    ids=["dtype", "shape", "exponent", "lo above", "hi below", "lo beyond"],
)
def test_a_tampered_type_is_refused_by_node(claim: TensorType) -> None:
    error = assert_refused(edit(TYPED, outputs=(claim,)), "derived is", f"node {TYPED} (matmul)")
    assert not isinstance(error, RangeError)


def test_other_claims_of_a_node() -> None:
    with pytest.raises(GraphError, match="derived is"):
        check_graph(edit(TYPED, outputs=()))
    assert_refused(edit(TYPED, outputs=(TYPE, TYPE)), "derived is", TYPED)
    assert_refused(edit(TYPED, op="matmull"), "unknown operator", TYPED)
    assert_refused(edit(TYPED, attrs={"transpose_a": 1, "transpose_b": 1}), "inner extents", TYPED)
    assert_refused(edit(TYPED, attrs={}), "attributes must be", TYPED)
    assert_refused(edit(TYPED, inputs=()), "inputs must be", TYPED)
    assert_refused(edit(TYPED, inputs=(ref("step"), ref("w0"))), "inputs must be", TYPED)
    assert_refused(edit(TYPED, name=""), "name of its own", "node  (matmul)")
    assert_refused(edit(TYPED, name="w0"), "name of its own", "node w0")


def test_a_value_that_is_not_earlier_is_refused() -> None:
    """Bytes cannot even say it, except for an output that does not exist."""
    later = edit(TYPED, inputs=(ref("record"), ref("w0")))
    missing = edit(TYPED, inputs=(Ref(index_of("w0"), 1), ref("w0")))
    negative = edit(TYPED, inputs=(Ref(-1), ref("w0")))
    for graph in (later, missing, negative):
        with pytest.raises(GraphError, match="no earlier value") as caught:
            check_graph(graph)
        assert caught.value.where == f"node {TYPED} (matmul)"
        with pytest.raises(EncodingError):
            decode_graph(encode_graph(graph))


def test_overflow_is_refused_even_if_the_claim_says_otherwise() -> None:
    """A weight widened to 61 bits, by a node that says its values are within a unit of zero."""
    wide: Attrs = {"dtype": "i64", "multiplier": 65535, "multiplier_exponent": 0, "shift": -14}
    lie = TensorType("i64", HONEST.type_of(ref("param/w0")).shape, 38, -1, 1)
    node = Node("wide", "rescale", wide, (ref("param/w0"),), (lie,))
    with pytest.raises(RangeError, match="2\\^60") as caught:
        check_graph(StepGraph((*HONEST.nodes, node)))
    assert caught.value.where == "node wide (rescale)"


def test_too_many_nodes_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality, "MAX_NODES", len(HONEST.nodes) - 1)
    with pytest.raises(GraphError, match="nodes, more than"):
        check_graph(HONEST)


# --- wiring of a step


def test_states() -> None:
    extra = Node("extra", "state", {"name": "extra", **STATE}, (), (WEIGHT,))
    assert_refused(StepGraph((*HONEST.nodes, extra)), "not both read and written", "graph")
    again = replace(extra, attrs={**extra.attrs, "name": "param/w0"})
    assert_refused(StepGraph((*HONEST.nodes, again)), "by two nodes", "graph")
    missing = StepGraph(tuple(node for node in HONEST.nodes if node.name != "next/param/w0"))
    with pytest.raises(GraphError):
        check_graph(missing)
    assert_refused(
        edit("next/momentum/w0", inputs=(ref("param/w0/next"),), outputs=(WEIGHT,)),
        "changes its type",
        "state momentum/w0",
    )


WEIGHT = HONEST.type_of(ref("param/w0"))
STATE: Attrs = {"dtype": "i32", "shape": WEIGHT.shape, "exponent": WEIGHT.exponent}


def test_a_state_that_may_leave_its_range() -> None:
    """Raw samples reach -2^31, which no state is allowed to have."""
    data: Attrs = {"part": "x", "dtype": "i32", "shape": (20,), "exponent": 0}
    raw = make_node("raw", "gather_samples", (ref("sample_index"),), **data)
    old = TensorType("i32", raw.outputs[0].shape, 0, -(2**31) + 1, 2**31 - 1)
    attrs: Attrs = {"name": "leak", "dtype": "i32", "shape": old.shape, "exponent": 0}
    nodes = (
        *HONEST.nodes,
        Node("leak", "state", attrs, (), (old,)),
        raw,
        Node("leaks", "next_state", {"name": "leak"}, (Ref(len(HONEST.nodes) + 1),), raw.outputs),
    )
    assert_refused(StepGraph(nodes), "may leave its range", "state leak")


@pytest.mark.parametrize("op", ["sample_index", "batch_digest", "state_root", "record"])
def test_what_a_step_has_once(op: str) -> None:
    original = next(node for node in HONEST.nodes if node.op == op)
    twice = StepGraph((*HONEST.nodes, replace(original, name="again")))
    assert_refused(twice, f"has 2 {op} nodes", "graph")


def test_masks_are_checked_without_reading_the_graph_for_each() -> None:
    seed = HONEST.nodes[index_of("sample_index")].attrs["seed"]
    attrs = {"seed": seed, "keep": 5, "value": 6, "exponent": 3, "shape": (2,)}
    masks = [
        make_node(f"mask{i}", "dropout_mask", (ref("step"),), site=i, **attrs) for i in range(100)
    ]
    with patch.object(StepGraph, "states", autospec=True, side_effect=StepGraph.states) as states:
        check_graph(insert("record", *masks))
    assert states.call_count < 10


def test_the_counter() -> None:
    step = HONEST.type_of(ref("step"))
    assert_refused(edit("next/step", inputs=(ref("step"),)), "does not count", "node step")
    double = insert("next/step", make_node("plus2", "increment", (ref("step/next"),)),
                    **{"next/step": (Ref(index_of("next/step")),)})  # fmt: skip
    assert_refused(double, "does not count", "node plus2")
    assert_refused(
        edit("record", inputs=(ref("step"), *HONEST.nodes[index_of("record")].inputs[1:])),
        "another counter",
        "node record",
    )
    renamed = [
        replace(node, attrs={**node.attrs, "name": "steps"})
        if node.attrs.get("name") == "step"
        else node
        for node in HONEST.nodes
    ]
    assert_refused(StepGraph(tuple(renamed)), "no step counter", "graph")
    assert step.hi == 2**40


def test_the_batch_is_the_counters_and_all_of_it_is_digested() -> None:
    other = make_node("other_t", "increment", (ref("step"),))
    shifted = insert("sample_index", other, sample_index=(Ref(index_of("sample_index")),))
    assert_refused(shifted, "another counter", "node sample_index")
    again = make_node(
        "x_again", "gather_samples", (ref("sample_index"),), **HONEST.nodes[index_of("x")].attrs
    )
    undigested = insert("x/digest", again, **{"x/prepared": (Ref(index_of("x/digest")),)})
    assert_refused(undigested, "gathers x again", "node x_again")
    y, x = ref("y/digest"), ref("x/digest")
    assert_refused(edit("batch_digest", inputs=(y, x)), "batch's x", "node y/digest")
    assert_refused(edit("batch_digest", inputs=(x, x)), "batch's y", "node x/digest")
    assert_refused(edit("x/digest", inputs=(ref("y"),)), "batch's x", "node x/digest")
    inputs = HONEST.nodes[index_of("record")].inputs
    assert_refused(
        edit("record", inputs=(inputs[0], x, *inputs[2:])), "no batch digest", "node record"
    )


def test_samples_by_another_index_are_refused() -> None:
    """An index that is computed, not drawn: it may even name samples that do not exist."""
    index = make_node("index", "column_sum", (ref("w0"),))
    at = index_of("record")
    x = HONEST.nodes[index_of("x")]
    claimed = replace(x.outputs[0], shape=(*index.outputs[0].shape, *x.outputs[0].shape[1:]))
    stolen = Node("stolen", "gather_samples", x.attrs, (Ref(at),), (claimed,))
    assert_refused(insert("record", index, stolen), "another batch", "node stolen")


def test_the_state_root_covers_every_next_state() -> None:
    root = HONEST.nodes[index_of("state_root")]
    assert_refused(edit("state_root", inputs=root.inputs[:-1]), "cover", "node state_root")
    swapped = (root.inputs[1], root.inputs[0], *root.inputs[2:])
    assert_refused(edit("state_root", inputs=swapped), "not the leaf of", "node leaf/")
    leaf = HONEST.nodes[index_of("leaf/param/w0")]
    for key, value in (("name", "param/w1"), ("exponent", 23), ("dtype", "i64"), ("shape", (1,))):
        changed = edit("leaf/param/w0", attrs={**leaf.attrs, key: value})
        assert_refused(changed, "is not the leaf of state param/w0", "node leaf/param/w0")
    old = edit("digest/param/w0", inputs=(ref("param/w0"),))
    assert_refused(old, "is not the digest of state param/w0", "node digest/param/w0")
    inputs = HONEST.nodes[index_of("record")].inputs
    unbound = edit("record", inputs=(*inputs[:3], ref("leaf/step")))
    assert_refused(unbound, "records no state root", "node record")


@pytest.mark.parametrize(
    ("name", "op"),
    [("loss/exp", "row_max"), ("loss/rows", "row_max"), ("loss/probabilities", "row_sum")],
)
def test_the_terms_of_a_softmax_belong_together(name: str, op: str) -> None:
    """A maximum or a sum of other rows: a quotient might pass 1, and its range be a lie."""
    at = index_of(name)
    rows, _, *rest = HONEST.nodes[at].inputs
    other = make_node(
        "other", "rescale", (rows,), dtype="i32", multiplier=1, multiplier_exponent=2, shift=2
    )
    reduced = Node("reduced", op, {}, (Ref(at),), (TABLE[op].infer({}, other.outputs),))
    graph = insert(name, other, reduced)
    check_graph(graph)  # unused, they do no harm
    wired = insert(name, other, reduced, **{name: (rows, Ref(at + 1), *rest)})
    assert_refused(derive_output(wired, at), f"needs the {op} of its rows", f"node {name} ")


@pytest.mark.parametrize("name", ["state_root", "record"])
def test_nothing_reads_what_only_commitments_compute(name: str) -> None:
    """An engine leaves the root out between commitments: no value may come from it."""
    leak = Node("leak", "sum", {}, (ref(name),), (TABLE["sum"].infer({}, [DIGEST]),))
    assert_refused(StepGraph((*HONEST.nodes, leak)), "reads the state root", "node leak (sum)")


DIGEST = HONEST.type_of(ref("record"))


def test_what_is_pinned_by_the_graph_root_alone() -> None:
    """Legal, and another task: a graph that trains nothing, or that records no loss."""
    lazy = edit("next/param/w0", inputs=(ref("param/w0"),))
    rewired = [
        replace(node, inputs=(ref("param/w0"),)) if node.name == "digest/param/w0" else node
        for node in lazy.nodes
    ]
    check_graph(StepGraph(tuple(rewired)))
    inputs = HONEST.nodes[index_of("record")].inputs
    check_graph(edit("record", inputs=(*inputs[:2], ref("rate"), inputs[3])))


# --- hostile graphs: nothing but a VtrainError, whatever is changed

VALUES: list[Any] = [
    0, 1, -1, 2, 7, 63, 64, 2**31, 2**40, 2**63 - 1, -(2**63), 2**64 - 1, "", "x", "i16", "i64",
    "step", b"", b"12345678", (), (0,), (1, 1), (2, 2), (0, 0, 0, 0), (1, 3, 3, 1), (2**40, 2**40),
    (0, 2**63), (1,) * 70,
]  # fmt: skip
OPS = sorted(TABLE)
Mutation = Callable[[Node, st.DataObject], Node]


def change_attr(node: Node, data: st.DataObject) -> Node:
    keys = [*node.attrs, "extra"]
    key = data.draw(st.sampled_from(keys))
    attrs = {**node.attrs, key: data.draw(st.sampled_from(VALUES))}
    if data.draw(st.integers(0, 3)) == 0:
        del attrs[key]
    return replace(node, attrs=attrs)


def change_inputs(node: Node, data: st.DataObject) -> Node:
    refs = st.builds(Ref, st.integers(0, len(HONEST.nodes)), st.sampled_from([0, 0, 0, 1]))
    return replace(node, inputs=tuple(data.draw(st.lists(refs, max_size=4))))


def change_output(node: Node, data: st.DataObject) -> Node:
    claim = TensorType(
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.sampled_from([v for v in VALUES if isinstance(v, tuple)])),
        data.draw(st.integers(-600, 600)),
        *sorted((data.draw(st.integers(-(2**63), 2**63)), data.draw(st.integers(0, 2**63)))),
    )
    return replace(node, outputs=(claim,) * data.draw(st.integers(0, 2)))


def change_op(node: Node, data: st.DataObject) -> Node:
    return replace(node, op=data.draw(st.sampled_from(OPS)))


def derive_output(graph: StepGraph, index: int) -> StepGraph:
    """Claims of this node and all later ones made true, as a careful liar would."""
    nodes = list(graph.nodes)
    for at in range(index, len(nodes)):
        node = nodes[at]
        types = [nodes[r.node].outputs[r.output] for r in node.inputs]
        nodes[at] = replace(node, outputs=(TABLE[node.op].infer(node.attrs, types),))
    return StepGraph(tuple(nodes))


MUTATIONS: list[Mutation] = [change_attr, change_inputs, change_output, change_op]


@settings(max_examples=400, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_change_is_judged_without_a_crash(data: st.DataObject) -> None:
    nodes = list(HONEST.nodes)
    first = len(nodes)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(nodes) - 1))
        first = min(first, at)
        nodes[at] = data.draw(st.sampled_from(MUTATIONS))(nodes[at], data)
    graph = StepGraph(tuple(nodes))
    if data.draw(st.booleans()):
        try:
            graph = derive_output(graph, first)
        except (VtrainError, IndexError):
            return
    refusal: VtrainError | None = None
    try:
        check_graph(graph)
    except VtrainError as error:
        refusal = error
    assert refusal is None or refusal.where, "refused without a place"


@settings(max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_change_of_a_single_field_is_refused(data: st.DataObject) -> None:
    """But for those that only make another task: names of nodes, rates, shifts of meaning."""
    at = data.draw(st.integers(0, len(HONEST.nodes) - 1))
    node = HONEST.nodes[at]
    changed = change_output(node, data)
    if changed == node:
        return
    with pytest.raises(GraphError):
        check_graph(StepGraph((*HONEST.nodes[:at], changed, *HONEST.nodes[at + 1 :])))
