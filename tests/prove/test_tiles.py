"""Circuits over tiles: the law's results hold, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import pytest

from tests.exhaustive import spare
from tests.prove.circuits import LIMITS
from tests.prove.mock import mock_many
from tests.prove.tamper import compute_late, find_uncaught, places, tamperings
from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.prove.backend.settings import BLINDING, count_blocks, count_usable, pin
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles.circuits import (
    GATE_REACH,
    LOOK_UP_PADDING,
    LOOK_UP_ROWS,
    MAX_SHIFTS,
    SOFTMAX_TILES,
    TILE_BLINDING,
    TILE_CIRCUITS,
    TILE_K,
    TILE_ROWS,
    TILE_SPAN,
    WIDE_REACH,
    LinearMap,
    build_tile_circuit,
    linear_challenge,
    look_up_parameters,
    range_limbs,
    range_parameters,
    rescale_limbs,
    rescale_parameters,
    softmax_parameters,
)
from vtrain.spec.curves import CURVE_NAMES, whole_curve
from vtrain.spec.field import SCALAR_FIELD
from vtrain.spec.number import SATURATION, rs_int, saturate_int

SIDE = 4
ROWS, COLUMNS = 3, 3
"""What of a tile is not padding."""
CHALLENGE = int.from_bytes(np.random.default_rng(7).bytes(31))


@dataclass(frozen=True)
class Example:
    """A true statement: the circuit, given tiles, parameters; ``outputs`` are functions of the
    other tiles by ``law``, which gives None for tiles that the circuit is not about."""

    name: str
    given: dict[str, Ints]
    outputs: tuple[str, ...]
    law: Callable[[Mapping[str, Ints]], Mapping[str, Ints] | None]
    parameters: dict[str, Ints] = field(default_factory=dict)
    image: LinearMap | None = None

    def challenge(self, drawn: int) -> Sequence[int]:
        if self.image is not None:
            return linear_challenge(SIDE, CHALLENGE, self.image)
        return [CHALLENGE][:drawn]

    def assign(self, given: Mapping[str, Ints] | None = None) -> dict[str, Ints]:
        circuit = build(self.name)
        return circuit.assign(
            given or self.given,
            self.parameters,
            lambda _: self.challenge(circuit.length("challenge")),
        )

    def is_true(self, vectors: Mapping[str, Ints]) -> bool:
        """Whether the law makes these outputs of these inputs, in the field."""
        expected = self.law(vectors)
        return expected is not None and all(
            np.array_equal(tile(expected[name]) % SCALAR_FIELD, vectors[name] % SCALAR_FIELD)
            for name in self.outputs
        )


@cache
def build(name: str) -> Circuit:
    return build_tile_circuit(name, SIDE)


def tile(values: Ints) -> Ints:
    """A matrix, a vector (one row) or a flat tile, with zeros behind it."""
    if np.shape(values) == (SIDE * SIDE,):
        return values
    matrix = np.atleast_2d(np.asarray(values, dtype=object))
    whole = np.zeros((SIDE, SIDE), dtype=object)
    whole[: matrix.shape[0], : matrix.shape[1]] = [[int(x) for x in row] for row in matrix]
    return whole.reshape(-1)


def matrix(values: Ints) -> Ints:
    return np.asarray(values, dtype=object).reshape(SIDE, SIDE)


def make(name: str, law: Callable[..., object], outputs: Sequence[str], **inputs: Ints) -> Example:
    """The example with these inputs, tiles in the order of the circuit."""
    tiles = {key: tile(values) for key, values in inputs.items()}
    made = law(tiles)
    assert isinstance(made, dict)
    tiles |= {key: tile(values) for key, values in made.items()}
    given = {key: tiles[key] for key in build(name).given}
    return Example(name, given, tuple(outputs), law)  # type: ignore[arg-type]


def matmul_law(form: str, tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    a, b = matrix(tiles["a"]), matrix(tiles["b"])
    return {"c": (a.T if form[0] == "t" else a) @ (b.T if form[1] == "t" else b)}


def example_matmul(form: str) -> Example:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-32639, 32640, (2, ROWS, COLUMNS))
    a[0], b[:, 0], b[0] = 32639, -32639, 32639
    return make(f"matmul-{form}", partial(matmul_law, form), ["c"], a=a, b=b)


def rescale_law(
    dtype: str, multiplier: int, offset: int, shift: int, tiles: Mapping[str, Ints]
) -> dict[str, Ints]:
    wide = matrix(tiles["x"]) * multiplier
    wide[:ROWS, :COLUMNS] += offset
    return {
        "y": np.asarray(
            [[saturate_int(rs_int(int(w), shift), dtype) for w in row] for row in wide],
            dtype=object,
        )
    }


def example_rescale(dtype: str, n: int, shift: int, multiplier: int, offset: int) -> Example:
    """Ties both ways, the ends of the range and just beyond, far beyond, and what lies between."""
    most = SATURATION[dtype][1] if dtype != "i64" else 1 << 44
    tie = 1 << shift >> 1 if shift > 0 else 1
    end = (most << shift if shift > 0 else most >> -shift) // multiplier
    far = (1 << 44 + shift if shift > 0 else 1 << 44 >> -shift) // multiplier
    x = np.asarray([tie, -tie, tie - 1, end, -end, end + 2 * tie, -far, far, 0], dtype=object)
    name = f"rescale-{dtype}-{n}"
    law = partial(rescale_law, dtype, multiplier, offset, shift)
    made = make(name, law, ["y"], x=x.reshape(ROWS, COLUMNS))
    numbers = {"multiplier": multiplier, "offset": offset, "shift": shift}
    parameters = rescale_parameters(SIDE, n, rows=ROWS, columns=COLUMNS, **numbers)
    return Example(name, made.given, made.outputs, law, parameters)


def gate_law(tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    return {"y": np.where(tiles["x"] > 0, tiles["g"], 0)}


def example_gate() -> Example:
    rng = np.random.default_rng(2)
    x, g = rng.integers(-GATE_REACH, GATE_REACH + 1, (2, ROWS, COLUMNS))
    x[0], x[1, 0], x[1, 1] = (0, 1, -1), GATE_REACH, -GATE_REACH
    return make("gate", gate_law, ["y"], x=x, g=g)


def mul_law(tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    return {"y": tiles["a"] * tiles["b"]}


def example_mul() -> Example:
    rng = np.random.default_rng(6)
    a, b = rng.integers(-(2**30), 2**30, (2, ROWS, COLUMNS))
    a[0], b[:, 0] = (2**31, -(2**31), 1), (2**28, 0, -1)
    return make("mul", mul_law, ["y"], a=a, b=b)


def square_law(tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    return {"s": np.asarray([(tiles["x"] ** 2).sum()], dtype=object)}


def example_square() -> Example:
    x = np.random.default_rng(3).integers(-32639, 32640, (ROWS, COLUMNS))
    return make("square", square_law, ["s"], x=x)


def linear_law(image: LinearMap, tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    y = np.zeros(SIDE * SIDE, dtype=object)
    for out, source, factor in zip(image.outputs, image.inputs, image.factors, strict=True):
        y[out] += int(factor) * tiles["x"][source]
    return {"y": y}


def example_linear() -> Example:
    """A random map that has every input in it and leaves the last row of the output empty."""
    rng = np.random.default_rng(4)
    size = SIDE * SIDE
    inputs = np.concatenate([np.arange(size), rng.integers(0, size, size)])
    outputs = rng.integers(0, size - SIDE, inputs.size)
    image = LinearMap(outputs, inputs, rng.integers(1, 6, inputs.size))
    x = rng.integers(-(2**60), 2**60, (SIDE, SIDE))
    law = partial(linear_law, image)
    made = make("linear", law, ["y"], x=x)
    return Example("linear", made.given, made.outputs, law, image=image)


def look_up_law(tiles: Mapping[str, Ints]) -> dict[str, Ints] | None:
    rows = {at - 2662: entry for at, entry in enumerate(whole_curve("sigmoid").tolist())}
    rows[LOOK_UP_PADDING] = 0
    found = [rows.get(int(key)) for key in tiles["x"]]
    return None if None in found else {"y": np.asarray(found, dtype=object)}


def example_look_up() -> Example:
    """Both ends of a table, its middle, and the key of padding."""
    x = np.full((SIDE, SIDE), LOOK_UP_PADDING)
    x[:ROWS, :COLUMNS] = np.random.default_rng(9).integers(-2662, 2663, (ROWS, COLUMNS))
    x[0, :3] = -2662, 2662, 0
    made = make("look-up", look_up_law, ["y"], x=x)
    parameters = look_up_parameters(whole_curve("sigmoid"))
    return Example(made.name, made.given, made.outputs, made.law, parameters)


def test_no_entry_of_another_key_is_looked_up() -> None:
    """Nor that of a key which stands in the table more than once: its rows are all the same."""
    example = example_look_up()
    for place, entry in ((0, 1), (SIDE * SIDE - 1, 1), (SIDE * SIDE - 1, 16384)):
        y = example.given["y"].copy()
        y[place] += entry
        assert build("look-up").find_broken(example.assign(example.given | {"y": y}))
    for key in (-2663, 2663, LOOK_UP_PADDING + 1):
        x = example.given["x"].copy()
        x[0] = key
        assert build("look-up").find_broken(example.assign(example.given | {"x": x}))


def test_every_table_has_room() -> None:
    for name in CURVE_NAMES:
        parameters = look_up_parameters(whole_curve(name))
        assert {item.size for item in parameters.values()} == {LOOK_UP_ROWS}
        assert int(parameters["keys"][-1]) == LOOK_UP_PADDING
        assert int(parameters["entries"][-1]) == 0
    for count in (LOOK_UP_ROWS, LOOK_UP_ROWS + 1):
        with pytest.raises(CircuitError, match=f"no circuit for {count} entries"):
            look_up_parameters(np.zeros(count, np.int64))


def zero_law(tiles: Mapping[str, Ints]) -> dict[str, Ints]:
    return {"x": np.zeros(SIDE * SIDE, dtype=object)}


def example_zero() -> Example:
    return make("zero", zero_law, ["x"])


def range_law(lo: int, hi: int, tiles: Mapping[str, Ints]) -> dict[str, Ints] | None:
    x = matrix(tiles["x"])
    inside = x[:ROWS, :COLUMNS]
    empty = not x[ROWS:].any() and not x[:, COLUMNS:].any()
    return {} if empty and ((inside >= lo) & (inside <= hi)).all() else None


def example_range(n: int, lo: int, hi: int) -> Example:
    x = np.random.default_rng(5).integers(lo, hi + 1, (ROWS, COLUMNS))
    x[0, :2] = lo, hi
    made = make(f"range-{n}", partial(range_law, lo, hi), [], x=x)
    parameters = range_parameters(SIDE, lo=lo, hi=hi, rows=ROWS, columns=COLUMNS)
    return Example(made.name, made.given, (), made.law, parameters)


def softmax_law(tiles: Mapping[str, Ints]) -> dict[str, Ints] | None:
    z, labels = matrix(tiles["z"]), tiles["labels"][:ROWS]
    small = np.asarray([abs(int(item)) < 1 << 31 for item in z.reshape(-1)]).all()
    if not small or not all(0 <= item < COLUMNS for item in labels):
        return None
    z = z[:ROWS, :COLUMNS].astype(np.int32)
    labels = labels.astype(np.int64)
    maximum = TABLE["row_max"].law({}, [z])
    e = TABLE["exp2_diff"].law({}, [z, maximum])
    total = TABLE["row_sum"].law({}, [e])
    p = TABLE["divide"].law({}, [e, total])
    grad = TABLE["sub_one_hot"].law({}, [p, labels])
    loss = TABLE["cross_entropy"].law({}, [z, maximum, total, labels])
    return dict(zip(SOFTMAX_TILES[2:], (maximum, e, total, p, grad, loss), strict=True))


LOGITS = {
    "ends": [[2**31 - 1, -(2**31) + 1, 0], [-(2**31) + 1] * 3, [2**31 - 1, 2**31 - 2, 2**31 - 1]],
    "equal": [[0, 0, 0], [-5, -5, -5], [7, 7, 6]],
    "where exponentials end": [
        [0, -17408, -17409],
        [9, 9 - 17407, 9 - 1024],
        [0, -16384, -31 * 1024],
    ],
    "random": np.random.default_rng(6).integers(-3000, 3000, (ROWS, COLUMNS)),
}


def example_softmax(most: int, logits: str) -> Example:
    inputs = {"z": np.asarray(LOGITS[logits]), "labels": np.asarray([0, 2, 1])}
    made = make(f"softmax-{most}", softmax_law, SOFTMAX_TILES[2:], **inputs)
    parameters = softmax_parameters(SIDE, most, rows=ROWS, classes=COLUMNS)
    return Example(made.name, made.given, made.outputs, made.law, parameters)


SHIFTS = {
    0: (0, -7),
    1: (1, 2, 14, 0, -3),
    2: (15, 16, 24, 29, 5),
    3: (30, 38, 43, 20),
    4: (44, 47, 59, 20),
}
FACTORS = ((1, 0), (1, -1), (47274, 12345))
OTHERS: dict[str, Callable[[], Example]] = {
    **{f"matmul-{form}": partial(example_matmul, form) for form in ("nn", "nt", "tn")},
    "gate": example_gate,
    "mul": example_mul,
    "square": example_square,
    "linear": example_linear,
    "zero": example_zero,
    "look-up": example_look_up,
    "range-1 of u8": partial(example_range, 1, 0, 255),
    "range-1 of i8": partial(example_range, 1, -128, 127),
    "range-3 of i16": partial(example_range, 3, -(2**15), 2**15 - 1),
    "range-3 of i32": partial(example_range, 3, -(2**31), 2**31 - 1),
}
RESCALES = [
    (dtype, n, shift, *factors)
    for dtype in ("i16", "i32", "i64")
    for n in range(dtype == "i64", len(MAX_SHIFTS))
    for shift in SHIFTS[n]
    for factors in FACTORS
]
SOFTMAXES = [(most, logits) for most in (16, 128) for logits in LOGITS]
CATALOGUE: dict[str, Callable[[], Example]] = OTHERS | {
    f"rescale-{dtype}-{n}": partial(example_rescale, dtype, n, MAX_SHIFTS[n], 47274, 12345)
    for dtype in ("i16", "i32", "i64")
    for n in range(dtype == "i64", len(MAX_SHIFTS))
}
"""One example of every circuit but softmax, whose table takes longer."""
OF_SOFTMAX = {f"softmax-{most}": partial(example_softmax, most, "random") for most in (16, 128)}


CORNERS = (0, SIDE - 1, SIDE + 1, SIDE * SIDE - 1)
"""An element, one to its right in the padding, one within, the last of the padding."""


def check_law(
    example: Example, names: Sequence[str] | None = None, elements: Sequence[int] = CORNERS
) -> None:
    """It holds; with any output off by one anywhere, in padding too, and all else made to fit, it
    does not."""
    circuit = build(example.name)
    assert circuit.find_broken(example.assign()) == []
    for name in example.outputs if names is None else names:
        for at in elements:
            for change in (1, -1):
                wrong = example.given[name].copy()
                wrong[at] += change
                try:
                    vectors = example.assign(example.given | {name: wrong})
                except ValueError:  # an inverse of 0: there is no witness
                    continue
                assert circuit.find_broken(vectors), (name, at, change)


@pytest.mark.parametrize("name", OTHERS)
def test_law_holds_and_nothing_beside_it(name: str) -> None:
    check_law(OTHERS[name]())


@pytest.mark.parametrize(("dtype", "n", "shift", "multiplier", "offset"), RESCALES)
def test_rescale_is_the_law(dtype: str, n: int, shift: int, multiplier: int, offset: int) -> None:
    check_law(example_rescale(dtype, n, shift, multiplier, offset))


# --- forgeries: one condition alone stands against them


def put(circuit: Circuit, vectors: Mapping[str, Ints], part: str, at: int, value: int) -> None:
    """Set one element of a hint or limb, ``part`` as ``group/name``; limbs are stored plus one."""
    group, _, name = part.partition("/")
    (start,) = (start for found, start, _ in circuit.parts(group) if found == name)
    vectors[group][start + at] = value + (group == "limbs")


def forge_rescale(dtype: str, y: int, low: int, excess: int) -> list[str]:
    """What is broken where 85 rescaled by 4 bits, 5 with a remainder of 13, is said to be y."""
    circuit = build(f"rescale-{dtype}-1")
    tiles = {name: np.zeros(SIDE * SIDE, dtype=object) for name in ("x", "y")}
    tiles["x"][0], tiles["y"][0] = 85, y
    parameters = rescale_parameters(SIDE, 1, multiplier=1, shift=4, rows=ROWS, columns=COLUMNS)
    vectors = circuit.assign(tiles, parameters, lambda _: [CHALLENGE])
    put(circuit, vectors, "limbs/remainder/low", 0, low)
    put(circuit, vectors, "limbs/remainder/room", 0, max(15 - low, 0))
    if dtype != "i64":
        put(circuit, vectors, "hints/rescale/excess", 0, excess)
        for digit in range(4 if dtype == "i32" else 3):
            limb = excess // TILE_SPAN**digit % TILE_SPAN
            put(circuit, vectors, f"limbs/rescale/excess/digit {digit}", 0, limb)
    return circuit.find_broken(vectors)


@pytest.mark.parametrize("dtype", ["i16", "i32", "i64"])
def test_rescale_is_forged_by_nothing(dtype: str) -> None:
    assert forge_rescale(dtype, 5, 13, 0) == []
    # A remainder of 16 more.
    assert forge_rescale(dtype, 4, 29, 0) == ["remainder/room"]
    # Another remainder, and a result that is no integer.
    fraction = 93 * pow(16, -1, SCALAR_FIELD) % SCALAR_FIELD
    broken = forge_rescale(dtype, fraction, 0, 0)
    assert {name.removeprefix("ones: ").split("/")[0] for name in broken} == {"y"}
    # Feigned saturation: M d = t y holds, but y is not M.
    if dtype != "i64":
        assert forge_rescale(dtype, 1, 13, 4 * SATURATION[dtype][1]) == ["rescale/clamped"]


def forge_softmax(**changes: Callable[[Ints], Ints]) -> tuple[Example, dict[str, Ints]]:
    """Tiles where some outputs are changed and all that follows from them is the law's."""
    z = np.asarray([[0, -2000, -4000], [5, 5, 5], [0, 1, 2]], dtype=np.int32)
    labels = np.asarray([0, 2, 1])

    def keep(name: str, value: Ints) -> Ints:
        change = changes.get(name)
        return value if change is None else change(value)

    maximum = keep("maximum", TABLE["row_max"].law({}, [z]))
    e = keep("exp", TABLE["exp2_diff"].law({}, [z, maximum]))
    total = keep("sum", TABLE["row_sum"].law({}, [e]))
    p = keep("p", TABLE["divide"].law({}, [e, total]))
    one = np.eye(COLUMNS, dtype=np.int64)[labels] << 14
    loss = TABLE["cross_entropy"].law({}, [z, maximum, total, labels])
    values = (z, labels, maximum, e, total, p, p - one, loss)
    given = {name: tile(value) for name, value in zip(SOFTMAX_TILES, values, strict=True)}
    example = example_softmax(16, "random")
    return example, example.assign(given)


def test_softmax_of_the_law_is_no_forgery() -> None:
    _, vectors = forge_softmax()
    assert build("softmax-16").find_broken(vectors) == []


@pytest.mark.parametrize(
    ("name", "at", "change", "broken"),
    [
        ("maximum", 1, 1024, "maximum"),
        ("sum", 1, 1024, "sum"),
        ("p", (1, 0), 1, "p/rest"),
        ("p", (1, 0), -1, "p/room"),
    ],
)
def test_softmax_is_forged_by_nothing(
    name: str, at: int | tuple[int, int], change: int, broken: str
) -> None:
    def alter(values: Ints) -> Ints:
        changed = values.copy()
        changed[at] += change
        return changed

    _, vectors = forge_softmax(**{name: alter})
    assert build("softmax-16").find_broken(vectors) == [broken]


def test_probability_is_an_integer() -> None:
    """The quotient without a remainder, in the field."""

    def divide(values: Ints) -> Ints:
        p = values.astype(object)
        total = 65536 * 3
        p[1, 0] = (65536 * 2**15 + total) * pow(2 * total, -1, SCALAR_FIELD) % SCALAR_FIELD
        return np.asarray(p, dtype=object)

    _, vectors = forge_softmax(p=divide)
    assert build("softmax-16").find_broken(vectors) == ["p"]


def test_exponential_of_a_smaller_gap_is_noticed() -> None:
    """cut 1024 short of the gap, the rest in ``over``: exp is twice what it should be."""
    doubled = int(TABLE["exp2_diff"].law({}, [np.asarray([[-976]]), np.asarray([0])])[0, 0])

    def change(values: Ints) -> Ints:
        changed = values.copy()
        changed[0, 1] = doubled
        return changed

    example, vectors = forge_softmax(exp=change)
    circuit = build("softmax-16")
    put(circuit, vectors, "hints/exp/cut", 1, 976)
    put(circuit, vectors, "limbs/exp/over/digit 0", 1, 1024)
    put(circuit, vectors, "hints/exp/multiplicities", 976, 1)
    late = compute_late(circuit, vectors, example.parameters)
    assert late is not None
    assert circuit.find_broken(vectors | late) == ["exp/cut"]


@pytest.mark.parametrize("name", SOFTMAX_TILES[2:])
def test_softmax_says_every_output(name: str) -> None:
    """Off by one in an element and in the padding; the slow tests look at more."""
    check_law(example_softmax(16, "random"), (name,), (0, SIDE * SIDE - 1))


def test_rescale_saturates_in_the_examples() -> None:
    """The examples reach both ends and go beyond them."""
    y = example_rescale("i16", 1, 14, 1, 0).given["y"]
    assert (y == 32639).sum() >= 2
    assert (y == -32639).sum() >= 2
    assert 1 in y
    assert 0 in y


@pytest.mark.parametrize(("most", "logits"), SOFTMAXES)
def test_softmax_holds(most: int, logits: str) -> None:
    example = example_softmax(most, logits)
    assert build(example.name).find_broken(example.assign()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "logits"),
    spare(SOFTMAXES, {(16, "ends"), (128, "random")}.__contains__),
)
def test_softmax_is_the_law(most: int, logits: str) -> None:
    check_law(example_softmax(most, logits), elements=CORNERS if most == 16 else CORNERS[::3])


def check_catalogue(example: Example, at_least: int, **options: object) -> None:
    """Every tampering is noticed, but where what it makes is another true statement."""
    circuit, vectors = build(example.name), example.assign()
    tried, found = 0, []
    for tampering in tamperings(circuit, vectors, example.parameters, **options):  # type: ignore[arg-type]
        tried += 1
        is_input = tampering.group in circuit.given and tampering.group not in example.outputs
        if not circuit.find_broken(tampering.vectors) and not (
            is_input and example.is_true(tampering.vectors)
        ):
            found.append(tampering.name)
    assert found == []
    assert tried >= at_least


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_tampering_is_noticed(name: str) -> None:
    check_catalogue(CATALOGUE[name](), at_least=15 if name == "zero" else 40)


QUICK = {"changes": ("one more",), "spots": 1, "whole": False, "late": False}


@pytest.mark.parametrize("name", OF_SOFTMAX)
def test_tampering_with_softmax_is_noticed(name: str) -> None:
    """One change of one element of every part; the rest of the catalogue is slow."""
    check_catalogue(OF_SOFTMAX[name](), at_least=30, **QUICK)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "spots"), [("softmax-16", 1), ("softmax-16", 2), ("softmax-128", 1)]
)
def test_every_tampering_with_softmax_is_noticed(name: str, spots: int) -> None:
    """The wider one has the same parts, more of each."""
    check_catalogue(OF_SOFTMAX[name](), at_least=250 * spots, spots=spots)


def test_catalogue_names_what_nobody_holds() -> None:
    """A circuit without a condition on its hint: the catalogue says so."""
    from vtrain.prove.circuit.builder import CircuitBuilder

    b = CircuitBuilder(2, TILE_SPAN)
    x = b.vector("x", 4)
    b.hint("loose", (4,), lambda values: values[x])
    b.zero("limb", b.limb("held", (4,), lambda values: values[x]) - x.lin())
    circuit = b.build()
    vectors = circuit.assign({"x": np.arange(4)}, {}, lambda _: [CHALLENGE])
    tried, uncaught = find_uncaught(circuit, vectors, {})
    assert tried > len(uncaught) > 0
    assert {name.split("[")[0] for name in uncaught} == {"hints/loose"}


@pytest.mark.parametrize("name", ["softmax-16", "rescale-i32-2", "gate"])
def test_catalogue_reaches_every_part(name: str) -> None:
    example = (CATALOGUE | OF_SOFTMAX)[name]()
    circuit, vectors = build(name), example.assign()
    made = tamperings(circuit, vectors, example.parameters, **QUICK)  # type: ignore[arg-type]
    tampered = {tampering.name.split("[")[0] for tampering in made}
    assert {f"{vector}/{part}" for vector, part, _, _ in places(circuit)} == tampered


# --- padding, ranges, parameters


def test_a_product_is_exact_of_any_integers() -> None:
    """Its operands' ranges are shown by what made them; in the field nothing wraps."""
    example = example_matmul("nt")
    given = {name: values * (1 << 31) for name, values in example.given.items() if name != "c"}
    right = matmul_law("nt", {name: matrix(values) for name, values in given.items()})["c"]
    given["c"] = tile(right)
    assert not build("matmul-nt").find_broken(example.assign(given))
    given["c"][1] += 1
    assert build("matmul-nt").find_broken(example.assign(given)) == ["product"]


@pytest.mark.parametrize("at", [(ROWS, 0), (0, COLUMNS), (SIDE - 1, SIDE - 1)])
@pytest.mark.parametrize("value", [1, -1, SCALAR_FIELD // 2])
def test_range_refuses_padding_that_is_not_zero(at: tuple[int, int], value: int) -> None:
    example = example_range(3, -(2**31), 2**31 - 1)
    x = matrix(example.given["x"]).copy()
    x[at] = value
    broken = build("range-3").find_broken(example.assign({"x": x.reshape(-1)}))
    assert any(name.startswith("padding of") for name in broken)


@pytest.mark.parametrize(("n", "lo", "hi"), [(1, 0, 255), (3, -(2**31), 2**31 - 1)])
def test_range_ends_exactly(n: int, lo: int, hi: int) -> None:
    example = example_range(n, lo, hi)
    for value in (lo - 1, hi + 1, hi + TILE_SPAN**n, pow(2, -1, SCALAR_FIELD)):
        x = example.given["x"].copy()
        x[0] = value
        assert build(example.name).find_broken(example.assign({"x": x})), value


@pytest.mark.parametrize("shift", range(MAX_SHIFTS[-1] + 1))
def test_intervals_are_exact_for_every_shift(shift: int) -> None:
    n = rescale_limbs(shift)
    weights, rest = gadgets.split_interval((1 << shift) - 1, TILE_SPAN, max(n - 1, 0))
    assert (TILE_SPAN - 1) * sum(weights) + rest == (1 << shift) - 1
    reach = rest
    assert reach < TILE_SPAN
    for weight in weights:  # no gap: each step is at most one more than what lies below reaches
        assert 0 <= weight <= reach + 1
        reach += weight * (TILE_SPAN - 1)


@pytest.mark.parametrize("top", range(60))
def test_intervals_reach_what_they_should_and_no_more(top: int) -> None:
    span = 5
    try:
        weights, rest = gadgets.split_interval(top, span, 2)
    except CircuitError:
        assert top >= span * span
        return
    reached = {
        sum(w * limb for w, limb in zip(weights, limbs, strict=True)) + low
        for limbs in np.ndindex(span, span)
        for low in range(rest + 1)
    }
    assert reached == set(range(top + 1))


@pytest.mark.parametrize("dtype", ["i16", "i32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_saturation_is_proven_up_to_its_reach(dtype: str, sign: int) -> None:
    """As far beyond the end of the range as its limbs say, and no further."""
    most = SATURATION[dtype][1]
    reach = TILE_SPAN ** (4 if dtype == "i32" else 3)
    for beyond, holds in ((reach - 1, True), (reach, False)):
        x, y = (tile(np.asarray([[sign * value]])) for value in (most + beyond, most))
        name = f"rescale-{dtype}-0"
        parameters = rescale_parameters(SIDE, 0, multiplier=1, shift=0, rows=1, columns=1)
        law = partial(rescale_law, dtype, 1, 0, 0)
        broken = build(name).find_broken(
            Example(name, {"x": x, "y": y}, (), law, parameters).assign()
        )
        assert broken == ([] if holds else ["rescale/excess"]), beyond


@pytest.mark.parametrize("sign", [1, -1])
def test_wide_results_are_proven_up_to_their_reach(sign: int) -> None:
    """``WIDE_REACH`` is what the tiling refuses by; one more of one sign has no proof."""
    for value, holds in ((WIDE_REACH, True), (WIDE_REACH + 2, False)):
        x, y = (tile(np.asarray([[sign * item]], dtype=object)) for item in (2 * value, value))
        parameters = rescale_parameters(SIDE, 1, multiplier=1, shift=1, rows=1, columns=1)
        law = partial(rescale_law, "i64", 1, 0, 1)
        example = Example("rescale-i64-1", {"x": x, "y": y}, (), law, parameters)
        assert build("rescale-i64-1").find_broken(example.assign()) == ([] if holds else ["y"])


def test_int16_is_two_limbs_and_nothing_beside_it() -> None:
    """y + M is the sum of two limbs, of which M + 1 and -M - 1 leave no room for one."""
    circuit, most = build("rescale-i16-0"), SATURATION["i16"][1]
    parameters = rescale_parameters(SIDE, 0, multiplier=1, shift=0, rows=1, columns=1)
    law = partial(rescale_law, "i16", 1, 0, 0)
    for y, limbs, broken in (
        (most, (most, most), []),
        (most + 1, (most, most + 1), ["ones: y/limb 1"]),
        (-most, (0, 0), []),
        (-most - 1, (-1, 0), ["ones: y/limb 0"]),
    ):
        tiles = {name: tile(np.asarray([[y]])) for name in ("x", "y")}
        vectors = Example("rescale-i16-0", tiles, (), law, parameters).assign()
        for index, limb in enumerate(limbs):
            put(circuit, vectors, f"limbs/y/limb {index}", 0, limb)
        assert circuit.find_broken(vectors) == broken, y


def test_ranges_take_the_least_circuit() -> None:
    assert range_limbs(0, 255) == 1
    assert range_limbs(-16320, 16319) == 1
    assert range_limbs(-16320, 16320) == 3
    assert range_limbs(*SATURATION["i16"]) == 3
    assert range_limbs(0, TILE_SPAN**3 - 1) == 3
    with pytest.raises(CircuitError, match="no circuit for the range"):
        range_limbs(0, TILE_SPAN**3)


def test_what_no_circuit_takes_is_refused() -> None:
    with pytest.raises(CircuitError, match="shift"):
        rescale_limbs(MAX_SHIFTS[-1] + 1)
    with pytest.raises(CircuitError, match="shift"):
        rescale_parameters(SIDE, 1, multiplier=1, shift=15, rows=1, columns=1)
    with pytest.raises(CircuitError, match="rows or columns"):
        rescale_parameters(SIDE, 1, multiplier=1, shift=1, rows=SIDE + 1, columns=1)
    with pytest.raises(CircuitError, match="zero"):
        range_parameters(SIDE, lo=1, hi=2, rows=1, columns=1)
    with pytest.raises(CircuitError, match="no such circuit"):
        build_tile_circuit("rescale-i64-0")


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (([0], [SIDE * SIDE], [1]), "beyond"),
        (([-1], [0], [1]), "beyond"),
        (([0, 1], [0], [1]), "one length"),
    ],
)
def test_maps_that_are_none_are_refused(image: tuple[list[int], ...], match: str) -> None:
    parts = [np.asarray(part, dtype=np.int64) for part in image]
    with pytest.raises(CircuitError, match=match):
        linear_challenge(SIDE, 1, LinearMap(*parts))


def test_labels_that_are_no_class_have_no_proof() -> None:
    example = example_softmax(16, "random")
    for label in (COLUMNS, SIDE, -1):
        labels = example.given["labels"].copy()
        labels[0] = label
        vectors = example.assign(example.given | {"labels": labels})
        assert any("one-hot" in name for name in build("softmax-16").find_broken(vectors))


def test_masked_logits_are_those_of_the_elements_that_count() -> None:
    """Causal rows: what is left out is 0 in z, wherever the maximum lies."""
    counts = np.tril(np.ones((SIDE, SIDE), dtype=np.int64))
    for z in LOGITS.values():
        live = counts[:ROWS, :COLUMNS] > 0
        masked = np.where(live, np.asarray(z), 0)
        low = np.where(live, np.asarray(z), -(2**31)).astype(np.int32)
        labels = np.zeros(ROWS, np.int64)
        maximum = TABLE["row_max"].law({}, [low])
        e = np.where(live, TABLE["exp2_diff"].law({}, [low, maximum]), 0).astype(np.int32)
        total = TABLE["row_sum"].law({}, [e])
        p = TABLE["divide"].law({}, [e, total])
        loss = TABLE["cross_entropy"].law({}, [low, maximum, total, labels])
        grad = TABLE["sub_one_hot"].law({}, [p, labels])
        values: dict[str, Ints] = dict(
            zip(SOFTMAX_TILES, (masked, labels, maximum, e, total, p, grad, loss), strict=True)
        )
        parameters = softmax_parameters(
            SIDE, 16, rows=ROWS, classes=COLUMNS, counts=counts.reshape(-1)
        )
        given = {name: tile(value) for name, value in values.items()}
        example = Example("softmax-16", given, (), softmax_law, parameters)
        assert build("softmax-16").find_broken(example.assign()) == []
        # A place that is left out takes no part, and is no label.
        for name, place in (("exp", 1), ("p", 2), ("labels", 0)):
            other = given[name].copy()
            other[place] += 1
            assert build("softmax-16").find_broken(example.assign(given | {name: other}))
        whole = softmax_parameters(SIDE, 16, rows=ROWS, classes=COLUMNS)
        unmasked = Example("softmax-16", given, (), softmax_law, whole)
        assert build("softmax-16").find_broken(unmasked.assign())


# --- sizes

CELLS = {
    "gate": (13, 3),
    "linear": (2, 2),
    "look-up": (8.4, 3),
    "matmul-nn": (3, 2),
    "matmul-nt": (3, 2),
    "matmul-tn": (3, 2),
    "range-1": (6, 2),
    "range-3": (14, 3),
    "rescale-i16-0": (17, 3),
    "rescale-i16-1": (21, 3),
    "rescale-i16-2": (23, 3),
    "rescale-i16-3": (25, 3),
    "rescale-i16-4": (27, 3),
    "rescale-i32-0": (23, 3),
    "rescale-i32-1": (27, 3),
    "rescale-i32-2": (27, 3),
    "rescale-i32-3": (29, 3),
    "rescale-i32-4": (31, 3),
    "rescale-i64-1": (14, 3),
    "rescale-i64-2": (16, 3),
    "rescale-i64-3": (18, 3),
    "rescale-i64-4": (20, 3),
    "softmax-128": (51, 3),
    "softmax-16": (17, 3),
    "mul": (3, 2),
    "square": (2, 2),
    "zero": (1, 1),
}
"""Cells counted by hand, in units of 128^2 and but for vectors of 128, and inner columns."""


def test_every_circuit_has_its_size() -> None:
    assert sorted(TILE_CIRCUITS) == sorted(CELLS)
    assert (BLINDING, count_usable(TILE_K)) == (TILE_BLINDING, TILE_ROWS)


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_as_stated_and_fit(name: str) -> None:
    """``pin`` refuses what does not fit 2^15 rows."""
    circuit = build_tile_circuit(name)
    units, inner = CELLS[name]
    assert circuit.inner_columns == inner
    assert units <= circuit.cells / 128**2 <= 1.05 * units
    assert pin(circuit, TILE_K).k == TILE_K


@pytest.mark.parametrize("name", CELLS)
def test_a_task_may_ask_for_a_larger_k(name: str) -> None:
    """The same circuit in fewer blocks, for shorter proofs."""
    circuit = build_tile_circuit(name)
    least, larger = (count_blocks(circuit, k) for k in (TILE_K, TILE_K + 1))
    assert larger == -(-least // 2)
    assert pin(circuit, TILE_K + 1).k == TILE_K + 1
    with pytest.raises(CircuitError, match="column"):
        pin(circuit, TILE_K - 1)


# --- ezkl

ALIKE = {
    "softmax-128",
    *("range-1 of u8", "range-3 of i32"),
    *(f"rescale-i16-{n}" for n in (1, 2, 3, 4)),
    *(f"rescale-i32-{n}" for n in (0, 1, 3, 4)),
    *(f"rescale-i64-{n}" for n in (1, 2, 3)),
}
"""Circuits that have the parts of another, more of each or wider."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", spare(sorted(CATALOGUE | OF_SOFTMAX), lambda name: name not in ALIKE)
)
def test_ezkl_says_the_same(name: str) -> None:
    """The sound witness holds under ezkl's own constraints, one altered in each part does not."""
    example = (CATALOGUE | OF_SOFTMAX)[name]()
    circuit, vectors = build(example.name), example.assign()
    altered = [
        tampering
        for tampering in tamperings(
            circuit, vectors, example.parameters, changes=("one less",), spots=1, whole=False
        )
        if circuit.find_broken(tampering.vectors)
    ]
    # Softmax has many parts, and a table that takes seconds: every eighth of them.
    altered = altered[:: 8 if name in OF_SOFTMAX else 1]
    witnesses = [vectors, *(tampering.vectors for tampering in altered)]
    sound, *rest = mock_many(circuit, pin(circuit, TILE_K), witnesses, LIMITS)
    assert sound.holds, sound.reason
    assert [t.name for t, said in zip(altered, rest, strict=True) if said.holds] == []
    assert altered


@pytest.mark.slow
@pytest.mark.parametrize("k", [TILE_K, TILE_K + 2])
def test_the_table_ends_where_limbs_do(k: int) -> None:
    """Also where its column goes on far behind it: the digits (span, 0) in place of (0, 1)."""
    x = np.asarray([[TILE_SPAN + 1]])
    example, circuit = make("gate", gate_law, ["y"], x=x, g=x), build("gate")
    vectors = example.assign()
    forged = {name: values.copy() for name, values in vectors.items()}
    put(circuit, forged, "limbs/gate/sign/digit 0", 0, TILE_SPAN)
    put(circuit, forged, "limbs/gate/sign/digit 1", 0, 0)
    assert circuit.find_broken(forged) == ["ones: gate/sign/digit 0"]
    sound, wrong = mock_many(circuit, pin(circuit, k), [vectors, forged], LIMITS)
    assert (sound.holds, wrong.holds) == (True, False)
