"""What moves, cuts and joins values and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from vtrain.graph.model import AddWeight, Concat, Pad, Reshape, Transpose
from vtrain.graph.onnx_file import count_elements
from vtrain.graph.onnx_import import fold, pieces, rotary
from vtrain.graph.onnx_import.importer import Extents, Handlers, Importer, Weight, strip
from vtrain.graph.onnx_import.node import Node
from vtrain.limits import LIMITS
from vtrain.wire.graph import MAX_RANK

_MOST_ADDED_AXES: Final = 3
"""Of a trained tensor that is added."""

_LINE_RANK: Final = 3
"""Of the filters of a convolution over one axis."""


def _flatten(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, x)
    axis = node.take_int("axis", 1)
    node.require(axis in (1, -len(shape)), "axis must be 1, to keep the batch")
    flat = (count_elements(shape, node.where),)
    importer.emit(node, Reshape(node.outputs[0], x, flat), flat)


def _reshape(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    merged = importer.merged.get(importer.values.get(node.inputs[0], ""))
    x = importer.value(node, node.inputs[0]) if merged is None else merged[0]
    before = importer.shape_of(node, x)
    keeps_zero = node.take_int("allowzero", 0) == 0
    asked = importer.ints(node, node.inputs[1])
    if keeps_zero and merged is None:
        whole: Extents = (importer.batch, *before)
        asked = tuple(
            whole[i] if extent == 0 and i < len(whole) else extent for i, extent in enumerate(asked)
        )
    node.require(len(asked) >= 2, f"shape {list(asked)} does not keep the batch")
    count = _count_merged(importer, before, asked)
    if count:
        importer.declare_merged(node, node.outputs[0], x, count)
        return
    batch, *rest = asked
    known = [extent for extent in rest if extent is not None and extent > 0]
    free = rest.count(-1)
    node.require(
        len(known) + free == len(rest) and free <= 1, f"cannot read the shape {list(asked)}"
    )
    is_batch = batch is fold.BATCH or batch == importer.batch
    keeps_batch = is_batch or (batch == -1 and free == 0)
    node.require(keeps_batch, f"shape {list(asked)} does not keep the batch")
    size, filled = count_elements(before, node.where), count_elements(tuple(known), node.where)
    shape = tuple(size // filled if extent == -1 else extent for extent in rest if extent)
    node.require(
        count_elements(shape, node.where) == size, f"cannot reshape {before} to {list(asked)}"
    )
    if merged is not None and shape == before:
        importer.declare(node.outputs[0], node.where)
        importer.values[node.outputs[0]] = x
        return
    importer.emit(node, Reshape(node.outputs[0], x, shape), shape)


def _count_merged(importer: Importer, before: tuple[int, ...], asked: Extents) -> int:
    """How many axes a reshape makes one with the batch, leaving the others; 0 for any other."""
    batch, *rest = asked
    count = len(before) - len(rest)
    if count < 1 or before[count:] != tuple(rest):
        return 0
    stacked = count_elements(before[:count], "reshape")
    known = importer.batch is not None and batch == importer.batch * stacked
    return count if stacked > 1 and (batch == -1 or known) else 0


def _identity(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    importer.alias(node, node.inputs[0])


def _transpose(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    if node.inputs[0] in importer.values:
        _transpose_value(importer, node)
        return
    perm = node.take_ints("perm", (1, 0))
    weight = importer.weights.get(node.inputs[0])
    if weight is None or len(weight.dims) != 2 or perm != (1, 0):
        node.refuse("only a constant matrix can be transposed")
    importer.declare(node.outputs[0], node.where)
    importer.weights[node.outputs[0]] = replace(weight, transposed=not weight.transposed)


def _transpose_merged(importer: Importer, node: Node) -> None:
    """Of a value with ``count`` axes in the batch, which stay there."""
    value, count = importer.merged[importer.values[node.inputs[0]]]
    shape = importer.shapes[value]
    rank = 1 + len(shape) - count
    perm = node.take_ints("perm", tuple(reversed(range(rank))))
    node.require(sorted(perm) == list(range(rank)), f"perm {list(perm)} is no permutation")
    node.require(perm[0] == 0, "the batch must stay the first axis")
    whole = (*range(count + 1), *(axis + count for axis in perm[1:]))
    moved = tuple(shape[axis - 1] for axis in whole[1:])
    name = node.outputs[0]
    importer.emit(node, Transpose(f"{name}/apart", value, whole), moved)
    importer.declare_merged(node, name, f"{name}/apart", count)


def _transpose_value(importer: Importer, node: Node) -> None:
    if importer.values[node.inputs[0]] in importer.merged:
        _transpose_merged(importer, node)
        return
    value = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, value)
    rank = 1 + len(shape)
    perm = node.take_ints("perm", tuple(reversed(range(rank))))
    node.require(sorted(perm) == list(range(rank)), f"perm {list(perm)} is no permutation")
    node.require(perm[0] == 0, "the batch must stay the first axis")
    moved = tuple(shape[axis - 1] for axis in perm[1:])
    importer.emit(node, Transpose(node.outputs[0], value, perm), moved)


def _slice(importer: Importer, node: Node) -> None:
    """Parts along axes other than the batch's; every one of them in order."""
    node.require_inputs(1, 5)
    node.require(len(node.outputs) == 1, "must have one output")
    if importer.is_parameter(node.inputs[0]):
        _slice_parameter(importer, node)
        return
    given: dict[str, tuple[int, ...]] = {}
    for number, what in enumerate(("starts", "ends", "axes", "steps"), start=1):
        if node.has(what):
            given[what] = node.take_ints(what, ())
        elif number < len(node.inputs) and node.inputs[number]:
            given[what] = importer.known_ints(node, node.inputs[number])
    node.require("starts" in given and "ends" in given, "needs starts and ends")
    starts, ends = given["starts"], given["ends"]
    axes = given.get("axes", tuple(range(len(starts))))
    steps = given.get("steps", (1,) * len(starts))
    node.require(len(starts) == len(ends) == len(axes) == len(steps), "its lists differ in length")
    if any(step != 1 for step in steps):
        rotary.slice_with_steps(importer, node, starts, ends, axes, steps)
        return
    value, rank = (
        node.inputs[0],
        1 + len(importer.shape_of(node, importer.value(node, node.inputs[0]))),
    )
    parts = []
    for place, start, end in zip(axes, starts, ends, strict=True):
        if place in (0, -rank) and start == 0 and end >= 2**31 - 1:
            continue  # the whole batch
        axis = pieces.read_axis(node, place, rank)
        extent = importer.shapes[importer.values[value]][axis - 1]
        begin, stop = (
            min(max(place + extent if place < 0 else place, 0), extent) for place in (start, end)
        )
        node.require(begin < stop, f"the part {start} to {end} of {extent} is empty")
        if (begin, stop) != (0, extent):
            parts.append((axis, begin, stop))
    pieces.cut_value(importer, node, value, parts, node.outputs[0])


def _slice_parameter(importer: Importer, node: Node) -> None:
    """The first rows of a parameter, as of a table with more positions than a sample has."""
    weight = importer.weights[node.inputs[0]]
    node.require(len(node.inputs) >= 3 and all(node.inputs), "needs starts and ends")
    lists = [importer.known_ints(node, name) for name in node.inputs[1:]]
    starts, ends, axes, steps = (*lists, *((0,), (1,))[len(lists) - 4 :])[:4]
    axis = len(weight.dims) - len(strip(weight.dims))
    node.require(
        starts == (0,) and steps == (1,) and axes == (axis,) and not weight.transposed,
        f"takes a part of the parameter {weight.name!r} other than its first rows",
    )
    importer.take_rows(node, weight, min(ends[0], weight.dims[axis]))


def _split(importer: Importer, node: Node) -> None:
    node.require_inputs(1, 2)
    node.require(bool(node.outputs) and all(node.outputs), "needs outputs")
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    axis = pieces.read_axis(node, node.take_int("axis", 0), 1 + len(shape))
    extent, count = shape[axis - 1], len(node.outputs)
    sizes = node.take_ints("split", ())
    node.require(node.take_int("num_outputs", count) == count, "num_outputs is not as many")
    if len(node.inputs) == 2:
        sizes = importer.known_ints(node, node.inputs[1])
    if not sizes:
        whole = -(-extent // count)
        sizes = (*(whole,) * (count - 1), extent - whole * (count - 1))
    node.require(
        len(sizes) == count and min(sizes) > 0 and sum(sizes) == extent,
        f"cannot split {extent} into {list(sizes)}",
    )
    start = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        part = (axis, start, start + size)
        pieces.cut_value(importer, node, node.inputs[0], [] if size == extent else [part], name)
        start += size


def _pad(importer: Importer, node: Node) -> None:
    """Zeros before and after, along axes other than the batch's."""
    node.require_inputs(1, 4)
    node.require(len(node.outputs) == 1, "must have one output")
    node.require(node.take_text("mode", "constant") == "constant", "mode must be constant")
    value = importer.value(node, node.inputs[0])
    rank = 1 + len(importer.shape_of(node, value))
    pads = node.take_ints("pads", ())
    if len(node.inputs) > 1 and node.inputs[1]:
        pads = importer.known_ints(node, node.inputs[1])
    filled: float | Fraction = node.take_float("value", 0.0)
    if len(node.inputs) > 2 and node.inputs[2]:
        filled = importer.scalar(node, node.inputs[2])
    node.require(filled == 0, "pads with other values than 0")
    axes = tuple(range(rank))
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = importer.known_ints(node, node.inputs[3])
    node.require(len(pads) == 2 * len(axes), f"has {len(pads)} pads for {len(axes)} axes")
    widths = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    wanted = [(axis, *around) for axis, *around in widths if any(around)]
    if not wanted:
        importer.alias(node, node.inputs[0])
    for count, (axis, before, after) in enumerate(wanted, start=1):
        name = node.outputs[0] if count == len(wanted) else f"{node.outputs[0]}/axis_{count}"
        node.require(min(before, after) >= 0, "negative pads are not supported")
        number = pieces.read_axis(node, axis, rank)
        shape = list(importer.shapes[value])
        shape[number - 1] += before + after
        importer.emit(node, Pad(name, value, number, before, after), tuple(shape))
        value = name


def _unsqueeze(importer: Importer, node: Node) -> None:
    node.require_arity(1, 2)
    if importer.is_parameter(node.inputs[0]):
        _unsqueeze_filters(importer, node)
        return
    if node.inputs[0] not in importer.values:
        node.refuse("is only supported on values and on the shape of a value")
    _unsqueeze_value(importer, node)


def _unsqueeze_filters(importer: Importer, node: Node) -> None:
    """Of a convolution over one axis, as those of images with a height of 1; or one number for
    each channel, the same for all places."""
    weight, axes = importer.weight(node, node.inputs[0]), pieces.take_axes(importer, node)
    of_channels = len(weight.dims) == 1 and axes == tuple(range(1, 1 + len(axes)))
    node.require(
        of_channels or (len(weight.dims) == _LINE_RANK and axes == (2,)),
        f"adds an axis to the parameter {weight.name!r}, which is no filters of a line",
    )
    importer.declare(node.outputs[0], node.where)
    dims = (*weight.dims[:2], 1, weight.dims[-1])
    if of_channels:
        dims = (*weight.dims, *(1,) * len(axes))
    importer.weights[node.outputs[0]] = replace(weight, dims=dims)


def _unsqueeze_value(importer: Importer, node: Node) -> None:
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    axes = pieces.take_axes(importer, node)
    rank = 1 + len(shape) + len(axes)
    node.require(bool(axes) and rank <= MAX_RANK, f"axes are {list(axes)}")
    found = {pieces.read_axis(node, axis, rank) for axis in axes}
    node.require(len(found) == len(axes), f"axes are {list(axes)}")
    extents = iter(shape)
    whole = tuple(1 if axis in found else next(extents) for axis in range(1, rank))
    pieces.reshape_value(importer, node, whole)


def _squeeze(importer: Importer, node: Node) -> None:
    node.require_arity(1, 2)
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    rank = 1 + len(shape)
    axes = pieces.take_axes(importer, node)
    node.require(bool(axes), "must name its axes")
    found = {pieces.read_axis(node, axis, rank) for axis in axes}
    node.require(
        all(shape[axis - 1] == 1 for axis in found),
        f"axes {list(axes)} are not all of extent 1",
    )
    pieces.reshape_value(
        importer, node, tuple(x for axis, x in enumerate(shape, 1) if axis not in found)
    )


def _concat_values(importer: Importer, node: Node) -> None:
    node.require(node.has("axis"), "must name its axis")
    given = node.take_int("axis", 0)
    values = _place_parameters(importer, node, given)
    shapes = [importer.shape_of(node, value) for value in values]
    rank = 1 + len(shapes[0])
    axis = pieces.read_axis(node, given, rank)
    beside = {(*shape[: axis - 1], *shape[axis:]) for shape in shapes}
    node.require(
        len(beside) == 1 and len({len(shape) for shape in shapes}) == 1,
        f"shapes differ beside axis {axis}: {shapes}",
    )
    if len(values) == 1:
        importer.declare(node.outputs[0], node.where)
        importer.values[node.outputs[0]] = values[0]
        return
    whole = list(shapes[0])
    whole[axis - 1] = sum(shape[axis - 1] for shape in shapes)
    importer.emit(node, Concat(node.outputs[0], tuple(values), axis), tuple(whole))


def _place_parameters(importer: Importer, node: Node, given: int) -> list[str]:
    """The values to join along the axis ``given``.  A parameter between them is added to the
    zeros that the value before it, or else after it, is padded with."""
    values: list[str] = []
    waiting: list[Weight] = []
    for number, name in enumerate(node.inputs):
        if not importer.is_parameter(name):
            value = importer.value(node, name)
            for weight in reversed(waiting):
                value = _join_parameter(importer, node, value, weight, given, number, first=True)
            values.append(value)
            waiting = []
        elif values:
            weight = importer.weight(node, name)
            values[-1] = _join_parameter(
                importer, node, values[-1], weight, given, number, first=False
            )
        else:
            waiting.append(importer.weight(node, name))
    node.require(not waiting, "joins parameters alone")
    return values


def _join_parameter(
    importer: Importer,
    node: Node,
    value: str,
    weight: Weight,
    given: int,
    number: int,
    *,
    first: bool,
) -> str:
    """``value`` with a parameter [1, ...] before or after it along an axis."""
    shape = importer.shape_of(node, value)
    axis = pieces.read_axis(node, given, 1 + len(shape))
    batch, *part = weight.dims or (0,)
    node.require(
        batch == 1
        and len(part) == len(shape)
        and (*part[: axis - 1], *part[axis:]) == (*shape[: axis - 1], *shape[axis:])
        and len(strip(weight.dims)) <= _MOST_ADDED_AXES,
        f"joins a parameter of shape {list(weight.dims)} to [batch, "
        f"{', '.join(map(str, shape))}] along axis {axis}",
    )
    added, own = part[axis - 1], shape[axis - 1]
    whole = (*shape[: axis - 1], own + added, *shape[axis:])
    before, after = (added, 0) if first else (0, added)
    name = f"{node.outputs[0]}/part_{number}_with_{weight.name}"
    importer.emit(node, Pad(f"{name}/padded", value, axis, before, after), whole)
    along = (axis, 0, added) if first else (axis, own, own + added)
    importer.emit(node, AddWeight(name, f"{name}/padded", weight.name, along=along), whole)
    return name


def _concat(importer: Importer, node: Node) -> None:
    node.require_arity(1, LIMITS.onnx_nodes)
    _concat_values(importer, node)


def _expand(importer: Importer, node: Node) -> None:
    """Copies along axes of extent 1, as where several heads share a key."""
    node.require_arity(2, 2)
    if importer.is_parameter(node.inputs[0]):
        _expand_parameter(importer, node)
        return
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    asked = importer.ints(node, node.inputs[1])
    rank = 1 + len(shape)
    node.require(len(asked) <= rank, f"shape {list(asked)} adds axes to [batch, {shape}]")
    batch, *extents = ((1,) * (rank - len(asked))) + asked
    keeps_batch = batch in (fold.BATCH, 1, -1) or batch == importer.batch
    node.require(keeps_batch, f"shape {list(asked)} does not keep the batch")
    repeats = []
    for axis, (extent, wanted) in enumerate(zip(shape, extents, strict=True), start=1):
        node.require(
            wanted is not None and (wanted in (1, -1, extent) or extent == 1),
            f"cannot expand [batch, {shape}] to {list(asked)}",
        )
        if extent == 1 and wanted is not None and wanted > 1:
            repeats.append((axis, wanted))
    _repeat(importer, node, repeats)


def _expand_parameter(importer: Importer, node: Node) -> None:
    """A parameter [1, ...], the same for each sample: it stays as it is."""
    weight = importer.weight(node, node.inputs[0])
    batch, *extents = importer.ints(node, node.inputs[1]) or (1,)
    dims = (*(1,) * (1 + len(extents) - len(weight.dims)), *weight.dims)
    node.require(
        (batch in (fold.BATCH, 1, -1) or batch == importer.batch)
        and dims == (1, *extents)
        and not weight.transposed,
        f"spreads the parameter {weight.name!r} of shape {list(weight.dims)} along other than "
        "the batch",
    )
    importer.declare(node.outputs[0], node.where)
    importer.weights[node.outputs[0]] = replace(weight, dims=dims)


def _tile(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    shape = importer.shape_of(node, importer.value(node, node.inputs[0]))
    counts = importer.known_ints(node, node.inputs[1])
    node.require(len(counts) == 1 + len(shape), f"has {len(counts)} counts")
    node.require(counts[0] == 1, "the batch must stay as it is")
    node.require(min(counts) >= 1, f"counts are {list(counts)}")
    repeats = [(axis, count) for axis, count in enumerate(counts) if count > 1]
    _repeat(importer, node, repeats)


def _repeat(importer: Importer, node: Node, repeats: Sequence[tuple[int, int]]) -> None:
    """So many copies along each of these axes."""
    value = importer.value(node, node.inputs[0])
    if not repeats:
        importer.alias(node, node.inputs[0])
    for number, (axis, count) in enumerate(repeats, start=1):
        name = node.outputs[0] if number == len(repeats) else f"{node.outputs[0]}/axis_{axis}"
        pieces.emit_copies(importer, node, name, value, axis, count)
        value = name


HANDLERS: Handlers = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
