"""Which places attend to which, by public spans, and the gradient of a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.emit.integers import make_one, multiply, product, spread, total_rows
from vtrain.prove.tiles.emit.softmax import emit_masked_exponentials
from vtrain.prove.tiles.grid import I64, Grid
from vtrain.prove.tiles.statements import TiledValue, add
from vtrain.spec.number import PROBABILITY_EXPONENT
from vtrain.wire.graph import Node, Ref


@dataclass(frozen=True, eq=False)
class MaskedRows:
    """Rows [n, columns] of which ``spans`` [m, 2], the node ``source``, say which elements count.

    ``inside`` is 0 elsewhere, where the node's output is a fill; with ``is_lowest`` that is above
    no element, and each row has one that counts.
    """

    source: Ref
    spans: I64
    inside: TiledValue
    is_lowest: bool

    def cut_mask(self, block: int) -> I64:
        """1 where a block of ``inside`` has an element that counts."""
        return cut_mask(self.spans, self.inside.grid, block)

    def cut_begins(self, block: int) -> I64:
        """The first element that counts of each row of a block."""
        begins = np.zeros(self.inside.grid.side, dtype=np.int64)
        rows, _ = self.inside.grid.extent(block)
        first = block // self.inside.grid.across * self.inside.grid.side
        begins[:rows] = self.spans[(first + np.arange(rows)) % len(self.spans), 0]
        return begins


def cut_mask(spans: I64, grid: Grid, block: int) -> I64:
    """1 for each element of a block that counts, else 0."""
    tile = np.zeros(grid.side**2, dtype=np.int64)
    within, flat = grid.elements(block)
    row, column = np.divmod(flat, grid.columns)
    begin, end = spans[row % len(spans)].T
    tile[within] = (begin <= column) & (column < end)
    return tile


def _emit_keep_span(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The elements times a public mask, and ``fill`` times the opposite one."""
    source, spans_of = node.inputs
    origin = s.graph.nodes[spans_of.node]
    if origin.op != "causal_spans":
        raise CircuitError(
            f"its spans are of {origin.op}, and those of causal_spans alone are public",
            where=node.name,
        )
    fill = attr_int(node.attrs, "fill")
    kept = s.graph.nodes[source.node]
    if kept.op == "exp2_diff" and kept.inputs[0] in s.masked:
        return emit_masked_exponentials(s, ref, node)
    spans = np.asarray(TABLE["causal_spans"].law(origin.attrs, []), dtype=np.int64)
    x, grid = s.standard(source), s.own_grid(source)
    mask = s.public(f"{node.name}/kept", grid, lambda facts, block: cut_mask(spans, grid, block))
    inside = product(s, f"{node.name}/inside", node, x, mask)
    is_lowest = fill <= s.graph.type_of(source).lo
    is_lowest = is_lowest and bool((spans[:, 0] < np.minimum(spans[:, 1], grid.columns)).all())
    s.masked[ref] = MaskedRows(spans_of, spans, inside, is_lowest)
    one = make_one(s, node.name, grid)
    return add((1, inside), (fill, one), (-fill, mask))


def _emit_softmax_grad(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """p (2^14 grad - the sum of the products of the row)."""
    p = s.value(node.inputs[0])
    grad = s.value_in(node.inputs[1], p.grid)
    rows, width = s.graph.type_of(ref).shape
    products = product(s, f"{node.name}/products", node, p, grad)
    grid = s.packed_grid((rows,))
    totals = total_rows(s, f"{node.name}/totals", node, products, rows, width, grid)
    shares = spread(s, f"{node.name}/spread", node, totals, lambda flat: flat // width, p.grid)
    y = s.commit(ref, p.grid)
    multiply(s, node, p, add((1 << PROBABILITY_EXPONENT, grad), (-1, shares)), y)
    return y


EMITTERS: Final[Emitters] = {
    "keep_span": _emit_keep_span,
    "softmax_grad": _emit_softmax_grad,
}
