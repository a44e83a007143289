"""relu and its gradient."""

from __future__ import annotations

from typing import Final

from vtrain.prove.circuit import gadgets
from vtrain.prove.steps.builder import Emitters, StepBuilder
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref


def _emit_relu(s: StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    most = SATURATION["i16"][1]
    _, s.values[ref] = gadgets.positive_mask(s.b, node.name, x, most)


def _emit_relu_grad(s: StepBuilder, ref: Ref, node: Node) -> None:
    g, out = (s.tensor(item) for item in node.inputs)
    mask, _ = gadgets.positive_mask(s.b, node.name, out, SATURATION["i16"][1])
    s.values[ref] = s.b.mul(mask, g)


EMITTERS: Final[Emitters] = {
    "relu": _emit_relu,
    "relu_grad": _emit_relu_grad,
}
