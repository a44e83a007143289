"""What emitters make the circuit of a whole step with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from vtrain.commit.kzg_layout import state_names
from vtrain.errors import CircuitError, GraphError
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.ops.optimizer import DECAY_EXPONENT
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.values import Ints, Lin, Tensor, Values, cut_vector
from vtrain.prove.tiles.statements import OUTSIDE as OUTSIDE_TILES
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph, TensorType

BEFORE, BATCH, AFTER = "before", "batch", "after"
RATE, LOSS = "rate", "loss"

OUTSIDE: Final = OUTSIDE_TILES - {
    *("schedule", "schedule_linear", "adam_correction", "causal_spans"),
}
"""Operators that choose samples, count or hash: no arithmetic of the step."""


@dataclass(frozen=True)
class Size:
    """Columns of cells, values of a vector, values of a limb."""

    inner_columns: int
    rows: int
    span: int = 1 << 16


def _derive_types(graph: StepGraph) -> list[TensorType]:
    """The type of each node where states are int32, which is all that the circuit shows of them.

    Their own types claim less: that the law left them, which no step says of the state before it.
    """
    types: list[TensorType] = []
    for index, node in enumerate(graph.nodes):
        if node.op in OUTSIDE:
            types.append(node.outputs[0])
            continue
        if any(ref.node >= index for ref in node.inputs):
            raise CircuitError("reads what comes after it", where=node.name)
        try:
            kind = TABLE[node.op].infer(node.attrs, [types[ref.node] for ref in node.inputs])
        except GraphError as error:
            raise CircuitError(f"has no circuit: {error.message}", where=node.name) from None
        if node.op == "state" and node.attrs["name"] != STEP_STATE:
            lo, hi = STORAGE["i32"]
            kind = replace(kind, lo=lo, hi=hi)
        types.append(kind)
    return types


class StepBuilder:
    """The circuit of a graph's step so far, and the values of its nodes."""

    def __init__(self, graph: StepGraph, size: Size, *, clamps: bool) -> None:
        if size.span != 1 << 16:
            raise CircuitError("whole steps need limbs of 16 bits", where="span")
        self.graph = graph
        self.types = _derive_types(graph)
        self.clamps = clamps
        self.b = CircuitBuilder(size.inner_columns, size.span, size.rows)
        self.values: dict[Ref, Tensor | Lin] = {}
        self.before: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.state_of: dict[Ref, str] = {ref: name for name, ref in graph.states().items()}
        self.next_of: dict[str, Ref] = {
            name: graph.nodes[ref.node].inputs[0] for name, ref in graph.next_states().items()
        }
        self.logged_loss = graph.nodes[graph.find("record")].inputs[2]
        self.held: frozenset[Ref] = frozenset(
            node.inputs[0]
            for node in graph.nodes
            if _splits_operand(node) or (not clamps and holds_operand(node))
        )
        self.softmaxes: set[Ref] = set()
        self._take_vectors()
        self.rate = self.b.parameter(RATE, (1,))
        self.loss = self.b.parameter(LOSS, (1,))

    def _take_vectors(self) -> None:
        """The given vectors, cut into the tensors of state and batch."""
        graph, b = self.graph, self.b
        names = state_names(graph)
        for vector, refs, found in (
            (BEFORE, graph.states(), self.before),
            (AFTER, graph.next_states(), self.after),
        ):
            found.update(self._cut(vector, [(name, graph.type_of(refs[name])) for name in names]))
        refs = {
            str(node.attrs["part"]): Ref(i)
            for i, node in enumerate(graph.nodes)
            if node.op == "gather_samples"
        }
        parts = self._cut(BATCH, [(part, graph.type_of(refs[part])) for part in ("x", "y")])
        for part, tensor in parts.items():
            kind = graph.type_of(refs[part])
            self.values[refs[part]] = tensor
            readers = [
                node for node in graph.nodes if refs[part] in node.inputs and node.op not in OUTSIDE
            ]
            if not readers or not all(is_table(graph, node) for node in readers):
                gadgets.hold_dtype(b, f"batch/{part}", tensor, kind.dtype)

    def _cut(self, vector: str, types: Sequence[tuple[str, TensorType]]) -> dict[str, Tensor]:
        b = self.b
        length = sum(kind.size for _, kind in types)
        pieces = [
            b.vector(name, stop - start) for name, start, stop in cut_vector(vector, length, b.rows)
        ]
        whole = b.concat(pieces)
        found = {}
        start = 0
        for name, kind in types:
            part = b.slice(whole, start, start + kind.size)
            found[name] = b.reshape(part, kind.shape)
            start += kind.size
        return found

    # --- values

    def type_of(self, ref: Ref) -> TensorType:
        """A node's type, its range being what the circuit shows of it: :func:`_derive_types`."""
        return self.types[ref.node]

    def value(self, ref: Ref) -> Tensor | Lin:
        """A node's value; CircuitError for one that is not computed here, such as the counter."""
        if ref not in self.values:
            raise CircuitError("is no value of the circuit", where=self.graph.nodes[ref.node].name)
        return self.values[ref]

    def lin(self, ref: Ref) -> Lin:
        """A node's value as a linear form of integers."""
        value = self.value(ref)
        return value.lin() if isinstance(value, Tensor) else value

    def tensor(self, ref: Ref) -> Tensor:
        """A node's value as a committed tensor, made one if it is a form."""
        value = self.value(ref)
        if isinstance(value, Tensor):
            return value
        name = self.graph.nodes[ref.node].name
        made = self.b.hint(name, value.shape, lambda values: values[value])
        self.b.zero(name, made.lin() - value)
        self.values[ref] = made
        return made

    def hint_output(self, ref: Ref, node: Node) -> Tensor:
        """The node's output as a hint, computed by the law."""
        kind = self.type_of(ref)
        return self.b.hint(node.name, kind.shape, self.law(node))

    def law(self, node: Node) -> Callable[[Values], Ints]:
        """Computes the node's output from its inputs' values, by the law."""
        forms = [self.value(ref) for ref in node.inputs]
        types = [self.type_of(ref) for ref in node.inputs]

        def compute(values: Values) -> Ints:
            arrays = [
                np.asarray(values[form], dtype=object)
                .astype(NUMPY_DTYPES[kind.dtype])
                .reshape(kind.shape)
                for form, kind in zip(forms, types, strict=True)
            ]
            return np.asarray(TABLE[node.op].law(node.attrs, arrays)).astype(object)

        return compute

    def is_of_parameter_size(self, ref: Ref) -> bool:
        """Whether a value is a function of one state tensor alone."""
        return ref in self.state_of

    def take_next(self, ref: Ref, node: Node) -> Tensor:
        """The state after the step that ``node`` (``ref``) makes of its first input, a state."""
        name = self.state_of.get(node.inputs[0])
        if name is None or self.next_of[name] != ref:
            raise CircuitError("does not make a state of what it was before", where=node.name)
        return self.after[name]


def attr(attrs: Attrs, name: str) -> int:
    """An attribute that is an integer; CircuitError for another."""
    value = attrs[name]
    if not isinstance(value, int):
        raise CircuitError(f"attribute {name} is no integer")
    return value


def bound_shift(lo: int, hi: int, shift: int) -> int:
    """Bound on |rs(x, shift)| for lo <= x <= hi."""
    most = max(abs(lo), abs(hi))
    return (most >> shift) + 1 if shift > 0 else most << -shift


def holds_operand(node: Node) -> bool:
    """Whether an operand that does not clamp can show that its state is int32."""
    return (
        node.op == "rescale"
        and node.attrs["dtype"] == "i16"
        and attr(node.attrs, "multiplier") == 1
        and gadgets.can_hold(attr(node.attrs, "shift"))
    )


def _splits_operand(node: Node) -> bool:
    """Whether a node takes a state apart into limbs, which shows that it is int32."""
    return node.op == "momentum" and 0 < attr(node.attrs, "decay") < 1 << DECAY_EXPONENT


def is_table(graph: StepGraph, node: Node) -> bool:
    """Whether a node is the preparation of bytes: a function of 256 values."""
    return node.op == "normalize" and graph.type_of(node.inputs[0]).dtype in ("u8", "i8")


Emitters = Mapping[str, Callable[[StepBuilder, Ref, Node], None]]
"""By operator, what adds a node to the circuit."""
