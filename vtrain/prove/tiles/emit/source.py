"""What a step begins with: states, samples, and their preparation."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.commit.kzg_layout import COUNTER, batch_matrix
from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int, attr_text
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_few
from vtrain.prove.tiles.circuits import GATE_REACH, range_limbs, range_parameters
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.grid import Array, TensorMap, cut_block
from vtrain.prove.tiles.statements import (
    StepFacts,
    Tile,
    TiledTensor,
    TiledValue,
    TileStatement,
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
    """What no node makes is of its type, and zero where it ends."""
    kind = s.graph.type_of(ref)
    limbs = range_limbs(kind.lo, kind.hi)

    def make(block: int, facts: StepFacts) -> TileStatement:
        rows, columns = x.grid.extent(block)
        parameters = range_parameters(s.side, lo=kind.lo, hi=kind.hi, rows=rows, columns=columns)
        return TileStatement(node.name, f"range-{limbs}", {"x": x.at(block)}, parameters)

    s.family(x.grid.count, make)


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
            lambda contents, block: cut_block(contents.output(ref.node), grid, block),
        )
    )
    s.counts["batch"] += grid.count
    require_few(node.name, s.counts["batch"], MAX_COMMITMENTS, "tiles of the batch")
    value = TiledValue(grid, lambda block: ((1, Tile(number, block)),))
    hold_range(s, ref, node, value)
    return value


def _emit_one_hot(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
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
    over = gate(s, f"{node.name}/over", node, add((1, token), (-1, place)), one)
    under = gate(s, f"{node.name}/under", node, add((1, place), (-1, token)), one)
    unit = 1 << PROBABILITY_EXPONENT
    return add((unit, one), (-unit, over), (-unit, under))


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
