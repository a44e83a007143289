"""Norms of rows, and their gradient (docs/adr/0020-norms.md); statistics of a batch
(docs/adr/0030-batch-norm.md).

u is the row itself (RMSNorm) or d times its deviations from the mean (LayerNorm), so that nothing
is divided by d.  With u in units of 2^-f and e the epsilon in the units of the sum below,

    s = sum of u^2                      R = floor(N / floor(sqrt((s + e) 4^lift))),  N = sqrt(d) 2^k
    y = sat16(rs(u R, .))               e = d epsilon 2^2f, and d^3 epsilon 2^2f of a LayerNorm

The gradient of u, given that of y, is (g - y mean(g y)) R.  It goes to x as it is, or through the
gradient of the deviations, which is their own formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vtrain.errors import RangeError
from vtrain.graph.builder import Block, GraphBuilder
from vtrain.graph.update import floor_log2, round_half_up
from vtrain.ops.base import Array, Builder, attr_int
from vtrain.ops.norm import MAX_LIFT, center_shift
from vtrain.spec.number import ACCUMULATOR_LIMIT, MASTER_EXPONENT, rs
from vtrain.wire.graph import Ref, StepGraph, TensorType

_DEVIATION_BITS = 19
"""Bits of a deviation: two more than its row's, so that rounding it costs less than that did."""
_OPERAND = 2**15
"""No int16 is larger."""
_MEAN_BITS = 30
"""Bits of mean(g y) in the gradient: its product with y stays below 2^46."""
_ALIGNED = 30
"""Most bits that g is shifted to the left to meet that product."""
_SHARE_BITS = 16
"""Fraction bits of the share of a batch in running statistics."""
_STATISTIC_EXPONENT = MASTER_EXPONENT + _SHARE_BITS
"""Most fraction bits of both parts of a running statistic before they are added..."""
_PART_BITS = 58
"""... and how many bits either has at most."""
_SUM_BITS = 43
"""Bits of a sum that is multiplied with a mantissa of 16."""
_DEVIATIONS, _SQUARES = "deviations", "squares"
_MEAN, _VARIANCE = "running_mean", "running_variance"
"""How names of these nodes end."""


def emit_normalized(
    b: GraphBuilder, name: str, x: Ref, epsilon: float, *, centred: bool, site: str
) -> Ref:
    """Rows of ``x`` (int16) with mean square 1, int16 at the calibrated ``site``.

    ``name`` begins the names of the nodes between.  RangeError where a row is too long for sums
    below 2^60, or ``epsilon`` too large for sums with it below 2^62.
    """
    return _emit_normalized(b, name, x, epsilon, centred=centred, site=site)[0]


def emit_with_squares(
    b: GraphBuilder, name: str, x: Ref, epsilon: float, *, site: str
) -> tuple[Ref, Ref]:
    """:func:`emit_normalized`, centred, and the sums of the squares of d times the deviations."""
    return _emit_normalized(b, name, x, epsilon, centred=True, site=site)


def _emit_normalized(
    b: GraphBuilder, name: str, x: Ref, epsilon: float, *, centred: bool, site: str
) -> tuple[Ref, Ref]:
    width = b.type_of(x).shape[-1]
    scale = width
    u = x
    if centred:
        shift = center_shift(b.type_of(x), _DEVIATION_BITS)
        u = b.emit("center", f"{name}/{_DEVIATIONS}", (x,), shift=shift)
        scale = width**3
    squares = b.emit("row_dot", f"{name}/{_SQUARES}", (u, u))
    root = _emit_root(b, f"{name}/root", u, squares, Fraction(epsilon) * scale)
    product = b.emit("row_scale", f"{name}/scaled", (u, root))
    y = b.rescale_at_site(site, product)

    def differentiate(builder: Builder, out: Ref, gradient: Ref) -> Sequence[Ref | None]:
        return (_emit_gradient(b, name, out, gradient, root),)

    b.blocks[y] = Block((u,), differentiate)
    return y, squares


def emit_statistics(
    b: GraphBuilder,
    name: str,
    rows: Ref,
    squares: Ref,
    old: tuple[Ref, Ref],
    share: int,
    *,
    unbiased: bool,
) -> tuple[Ref, Ref]:
    """The new running means and variances of the columns of ``rows`` [d, columns].

    Of ``old``, master weights both, 1 - share / 2^16 stay.  ``squares`` are those of
    :func:`emit_with_squares` of the columns.
    """
    width = b.type_of(rows).shape[0]
    count = width - 1 if unbiased else width
    sums = b.emit("column_sum", f"{name}/sums", (rows,))
    found = []
    for what, total, divisor, before in (
        (_MEAN, sums, width, old[0]),
        (_VARIANCE, squares, width * width * count, old[1]),
    ):
        factor = Fraction(share, divisor << _SHARE_BITS)
        kind = b.type_of(total)
        largest = max(-kind.lo, kind.hi) * factor / Fraction(2) ** kind.exponent
        exponent = min(_STATISTIC_EXPONENT, _PART_BITS - math.ceil(largest).bit_length())
        new = _emit_share(b, f"{name}/{what}_new", total, factor, exponent)
        if share < 1 << _SHARE_BITS:
            kept = b.rescale(
                f"{name}/{what}_kept",
                before,
                exponent,
                dtype="i64",
                multiplier=(1 << _SHARE_BITS) - share,
                multiplier_exponent=_SHARE_BITS,
            )
            new = b.emit("add", f"{name}/{what}_sum", (kept, new), shift_a=0, shift_b=0)
        found.append(b.rescale(f"{name}/{what}", new, MASTER_EXPONENT, dtype="i32"))
    return found[0], found[1]


def _emit_share(b: GraphBuilder, name: str, total: Ref, factor: Fraction, exponent: int) -> Ref:
    """``total`` times ``factor``, which gets a mantissa of 16 bits, in int64 at ``exponent``."""
    k = 15 - floor_log2(factor)
    mantissa = min(round_half_up(factor * Fraction(2) ** k), 2**16 - 1)
    kind = b.type_of(total)
    over = max(max(-kind.lo, kind.hi).bit_length() - _SUM_BITS, 0)
    # A multiplier's exponent is at most 32: the first rescale and the last take the rest of it.
    first = max(k - 32, 0)
    if over or first:
        total = b.rescale(
            f"{name}_total",
            total,
            kind.exponent + min(first, 32) - over,
            dtype="i64",
            multiplier_exponent=min(first, 32),
        )
    product = b.rescale(
        f"{name}_product",
        total,
        b.type_of(total).exponent + min(k, 32),
        dtype="i64",
        multiplier=mantissa,
        multiplier_exponent=min(k, 32),
    )
    rest = max(first - 32, 0)
    return b.rescale(name, product, exponent, dtype="i64", multiplier_exponent=rest)


@dataclass(frozen=True)
class BatchNormNodes:
    """The nodes of a norm over the batch that depend on it, and the states that stand for it where
    a model is used: indices of nodes and names of states."""

    deviations: int
    squares: int
    mean: str
    variance: str


def find_batch_norms(graph: StepGraph) -> list[BatchNormNodes]:
    """All norms over the batch in a step, by what their nodes are called."""
    index = {node.name: number for number, node in enumerate(graph.nodes)}
    states: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "next_state":
            states[graph.nodes[node.inputs[0].node].name] = str(node.attrs["name"])
    found = []
    for made, state in states.items():
        name, _, what = made.rpartition("/")
        if what == _MEAN and f"{name}/{_VARIANCE}" in states:
            variance = states[f"{name}/{_VARIANCE}"]
            deviations, squares = index[f"{name}/{_DEVIATIONS}"], index[f"{name}/{_SQUARES}"]
            found.append(BatchNormNodes(deviations, squares, state, variance))
    return found


def use_mean(graph: StepGraph, index: int, x: Array, mean: Array) -> Array:
    """What the node ``index`` of deviations gives of rows ``x`` if ``mean`` is theirs."""
    node = graph.nodes[index]
    source, out = graph.type_of(node.inputs[0]), node.outputs[0]
    # Eight bits more than x has; beyond the clamp all deviations are clamped anyway.
    means = rs(mean, MASTER_EXPONENT - source.exponent - 8) if source.exponent < 30 else mean
    means = np.clip(means, -(2**38), 2**38)
    wide = ((x.astype(np.int64) << 8) - means[:, None]) * x.shape[-1]
    return np.clip(rs(wide, attr_int(node.attrs, "shift") + 8), out.lo, out.hi).astype(np.int32)


def use_variance(graph: StepGraph, index: int, variance: Array) -> Array:
    """What the node ``index`` of sums of squares gives of rows with these variances."""
    node = graph.nodes[index]
    width, out = graph.type_of(node.inputs[0]).shape[-1], node.outputs[0]
    scale = Fraction(2) ** (out.exponent - MASTER_EXPONENT) * width**3
    found = [min(max(round_half_up(scale * int(each)), 0), out.hi) for each in variance]
    return np.array(found, np.int64)


def compute_epsilon(squares: TensorType, epsilon: Fraction) -> int:
    """``epsilon`` in the units of a sum of squares, rounded half up, at least 1."""
    return max(math.floor(epsilon * Fraction(2) ** squares.exponent + Fraction(1, 2)), 1)


def _emit_root(b: GraphBuilder, name: str, u: Ref, squares: Ref, epsilon: Fraction) -> Ref:
    """sqrt(d) / sqrt(sum of squares + epsilon), as exact as int64 allows for rows of ``u``."""
    kind, total = b.type_of(u), b.type_of(squares)
    units = compute_epsilon(total, epsilon)
    most = max(total.hi, 0) + units
    if most >= 2**62:
        raise RangeError(
            f"sums of squares with epsilon may reach {most}, 2^62 or more", where=f"node {name}"
        )
    lift = min((62 - most.bit_length()) // 2, MAX_LIFT)
    # No product of the root with a row, nor with an int16 gradient, may reach 2^60.
    largest = (ACCUMULATOR_LIMIT - 1) // max(-kind.lo, kind.hi, _OPERAND)
    bound = min((largest + 1) * math.isqrt(units << 2 * lift) - 1, 2**62)
    width = kind.shape[-1]
    k = max((bound * bound // width).bit_length() // 2, 1)
    while math.isqrt(width << 2 * k) > bound:
        k -= 1
    return b.emit(
        "inverse_root",
        name,
        (squares,),
        epsilon=units,
        lift=lift,
        numerator=math.isqrt(width << 2 * k),
        numerator_exponent=k,
    )


def _emit_gradient(b: GraphBuilder, name: str, y: Ref, gradient: Ref, root: Ref) -> Ref:
    """(g - y mean(g y)) R, in int64."""
    g = b.as_operand(gradient, f"{name}/grad")
    dot = b.emit("row_dot", f"{name}/grad_dot", (g, y))
    mean = _emit_mean(b, f"{name}/grad_mean", g, y, dot)
    along = b.emit("row_scale", f"{name}/grad_along", (y, mean))
    f_g, f_along = b.type_of(g).exponent, b.type_of(along).exponent
    finest = max(f_g, f_along)
    across = b.emit(
        "sub",
        f"{name}/grad_across",
        (g, along),
        shift_a=finest - f_g,
        shift_b=finest - f_along,
    )
    operand = b.rescale_at_site(f"{name}/grad_operand", across)
    return b.emit("row_scale", f"{name}/grad_rows", (operand, root))


def _emit_mean(b: GraphBuilder, name: str, g: Ref, y: Ref, dot: Ref) -> Ref:
    """mean(g y) of each row in int32; exact but for one rounding where d is a power of two, else
    times round(2^j / d) of 16 bits instead of 1 / d."""
    width, kind = b.type_of(g).shape[-1], b.type_of(dot)
    if width & (width - 1) == 0:
        multiplier, j = 1, width.bit_length() - 1
    else:
        j = 15 + width.bit_length() - 1
        multiplier = (2 * (1 << j) + width) // (2 * width)
    over = max((max(-kind.lo, kind.hi) * multiplier).bit_length() - 63, 0)
    if over:  # of rows of many thousand elements
        dot = b.rescale(f"{name}_total", dot, kind.exponent - over, dtype="i64")
        kind = b.type_of(dot)
    largest = max(-kind.lo, kind.hi) * multiplier
    exponent = kind.exponent + j - max(largest.bit_length() - _MEAN_BITS, 0)
    f_g, f_y = b.type_of(g).exponent, b.type_of(y).exponent
    exponent = min(exponent, f_g + _ALIGNED - f_y)
    return b.rescale(name, dot, exponent, dtype="i32", multiplier=multiplier, multiplier_exponent=j)
