"""Gemm and MatMul."""

from __future__ import annotations

from fractions import Fraction

from vtrain.graph.model import Linear, MatMul, Transpose
from vtrain.graph.onnx_import import pieces
from vtrain.graph.onnx_import.importer import Handlers, Importer, Weight
from vtrain.graph.onnx_import.node import Node


def _gemm(importer: Importer, node: Node) -> None:
    node.require_arity(2, 3)
    node.require(node.take_float("alpha", 1.0) == 1.0, "alpha must be 1")
    node.require(node.take_float("beta", 1.0) == 1.0, "beta must be 1")
    node.require(node.take_int("transA", 0) == 0, "transA must be 0")
    if importer.values.get(node.inputs[0]) not in importer.merged:
        importer.shape_of(node, importer.value(node, node.inputs[0]), 1)
    bias = importer.weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
    _linear(importer, node, bool(node.take_int("transB", 0)), bias)


def _matmul(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    if all(name in importer.values for name in node.inputs):
        _matmul_values(importer, node)
    else:
        _linear(importer, node, False, None)


def _matmul_values(importer: Importer, node: Node) -> None:
    """Products of the matrices of two values, with no extent of 1 that stands for many."""
    names, merged = (
        list(node.inputs),
        [importer.merged.get(importer.values[n]) for n in node.inputs],
    )
    counts = {0 if item is None else item[1] for item in merged}
    node.require(len(counts) == 1, "only one operand has its batch merged with another axis")
    values = [
        importer.value(node, name) if item is None else item[0]
        for name, item in zip(names, merged, strict=True)
    ]
    shapes = [importer.shape_of(node, value) for value in values]
    node.require(
        min(map(len, shapes)) >= 2,
        f"needs matrices at each of the batch, the shapes are {shapes[0]} and {shapes[1]}",
    )
    (*stack, m, k), (*other, inner, n) = shapes
    node.require(stack == other, f"leading extents differ: {stack} and {other}")
    node.require(k == inner, f"inner extents differ: {k} and {inner}")
    (left, rows, one), (right, columns, two) = (_turn_back(importer, node, v) for v in values)
    name, shape = node.outputs[0], (*stack, m, n)
    (count,) = counts
    made = f"{name}/apart" if count else name
    scaled = f"{made}/unscaled" if one * two != 1 else made
    importer.emit(node, MatMul(scaled, left, right, rows, columns), shape)
    if scaled != made:
        pieces.scale_value(importer, node, scaled, one * two, made)
    if count:
        importer.declare_merged(node, name, importer.values[made], count)


def _turn_back(importer: Importer, node: Node, value: str) -> tuple[str, bool, Fraction]:
    """A matrix operand, whether it is to be read transposed, and a factor of the product: where
    a layer has moved the last axis away, it is left where it is."""
    value, factor = importer.take_factor(value)
    layer = importer.layers.get(value)
    if not isinstance(layer, Transpose) or layer.perm[-1] == len(layer.perm) - 1:
        return value, False, factor
    perm = (*layer.perm[:-2], layer.perm[-1], layer.perm[-2])
    source, before = importer.take_factor(layer.input)
    factor *= before
    inner = importer.layers.get(source)
    if isinstance(inner, Transpose):  # of a transpose: one does both
        source, perm = inner.input, tuple(inner.perm[axis] for axis in perm)
    if perm == tuple(range(len(perm))):
        return source, True, factor
    turned = f"{value}/turned_back"
    if turned not in importer.layers:
        *stack, rows, columns = importer.shapes[value]
        importer.emit(node, Transpose(turned, source, perm), (*stack, columns, rows))
    return turned, True, factor


def _linear(importer: Importer, node: Node, swap: bool, bias: Weight | None) -> None:
    """Rows that a reshape has made of several axes are done in those axes."""
    x, count = importer.merged.get(importer.values.get(node.inputs[0], ""), ("", 0))
    if not count:
        x = importer.value(node, node.inputs[0])
    weight = importer.weight(node, node.inputs[1])
    *leading, features = importer.shape_of(node, x)
    node.require(len(weight.dims) == 2, f"weight has shape {list(weight.dims)}")
    transposed = weight.transposed != swap
    inner, outer = weight.dims[::-1] if transposed else weight.dims
    node.require(inner == features, f"weight is for {inner} features, input has {features}")
    node.require(min(weight.dims) > 0, "weight is empty")
    name = node.outputs[0]
    made = f"{name}/apart" if count else name
    layer = Linear(made, x, weight.name, pieces.read_bias(node, bias, outer), transposed)
    importer.emit(node, layer, (*leading, outer))
    if count:
        importer.declare_merged(node, name, made, count)


HANDLERS: Handlers = {
    "Gemm": _gemm,
    "MatMul": _matmul,
}
