"""Dropout."""

from __future__ import annotations

from fractions import Fraction

from vtrain.graph.model import Dropout
from vtrain.graph.onnx_import.importer import Handlers, Importer
from vtrain.graph.onnx_import.node import Node
from vtrain.spec.dropout import DRAW_BITS


def _dropout(importer: Importer, node: Node) -> None:
    """A layer where the file is of a model in training, else the value itself."""
    node.require(1 <= len(node.inputs) <= 3 and bool(node.inputs[0]), "needs 1 to 3 inputs")
    node.require(1 <= len(node.outputs) <= 2, "must have one output, or two with the mask")
    node.take_float("ratio", 0.5)
    node.take_int("seed", 0)  # the task has one
    x = importer.value(node, node.inputs[0])
    ratio = _find_ratio(importer, node)
    if ratio is None:
        importer.idle.append(node.where)
    if not ratio:
        importer.alias(node, node.inputs[0])
    else:
        least, most = Fraction(1, 2**DRAW_BITS), 1 - Fraction(1, 2**14)
        node.require(
            least <= ratio <= most,
            f"ratio must be 0, or from 2^-16 to 1 - 2^-14, is {float(ratio)}",
        )
        dropped = int(ratio * 2**DRAW_BITS + Fraction(1, 2))
        layer = Dropout(node.outputs[0], x, 2**DRAW_BITS - dropped)
        importer.emit(node, layer, importer.shape_of(node, x))
    for mask in node.outputs[1:]:
        importer.declare(mask, node.where)


def _find_ratio(importer: Importer, node: Node) -> Fraction | None:
    """The share that a node drops: None at inference, and where nothing says that this is
    training.  torch's older exporter leaves that out of the node that it writes for
    ``scaled_dot_product_attention``, but writes none where its dropout_p is 0."""
    _, ratio, training = (*node.inputs, "", "")[:3]
    if training:
        mode = importer.known_ints(node, training)
        node.require(len(mode) == 1, f"input {training!r} must be one boolean")
        if mode == (0,):
            return None
    elif not (ratio and importer.by_torch):
        return None
    return importer.scalar(node, ratio) if ratio else Fraction(1, 2)


HANDLERS: Handlers = {
    "Dropout": _dropout,
}
