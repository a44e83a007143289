"""relu and its gradient: gates."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.circuits import GATE_REACH
from vtrain.prove.tiles.grid import Array
from vtrain.prove.tiles.statements import StepFacts, TileContents, TiledValue, TileStatement
from vtrain.wire.graph import Node, Ref


def gate(
    s: TileBuilder, name: str, node: Node, x: TiledValue, g: TiledValue, ref: Ref | None = None
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


def _emit_relu(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    require_range(s, node, node.inputs[0], GATE_REACH)
    x = s.value(node.inputs[0])
    return gate(s, node.name, node, x, x, ref)


def _emit_relu_grad(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    require_range(s, node, node.inputs[1], GATE_REACH)
    out = s.value(node.inputs[1])
    return gate(s, node.name, node, out, s.value_in(node.inputs[0], out.grid), ref)


EMITTERS: Final[Emitters] = {
    "relu": _emit_relu,
    "relu_grad": _emit_relu_grad,
}
