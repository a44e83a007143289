"""Checkpoints written beside the steps that follow them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from vtrain.engines.base import Session, Snapshot, take_snapshot
from vtrain.train.store import Mark, RunDirectory, Tally


class CheckpointWriter:
    """Writes checkpoints of ``run`` in a thread of its own, one after the other, as a context.

    What fails there is raised by the next call, and at the latest by the end of the block, which
    waits for what has been begun.  Where the block ends by another error, that one goes on with a
    note of it.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[None] | None = None

    def begin(self, session: Session, tally: Tally) -> None:
        """Begin the checkpoint of the run as it is now, when the one before is written: in host and
        device there is never more than one state on its way."""
        if self._last is not None:
            self._last.result()
        mark = self._run.mark(tally)
        self._last = self._thread.submit(self._write, mark, take_snapshot(session))

    def check(self) -> None:
        """Raise what has failed by now."""
        if self._last is not None and self._last.done():
            self._last.result()

    def _write(self, mark: Mark, snapshot: Snapshot) -> None:
        self._run.commit_at(mark, snapshot())

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        failure = None if self._last is None else self._last.exception()
        if failure is None or failure is error:
            return
        if error is None:
            raise failure
        error.add_note(f"A checkpoint begun before it was not written: {failure}")
