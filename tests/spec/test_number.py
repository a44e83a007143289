"""The number format against its own definition, in exact fractions and other precisions."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain.spec import number
from vtrain.spec.number import (
    NUMPY_DTYPES,
    SATURATION,
    STORAGE,
    bit_length,
    count_saturated,
    exp2_table,
    log2_q16,
    log2_table,
    round_to_mantissa,
    rs,
    rs_int,
    saturate,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = sorted(
    {sign * (2**bit + offset) for bit in range(63) for offset in (-1, 0, 1) for sign in (1, -1)}
    | {0, 2**63 - 1, -(2**63), -(2**63) + 1}
)


def exact_rs(x: int, shift: int) -> int:
    """floor(x / 2^shift + 1/2), and the exact product where nothing is cut off."""
    return math.floor(Fraction(x) / Fraction(2) ** shift + (Fraction(1, 2) if shift > 0 else 0))


# --- rounding shift


@pytest.mark.parametrize("shift", range(-62, 71))
def test_rs_at_every_shift_and_power_of_two(shift: int) -> None:
    fits = [x for x in EDGES if -(2**63) <= exact_rs(x, shift) < 2**63]
    assert rs(np.array(fits, np.int64), shift).tolist() == [exact_rs(x, shift) for x in fits]
    assert [rs_int(x, shift) for x in fits] == [exact_rs(x, shift) for x in fits]


@given(x=st.integers(-(2**200), 2**200), shift=st.integers(-70, 300))
def test_rs_int_is_the_definition(x: int, shift: int) -> None:
    assert rs_int(x, shift) == exact_rs(x, shift)


@given(x=INT64, shift=st.integers(1, 200))
def test_rs_is_the_definition(x: int, shift: int) -> None:
    assert rs(np.array([x]), shift).tolist() == [exact_rs(x, shift)]


@given(x=INT64, y=INT64, shift=st.integers(1, 70))
def test_rs_is_monotone(x: int, y: int, shift: int) -> None:
    """What interval analysis rests on: the ends of a range go to the ends of its image."""
    low, high = sorted((x, y))
    assert rs_int(low, shift) <= rs_int(high, shift)


@pytest.mark.parametrize("shift", [-3, 0, 5, 64])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_rs_widens_every_dtype_and_keeps_the_shape(dtype: str, shift: int) -> None:
    for shape in ((), (0,), (2, 3)):
        x = np.full(shape, STORAGE[dtype][1] if dtype != "i64" else 2**59, NUMPY_DTYPES[dtype])
        out = rs(x, shift)
        assert isinstance(out, np.ndarray)
        assert out.dtype == np.dtype(np.int64)
        assert out.shape == shape
        assert set(out.ravel().tolist()) <= {exact_rs(int(x.max(initial=0)), shift)}


def test_halves_round_up() -> None:
    assert rs(np.array([-6, -5, -3, -2, -1, 1, 2, 3, 5, 6]), 2).tolist() == [
        -1, -1, -1, 0, 0, 0, 1, 1, 1, 2,
    ]  # fmt: skip


# --- saturation


@given(values=st.lists(INT64 | st.sampled_from(EDGES), max_size=20))
@pytest.mark.parametrize("dtype", SATURATION)
def test_saturate_clamps_and_is_counted(dtype: str, values: list[int]) -> None:
    lo, hi = SATURATION[dtype]
    x = np.array(values, np.int64)
    out = saturate(x, dtype)
    assert out.dtype == NUMPY_DTYPES[dtype]
    assert out.tolist() == [min(max(v, lo), hi) for v in values]
    assert count_saturated(x, dtype) == sum(not lo <= v <= hi for v in values)
    again = saturate(out.astype(np.int64), dtype)
    assert np.array_equal(again, out)


def test_saturate_lets_int64_through() -> None:
    x = np.array([-(2**63), 2**63 - 1])
    assert np.array_equal(saturate(x, "i64"), x)
    assert count_saturated(x, "i64") == 0


def test_operands_split_into_two_int8_limbs() -> None:
    """Why 32639: q = 256 hi + lo with both limbs in [-128, 127], and 32640 has no such limbs."""
    limbs = range(-128, 128)
    reachable = {256 * high + low for high in limbs for low in limbs}
    lo, hi = SATURATION["i16"]
    assert reachable >= set(range(lo, hi + 1))
    assert hi + 1 not in reachable


# --- bit length and logarithm


@given(x=st.integers(0, 2**63 - 1) | st.sampled_from([e for e in EDGES if e >= 0]))
def test_bit_length(x: int) -> None:
    assert bit_length(np.array([x], np.int64)).tolist() == [x.bit_length()]


LOG2_BOUND = Fraction(1, 2**11) / Fraction(math.log(2)) + Fraction(1, 2**17)


@given(x=st.integers(1, 2**63 - 1) | st.sampled_from([e for e in EDGES if e > 0]))
def test_log2_is_within_its_bound(x: int) -> None:
    with localcontext() as context:
        context.prec = 50
        exact = Fraction(Decimal(x).ln() / Decimal(2).ln())
    found = Fraction(int(log2_q16(np.array([x], np.int64))[0]), 2**16)
    assert abs(found - exact) < LOG2_BOUND


def test_the_bound_of_log2_is_not_slack() -> None:
    x = 2**20  # the left end of the first interval: its middle is half an interval away
    error = Fraction(int(log2_q16(np.array([x], np.int64))[0]), 2**16) - 20
    assert LOG2_BOUND - Fraction(1, 2**15) < abs(error) < LOG2_BOUND


# --- tables


def test_exp2_table_by_another_evaluation() -> None:
    """Repeated square roots in 40 digits, nothing in common with the integer inequality."""
    with localcontext() as context:
        context.prec = 40
        root = Decimal("0.5")
        for _ in range(10):
            root = root.sqrt()  # 2^(-1/1024)
        exact = [Decimal(65536) * root**i for i in range(1024)]
        assert exp2_table().tolist() == [math.floor(e + Decimal("0.5")) for e in exact]
        ties = min(abs(e - math.floor(e) - Decimal("0.5")) for e in exact)
    assert ties > Decimal("1e-6")  # far above the error of any evaluation here


def test_log2_table_by_another_evaluation() -> None:
    """Bit by bit, by squaring an integer of 400 bits; no entry is within 10^-9 of a tie."""
    bits = 60
    nearest = Fraction(1)
    for i, entry in enumerate(log2_table().tolist()):
        mantissa = Fraction(2049 + 2 * i, 2048)
        value, log = (mantissa.numerator << 400) // mantissa.denominator, Fraction(0)
        for bit in range(1, bits + 1):
            value = value * value >> 400
            if value >> 401:
                value >>= 1
                log += Fraction(1, 2**bit)
        scaled = log * 65536  # below the truth by at most 2^-43
        assert entry == math.floor(scaled + Fraction(1, 2))
        nearest = min(nearest, abs(scaled - math.floor(scaled) - Fraction(1, 2)))
    assert nearest > Fraction(1, 10**9)


def test_tables_cannot_be_changed() -> None:
    for table in (exp2_table(), log2_table()):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


def test_table_tests_see_a_wrong_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = exp2_table().copy()
    wrong[700] += 1
    monkeypatch.setattr(f"{__name__}.exp2_table", lambda: wrong)
    with pytest.raises(AssertionError):
        test_exp2_table_by_another_evaluation()


# --- floats to mantissas


@given(
    value=st.floats(-(2.0**38), 2.0**38, allow_nan=False),
    exponent=st.integers(-40, 24),
)
def test_round_to_mantissa_is_the_definition(value: float, exponent: int) -> None:
    exact = math.floor(Fraction(value) * Fraction(2) ** exponent + Fraction(1, 2))
    assert round_to_mantissa(np.array([value]), exponent).tolist() == [exact]


@given(value=st.floats(-128, 128, width=32))
def test_round_to_mantissa_takes_binary32(value: float) -> None:
    exact = math.floor(Fraction(value) * 2**24 + Fraction(1, 2))
    assert round_to_mantissa(np.array([value], np.float32), 24).tolist() == [exact]


def test_round_to_mantissa_at_its_edges() -> None:
    half = 2.0**-25
    tiny, below, above = 5e-324, math.nextafter(half, 0), math.nextafter(half, 1)
    big = 2.0**39 - 2.0**-14
    values = [half, -half, below, -below, above, -above, 3 * half, -3 * half, tiny, -tiny, -0.0]
    expected = [1, 0, 0, 0, 1, -1, 2, -1, 0, 0, 0]
    assert round_to_mantissa(np.array(values), 24).tolist() == expected
    assert round_to_mantissa(np.array([big]), 24).tolist() == [int(Fraction(big) * 2**24)]


def test_the_definition_is_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rounding to even, the usual mistake, is seen by the test above."""
    monkeypatch.setattr(
        f"{__name__}.round_to_mantissa",
        lambda values, exponent: np.rint(np.ldexp(values, exponent)).astype(np.int64),
    )
    with pytest.raises(AssertionError):
        test_round_to_mantissa_at_its_edges()


def test_dtypes_are_little_endian_and_named_alike() -> None:
    assert NUMPY_DTYPES.keys() == STORAGE.keys() == {"u8", "i8", "i16", "i32", "i64"}
    for name, (lo, hi) in number.STORAGE.items():
        info = np.iinfo(NUMPY_DTYPES[name])
        assert (info.min, info.max) == (lo, hi)
        assert NUMPY_DTYPES[name].newbyteorder("<") == NUMPY_DTYPES[name]
