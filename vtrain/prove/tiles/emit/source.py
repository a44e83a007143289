"""What a step begins with: states, samples, and their preparation."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.commit.kzg_layout import COUNTER, batch_matrix
from vtrain.ops.base import attr_int, attr_text
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_few
from vtrain.prove.tiles.circuits import GATE_REACH
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.integers import hold, make_one, spread
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.grid import Array, Grid
from vtrain.prove.tiles.statements import (
    StepFacts,
    Tile,
    TiledTensor,
    TiledValue,
    add,
)
from vtrain.spec.number import PROBABILITY_EXPONENT
from vtrain.wire.graph import Node, Ref
from vtrain.wire.proof import MAX_COMMITMENTS


def _emit_state(s: TileBuilder, ref: Ref, node: Node) -> TiledValue | None:
    name = attr_text(node.attrs, "name")
    if name == COUNTER:
        return None
    value = s.state("before", name)
    hold_range(s, ref, node, value)
    return value


def hold_range(s: TileBuilder, ref: Ref, node: Node, x: TiledValue) -> None:
    """What no node makes is of its type, or 0, and zero where it ends."""
    kind = s.graph.type_of(ref)
    hold(s, node.name, node, x, min(kind.lo, 0), max(kind.hi, 0))


def _emit_nothing(s: TileBuilder, ref: Ref, node: Node) -> TiledValue | None:
    return None


def _emit_gather(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
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
            s.cut(ref, grid),
        )
    )
    s.counts["batch"] += grid.count
    require_few(node.name, s.counts["batch"], MAX_COMMITMENTS, "tiles of the batch")
    value = TiledValue(grid, lambda block: ((1, Tile(number, block)),))
    hold_range(s, ref, node, value)
    return value


def _emit_one_hot(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """2^14 (1 - [token > place] - [token < place]); of tokens whose type goes further than a gate
    does, for those below the depth alone."""
    source = node.inputs[0]
    depth, kind = attr_int(node.attrs, "depth"), s.graph.type_of(source)
    if max(kind.hi, depth - kind.lo) > GATE_REACH:
        _hold_tokens(s, node, source, depth)
    one, over, under = _compare(s, node, source, depth, s.own_grid(ref))
    unit = 1 << PROBABILITY_EXPONENT
    return add((unit, one), (-unit, over), (-unit, under))


def choose_rows(s: TileBuilder, node: Node, numbers: Ref, count: int) -> TiledValue:
    """A row for each number: 1 at its place, else 0; all are held to 0 .. count - 1.

    The law takes a number beyond for the nearest; what trains refuses it, and so do statements.
    """
    key = (numbers, count)
    if key not in s.hot:
        kind = s.graph.type_of(numbers)
        if kind.lo < 0 or kind.hi >= count:
            _hold_tokens(s, node, numbers, count)
        grid = s.grid((kind.size, count))
        one, over, under = _compare(s, node, numbers, count, grid)
        s.hot[key] = add((1, one), (-1, over), (-1, under))
    return s.hot[key]


def _hold_tokens(s: TileBuilder, node: Node, numbers: Ref, count: int) -> None:
    hold(s, f"{node.name}/tokens", node, s.value(numbers), 0, count - 1)


def _compare(
    s: TileBuilder, node: Node, source: Ref, depth: int, grid: Grid
) -> tuple[TiledValue, TiledValue, TiledValue]:
    """(1, [token > place], [token < place]) of each token and each place."""
    x = s.value(source)
    token = spread(s, f"{node.name}/token", node, x, lambda flat: flat // depth, grid)

    def compute_place(facts: StepFacts, block: int) -> Array:
        tile = np.zeros(s.side**2, dtype=np.int64)
        within, flat = grid.elements(block)
        tile[within] = flat % depth
        return tile

    place = s.public(f"{node.name}/place", grid, compute_place)
    one = make_one(s, node.name, grid)
    over = gate(s, f"{node.name}/over", node, add((1, token), (-1, place)), one)
    under = gate(s, f"{node.name}/under", node, add((1, place), (-1, token)), one)
    return one, over, under


def _emit_normalize(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    x = s.value(node.inputs[0])
    multiplier, offset, shift = (
        attr_int(node.attrs, name) for name in ("multiplier", "offset", "shift")
    )
    return rescale(s, node.name, node, x, "i16", multiplier, offset, shift, ref)


EMITTERS: Final[Emitters] = {
    "state": _emit_state,
    "next_state": _emit_nothing,
    "gather_samples": _emit_gather,
    "one_hot": _emit_one_hot,
    "normalize": _emit_normalize,
}
