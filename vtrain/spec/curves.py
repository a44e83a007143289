"""Functions by table: sigmoid, tanh and what GELU and SiLU are made of.

The *gate* of GELU and SiLU is what x is multiplied with: Phi(x), and the sigmoid.  A *slope* is the
derivative of the function itself: of x Phi(x), of x sigmoid(x), of the sigmoid and of tanh.  Gates
and slopes keep their relative precision near 0, where a table of the product would lose it.

A table has the values at j / 2^grid for j = 0 .. last, rounded to 14 fraction bits, and symmetry
gives those of negative j.  Beyond ``last`` the function, as it is rounded, no longer changes: it
has its limit there (0 or 1), so that a gate of large |x| has no error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cache
from typing import Final, Literal

import numpy as np

from vtrain.spec.number import I64Array, rs, rs_int

CURVE_EXPONENT: Final = 14
"""Fraction bits of the values: 1.0 must not saturate, and slopes reach 1.13."""
CURVE_ONE: Final = 1 << CURVE_EXPONENT

_DIGITS: Final = 40
PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_CUBIC: Final = Decimal("0.044715")
"""Of the tanh form of GELU (Hendrycks and Gimpel, arXiv:1606.08415)."""

Symmetry = Literal["complement", "odd", "even"]
"""What f(-x) is: 1 - f(x), -f(x), f(x)."""


@dataclass(frozen=True)
class Curve:
    """A function by table: its value at x >= 0, the last point of the table, and its symmetry.

    ``grid`` is the number of fraction bits of the points.  A function is off by at most its
    steepest slope times half a step, 2^-(grid + 1): the steepest, tanh, has four times the points.
    """

    value: Callable[[Decimal], Decimal]
    last: int
    symmetry: Symmetry
    grid: int = 8


def _sigmoid(x: Decimal) -> Decimal:
    return 1 / (1 + (-x).exp())


def _sigmoid_slope(x: Decimal) -> Decimal:
    s = _sigmoid(x)
    return s * (1 - s)


def _silu_slope(x: Decimal) -> Decimal:
    return _sigmoid(x) + x * _sigmoid_slope(x)


def _tanh(x: Decimal) -> Decimal:
    return 2 * _sigmoid(2 * x) - 1


def _tanh_slope(x: Decimal) -> Decimal:
    return 4 * _sigmoid_slope(2 * x)


def _density(x: Decimal) -> Decimal:
    """Of the normal distribution."""
    return (-x * x / 2).exp() / (2 * PI).sqrt()


def _gelu_gate(x: Decimal) -> Decimal:
    """Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/(3 5) + ...): terms of one sign, nothing cancels."""
    total, term, factor = Decimal(0), x, 1
    while term > Decimal(10) ** -_DIGITS:
        total += term
        factor += 2
        term = term * x * x / factor
    return Decimal("0.5") + _density(x) * total


def _gelu_slope(x: Decimal) -> Decimal:
    return _gelu_gate(x) + x * _density(x)


def _gelu_tanh_gate(x: Decimal) -> Decimal:
    """(1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return _sigmoid(2 * (2 / PI).sqrt() * (x + _CUBIC * x * x * x))


def _gelu_tanh_slope(x: Decimal) -> Decimal:
    gate, inner = _gelu_tanh_gate(x), 2 * (2 / PI).sqrt() * (1 + 3 * _CUBIC * x * x)
    return gate + x * gate * (1 - gate) * inner


CURVES: Final[Mapping[str, Curve]] = {
    "sigmoid": Curve(_sigmoid, 2662, "complement"),
    "sigmoid_slope": Curve(_sigmoid_slope, 2662, "even"),
    "tanh": Curve(_tanh, 5679, "odd", grid=10),
    "tanh_slope": Curve(_tanh_slope, 1509, "even"),
    "gelu_gate": Curve(_gelu_gate, 1027, "complement"),
    "gelu_slope": Curve(_gelu_slope, 1200, "complement"),
    "gelu_tanh_gate": Curve(_gelu_tanh_gate, 996, "complement"),
    "gelu_tanh_slope": Curve(_gelu_tanh_slope, 1151, "complement"),
    "silu_slope": Curve(_silu_slope, 3296, "complement"),
}
"""By name, in the order of their numbers in kernels.  The gate of SiLU is the sigmoid."""

CURVE_NAMES: Final = tuple(CURVES)


def round_to_entry(value: Decimal) -> int:
    """floor(2^14 value + 1/2)."""
    return int((value * CURVE_ONE + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


@cache
def curve_table(name: str) -> I64Array:
    """round(2^14 f(j / 2^grid)) for j = 0 .. last.

    Evaluated with 40 digits; no entry lies within 4 * 10^-5 of a rounding tie, so that any
    evaluation better than that, doubles among them, gives the same table (a test shows it).
    """
    curve = CURVES[name]
    with localcontext() as context:
        context.prec = _DIGITS
        entries = [
            round_to_entry(curve.value(Decimal(j) / (1 << curve.grid)))
            for j in range(curve.last + 1)
        ]
    table = np.array(entries, dtype=np.int64)
    table.flags.writeable = False
    return table


@cache
def whole_curve(name: str) -> I64Array:
    """The entries of j = -last .. last, in this order."""
    half = curve_table(name)
    match CURVES[name].symmetry:
        case "complement":
            mirrored = CURVE_ONE - half
        case "odd":
            mirrored = -half
        case "even":
            mirrored = half
    table = np.concatenate([mirrored[:0:-1], half])
    table.flags.writeable = False
    return table


def look_up(name: str, x: I64Array, shift: int) -> I64Array:
    """T[j] with j = rs(x, shift), held to +-last.

    x has grid + shift fraction bits, the result 14.
    """
    last = CURVES[name].last
    return np.asarray(whole_curve(name)[np.clip(rs(x, shift), -last, last) + last])


def look_up_int(name: str, x: int, shift: int) -> int:
    """:func:`look_up` of one Python integer."""
    last = CURVES[name].last
    return int(whole_curve(name)[min(max(rs_int(x, shift), -last), last) + last])
