"""Building a graph: names, types, sites; and graphs as bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engines.steps import make_step
from vtrain.errors import GraphError, RangeError, TaskError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.wire.graph import Attrs, Ref, TensorType, decode_graph, encode_graph

STATE: Attrs = {"dtype": "i32", "shape": (2, 3), "exponent": 24}


def make_builder(**exponents: int) -> tuple[GraphBuilder, FixedExponents, Ref]:
    policy = FixedExponents(exponents)
    builder = GraphBuilder(policy)
    return builder, policy, builder.emit("state", "w", (), name="w", **STATE)


def test_a_node_gets_the_type_that_its_operator_infers() -> None:
    b, _, w = make_builder(site=12)
    assert b.type_of(w) == TensorType("i32", (2, 3), 24, -(2**31) + 1, 2**31 - 1)
    operand = b.as_operand(w, "site")
    assert b.type_of(operand) == TensorType("i16", (2, 3), 12, -32639, 32639)
    graph = b.graph()
    assert [node.name for node in graph.nodes] == ["w", "site"]
    assert graph.nodes[1].attrs["shift"] == 12
    assert graph.states() == {"w": w}


def test_names_are_made_unique_in_order() -> None:
    b, _, w = make_builder()
    for _ in range(3):
        b.emit("tensor_digest", "digest", (w,))
    b.emit("tensor_digest", "digest#2", (w,))
    names = [node.name for node in b.nodes]
    assert names == ["w", "digest", "digest#2", "digest#3", "digest#2#2"]


def test_a_refusal_names_the_node_and_keeps_its_kind() -> None:
    b, _, w = make_builder()
    with pytest.raises(GraphError) as caught:
        b.emit("relu", "the_relu", (w,))
    assert caught.value.where == "node the_relu (relu)"
    with pytest.raises(RangeError) as range_caught:
        b.rescale("too_fine", w, 60, dtype="i64")
    assert range_caught.value.where == "node too_fine (rescale)"
    assert [node.name for node in b.nodes] == ["w"], "a refused node is not in the graph"


@pytest.mark.parametrize(
    ("width", "bits"), [(1, 23), (128, 23), (2**14 - 1, 23), (2**14, 22), (2**22, 18)]
)
def test_a_wide_sum_has_squares_that_fit(width: int, bits: int) -> None:
    b = GraphBuilder(FixedExponents({}))
    x = b.emit("state", "x", (), name="x", dtype="i32", shape=(1, width), exponent=24)
    total = b.emit("add", "total", (x, x), shift_a=0, shift_b=0)
    y = b.type_of(b.narrow_sum("y", total))
    assert (y.dtype, y.exponent, y.hi) == ("i32", 24 - (32 - bits), 2**bits)
    b.emit("row_dot", "squares", (Ref(2), Ref(2)))
    small = b.rescale("small", x, 12)
    twice = b.emit("add", "twice", (small, small), shift_a=0, shift_b=0)
    assert b.type_of(b.narrow_sum("exact", twice)) == replace(b.type_of(twice), dtype="i32")


def test_an_operand_is_made_once_and_int16_is_one_already() -> None:
    b, _, w = make_builder(first=12)
    operand = b.as_operand(w, "first")
    assert b.as_operand(w, "second") == operand
    assert b.as_operand(operand, "third") == operand
    assert len(b.nodes) == 2


def test_sites_that_the_task_lacks_or_does_not_use() -> None:
    b, policy, w = make_builder(known=12, never=3)
    b.rescale_at_site("known", w)
    assert policy.used == {"known"}
    with pytest.raises(TaskError, match="vtrain profile") as caught:
        b.rescale_at_site("missing", w)
    assert caught.value.where == "exponents.missing"
    # A second site of the same name is another site.
    with pytest.raises(TaskError) as again:
        b.rescale_at_site("known", w)
    assert again.value.where == "exponents.known#2"


@pytest.mark.parametrize("exponent", [-100, 100])
def test_an_exponent_out_of_reach_is_refused_by_node(exponent: int) -> None:
    b, _, w = make_builder(site=exponent)
    with pytest.raises(GraphError, match="shift") as caught:
        b.rescale_at_site("site", w)
    assert caught.value.where == "node site (rescale)"


def test_a_policy_hears_of_the_bits_of_the_multiplier() -> None:
    """The value before the shift is |source * multiplier|: at most |source| * 2^-exponent."""
    heard: dict[str, int] = {}

    class Listener:
        def choose(self, site: str, source: Ref, exponent: int) -> int:
            heard[site] = exponent
            return 8

    b = GraphBuilder(Listener())
    w = b.emit("state", "w", (), name="w", **STATE)
    b.rescale_at_site("plain", w)
    b.rescale_at_site("quarter", w, multiplier=1, multiplier_exponent=2)
    b.rescale_at_site("ninth", w, multiplier=29127, multiplier_exponent=18)
    assert heard == {"plain": 24, "quarter": 26, "ninth": 24 + 18 - 15}
    ninth = b.nodes[-1]
    assert ninth.outputs[0].exponent == 8


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_graphs_survive_encoding(kind: str, loss: str) -> None:
    graph = make_step(kind, loss).graph
    data = encode_graph(graph)
    assert decode_graph(data) == graph
    assert encode_graph(decode_graph(data)) == data
