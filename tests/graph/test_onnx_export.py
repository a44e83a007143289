"""The exported graph, run by stock onnxruntime, gives the bits of the law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from tests.tasks import make_tiny_task
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import GraphError
from vtrain.graph import onnx_export
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.legality import check_graph
from vtrain.graph.model import (
    Add,
    AveragePool,
    Conv,
    Layer,
    Linear,
    MaxPool,
    Model,
    Relu,
    Reshape,
)
from vtrain.graph.onnx_export import LOWERINGS, export_step_graph, is_lowered
from vtrain.graph.step import Affine, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.ops import TABLE
from vtrain.ops.base import attr_text
from vtrain.ops.layout import Window
from vtrain.spec.number import NUMPY_DTYPES, rs, rs_int
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph, TensorType
from vtrain.wire.task import DataSpec

Array = npt.NDArray[Any]


def run_onnx(graph: StepGraph, feeds: Mapping[str, Array], expose: Sequence[str] = ()) -> Any:
    """Outputs by name."""
    return run_session(open_onnx(graph, expose), feeds)


def open_onnx(graph: StepGraph, expose: Sequence[str] = ()) -> onnxruntime.InferenceSession:
    """The lowered graph in onnxruntime as it is installed, with all that it does to graphs."""
    proto = export_step_graph(graph, expose=expose)
    return onnxruntime.InferenceSession(proto.SerializeToString())


def run_session(session: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> Any:
    wanted = {value.name: np.asarray(feeds[value.name]) for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, wanted), strict=True))


# --- each operator alone: its inputs are states, whatever their dtype


def make_single(
    op: str, attrs: Attrs, inputs: Sequence[Array], exponents: Sequence[int]
) -> StepGraph:
    """A graph that applies ``op`` once; not a legal step, but one that can be lowered."""
    types = []
    for array, exponent in zip(inputs, exponents, strict=True):
        dtype = next(name for name, kind in NUMPY_DTYPES.items() if kind == array.dtype)
        lo, hi = int(array.min(initial=0)), int(array.max(initial=0))
        types.append(TensorType(dtype, array.shape, exponent, lo, hi))
    nodes = [Node(f"in{i}", "state", {"name": f"in{i}"}, (), (t,)) for i, t in enumerate(types)]
    refs = tuple(Ref(i) for i in range(len(nodes)))
    nodes.append(Node("it", op, attrs, refs, (TABLE[op].infer(attrs, types),)))
    last = Ref(len(nodes) - 1)
    nodes.append(Node("out", "next_state", {"name": "out"}, (last,), nodes[-1].outputs))
    return StepGraph(tuple(nodes))


def assert_lowered(
    op: str, attrs: Attrs, inputs: Sequence[Array], exponents: Sequence[int] | None = None
) -> None:
    graph = make_single(op, attrs, inputs, exponents or [0] * len(inputs))
    expected = np.asarray(TABLE[op].law(attrs, inputs))
    found = run_onnx(graph, {f"state/in{i}": array for i, array in enumerate(inputs)})["next/out"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


RNG = np.random.default_rng(9)


def draw(dtype: str, *shape: int, lo: int | None = None, hi: int | None = None) -> Array:
    """Random integers in [lo, hi] of every magnitude, with the ends of the range sprinkled in.

    Every magnitude, because runtimes err at some: comparing halves, or adding in binary64.
    """
    limits = {"u8": (0, 255), "i16": (-32639, 32639), "i32": (-(2**31) + 1, 2**31 - 1)}
    least, most = limits.get(dtype, (-(2**59), 2**59))
    least, most = least if lo is None else lo, most if hi is None else hi
    wide = RNG.integers(least, most, shape, np.int64, endpoint=True)
    values = np.clip(wide >> RNG.integers(0, 60, shape), least, most)
    ends = np.clip(RNG.choice([least, most, 0, -1], shape), least, most)
    mixed: Array = np.where(RNG.random(shape) < 0.3, ends, values)
    return mixed.astype(NUMPY_DTYPES[dtype])


SHIFTS = [-28, -1, 0, 1, 2, 5, 16, 31, 58, 62, 63, 64]
WINDOWS: dict[str, tuple[tuple[int, int], Attrs]] = {
    "2x2": ((6, 4), {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}),
    "3x3 padded, overlapping": (
        (5, 6),
        {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)},
    ),
    "uneven": ((7, 5), {"kernel": (3, 2), "strides": (2, 1), "pads": (2, 0, 0, 1)}),
    "leaves a margin": ((7, 8), {"kernel": (2, 3), "strides": (3, 4), "pads": (0, 0, 0, 0)}),
    "whole": ((3, 4), {"kernel": (3, 4), "strides": (1, 1), "pads": (0, 0, 0, 0)}),
}
window_cases = pytest.mark.parametrize("name", WINDOWS)


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_op_next_state(dtype: str) -> None:
    assert_lowered("next_state", {"name": "out"}, [draw(dtype, 5)])


@pytest.mark.parametrize("t", [0, 1, 2**40 - 1, 2**40])
def test_op_increment(t: int) -> None:
    assert_lowered("increment", {}, [np.array(t, np.int64)])


@pytest.mark.parametrize("shift", [0, 1, 8, 33, 63, 64])
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32"])
def test_op_normalize(dtype: str, shift: int) -> None:
    attrs: Attrs = {"multiplier": 2**20 + 1, "offset": -(2**55) + 3, "shift": shift, "exponent": 3}
    lo, hi = (-128, 127) if dtype == "i8" else (None, None)
    assert_lowered("normalize", attrs, [draw(dtype, 3, 7, lo=lo, hi=hi)])


def test_op_one_hot() -> None:
    tokens = np.array([[0, 3, 7], [255, 8, 1]], np.uint8)
    assert_lowered("one_hot", {"depth": 8}, [tokens])


@window_cases
def test_op_im2col(name: str) -> None:
    size, attrs = WINDOWS[name]
    assert_lowered("im2col", attrs, [draw("i16", 2, *size, 3)])


@window_cases
@pytest.mark.parametrize("dtype", ["i16", "i64"])
def test_op_col2im(name: str, dtype: str) -> None:
    (height, width), attrs = WINDOWS[name]
    window = Window.from_attrs(attrs)
    rows, columns = window.output_extent(height, width)
    bound = 2**55 if dtype == "i64" else None
    grad = draw(dtype, 2 * rows * columns, window.area * 3, lo=bound and -bound, hi=bound)
    assert_lowered("col2im", {**attrs, "shape": (2, height, width, 3)}, [grad])


@pytest.mark.parametrize("shape", [(6, 4), (24,), (2, 3, 2, 2), (2, 12, 1)])
def test_op_reshape(shape: tuple[int, ...]) -> None:
    assert_lowered("reshape", {"shape": shape}, [draw("i16", 2, 3, 4)])


@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_op_transpose(perm: tuple[int, ...]) -> None:
    assert_lowered("transpose", {"perm": perm}, [draw("i16", 2, 3, 4, 5)])


@pytest.mark.parametrize("transpose_a", [0, 1])
@pytest.mark.parametrize("transpose_b", [0, 1])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_op_matmul(transpose_a: int, transpose_b: int, k: int) -> None:
    a, b = draw("i16", k, 4), draw("i16", 5, k)
    assert_lowered(
        "matmul",
        {"transpose_a": transpose_a, "transpose_b": transpose_b},
        [a if transpose_a else a.T.copy(), b if transpose_b else b.T.copy()],
    )


@pytest.mark.parametrize("shift", SHIFTS)
def test_op_add_bias(shift: int) -> None:
    bias_exponent = 24
    inputs = [draw("i64", 6, 5), draw("i32", 5)]
    assert_lowered("add_bias", {"shift": shift}, inputs, [bias_exponent - shift, bias_exponent])


@pytest.mark.parametrize("shape", [(5, 4), (1, 3), (2, 3, 4), (7,)])
def test_op_column_sum(shape: tuple[int, ...]) -> None:
    assert_lowered("column_sum", {}, [draw("i16", *shape)])
    assert_lowered("column_sum", {}, [draw("i64", *shape, lo=-(2**56), hi=2**56)])


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("dtype", ["i16", "i32", "i64"])
@pytest.mark.parametrize("multiplier", [1, 47274])
def test_op_rescale(dtype: str, multiplier: int, shift: int) -> None:
    attrs: Attrs = {
        "dtype": dtype,
        "multiplier": multiplier,
        "multiplier_exponent": 0,
        "shift": shift,
    }
    for source in ("i16", "i32", "i64"):
        bits = {"i16": 15, "i32": 31, "i64": 59}[source]
        bound = min(2**bits - 1, 2 ** (59 + min(shift, 0) - multiplier.bit_length()))
        assert_lowered("rescale", attrs, [draw(source, 40, lo=-bound, hi=bound)])


def test_op_add() -> None:
    inputs = [draw("i16", 9), draw("i64", 9, lo=-(2**50), hi=2**50)]
    assert_lowered("add", {"shift_a": 7, "shift_b": 0}, inputs, [0, 7])


def test_op_sub() -> None:
    inputs = [draw("u8", 9), draw("i16", 9)]
    assert_lowered("sub", {"shift_a": 0, "shift_b": 40}, inputs, [40, 0])


def test_op_relu() -> None:
    assert_lowered("relu", {}, [draw("i16", 30)])


def test_op_relu_grad() -> None:
    output = np.array([-5, 0, 1, 32639, 0, -32639], np.int16)
    assert_lowered("relu_grad", {}, [draw("i16", 6), output])


@window_cases
def test_op_max_pool(name: str) -> None:
    size, attrs = WINDOWS[name]
    assert_lowered("max_pool", attrs, [draw("i16", 2, *size, 3)])
    assert_lowered("max_pool", attrs, [np.full((1, *size, 2), -32639, np.int16)])


@window_cases
def test_op_max_pool_grad(name: str) -> None:
    (height, width), attrs = WINDOWS[name]
    rows, columns = Window.from_attrs(attrs).output_extent(height, width)
    grad = draw("i16", 2, rows, columns, 3)
    assert_lowered("max_pool_grad", attrs, [grad, draw("i16", 2, height, width, 3)])
    ties = draw("i16", 2, height, width, 3, lo=0, hi=1)
    assert_lowered("max_pool_grad", attrs, [grad, ties])


@window_cases
def test_op_sum_pool(name: str) -> None:
    size, attrs = WINDOWS[name]
    assert_lowered("sum_pool", attrs, [draw("i16", 2, *size, 3)])


@window_cases
def test_op_sum_pool_grad(name: str) -> None:
    (height, width), attrs = WINDOWS[name]
    rows, columns = Window.from_attrs(attrs).output_extent(height, width)
    grad = draw("i64", 2, rows, columns, 3, lo=-(2**55), hi=2**55)
    assert_lowered("sum_pool_grad", {**attrs, "shape": (2, height, width, 3)}, [grad])


def test_op_row_max() -> None:
    assert_lowered("row_max", {}, [draw("i32", 6, 10)])
    assert_lowered("row_max", {}, [draw("i32", 6, 1)])


def test_op_exp2_diff() -> None:
    deep = 31 * 1024
    edges = [0, 1, 1023, 1024, 1025, 16 * 1024, 17 * 1024 - 1, 17 * 1024, 18 * 1024]
    below = np.array([[*edges, deep - 1, deep, deep + 1, 2**32 - 2]] * 2, np.int64)
    maximum = np.array([2**31 - 1, 2**31 - 1], np.int64)
    for deeper in (below, *(RNG.integers(0, spread, (2, 4000)) for spread in (1000, 30000))):
        inputs = [(maximum[:, None] - deeper).astype(np.int32), maximum.astype(np.int32)]
        assert_lowered("exp2_diff", {}, inputs, [10, 10])


def test_op_exp2_diff_above_the_given_maximum() -> None:
    inputs = [np.array([[6, 5, 4]], np.int32), np.array([5], np.int32)]
    assert_lowered("exp2_diff", {}, inputs, [10, 10])


def test_op_row_sum() -> None:
    assert_lowered("row_sum", {}, [draw("i32", 4, 1000)])


def test_op_divide() -> None:
    e = RNG.integers(0, 2**16, (50, 40), endpoint=True)
    e[:, 0] = 2**16
    e[0, 1:] = 0  # probabilities of 1 and 0
    e[1] = 2**16
    assert_lowered("divide", {}, [e.astype(np.int32), e.sum(axis=1)], [16, 16])
    # Every quotient near a tie: the sum is even, and twice the term is near a multiple of it.
    total = np.arange(2, 200, 2, dtype=np.int64)
    e = np.minimum(np.arange(64), total[:, None]).astype(np.int32)
    assert_lowered("divide", {}, [e, total], [16, 16])


@pytest.mark.parametrize("dtype", ["u8", "i32"])
def test_op_sub_one_hot(dtype: str) -> None:
    labels = np.array([0, 9, 10, 255, 5], np.int64)
    if dtype == "i32":
        labels = np.array([-1, -(2**31), 2**31 - 1, 3, 9], np.int64)
    p = draw("i16", 5, 10, lo=0, hi=2**14)
    assert_lowered("sub_one_hot", {}, [p, labels.astype(NUMPY_DTYPES[dtype])], [14, 0])


def test_op_cross_entropy() -> None:
    powers = [2**i for i in range(60)]
    totals = np.array([n for p in powers for n in (p - 1, p, p + 1, p + p // 3)], np.int64)
    totals = np.concatenate([totals, RNG.integers(2**16, 2**26, 2000)])
    z = draw("i32", len(totals), 10)
    labels = RNG.integers(0, 256, len(totals)).astype(np.uint8)
    inputs = [z, z.max(axis=1), totals, labels]
    assert_lowered("cross_entropy", {}, inputs, [10, 10, 16, 0])


@pytest.mark.parametrize("exponent", [-19, 0, 7, 8, 9, 15, 30, 40])
def test_op_square_sum(exponent: int) -> None:
    bound = 32639 if exponent >= 0 else 1
    x = draw("i16", 8, 5, lo=-bound, hi=bound)
    assert_lowered("square_sum", {"shift": 2 * exponent - 16}, [x], [exponent])


def test_op_sum() -> None:
    assert_lowered("sum", {}, [draw("i64", 30, lo=-(2**54), hi=2**54)])
    assert_lowered("sum", {}, [draw("i16", 3, 4, 5)])


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("decay", [0, 1, 6554, 2**16])
def test_op_momentum(shift: int, decay: int) -> None:
    bound = 2 ** (59 + min(shift, 0))
    inputs = [draw("i32", 60), draw("i64", 60, lo=-bound, hi=bound)]
    assert_lowered("momentum", {"decay": decay, "shift": shift}, inputs, [16, 16 + shift])


@pytest.mark.parametrize("shift", [-12, 0, 1, 16, 40, 64])
def test_op_sgd_update(shift: int) -> None:
    rate = np.array(65535 if shift > -12 else 1, np.int64)
    inputs = [draw("i32", 60), draw("i32", 60), rate]
    assert_lowered("sgd_update", {"shift": shift}, inputs, [24, 16, 24 + shift - 16])


@pytest.mark.parametrize("t", [0, 9, 10, 11, 500, 501, 2**40])
def test_op_schedule(t: int) -> None:
    attrs: Attrs = {"starts": (0, 10, 501), "rates": (5, 65535, 0), "exponent": 20}
    assert_lowered("schedule", attrs, [np.array(t, np.int64)])


EXTREMES = np.array(
    [sign * (2**bit + off) for bit in range(63) for off in (-1, 0, 1) for sign in (1, -1)]
    + [2**63 - 1, -(2**63), -(2**63) + 1],
    np.int64,
)


@pytest.mark.parametrize("shift", range(1, 67))
def test_rounding_shift_is_exact_for_every_int64(shift: int) -> None:
    """Beyond the proven ranges too: next to the ends of int64 nothing may overflow."""
    expected = np.array([rs_int(int(x), shift) for x in EXTREMES], np.int64)
    assert np.array_equal(rs(EXTREMES, shift), expected)
    assert np.array_equal(run_lowered_shift(EXTREMES, shift), expected)


def run_lowered_shift(values: Array, shift: int) -> Array:
    tensor = TensorType("i64", values.shape, 0, -(2**63), 2**63 - 1)
    attrs: Attrs = {"dtype": "i64", "multiplier": 1, "multiplier_exponent": 0, "shift": shift}
    nodes = (
        Node("in", "state", {"name": "in"}, (), (tensor,)),
        Node("it", "rescale", attrs, (Ref(0),), (tensor,)),
        Node("out", "next_state", {"name": "out"}, (Ref(1),), (tensor,)),
    )
    found: Array = run_onnx(StepGraph(nodes), {"state/in": values})["next/out"]
    return found


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    values=hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(-(2**63), 2**63 - 1)),
    shift=st.integers(1, 70),
)
def test_rounding_shift_property(values: Array, shift: int) -> None:
    expected = [rs_int(int(x), shift) for x in values]
    assert run_lowered_shift(values, shift).tolist() == expected


# --- whole steps

BATCH, SAMPLES = 4, 11


def window(size: int, stride: int, pad: int = 0) -> Window:
    return Window((size, size), (stride, stride), (pad,) * 4)


def make_model(
    shape: tuple[int, ...], layers: Sequence[Layer], params: Mapping[str, tuple[int, ...]]
) -> Model:
    random = np.random.default_rng(3)
    masters = {
        name: np.round(random.uniform(-0.6, 0.6, extents) * 2**24).astype(np.int32)
        for name, extents in params.items()
    }
    return Model("x", shape, tuple(layers), layers[-1].name, masters)


PERCEPTRON = make_model(
    (12,),
    [
        Linear("fc1", "x", "w1", "b1", True),
        Relu("r1", "fc1"),
        Linear("fc2", "r1", "w2", "b2", False),
    ],
    {"w1": (7, 12), "b1": (7,), "w2": (7, 5), "b2": (5,)},
)
CONVOLUTION = make_model(
    (2, 8, 8),
    [
        Conv("c1", "x", "k1", "kb1", window(3, 1, 1)),
        Relu("r1", "c1"),
        MaxPool("m1", "r1", window(2, 2)),
        Conv("c2", "m1", "k2", None, window(3, 1, 1)),
        Add("sum", "c2", "m1"),
        Relu("r2", "sum"),
        AveragePool("a1", "r2", window(2, 1)),
        AveragePool("a2", "a1", window(3, 1, 1)),
        Reshape("flat", "a2", (27,)),
        Linear("fc", "flat", "w", "b", True),
    ],
    {"k1": (3, 3, 3, 2), "kb1": (3,), "k2": (3, 3, 3, 3), "w": (5, 27), "b": (5,)},
)

WHOLE = {
    "perceptron, cross-entropy": (PERCEPTRON, "cross_entropy"),
    "convolution, cross-entropy": (CONVOLUTION, "cross_entropy"),
    "perceptron, mse": (PERCEPTRON, "mse"),
}


def make_step(model: Model, loss: str) -> tuple[StepGraph, NumpySession]:
    """A calibrated step graph and a session of the law, at its initial state."""
    y_type = ("u8", (), 0) if loss == "cross_entropy" else ("i16", (5,), 12)
    data = DataSpec(b"\0" * 32, SAMPLES, "u8", model.input_shape, 0, *y_type)
    row = int(np.prod(model.input_shape)) + (1 if loss == "cross_entropy" else 10)
    table = np.random.default_rng(4).integers(0, 256, (SAMPLES, row)).astype(np.uint8)
    if loss == "cross_entropy":
        table[:, -1] %= 5
    samples = Samples(data, table)
    plan = StepPlan(
        data=data,
        prepare=Affine(multiplier=257, offset=-32768, shift=2, exponent=13),
        loss=loss,
        optimizer=Momentum(decay=6554, starts=(0, 2), rates=(40000, 20000), exponent=24),
        seed=1,
        batch=BATCH,
        commit_every=2,
    )

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    state = compute_initial_state(model.params)
    exponents = calibrate(emit, state, samples, steps=3, margin=2).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    graph = builder.graph()
    check_graph(graph)
    session = NumpySession(graph, samples)
    session.load_state(state)
    return graph, session


def make_feeds(graph: StepGraph, session: NumpySession) -> dict[str, Array]:
    """The state before the next step, and its batch."""
    feeds = {f"state/{name}": value for name, value in session.read_state().items()}
    for index, node in enumerate(graph.nodes):
        if node.op == "gather_samples":
            feeds[f"batch/{attr_text(node.attrs, 'part')}"] = session.evaluate(index)
    return feeds


LANGUAGE_MODELS = {"gpt": "adamw", "packed gpt": "adamw", "llama": "sgd"}
"""With their optimizers."""


def open_case(case: str) -> tuple[StepGraph, NumpySession]:
    """A model of this file or a language model, at its initial state."""
    if case in WHOLE:
        return make_step(*WHOLE[case])
    task = make_tiny_task(case, optimizer=LANGUAGE_MODELS[case])
    session = NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    return task.graph, session


CASES = [*WHOLE, *LANGUAGE_MODELS]


@pytest.mark.parametrize("case", CASES)
def test_three_steps_are_bit_equal(case: str) -> None:
    graph, session = open_case(case)
    before, lowered = session.read_state(), open_onnx(graph)
    for _ in range(3):
        found = run_session(lowered, make_feeds(graph, session))
        record = session.step()
        after = session.read_state()
        expected = {f"next/{name}": value for name, value in after.items()}
        assert set(found) == {*expected, "loss"}
        assert int(found["loss"]) == record.loss
        for name, value in expected.items():
            assert found[name].dtype == value.dtype, name
            assert np.array_equal(found[name], value), name
    assert all(not np.array_equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("case", CASES)
def test_every_node_can_be_exposed_and_is_bit_equal(case: str) -> None:
    graph, session = open_case(case)
    session.step()
    assert find_differences(graph, session) == []


def find_differences(graph: StepGraph, session: NumpySession) -> list[str]:
    """Names of the nodes whose output in the next step differs between onnxruntime and the law."""
    indices = {node.name: i for i, node in enumerate(graph.nodes) if is_lowered(node.op)}
    found = run_onnx(graph, make_feeds(graph, session), list(indices))
    wrong = []
    for name, given in zip(indices, session.evaluate_all(list(indices.values())), strict=True):
        expected = np.asarray(given)
        value = found[f"node/{name}"]
        if (value.dtype, value.shape) != (expected.dtype, expected.shape) or (
            value.tobytes() != expected.tobytes()
        ):
            wrong.append(name)
    return wrong


def truncating_div(g: Any, x: str, divisor: str) -> str:
    return str(g.op("Div", x, divisor))


def rounding_down(g: Any, x: str, shift: int) -> str:
    """The shift without its rounding bit."""
    if shift <= 0:
        return str(g.times(x, 1 << -shift))
    return str(g.floor_div(x, g.const(1 << min(shift, 62))))


def last_of_ties(g: Any, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    before = len(g._nodes)
    result = str(onnx_export._max_pool_grad(g, node, x, t))
    for made in g._nodes[before:]:
        if made.op_type == "ArgMax":
            made.attribute.remove(next(a for a in made.attribute if a.name == "select_last_index"))
            made.attribute.append(onnx.helper.make_attribute("select_last_index", 1))
    return result


@pytest.mark.parametrize(("name", "fault"), [("floor_div", truncating_div), ("rs", rounding_down)])
def test_a_rounding_fault_in_a_lowering_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., str]
) -> None:
    """The comparisons above can fail: wrong rounding anywhere shows in some node."""
    graph, session = make_step(*WHOLE["convolution, cross-entropy"])
    assert find_differences(graph, session) == []
    monkeypatch.setattr(onnx_export._Lowering, name, fault)
    assert find_differences(graph, session) != []


def test_a_wrong_tie_in_a_lowering_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, "max_pool_grad", last_of_ties)
    with pytest.raises(AssertionError):
        test_op_max_pool_grad("2x2")


# --- the form of the file


def test_the_file_is_standard_integer_onnx() -> None:
    graph, _ = make_step(CONVOLUTION, "cross_entropy")
    proto = export_step_graph(graph, expose=["fc/acc"])
    onnx.checker.check_model(proto, full_check=True)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    integers = {2, 3, 5, 6, 7}
    ends = [*proto.graph.input, *proto.graph.output]
    assert {value.type.tensor_type.elem_type for value in ends} <= integers
    assert {tensor.data_type for tensor in proto.graph.initializer} == {onnx.TensorProto.INT64}
    doubtful = {"BitShift", "Clip", "Max", "Min", "ReduceSum", "Sign"}
    assert not doubtful & {node.op_type for node in proto.graph.node}
    names = [value.name for value in proto.graph.input]
    assert {"batch/x", "batch/y", "state/step", "state/param/k1", "state/momentum/b"} <= set(names)
    outputs = {value.name for value in proto.graph.output}
    assert {"loss", "next/step", "next/param/k1", "node/fc/acc"} <= outputs


def test_the_file_is_the_same_every_time() -> None:
    first, second = (export_step_graph(make_step(PERCEPTRON, "mse")[0]) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )


def test_what_has_no_onnx_form_is_refused_by_name() -> None:
    graph, _ = make_step(PERCEPTRON, "mse")
    for name, complaint in (
        ("state_root", "no BLAKE3"),
        ("sample_index", "counter-based"),
        ("nowhere", "no such node"),
    ):
        with pytest.raises(GraphError, match=complaint) as caught:
            export_step_graph(graph, expose=[name])
        assert name in caught.value.where


def test_a_node_that_needs_a_cut_node_is_refused() -> None:
    digest = TensorType("u8", (32,), 0, 0, 255)
    nodes = (
        Node("t", "state", {"name": "t"}, (), (TensorType("i64", (), 0, 0, 9),)),
        Node("digest", "tensor_digest", {}, (Ref(0),), (digest,)),
        Node("used", "reshape", {"shape": (2, 16)}, (Ref(1),), (digest,)),
    )
    with pytest.raises(GraphError, match=r"node digest \(tensor_digest\): ONNX has no BLAKE3"):
        export_step_graph(StepGraph(nodes))
