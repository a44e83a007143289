"""A session that lies: named nodes of named steps put out something else than the law says.

Everything after a lie is computed from it, and records and traces agree with one another: this is
what a party would have to hold who defends a false run in a dispute to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtrain.commit.digest import compute_tensor_digests
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.provider import ClaimTree, MerkleTree
from vtrain.engines.base import State, Trace, check_state
from vtrain.graph.evaluate import apply_node
from vtrain.graph.step import STEP_STATE
from vtrain.spec.commitment import compute_record_leaf
from vtrain.spec.domains import TERMS
from vtrain.wire.record import StepRecord

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

Array = npt.NDArray[Any]
Lie = Callable[[Array, Mapping[int, Array]], Array]
"""(what the law gives, the outputs of the nodes before) -> what is put out instead."""
RecordLie = Callable[[StepRecord], StepRecord]


@dataclass(frozen=True)
class Lies:
    """What is false: outputs by (step, node), and records by step.  Steps count from 1."""

    nodes: Mapping[tuple[int, int], Lie] = field(default_factory=dict)
    records: Mapping[int, RecordLie] = field(default_factory=dict)


class LyingSession:
    """``vtrain.engines.base.Session`` by the law but for ``lies``; as slow as the numpy engine."""

    name = "lying"

    def __init__(self, task: CompiledTask, lies: Lies) -> None:
        self._task, self._lies = task, lies
        self._state: dict[str, Array] = {}
        self._record_node = task.graph.find("record")

    def load_state(self, state: State) -> None:
        check_state(self._task.graph, state)
        self._state = {name: value.copy() for name, value in state.items()}

    def read_state(self) -> dict[str, Array]:
        return {name: value.copy() for name, value in self._state.items()}

    def saturation(self) -> dict[str, int]:
        return {}

    def step(self) -> StepRecord:
        values, record = self._run()
        self._advance(values)
        return record

    def trace(self) -> Trace:
        values, record = self._run()
        self._advance(values)
        return Trace(record, tuple(compute_tensor_digests([values[i] for i in range(len(values))])))

    def evaluate(self, node: int) -> Array:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[Array]:
        values, _ = self._run()
        return [values[node].copy() for node in nodes]

    def _run(self) -> tuple[dict[int, Array], StepRecord]:
        graph = self._task.graph
        step = int(self._state[STEP_STATE]) + 1
        values: dict[int, Array] = {}
        for index, node in enumerate(graph.nodes):
            inputs = [values[ref.node] for ref in node.inputs]
            value = apply_node(node, inputs, self._state, self._task.samples)
            lie = self._lies.nodes.get((step, index))
            values[index] = value if lie is None else lie(value, values)
        counter, batch, loss, root = (values[ref.node] for ref in self._record_inputs())
        commits = step % self._task.spec.commit_every == 0
        record = StepRecord(
            int(counter), batch.tobytes(), int(loss), root.tobytes() if commits else b""
        )
        if step in self._lies.records:
            record = self._lies.records[step](record)
            leaf = compute_record_leaf(
                record.step, record.batch_digest, record.loss, record.state_root
            )
            values[self._record_node] = np.frombuffer(leaf, dtype=np.uint8)
        return values, record

    def _record_inputs(self) -> Any:
        return self._task.graph.nodes[self._record_node].inputs

    def _advance(self, values: Mapping[int, Array]) -> None:
        after = self._task.graph.next_states()
        self._state = {name: values[ref.node] for name, ref in after.items()}


class LyingProvider(EngineProvider):
    """The claim of a session that lies, defended to its end.

    Where a false element is a sum, it must be said how it came about: the last term takes the
    blame.
    """

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        tree = super().terms(step, node, element)
        *states, last = (tree.leaf(index) for index in range(tree.size))
        claimed = int(self.tensor(step, node).flat[element])
        last = claimed.to_bytes(8, "little", signed=True) + last[8:]
        return MerkleTree(TERMS, [*states, last])


def add_one(index: int) -> Lie:
    """One unit in the last place more, in one element of an output."""

    def lie(value: Array, before: Mapping[int, Array]) -> Array:
        false = value.copy()
        false.flat[index] += 1
        return false

    return lie
