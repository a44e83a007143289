"""The update of int32 master weights: momentum, AdamW, Lion, clipping, and rates of a step."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
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
from vtrain.ops.source import WIDE_STATE_BITS, require_counter
from vtrain.spec.number import (
    MASTER_EXPONENT,
    MOMENTUM_EXPONENT,
    isqrt,
    rs,
    rs_int,
    saturate_int,
)
from vtrain.wire.graph import Attrs, TensorType
from vtrain.wire.record import MAX_STEPS

DECAY_EXPONENT = 16
"""Fraction bits of ``decay`` = 1 - mu."""
SQUARE_LIFT = 16
"""Fraction bits of a second moment beyond those of the squared gradient."""
BETA_EXPONENT = 31
"""Fraction bits of beta1 and beta2 where they are raised to the number of the step."""
CORRECTION_EXPONENT = 24
"""Fraction bits of the correction of both moments' bias."""
CORRECTION_MOST = 1 << 32
"""The correction is held to 2^8: rates times it fit what they are multiplied by."""
FACTOR_EXPONENT = 15
"""Fraction bits of the factor that clips gradients: 1.0 is 2^15."""
_WIDEST_ROOT = 1 << 30
"""Its square fits an accumulator."""


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


def _blend_range(attrs: Attrs) -> tuple[int, int]:
    """``rate`` and ``shift`` of a moving average, whose share of the new is at most 1."""
    rate, shift = attr_int(attrs, "rate", 0, 1 << 16), attr_int(attrs, "shift", 0, 46)
    require(rate <= 1 << shift, "the share of the new is more than 1")
    return rate, shift


def _adam_mean_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    mean, grad = (x.astype(np.int64) for x in inputs)
    gap = (grad << np.int64(attr_int(attrs, "lift"))) - mean
    return np.asarray(mean + rs(gap * np.int64(attr_int(attrs, "rate")), attr_int(attrs, "shift")))


def _blend(mean: int, grad: int, attrs: Attrs) -> int:
    gap = (grad << attr_int(attrs, "lift")) - mean
    return mean + rs_int(gap * attr_int(attrs, "rate"), attr_int(attrs, "shift"))


def _adam_mean_leaf(site: Site, e: int) -> int:
    return saturate_int(_blend(site.read(0, e), site.read(1, e), site.attrs), "i32")


def _adam_mean_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The new moving average of gradients: sat(m + rs((g * 2^lift - m) * rate, shift)).

    It is saturated to i32. With rate = (1 - beta) * 2^shift this is beta m + (1 - beta) g.

    Attributes:
        lift: integer, 0 to 15; it is m.exponent - g.exponent.
        rate: integer, 0 to 2^16.
        shift: integer, 0 to 46.
    Inputs: m i32 [...]; g i16 [...].
    Output: i32 [...], exponent of m.
    Range: m.lo + rs((g.lo * 2^lift - m.lo) * rate, shift) to m.hi + rs((g.hi * 2^lift - m.hi) *
        rate, shift), both saturated as the elements are.
    Requires: rate is at most 2^shift; m has the shape of g, and its exponent is g.exponent + lift.
    """
    require_keys(attrs, "lift", "rate", "shift")
    require_inputs(inputs, "i32", "i16")
    mean, grad = inputs
    _blend_range(attrs)
    lift = attr_int(attrs, "lift", 0, 15)
    require(mean.shape == grad.shape, f"shapes differ: {mean.shape} and {grad.shape}")
    require(mean.exponent == grad.exponent + lift, "lift does not align the gradient")
    # Rising in both: the share of the new is at most 1.  Nothing in between has 50 bits.
    ends = _blend(mean.lo, grad.lo, attrs), _blend(mean.hi, grad.hi, attrs)
    return integer_type("i32", mean.shape, mean.exponent, *clamp_range(*ends, "i32"))


def _adam_square_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    square = np.clip(inputs[0], 0, 1 << WIDE_STATE_BITS)
    grad = inputs[1].astype(np.int64)
    gap = ((grad * grad) << np.int64(SQUARE_LIFT)) - square
    scaled = rs(gap * np.int64(attr_int(attrs, "rate")), attr_int(attrs, "shift"))
    return np.asarray(square + scaled)


def _adam_square_leaf(site: Site, e: int) -> int:
    square = min(max(site.read(0, e), 0), 1 << WIDE_STATE_BITS)
    gap = (site.read(1, e) ** 2 << SQUARE_LIFT) - square
    return square + rs_int(gap * attr_int(site.attrs, "rate"), attr_int(site.attrs, "shift"))


def _adam_square_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The new moving average of squared gradients: v + rs((g^2 * 2^16 - v) * rate, shift).

    With rate = (1 - beta) * 2^shift this is beta v + (1 - beta) g^2. It lies between v and g^2 *
    2^16, so that it needs no saturation.

    Attributes:
        rate: integer, 0 to 2^16.
        shift: integer, 0 to 46.
    Inputs: v i64 [...]; g i16 [...].
    Output: i64 [...], exponent of v.
    Range: 0 to max(v.hi, 2^16 * max(g.lo^2, g.hi^2)).
    Requires: rate is at most 2^shift; v has the shape of g, the exponent 2 * g.exponent + 16, and a
        range within 0 to 2^46.
    Outside: a v below 0 counts as 0, one above 2^46 as 2^46.
    """
    require_keys(attrs, "rate", "shift")
    require_inputs(inputs, "i64", "i16")
    square, grad = inputs
    _blend_range(attrs)
    require(square.shape == grad.shape, f"shapes differ: {square.shape} and {grad.shape}")
    require(
        square.exponent == 2 * grad.exponent + SQUARE_LIFT,
        "a second moment needs twice the gradient's fraction bits and 16 more",
    )
    require(
        square.lo >= 0 and square.hi <= 1 << WIDE_STATE_BITS,
        "a second moment stays within [0, 2^46]",
    )
    # At most 2^46 times 2^16: no intermediate is beyond 2^62.
    largest = max(grad.lo**2, grad.hi**2) << SQUARE_LIFT
    return integer_type("i64", square.shape, square.exponent, 0, max(square.hi, largest))


def _adam_direction_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    mean, square = inputs
    divisor = isqrt(np.maximum(square, 0)) + np.int64(attr_int(attrs, "epsilon"))
    return np.asarray((mean.astype(np.int64) << np.int64(attr_int(attrs, "shift"))) // divisor)


def _adam_direction_leaf(site: Site, e: int) -> int:
    mean, square = site.read(0, e), max(site.read(1, e), 0)
    divisor = math.isqrt(square) + attr_int(site.attrs, "epsilon")
    return saturate_int((mean << attr_int(site.attrs, "shift")) // divisor, "i32")


def _adam_direction_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The direction of a step of Adam: sat(floor(m * 2^shift / (isqrt(v) + epsilon))).

    It is saturated to i32; isqrt(v) is the floor of the square root.

    Attributes:
        shift: integer, 0 to 31.
        epsilon: integer, 1 to 2^31.
    Inputs: m i32 [...]; v i64 [...].
    Output: i32 [...], exponent m.exponent + shift - v.exponent // 2.
    Range: min(m.lo * 2^shift // a, m.lo * 2^shift // b) to max(m.hi * 2^shift // a, m.hi * 2^shift
        // b), both saturated as the elements are, where a is isqrt(v.lo) + epsilon, b is
        isqrt(v.hi) + epsilon, and x // y the floor of x / y.
    Requires: v.lo is at least 0; v has the shape of m and an even exponent.
    Outside: a v below 0 counts as 0.
    """
    require_keys(attrs, "epsilon", "shift")
    require_inputs(inputs, "i32", "i64")
    mean, square = inputs
    shift, epsilon = attr_int(attrs, "shift", 0, 31), attr_int(attrs, "epsilon", 1, 1 << 31)
    require(mean.shape == square.shape, f"shapes differ: {mean.shape} and {square.shape}")
    require(square.lo >= 0, "a second moment is not negative")
    require(square.exponent % 2 == 0, "the exponent of a second moment is even")
    # |m| 2^shift is at most 2^62.
    divisors = [math.isqrt(end) + epsilon for end in (square.lo, square.hi)]
    lo = min((mean.lo << shift) // divisor for divisor in divisors)
    hi = max((mean.hi << shift) // divisor for divisor in divisors)
    exponent = mean.exponent + shift - square.exponent // 2
    return integer_type("i32", mean.shape, exponent, *clamp_range(lo, hi, "i32"))


def _power(base: int, exponent: int) -> int:
    """base^exponent of 31 fraction bits, rounded after each product of square and multiply."""
    power = 1 << BETA_EXPONENT
    for bit in f"{exponent:b}":
        power = rs_int(power * power, BETA_EXPONENT)
        if bit == "1":
            power = rs_int(power * base, BETA_EXPONENT)
    return power


def _correction_at(attrs: Attrs, step: int) -> int:
    count = min(max(step, 0), MAX_STEPS) + 1
    one = 1 << BETA_EXPONENT
    rest1 = one - _power(attr_int(attrs, "beta1"), count)
    rest2 = one - _power(attr_int(attrs, "beta2"), count)
    root = math.isqrt(rest2 << BETA_EXPONENT)
    return min((root << CORRECTION_EXPONENT) // rest1, CORRECTION_MOST)


def _adam_correction_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(_correction_at(attrs, int(inputs[0])), dtype=np.int64)


def _adam_correction_leaf(site: Site, e: int) -> int:
    return _correction_at(site.attrs, site.read(0))


def _adam_correction_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The factor sqrt(1 - beta2^n) / (1 - beta1^n) of step t, n = t + 1, that takes the bias out
    of both moments: min(floor(isqrt((2^31 - P2) * 2^31) * 2^24 / (2^31 - P1)), 2^32).

    Pi is beta_i^n of 31 fraction bits, by squaring and multiplying: P = 2^31; for each binary digit
    of n, the highest first, P = rs(P * P, 31), and then P = rs(P * beta_i, 31) where the digit is
    1. isqrt(x) is the floor of the square root.

    Attributes:
        beta1: integer, 0 to 2147483647; round(2^31 * beta1).
        beta2: integer, 0 to 2147483647; round(2^31 * beta2).
    Inputs: t i64 [].
    Output: i64 [], exponent 24.
    Range: 0 to 2^32.
    Requires: t has exponent 0 and a range within 0 to 2^40.
    Outside: a t below 0 counts as 0, one above 2^40 as 2^40.
    """
    require_keys(attrs, "beta1", "beta2")
    require_inputs(inputs, "i64")
    require_counter(inputs[0])
    attr_int(attrs, "beta1", 0, (1 << BETA_EXPONENT) - 1)
    attr_int(attrs, "beta2", 0, (1 << BETA_EXPONENT) - 1)
    return integer_type("i64", (), CORRECTION_EXPONENT, 0, CORRECTION_MOST)


def _line_at(attrs: Attrs, step: int) -> int:
    starts, rates = attr_ints(attrs, "starts"), attr_ints(attrs, "rates")
    at = bisect_right(starts, step) - 1
    if at < 0 or at == len(starts) - 1:
        return rates[at] if at >= 0 else rates[0]
    length = starts[at + 1] - starts[at]
    rise = (rates[at + 1] - rates[at]) * (step - starts[at])
    return rates[at] + (2 * rise + length) // (2 * length)


def _schedule_linear_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(_line_at(attrs, int(inputs[0])), dtype=np.int64)


def _schedule_linear_leaf(site: Site, e: int) -> int:
    return _line_at(site.attrs, site.read(0))


def _schedule_linear_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The rate of step t on the line from (starts[i], rates[i]) to the next such pair, for the last
    i with starts[i] <= t, rounded half up. Of the last pair it is the rate itself.

    rates[i] + floor((2 (rates[i + 1] - rates[i]) (t - starts[i]) + n) / (2 n)), with n =
    starts[i + 1] - starts[i].

    Attributes:
        rates: integers, each 0 to 65535, as many as starts.
        starts: integers, the first 0, strictly increasing, the last at most 2^40; at least one.
        exponent: integer, -64 to 128; of all rates.
    Inputs: t i64 [].
    Output: i64 [], exponent ``exponent``.
    Range: the least of rates to the greatest of rates.
    Outside: rates[0] where t is below starts[0], which is 0: a disputed t may be negative.
    """
    return _schedule_infer(attrs, inputs)


def _sign_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(np.sign(inputs[0].astype(np.int64)), dtype=np.int32)


def _sign_leaf(site: Site, e: int) -> int:
    x = site.read(0, e)
    return (x > 0) - (x < 0)


def _sign_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The sign of x: 1 where x is above 0, -1 where it is below, 0 at 0.

    Inputs: x any [...].
    Output: i32 [...], exponent 0.
    Range: min(max(x.lo, -1), 1) to min(max(x.hi, -1), 1).
    """
    require_keys(attrs)
    require_inputs(inputs, "int")
    x = inputs[0]
    lo, hi = (min(max(end, -1), 1) for end in (x.lo, x.hi))
    return integer_type("i32", x.shape, 0, lo, hi)


def _capped_square_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    aligned = np.clip(rs(inputs[0], attr_int(attrs, "shift")), -_WIDEST_ROOT, _WIDEST_ROOT)
    return np.asarray(np.minimum(aligned * aligned, np.int64(1 << attr_int(attrs, "bits"))))


def _cap_square(attrs: Attrs, x: int) -> int:
    return int(min(rs_int(x, attr_int(attrs, "shift")) ** 2, 1 << attr_int(attrs, "bits")))


def _capped_square_leaf(site: Site, e: int) -> int:
    return _cap_square(site.attrs, site.read(0, e))


def _capped_square_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The square of x at another exponent, held to 2^bits: min(rs(x, shift)^2, 2^bits).

    Attributes:
        bits: integer, 0 to 59.
        shift: integer, -62 to 64.
    Inputs: x any [...].
    Output: i64 [...], exponent 2 * x.exponent - 2 * shift.
    Range: 0 to min(max(rs(x.lo, shift)^2, rs(x.hi, shift)^2), 2^bits).
    Requires: rs(x.lo, shift) and rs(x.hi, shift) fit int64.
    """
    require_keys(attrs, "bits", "shift")
    require_inputs(inputs, "int")
    x = inputs[0]
    shift = attr_int(attrs, "shift", -62, 64)
    attr_int(attrs, "bits", 0, 59)
    check_fits_int64(rs_int(x.lo, shift), rs_int(x.hi, shift), "the aligned value")
    hi = max(_cap_square(attrs, x.lo), _cap_square(attrs, x.hi))
    return integer_type("i64", x.shape, 2 * x.exponent - 2 * shift, 0, hi)


def _clip_at(attrs: Attrs, total: int) -> int:
    one = 1 << FACTOR_EXPONENT
    norm = math.isqrt(max(total, 1))
    return min((attr_int(attrs, "limit") << FACTOR_EXPONENT) // norm, one)


def _clip_factor_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(_clip_at(attrs, int(inputs[0])), dtype=np.int64)


def _clip_factor_leaf(site: Site, e: int) -> int:
    return _clip_at(site.attrs, site.read(0))


def _clip_factor_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """What gradients are multiplied by so that their norm is at most ``limit``.

    min(2^15, floor(limit * 2^15 / isqrt(max(s, 1)))), with s the sum of their squares and isqrt the
    floor of the square root.

    Attributes:
        limit: integer, 1 to 2^31; its exponent is half of that of s.
    Inputs: s i64 [].
    Output: i64 [], exponent 15.
    Range: min(2^15, limit * 2^15 // isqrt(max(s.hi, 1))) to min(2^15, limit * 2^15 //
        isqrt(max(s.lo, 1))), where x // y is the floor of x / y.
    Requires: s has an even exponent.
    """
    require_keys(attrs, "limit")
    require_inputs(inputs, "i64")
    total = inputs[0]
    attr_int(attrs, "limit", 1, 1 << 31)
    require(total.shape == (), "the sum of squares is a scalar")
    require(total.exponent % 2 == 0, "the exponent of a sum of squares is even")
    lo, hi = _clip_at(attrs, total.hi), _clip_at(attrs, total.lo)
    return integer_type("i64", (), FACTOR_EXPONENT, lo, hi)


def _scale_by_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, factor = inputs
    return rs(x.astype(np.int64) * factor.astype(np.int64), attr_int(attrs, "shift"))


def _scale_by_leaf(site: Site, e: int) -> int:
    return rs_int(site.read(0, e) * site.read(1), attr_int(site.attrs, "shift"))


def _scale_by_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """x times a number of this step: rs(x * factor, shift).

    Attributes:
        shift: integer, -62 to 64.
    Inputs: x any [...]; factor i64 [].
    Output: i64 [...], exponent x.exponent + factor.exponent - shift.
    Range: rs(lo, shift) to rs(hi, shift), where lo and hi are the least and the greatest of the
        four products of an end of x and an end of factor.
    Requires: factor is a scalar; lo and hi fit int64.
    """
    require_keys(attrs, "shift")
    require_inputs(inputs, "int", "i64")
    x, factor = inputs
    shift = attr_int(attrs, "shift", -62, 64)
    require(factor.shape == (), "the factor is a scalar")
    lo, hi = product_range(x, factor)
    check_fits_int64(lo, hi, "the product")
    exponent = x.exponent + factor.exponent - shift
    lo, hi = rs_int(lo, shift), rs_int(hi, shift)
    return integer_type("i64", x.shape, exponent, lo, hi, "the product")


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
    Operator(
        "adam_mean",
        Saturating(_adam_mean_unclamped, lambda attrs: "i32"),
        _adam_mean_infer,
        leaf=pointwise(_adam_mean_leaf),
    ),
    Operator(
        "adam_square",
        _adam_square_law,
        _adam_square_infer,
        leaf=pointwise(_adam_square_leaf),
    ),
    Operator(
        "adam_direction",
        Saturating(_adam_direction_unclamped, lambda attrs: "i32"),
        _adam_direction_infer,
        leaf=pointwise(_adam_direction_leaf),
    ),
    Operator(
        "adam_correction",
        _adam_correction_law,
        _adam_correction_infer,
        leaf=pointwise(_adam_correction_leaf),
    ),
    Operator(
        "schedule_linear",
        _schedule_linear_law,
        _schedule_linear_infer,
        leaf=pointwise(_schedule_linear_leaf),
    ),
    Operator("sign", _sign_law, _sign_infer, leaf=pointwise(_sign_leaf)),
    Operator(
        "capped_square",
        _capped_square_law,
        _capped_square_infer,
        leaf=pointwise(_capped_square_leaf),
    ),
    Operator(
        "clip_factor", _clip_factor_law, _clip_factor_infer, leaf=pointwise(_clip_factor_leaf)
    ),
    Operator("scale_by", _scale_by_law, _scale_by_infer, leaf=pointwise(_scale_by_leaf)),
)
