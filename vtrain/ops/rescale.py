"""Changing exponents: the one place of an arithmetic step where rounding and saturation happen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    Operator,
    Saturating,
    Site,
    attr_int,
    attr_text,
    check_fits_int64,
    clamp_range,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.number import rs, rs_int, saturate_int
from vtrain.wire.graph import Attrs, Node, Ref, TensorType


def _rescale_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    wide = inputs[0].astype(np.int64) * np.int64(attr_int(attrs, "multiplier"))
    return rs(wide, attr_int(attrs, "shift"))


def _rescale_leaf(site: Site, e: int) -> int:
    scaled = site.read(0, e) * attr_int(site.attrs, "multiplier")
    return saturate_int(rs_int(scaled, attr_int(site.attrs, "shift")), site.out.dtype)


def _rescale_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """sat(rs(x * multiplier, shift)), saturated to ``dtype``; nothing is clamped for i64.

    The real factor is multiplier * 2^-multiplier_exponent.  multiplier_exponent enters the exponent
    of the output alone, no element.

    Attributes:
        dtype: text, one of i16, i32, i64.
        shift: integer, -62 to 64; negative where it shifts to the left.
        multiplier: integer, 1 to 65535.
        multiplier_exponent: integer, 0 to 32.
    Inputs: x any [...].
    Output: ``dtype`` [...], exponent x.exponent + multiplier_exponent - shift.
    Range: rs(x.lo * multiplier, shift) to rs(x.hi * multiplier, shift), both saturated as the
        elements are.
    Requires: x.lo * multiplier, x.hi * multiplier and both after the shift fit int64, before
        anything is clamped.
    """
    require_keys(attrs, "dtype", "multiplier", "multiplier_exponent", "shift")
    require_inputs(inputs, "int")
    x = inputs[0]
    dtype = attr_text(attrs, "dtype", ("i16", "i32", "i64"))
    multiplier = attr_int(attrs, "multiplier", 1, 65535)
    shift = attr_int(attrs, "shift", -62, 64)
    lo, hi = x.lo * multiplier, x.hi * multiplier
    check_fits_int64(lo, hi, "the product")
    lo, hi = rs_int(lo, shift), rs_int(hi, shift)
    check_fits_int64(lo, hi, "the shifted value")
    exponent = x.exponent + attr_int(attrs, "multiplier_exponent", 0, 32) - shift
    return integer_type(dtype, x.shape, exponent, *clamp_range(lo, hi, dtype))


def _rescale_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """The straight-through rule: rounding and saturation count as the identity.

    The constant factor multiplier * 2^-multiplier_exponent multiplies the gradient too, exactly;
    the shift alone only changes the exponent, and a gradient has an exponent of its own.
    """
    multiplier = attr_int(node.attrs, "multiplier")
    exponent = attr_int(node.attrs, "multiplier_exponent")
    if (multiplier, exponent) == (1, 0):
        return (grad,)
    g = grad if multiplier == 1 else b.as_operand(grad, f"{node.name}/grad")
    return (
        b.emit(
            "rescale",
            f"{node.name}/grad_scaled",
            (g,),
            dtype="i64",
            multiplier=multiplier,
            multiplier_exponent=exponent,
            shift=0,
        ),
    )


def _add_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray(rs(a, -attr_int(attrs, "shift_a")) + rs(b, -attr_int(attrs, "shift_b")))


def _sub_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray(rs(a, -attr_int(attrs, "shift_a")) - rs(b, -attr_int(attrs, "shift_b")))


def _add_leaf(site: Site, e: int) -> int:
    shift_a, shift_b = attr_int(site.attrs, "shift_a"), attr_int(site.attrs, "shift_b")
    return (site.read(0, e) << shift_a) + (site.read(1, e) << shift_b)


def _sub_leaf(site: Site, e: int) -> int:
    shift_a, shift_b = attr_int(site.attrs, "shift_a"), attr_int(site.attrs, "shift_b")
    return (site.read(0, e) << shift_a) - (site.read(1, e) << shift_b)


def _aligned_ranges(
    attrs: Attrs, inputs: Sequence[TensorType]
) -> tuple[TensorType, TensorType, tuple[int, int], tuple[int, int], int]:
    require_keys(attrs, "shift_a", "shift_b")
    require_inputs(inputs, "int", "int")
    a, b = inputs
    require(a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}")
    shift_a, shift_b = attr_int(attrs, "shift_a", 0, 62), attr_int(attrs, "shift_b", 0, 62)
    exponent = a.exponent + shift_a
    require(exponent == b.exponent + shift_b, "the shifts do not align the exponents")
    range_a = (a.lo << shift_a, a.hi << shift_a)
    range_b = (b.lo << shift_b, b.hi << shift_b)
    check_fits_int64(*range_a, "the aligned left operand")
    check_fits_int64(*range_b, "the aligned right operand")
    return a, b, range_a, range_b, exponent


def _add_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """a * 2^shift_a + b * 2^shift_b: the exponents are aligned by exact shifts to the left.

    Attributes:
        shift_a: integer, 0 to 62.
        shift_b: integer, 0 to 62.
    Inputs: a any [...]; b any [...].
    Output: i64 [...], exponent a.exponent + shift_a, which is b.exponent + shift_b too.
    Range: a.lo * 2^shift_a + b.lo * 2^shift_b to a.hi * 2^shift_a + b.hi * 2^shift_b.
    Requires: each of the four products fits int64; a and b have one shape.
    """
    a, _, (lo_a, hi_a), (lo_b, hi_b), exponent = _aligned_ranges(attrs, inputs)
    return integer_type("i64", a.shape, exponent, lo_a + lo_b, hi_a + hi_b, "the sum")


def _sub_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """a * 2^shift_a - b * 2^shift_b: as ``add``.

    Attributes:
        shift_a: integer, 0 to 62.
        shift_b: integer, 0 to 62.
    Inputs: a any [...]; b any [...].
    Output: i64 [...], exponent a.exponent + shift_a, which is b.exponent + shift_b too.
    Range: a.lo * 2^shift_a - b.hi * 2^shift_b to a.hi * 2^shift_a - b.lo * 2^shift_b.
    Requires: each of the four products fits int64; a and b have one shape.
    """
    a, _, (lo_a, hi_a), (lo_b, hi_b), exponent = _aligned_ranges(attrs, inputs)
    return integer_type("i64", a.shape, exponent, lo_a - hi_b, hi_a - lo_b, "the difference")


def _add_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    return grad, grad


OPERATORS = table(
    Operator(
        "rescale",
        Saturating(_rescale_unclamped, lambda attrs: attr_text(attrs, "dtype")),
        _rescale_infer,
        _rescale_backward,
        leaf=pointwise(_rescale_leaf),
    ),
    Operator("add", _add_law, _add_infer, _add_backward, leaf=pointwise(_add_leaf)),
    Operator("sub", _sub_law, _sub_infer, leaf=pointwise(_sub_leaf)),
)
