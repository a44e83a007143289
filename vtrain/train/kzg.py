"""The KZG records of a run: what they are made of, for whoever makes or compares them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vtrain.commit.hiding import KeyFinder, identify_key
from vtrain.commit.kzg_log import Committer, StepCommitter
from vtrain.engines.base import Session, State
from vtrain.errors import EncodingError, NotProducedError, TaskError
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import Samples
from vtrain.train.data import gather_batch
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import KzgRecord
from vtrain.wire.task import TaskSpec


@dataclass(frozen=True)
class Committed:
    """Commitments to a state or a batch, and the id of the key that hides it."""

    commitments: tuple[bytes, ...]
    key: bytes


class KzgRecorder:
    """Makes the KZG records of a task's steps; ``seconds`` is what the commitments took.

    ``keys`` has the keys of ``hiding``: NotProducedError where it lacks one.  TaskError when
    the task asks for no commitments, or ``key`` is not of the SRS, k and blinding it pins.
    """

    def __init__(
        self,
        task: TaskSpec,
        graph: StepGraph,
        samples: Samples,
        key: Committer | None,
        threads: int = 0,
        hiding: Hiding | None = None,
    ) -> None:
        proof = task.kzg
        if proof is None:
            raise TaskError("is not there: the task asks for no KZG commitments", where="proof")
        if key is None:
            raise TaskError(
                "is needed for KZG commitments, and none was opened: compile the task with its SRS",
                where="proof.srs",
            )
        try:
            self._committer = StepCommitter(proof, graph, key, threads)
        except EncodingError as error:
            raise TaskError(error.message, where=f"proof.{error.where}") from None
        self._task, self._samples, self._every = task, samples, proof.every
        self._known: tuple[int, Committed] | None = None
        self.keys = KeyFinder(compute_task_id(task), proof, graph, hiding or Hiding(), threads)
        self.seconds = 0.0

    def is_due(self, step: int) -> bool:
        """Whether the log has a record of ``step`` (from 1)."""
        return step % self._every == 0

    def remember(self, step: int, committed: Committed) -> None:
        """``committed`` is the state after ``step`` steps: it is not committed to again."""
        self._known = step, committed

    def commit_state(self, step: int, state: State) -> Committed:
        """Commitments to the state after ``step`` steps."""
        started = time.perf_counter()
        key = _require(self.keys.of_state(step, state), f"state after step {step}")
        commitments = self._committer.commit_state(state, key)
        self.seconds += time.perf_counter() - started
        committed = Committed(commitments, identify_key(key))
        self.remember(step, committed)
        return committed

    def commit_batch(self, step: int) -> Committed:
        """Commitments to the batch of ``step`` (from 1)."""
        started = time.perf_counter()
        x, y = gather_batch(self._samples, self._task.seed, self._task.batch, step)
        key = _require(self.keys.of_batch(step, x, y), f"batch of step {step}")
        commitments = self._committer.commit_batch(x, y, key)
        self.seconds += time.perf_counter() - started
        return Committed(commitments, identify_key(key))

    def commit_before(self, step: int, session: Session) -> Committed:
        """Commitments to the state that ``session`` holds, from which ``step`` begins."""
        if self._known is not None and self._known[0] == step - 1:
            return self._known[1]
        return self.commit_state(step - 1, session.read_state())

    def make_record(self, step: int, before: Committed, session: Session) -> KzgRecord:
        """The record of ``step``, which ``session`` has just done; ``before`` is from before it."""
        batch = self.commit_batch(step)
        return _join(step, before, batch, self.commit_state(step, session.read_state()))

    def compute_record(self, step: int, before: State, after: State) -> KzgRecord:
        """The record of ``step`` (from 1) between two states."""
        begins, batch = self.commit_state(step - 1, before), self.commit_batch(step)
        return _join(step, begins, batch, self.commit_state(step, after))


def _require(key: bytes | None, what: str) -> bytes:
    if key is None:
        raise NotProducedError("its commitments are hidden, and its key is not known", where=what)
    return key


def _join(step: int, before: Committed, batch: Committed, after: Committed) -> KzgRecord:
    return KzgRecord(
        step,
        before.commitments,
        batch.commitments,
        after.commitments,
        before.key,
        batch.key,
        after.key,
    )
