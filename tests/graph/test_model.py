"""Layers and their lowering: ONNX's order outside, NHWC inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtrain.errors import GraphError, ModelError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.evaluate import apply_node
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
    describe,
    emit_forward,
    find_sources,
    require_known_values,
)
from vtrain.ops.layout import Window
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import Ref

Array = npt.NDArray[Any]
UNIT = Window((1, 1), (1, 1), (0, 0, 0, 0))
SAMPLES: Samples = build_samples(np.zeros((1, 1), np.uint8), np.zeros(1, np.uint8))


class Same:
    """Weights at 2 fraction bits; every other value keeps its exponent: nothing is rounded."""

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        return 2 if exponent == 24 else exponent


def forward(
    shape: tuple[int, ...],
    layers: Sequence[Layer],
    x: Array,
    params: dict[str, Array] | None = None,
) -> Array:
    """Output mantissas of ``x``, int16 [n, ...shape], through the layers."""
    params = params or {}
    b = GraphBuilder(Same())
    flat = int(np.prod(shape))
    tokens = {"name": "x", "dtype": "i32", "shape": (len(x), flat), "exponent": 0}
    source = b.emit("state", "x", (), **tokens)  # type: ignore[arg-type]
    refs = {
        name: b.emit("state", name, (), name=name, dtype="i32", shape=value.shape, exponent=24)
        for name, value in params.items()
    }
    operand = b.rescale("x16", source, 0)
    model = Model("image", shape, tuple(layers), layers[-1].name, params)
    out = emit_forward(b, model, operand, refs)
    state = {"x": x.reshape(len(x), flat).astype(np.int32), **params}
    values: list[Array] = []
    for node in b.nodes:
        inputs = [values[ref.node] for ref in node.inputs]
        values.append(apply_node(node, inputs, state, SAMPLES))
    return values[out.node]


def quarters(*values: float) -> Array:
    return np.array(np.array(values) * 2**24, np.int32)


IMAGES = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.int16)


def test_an_image_goes_in_and_out_in_onnx_order() -> None:
    """A 1x1 maximum is the identity: the moves to NHWC and back cancel."""
    out = forward((3, 4, 5), [MaxPool("m", "image", UNIT)], IMAGES)
    assert np.array_equal(out, IMAGES)


@pytest.mark.parametrize("shape", [(1, 4, 5), (20, 1, 1), (5, 4, 1), (1, 1, 20)])
def test_images_that_need_no_move(shape: tuple[int, ...]) -> None:
    x = np.arange(40).reshape(2, *shape).astype(np.int16)
    out = forward(shape, [MaxPool("m", "image", UNIT)], x)
    assert np.array_equal(out, x)


def test_flatten_is_in_onnx_order() -> None:
    layers: list[Layer] = [MaxPool("m", "image", UNIT), Reshape("flat", "m", (60,))]
    out = forward((3, 4, 5), layers, IMAGES)
    assert np.array_equal(out, IMAGES.reshape(2, 60))


def test_reshape_from_image_to_image_is_in_onnx_order() -> None:
    layers: list[Layer] = [Reshape("r", "image", (5, 2, 6)), MaxPool("m", "r", UNIT)]
    assert np.array_equal(forward((3, 4, 5), layers, IMAGES), IMAGES.reshape(2, 5, 2, 6))


def test_linear_in_both_layouts() -> None:
    x = np.array([[1, 2], [3, -4]], np.int16)
    w = quarters(0.25, 0.5, -0.25, 1.0, 0.75, 0.0).reshape(3, 2)
    expected = x.astype(np.int64) @ (w >> 22).T
    stored = forward((2,), [Linear("fc", "image", "w", None, True)], x, {"w": w})
    other = forward((2,), [Linear("fc", "image", "w", None, False)], x, {"w": w.T.copy()})
    assert np.array_equal(stored, expected)
    assert np.array_equal(other, expected)


def test_convolution_by_loops() -> None:
    """Uneven pads and strides; the weight is [out, kh, kw, in]; a bias for each channel."""
    rng = np.random.default_rng(0)
    window = Window((3, 2), (2, 1), (1, 0, 0, 1))
    weight = rng.integers(-3, 4, (2, 3, 2, 3))
    bias = rng.integers(-5, 6, 2)
    params = {"k": (weight << 22).astype(np.int32), "b": (bias << 22).astype(np.int32)}
    out = forward((3, 4, 5), [Conv("c", "image", "k", "b", window)], IMAGES, params)
    padded = np.pad(IMAGES.astype(np.int64), ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert out.shape == (2, 2, 2, 5)
    for n, o, row, column in np.ndindex(out.shape):
        patch = padded[n, :, 2 * row : 2 * row + 3, column : column + 2]
        expected = bias[o] + sum(
            int(patch[c, dy, dx]) * int(weight[o, dy, dx, c])
            for c, dy, dx in np.ndindex(patch.shape)
        )
        assert out[n, o, row, column] == expected


def test_average_pool_rounds_its_factor_to_sixteen_bits() -> None:
    """Powers of two are exact; a ninth is 29127 / 2^18."""
    b = GraphBuilder(Same())
    attrs: dict[str, Any] = {"dtype": "i32", "shape": (1, 36), "exponent": 0}
    x = b.rescale("x16", b.emit("state", "x", (), name="x", **attrs), 0)
    layers = [
        AveragePool(f"a{h}x{w}", "image", Window((h, w), (1, 1), (0, 0, 0, 0)))
        for h, w in [(1, 1), (2, 2), (3, 3), (1, 3), (5, 5), (4, 2), (6, 6)]
    ]
    for layer in layers:
        emit_forward(b, Model("image", (1, 6, 6), (layer,), layer.name, {}), x, {})
    found = {
        node.name: (node.attrs["multiplier"], node.attrs["multiplier_exponent"])
        for node in b.nodes
        if node.op == "rescale" and node.name.startswith("a")
    }
    assert found["a1x1"] == (1, 0)
    assert found["a2x2"] == (1, 2)
    assert found["a4x2"] == (1, 3)
    assert found["a3x3"] == (29127, 18)
    for layer in layers:
        multiplier, exponent = found[layer.name]
        assert isinstance(multiplier, int)
        assert isinstance(exponent, int)
        assert multiplier < 2**16
        assert abs(multiplier / 2**exponent * layer.window.area - 1) < 2.0**-15


def test_add_aligns_exponents_exactly() -> None:
    x = np.array([[3, -5]], np.int16)
    w = quarters(0.25, 0.0, 0.0, 0.25).reshape(2, 2)
    layers: list[Layer] = [
        Linear("fc", "image", "w", None, True),
        Add("sum", "fc", "image"),
    ]
    out = forward((2,), layers, x, {"w": w})
    assert out.tolist() == [[3 + 12, -5 - 20]]  # at 2 fraction bits: x / 4 + x


def test_a_shared_weight_is_one_operand() -> None:
    b = GraphBuilder(Same())
    x = b.rescale(
        "x16", b.emit("state", "x", (), name="x", dtype="i32", shape=(1, 2), exponent=0), 0
    )
    w = b.emit("state", "w", (), name="w", dtype="i32", shape=(2, 2), exponent=24)
    layers = (Linear("a", "image", "w", None, True), Linear("b", "a", "w", None, True))
    model = Model("image", (2,), layers, "b", {"w": np.zeros((2, 2), np.int32)})
    emit_forward(b, model, x, {"w": w})
    assert sum(node.inputs == (w,) for node in b.nodes) == 1


def test_what_does_not_fit_is_refused_by_name() -> None:
    x = np.zeros((1, 4), np.int16)
    with pytest.raises(GraphError) as caught:
        forward((4,), [MaxPool("pool", "image", UNIT)], x)
    assert caught.value.where == "node pool (max_pool)"
    with pytest.raises(GraphError) as caught:
        forward((4,), [Reshape("r", "image", (5,))], x)
    assert "r" in caught.value.where


def test_names_of_values() -> None:
    add = Add("sum", "a", "b")
    assert find_sources(add) == ("a", "b")
    assert find_sources(Relu("r", "a")) == ("a",)
    a, b = Relu("a", "image"), Relu("b", "a")

    def check(layers: Sequence[Layer], output: str) -> None:
        require_known_values(Model("image", (1,), tuple(layers), output, {}))

    check([a, b, add], "sum")
    for layers, output, place in [
        ([b, a], "a", "b"),
        ([a, a], "a", "a"),
        ([Relu("image", "image")], "image", "image"),
        ([a], "c", "c"),
    ]:
        with pytest.raises(ModelError) as caught:
            check(layers, output)
        assert caught.value.where == place


def test_describe_is_for_people() -> None:
    params = {"w": np.zeros((3, 2), np.int32)}
    layers = (Linear("fc", "image", "w", None, True), Relu("r", "fc"))
    model = Model("image", (2,), layers, "r", params)
    assert describe(model) == [("fc", "Linear", (3, 2)), ("r", "Relu", None)]
