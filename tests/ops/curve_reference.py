"""Functions by table a second time: fixed-point integers and power series, no decimal and no float.

A value is an integer with ``BITS`` fraction bits, off by some units of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache

BITS = 240
ONE = 1 << BITS
HALVINGS = 8


def fixed(x: Fraction) -> int:
    return x.numerator * ONE // x.denominator


def times(a: int, b: int) -> int:
    return a * b >> BITS


def over(a: int, b: int) -> int:
    return (a << BITS) // b


def exp(x: int) -> int:
    """e^x for x <= 0: of x / 2^8 by its series, squared eight times."""
    small, total, term, n = x >> HALVINGS, 0, ONE, 0
    while term not in (0, -1):
        total += term
        n += 1
        term = times(term, small) // n
    for _ in range(HALVINGS):
        total = times(total, total)
    return total


def _arctan_of_inverse(n: int) -> int:
    total, power, k = 0, ONE // n, 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power //= n * n
        k += 2
    return total


@cache
def pi() -> int:
    """Machin: 16 arctan(1/5) - 4 arctan(1/239)."""
    return 16 * _arctan_of_inverse(5) - 4 * _arctan_of_inverse(239)


def root(x: int) -> int:
    """Square root, by Newton's method on integers."""
    wide = x << BITS
    guess = 1 << (wide.bit_length() // 2 + 1)
    while (better := (guess + wide // guess) // 2) < guess:
        guess = better
    return guess


@cache
def _gaussian() -> int:
    """1 / sqrt(2 pi)"""
    return over(ONE, root(2 * pi()))


@cache
def _root_two_over_pi() -> int:
    return root(over(2 * ONE, pi()))


def sigmoid(x: int) -> int:
    """Of any sign: 1 - sigmoid(-x) where x > 0."""
    if x > 0:
        return ONE - sigmoid(-x)
    power = exp(x)
    return over(power, ONE + power)


def sigmoid_slope(x: int) -> int:
    return times(sigmoid(x), ONE - sigmoid(x))


def tanh(x: int) -> int:
    """(1 - e^-2x) / (1 + e^-2x)"""
    if x < 0:
        return -tanh(-x)
    power = exp(-2 * x)
    return over(ONE - power, ONE + power)


def density(x: int) -> int:
    return times(_gaussian(), exp(-(times(x, x) // 2)))


def normal(x: int) -> int:
    """Phi by the alternating series of erf.

    1/2 + (x - x^3 / (2 3) + x^5 / (2^2 2! 5) - ...) / sqrt(2 pi)

    Terms of up to e^(x^2/2) cancel: of |x| up to 10 they cost 72 of the bits.
    """
    if abs(x) > 10 * ONE:
        return ONE if x > 0 else 0
    square, total, term, n = times(x, x), 0, x, 0
    while term not in (0, -1):
        total += term // (2 * n + 1)
        n += 1
        term = -times(term, square) // (2 * n)
    return ONE // 2 + times(_gaussian(), total)


def _cubic(x: int) -> int:
    """2 sqrt(2 / pi) (x + 0.044715 x^3)"""
    inner = x + times(x, times(x, x)) * 44715 // 10**6
    return 2 * times(_root_two_over_pi(), inner)


def _cubic_slope(x: int) -> int:
    return 2 * times(_root_two_over_pi(), ONE + 3 * times(x, x) * 44715 // 10**6)


def gelu_tanh_slope(x: int) -> int:
    slope = times(sigmoid_slope(_cubic(x)), _cubic_slope(x))
    return sigmoid(_cubic(x)) + times(x, slope)


FUNCTIONS: Mapping[str, Callable[[int], int]] = {
    "sigmoid": sigmoid,
    "sigmoid_slope": sigmoid_slope,
    "tanh": tanh,
    "tanh_slope": lambda x: ONE - times(tanh(x), tanh(x)),
    "gelu_gate": normal,
    "gelu_slope": lambda x: normal(x) + times(x, density(x)),
    "gelu_tanh_gate": lambda x: sigmoid(_cubic(x)),
    "gelu_tanh_slope": gelu_tanh_slope,
    "silu_slope": lambda x: sigmoid(x) + times(x, sigmoid_slope(x)),
}
"""By table, of x of either sign."""
GRIDS = dict.fromkeys(FUNCTIONS, 8) | {"tanh": 10}


@cache
def entry(name: str, j: int) -> int:
    """round(2^14 f(j / 2^grid)), with no end to the table."""
    value = FUNCTIONS[name](fixed(Fraction(j, 2 ** GRIDS[name])))
    return (value * 2**14 + ONE // 2) >> BITS
