"""The reference engine: the law of each node, in order, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy.typing as npt

from vtrain.engines.base import State, Trace, check_state
from vtrain.graph.evaluate import apply_node
from vtrain.ops.base import attr_int
from vtrain.ops.rescale import compute_scaled
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import count_saturated
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord

_HASHES = frozenset({"tensor_digest", "state_leaf", "state_root", "record"})


class NumpySession:
    """``vtrain.engines.base.Session`` by the spec alone.  Slow on purpose; needs a legal graph."""

    name = "numpy"

    def __init__(self, graph: StepGraph, samples: Samples) -> None:
        self._graph = graph
        self._samples = samples
        self._state: dict[str, npt.NDArray[Any]] = {}
        self._saturation: Counter[str] = Counter()
        self._record = graph.find("record")
        self._root = graph.find("state_root")
        self._commit_every = attr_int(graph.nodes[self._record].attrs, "commit_every")

    def load_state(self, state: State) -> None:
        check_state(self._graph, state)
        self._state = {name: value.copy() for name, value in state.items()}

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        return {name: value.copy() for name, value in self._state.items()}

    def saturation(self) -> dict[str, int]:
        return dict(self._saturation)

    def step(self) -> StepRecord:
        commits = (int(self._state["step"]) + 1) % self._commit_every == 0
        values = self._run(skip=frozenset() if commits else self._state_hashes())
        return self._advance(values, commits)

    def trace(self) -> Trace:
        values = self._run(skip=frozenset())
        digests = tuple(compute_tensor_digest(value) for value in values.values())
        commits = (int(self._state["step"]) + 1) % self._commit_every == 0
        return Trace(self._advance(values, commits), digests)

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self._run(skip=frozenset(), last=node)[node]

    def _state_hashes(self) -> frozenset[int]:
        """Nodes that only a commitment step needs: the digests of the new state and its root."""
        skip = {self._root, self._record}
        for index in range(self._record - 1, -1, -1):
            node = self._graph.nodes[index]
            if node.op not in _HASHES:
                continue
            users = [i for i, other in enumerate(self._graph.nodes) if (index, 0) in other.inputs]
            if all(user in skip for user in users):
                skip.add(index)
        return frozenset(skip)

    def _run(self, skip: frozenset[int], last: int | None = None) -> dict[int, npt.NDArray[Any]]:
        values: dict[int, npt.NDArray[Any]] = {}
        stop = len(self._graph.nodes) if last is None else last + 1
        for index, node in enumerate(self._graph.nodes[:stop]):
            if index in skip:
                continue
            inputs = [values[ref.node] for ref in node.inputs]
            values[index] = apply_node(node, inputs, self._state, self._samples)
            if node.op == "rescale" and last is None:
                clamped = count_saturated(
                    compute_scaled(node.attrs, inputs[0]), str(node.attrs["dtype"])
                )
                if clamped:
                    self._saturation[node.name] += clamped
        return values

    def _advance(self, values: dict[int, npt.NDArray[Any]], commits: bool) -> StepRecord:
        step, batch_digest, loss, _ = self._graph.nodes[self._record].inputs
        record = StepRecord(
            step=int(values[step.node]),
            batch_digest=values[batch_digest.node].tobytes(),
            loss=int(values[loss.node]),
            state_root=values[self._root].tobytes() if commits else b"",
        )
        self._state = {name: values[ref.node] for name, ref in self._graph.next_states().items()}
        return record
