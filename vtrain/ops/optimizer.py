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
    """The new momentum: sat(V + rs(g, shift) - rs(V * decay, 16)), saturated to i32.

    Attributes:
        decay: integer, 0 to 2^16; round(2^16 * (1 - mu)).
        shift: integer, -62 to 64; it is g.exponent - 16.
    Inputs: V i32 [...]; g i64 [...].
    Output: i32 [...], exponent 16.
    Range: V.lo + rs(g.lo, shift) - rs(V.hi * decay, 16) to V.hi + rs(g.hi, shift) - rs(V.lo *
        decay, 16), both saturated as the elements are.
    Requires: V has exponent 16 and the shape of g; rs(g, shift) at both ends, V.lo + rs(g.lo,
        shift), V.hi + rs(g.hi, shift) and both ends of the range before they are saturated fit
        int64.
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
    """The new master weight: sat(w - rs(V * rate, shift)), saturated to i32.

    Attributes:
        shift: integer, -62 to 64; it is V.exponent + rate.exponent - 24.
    Inputs: w i32 [...]; V i32 [...]; rate i64 [].
    Output: i32 [...], exponent 24.
    Range: w.lo - rs(hi, shift) to w.hi - rs(lo, shift), both saturated as the elements are, where
        lo and hi are the least and the greatest of the four products of an end of V and an end of
        rate.
    Requires: w has exponent 24 and the shape of V; lo, hi, rs(lo, shift), rs(hi, shift) and both
        ends of the range before they are saturated fit int64.
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
    """The rate of step t: rates[i] for the last i with starts[i] <= t.

    Attributes:
        rates: integers, each 0 to 65535, as many as starts.
        starts: integers, the first 0, strictly increasing, the last at most 2^40; at least one.
        exponent: integer, -64 to 128; of all rates.
    Inputs: t i64 [].
    Output: i64 [], exponent ``exponent``.
    Range: the least of rates to the greatest of rates.
    Outside: rates[0] where t is below starts[0], which is 0: a disputed t may be negative.
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
