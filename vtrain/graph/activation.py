"""Non-linearities by table: GELU, SiLU, sigmoid and tanh, each a block with one gradient.

Of GELU and SiLU the table has what x is multiplied with, and x keeps its own exponent: the product
has no error where the gate is 0 or 1, however large x is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vtrain.graph.builder import Block, GraphBuilder
from vtrain.ops.base import Builder
from vtrain.spec.curves import CURVES
from vtrain.wire.graph import Ref


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
