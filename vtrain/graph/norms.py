"""LayerNorm and RMSNorm of rows, and their gradient (docs/adr/0020-norms.md).

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
from fractions import Fraction

from vtrain.errors import RangeError
from vtrain.graph.builder import Block, GraphBuilder
from vtrain.ops.base import Builder
from vtrain.ops.norm import MAX_LIFT, center_shift
from vtrain.spec.number import ACCUMULATOR_LIMIT
from vtrain.wire.graph import Ref, TensorType

_DEVIATION_BITS = 19
"""Bits of a deviation: two more than its row's, so that rounding it costs less than that did."""
_OPERAND = 2**15
"""No int16 is larger."""
_MEAN_BITS = 30
"""Bits of mean(g y) in the gradient: its product with y stays below 2^46."""
_ALIGNED = 30
"""Most bits that g is shifted to the left to meet that product."""


def emit_normalized(
    b: GraphBuilder, name: str, x: Ref, epsilon: float, *, centred: bool, site: str
) -> Ref:
    """Rows of ``x`` (int16) with mean square 1, int16 at the calibrated ``site``.

    ``name`` begins the names of the nodes between.  RangeError where a row is too long for sums
    below 2^60, or ``epsilon`` too large for sums with it below 2^62.
    """
    width = b.type_of(x).shape[-1]
    scale = width
    u = x
    if centred:
        shift = center_shift(b.type_of(x), _DEVIATION_BITS)
        u = b.emit("center", f"{name}/deviations", (x,), shift=shift)
        scale = width**3
    squares = b.emit("row_dot", f"{name}/squares", (u, u))
    root = _emit_root(b, f"{name}/root", u, squares, Fraction(epsilon) * scale)
    product = b.emit("row_scale", f"{name}/scaled", (u, root))
    y = b.rescale_at_site(site, product)

    def differentiate(builder: Builder, out: Ref, gradient: Ref) -> Sequence[Ref | None]:
        return (_emit_gradient(b, name, out, gradient, root),)

    b.blocks[y] = Block((u,), differentiate)
    return y


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
    largest = max(-kind.lo, kind.hi) * multiplier
    exponent = kind.exponent + j - max(largest.bit_length() - _MEAN_BITS, 0)
    f_g, f_y = b.type_of(g).exponent, b.type_of(y).exponent
    exponent = min(exponent, f_g + _ALIGNED - f_y)
    return b.rescale(name, dot, exponent, dtype="i32", multiplier=multiplier, multiplier_exponent=j)
