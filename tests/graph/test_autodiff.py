"""The backward rules against torch's autodiff, finite differences, and within stated bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.graph.float_model import FloatModel, Floats
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import GraphError
from vtrain.graph.activation import ACTIVATIONS
from vtrain.graph.autodiff import compute_gradients
from vtrain.graph.builder import Block, ExponentPolicy, FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.legality import check_graph
from vtrain.graph.model import (
    Activation,
    Add,
    AddWeight,
    AveragePool,
    BatchNorm,
    Clip,
    Concat,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    FixedNorm,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyRelu,
    Linear,
    MatMul,
    MaxPool,
    Model,
    Mul,
    MulWeight,
    Pad,
    Relu,
    Reshape,
    RMSNorm,
    Scale,
    Shift,
    Slice,
    Transpose,
    find_images,
)
from vtrain.graph.onnx_import.parameters import find_constants
from vtrain.graph.step import (
    Affine,
    Ids,
    Momentum,
    StepPlan,
    compute_initial_state,
    emit_step,
    momentum_state,
)
from vtrain.ops import TABLE
from vtrain.ops.base import Builder
from vtrain.ops.layout import Window
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph

BATCH = 5
DENSE, SAME = Window((3, 3), (1, 1), (0, 0, 0, 0)), Window((3, 3), (1, 1), (1, 1, 1, 1))
LOPSIDED = Window((3, 2), (2, 1), (2, 0, 0, 1))
HALVES = Window((2, 2), (2, 2), (0, 0, 0, 0))
OVERLAPPING = Window((2, 2), (1, 1), (1, 1, 1, 1))


def make_model(
    shape: tuple[int, ...],
    layers: Sequence[Layer],
    params: Mapping[str, tuple[int, ...]],
    draw: Callable[[np.random.Generator, tuple[int, ...]], Floats],
) -> Model:
    rng = np.random.default_rng(len(layers))
    masters = {
        name: np.round(draw(rng, extents) * 2**24).astype(np.int32)
        for name, extents in params.items()
    }
    takes_ids = any(isinstance(layer, Embedding) for layer in layers)
    norms = [layer for layer in layers if isinstance(layer, BatchNorm)]
    statistics = frozenset(name for norm in norms for name in (norm.mean, norm.variance))
    return Model(
        "image",
        shape,
        tuple(layers),
        layers[-1].name,
        masters,
        takes_ids,
        constants=frozenset(find_constants(layers)),
        statistics=statistics,
    )


Parts = tuple[tuple[int, ...], list[Layer], dict[str, tuple[int, ...]]]
"""Input shape, layers, shapes of parameters."""

MODELS: dict[str, Parts] = {
    "linear": ((6,), [Linear("fc", "image", "w", None, True)], {"w": (3, 6)}),
    "linear, stored [in, out]": ((6,), [Linear("fc", "image", "w", "b", False)],
                                 {"w": (6, 3), "b": (3,)}),
    "two linear layers and relu": (
        (6,),
        [Linear("fc1", "image", "w1", "b1", True), Relu("r1", "fc1"),
         Linear("fc2", "r1", "w2", "b2", False)],
        {"w1": (4, 6), "b1": (4,), "w2": (4, 3), "b2": (3,)},
    ),
    "linear at each place": (
        (2, 4),
        [Linear("fc1", "image", "w1", "b1", True), Relu("r1", "fc1"),
         Linear("fc2", "r1", "w2", None, False), Reshape("flat", "fc2", (6,)),
         Linear("out", "flat", "w3", None, True)],
        {"w1": (4, 4), "b1": (4,), "w2": (4, 3), "w3": (3, 6)},
    ),
    "linear at places of four axes, which are no image": (
        (2, 2, 4),
        [Linear("fc1", "image", "w1", None, True), Relu("r1", "fc1"),
         Linear("fc2", "r1", "w2", "b2", True), Reshape("flat", "fc2", (8,)),
         Linear("out", "flat", "w3", None, True)],
        {"w1": (4, 4), "w2": (2, 4), "b2": (2,), "w3": (3, 8)},
    ),
    "embedding, tied with the output": (
        (3,),
        [Embedding("tok", "image", "w"), Linear("fc", "tok", "w2", "b2", True), Relu("r", "fc"),
         Linear("logits", "r", "w", None, True), Reshape("flat", "logits", (12,)),
         Linear("out", "flat", "w3", None, True)],
        {"w": (4, 4), "w2": (4, 4), "b2": (4,), "w3": (3, 12)},
    ),
    "shared weight and bias": (
        (4,),
        [Linear("fc1", "image", "w", "b", True), Relu("r1", "fc1"),
         Linear("fc2", "r1", "w", "b", True)],
        {"w": (4, 4), "b": (4,)},
    ),
    "residual": (
        (4,),
        [Linear("fc1", "image", "w1", None, True), Relu("r1", "fc1"),
         Linear("fc2", "r1", "w2", None, True), Add("sum", "fc2", "r1"), Add("twice", "sum", "sum"),
         Linear("out", "twice", "w3", "b3", True)],
        {"w1": (4, 4), "w2": (4, 4), "w3": (3, 4), "b3": (3,)},
    ),
    "dropout": (
        (6,),
        [Linear("first", "image", "w1", "b1", True), Dropout("masked", "first", 2**15),
         Linear("out", "masked", "w2", "b2", True)],
        {"w1": (9, 6), "b1": (9,), "w2": (3, 9), "b2": (3,)},
    ),
    "gated": (
        (4,),
        [Linear("fc1", "image", "w1", None, True), Linear("fc2", "image", "w2", "b2", True),
         Mul("gate", "fc1", "fc2"), Mul("square", "fc1", "fc1"), Add("sum", "gate", "square"),
         Linear("out", "sum", "w3", "b3", True)],
        {"w1": (4, 4), "w2": (4, 4), "b2": (4,), "w3": (3, 4), "b3": (3,)},
    ),
    "relu squared": (
        (2,),
        [Linear("fc1", "image", "w1", "b1", True), Relu("r1", "fc1"), Mul("square", "r1", "r1"),
         Linear("out", "square", "w2", None, True)],
        {"w1": (3, 2), "b1": (3,), "w2": (3, 3)},
    ),
    "one value added three times": (
        (4,),
        [Linear("fc1", "image", "w1", None, True), Add("two", "fc1", "fc1"),
         Add("three", "two", "fc1"), Linear("out", "three", "w2", None, True)],
        {"w1": (4, 4), "w2": (3, 4)},
    ),
    "a product of a transposed stack": (
        (3, 2),
        [Linear("h", "image", "w1", None, True), Slice("q", "h", 2, 0, 1), Slice("k", "h", 2, 1, 3),
         MatMul("s", "q", "k", transpose_left=True), Reshape("flat", "s", (2,)),
         Linear("out", "flat", "w2", None, True)],
        {"w1": (3, 2), "w2": (3, 2)},
    ),
    "parts of a layer": (
        (4,),
        [Linear("h", "image", "w1", "b1", False), Slice("one", "h", 1, 0, 3),
         Slice("two", "h", 1, 2, 5), Mul("gated", "one", "two"),
         Linear("out", "gated", "w2", None, True)],
        {"w1": (4, 6), "b1": (6,), "w2": (3, 3)},
    ),
    "learned positions": (
        (2, 2),
        [AddWeight("placed", "image", "p"), Reshape("flat", "placed", (4,)),
         Linear("out", "flat", "w", None, True)],
        {"p": (2, 2), "w": (3, 4)},
    ),
    "a token before the others and one row for all": (
        (2, 3),
        [Pad("padded", "image", 1, 1, 0), AddWeight("token", "padded", "t", along=(1, 0, 1)),
         AddWeight("kinds", "token", "k", rows=1), Reshape("flat", "kinds", (9,)),
         Linear("out", "flat", "w", None, True)],
        {"t": (3,), "k": (2, 3), "w": (3, 9)},
    ),
    "features beside the others": (
        (2, 2),
        [Pad("wide", "image", 2, 0, 2), AddWeight("beside", "wide", "s", along=(2, 2, 4)),
         Reshape("flat", "beside", (8,)), Linear("out", "flat", "w", None, True)],
        {"s": (2, 2), "w": (3, 8)},
    ),
    "factors of features, of channels and of all": (
        (2, 2, 2),
        [MulWeight("features", "image", "f"), MulWeight("all", "features", "a"),
         Reshape("rows", "all", (4, 2)), MulWeight("places", "rows", "p", by_channels=True),
         Reshape("flat", "places", (8,)), Linear("out", "flat", "w", None, True)],
        {"f": (4,), "a": (1,), "p": (4,), "w": (3, 8)},
    ),
    "factors of an image's channels": (
        (2, 3, 3),
        [Conv("c", "image", "k", None, HALVES), MulWeight("scaled", "c", "s", by_channels=True),
         Reshape("flat", "scaled", (3,)), Linear("out", "flat", "w", None, True)],
        {"k": (3, 2, 2, 2), "s": (3,), "w": (3, 3)},
    ),
    **{
        f"shared table whose row {row} has no gradient where it is read": (
            (2,),
            [Embedding("rows", "image", "t", without_gradient=row), Reshape("flat", "rows", (4,)),
             Linear("h", "flat", "w", None, True), Linear("out", "h", "t", None, True)],
            {"t": (4, 2), "w": (2, 4)},
        )
        for row in (0, 1, 3)
    },
    "parts of a vector, joined": (
        (2, 4),
        [Linear("fc1", "image", "w1", "b1", True), Slice("left", "fc1", 2, 0, 1),
         Slice("right", "fc1", 2, 1, 4), Add("twice", "left", "left"), Relu("r1", "fc1"),
         Concat("all", ("right", "twice", "r1"), 2), Pad("wide", "all", 1, 1, 2),
         Reshape("flat", "wide", (40,)), Linear("out", "flat", "w2", None, True)],
        {"w1": (4, 4), "b1": (4,), "w2": (3, 40)},
    ),
    "channels and borders of an image": (
        (2, 3, 4),
        [Slice("one", "image", 1, 1, 2), Concat("three", ("image", "one"), 1),
         Pad("padded", "three", 3, 1, 0), Slice("cut", "padded", 2, 0, 2),
         Conv("c1", "cut", "k1", None, Window((2, 2), (1, 1), (0, 0, 0, 0))),
         Slice("half", "c1", 1, 1, 3), Transpose("turned", "half", (0, 2, 3, 1)),
         Reshape("flat", "turned", (8,)), Linear("out", "flat", "w", None, True)],
        {"k1": (3, 2, 2, 3), "w": (3, 8)},
    ),
    "strided and padded convolution": (
        (2, 6, 5),
        [Conv("c1", "image", "k1", "b1", LOPSIDED), Relu("r1", "c1"),
         Conv("c2", "r1", "k2", None, Window((2, 2), (1, 2), (0, 1, 1, 0))),
         Reshape("flat", "c2", (18,)), Linear("out", "flat", "w", "b", True)],
        {"k1": (3, 3, 2, 2), "b1": (3,), "k2": (2, 2, 2, 3), "w": (3, 18), "b": (3,)},
    ),
    "max pooling": (
        (1, 6, 6),
        [Conv("c1", "image", "k1", None, SAME), MaxPool("m1", "c1", HALVES),
         MaxPool("m2", "m1", OVERLAPPING), Reshape("flat", "m2", (32,)),
         Linear("out", "flat", "w", None, True)],
        {"k1": (2, 3, 3, 1), "w": (3, 32)},
    ),
    "convolutions in groups and dilated": (
        (2, 6, 6),
        [Conv("c1", "image", "k1", "b1", Window((3, 4), (1, 2), (1, 0, 0, 1)), 2, (2, 3)),
         Conv("c2", "c1", "k2", None, HALVES, 2), Reshape("flat", "c2", (8,)),
         Linear("out", "flat", "w", None, True)],
        {"k1": (4, 2, 2, 1), "b1": (4,), "k2": (4, 2, 2, 2), "w": (3, 8)},
    ),
    "leaky relu": (
        (6,),
        [Linear("fc1", "image", "w1", "b1", True), LeakyRelu("r1", "fc1", 1, 2),
         Linear("out", "r1", "w2", "b2", True)],
        {"w1": (4, 6), "b1": (4,), "w2": (3, 4), "b2": (3,)},
    ),
    "numbers added": (
        (6,),
        [Linear("fc1", "image", "w1", "b1", True), Shift("up", "fc1", 2.5), Relu("r1", "up"),
         Shift("down", "r1", -0.75), Linear("out", "down", "w2", "b2", True)],
        {"w1": (4, 6), "b1": (4,), "w2": (3, 4), "b2": (3,)},
    ),
    "transposed convolutions": (
        (2, 3, 4),
        [ConvTranspose("c1", "image", "k1", "b1", Window((2, 2), (2, 2), (0, 0, 0, 0)), (6, 8)),
         Relu("r1", "c1"),
         ConvTranspose("c2", "r1", "k2", None, Window((3, 2), (2, 1), (1, 0, 1, 1)), (12, 8)),
         Reshape("flat", "c2", (96,)), Linear("out", "flat", "w", None, True)],
        {"k1": (2, 2, 2, 3), "b1": (3,), "k2": (3, 3, 2, 1), "w": (3, 96)},
    ),
    "clips": (
        (6,),
        [Linear("fc1", "image", "w1", "b1", True), Clip("r1", "fc1", -0.5, 2.25),
         Linear("fc2", "r1", "w2", "b2", True), Clip("r2", "fc2", 0.0, 1.5),
         Linear("fc3", "fc1", "w3", None, True), Clip("r3", "fc3", None, 0.0),
         Clip("r4", "fc3", -0.25, None), Concat("all", ("r2", "r3", "r4"), 1),
         Linear("out", "all", "w4", None, True)],
        {"w1": (4, 6), "b1": (4,), "w2": (4, 4), "b2": (4,), "w3": (4, 4), "w4": (3, 12)},
    ),
    "average pooling over four": (
        (1, 6, 6),
        [Conv("c1", "image", "k1", None, SAME), AveragePool("a1", "c1", HALVES),
         AveragePool("a2", "a1", OVERLAPPING), Reshape("flat", "a2", (32,)),
         Linear("out", "flat", "w", None, True)],
        {"k1": (2, 3, 3, 1), "w": (3, 32)},
    ),
}  # fmt: skip
STACKS: Parts = (
    (2, 2),
    [Linear("h", "image", "w1", None, True), Reshape("hs", "h", (2, 3, 1)),
     Transpose("t", "hs", (0, 2, 1, 3)),
     *(Slice(name, "t", 1, i, i + 1) for i, name in enumerate("qkv")),
     MatMul("s", "q", "k", transpose_right=True), Scale("half", "s", 1, 1),
     MatMul("o", "half", "v"), Reshape("flat", "o", (2,)),
     Linear("out", "flat", "w2", None, True)],
    {"w1": (3, 2), "w2": (3, 2)},
)  # fmt: skip
SWIGLU: Parts = (
    (4,),
    [Linear("fc1", "image", "w1", None, True), Activation("gate", "fc1", "silu"),
     Linear("fc2", "image", "w2", "b2", True), Mul("gated", "gate", "fc2"),
     Linear("out", "gated", "w3", None, True)],
    {"w1": (4, 4), "w2": (4, 4), "b2": (4,), "w3": (3, 4)},
)  # fmt: skip
AVERAGE_OF_NINE: Parts = (
    (2, 7, 7),
    [
        Conv("c1", "image", "k1", "b1", SAME),
        Relu("r1", "c1"),
        AveragePool("a1", "r1", DENSE),
        MaxPool("m1", "a1", OVERLAPPING),
        Conv("c2", "m1", "k2", None, SAME),
        Add("sum", "c2", "m1"),
        AveragePool("a2", "sum", Window((2, 3), (2, 2), (0, 1, 0, 1))),
        Reshape("flat", "a2", (27,)),
        Linear("out", "flat", "w", "b", True),
    ],
    {"k1": (3, 3, 3, 2), "b1": (3,), "k2": (3, 3, 3, 3), "w": (3, 27), "b": (3,)},
)


def activated(kind: str) -> Parts:
    layers: list[Layer] = [
        Linear("fc1", "image", "w1", "b1", True),
        Activation("act", "fc1", kind),
        Linear("fc2", "act", "w2", "b2", True),
    ]
    return (6,), layers, {"w1": (4, 6), "b1": (4,), "w2": (3, 4), "b2": (3,)}


@dataclass(frozen=True)
class Run:
    """One step of a model: its graph, and every value of that step as a real number."""

    model: Model
    graph: StepGraph
    session: NumpySession
    samples: Samples

    def node(self, name: str) -> int:
        return next(i for i, node in enumerate(self.graph.nodes) if node.name == name)

    def named(self, name: str) -> Floats:
        """A value in ONNX order."""
        node = self.node(name)
        value: Floats = self.session.evaluate(node) * 2.0 ** -self.graph.type_of(Ref(node)).exponent
        moved = value.ndim == 4 and name in find_images(self.model)
        return value.transpose(0, 3, 1, 2) if moved else value

    def gradient(self, param: str) -> Floats:
        velocity = self.graph.nodes[self.node(f"{momentum_state(param)}/next")]
        ref = velocity.inputs[1]
        value: Floats = self.session.evaluate(ref.node) * 2.0 ** -self.graph.type_of(ref).exponent
        return value

    def operands(self) -> dict[str, Floats]:
        """Parameters as they enter the products: a bias, as it is, a weight, rounded to int16."""
        values: dict[str, Floats] = {}
        for name, master in self.model.params.items():
            values[name] = master.astype(np.float64) * 2.0**-24
            for index, node in enumerate(self.graph.nodes):
                if node.name == name:
                    mantissas = self.session.evaluate(index).astype(np.float64)
                    values[name] = mantissas * 2.0 ** -node.outputs[0].exponent
        return values

    def pinned(self) -> dict[str, Floats]:
        """Values of the layers that have one: not of a layer that is emitted in parts."""
        made = {node.name for node in self.graph.nodes}
        return {
            layer.name: self.named(layer.name) for layer in self.model.layers if layer.name in made
        }

    def masks(self) -> dict[str, Floats]:
        """What each layer of dropout multiplies by."""
        dropped = [layer.name for layer in self.model.layers if isinstance(layer, Dropout)]
        return {name: self.named(f"{name}/mask") for name in dropped}

    def seed(self) -> Floats:
        """The gradient with which the backward pass begins."""
        return self.named("loss/grad")


def make_plan(samples: Samples, loss: str) -> StepPlan:
    return StepPlan(
        data=samples.spec,
        prepare=Affine(1, 0, 0, exponent=0),
        loss=loss,
        optimizer=Momentum(decay=6554, starts=(0,), rates=(40000,), exponent=26),
        seed=3,
        batch=BATCH,
        commit_every=1,
    )


def make_run(model: Model, samples: Samples, plan: StepPlan, policy: ExponentPolicy) -> Run:
    builder = GraphBuilder(policy)
    emit_step(builder, plan, model)
    graph = builder.graph()
    check_graph(graph)
    session = NumpySession(graph, samples)
    session.load_state(compute_initial_state(model.params, frozen=model.untrained))
    return Run(model, graph, session, samples)


# --- where nothing is rounded, the gradient is the derivative, to the last bit


MASK_BITS = 13


class Lossless:
    """Weights are multiples of 1/4; every other site keeps the exponent that it has."""

    def __init__(self, params: Mapping[str, object]) -> None:
        self._params = params

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        if site in self._params:
            return 2
        # A mask of factor 2 has 13 fraction bits, which are 0.
        return exponent - MASK_BITS if site == "masked" or site.startswith("first/") else exponent


def make_lossless(name: str, seed: int = 0, *, fine: bool = False) -> Run:
    shape, layers, params = MODELS[name]

    def draw(rng: np.random.Generator, extents: tuple[int, ...]) -> Floats:
        return rng.choice(np.array([-0.25, 0.0, 0.25, 0.5]), extents)

    model = make_model(shape, layers, params, draw)
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, (9, *shape), dtype=np.uint8)
    classes = 4 if name.startswith("shared") else 3
    samples = build_samples(x, rng.integers(-2, 3, (9, classes)).astype(np.int16))
    plan = make_plan(samples, "mse")
    plan = replace(plan, prepare=Ids()) if model.takes_ids else plan
    plan = replace(plan, fine_gradients=fine)
    return make_run(model, samples, plan, Lossless(params))


@pytest.mark.parametrize("name", MODELS)
def test_exact_gradients_where_nothing_is_rounded(name: str) -> None:
    run = make_lossless(name)
    twin = FloatModel(run.model, run.operands(), {}, masks=run.masks())
    gradients = twin.gradients(run.named("image"), run.seed())
    for layer in run.model.layers:
        assert np.array_equal(twin.values[layer.name].detach(), run.named(layer.name)), layer.name
    assert set(gradients) == set(run.model.params)
    for param, gradient in gradients.items():
        assert np.array_equal(run.gradient(param), gradient), param
        assert np.any(gradient), "a gradient of zeros says nothing"
    run.session.step()
    assert run.session.saturation() == {}


@pytest.mark.parametrize(
    "name",
    ["a product of a transposed stack", "parts of a layer", "parts of a vector, joined", "residual",
     "one value added three times", "shared weight and bias", "embedding, tied with the output"],
)  # fmt: skip
def test_fine_gradients_are_exact_too(name: str) -> None:
    """No contribution to a gradient is rounded, and a layer that is cut up is one for each part."""
    run = make_lossless(name, fine=True)
    twin = FloatModel(run.model, run.operands(), {}, masks=run.masks())
    for param, gradient in twin.gradients(run.named("image"), run.seed()).items():
        assert np.array_equal(run.gradient(param), gradient), param
        assert np.any(gradient)
    names = [node.name for node in run.graph.nodes]
    assert not any("grad_part" in name for name in names)
    cut = name in ("a product of a transposed stack", "parts of a layer")
    (first, *_) = (layer.name for layer in run.model.layers if isinstance(layer, Linear))
    assert (f"{first}/acc" in names) is not cut


MLP, POOLED = "two linear layers and relu", "average pooling over four"


@pytest.mark.parametrize(
    ("name", "op"),
    [(MLP, "matmul"), (MLP, "relu"), (MLP, "add_bias"), (POOLED, "rescale"), (POOLED, "sum_pool")],
)
def test_a_wrong_backward_rule_is_seen(name: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient that a rule hands on, one exponent off."""
    rule = TABLE[op].backward

    assert callable(rule)

    def wrong(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        attrs: Attrs = {"dtype": "i64", "multiplier": 1, "multiplier_exponent": 1, "shift": 0}
        parts = rule(b, node, out, grad)
        return [part and b.emit("rescale", "wrong", (part,), **attrs) for part in parts]

    broken = {**TABLE, op: replace(TABLE[op], backward=wrong)}
    monkeypatch.setattr("vtrain.graph.autodiff.TABLE", broken)
    with pytest.raises(AssertionError):
        test_exact_gradients_where_nothing_is_rounded(name)


@pytest.mark.parametrize("name", ["two linear layers and relu", "max pooling", "residual"])
def test_gradients_against_finite_differences(name: str) -> None:
    """sum(seed * output) is piecewise linear in one parameter: a difference of 2^-20 is exact."""
    run = make_lossless(name, seed=1)
    x, seed, params = run.named("image"), run.seed(), run.operands()
    step, compared = 2.0**-20, 0

    def objective(param: str, at: tuple[int, ...], by: float) -> float:
        moved = params[param].copy()
        moved[at] += by
        out = FloatModel(run.model, {**params, param: moved}, {}).forward(x)
        return float((out.detach().numpy() * seed).sum())

    for param, values in params.items():
        for at in list(np.ndindex(values.shape))[:16]:
            up, here, down = (objective(param, at, by) for by in (step, 0.0, -step))
            if up - here != here - down:
                continue  # a kink: relu at zero, or two equal maxima
            compared += 1
            assert run.gradient(param)[at] == (up - down) / (2 * step), f"{param} {at}"
    assert compared > 10


# --- calibrated exponents: within the error that the exponents imply


def make_calibrated(
    parts: Parts,
    loss: str = "cross_entropy",
    margin: int = 3,
    *,
    fine: bool = False,
    wide: bool = False,
) -> Run:
    shape, layers, params = parts

    def draw(rng: np.random.Generator, extents: tuple[int, ...]) -> Floats:
        return rng.uniform(-1, 1, extents) * math.sqrt(3 / np.prod(extents[1:] or (1,)))

    model = make_model(shape, layers, params, draw)
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (40, *shape), dtype=np.uint8)
    y = rng.integers(0, 3, 40, dtype=np.uint8)
    samples = build_samples(x, y)
    if loss == "mse":
        samples = build_samples(x, np.eye(3, dtype=np.int16)[y] * 2**13, y_exponent=13)
    prepare = Affine(257, -(2**15), 2, exponent=13)
    plan = replace(
        make_plan(samples, loss),
        prepare=prepare,
        fine_gradients=fine,
        wide_sums=wide,
        frozen=model.untrained,
    )
    exponents = calibrate(
        lambda b: emit_step(b, plan, model),
        compute_initial_state(model.params, frozen=model.untrained),
        samples,
        steps=3,
        margin=margin,
    ).exponents
    return make_run(model, samples, plan, FixedExponents(exponents))


def find_gradient_errors(run: Run) -> dict[str, float]:
    """For each layer, half a unit of every place where its output's gradient is rounded.

    A gradient through round(2^e / 9) / 2^e is not that through 1 / 9; that is added too.
    """
    errors: dict[str, float] = {}
    for layer in run.model.layers:
        sites = [
            node.outputs[0].exponent
            for node in run.graph.nodes
            if node.op == "rescale"
            and node.name.startswith(f"{layer.name}/")
            and "/grad" in node.name
            and node.outputs[0].dtype == "i16"
        ]
        errors[layer.name] = sum(2.0 ** -(exponent + 1) for exponent in sites)
    return errors


STEPS = {
    "perceptron": (MODELS["two linear layers and relu"], "cross_entropy"),
    "perceptron, mse": (MODELS["two linear layers and relu"], "mse"),
    "shared": (MODELS["residual"], "cross_entropy"),
    "convolution": (MODELS["strided and padded convolution"], "cross_entropy"),
    "parts": (MODELS["parts of a vector, joined"], "cross_entropy"),
    "positions": (MODELS["learned positions"], "cross_entropy"),
    "stacks": (STACKS, "cross_entropy"),
    "transposed stack": (MODELS["a product of a transposed stack"], "cross_entropy"),
    "pooling": (AVERAGE_OF_NINE, "cross_entropy"),
    "relu squared": (MODELS["relu squared"], "cross_entropy"),
    "swiglu": (SWIGLU, "cross_entropy"),
    **{kind: (activated(kind), "cross_entropy") for kind in ACTIVATIONS},
}
GATE_ERROR, SLOPE_ERROR = 14 * 2.0**-14, 26 * 2.0**-14
"""More than the worst of all tables: docs/format.md has them, and tests/spec/test_curves.py."""
RELATIVE_SLACK = 2.0**-14
"""round(2^18 / 9) / 2^18 is 1/9 within 2^-16 of it, twice on the way; binary64 is far finer."""


@pytest.mark.parametrize("name", STEPS)
def test_whole_step_within_the_rounding_error(name: str) -> None:
    parts, loss = STEPS[name]
    run = make_calibrated(parts, loss)
    x, seed = run.named("image"), run.seed()
    twin = FloatModel(run.model, run.operands(), run.pinned())
    gradients = twin.gradients(x, seed)
    check_forward(run, twin)

    errors = find_gradient_errors(run)
    bound = FloatModel(
        run.model,
        run.operands(),
        run.pinned(),
        absolute=True,
        errors=errors,
        slope_error=SLOPE_ERROR,
    )
    bounds = bound.gradients(x, np.zeros_like(seed))
    sizes = FloatModel(run.model, run.operands(), run.pinned(), absolute=True)
    largest = sizes.gradients(x, np.abs(seed))
    steep = FloatModel(
        run.model, run.operands(), run.pinned(), absolute=True, slope_error=SLOPE_ERROR
    )
    steepest = steep.gradients(x, np.abs(seed))
    for param, gradient in gradients.items():
        # Products of |slope| + error, less those of |slope|: all that wrong slopes can do.
        by_slopes = steepest[param] - largest[param]
        allowed = bounds[param] + by_slopes + largest[param] * RELATIVE_SLACK
        off = np.abs(run.gradient(param) - gradient)
        assert np.all(off <= allowed), f"{param}: {np.max(off / allowed)} of the bound"
        # The bound means something: worst case as it is, it is far below the gradient itself.
        assert np.linalg.norm(allowed) < 0.1 * np.linalg.norm(gradient), param
    run.session.step()
    assert run.session.saturation() == {}


def check_forward(run: Run, twin: FloatModel) -> None:
    """A layer rounds its output once, by half a unit, and a bias by half a unit of the product."""
    for layer in run.model.layers:
        exponent = run.graph.nodes[run.node(layer.name)].outputs[0].exponent
        allowed = 2.0 ** -(exponent + 1)
        if isinstance(layer, Linear | Conv) and layer.bias is not None:
            product = run.graph.nodes[run.node(f"{layer.name}/acc")].outputs[0].exponent
            allowed += 2.0 ** -(product + 1)
        if isinstance(layer, AveragePool):
            allowed += float(np.abs(run.named(layer.input)).max()) * 2.0**-16
        if isinstance(layer, Activation):
            size = np.abs(run.named(layer.input)).max() if ACTIVATIONS[layer.kind].gated else 1.0
            allowed += GATE_ERROR * float(size)
        if isinstance(layer, AddWeight):
            allowed += 2.0 ** -(
                run.graph.nodes[run.node(f"{layer.name}/wide")].outputs[0].exponent + 1
            )
        if isinstance(layer, Relu | MaxPool | Reshape | Transpose | Slice | Pad):
            allowed = 0.0
        assert twin.rounding[layer.name] <= allowed * (1 + 1e-9), layer.name


# --- norms, whose every value is rounded

NORMED: dict[str, Parts] = {
    "layer norm": (
        (7,),
        [Linear("fc1", "image", "w1", "b1", True), LayerNorm("n", "fc1", "g", "c", 1e-5),
         Linear("out", "n", "w2", None, True)],
        {"w1": (12, 7), "b1": (12,), "g": (12,), "c": (12,), "w2": (3, 12)},
    ),
    "rms norm": (
        (7,),
        [Linear("fc1", "image", "w1", "b1", True), RMSNorm("n", "fc1", "g", 1e-6),
         Linear("out", "n", "w2", None, True)],
        {"w1": (16, 7), "b1": (16,), "g": (16,), "w2": (3, 16)},
    ),
    "norms without parameters, at places, with a residual": (
        (3, 6),
        [Linear("fc1", "image", "w1", "b1", True), RMSNorm("n1", "fc1", None, 1e-3),
         Linear("fc2", "n1", "w2", None, True), Add("sum", "fc2", "fc1"),
         LayerNorm("n2", "sum", None, None, 0.1), Reshape("flat", "n2", (30,)),
         LayerNorm("n3", "flat", None, "c", 1e-5), Linear("out", "n3", "w3", None, True)],
        {"w1": (10, 6), "b1": (10,), "w2": (10, 10), "c": (30,), "w3": (3, 30)},
    ),
    "one weight in two norms": (
        (5,),
        [RMSNorm("n1", "image", "g", 0.0), Linear("fc1", "n1", "w1", None, True),
         RMSNorm("n2", "fc1", "g", 1e-5), Linear("out", "n2", "w2", None, True)],
        {"g": (5,), "w1": (5, 5), "w2": (3, 5)},
    ),
    "group norms, over an image and over places": (
        (2, 4, 6),
        [Conv("c1", "image", "k", None, SAME), GroupNorm("n", "c1", "g", "c", 1e-5, 2),
         Reshape("places", "n", (6, 16)), GroupNorm("n2", "places", "g2", None, 0.1, 3),
         Reshape("flat", "n2", (96,)), Linear("out", "flat", "w", None, True)],
        {"k": (4, 3, 3, 2), "g": (4,), "c": (4,), "g2": (6,), "w": (3, 96)},
    ),
    "batch norms, over an image, places and a vector": (
        (2, 4, 6),
        [Conv("c1", "image", "k", None, SAME),
         BatchNorm("n", "c1", "g", "c", "m1", "v1", 1e-5, 6554, True),
         Relu("r", "n"), Reshape("places", "r", (6, 16)),
         BatchNorm("n2", "places", "g2", None, "m2", "v2", 1e-3, 6554, True),
         Reshape("flat", "n2", (96,)), Linear("fc", "flat", "w1", None, True),
         BatchNorm("n3", "fc", None, None, "m3", "v3", 1e-5, 6554, True),
         Linear("out", "n3", "w", None, True)],
        {"k": (4, 3, 3, 2), "g": (4,), "c": (4,), "m1": (4,), "v1": (4,), "g2": (6,), "m2": (6,),
         "v2": (6,), "w1": (5, 96), "m3": (5,), "v3": (5,), "w": (3, 5)},
    ),
    "norms of statistics that stay, over an image and places": (
        (2, 4, 6),
        [Conv("c1", "image", "k", None, SAME),
         FixedNorm("n", "c1", "g", "c", "p1", "o1", "r1", 0),
         Relu("r", "n"), Reshape("places", "r", (6, 16)),
         FixedNorm("n2", "places", None, "c2", "p2", "o2", "r2", 2),
         Reshape("flat", "n2", (96,)), Linear("out", "flat", "w", None, True)],
        {"k": (4, 3, 3, 2), "g": (4,), "c": (4,), "c2": (6,), "w": (3, 96),
         **dict.fromkeys(("p1", "o1", "r1"), (4,)),
         **dict.fromkeys(("p2", "o2", "r2"), (6,))},
    ),
    "an image and its rows": (
        (2, 4, 6),
        [LayerNorm("n", "image", "g", "c", 1e-5), Conv("c1", "n", "k", None, SAME),
         RMSNorm("n2", "c1", "g2", 1e-5), Reshape("flat", "n2", (48,)),
         Linear("out", "flat", "w", None, True)],
        {"g": (6,), "c": (6,), "k": (2, 3, 3, 2), "g2": (6,), "w": (3, 48)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMED)
def test_gradients_of_norms_are_those_of_torch(name: str) -> None:
    """int16 has a part in 2^12 to 2^15 at each place; a wrong term would be a part in ten."""
    run = make_calibrated(NORMED[name], margin=1)
    twin = FloatModel(run.model, run.operands(), run.pinned())
    gradients = twin.gradients(run.named("image"), run.seed())
    for layer in run.model.layers:
        size = float(np.abs(run.named(layer.name)).max())
        assert twin.rounding[layer.name] < 2.0**-11 * size, layer.name
    assert set(gradients) >= {*run.model.trained}
    for param in run.model.trained:
        gradient = gradients[param]
        off = np.linalg.norm(run.gradient(param) - gradient) / np.linalg.norm(gradient)
        assert off < 2.0**-9, f"{param}: {off}"
    run.session.step()
    assert run.session.saturation() == {}


RESIDUALS: Parts = (
    (3, 6),
    [Linear("e", "image", "w1", None, True), RMSNorm("n0", "e", "g", 1e-5),
     Linear("a", "n0", "w2", None, True), Add("s1", "e", "a"),
     RMSNorm("n1", "s1", "g", 1e-5), Linear("b", "n1", "w3", None, True), Add("s2", "s1", "b"),
     RMSNorm("n2", "s2", None, 1e-5), Linear("c", "n2", "w2", None, True), Add("s3", "s2", "c"),
     RMSNorm("n3", "s3", None, 1e-5), Add("s4", "n3", "s3"), Reshape("flat", "s4", (24,)),
     Linear("out", "flat", "w4", None, True)],
    {"w1": (8, 6), "g": (8,), "w2": (8, 8), "w3": (8, 8), "w4": (3, 24)},
)  # fmt: skip


def test_sums_that_norms_read_are_exact_where_they_are_wide() -> None:
    """Those of a residual stream; what a layer reads that takes int16 is rounded as ever."""
    plain, run = (make_calibrated(RESIDUALS, margin=1, wide=wide) for wide in (False, True))
    sums = {layer.name: layer for layer in run.model.layers if isinstance(layer, Add)}
    lost = []
    for name, layer in sums.items():
        found = run.named(layer.left) + run.named(layer.right)
        rounded = plain.named(layer.left) + plain.named(layer.right)
        lost.append(not np.array_equal(plain.named(name), rounded))
        assert np.array_equal(run.named(name), found) is (name != "s4")
        dtypes = [each.graph.nodes[each.node(name)].outputs[0].dtype for each in (plain, run)]
        assert dtypes == ["i16", "i32" if name != "s4" else "i16"], name
    assert sum(lost) > 1, "the test is of sums that int16 has not the bits for"

    gradients = FloatModel(run.model, run.operands(), run.pinned()).gradients(
        run.named("image"), run.seed()
    )
    for param, gradient in gradients.items():
        off = np.linalg.norm(run.gradient(param) - gradient) / np.linalg.norm(gradient)
        assert off < 2.0**-9, f"{param}: {off}"
    engine = CpuSession(run.graph, run.samples)
    engine.load_state(run.session.read_state())
    assert engine.step() == run.session.step()


# --- loss and its gradient


def test_softmax_and_loss_against_torch() -> None:
    """Bounds: d, the error of a base-2 logit, is 2^-11 of rounding and 1.1e-5 of log2(e)'s."""
    run = make_calibrated(MODELS["two linear layers and relu"])
    logits = torch.tensor(run.named("fc2"), requires_grad=True)
    labels = torch.tensor(run.named("y").astype(np.int64))
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    classes = logits.shape[1]
    d = 2.0**-11 + float(logits.detach().abs().max()) * math.log2(math.e) * 1.1e-5
    terms = classes * 2.0**-16  # each 2^-d is off by a unit of 2^-16 at most, their sum is >= 1
    allowed = (2 ** (4 * d) - 1) + terms + 2.0**-16 + 2.0**-15
    assert np.abs(run.seed() - logits.grad.numpy()).max() <= allowed
    row = 4 * d + terms / math.log(2) + 2.0**-11 / math.log(2) + 2.0**-17
    bits = float(run.named("loss"))
    assert abs(bits * math.log(2) - loss.item()) <= row * BATCH * math.log(2)
    assert abs(bits * math.log(2) - loss.item()) < 0.005 * loss.item()


def test_squared_error_against_torch() -> None:
    run = make_calibrated(MODELS["two linear layers and relu"], "mse")
    outputs = torch.tensor(run.named("fc2"), requires_grad=True)
    targets = torch.tensor(run.named("y"))
    loss = torch.nn.functional.mse_loss(outputs, targets, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    unit = 2.0 ** -run.graph.nodes[run.node("loss/grad")].outputs[0].exponent
    assert np.abs(2 * run.seed() - outputs.grad.numpy()).max() <= unit  # the 2 is in the rate
    allowed = float((outputs - targets).detach().abs().sum()) * unit + 2.0**-17
    assert abs(float(run.named("loss")) - loss.item()) <= allowed


# --- the optimizer


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_momentum_against_torch(momentum: float) -> None:
    """Twenty updates by the same gradients; the bound is the sum of what each may round off."""
    rng = np.random.default_rng(8)
    exponent, rate, rate_exponent = 20, 50000, 22
    decay = round(2**16 * (1 - momentum))
    weight = rng.integers(-(2**24), 2**24, 50).astype(np.int32)
    velocity = np.zeros(50, np.int32)
    twin = torch.nn.Parameter(torch.tensor(weight * 2.0**-24))
    optimizer = torch.optim.SGD([twin], lr=rate * 2.0**-rate_exponent, momentum=momentum)
    off_velocity = off_weight = largest = 0.0
    for _ in range(20):
        grad = rng.integers(-(2**20), 2**20, 50)
        twin.grad = torch.tensor(grad * 2.0**-exponent)
        optimizer.step()
        attrs = {"decay": decay, "shift": exponent - 16}
        velocity = TABLE["momentum"].law(attrs, [velocity, grad])
        step = {"shift": 16 + rate_exponent - 24}
        rates = np.asarray(rate, np.int64)
        weight = TABLE["sgd_update"].law(step, [weight, velocity, rates])
        largest = max(largest, float(np.abs(velocity).max()) * 2.0**-16)
        # mu times the error before, two roundings, and what 1 - mu is off by in 16 bits
        off_velocity = momentum * off_velocity + 2 * 2.0**-17 + largest * 2.0**-17
        off_weight += off_velocity * rate * 2.0**-rate_exponent + 2.0**-25
    off = np.abs(weight * 2.0**-24 - twin.detach().numpy()).max()
    assert 0 < off <= off_weight
    assert off_weight < 1e-3


# --- refusals


def test_what_cannot_be_differentiated_is_named() -> None:
    class AnyExponent:
        def choose(self, site: str, source: Ref, exponent: int) -> int:
            return 8

    b = GraphBuilder(AnyExponent())
    state: Attrs = {"dtype": "i32", "shape": (2, 2), "exponent": 24}
    a, other = (b.emit("state", name, (), name=name, **state) for name in ("a", "other"))
    left, right = b.as_operand(a, "left"), b.as_operand(other, "right")
    transposed = b.emit("matmul", "product", (left, right), transpose_a=1, transpose_b=0)
    with pytest.raises(GraphError, match="transposed left operand"):
        compute_gradients(b, transposed, right, [a])
    plain = b.emit("matmul", "plain", (left, left), transpose_a=0, transpose_b=0)
    with pytest.raises(GraphError, match="does not depend") as caught:
        compute_gradients(b, plain, right, [other])
    assert caught.value.where == "other"
    digest = b.emit("tensor_digest", "digest", (left,))
    with pytest.raises(GraphError, match="tensor_digest has no backward rule") as caught:
        compute_gradients(b, digest, digest, [a])
    assert caught.value.where == "digest"


def test_a_block_is_differentiated_as_a_whole() -> None:
    """Two nodes as one block: its rule is asked once, and theirs are not."""
    builder = GraphBuilder(FixedExponents({}))
    master = builder.emit("state", "w", (), name="w", dtype="i32", shape=(2, 3), exponent=24)
    x = builder.rescale("x", master, 14)
    inner = builder.emit("relu", "inner", (x,))
    outer = builder.emit("relu", "outer", (inner,))
    seed = builder.emit("relu_grad", "seed", (outer, outer))
    asked: list[tuple[Ref, Ref]] = []

    def backward(b: Builder, out: Ref, gradient: Ref) -> Sequence[Ref | None]:
        asked.append((out, gradient))
        return (b.emit("add", "whole", (gradient, gradient), shift_a=0, shift_b=0),)

    builder.blocks[outer] = Block((x,), backward)
    gradients = compute_gradients(builder, outer, seed, [x])
    assert asked == [(outer, seed)]
    assert builder.nodes[gradients[x].node].name == "whole"
    assert not [node for node in builder.nodes if "grad_in" in node.name]
