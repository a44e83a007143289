"""Launches of the kernels of ``vtrain.ops.gather``: rows by number, and sums that go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, operand, output
from vtrain.wire.graph import Node


def _gather_rows(node: Node, inputs: Types) -> tuple[Launch, ...]:
    tensors = (*operand(0, inputs), *operand(1, inputs))
    return launch(node, *tensors, *inputs[0].shape, *output(node))


def _scatter_add(node: Node, inputs: Types) -> tuple[Launch, ...]:
    tensors = (*operand(0, inputs), *operand(1, inputs))
    return launch(node, *tensors, inputs[1].size, *node.outputs[0].shape, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "gather_rows": _gather_rows,
    "scatter_add": _scatter_add,
}
"""Readable kernels."""
