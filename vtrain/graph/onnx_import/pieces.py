"""What nodes of several operators become: copies, cuts, multiples, sums with numbers, heads."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from vtrain.graph.model import Concat, Reshape, Scale, Shift, Slice, Transpose
from vtrain.graph.onnx_file import count_elements
from vtrain.graph.onnx_import import tables
from vtrain.graph.onnx_import.importer import Importer, Weight
from vtrain.graph.onnx_import.node import Node

_MOST_COPIES: Final = 64
"""Of a value along one axis."""


def shift_value(importer: Importer, node: Node, value: str, offset: Fraction) -> None:
    """A value plus a number."""
    importer.emit(node, Shift(node.outputs[0], value, float(offset)), importer.shapes[value])


def pair_values(importer: Importer, node: Node) -> tuple[str, str, tuple[int, ...]]:
    """Two values of one shape: where one has an extent of 1, it is copied along that axis."""
    left, right = (importer.value(node, name) for name in node.inputs)
    shape, other = importer.shape_of(node, left), importer.shape_of(node, right)
    fits = len(shape) == len(other) and all(
        a == b or 1 in (a, b) for a, b in zip(shape, other, strict=True)
    )
    node.require(fits, f"shapes differ without the batch: {shape} and {other}")
    whole = tuple(map(max, shape, other))
    sides = [
        spread_value(importer, node, f"{node.outputs[0]}/{side}", value, whole)
        for side, value in (("left", left), ("right", right))
    ]
    return sides[0], sides[1], whole


def spread_value(
    importer: Importer, node: Node, name: str, value: str, whole: tuple[int, ...]
) -> str:
    """A value with copies along the axes in which it has an extent of 1 and ``whole`` more."""
    for axis, extent in enumerate(whole, start=1):
        if importer.shapes[value][axis - 1] != extent:
            made = f"{name}_axis_{axis}"
            emit_copies(importer, node, made, value, axis, extent)
            value = made
    return value


def round_factor(node: Node, factor: Fraction) -> tuple[int, int]:
    """The nearest multiplier * 2^-exponent with a mantissa of 16 bits."""
    node.require(factor > 0, f"the factor must be above 0, is {float(factor)}")
    exponent = max((e for e in range(33) if factor * 2**e < 2**16 - 0.5), default=-1)
    multiplier = int(factor * 2 ** max(exponent, 0) + Fraction(1, 2))
    node.require(
        exponent >= 0 and multiplier > 0, f"the factor {float(factor)} is beyond 2^-33 to 65535"
    )
    while multiplier % 2 == 0 and exponent > 0:
        multiplier, exponent = multiplier // 2, exponent - 1
    return multiplier, exponent


def scale_value(importer: Importer, node: Node, value: str, factor: Fraction, name: str) -> None:
    """``name`` is the value times the nearest factor with a mantissa of 16 bits."""
    if factor < 0:
        negative = f"{name}/negative"
        tables.negate_value(importer, node, negative, value)
        value, factor = negative, -factor
    multiplier, exponent = round_factor(node, factor)
    if (multiplier, exponent) == (1, 0):
        importer.declare(name, node.where)
        importer.values[name] = value
        return
    layer = Scale(name, value, multiplier, exponent)
    importer.emit(node, layer, importer.shape_of(node, value))
    importer.factors[name] = factor


def read_axis(node: Node, axis: int, rank: int) -> int:
    """An axis counted from the front: none but the batch's, which is number 0."""
    node.require(-rank <= axis < rank, f"there is no axis {axis} among {rank}")
    node.require(axis % rank != 0, "the batch must stay as it is")
    return axis % rank


def cut_value(
    importer: Importer, node: Node, value: str, parts: Sequence[tuple[int, int, int]], name: str
) -> None:
    """What lies between bounds along axes, (axis, start, stop) each: the value ``name``."""
    source = importer.value(node, value)
    if not parts:
        importer.declare(name, node.where)
        importer.values[name] = source
    for count, (axis, start, stop) in enumerate(parts, start=1):
        made = name if count == len(parts) else f"{name}/axis_{count}"
        shape = list(importer.shapes[source])
        shape[axis - 1] = stop - start
        importer.emit(node, Slice(made, source, axis, start, stop), tuple(shape))
        source = made


def take_axes(importer: Importer, node: Node) -> tuple[int, ...]:
    """The axes of Squeeze and Unsqueeze: an attribute up to opset 12, an input from 13 on."""
    if len(node.inputs) == 2:
        return importer.known_ints(node, node.inputs[1])
    return node.take_ints("axes", ())


def reshape_value(importer: Importer, node: Node, shape: tuple[int, ...]) -> None:
    """The node as another shape of its first input."""
    node.require(bool(shape), "leaves the batch alone")
    layer = Reshape(node.outputs[0], importer.value(node, node.inputs[0]), shape)
    importer.emit(node, layer, shape)


def emit_copies(
    importer: Importer, node: Node, name: str, value: str, axis: int, count: int
) -> None:
    """So many copies along an axis, as the value ``name``."""
    node.require(count <= _MOST_COPIES, f"{count} copies, more than {_MOST_COPIES}")
    shape = list(importer.shapes[value])
    shape[axis - 1] *= count
    count_elements(tuple(shape), node.where)
    importer.emit(node, Concat(name, (value,) * count, axis), tuple(shape))


def split_heads(importer: Importer, node: Node, name: str, value: str, count: int) -> str:
    """[batch, places, features] -> [batch, heads, places, features of a head]."""
    places, features = importer.shape_of(node, value, 2)
    node.require(features % count == 0, f"{features} features for {count} heads")
    split = (places, count, features // count)
    importer.emit(node, Reshape(f"{name}_heads", value, split), split)
    turned = (count, places, features // count)
    importer.emit(node, Transpose(f"{name}_turned", f"{name}_heads", (0, 2, 1, 3)), turned)
    return f"{name}_turned"


def read_bias(node: Node, bias: Weight | None, features: int) -> str | None:
    """Name of a bias [features] or [1, features]."""
    if bias is None:
        return None
    fits = bias.dims in ((features,), (1, features)) and not bias.transposed
    fits = fits and bias.rows is None
    node.require(fits, f"bias must have shape [{features}], has {list(bias.dims)}")
    return bias.name
