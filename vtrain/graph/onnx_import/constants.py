"""What the file computes of constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import onnx

from vtrain.graph.onnx_import import fold, tables
from vtrain.graph.onnx_import.importer import Extents, Handlers, Importer
from vtrain.graph.onnx_import.node import FLOAT_TYPES, Node

_OF_PARAMETERS: Final = ("Expand", "Gather", "Slice", "Unsqueeze")
"""Operators that leave a parameter one."""


def _constant(importer: Importer, node: Node) -> None:
    node.require_arity(0, 0)
    name = node.outputs[0]
    if node.has("value"):
        attribute = node.take("value", onnx.AttributeProto.TENSOR)
        if attribute is not None:
            importer.store(name, attribute.t)
            importer.constants.add(name)
            importer.literals.add(name)
        return
    node.require(node.has("value_int") != node.has("value_ints"), "must be a tensor or integers")
    ints = node.take_ints("value_ints", (node.take_int("value_int", 0),))
    importer.declare(name, node.where)
    importer.computed[name] = fold.as_constant(np.array(ints, dtype=object))


def _cast(importer: Importer, node: Node) -> None:
    """Of a value to another float: how it is stored is no matter here."""
    node.require_arity(1, 1)
    node.require(node.take_int("to", 0) in FLOAT_TYPES, "casts a value to no float")
    node.take_int("saturate", 1)
    importer.value(node, node.inputs[0])
    importer.alias(node, node.inputs[0])


def _shape(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    name = node.inputs[0]
    if name in importer.computed or name in importer.weights:
        whole: Extents = importer.constant_of(node, name).shape
    elif name in importer.masks:
        whole = (importer.batch, *importer.masks[name].shape)
    else:
        whole = (importer.batch, *importer.shapes[importer.any_value(node, name)])
    start, end = node.take_int("start", 0), node.take_int("end", len(whole))
    importer.declare(node.outputs[0], node.where)
    importer.computed[node.outputs[0]] = np.array(whole[start:end], dtype=object)


def is_folded(importer: Importer, node: Node) -> bool:
    """Whether a node computes with constants alone.  What only gives a trained tensor another
    name, takes rows of it, or adds two of them, is not meant."""
    known = [name in importer.computed for name in node.inputs if name]
    stored = [name in importer.weights for name in node.inputs if name]
    both = [a or b for a, b in zip(known, stored, strict=True)]
    if node.op not in fold.OPERATORS or not both or not all(both):
        return False
    if node.op in _OF_PARAMETERS and importer.is_parameter(node.inputs[0]):
        return False
    if node.op == "Gather" and _is_table(importer, node.inputs[0]):
        return tables.is_rotation(importer, importer.weights[node.inputs[0]].name)
    return any(known) or node.op not in ("Add", "Identity", "MatMul", "Transpose")


def _is_table(importer: Importer, name: str) -> bool:
    """A stored matrix of floats, whose rows are trained."""
    weight = importer.weights.get(name)
    if weight is None or len(weight.dims) != 2:
        return False
    return importer.tensors[weight.name].data_type in FLOAT_TYPES


def fold_node(importer: Importer, node: Node) -> None:
    """Compute a node all of whose inputs are constants."""
    node.require(len(node.outputs) == 1, f"must have one output, has {len(node.outputs)}")
    inputs = [importer.constant_of(node, name) for name in node.inputs]
    found = fold.fold(node.op, node.take_all(), inputs, node.where)
    importer.declare(node.outputs[0], node.where)
    stored = importer.weights.get(node.inputs[0])
    if node.op == "Unsqueeze" and stored is not None and len(stored.dims) == 1:
        importer.columns[node.outputs[0]] = replace(stored, dims=found.shape)
    importer.computed[node.outputs[0]] = found
    importer.roots[node.outputs[0]] = tables.find_roots(importer, node)


HANDLERS: Handlers = {
    "Cast": _cast,
    "Constant": _constant,
    "Shape": _shape,
}
