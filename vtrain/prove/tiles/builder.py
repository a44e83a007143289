"""What emitters make the statements of a step with, and the limits of what they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from vtrain.commit.kzg_layout import COUNTER, matrix, state_names
from vtrain.errors import CircuitError
from vtrain.ops.layout import Window
from vtrain.prove.tiles.grid import Array, Grid, RecentPairs, TensorMap, apply_map, cut_block
from vtrain.prove.tiles.numbers import PublicNumbers
from vtrain.prove.tiles.statements import (
    LINEAR,
    ZERO,
    Combination,
    StepFacts,
    Tile,
    TileContents,
    TiledTensor,
    TiledValue,
    TileStatement,
    add,
)
from vtrain.wire.graph import Node, Ref, StepGraph
from vtrain.wire.proof import MAX_COMMITMENTS

if TYPE_CHECKING:
    from vtrain.prove.tiles.emit.attention import MaskedRows
    from vtrain.prove.tiles.emit.pool import Pool


THIN: Final = 4
"""A tensor is packed anew where that takes so many times fewer tiles."""
MAX_LEAVES: Final = 1 << 20
"""Tiles of a trace: to commit to so many takes one to three hours of one thread, at 3 to 11 ms
each."""
MAX_PLACES: Final = 1 << 28
"""Elements that public maps look at to cut a step into tiles: a minute, at 0.2 us each."""
MAX_TILE_PLACES: Final = 1 << 25
"""As many for one tile: 2.5 GiB, at 80 bytes each."""
_WINDOWS: Final = frozenset({"col2im", "max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad"})
"""Operators that look at a whole window for each element."""
_SUMS: Final = frozenset({"column_sum", "sum"})
_COPIES: Final = frozenset({"im2col", "one_hot", "transpose", "slice", "pad", "concat"})
"""Operators that look at one element for each."""
_HOT_ROWS: Final = frozenset({"gather_rows", "scatter_add"})
_ROW_SUMS: Final = frozenset({"center", "row_dot", "softmax_grad"})
_SPREADS: Final = frozenset({"center", "row_scale", "column_scale", "softmax_grad", "scale_by"})
_SPAN_LOOKS: Final = 128
"""More maps than the spans of tokens take: four for each doubling of a distance, and a few."""
_READ_BY_ROWS: Final = frozenset({"add_bias", "matmul", "row_max"})
"""Operators whose circuits need a matrix's own rows."""


@dataclass(frozen=True)
class Family:
    """``count`` statements of one form."""

    count: int
    make: Callable[[int, StepFacts], TileStatement]


def require_few(where: str, count: int, most: int, what: str) -> None:
    """CircuitError where something is too large."""
    if count > most:
        raise CircuitError(
            f"has {count} {what}: at most {most} are proven by tiles, so take a smaller model or "
            "batch",
            where=where,
        )


def _list_looks(graph: StepGraph, node: Node) -> Iterator[tuple[int, int]]:
    """(elements that the public maps of a node make, how many each map looks at for one)."""
    size = node.outputs[0].size
    first = graph.type_of(node.inputs[0]) if node.inputs else None
    if node.op in _SUMS and first is not None:
        yield size, -(-first.size // size)
    elif node.op == "batched_matmul":
        yield size, -(-sum(graph.type_of(ref).size for ref in node.inputs) // size)
    elif node.op in _WINDOWS:
        yield size, Window.from_attrs(node.attrs).area
    elif node.op in _COPIES:
        yield size, 1
    elif node.op in _HOT_ROWS:
        table = node.inputs[0] if node.op == "gather_rows" else None
        rows = node.outputs[0].shape[0] if table is None else graph.type_of(table).shape[0]
        yield graph.type_of(node.inputs[1]).size * rows, 1
    elif node.op == "token_spans":
        yield size, _SPAN_LOOKS
    elif node.op == "keep_span" and graph.nodes[node.inputs[1].node].op != "causal_spans":
        yield size, 2
    if node.op in _ROW_SUMS and first is not None:
        yield first.size // first.shape[-1], first.shape[-1]
    if node.op in _SPREADS:
        yield size, 1


class TileBuilder:
    """The tiled tensors and statements of a graph's step so far, and the outputs of its nodes.

    With ``only``, the node of this index is cut by itself: its output is nobody's state.
    """

    def __init__(self, graph: StepGraph, side: int, only: int | None = None) -> None:
        self.graph, self.side = graph, side
        self.tensors: list[TiledTensor] = []
        self.cut_nodes: set[int] = set()
        """Nodes whose outputs tiles are cut of; those of others follow from tiles."""
        self._recent = RecentPairs()
        self.families: list[Family] = []
        self.counts = {"trace": 0, "before": 0, "batch": 0, "after": 0, "public": 0}
        self.values: dict[Ref, TiledValue] = {}
        self.cut_anew: dict[tuple[Ref, Grid], TiledValue] = {}
        self.rows: dict[Ref, dict[str, Ref]] = {}
        self.pools: dict[tuple[Ref, Window], Pool] = {}
        self.hot: dict[tuple[Ref, int], TiledValue] = {}
        """Rows of zeros and a one, by the numbers that say where, and how many they choose from."""
        self.maxima: dict[tuple[Ref, Grid], TiledValue] = {}
        self.divisors: dict[tuple[Ref, Grid], TiledValue] = {}
        self.positive: dict[Ref, TiledValue] = {}
        """Of rows by themselves: maxima and sums in all columns, and sums that are at least 1."""
        self.kept: dict[tuple[Ref, Grid], tuple[TiledValue, TiledValue]] = {}
        """Hidden masks and ones, by the spans that the masks follow from."""
        self.masked: dict[Ref, MaskedRows] = {}
        """Rows of which spans leave elements out, by the node that does it."""
        self.numbers = PublicNumbers(graph)
        self.held: dict[Ref, str] = {}
        self.states = {"before": graph.states(), "after": graph.next_states()}
        self.after: dict[Ref, str] = {}
        for name, ref in self.states["after"].items():
            if name != COUNTER and only is None:
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
        require_few("state", start, MAX_COMMITMENTS, "tiles of the state")
        # By the shapes alone, before any map is worked out.
        self.places = 0
        for node in graph.nodes if only is None else graph.nodes[only : only + 1]:
            for size, reach in _list_looks(graph, node):
                self.require_room(node.name, size, reach)

    def require_room(self, where: str, size: int, reach: int) -> None:
        """That so many elements, for each of which a map looks at ``reach``, are not too many."""
        self.places += size * reach
        require_few(where, self.places, MAX_PLACES, "elements looked at up to here")
        of_tile = min(size, self.side**2) * reach
        require_few(where, of_tile, MAX_TILE_PLACES, "elements looked at for a tile")

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
        return packed if THIN * packed.count <= own.count else own

    def value(self, ref: Ref) -> TiledValue:
        """Any blocks."""
        found = self.values.get(ref)
        if found is None:
            name = self.graph.nodes[ref.node].name
            raise CircuitError(
                "is no tensor that a circuit may read: it is a number, an index or a digest, or "
                "stands for the inside of a softmax",
                where=name,
            )
        return found

    def value_in(self, ref: Ref, grid: Grid) -> TiledValue:
        """The value cut into these blocks, anew if need be."""
        value = self.value(ref)
        if value.grid == grid:
            return value
        key = (ref, grid)
        if key not in self.cut_anew:
            name = self.graph.nodes[ref.node].name
            self.require_room(name, grid.size, 1)
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
            require_few(name, self.counts[source] + size, MAX_LEAVES, "tiles of a trace")
        self.tensors.append(TiledTensor(name, source, self.counts[source], size, compute))
        self.counts[source] += size
        return TiledValue(grid, lambda block: ((1, Tile(number, block)),))

    def cut(self, ref: Ref, grid: Grid) -> Callable[[TileContents, int], Array]:
        """What cuts a block out of a node's output."""
        self.cut_nodes.add(ref.node)
        return lambda contents, block: cut_block(contents.output(ref.node), grid, block)

    def commit(self, ref: Ref, grid: Grid) -> TiledValue:
        """A node's output as a tiled tensor, that of the state after if it is one."""
        node, compute = self.graph.nodes[ref.node], self.cut(ref, grid)
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
        return self._pinned(f"{what}/{name}", what, name, grid, self.cut(refs[name], grid))

    def family(self, count: int, make: Callable[[int, StepFacts], TileStatement]) -> None:
        self.families.append(Family(count, make))

    # --- linear maps

    def image(self, name: str, node: str, relation: TensorMap, x: TiledValue) -> TiledValue:
        """The image of x: sums of partial images, each a tile with a statement of its own."""
        count, recent = relation.starts[-1], self._recent

        def compute(contents: TileContents, number: int) -> Array:
            block, pair = recent.find(relation, number)
            return apply_map(pair, contents.combine(x.at(block)))

        parts = self.tensor(name, relation.target, compute, count=count)

        def make(number: int, facts: StepFacts) -> TileStatement:
            block, pair = recent.find(relation, number)
            given = {"x": x.at(block), "y": parts.at(number)}
            return TileStatement(node, LINEAR, given, linear=pair)

        self.family(count, make)
        starts = relation.starts

        def at(block: int) -> Combination:
            numbers = range(starts[block], starts[block + 1])
            return tuple(item for number in numbers for item in parts.at(number))

        return TiledValue(relation.target, at)


def equate(s: TileBuilder, node: str, left: TiledValue, right: TiledValue) -> None:
    """Statements that two values are the same."""
    difference = add((1, left), (-1, right))
    s.family(
        left.grid.count,
        lambda block, facts: TileStatement(node, ZERO, {"x": difference.at(block)}),
    )


def require_range(s: TileBuilder, node: Node, ref: Ref, most: int) -> None:
    """CircuitError unless a value is within +-``most``, as circuits take it."""
    kind = s.graph.type_of(ref)
    if kind.lo < -most or kind.hi > most:
        raise CircuitError(
            f"reads values of the range [{kind.lo}, {kind.hi}], and the circuit takes those within "
            f"+-{most}: rescale them first",
            where=node.name,
        )


def wanted_grid(s: TileBuilder, ref: Ref) -> Grid:
    """The blocks in which a value is read first, through reshapes."""
    reader = s.first_readers.get(ref)
    while reader is not None and s.graph.nodes[reader].op == "reshape":
        ref = Ref(reader)
        reader = s.first_readers.get(ref)
    if reader is None or s.graph.nodes[reader].op in _READ_BY_ROWS:
        return s.own_grid(ref)
    return s.packed_grid(s.graph.type_of(ref).shape)


Emitters = Mapping[str, Callable[[TileBuilder, Ref, Node], TiledValue | None]]
"""By operator, what makes the statements about a node and gives its output, if it is one that
circuits read."""
