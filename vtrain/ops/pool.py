"""Pooling over the windows of an NHWC image.

Average pooling is a sum and a change of exponent (area a power of two) or a rescale by
round(2^15 / area); both are ``rescale`` nodes, so that only sums and maxima live here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    Operator,
    attr_ints,
    integer_type,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.ops.layout import Window
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

_BELOW_INT16 = -(2**15)
"""Padding of max pooling: below every saturated operand, so that it is never the maximum."""


def _max_pool_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(Window.from_attrs(attrs).patches(inputs[0], _BELOW_INT16).max(axis=3))


def _max_pool_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """[n, h, w, c] int16 -> [n, out_h, out_w, c]; padding never wins."""
    require_keys(attrs, *Window.KEYS)
    require_inputs(inputs, "i16")
    x = inputs[0]
    shape = Window.from_attrs(attrs).pooled_shape(x.shape)
    return integer_type("i16", shape, x.exponent, x.lo, x.hi)


def _max_pool_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    g = b.as_operand(grad, f"{node.name}/grad")
    inputs = (g, node.inputs[0])
    return (b.emit("max_pool_grad", f"{node.name}/grad_in", inputs, **node.attrs),)


def _max_pool_grad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    grad, x = inputs
    window = Window.from_attrs(attrs)
    patches = window.patches(x, _BELOW_INT16)
    # argmax gives the first maximum: ties go to the earliest element in row-major window order.
    winner = patches.argmax(axis=3)[:, :, :, None, :]
    index = np.arange(window.area)[:, None]
    routed = np.where(index == winner, grad[:, :, :, None, :], 0)
    return window.scatter_add(routed, x.shape[1], x.shape[2])


def _max_pool_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Each window's gradient goes to its first maximum; overlapping windows add, in int64."""
    require_keys(attrs, *Window.KEYS)
    require_inputs(inputs, "i16", "i16")
    grad, x = inputs
    window = Window.from_attrs(attrs)
    require(grad.shape == window.pooled_shape(x.shape), f"the gradient has shape {grad.shape}")
    times = window.overlap()
    lo, hi = min(grad.lo * times, 0), max(grad.hi * times, 0)
    return integer_type("i64", x.shape, grad.exponent, lo, hi, "the sum")


def _sum_pool_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(Window.from_attrs(attrs).patches(inputs[0]).sum(axis=3, dtype=np.int64))


def _sum_pool_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """[n, h, w, c] int16 -> int64 sums over each window [n, out_h, out_w, c], zero padding."""
    require_keys(attrs, *Window.KEYS)
    require_inputs(inputs, "i16")
    x = inputs[0]
    window = Window.from_attrs(attrs)
    lo, hi = min(x.lo * window.area, 0), max(x.hi * window.area, 0)
    return integer_type("i64", window.pooled_shape(x.shape), x.exponent, lo, hi, "the sum")


def _sum_pool_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    shape = b.type_of(node.inputs[0]).shape
    return (b.emit("sum_pool_grad", f"{node.name}/grad_in", (grad,), shape=shape, **node.attrs),)


def _sum_pool_grad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    window = Window.from_attrs(attrs)
    _, height, width, _ = attr_ints(attrs, "shape", 4)
    spread = np.repeat(inputs[0][:, :, :, None, :], window.area, axis=3)
    return window.scatter_add(spread, height, width)


def _sum_pool_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Adjoint of sum_pool: every pixel gets the sum of its windows' gradients, in int64."""
    require_keys(attrs, "shape", *Window.KEYS)
    require_inputs(inputs, "int")
    grad = inputs[0]
    window = Window.from_attrs(attrs)
    shape = attr_ints(attrs, "shape", 4)
    require(grad.shape == window.pooled_shape(shape), f"the gradient has shape {grad.shape}")
    times = window.overlap()
    lo, hi = min(grad.lo * times, 0), max(grad.hi * times, 0)
    return integer_type("i64", shape, grad.exponent, lo, hi, "the sum")


OPERATORS = table(
    Operator("max_pool", _max_pool_law, _max_pool_infer, _max_pool_backward),
    Operator("max_pool_grad", _max_pool_grad_law, _max_pool_grad_infer),
    Operator("sum_pool", _sum_pool_law, _sum_pool_infer, _sum_pool_backward),
    Operator("sum_pool_grad", _sum_pool_grad_law, _sum_pool_grad_infer),
)
