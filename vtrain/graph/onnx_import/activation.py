"""Functions of one element."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from vtrain.graph.model import Activation, Clip, Elu, LeakyRelu, Relu
from vtrain.graph.onnx_import import pieces
from vtrain.graph.onnx_import.importer import Handlers, Importer
from vtrain.graph.onnx_import.node import Node

_HIGHEST: Final = 3e38
"""Bounds beyond it are none: exporters write the largest float for infinity."""


def _relu(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    importer.emit(node, Relu(node.outputs[0], x), importer.shape_of(node, x))


def _leaky_relu(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    alpha = node.take_float("alpha", 0.01)
    node.require(math.isfinite(alpha), f"alpha is {alpha}")
    slope = Fraction(alpha)
    if slope == 0:
        importer.emit(node, Relu(node.outputs[0], x), importer.shape_of(node, x))
        return
    node.require(slope > 0, f"alpha must be at least 0, is {float(slope)}")
    multiplier, exponent = pieces.round_factor(node, slope)
    layer = LeakyRelu(node.outputs[0], x, multiplier, exponent)
    importer.emit(node, layer, importer.shape_of(node, x))


def _elu(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    alpha = node.take_float("alpha", 1.0)
    node.require(math.isfinite(alpha) and alpha > 0, f"alpha must be above 0, is {alpha}")
    multiplier, exponent = pieces.round_factor(node, Fraction(alpha))
    layer = Elu(node.outputs[0], x, multiplier, exponent)
    importer.emit(node, layer, importer.shape_of(node, x))


def _clip(importer: Importer, node: Node) -> None:
    """Bounds are attributes up to opset 10, inputs from 11 on."""
    node.require_inputs(1, 3)
    node.require(len(node.outputs) == 1, "must have one output")
    x = importer.value(node, node.inputs[0])
    bounds = [node.take_float("min", -math.inf), node.take_float("max", math.inf)]
    for number, name in enumerate(node.inputs[1:]):
        if name:
            bounds[number] = importer.number(node, name)
    low, high = (None if abs(bound) > _HIGHEST else bound for bound in (bounds[0], bounds[1]))
    node.require(
        bounds[0] < bounds[1] and bounds[0] <= 0 <= bounds[1],
        f"the bounds {bounds[0]} and {bounds[1]} must be below and above 0, or one of them 0",
    )
    if (low, high) == (0, None):
        importer.emit(node, Relu(node.outputs[0], x), importer.shape_of(node, x))
        return
    importer.emit(node, Clip(node.outputs[0], x, low, high), importer.shape_of(node, x))


def _gelu(importer: Importer, node: Node) -> None:
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    form = node.take_text("approximate", "none")
    node.require(form in kinds, f"approximate must be none or tanh, is {form!r}")
    _activation(importer, node, kinds[form])


def _sigmoid(importer: Importer, node: Node) -> None:
    _activation(importer, node, "sigmoid")


def _swish(importer: Importer, node: Node) -> None:
    alpha = node.take_float("alpha", 1.0)
    node.require(alpha == 1.0, f"alpha must be 1, is {alpha}")
    _activation(importer, node, "silu")


def _tanh(importer: Importer, node: Node) -> None:
    _activation(importer, node, "tanh")


def _activation(importer: Importer, node: Node, kind: str) -> None:
    node.require_arity(1, 1)
    x = importer.value(node, node.inputs[0])
    importer.emit(node, Activation(node.outputs[0], x, kind), importer.shape_of(node, x))


HANDLERS: Handlers = {
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "LeakyRelu": _leaky_relu,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Swish": _swish,
    "Tanh": _tanh,
}
