"""Launches of readable kernels: sources, layout, matrix products, rescaling, activations, pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    SamplePart,
    Saturated,
    one_thread_each,
)
from vtrain.ops.base import attr_int, attr_ints, attr_text
from vtrain.ops.layout import Window
from vtrain.wire.graph import Node, TensorType

Types = Sequence[TensorType]
Lowering = Callable[[Node, Types], tuple[Launch, ...]]
"""(node, types of its inputs) -> its launches, in order.  What is bound to a node counts as an
input after its own."""


def _launch(node: Node, *args: Arg) -> tuple[Launch, ...]:
    """The readable kernel of the node's operator, one thread an output."""
    return (one_thread_each(f"{node.op}.cu", node.op, node.outputs[0].size, *args),)


def _operand(index: int, types: Types) -> tuple[Arg, Arg]:
    """Pointer and dtype of an input."""
    return Operand(index), DTYPE_CODES[types[index].dtype]


def _output(node: Node) -> tuple[Arg, Arg]:
    """Pointer and dtype of the output."""
    return Output(), DTYPE_CODES[node.outputs[0].dtype]


def _integers(*values: int) -> Constant:
    """Integers of 64 bits in memory, at least one."""
    return Constant(np.array(values or (0,), "<i8").tobytes())


def _elementwise(node: Node, inputs: Types) -> tuple[Launch, ...]:
    operands = [arg for index in range(len(inputs)) for arg in _operand(index, inputs)]
    return _launch(node, *operands, *_output(node))


def _state(node: Node, inputs: Types) -> tuple[Launch, ...]:
    # The recurrent tensor is what is bound: it has the type of the node's output.
    return _launch(node, Operand(0), DTYPE_CODES[node.outputs[0].dtype], *_output(node))


def _gather_samples(node: Node, inputs: Types) -> tuple[Launch, ...]:
    (index,), out = inputs, node.outputs[0]
    part = attr_text(node.attrs, "part")
    per_sample = out.size // max(index.size, 1)
    return _launch(
        node, *_operand(0, inputs), index.hi, SamplePart(part), per_sample, *_output(node)
    )


def _normalize(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("multiplier", "offset", "shift")]
    return _launch(node, *_operand(0, inputs), *numbers, *_output(node), Saturated())


def _one_hot(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return _launch(node, *_operand(0, inputs), attr_int(node.attrs, "depth"), *_output(node))


def _transpose(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shape = inputs[0].shape
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    perm = attr_ints(node.attrs, "perm")
    axes = [number for axis in perm for number in (shape[axis], strides[axis])]
    return _launch(node, *_operand(0, inputs), len(shape), _integers(*axes), *_output(node))


def pack_window(node: Node, image: Sequence[int]) -> Constant:
    """The struct Window of reference_kernels/window.cuh."""
    window = Window.from_attrs(node.attrs)
    _, height, width, channels = image
    extent = window.output_extent(height, width)
    top, left = window.pads[:2]
    return _integers(height, width, channels, *extent, *window.kernel, *window.strides, top, left)


def _patches(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """im2col and max_pool: windows of the input, the output in a dtype of its own."""
    window = pack_window(node, inputs[0].shape)
    return _launch(node, *_operand(0, inputs), window, *_output(node))


def _sum_pool(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return _launch(node, *_operand(0, inputs), pack_window(node, inputs[0].shape), Output())


def _max_pool_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    window = pack_window(node, inputs[1].shape)
    return _launch(node, *_operand(0, inputs), *_operand(1, inputs), window, Output())


def _to_image(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """col2im and sum_pool_grad: the image is the output."""
    window = pack_window(node, attr_ints(node.attrs, "shape", 4))
    return _launch(node, *_operand(0, inputs), window, Output())


def _matmul(node: Node, inputs: Types) -> tuple[Launch, ...]:
    (rows_a, width_a), (rows_b, width_b) = (tensor.shape for tensor in inputs)
    strides_a, inner = (
        ((1, width_a), rows_a) if node.attrs["transpose_a"] else ((width_a, 1), width_a)
    )
    strides_b, columns = (
        ((1, width_b), rows_b) if node.attrs["transpose_b"] else ((width_b, 1), width_b)
    )
    return _launch(
        node,
        *_operand(0, inputs),
        *strides_a,
        *_operand(1, inputs),
        *strides_b,
        columns,
        inner,
        Output(),
    )


def _add_bias(node: Node, inputs: Types) -> tuple[Launch, ...]:
    columns, shift = inputs[1].size, attr_int(node.attrs, "shift")
    return _launch(node, *_operand(0, inputs), *_operand(1, inputs), columns, shift, Output())


def _column_sum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    rows = inputs[0].size // inputs[0].shape[-1]
    return _launch(node, *_operand(0, inputs), rows, Output())


def _rescale(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("multiplier", "shift")]
    return _launch(node, *_operand(0, inputs), *numbers, *_output(node), Saturated())


def _align(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shift_a, shift_b = (attr_int(node.attrs, name) for name in ("shift_a", "shift_b"))
    return _launch(node, *_operand(0, inputs), shift_a, *_operand(1, inputs), shift_b, Output())


def _mul(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return _launch(node, *_operand(0, inputs), *_operand(1, inputs), Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "state": _state,
    "next_state": _elementwise,
    "increment": _elementwise,
    "gather_samples": _gather_samples,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "im2col": _patches,
    "col2im": _to_image,
    "reshape": _elementwise,
    "transpose": _transpose,
    "matmul": _matmul,
    "add_bias": _add_bias,
    "column_sum": _column_sum,
    "rescale": _rescale,
    "add": _align,
    "sub": _align,
    "mul": _mul,
    "relu": _elementwise,
    "relu_grad": _elementwise,
    "max_pool": _patches,
    "max_pool_grad": _max_pool_grad,
    "sum_pool": _sum_pool,
    "sum_pool_grad": _to_image,
}
"""Operators of this module."""
