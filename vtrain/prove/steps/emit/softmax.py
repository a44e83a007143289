"""Rows of a softmax and what becomes of them: gradients, losses."""

from __future__ import annotations

from typing import Final

from vtrain.errors import CircuitError
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.values import Tensor
from vtrain.prove.steps.builder import Emitters, StepBuilder, attr
from vtrain.spec.number import PROBABILITY_EXPONENT
from vtrain.wire.graph import Node, Ref


def _emit_softmax(s: StepBuilder, ref: Ref, node: Node) -> None:
    """The outputs of the row nodes are hints; ``divide``, the last of them, ties them together."""
    output = s.hint_output(ref, node)
    s.values[ref] = output
    if node.op != "divide":
        return
    e, total = node.inputs
    if s.graph.nodes[e.node].op != "exp2_diff":
        raise CircuitError("is no softmax", where=node.name)
    z, maximum = s.graph.nodes[e.node].inputs
    s.softmaxes.update((maximum, e, total))
    kind = s.type_of(z)
    gadgets.softmax(
        s.b,
        "loss/softmax",
        s.tensor(z),
        s.tensor(maximum),
        s.tensor(e),
        s.tensor(total),
        output,
        kind.hi - kind.lo,
    )


def _hot(s: StepBuilder, labels: Ref, classes: int) -> Tensor:
    """One-hot rows of the labels, made once."""
    key = Ref(labels.node, -1 - labels.output)
    if key not in s.values:
        label = s.tensor(labels)
        s.values[key] = gadgets.one_hot(s.b, "labels", label, classes)
    return s.tensor(key)


def _emit_sub_one_hot(s: StepBuilder, ref: Ref, node: Node) -> None:
    p, labels = node.inputs
    hot = _hot(s, labels, s.type_of(p).shape[1])
    s.values[ref] = s.lin(p) - hot.lin() * (1 << PROBABILITY_EXPONENT)


def _emit_cross_entropy(s: StepBuilder, ref: Ref, node: Node) -> None:
    z, maximum, total, labels = node.inputs
    summed = s.graph.nodes[total.node]
    if summed.op != "row_sum" or s.graph.nodes[summed.inputs[0].node].inputs != (z, maximum):
        raise CircuitError("is not of the sum of its rows' powers", where=node.name)
    rows = s.hint_output(ref, node)
    hot = _hot(s, labels, s.type_of(z).shape[1])
    gadgets.cross_entropy(
        s.b, node.name, s.tensor(z), s.tensor(maximum), s.tensor(total), hot, rows
    )
    s.values[ref] = rows


def _emit_sum(s: StepBuilder, ref: Ref, node: Node) -> None:
    """The loss of a batch: what the record says is the sum of the rows."""
    _refuse_other_loss(s, ref, node)
    x = s.tensor(node.inputs[0])
    s.b.zero_sum(node.name, [(x, None, 1), (s.loss, None, -1)])


def _refuse_other_loss(s: StepBuilder, ref: Ref, node: Node) -> None:
    if s.logged_loss != ref:
        raise CircuitError("is not the loss logged", where=node.name)


def _emit_square_sum(s: StepBuilder, ref: Ref, node: Node) -> None:
    _refuse_other_loss(s, ref, node)
    x = s.tensor(node.inputs[0])
    flat = s.b.reshape(x, (x.size,))
    total = s.b.dot(flat, flat)
    shift = attr(node.attrs, "shift")
    gadgets.rounding_shift(s.b, node.name, total.lin(), shift, s.loss.lin()) if shift > 0 else (
        s.b.zero(node.name, total.lin() * (1 << -shift) - s.loss.lin())
    )


EMITTERS: Final[Emitters] = {
    "row_max": _emit_softmax,
    "exp2_diff": _emit_softmax,
    "row_sum": _emit_softmax,
    "divide": _emit_softmax,
    "sub_one_hot": _emit_sub_one_hot,
    "cross_entropy": _emit_cross_entropy,
    "square_sum": _emit_square_sum,
    "sum": _emit_sum,
}
