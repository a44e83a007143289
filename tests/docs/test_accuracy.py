"""docs/accuracy.md: every worst error, its place and its size, found again by other arithmetic.

Real values are Decimals of 50 digits, of the exact inputs that the law has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.model import find_mask_factor
from vtrain.graph.norms import emit_normalized
from vtrain.graph.update import RATE_BITS, round_half_up
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.ops.optimizer import BETA_EXPONENT
from vtrain.spec.number import exp2_table, log2_q16, log2_table
from vtrain.train.optimizers import compute_rates, parse_optimizer
from vtrain.train.table import Table
from vtrain.wire.graph import Attrs, Node, TensorType

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "accuracy.md").read_text()
ROWS = {
    found[1]: (float(found[2]), found[3])
    for found in re.finditer(r"^\| ([^|]+?) \| [^|]+? \| ([0-9.e-]+) \| ([^|]+?) \|", PAGE, re.M)
}
Worst = tuple[float, str]
FOUND: dict[str, Callable[[], Worst]] = {}


def row(name: str) -> Callable[[Callable[[], Worst]], Callable[[], Worst]]:
    """The function finds the worst error of the page's row ``name``, and where it is."""

    def keep(find: Callable[[], Worst]) -> Callable[[], Worst]:
        FOUND[name] = find
        return find

    return keep


def worst_of(found: Iterable[tuple[Decimal | Fraction | float, str]]) -> Worst:
    return max(((abs(float(error)), place) for error, place in found), key=lambda at: at[0])


def law(op: str, attrs: Attrs, *values: object) -> int:
    """One element of an operator of scalars."""
    arrays = [np.asarray(value, np.int64) for value in values]
    return int(TABLE[op].law(attrs, arrays))


@cache
def powers_of_two() -> list[Decimal]:
    """2^16 * 2^(-i/1024)"""
    step = (-Decimal(2).ln() / 1024).exp()
    return [65536 * step**i for i in range(1024)]


@row("exponentials: table T")
def table_of_exponentials() -> Worst:
    table = exp2_table().tolist()
    return worst_of((table[i] - powers_of_two()[i], f"i = {i}") for i in range(1024))


@row("`exp2_diff`")
def exponentials() -> Worst:
    gaps = np.arange(31 * 1024 + 2)
    z, top = (-gaps).astype(np.int32)[None], np.zeros(1, np.int32)
    found = TABLE["exp2_diff"].law({}, [z, top])[0].tolist()
    exact = (powers_of_two()[d & 1023] / (1 << (d >> 10)) for d in range(len(gaps)))
    pairs = zip(found, exact, strict=True)
    return worst_of((mine - real, f"d = {d}") for d, (mine, real) in enumerate(pairs))


@row("logits in bits: `rescale` to 10 fraction bits")
def rounded_logits() -> Worst:
    """What half a unit of the exponent does to an exponential, relative."""
    return float((Decimal(2).ln() / 2048).exp() - 1), "half a unit"


@row("logarithms: table L")
def table_of_logarithms() -> Worst:
    two = Decimal(2).ln()
    table = log2_table().tolist()
    return worst_of(
        (table[i] - 65536 * ((2049 + 2 * Decimal(i)) / 2048).ln() / two, f"i = {i}")
        for i in range(1024)
    )


@row("log2 in `cross_entropy`")
def logarithms() -> Worst:
    """At both ends of each entry's interval, of numbers of 40 bits; between them it is monotone."""
    two, n = Decimal(2).ln(), 40

    def measure(i: int) -> Iterable[tuple[Decimal, str]]:
        first = (1024 + i) << (n - 10)
        for x in (first, first + (1 << (n - 10)) - 1):
            mine = int(log2_q16(np.asarray(x, np.int64)))
            yield mine - 65536 * Decimal(x).ln() / two, f"i = {i}"

    return worst_of(found for i in range(1024) for found in measure(i))


@row("`divide`")
def shares() -> Worst:
    found = int(TABLE["divide"].law({}, [np.array([[1]], np.int32), np.array([2**15])])[0, 0])
    assert found == 1
    return worst_of([(found - Fraction(2**14, 2**15), "e = 1, S = 2^15")])


@row("`logit_grad`")
def fine_shares() -> Worst:
    values = [np.array([[1, 0]], np.int32), np.array([2**30]), np.array([1])]
    found = int(TABLE["logit_grad"].law({}, values)[0, 0])
    assert found == 1
    return worst_of([(found - Fraction(2**29, 2**30), "e = 1, S = 2^30")])


@row("a share of two classes, by `exp2_diff` and `divide`")
def shares_of_two() -> Worst:
    """Every difference of two logits: the share of the less likely against that in reals."""
    gaps = np.arange(31 * 1024 + 2)
    z = np.stack([np.zeros_like(gaps), -gaps], axis=1).astype(np.int32)
    e = TABLE["exp2_diff"].law({}, [z, np.zeros(len(gaps), np.int32)])
    p = TABLE["divide"].law({}, [e, TABLE["row_sum"].law({}, [e])])[:, 1].tolist()

    def exact(d: int) -> Decimal:
        power = powers_of_two()[d & 1023] / (1 << (d >> 10))
        return (1 << 14) * power / (65536 + power)

    return worst_of((p[d] - exact(d), f"d = {d}") for d in range(len(gaps)))


def find_root(width: int, centred: bool) -> tuple[Node, TensorType]:
    """The root of a norm over rows of full range, and the type of the sums that it is of."""
    builder = GraphBuilder(FixedExponents({"x": 12, "y": 12}))
    wide = builder.emit("state", "wide", (), name="x", dtype="i32", shape=(1, width), exponent=24)
    operand = builder.rescale_at_site("x", wide)
    emit_normalized(builder, "norm", operand, 1e-5, centred=centred, site="y")
    graph = builder.graph()
    (root,) = [node for node in graph.nodes if node.op == "inverse_root"]
    return root, graph.type_of(root.inputs[0])


def measure_root(width: int, centred: bool) -> Worst:
    """Relative, over sums near both ends.

    An error is below 1 / q + 1 / R, where one falls with the sum as the other rises: the most is at
    an end.
    """
    root, sums = find_root(width, centred)
    most = sums.hi
    numerator, lift, epsilon = (
        attr_int(root.attrs, name) for name in ("numerator", "lift", "epsilon")
    )
    places = [*range(2000), *range(most - 2000, most + 1)]

    def measure(s: int) -> tuple[float, str]:
        exact = Decimal(numerator) / (Decimal(s + epsilon).sqrt() * (1 << lift))
        found = law("inverse_root", root.attrs, s)
        q = math.isqrt(s + epsilon << 2 * lift)
        assert abs(found - exact) < exact / q + 1
        return float(found / exact - 1), "sums near 0" if s < 2000 else "the largest sums"

    return worst_of(measure(s) for s in places)


for _width in (128, 768, 4096):
    for _kind in ("LayerNorm", "RMSNorm"):

        @row(f"`inverse_root` of {_kind}, rows of {_width}")
        def root_of_rows(width: int = _width, kind: str = _kind) -> Worst:
            return measure_root(width, centred=kind == "LayerNorm")


@row("`adam_direction`, v from 1 on")
def directions() -> Worst:
    return measure_directions(1, 2**12)


@row("`adam_direction`, v from 2^16 on: gradients of a unit or more")
def directions_of_units() -> Worst:
    return measure_directions(2**16, 2**17)


def measure_directions(first: int, last: int) -> Worst:
    """Relative, of the root and epsilon = 1 that divide; a larger epsilon makes it smaller.

    The floor of the root is most off just below a square.
    """
    squares = (n * n for n in range(math.isqrt(first), math.isqrt(last) + 1))

    def measure(v: int) -> tuple[Decimal, str]:
        divisor = Decimal(v).sqrt() + 1
        m = 2**31 - 1
        found = law("adam_direction", {"shift": 0, "epsilon": 1}, m, v)
        # The quotient's own floor is below one unit, which is 2^-31 of m.
        return Decimal(found) * divisor / m - 1, f"v = {v}"

    return worst_of(
        measure(v) for square in squares for v in (square - 1, square) if first <= v < last
    )


def correct(beta1: str, beta2: str) -> Worst:
    """Relative, over the first 3000 steps and powers of two beyond."""
    exact = [Decimal(beta1), Decimal(beta2)]
    betas = [round_half_up(Fraction(beta) * 2**BETA_EXPONENT) for beta in (beta1, beta2)]
    attrs: Attrs = {"beta1": betas[0], "beta2": betas[1]}

    def measure(n: int) -> tuple[Decimal, str]:
        real = (1 - exact[1] ** n).sqrt() / (1 - exact[0] ** n)
        return Decimal(law("adam_correction", attrs, n - 1)) / 2**24 / real - 1, f"n = {n}"

    return worst_of(measure(n) for n in (*range(1, 3001), *(2**k for k in range(12, 40))))


for _betas in (("0.9", "0.95"), ("0.9", "0.99"), ("0.9", "0.999"), ("0.99", "0.9999")):

    @row(f"`adam_correction` of betas {_betas[0]}, {_betas[1]}")
    def corrections(betas: tuple[str, str] = _betas) -> Worst:
        return correct(*betas)


@row("`clip_factor`, norms of 17 bits or more")
def clipping() -> Worst:
    """In units of 2^-15.  Only norms above ``limit`` clip, which has 17 bits."""

    def measure(limit: int, s: int) -> tuple[Decimal, str]:
        exact = min(limit * 2**15 / Decimal(s).sqrt(), Decimal(2**15))
        return law("clip_factor", {"limit": limit}, s) - exact, f"limit = {limit}"

    return worst_of(
        measure(limit, s)
        for limit in (2**16, 2**17 - 1)
        for norm in range(limit, limit + 4 * 1000)
        for s in (norm * norm, (norm + 1) ** 2 - 1)
    )


@row("constants: mantissas of 16 bits")
def mantissas() -> Worst:
    """Relative: half a unit of the least mantissa."""
    least = 2 ** (RATE_BITS - 1)
    return float(Fraction(1, 2) / (least + Fraction(1, 2))), "a mantissa of 2^15"


@row("1 / d of a norm's gradient, d no power of two, to 4096")
def reciprocals() -> Worst:
    def measure(d: int) -> tuple[Fraction, str]:
        j = 15 + d.bit_length() - 1
        return Fraction((2 * (1 << j) + d) // (2 * d) * d, 1 << j) - 1, f"d = {d}"

    return worst_of(measure(d) for d in range(3, 4097) if d & (d - 1))


@row("`dropout_mask`: what is kept, times the inverse of its share")
def inverse_shares() -> Worst:
    def measure(keep: int) -> tuple[Fraction, str]:
        value, exponent = find_mask_factor(keep)
        return Fraction(value * keep, 2 ** (16 + exponent)) - 1, f"keep = {keep}"

    return worst_of(measure(keep) for keep in range(4, 2**16))


def measure_cosine(steps: int) -> Worst:
    """In the largest rate, over all steps after the warm-up: one between each two knots, and these.

    The rate itself has the error of its mantissa, which is that of constants.
    """
    values: dict[str, object] = {
        "optimizer": {"kind": "adamw", "learning_rate": 1},
        "schedule": {"kind": "cosine"},
    }
    table = parse_optimizer(Table(values, ("optimizer", "schedule"), ""), steps)
    rates = compute_rates(table, 1)
    attrs: Attrs = {"starts": rates.starts, "rates": rates.rates, "exponent": rates.exponent}
    top = rates.rates[0]

    def measure(t: int) -> tuple[float, str]:
        exact = (1 + math.cos(math.pi * t / steps)) / 2
        return law("schedule_linear", attrs, t) / top - exact, f"{steps} steps"

    return worst_of(measure(t) for t in range(0, steps + 1, max(1, steps // 20_000)))


for _steps in (512, 2000, 100_000):

    @row(f"`schedule_linear` of half a cosine, {_steps} steps")
    def cosines(steps: int = _steps) -> Worst:
        return measure_cosine(steps)


@pytest.mark.parametrize("name", FOUND)
def test_the_page_has_the_worst_error_and_its_place(name: str) -> None:
    assert name in ROWS
    with localcontext() as context:
        context.prec = 50
        worst, place = FOUND[name]()
    assert ROWS[name][0] == pytest.approx(worst, rel=0.006)
    assert ROWS[name][1] == place


def test_the_page_has_no_other_rows() -> None:
    assert list(ROWS) == list(FOUND)


def names_under(title: str) -> list[str]:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"`(\w+)`", section)


def test_every_operator_has_its_place_on_the_page() -> None:
    """In one of the lists, or in a row of the table."""
    in_rows = {name for row in ROWS for name in re.findall(r"`(\w+)`", row)} - {"rescale"}
    lists = [*names_under("Exact"), *names_under("Rounded once"), "look_up", "cross_entropy"]
    assert sorted(lists) == sorted(set(lists))
    assert set(lists) | in_rows == set(TABLE)
    assert set(lists) & in_rows == {"cross_entropy"}


def test_what_is_listed_as_exact_rounds_nothing() -> None:
    """No operator there has a rounding in its own text, nor clamps."""
    for name in names_under("Exact"):
        text = (TABLE[name].infer.__doc__ or "").split("Attributes:")[0].split("Inputs:")[0]
        assert not re.search(r"\brs\(|floor\(|isqrt|\bsat\(", text), name
        assert TABLE[name].unclamped is None, name
    for name in names_under("Rounded once"):
        text = (TABLE[name].infer.__doc__ or "").split("Inputs:")[0]
        assert re.search(r"\brs\(|floor\(", text), name
