"""Functions by table against power series in integers: entries, symmetry, ends and worst errors."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from tests.ops import curve_reference
from tests.ops.curve_reference import BITS, FUNCTIONS, ONE, fixed
from vtrain.spec.curves import (
    CURVE_ONE,
    CURVES,
    curve_table,
    look_up,
    look_up_int,
    whole_curve,
)
from vtrain.spec.number import rs_int

FORMAT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()
ROW = re.compile(
    r"^\| (\w+) \| (.+?) \| (\d+) \| (\d+) \| (.+?) \| ([0-9.]+) at ([0-9.]+) "
    r"\| ([0-9a-f]{64}) \|$",
    re.MULTILINE,
)
PAGE = {found[1]: found for found in ROW.finditer(FORMAT)}
WORDS = {"complement": "1 - f(x)", "odd": "-f(x)", "even": "f(x)"}


def evaluate(name: str, x: Fraction) -> Fraction:
    return Fraction(FUNCTIONS[name](fixed(x)), ONE)


@pytest.mark.parametrize("name", CURVES)
def test_every_entry_is_the_function_rounded_and_none_is_near_a_tie(name: str) -> None:
    """So that any evaluation that is off by less than 10^-5 of a unit gives the same table."""
    nearest = 1.0
    for j, value in enumerate(curve_table(name).tolist()):
        exact = FUNCTIONS[name](fixed(Fraction(j, 2 ** CURVES[name].grid))) << 14
        off = Fraction(exact - (value << BITS), ONE)
        nearest = min(nearest, float(Fraction(1, 2) - abs(off)))
    assert nearest > 4e-5


@pytest.mark.parametrize("name", CURVES)
def test_negative_points_follow_from_symmetry(name: str) -> None:
    last, table = CURVES[name].last, whole_curve(name)
    assert len(table) == 2 * last + 1
    for j in range(-last, 0, 37):
        assert table[last + j] == curve_reference.entry(name, j), j


@pytest.mark.parametrize("name", CURVES)
def test_the_table_ends_where_the_rounded_function_no_longer_changes(name: str) -> None:
    """The last entry is the first that is the limit, and stays so: beyond it no |x| has an error.

    Each function is monotone there, so that points as far apart as 1/8 are enough.
    """
    curve, table = CURVES[name], curve_table(name)
    limit = 0 if name in ("sigmoid_slope", "tanh_slope") else CURVE_ONE
    assert table[-1] == limit
    assert table[-2] != limit
    per_eighth = 2**curve.grid // 8
    for j in (*range(curve.last, curve.last + 40 * 8 * per_eighth, per_eighth),):
        assert curve_reference.entry(name, j) == limit


def test_values_at_zero_are_exact() -> None:
    half = CURVE_ONE // 2
    expected = dict.fromkeys(CURVES, half) | {
        "tanh": 0, "tanh_slope": CURVE_ONE, "sigmoid_slope": CURVE_ONE // 4
    }  # fmt: skip
    assert {name: look_up_int(name, 0, 3) for name in CURVES} == expected


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("shift", [-40, -6, 0, 3, 4, 15, 16, 17, 64])
def test_look_up_of_every_int16(name: str, shift: int) -> None:
    """At the nearest point, held to the ends; of arrays and of integers alike."""
    x = np.arange(-(2**15), 2**15)
    found = look_up(name, x, shift)
    curve, whole = CURVES[name], whole_curve(name)
    for i in (*range(0, 2**16, 997), 2**15, 2**16 - 1):
        j = min(max(rs_int(int(x[i]), shift), -curve.last), curve.last)
        assert found[i] == whole[j + curve.last] == look_up_int(name, int(x[i]), shift)


def find_worst(name: str, weigh: bool = False) -> tuple[float, float]:
    """The largest |T - f| (times |x| if ``weigh``), in units of 2^-14, and the x of it.

    Between the middles of two cells the function is monotone, or so flat that it does not matter:
    the worst is where the nearest point changes, from the one or from the other.
    """
    curve, table = CURVES[name], curve_table(name).tolist()
    worst, where = 0.0, 0.0
    for j in range(curve.last):
        x = Fraction(2 * j + 1, 2 ** (curve.grid + 1))
        exact = evaluate(name, x) * 2**14
        for value in table[j : j + 2]:
            off = float(abs(value - exact)) * (float(x) if weigh else 1.0)
            if off > worst:
                worst, where = off, float(x)
    return worst, where


@pytest.mark.parametrize("name", CURVES)
def test_the_page_has_the_tables_their_digests_and_their_worst_errors(name: str) -> None:
    curve, row = CURVES[name], PAGE[name]
    assert (int(row[3]), int(row[4])) == (curve.grid, curve.last)
    assert row[5] == WORDS[curve.symmetry]
    assert row[8] == blake3(curve_table(name).astype("<i2").tobytes()).hexdigest()
    worst, where = find_worst(name)
    assert math.isclose(float(row[6]), worst, abs_tol=0.006)
    assert math.isclose(float(row[7]), where, abs_tol=0.001)


def test_the_page_has_all_tables_and_no_more() -> None:
    assert list(PAGE) == list(CURVES)


@pytest.mark.parametrize(
    ("words", "gate"),
    [("GELU", "gelu_gate"), ("its tanh form", "gelu_tanh_gate"), ("SiLU", "sigmoid")],
)
def test_the_page_has_the_worst_error_of_what_is_gated(words: str, gate: str) -> None:
    found = re.search(rf"{words} (\d+\.\d+) at (\d+\.\d+)", FORMAT)
    assert found is not None
    worst, where = find_worst(gate, weigh=True)
    assert math.isclose(float(found[1]), worst, abs_tol=0.006)
    assert math.isclose(float(found[2]), where, abs_tol=0.001)
