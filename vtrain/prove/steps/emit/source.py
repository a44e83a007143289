"""What a step begins and ends with: states, samples, and their preparation."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.values import Tensor
from vtrain.prove.steps.builder import Emitters, StepBuilder, attr, is_table
from vtrain.prove.steps.emit.rescale import emit_shift
from vtrain.spec.number import STORAGE
from vtrain.wire.graph import Node, Ref


def _emit_state(s: StepBuilder, ref: Ref, node: Node) -> None:
    name = str(node.attrs["name"])
    if name == STEP_STATE:
        return
    tensor = s.before[name]
    s.values[ref] = tensor
    if ref not in s.held:
        gadgets.hold_dtype(s.b, f"before/{name}", tensor, "i32")


def _emit_next_state(s: StepBuilder, ref: Ref, node: Node) -> None:
    """Linked already where the new value was made as such."""
    name = str(node.attrs["name"])
    if name == STEP_STATE:
        return
    value = s.value(node.inputs[0])
    if value is not s.after[name]:
        form = value.lin() if isinstance(value, Tensor) else value
        s.b.zero(node.name, s.after[name].lin() - form)


def _emit_gather(s: StepBuilder, ref: Ref, node: Node) -> None:
    """Given."""


def _emit_normalize(s: StepBuilder, ref: Ref, node: Node) -> None:
    """For bytes, (x, y) is a row of the table of the law, which shows the range of x as well."""
    if is_table(s.graph, node):
        lo, hi = STORAGE[s.type_of(node.inputs[0]).dtype]
        domain = np.arange(lo, hi + 1)
        image = TABLE["normalize"].law(node.attrs, [domain])
        y = s.hint_output(ref, node)
        s.b.member(node.name, (s.tensor(node.inputs[0]), y), (domain, image))
        s.values[ref] = y
        return
    multiplier, offset = attr(node.attrs, "multiplier"), attr(node.attrs, "offset")
    kind = s.type_of(node.inputs[0])
    x = s.lin(node.inputs[0]) * multiplier + offset
    emit_shift(s, ref, node, x, kind.lo * multiplier + offset, kind.hi * multiplier + offset)


EMITTERS: Final[Emitters] = {
    "state": _emit_state,
    "next_state": _emit_next_state,
    "gather_samples": _emit_gather,
    "normalize": _emit_normalize,
}
