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
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from vtrain.commit.kzg_layout import COUNTER
from vtrain.errors import CircuitError
from vtrain.prove.tiles.builder import TileBuilder, equate
from vtrain.prove.tiles.emit import EMITTERS
from vtrain.prove.tiles.emit.softmax import emit_rows
from vtrain.prove.tiles.emit.source import hold_range
from vtrain.prove.tiles.grid import make_scalar
from vtrain.prove.tiles.statements import (
    OUTSIDE,
    StepFacts,
    Tile,
    TiledValue,
    TileStatement,
)
from vtrain.wire.graph import Ref, StepGraph
from vtrain.wire.proof import TILE


class Tiling:
    """The statements and tiled tensors of a graph's step, all from the graph alone.

    The graph is a legal one (``vtrain.graph.legality``).  ``side`` is the extent of a tile: that of
    ``kzg_layout`` but in tests.  CircuitError names a node that no circuit exists for, or at which
    the step is beyond a limit of this module (``MAX_LEAVES`` and others) before time is spent on
    it.

    With ``only``, the statements are about the node of this index alone, of a step that may have
    nodes without a circuit.  Its inputs are tensors of the trace: that they are 0 or in their
    ranges, with zeros as padding, is stated; which node put them out, and what becomes of the
    output, is not.  No task and no audit has such statements: whoever gets them has to hold the
    commitments of the trace against the run by other means.  CircuitError for a node about which
    nothing is stated by itself.
    """

    def __init__(self, graph: StepGraph, side: int = TILE, only: int | None = None) -> None:
        builder = TileBuilder(graph, side, only)
        if only is None:
            _emit_all(builder)
        else:
            _emit_one(builder, only)
        self.graph, self.side = graph, side
        self.tensors: Final = tuple(builder.tensors)
        self.leaf_count: Final = builder.counts["trace"]
        """Tiles that a trace commits to beyond those of the run's log."""
        self.pinned_counts: Final = {
            source: builder.counts[source] for source in ("before", "batch", "after")
        }
        """Tiles that a ``KzgRecord`` has, by source."""
        self.cut_nodes: Final = frozenset(builder.cut_nodes)
        """Nodes whose outputs tiles are cut of: a prover needs no other values of a step."""
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
        return frozenset(statement.circuit for statement in made)

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


def _emit_node(s: TileBuilder, index: int) -> None:
    node = s.graph.nodes[index]
    if Ref(index) in s.numbers:
        return
    emit = EMITTERS.get(node.op)
    if emit is None:
        raise CircuitError(
            f"has no circuit for the operator {node.op}: docs/tiling.md lists those that have one",
            where=node.name,
        )
    try:
        value = emit(s, Ref(index), node)
    except CircuitError as error:
        raise CircuitError(error.message, where=error.where or node.name) from None
    if value is not None:
        s.values[Ref(index)] = value


def _emit_one(s: TileBuilder, index: int) -> None:
    node, stated = s.graph.nodes[index], 0
    if node.op not in OUTSIDE:
        for ref in dict.fromkeys(node.inputs):
            s.values[ref] = s.commit(ref, s.own_grid(ref))
            hold_range(s, ref, s.graph.nodes[ref.node], s.values[ref])
        stated = len(s.families)
        _emit_node(s, index)
    if len(s.families) == stated:
        raise CircuitError(
            "is a node about which nothing is stated by itself: cut the whole step", where=node.name
        )


def _emit_all(s: TileBuilder) -> None:
    for index, node in enumerate(s.graph.nodes):
        if node.op not in OUTSIDE:
            _emit_node(s, index)
    for logits in s.rows:
        emit_rows(s, logits)
    _emit_after(s)
    _emit_loss(s)


def _emit_after(s: TileBuilder) -> None:
    """States whose new value is no tensor of its own: a copy, or a sum."""
    for name, ref in s.graph.next_states().items():
        source = s.graph.nodes[ref.node].inputs[0]
        if name == COUNTER or s.held.get(source) == name:
            continue
        equate(s, f"next/{name}", s.standard(source), s.state("after", name))


def _emit_loss(s: TileBuilder) -> None:
    ref = s.graph.nodes[s.graph.find("record")].inputs[2]
    loss = s.public("record/loss", s.grid((1, 1)), lambda facts, _: make_scalar(s.side, facts.loss))
    equate(s, "record", s.value_in(ref, loss.grid), loss)
