"""Tensors cut into tiles, and public maps between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.prove.tiles.circuits import LinearMap

I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Grid:
    """A matrix of ``rows`` by ``columns`` cut into blocks of ``side`` by ``side``.

    Its elements are the ``size`` values of a tensor, in order; the last row may end before the
    last column.
    """

    rows: int
    columns: int
    side: int
    size: int

    @property
    def across(self) -> int:
        """Blocks beside each other."""
        return -(-self.columns // self.side)

    @property
    def count(self) -> int:
        """Blocks."""
        return -(-self.rows // self.side) * self.across

    def extent(self, block: int) -> tuple[int, int]:
        """Rows and columns of a block that hold values; what is beyond them is padding."""
        row, column = divmod(block, self.across)
        return (
            min(self.rows - row * self.side, self.side),
            min(self.columns - column * self.side, self.side),
        )

    def mask(self, block: int) -> I64:
        """Ones where a block holds values, flat."""
        mask = np.zeros(self.side**2, dtype=np.int64)
        mask[self.elements(block)[0]] = 1
        return mask

    def elements(self, block: int) -> tuple[I64, I64]:
        """(place in the block, place in the flat tensor) of each of its values."""
        row, column = divmod(block, self.across)
        rows, columns = self.extent(block)
        down, along = np.arange(rows)[:, None], np.arange(columns)[None, :]
        within = (down * self.side + along).reshape(-1)
        flat = ((row * self.side + down) * self.columns + column * self.side + along).reshape(-1)
        is_there = flat < self.size
        return within[is_there], flat[is_there]

    def locate(self, flat: I64) -> tuple[I64, I64]:
        """(block, place in it) of values by their places in the flat tensor."""
        row, column = np.divmod(flat, self.columns)
        (down, r), (along, c) = np.divmod(row, self.side), np.divmod(column, self.side)
        return down * self.across + along, r * self.side + c


@dataclass(frozen=True)
class StackGrid(Grid):
    """A stack of ``stack`` matrices, one below the other, each cut into blocks by itself.

    ``rows`` are those of all.
    """

    stack: int

    @cached_property
    def matrix(self) -> Grid:
        """The blocks of one matrix."""
        rows = self.rows // self.stack
        return Grid(rows, self.columns, self.side, rows * self.columns)

    @property
    def count(self) -> int:
        return self.stack * self.matrix.count

    def extent(self, block: int) -> tuple[int, int]:
        return self.matrix.extent(block % self.matrix.count)

    def elements(self, block: int) -> tuple[I64, I64]:
        number, inner = divmod(block, self.matrix.count)
        within, flat = self.matrix.elements(inner)
        return within, flat + number * self.matrix.size

    def locate(self, flat: I64) -> tuple[I64, I64]:
        number, inner = np.divmod(flat, self.matrix.size)
        block, place = self.matrix.locate(inner)
        return number * self.matrix.count + block, place


def make_stack(shape: tuple[int, ...], side: int) -> Grid:
    """The grid in which each matrix, of the last two axes, has blocks of its own."""
    rows, size = prod(shape[:-1]), prod(shape)
    if shape[-2] % side == 0 or rows == shape[-2]:
        return Grid(rows, shape[-1], side, size)
    return StackGrid(rows, shape[-1], side, size, rows // shape[-2])


Terms = Callable[[I64], tuple[I64, I64]]
"""Flat places in the target -> (number of the place in that list, flat place in the source) of each
term of the sums that stand there."""


def apply_map(image: LinearMap, x: Array) -> I64:
    """G x of a flat tile."""
    y = np.zeros(x.size, dtype=np.int64)
    np.add.at(y, image.outputs, x[image.inputs] * image.factors)
    return y


def make_pair(targets: I64, sources: I64) -> LinearMap:
    """The map that adds each source to its target, both places in flat tiles."""
    return LinearMap(targets, sources, np.ones(targets.size, dtype=np.int64))


class TensorMap:
    """A public map between tensors: each element of the target is a sum of elements of the source.

    Block by block of the target it falls into *pairs*, one for each block of the source that has a
    part in it, in the order of their numbers.
    """

    def __init__(self, source: Grid, target: Grid, terms: Terms) -> None:
        self.source, self.target = source, target
        self._terms = terms

    def find_pairs(self, block: int) -> list[tuple[int, LinearMap]]:
        """(block of the source, how it enters the target's ``block``)."""
        within, flat = self.target.elements(block)
        number, source = self._terms(flat)
        blocks, places = self.source.locate(source)
        order = np.argsort(blocks, kind="stable")
        blocks, places, targets = blocks[order], places[order], within[number[order]]
        found, starts = np.unique(blocks, return_index=True)
        stops = [*starts.tolist(), blocks.size][1:]
        return [
            (int(item), make_pair(targets[start:stop], places[start:stop]))
            for item, start, stop in zip(found, starts.tolist(), stops, strict=True)
        ]

    @cached_property
    def starts(self) -> list[int]:
        """Number of the first pair of each block of the target, then how many pairs there are."""
        counts = [len(self.find_pairs(block)) for block in range(self.target.count)]
        return [0, *np.cumsum(counts, dtype=np.int64).tolist()]


class RecentPairs:
    """The pairs of a few blocks, those made last: one block's take 0.4 to 10 MB, and a step has
    thousands of maps."""

    _KEPT: Final = 16

    def __init__(self) -> None:
        self._known: dict[tuple[TensorMap, int], list[tuple[int, LinearMap]]] = {}

    def find(self, relation: TensorMap, number: int) -> tuple[int, LinearMap]:
        """(block of the source, map) of a pair."""
        block = bisect_right(relation.starts, number) - 1
        place = relation, block
        if place not in self._known:
            if len(self._known) >= self._KEPT:
                del self._known[next(iter(self._known))]
            self._known[place] = relation.find_pairs(block)
        return self._known[place][number - relation.starts[block]]


def make_scalar(side: int, value: int) -> I64:
    """A tile that holds one value."""
    tile = np.zeros(side**2, dtype=np.int64)
    tile[0] = value
    return tile


def cut_block(values: Array, grid: Grid, block: int) -> I64:
    """Block ``block`` of a tensor cut into ``grid``, flat, zeros where it ends."""
    tile = np.zeros(grid.side**2, dtype=np.int64)
    within, flat = grid.elements(block)
    tile[within] = values.reshape(-1)[flat]
    return tile
