"""Sums, differences and products, element by element."""

from __future__ import annotations

from typing import Final

from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.statements import StepFacts, TiledValue, TileStatement, add
from vtrain.wire.graph import Node, Ref


def _emit_add(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    a = s.value(node.inputs[0])
    b = s.value_in(node.inputs[1], a.grid)
    sign = 1 if node.op == "add" else -1
    shift_a, shift_b = (attr_int(node.attrs, name) for name in ("shift_a", "shift_b"))
    return add((1 << shift_a, a), (sign << shift_b, b))


def _emit_mul(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    a = s.value(node.inputs[0])
    b = s.value_in(node.inputs[1], a.grid)
    y = s.commit(ref, a.grid)

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"a": a.at(block), "b": b.at(block), "y": y.at(block)}
        return TileStatement(node.name, "mul", given)

    s.family(a.grid.count, make)
    return y


EMITTERS: Final[Emitters] = {
    "add": _emit_add,
    "sub": _emit_add,
    "mul": _emit_mul,
}
