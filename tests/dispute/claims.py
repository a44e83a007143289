"""False claims about a run that cost no training: the truth, but for what is patched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tasks import make_convnet_task, make_tiny_task
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import compute_record_digest
from vtrain.dispute.provider import ChunkTree, ClaimTree, LeafOpening, MerkleTree
from vtrain.dispute.state import DisputedGraph
from vtrain.engines.registry import open_session
from vtrain.spec.domains import RUN_LOG, TERMS, TRACE
from vtrain.spec.merkle import compute_leaf_hash
from vtrain.train.task import CompiledTask
from vtrain.wire.record import StepRecord, decode_record, encode_record

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Run:
    """A task with its true claim."""

    task: CompiledTask
    truth: EngineProvider

    @cached_property
    def graph(self) -> DisputedGraph:
        """The graph as games about the run take it."""
        return DisputedGraph(self.task.graph, self.task.spec.graph_root)

    def find(self, name: str) -> int:
        """Index of the node of this name."""
        return next(i for i, node in enumerate(self.task.graph.nodes) if node.name == name)

    def tensor(self, step: int, node: int) -> Array:
        """What the node truly puts out in a step."""
        return self.truth.tensor(step, node)

    def record(self, step: int) -> StepRecord:
        """The true record of a step."""
        return decode_record(self.truth.log().leaf(step - 1))


_RUNS: dict[tuple[Any, ...], Run] = {}


def make_run(
    kind: str = "mlp",
    *,
    steps: int = 5,
    commit_every: int = 2,
    loss: str = "cross_entropy",
    batch: int = 8,
    samples: int = 60,
    optimizer: str = "sgd",
) -> Run:
    """A tiny run by the cpu engine, made once; of "convnet" batches and samples are as they are."""
    key = (kind, steps, commit_every, loss, batch, samples, optimizer)
    if key not in _RUNS:
        task = (
            make_convnet_task(steps=steps, commit_every=commit_every)
            if kind == "convnet"
            else make_tiny_task(
                kind,
                steps=steps,
                commit_every=commit_every,
                checkpoint_every=commit_every,
                loss=loss,
                batch=batch,
                samples=samples,
                optimizer=optimizer,
            )
        )
        session = open_session("cpu", task.graph, task.samples)
        _RUNS[key] = Run(task, EngineProvider(task, session))
    return _RUNS[key]


def bump(array: Array, index: int, by: int = 1) -> Array:
    """The array with one element that many units in the last place more."""
    false = array.copy()
    false.reshape(-1)[index : index + 1] += by  # wraps, where it is at the end of its range
    return false


@dataclass
class Patched:
    """A ``TraceProvider`` that says what ``base`` does, but for what is patched.

    ``outputs`` by (step, node) are other values, or a digest of which nobody has the preimage;
    ``records`` by step are other records of the log, or other bytes, of any length; ``leaves``
    other leaves of the trace, by (step, node), which win over outputs.  ``detours`` by (step, node)
    are what the fold states of every element have more, block by block.
    """

    base: EngineProvider
    task: CompiledTask
    outputs: Mapping[tuple[int, int], Array | bytes] = field(default_factory=dict)
    records: Mapping[int, bytes | StepRecord] = field(default_factory=dict)
    leaves: Mapping[tuple[int, int], bytes] = field(default_factory=dict)
    detours: Mapping[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    _traces: dict[int, MerkleTree] = field(default_factory=dict)
    _trees: dict[tuple[int, int], ChunkTree] = field(default_factory=dict)

    def log(self) -> ClaimTree:
        return self._log

    @cached_property
    def _log(self) -> ClaimTree:
        if not self.records:
            return self.base.log()
        tree = self.base.log()
        leaves = [tree.leaf(index) for index in range(tree.size)]
        for step, record in self.records.items():
            leaves[step - 1] = encode_record(record) if isinstance(record, StepRecord) else record
        return MerkleTree(RUN_LOG, leaves)

    def trace(self, step: int) -> ClaimTree:
        if step not in self._traces:
            self._traces[step] = self._compute_trace(step)
        return self._traces[step]

    def _compute_trace(self, step: int) -> MerkleTree:
        nodes, every = len(self.task.graph.nodes), self.task.spec.commit_every
        first = (step - 1) // every * every + 1
        tree = self.base.trace(step)
        leaves = [tree.leaf(index) for index in range(tree.size)]
        for done in range(first, step + 1):
            record = self.records.get(done)
            if isinstance(record, StepRecord):
                at = (done - first) * nodes + self.task.graph.find("record")
                leaves[at] = compute_record_digest(record)
        patches: dict[tuple[int, int], bytes] = {
            place: false if isinstance(false, bytes) else ChunkTree(false).root
            for place, false in self.outputs.items()
        }
        for (done, node), leaf in (patches | dict(self.leaves)).items():
            if first <= done <= step:
                leaves[(done - first) * nodes + node] = leaf
        return MerkleTree(TRACE, leaves)

    def chunks(self, step: int, node: int) -> ClaimTree:
        if (step, node) not in self._trees:
            self._trees[step, node] = ChunkTree(self._value(step, node))
        return self._trees[step, node]

    def _value(self, step: int, node: int) -> Array:
        record = self.records.get(step)
        false = self.outputs.get((step, node))
        if isinstance(false, np.ndarray):
            return false
        if node == self.task.graph.find("record") and isinstance(record, StepRecord):
            log = self._log
            return np.frombuffer(compute_leaf_hash(RUN_LOG, log.leaf(step - 1)), np.uint8)
        return self.base.tensor(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        tree = self.base.terms(step, node, element)
        states = [tree.leaf(index) for index in range(tree.size)]
        detour = self.detours.get((step, node), ())
        for at, more in enumerate(detour):
            state = int.from_bytes(states[at][:8], "little", signed=True) + more
            states[at] = state.to_bytes(8, "little", signed=True) + states[at][8:]
        return MerkleTree(TERMS, states)

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        self.base.want(traces=traces, tensors=tensors)

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        return self.base.open(step, node, element, block, first=first)
