"""Which places attend to which, and the gradient of a softmax.

Spans by places are public, and so are their masks; those by documents and padding follow from
hidden ids, by gates, and so do theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.ops.attention import NO_ID
from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder, wanted_grid
from vtrain.prove.tiles.circuits import GATE_REACH
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.integers import (
    hold,
    make_one,
    multiply,
    product,
    spread,
    total_rows,
)
from vtrain.prove.tiles.emit.rows import has_public_spans, is_apart
from vtrain.prove.tiles.emit.softmax import emit_masked_exponentials
from vtrain.prove.tiles.grid import I64, Grid, TensorMap
from vtrain.prove.tiles.statements import StepFacts, TiledValue, add
from vtrain.spec.number import PROBABILITY_EXPONENT
from vtrain.wire.graph import Node, Ref

_MOST_ID: Final = 1 << 29
"""Ids and places that a gate compares: their differences are within what it takes."""


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
    """The elements times a mask, and ``fill`` times the opposite one."""
    source, spans_of = node.inputs
    origin = s.graph.nodes[spans_of.node]
    fill = attr_int(node.attrs, "fill")
    if not has_public_spans(s, node):
        x = s.standard(source)
        mask, one = _make_mask(s, node, spans_of, x.grid)
        inside = product(s, f"{node.name}/inside", node, x, mask)
        return add((1, inside), (fill, one), (-fill, mask))
    kept = s.graph.nodes[source.node]
    if kept.op == "exp2_diff" and kept.inputs[0] in s.masked:
        return emit_masked_exponentials(s, ref, node)
    spans = np.asarray(TABLE["causal_spans"].law(origin.attrs, []), dtype=np.int64)
    x, grid = s.standard(source), s.own_grid(source)
    mask = s.public(f"{node.name}/kept", grid, lambda facts, block: cut_mask(spans, grid, block))
    inside = product(s, f"{node.name}/inside", node, x, mask)
    if is_apart(s, ref):
        return add((1, inside), (fill, make_one(s, node.name, grid)), (-fill, mask))
    is_lowest = fill <= s.graph.type_of(source).lo
    is_lowest = is_lowest and bool((spans[:, 0] < np.minimum(spans[:, 1], grid.columns)).all())
    s.masked[ref] = MaskedRows(spans_of, spans, inside, is_lowest)
    one = make_one(s, node.name, grid)
    return add((1, inside), (fill, one), (-fill, mask))


def _make_mask(s: TileBuilder, node: Node, spans: Ref, grid: Grid) -> tuple[TiledValue, TiledValue]:
    """A hidden mask, whose rows have the spans in turn, and ones."""
    if (spans, grid) not in s.kept:
        kind = s.graph.type_of(spans)
        reach = max(-kind.lo, kind.hi) + grid.columns
        if reach > GATE_REACH:
            raise CircuitError(
                f"has spans that may be {reach} columns away by their range, and the circuit takes "
                f"{GATE_REACH} at most: give them by causal_spans or token_spans",
                where=node.name,
            )
        x, count = s.value(spans), kind.shape[0]

        def find(side: int) -> Callable[[I64], I64]:
            return lambda flat: 2 * (flat // grid.columns % count) + side

        begin, end = (
            spread(s, f"{node.name}/{what}", node, x, find(side), grid)
            for side, what in enumerate(("begin", "end"))
        )
        place = _make_places(s, f"{node.name}/place", grid, lambda column: column)
        one = make_one(s, node.name, grid)
        begun = add((1, place), (1, one), (-1, begin))
        after = gate(s, f"{node.name}/begun", node, begun, one)
        before = gate(s, f"{node.name}/open", node, add((1, end), (-1, place)), one)
        s.kept[spans, grid] = product(s, f"{node.name}/kept", node, after, before), one
    return s.kept[spans, grid]


def _make_places(s: TileBuilder, name: str, grid: Grid, find: Callable[[I64], I64]) -> TiledValue:
    """Public tiles, of what ``find`` makes of the number of each column."""

    def compute(facts: StepFacts, block: int) -> I64:
        tile = np.zeros(grid.side**2, dtype=np.int64)
        within, flat = grid.elements(block)
        tile[within] = find(flat % grid.columns)
        return tile

    return s.public(name, grid, compute)


@dataclass(frozen=True)
class _Places:
    """The places of rows of ids, for what is made of each."""

    s: TileBuilder
    node: Node
    grid: Grid

    def public(self, what: str, find: Callable[[I64], I64]) -> TiledValue:
        return _make_places(self.s, f"{self.node.name}/{what}", self.grid, find)

    def image(self, what: str, x: TiledValue, distance: int, *, around: bool = False) -> TiledValue:
        """Each place has what is so many places behind it in its row, or 0; or what is there when
        the row is a ring."""
        columns = self.grid.columns

        def terms(flat: I64) -> tuple[I64, I64]:
            row, place = np.divmod(flat, columns)
            source = place + distance
            if around:
                return np.arange(flat.size), row * columns + source % columns
            inside = (source >= 0) & (source < columns)
            return np.flatnonzero(inside), (row * columns + source)[inside]

        relation = TensorMap(x.grid, self.grid, terms)
        return self.s.image(f"{self.node.name}/{what}", self.node.name, relation, x)

    def maximum(self, what: str, a: TiledValue, b: TiledValue) -> TiledValue:
        more = add((1, b), (-1, a))
        return add((1, a), (1, gate(self.s, f"{self.node.name}/{what}", self.node, more, more)))

    def minimum(self, what: str, a: TiledValue, b: TiledValue) -> TiledValue:
        more = add((1, a), (-1, b))
        return add((1, a), (-1, gate(self.s, f"{self.node.name}/{what}", self.node, more, more)))

    def running(
        self, what: str, x: TiledValue, direction: int, *, around: bool = False
    ) -> TiledValue:
        """The greatest of what stands at each place and in one direction from it, by doubling how
        far that looks; x is at least 0."""
        distance = 1
        while distance < self.grid.columns:
            name = f"{what} {distance}"
            other = self.image(name, x, direction * distance, around=around)
            x = self.maximum(f"{name}/more", x, other)
            distance *= 2
        return x


def _emit_token_spans(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The greatest of three begins and the least of three ends: those of a document, those of the
    row without its padding, and those of the window.

    Each is a number above 0 where an id is the one that ends a document, or is no padding, and the
    greatest of these before a place, from it on, or in the row.
    """
    (source,) = node.inputs
    end, padding, before, after = (
        attr_int(node.attrs, name) for name in ("end_of_text", "padding", "before", "after")
    )
    kind, grid = s.graph.type_of(source), s.own_grid(source)
    count, marks = grid.columns, [id for id in (end, padding) if id != NO_ID]
    if max([count, *marks]) > _MOST_ID:
        raise CircuitError(
            f"has more than {_MOST_ID} places, or looks for an id above that: number the ids anew",
            where=node.name,
        )
    if not marks and kind.hi >= NO_ID:
        raise CircuitError(
            f"reads ids that may be {NO_ID}, which would count as padding: give them as i32",
            where=node.name,
        )
    x = s.standard(source)
    if marks and (kind.lo < 0 or kind.hi > _MOST_ID):
        hold(s, f"{node.name}/tokens", node, x, 0, _MOST_ID)
    one, at = make_one(s, node.name, grid), _Places(s, node, grid)

    def compare(what: str, id: int, weight: TiledValue) -> TiledValue:
        """The weight, where a token is not this id."""
        more = add((1, x), (-id, one))
        over = gate(s, f"{node.name}/{what}/over", node, more, weight)
        less = add((id, one), (-1, x))
        return add((1, over), (1, gate(s, f"{node.name}/{what}/under", node, less, weight)))

    begin = at.public("nearest", lambda place: np.maximum(place + 1 - before, 0))
    stop = at.public("furthest", lambda place: np.minimum(place + after, count))
    if marks:
        up = at.public("up", lambda place: place + 1)
        down = at.public("down", lambda place: count - 1 - place)
    if end != NO_ID:
        ends = add((1, up), (-1, compare("ended", end, up)))
        start = at.running("start", at.image("start", ends, -1), -1)
        begin = at.maximum("begin/document", begin, start)
        ends = add((1, down), (-1, compare("ending", end, down)))
        left = at.running("left", ends, 1)
        stop = at.minimum("end/document", stop, add((count, one), (-1, left)))
    if padding != NO_ID:
        tokens = compare("first", padding, add((1, down), (1, one)))
        first = at.running("first", tokens, 1, around=True)
        begin = at.maximum("begin/padding", begin, add((count, one), (-1, first)))
        last = at.running("last", compare("last", padding, up), 1, around=True)
        stop = at.minimum("end/padding", stop, last)
    target, images = wanted_grid(s, ref), []
    for side, value in enumerate((begin, stop)):

        def terms(flat: I64, side: int = side) -> tuple[I64, I64]:
            mine = np.flatnonzero(flat % 2 == side)
            return mine, flat[mine] // 2

        name = f"{node.name}/{('begin', 'end')[side]}"
        images.append((1, s.image(name, node.name, TensorMap(grid, target, terms), value)))
    return add(*images)


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
    "token_spans": _emit_token_spans,
    "softmax_grad": _emit_softmax_grad,
}
