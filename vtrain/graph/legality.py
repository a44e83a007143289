"""Judging a decoded step graph: every node as its operator's rules derive it, and a whole step.

Types and ranges in a graph are claims.  Here each is derived anew from the operator's own rule and
compared, so that a graph that passes cannot overflow an accumulator, whoever wrote it.
"""

from __future__ import annotations

from vtrain.errors import GraphError
from vtrain.ops import TABLE
from vtrain.wire.graph import StepGraph

MAX_NODES = 100_000
MAX_ELEMENTS = 2**32
"""Largest tensor; keeps a hostile graph from asking for unbounded memory."""


def check_graph(graph: StepGraph) -> None:
    """GraphError or RangeError, naming the node, unless ``graph`` is a legal training step."""
    if len(graph.nodes) > MAX_NODES:
        raise GraphError(f"has {len(graph.nodes)} nodes, more than {MAX_NODES}", where="graph")
    names: set[str] = set()
    for node in graph.nodes:
        where = f"node {node.name} ({node.op})"
        if node.name in names or node.name == "":
            raise GraphError("every node needs a name of its own", where=where)
        names.add(node.name)
        if node.op not in TABLE:
            raise GraphError("unknown operator", where=where)
        try:
            derived = TABLE[node.op].infer(node.attrs, [graph.type_of(ref) for ref in node.inputs])
        except GraphError as error:
            raise type(error)(error.message, where=where) from None
        if node.outputs != (derived,):
            raise GraphError(f"claims {node.outputs}, derived is {derived}", where=where)
        if derived.size > MAX_ELEMENTS:
            raise GraphError(f"has {derived.size} elements, more than {MAX_ELEMENTS}", where=where)
    _check_states(graph)


def _check_states(graph: StepGraph) -> None:
    before, after = graph.states(), graph.next_states()
    counts = [sum(node.op == op for node in graph.nodes) for op in ("state", "next_state")]
    if counts != [len(before), len(after)]:
        raise GraphError("a state is read or written by two nodes", where="graph")
    if set(before) != set(after):
        raise GraphError(
            f"states {sorted(set(before) ^ set(after))} are not both read and written",
            where="graph",
        )
    for name, ref in before.items():
        old, new = graph.type_of(ref), graph.type_of(after[name])
        if (old.dtype, old.shape, old.exponent) != (new.dtype, new.shape, new.exponent):
            raise GraphError("changes its type in a step", where=f"state {name}")
        if new.lo < old.lo or new.hi > old.hi:
            raise GraphError("may leave its range in a step", where=f"state {name}")
    if "step" not in before or graph.type_of(before["step"]).dtype != "i64":
        raise GraphError("has no step counter", where="graph")
    record = graph.nodes[graph.find("record")]
    if record.inputs[0] != graph.nodes[after["step"].node].inputs[0]:
        raise GraphError("records another counter than the state's", where=f"node {record.name}")
    if graph.nodes[record.inputs[1].node].op != "batch_digest":
        raise GraphError("records no batch digest", where=f"node {record.name}")
    _check_state_root(graph, record.inputs[3].node)


def _check_state_root(graph: StepGraph, index: int) -> None:
    """The root must cover each next state, under its own name and type, in UTF-8 order."""
    root = graph.nodes[index]
    if root.op != "state_root":
        raise GraphError("records no state root", where=f"node {root.name}")
    after = graph.next_states()
    names = sorted(after, key=lambda text: text.encode())
    if len(root.inputs) != len(names):
        raise GraphError("does not cover the state", where=f"node {root.name}")
    for name, ref in zip(names, root.inputs, strict=True):
        leaf = graph.nodes[ref.node]
        value = graph.nodes[after[name].node].inputs[0]
        tensor = graph.type_of(value)
        named = {
            "name": name,
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "exponent": tensor.exponent,
        }
        if leaf.op != "state_leaf" or dict(leaf.attrs) != named:
            raise GraphError(f"is not the leaf of state {name}", where=f"node {leaf.name}")
        digest = graph.nodes[leaf.inputs[0].node]
        if digest.op != "tensor_digest" or digest.inputs != (value,):
            raise GraphError(f"is not the digest of state {name}", where=f"node {digest.name}")
