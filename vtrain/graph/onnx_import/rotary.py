"""Rotary positions: what exporters write around products with cosines and sines, and the operator.

A position is turned by x * cos + rotate(x) * sin: rotate swaps the halves of a row, or the two of
each pair, and negates one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vtrain.graph.model import Add, Concat, Reshape, Slice, Transpose
from vtrain.graph.onnx_import import pieces, tables
from vtrain.graph.onnx_import.importer import Handlers, Importer
from vtrain.graph.onnx_import.node import Node
from vtrain.graph.onnx_import.tables import Floats
from vtrain.wire.graph import MAX_RANK

_MATRIX: Final = 2
_HEADS_AXES: Final = 3
_FEWEST_CACHES: Final = 3


def slice_with_steps(
    importer: Importer,
    node: Node,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> None:
    """Each so many of a row: the row becomes runs, of which one place is taken."""
    node.require(
        len(starts) == 1 and steps[0] >= 1,
        f"steps must be 1, or one step along one axis: are {list(steps)}",
    )
    source = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, source)
    axis, step = pieces.read_axis(node, axes[0], 1 + len(shape)), steps[0]
    extent = shape[axis - 1]
    whole = extent % step == 0 and 0 <= starts[0] < step and ends[0] >= extent
    node.require(
        whole,
        f"steps of {step} must take one of each {step} of {extent}, from one of the first to the "
        f"end: not {starts[0]} to {ends[0]}",
    )
    _pick_of_runs(importer, node, node.outputs[0], source, axis, step, starts[0])


def _pick_of_runs(
    importer: Importer, node: Node, name: str, source: str, axis: int, step: int, place: int
) -> None:
    shape = importer.shapes[source]
    runs = f"{source}/runs_{axis}_{step}"
    split = (*shape[: axis - 1], shape[axis - 1] // step, step, *shape[axis:])
    node.require(len(split) < MAX_RANK, f"has {len(shape)} axes")
    if runs not in importer.layers:
        importer.emit(node, Reshape(runs, source, split), split)
    _pick_place(importer, node, name, runs, axis + 1, place)


def pick(importer: Importer, node: Node) -> None:
    """A place along an axis, by a number that is constant: x[..., 0]."""
    node.require_arity(2, 2)
    source = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, source)
    axis = pieces.read_axis(node, node.take_int("axis", 0), 1 + len(shape))
    numbers = importer.known_ints(node, node.inputs[1])
    scalar = importer.constant_of(node, node.inputs[1]).ndim == 0
    node.require(
        len(numbers) == 1, f"takes one place of a value, by a constant: has {len(numbers)}"
    )
    extent = shape[axis - 1]
    node.require(-extent <= numbers[0] < extent, f"there is no place {numbers[0]} among {extent}")
    place = numbers[0] % extent
    if scalar:
        _pick_place(importer, node, node.outputs[0], source, axis, place)
    else:
        pieces.cut_value(
            importer, node, node.inputs[0], [(axis, place, place + 1)], node.outputs[0]
        )


def _pick_place(
    importer: Importer, node: Node, name: str, source: str, axis: int, place: int
) -> None:
    shape = importer.shapes[source]
    cut = (*shape[: axis - 1], 1, *shape[axis:])
    left = (*shape[: axis - 1], *shape[axis:])
    node.require(bool(left), "leaves the batch alone")
    importer.emit(node, Slice(f"{name}/part", source, axis, place, place + 1), cut)
    importer.emit(node, Reshape(name, f"{name}/part", left), left)


def _rotary_embedding(importer: Importer, node: Node) -> None:
    """The operator of opset 23: x [batch, heads, places, features], or [batch, places, features] of
    several heads; the angles [places, features / 2] are constants."""
    node.require(
        _FEWEST_CACHES <= len(node.inputs) <= _FEWEST_CACHES + 1 and all(node.inputs),
        "needs x and both angles",
    )
    node.require(len(node.outputs) == 1, "must have one output")
    paired = node.take_int("interleaved", 0) == 1
    heads, turned = node.take_int("num_heads", 0), node.take_int("rotary_embedding_dim", 0)
    source, name = importer.value(node, node.inputs[0]), node.outputs[0]
    shape = importer.shape_of(node, source)
    flat = len(shape) == _MATRIX
    if flat:
        node.require(heads > 0, "needs num_heads")
        source = pieces.split_heads(importer, node, f"{name}/x", source, heads)
    node.require(len(importer.shapes[source]) == _HEADS_AXES, "needs heads, places and features")
    _, places, features = importer.shapes[source]
    turned = turned or features
    node.require(turned <= features and turned % 2 == 0, f"turns {turned} of {features} features")
    angles = [_read_cache(importer, node, item, places, turned // 2) for item in node.inputs[1:3]]
    made = name if not flat else f"{name}/heads"
    if turned == features:
        _rotate(importer, node, made, source, angles, paired=paired)
    else:
        whole = importer.shapes[source]
        for part, start, stop in (("first", 0, turned), ("rest", turned, features)):
            cut = (*whole[:2], stop - start)
            importer.emit(node, Slice(f"{name}/{part}", source, 3, start, stop), cut)
        _rotate(importer, node, f"{name}/turned", f"{name}/first", angles, paired=paired)
        importer.emit(node, Concat(made, (f"{name}/turned", f"{name}/rest"), 3), whole)
    if flat:
        moved = (places, heads, features)
        importer.emit(node, Transpose(f"{name}/places", made, (0, 2, 1, 3)), moved)
        importer.emit(node, Reshape(name, f"{name}/places", shape), shape)


def _read_cache(importer: Importer, node: Node, name: str, places: int, half: int) -> Floats:
    """Cosines or sines [places, half], by the position of each place."""
    found = tables.read_table(importer, node, name)
    if len(node.inputs) > _FEWEST_CACHES:
        order: Any = importer.constant_of(node, node.inputs[3])
        node.require(
            order.dtype == object and order.ndim == _MATRIX and bool((order == order[:1]).all()),
            "position_ids must be constant, and the same for all of the batch",
        )
        numbers = [-1 if item is None else int(item) for item in order[0].tolist()]
        node.require(
            found.ndim == _MATRIX and 0 <= min(numbers) <= max(numbers) < found.shape[0],
            f"position_ids are beyond the {found.shape[0]} rows of {name!r}",
        )
        found = found[numbers]
    while found.ndim > _MATRIX and found.shape[0] == 1:
        found = found[0]
    node.require(
        found.shape == (places, half),
        f"{name!r} must give [{places}, {half}], gives {list(found.shape)}",
    )
    return found


def _rotate(
    importer: Importer,
    node: Node,
    name: str,
    source: str,
    angles: Sequence[Floats],
    *,
    paired: bool,
) -> None:
    """x * cos + rotate(x) * sin, of the halves of a row or of its pairs."""
    heads, places, features = shape = importer.shapes[source]
    half, axis = features // 2, 4 if paired else 3
    value = source
    if paired:
        value = f"{name}/pairs"
        apart = (heads, places, half, 2)
        importer.emit(node, Reshape(value, source, apart), apart)
    middle = importer.shapes[value][-1] // 2
    cut = (*importer.shapes[value][:-1], middle)
    for part, start in (("a", 0), ("b", middle)):
        importer.emit(node, Slice(f"{name}/{part}", value, axis, start, start + middle), cut)
    swapped = f"{name}/swapped"
    importer.emit(node, Concat(swapped, (f"{name}/b", f"{name}/a"), axis), importer.shapes[value])
    if paired:
        importer.emit(node, Reshape(f"{name}/row", swapped, shape), shape)
        swapped = f"{name}/row"
    cosines, sines = angles
    for of, row, (left, right) in (
        ("cosine", source, (cosines, cosines)),
        ("sine", swapped, (-sines, sines)),
    ):
        # One beside the other in each pair, or half a row beside half a row.
        table = np.stack((left, right), -1 if paired else 1).reshape(places, features)
        tables.modulate(importer, node, f"{name}/by_{of}", row, table, f"{name}/{of}")
    importer.emit(node, Add(name, f"{name}/by_cosine", f"{name}/by_sine"), shape)


HANDLERS: Handlers = {
    "RotaryEmbedding": _rotary_embedding,
}
