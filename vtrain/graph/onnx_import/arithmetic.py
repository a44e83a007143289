"""Add, Mul and Div."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from vtrain.graph.model import Activation, Add, AddWeight, Linear, Mul, MulWeight, RMSNorm
from vtrain.graph.onnx_import import masks, norm, pieces, tables
from vtrain.graph.onnx_import.importer import Handlers, Importer, Weight, strip
from vtrain.graph.onnx_import.node import Node

_MOST_ADDED_AXES: Final = 3
"""Of a trained tensor that is added."""


def _add(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    for name, other in (node.inputs, node.inputs[::-1]):
        if name in importer.spreads:
            norm.add_epsilon(importer, node, importer.spreads[name], other)
            return
    for name, other in (node.inputs, node.inputs[::-1]):
        if (
            name in importer.values
            and other not in importer.values
            and masks.hides_places(importer, node, other)
        ):
            masks.mask_value(importer, node, name, importer.constant_of(node, other) == 0)
            return
        if norm.is_of_channels(importer, name, other, scale=False):
            norm.finish_group_norm(importer, node, name, other, scale=False)
            return
    constants = [name for name in node.inputs if name in importer.weights]
    if not constants:
        left, right, shape = pieces.pair_values(importer, node)
        importer.emit(node, Add(node.outputs[0], left, right), shape)
        return
    others = [name for name in node.inputs if name not in importer.weights]
    node.require(len(others) == 1, "adds two constants")
    value = importer.value(node, others[0])
    layer, weight = importer.layers.get(value), importer.weights[constants[0]]
    # One of the shape of a place is a tensor that is added: so such models were lowered before.
    if importer.is_number(constants[0]) and weight.dims != importer.shape_of(node, value)[-1:]:
        pieces.shift_value(importer, node, value, importer.scalar(node, constants[0]))
        return
    fits = isinstance(layer, Linear) and layer.bias is None
    if not isinstance(layer, Linear) or not fits or len(strip(weight.dims)) > 1:
        _add_weight(importer, node, value, weight)
        return
    # A Linear of its own: the one without the bias is pruned unless something else reads it.
    shape = importer.shapes[layer.name]
    bias = pieces.read_bias(node, importer.weights[constants[0]], shape[-1])
    importer.emit(node, replace(layer, name=node.outputs[0], bias=bias), shape)


def _add_weight(importer: Importer, node: Node, value: str, weight: Weight) -> None:
    """A trained tensor of the shape of the value's last axes, or of its channels."""
    dims = strip(weight.dims)
    value = _spread(importer, node, value, dims)
    shape = importer.shape_of(node, value)
    fits = 1 <= len(dims) <= min(len(shape), _MOST_ADDED_AXES) and shape[-len(dims) :] == dims
    by_channels = not fits and _is_of_channels(dims, shape)
    node.require(
        (fits or (by_channels and weight.rows is None)) and not weight.transposed,
        f"a constant that is added has the shape of the last axes of [batch, "
        f"{', '.join(map(str, shape))}], or that of its channels, not {list(weight.dims)}",
    )
    layer = AddWeight(node.outputs[0], value, weight.name, weight.rows, by_channels=by_channels)
    importer.emit(node, layer, shape)


def _is_of_channels(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) > 1 and dims == (shape[0], *(1,) * (len(shape) - 1))


def _spread(importer: Importer, node: Node, value: str, dims: tuple[int, ...]) -> str:
    """A value, copied along those of its last axes in which it has an extent of 1 and a trained
    tensor of ``dims`` has more."""
    shape = importer.shape_of(node, value)
    lead = len(shape) - len(dims)
    if lead < 0 or not all(a in (1, b) for a, b in zip(shape[lead:], dims, strict=True)):
        return value
    return pieces.spread_value(
        importer, node, f"{node.outputs[0]}/value", value, (*shape[:lead], *dims)
    )


def _mul(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    for name, other in (node.inputs, node.inputs[::-1]):
        if other in importer.spreads:
            norm.normalize(importer, node, name, importer.spreads[other], -1)
            return
        layer = importer.layers.get(importer.values.get(name, ""))
        if isinstance(layer, RMSNorm) and norm.is_scale(importer, layer, other):
            norm.scale_norm(importer, node, layer, other)
            return
        if norm.is_of_channels(importer, name, other, scale=True):
            norm.finish_group_norm(importer, node, name, other, scale=True)
            return
        if name in importer.values and (other in importer.weights or other in importer.computed):
            if importer.is_parameter(other):
                _mul_weight(importer, node, name, importer.weight(node, other))
            elif tables.is_table(importer, other):
                tables.multiply(importer, node, name, other)
            else:
                _scale(importer, node, name, importer.scalar(node, other))
            return
    left, right, shape = pieces.pair_values(importer, node)
    for x, gate in ((left, right), (right, left)):
        layer = importer.layers.get(gate)
        if isinstance(layer, Activation) and (layer.kind, layer.input) == ("sigmoid", x):
            # The sigmoid is pruned unless something else reads it.
            importer.emit(node, Activation(node.outputs[0], x, "silu"), shape)
            return
    importer.emit(node, Mul(node.outputs[0], left, right), shape)


def _mul_weight(importer: Importer, node: Node, name: str, weight: Weight) -> None:
    """A trained tensor of the shape of the value's last axes or its channels, or a number."""
    dims = strip(weight.dims) or (1,)
    value = _spread(importer, node, importer.value(node, name), dims)
    shape = importer.shape_of(node, value)
    by_channels = _is_of_channels(dims, shape)
    node.require(
        (by_channels or dims == (1,) or shape[-len(dims) :] == dims)
        and len(weight.dims) <= 1 + len(shape)
        and not weight.transposed,
        f"a parameter that multiplies has the shape of the last axes of [batch, "
        f"{', '.join(map(str, shape))}], or that of its channels, not {list(weight.dims)}",
    )
    layer = MulWeight(node.outputs[0], value, weight.name, by_channels)
    importer.emit(node, layer, shape)


def _div(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    dividend, root = node.inputs
    if root in importer.spreads and dividend in importer.values:
        norm.normalize(importer, node, dividend, importer.spreads[root], 1)
        return
    if root in importer.spreads:
        node.require(importer.scalar(node, dividend) == 1, f"{dividend!r} must be 1")
        norm.invert(importer, node, root)
        return
    divisor = importer.scalar(node, node.inputs[1])
    node.require(divisor != 0, "divides by 0")
    _scale(importer, node, node.inputs[0], 1 / divisor)


def _scale(importer: Importer, node: Node, name: str, factor: Fraction) -> None:
    value = importer.value(node, name)
    pieces.scale_value(importer, node, value, factor, node.outputs[0])


def _negate(importer: Importer, node: Node) -> None:
    """-x: x times -1."""
    node.require_arity(1, 1)
    tables.negate_value(importer, node, node.outputs[0], importer.value(node, node.inputs[0]))


def _subtract(importer: Importer, node: Node) -> None:
    """a - b of two values of one shape: a + (-b); one of them may be a number."""
    node.require_arity(2, 2)
    negative = f"{node.outputs[0]}/negative"
    first, second = node.inputs
    if second in importer.weights and importer.is_number(second):
        offset = -importer.scalar(node, second)
        pieces.shift_value(importer, node, importer.value(node, first), offset)
        return
    if first in importer.weights and importer.is_number(first):
        tables.negate_value(importer, node, negative, importer.value(node, second))
        pieces.shift_value(importer, node, negative, importer.scalar(node, first))
        return
    left, right, shape = pieces.pair_values(importer, node)
    tables.negate_value(importer, node, negative, right)
    importer.emit(node, Add(node.outputs[0], left, negative), shape)


HANDLERS: Handlers = {
    "Add": _add,
    "Div": _div,
    "Mul": _mul,
    "Neg": _negate,
    "Sub": _subtract,
}
