"""The KZG records of a run: what they are made of, for whoever makes or compares them."""

from __future__ import annotations

import time

from vtrain.commit.kzg_log import Committer, StepCommitter
from vtrain.engines.base import Session, State
from vtrain.errors import EncodingError, TaskError
from vtrain.spec.samples import Samples
from vtrain.train.data import gather_batch
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import KzgRecord
from vtrain.wire.task import TaskSpec


class KzgRecorder:
    """Makes the KZG records of a task's steps; ``seconds`` is what the commitments took.

    TaskError when the task asks for none, or ``key`` is not of the SRS, k and blinding it pins.
    """

    def __init__(
        self,
        task: TaskSpec,
        graph: StepGraph,
        samples: Samples,
        key: Committer | None,
        threads: int = 0,
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
        self._known: tuple[int, tuple[bytes, ...]] | None = None
        self.seconds = 0.0

    def is_due(self, step: int) -> bool:
        """Whether the log has a record of ``step`` (from 1)."""
        return step % self._every == 0

    def remember(self, step: int, commitments: tuple[bytes, ...]) -> None:
        """``commitments`` are those to the state after ``step`` steps: they are not made again."""
        self._known = step, commitments

    def commit_state(self, step: int, state: State) -> tuple[bytes, ...]:
        """Commitments to the state after ``step`` steps."""
        started = time.perf_counter()
        commitments = self._committer.commit_state(state)
        self.seconds += time.perf_counter() - started
        self.remember(step, commitments)
        return commitments

    def commit_batch(self, step: int) -> tuple[bytes, ...]:
        """Commitments to the batch of ``step`` (from 1)."""
        started = time.perf_counter()
        x, y = gather_batch(self._samples, self._task.seed, self._task.batch, step)
        commitments = self._committer.commit_batch(x, y)
        self.seconds += time.perf_counter() - started
        return commitments

    def commit_before(self, step: int, session: Session) -> tuple[bytes, ...]:
        """Commitments to the state that ``session`` holds, from which ``step`` begins."""
        if self._known is not None and self._known[0] == step - 1:
            return self._known[1]
        return self.commit_state(step - 1, session.read_state())

    def make_record(self, step: int, before: tuple[bytes, ...], session: Session) -> KzgRecord:
        """The record of ``step``, which ``session`` has just done; ``before`` is from before it."""
        batch = self.commit_batch(step)
        return KzgRecord(step, before, batch, self.commit_state(step, session.read_state()))

    def compute_record(self, step: int, before: State, after: State) -> KzgRecord:
        """The record of ``step`` (from 1) between two states."""
        begins, batch = self.commit_state(step - 1, before), self.commit_batch(step)
        return KzgRecord(step, begins, batch, self.commit_state(step, after))
