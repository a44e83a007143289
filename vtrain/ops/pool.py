"""Pooling over the windows of an NHWC image.

Average pooling is a sum and a change of exponent (area a power of two) or a rescale by
round(2^15 / area); both are ``rescale`` nodes, so that only sums and maxima live here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    LEAST,
    Array,
    Builder,
    LeafRule,
    Operator,
    Site,
    State,
    Stream,
    Types,
    adding,
    attr_ints,
    integer_type,
    require,
    require_inputs,
    require_keys,
    table,
    taking_maximum,
    to_index,
    to_place,
)
from vtrain.ops.layout import Window, count_offsets, scattered
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

BELOW_INT16 = -(2**15)
"""Padding of max pooling: below every saturated operand, so that it is never the maximum."""


def _max_pool_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(Window.from_attrs(attrs).patches(inputs[0], BELOW_INT16).max(axis=3))


def _pool_term(site: Site, e: int, offset: int, padding: int) -> int:
    image = site.types[0].shape
    place = to_place(e, site.out.shape)
    pixel = Window.from_attrs(site.attrs).find_pixel(image, place, offset)
    return padding if pixel is None else site.read(0, pixel)


def _max_pool_term(site: Site, e: int, offset: int) -> int:
    return _pool_term(site, e, offset, BELOW_INT16)


_MAX_POOL_LEAF = LeafRule(taking_maximum(_max_pool_term), count_offsets, scattered, LEAST)


def _max_pool_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The maximum of each window, channel by channel.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: x i16 [n, h, w, channels].
    Output: i16 [n, oh, ow, channels], the exponent of x.
    Range: x.lo to x.hi.
    Outside: padding counts as -2^15.  It is below every value that saturation leaves; a pixel that
        is -2^15 itself (raw samples may be) ties with it, and the maximum is -2^15 either way.
    """
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
    patches = window.patches(x, BELOW_INT16)
    # argmax gives the first maximum: ties go to the earliest element in row-major window order.
    winner = patches.argmax(axis=3)[:, :, :, None, :]
    index = np.arange(window.area)[:, None]
    routed = np.where(index == winner, grad[:, :, :, None, :], 0)
    return window.scatter_add(routed, x.shape[1], x.shape[2])


def _max_pool_grad_step(site: Site, e: int, term: int, state: State) -> State:
    """Term o * area + q: does pixel q of the window that has ours at offset o beat ours?

    The state is (sum of the gradients won, whether ours is unbeaten in the window at hand).
    """
    window, image = Window.from_attrs(site.attrs), site.types[1].shape
    offset, other = divmod(term, window.area)
    place = window.find_window(image, e, offset)
    if place is None:
        return state
    total, alive = state if other else (state[0], 1)
    if other != offset:
        ours, pixel = site.read(1, e), window.find_pixel(image, place, other)
        theirs = BELOW_INT16 if pixel is None else site.read(1, pixel)
        # Of equals the first wins.
        if theirs > ours or (theirs == ours and other < offset):
            alive = 0
    if other == window.area - 1 and alive:
        total += site.read(0, to_index(place, site.types[0].shape))
    return total, alive


def _max_pool_grad_whole(attrs: Attrs, types: Types) -> int:
    """All pixels that share a window with ours, and all gradients."""
    window = Window.from_attrs(attrs)
    height, width = window.kernel
    return (2 * height - 1) * (2 * width - 1) + window.area


_MAX_POOL_GRAD_LEAF = LeafRule(
    _max_pool_grad_step,
    terms=lambda attrs, types: Window.from_attrs(attrs).area ** 2,
    streams=lambda attrs, types: [Stream(0, None), Stream(1, None), Stream(1, 0)],
    init=(0, 1),
    whole=_max_pool_grad_whole,
)


def _max_pool_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Each window's gradient goes to its first maximum; overlapping windows add up.

    The first is the one with the least offset, counted row-major through the kernel.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: grad i16 [n, oh, ow, channels]; x i16 [n, h, w, channels], the input of the
        ``max_pool``.
    Output: i64 [n, h, w, channels], the exponent of grad.
    Range: min(m * grad.lo, 0) to max(m * grad.hi, 0), with m = ceil(kh / sh) * ceil(kw / sw).
    Outside: padding counts as -2^15 and takes part: where the maximum of a window is -2^15 and an
        offset of padding is the first, the gradient goes to the padding, which means nowhere.
    """
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


def _sum_pool_term(site: Site, e: int, offset: int) -> int:
    return _pool_term(site, e, offset, 0)


_SUM_POOL_LEAF = LeafRule(adding(_sum_pool_term), count_offsets, scattered)


def _sum_pool_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The sum over each window, channel by channel; padding is 0.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: x i16 [n, h, w, channels].
    Output: i64 [n, oh, ow, channels], the exponent of x.
    Range: min(kh * kw * x.lo, 0) to max(kh * kw * x.hi, 0).
    """
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


def _sum_pool_grad_term(site: Site, e: int, offset: int) -> int:
    image = attr_ints(site.attrs, "shape", 4)
    place = Window.from_attrs(site.attrs).find_window(image, e, offset)
    return 0 if place is None else site.read(0, to_index(place, site.types[0].shape))


_SUM_POOL_GRAD_LEAF = LeafRule(adding(_sum_pool_grad_term), count_offsets, scattered)


def _sum_pool_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The adjoint of ``sum_pool``: each pixel is the sum of the gradients of its windows.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        shape: four integers, [n, h, w, channels] of the output.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: grad any [n, oh, ow, channels].
    Output: i64 [n, h, w, channels], the exponent of grad.
    Range: min(m * grad.lo, 0) to max(m * grad.hi, 0), with m = ceil(kh / sh) * ceil(kw / sw).
    """
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
    Operator("max_pool", _max_pool_law, _max_pool_infer, _max_pool_backward, leaf=_MAX_POOL_LEAF),
    Operator("max_pool_grad", _max_pool_grad_law, _max_pool_grad_infer, leaf=_MAX_POOL_GRAD_LEAF),
    Operator("sum_pool", _sum_pool_law, _sum_pool_infer, _sum_pool_backward, leaf=_SUM_POOL_LEAF),
    Operator("sum_pool_grad", _sum_pool_grad_law, _sum_pool_grad_infer, leaf=_SUM_POOL_GRAD_LEAF),
)
