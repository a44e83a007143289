"""Pools and means."""

from __future__ import annotations

import math
from typing import Final

from vtrain.graph.model import AveragePool, MaxPool, Reshape, Transpose
from vtrain.graph.onnx_import import convolution, norm
from vtrain.graph.onnx_import.importer import Handlers, Importer
from vtrain.graph.onnx_import.node import Node
from vtrain.ops.layout import Window

_IMAGE_RANK: Final = 4
"""[batch, channels, height, width]."""


def _max_pool(importer: Importer, node: Node) -> None:
    node.require(len(node.outputs) <= 1, "the indices of the maxima are not supported")
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    channels, height, width = image = importer.shape_of(node, x, 3)
    node.require(node.take_int("ceil_mode", 0) == 0, "ceil_mode must be 0")
    node.take_int("storage_order", 0)  # of the indices alone
    window = convolution.read_window(node, image)
    shape = (channels, *window.output_extent(height, width))
    importer.emit(node, MaxPool(node.outputs[0], x, window), shape)


def _average_pool(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    channels, height, width = image = importer.shape_of(node, x, 3)
    node.require(node.take_int("ceil_mode", 0) == 0, "ceil_mode must be 0")
    counts_padding = node.take_int("count_include_pad", 0) == 1
    window = convolution.read_window(node, image)
    node.require(
        counts_padding or not any(window.pads), "with padding, count_include_pad must be 1"
    )
    shape = (channels, *window.output_extent(height, width))
    importer.emit(node, AveragePool(node.outputs[0], x, window), shape)


def _global_max_pool(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    channels, height, width = importer.shape_of(node, x, 3)
    window = Window((height, width), (1, 1), (0, 0, 0, 0))
    importer.emit(node, MaxPool(node.outputs[0], x, window), (channels, 1, 1))


def _global_average_pool(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    _pool_all(importer, node, node.outputs[0], importer.value(node, node.inputs[0]))


def _pool_all(importer: Importer, node: Node, name: str, x: str) -> None:
    channels, height, width = importer.shape_of(node, x, 3)
    window = Window((height, width), (1, 1), (0, 0, 0, 0))
    importer.emit(node, AveragePool(name, x, window), (channels, 1, 1))


def _reduce_mean(importer: Importer, node: Node) -> None:
    """The mean over axes of each sample, as over the places of a sequence, or over height and
    width; or of the squares of rows."""
    node.require_arity(1, 2)
    axes = node.take_ints("axes", ())
    if len(node.inputs) == 2:
        axes = importer.known_ints(node, node.inputs[1])
    node.take_int("noop_with_empty_axes", 0)
    keep = node.take_int("keepdims", 1) == 1
    if norm.mean_squares(importer, node, axes, keep):
        return
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    rank = 1 + len(shape)
    node.require(
        0 < len(axes) < rank - (not keep)
        and all(-rank <= axis < rank for axis in axes)
        and len({axis % rank for axis in axes} | {0}) == 1 + len(axes),
        f"takes the mean over the axes {list(axes)} of [batch, {', '.join(map(str, shape))}]: "
        "they must be named, without the batch, and leave one axis more",
    )
    over = sorted(axis % rank for axis in axes)
    name = node.outputs[0]
    mean = name if keep and rank == _IMAGE_RANK and over == [2, 3] else f"{name}/mean"
    _mean_over(importer, node, mean, over)
    if mean != name:
        left = tuple(
            1 if axis in over else extent
            for axis, extent in enumerate(shape, start=1)
            if keep or axis not in over
        )
        importer.emit(node, Reshape(name, mean, left), left)


def _mean_over(importer: Importer, node: Node, name: str, over: list[int]) -> None:
    """Emit the mean [all that is kept, 1, 1]: a pool of places, to which other axes are
    brought first."""
    x = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, x)
    if len(shape) == _IMAGE_RANK - 1 and over == [2, 3]:
        _pool_all(importer, node, name, x)
        return
    kept = [axis for axis in range(1, 1 + len(shape)) if axis not in over]
    perm = (0, *kept, *over)
    if perm != tuple(range(1 + len(shape))):
        moved = tuple(shape[axis - 1] for axis in perm[1:])
        importer.emit(node, Transpose(f"{name}/places_last", x, perm), moved)
        x = f"{name}/places_last"
    image = (
        math.prod(shape[axis - 1] for axis in kept),
        math.prod(shape[axis - 1] for axis in over),
        1,
    )
    importer.emit(node, Reshape(f"{name}/places", x, image), image)
    _pool_all(importer, node, name, f"{name}/places")


HANDLERS: Handlers = {
    "AveragePool": convolution.take_lines(_average_pool),
    "GlobalAveragePool": convolution.take_lines(_global_average_pool),
    "GlobalMaxPool": convolution.take_lines(_global_max_pool),
    "MaxPool": convolution.take_lines(_max_pool),
    "ReduceMean": _reduce_mean,
}
