"""One thread that writes: what waits shares a transaction, and is answered once it is stored."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from vtrain.dispute.problems import BusyError

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    work: Callable[[Any], Any]
    future: Future[Any]


class _Catch:
    """Holds whatever is raised in its block: an answer to those who wait, which ends no thread."""

    error: BaseException | None = None

    def __enter__(self) -> _Catch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.error = error
        return True


class Writer:
    """Runs jobs in order, in batches; ``run`` calls each within one transaction.

    ``run(works)`` returns, for each of ``works``, its result or the VtrainError that it raised
    before it wrote anything; raises when nothing of the batch is stored.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Callable[[Any], Any]]], list[Any]],
        *,
        waiting: int,
        batch: int,
    ) -> None:
        self._run, self._batch = run, batch
        self._jobs: queue.Queue[_Job | None] = queue.Queue(waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="vtrain-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Any], T]) -> Future[T]:
        """Have ``work`` done; BusyError when too much waits, or the writer is closed."""
        future: Future[T] = Future()
        if self._closed:
            raise BusyError("the service is stopping", where="service")
        try:
            self._jobs.put_nowait(_Job(work, future))
        except queue.Full:
            raise BusyError("too many moves wait; send it again", where="service") from None
        return future

    def close(self) -> None:
        """Do what waits, then stop."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        while True:  # what came between the two
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.future.set_exception(BusyError("the service is stopping", where="service"))

    def _loop(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs, last = [first], False
            while len(jobs) < self._batch and not last:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    last = True
                else:
                    jobs.append(job)
            self._do(jobs)
            if last:
                return

    def _do(self, jobs: Sequence[_Job]) -> None:
        results: list[Any] = []
        with _Catch() as caught:
            results = self._run([job.work for job in jobs])
        if caught.error is not None and len(jobs) > 1:
            # One job may be what the database does not take: the others are not to suffer for it.
            for job in jobs:
                self._do([job])
            return
        if caught.error is not None:
            results = [caught.error]
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
