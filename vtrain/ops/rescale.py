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


OPERATORS = table(
    Operator(
        "rescale",
        Saturating(_rescale_unclamped, lambda attrs: attr_text(attrs, "dtype")),
        _rescale_infer,
        _rescale_backward,
        leaf=pointwise(_rescale_leaf),
    ),
)
