"""States before a step that hold more than their types claim: legal graphs that read them so.

A step says of the state before it that it is int32.  Types say that it is what the law leaves: not
-2^31, and not less than 0 in int64.  Whoever makes the graph and the state can have both differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tests.prove.forging import find_broken
from tests.prove.step_law import conclude, evaluate, is_true, make_graph, make_statement
from vtrain.commit.kzg_layout import state_names
from vtrain.graph.legality import check_graph
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.prove.circuit.values import Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, RATE, Size
from vtrain.prove.steps.circuits import build_with
from vtrain.spec.number import rs_int
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph

RATE_MANTISSA = 100
LEAST = -(2**31)


class Rebuilder:
    """Nodes of another graph; the types are derived anew."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def emit(self, name: str, op: str, inputs: list[Ref], attrs: Attrs) -> Ref:
        types = [self.nodes[ref.node].outputs[0] for ref in inputs]
        kind = TABLE[op].infer(attrs, types)
        self.nodes.append(Node(name, op, attrs, tuple(inputs), (kind,)))
        return Ref(len(self.nodes) - 1)

    def rescale(
        self, name: str, x: Ref, dtype: str, *, multiplier: int = 1, up: int = 0, shift: int = 0
    ) -> Ref:
        """sat(rs(x multiplier, shift)); ``up`` is the multiplier's exponent."""
        attrs: Attrs = {
            "dtype": dtype,
            "multiplier": multiplier,
            "multiplier_exponent": up,
            "shift": shift,
        }
        return self.emit(name, "rescale", [x], attrs)


Gradient = Callable[[Rebuilder, Ref], Ref]
"""(graph so far, the momentum) -> what is taken for its gradient."""


def only_of_the_least(b: Rebuilder, momentum: Ref) -> Ref:
    """1 where the momentum is -2^31, else 0, and 0 by its type."""
    zero = b.rescale("zero", momentum, "i64", up=32, shift=64)
    turned = b.emit("turned", "sub", [zero, momentum], {"shift_a": 32, "shift_b": 0})
    return b.rescale("one", turned, "i64", shift=32)


def a_large_one(b: Rebuilder, momentum: Ref) -> Ref:
    return b.rescale("large", only_of_the_least(b, momentum), "i64", multiplier=250, up=8)


def one_beyond_int16(b: Rebuilder, momentum: Ref) -> Ref:
    beyond = b.rescale("beyond", only_of_the_least(b, momentum), "i16", multiplier=40_000)
    return b.rescale("wide", beyond, "i64", up=31)


def one_of_negative_turns(b: Rebuilder, momentum: Ref) -> Ref:
    """From an int64 state, which is never negative by its type."""
    kind = b.nodes[momentum.node].outputs[0]
    attrs: Attrs = {"name": "turns", "dtype": "i64", "shape": kind.shape, "exponent": 16}
    some = b.rescale("some", b.emit("turns", "state", [], attrs), "i16", shift=1)
    zero = b.rescale("zero", momentum, "i64", shift=64)
    prepared = {"multiplier": 1, "offset": 2**40, "shift": 0, "exponent": 15}
    most = b.emit("most", "normalize", [zero], prepared)
    more = b.emit("more", "sub", [most, some], {"shift_a": 0, "shift_b": 0})
    return b.rescale("large", more, "i64", multiplier=65_535, up=1)


def rebuild(graph: StepGraph, gradient: Gradient) -> StepGraph:
    """``graph`` with another gradient of its first momentum, and a small rate."""
    b, moved = Rebuilder(), dict[int, Ref]()
    for index, node in enumerate(graph.nodes):
        inputs, attrs = [moved[ref.node] for ref in node.inputs], dict(node.attrs)
        turns = [i for i, other in enumerate(b.nodes) if other.name == "turns"]
        if node.op == "schedule":
            attrs["rates"] = (RATE_MANTISSA,)
        elif node.op == "momentum" and not any(other.op == "momentum" for other in b.nodes):
            inputs[1] = gradient(b, inputs[0])
            attrs["shift"] = b.nodes[inputs[1].node].outputs[0].exponent - 16
        elif node.op == "state_root" and turns:
            kind = b.nodes[turns[0]].outputs[0]
            digest = b.emit("digest/turns", "tensor_digest", [Ref(turns[0])], {})
            leaf: Attrs = {"name": "turns", "dtype": "i64", "shape": kind.shape, "exponent": 16}
            inputs.append(b.emit("leaf/turns", "state_leaf", [digest], leaf))
        moved[index] = b.emit(node.name, node.op, inputs, attrs)
    if turns:
        b.emit("next/turns", "next_state", [Ref(turns[0])], {"name": "turns"})
    found = StepGraph(tuple(b.nodes))
    check_graph(found)
    return found


@dataclass(frozen=True)
class Case:
    """A gradient, how much of a momentum is lost, what its first element is, and the turns'."""

    gradient: Gradient
    decay: str
    momentum: int
    turns: int
    unclamped: int
    """The gradient that a circuit would take, did it believe the types."""


CASES = [
    Case(a_large_one, "some", LEAST, 0, 250),
    Case(one_beyond_int16, "some", LEAST, 0, 40_000),
    Case(one_of_negative_turns, "none", 0, -322, 32_800 * 65_535),
]


def find_first(graph: StepGraph, state: Ref) -> int:
    """Where a state begins in ``before`` and ``after``."""
    start = 0
    for name in state_names(graph):
        if graph.states()[name] == state:
            return start
        start += graph.type_of(graph.states()[name]).size
    raise AssertionError(state)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.gradient.__name__)
@pytest.mark.parametrize("clamps", [False, True], ids=["plain", "clamps"])
def test_what_a_state_may_hold_counts_and_not_what_its_type_claims(
    case: Case, clamps: bool
) -> None:
    graph = rebuild(make_graph("mse", case.decay), case.gradient)
    circuit = build_with(graph, Size(3, 2**30), clamps=clamps)
    [at] = [i for i, node in enumerate(graph.nodes) if node.op == "momentum"][:1]
    node = graph.nodes[at]
    update = next(n for n in graph.nodes if n.op == "sgd_update" and n.inputs[1] == Ref(at))
    momentum, weight = (find_first(graph, found.inputs[0]) for found in (node, update))
    honest = make_statement("mse", case.decay)
    before: Ints = np.concatenate([honest.given[BEFORE], np.zeros(node.outputs[0].size, object)])
    before = before[: sum(graph.type_of(graph.states()[n]).size for n in state_names(graph))]
    before[momentum] = case.momentum
    if "turns" in graph.states():
        before[find_first(graph, graph.states()["turns"])] = case.turns
    inputs = {
        BEFORE: before,
        BATCH: honest.given[BATCH],
        RATE: np.asarray([RATE_MANTISSA], object),
    }
    true = conclude(graph, inputs)
    assert is_true(graph, true)
    kept = case.momentum - rs_int(case.momentum * attr_int(node.attrs, "decay"), 16)
    reached = kept + rs_int(case.unclamped, attr_int(node.attrs, "shift"))
    law = int(evaluate(graph, inputs)[Ref(at)].reshape(-1)[0])
    assert reached != law
    lost = rs_int(reached * RATE_MANTISSA, attr_int(update.attrs, "shift"))
    forged = true.altered(AFTER, momentum, reached)
    forged = forged.altered(AFTER, weight, int(before[weight]) - lost)
    wide = {"beyond": lambda values: (values != 0) * case.unclamped}
    changes = wide if case.gradient is one_beyond_int16 else {}
    assert find_broken(circuit, forged.given, forged.parameters, changes)
    if clamps:
        assert find_broken(circuit, true.given, true.parameters) == []
