"""Sums, differences and products of two tensors of one shape, element by element, in int64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    Operator,
    Site,
    attr_int,
    check_fits_int64,
    integer_type,
    pointwise,
    product_type,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.number import rs
from vtrain.wire.graph import Attrs, Node, Ref, TensorType


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


def _mul_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return np.asarray(a.astype(np.int64) * b)


def _mul_leaf(site: Site, e: int) -> int:
    return site.read(0, e) * site.read(1, e)


def _mul_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """a * b, element by element: an accumulator, which nothing rounds.

    Inputs: a any [...]; b any [...].
    Output: i64 [...], exponent a.exponent + b.exponent.
    Range: min(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi) to max(a.lo * b.lo, a.lo * b.hi,
        a.hi * b.lo, a.hi * b.hi).
    Requires: a and b have one shape.
    """
    require_keys(attrs)
    require_inputs(inputs, "int", "int")
    a, b = inputs
    require(a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}")
    return product_type(a, b)


def _mul_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """y = a b: da = g b and db = g a, of int16 operands, so that no gradient outgrows int64."""
    left, right = node.inputs
    g = b.as_operand(grad, f"{node.name}/grad")
    da = db = None
    if b.needs_gradient(left):
        factor = b.as_operand(right, f"{node.name}/right")
        da = b.emit("mul", f"{node.name}/grad_a", (g, factor))
    if b.needs_gradient(right):
        factor = b.as_operand(left, f"{node.name}/left")
        db = b.emit("mul", f"{node.name}/grad_b", (g, factor))
    return da, db


OPERATORS = table(
    Operator("add", _add_law, _add_infer, _add_backward, leaf=pointwise(_add_leaf)),
    Operator("sub", _sub_law, _sub_infer, leaf=pointwise(_sub_leaf)),
    Operator("mul", _mul_law, _mul_infer, _mul_backward, leaf=pointwise(_mul_leaf)),
)
