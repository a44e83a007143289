"""Lowering of rows, losses, optimizers, the sample order and hashes to kernels.

``LOWERINGS`` has the readable kernels, ``FAST`` the fast variants of those that gain from one;
pointwise operators are made fast by fusing them (``vtrain.engines.cuda.fuse``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from vtrain.engines.cuda.digest import (
    plan_leaves,
    plan_place,
    plan_root,
    plan_tensor_digest,
    split_state_leaf,
)
from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    THREADS,
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    Saturated,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lower_arithmetic import Lowering
from vtrain.ops.base import attr_int, attr_ints
from vtrain.spec import domains
from vtrain.wire.graph import Node, TensorType

_DIGEST_BYTES: Final = 32
_GATHERED: Final = 8
"""Leaf hashes that one launch brings together."""
_WARP: Final = 32
_MOST_PARTS: Final = 1024
"""Blocks that add up parts of a large tensor."""
_LONG_ROW: Final = 4096
"""From here on a row has a block to itself."""
_SHORT_ROW: Final = 8
"""Up to here a thread a row is enough."""


def _file(node: Node) -> str:
    return f"{node.op}.cu"


def _seed(node: Node) -> int:
    seed = node.attrs["seed"]
    return int.from_bytes(seed if isinstance(seed, bytes) else b"", "little", signed=True)


def _lower_sample_index(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    samples, batch = attr_int(node.attrs, "samples"), attr_int(node.attrs, "batch")
    args = (Operand(0), samples, _seed(node), Output())
    return (one_thread_each(_file(node), node.op, batch, *args),)


def _lower_rows(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """row_max, row_sum."""
    rows, classes = inputs[0].shape
    return (one_thread_each(_file(node), node.op, rows, Operand(0), classes, Output()),)


def _lower_of_row(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """exp2_diff, divide: an element and something of its row."""
    args = (Operand(0), Operand(1), inputs[0].shape[1], Output())
    return (one_thread_each(_file(node), node.op, inputs[0].size, *args),)


def _lower_sub_one_hot(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    p, labels = inputs
    args = (Operand(0), Operand(1), DTYPE_CODES[labels.dtype], p.shape[1], Output())
    return (one_thread_each(_file(node), node.op, p.size, *args),)


def _lower_cross_entropy(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    rows, classes = inputs[0].shape
    given: tuple[Arg, ...] = (Operand(0), Operand(1), Operand(2), Operand(3))
    args: tuple[Arg, ...] = (*given, DTYPE_CODES[inputs[3].dtype], classes, Output())
    return (one_thread_each(_file(node), node.op, rows, *args),)


def _lower_square_sum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    args = (Operand(0), inputs[0].size, attr_int(node.attrs, "shift"), Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _lower_sum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """sum, largest."""
    x = inputs[0]
    args = (Operand(0), DTYPE_CODES[x.dtype], x.size, Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _lower_momentum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    decay, shift = attr_int(node.attrs, "decay"), attr_int(node.attrs, "shift")
    args = (Operand(0), Operand(1), decay, shift, Output(), Saturated())
    return (one_thread_each(_file(node), node.op, inputs[0].size, *args),)


def _lower_sgd_update(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    shift = attr_int(node.attrs, "shift")
    args = (Operand(0), Operand(1), Operand(2), shift, Output(), Saturated())
    return (one_thread_each(_file(node), node.op, inputs[0].size, *args),)


def _integers(values: Sequence[int]) -> Constant:
    return Constant(struct.pack(f"<{len(values)}q", *values))


def _lower_schedule(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    starts, rates = attr_ints(node.attrs, "starts"), attr_ints(node.attrs, "rates")
    args = (Operand(0), _integers(starts), _integers(rates), len(starts), Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _bytes(data: bytes) -> tuple[Arg, Arg]:
    """The two arguments of bytes that never change: where they are and how many."""
    return Constant(data), len(data)


def _lower_tensor_digest(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    args = (Operand(0), inputs[0].byte_length, Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _lower_batch_digest(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    args = (*_bytes(domains.BATCH.encode()), Operand(0), Operand(1), Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _lower_state_leaf(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    before, after = split_state_leaf(node)
    context = _bytes(domains.STATE_TREE.encode())
    args = (*context, *_bytes(before), Operand(0), *_bytes(after), Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


def _gather_leaves(node: Node, size: int) -> tuple[tuple[Launch, ...], Scratch]:
    """Launches that bring the leaf hashes, which are operands, together, and where to."""
    leaves = Scratch(max(1, size) * _DIGEST_BYTES, "leaves")
    launches = []
    for first in range(0, size, _GATHERED):
        nbytes = min(_GATHERED, size - first) * _DIGEST_BYTES
        # Operands beyond the last leaf are not read.
        given: list[Arg] = [Operand(min(first + i, size - 1)) for i in range(_GATHERED)]
        args = (first, *given, leaves)
        launches.append(one_thread_each(_file(node), "state_root_gather", nbytes, *args))
    return tuple(launches), leaves


def _lower_state_root(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    launches, leaves = _gather_leaves(node, len(inputs))
    args = (*_bytes(domains.STATE_TREE.encode()), leaves, len(inputs), Output())
    return (*launches, one_thread_each(_file(node), node.op, 1, *args))


def _lower_record(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    context, length = _bytes(domains.RUN_LOG.encode())
    every = attr_int(node.attrs, "commit_every")
    given: tuple[Arg, ...] = (Operand(0), Operand(1), Operand(2), Operand(3))
    args: tuple[Arg, ...] = (context, length, every, *given, Output())
    return (one_thread_each(_file(node), node.op, 1, *args),)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "sample_index": _lower_sample_index,
    "row_max": _lower_rows,
    "row_sum": _lower_rows,
    "exp2_diff": _lower_of_row,
    "divide": _lower_of_row,
    "sub_one_hot": _lower_sub_one_hot,
    "cross_entropy": _lower_cross_entropy,
    "square_sum": _lower_square_sum,
    "sum": _lower_sum,
    "largest": _lower_sum,
    "momentum": _lower_momentum,
    "sgd_update": _lower_sgd_update,
    "schedule": _lower_schedule,
    "tensor_digest": _lower_tensor_digest,
    "batch_digest": _lower_batch_digest,
    "state_leaf": _lower_state_leaf,
    "state_root": _lower_state_root,
    "record": _lower_record,
}
"""Readable kernels: operator -> lowering.  ``largest`` is no operator: calibration asks for it."""


def _fast_rows(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    rows, classes = inputs[0].shape
    args = (rows, Operand(0), classes, Output())
    block = (THREADS, 1, 1)
    if classes <= _SHORT_ROW:
        return _lower_rows(node, inputs)
    if classes < _LONG_ROW:
        grid = (-(-rows * _WARP // THREADS), 1, 1)
        return (Launch(_file(node), f"{node.op}_warps", grid, block, args),)
    return (Launch(_file(node), f"{node.op}_blocks", (rows, 1, 1), block, args),)


def _parts(elements: int) -> int:
    """Blocks for the parts of a sum: at least 16 elements a thread."""
    return max(1, min(_MOST_PARTS, -(-elements // (16 * THREADS))))


def _fast_sum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    """sum, largest: the kernel that leaves parts also joins them."""
    kernel = f"{node.op}_parts"
    x, parts, block = inputs[0], _parts(inputs[0].size), (THREADS, 1, 1)
    dtype = DTYPE_CODES[x.dtype]
    if parts == 1:
        args = (x.size, Operand(0), dtype, Output())
        return (Launch(_file(node), kernel, (1, 1, 1), block, args),)
    between = Scratch(8 * parts, "parts")
    first = (x.size, Operand(0), dtype, between)
    second = (parts, between, DTYPE_CODES["i64"], Output())
    return (
        Launch(_file(node), kernel, (parts, 1, 1), block, first),
        Launch(_file(node), kernel, (1, 1, 1), block, second),
    )


def _fast_square_sum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    size, parts, block = inputs[0].size, _parts(inputs[0].size), (THREADS, 1, 1)
    between = Scratch(8 * parts, "parts")
    last = (parts, between, attr_int(node.attrs, "shift"), Output())
    return (
        Launch(_file(node), "square_sum_parts", (parts, 1, 1), block, (size, Operand(0), between)),
        Launch(_file(node), "square_sum_round", (1, 1, 1), block, last),
    )


def _fast_column_sum(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    x = inputs[0]
    columns = x.shape[-1]
    rows = x.size // columns
    across, block = -(-columns // _WARP), (_WARP, _WARP, 1)
    # At least 8 rows a thread, and few enough parts for one block.
    parts = max(1, min(2 * _WARP, rows // (8 * _WARP)))
    between: Arg = Scratch(8 * parts * columns, "parts") if parts > 1 else Output()
    first = (columns, Operand(0), DTYPE_CODES[x.dtype], rows, between)
    launch = Launch(_file(node), "column_sum_parts", (across, parts, 1), block, first)
    if parts == 1:
        return (launch,)
    second = (columns, between, DTYPE_CODES["i64"], parts, Output())
    return (launch, Launch(_file(node), "column_sum_parts", (across, 1, 1), block, second))


def _fast_tensor_digest(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    return plan_tensor_digest(inputs[0].byte_length)


def _fast_state_leaf(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    write, place = plan_place()
    return (write, plan_leaves([node], place, Output()))


def _fast_state_root(node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
    launches, leaves = _gather_leaves(node, len(inputs))
    return (*launches, plan_root(len(inputs), leaves))


FAST: Final[Mapping[str, Lowering]] = {
    "row_max": _fast_rows,
    "row_sum": _fast_rows,
    "sum": _fast_sum,
    "largest": _fast_sum,
    "square_sum": _fast_square_sum,
    "column_sum": _fast_column_sum,
    "tensor_digest": _fast_tensor_digest,
    "state_leaf": _fast_state_leaf,
    "state_root": _fast_state_root,
}
"""Fast variants: operator -> lowering."""
