"""Launches of the kernels of ``vtrain.ops.linear``: matrix products and their companions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import DTYPE_CODES, WARP, Arg, Launch, Operand, Output, Scratch
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, launch, operand
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _matmul(node: Node, inputs: Types) -> tuple[Launch, ...]:
    (rows_a, width_a), (rows_b, width_b) = (tensor.shape for tensor in inputs)
    strides_a, inner = (
        ((1, width_a), rows_a) if node.attrs["transpose_a"] else ((width_a, 1), width_a)
    )
    strides_b, columns = (
        ((1, width_b), rows_b) if node.attrs["transpose_b"] else ((width_b, 1), width_b)
    )
    return launch(
        node,
        *operand(0, inputs),
        *strides_a,
        *operand(1, inputs),
        *strides_b,
        columns,
        inner,
        Output(),
    )


def _batched_matmul(node: Node, inputs: Types) -> tuple[Launch, ...]:
    (_, width_a), (_, width_b) = (tensor.shape[-2:] for tensor in inputs)
    rows, columns = node.outputs[0].shape[-2:]
    inner = inputs[0].shape[-2 if node.attrs["transpose_a"] else -1]
    strides_a = (1, width_a) if node.attrs["transpose_a"] else (width_a, 1)
    strides_b = (1, width_b) if node.attrs["transpose_b"] else (width_b, 1)
    return launch(
        node,
        *operand(0, inputs),
        *strides_a,
        *operand(1, inputs),
        *strides_b,
        rows,
        columns,
        inner,
        Output(),
    )


def _add_bias(node: Node, inputs: Types) -> tuple[Launch, ...]:
    columns, shift = inputs[1].size, attr_int(node.attrs, "shift")
    return launch(node, *operand(0, inputs), *operand(1, inputs), columns, shift, Output())


def _column_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    rows = inputs[0].size // inputs[0].shape[-1]
    return launch(node, *operand(0, inputs), rows, Output())


def _fast_column_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    x = inputs[0]
    columns = x.shape[-1]
    rows = x.size // columns
    across, block = -(-columns // WARP), (WARP, WARP, 1)
    # At least 8 rows a thread, and few enough parts for one block.
    parts = max(1, min(2 * WARP, rows // (8 * WARP)))
    between: Arg = Scratch(8 * parts * columns, "parts") if parts > 1 else Output()
    first = (columns, Operand(0), DTYPE_CODES[x.dtype], rows, between)
    partly = Launch(file_of(node), "column_sum_parts", (across, parts, 1), block, first)
    if parts == 1:
        return (partly,)
    second = (columns, between, DTYPE_CODES["i64"], parts, Output())
    return (partly, Launch(file_of(node), "column_sum_parts", (across, 1, 1), block, second))


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "add_bias": _add_bias,
    "column_sum": _column_sum,
}
"""Readable kernels."""

FAST: Final[Mapping[str, Lowering]] = {"column_sum": _fast_column_sum}
"""Fast variants."""
