"""Gather: rows of a table by ids, places of a value."""

from __future__ import annotations

from vtrain.graph.model import Embedding
from vtrain.graph.onnx_file import ROW_KEY
from vtrain.graph.onnx_import import rotary
from vtrain.graph.onnx_import.importer import Handlers, Importer, Weight
from vtrain.graph.onnx_import.node import Node


def _gather(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    value = importer.values.get(node.inputs[0])
    is_ids = importer.takes_ids and value == importer.input
    if value is not None and not is_ids and node.has("axis"):
        rotary.pick(importer, node)
        return
    if node.inputs[0] not in importer.weights:
        node.refuse("is only supported on a table, and on the shape of a value")
    _gather_rows(importer, node)


def _gather_rows(importer: Importer, node: Node) -> None:
    """Rows of a trained table: by the model's input, or all of them in order."""
    table = importer.weights[node.inputs[0]]
    node.require(len(table.dims) == 2 and not table.transposed, "needs a table as it is stored")
    node.require(min(table.dims) > 0, "the table is empty")
    node.require(node.take_int("axis", 0) in (0, -2), "axis must be 0")
    if importer.values.get(node.inputs[1]) != importer.input or not importer.takes_ids:
        _gather_constant_rows(importer, node, table)
        return
    shape = (*importer.shapes[importer.input], table.dims[1])
    row = _read_row(importer, node, table)
    importer.emit(node, Embedding(node.outputs[0], importer.input, table.name, row), shape)


def _read_row(importer: Importer, node: Node, table: Weight) -> int | None:
    """The row that is not trained, which a file of ours has in the node's metadata."""
    if importer.ties or ROW_KEY not in node.metadata:
        return None
    text = node.metadata[ROW_KEY]
    count = table.dims[0]
    known = isinstance(text, str) and text.isascii() and text.isdecimal()
    node.require(
        known and len(text) <= len(str(count)) and int(text) < count > 1,
        f"{ROW_KEY} is {text!r}, no row of {count}, or the only one",
    )
    return int(text)


def _gather_constant_rows(importer: Importer, node: Node, table: Weight) -> None:
    """Positions: numbers that are known now must be all of the table's, in order."""
    found = importer.constant_of(node, node.inputs[1])
    if importer.is_parameter(node.inputs[0]) and [*found.flat] == [*range(found.size)]:
        importer.take_rows(node, table, min(found.size, table.dims[0]))
        return
    node.require(
        [*found.flat] == [*range(table.dims[0])],
        f"numbers that are constant must be 0 to {table.dims[0] - 1}, all rows of the table: "
        "give the table as many rows as there are places",
    )
    importer.alias(node, node.inputs[0])


HANDLERS: Handlers = {
    "Gather": _gather,
}
