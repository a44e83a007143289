"""Rounding shifts with saturation."""

from __future__ import annotations

from typing import Final

from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.values import Lin
from vtrain.prove.steps.builder import Emitters, StepBuilder, attr, bound_shift, holds_operand
from vtrain.wire.graph import Node, Ref


def emit_shift(s: StepBuilder, ref: Ref, node: Node, x: Lin, lo: int, hi: int) -> None:
    """A node that ends in sat(rs(x, shift))."""
    kind = s.type_of(ref)
    shift = attr(node.attrs, "shift")
    if kind.dtype == "i64":
        reach = bound_shift(lo, hi, shift)
        s.values[ref] = gadgets.rounding_shift(s.b, node.name, x, shift, reach=reach)
        return
    y = s.hint_output(ref, node)
    if s.is_of_parameter_size(node.inputs[0]) and len(y.shape) == 2:
        # The forward product contracts a weight along this axis too: made first, it is made once.
        s.b.contract(y, 0, s.b.weights(y.shape)[0])
    if not s.clamps and s.is_of_parameter_size(node.inputs[0]) and holds_operand(node):
        gadgets.shift_and_hold(s.b, node.name, s.tensor(node.inputs[0]), shift, y)
        s.values[ref] = y
        return
    clamps = s.clamps or not s.is_of_parameter_size(node.inputs[0])
    reach = bound_shift(lo, hi, shift)
    gadgets.saturating_shift(s.b, node.name, x, shift, kind.dtype, y, reach, clamps=clamps)
    s.values[ref] = y


def _emit_rescale(s: StepBuilder, ref: Ref, node: Node) -> None:
    multiplier = attr(node.attrs, "multiplier")
    kind = s.type_of(node.inputs[0])
    x = s.lin(node.inputs[0]) * multiplier
    emit_shift(s, ref, node, x, kind.lo * multiplier, kind.hi * multiplier)


EMITTERS: Final[Emitters] = {
    "rescale": _emit_rescale,
}
