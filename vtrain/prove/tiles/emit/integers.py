"""Ranges, products, quotients, roots and bounds of integers, by statements of several circuits.

A quotient, a root and a bound are tensors that the solver supplies; the statements here leave each
of them one value.  Where a block has no value they are 0, also in the last row of a packed block:
each text says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.prove.tiles.builder import TileBuilder
from vtrain.prove.tiles.circuits import RANGES, TILE_SPAN, range_limbs, range_parameters
from vtrain.prove.tiles.grid import I64, Array, Grid, TensorMap
from vtrain.prove.tiles.statements import StepFacts, TileContents, TiledValue, TileStatement, add
from vtrain.spec.number import isqrt as isqrt_of_all
from vtrain.wire.graph import Node

HIGH_BITS: Final = 30
"""A range that no circuit takes at once is one of 2^30 h + l: see :func:`hold`."""
_LONGEST: Final = TILE_SPAN ** RANGES[-1]


@dataclass(frozen=True)
class Masks:
    """Public tiles: ``one`` is 1 where a block has a value, ``outside`` where it has none."""

    one: TiledValue
    outside: TiledValue


def make_one(s: TileBuilder, name: str, grid: Grid) -> TiledValue:
    """The public tiles ``NAME/one``."""
    return s.public(f"{name}/one", grid, lambda facts, block: grid.mask(block))


def make_masks(s: TileBuilder, name: str, grid: Grid) -> Masks:
    """Both kinds of public tiles, first ``NAME/one``."""
    one = make_one(s, name, grid)
    return Masks(one, s.public(f"{name}/outside", grid, lambda facts, block: 1 - grid.mask(block)))


def hold(s: TileBuilder, name: str, node: Node, x: TiledValue, lo: int, hi: int) -> None:
    """x is an integer from ``lo`` to ``hi``, and 0 outside of the rows and columns of its block.

    Beyond what range-3 takes, and with ``lo`` = 0: x = 2^30 h + l with h in 0 .. k and l in 0 .. c,
    where k = floor((hi - 2^30 + 1) / 2^30) and c = hi - 2^30 k.  That reaches 0 .. hi without a
    gap, as c is at least 2^30 - 1, and nothing else.  h is the tensor ``NAME/high``.
    """
    if hi - lo < _LONGEST:
        _hold_short(s, node, x, lo, hi)
        return
    if lo != 0:
        raise CircuitError(
            f"needs a value to be held to [{lo}, {hi}], and a range as long as that has a circuit "
            "only where it begins at 0",
            where=node.name,
        )
    unit = 1 << HIGH_BITS
    most = (hi - unit + 1) // unit

    def compute(contents: TileContents, block: int) -> Array:
        return np.asarray(np.minimum(contents.combine(x.at(block)) >> HIGH_BITS, most))

    high = s.tensor(f"{name}/high", x.grid, compute)
    _hold_short(s, node, high, 0, most)
    _hold_short(s, node, add((1, x), (-unit, high)), 0, hi - unit * most)


def _hold_short(s: TileBuilder, node: Node, x: TiledValue, lo: int, hi: int) -> None:
    limbs = range_limbs(lo, hi)

    def make(block: int, facts: StepFacts) -> TileStatement:
        rows, columns = x.grid.extent(block)
        parameters = range_parameters(s.side, lo=lo, hi=hi, rows=rows, columns=columns)
        return TileStatement(node.name, f"range-{limbs}", {"x": x.at(block)}, parameters)

    s.family(x.grid.count, make)


def multiply(
    s: TileBuilder, node: Node, a: TiledValue, b: TiledValue, y: TiledValue | None
) -> None:
    """y = a b, element by element; a b = 0 where there is no y."""

    def make(block: int, facts: StepFacts) -> TileStatement:
        product = () if y is None else y.at(block)
        given = {"a": a.at(block), "b": b.at(block), "y": product}
        return TileStatement(node.name, "mul", given)

    s.family(a.grid.count, make)


def product(s: TileBuilder, name: str, node: Node, a: TiledValue, b: TiledValue) -> TiledValue:
    """a b, element by element, as the new tensor ``name``."""

    def compute(contents: TileContents, block: int) -> Array:
        return contents.combine(a.at(block)) * contents.combine(b.at(block))

    y = s.tensor(name, a.grid, compute)
    multiply(s, node, a, b, y)
    return y


def root(s: TileBuilder, name: str, node: Node, v: TiledValue, most: int) -> TiledValue:
    """q = floor(sqrt(v)) of integers 0 <= v <= ``most``, as the new tensor ``name``.

    q in 0 .. isqrt(most), v - q^2 >= 0 and q^2 + 2 q - v >= 0: so q^2 <= v < (q + 1)^2.  Where
    v = 0, the first of these says that q = 0.
    """

    def compute(contents: TileContents, block: int) -> Array:
        return isqrt_of_all(np.asarray(contents.combine(v.at(block)), dtype=np.int64))

    largest = isqrt(most)
    q = s.tensor(name, v.grid, compute)
    hold(s, name, node, q, 0, largest)
    square = product(s, f"{name}/square", node, q, q)
    hold(s, f"{name}/rest", node, add((1, v), (-1, square)), 0, 2 * largest)
    hold(s, f"{name}/room", node, add((2, q), (1, square), (-1, v)), 0, 2 * largest)
    return q


def link_quotient(
    s: TileBuilder,
    name: str,
    node: Node,
    n: TiledValue,
    d: TiledValue,
    q: TiledValue,
    masks: Masks,
    most: int,
) -> None:
    """q = floor(n / d), of integers n and 1 <= d <= ``most``, and of a q that is known to be an
    integer far below the field's prime.

    With r = n - q d: r >= 0 and d - 1 - r >= 0.  Outside of the values, where n and d are 0, the
    product is that of q with 1, and 0 <= -q and 0 <= q say that q = 0.
    """
    whole = product(s, f"{name}/product", node, q, add((1, d), (1, masks.outside)))
    rest = add((1, n), (-1, whole))
    hold(s, f"{name}/rest", node, rest, 0, most)
    room = add((1, d), (-1, masks.one), (-1, n), (1, whole))
    hold(s, f"{name}/room", node, room, 0, most)


def quotient_of(n: TiledValue, d: TiledValue) -> Callable[[TileContents, int], Array]:
    """What computes a block of floor(n / d), 0 where d is."""

    def compute(contents: TileContents, block: int) -> Array:
        above, below = (contents.combine(x.at(block)) for x in (n, d))
        return np.asarray(above // np.maximum(below, 1))

    return compute


def cap(
    s: TileBuilder,
    name: str,
    node: Node,
    x: TiledValue,
    y: TiledValue,
    bound: int,
    most: int,
    one: TiledValue,
) -> None:
    """y = min(x, bound) of integers 0 <= x <= ``most``.

    x - y >= 0, bound - y >= 0, and the product of both is 0.  Outside of the values x and the bound
    are 0, and the product says that y is.
    """
    below, room = add((1, x), (-1, y)), add((bound, one), (-1, y))
    hold(s, f"{name}/below", node, below, 0, most)
    hold(s, f"{name}/room", node, room, 0, bound)
    multiply(s, node, below, room, None)


def total_rows(
    s: TileBuilder, name: str, node: Node, x: TiledValue, rows: int, width: int, grid: Grid
) -> TiledValue:
    """The sum of each of so many rows of x, in these blocks."""

    def terms(flat: I64) -> tuple[I64, I64]:
        number = np.repeat(np.arange(flat.size), width)
        return number, flat[number] * width + np.tile(np.arange(width), flat.size)

    if grid.size != rows:
        raise CircuitError(
            f"adds up {rows} rows into an output of {grid.size} elements", where=node.name
        )
    return s.image(name, node.name, TensorMap(x.grid, grid, terms), x)


def spread(
    s: TileBuilder, name: str, node: Node, x: TiledValue, find: Callable[[I64], I64], grid: Grid
) -> TiledValue:
    """Each element is the one of x that ``find`` gives for its place, in these blocks."""
    relation = TensorMap(x.grid, grid, lambda flat: (np.arange(flat.size), find(flat)))
    return s.image(name, node.name, relation, x)
