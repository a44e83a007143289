"""The compiled leaf rules are the law's: states, values and reads, whatever the values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.steps import make_step
from tests.exhaustive import draw
from tests.ops.cases import Array
from tests.ops.leaf_cases import (
    Json,
    Leaf,
    draw_garbage,
    draw_leaf,
    read_gather,
    read_long_fold,
    read_operator_fold,
    read_vectors,
    read_windowed,
    run_fold,
)
from vtrain import _core
from vtrain.errors import EncodingError, GraphError
from vtrain.graph.evaluate import apply_node
from vtrain.ops import TABLE
from vtrain.ops.leaf import encode_element, encode_state, finish, plan_fold
from vtrain.wire.graph import Node, TensorType, encode_node

FEW = 10
PROPERTY = settings(
    max_examples=FEW,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def encode(item: Leaf) -> tuple[bytes, list[bytes]]:
    """The node, and for each of its inputs a node that puts it out."""
    types: Sequence[TensorType] = () if item.node.op == "state" else item.types
    sources = [encode_node(Node(f"{i}", "input", {}, (), (t,))) for i, t in enumerate(types)]
    return encode_node(item.node), sources


def check_twin(item: Leaf, element: int) -> None:
    node, sources = encode(item)
    arrays = [array.copy(order="C") for array in item.arrays]
    fold = plan_fold(item.node, item.types)
    assert _core.leaf_fold(node, sources) == (fold.terms, fold.block_length, fold.width)
    states = []
    for block, (state, reader) in enumerate(run_fold(item, element, item.reader())):
        states.append(encode_state(state))
        reads = _core.leaf_reads(
            node, sources, arrays, item.digests(), element, block, *item.data()
        )
        assert reads == (reader.chunks, reader.rows, reader.tokens)
        if states[-1] == b"":
            break
    found = _core.leaf_states(node, sources, arrays, item.digests(), element, *item.data())
    assert found == b"".join(states)
    if states[-1]:
        value = encode_element(item.node, finish(item.node, item.types, state))
        assert _core.leaf_finish(node, sources, states[-1]) == value


def check_drawn(count: int, check: Callable[[st.DataObject], None]) -> None:
    settings(PROPERTY, max_examples=count)(given(data=st.data())(check))()


@pytest.mark.parametrize("op", TABLE)
@draw(FEW, 25)
def test_twin_follows_the_rules(op: str, examples: int) -> None:
    def check(data: st.DataObject) -> None:
        item = draw_leaf(op, data)
        for element in range(item.out.size):
            check_twin(item, element)

    check_drawn(examples, check)


@pytest.mark.parametrize("op", TABLE)
@draw(FEW, 25)
def test_twin_follows_the_rules_into_garbage(op: str, examples: int) -> None:
    def check(data: st.DataObject) -> None:
        item = draw_garbage(draw_leaf(op, data), data)
        for element in range(item.out.size):
            check_twin(item, element)

    check_drawn(examples, check)


@pytest.mark.parametrize("op", TABLE)
@draw(FEW, 25)
def test_twin_finishes_any_state(op: str, examples: int) -> None:
    def check(data: st.DataObject) -> None:
        item = draw_leaf(op, data)
        width = plan_fold(item.node, item.types).width
        entries = data.draw(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * width))
        node, sources = encode(item)
        value = encode_element(item.node, finish(item.node, item.types, entries))
        assert _core.leaf_finish(node, sources, encode_state(entries)) == value
        assert _core.leaf_finish(node, sources, encode_state(entries) + b"\0") == b""

    check_drawn(examples, check)


def check_vector(item: Leaf, content: Json) -> None:
    node = bytes.fromhex(content["node"])
    sources = [bytes.fromhex(source) for source in content["sources"]]
    fold = (content["terms"], content["block_length"], content["width"])
    assert _core.leaf_fold(node, sources) == fold
    rest = [array.copy(order="C") for array in item.arrays], item.digests()
    for entry in content["elements"]:
        element = entry["element"]
        states = _core.leaf_states(node, sources, *rest, element, item.rows)
        assert states.hex() == entry["states"]
        for block, reads in enumerate(entry["reads"]):
            found = _core.leaf_reads(node, sources, *rest, element, block, item.rows)
            assert found == (reads["chunks"], reads["rows"], [])
        last = states[-8 * content["width"] :]
        assert _core.leaf_finish(node, sources, last) == item.out.flat[element].tobytes()


@pytest.mark.parametrize("op", TABLE)
def test_twin_follows_the_vectors(op: str) -> None:
    for content in read_vectors()["operators"]:
        if content["op"] == op:
            check_vector(read_operator_fold(content), content)


@pytest.mark.parametrize("name", [content["name"] for content in read_vectors()["folds"]])
def test_twin_follows_the_vectors_of_many_blocks(name: str) -> None:
    content = next(item for item in read_vectors()["folds"] if item["name"] == name)
    check_vector(read_long_fold(name), content)


@pytest.mark.parametrize(
    ("kind", "loss"), [("mlp", "mse"), ("wide", "cross_entropy"), ("cnn", "cross_entropy")]
)
def test_every_node_of_a_step(kind: str, loss: str) -> None:
    """Of graphs as they are made, with values as they come: some elements of each node."""
    step = make_step(kind, loss)
    values: list[Array] = []
    for node in step.graph.nodes:
        inputs = tuple(values[ref.node] for ref in node.inputs)
        values.append(apply_node(node, inputs, step.state, step.samples))
        types = tuple(step.graph.type_of(ref) for ref in node.inputs)
        if node.op == "state":
            inputs, types = (values[-1],), node.outputs
        item = Leaf(node, types, inputs, step.samples.table, values[-1])
        for element in {0, values[-1].size // 3, values[-1].size - 1}:
            check_twin(item, element)
            *_, (state, _) = run_fold(item, element, item.reader())
            assert finish(node, types, state) == int(values[-1].flat[element]), node.name


@pytest.mark.parametrize("content", read_vectors()["gathers"], ids=str)
def test_rows_of_any_length(content: Json) -> None:
    item = read_gather(content)
    for element in range(len(content["values"])):
        check_twin(item, element)


@pytest.mark.parametrize("content", read_vectors()["windows"], ids=str)
def test_windows_of_tokens(content: Json) -> None:
    item = read_windowed(content)
    node, sources = encode(item)
    for element, value in enumerate(content["values"]):
        check_twin(item, element)
        states = _core.leaf_states(
            node, sources, list(item.arrays), item.digests(), element, *item.data()
        )
        assert int.from_bytes(states, "little", signed=True) == value


def test_tokens_that_are_not_there() -> None:
    item = read_windowed(read_vectors()["windows"][0])
    node, sources = encode(item)
    rows, form = item.data()
    assert rows is not None
    assert form is not None
    rest = list(item.arrays), item.digests(), 0
    with pytest.raises(GraphError, match="token 0 is not there"):
        _core.leaf_states(node, sources, *rest, rows[:, :1], form)
    for wrong in ((3, *form[1:]), (*form[:2], 0, *form[3:]), (*form[:3], 0, form[4])):
        with pytest.raises(TypeError, match="no such windows"):
            _core.leaf_states(node, sources, *rest, rows, wrong)


def test_a_wrong_vector_is_seen() -> None:
    content = json.loads(json.dumps(read_vectors()["folds"][0]))
    wrong = bytearray.fromhex(content["elements"][0]["states"])
    wrong[0] ^= 1
    content["elements"][0]["states"] = wrong.hex()
    with pytest.raises(AssertionError):
        check_vector(read_long_fold(content["name"]), content)


def test_what_is_not_there_is_refused() -> None:
    item = read_long_fold("rows")
    node, sources = encode(item)
    arrays, digests = list(item.arrays), item.digests()
    with pytest.raises(EncodingError):
        _core.leaf_fold(b"\xff", sources)
    with pytest.raises(GraphError, match="sources"):
        _core.leaf_fold(node, [])
    with pytest.raises(GraphError, match="no element 3"):
        _core.leaf_states(node, sources, arrays, digests, item.out.size)
    with pytest.raises(GraphError, match="no block 3"):
        _core.leaf_reads(node, sources, arrays, digests, 0, 3)
    with pytest.raises(GraphError, match="types"):
        _core.leaf_states(node, sources, [np.zeros((3, 2), np.int32)], digests, 0)
