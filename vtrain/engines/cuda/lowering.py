"""From a node to launches of readable kernels: what every operator can always be done with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from vtrain.engines.cuda.launch import Launch
from vtrain.engines.cuda.lower import (
    activation,
    arithmetic,
    attention,
    commitment,
    dropout,
    gather,
    layout,
    linear,
    lookup,
    norm,
    optimizer,
    parts,
    pool,
    rescale,
    softmax,
    source,
)
from vtrain.engines.cuda.lower.common import Lowering
from vtrain.errors import GraphError
from vtrain.wire.graph import Node, TensorType

LOWERINGS: Final[Mapping[str, Lowering]] = {
    **source.LOWERINGS,
    **layout.LOWERINGS,
    **linear.LOWERINGS,
    **rescale.LOWERINGS,
    **arithmetic.LOWERINGS,
    **activation.LOWERINGS,
    **lookup.LOWERINGS,
    **parts.LOWERINGS,
    **gather.LOWERINGS,
    **pool.LOWERINGS,
    **softmax.LOWERINGS,
    **attention.LOWERINGS,
    **norm.LOWERINGS,
    **dropout.LOWERINGS,
    **optimizer.LOWERINGS,
    **commitment.LOWERINGS,
}
"""How each operator is launched.  ``largest`` is no operator: calibration asks for it."""

FAST: Final[Mapping[str, Lowering]] = {
    **layout.FAST,
    **linear.FAST,
    **gather.FAST,
    **softmax.FAST,
    **attention.FAST,
    **norm.FAST,
    **commitment.FAST,
}
"""Fast variants of those that gain from one; pointwise operators are made fast by fusing them
(``vtrain.engines.cuda.fuse``)."""


def lower(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """Launches of readable kernels that do ``node``, in order; ``inputs`` are its inputs' types.

    A state's node is launched with the bound tensor as its input.
    """
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        raise GraphError("unknown operator", where=f"node {node.name} ({node.op})")
    return lowering(node, inputs)
