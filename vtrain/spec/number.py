"""The number format: integer mantissas, static power-of-two exponents, one rounding rule.

A tensor is an integer mantissa ``q`` and an exponent ``f``: value = q * 2^-f.  Everything below is
exact integer arithmetic and is defined for every input, so that two engines can only agree.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.signedinteger[Any]]
I64Array = npt.NDArray[np.int64]

MASTER_EXPONENT = 24
"""Fraction bits of master weights (int32)."""
MOMENTUM_EXPONENT = 16
"""Fraction bits of the momentum (int32)."""
PROBABILITY_EXPONENT = 14
"""Fraction bits of probabilities (int16): 1.0 must not saturate, hence not 15."""
LOG2_EXPONENT = 10
"""Fraction bits of logits in the base-2 log domain, the resolution of the softmax table."""
EXP2_EXPONENT = 16
"""Fraction bits of 2^-d in the softmax."""
LOSS_EXPONENT = 16
"""Fraction bits of the loss: bits (base-2) for cross-entropy, squared units for MSE."""

ACCUMULATOR_LIMIT = 2**60
"""Every accumulator must be proven smaller: Freivalds' check modulo a 61-bit prime needs it."""

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "u8": np.dtype("<u1"),
    "i8": np.dtype("<i1"),
    "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
}

SATURATION: dict[str, tuple[int, int]] = {
    "i8": (-127, 127),
    "i16": (-32639, 32639),
    "i32": (-(2**31) + 1, 2**31 - 1),
}
"""Bounds to which a value is clamped when it is narrowed.  32639 = 127 * 256 + 127: then
q = 256 * hi + lo with both limbs in [-128, 127], and an int16 product is four int8 products."""

STORAGE: dict[str, tuple[int, int]] = {
    "u8": (0, 255),
    "i8": (-128, 127),
    "i16": (-32768, 32767),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
"""What a dtype can hold."""


def rs_int(x: int, shift: int) -> int:
    """Rounding shift of one Python integer: floor((x + 2^(shift-1)) / 2^shift), half up.

    For shift <= 0 it is the exact product x * 2^-shift.  This is the definition; :func:`rs` is the
    same for int64 arrays.
    """
    if shift <= 0:
        return x << -shift
    return (x + (1 << (shift - 1))) >> shift


def rs(x: npt.NDArray[Any], shift: int) -> I64Array:
    """Rounding shift of an integer array, in int64: see :func:`rs_int`.

    The sum x + 2^(shift-1) is never formed: floor(x / 2^s) plus bit s-1 of x is the same number and
    cannot overflow.  For shift >= 64 the result is 0 for every int64.  For shift <= 0 the caller
    has proven that the product fits (the range analysis refuses a graph where it might not).
    """
    wide = x.astype(np.int64)
    if shift <= 0:
        return np.asarray(wide << np.int64(-shift))
    if shift >= 64:
        return np.zeros_like(wide)
    # At shift 64 - 1 = 63 numpy's shift is still defined: floor(x / 2^63) is 0 or -1.
    return np.asarray((wide >> np.int64(shift)) + ((wide >> np.int64(shift - 1)) & np.int64(1)))


def saturate(x: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Clamp to ``SATURATION[dtype]`` and narrow to it; int64 passes through."""
    if dtype == "i64":
        return x.astype(np.int64)
    lo, hi = SATURATION[dtype]
    return np.asarray(np.clip(x, lo, hi), dtype=NUMPY_DTYPES[dtype])


def saturate_int(x: int, dtype: str) -> int:
    """:func:`saturate` of one Python integer."""
    if dtype == "i64":
        return x
    lo, hi = SATURATION[dtype]
    return min(max(x, lo), hi)


def count_saturated(x: npt.NDArray[Any], dtype: str) -> int:
    """How many elements :func:`saturate` would change."""
    if dtype == "i64":
        return 0
    lo, hi = SATURATION[dtype]
    return int(np.count_nonzero((x < lo) | (x > hi)))


def bit_length(x: I64Array) -> I64Array:
    """Elementwise bit length of non-negative int64: the least n with x < 2^n."""
    rest = x.astype(np.int64)
    length = np.zeros_like(rest)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= (np.int64(1) << np.int64(step))
        length += np.where(big, step, 0)
        rest = np.where(big, rest >> np.int64(step), rest)
    return length + (rest > 0)


def isqrt(x: I64Array) -> I64Array:
    """Elementwise floor of the square root of non-negative int64, exactly.

    The float is a first guess only, off by at most one: comparisons of integers decide.
    """
    wide = np.asarray(x, dtype=np.int64)
    root = np.sqrt(wide.astype(np.float64)).astype(np.int64)
    # By quotients, as a square may not fit: r > floor(x / r) where r^2 > x.
    root -= root > wide // np.maximum(root, 1)
    more = root + 1
    return np.asarray(np.where(more <= wide // more, more, root))


def round_to_mantissa(values: npt.NDArray[np.floating[Any]], exponent: int) -> I64Array:
    """Float to integer mantissa: floor(v * 2^exponent + 1/2), evaluated without rounding error.

    Scaling by a power of two is exact in binary64 (|v| < 2^200 assumed by the callers' range
    checks), and so is the comparison of the remaining fraction with 1/2.
    """
    scaled = np.ldexp(values.astype(np.float64), exponent)
    whole = np.floor(scaled)
    return (whole + (scaled - whole >= 0.5)).astype(np.int64)


@cache
def exp2_table() -> I64Array:
    """1024 entries, T[i] = round(2^16 * 2^(-i/1024)), by integer arithmetic alone.

    t = T[i] is the integer with (2t - 1)^1024 <= 2^(17*1024 - i) < (2t + 1)^1024.
    """
    entries = []
    for i in range(1024):
        power = 1 << (17 * 1024 - i)
        entry = round(65536 * 2.0 ** (-i / 1024))  # a first guess only: the loops below decide
        while (2 * entry - 1) ** 1024 > power:
            entry -= 1
        while (2 * entry + 1) ** 1024 <= power:
            entry += 1
        entries.append(entry)
    table = np.array(entries, dtype=np.int64)
    table.flags.writeable = False
    return table


@cache
def log2_table() -> I64Array:
    """1024 entries, L[i] = round(2^16 * log2(1 + (2i + 1) / 2048)): the middle of each interval.

    Evaluated with 60 digits; no entry lies within 10^-9 of a rounding tie, so that any evaluation
    better than that gives the same table (a test shows it).
    """
    from decimal import ROUND_FLOOR, Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        log_two = Decimal(2).ln()
        entries = [
            int(
                (
                    ((2049 + 2 * Decimal(i)) / 2048).ln() / log_two * 65536 + Decimal("0.5")
                ).to_integral_value(ROUND_FLOOR)
            )
            for i in range(1024)
        ]
    table = np.array(entries, dtype=np.int64)
    table.flags.writeable = False
    return table


def log2_q16(x: I64Array) -> I64Array:
    """Base-2 logarithm of positive int64 in 16 fraction bits, by the table of 1024 mantissas.

    log2(x) ~ n + L[ten bits after the leading one] with n = bit_length(x) - 1.  Off by less than
    2^-11 / ln 2 (half an interval of the table) + 2^-17 (rounding of its entries).
    """
    n = bit_length(x) - 1
    index = np.where(n >= 10, x >> np.maximum(n - 10, 0), x << np.maximum(10 - n, 0)) & 1023
    return np.asarray((n << np.int64(LOSS_EXPONENT)) + log2_table()[index])
