"""Launches of the kernels of ``vtrain.ops.softmax``: rows, losses and sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    THREADS,
    WARP,
    Arg,
    Launch,
    Operand,
    Output,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node

_MOST_PARTS: Final = 1024
"""Blocks that add up parts of a large tensor."""
_LONG_ROW: Final = 4096
"""From here on a row has a block to itself."""
_SHORT_ROW: Final = 8
"""Up to here a thread a row is enough."""


def _rows(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """row_max, row_sum."""
    rows, classes = inputs[0].shape
    return (one_thread_each(file_of(node), node.op, rows, Operand(0), classes, Output()),)


def _of_row(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """exp2_diff, divide: an element and something of its row."""
    args = (Operand(0), Operand(1), inputs[0].shape[1], Output())
    return (one_thread_each(file_of(node), node.op, inputs[0].size, *args),)


def _sub_one_hot(node: Node, inputs: Types) -> tuple[Launch, ...]:
    p, labels = inputs
    args = (Operand(0), Operand(1), DTYPE_CODES[labels.dtype], p.shape[1], Output())
    return (one_thread_each(file_of(node), node.op, p.size, *args),)


def _logit_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    e, _, labels = inputs
    given: tuple[Arg, ...] = (Operand(0), Operand(1), Operand(2))
    args: tuple[Arg, ...] = (*given, DTYPE_CODES[labels.dtype], e.shape[1], Output())
    return (one_thread_each(file_of(node), node.op, e.size, *args),)


def _cross_entropy(node: Node, inputs: Types) -> tuple[Launch, ...]:
    rows, classes = inputs[0].shape
    given: tuple[Arg, ...] = (Operand(0), Operand(1), Operand(2), Operand(3))
    args: tuple[Arg, ...] = (*given, DTYPE_CODES[inputs[3].dtype], classes, Output())
    return (one_thread_each(file_of(node), node.op, rows, *args),)


def _square_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    args = (Operand(0), inputs[0].size, attr_int(node.attrs, "shift"), Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """sum, largest."""
    x = inputs[0]
    args = (Operand(0), DTYPE_CODES[x.dtype], x.size, Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _fast_rows(node: Node, inputs: Types) -> tuple[Launch, ...]:
    rows, classes = inputs[0].shape
    args = (rows, Operand(0), classes, Output())
    block = (THREADS, 1, 1)
    if classes <= _SHORT_ROW:
        return _rows(node, inputs)
    if classes < _LONG_ROW:
        grid = (-(-rows * WARP // THREADS), 1, 1)
        return (Launch(file_of(node), f"{node.op}_warps", grid, block, args),)
    return (Launch(file_of(node), f"{node.op}_blocks", (rows, 1, 1), block, args),)


def _parts(elements: int) -> int:
    """Blocks for the parts of a sum: at least 16 elements a thread."""
    return max(1, min(_MOST_PARTS, -(-elements // (16 * THREADS))))


def _fast_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """sum, largest: the kernel that leaves parts also joins them."""
    kernel = f"{node.op}_parts"
    x, parts, block = inputs[0], _parts(inputs[0].size), (THREADS, 1, 1)
    dtype = DTYPE_CODES[x.dtype]
    if parts == 1:
        args = (x.size, Operand(0), dtype, Output())
        return (Launch(file_of(node), kernel, (1, 1, 1), block, args),)
    between = Scratch(8 * parts, "parts")
    first = (x.size, Operand(0), dtype, between)
    second = (parts, between, DTYPE_CODES["i64"], Output())
    return (
        Launch(file_of(node), kernel, (parts, 1, 1), block, first),
        Launch(file_of(node), kernel, (1, 1, 1), block, second),
    )


def _fast_square_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    size, parts, block = inputs[0].size, _parts(inputs[0].size), (THREADS, 1, 1)
    between = Scratch(8 * parts, "parts")
    first = (size, Operand(0), between)
    last = (parts, between, attr_int(node.attrs, "shift"), Output())
    return (
        Launch(file_of(node), "square_sum_parts", (parts, 1, 1), block, first),
        Launch(file_of(node), "square_sum_round", (1, 1, 1), block, last),
    )


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "row_max": _rows,
    "row_sum": _rows,
    "exp2_diff": _of_row,
    "divide": _of_row,
    "sub_one_hot": _sub_one_hot,
    "logit_grad": _logit_grad,
    "cross_entropy": _cross_entropy,
    "square_sum": _square_sum,
    "sum": _sum,
    "largest": _sum,
}
"""Readable kernels.  ``largest`` is no operator: calibration asks for it."""

FAST: Final[Mapping[str, Lowering]] = {
    "row_max": _fast_rows,
    "row_sum": _fast_rows,
    "sum": _fast_sum,
    "largest": _fast_sum,
    "square_sum": _fast_square_sum,
}
"""Fast variants."""
