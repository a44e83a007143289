"""Sums, differences and products, element by element."""

from __future__ import annotations

from typing import Final

from vtrain.prove.steps.builder import Emitters, StepBuilder, attr
from vtrain.wire.graph import Node, Ref


def _emit_add(s: StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.lin(item) for item in node.inputs)
    sign = 1 if node.op == "add" else -1
    a_part = a * (1 << attr(node.attrs, "shift_a"))
    s.values[ref] = a_part + c * (sign << attr(node.attrs, "shift_b"))


def _emit_mul(s: StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.tensor(item) for item in node.inputs)
    s.values[ref] = s.b.mul(a, c)


EMITTERS: Final[Emitters] = {
    "add": _emit_add,
    "sub": _emit_add,
    "mul": _emit_mul,
}
