"""Launches of the kernels of ``vtrain.ops.layout``: reordering, and windows over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Final

import numpy as np

from vtrain.engines.cuda.launch import (
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    one_thread_each,
)
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
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Node

_WIDEST: Final = 16
"""Bytes that a thread moves at once."""


def _transpose(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shape = inputs[0].shape
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    perm = attr_ints(node.attrs, "perm")
    axes = [number for axis in perm for number in (shape[axis], strides[axis])]
    return launch(node, *operand(0, inputs), len(shape), integers(*axes), *output(node))


def _merge_axes(shape: Sequence[int], perm: Sequence[int]) -> list[tuple[int, int]]:
    """(extent, the input's stride) of each axis of the output; axes that stay side by side are one,
    and those of one place are none."""
    merged: list[tuple[int, int]] = []
    for axis in perm:
        extent, stride = shape[axis], prod(shape[axis + 1 :])
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            extent *= merged.pop()[0]
        merged.append((extent, stride))
    return merged


def _find_units(shape: Sequence[int], dtype: str, perm: Sequence[int]) -> tuple[int, list[int]]:
    """Bytes that a transpose moves at once, and the extent and the input's stride of each axis of
    the output, in such units."""
    size, merged = NUMPY_DTYPES[dtype].itemsize, _merge_axes(shape, perm)
    run = merged.pop()[0] if merged and merged[-1][1] == 1 else 1
    unit = gcd(run * size, _WIDEST)
    axes = [number for extent, stride in merged for number in (extent, stride * size // unit)]
    return unit, [*axes, run * size // unit, 1]


def transpose_units(
    shape: Sequence[int], dtype: str, perm: Sequence[int], x: Arg, out: Arg
) -> Launch | None:
    """The fast launch, from ``x`` to ``out``; None where 32 bits cannot number what it moves."""
    unit, axes = _find_units(shape, dtype, perm)
    count = prod(shape) * NUMPY_DTYPES[dtype].itemsize // unit
    if count >= 1 << 32:
        return None
    args = (x, unit, len(axes) // 2, integers(*axes), out)
    return one_thread_each("transpose.cu", "transpose_units", count, *args)


def _fast_transpose(node: Node, inputs: Types) -> tuple[Launch, ...]:
    [x], perm = inputs, attr_ints(node.attrs, "perm")
    found = transpose_units(x.shape, x.dtype, perm, Operand(0), Output())
    return _transpose(node, inputs) if found is None else (found,)


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

FAST: Final[Mapping[str, Lowering]] = {"transpose": _fast_transpose}
"""Fast variants."""
