"""Each gadget against the law: what it says holds, and nothing else, whatever the hints are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.exhaustive import spare
from tests.prove.forging import Change, at, find_broken, forge
from tests.prove.tamper import find_uncaught
from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints, Tensor
from vtrain.prove.tiles.circuits import TILE_SPAN
from vtrain.spec.field import SCALAR_FIELD
from vtrain.spec.number import SATURATION, STORAGE, log2_q16, rs_int, saturate_int

FULL = 1 << 16
SPANS = (FULL, TILE_SPAN)
spans = pytest.mark.parametrize("span", SPANS)

FRACTIONS = [pow(part, -1, SCALAR_FIELD) for part in (2, 3, 1 << 4, 1 << 15, 1 << 16, 65535)]
"""Added to an integer they give none."""
STEPS = [1, -1, 1 << 16, -(1 << 16), 1 << 31, SCALAR_FIELD // 2, *FRACTIONS]
"""Added to the right answer they give a wrong one."""


def build(
    shapes: dict[str, tuple[int, ...]],
    emit: Callable[[CircuitBuilder, dict[str, Tensor]], object],
    span: int = FULL,
) -> Circuit:
    """A circuit over given tensors."""
    b = CircuitBuilder(4, span)
    tensors = {
        name: b.reshape(b.vector(name, int(np.prod(shape))), shape)
        for name, shape in shapes.items()
    }
    emit(b, tensors)
    if not b._lengths["limbs"]:
        b.limb("none", (1,), lambda values: np.zeros(1, dtype=object))
    return b.build()


def ints(values: Sequence[int]) -> Ints:
    return np.asarray([int(value) for value in values], dtype=object)


def rejects(circuit: Circuit, **given: Ints) -> bool:
    """Whether no witness holds: of hints as computed, nor where all limbs that would be looked up
    in vain are others."""
    if accepts(circuit, **given):
        return False
    nearest: dict[str, Change] = {
        name: lambda limbs: np.minimum(np.maximum(limbs, 0), circuit.span - 1)
        for name, _, _ in circuit.parts("limbs")
    }
    return not accepts(circuit, nearest, **given)


def accepts(circuit: Circuit, changes: dict[str, Change] | None = None, /, **given: Any) -> bool:
    """Whether a witness holds whose hints are computed from these vectors."""
    return find_broken(circuit, given, changes=changes) == []


def add(step: int) -> Callable[[int], int]:
    return lambda value: value + step


def double(value: int) -> int:
    return 2 * value


def halve(value: int) -> int:
    return value // 2


def instead(other: Ints) -> Change:
    return lambda values: other


# --- relations


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 1), (1, 3)])
def test_relations_see_every_element(shape: tuple[int, int]) -> None:
    """Also where rows and columns are weighed by vectors of one length: antisymmetric errors."""
    rows, columns = shape

    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        b.zero("zero", given["x"].lin() * 2 - given["y"].lin() + 5)
        b.matmul("product", given["a"], given["b"], given["x"].lin())

    circuit = build({"x": shape, "y": shape, "a": (rows, 3), "b": (3, columns)}, emit)
    rng = np.random.default_rng(9)
    a, c = (rng.integers(-9, 9, extents).astype(object) for extents in ((rows, 3), (3, columns)))
    x = a @ c
    given = {"a": a, "b": c, "x": x, "y": x * 2 + 5}
    assert find_broken(circuit, given) == []
    errors = [np.eye(1, x.size, k, dtype=int).reshape(shape).astype(object) for k in range(x.size)]
    if rows == columns:
        errors += [first - first.T for first in errors if (first != first.T).any()]
    for error in errors:
        assert find_broken(circuit, {**given, "y": given["y"] + error}) == ["zero"]
        false = {**given, "x": x + error, "y": given["y"] + 2 * error}
        assert find_broken(circuit, false) == ["product"]


# --- ranges

RANGES: dict[str, Callable[[CircuitBuilder, Tensor], None]] = {
    "u8": lambda b, x: gadgets.hold_dtype(b, "x", x, "u8"),
    "i8": lambda b, x: gadgets.hold_dtype(b, "x", x, "i8"),
    "i16": lambda b, x: gadgets.hold_dtype(b, "x", x, "i16"),
    "i32": lambda b, x: gadgets.hold_dtype(b, "x", x, "i32"),
    "sat i16": lambda b, x: gadgets.hold_saturated(b, "x", x, "i16"),
    "sat i32": lambda b, x: gadgets.hold_saturated(b, "x", x, "i32"),
    "0 to 2": lambda b, x: gadgets.hold_range(b, "x", x, 0, 2),
    "5 to 131076": lambda b, x: gadgets.hold_range(b, "x", x, 5, 131076),
    "most of i32": lambda b, x: gadgets.hold_most_of_int32(b, "x", x),
}
BOUNDS = {
    **{name: STORAGE[name] for name in ("u8", "i8", "i16", "i32")},
    **{f"sat {name}": SATURATION[name] for name in ("i16", "i32")},
    "0 to 2": (0, 2),
    "5 to 131076": (5, 131076),
    "most of i32": (-(2**31) + 2**15, 2**31 - 2**15),
}


@pytest.mark.parametrize(
    ("name", "span"),
    [
        (name, span)
        for name in RANGES
        for span in (FULL, TILE_SPAN)
        if name != "most of i32" or span == FULL  # which only circuits of whole steps have
    ],
)
def test_ranges_are_exact(name: str, span: int) -> None:
    circuit = build({"x": (4,)}, lambda b, x: RANGES[name](b, x["x"]), span)
    lo, hi = BOUNDS[name]
    rng = np.random.default_rng(0)
    inside = [lo, lo + 1, hi - 1, hi, *(int(v) for v in rng.integers(lo, hi, 12, endpoint=True))]
    for first in range(0, 16, 4):
        assert accepts(circuit, x=ints(inside[first : first + 4]))
    outside = [lo - 1, hi + 1, lo - (1 << 16), hi + (1 << 16), lo - (1 << 32), hi + (1 << 32)]
    outside += [value + part for value in (lo, hi, 7) for part in FRACTIONS]
    for value in outside:
        assert rejects(circuit, x=ints([lo, value, hi, lo])), value


def test_digits_of_integers_are_integers_and_not_negative() -> None:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        x = given["x"]
        digits = gadgets.at_least_zero(b, "d", x.shape, 1 << 40, lambda values: values[x])
        b.zero("d", digits - x.lin())
        gadgets.hold_integer(b, "y", given["y"], 1 << 40)

    circuit = build({"x": (3,), "y": (3,)}, emit)
    x, y = ints([0, 1 << 40, 77]), ints([-(1 << 40), 1 << 40, 0])
    assert accepts(circuit, x=x, y=y)
    for value in (-1, -(1 << 20), *FRACTIONS):
        assert rejects(circuit, x=ints([0, value, 5]), y=y)
    for value in (-(1 << 41), *FRACTIONS):
        assert rejects(circuit, x=x, y=ints([0, value, 5]))


# --- shifts

SHIFTS = (0, -7, 1, 15, 16, 17, 31, 33, 40)


def near_everything(shift: int, dtype: str) -> list[int]:
    """Inputs at ties, at the bounds of saturation and beyond them, and at random."""
    most = SATURATION[dtype][1]
    rng = np.random.default_rng(3)
    unit, half = (1 << shift, 1 << shift - 1) if shift > 0 else (1, 0)
    if shift <= 0:
        most >>= -shift
    quotients = [0, 1, -1, most, most + 1, -most, -most - 1, 3 * most, -3 * most]
    found = [q * unit + r for q in quotients for r in {0, -1, half, half - 1, -half, -half - 1}]
    return found + [int(v) * unit // 7 for v in rng.integers(-9 * most, 9 * most, 6)]


@cache
def make_shift(shift: int, dtype: str, span: int, clamps: bool) -> Circuit:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        reach = 4 * SATURATION[dtype][1] << max(-shift, 0)
        gadgets.saturating_shift(
            b, "s", given["x"].lin(), shift, dtype, given["y"], reach, clamps=clamps
        )

    count = len(near_everything(shift, dtype))
    return build({"x": (count,), "y": (count,)}, emit, span)


def apply_shift(x: Sequence[int], shift: int, dtype: str) -> list[int]:
    return [saturate_int(rs_int(value, shift), dtype) for value in x]


@spans
@pytest.mark.parametrize(
    ("dtype", "shift"),
    spare(
        [(dtype, shift) for dtype in ("i16", "i32") for shift in SHIFTS],
        lambda case: case[0] == "i16" or case[1] in SHIFTS[::4],
    ),
)
def test_saturating_shifts_are_the_laws(shift: int, dtype: str, span: int) -> None:
    x = near_everything(shift, dtype)
    y = apply_shift(x, shift, dtype)
    circuit = make_shift(shift, dtype, span, True)
    assert accepts(circuit, x=ints(x), y=ints(y))
    most = SATURATION[dtype][1]
    rng = np.random.default_rng(shift + 100)
    for step in STEPS:
        index = int(rng.integers(len(x)))
        assert rejects(circuit, x=ints(x), y=at(index, y[index] + step)(ints(y)))
    for index in range(0, len(x), 7):
        for wrong in {-y[index], most, -most, 0, most + 1, -most - 1} - {y[index]}:
            assert rejects(circuit, x=ints(x), y=at(index, wrong)(ints(y)))


@pytest.mark.parametrize("dtype", ["i16", "i32"])
@pytest.mark.parametrize("shift", [-7, 0, 9, 16, 33])
def test_shifts_without_clamps_hold_of_what_does_not_saturate(shift: int, dtype: str) -> None:
    circuit = make_shift(shift, dtype, FULL, False)
    everything = near_everything(shift, dtype)
    most = SATURATION[dtype][1] if dtype == "i16" else 2**31 - 2**15
    inside = [x if abs(rs_int(x, shift)) <= most else 0 for x in everything]
    y = apply_shift(inside, shift, dtype)
    assert accepts(circuit, x=ints(inside), y=ints(y))
    beyond = [i for i, x in enumerate(everything) if abs(rs_int(x, shift)) > most]
    assert beyond
    for index in beyond:
        x = at(index, everything[index])(ints(inside))
        clamped = apply_shift(list(x), shift, dtype)
        for value in (clamped[index], rs_int(everything[index], shift)):
            assert rejects(circuit, x=x, y=at(index, value)(ints(y)))
    for step in STEPS:
        assert rejects(circuit, x=ints(inside), y=at(3, y[3] + step)(ints(y)))


def test_shifts_that_cannot_saturate_need_no_clamp() -> None:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        gadgets.saturating_shift(b, "s", given["x"].lin(), 5, "i32", given["y"], 1000)

    circuit = build({"x": (4,), "y": (4,)}, emit)
    x = [-32000, 31999, 16, -16]
    y = apply_shift(x, 5, "i32")
    assert accepts(circuit, x=ints(x), y=ints(y))
    for step in STEPS:
        assert rejects(circuit, x=ints(x), y=at(1, y[1] + step)(ints(y)))


def test_excesses_of_two_elements_cannot_make_up_for_each_other() -> None:
    """t y = M d for both, and t (M^2 - y^2) sums to zero: only if one of them were negative."""
    circuit = make_shift(4, "i16", FULL, True)
    x = near_everything(4, "i16")
    y = apply_shift(x, 4, "i16")
    most = SATURATION["i16"][1]
    first = next(i for i, value in enumerate(x) if rs_int(value, 4) == 3 * most)
    second = next(i for i, value in enumerate(y) if value == -most)
    third = next(i for i, value in enumerate(y) if 5 < value < most)
    digits = [name for name, _, _ in circuit.parts("limbs") if name.startswith("s/excess/digit")]
    for wrong in (
        {third: 1},
        {third: 1, first: most + 1},
        {third: -1, second: -most - 1},
        {first: most - 1, second: -most - 1},
    ):
        altered = ints(y)
        for index, value in wrong.items():
            altered[index] = value
        pairs = [(rs_int(a, 4), int(b)) for a, b in zip(x, altered, strict=True)]
        claimed = ints(
            [most * (q - b) * pow(b or 1, -1, SCALAR_FIELD) % SCALAR_FIELD for q, b in pairs]
        )
        changes: dict[str, Change] = {"s/excess": lambda values, claimed=claimed: claimed}  # type: ignore[misc]
        for place, digit in enumerate(digits):
            changes[digit] = lambda values, claimed=claimed, place=place: (  # type: ignore[misc]
                claimed // FULL**place % FULL
            )
        assert not accepts(circuit, changes, x=ints(x), y=altered)
    # Excesses that are zero, or of the other sign, or fractions.
    for change in (0, -5, *FRACTIONS):
        assert not accepts(circuit, {"s/excess": at(first, change)}, x=ints(x), y=ints(y))


HELD = (1, 5, 12, 13)


@cache
def make_held(shift: int) -> Circuit:
    return build(
        {"x": (8,), "y": (8,)},
        lambda b, given: gadgets.shift_and_hold(b, "s", given["x"], shift, given["y"]),
    )


@pytest.mark.parametrize("shift", HELD)
def test_held_shifts(shift: int) -> None:
    circuit = make_held(shift)
    most, unit = SATURATION["i16"][1], 1 << shift
    rng = np.random.default_rng(shift)
    top, bottom = (most + 1 - unit) * unit, -most * unit - unit // 2
    x = [top, bottom, 0, unit // 2, -unit // 2, -1, *(int(v) for v in rng.integers(bottom, top, 2))]
    y = apply_shift(x, shift, "i16")
    assert accepts(circuit, x=ints(x), y=ints(y))
    for step in STEPS:
        assert rejects(circuit, x=ints(x), y=at(6, y[6] + step)(ints(y)))
    for wrong in ((most + 1) * unit, -(most + 1) * unit, bottom - 1, 2**31, -(2**31)):
        altered = at(2, wrong)(ints(x))
        for value in (saturate_int(rs_int(wrong, shift), "i16"), rs_int(wrong, shift)):
            assert rejects(circuit, x=altered, y=at(2, value)(ints(y)))


@pytest.mark.parametrize("shift", HELD)
def test_held_shifts_are_of_integers(shift: int) -> None:
    """x + part / 2^(16 - s): the scaled remainder hides it, the look-up of M - y - r does not."""
    circuit = make_held(shift)
    scale = 1 << 16 - shift
    x = ints(range(8)) * 1000
    honest = forge(circuit, {"x": x, "y": ints(apply_shift(list(x), shift, "i16"))})
    rest, above = ("s/remainder/scaled", "s/from above")
    places = {name: start for name, start, _ in circuit.parts("limbs")}
    for part in {1, scale // 2, scale - 1}:
        vectors = {name: values.copy() for name, values in honest.items()}
        vectors["x"][5] += part * pow(scale, -1, SCALAR_FIELD)
        vectors["limbs"][places[rest] + 5] += part
        assert circuit.find_broken(vectors) == [above]
        for change in (-1, 1, -part * pow(scale, -1, SCALAR_FIELD)):
            second = vectors["limbs"].copy()
            second[places[above] + 5] += change
            assert circuit.find_broken({**vectors, "limbs": second})


def test_held_shifts_need_room() -> None:
    for shift, span in ((0, FULL), (14, FULL), (-3, FULL), (5, TILE_SPAN)):
        with pytest.raises(CircuitError):
            build(
                {"x": (2,), "y": (2,)},
                lambda b, given, shift=shift: gadgets.shift_and_hold(  # type: ignore[misc]
                    b, "s", given["x"], shift, given["y"]
                ),
                span,
            )


@spans
@pytest.mark.parametrize("shift", SHIFTS)
def test_rounding_shifts(shift: int, span: int) -> None:
    rng = np.random.default_rng(8)
    half = 1 << max(shift - 1, 0)
    x = [
        0,
        half,
        half - 1,
        -half,
        -half - 1,
        -1,
        *(int(v) for v in rng.integers(-(2**40), 2**40, 4)),
    ]
    reach = max(abs(rs_int(value, shift)) for value in x)

    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        found = gadgets.rounding_shift(b, "s", given["x"].lin(), shift, reach=reach)
        b.zero("same", found - given["y"].lin())

    circuit = build({"x": (len(x),), "y": (len(x),)}, emit, span)
    y = [rs_int(value, shift) for value in x]
    assert accepts(circuit, x=ints(x), y=ints(y))
    for step in STEPS:
        for index in (0, 3, len(x) - 1):
            assert rejects(circuit, x=ints(x), y=at(index, y[index] + step)(ints(y)))
    if shift > 0:
        # The quotient one less and the remainder larger by 2^s, and the reverse, in all limbs.
        names = [name for name, _, _ in circuit.parts("limbs")]
        for step in (1, -1):
            wrong = at(1, y[1] + step)(ints(y))
            for rest in [n for n in names if n.startswith("s/remainder")]:
                for carry in (1 << shift, 1 << 16, 1):
                    changes: dict[str, Change] = {
                        "s/quotient/low": at(1, add(step)),
                        "s/quotient/room": at(1, add(-step)),
                        rest: at(1, add(-step * carry)),
                    }
                    assert not accepts(circuit, changes, x=ints(x), y=wrong)


# --- masks and labels


def test_gates_pass_what_the_law_passes() -> None:
    most = SATURATION["i16"][1]
    x = ints([0, 1, -1, most, -most, 5, -5, 0])
    g = ints([7, -7, 7, most, -most, 0, 3, -most])

    def add_gates(b: CircuitBuilder, given: Mapping[str, Tensor]) -> None:
        gadgets.gate(b, "gate", given["x"], given["g"], given["y"], most)
        gadgets.gate(b, "relu", given["x"], given["x"], given["relu"], most)

    circuit = build(
        {"x": (8,), "g": (8,), "y": (8,), "relu": (8,)},
        add_gates,
    )
    y = ints([0, -7, 0, most, 0, 0, 0, 0])
    relu = ints([max(int(value), 0) for value in x])
    assert accepts(circuit, x=x, g=g, y=y, relu=relu)
    for name, value in (("y", y), ("relu", relu)):
        for index in range(8):
            for step in STEPS:
                given = {"x": x, "g": g, "y": y, "relu": relu}
                given[name] = at(index, int(value[index]) + step)(value)
                assert find_broken(circuit, given)
    for index in range(8):
        half = FRACTIONS[0]
        for mask in (1 - int(x[index] > 0), 2, -1, half):
            passed = at(index, int(g[index]) * mask)(y)
            changes = {"gate/mask": at(index, mask)}
            assert not accepts(circuit, changes, x=x, g=g, y=passed, relu=relu)


def test_labels() -> None:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        hot = gadgets.one_hot(b, "hot", given["labels"], 4)
        b.zero("same", hot.lin() - given["rows"].lin())

    circuit = build({"labels": (5,), "rows": (5, 4)}, emit)
    labels = ints([0, 3, 1, 2, 3])
    rows = np.eye(4, dtype=int)[labels.astype(int)].astype(object)
    assert accepts(circuit, labels=labels, rows=rows)
    wrong = [
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        [0, -1, 2, 0],
        [1, -1, 1, 0],
        [FRACTIONS[0], 0, FRACTIONS[0], 0],
        [0, 0, 1, 0],
        [0, 1, 0, 1],
    ]
    for row in wrong:
        altered = rows.copy()
        altered[2] = row
        assert not accepts(circuit, {"hot": instead(altered)}, labels=labels, rows=altered)
    for label in (4, -1, 255, FRACTIONS[0]):
        altered = at(1, label)(labels)
        for row in ([0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]):
            there = rows.copy()
            there[1] = row
            hot: dict[str, Change] = {"hot": lambda values, there=there: there}  # type: ignore[misc]
            assert not accepts(circuit, hot, labels=altered, rows=there)


# --- tables


def test_tuples_outside_a_table_are_no_members() -> None:
    table = (np.asarray([0, 1, 2, 2, 5]), np.asarray([9, 8, 7, 7, 6]))
    circuit = build(
        {"a": (3,), "b": (3,)},
        lambda b, given: b.member("m", (given["a"], given["b"]), table),
    )
    a, c = ints([0, 2, 5]), ints([9, 7, 6])
    assert accepts(circuit, a=a, b=c)
    for first, second in (
        (0, 8),
        (9, 0),
        (3, 9),
        (-1, 9),
        (FRACTIONS[0], 9),
        (0, SCALAR_FIELD // 2),
    ):
        given = {"a": at(0, first)(a), "b": at(0, second)(c)}
        assert rejects(circuit, **given)
        for counts in ([1, 0, 1, 0, 1], [0, 0, 1, 0, 1], [FRACTIONS[0]] * 5, [-1, 2, 1, 0, 1]):
            changes: dict[str, Change] = {
                "m/multiplicities": lambda values, counts=counts: ints(counts)  # type: ignore[misc]
            }
            assert not accepts(circuit, changes, **given)
    # An inverse that is none, chosen so that the sums agree.
    vectors = forge(circuit, {"a": at(0, 1)(a), "b": c})
    assert circuit.find_broken(vectors) == ["m"]
    late = {name: vectors["late"][start:stop] for name, start, stop in circuit.parts("late")}
    values, rows = late["m/inverses of values"], late["m/inverses of table"]
    gap = (vectors["hints"] * rows).sum() - values.sum()
    for which, place, change in ((values, 0, gap), (rows, 3, -gap)):
        which[place] += change
        assert all(name.startswith("ones") for name in circuit.find_broken(vectors))
        assert circuit.find_broken(vectors)
        which[place] -= change
    # Where a row is there twice, how often each is counted does not matter; the sum does.
    for counts, right in (
        ([1, 0, 1, 0, 1], True),
        ([1, 0, 0, 1, 1], True),
        ([1, 0, 1, 1, 1], False),
    ):
        changes = {"m/multiplicities": lambda values, counts=counts: ints(counts)}  # type: ignore[misc]
        assert accepts(circuit, changes, a=a, b=c) == right


def test_no_element_is_zero() -> None:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        b.nonzero("n", given["x"])
        b.require_zero("none", b.sub(b.constant(1), b.constant(1)))

    circuit = build({"x": (5,)}, emit)
    assert accepts(circuit, x=ints([1, -1, 7, 2**40, SCALAR_FIELD // 2]))
    vectors = forge(circuit, {"x": ints([1, 2, 3, 4, 5])})
    for inverse in (0, 1, SCALAR_FIELD - 1):
        for x in ([1, 2, 0, 4, 5], [0] * 5):
            late = ints([inverse])
            assert circuit.find_broken({**vectors, "x": ints(x), "late": late})


# --- softmax

DEEPEST = (32 << 10) - 1


@cache
def make_softmax(rows: int, classes: int) -> Circuit:
    def emit(b: CircuitBuilder, given: dict[str, Tensor]) -> None:
        gadgets.hold_dtype(b, "z", given["z"], "i32")
        gadgets.softmax(
            b,
            "s",
            given["z"],
            given["maximum"],
            given["e"],
            given["total"],
            given["p"],
            2**32,
        )
        hot = gadgets.one_hot(b, "hot", given["labels"], classes)
        gadgets.cross_entropy(
            b, "c", given["z"], given["maximum"], given["total"], hot, given["loss"]
        )

    wide, long = (rows, classes), (rows,)
    return build(
        {
            "z": wide,
            "maximum": long,
            "e": wide,
            "total": long,
            "p": wide,
            "labels": long,
            "loss": long,
        },
        emit,
    )


def apply_softmax(z: Ints, labels: Ints) -> dict[str, Ints]:
    narrow = z.astype(np.int32)
    maximum = TABLE["row_max"].law({}, [narrow])
    e = TABLE["exp2_diff"].law({}, [narrow, maximum])
    total = TABLE["row_sum"].law({}, [e])
    p = TABLE["divide"].law({}, [e, total])
    loss = TABLE["cross_entropy"].law({}, [narrow, maximum, total, labels.astype(np.int64)])
    found = {"z": z, "labels": labels, "maximum": maximum, "e": e, "total": total, "p": p}
    return {name: value.astype(object) for name, value in {**found, "loss": loss}.items()}


def logits(rows: int, classes: int, spread: int) -> Ints:
    rng = np.random.default_rng(classes * spread)
    return rng.integers(-spread, spread, (rows, classes), endpoint=True).astype(object)


@pytest.mark.parametrize("classes", [1, 2, 4, 10])
@pytest.mark.parametrize("spread", [0, 3, 2000, 40000, 2**31 - 1])
def test_softmax_is_the_laws(classes: int, spread: int) -> None:
    z = logits(4, classes, spread)
    if classes > 1 and spread > DEEPEST:
        z[0, :2] = (0, -DEEPEST)
        z[1, :2] = (5, 4 - DEEPEST)
        z[2, :2] = (0, 1 - DEEPEST)
    labels = ints([0, classes - 1, classes // 2, 0])
    assert accepts(make_softmax(4, classes), **apply_softmax(z, labels))


@pytest.mark.parametrize("name", ["maximum", "e", "total", "p", "loss"])
def test_softmax_is_nothing_else(name: str) -> None:
    circuit = make_softmax(3, 4)
    honest = apply_softmax(logits(3, 4, 3000), ints([0, 3, 1]))
    narrow = honest["z"].astype(np.int32)
    for index in (0, honest[name].size - 1):
        for step in (1, -1, 1 << 16, SCALAR_FIELD // 2, FRACTIONS[0], FRACTIONS[1]):
            wrong = at(index, int(honest[name].reshape(-1)[index]) + step)(honest[name])
            assert rejects(circuit, **{**honest, name: wrong})
            if abs(step) > 1:
                continue
            # And with all that follows from it by the law.
            made = {**honest, name: wrong}
            given = {key: value.astype(np.int64) for key, value in made.items()}
            if name == "maximum":
                given["e"] = TABLE["exp2_diff"].law({}, [narrow, given["maximum"].astype(np.int32)])
            if name in ("maximum", "e"):
                given["total"] = TABLE["row_sum"].law({}, [given["e"].astype(np.int32)])
            if name != "p":
                given["p"] = TABLE["divide"].law({}, [given["e"].astype(np.int32), given["total"]])
            if name != "loss":
                given["loss"] = TABLE["cross_entropy"].law(
                    {}, [narrow, given["maximum"], given["total"], given["labels"]]
                )
            assert rejects(circuit, **{key: value.astype(object) for key, value in given.items()})


def test_pieces_of_an_exponential_fit_together() -> None:
    """Other fractions, powers or cuts than those of the difference, each right by itself."""
    circuit = make_softmax(2, 4)
    z = ints([0, -1500, -40000, 1 - DEEPEST, 9, 8, 7, -2000]).reshape(2, 4)
    honest = apply_softmax(z, ints([0, 1]))
    assert accepts(circuit, **honest)
    tried = {
        "s/exp/cut": [(2, 40000), (2, DEEPEST - 1), (1, DEEPEST), (1, 1499)],
        "s/exp/fraction": [(1, 1500), (1, 1500 - 2048), (1, 475)],
        "s/exp/whole": [(1, 0), (1, 2), (1, 32)],
        "s/exp/power": [(1, 1), (1, 4), (1, FRACTIONS[0])],
        "s/exp/half": [(1, 0), (1, 2), (0, FRACTIONS[0])],
        "s/exp/mantissa": [(1, 0), (1, 65536)],
        "c/length": [(0, 15), (0, 18)],
        "c/weight": [(0, 1), (0, 1 << 9)],
        "c/index": [(0, 1024), (0, -1), (0, FRACTIONS[0])],
        "c/log2": [(0, 65536)],
        "c/chosen": [(0, 1)],
        "hot": [(0, 0)],
    }
    for part, changes in tried.items():
        for index, value in changes:
            assert not accepts(circuit, {part: at(index, value)}, **honest), (part, value)
    for index in range(8):
        # A length and an index that belong to each other, and not to the sum.
        for step, weigh in ((1, double), (-1, halve)):
            both = {"c/length": at(index % 2, add(step)), "c/weight": at(index % 2, weigh)}
            assert not accepts(circuit, both, **honest)


def test_logarithm_of_the_smallest_and_the_largest_sum() -> None:
    for classes in (1, 2, 3, 4, 5):
        z = np.full((2, classes), 7, dtype=object)
        z[1, 1:] = -(10**6)
        honest = apply_softmax(z, ints([0, 0]))
        assert list(honest["total"]) == [classes << 16, 1 << 16]
        circuit = make_softmax(2, classes)
        assert accepts(circuit, **honest)
        expected = log2_q16(np.asarray([classes << 16])) - (16 << 16)
        assert honest["loss"][0] == int(expected[0])


# --- hints


@pytest.mark.parametrize(
    "make",
    [
        lambda: (make_shift(17, "i16", FULL, True), near_everything(17, "i16"), 17, "i16"),
        lambda: (make_shift(9, "i32", FULL, True), near_everything(9, "i32"), 9, "i32"),
        lambda: (make_shift(5, "i16", TILE_SPAN, True), near_everything(5, "i16"), 5, "i16"),
    ],
    ids=["i16", "i32", "narrow"],
)
def test_hints_of_shifts_are_unique(
    make: Callable[[], tuple[Circuit, list[int], int, str]],
) -> None:
    circuit, x, shift, dtype = make()
    vectors = forge(circuit, {"x": ints(x), "y": ints(apply_shift(x, shift, dtype))})
    tried, uncaught = find_uncaught(circuit, vectors, {}, spots=4)
    assert tried > 100
    assert not uncaught


def test_hints_of_a_softmax_are_unique() -> None:
    circuit = make_softmax(2, 3)
    honest = apply_softmax(logits(2, 3, 5000), ints([2, 0]))
    vectors = forge(circuit, honest)
    tried, uncaught = find_uncaught(
        circuit, vectors, {}, spots=2, changes=("one more", "negated", "a third more"), late=False
    )
    assert tried > 200
    assert not uncaught
