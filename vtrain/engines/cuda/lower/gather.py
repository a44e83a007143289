"""Launches of the kernels of ``vtrain.ops.gather``: rows by number, and sums that go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Output, one_thread_each
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, launch, operand, output
from vtrain.wire.graph import Node


def _gather_rows(node: Node, inputs: Types) -> tuple[Launch, ...]:
    tensors = (*operand(0, inputs), *operand(1, inputs))
    return launch(node, *tensors, *inputs[0].shape, *output(node))


def _scatter_add(node: Node, inputs: Types) -> tuple[Launch, ...]:
    tensors = (*operand(0, inputs), *operand(1, inputs))
    return launch(node, *tensors, inputs[1].size, *node.outputs[0].shape, Output())


def _fast_scatter_add(node: Node, inputs: Types) -> tuple[Launch, ...]:
    file, sums = file_of(node), node.outputs[0]
    tensors = (*operand(0, inputs), *operand(1, inputs))
    return (
        one_thread_each(file, "scatter_add_clear", sums.size, Output()),
        one_thread_each(
            file, "scatter_add_elements", inputs[0].size, *tensors, *sums.shape, Output()
        ),
    )


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "gather_rows": _gather_rows,
    "scatter_add": _scatter_add,
}
"""Readable kernels."""

FAST: Final[Mapping[str, Lowering]] = {"scatter_add": _fast_scatter_add}
"""Fast variants."""
