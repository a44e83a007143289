"""The reference engine: the law of each node, in order, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from vtrain.engines.base import State, Trace, check_state
from vtrain.errors import DataError, RunError
from vtrain.graph.evaluate import apply_node
from vtrain.graph.values import HASHES
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import count_saturated
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord


def check_samples(graph: StepGraph, samples: Samples) -> None:
    """DataError unless ``samples`` have the forms and the number that ``graph`` gathers."""
    for node in graph.nodes:
        if node.op == "gather_samples":
            spec, claim = samples.spec, node.outputs[0]
            x, y = (spec.x_dtype, spec.x_shape), (spec.y_dtype, spec.y_shape)
            dtype, shape = x if node.attrs["part"] == "x" else y
            if dtype != claim.dtype or shape != claim.shape[1:]:
                raise DataError(
                    f"{node.name} needs {claim.dtype} {claim.shape[1:]}, "
                    f"samples are {dtype} {shape}",
                    where="samples",
                )
        elif node.op == "sample_index":
            count = attr_int(node.attrs, "samples")
            if count != samples.spec.samples:
                raise DataError(
                    f"the graph draws from {count} samples, there are {samples.spec.samples}",
                    where="samples",
                )


class NumpySession:
    """``vtrain.engines.base.Session`` by the spec alone.  Slow on purpose; needs a legal graph.

    DataError when the samples are not of the form that the graph gathers; RunError for a step
    before a state is loaded, or a node that the graph does not have.
    """

    name = "numpy"

    def __init__(self, graph: StepGraph, samples: Samples) -> None:
        check_samples(graph, samples)
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
        commits = self._is_commitment()
        values = self._run(skip=frozenset() if commits else self._state_hashes())
        return self._advance(values, commits)

    def trace(self) -> Trace:
        values = self._run(skip=frozenset())
        digests = tuple(compute_tensor_digest(value) for value in values.values())
        return Trace(self._advance(values, self._is_commitment()), digests)

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        for node in nodes:
            if not 0 <= node < len(self._graph.nodes):
                raise RunError("is no node of the graph", where=f"node {node}")
        values = self._run(skip=frozenset(), last=max(nodes, default=-1))
        # Copies, since a state's node puts out the state itself.
        return [values[node].copy() for node in nodes]

    def _is_commitment(self) -> bool:
        """Will the coming step's record have a state root?"""
        self._require_state()
        return (int(self._state["step"]) + 1) % self._commit_every == 0

    def _require_state(self) -> None:
        if not self._state:
            raise RunError("no state is loaded", where="state")

    def _state_hashes(self) -> frozenset[int]:
        """Nodes that only a commitment step needs: the digests of the new state and its root."""
        skip = {self._root, self._record}
        # Nodes that one reads which every step needs.
        needed: set[int] = set()
        for index in range(len(self._graph.nodes) - 1, -1, -1):
            node = self._graph.nodes[index]
            if index < self._record and index not in needed and node.op in HASHES:
                skip.add(index)
            if index not in skip:
                needed.update(ref.node for ref in node.inputs)
        return frozenset(skip)

    def _run(self, skip: frozenset[int], last: int | None = None) -> dict[int, npt.NDArray[Any]]:
        self._require_state()
        values: dict[int, npt.NDArray[Any]] = {}
        stop = len(self._graph.nodes) if last is None else last + 1
        for index, node in enumerate(self._graph.nodes[:stop]):
            if index in skip:
                continue
            inputs = [values[ref.node] for ref in node.inputs]
            values[index] = apply_node(node, inputs, self._state, self._samples)
            unclamped = TABLE[node.op].unclamped
            if unclamped is not None and last is None:
                exact = unclamped(node.attrs, inputs)
                clamped = count_saturated(exact, node.outputs[0].dtype)
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
