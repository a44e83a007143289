"""A step graph as a planner reads it: who reads what, what has the same bytes, what stays."""

from __future__ import annotations

from collections.abc import Sequence

from vtrain.errors import GraphError
from vtrain.graph.values import HASHES, VIEWS
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node, StepGraph, TensorType

RECORD_PARTS = ("step", "batch_digest", "loss", "root")
"""Inputs of the record node, in order."""


class Program:
    """``graph`` with what a planner asks of it.  A value is named by the node that puts it out.

    ``inputs`` are the *roots* of each node's inputs: an alias stands for the value whose bytes it
    has.  ``readers`` of a value are the nodes that read its bytes.  GraphError names a node that
    cannot be run; a legal graph has none.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        count = len(graph.nodes)
        self.roots: list[int] = []
        self.inputs: list[tuple[int, ...]] = []
        self.readers: list[list[int]] = [[] for _ in range(count)]
        for index, node in enumerate(graph.nodes):
            if node.op not in TABLE:
                raise GraphError("unknown operator", where=f"node {node.name} ({node.op})")
            if any(not 0 <= ref.node < index or ref.output != 0 for ref in node.inputs):
                raise GraphError("reads no earlier value", where=f"node {node.name} ({node.op})")
            inputs = tuple(self.roots[ref.node] for ref in node.inputs)
            self.inputs.append(inputs)
            self.roots.append(inputs[0] if node.op in VIEWS else index)
            if node.op not in VIEWS:
                for value in dict.fromkeys(inputs):
                    self.readers[value].append(index)
        self.states = {name: ref.node for name, ref in graph.states().items()}
        self.next_states = {name: self.roots[ref.node] for name, ref in graph.next_states().items()}
        record = graph.find("record")
        self.record_node = record
        self.record = dict(zip(RECORD_PARTS, self.inputs[record], strict=True))
        self.commit_every = attr_int(graph.nodes[record].attrs, "commit_every", 1)
        self.commit_only = self._find_commit_only()
        self.kept = frozenset(self.next_states.values()) | frozenset(self.record.values())
        """Values that outlive the step."""

    def node(self, index: int) -> Node:
        """The node that puts out value ``index``."""
        return self.graph.nodes[index]

    def type_of(self, value: int) -> TensorType:
        """Type of a value."""
        return self.graph.nodes[value].outputs[0]

    def types(self, node: int) -> Sequence[TensorType]:
        """Types of a node's inputs, as the node reads them."""
        return [self.graph.type_of(ref) for ref in self.graph.nodes[node].inputs]

    def nbytes(self, value: int) -> int:
        """Bytes of a value."""
        return self.type_of(value).byte_length

    def _find_commit_only(self) -> frozenset[int]:
        """Hashes that only a commitment step needs: digests of the new state, leaves, root."""
        found = {self.record["root"], self.record_node}
        for index in range(self.record_node - 1, -1, -1):
            if self.node(index).op in HASHES and all(u in found for u in self.readers[index]):
                found.add(index)
        return frozenset(found)

    def find_idle(self) -> frozenset[int]:
        """Nodes whose output reaches neither record nor next state nor a count of saturation."""
        idle: set[int] = set()
        for index in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.node(index)
            seen = (
                node.op == "next_state"
                or TABLE[node.op].unclamped is not None
                or index in self.kept
            )
            if not seen and all(user in idle for user in self.readers[index]):
                idle.add(index)
        return frozenset(idle)
