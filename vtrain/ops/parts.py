"""Parts of a tensor along one axis: cut out, put between zeros, joined."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    Operator,
    Site,
    attr_int,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.wire.graph import MAX_ELEMENTS, MAX_RANK, Attrs, Node, Ref, TensorType


def get_axis(attrs: Attrs, shape: Sequence[int]) -> int:
    """The attribute ``axis``: GraphError where a tensor of this shape has no such axis."""
    axis = attr_int(attrs, "axis", 0, MAX_RANK - 1)
    require(axis < len(shape), f"there is no axis {axis} in shape {tuple(shape)}")
    return axis


def _replace(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _split(shape: Sequence[int], axis: int, e: int) -> tuple[int, int, int]:
    """(place before the axis, along it, after it) of the element with the flat index e."""
    outer, rest = divmod(e, prod(shape[axis:]))
    along, inner = divmod(rest, prod(shape[axis + 1 :]))
    return outer, along, inner


def _join(shape: Sequence[int], axis: int, outer: int, along: int, inner: int) -> int:
    """Inverse of :func:`_split`."""
    return (outer * shape[axis] + along) * prod(shape[axis + 1 :]) + inner


def _slice_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    axis, start, stop = (attr_int(attrs, name) for name in ("axis", "start", "stop"))
    return inputs[0].take(range(start, stop), axis=axis)


def _slice_leaf(site: Site, e: int) -> int:
    axis, start = attr_int(site.attrs, "axis"), attr_int(site.attrs, "start")
    outer, along, inner = _split(site.out.shape, axis, e)
    return site.read(0, _join(site.types[0].shape, axis, outer, start + along, inner))


def _slice_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The part of x from start to stop - 1 along one axis.

    Element i along the axis is element start + i of x; along all other axes it stays where it is.

    Attributes:
        axis: integer, 0 to 7.
        stop: integer, 1 to 2^32.
        start: integer, 0 to 2^32-1.
    Inputs: x any [...].
    Output: the dtype and the exponent of x; its extent along the axis is stop - start, the others
        are those of x.
    Range: that of x.
    Requires: axis is less than the number of axes of x; start < stop; stop is at most the extent of
        x along the axis.
    """
    require_keys(attrs, "axis", "start", "stop")
    require_inputs(inputs, "int")
    x = inputs[0]
    axis = get_axis(attrs, x.shape)
    start = attr_int(attrs, "start", 0, MAX_ELEMENTS - 1)
    stop = attr_int(attrs, "stop", 1, MAX_ELEMENTS)
    require(start < stop, f"the part from {start} to {stop} is empty")
    require(stop <= x.shape[axis], f"axis {axis} has {x.shape[axis]} elements, fewer than {stop}")
    return integer_type(x.dtype, _replace(x.shape, axis, stop - start), x.exponent, x.lo, x.hi)


def _slice_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    axis, start, stop = (attr_int(node.attrs, name) for name in ("axis", "start", "stop"))
    after = b.type_of(node.inputs[0]).shape[axis] - stop
    name = f"{node.name}/grad_in"
    return (b.emit("pad", name, (grad,), axis=axis, before=start, after=after),)


def _pad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, axis = inputs[0], attr_int(attrs, "axis")
    widths = [(0, 0)] * x.ndim
    widths[axis] = attr_int(attrs, "before"), attr_int(attrs, "after")
    return np.pad(x, widths)


def _pad_leaf(site: Site, e: int) -> int:
    axis, before = attr_int(site.attrs, "axis"), attr_int(site.attrs, "before")
    outer, along, inner = _split(site.out.shape, axis, e)
    shape = site.types[0].shape
    if not 0 <= along - before < shape[axis]:
        return 0
    return site.read(0, _join(shape, axis, outer, along - before, inner))


def _pad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """x with zeros before and after it along one axis: the adjoint of ``slice``.

    Element before + i along the axis is element i of x, and 0 where x has none.

    Attributes:
        axis: integer, 0 to 7.
        after: integer, 0 to 2^32-1.
        before: integer, 0 to 2^32-1.
    Inputs: x any [...].
    Output: the dtype and the exponent of x; its extent along the axis is before + after more than
        that of x, the others are those of x.
    Range: min(x.lo, 0) to max(x.hi, 0), with zeros or without.
    Requires: axis is less than the number of axes of x.
    """
    require_keys(attrs, "axis", "before", "after")
    require_inputs(inputs, "int")
    x = inputs[0]
    axis = get_axis(attrs, x.shape)
    added = sum(attr_int(attrs, name, 0, MAX_ELEMENTS - 1) for name in ("before", "after"))
    shape = _replace(x.shape, axis, x.shape[axis] + added)
    return integer_type(x.dtype, shape, x.exponent, min(x.lo, 0), max(x.hi, 0))


def _pad_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    axis, before = attr_int(node.attrs, "axis"), attr_int(node.attrs, "before")
    stop = before + b.type_of(node.inputs[0]).shape[axis]
    name = f"{node.name}/grad_in"
    return (b.emit("slice", name, (grad,), axis=axis, start=before, stop=stop),)


def _concat_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.concatenate(list(inputs), axis=attr_int(attrs, "axis"))


def _concat_leaf(site: Site, e: int) -> int:
    axis = attr_int(site.attrs, "axis")
    outer, along, inner = _split(site.out.shape, axis, e)
    number = 0
    while along >= site.types[number].shape[axis]:
        along -= site.types[number].shape[axis]
        number += 1
    return site.read(number, _join(site.types[number].shape, axis, outer, along, inner))


def _concat_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The inputs one after the other along one axis.

    Attributes:
        axis: integer, 0 to 7.
    Inputs: two or more tensors x_0, x_1 and so on, of any one dtype.
    Output: the dtype of the inputs, the exponent of x_0; its extent along the axis is the sum of
        theirs, the others are those of each of them.
    Range: the least of their lo to the greatest of their hi.
    Requires: the inputs have one dtype, one exponent, one number of axes, which is more than axis,
        and the same extents along all other axes.
    """
    require_keys(attrs, "axis")
    require(len(inputs) >= 2, f"joins two tensors or more, has {len(inputs)}")
    first = inputs[0]
    axis = get_axis(attrs, first.shape)
    for x in inputs[1:]:
        require(x.dtype == first.dtype, f"dtypes differ: {first.dtype} and {x.dtype}")
        require(x.exponent == first.exponent, "exponents differ")
        fits = len(x.shape) == len(first.shape) and _replace(x.shape, axis, 0) == _replace(
            first.shape, axis, 0
        )
        require(fits, f"shapes differ beside axis {axis}: {first.shape} and {x.shape}")
    shape = _replace(first.shape, axis, sum(x.shape[axis] for x in inputs))
    lo, hi = min(x.lo for x in inputs), max(x.hi for x in inputs)
    return integer_type(first.dtype, shape, first.exponent, lo, hi)


def _concat_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    axis, start = attr_int(node.attrs, "axis"), 0
    gradients: list[Ref | None] = []
    for number, ref in enumerate(node.inputs):
        stop = start + b.type_of(ref).shape[axis]
        gradients.append(
            b.emit(
                "slice", f"{node.name}/grad_{number}", (grad,), axis=axis, start=start, stop=stop
            )
            if b.needs_gradient(ref)
            else None
        )
        start = stop
    return gradients


OPERATORS = table(
    Operator("slice", _slice_law, _slice_infer, _slice_backward, leaf=pointwise(_slice_leaf)),
    Operator("pad", _pad_law, _pad_infer, _pad_backward, leaf=pointwise(_pad_leaf)),
    Operator("concat", _concat_law, _concat_infer, _concat_backward, leaf=pointwise(_concat_leaf)),
)
