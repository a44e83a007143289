"""The table ``schedule`` of a task file: the learning rate of each step, as few points on lines.

A rate of a step is an exact integer that anyone computes from the points: between two of them it
lies on a straight line, rounded half up (the operator ``schedule_linear``).  A cosine is drawn by
at most ``MOST_PIECES`` such lines.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

from vtrain.errors import TaskError
from vtrain.spec.curves import PI
from vtrain.train.names import refuse_choice
from vtrain.train.table import Table, parse_number
from vtrain.wire.record import MAX_STEPS

MOST_PIECES: Final = 256
"""Lines that a cosine is drawn by, where it has more than twice as many steps."""
MOST_POINTS: Final = 512
"""Of a curve that is given point by point."""
_DIGITS, _TERMS = 50, 40
"""pi^80 / 80! is below 10^-78."""
_KEYS: Final = {
    "constant": ("warmup",),
    "step": ("warmup", "at", "factor"),
    "linear": ("warmup", "end", "until"),
    "cosine": ("warmup", "end", "until"),
    "wsd": ("warmup", "decay", "end", "until"),
    "points": ("points",),
}
_WORDS: Final = {
    "warmup": ("constant", "warmup = 100"),
    "multistep": ("step", ""),
    "exponential": ("step", "its steps listed in at"),
    "onecycle": ("cosine", "warmup = 100"),
    "cosine_with_warmup": ("cosine", "warmup = 100"),
    "polynomial": ("linear", ""),
}

Knot = tuple[int, Fraction]
"""A step and its rate."""


@dataclass(frozen=True)
class Curve:
    """The rate of every step: on straight lines between knots if ``linear``, else in pieces."""

    knots: tuple[Knot, ...]
    linear: bool

    @property
    def peak(self) -> int:
        """The first step with the largest rate: the last of a warm-up, 0 where there is none."""
        return max(self.knots, key=lambda knot: (knot[1], -knot[0]))[0]

    def compute_rate(self, step: int) -> Fraction:
        """The rate of ``step`` (from 0), before it is rounded to the mantissa of a step."""
        after = bisect_right(self.knots, step, key=lambda knot: knot[0])
        first, rate = self.knots[after - 1]
        if not self.linear or after == len(self.knots):
            return rate
        last, end = self.knots[after]
        return rate + (end - rate) * Fraction(step - first, last - first)


def parse_schedule(top: Table, rate: Fraction, steps: int) -> Curve:
    """The curve of the table ``schedule``, whose largest rate is ``rate``, of a run of ``steps``.

    TaskError names the key at fault.
    """
    kind = top.mapping("schedule").get("kind", "constant")
    if not isinstance(kind, str) or kind not in _KEYS:
        refuse_choice(kind, _KEYS, "schedule.kind", _WORDS)
    table = top.table("schedule", "kind", *_KEYS[kind])
    if kind == "points":
        return _draw_points(table, rate)
    warmup = table.integer("warmup", 0, MAX_STEPS, 0)
    until = table.integer("until", 1, MAX_STEPS, steps) if "until" in _KEYS[kind] else None
    if until is not None and warmup >= until:
        raise TaskError(
            f"must end before step {until}, where the curve does", where="schedule.warmup"
        )
    if kind == "step":
        return _draw_steps(table, rate, warmup)
    knots = list(_draw_warmup(rate, warmup))
    if until is not None:
        end = table.number("end", Fraction(0))
        if not 0 <= end <= rate:
            raise TaskError("must lie between 0 and learning_rate", where="schedule.end")
        knots += _draw_fall(table, kind, rate, end, (warmup, until))
    return _join(knots or [(0, rate)])


def _draw_points(table: Table, rate: Fraction) -> Curve:
    """``points``: steps, and what the rate is multiplied by there; straight lines between them."""
    where, given = table.place("points"), table.value("points")
    knots: list[Knot] = []
    for pair in given if isinstance(given, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            raise TaskError(
                "must be a list of [step, factor], as [[0, 0.1], [100, 1]]", where=where
            )
        factor = parse_number(pair[1], where)
        if not 0 <= factor <= 1:
            raise TaskError("factors must lie in [0, 1]", where=where)
        knots.append((pair[0], rate * factor))
    steps = [step for step, _ in knots]
    if steps[:1] != [0] or steps != sorted(set(steps)) or steps[-1] >= MAX_STEPS:
        raise TaskError("steps must increase from 0", where=where)
    if len(knots) > MOST_POINTS:
        raise TaskError(f"are {len(knots)}, more than {MOST_POINTS}", where=where)
    return _join(knots)


def _draw_warmup(rate: Fraction, warmup: int) -> Iterator[Knot]:
    """rate (t + 1) / warmup for t below ``warmup``."""
    if warmup:
        yield 0, rate / warmup
        yield warmup - 1, rate


def _draw_fall(
    table: Table, kind: str, rate: Fraction, end: Fraction, span: tuple[int, int]
) -> Iterator[Knot]:
    """From ``rate`` at the first step of ``span`` to ``end`` at its last."""
    first, last = span
    length = last - first
    if kind == "cosine":
        pieces = length if length <= 2 * MOST_PIECES else MOST_PIECES
        for i in range(pieces + 1):
            along = i * length // pieces
            yield first + along, end + (rate - end) * (1 + _cosine(Fraction(along, length))) / 2
        return
    if kind == "wsd":
        decay = table.integer("decay", 1, MAX_STEPS)
        if decay > length:
            raise TaskError(
                f"is longer than the {length} steps after the warm-up", where="schedule.decay"
            )
        yield first, rate
        first = last - decay
    yield first, rate
    yield last, end


def _draw_steps(table: Table, rate: Fraction, warmup: int) -> Curve:
    """``rate``, times ``factor`` from each of the steps in ``at`` on."""
    at, factor = table.value("at"), table.number("factor", Fraction(1, 10))
    whole = isinstance(at, list) and all(type(step) is int for step in at)
    if (
        not whole
        or not at
        or at != sorted(set(at))
        or not max(1, warmup) <= at[0] <= at[-1] < MAX_STEPS
    ):
        raise TaskError(
            "must be a list of rising steps after the warm-up, as [3000, 6000]", where="schedule.at"
        )
    if not 0 <= factor <= 1:
        raise TaskError("must lie in [0, 1]", where="schedule.factor")
    levels = [(step, rate * factor ** (i + 1)) for i, step in enumerate(at)]
    if not warmup:
        return Curve(((0, rate), *levels), linear=False)
    # A line of one step is a drop.
    knots = list(_draw_warmup(rate, warmup))
    for step, level in levels:
        knots += [(step - 1, knots[-1][1]), (step, level)]
    return _join(knots)


def _join(knots: Sequence[Knot]) -> Curve:
    """Of knots at one step the first: they have one rate."""
    kept = [next(group) for _, group in itertools.groupby(knots, key=lambda knot: knot[0])]
    return Curve(tuple(kept), linear=len(kept) > 1)


def _cosine(x: Fraction) -> Fraction:
    """cos(pi x) for x in [0, 1], to 40 digits: the same everywhere."""
    with localcontext() as context:
        context.prec = _DIGITS
        square = (PI * x.numerator / x.denominator) ** 2
        total = term = Decimal(1)
        for n in range(1, _TERMS):
            term = -term * square / ((2 * n - 1) * (2 * n))
            total += term
        return max(Fraction(-1), min(Fraction(total), Fraction(1)))
