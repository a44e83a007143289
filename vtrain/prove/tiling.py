"""A step of any model as many small statements, each about a few tiles.

A *tile* is a block of a tensor, as ``vtrain.commit.kzg_layout`` cuts it.  The tiles that are
committed to belong to *tiled tensors*: outputs of nodes, and auxiliary tensors (partial products,
partial images of linear maps, the steps of a maximum) that the graph alone defines.  What is a sum
of integer multiples of other tiles is not committed to: its commitment follows from theirs, since
commitments add up.  So a node's output is, block by block, a *combination* of tiles, and a
*statement* says which circuit holds of which combinations, with which public parameters.  Together
the statements fix every tile of a step, padding included, from those of the state before it and of
its batch.

Everything here follows from the graph, so that a prover and a verifier agree without a word, and a
statement is made when it is asked for: a step of a large model has very many.

A reshape costs nothing: its output keeps the blocks of its input, and is cut anew (a linear map)
only where a matrix product, a bias or a softmax needs its own rows.  The reverse is done to images
of few channels, whose rows would fill a sliver of each tile: they are packed into rows of a tile's
width before they are rescaled, and stay so.

A maximum over the pixels x_0, x_1, ... of a window is taken step by step, m_i = m_(i-1) +
gate(x_i - m_(i-1)), where x_i is the pixel at offset i; where that is padding it is the first
pixel of the window once more, which never wins.  The gradient goes
back the same way: gate(x_i - m_(i-1), r_i) is what pixel i takes of the gradient r_i that later
pixels have left, so that the first of equals gets it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vtrain.commit.kzg_layout import COUNTER, batch_matrix, matrix, state_names
from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int, attr_ints, attr_text
from vtrain.ops.layout import Window
from vtrain.ops.linear import compute_matmul
from vtrain.ops.optimizer import DECAY_EXPONENT
from vtrain.prove.circuit import Ints
from vtrain.prove.tiles import (
    GATE_REACH,
    SOFTMAX_TILES,
    WIDE_REACH,
    LinearMap,
    range_limbs,
    range_parameters,
    rescale_limbs,
    rescale_parameters,
    softmax_parameters,
)
from vtrain.spec.number import PROBABILITY_EXPONENT, SATURATION, STORAGE, rs, rs_int
from vtrain.wire.graph import Node, Ref, StepGraph
from vtrain.wire.proof import MAX_COMMITMENTS, TILE

I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

COMBINATION: Final = "combination"
"""In place of a circuit: the given combination ``zero`` is of commitments to zeros."""
LINEAR: Final = "linear"
"""The circuit whose given vectors a public map relates (``TileStatement.linear``)."""
_THIN: Final = 4
"""A tensor is packed anew where that takes so many times fewer tiles."""
SOFTMAX_CLASSES: Final = (16, 128)

MAX_LEAVES: Final = 1 << 20
"""Tiles of a trace: to commit to so many takes one to three hours of one thread, at 3 to 11 ms
each."""
MAX_PLACES: Final = 1 << 28
"""Elements that public maps look at to cut a step into tiles: a minute, at 0.2 us each."""
MAX_TILE_PLACES: Final = 1 << 25
"""As many for one tile: 2.5 GiB, at 80 bytes each."""
MAX_PARTS: Final = 256
"""Tensors that a sum is of."""
MAX_WINDOW: Final = 64
"""Pixels of a window that a maximum is taken of: each is a step that follows from those before."""

_WINDOWS: Final = frozenset({"col2im", "max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad"})
"""Operators that look at a whole window for each element."""
_SUMS: Final = frozenset({"column_sum", "sum"})
_COPIES: Final = frozenset({"im2col", "one_hot", "transpose"})
"""Operators that look at one element for each."""
_READ_BY_ROWS: Final = frozenset({"add_bias", "exp2_diff", "matmul", "row_max"})
"""Operators whose circuits need a matrix's own rows."""

OUTSIDE: Final = frozenset(
    {
        "batch_digest",
        "increment",
        "record",
        "sample_index",
        "schedule",
        "state_leaf",
        "state_root",
        "tensor_digest",
    }
)
"""Operators that choose samples, count, look up a rate or hash: no statement is about them."""


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


Terms = Callable[[I64], tuple[I64, I64]]
"""Flat places in the target -> (number of the place in that list, flat place in the source) of each
term of the sums that stand there."""


def apply_map(image: LinearMap, x: Array) -> I64:
    """G x of a flat tile."""
    y = np.zeros(x.size, dtype=np.int64)
    np.add.at(y, image.outputs, x[image.inputs] * image.factors)
    return y


def _make_pair(targets: I64, sources: I64) -> LinearMap:
    return LinearMap(targets, sources, np.ones(targets.size, dtype=np.int64))


class TensorMap:
    """A public map between tensors: each element of the target is a sum of elements of the source.

    Block by block of the target it falls into *pairs*, one for each block of the source that has a
    part in it, in the order of their numbers.
    """

    def __init__(self, source: Grid, target: Grid, terms: Terms) -> None:
        self.source, self.target = source, target
        self._terms = terms
        self._last: tuple[int, list[tuple[int, LinearMap]]] = (-1, [])

    def pairs(self, block: int) -> list[tuple[int, LinearMap]]:
        """(block of the source, how it enters the target's ``block``)."""
        if self._last[0] != block:
            self._last = block, self._find_pairs(block)
        return self._last[1]

    def _find_pairs(self, block: int) -> list[tuple[int, LinearMap]]:
        within, flat = self.target.elements(block)
        number, source = self._terms(flat)
        blocks, places = self.source.locate(source)
        order = np.argsort(blocks, kind="stable")
        blocks, places, targets = blocks[order], places[order], within[number[order]]
        found, starts = np.unique(blocks, return_index=True)
        stops = [*starts.tolist(), blocks.size][1:]
        return [
            (int(item), _make_pair(targets[start:stop], places[start:stop]))
            for item, start, stop in zip(found, starts.tolist(), stops, strict=True)
        ]

    @cached_property
    def starts(self) -> list[int]:
        """Number of the first pair of each block of the target, then how many pairs there are."""
        counts = [len(self._find_pairs(block)) for block in range(self.target.count)]
        return [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    def find(self, number: int) -> tuple[int, LinearMap]:
        """(block of the source, map) of a pair."""
        block = bisect_right(self.starts, number) - 1
        return self.pairs(block)[number - self.starts[block]]


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


class TileContents:
    """Values of tiles of one step: of all where ``outputs`` has each node's output by its index.

    Without outputs, of the public tiles alone.
    """

    _CACHED: Final = 1024

    def __init__(self, tiling: Tiling, facts: StepFacts, outputs: Mapping[int, Array]) -> None:
        self.tiling, self.facts = tiling, facts
        self._outputs = outputs
        self._known: dict[Tile, I64] = {}

    def output(self, node: int) -> Array:
        """The output of a node."""
        if node not in self._outputs:
            raise CircuitError("its values are not known", where=f"node {node}")
        return self._outputs[node]

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


@dataclass(frozen=True)
class _Family:
    """``count`` statements of one form."""

    count: int
    make: Callable[[int, StepFacts], TileStatement]


class Tiling:
    """The statements and tiled tensors of a graph's step, all from the graph alone.

    The graph is a legal one (``vtrain.graph.legality``).  ``side`` is the extent of a tile: that of
    ``kzg_layout`` but in tests.  CircuitError names a node that no circuit exists for, or at which
    the step is beyond a limit of this module (``MAX_LEAVES`` and others) before time is spent on
    it.
    """

    def __init__(self, graph: StepGraph, side: int = TILE) -> None:
        builder = _Builder(graph, side)
        builder.build()
        self.graph, self.side = graph, side
        self.tensors: Final = tuple(builder.tensors)
        self.leaf_count: Final = builder.counts["trace"]
        """Tiles that a trace commits to beyond those of the run's log."""
        self.pinned_counts: Final = {
            source: builder.counts[source] for source in ("before", "batch", "after")
        }
        """Tiles that a ``KzgRecord`` has, by source."""
        self.outputs: Final[Mapping[int, TiledValue]] = {
            ref.node: value for ref, value in builder.values.items()
        }
        """Where the outputs of nodes are, by the nodes' index."""
        self._families: Final = builder.families
        self._starts: Final = [0]
        for family in self._families:
            self._starts.append(self._starts[-1] + family.count)

    def __len__(self) -> int:
        """How many statements there are."""
        return self._starts[-1]

    @property
    def circuits(self) -> frozenset[str]:
        """Names of the circuits that statements are of; a family's are all of one."""
        made = (family.make(0, StepFacts(1, 0)) for family in self._families if family.count)
        return frozenset(statement.circuit for statement in made) - {COMBINATION}

    def statement(self, index: int, facts: StepFacts) -> TileStatement:
        """Statement ``index`` about a step; CircuitError when there is none."""
        if not 0 <= index < len(self):
            raise CircuitError(
                f"is none of this step: there are {len(self)}, counted from 0",
                where=f"statement {index}",
            )
        family = bisect_right(self._starts, index) - 1
        return self._families[family].make(index - self._starts[family], facts)

    def place(self, tile: Tile) -> tuple[str, int]:
        """(source, number there) of a tile; CircuitError when there is none."""
        if not 0 <= tile.tensor < len(self.tensors):
            raise CircuitError(
                f"is none of this step: there are {len(self.tensors)}, counted from 0",
                where=f"tensor {tile.tensor}",
            )
        tensor = self.tensors[tile.tensor]
        if not 0 <= tile.block < tensor.count:
            raise CircuitError(f"has {tensor.count} tiles, not {tile.block}", where=tensor.name)
        return tensor.source, tensor.first + tile.block

    def find_leaf(self, number: int) -> Tile:
        """The tile behind a leaf of the trace's tree; CircuitError when there is none."""
        if not 0 <= number < self.leaf_count:
            raise CircuitError(
                f"is none of this trace: there are {self.leaf_count}, counted from 0",
                where=f"leaf {number}",
            )
        at = bisect_right(self._leaf_starts, number) - 1
        tensor = self._leaf_tensors[at]
        return Tile(tensor, number - self._leaf_starts[at])

    @cached_property
    def _leaf_tensors(self) -> list[int]:
        return [i for i, item in enumerate(self.tensors) if item.source == "trace" and item.count]

    @cached_property
    def _leaf_starts(self) -> list[int]:
        return [self.tensors[i].first for i in self._leaf_tensors]


def _require_few(where: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise CircuitError(f"{count} {what}: at most {most}", where=where)


def _find_reach(graph: StepGraph, node: Node) -> int:
    """How many elements the public maps of a node look at for each that it puts out."""
    if node.op in _SUMS:
        return -(-graph.type_of(node.inputs[0]).size // node.outputs[0].size)
    if node.op in _WINDOWS:
        return Window.from_attrs(node.attrs).area
    return 1 if node.op in _COPIES else 0


class _Builder:
    def __init__(self, graph: StepGraph, side: int) -> None:
        self.graph, self.side = graph, side
        self.tensors: list[TiledTensor] = []
        self.families: list[_Family] = []
        self.counts = {"trace": 0, "before": 0, "batch": 0, "after": 0, "public": 0}
        self.values: dict[Ref, TiledValue] = {}
        self.cut_anew: dict[tuple[Ref, Grid], TiledValue] = {}
        self.rows: dict[Ref, dict[str, Ref]] = {}
        self.pools: dict[tuple[Ref, Window], _Pool] = {}
        self.held: dict[Ref, str] = {}
        self.states = {"before": graph.states(), "after": graph.next_states()}
        self.after: dict[Ref, str] = {}
        for name, ref in self.states["after"].items():
            if name != COUNTER:
                self.after.setdefault(graph.nodes[ref.node].inputs[0], name)
        self.first_readers: dict[Ref, int] = {}
        for index, node in enumerate(graph.nodes):
            for ref in node.inputs:
                self.first_readers.setdefault(ref, index)
        self.columns: dict[str, int] = {}
        """Of each state tensor, the number of its first block among those of the state."""
        start = 0
        for name in state_names(graph):
            self.columns[name] = start
            start += self.own_grid(self.states["before"][name]).count
        _require_few("state", start, MAX_COMMITMENTS, "tiles of the state")
        # By the shapes alone, before any map is worked out.
        self.places = 0
        for node in graph.nodes:
            self._require_room(node.name, node.outputs[0].size, _find_reach(graph, node))

    def _require_room(self, where: str, size: int, reach: int) -> None:
        """That so many elements, for each of which a map looks at ``reach``, are not too many."""
        self.places += size * reach
        _require_few(where, self.places, MAX_PLACES, "elements looked at up to here")
        of_tile = min(size, self.side**2) * reach
        _require_few(where, of_tile, MAX_TILE_PLACES, "elements looked at for a tile")

    def build(self) -> None:
        for index, node in enumerate(self.graph.nodes):
            if node.op in OUTSIDE:
                continue
            emit = _EMITTERS.get(node.op)
            if emit is None:
                raise CircuitError(f"no circuit for the operator {node.op}", where=node.name)
            try:
                value = emit(self, Ref(index), node)
            except CircuitError as error:
                raise CircuitError(error.message, where=error.where or node.name) from None
            if value is not None:
                self.values[Ref(index)] = value
        for z in self.rows:
            self._emit_softmax(z)
        self._emit_after()
        self._emit_loss()

    # --- values

    def grid(self, extent: tuple[int, int]) -> Grid:
        return Grid(*extent, self.side, prod(extent))

    def own_grid(self, ref: Ref) -> Grid:
        """The blocks of a tensor as ``kzg_layout`` has them."""
        return self.grid(matrix(self.graph.type_of(ref).shape))

    def packed_grid(self, shape: Sequence[int]) -> Grid:
        """The blocks of a tensor in rows as long as a block, where that makes far fewer."""
        own, size = self.grid(matrix(shape)), prod(shape)
        packed = Grid(-(-size // self.side), self.side, self.side, size)
        return packed if _THIN * packed.count <= own.count else own

    def value(self, ref: Ref) -> TiledValue:
        """Any blocks."""
        found = self.values.get(ref)
        if found is None:
            name = self.graph.nodes[ref.node].name
            raise CircuitError("is no tensor that a circuit may read", where=name)
        return found

    def value_in(self, ref: Ref, grid: Grid) -> TiledValue:
        """The value cut into these blocks, anew if need be."""
        value = self.value(ref)
        if value.grid == grid:
            return value
        key = (ref, grid)
        if key not in self.cut_anew:
            name = self.graph.nodes[ref.node].name
            self._require_room(name, grid.size, 1)
            same = TensorMap(value.grid, grid, lambda flat: (np.arange(flat.size), flat))
            self.cut_anew[key] = self.image(f"{name}/cut anew", name, same, value)
        return self.cut_anew[key]

    def standard(self, ref: Ref) -> TiledValue:
        """The value in the blocks of its own matrix."""
        return self.value_in(ref, self.own_grid(ref))

    def tensor(
        self,
        name: str,
        grid: Grid,
        compute: Callable[[TileContents, int], Array],
        source: str = "trace",
        count: int | None = None,
    ) -> TiledValue:
        """A new tiled tensor, of ``count`` tiles or as many as the grid has."""
        number, size = len(self.tensors), grid.count if count is None else count
        if source == "trace":
            _require_few(name, self.counts[source] + size, MAX_LEAVES, "tiles of a trace")
        self.tensors.append(TiledTensor(name, source, self.counts[source], size, compute))
        self.counts[source] += size
        return TiledValue(grid, lambda block: ((1, Tile(number, block)),))

    def commit(self, ref: Ref, grid: Grid) -> TiledValue:
        """A node's output as a tiled tensor, that of the state after if it is one."""
        node = self.graph.nodes[ref.node]

        def compute(contents: TileContents, block: int) -> Array:
            return cut_block(contents.output(ref.node), grid, block)

        name = self.after.get(ref)
        if name is None or grid != self.own_grid(ref):
            return self.tensor(node.name, grid, compute)
        self.held[ref] = name
        return self._pinned(node.name, "after", name, grid, compute)

    def _pinned(
        self,
        name: str,
        source: str,
        state: str,
        grid: Grid,
        compute: Callable[[TileContents, int], Array],
    ) -> TiledValue:
        number, first = len(self.tensors), self.columns[state]
        self.tensors.append(TiledTensor(name, source, first, grid.count, compute))
        self.counts[source] += grid.count
        return TiledValue(grid, lambda block: ((1, Tile(number, block)),))

    def public(
        self, name: str, grid: Grid, compute: Callable[[StepFacts, int], Array]
    ) -> TiledValue:
        """Tiles that a verifier commits to itself."""
        return self.tensor(
            name, grid, lambda contents, block: compute(contents.facts, block), "public"
        )

    def state(self, what: str, name: str) -> TiledValue:
        """A state tensor before or after the step."""
        refs = self.states[what]
        grid = self.own_grid(refs[name])

        def compute(contents: TileContents, block: int) -> Array:
            return cut_block(contents.output(refs[name].node), grid, block)

        return self._pinned(f"{what}/{name}", what, name, grid, compute)

    def family(self, count: int, make: Callable[[int, StepFacts], TileStatement]) -> None:
        self.families.append(_Family(count, make))

    # --- linear maps

    def image(self, name: str, node: str, relation: TensorMap, x: TiledValue) -> TiledValue:
        """The image of x: sums of partial images, each a tile with a statement of its own."""
        count = relation.starts[-1]

        def compute(contents: TileContents, number: int) -> Array:
            block, pair = relation.find(number)
            return apply_map(pair, contents.combine(x.at(block)))

        parts = self.tensor(name, relation.target, compute, count=count)

        def make(number: int, facts: StepFacts) -> TileStatement:
            block, pair = relation.find(number)
            given = {"x": x.at(block), "y": parts.at(number)}
            return TileStatement(node, LINEAR, given, linear=pair)

        self.family(count, make)
        starts = relation.starts

        def at(block: int) -> Combination:
            numbers = range(starts[block], starts[block + 1])
            return tuple(item for number in numbers for item in parts.at(number))

        return TiledValue(relation.target, at)

    # --- what a step ends in

    def _emit_softmax(self, z: Ref) -> None:
        found = self.rows[z]
        node = self.graph.nodes[z.node].name
        missing = {*SOFTMAX_TILES} - {"z", *found}
        if missing:
            raise CircuitError(f"a softmax without {min(missing)}", where=node)
        grid = self.own_grid(z)
        most = _find_width(grid.columns, node)
        values = {what: self.standard({**found, "z": z}[what]) for what in SOFTMAX_TILES}

        def make(block: int, facts: StepFacts) -> TileStatement:
            rows, columns = grid.extent(block)
            given = {what: value.at(block) for what, value in values.items()}
            parameters = softmax_parameters(self.side, most, rows=rows, classes=columns)
            return TileStatement(node, f"softmax-{most}", given, parameters)

        self.family(grid.count, make)

    def _emit_after(self) -> None:
        """States whose new value is no tensor of its own: a copy, or a sum."""
        for name, ref in self.graph.next_states().items():
            source = self.graph.nodes[ref.node].inputs[0]
            if name == COUNTER or self.held.get(source) == name:
                continue
            _equate(self, f"next/{name}", self.standard(source), self.state("after", name))

    def _emit_loss(self) -> None:
        ref = self.graph.nodes[self.graph.find("record")].inputs[2]
        loss = self.public(
            "record/loss", self.grid((1, 1)), lambda facts, _: make_scalar(self.side, facts.loss)
        )
        _equate(self, "record", self.value_in(ref, loss.grid), loss)


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


def _add(*parts: tuple[int, TiledValue]) -> TiledValue:
    """The sum of integer multiples of values in the same blocks.

    A sum of sums is one sum: however deep a graph nests them, each part is looked at once.
    """
    weights: dict[TiledValue, int] = {}
    for weight, value in parts:
        for factor, part in value.parts or ((1, value),):
            weights[part] = weights.get(part, 0) + weight * factor
    if len(weights) > MAX_PARTS:
        raise CircuitError(f"is a sum of {len(weights)} tensors: at most {MAX_PARTS}")

    def at(block: int) -> Combination:
        total: dict[Tile, int] = {}
        for value, weight in weights.items():
            for factor, tile in value.at(block):
                total[tile] = total.get(tile, 0) + weight * factor
        return tuple((factor, tile) for tile, factor in total.items() if factor)

    flat = tuple((weight, value) for value, weight in weights.items())
    return TiledValue(parts[0][1].grid, at, flat)


def _equate(s: _Builder, node: str, left: TiledValue, right: TiledValue) -> None:
    """Statements that two values are the same."""
    difference = _add((1, left), (-1, right))
    s.family(
        left.grid.count,
        lambda block, facts: TileStatement(node, COMBINATION, {"zero": difference.at(block)}),
    )


def _require_range(s: _Builder, node: Node, ref: Ref, most: int) -> None:
    kind = s.graph.type_of(ref)
    if kind.lo < -most or kind.hi > most:
        raise CircuitError(
            f"may reach [{kind.lo}, {kind.hi}], the circuit takes +-{most}", where=node.name
        )


# --- sources


def _emit_state(s: _Builder, ref: Ref, node: Node) -> TiledValue | None:
    name = attr_text(node.attrs, "name")
    if name == COUNTER:
        return None
    value = s.state("before", name)
    _hold_range(s, ref, node, value)
    return value


def _hold_range(s: _Builder, ref: Ref, node: Node, x: TiledValue) -> None:
    """What no node makes is of its type, and zero where it ends."""
    kind = s.graph.type_of(ref)
    limbs = range_limbs(kind.lo, kind.hi)

    def make(block: int, facts: StepFacts) -> TileStatement:
        rows, columns = x.grid.extent(block)
        parameters = range_parameters(s.side, lo=kind.lo, hi=kind.hi, rows=rows, columns=columns)
        return TileStatement(node.name, f"range-{limbs}", {"x": x.at(block)}, parameters)

    s.family(x.grid.count, make)


def _emit_nothing(s: _Builder, ref: Ref, node: Node) -> TiledValue | None:
    return None


def _emit_gather(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    part = attr_text(node.attrs, "part")
    grids = {
        attr_text(other.attrs, "part"): s.grid(batch_matrix(other.outputs[0].shape))
        for other in s.graph.nodes
        if other.op == "gather_samples"
    }
    grid, first = grids[part], 0 if part == "x" else grids["x"].count
    number = len(s.tensors)
    s.tensors.append(
        TiledTensor(
            f"batch/{part}",
            "batch",
            first,
            grid.count,
            lambda contents, block: cut_block(contents.output(ref.node), grid, block),
        )
    )
    s.counts["batch"] += grid.count
    _require_few(node.name, s.counts["batch"], MAX_COMMITMENTS, "tiles of the batch")
    value = TiledValue(grid, lambda block: ((1, Tile(number, block)),))
    _hold_range(s, ref, node, value)
    return value


def _emit_one_hot(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """2^14 (1 - [token > place] - [token < place])."""
    source = node.inputs[0]
    depth, kind = attr_int(node.attrs, "depth"), s.graph.type_of(source)
    if max(kind.hi, depth - kind.lo) > GATE_REACH:
        raise CircuitError(
            f"its tokens and places differ by more than {GATE_REACH}", where=node.name
        )
    x, grid = s.value(source), s.own_grid(ref)
    spread = TensorMap(x.grid, grid, lambda flat: (np.arange(flat.size), flat // depth))
    token = s.image(f"{node.name}/token", node.name, spread, x)

    def compute_place(facts: StepFacts, block: int) -> Array:
        tile = np.zeros(s.side**2, dtype=np.int64)
        within, flat = grid.elements(block)
        tile[within] = flat % depth
        return tile

    place = s.public(f"{node.name}/place", grid, compute_place)
    one = s.public(f"{node.name}/one", grid, lambda facts, block: grid.mask(block))
    over = _gate(s, f"{node.name}/over", node, _add((1, token), (-1, place)), one)
    under = _gate(s, f"{node.name}/under", node, _add((1, place), (-1, token)), one)
    unit = 1 << PROBABILITY_EXPONENT
    return _add((unit, one), (-unit, over), (-unit, under))


# --- products and sums


def _emit_matmul(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """Blocks of the product are sums of products of blocks."""
    for item in node.inputs:
        _require_range(s, node, item, SATURATION["i16"][1])
    ta, tb = (attr_int(node.attrs, f"transpose_{side}", 0, 1) for side in "ab")
    if ta and tb:
        raise CircuitError("no circuit for a product of two transposes", where=node.name)
    a, b = (s.standard(item) for item in node.inputs)
    grid, side = s.own_grid(ref), s.side
    inner = a.grid.count // a.grid.across if ta else a.grid.across

    def operands(number: int) -> tuple[Combination, Combination]:
        place, k = divmod(number, inner)
        i, j = divmod(place, grid.across)
        at_a = k * a.grid.across + i if ta else i * a.grid.across + k
        at_b = j * b.grid.across + k if tb else k * b.grid.across + j
        return a.at(at_a), b.at(at_b)

    def compute(contents: TileContents, number: int) -> Array:
        left, right = (contents.combine(item).reshape(side, side) for item in operands(number))
        product = compute_matmul(left.T if ta else left, right.T if tb else right)
        return product.reshape(-1)

    parts = s.tensor(f"{node.name}/parts", grid, compute, count=grid.count * inner)
    circuit = f"matmul-{'t' if ta else 'n'}{'t' if tb else 'n'}"

    def make(number: int, facts: StepFacts) -> TileStatement:
        left, right = operands(number)
        given = {"a": left, "b": right, "c": parts.at(number)}
        return TileStatement(node.name, circuit, given)

    s.family(grid.count * inner, make)

    def at(block: int) -> Combination:
        numbers = range(block * inner, (block + 1) * inner)
        return tuple(item for number in numbers for item in parts.at(number))

    return TiledValue(grid, at)


def _emit_add_bias(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """The bias, aligned, in every row of a block: in as many as the block has."""
    acc, bias = s.standard(node.inputs[0]), s.standard(node.inputs[1])
    shift, grid = attr_int(node.attrs, "shift"), acc.grid
    if shift > 0:
        aligned = _rescale(s, f"{node.name}/aligned", node, bias, "i64", 1, 0, shift)
    else:
        aligned = _add((1 << -shift, bias))
    # Blocks of whole height first, then the lower ones where they are less high.
    heights = sorted({grid.extent(block)[0] for block in (0, grid.count - 1)}, reverse=True)

    def find_pair(number: int) -> tuple[int, LinearMap]:
        kind, column = divmod(number, grid.across)
        rows, columns = heights[kind], grid.extent(column)[1]
        targets = (np.arange(rows)[:, None] * s.side + np.arange(columns)).reshape(-1)
        return column, _make_pair(targets, targets % s.side)

    def compute(contents: TileContents, number: int) -> Array:
        block, pair = find_pair(number)
        return apply_map(pair, contents.combine(aligned.at(block)))

    count = len(heights) * grid.across
    rows = s.tensor(f"{node.name}/rows", grid, compute, count=count)

    def make(number: int, facts: StepFacts) -> TileStatement:
        block, pair = find_pair(number)
        given = {"x": aligned.at(block), "y": rows.at(number)}
        return TileStatement(node.name, LINEAR, given, linear=pair)

    s.family(count, make)

    def at(block: int) -> Combination:
        kind = heights.index(grid.extent(block)[0])
        return rows.at(kind * grid.across + block % grid.across)

    return _add((1, acc), (1, TiledValue(grid, at)))


def _emit_add(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    a = s.value(node.inputs[0])
    b = s.value_in(node.inputs[1], a.grid)
    sign = 1 if node.op == "add" else -1
    shift_a, shift_b = (attr_int(node.attrs, name) for name in ("shift_a", "shift_b"))
    return _add((1 << shift_a, a), (sign << shift_b, b))


def _emit_mul(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    a = s.value(node.inputs[0])
    b = s.value_in(node.inputs[1], a.grid)
    y = s.commit(ref, a.grid)

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"a": a.at(block), "b": b.at(block), "y": y.at(block)}
        return TileStatement(node.name, "mul", given)

    s.family(a.grid.count, make)
    return y


def _emit_square_sum(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """The sums of squares of each block, then their sum, shifted."""
    _require_range(s, node, node.inputs[0], SATURATION["i16"][1])
    x = s.value(node.inputs[0])
    scalar = s.grid((1, 1))

    def compute(contents: TileContents, block: int) -> Array:
        values = contents.combine(x.at(block))
        return make_scalar(s.side, int((values * values).sum()))

    parts = s.tensor(f"{node.name}/parts", scalar, compute, count=x.grid.count)
    s.family(
        x.grid.count,
        lambda block, facts: TileStatement(
            node.name, "square", {"x": x.at(block), "s": parts.at(block)}
        ),
    )
    total = TiledValue(
        scalar, lambda _: tuple((1, tile) for i in range(x.grid.count) for _, tile in parts.at(i))
    )
    shift = attr_int(node.attrs, "shift")
    if shift > 0:
        _require_range(s, node, ref, WIDE_REACH)
        return _rescale(s, node.name, node, total, "i64", 1, 0, shift)
    return _add((1 << -shift, total))


# --- element by element


def _rescale(
    s: _Builder,
    name: str,
    node: Node,
    x: TiledValue | Callable[[StepFacts], TiledValue],
    dtype: str,
    multiplier: int,
    offset: int,
    shift: int,
    ref: Ref | None = None,
) -> TiledValue:
    """sat(rs(x multiplier + offset, shift)), shift >= 0; the node's output where ``ref`` is it.

    x may depend on the step, but for its blocks.
    """
    find_x = (lambda facts: x) if isinstance(x, TiledValue) else x
    grid = find_x(StepFacts(1, 0)).grid
    if offset and grid.size != grid.rows * grid.columns:
        raise CircuitError("has an offset, and no whole rows", where=node.name)

    def compute(contents: TileContents, block: int) -> Array:
        found = find_x(contents.facts).at(block)
        offsets = offset * grid.mask(block)
        rounded = round_exactly(contents.combine(found), multiplier, offsets, shift)
        return rounded if dtype == "i64" else np.clip(rounded, *SATURATION[dtype])

    y = s.tensor(name, grid, compute) if ref is None else s.commit(ref, grid)
    limbs = _find_limbs(shift, node)

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"x": find_x(facts).at(block), "y": y.at(block)}
        rows, columns = grid.extent(block)
        parameters = rescale_parameters(
            s.side,
            limbs,
            multiplier=multiplier,
            offset=offset,
            shift=shift,
            rows=rows,
            columns=columns,
        )
        return TileStatement(node.name, f"rescale-{dtype}-{limbs}", given, parameters)

    s.family(grid.count, make)
    return y


def _find_limbs(shift: int, node: Node) -> int:
    try:
        return rescale_limbs(shift)
    except CircuitError as error:
        raise CircuitError(error.message, where=node.name) from None


def _emit_rescale(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    x, wanted = s.value(node.inputs[0]), _wanted_grid(s, ref)
    if _THIN * wanted.count <= x.grid.count:
        x = s.value_in(node.inputs[0], wanted)
    dtype = attr_text(node.attrs, "dtype")
    multiplier, shift = attr_int(node.attrs, "multiplier"), attr_int(node.attrs, "shift")
    if shift <= 0:
        # The factor is exact and part of the operand.
        x = _add((multiplier << -shift, x))
        if dtype == "i64":
            return x
        multiplier, shift = 1, 0
    elif dtype == "i64":
        _require_range(s, node, ref, WIDE_REACH)
    return _rescale(s, node.name, node, x, dtype, multiplier, 0, shift, ref)


def _emit_normalize(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    x = s.value(node.inputs[0])
    multiplier, offset, shift = (
        attr_int(node.attrs, name) for name in ("multiplier", "offset", "shift")
    )
    return _rescale(s, node.name, node, x, "i16", multiplier, offset, shift, ref)


def _gate(
    s: _Builder, name: str, node: Node, x: TiledValue, g: TiledValue, ref: Ref | None = None
) -> TiledValue:
    """g where x > 0, else 0; the node's output where ``ref`` is it."""

    def compute(contents: TileContents, block: int) -> Array:
        return np.where(contents.combine(x.at(block)) > 0, contents.combine(g.at(block)), 0)

    y = s.tensor(name, x.grid, compute) if ref is None else s.commit(ref, x.grid)

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"x": x.at(block), "g": g.at(block), "y": y.at(block)}
        return TileStatement(node.name, "gate", given)

    s.family(x.grid.count, make)
    return y


def _emit_relu(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    _require_range(s, node, node.inputs[0], GATE_REACH)
    x = s.value(node.inputs[0])
    return _gate(s, node.name, node, x, x, ref)


def _emit_relu_grad(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    _require_range(s, node, node.inputs[1], GATE_REACH)
    out = s.value(node.inputs[1])
    return _gate(s, node.name, node, out, s.value_in(node.inputs[0], out.grid), ref)


def _emit_momentum(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """V' = sat32(V + rs(g, s) - rs(V decay, 16)) = sat32(rs(g + 2^s (V - rs(V decay, 16)), s))."""
    v = s.value(node.inputs[0])
    g = s.value_in(node.inputs[1], v.grid)
    decay, shift = attr_int(node.attrs, "decay"), attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)
    if decay == 1 << DECAY_EXPONENT:
        whole = _add((1 << up, g))
    elif decay:
        decayed = _rescale(s, f"{node.name}/decayed", node, v, "i64", decay, 0, DECAY_EXPONENT)
        whole = _add((1 << up, g), (1 << down, v), (-1 << down, decayed))
    else:
        whole = _add((1 << up, g), (1 << down, v))
    return _rescale(s, node.name, node, whole, "i32", 1, 0, down, ref)


def _emit_sgd_update(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """w' = sat32(w - rs(V rate, s)) = sat32(rs(2^s w - V rate - 1, s)) for s > 0.

    For rs(-a - 1, s) = -rs(a, s): with a + h = 2^s q + r, -a - 1 + h = -2^s q + (2^s - 1 - r).
    """
    weight, velocity, rate = node.inputs
    schedule = s.graph.nodes[rate.node]
    if schedule.op != "schedule":
        raise CircuitError("its rate is not that of a schedule", where=node.name)
    w = s.value(weight)
    v = s.value_in(velocity, w.grid)
    shift = attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)

    def find_whole(facts: StepFacts) -> TiledValue:
        done = np.asarray(facts.step - 1, dtype=np.int64)
        mantissa = int(TABLE["schedule"].law(schedule.attrs, [done]))
        return _add((1 << down, w), (-mantissa << up, v))

    offset = -1 if shift > 0 else 0
    return _rescale(s, node.name, node, find_whole, "i32", 1, offset, down, ref)


# --- rows of a softmax


def _find_width(classes: int, node: str) -> int:
    """Most classes of the narrowest circuit that has room."""
    room = [most for most in SOFTMAX_CLASSES if classes <= most]
    if not room:
        raise CircuitError(f"a softmax of {classes} classes; at most 128", where=node)
    return room[0]


def _emit_softmax_part(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """An output of the rows' circuit, which ties all of them together."""
    match node.op:
        case "row_max":
            z, parts = node.inputs[0], {"maximum": ref}
        case "exp2_diff":
            z, parts = node.inputs[0], {"exp": ref, "maximum": node.inputs[1]}
        case "row_sum":
            z, parts = _find_logits(s, node, node.inputs[0]), {"sum": ref, "exp": node.inputs[0]}
        case "divide":
            e, total = node.inputs
            z, parts = _find_logits(s, node, e), {"p": ref, "exp": e, "sum": total}
        case "sub_one_hot":
            p, labels = node.inputs
            quotient = s.graph.nodes[p.node]
            if quotient.op != "divide":
                raise CircuitError("its input is no quotient of a softmax", where=node.name)
            z = _find_logits(s, node, quotient.inputs[0])
            parts = {"grad": ref, "p": p, "labels": labels}
        case _:
            z, maximum, total, labels = node.inputs
            parts = {"loss": ref, "maximum": maximum, "sum": total, "labels": labels}
    group = s.rows.setdefault(z, {})
    for what, part in parts.items():
        if group.setdefault(what, part) != part:
            raise CircuitError(f"its rows have another {what} already", where=node.name)
    return s.commit(ref, s.own_grid(ref))


def _find_logits(s: _Builder, node: Node, e: Ref) -> Ref:
    source = s.graph.nodes[e.node]
    if source.op != "exp2_diff":
        raise CircuitError("is of rows that are no exponentials", where=node.name)
    return source.inputs[0]


# --- linear maps


def _emit_reshape(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """The same blocks."""
    return s.value(node.inputs[0])


def _wanted_grid(s: _Builder, ref: Ref) -> Grid:
    """The blocks in which a value is read first, through reshapes."""
    reader = s.first_readers.get(ref)
    while reader is not None and s.graph.nodes[reader].op == "reshape":
        ref = Ref(reader)
        reader = s.first_readers.get(ref)
    if reader is None or s.graph.nodes[reader].op in _READ_BY_ROWS:
        return s.own_grid(ref)
    return s.packed_grid(s.graph.type_of(ref).shape)


def _emit_transpose(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    x = s.value(node.inputs[0])
    shape, out = s.graph.type_of(node.inputs[0]).shape, s.graph.type_of(ref).shape
    perm = attr_ints(node.attrs, "perm")
    steps = np.asarray([prod(shape[axis + 1 :]) for axis in perm], dtype=np.int64)

    def terms(flat: I64) -> tuple[I64, I64]:
        along = np.stack(np.unravel_index(flat, out))
        return np.arange(flat.size), np.asarray((along * steps[:, None]).sum(axis=0), np.int64)

    relation = TensorMap(x.grid, _wanted_grid(s, ref), terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)


def _emit_sum(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    """``sum`` and ``column_sum``."""
    x = s.value(node.inputs[0])
    target = s.own_grid(ref)
    rows = x.grid.rows * x.grid.columns // target.columns

    def terms(flat: I64) -> tuple[I64, I64]:
        places = np.arange(rows)[:, None] * target.columns + flat
        return np.tile(np.arange(flat.size), rows), places.reshape(-1)

    relation = TensorMap(x.grid, target, terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)


@dataclass(frozen=True)
class _Frame:
    """Windows over an image, both by flat places; a window's place counts channels too."""

    window: Window
    image: tuple[int, ...]

    @cached_property
    def pooled(self) -> tuple[int, ...]:
        return self.window.pooled_shape(self.image)

    def find_pixels(self, places: I64, offset: I64 | int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """(pixel that each window has at the offset, whether it is one and not padding)."""
        batch, row, column, channel = np.unravel_index(places, self.pooled)
        down, along = np.divmod(np.asarray(offset), self.window.kernel[1])
        y = row * self.window.strides[0] + down - self.window.pads[0]
        x = column * self.window.strides[1] + along - self.window.pads[1]
        _, height, width, channels = self.image
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        return ((batch * height + y) * width + x) * channels + channel, inside

    def find_windows(self, pixels: I64, offset: int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """(window that has each pixel at the offset, whether there is one)."""
        batch, y, x, channel = np.unravel_index(pixels, self.image)
        down, along = divmod(offset, self.window.kernel[1])
        row, over = np.divmod(y + self.window.pads[0] - down, self.window.strides[0])
        column, beyond = np.divmod(x + self.window.pads[1] - along, self.window.strides[1])
        _, rows, columns, channels = self.pooled
        found = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        place = ((batch * rows + row) * columns + column) * channels + channel
        return place, found & (over == 0) & (beyond == 0)

    def find_first(self, places: I64) -> I64:
        """Offset of each window's first pixel."""
        first = np.full(places.shape, -1, dtype=np.int64)
        for offset in range(self.window.area):
            if np.all(first >= 0):
                break
            _, inside = self.find_pixels(places, offset)
            first = np.where((first < 0) & inside, offset, first)
        return first

    def windows_of(self, pixels: I64, offsets: Sequence[int]) -> tuple[I64, I64, I64]:
        """(number of the pixel in the list, window, offset) wherever a window has a pixel."""
        out = []
        for offset in offsets:
            place, found = self.find_windows(pixels, offset)
            out.append((np.flatnonzero(found), place[found], np.full(found.sum(), offset)))
        numbers, places, where = (np.concatenate(parts) for parts in zip(*out, strict=True))
        return numbers, places, where

    def split_patch(self, flat: I64) -> tuple[I64, I64]:
        """(window, offset) of elements of the matrix of patches."""
        channels, area = self.image[3], self.window.area
        place, within = np.divmod(flat, area * channels)
        offset, channel = np.divmod(within, channels)
        return place * channels + channel, offset

    def join_patch(self, places: I64, offset: I64) -> I64:
        """Inverse of :meth:`split_patch`."""
        place, channel = np.divmod(places, self.image[3])
        return (place * self.window.area + offset) * self.image[3] + channel


def _emit_im2col(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    frame = _Frame(Window.from_attrs(node.attrs), s.graph.type_of(node.inputs[0]).shape)

    def terms(flat: I64) -> tuple[I64, I64]:
        pixels, inside = frame.find_pixels(*frame.split_patch(flat))
        return np.flatnonzero(inside), pixels[inside]

    return _map(s, ref, node, terms)


def _emit_col2im(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    frame = _Frame(Window.from_attrs(node.attrs), attr_ints(node.attrs, "shape", 4))

    def terms(flat: I64) -> tuple[I64, I64]:
        numbers, places, offsets = frame.windows_of(flat, range(frame.window.area))
        return numbers, frame.join_patch(places, offsets)

    return _map(s, ref, node, terms)


def _emit_sum_pool(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    frame = _Frame(Window.from_attrs(node.attrs), s.graph.type_of(node.inputs[0]).shape)

    def terms(flat: I64) -> tuple[I64, I64]:
        area = frame.window.area
        numbers = np.repeat(np.arange(flat.size), area)
        pixels, inside = frame.find_pixels(flat[numbers], np.tile(np.arange(area), flat.size))
        return numbers[inside], pixels[inside]

    return _map(s, ref, node, terms)


def _emit_sum_pool_grad(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    frame = _Frame(Window.from_attrs(node.attrs), attr_ints(node.attrs, "shape", 4))

    def terms(flat: I64) -> tuple[I64, I64]:
        numbers, places, _ = frame.windows_of(flat, range(frame.window.area))
        return numbers, places

    return _map(s, ref, node, terms)


def _map(s: _Builder, ref: Ref, node: Node, terms: Terms) -> TiledValue:
    x = s.value(node.inputs[0])
    relation = TensorMap(x.grid, _wanted_grid(s, ref), terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)


# --- maxima


@dataclass(frozen=True)
class _Pool:
    """The steps of the maxima over the windows of an image: see the module's text."""

    frame: _Frame
    gains: tuple[TiledValue, ...]
    """x_i - m_(i-1), from offset 1 on."""
    maxima: TiledValue


def _pool(s: _Builder, node: Node, source: Ref) -> _Pool:
    """Made once for each image and window: the gradient follows the same steps."""
    window = Window.from_attrs(node.attrs)
    key = (source, window)
    if key not in s.pools:
        s.pools[key] = _make_pool(s, node, source, window)
    return s.pools[key]


def _make_pool(s: _Builder, node: Node, source: Ref, window: Window) -> _Pool:
    _require_range(s, node, source, SATURATION["i16"][1])
    if window.area > MAX_WINDOW:
        raise CircuitError(f"a maximum of {window.area} pixels: at most {MAX_WINDOW}")
    x, frame = s.value(source), _Frame(window, s.graph.type_of(source).shape)
    grid = s.packed_grid(frame.pooled)

    def pick(offset: int) -> TiledValue:
        def terms(flat: I64) -> tuple[I64, I64]:
            pixels, inside = frame.find_pixels(flat, offset)
            first, _ = frame.find_pixels(flat, frame.find_first(flat))
            return np.arange(flat.size), np.where(inside, pixels, first)

        relation = TensorMap(x.grid, grid, terms)
        return s.image(f"{node.name}/pixel {offset}", node.name, relation, x)

    maximum, gains = pick(0), []
    for offset in range(1, window.area):
        gain = _add((1, pick(offset)), (-1, maximum))
        won = _gate(s, f"{node.name}/gain {offset}", node, gain, gain)
        gains.append(gain)
        maximum = _add((1, maximum), (1, won))
    return _Pool(frame, tuple(gains), maximum)


def _emit_max_pool(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    return _pool(s, node, node.inputs[0]).maxima


def _emit_max_pool_grad(s: _Builder, ref: Ref, node: Node) -> TiledValue:
    pool = _pool(s, node, node.inputs[1])
    frame, left = pool.frame, s.value_in(node.inputs[0], pool.maxima.grid)
    target = s.value(node.inputs[1]).grid
    parts = []

    def scatter(offset: int, taken: TiledValue) -> TiledValue:
        def terms(flat: I64) -> tuple[I64, I64]:
            # A window that has a pixel again, as its first one, takes nothing for it.
            if offset:
                numbers, places, _ = frame.windows_of(flat, [offset])
                return numbers, places
            numbers, places, where = frame.windows_of(flat, range(frame.window.area))
            is_first = where == frame.find_first(places)
            return numbers[is_first], places[is_first]

        relation = TensorMap(taken.grid, target, terms)
        return s.image(f"{node.name}/to {offset}", node.name, relation, taken)

    for offset in range(frame.window.area - 1, 0, -1):
        gain = pool.gains[offset - 1]
        taken = _gate(s, f"{node.name}/taken {offset}", node, gain, left)
        parts.append((1, scatter(offset, taken)))
        left = _add((1, left), (-1, taken))
    parts.append((1, scatter(0, left)))
    return _add(*parts)


_EMITTERS: Final[Mapping[str, Callable[[_Builder, Ref, Node], TiledValue | None]]] = {
    "add": _emit_add,
    "add_bias": _emit_add_bias,
    "col2im": _emit_col2im,
    "column_sum": _emit_sum,
    "cross_entropy": _emit_softmax_part,
    "divide": _emit_softmax_part,
    "exp2_diff": _emit_softmax_part,
    "gather_samples": _emit_gather,
    "im2col": _emit_im2col,
    "matmul": _emit_matmul,
    "max_pool": _emit_max_pool,
    "max_pool_grad": _emit_max_pool_grad,
    "momentum": _emit_momentum,
    "mul": _emit_mul,
    "next_state": _emit_nothing,
    "normalize": _emit_normalize,
    "one_hot": _emit_one_hot,
    "relu": _emit_relu,
    "relu_grad": _emit_relu_grad,
    "rescale": _emit_rescale,
    "reshape": _emit_reshape,
    "row_max": _emit_softmax_part,
    "row_sum": _emit_softmax_part,
    "sgd_update": _emit_sgd_update,
    "square_sum": _emit_square_sum,
    "state": _emit_state,
    "sub": _emit_add,
    "sub_one_hot": _emit_softmax_part,
    "sum": _emit_sum,
    "sum_pool": _emit_sum_pool,
    "sum_pool_grad": _emit_sum_pool_grad,
    "transpose": _emit_transpose,
}

OPERATORS: Final = frozenset(_EMITTERS)
"""Operators that statements about tiles are of."""
