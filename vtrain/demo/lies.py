"""A session that lies: named nodes of named steps put out something else than the law says.

Everything after a lie is computed from it, and records and traces agree with one another: this is
what a party would have to hold who defends a false run in a dispute to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtrain.commit.digest import compute_tensor_digests
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.provider import ClaimTree, MerkleTree
from vtrain.engines.base import Session, State, Trace
from vtrain.engines.numpy_engine import NumpySession
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
    """``vtrain.engines.base.Session`` that lies: what ``session`` does, but for ``lies``.

    In a step with lies, the nodes that depend on one are computed by the law, one by one; all else
    is ``session``'s, which is one by the law unless another is given.
    """

    name = "lying"

    def __init__(self, task: CompiledTask, lies: Lies, session: Session | None = None) -> None:
        self._task, self._lies = task, lies
        self._session = session or NumpySession(task.graph, task.samples)
        self._record_node = task.graph.find("record")

    def load_state(self, state: State) -> None:
        self._session.load_state(state)

    def read_state(self) -> dict[str, Array]:
        return self._session.read_state()

    def saturation(self) -> dict[str, int]:
        return {}

    def step(self) -> StepRecord:
        if self._is_honest():
            return self._session.step()
        false, record = self._run()
        self._session.step()
        self._advance(false)
        return record

    def trace(self) -> Trace:
        if self._is_honest():
            return self._session.trace()
        false, record = self._run()
        digests = list(self._session.trace().digests)
        for index, digest in zip(false, compute_tensor_digests(list(false.values())), strict=True):
            digests[index] = digest
        self._advance(false)
        return Trace(record, tuple(digests))

    def evaluate(self, node: int) -> Array:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[Array]:
        if self._is_honest():
            return self._session.evaluate_all(nodes)
        false, _ = self._run()
        return _Outputs(self._session, false, nodes).list_all(nodes)

    def _find_step(self) -> int:
        """The step that comes, from 1."""
        return int(self._session.read_state()[STEP_STATE]) + 1

    def _is_honest(self) -> bool:
        """Is nothing false in the step that comes?"""
        if not self._lies.nodes and not self._lies.records:
            return True
        step = self._find_step()
        return step not in self._lies.records and all(at != step for at, _ in self._lies.nodes)

    def _run(self) -> tuple[dict[int, Array], StepRecord]:
        """The outputs of the step that comes which a lie makes false, and its record."""
        graph, step = self._task.graph, self._find_step()
        state, lies = self._session.read_state(), self._lies.nodes
        false: dict[int, Array] = {}
        touched: set[int] = set()
        for index, node in enumerate(graph.nodes):
            if (step, index) in lies or any(ref.node in touched for ref in node.inputs):
                touched.add(index)
        read = {ref.node for index in touched for ref in graph.nodes[index].inputs}
        read |= {ref.node for ref in self._record_inputs()}
        values = _Outputs(self._session, false, sorted(read - touched))
        for index in sorted(touched):
            node = graph.nodes[index]
            inputs = [values[ref.node] for ref in node.inputs]
            value = apply_node(node, inputs, state, self._task.samples)
            lie = lies.get((step, index))
            false[index] = value if lie is None else lie(value, values)
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
            false[self._record_node] = np.frombuffer(leaf, dtype=np.uint8)
        return false, record

    def _record_inputs(self) -> Any:
        return self._task.graph.nodes[self._record_node].inputs

    def _advance(self, false: Mapping[int, Array]) -> None:
        """The session has done the step: go on from the state that is claimed of it."""
        state = self._session.read_state()
        for name, ref in self._task.graph.next_states().items():
            state[name] = false.get(ref.node, state[name])
        self._session.load_state(state)


class _Outputs(Mapping[int, Array]):
    """Outputs of nodes: those in ``false``, else what ``session`` has, ``wanted`` all at once."""

    def __init__(self, session: Session, false: Mapping[int, Array], wanted: Sequence[int]) -> None:
        self._session, self._false = session, false
        true = [node for node in wanted if node not in false]
        self._true = dict(zip(true, session.evaluate_all(true), strict=True)) if true else {}

    def __getitem__(self, node: int) -> Array:
        if node in self._false:
            return self._false[node]
        if node not in self._true:
            self._true[node] = self._session.evaluate(node)
        return self._true[node]

    def __iter__(self) -> Iterator[int]:
        return iter({**self._true, **self._false})

    def __len__(self) -> int:
        return len({**self._true, **self._false})

    def list_all(self, nodes: Sequence[int]) -> list[Array]:
        """Copies of the outputs of these nodes."""
        return [self[node].copy() for node in nodes]


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
