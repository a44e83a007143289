"""Parts of normalisation over the last axis: deviations, sums of products, inverse roots, scales.

A tensor [..., d] counts as rows of d elements.  The root mean square norm of a row is
x * sqrt(d) / sqrt(sum of x^2 + d * epsilon); LayerNorm is that of the deviations from the mean.
``vtrain.graph.norms`` puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vtrain.errors import RangeError
from vtrain.ops.base import (
    Array,
    Builder,
    LeafRule,
    Operator,
    Site,
    Stream,
    Types,
    adding,
    attr_int,
    integer_type,
    pointwise,
    product_range,
    product_type,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.number import rs, rs_int
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

MAX_LIFT = 30
"""Largest ``lift`` of an inverse root: 4^30 is 2^60."""
_RADICAND = 2**62 - 1
"""Nothing larger is under a root."""


def _require_rows(x: TensorType) -> int:
    """The length of the rows of ``x``."""
    require(len(x.shape) >= 1 and x.shape[-1] > 0, f"needs non-empty rows, has shape {x.shape}")
    return x.shape[-1]


def _row_length(attrs: Attrs, types: Types) -> int:
    return types[0].shape[-1]


# --- center


def _center_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x = inputs[0].astype(np.int64)
    deviations = x * x.shape[-1] - x.sum(axis=-1, keepdims=True)
    return np.asarray(rs(deviations, attr_int(attrs, "shift"))).astype(np.int32)


def _center_term(site: Site, e: int, term: int) -> int:
    width = site.out.shape[-1]
    return site.read(0, e) - site.read(0, e // width * width + term)


def _center_finish(attrs: Attrs, total: int) -> int:
    """The low 32 bits: all of them where x is in its proven range."""
    return (rs_int(total, attr_int(attrs, "shift")) + 2**31) % 2**32 - 2**31


_CENTER_LEAF = LeafRule(
    adding(_center_term),
    _row_length,
    lambda attrs, types: [Stream(0, 0), Stream(0, 1)],
    finish=lambda attrs, state: _center_finish(attrs, state[0]),
)


def _center_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """rs(d * x - s, shift), where s is the sum of the row of x.

    In real values this is d times the deviation from the row's mean: nothing is divided.

    Attributes:
        shift: integer, 0 to 32.
    Inputs: x i16 [..., d].
    Output: i32 [..., d], exponent x.exponent - shift.
    Range: rs(-m, shift) to rs(m, shift), where m is (d - 1) * (x.hi - x.lo).
    Requires: x has at least one axis.
    Outside: where x is beyond its range (a disputed input may be), the low 32 bits.
    """
    require_keys(attrs, "shift")
    require_inputs(inputs, "i16")
    x = inputs[0]
    shift = attr_int(attrs, "shift", 0, 32)
    most = (_require_rows(x) - 1) * (x.hi - x.lo)
    lo, hi = rs_int(-most, shift), rs_int(most, shift)
    return integer_type("i32", x.shape, x.exponent - shift, lo, hi, "the deviation")


def center_shift(x: TensorType, bits: int = 31) -> int:
    """The least shift for which :func:`center` of ``x`` stays within +-2^bits - 1."""
    most = (x.shape[-1] - 1) * (x.hi - x.lo)
    shift = max(most.bit_length() - bits, 0)
    return shift if rs_int(most, shift) < 1 << bits else shift + 1


def _center_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """The matrix d I - 1 is symmetric: the gradient is centred too, rounded only where it must."""
    g = b.as_operand(grad, f"{node.name}/grad")
    shift = center_shift(b.type_of(g))
    return (b.emit("center", f"{node.name}/grad_centred", (g,), shift=shift),)


# --- row_dot


def _row_dot_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray((a.astype(np.int64) * b).sum(axis=-1, dtype=np.int64))


def _row_dot_term(site: Site, e: int, term: int) -> int:
    at = e * site.types[0].shape[-1] + term
    return site.read(0, at) * site.read(1, at)


_ROW_DOT_LEAF = LeafRule(
    adding(_row_dot_term), _row_length, lambda attrs, types: [Stream(0, 1), Stream(1, 1)]
)


def _row_dot_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The sum of the products of each row of a with the row of b: exact, nothing is rounded.

    Inputs: a any [..., d]; b any [..., d].
    Output: i64, of the shape of a without its last axis, exponent a.exponent + b.exponent.
    Range: d * lo to d * hi, where lo and hi are the least and the greatest of a.lo * b.lo, a.lo *
        b.hi, a.hi * b.lo and a.hi * b.hi.
    Requires: a and b have one shape, of at least one axis; neither is i64.
    """
    require_keys(attrs)
    require_inputs(inputs, "int", "int")
    a, b = inputs
    require("i64" not in (a.dtype, b.dtype), "inputs must be narrower than i64")
    require(a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}")
    width = _require_rows(a)
    lo, hi = product_range(a, b)
    exponent = a.exponent + b.exponent
    return integer_type("i64", a.shape[:-1], exponent, width * lo, width * hi, "the sum")


# --- inverse_root


def _largest_radicand(lift: int) -> int:
    return _RADICAND >> 2 * lift


def _inverse_root_of(attrs: Attrs, s: int) -> int:
    lift = attr_int(attrs, "lift")
    v = min(max(s, 0) + attr_int(attrs, "epsilon"), _largest_radicand(lift))
    return attr_int(attrs, "numerator") // math.isqrt(v << 2 * lift)


def _inverse_root_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    s = inputs[0]
    found = [_inverse_root_of(attrs, int(each)) for each in s.flat]
    return np.array(found, dtype=np.int64).reshape(s.shape)


def _inverse_root_leaf(site: Site, e: int) -> int:
    return _inverse_root_of(site.attrs, site.read(0, e))


def _inverse_root_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """floor(numerator / q), with q = floor(sqrt(v * 4^lift)) and v = max(s, 0) + epsilon.

    The real value is numerator * 2^-numerator_exponent / sqrt(s + epsilon), where epsilon has the
    exponent of s.  q has an error below 1 and is at least 2^lift, so that lift is how many bits of
    the smallest roots are kept.

    Attributes:
        lift: integer, 0 to 30.
        epsilon: integer, 1 to 2^60.
        numerator: integer, 1 to 2^62.
        numerator_exponent: integer, -64 to 64; it enters the exponent of the output alone.
    Inputs: s i64 [...].
    Output: i64 [...], exponent numerator_exponent - lift - s.exponent / 2.
    Range: lo to hi, where lo is what s.hi gives and hi what s.lo gives.
    Requires: s.exponent is even; max(s.hi, 0) + epsilon is at most floor((2^62 - 1) / 4^lift).
    Outside: a v above that bound counts as the bound (a disputed s may have one).
    """
    require_keys(attrs, "epsilon", "lift", "numerator", "numerator_exponent")
    require_inputs(inputs, "i64")
    s = inputs[0]
    epsilon = attr_int(attrs, "epsilon", 1, 2**60)
    lift = attr_int(attrs, "lift", 0, MAX_LIFT)
    attr_int(attrs, "numerator", 1, 2**62)
    exponent = attr_int(attrs, "numerator_exponent", -64, 64) - lift
    require(s.exponent % 2 == 0, f"the sum's exponent {s.exponent} is odd: its root has none")
    check_fits_radicand(max(s.hi, 0) + epsilon, lift)
    lo, hi = _inverse_root_of(attrs, s.hi), _inverse_root_of(attrs, s.lo)
    return integer_type("i64", s.shape, exponent - s.exponent // 2, lo, hi, "the inverse root")


def check_fits_radicand(value: int, lift: int) -> None:
    """RangeError unless ``value`` * 4^lift is below 2^62."""
    bound = _largest_radicand(lift)
    if value > bound:
        raise RangeError(f"the sum with epsilon may reach {value}; lifted by {lift}, {bound} fits")


# --- scales


def _row_scale_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, factor = inputs
    return np.asarray(x.astype(np.int64) * factor.astype(np.int64)[..., None])


def _row_scale_leaf(site: Site, e: int) -> int:
    return site.read(0, e) * site.read(1, e // site.out.shape[-1])


def _row_scale_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """x * r: each row times its own number, an accumulator, which nothing rounds.

    Inputs: x any [..., d]; r any [...].
    Output: i64 [..., d], exponent x.exponent + r.exponent.
    Range: min(x.lo * r.lo, x.lo * r.hi, x.hi * r.lo, x.hi * r.hi) to max(x.lo * r.lo, x.lo * r.hi,
        x.hi * r.lo, x.hi * r.hi).
    Requires: r has the shape of x without its last axis.
    """
    require_keys(attrs)
    require_inputs(inputs, "int", "int")
    x, factor = inputs
    _require_rows(x)
    require(factor.shape == x.shape[:-1], f"needs a number for each row, has {factor.shape}")
    return product_type(x, factor)


def _column_scale_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, w = inputs
    return np.asarray(x.astype(np.int64) * w.astype(np.int64))


def _column_scale_leaf(site: Site, e: int) -> int:
    return site.read(0, e) * site.read(1, e % site.out.shape[-1])


def _column_scale_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """x * w: each column times its own number, an accumulator, which nothing rounds.

    Inputs: x any [..., d]; w any [d].
    Output: i64 [..., d], exponent x.exponent + w.exponent.
    Range: min(x.lo * w.lo, x.lo * w.hi, x.hi * w.lo, x.hi * w.hi) to max(x.lo * w.lo, x.lo * w.hi,
        x.hi * w.lo, x.hi * w.hi).
    Requires: w has the last extent of x.
    """
    require_keys(attrs)
    require_inputs(inputs, "int", "int")
    x, w = inputs
    _require_rows(x)
    require(w.shape == x.shape[-1:], f"needs a number for each column, has {w.shape}")
    return product_type(x, w)


def _column_scale_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """y = x w: dx = g w, and dw is the sum of g x over the rows, exact."""
    x, w = node.inputs
    whole = b.is_deep(grad) and not b.needs_gradient(w)
    g = grad if whole else b.as_operand(grad, f"{node.name}/grad")
    dx = dw = None
    if b.needs_gradient(x):
        weight = b.as_operand(w, f"{node.name}/weight")
        dx = b.emit("column_scale", f"{node.name}/grad_rows", (g, weight))
    if b.needs_gradient(w):
        operand = b.as_operand(x, f"{node.name}/rows")
        products = b.emit("mul", f"{node.name}/grad_products", (g, operand))
        dw = b.emit("column_sum", f"{node.name}/grad_weight", (products,))
    return dx, dw


OPERATORS = table(
    Operator("center", _center_law, _center_infer, _center_backward, leaf=_CENTER_LEAF),
    Operator("row_dot", _row_dot_law, _row_dot_infer, leaf=_ROW_DOT_LEAF),
    Operator(
        "inverse_root", _inverse_root_law, _inverse_root_infer, leaf=pointwise(_inverse_root_leaf)
    ),
    Operator("row_scale", _row_scale_law, _row_scale_infer, leaf=pointwise(_row_scale_leaf)),
    Operator(
        "column_scale",
        _column_scale_law,
        _column_scale_infer,
        _column_scale_backward,
        leaf=pointwise(_column_scale_leaf),
    ),
)
