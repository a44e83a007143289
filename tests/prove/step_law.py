"""Statements about whole steps, and whether they are true by the law alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tests.prove.tile_steps import make_branches, make_stacks, with_node
from tests.tasks import make_tiny_task
from vtrain.commit.kzg_layout import state_names
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS, RATE, Size
from vtrain.prove.steps.circuits import build_with
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Ref, StepGraph

Array = npt.NDArray[np.signedinteger]
DECAYS = {"none": 1 << 16, "some": 6554, "most": 1, "all": 0}
"""What a step takes away of the momentum, in 2^-16 of it, by how much is kept.

Where that is "most", the largest momenta have no room for the largest gradients.
"""
KINDS = ("cross_entropy", "mse", "branches", "stacks")
"""Steps: the tiny MLP's with either loss, one with two branches, and one with stacks of
matrices."""
_HASHES = {"batch_digest", "record", "state_leaf", "state_root", "tensor_digest", "sample_index"}


@dataclass(frozen=True)
class Statement:
    """Given vectors and parameters of a step circuit."""

    given: dict[str, Ints]
    parameters: dict[str, Ints]

    def altered(self, name: str, index: int, value: int) -> Statement:
        """With one element of a vector, of the rate or of the loss set to ``value``."""
        both = {**self.given, **self.parameters}
        whole = both[name].copy()
        whole[index] = value
        both[name] = whole
        return Statement(
            {key: both[key] for key in self.given}, {key: both[key] for key in self.parameters}
        )

    def get(self, name: str) -> Ints:
        return {**self.given, **self.parameters}[name]


@cache
def _make_step(kind: str) -> tuple[StepGraph, Samples, dict[str, Array]]:
    """Graph, samples and initial state of one of ``KINDS``."""
    if kind == "branches":
        return make_branches()
    if kind == "stacks":
        return make_stacks()
    task = make_tiny_task(loss=kind)
    return task.graph, task.samples, dict(task.initial_state)


@cache
def make_graph(loss: str, decay: str) -> StepGraph:
    """The step of one of ``KINDS``."""
    graph, _, _ = _make_step(loss)
    for index, node in enumerate(graph.nodes):
        if node.op == "momentum":
            graph = with_node(graph, index, attrs={**node.attrs, "decay": DECAYS[decay]})
    return graph


@cache
def make_circuit(loss: str, decay: str, clamps: bool) -> Circuit:
    return build_with(make_graph(loss, decay), Size(4, 2**30), clamps=clamps)


def evaluate(
    graph: StepGraph, inputs: Mapping[str, Ints], changes: Mapping[str, Array] | None = None
) -> dict[Ref, Array]:
    """The law, node by node, of ``before``, ``batch`` and ``rate``.

    ``changes`` replaces the outputs of nodes, by name: what follows is computed from these.
    """
    states = _split(graph, inputs[BEFORE])
    kinds = {
        str(node.attrs["part"]): node.outputs[0]
        for node in graph.nodes
        if node.op == "gather_samples"
    }
    batch, start = {}, 0
    for part in ("x", "y"):
        kind = kinds[part]
        batch[part] = inputs[BATCH][start : start + kind.size].reshape(kind.shape)
        start += kind.size
    found: dict[Ref, Array] = {}
    for index, node in enumerate(graph.nodes):
        if node.op in _HASHES:
            continue
        if node.op == "state":
            name = str(node.attrs["name"])
            value = np.asarray(0) if name == STEP_STATE else states[name]
        elif node.op == "gather_samples":
            value = batch[str(node.attrs["part"])]
        elif node.op == "schedule":
            value = inputs[RATE].reshape(())
        else:
            value = TABLE[node.op].law(node.attrs, [found[ref] for ref in node.inputs])
        if changes and node.name in changes:
            value = changes[node.name]
        found[Ref(index)] = np.asarray(value).astype(NUMPY_DTYPES[node.outputs[0].dtype])
    return found


def conclude(
    graph: StepGraph, inputs: Mapping[str, Ints], changes: Mapping[str, Array] | None = None
) -> Statement:
    """What the law makes of ``before``, ``batch`` and ``rate``, as a statement."""
    found = evaluate(graph, inputs, changes)
    after = graph.next_states()
    joined = [found[after[name]].astype(object).reshape(-1) for name in state_names(graph)]
    loss = graph.nodes[graph.find("record")].inputs[2]
    return Statement(
        {BEFORE: inputs[BEFORE], BATCH: inputs[BATCH], AFTER: np.concatenate(joined)},
        {RATE: inputs[RATE], LOSS: found[loss].astype(object).reshape(1)},
    )


def is_true(graph: StepGraph, statement: Statement) -> bool:
    """Whether the law makes of the inputs what a statement says, all of them being what their
    dtypes hold."""
    if not _fits(graph, statement):
        return False
    made = conclude(graph, {**statement.given, **statement.parameters})
    return all(np.array_equal(made.get(name), statement.get(name)) for name in (AFTER, LOSS))


def _fits(graph: StepGraph, statement: Statement) -> bool:
    kinds = [node.outputs[0] for node in graph.nodes if node.op == "gather_samples"]
    bounds = [STORAGE[kind.dtype] for kind in kinds for _ in range(kind.size)]
    batch = all(
        lo <= value <= hi for value, (lo, hi) in zip(statement.given[BATCH], bounds, strict=True)
    )
    lo, hi = STORAGE["i32"]
    return batch and all(lo <= value <= hi for value in statement.given[BEFORE])


def _split(graph: StepGraph, flat: Ints) -> dict[str, Array]:
    states, found, start = graph.states(), {}, 0
    for name in state_names(graph):
        kind = graph.type_of(states[name])
        values = flat[start : start + kind.size].reshape(kind.shape)
        found[name] = values.astype(NUMPY_DTYPES[kind.dtype])
        start += kind.size
    return found


STATES = ("fresh", "trained", "extreme", "highest", "lowest", "mixed", "zero")


@cache
def make_statement(
    loss: str = "cross_entropy", decay: str = "some", state: str = "trained"
) -> Statement:
    """A true statement, from one of ``STATES`` before the step; shared: do not change it."""
    graph = make_graph(loss, decay)
    _, samples, initial = _make_step(loss)
    rng = np.random.default_rng(5)
    most = 2**31 - 1
    before = []
    for name in state_names(graph):
        fresh = initial[name].astype(np.int64)
        drawn = {
            "fresh": fresh,
            "trained": fresh + rng.integers(-(2**21), 2**21, fresh.shape),
            "extreme": rng.integers(-most, most, fresh.shape, endpoint=True),
            "highest": np.full(fresh.shape, most),
            "lowest": np.full(fresh.shape, -most),
            "mixed": rng.choice([-most, most, 0, 1, -1, 2**30], fresh.shape),
            "zero": np.zeros(fresh.shape),
        }
        before.append(drawn[state].reshape(-1))
    (batch_size,) = {
        node.outputs[0].shape[0] for node in graph.nodes if node.op == "gather_samples"
    }
    rows = rng.integers(0, samples.spec.samples, batch_size)
    batch = np.concatenate([samples.part(part)[rows].reshape(-1).astype(np.int64) for part in "xy"])
    inputs = {
        BEFORE: np.concatenate(before).astype(np.int64).astype(object),
        BATCH: batch.astype(object),
        RATE: np.asarray([40960], dtype=object),
    }
    return conclude(graph, inputs)
