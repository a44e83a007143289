"""Judging a decoded step graph: every node as its operator's rules derive it, and a whole step.

Types and ranges in a graph are claims.  Here each is derived anew from the operator's own rule and
compared, so that a graph that passes cannot overflow an accumulator, whoever wrote it.  Then the
wiring that every reader of a run log relies on is required, whatever is being trained:

- the counter of the record is the state's own, one more than before;
- the batch is the one that the counter names, all of it is in the batch digest, and nothing else of
  the dataset enters the step;
- the state root covers every tensor that goes on to the next step, and nothing but the record
  reads it: an engine computes it on commitment steps alone;
- the terms of a softmax belong to each other;
- the masks of dropout are drawn by the counter and the seed that draw the batch, each by its own.

What the model, its loss and its update are is pinned by ``graph_root`` alone: a graph that trains
nothing, or records another number as its loss, is legal, and is another task.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtrain.errors import GraphError
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType

MAX_NODES = 100_000
_SINGLE = ("sample_index", "batch_digest", "state_root", "record")
"""Operators that a step has once each."""
_REDUCED = {
    "exp2_diff": "row_max",
    "divide": "row_sum",
    "logit_grad": "row_sum",
    "cross_entropy": "row_max",
}
"""Operators on rows, and what their second input is of the first."""


def check_graph(graph: StepGraph) -> None:
    """GraphError or RangeError, naming the node, unless ``graph`` is a legal training step."""
    if len(graph.nodes) > MAX_NODES:
        raise GraphError(f"has {len(graph.nodes)} nodes, more than {MAX_NODES}", where="graph")
    names: set[str] = set()
    for index, node in enumerate(graph.nodes):
        if node.name in names or node.name == "":
            raise GraphError("every node needs a name of its own", where=_place(node))
        names.add(node.name)
        _check_node(graph, index)
    for op in _SINGLE:
        count = sum(node.op == op for node in graph.nodes)
        if count != 1:
            raise GraphError(f"has {count} {op} nodes instead of one", where="graph")
    _check_states(graph)
    _check_counter(graph)
    _check_batch(graph)
    _check_state_root(graph)
    for node in graph.nodes:
        _check_softmax(graph, node)
    _check_masks(graph)


def _place(node: Node) -> str:
    return f"node {node.name} ({node.op})"


def _require(condition: bool, message: str, node: Node) -> None:
    if not condition:
        raise GraphError(message, where=_place(node))


def _check_node(graph: StepGraph, index: int) -> None:
    node = graph.nodes[index]
    for ref in node.inputs:
        # Every operator has one output.
        _require(0 <= ref.node < index and ref.output == 0, f"{ref} is no earlier value", node)
    check_node(node, [graph.type_of(ref) for ref in node.inputs])


def check_node(node: Node, inputs: Sequence[TensorType]) -> None:
    """GraphError or RangeError unless ``node`` is legal and claims the type derived from these."""
    _require(node.op in TABLE, "unknown operator", node)
    try:
        derived = TABLE[node.op].infer(node.attrs, inputs)
    except GraphError as error:
        raise type(error)(error.message, where=_place(node)) from None
    _require(node.outputs == (derived,), f"claims {node.outputs}, derived is {derived}", node)


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


def _find(graph: StepGraph, op: str) -> Node:
    return graph.nodes[graph.find(op)]


def _source(graph: StepGraph, ref: Ref) -> Node:
    return graph.nodes[ref.node]


def _check_counter(graph: StepGraph) -> None:
    """The state ``step`` grows by one a step, and the record has its new value."""
    counter = graph.states().get(STEP_STATE)
    if counter is None or not _is_counter(graph.type_of(counter)):
        raise GraphError("has no step counter", where="graph")
    following = _source(graph, graph.next_states()[STEP_STATE]).inputs[0]
    increment = _source(graph, following)
    counts = increment.op == "increment" and increment.inputs == (counter,)
    _require(counts, "does not count steps", increment)
    record = _find(graph, "record")
    _require(record.inputs[0] == following, "records another counter than the state's", record)


def _is_counter(tensor: TensorType) -> bool:
    return (tensor.dtype, tensor.shape, tensor.exponent) == ("i64", (), 0)


def _check_batch(graph: StepGraph) -> None:
    """x and y of the step's batch enter the step once each, and the record has their digest."""
    index = Ref(graph.find("sample_index"))
    node = _source(graph, index)
    counted = node.inputs == (graph.states()[STEP_STATE],)
    _require(counted, "takes its batch by another counter than the state's", node)
    gathered: dict[str, Ref] = {}
    for at, node in enumerate(graph.nodes):
        if node.op == "gather_samples":
            part = str(node.attrs["part"])
            _require(node.inputs == (index,), "gathers samples of another batch", node)
            _require(part not in gathered, f"gathers {part} again", node)
            gathered[part] = Ref(at)
    record, digest = _find(graph, "record"), Ref(graph.find("batch_digest"))
    _require(record.inputs[1] == digest, "records no batch digest", record)
    for part, ref in zip(("x", "y"), _source(graph, digest).inputs, strict=True):
        hashed = _source(graph, ref)
        is_digest = hashed.op == "tensor_digest" and hashed.inputs == (gathered.get(part),)
        _require(is_digest, f"is not the digest of the batch's {part}", hashed)


def _check_state_root(graph: StepGraph) -> None:
    """The root must cover each next state, under its own name and type, in UTF-8 order."""
    record, root = _find(graph, "record"), Ref(graph.find("state_root"))
    _require(record.inputs[3] == root, "records no state root", record)
    last = Ref(graph.find("record"))
    for node in graph.nodes:
        reads = last in node.inputs or (root in node.inputs and node is not record)
        _require(not reads, "reads the state root or the record", node)
    after = graph.next_states()
    names = sorted(after, key=lambda text: text.encode())
    leaves = _source(graph, root).inputs
    _require(len(leaves) == len(names), "does not cover the state", _source(graph, root))
    for name, ref in zip(names, leaves, strict=True):
        leaf = _source(graph, ref)
        value = _source(graph, after[name]).inputs[0]
        tensor = graph.type_of(value)
        named = {
            "name": name,
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "exponent": tensor.exponent,
        }
        is_leaf = leaf.op == "state_leaf" and dict(leaf.attrs) == named
        _require(is_leaf, f"is not the leaf of state {name}", leaf)
        digest = _source(graph, leaf.inputs[0])
        is_digest = digest.op == "tensor_digest" and digest.inputs == (value,)
        _require(is_digest, f"is not the digest of state {name}", digest)


def _check_softmax(graph: StepGraph, node: Node) -> None:
    """The maximum is that of the rows, the divisor their sum: a quotient is at most 1 only then."""
    reduction = _REDUCED.get(node.op)
    if reduction is not None:
        rows, reduced = node.inputs[:2]
        source = _source(graph, reduced)
        belongs = source.op == reduction and source.inputs == (rows,)
        _require(belongs, f"needs the {reduction} of its rows", node)


def _check_masks(graph: StepGraph) -> None:
    """No mask may be one that its maker chose: by a seed of its own, another's step, or twice."""
    seed = _find(graph, "sample_index").attrs["seed"]
    counter = graph.states()[STEP_STATE]
    sites: set[object] = set()
    for node in graph.nodes:
        if node.op == "dropout_mask":
            counted = node.inputs == (counter,)
            _require(counted, "draws a mask by another counter than the state's", node)
            _require(node.attrs["seed"] == seed, "draws a mask by another seed", node)
            _require(node.attrs["site"] not in sites, "draws the mask of another node", node)
            sites.add(node.attrs["site"])
