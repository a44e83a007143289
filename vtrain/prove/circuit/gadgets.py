"""What circuits say about the project's operators: ranges, rounding, saturation, masks, softmax.

Each gadget states its condition and what makes it unique.  All quantities are integers far below
the field's prime (about 2^254), so that an equation modulo the prime is one of integers; where a
value is an integer only because an equation with integers says so, the gadget's text says it.

The law of each operator is in ``vtrain.ops``; the names here are those of its formulas: rs is the
rounding shift, M = ``SATURATION[dtype][1]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.errors import CircuitError
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.values import Ints, Lin, Tensor, Values
from vtrain.spec.number import (
    EXP2_EXPONENT,
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    PROBABILITY_EXPONENT,
    SATURATION,
    STORAGE,
    exp2_table,
    log2_table,
    rs_int,
)

_FULL: Final = 1 << 16


def split_interval(top: int, span: int, count: int | None = None) -> tuple[list[int], int]:
    """Weights A_0, A_1, ... and a rest with (span - 1) sum A_i + rest = top, rest < span - 1.

    Each v in [0, top], and no other integer, is sum A_i l_i + w with 0 <= l_i < span and
    0 <= w <= rest: A_i is at most what w and the limbs below it reach, plus 1.  ``count`` weights,
    zeros from where the others do, or as many as it takes; CircuitError if ``count`` do not reach
    ``top``.
    """
    left, rest = divmod(top, span - 1)
    weights: list[int] = []
    reach = rest
    while left > 0 if count is None else len(weights) < count:
        weights.append(min(left, reach + 1))
        left -= weights[-1]
        reach += weights[-1] * (span - 1)
    if left:
        raise CircuitError(f"{count} limbs of {span} do not reach {top}")
    return weights, rest


def _choose_limbs(value: Ints, weights: Sequence[int], span: int) -> tuple[list[Ints], Ints]:
    """The limbs of every element, in the order of the weights, and w, what is left."""
    limbs: list[Ints] = []
    left = np.asarray(value, dtype=object)
    for weight in reversed(weights):
        limbs.append(np.clip(left // weight, 0, span - 1) if weight else left * 0)
        left = left - limbs[-1] * weight
    return limbs[::-1], left


def interval(
    b: CircuitBuilder,
    name: str,
    weights: Sequence[Tensor | int],
    rest: Lin,
    compute: Callable[[Values], Ints],
    ones: Tensor | None = None,
) -> Lin:
    """The integer ``compute`` in [0, top], exactly: see :func:`split_interval`.

    Weights are constants or, with ``ones`` of the shape, parameters; ``rest`` is a form, the same
    at every element.  w and rest - w are both limbs; where the rest is the constant 0, there is no
    w.
    """
    shape = rest.shape

    def choose(values: Values) -> tuple[list[Ints], Ints]:
        factors = [w if isinstance(w, int) else int(values[w].reshape(())[()]) for w in weights]
        return _choose_limbs(compute(values), factors, b.span)

    total: Lin | None = None
    if rest.terms or rest.const:
        total = b.limb(f"{name}/low", shape, lambda values: choose(values)[1])
        room = b.limb(f"{name}/room", shape, lambda values: values[rest] - choose(values)[1])
        b.zero(f"{name}/room", total + room - rest)
    for index, weight in enumerate(weights):
        part = b.limb(
            f"{name}/limb {index}",
            shape,
            lambda values, index=index: choose(values)[0][index],  # type: ignore[misc]
        )
        part = part * weight if isinstance(weight, int) else part.times(weight, ones)
        total = part if total is None else total + part
    if total is None:
        raise CircuitError("has no limb", where=name)
    return total


def exact(
    b: CircuitBuilder,
    name: str,
    shape: Sequence[int],
    top: int,
    compute: Callable[[Values], Ints],
) -> Lin:
    """The integer ``compute`` in [0, top], exactly: the range is proven, not assumed."""
    weights, rest = split_interval(top, b.span)
    return interval(b, name, weights, Lin(tuple(shape), (), rest), compute)


def remainder(
    b: CircuitBuilder,
    name: str,
    shape: Sequence[int],
    bits: int,
    compute: Callable[[Values], Ints],
) -> tuple[Lin, int]:
    """(r 2^e, e) for a value r in [0, 2^bits) that an equation shows to be an integer.

    With a table of 2^16 entries the narrow limb is looked up scaled to 16 bits, once:
    r 2^(16 - bits) in [0, 2^16) and r an integer give r in [0, 2^bits).
    """
    if b.span != _FULL or bits % 16 == 0:
        return exact(b, name, shape, (1 << bits) - 1, compute), 0
    narrow = bits % 16
    scale = 16 - narrow
    total = b.limb(
        f"{name}/scaled",
        shape,
        lambda values: (np.asarray(compute(values), dtype=object) & (1 << narrow) - 1) << scale,
    )
    for start in range(narrow, bits, 16):
        part = b.limb(
            f"{name}/bits {start} to {start + 15}",
            shape,
            lambda values, start=start: (  # type: ignore[misc]
                np.asarray(compute(values), dtype=object) >> start & 0xFFFF
            ),
        )
        total = total + part * (1 << start + scale)
    return total, scale


def at_least_zero(
    b: CircuitBuilder,
    name: str,
    shape: Sequence[int],
    most: int,
    compute: Callable[[Values], Ints],
) -> Lin:
    """An integer >= 0 that may reach ``most``; somewhat more is not excluded."""
    total: Lin | None = None
    weight = 1
    index = 0
    while weight <= max(most, 1):
        part = b.limb(
            f"{name}/digit {index}",
            shape,
            lambda values, weight=weight: (  # type: ignore[misc]
                np.asarray(compute(values), dtype=object) // weight % b.span
            ),
        )
        total = part * weight if total is None else total + part * weight
        weight *= b.span
        index += 1
    if total is None:
        raise CircuitError("has no digit", where=name)
    return total


def nonnegative(b: CircuitBuilder, name: str, form: Lin, most: int) -> None:
    """A form is an integer >= 0; it may reach ``most``, and somewhat more is not excluded."""
    digits = at_least_zero(b, name, form.shape, most, lambda values: values[form])
    b.zero(name, digits - form)


def hold_range(b: CircuitBuilder, name: str, x: Tensor, lo: int, hi: int) -> None:
    """lo <= x <= hi at every element, exactly; a short range by x - lo and hi - x."""
    if hi - lo < b.span:
        low = b.limb(f"{name}/from below", x.shape, lambda values: values[x] - lo)
        b.zero(f"{name}/from below", low - (x.lin() - lo))
        if hi - lo < b.span - 1:
            high = b.limb(f"{name}/from above", x.shape, lambda values: hi - values[x])
            b.zero(f"{name}/from above", high - (x.lin() * -1 + hi))
        return
    within = exact(b, name, x.shape, hi - lo, lambda values: values[x] - lo)
    b.zero(name, within - (x.lin() - lo))


def hold_dtype(b: CircuitBuilder, name: str, x: Tensor, dtype: str) -> None:
    """x is what ``dtype`` can store."""
    hold_range(b, f"{name}/{dtype}", x, *STORAGE[dtype])


def hold_saturated(b: CircuitBuilder, name: str, x: Tensor, dtype: str) -> None:
    """x is in the range to which ``dtype`` saturates.

    For int32, 32 bits from -2^31 on, and no element is -2^31: their product has an inverse.
    """
    lo, hi = SATURATION[dtype]
    if dtype != "i32":
        hold_range(b, f"{name}/{dtype}", x, lo, hi)
        return
    low = exact(b, f"{name}/i32", x.shape, (1 << 32) - 1, lambda values: values[x] + (1 << 31))
    b.zero(f"{name}/i32", low - (x.lin() + (1 << 31)))
    b.nonzero(f"{name}/i32/least", b.add(x, b.constant(1 << 31)))


def hold_integer(b: CircuitBuilder, name: str, x: Tensor, reach: int) -> None:
    """x is an integer; |x| is not much more than ``reach``."""
    digits = at_least_zero(b, f"{name}/integer", x.shape, 2 * reach, lambda v: v[x] + reach)
    b.zero(f"{name}/integer", digits - (x.lin() + reach))


def hold_most_of_int32(b: CircuitBuilder, name: str, x: Tensor) -> None:
    """|x| <= 2^31 - 2^15: what saturates, or nearly does, is not provable.  Needs a span of 2^16.

    x + 2^31 - 2^15 = 65535 hi + lo reaches 0 .. 2^32 - 2^16 without a gap, as lo goes beyond 65535.
    """
    bound = (1 << 31) - (1 << 15)
    high = b.limb(f"{name}/i32/high", x.shape, lambda v: np.minimum((v[x] + bound) // 65535, 65535))
    low = b.limb(
        f"{name}/i32/low",
        x.shape,
        lambda v: v[x] + bound - 65535 * np.asarray(v[high], dtype=object),
    )
    b.zero(f"{name}/i32", high * 65535 + low - bound - x.lin())


def saturating_shift(
    b: CircuitBuilder,
    name: str,
    x: Lin,
    shift: int,
    dtype: str,
    y: Tensor,
    reach: int,
    *,
    clamps: bool = True,
) -> None:
    """y = sat(rs(x, shift)), x a form of integers with |rs(x, shift)| <= ``reach``.

    x + h = 2^s q + r with h = 2^(s-1), 0 <= r < 2^s, and q = y + d: r is an integer as all else is
    (M is odd).  y lies in [-M, M].  With an integer t >= 0: t y = M d and t (M^2 - y^2) = 0.  So
    either t = 0, d = 0, y = q; or y = +-M and d = t with the sign of y, that is q is beyond y: in
    both cases y is the clamped q.  The second condition is summed over all elements, as no term is
    negative.  Without ``clamps``, d = 0: the circuit holds of no step that clamps here.
    """
    most = SATURATION[dtype][1]
    if reach <= most:
        hold_integer(b, name, y, reach)
    elif dtype == "i32" and not clamps:
        hold_most_of_int32(b, name, y)
    else:
        hold_saturated(b, name, y, dtype)
    link_shift(b, name, x, shift, y, most, reach, clamps=clamps)


def shift_and_hold(b: CircuitBuilder, name: str, x: Tensor, shift: int, y: Tensor) -> None:
    """y = rs(x, shift), saturated int16, and x is an integer in the range of int32, by this alone.

    For 0 < shift <= 13 and a span of 2^16; holds only of y <= M + 1 - 2^shift, and of a few above.
    x + h = 2^s y + r.  As x is not known to be an integer, the look-up of 2^(16 - s) r does not say
    that r is one.  But y + M is looked up, and so is M - y - r: so y and r are integers, hence
    0 <= r < 2^s, and y lies in [-M, M - r].
    """
    if not (can_hold(shift) and b.span == _FULL):
        raise CircuitError(f"shifts by {shift} bits over limbs below {b.span}", where=name)
    most, half, unit = SATURATION["i16"][1], 1 << shift - 1, 1 << 16 - shift

    def rest_of(values: Values) -> Ints:
        return np.asarray((values[x] + half) & (1 << shift) - 1)

    rest = b.limb(f"{name}/remainder/scaled", x.shape, lambda values: rest_of(values) * unit)
    low = b.limb(f"{name}/from below", x.shape, lambda values: values[y] + most)
    high = b.limb(f"{name}/from above", x.shape, lambda v: most - v[y] - rest_of(v))
    b.zero(f"{name}/from below", low - most - y.lin())
    b.zero(f"{name}/from above", (high + y.lin() - most) * unit + rest)
    b.zero(name, (x.lin() + half) * unit - rest - y.lin() * (1 << 16))


_MOST_HELD: Final = 13


def can_hold(shift: int) -> bool:
    """Whether :func:`shift_and_hold` takes this shift: beyond it too few values would be left."""
    return 0 < shift <= _MOST_HELD


def link_shift(
    b: CircuitBuilder,
    name: str,
    x: Lin,
    shift: int,
    y: Tensor,
    most: int,
    reach: int,
    *,
    clamps: bool = True,
) -> None:
    """:func:`saturating_shift` for a y that is known to lie in [-most, most]."""
    if shift > 0:
        half = 1 << shift - 1
        rest, scale = remainder(
            b,
            f"{name}/remainder",
            x.shape,
            shift,
            lambda values: (values[x] + half) & (1 << shift) - 1,
        )
        whole = (x + half) * (1 << scale) - rest
        unit = 1 << shift + scale
    else:
        whole, unit = x * (1 << -shift), 1
    if not clamps or reach <= most:
        b.zero(name, whole - y.lin() * unit)
        return

    clamp(b, name, whole, y, unit, most, reach - most)


def clamp(
    b: CircuitBuilder, name: str, whole: Lin, y: Tensor, unit: int | Tensor, most: int, reach: int
) -> None:
    """y is q clamped to [-M, M], M = ``most``, where whole = unit q + r with 0 <= r < unit.

    ``whole`` is less r here, or r is in it where q is known to be an integer otherwise; y is known
    to be one, and to lie in [-M, M].  With an integer t >= 0, M whole = unit (M y + t y), and the
    sum of M^2 t - t y^2 = t (M^2 - y^2) over all elements, none of which is negative, is 0.  So
    t = 0 and q = y; or y = +-M and q - y has its sign and the size t, at most some ``reach``.
    """

    def times(x: Tensor) -> Lin:
        return x.lin() * unit if isinstance(unit, int) else x.times(unit)

    def excess(values: Values) -> Ints:
        divisor = unit if isinstance(unit, int) else int(values[unit][0])
        quotient = np.asarray(values[whole], dtype=object) // divisor
        return np.asarray(np.abs(quotient - values[y]), dtype=object)

    t = b.hint(f"{name}/excess", y.shape, excess)
    digits = at_least_zero(b, f"{name}/excess", y.shape, reach, excess)
    b.zero(f"{name}/excess", digits - t.lin())
    beyond = b.mul(t, y)
    b.zero(name, whole * most - times(y) * most - times(beyond))
    b.zero_sum(f"{name}/clamped", [(t, None, most * most), (beyond, y, -1)])


def rounding_shift(
    b: CircuitBuilder, name: str, x: Lin, shift: int, q: Lin | None = None, reach: int = 0
) -> Lin:
    """rs(x, shift) as a form; for shift > 0 a hint of ``reach`` at most unless ``q`` is given.

    A given q must be known to be a form of integers.
    """
    if shift <= 0:
        return x * (1 << -shift)
    half = 1 << shift - 1
    if q is None:
        q = (
            exact(
                b,
                f"{name}/quotient",
                x.shape,
                2 * reach,
                lambda values: ((values[x] + half) >> shift) + reach,
            )
            - reach
        )
    rest, scale = remainder(
        b, f"{name}/remainder", x.shape, shift, lambda values: (values[x] + half) & (1 << shift) - 1
    )
    b.zero(name, (x + half) * (1 << scale) - rest - q * (1 << shift + scale))
    return q


def positive_mask(b: CircuitBuilder, name: str, x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(m, m x) with m = [x > 0], for integers |x| <= most.

    m^2 = m, and (2 m - 1) x - m >= 0: with m = 1 that is x >= 1, with m = 0 it is x <= 0.
    """
    m = b.hint(f"{name}/mask", x.shape, lambda values: (values[x] > 0).astype(np.int64))
    b.zero(f"{name}/mask", b.mul(m, m).lin() - m.lin())
    masked = b.mul(m, x)
    signed = masked.lin() * 2 - x.lin() - m.lin()
    nonnegative(b, f"{name}/sign", signed, most)
    return m, masked


def gate(b: CircuitBuilder, name: str, x: Tensor, g: Tensor, y: Tensor, most: int) -> None:
    """y = g where x > 0, else 0: relu (g = x), its gradient, maxima and their routing."""
    m, masked = positive_mask(b, name, x, most)
    passed = masked if g is x else b.mul(m, g)
    b.zero(name, passed.lin() - y.lin())


def one_hot(b: CircuitBuilder, name: str, label: Tensor, classes: int) -> Tensor:
    """[n] labels -> [n, classes]: a one at the label; all elements 0 or 1, each row summing to 1.

    No row is that of a label outside [0, classes), which the law takes for the nearest class.
    """
    (rows,) = label.shape

    def compute(values: Values) -> Ints:
        labels = np.asarray(values[label], dtype=object)
        return np.asarray(labels[:, None] == np.arange(classes)[None, :], dtype=np.int64)

    hot = b.hint(name, (rows, classes), compute)
    b.zero(f"{name}/boolean", b.mul(hot, hot).lin() - hot.lin())
    weigh_rows(b, f"{name}/sums", hot, np.ones(classes, dtype=np.int64), 1, None)
    weigh_rows(b, f"{name}/labels", hot, np.arange(classes), 0, label)
    return hot


def weigh_rows(
    b: CircuitBuilder,
    name: str,
    x: Tensor,
    weights: npt.NDArray[Any],
    const: int,
    total: Tensor | None,
) -> None:
    """sum_j weights_j x_ij = const + total_i for every row i (total None: 0)."""
    rows, columns = x.shape
    left = b.powers("vector", rows)
    fixed = b.fixed(f"{name}/weights", np.asarray(weights, dtype=object).reshape(columns))
    parts = [b.dot(b.contract(x, 0, left), fixed)]
    factors = [b.constant(1)]
    if const:
        parts.append(b.dot(left, b.fixed(f"{name}/constant", np.full(rows, const, dtype=object))))
        factors.append(b.constant(-1))
    if total is not None:
        parts.append(b.dot(left, total))
        factors.append(b.constant(-1))
    b.require_zero(name, b.weigh(parts, factors), b.degree_of(left))


def spread(b: CircuitBuilder, x: Tensor, columns: int) -> Tensor:
    """[n] -> [n, columns], every row the same value; free."""
    return b.take(x, np.repeat(np.arange(x.size), columns).reshape(x.size, columns))


_SHIFTS: Final = 32
"""Octaves in a table of powers of two, of whose last an exponential is 0 in 16 fraction bits."""
_STEPS: Final = 1 << LOG2_EXPONENT
LAST_GAP: Final = (EXP2_EXPONENT + 1) * _STEPS + 1
"""From this gap on, 2^-gap is 0 in 16 fraction bits."""


def exponential(
    b: CircuitBuilder, name: str, gap: Tensor, e: Tensor, reach: int, *, one_table: bool
) -> None:
    """The node ``exp2_diff`` of a gap that this shows to be >= 0 and that may reach ``reach``.

    gap = cut + over with over >= 0 and cut <= end, where the exponential is 0; the sum of
    over (end - cut), of which no term is negative, is 0: so cut = min(gap, end).  Either
    (cut, e) is a row of ``one_table`` of all :data:`LAST_GAP` + 1 exponentials, or, where there are
    fewer rows, cut falls into a whole number of octaves and a fraction of one.
    """
    end = LAST_GAP if one_table else _SHIFTS * _STEPS - 1
    cut = b.hint(f"{name}/cut", gap.shape, lambda values: np.minimum(values[gap], end))
    nonnegative(b, f"{name}/over", gap.lin() - cut.lin(), reach)
    short = b.sub(b.constant(end), cut)
    b.zero_sum(f"{name}/cut", [(b.sub(gap, cut), short, 1)])
    if one_table:
        b.member(name, (cut, e), (np.arange(end + 1), list_exponentials()))
    else:
        _split_exponential(b, name, cut, e)


def list_exponentials() -> Ints:
    """What ``exp2_diff`` makes of the gaps 0 ... LAST_GAP."""
    table = exp2_table()
    values = [rs_int(int(table[gap % _STEPS]), gap // _STEPS) for gap in range(LAST_GAP + 1)]
    return np.asarray(values, dtype=object)


def _split_exponential(b: CircuitBuilder, name: str, cut: Tensor, e: Tensor) -> None:
    """cut = 1024 whole + fraction, both of tables, and mantissa + half = e 2^whole + r with
    0 <= r < 2^whole, half = floor(2^(whole - 1)) and e an integer in [0, 2^17)."""
    shape = cut.shape
    fraction = b.hint(f"{name}/fraction", shape, lambda v: v[cut] % _STEPS)
    mantissa = b.hint(f"{name}/mantissa", shape, lambda v: _look_up(exp2_table(), v[cut] % _STEPS))
    b.member(f"{name}/exp2", (fraction, mantissa), (np.arange(_STEPS), exp2_table()))
    powers = np.asarray([1 << i for i in range(_SHIFTS)], dtype=object)
    whole = b.hint(f"{name}/whole", shape, lambda v: v[cut] // _STEPS)
    power = b.hint(f"{name}/power", shape, lambda v: _look_up(powers, v[cut] // _STEPS))
    half = b.hint(f"{name}/half", shape, lambda v: _look_up(powers, v[cut] // _STEPS) // 2)
    b.member(f"{name}/power", (whole, power, half), (np.arange(_SHIFTS), powers, powers // 2))
    b.zero(f"{name}/cut parts", whole.lin() * _STEPS + fraction.lin() - cut.lin())
    hold_range(b, f"{name}/e", e, 0, (1 << EXP2_EXPONENT + 1) - 1)
    rest = mantissa.lin() + half.lin() - b.mul(e, power).lin()
    nonnegative(b, f"{name}/rest", rest, powers[-1])
    nonnegative(b, f"{name}/bound", power.lin() - rest - 1, powers[-1])


def softmax(
    b: CircuitBuilder,
    name: str,
    z: Tensor,
    maximum: Tensor,
    e: Tensor,
    total: Tensor,
    p: Tensor,
    reach: int,
) -> None:
    """The nodes ``row_max``, ``exp2_diff``, ``row_sum`` and ``divide`` over rows z [n, classes].

    ``reach`` bounds max - z.  Every output is pinned down by the conditions on its own integers.
    """
    classes = z.shape[1]
    # Maximum: no element is above it, and in each row one is not below it (a product is zero).
    highest = spread(b, maximum, classes)
    gap = b.sub(highest, z)
    b.require_zero(f"{name}/maximum", b.product_of_all(gap))
    exponential(b, f"{name}/exp", gap, e, reach, one_table=False)
    # Sum of each row.
    weigh_rows(b, f"{name}/sum", e, np.ones(classes, dtype=np.int64), 0, total)
    divide(b, f"{name}/p", e, total, spread(b, total, classes), p, classes << EXP2_EXPONENT + 1)


def divide(
    b: CircuitBuilder,
    name: str,
    e: Tensor,
    total: Tensor,
    divisor: Tensor,
    p: Tensor,
    most: int,
) -> None:
    """The node ``divide``: p = floor((e 2^14 + floor(S / 2)) / S) for the S >= 1 of each row.

    That is floor((e 2^15 + S) / 2 S), as half an odd S is an integer and 1/2.  So e 2^15 + S =
    2 S p + r with integers r >= 0 and 2 S - 1 - r >= 0, and p, which is one limb.  ``divisor`` is S
    (``total``) at every element; ``most`` bounds 2 S.
    """
    nonnegative(b, name, p.lin(), b.span - 1)
    share = b.mul(p, spread(b, total, p.shape[1]))
    rest = e.lin() * (2 << PROBABILITY_EXPONENT) + divisor.lin() - share.lin() * 2
    nonnegative(b, f"{name}/rest", rest, most)
    nonnegative(b, f"{name}/room", divisor.lin() * 2 - rest - 1, most)


def _look_up(table: npt.NDArray[Any], index: Ints) -> Ints:
    return np.asarray(table, dtype=object)[np.asarray(index, dtype=np.int64)]


def cross_entropy(
    b: CircuitBuilder,
    name: str,
    z: Tensor,
    maximum: Tensor,
    total: Tensor,
    hot: Tensor,
    rows: Tensor,
) -> None:
    """The node ``cross_entropy``: max - z[label] + log2(S) - 16 in 16 fraction bits, S >= 2^16."""
    count, classes = z.shape
    bits = EXP2_EXPONENT + max(classes - 1, 1).bit_length() + 1
    lengths = np.arange(EXP2_EXPONENT, bits)
    weights = np.asarray([1 << n - 10 for n in lengths], dtype=object)

    def length(values: Values) -> Ints:
        return np.asarray([int(item).bit_length() - 1 for item in values[total]], dtype=object)

    n = b.hint(f"{name}/length", (count,), length)
    weight = b.hint(
        f"{name}/weight", (count,), lambda v: np.asarray([1 << int(i) - 10 for i in v[n]])
    )
    b.member(f"{name}/length", (n, weight), (lengths, weights))
    index = b.hint(f"{name}/index", (count,), lambda v: (v[total] // v[weight]) - 1024)
    value = b.hint(f"{name}/log2", (count,), lambda v: _look_up(log2_table(), v[index]))
    b.member(f"{name}/log2", (index, value), (np.arange(1024), log2_table()))
    # S = (1024 + index) 2^(n - 10) + r, 0 <= r < 2^(n - 10): index and n are those of S.
    lead = b.mul(index, weight)
    rest = total.lin() - weight.lin() * 1024 - lead.lin()
    most = 1 << bits - 10
    nonnegative(b, f"{name}/rest", rest, most)
    nonnegative(b, f"{name}/bound", weight.lin() - rest - 1, most)
    chosen = b.hint(
        f"{name}/chosen", (count,), lambda v: np.asarray((v[z] * v[hot]).sum(axis=1), dtype=object)
    )
    weigh_rows(b, f"{name}/chosen", b.mul(z, hot), np.ones(classes, dtype=np.int64), 0, chosen)
    scale = 1 << LOSS_EXPONENT - LOG2_EXPONENT
    loss = (
        (maximum.lin() - chosen.lin()) * scale
        + value.lin()
        + n.lin() * (1 << LOSS_EXPONENT)
        - (EXP2_EXPONENT << LOSS_EXPONENT)
    )
    b.zero(name, loss - rows.lin())
