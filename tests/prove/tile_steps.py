"""Steps whose tiles tests look at: tiny tasks, and a network with what those lack."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np

from tests.engines.steps import make_step
from tests.tasks import make_samples, make_tiny_task
from vtrain.engines.numpy_engine import NumpySession
from vtrain.graph import step
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import (
    Activation,
    Add,
    AddWeight,
    AveragePool,
    Concat,
    Conv,
    Layer,
    Linear,
    MatMul,
    MaxPool,
    Model,
    Mul,
    Pad,
    Relu,
    Reshape,
    RMSNorm,
    Scale,
    Slice,
    Transpose,
)
from vtrain.graph.step import (
    Affine,
    Momentum,
    OneHot,
    StepPlan,
    compute_initial_state,
    emit_step,
)
from vtrain.ops.layout import Window
from vtrain.prove.tiles.statements import StepFacts, Tile, TileContents
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import StepGraph

PLAIN_STEPS = ("mlp", "mse", "cnn", "pools", "tokens", "branches", "stacks", "convnet")
LANGUAGE_STEPS = ("gpt", "dropout", "functions", "packed", "llama", "classes", "fine")
"""Windows of tokens, attention, norms, AdamW; masks and Lion; functions by table; hidden spans;
more classes than the circuit of rows takes, with a gradient in 29 bits and in 14; fewer, with one
in 29."""
STEPS = (*PLAIN_STEPS, *LANGUAGE_STEPS)


def choose_side(kind: str) -> int:
    """The extent of tiles that hold a row of each softmax."""
    return 16 if kind in LANGUAGE_STEPS else 8


DONE = 2
"""Steps done before the one looked at, so that momentum is not zero."""


@cache
def make_contents(kind: str, side: int) -> TileContents:
    """The tiles of the third step of a task; shared between tests."""
    graph, samples, state = _make(kind)
    session = NumpySession(graph, samples)
    session.load_state(state)
    for _ in range(DONE):
        session.step()
    outputs = dict(enumerate(session.evaluate_all(range(len(graph.nodes)))))
    record = session.step()
    return TileContents(Tiling(graph, side), StepFacts(record.step, record.loss), outputs)


def make_graph(kind: str) -> StepGraph:
    """The graph of these steps."""
    return _make(kind)[0]


class Altered(TileContents):
    """The same tiles, but one."""

    def __init__(self, honest: TileContents, tile: Tile, value: np.ndarray) -> None:
        super().__init__(honest.tiling, honest.facts, {})
        self._honest, self._altered = honest, (tile, value)

    def tile(self, tile: Tile) -> np.ndarray:
        return self._altered[1] if tile == self._altered[0] else self._honest.tile(tile)


class Refitted(TileContents):
    """One tile altered, and all that is computed of tiles computed of it."""

    def __init__(self, honest: TileContents, tile: Tile, value: np.ndarray) -> None:
        super().__init__(honest.tiling, honest.facts, honest.outputs)
        self._altered = tile, value

    def tile(self, tile: Tile) -> np.ndarray:
        return self._altered[1] if tile == self._altered[0] else super().tile(tile)


def _make(kind: str) -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    others = {
        "pools": _make_pools,
        "tokens": _make_tokens,
        "largest": _make_largest,
        "wide": _make_wide,
        "mnist": _make_mnist,
        "branches": make_branches,
        "stacks": make_stacks,
        "convnet": _make_convnet,
        "functions": _make_functions,
        "classes": _make_classes,
        "fine": _make_fine,
    }
    if made := others.get(kind):
        return made()
    if kind in ("packed", "llama"):
        task = make_tiny_task("packed gpt" if kind == "packed" else kind, batch=2)
        return task.graph, task.samples, dict(task.initial_state)
    if kind in ("gpt", "dropout"):
        optimizer = "adamw" if kind == "gpt" else "lion"
        task = make_tiny_task(kind, optimizer=optimizer, batch=2)
        return task.graph, task.samples, dict(task.initial_state)
    loss = "mse" if kind == "mse" else "cross_entropy"
    task = make_tiny_task("cnn" if kind == "cnn" else "mlp", loss=loss)
    return task.graph, task.samples, dict(task.initial_state)


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-(2**23), 2**23, shape).astype(np.int32)


def _make_pools() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Overlapping padded maxima, more convolutions, strides, a sum of two branches, means."""
    rng = np.random.default_rng(5)
    samples = make_samples((1, 8, 8), 12, 3)
    same = Window((3, 3), (1, 1), (1, 1, 1, 1))
    layers: tuple[Layer, ...] = (
        Conv("c1", "x", "k1", "b1", same),
        MaxPool("m1", "c1", Window((3, 3), (2, 2), (1, 1, 1, 1))),
        Conv("c2", "m1", "k2", None, same),
        Relu("r2", "c2"),
        Add("sum", "m1", "r2"),
        Conv("c3", "sum", "k3", "b3", Window((2, 2), (2, 1), (0, 1, 0, 0))),
        AveragePool("mean", "c3", Window((2, 2), (1, 1), (0, 0, 1, 0))),
        Reshape("flat", "mean", (2 * 2 * 3,)),
        Linear("logits", "flat", "w", "b", False),
    )
    params = {
        "k1": _weights(rng, (2, 3, 3, 1)),
        "b1": _weights(rng, (2,)),
        "k2": _weights(rng, (2, 3, 3, 2)),
        "k3": _weights(rng, (2, 2, 2, 2)),
        "b3": _weights(rng, (2,)),
        "w": _weights(rng, (12, 4)),
        "b": _weights(rng, (4,)),
    }
    model = Model("x", (1, 8, 8), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=-9000, shift=2, exponent=15)
    return _compile(model, samples, prepare, decay=1 << 16)


def make_branches() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """What operators of two values make of two branches, small enough for a circuit of the whole
    step; an image is reordered before it is flattened."""
    rng = np.random.default_rng(8)
    layers: tuple[Layer, ...] = (
        Reshape("flat", "x", (8,)),
        Linear("h", "flat", "w1", "b1", True),
        Relu("r", "h"),
        Linear("g", "flat", "w2", None, False),
        Add("sum", "r", "g"),
        Mul("product", "sum", "g"),
        Linear("logits", "product", "w3", "b3", False),
    )
    params = {
        "w1": _weights(rng, (5, 8)),
        "b1": _weights(rng, (5,)),
        "w2": _weights(rng, (8, 5)),
        "w3": _weights(rng, (5, 4)),
        "b3": _weights(rng, (4,)),
    }
    model = Model("x", (2, 2, 2), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return _compile(model, make_samples((2, 2, 2), 12, 3), prepare, decay=6554)


def make_stacks() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Products of stacks of matrices, of parts of a value along an axis, joined again."""
    rng = np.random.default_rng(12)
    layers: tuple[Layer, ...] = (
        AddWeight("placed", "x", "p"),
        Linear("h", "placed", "w1", None, True),
        Reshape("heads", "h", (4, 6, 1)),
        Transpose("t", "heads", (0, 2, 1, 3)),
        Slice("q", "t", 1, 0, 2),
        Slice("k", "t", 1, 2, 4),
        Slice("v", "t", 1, 4, 6),
        MatMul("s", "q", "k", transpose_right=True),
        Scale("scaled", "s", 3, 2),
        MatMul("o", "scaled", "v"),
        Concat("joined", ("o", "q"), 3),
        Pad("padded", "joined", 2, 1, 0),
        MatMul("g", "padded", "padded", transpose_left=True),
        Reshape("flat", "g", (8,)),
        Linear("logits", "flat", "w2", "b2", False),
    )
    params = {
        "p": _weights(rng, (4, 2)),
        "w1": _weights(rng, (6, 2)),
        "w2": _weights(rng, (8, 4)),
        "b2": _weights(rng, (4,)),
    }
    model = Model("x", (4, 2), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return _compile(model, make_samples((4, 2), 12, 3), prepare, decay=6554, batch=2)


def _make_convnet() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Convolutions in groups and dilated, by channels too, with norms of a batch, whose running
    statistics are states, and of groups; bounds, and a slope below zero."""
    made = make_step("convnet", batch=2)
    return made.graph, made.samples, dict(made.state)


def _make_functions() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Functions by table, whose tables end before what is looked up and after; a norm between."""
    rng = np.random.default_rng(14)
    layers: tuple[Layer, ...] = (
        Linear("h", "x", "w1", "b1", True),
        Activation("a", "h", "gelu"),
        RMSNorm("n", "a", "gain", 1e-5),
        Linear("g", "n", "w2", None, True),
        Activation("t", "g", "tanh"),
        Linear("logits", "t", "w3", "b3", True),
    )
    params = {
        "w1": rng.integers(-(2**28), 2**28, (6, 8)).astype(np.int32),
        "b1": _weights(rng, (6,)),
        "gain": np.full(6, 1 << 24, np.int32),
        "w2": _weights(rng, (5, 6)),
        "w3": _weights(rng, (4, 5)),
        "b3": _weights(rng, (4,)),
    }
    model = Model("x", (8,), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return _compile(model, make_samples((8,), 12, 3), prepare, decay=6554, batch=3)


def _make_fine() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Classes that the circuit of rows takes, with the gradient that tasks have of many more."""
    with patch.object(step, "FEW_CLASSES", 0):
        return _make_classes(5)


def _make_classes(count: int = 129) -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """129 classes, one more than the circuit of rows has room for, with a gradient in 14 bits."""
    rng = np.random.default_rng(15)
    params = {"w": rng.integers(-(2**28), 2**28, (count, 8)).astype(np.int32)}
    params["b"] = _weights(rng, (count,))
    model = Model("x", (8,), (Linear("logits", "x", "w", "b", True),), "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return _compile(model, make_samples((8,), 12, 3), prepare, decay=6554, batch=3)


def _make_largest() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """A maximum over as many pixels as one may be of."""
    rng = np.random.default_rng(7)
    layers: tuple[Layer, ...] = (
        Conv("c", "x", "k", None, Window((1, 1), (1, 1), (0, 0, 0, 0))),
        MaxPool("largest", "c", Window((8, 8), (8, 8), (0, 0, 0, 0))),
        Reshape("flat", "largest", (2,)),
        Linear("logits", "flat", "w", None, False),
    )
    params = {"k": _weights(rng, (2, 1, 1, 1)), "w": _weights(rng, (2, 4))}
    model = Model("x", (1, 8, 8), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=-9000, shift=2, exponent=15)
    return _compile(model, make_samples((1, 8, 8), 12, 3), prepare, decay=1 << 16)


def _make_wide() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """784-512-512-10, the MLP of examples/zk that is proven by tiles, at batch 5."""
    rng = np.random.default_rng(9)
    layers: tuple[Layer, ...] = (
        Linear("h1", "x", "w1", "b1", True),
        Relu("r1", "h1"),
        Linear("h2", "r1", "w2", "b2", True),
        Relu("r2", "h2"),
        Linear("logits", "r2", "w3", "b3", True),
    )
    params = {}
    for number, (inputs, outputs) in enumerate([(784, 512), (512, 512), (512, 10)], start=1):
        params[f"w{number}"] = _weights(rng, (outputs, inputs)) >> 4
        params[f"b{number}"] = _weights(rng, (outputs,)) >> 4
    model = Model("x", (784,), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    samples = make_samples((784,), 256, 3)
    return _compile(model, samples, prepare, decay=6554)


def _make_mnist() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """The CNN of examples/mnist, at batch 5."""
    rng = np.random.default_rng(10)
    same, half = Window((3, 3), (1, 1), (1, 1, 1, 1)), Window((2, 2), (2, 2), (0, 0, 0, 0))
    layers: tuple[Layer, ...] = (
        Conv("c1", "x", "k1", "b1", same),
        Relu("r1", "c1"),
        MaxPool("m1", "r1", half),
        Conv("c2", "m1", "k2", "b2", same),
        Relu("r2", "c2"),
        MaxPool("m2", "r2", half),
        Reshape("flat", "m2", (7 * 7 * 16,)),
        Linear("logits", "flat", "w", "b", False),
    )
    params = {
        "k1": _weights(rng, (8, 3, 3, 1)),
        "b1": _weights(rng, (8,)),
        "k2": _weights(rng, (16, 3, 3, 8)) >> 3,
        "b2": _weights(rng, (16,)),
        "w": _weights(rng, (784, 10)) >> 4,
        "b": _weights(rng, (10,)),
    }
    model = Model("x", (1, 28, 28), layers, "logits", params)
    prepare = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return _compile(model, make_samples((1, 28, 28), 64, 3), prepare, decay=6554)


def _make_tokens() -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    """Tokens, one-hot, into a linear layer; no momentum is lost."""
    rng = np.random.default_rng(6)
    x = rng.integers(0, 9, (12, 3), dtype=np.uint8)
    samples = build_samples(x, rng.integers(0, 4, 12, dtype=np.uint8))
    params = {"w": _weights(rng, (4, 18)), "b": _weights(rng, (4,))}
    model = Model("x", (18,), (Linear("logits", "x", "w", "b", True),), "logits", params)
    # Tokens 6 to 8 are beyond the depth.
    return _compile(model, samples, OneHot(6), decay=0)


def _compile(
    model: Model, samples: Samples, prepare: Affine | OneHot, decay: int, batch: int = 5
) -> tuple[StepGraph, Samples, dict[str, np.ndarray]]:
    momentum = Momentum(decay=decay, starts=(0, 2), rates=(40960, 20480), exponent=22)
    plan = StepPlan(
        samples.spec, prepare, "cross_entropy", momentum, seed=3, batch=batch, commit_every=5
    )
    state = compute_initial_state(model.params)

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    exponents = calibrate(emit, state, samples, steps=3, margin=3).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    return builder.graph(), samples, dict(state)


def with_node(graph: StepGraph, index: int, **changes: object) -> StepGraph:
    """``graph`` with one node changed; it need not be legal."""
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)  # type: ignore[arg-type]
    return StepGraph(tuple(nodes))
