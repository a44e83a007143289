"""Non-linearities, each a block with one gradient.

GELU, SiLU, sigmoid and tanh go by table; leaky ReLUs and clips are made of ``relu`` and sums, ELU
of these and of the softmax's exponential.

Of GELU and SiLU the table has what x is multiplied with, and x keeps its own exponent: the product
has no error where the gate is 0 or 1, however large x is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from vtrain.graph.builder import Block, GraphBuilder
from vtrain.graph.update import floor_log2, round_half_up
from vtrain.ops.base import Builder
from vtrain.spec.curves import CURVES
from vtrain.spec.number import EXP2_EXPONENT, LOG2_EXPONENT, SATURATION
from vtrain.wire.graph import AttrValue, Ref

LOG2_E: Final = 47274
"""round(log2(e) * 2^15): numbers in nats become base-2 logarithms by this multiplier."""
LOG2_E_EXPONENT: Final = 15
_OFFSET_BITS: Final = 16
"""More fraction bits than x has, of a number that is added to it."""
_BITS_OF_NOTHING: Final = 32
_ELU_EXPONENT: Final = 14
"""Fraction bits of e^x - 1 and of its slope, both at most 1."""


@dataclass(frozen=True)
class Activation:
    """A function f by table: f(x), or x f(x) if ``gated``; ``slope`` is the whole's derivative."""

    table: str
    slope: str
    gated: bool


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "gelu": Activation("gelu_gate", "gelu_slope", gated=True),
    "gelu_tanh": Activation("gelu_tanh_gate", "gelu_tanh_slope", gated=True),
    "silu": Activation("sigmoid", "silu_slope", gated=True),
    "sigmoid": Activation("sigmoid", "sigmoid_slope", gated=False),
    "tanh": Activation("tanh", "tanh_slope", gated=False),
}
"""By kind.  ``gelu_tanh`` is the approximation by tanh, which is a function of its own."""


def emit_look_up(b: Builder, name: str, x: Ref, table: str) -> Ref:
    """The function ``table`` of each element of ``x``, int16; int16 with 14 fraction bits."""
    shift = b.type_of(x).exponent - CURVES[table].grid
    return b.emit("look_up", name, (x,), table=table, shift=shift)


def emit_activation(b: GraphBuilder, name: str, x: Ref, kind: str) -> Ref:
    """The non-linearity ``kind`` of ``x``, int16, as int16: with 14 fraction bits, or, if it is
    gated, at the exponent of the site ``name``."""
    of = ACTIVATIONS[kind]
    if of.gated:
        gate = emit_look_up(b, f"{name}/gate", x, of.table)
        y = b.rescale_at_site(name, b.emit("mul", f"{name}/product", (x, gate)))
    else:
        y = emit_look_up(b, name, x, of.table)

    def differentiate(b: Builder, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        g = b.as_operand(grad, f"{name}/grad")
        slope = emit_look_up(b, f"{name}/slope", x, of.slope)
        return (b.emit("mul", f"{name}/grad_in", (g, slope)),)

    b.blocks[y] = Block((x,), differentiate)
    return y


def emit_leaky_relu(b: GraphBuilder, name: str, x: Ref, multiplier: int, exponent: int) -> Ref:
    """x where it is above 0, else x times multiplier * 2^-exponent, at the site ``name``.

    The slope at 0 is that of what is below.
    """
    factor: dict[str, AttrValue] = {"dtype": "i64", "shift": 0}
    factor |= {"multiplier": multiplier, "multiplier_exponent": exponent}
    above = b.emit("relu", f"{name}/above", (x,))
    y = b.rescale_at_site(name, _join_slopes(b, name, x, above, factor))

    def differentiate(builder: Builder, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        g = builder.as_operand(grad, f"{name}/grad")
        kept = builder.emit("relu_grad", f"{name}/grad_above", (g, above))
        return (_join_slopes(builder, f"{name}/grad", g, kept, factor),)

    b.blocks[y] = Block((x,), differentiate)
    return y


def _join_slopes(
    b: Builder, name: str, whole: Ref, above: Ref, factor: Mapping[str, AttrValue]
) -> Ref:
    """``above``, and what of ``whole`` is not in it times a factor: exact, in int64."""
    rest = b.emit("sub", f"{name}_rest", (whole, above), shift_a=0, shift_b=0)
    below = b.emit("rescale", f"{name}_below", (rest,), **factor)
    lift = int(str(factor["multiplier_exponent"]))
    return b.emit("add", f"{name}_sum", (above, below), shift_a=lift, shift_b=0)


def emit_elu(b: GraphBuilder, name: str, x: Ref, multiplier: int, exponent: int) -> Ref:
    """x where it is above 0, else e^x - 1 times multiplier * 2^-exponent, at the site ``name``.

    e^x is the softmax's: that of the smaller of x and 0 beside the one of 0.  The slope at 0 is
    that of what is below.
    """
    shape = b.type_of(x).shape
    factor: dict[str, AttrValue] = {"dtype": "i64", "shift": 0}
    factor |= {"multiplier": multiplier, "multiplier_exponent": exponent}
    above = b.emit("relu", f"{name}/above", (x,))
    below = b.emit("sub", f"{name}/below", (x, above), shift_a=0, shift_b=0)
    z = b.rescale(
        f"{name}/log2",
        b.emit("reshape", f"{name}/rows", (below,), shape=(b.type_of(x).size, 1)),
        LOG2_EXPONENT,
        dtype="i32",
        multiplier=LOG2_E,
        multiplier_exponent=LOG2_E_EXPONENT,
    )
    pair = b.emit("pad", f"{name}/beside_zero", (z,), axis=1, before=0, after=1)
    maximum = b.emit("row_max", f"{name}/zero", (pair,))
    both = b.emit("exp2_diff", f"{name}/exp_both", (pair, maximum))
    column = b.emit("slice", f"{name}/exp_column", (both,), axis=1, start=0, stop=1)
    e = b.emit("reshape", f"{name}/exp", (column,), shape=shape)
    less = b.emit(
        "normalize",
        f"{name}/exp_less_one",
        (e,),
        multiplier=1,
        offset=-(1 << EXP2_EXPONENT),
        shift=EXP2_EXPONENT - _ELU_EXPONENT,
        exponent=_ELU_EXPONENT,
    )
    scaled = b.emit("rescale", f"{name}/scaled", (less,), **factor)
    y = b.rescale_at_site(name, _add_aligned(b, f"{name}/sum", above, scaled))

    def differentiate(builder: Builder, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        g = builder.as_operand(grad, f"{name}/grad")
        kept = builder.emit("relu_grad", f"{name}/grad_above", (g, above))
        rest = builder.emit("sub", f"{name}/grad_rest", (g, kept), shift_a=0, shift_b=0)
        # All of g or nothing: int16 holds it.
        operand: dict[str, AttrValue] = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0}
        low = builder.emit("rescale", f"{name}/grad_below", (rest,), shift=0, **operand)
        shift = EXP2_EXPONENT - _ELU_EXPONENT
        slope = builder.emit("rescale", f"{name}/slope", (e,), shift=shift, **operand)
        product = builder.emit("mul", f"{name}/grad_product", (low, slope))
        bent = builder.emit("rescale", f"{name}/grad_scaled", (product,), **factor)
        return (_add_aligned(builder, f"{name}/grad_sum", kept, bent),)

    b.blocks[y] = Block((x,), differentiate)
    return y


def _add_aligned(b: Builder, name: str, left: Ref, right: Ref) -> Ref:
    """The exact sum, in int64."""
    f_left, f_right = b.type_of(left).exponent, b.type_of(right).exponent
    finest = max(f_left, f_right)
    return b.emit("add", name, (left, right), shift_a=finest - f_left, shift_b=finest - f_right)


def emit_shift(b: GraphBuilder, name: str, x: Ref, offset: float) -> Ref:
    """x plus a number, which is rounded to 15 bits, at the site ``name``: the gradient is that of
    x."""
    exponent = b.type_of(x).exponent
    mantissa, fine = 0, exponent
    if offset:
        fine = floor_log2(Fraction(SATURATION["i16"][1]) / abs(Fraction(offset)))
        fine = min(fine, exponent + _OFFSET_BITS)
        mantissa = round_half_up(Fraction(offset) * Fraction(2) ** fine)
        while mantissa % 2 == 0 and fine > exponent:
            mantissa, fine = mantissa // 2, fine - 1
    # What is left of x after so many bits is 0, by the range that is proven of it.
    zeros = b.rescale(f"{name}/zeros", x, exponent - _BITS_OF_NOTHING)
    attrs = {"multiplier": 1, "offset": mantissa, "shift": 0, "exponent": fine}
    number = b.emit("normalize", f"{name}/number", (zeros,), **attrs)
    y = b.rescale_at_site(name, _add_aligned(b, f"{name}/sum", x, number))
    b.blocks[y] = Block((x,), lambda builder, out, grad: (grad,))
    return y


def emit_clip(b: GraphBuilder, name: str, x: Ref, low: float | None, high: float | None) -> Ref:
    """min(max(x, low), high), int16 at the exponent of x; bounds are rounded to its unit.

    The gradient is 0 at a bound and beyond.  A bound that x cannot reach is none.
    """
    kind = b.type_of(x)
    most, least = (
        _find_bound(high, kind.exponent, kind.hi),
        _find_bound(low, kind.exponent, -kind.lo),
    )
    if most is None and least is None:
        return x
    # Each side by itself: what is above 0, and the opposite of what is below.
    above = b.emit("relu", f"{name}/above", (x,))
    sides = [("above", above, most)]
    if least == 0 and most != 0:
        y = above if most is None else _cap(b, name, above, most, to=name)
    else:
        opposite = b.emit("sub", f"{name}/opposite", (above, x), shift_a=0, shift_b=0)
        sides.append(("below", b.rescale(f"{name}/below", opposite, kind.exponent), least))
        capped = [
            part if bound is None else _cap(b, f"{name}/{side}", part, bound, f"{name}/{side}_kept")
            for side, part, bound in sides
        ]
        difference = b.emit("sub", f"{name}/difference", capped, shift_a=0, shift_b=0)
        y = b.rescale(name, difference, kind.exponent)

    def differentiate(builder: Builder, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        kept = builder.as_operand(grad, f"{name}/grad")
        # Where one side is cut off at 0, the gradient is that of the other side.
        if least == 0:
            kept = builder.emit("relu_grad", f"{name}/grad_above", (kept, above))
        if most == 0:
            kept = builder.emit("relu_grad", f"{name}/grad_below", (kept, sides[1][1]))
        total = kept
        for side, part, bound in sides:
            if bound:
                beyond = _shift(builder, f"{name}/{side}_reached", part, 1 - bound)
                lost = builder.emit("relu_grad", f"{name}/grad_{side}_lost", (kept, beyond))
                total = builder.emit(
                    "sub", f"{name}/grad_{side}_left", (total, lost), shift_a=0, shift_b=0
                )
        return (total,)

    b.blocks[y] = Block((x,), differentiate)
    return y


def _find_bound(value: float | None, exponent: int, largest: int) -> int | None:
    """The magnitude of a bound as a mantissa; None where no value of magnitude ``largest`` or less
    is beyond it."""
    if value is None:
        return None
    mantissa = round_half_up(abs(Fraction(value)) * Fraction(2) ** exponent)
    return mantissa if mantissa < largest else None


def _shift(b: Builder, name: str, x: Ref, offset: int) -> Ref:
    """``x`` plus a constant mantissa."""
    exponent = b.type_of(x).exponent
    return b.emit("normalize", name, (x,), multiplier=1, offset=offset, shift=0, exponent=exponent)


def _cap(b: GraphBuilder, name: str, part: Ref, bound: int, to: str) -> Ref:
    """min(part, bound), of a part that is at least 0, as the node ``to``."""
    beyond = b.emit("relu", f"{name}_beyond", (_shift(b, f"{name}_shifted", part, -bound),))
    capped = b.emit("sub", f"{name}_difference", (part, beyond), shift_a=0, shift_b=0)
    return b.rescale(to, capped, b.type_of(part).exponent)
