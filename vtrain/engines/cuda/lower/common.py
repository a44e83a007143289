"""What the lowerings of all families are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    one_thread_each,
)
from vtrain.wire.graph import Node, TensorType

Types = Sequence[TensorType]
Lowering = Callable[[Node, Types], tuple[Launch, ...]]
"""(node, types of its inputs) -> its launches, in order.  What is bound to a node counts as an
input after its own."""


def file_of(node: Node) -> str:
    """The file of the operator's kernels."""
    return f"{node.op}.cu"


def launch(node: Node, *args: Arg) -> tuple[Launch, ...]:
    """The readable kernel of the node's operator, one thread an output."""
    return (one_thread_each(file_of(node), node.op, node.outputs[0].size, *args),)


def operand(index: int, types: Types) -> tuple[Arg, Arg]:
    """Pointer and dtype of an input."""
    return Operand(index), DTYPE_CODES[types[index].dtype]


def output(node: Node) -> tuple[Arg, Arg]:
    """Pointer and dtype of the output."""
    return Output(), DTYPE_CODES[node.outputs[0].dtype]


def integers(*values: int) -> Constant:
    """Integers of 64 bits in memory, at least one."""
    return Constant(np.array(values or (0,), "<i8").tobytes())


def elementwise(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """The readable kernel of all inputs and the output, whatever their dtypes."""
    operands = [arg for index in range(len(inputs)) for arg in operand(index, inputs)]
    return launch(node, *operands, *output(node))


def read_seed(node: Node) -> int:
    """The attribute ``seed`` as a signed integer of 64 bits."""
    seed = node.attrs["seed"]
    return int.from_bytes(seed if isinstance(seed, bytes) else b"", "little", signed=True)
