"""Launches of the kernels of ``vtrain.ops.parts``: cutting and joining along one axis."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from vtrain.engines.cuda.launch import DTYPE_CODES, Launch, Operand, Output, one_thread_each
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, launch, operand, output
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _extents(node: Node, inputs: Types) -> tuple[int, int, int]:
    """Along the axis of the input and of the output, and elements of one place along it."""
    axis = attr_int(node.attrs, "axis")
    shape = node.outputs[0].shape
    return inputs[0].shape[axis], shape[axis], prod(shape[axis + 1 :])


def _slice(node: Node, inputs: Types) -> tuple[Launch, ...]:
    start = attr_int(node.attrs, "start")
    extents = _extents(node, inputs)
    return launch(node, *operand(0, inputs), *extents, start, *output(node))


def _pad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    before = attr_int(node.attrs, "before")
    extents = _extents(node, inputs)
    return launch(node, *operand(0, inputs), *extents, before, *output(node))


def _concat(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """A launch for each input, which puts its elements where they belong."""
    axis = attr_int(node.attrs, "axis")
    whole = node.outputs[0].shape
    inner, dtype = prod(whole[axis + 1 :]), DTYPE_CODES[node.outputs[0].dtype]
    launches, begin = [], 0
    for number, part in enumerate(inputs):
        extent = part.shape[axis]
        args = (Operand(number), extent, whole[axis], inner, begin, Output(), dtype)
        launches.append(one_thread_each(file_of(node), node.op, part.size, *args))
        begin += extent
    return tuple(launches)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
}
"""Readable kernels."""
