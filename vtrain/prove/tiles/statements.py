"""Statements about tiles, the tensors that tiles are of, and their values.

See ``vtrain.prove.tiles.tiling`` for how the statements of a step come about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from vtrain.errors import CircuitError
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles.circuits import LinearMap
from vtrain.prove.tiles.grid import I64, Array, Grid
from vtrain.spec.number import STORAGE, rs, rs_int

if TYPE_CHECKING:
    from vtrain.prove.tiles.tiling import Tiling


ZERO: Final = "zero"
"""The circuit of statements that a combination of tiles vanishes."""
LINEAR: Final = "linear"
"""The circuit whose given vectors a public map relates (``TileStatement.linear``)."""
MAX_PARTS: Final = 256
"""Tensors that a sum is of."""
OUTSIDE: Final = frozenset(
    {
        "adam_correction",
        "batch_digest",
        "causal_spans",
        "increment",
        "record",
        "sample_index",
        "schedule",
        "schedule_linear",
        "state_leaf",
        "state_root",
        "tensor_digest",
    }
)
"""Operators that choose samples, count, look up a rate or hash, or of which all is public: no
statement is about them."""


class Tile(NamedTuple):
    """Block ``block`` of tiled tensor number ``tensor``."""

    tensor: int
    block: int


Combination = tuple[tuple[int, Tile], ...]
"""A sum of integer multiples of tiles; no tile comes twice, no factor is 0."""


@dataclass(frozen=True)
class StepFacts:
    """What a verifier knows of one step besides commitments: its number, from 1, and its loss."""

    step: int
    loss: int


@dataclass(frozen=True)
class TileStatement:
    """That ``circuit`` holds of tiles: one of many statements about a step.

    ``given`` are its vectors by name, in its order, ``parameters`` what is public of it; ``linear``
    is the map from x to y where the circuit is ``linear``.
    """

    node: str
    circuit: str
    given: Mapping[str, Combination]
    parameters: Mapping[str, Ints] = field(default_factory=dict)
    linear: LinearMap | None = None


@dataclass(frozen=True)
class TiledTensor:
    """``count`` tiles with one source, the first of them number ``first`` there.

    ``source`` is "before", "batch" or "after" for columns of a step's ``KzgRecord``, "trace" for
    leaves of a trace's tree, and "public" for tiles that a verifier commits to itself.
    """

    name: str
    source: str
    first: int
    count: int
    compute: Callable[[TileContents, int], Array]


@dataclass(frozen=True, eq=False)
class TiledValue:
    """A node's output: block ``number`` of ``grid`` is the combination of tiles ``at(number)``.

    ``parts``, if any, are the values that it is a sum of multiples of, none of them such a sum.
    """

    grid: Grid
    at: Callable[[int], Combination]
    parts: tuple[tuple[int, TiledValue], ...] = ()


class TileContents:
    """Values of tiles of one step: of all where ``outputs`` has each node's output by its index.

    Without outputs, of the public tiles alone.
    """

    _CACHED: Final = 1024

    def __init__(self, tiling: Tiling, facts: StepFacts, outputs: Mapping[int, Array]) -> None:
        self.tiling, self.facts = tiling, facts
        self.outputs = outputs
        self._known: dict[Tile, I64] = {}

    def output(self, node: int) -> Array:
        """The output of a node."""
        if node not in self.outputs:
            raise CircuitError("its values are not known", where=f"node {node}")
        return self.outputs[node]

    def tile(self, tile: Tile) -> I64:
        """The values of a tile, flat."""
        if tile not in self._known:
            tensor = self.tiling.tensors[tile.tensor]
            value = np.asarray(tensor.compute(self, tile.block), dtype=np.int64)
            if len(self._known) >= self._CACHED:
                self._known.clear()
            self._known[tile] = value
        return self._known[tile]

    def combine(self, combination: Combination) -> Ints:
        """The values of a combination: int64, or Python's integers where they are wider.

        Only what is rounded right after is, such as 2^s times a momentum.
        """
        terms = [(factor, self.tile(tile)) for factor, tile in combination]
        reach = sum(abs(factor) * _find_bound(tile) for factor, tile in terms)
        is_narrow = reach <= _WIDEST
        total = np.zeros(self.tiling.side**2, dtype=np.int64 if is_narrow else object)
        for factor, tile in terms:
            total += tile * factor if is_narrow else tile.astype(object) * factor
        return total if is_narrow else _narrow(total)


_WIDEST: Final = STORAGE["i64"][1]


def _find_bound(values: Ints) -> int:
    """Largest absolute value."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _narrow(values: Ints) -> Ints:
    """Python's integers as int64 where they fit."""
    return values.astype(np.int64) if _find_bound(values) <= _WIDEST else values


def round_exactly(x: Ints, multiplier: int, offset: Ints, shift: int) -> Ints:
    """rs(x multiplier + offset, shift), shift >= 0, whatever the size of what is rounded."""
    if _find_bound(x) * abs(multiplier) + _find_bound(offset) <= _WIDEST:
        return rs(x * multiplier + offset, shift)
    wide = x.astype(object) * multiplier + offset
    return _narrow(np.asarray([rs_int(value, shift) for value in wide], dtype=object))


def add(*parts: tuple[int, TiledValue]) -> TiledValue:
    """The sum of integer multiples of values in the same blocks.

    A sum of sums is one sum: however deep a graph nests them, each part is looked at once.
    """
    weights: dict[TiledValue, int] = {}
    for weight, value in parts:
        for factor, part in value.parts or ((1, value),):
            weights[part] = weights.get(part, 0) + weight * factor
    if len(weights) > MAX_PARTS:
        raise CircuitError(
            f"is a sum of {len(weights)} tensors: at most {MAX_PARTS} fit a statement, so rescale "
            "a part of the sum, which makes that one tensor"
        )

    def at(block: int) -> Combination:
        total: dict[Tile, int] = {}
        for value, weight in weights.items():
            for factor, tile in value.at(block):
                total[tile] = total.get(tile, 0) + weight * factor
        return tuple((factor, tile) for tile, factor in total.items() if factor)

    flat = tuple((weight, value) for value, weight in weights.items())
    return TiledValue(parts[0][1].grid, at, flat)
