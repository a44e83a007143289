"""Launches of the kernels of ``vtrain.ops.commitment``: hashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.digest import (
    plan_leaves,
    plan_place,
    plan_root,
    plan_tensor_digest,
    split_state_leaf,
)
from vtrain.engines.cuda.launch import (
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of
from vtrain.ops.base import attr_int
from vtrain.spec import domains
from vtrain.wire.graph import Node

_DIGEST_BYTES: Final = 32
_GATHERED: Final = 8
"""Leaf hashes that one launch brings together."""


def _bytes(data: bytes) -> tuple[Arg, Arg]:
    """The two arguments of bytes that never change: where they are and how many."""
    return Constant(data), len(data)


def _tensor_digest(node: Node, inputs: Types) -> tuple[Launch, ...]:
    args = (Operand(0), inputs[0].byte_length, Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _batch_digest(node: Node, inputs: Types) -> tuple[Launch, ...]:
    args = (*_bytes(domains.BATCH.encode()), Operand(0), Operand(1), Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _state_leaf(node: Node, inputs: Types) -> tuple[Launch, ...]:
    before, after = split_state_leaf(node)
    context = _bytes(domains.STATE_TREE.encode())
    args = (*context, *_bytes(before), Operand(0), *_bytes(after), Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _gather_leaves(node: Node, size: int) -> tuple[tuple[Launch, ...], Scratch]:
    """Launches that bring the leaf hashes, which are operands, together, and where to."""
    leaves = Scratch(max(1, size) * _DIGEST_BYTES, "leaves")
    launches = []
    for first in range(0, size, _GATHERED):
        nbytes = min(_GATHERED, size - first) * _DIGEST_BYTES
        # Operands beyond the last leaf are not read.
        given: list[Arg] = [Operand(min(first + i, size - 1)) for i in range(_GATHERED)]
        args = (first, *given, leaves)
        launches.append(one_thread_each(file_of(node), "state_root_gather", nbytes, *args))
    return tuple(launches), leaves


def _state_root(node: Node, inputs: Types) -> tuple[Launch, ...]:
    launches, leaves = _gather_leaves(node, len(inputs))
    args = (*_bytes(domains.STATE_TREE.encode()), leaves, len(inputs), Output())
    return (*launches, one_thread_each(file_of(node), node.op, 1, *args))


def _record(node: Node, inputs: Types) -> tuple[Launch, ...]:
    context, length = _bytes(domains.RUN_LOG.encode())
    every = attr_int(node.attrs, "commit_every")
    given: tuple[Arg, ...] = (Operand(0), Operand(1), Operand(2), Operand(3))
    args: tuple[Arg, ...] = (context, length, every, *given, Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _fast_tensor_digest(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return plan_tensor_digest(inputs[0].byte_length)


def _fast_state_leaf(node: Node, inputs: Types) -> tuple[Launch, ...]:
    write, place = plan_place()
    return (write, plan_leaves([node], place, Output()))


def _fast_state_root(node: Node, inputs: Types) -> tuple[Launch, ...]:
    launches, leaves = _gather_leaves(node, len(inputs))
    return (*launches, plan_root(len(inputs), leaves))


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "tensor_digest": _tensor_digest,
    "batch_digest": _batch_digest,
    "state_leaf": _state_leaf,
    "state_root": _state_root,
    "record": _record,
}
"""Readable kernels."""

FAST: Final[Mapping[str, Lowering]] = {
    "tensor_digest": _fast_tensor_digest,
    "state_leaf": _fast_state_leaf,
    "state_root": _fast_state_root,
}
"""Fast variants."""
