"""The step graph as data: typed, ranged nodes in static single assignment.

A graph is a tuple of nodes in execution order; a node refers only to earlier nodes, so a cycle
cannot be written down.  ``graph_root`` is a Merkle tree over :func:`encode_node` of each node.
Legality (shapes, ranges, operators) is judged in ``vtrain.graph.legality``; here is only form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.fields import Fields, check_names

DTYPES = ("u8", "i8", "i16", "i32", "i64")
"""Names of the tensor element types; all are stored little-endian and row-major."""

AttrValue = int | str | bytes | tuple[int, ...]
Attrs = Mapping[str, AttrValue]

MAX_RANK = 8
"""Most axes of a tensor."""
MAX_ELEMENTS = 2**32
"""Largest tensor; keeps a hostile graph from asking for unbounded memory."""


class Ref(NamedTuple):
    """One output of one node: (index of the node, index of its output)."""

    node: int
    output: int = 0


@dataclass(frozen=True)
class TensorType:
    """Type of a value: element dtype, shape, exponent f (value = mantissa * 2^-f), proven range.

    ``lo`` and ``hi`` bound every mantissa that the node can put out, for every input allowed.
    """

    dtype: str
    shape: tuple[int, ...]
    exponent: int
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def byte_length(self) -> int:
        """Bytes of the tensor."""
        return self.size * (int(self.dtype[1:]) // 8)


@dataclass(frozen=True)
class Node:
    """One operator application.  ``name`` is unique in its graph and is how people speak of it."""

    name: str
    op: str
    attrs: Attrs
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, repr=False)
class StepGraph:
    """One training step: nodes in execution order, every input an earlier node."""

    nodes: tuple[Node, ...]

    def __repr__(self) -> str:  # a dataclass's own is a book
        return f"<step graph of {len(self.nodes):,} nodes>"

    def type_of(self, ref: Ref) -> TensorType:
        """Type of the value ``ref``."""
        return self.nodes[ref.node].outputs[ref.output]

    def states(self) -> dict[str, Ref]:
        """Recurrent tensors: state name -> the node that holds its value before the step."""
        return {
            str(node.attrs["name"]): Ref(i)
            for i, node in enumerate(self.nodes)
            if node.op == "state"
        }

    def next_states(self) -> dict[str, Ref]:
        """State name -> the node that holds its value after the step."""
        return {
            str(node.attrs["name"]): Ref(i)
            for i, node in enumerate(self.nodes)
            if node.op == "next_state"
        }

    def find(self, op: str) -> int:
        """Index of the only node with operator ``op``; EncodingError when there is not just one."""
        found = [i for i, node in enumerate(self.nodes) if node.op == op]
        if len(found) != 1:
            raise EncodingError(f"a step graph has exactly one {op} node, found {len(found)}")
        return found[0]


def _type_to_map(tensor: TensorType) -> dict[str, cbor.Value]:
    return {
        "dtype": tensor.dtype,
        "exponent": tensor.exponent,
        "hi": tensor.hi,
        "lo": tensor.lo,
        "shape": list(tensor.shape),
    }


def _type_from_map(value: cbor.Value, where: str) -> TensorType:
    fields = Fields(value, where)
    dtype = fields.text("dtype")
    if dtype not in DTYPES:
        raise EncodingError(f"unknown dtype {dtype!r}", where=where)
    tensor = TensorType(
        dtype=dtype,
        shape=fields.ints("shape", 0, 2**48, MAX_RANK),
        exponent=fields.int("exponent", -512, 512),
        lo=fields.int("lo", -(2**63), 2**63 - 1),
        hi=fields.int("hi", -(2**63), 2**63 - 1),
    )
    fields.done()
    if tensor.size > MAX_ELEMENTS:
        raise EncodingError(f"a tensor of over {MAX_ELEMENTS} elements", where=where)
    return tensor


def encode_node(node: Node) -> bytes:
    """Canonical encoding of one node: the leaf data of ``graph_root``."""
    return cbor.encode(_node_to_map(node))


def _node_to_map(node: Node) -> dict[str, cbor.Value]:
    attrs: dict[str, cbor.Value] = {
        key: list(value) if isinstance(value, tuple) else value for key, value in node.attrs.items()
    }
    return {
        "attrs": attrs,
        "inputs": [[ref.node, ref.output] for ref in node.inputs],
        "name": node.name,
        "op": node.op,
        "outputs": [_type_to_map(tensor) for tensor in node.outputs],
    }


def _attr_from_value(value: cbor.Value, where: str) -> AttrValue:
    if isinstance(value, str):
        check_names([value], where)
    if isinstance(value, int | str | bytes):
        return value
    if isinstance(value, list):
        items = tuple(item for item in value if isinstance(item, int))
        if len(items) == len(value):
            return items
    raise EncodingError(
        "an attribute is an integer, text, bytes or a list of integers", where=where
    )


def _node_from_map(value: cbor.Value, index: int) -> Node:
    where = f"node {index}"
    fields = Fields(value, where)
    attrs = fields.take("attrs")
    if not isinstance(attrs, dict):
        fields.refuse("attrs", f"expected a map, found {cbor.kind_of(attrs)}")
    check_names(attrs, where)
    inputs = []
    for pair in fields.list("inputs"):
        match pair:
            case [int(source), int(output)] if 0 <= source < index and 0 <= output < 2**16:
                inputs.append(Ref(source, output))
            case _:
                raise EncodingError("an input is [earlier node, output]", where=where)
    decoded = Node(
        name=fields.text("name"),
        op=fields.text("op"),
        attrs={key: _attr_from_value(item, f"{where}.{key}") for key, item in attrs.items()},
        inputs=tuple(inputs),
        outputs=tuple(_type_from_map(item, where) for item in fields.list("outputs")),
    )
    fields.done()
    return decoded


def decode_node(data: bytes, index: int) -> Node:
    """Inverse of :func:`encode_node` for the node at ``index``, whose inputs come before it."""
    return _node_from_map(cbor.decode(data), index)


def count_items(graph: StepGraph) -> int:
    """Values and map keys of the encoding of a graph, of which a decoder takes so many alone."""
    total = 1
    for node in graph.nodes:
        lists = [value for value in node.attrs.values() if isinstance(value, tuple)]
        # The map with its five keys, three of whose values are lists or maps.
        total += 11 + 2 * len(node.attrs) + sum(map(len, lists))
        total += 3 * len(node.inputs) + sum(11 + len(tensor.shape) for tensor in node.outputs)
    return total


def encode_graph(graph: StepGraph) -> bytes:
    """Canonical encoding of the whole graph: an array of node maps (the file ``graph.cbor``)."""
    return cbor.encode([_node_to_map(node) for node in graph.nodes])


def decode_graph(data: bytes) -> StepGraph:
    """Inverse of :func:`encode_graph`; EncodingError names the node and the field."""
    value = cbor.decode(data)
    if not isinstance(value, list):
        raise EncodingError("a step graph is an array of nodes", where="graph")
    nodes = tuple(_node_from_map(item, index) for index, item in enumerate(value))
    for index, node in enumerate(nodes):
        for ref in node.inputs:
            if ref.output >= len(nodes[ref.node].outputs):
                raise EncodingError(
                    f"node {ref.node} has no output {ref.output}", where=f"node {index}"
                )
    return StepGraph(nodes)
