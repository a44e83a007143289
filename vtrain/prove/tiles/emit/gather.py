"""Rows of a table by their numbers, and sums of rows that go back there: products with rows of
zeros and a one.

The table, or the rows, may be of any type: a product with such a row is exact in the field.
"""

from __future__ import annotations

from typing import Final

from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.emit.linear import multiply_matrices, multiply_wide
from vtrain.prove.tiles.emit.source import choose_rows
from vtrain.prove.tiles.statements import TiledValue
from vtrain.wire.graph import Node, Ref


def _emit_gather_rows(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    table, numbers = node.inputs
    hot = choose_rows(s, node, numbers, s.graph.type_of(table).shape[0])
    x, name = s.standard(table), f"{node.name}/parts"
    return multiply_matrices(
        s, node.name, name, hot, x, s.own_grid(ref), compute_product=multiply_wide
    )


def _emit_scatter_add(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    source, numbers = node.inputs
    hot = choose_rows(s, node, numbers, attr_int(node.attrs, "rows"))
    x, name = s.standard(source), f"{node.name}/parts"
    return multiply_matrices(
        s, node.name, name, hot, x, s.own_grid(ref), ta=True, compute_product=multiply_wide
    )


EMITTERS: Final[Emitters] = {
    "gather_rows": _emit_gather_rows,
    "scatter_add": _emit_scatter_add,
}
