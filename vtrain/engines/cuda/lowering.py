"""From a node to launches of readable kernels: what every operator can always be done with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from vtrain.engines.cuda import lower_arithmetic, lower_rows
from vtrain.engines.cuda.launch import Launch
from vtrain.engines.cuda.lower_arithmetic import Lowering
from vtrain.errors import GraphError
from vtrain.wire.graph import Node, TensorType

LOWERINGS: Final[Mapping[str, Lowering]] = {**lower_arithmetic.LOWERINGS, **lower_rows.LOWERINGS}
"""How each operator is launched."""


def lower(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """Launches of readable kernels that do ``node``, in order; ``inputs`` are its inputs' types.

    A state's node is launched with the bound tensor as its input.
    """
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        raise GraphError("unknown operator", where=f"node {node.name} ({node.op})")
    return lowering(node, inputs)
