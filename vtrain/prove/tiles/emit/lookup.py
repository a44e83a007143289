"""Functions by table: points of a grid, held to its ends, and the entries there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int, attr_text
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.circuits import (
    GATE_REACH,
    LOOK_UP,
    LOOK_UP_PADDING,
    look_up_parameters,
)
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.integers import Masks, make_masks
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.statements import StepFacts, TiledValue, TileStatement, add
from vtrain.spec.curves import CURVES, whole_curve
from vtrain.spec.number import rs_int
from vtrain.wire.graph import Node, Ref


def point_key(x: TiledValue, masks: Masks) -> TiledValue:
    """What is looked up for the points x: beyond all of them where a block has no value."""
    return add((1, x), (LOOK_UP_PADDING, masks.outside))


def state_look_up(
    s: TileBuilder, node: Node, x: TiledValue, y: TiledValue, parameters: Mapping[str, Ints]
) -> None:
    """y is the entry whose key is x."""

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"x": x.at(block), "y": y.at(block)}
        return TileStatement(node.name, LOOK_UP, given, parameters)

    s.family(x.grid.count, make)


def _emit_look_up(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The entry at min(max(rs(x, shift), -last), last)."""
    (source,) = node.inputs
    x, kind = s.value(source), s.graph.type_of(source)
    table, shift = attr_text(node.attrs, "table"), attr_int(node.attrs, "shift")
    last = CURVES[table].last
    least, most = (rs_int(end, shift) for end in (kind.lo, kind.hi))
    if max(-least, most) + last > GATE_REACH:
        raise CircuitError(
            f"may look up a point more than {GATE_REACH} beyond the table: rescale its input to a "
            "smaller range",
            where=node.name,
        )
    if shift > 0:
        point = rescale(s, f"{node.name}/point", node, x, "i16", 1, 0, shift)
    else:
        point = add((1 << -shift, x))
    masks = make_masks(s, node.name, x.grid)
    for name, sign, end in (("above", 1, most), ("below", -1, -least)):
        if end > last:
            beyond = add((sign, point), (-last, masks.one))
            point = add((1, point), (-sign, gate(s, f"{node.name}/{name}", node, beyond, beyond)))
    y = s.commit(ref, x.grid)
    state_look_up(s, node, point_key(point, masks), y, look_up_parameters(whole_curve(table)))
    return y


EMITTERS: Final[Emitters] = {"look_up": _emit_look_up}
