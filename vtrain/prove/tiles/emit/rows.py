"""Rows that the circuit of a softmax does not take, operator by operator.

That circuit has room for 128 columns, and its mask is public.  Rows with more columns, and rows of
which hidden spans leave elements out, are stated by products, ranges, gates and look-ups instead: a
dozen statements for each block, of any number of columns.  Vectors with a value for each row stand
in one row of blocks; a product with ones spreads them over columns, and adds columns up.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops.softmax import FINE_EXPONENT
from vtrain.prove.circuit.gadgets import LAST_GAP, list_exponentials
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles.builder import TileBuilder
from vtrain.prove.tiles.circuits import table_parameters
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.integers import (
    Masks,
    cap,
    hold,
    link_quotient,
    make_masks,
    make_one,
    multiply,
    product,
    quotient_of,
)
from vtrain.prove.tiles.emit.linear import multiply_matrices, multiply_wide
from vtrain.prove.tiles.emit.lookup import point_key, state_look_up
from vtrain.prove.tiles.emit.source import choose_rows
from vtrain.prove.tiles.grid import Array, Grid
from vtrain.prove.tiles.statements import TileContents, TiledValue, add
from vtrain.spec.number import (
    EXP2_EXPONENT,
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    PROBABILITY_EXPONENT,
    bit_length,
    log2_table,
)
from vtrain.wire.graph import Node, Ref

MOST_COLUMNS: Final = 128
"""Columns that the circuit of a softmax has room for."""
NEAR: Final = 10 << LOG2_EXPONENT
"""The table of exponentials is longer than that of the circuit ``look-up``: it ends here, and what
is further away takes something off its last entry."""
MOST_BITS: Final = 62
"""Powers of two that a sum of exponentials may lie between."""


def is_apart(s: TileBuilder, ref: Ref) -> bool:
    """Whether rows, or what is made of them, are stated operator by operator."""
    node = s.graph.nodes[ref.node]
    if s.graph.type_of(ref).shape[-1] > MOST_COLUMNS:
        return True
    while node.op in ("exp2_diff", "divide"):
        node = s.graph.nodes[node.inputs[0].node]
    return node.op == "keep_span" and not has_public_spans(s, node)


def has_public_spans(s: TileBuilder, node: Node) -> bool:
    """Whether the spans of a ``keep_span`` follow from places alone."""
    return s.graph.nodes[node.inputs[1].node].op == "causal_spans"


# --- vectors and rows


def _make_row(s: TileBuilder, name: str, columns: int) -> TiledValue:
    """A public row of ones."""
    return make_one(s, f"{name}/row", s.grid((1, columns)))


def _spread(s: TileBuilder, name: str, node: Node, x: TiledValue, grid: Grid) -> TiledValue:
    """The value of each row, in all columns of it."""
    row = _make_row(s, name, grid.columns)
    return multiply_matrices(
        s, node.name, f"{name}/across", x, row, grid, ta=True, compute_product=multiply_wide
    )


def _add_up(s: TileBuilder, name: str, node: Node, x: TiledValue) -> TiledValue:
    """The sum of each row."""
    row, grid = _make_row(s, name, x.grid.columns), s.grid((1, x.grid.rows))
    return multiply_matrices(
        s, node.name, f"{name}/total", row, x, grid, tb=True, compute_product=multiply_wide
    )


def _spread_maximum(
    s: TileBuilder, node: Node, ref: Ref, grid: Grid, x: TiledValue | None = None
) -> TiledValue:
    """Those of the node ``ref``, whose value may be ``x`` and not be there yet."""
    if (ref, grid) not in s.maxima:
        values = s.standard(ref) if x is None else x
        s.maxima[ref, grid] = _spread(s, f"{node.name}/maximum", node, values, grid)
    return s.maxima[ref, grid]


def _make_positive(s: TileBuilder, node: Node, ref: Ref) -> TiledValue:
    """max(sum, 1): the sum and d, which is 0 or 1, with d times the sum 0 and both at least 1."""
    if ref not in s.positive:
        x, kind = s.standard(ref), s.graph.type_of(ref)
        if kind.lo < 0:
            raise CircuitError(
                f"divides by {s.graph.nodes[ref.node].name}, whose range goes below 0: only sums "
                "of exponentials are divided by",
                where=node.name,
            )
        name = f"{node.name}/sum"
        one = make_one(s, name, x.grid)

        def compute(contents: TileContents, block: int) -> Array:
            empty = np.asarray(contents.combine(x.at(block))) == 0
            return np.where(empty, contents.combine(one.at(block)), 0)

        empty = s.tensor(f"{name}/empty", x.grid, compute)
        hold(s, f"{name}/empty", node, empty, 0, 1)
        multiply(s, node, empty, x, None)
        hold(s, name, node, add((1, x), (1, empty), (-1, one)), 0, max(kind.hi - 1, 0))
        s.positive[ref] = add((1, x), (1, empty))
    return s.positive[ref]


def _spread_divisor(s: TileBuilder, node: Node, ref: Ref, grid: Grid) -> TiledValue:
    if (ref, grid) not in s.divisors:
        x = _make_positive(s, node, ref)
        s.divisors[ref, grid] = _spread(s, f"{node.name}/sum", node, x, grid)
    return s.divisors[ref, grid]


def _largest(s: TileBuilder, ref: Ref) -> int:
    """Of max(sum, 1)."""
    return max(s.graph.type_of(ref).hi, 1)


def _choose(s: TileBuilder, node: Node, labels: Ref, columns: int) -> TiledValue:
    """A 1 in each row, at its label."""
    if (labels, columns) not in s.hot:
        s.require_room(node.name, s.graph.type_of(labels).size * columns, 1)
    return choose_rows(s, node, labels, columns)


def _read_table(
    s: TileBuilder,
    name: str,
    node: Node,
    x: TiledValue,
    first: int,
    entries: Ints,
    masks: Masks,
) -> TiledValue:
    """The entries at x, of a table whose keys begin at ``first``."""
    key = point_key(x, masks)

    def compute(contents: TileContents, block: int) -> Array:
        at = np.asarray(contents.combine(key.at(block))) - first
        inside = (at >= 0) & (at < len(entries))
        return np.where(inside, np.asarray(entries)[np.clip(at, 0, len(entries) - 1)], 0)

    y = s.tensor(name, x.grid, compute)
    state_look_up(s, node, key, y, table_parameters(first, entries))
    return y


# --- operators


def emit_row_max(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """No element of a row is above it, and one at least is not below it."""
    (source,) = node.inputs
    z, kind, rows = s.standard(source), s.graph.type_of(source), s.own_grid(ref)
    y = s.commit(ref, rows)
    hold(s, node.name, node, y, min(kind.lo, 0), max(kind.hi, 0))
    gap = add((1, _spread_maximum(s, node, ref, z.grid, y)), (-1, z))
    one = make_one(s, node.name, z.grid)
    lower = _make_capped(s, f"{node.name}/lower", node, gap, 1, kind.hi - kind.lo, one)
    total = _add_up(s, f"{node.name}/highest", node, add((1, one), (-1, lower)))
    once = make_one(s, f"{node.name}/highest", rows)
    hold(s, f"{node.name}/highest", node, add((1, total), (-1, once)), 0, kind.shape[1] - 1)
    return y


def _make_capped(
    s: TileBuilder, name: str, node: Node, x: TiledValue, bound: int, most: int, one: TiledValue
) -> TiledValue:
    """min(x, bound) as the new tensor ``name``; that x is at least 0 is stated too."""

    def compute(contents: TileContents, block: int) -> Array:
        return np.asarray(np.minimum(contents.combine(x.at(block)), bound))

    y = s.tensor(name, x.grid, compute)
    cap(s, name, node, x, y, bound, most, one)
    return y


def emit_exponentials(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The entries of two tables: up to a gap of ``NEAR``, and what is off the last of them."""
    source, above = node.inputs
    z = s.standard(source)
    maximum = _spread_maximum(s, node, above, z.grid)
    gap = add((1, maximum), (-1, z))
    most = max(s.graph.type_of(above).hi - s.graph.type_of(source).lo, 0)
    masks = make_masks(s, node.name, z.grid)
    cut = _make_capped(s, f"{node.name}/cut", node, gap, LAST_GAP, most, masks.one)
    beyond = add((1, cut), (-NEAR, masks.one))
    far = gate(s, f"{node.name}/beyond", node, beyond, beyond)
    table = list_exponentials()
    near = add((1, cut), (-1, far))
    first = _read_table(s, f"{node.name}/near", node, near, 0, table[: NEAR + 1], masks)
    fall = table[NEAR:] - table[NEAR]
    return add((1, first), (1, _read_table(s, f"{node.name}/far", node, far, 0, fall, masks)))


def emit_row_sum(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """A product with ones."""
    return _add_up(s, node.name, node, s.standard(node.inputs[0]))


def _emit_share(s: TileBuilder, node: Node, e: Ref, total: Ref, y: TiledValue, bits: int) -> None:
    """y = floor((e 2^bits + floor(S / 2)) / S) = floor((e 2^(bits + 1) + S) / 2 S): half an odd S
    is an integer and 1/2."""
    x = s.standard(e)
    divisor = _spread_divisor(s, node, total, x.grid)
    hold(s, f"{node.name}/share", node, y, 0, 1 << bits)
    above, below = add((2 << bits, x), (1, divisor)), add((2, divisor))
    masks = make_masks(s, node.name, x.grid)
    link_quotient(s, node.name, node, above, below, y, masks, 2 * _largest(s, total))


def emit_divide(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """Shares of 2^14."""
    e, total = node.inputs
    y = s.commit(ref, s.own_grid(ref))
    _emit_share(s, node, e, total, y, PROBABILITY_EXPONENT)
    return y


def emit_sub_one_hot(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """2^14 less at the label."""
    p, labels = node.inputs
    hot = _choose(s, node, labels, s.graph.type_of(p).shape[1])
    return add((1, s.standard(p)), (-(1 << PROBABILITY_EXPONENT), hot))


def emit_logit_grad(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """Shares of 2^29, less one at the label."""
    e, total, labels = node.inputs
    hot = _choose(s, node, labels, s.graph.type_of(e).shape[1])
    x = s.standard(e)
    divisor = _spread_divisor(s, node, total, x.grid)
    above, below = add((2 << FINE_EXPONENT, x), (1, divisor)), add((2, divisor))
    y = s.tensor(f"{node.name}/share", x.grid, quotient_of(above, below))
    _emit_share(s, node, e, total, y, FINE_EXPONENT)
    return add((1, y), (-(1 << FINE_EXPONENT), hot))


def emit_cross_entropy(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """(max - z[label]) 2^6 + log2(S) - 16 2^16, with log2(S) of n = bitlen(S) - 1 and of the ten
    bits after the leading one: 2^n <= S < 2^(n + 1), and floor(2^10 S / 2^n)."""
    source, maximum, total, labels = node.inputs
    z, top = s.standard(source), s.standard(maximum)
    hot = _choose(s, node, labels, s.graph.type_of(source).shape[1])
    chosen = _add_up(
        s, f"{node.name}/chosen", node, product(s, f"{node.name}/chosen", node, hot, z)
    )
    x, most = _make_positive(s, node, total), _largest(s, total)
    masks = make_masks(s, node.name, x.grid)

    def count_bits(contents: TileContents, block: int) -> Array:
        values = np.asarray(contents.combine(x.at(block)), dtype=np.int64)
        return bit_length(np.maximum(values, 1)) - 1

    length = s.tensor(f"{node.name}/length", x.grid, count_bits)
    powers = np.asarray([1 << n for n in range(MOST_BITS)], dtype=np.int64)
    power = _read_table(s, f"{node.name}/power", node, length, 0, powers, masks)
    hold(s, f"{node.name}/least", node, add((1, x), (-1, power)), 0, most)
    room = add((2, power), (-1, masks.one), (-1, x))
    hold(s, f"{node.name}/room", node, room, 0, most)
    above = add((1 << LOG2_EXPONENT, x))
    lead = s.tensor(f"{node.name}/lead", x.grid, quotient_of(above, power))
    link_quotient(s, f"{node.name}/lead", node, above, power, lead, masks, most)
    first, logs = 1 << LOG2_EXPONENT, log2_table()
    log = _read_table(s, f"{node.name}/log", node, lead, first, logs, masks)
    gap = 1 << LOSS_EXPONENT - LOG2_EXPONENT
    return add(
        (gap, top),
        (-gap, chosen),
        (1 << LOSS_EXPONENT, length),
        (1, log),
        (-(EXP2_EXPONENT << LOSS_EXPONENT), masks.one),
    )
