"""Whole training steps for engine tests: small models of every layer kind, with random data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np

from vtrain.engines.base import State
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.legality import check_graph
from vtrain.graph.model import (
    Activation,
    Add,
    AddWeight,
    AveragePool,
    BatchNorm,
    Concat,
    Conv,
    ConvTranspose,
    Elu,
    GroupNorm,
    Layer,
    LeakyRelu,
    Linear,
    MatMul,
    MaxPool,
    Model,
    Mul,
    Pad,
    Relu,
    Reshape,
    Shift,
    Slice,
    Softmax,
    Transpose,
)
from vtrain.graph.model import Clip as ClipLayer
from vtrain.graph.step import Affine, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.graph.update import AdamW, Clip, Lion, Optimizer, Rates, Scalar, Share
from vtrain.ops.layout import Window
from vtrain.spec.number import MASTER_EXPONENT, round_to_mantissa
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import StepGraph

CLASSES = 4
CENTRED = Affine(multiplier=257, offset=-(2**15), shift=1, exponent=15)
"""Bytes to half of the range of int16; without the shift, the least and the greatest saturate."""


_LINE = Rates((0, 3, 9), (30000, 65535, 20000), 25, linear=True)
UPDATES: Mapping[str, Optimizer] = {
    "adamw": AdamW(
        _LINE, Share(6554, 16), Share(33554, 25), 1932735283, 2145336164, Fraction(1, 10**7),
        Scalar(41943, 22),
    ),
    "lion": Lion(_LINE, Share(6554, 16), Share(41943, 22), Scalar(52429, 19)),
}  # fmt: skip
"""Optimizers that keep other states than a momentum."""


@dataclass(frozen=True)
class Step:
    """A legal step graph with the data it reads and the state it starts from."""

    graph: StepGraph
    samples: Samples
    state: State


class _Weights:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.params: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]] = {}

    def add(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        values = self._rng.uniform(-1, 1, shape) * np.sqrt(3 / fan_in)
        self.params[name] = round_to_mantissa(values, MASTER_EXPONENT).astype(np.int32)
        return name


def _mlp(weights: _Weights, sizes: tuple[int, ...]) -> tuple[list[Layer], str]:
    layers: list[Layer] = []
    value = "x"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        transposed = i % 2 == 0
        shape = (outputs, inputs) if transposed else (inputs, outputs)
        weight = weights.add(f"w{i}", shape, inputs)
        bias = weights.add(f"b{i}", (outputs,), inputs) if i != 1 else None
        layers.append(Linear(f"fc{i}", value, weight, bias, transposed))
        value = f"fc{i}"
        if i < len(sizes) - 2:
            layers.append(Relu(f"relu{i}", value))
            value = f"relu{i}"
    return layers, value


def _cnn(weights: _Weights) -> tuple[list[Layer], str]:
    """Two channels 9x9: strided and padded convolutions, a residual, both poolings, linear."""
    same = Window((3, 3), (1, 1), (1, 1, 1, 1))
    layers: list[Layer] = [
        Conv("c1", "x", weights.add("k1", (5, 3, 3, 2), 18), weights.add("d1", (5,), 18), same),
        Relu("r1", "c1"),
        Conv("c2", "r1", weights.add("k2", (5, 3, 3, 5), 45), None, same),
        Add("sum", "c2", "r1"),
        MaxPool("m1", "sum", Window((3, 3), (2, 2), (1, 0, 1, 0))),
        Conv(
            "c3",
            "m1",
            weights.add("k3", (6, 2, 2, 5), 20),
            weights.add("d3", (6,), 20),
            Window((2, 2), (1, 1), (0, 0, 0, 0)),
        ),
        Relu("r3", "c3"),
        AveragePool("a1", "r3", Window((2, 3), (1, 1), (0, 0, 0, 0))),
        Reshape("flat", "a1", (6 * 3 * 1,)),
        Linear("out", "flat", weights.add("w", (CLASSES, 18), 18), None, True),
    ]
    return layers, "out"


@cache
def _attention(weights: _Weights) -> tuple[list[Layer], str]:
    """Three heads over 7 places, each with two places before it; a part is joined to what they
    make."""
    layers: list[Layer] = [
        AddWeight("placed", "x", weights.add("positions", (7, 6), 6)),
        Linear("h", "placed", weights.add("w1", (18, 6), 6), weights.add("b1", (18,), 6), True),
        Reshape("split", "h", (7, 9, 2)),
        Transpose("heads", "split", (0, 2, 1, 3)),
        *(Slice(name, "heads", 1, 3 * i, 3 * i + 3) for i, name in enumerate("qkv")),
        MatMul("scores", "q", "k", transpose_right=True),
        Softmax("p", "scores", 46341, 16, 3),
        MatMul("mixed", "p", "v"),
        Pad("later", "mixed", 2, 1, 0),
        Slice("shifted", "later", 2, 0, 7),
        Concat("both", ("mixed", "shifted"), 3),
        Transpose("back", "both", (0, 2, 1, 3)),
        Reshape("flat", "back", (84,)),
        Linear("out", "flat", weights.add("w2", (CLASSES, 84), 84), None, True),
    ]
    return layers, "out"


def _gates(weights: _Weights) -> tuple[list[Layer], str]:
    """A gated linear unit, and the other functions by table one after the other."""
    layers: list[Layer] = [
        Linear("up", "x", weights.add("w1", (11, 6), 2), weights.add("b1", (11,), 2), True),
        Linear("side", "x", weights.add("w2", (11, 6), 2), None, True),
        Activation("silu", "up", "silu"),
        Mul("gated", "silu", "side"),
        *(
            Activation(kind, value, kind)
            for kind, value in (
                ("gelu", "gated"),
                ("gelu_tanh", "gelu"),
                ("tanh", "gelu_tanh"),
                ("sigmoid", "tanh"),
            )
        ),
        Add("sum", "sigmoid", "gelu"),
        Linear("rows", "sum", weights.add("w3", (5, 11), 11), None, True),
        Reshape("flat", "rows", (35,)),
        Linear("out", "flat", weights.add("w4", (CLASSES, 35), 35), None, True),
    ]
    return layers, "out"


def _convnet(weights: _Weights) -> tuple[list[Layer], str]:
    """Two channels 9x9: a dilated convolution in groups and one by channels, with the norms and
    non-linearities that such have."""
    for name, start in (("mean", 0), ("variance", 2**24)):
        weights.params |= {f"{name}_{i}": np.full(4, start, np.int32) for i in (1, 2)}
    same = Window((3, 3), (1, 1), (1, 1, 1, 1))
    layers: list[Layer] = [
        Conv("c1", "x", weights.add("k1", (4, 3, 2, 1), 6), weights.add("d1", (4,), 6),
             Window((5, 3), (1, 2), (2, 1, 2, 0)), 2, (2, 2)),
        BatchNorm("n1", "c1", weights.add("g1", (4,), 1), weights.add("e1", (4,), 1), "mean_1",
                  "variance_1", 1e-5, 6554, True),
        ClipLayer("r1", "n1", 0.0, 1.5),
        Conv("c2", "r1", weights.add("k2", (4, 3, 3, 1), 9), None, same, 4),
        BatchNorm("n2", "c2", None, None, "mean_2", "variance_2", 1e-3, 2**16, False),
        LeakyRelu("r2", "n2", 52429, 19),
        Add("sum", "r2", "r1"),
        GroupNorm("n3", "sum", weights.add("g3", (4,), 1), weights.add("e3", (4,), 1), 1e-5, 2),
        ClipLayer("r3", "n3", -1.0, 1.0),
        AveragePool("a1", "r3", Window((3, 2), (3, 2), (0, 0, 0, 0))),
        Reshape("flat", "a1", (24,)),
        Linear("out", "flat", weights.add("w", (CLASSES, 24), 24), None, True),
    ]  # fmt: skip
    return layers, "out"


def _upnet(weights: _Weights) -> tuple[list[Layer], str]:
    """Two channels 9x9 become larger again, with what nets that draw have between."""
    layers: list[Layer] = [
        Conv("c1", "x", weights.add("k1", (3, 3, 3, 2), 18), weights.add("d1", (3,), 6),
             Window((3, 3), (2, 2), (0, 0, 0, 0))),
        Elu("e1", "c1", 3, 1),
        Shift("s1", "e1", 0.75),
        ConvTranspose("t1", "s1", weights.add("k2", (3, 3, 2, 4), 9), weights.add("d2", (4,), 6),
                      Window((3, 2), (2, 2), (1, 0, 1, 0)), (8, 8)),
        Relu("r1", "t1"),
        AveragePool("a1", "r1", Window((4, 4), (4, 4), (0, 0, 0, 0))),
        Reshape("flat", "a1", (16,)),
        Linear("out", "flat", weights.add("w", (CLASSES, 16), 16), None, True),
    ]  # fmt: skip
    return layers, "out"


@cache
def make_step(
    kind: str,
    loss: str = "cross_entropy",
    *,
    margin: int = 3,
    batch: int = 8,
    commit_every: int = 3,
    decay: int = round(2**16 * 0.1),
    prepare: Affine = CENTRED,
    optimizer: str = "sgd",
) -> Step:
    """``kind`` is "mlp", "wide" (large enough for two threads), "cnn", "attention", "gates",
    "convnet" or "upnet"; exponents calibrated.  ``optimizer`` is "sgd", or with clipping and weight
    decay "adamw" or "lion"."""
    weights = _Weights(seed=3)
    shape: tuple[int, ...] = {
        "mlp": (20,),
        "wide": (150,),
        "cnn": (2, 9, 9),
        "attention": (7, 6),
        "gates": (7, 6),
        "convnet": (2, 9, 9),
        "upnet": (2, 9, 9),
    }[kind]
    if kind == "cnn":
        layers, output = _cnn(weights)
    elif kind == "attention":
        layers, output = _attention(weights)
    elif kind == "gates":
        layers, output = _gates(weights)
    elif kind == "convnet":
        layers, output = _convnet(weights)
    elif kind == "upnet":
        layers, output = _upnet(weights)
    else:
        hidden = (17, 9) if kind == "mlp" else (200, 130)
        layers, output = _mlp(weights, (*shape, *hidden, CLASSES))
    norms = [layer for layer in layers if isinstance(layer, BatchNorm)]
    statistics = frozenset(name for norm in norms for name in (norm.mean, norm.variance))
    model = Model("x", shape, tuple(layers), output, weights.params, statistics=statistics)
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (50, *shape), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, 50, dtype=np.uint8)
    if loss == "mse":
        samples = build_samples(x, np.eye(CLASSES, dtype=np.int16)[labels] * 2**14, y_exponent=14)
    else:
        samples = build_samples(x, labels)
    plan = StepPlan(
        data=samples.spec,
        prepare=prepare,
        loss=loss,
        optimizer=UPDATES.get(optimizer, Momentum(decay, (0, 9), (40960, 20480), 22)),
        seed=11,
        batch=batch,
        commit_every=commit_every,
        clip=Clip(Fraction(batch, 2)) if optimizer in UPDATES else None,
        frozen=statistics,
    )
    state = compute_initial_state(model.params, plan.optimizer, statistics)

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    exponents = calibrate(emit, state, samples, steps=3, margin=margin).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    graph = builder.graph()
    check_graph(graph)
    return Step(graph, samples, state)
