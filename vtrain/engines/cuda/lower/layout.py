"""Launches of the kernels of ``vtrain.ops.layout``: reordering, and windows over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from vtrain.engines.cuda.launch import Constant, Launch, Output
from vtrain.engines.cuda.lower.common import (
    Lowering,
    Types,
    elementwise,
    integers,
    launch,
    operand,
    output,
)
from vtrain.ops.base import attr_ints
from vtrain.ops.layout import Window
from vtrain.wire.graph import Node


def _transpose(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shape = inputs[0].shape
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    perm = attr_ints(node.attrs, "perm")
    axes = [number for axis in perm for number in (shape[axis], strides[axis])]
    return launch(node, *operand(0, inputs), len(shape), integers(*axes), *output(node))


def pack_window(node: Node, image: Sequence[int]) -> Constant:
    """The struct Window of reference_kernels/window.cuh."""
    window = Window.from_attrs(node.attrs)
    _, height, width, channels = image
    extent = window.output_extent(height, width)
    top, left = window.pads[:2]
    return integers(height, width, channels, *extent, *window.kernel, *window.strides, top, left)


def patches(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """im2col and max_pool: windows of the input, the output in a dtype of its own."""
    window = pack_window(node, inputs[0].shape)
    return launch(node, *operand(0, inputs), window, *output(node))


def to_image(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """col2im and sum_pool_grad: the image is the output."""
    window = pack_window(node, attr_ints(node.attrs, "shape", 4))
    return launch(node, *operand(0, inputs), window, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "im2col": patches,
    "col2im": to_image,
    "reshape": elementwise,
    "transpose": _transpose,
}
"""Readable kernels."""
