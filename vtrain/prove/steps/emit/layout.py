"""Other orders of the same elements."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.prove.steps.builder import Emitters, StepBuilder
from vtrain.wire.graph import Node, Ref


def _emit_reshape(s: StepBuilder, ref: Ref, node: Node) -> None:
    s.values[ref] = s.b.reshape(s.tensor(node.inputs[0]), s.type_of(ref).shape)


def _emit_transpose(s: StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    order = np.arange(x.size).reshape(x.shape)
    perm = node.attrs["perm"]
    if not isinstance(perm, tuple):
        raise CircuitError("attribute perm is no list", where=node.name)
    s.values[ref] = s.b.take(x, order.transpose(perm))


EMITTERS: Final[Emitters] = {
    "reshape": _emit_reshape,
    "transpose": _emit_transpose,
}
