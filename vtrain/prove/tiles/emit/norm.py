"""Parts of normalisation: deviations, sums of products, inverse roots, scales."""

from __future__ import annotations

from math import isqrt
from typing import Final

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.emit.integers import (
    hold,
    link_quotient,
    make_masks,
    multiply,
    product,
    root,
    spread,
    total_rows,
)
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.statements import TiledValue, add
from vtrain.wire.graph import Node, Ref


def _emit_center(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """rs(d x - the sum of the row, shift), which never saturates."""
    x, shape = s.value(node.inputs[0]), s.graph.type_of(ref).shape
    width = shape[-1]
    totals = total_rows(
        s, f"{node.name}/totals", node, x, x.grid.size // width, width, s.packed_grid(shape[:-1])
    )
    spread_out = spread(s, f"{node.name}/spread", node, totals, lambda flat: flat // width, x.grid)
    deviations = add((width, x), (-1, spread_out))
    return rescale(s, node.name, node, deviations, "i32", 1, 0, attr_int(node.attrs, "shift"), ref)


def _emit_row_dot(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    a = s.value(node.inputs[0])
    b = s.value_in(node.inputs[1], a.grid)
    shape = s.graph.type_of(node.inputs[0]).shape
    products = product(s, f"{node.name}/products", node, a, b)
    grid = s.packed_grid(s.graph.type_of(ref).shape)
    rows, width = a.grid.size // shape[-1], shape[-1]
    return total_rows(s, f"{node.name}/parts", node, products, rows, width, grid)


def require_no_negative(s: TileBuilder, node: Node, ref: Ref) -> None:
    """CircuitError unless a value is at least 0: by its type, or as a sum of squares."""
    source = s.graph.nodes[ref.node]
    is_squares = source.op == "row_dot" and source.inputs[0] == source.inputs[1]
    if s.graph.type_of(ref).lo < 0 and not is_squares:
        raise CircuitError(
            f"may be negative, and {node.name} takes its root: only a value whose range begins at "
            "0, or the row_dot of a value with itself, has one in a circuit",
            where=source.name,
        )


def _emit_inverse_root(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """floor(numerator / q), q the root of 4^lift (s + epsilon)."""
    (source,) = node.inputs
    require_no_negative(s, node, source)
    x = s.value(source)
    lift, epsilon, numerator = (
        attr_int(node.attrs, name) for name in ("lift", "epsilon", "numerator")
    )
    masks = make_masks(s, node.name, x.grid)
    radicand = add((1 << 2 * lift, x), (epsilon << 2 * lift, masks.one))
    most = max(s.graph.type_of(source).hi, 0) + epsilon << 2 * lift
    q = root(s, f"{node.name}/root", node, radicand, most)
    whole = add((numerator, masks.one))
    y = s.commit(ref, x.grid)
    hold(s, node.name, node, y, 0, max(s.graph.type_of(ref).hi, 0))
    link_quotient(s, node.name, node, whole, q, y, masks, isqrt(most))
    return y


def _emit_scale(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """``row_scale`` and ``column_scale``: each element times that of its row, or its column."""
    x, factor = (s.value(item) for item in node.inputs)
    width, by_rows = s.graph.type_of(ref).shape[-1], node.op == "row_scale"
    factors = spread(
        s,
        f"{node.name}/spread",
        node,
        factor,
        lambda flat: flat // width if by_rows else flat % width,
        x.grid,
    )
    y = s.commit(ref, x.grid)
    multiply(s, node, x, factors, y)
    return y


EMITTERS: Final[Emitters] = {
    "center": _emit_center,
    "row_dot": _emit_row_dot,
    "inverse_root": _emit_inverse_root,
    "row_scale": _emit_scale,
    "column_scale": _emit_scale,
}
