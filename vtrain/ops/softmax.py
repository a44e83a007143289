"""Softmax and the losses, split into maximum, exponential, sum and division.

Logits come in the base-2 log domain with 10 fraction bits (a ``rescale`` by log2 e makes them so).
Each row of [batch, classes] is one sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.errors import RangeError
from vtrain.ops.base import (
    LEAST,
    Array,
    LeafRule,
    Operator,
    Site,
    Stream,
    Types,
    adding,
    attr_int,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
    taking_maximum,
)
from vtrain.spec.number import (
    EXP2_EXPONENT,
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    PROBABILITY_EXPONENT,
    exp2_table,
    log2_q16,
    rs,
    rs_int,
)
from vtrain.wire.graph import Attrs, TensorType

_DEEPEST = 31 << LOG2_EXPONENT
"""Differences from the maximum are cut here: 2^-31 is 0 in 16 fraction bits."""
_ONE = 1 << PROBABILITY_EXPONENT
FINE_EXPONENT = 29
"""Fraction bits of the gradient of many classes."""
_FINE_ONE = 1 << FINE_EXPONENT


def _row_max_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(inputs[0].max(axis=1))


def _row_term(site: Site, e: int, column: int) -> int:
    return site.read(0, e * site.types[0].shape[1] + column)


def _row_terms(attrs: Attrs, types: Types) -> int:
    return types[0].shape[1]


def _contiguous(attrs: Attrs, types: Types) -> Sequence[Stream]:
    return [Stream(0, 1)]


_ROW_MAX_LEAF = LeafRule(taking_maximum(_row_term), _row_terms, _contiguous, LEAST)


def _row_max_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The largest of each row.

    Inputs: z i32 [n, classes].
    Output: i32 [n], the exponent of z.
    Range: z.lo to z.hi.
    """
    require_keys(attrs)
    require_inputs(inputs, "i32")
    z = inputs[0]
    require(len(z.shape) == 2 and z.shape[1] > 0, f"needs non-empty rows, has shape {z.shape}")
    return integer_type("i32", z.shape[:1], z.exponent, z.lo, z.hi)


def _exp2_diff_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    z, maximum = inputs
    gap = maximum.astype(np.int64)[:, None] - z
    below = np.clip(gap, 0, _DEEPEST)
    mantissa = exp2_table()[below & 1023]
    whole = below >> LOG2_EXPONENT
    # rs with a shift per element: floor(x / 2^s) plus bit s - 1 (no rounding bit at shift 0).
    half = np.where(whole > 0, (mantissa >> np.maximum(whole - 1, 0)) & 1, 0)
    return np.where(gap < 0, 0, (mantissa >> whole) + half).astype(np.int32)


def _exp2_diff_leaf(site: Site, e: int) -> int:
    gap = site.read(1, e // site.out.shape[1]) - site.read(0, e)
    below = min(gap, _DEEPEST)
    return rs_int(int(exp2_table()[below & 1023]), below >> LOG2_EXPONENT) if gap >= 0 else 0


def _exp2_diff_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """2^(z - max) in 16 fraction bits: d = min(max - z, 31 * 2^10); rs(T[d & 1023], d >> 10).

    T is the table of section 1 of the format.

    Inputs: z i32 [n, classes]; max i32 [n].
    Output: i32 [n, classes], exponent 16.
    Range: 0 to 2^16.
    Requires: both exponents are 10; in a legal graph max is the ``row_max`` of z.
    Outside: 0 where z is above max, which no legal graph has and a disputed input may have.
    """
    require_keys(attrs)
    require_inputs(inputs, "i32", "i32")
    z, maximum = inputs
    require(len(z.shape) == 2 and maximum.shape == z.shape[:1], "needs rows and their maxima")
    require(z.exponent == maximum.exponent == LOG2_EXPONENT, "logits need 10 fraction bits")
    return integer_type("i32", z.shape, EXP2_EXPONENT, 0, 1 << EXP2_EXPONENT)


def _row_sum_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(inputs[0].sum(axis=1, dtype=np.int64))


_ROW_SUM_LEAF = LeafRule(adding(_row_term), _row_terms, _contiguous)


def _row_sum_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The sum of each row.

    Inputs: x i32 [n, classes].
    Output: i64 [n], the exponent of x.
    Range: classes * x.lo to classes * x.hi (0 is not added to it, as ``sum`` and ``column_sum``
        do).
    """
    require_keys(attrs)
    require_inputs(inputs, "i32")
    x = inputs[0]
    require(len(x.shape) == 2 and x.shape[1] > 0, f"needs non-empty rows, has shape {x.shape}")
    count = x.shape[1]
    return integer_type("i64", x.shape[:1], x.exponent, count * x.lo, count * x.hi, "the sum")


def _divide_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    e, total = inputs
    divisor = np.maximum(total, 1)[:, None]
    # The low 16 bits: all of them where e <= S, as in every legal graph.
    return np.asarray(((e.astype(np.int64) * _ONE + divisor // 2) // divisor).astype(np.int16))


def _divide_leaf(site: Site, e: int) -> int:
    divisor = max(site.read(1, e // site.out.shape[1]), 1)
    quotient = (site.read(0, e) * _ONE + divisor // 2) // divisor
    return (quotient + 2**15) % 2**16 - 2**15


def _divide_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Rounded quotient in 14 fraction bits: floor((e * 2^14 + floor(S / 2)) / S), S = max(sum, 1).

    Inputs: e i32 [n, classes]; sum i64 [n].
    Output: i16 [n, classes], exponent 14.
    Range: 0 to 2^14.
    Requires: both have one exponent; e.lo and sum.lo are at least 0; in a legal graph sum is the
        ``row_sum`` of e, so that 0 <= e <= S.
    Outside: where e is more than S or negative (a disputed input may be), the low 16 bits of the
        quotient, as two's complement.
    """
    require_keys(attrs)
    require_inputs(inputs, "i32", "i64")
    e, total = inputs
    require(len(e.shape) == 2 and total.shape == e.shape[:1], "needs rows and their sums")
    require(e.exponent == total.exponent, "terms and sum need the same exponent")
    require(e.lo >= 0 and total.lo >= 0, "terms and sum must not be negative")
    return integer_type("i16", e.shape, PROBABILITY_EXPONENT, 0, _ONE)


def _labels(labels: Array, classes: int) -> Array:
    """Labels as indices: the law is total, a label outside [0, classes) counts as the nearest."""
    return np.clip(labels.astype(np.int64), 0, classes - 1)


def _sub_one_hot_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    p, labels = inputs
    out = p.copy()
    out[np.arange(p.shape[0]), _labels(labels, p.shape[1])] -= _ONE
    return out


def _read_label(site: Site, input: int, row: int) -> int:
    return min(max(site.read(input, row), 0), site.types[0].shape[1] - 1)


def _sub_one_hot_leaf(site: Site, e: int) -> int:
    row, column = divmod(e, site.out.shape[1])
    return site.read(0, e) - (_ONE if column == _read_label(site, 1, row) else 0)


def _sub_one_hot_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """p minus 2^14 at the label: the gradient of the cross-entropy, not averaged over the batch.

    Inputs: p i16 [n, classes]; label any [n].
    Output: i16 [n, classes], exponent 14.
    Range: p.lo - 2^14 to p.hi.
    Requires: p has exponent 14.
    Outside: a label below 0 counts as 0, one of classes or more as classes - 1.
    """
    require_keys(attrs)
    require_inputs(inputs, "i16", "int")
    p, labels = inputs
    require(len(p.shape) == 2 and labels.shape == p.shape[:1], "needs a label for each row")
    require(p.exponent == PROBABILITY_EXPONENT, "probabilities need 14 fraction bits")
    return integer_type("i16", p.shape, p.exponent, p.lo - _ONE, p.hi)


def _logit_grad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    e, total, labels = inputs
    divisor = np.maximum(total, 1)[:, None]
    # The low 32 bits, as of ``divide``.
    out = ((e.astype(np.int64) * _FINE_ONE + divisor // 2) // divisor).astype(np.int32)
    out[np.arange(e.shape[0]), _labels(labels, e.shape[1])] -= np.int32(_FINE_ONE)
    return np.asarray(out)


def _logit_grad_leaf(site: Site, e: int) -> int:
    row, column = divmod(e, site.out.shape[1])
    divisor = max(site.read(1, row), 1)
    quotient = (site.read(0, e) * _FINE_ONE + divisor // 2) // divisor
    one = _FINE_ONE if column == _read_label(site, 2, row) else 0
    return (quotient - one + 2**31) % 2**32 - 2**31


def _logit_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The gradient of the cross-entropy of many classes: shares of the sum, less 1 at the label.

    floor((e * 2^29 + floor(S / 2)) / S), S = max(sum, 1), and 2^29 less at the label: a share of
    one in 2^17 classes still has 12 bits.

    Inputs: e i32 [n, classes]; sum i64 [n]; label any [n].
    Output: i32 [n, classes], exponent 29.
    Range: -2^29 to 2^29.
    Requires: e and sum have one exponent; e.lo and sum.lo are at least 0; in a legal graph sum is
        the ``row_sum`` of e, so that 0 <= e <= S.
    Outside: a label below 0 counts as 0, one of classes or more as classes - 1.  Where e is more
        than S or negative (a disputed input may be), the low 32 bits, as two's complement, of the
        whole element: at the label after 2^29 is taken away.
    """
    require_keys(attrs)
    require_inputs(inputs, "i32", "i64", "int")
    e, total, labels = inputs
    fits = len(e.shape) == 2 and total.shape == labels.shape == e.shape[:1]
    require(fits, "needs a sum and a label for each row")
    require(e.exponent == total.exponent, "terms and sum need the same exponent")
    require(e.lo >= 0 and total.lo >= 0, "terms and sum must not be negative")
    return integer_type("i32", e.shape, FINE_EXPONENT, -_FINE_ONE, _FINE_ONE)


def _cross_entropy_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    z, maximum, total, labels = inputs
    rows = np.arange(z.shape[0])
    chosen = z[rows, _labels(labels, z.shape[1])].astype(np.int64)
    gap = (maximum.astype(np.int64) - chosen) << (LOSS_EXPONENT - LOG2_EXPONENT)
    return gap + log2_q16(np.maximum(total, 1)) - (EXP2_EXPONENT << LOSS_EXPONENT)


def _cross_entropy_leaf(site: Site, e: int) -> int:
    chosen = site.read(0, e * site.types[0].shape[1] + _read_label(site, 3, e))
    gap = (site.read(1, e) - chosen) << (LOSS_EXPONENT - LOG2_EXPONENT)
    logarithm = log2_q16(np.asarray(max(site.read(2, e), 1), np.int64))
    return gap + int(logarithm) - (EXP2_EXPONENT << LOSS_EXPONENT)


def _cross_entropy_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The loss of each row in bits: (max - z[label]) * 2^6 + log2(sum) - 16 * 2^16.

    log2(x) = n * 2^16 + L[i] with n = bitlen(x) - 1 and i the ten bits after the leading one, that
    is i = floor(x * 2^10 / 2^n) - 2^10: below 2^10, where x has fewer bits, zeros follow.  L is the
    table of section 1 of the format.

    Inputs: z i32 [n, classes]; max i32 [n]; sum i64 [n]; label any [n].
    Output: i64 [n], exponent 16.
    Range: (max.lo - z.hi) * 2^6 - 16 * 2^16 to (max.hi - z.lo) * 2^6 + 64 * 2^16, wider than what
        rows and their maxima can give: the ranges count as independent.
    Requires: z has exponent 10 and sum 16; in a legal graph max is the ``row_max`` of z.  Nothing
        is required of the exponent of max, nor that sum is one of exponentials.
    Outside: a label below 0 counts as 0, one of classes or more as classes - 1; a sum below 1 as 1.
    """
    require_keys(attrs)
    require_inputs(inputs, "i32", "i32", "i64", "int")
    z, maximum, total, labels = inputs
    require(len(z.shape) == 2, "needs rows of logits")
    require(
        maximum.shape == total.shape == labels.shape == z.shape[:1],
        "needs a maximum, a sum and a label for each row",
    )
    require(z.exponent == LOG2_EXPONENT and total.exponent == EXP2_EXPONENT, "wrong exponents")
    scale = LOSS_EXPONENT - LOG2_EXPONENT
    lo = (maximum.lo - z.hi << scale) - (EXP2_EXPONENT << LOSS_EXPONENT)
    hi = (maximum.hi - z.lo << scale) + (64 << LOSS_EXPONENT)
    return integer_type("i64", z.shape[:1], LOSS_EXPONENT, lo, hi, "the loss")


def _square_sum_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    wide = inputs[0].astype(np.int64)
    return rs(np.asarray((wide * wide).sum()), attr_int(attrs, "shift"))


def _square_term(site: Site, e: int, term: int) -> int:
    return site.read(0, term) ** 2


def _all_terms(attrs: Attrs, types: Types) -> int:
    return types[0].size


_SQUARE_SUM_LEAF = LeafRule(
    adding(_square_term),
    _all_terms,
    _contiguous,
    finish=lambda attrs, state: rs_int(state[0], attr_int(attrs, "shift")),
)


def _square_sum_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """rs(sum of x^2 over all elements, shift): the loss of the mean squared error, not averaged.

    The sum is exact and rounded once.

    Attributes:
        shift: integer, -62 to 64; it is 2 * x.exponent - 16.
    Inputs: x i16 [...].
    Output: i64 [], exponent 16.
    Range: 0 to m * 2^-shift where shift is at most 0, else to floor(m / 2^shift) + 1, with m the
        number of elements times the larger of x.lo^2 and x.hi^2.
    Requires: m is below 2^62.
    """
    require_keys(attrs, "shift")
    require_inputs(inputs, "i16")
    x = inputs[0]
    shift = attr_int(attrs, "shift", -62, 64)
    require(2 * x.exponent - shift == LOSS_EXPONENT, "shift does not give 16 fraction bits")
    largest = x.size * max(x.lo * x.lo, x.hi * x.hi)
    if largest >= 2**62:
        raise RangeError(f"the sum of squares may reach {largest}")
    hi = largest << -shift if shift <= 0 else (largest >> shift) + 1
    return integer_type("i64", (), LOSS_EXPONENT, 0, hi, "the loss")


def _sum_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(inputs[0].sum(dtype=np.int64))


def _sum_term(site: Site, e: int, term: int) -> int:
    return site.read(0, term)


_SUM_LEAF = LeafRule(adding(_sum_term), _all_terms, _contiguous)


def _sum_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The sum of all elements.

    Inputs: x any [...].
    Output: i64 [], the exponent of x.
    Range: min(c * x.lo, 0) to max(c * x.hi, 0), with c the number of elements.
    """
    require_keys(attrs)
    require_inputs(inputs, "int")
    x = inputs[0]
    lo, hi = min(x.size * x.lo, 0), max(x.size * x.hi, 0)
    return integer_type("i64", (), x.exponent, lo, hi, "the sum")


OPERATORS = table(
    Operator("row_max", _row_max_law, _row_max_infer, leaf=_ROW_MAX_LEAF),
    Operator("exp2_diff", _exp2_diff_law, _exp2_diff_infer, leaf=pointwise(_exp2_diff_leaf)),
    Operator("row_sum", _row_sum_law, _row_sum_infer, leaf=_ROW_SUM_LEAF),
    Operator("divide", _divide_law, _divide_infer, leaf=pointwise(_divide_leaf)),
    Operator(
        "sub_one_hot", _sub_one_hot_law, _sub_one_hot_infer, leaf=pointwise(_sub_one_hot_leaf)
    ),
    Operator("logit_grad", _logit_grad_law, _logit_grad_infer, leaf=pointwise(_logit_grad_leaf)),
    Operator(
        "cross_entropy",
        _cross_entropy_law,
        _cross_entropy_infer,
        leaf=pointwise(_cross_entropy_leaf),
    ),
    Operator("square_sum", _square_sum_law, _square_sum_infer, leaf=_SQUARE_SUM_LEAF),
    Operator("sum", _sum_law, _sum_infer, leaf=_SUM_LEAF),
)
