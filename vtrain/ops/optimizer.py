"""SGD with momentum on int32 master weights, straight from the exact gradient accumulators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Saturating,
    Site,
    attr_int,
    attr_ints,
    check_fits_int64,
    clamp_range,
    integer_type,
    pointwise,
    product_range,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.ops.source import MAX_STEPS
from vtrain.spec.number import (
    MASTER_EXPONENT,
    MOMENTUM_EXPONENT,
    rs,
    rs_int,
    saturate_int,
)
from vtrain.wire.graph import Attrs, TensorType

DECAY_EXPONENT = 16
"""Fraction bits of ``decay`` = 1 - mu."""


def _momentum_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    velocity, grad = inputs
    wide = velocity.astype(np.int64)
    decayed = rs(wide * np.int64(attr_int(attrs, "decay")), DECAY_EXPONENT)
    return wide + rs(grad, attr_int(attrs, "shift")) - decayed


def _momentum_leaf(site: Site, e: int) -> int:
    velocity, grad = site.read(0, e), site.read(1, e)
    decayed = rs_int(velocity * attr_int(site.attrs, "decay"), DECAY_EXPONENT)
    aligned = rs_int(grad, attr_int(site.attrs, "shift"))
    return saturate_int(velocity + aligned - decayed, "i32")


def _momentum_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """V' = sat32(V + rs(g, shift) - rs(V * decay, 16)): V int32 with 16 fraction bits.

    ``decay`` = round(2^16 (1 - mu)); ``shift`` = exponent of g - 16.
    """
    require_keys(attrs, "decay", "shift")
    require_inputs(inputs, "i32", "i64")
    velocity, grad = inputs
    require(velocity.shape == grad.shape, f"shapes differ: {velocity.shape} and {grad.shape}")
    shift = attr_int(attrs, "shift", -62, 64)
    decay = attr_int(attrs, "decay", 0, 1 << DECAY_EXPONENT)
    require(velocity.exponent == MOMENTUM_EXPONENT, "momentum needs 16 fraction bits")
    require(grad.exponent - shift == MOMENTUM_EXPONENT, "shift does not align the gradient")
    grad_lo, grad_hi = rs_int(grad.lo, shift), rs_int(grad.hi, shift)
    check_fits_int64(grad_lo, grad_hi, "the aligned gradient")
    decay_lo, decay_hi = rs_int(velocity.lo * decay, 16), rs_int(velocity.hi * decay, 16)
    check_fits_int64(velocity.lo + grad_lo, velocity.hi + grad_hi, "momentum and gradient")
    lo, hi = velocity.lo + grad_lo - decay_hi, velocity.hi + grad_hi - decay_lo
    check_fits_int64(lo, hi, "the momentum")
    return integer_type("i32", velocity.shape, MOMENTUM_EXPONENT, *clamp_range(lo, hi, "i32"))


def _sgd_update_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    weight, velocity, rate = inputs
    step = rs(velocity.astype(np.int64) * rate.astype(np.int64), attr_int(attrs, "shift"))
    return np.asarray(weight.astype(np.int64) - step)


def _sgd_update_leaf(site: Site, e: int) -> int:
    weight, velocity, rate = site.read(0, e), site.read(1, e), site.read(2)
    return saturate_int(weight - rs_int(velocity * rate, attr_int(site.attrs, "shift")), "i32")


def _sgd_update_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """w' = sat32(w - rs(V * rate, shift)): w int32 with 24 fraction bits, rate an int64 scalar.

    The product has exponent(V) + exponent(rate) fraction bits, and ``shift`` brings it to 24.
    """
    require_keys(attrs, "shift")
    require_inputs(inputs, "i32", "i32", "i64")
    weight, velocity, rate = inputs
    shift = attr_int(attrs, "shift", -62, 64)
    require(weight.shape == velocity.shape and rate.shape == (), "shapes do not fit")
    require(weight.exponent == MASTER_EXPONENT, "master weights need 24 fraction bits")
    require(
        velocity.exponent + rate.exponent - shift == MASTER_EXPONENT,
        "shift does not align the step",
    )
    product_lo, product_hi = product_range(velocity, rate)
    check_fits_int64(product_lo, product_hi, "momentum times rate")
    step_lo, step_hi = rs_int(product_lo, shift), rs_int(product_hi, shift)
    lo, hi = weight.lo - step_hi, weight.hi - step_lo
    check_fits_int64(step_lo, step_hi, "the step")
    check_fits_int64(lo, hi, "the updated weight")
    return integer_type("i32", weight.shape, MASTER_EXPONENT, *clamp_range(lo, hi, "i32"))


def _rate_at(attrs: Attrs, step: int) -> int:
    starts, rates = attr_ints(attrs, "starts"), attr_ints(attrs, "rates")
    current = rates[0]
    for start, rate in zip(starts, rates, strict=True):
        if start <= step:
            current = rate
    return current


def _schedule_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(_rate_at(attrs, int(inputs[0])), dtype=np.int64)


def _schedule_leaf(site: Site, e: int) -> int:
    return _rate_at(site.attrs, site.read(0))


def _schedule_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Piecewise constant: step t uses rates[i] for the last i with starts[i] <= t; starts[0] = 0.

    Each rate is a 16-bit mantissa; all share the exponent.
    """
    require_keys(attrs, "exponent", "rates", "starts")
    require_inputs(inputs, "i64")
    require(inputs[0].shape == (), "the step counter is a scalar")
    starts, rates = attr_ints(attrs, "starts"), attr_ints(attrs, "rates")
    require(len(starts) == len(rates) > 0 and starts[0] == 0, "needs a rate from step 0 on")
    require(all(a < b for a, b in itertools.pairwise(starts)), "starts must increase")
    require(starts[-1] <= MAX_STEPS, f"starts after step {MAX_STEPS}")
    require(all(0 <= rate < 2**16 for rate in rates), "rates are 16-bit mantissas")
    exponent = attr_int(attrs, "exponent", -64, 128)
    return integer_type("i64", (), exponent, min(rates), max(rates))


OPERATORS = table(
    Operator(
        "momentum",
        Saturating(_momentum_unclamped, lambda attrs: "i32"),
        _momentum_infer,
        leaf=pointwise(_momentum_leaf),
    ),
    Operator(
        "sgd_update",
        Saturating(_sgd_update_unclamped, lambda attrs: "i32"),
        _sgd_update_infer,
        leaf=pointwise(_sgd_update_leaf),
    ),
    Operator(
        "schedule",
        _schedule_law,
        _schedule_infer,
        leaf=pointwise(_schedule_leaf),
    ),
)
