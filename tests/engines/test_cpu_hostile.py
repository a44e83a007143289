"""Hostile graphs end in a typed error or run; they never crash, hang or read outside a tensor."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.engines.steps import Step, make_step
from vtrain import _core
from vtrain.errors import EncodingError, GraphError, RunError, VtrainError
from vtrain.wire.graph import AttrValue, Node, Ref, StepGraph, TensorType, encode_graph


def open_engine(data: bytes, step: Step) -> _core.Engine:
    spec = step.samples.spec
    forms = (spec.x_dtype, spec.x_shape), (spec.y_dtype, spec.y_shape)
    return _core.Engine(data, step.samples.table, *forms, 2)


def try_graph(data: bytes, step: Step) -> str:
    """Runs whatever can be run of a graph; "ran", or the code of the error if it names a place."""
    try:
        engine = open_engine(data, step)
        for name, value in step.state.items():
            engine.load_state(name, value)
        engine.step()
        engine.trace()
        engine.evaluate([0])
    except (EncodingError, GraphError, RunError) as error:
        return error.code if error.where else "placeless"
    return "ran"


def mutate_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(out)))
        match int(rng.integers(4)):
            case 0:
                out[at] ^= 1 << int(rng.integers(8))
            case 1:
                out[at] = int(rng.integers(256))
            case 2:
                del out[at : at + int(rng.integers(1, 9))]
            case _:
                out[at:at] = out[int(rng.integers(len(out))) :][: int(rng.integers(1, 40))]
    return bytes(out)


NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 7, 64, 2**16, 2**32, 2**33, 2**47, 2**48, 2**63 - 1)


def mutate_value(rng: np.random.Generator, value: AttrValue) -> AttrValue:
    if isinstance(value, int):
        return int(rng.choice(NUMBERS)) if rng.random() < 0.5 else value + int(rng.integers(-2, 3))
    if isinstance(value, tuple):
        items = [int(item) for item in value]
        if items and rng.random() < 0.8:
            items[int(rng.integers(len(items)))] = int(rng.choice(NUMBERS))
        else:
            items = items[1:]
        return tuple(items)
    return value[1:]


def mutate_node(rng: np.random.Generator, nodes: list[Node], at: int) -> Node:
    """One field, well-formed but wrong: a shape, dtype, reference, attribute or operator."""
    node = nodes[at]
    choice = int(rng.integers(6))
    if choice == 0 and node.attrs:
        key = str(rng.choice(sorted(node.attrs)))
        return replace(node, attrs={**node.attrs, key: mutate_value(rng, node.attrs[key])})
    if choice == 1 and node.inputs and at:
        inputs = list(node.inputs)
        inputs[int(rng.integers(len(inputs)))] = Ref(int(rng.integers(at)))
        return replace(node, inputs=tuple(inputs))
    if choice == 2:
        return replace(node, op=str(rng.choice([other.op for other in nodes])))
    if choice == 3:
        keep = node.inputs[1:] if rng.random() < 0.5 else (*node.inputs, *node.inputs[:1])
        return replace(node, inputs=keep)
    claim = node.outputs[0]
    if choice == 4:
        dtype = str(rng.choice(["u8", "i8", "i16", "i32", "i64"]))
        return replace(node, outputs=(replace(claim, dtype=dtype),))
    shape = mutate_value(rng, claim.shape)
    assert isinstance(shape, tuple)
    shape = tuple(min(max(extent, 0), 2**48) for extent in shape)
    attrs = {**node.attrs, "shape": shape} if "shape" in node.attrs else node.attrs
    return replace(node, attrs=attrs, outputs=(replace(claim, shape=shape),))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_mutated_bytes_never_crash(kind: str) -> None:
    step = make_step(kind)
    data = encode_graph(step.graph)
    rng = np.random.default_rng(17)
    codes = {try_graph(mutate_bytes(rng, data), step) for _ in range(400)}
    assert {"encoding"} <= codes <= {"encoding", "graph", "run", "ran"}
    assert try_graph(data, step) == "ran"


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_mutated_nodes_never_crash(kind: str) -> None:
    step = make_step(kind)
    rng = np.random.default_rng(23)
    codes = []
    begin = time.monotonic()
    for _ in range(600):
        nodes = list(step.graph.nodes)
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(len(nodes)))
            nodes[at] = mutate_node(rng, nodes, at)
        codes.append(try_graph(encode_graph(StepGraph(tuple(nodes))), step))
    assert {"graph", "ran"} <= set(codes) <= {"graph", "ran", "run", "encoding"}
    assert time.monotonic() - begin < 300


def hostile(step: Step, *extra: Node) -> bytes:
    return encode_graph(StepGraph((*extra, *_shifted(step.graph.nodes, len(extra)))))


def _shifted(nodes: tuple[Node, ...], by: int) -> list[Node]:
    return [
        replace(node, inputs=tuple(Ref(ref.node + by, ref.output) for ref in node.inputs))
        for node in nodes
    ]


def _state(shape: tuple[int, ...]) -> Node:
    attrs: dict[str, AttrValue] = {"name": "huge", "dtype": "i64", "exponent": 0, "shape": shape}
    return Node("huge", "state", attrs, (), (TensorType("i64", shape, 0, 0, 1),))


@pytest.mark.parametrize(
    "shape", [(2**48, 2**48), (2**32, 2**32), (2**33,), (2**48,) * 4, (0, 2**48, 2**48)]
)
def test_huge_shapes_are_refused(shape: tuple[int, ...]) -> None:
    step = make_step("mlp")
    with pytest.raises(GraphError) as caught:
        open_engine(hostile(step, _state(shape)), step)
    assert caught.value.where.startswith("node huge")


def test_a_window_larger_than_memory_ends_at_once() -> None:
    """Kernel, stride and padding of 2^32 on a small image: one window, and no loop over it."""
    huge = 2**32
    window: dict[str, AttrValue] = {
        "kernel": (huge, huge),
        "strides": (huge, huge),
        "pads": (huge - 1, huge - 1, 0, 0),
    }
    x = np.arange(18, dtype=np.int16).reshape(1, 3, 3, 2)
    shape = (1, 1, 1, 2)
    node = Node("n", "max_pool", window, (Ref(0),), (TensorType("i16", shape, 0, 0, 0),))
    data = encode_graph(StepGraph((node,)))[1:]
    with pytest.raises(EncodingError):
        _core.apply_node(data[:-1], [x])
    found = _core.apply_node(data, [x])
    np.testing.assert_array_equal(found.ravel(), [0, 1])


def test_states_must_be_read_and_written_once() -> None:
    step = make_step("mlp")
    with pytest.raises(GraphError, match="no node writes"):
        open_engine(hostile(step, _state((3,))), step)
    nodes = list(step.graph.nodes)
    at = next(i for i, node in enumerate(nodes) if node.op == "next_state")
    again = replace(nodes[at], name="again")
    with pytest.raises(GraphError, match="another node writes"):
        open_engine(encode_graph(StepGraph((*nodes, again))), step)
    with pytest.raises(GraphError):
        open_engine(encode_graph(StepGraph(tuple(nodes[:at]))), step)
    with pytest.raises(GraphError, match="no step counter"):
        open_engine(encode_graph(StepGraph(())), step)


def test_a_table_of_another_size_is_refused() -> None:
    step = make_step("mlp")
    spec = step.samples.spec
    table = np.ascontiguousarray(step.samples.table[:, :-1])
    forms = (spec.x_dtype, spec.x_shape), (spec.y_dtype, spec.y_shape)
    engine = _core.Engine(encode_graph(step.graph), table, *forms)
    for name, value in step.state.items():
        engine.load_state(name, value)
    with pytest.raises(VtrainError, match="table of samples"):
        engine.step()
