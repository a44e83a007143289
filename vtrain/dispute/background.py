"""Replays in a thread of their own: whoever asks for one makes no answer late that is at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.provider import PendingError

T = TypeVar("T")


class _Question(NamedTuple):
    """What is to be computed, and in which turn it was asked for last."""

    compute: Callable[[], Any]
    turn: int


class _Answer(NamedTuple):
    """What a question came to, and in which turn that was asked for last."""

    value: Any
    error: BaseException | None
    turn: int


class Background:
    """Computes what is asked of ``provider``, which it has to itself, and replays in one thread.

    What was asked first is computed first.  What was not asked for in a whole turn is forgotten,
    answer or question, and a replay for it ends.  :meth:`close` ends the thread within a step, and
    leaves the provider open.
    """

    def __init__(self, provider: EngineProvider) -> None:
        self._provider = provider
        self._changed = threading.Condition()
        self._queue: dict[Hashable, _Question] = {}
        self._begun: Hashable = None
        self._begun_turn = 0
        self._answers: dict[Hashable, _Answer] = {}
        self._turn = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; the provider is the caller's again."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._provider.interrupt()
            self._thread.join()
            self._provider.forget_interrupt()

    def begin_turn(self) -> None:
        """From now on, whatever is still wanted is asked for once more."""
        with self._changed:
            self._turn += 1
            for kept in (self._queue, self._answers):
                for key in [key for key, it in kept.items() if it.turn < self._turn - 1]:
                    del kept[key]
            if self._begun is not None and self._begun_turn < self._turn - 1:
                self._provider.interrupt()

    def find(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute`` gives, by the provider; ``key`` is equal for equal questions.

        What needs no replay is there at once, whatever the thread does.  Otherwise PendingError
        until it is, and then what it came to: an error of the provider's, maybe.
        """
        with self._changed:
            known = self._answers.get(key)
            if known is not None:
                self._answers[key] = known._replace(turn=self._turn)
            elif key == self._begun:
                self._begun_turn = self._turn
                raise PendingError("is being computed")
        if known is not None:
            if known.error is not None:
                raise known.error
            found: T = known.value
            return found
        try:
            with self._provider.at_hand():
                return compute()
        except PendingError:
            with self._changed:
                is_known = key == self._begun or key in self._answers
                if not is_known and not self._closed:
                    self._queue[key] = _Question(compute, self._turn)
                    self._start()
                    self._changed.notify()
            raise

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a process that is told to end must not wait for a replay.
            self._thread = threading.Thread(target=self._work, name="replays", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                self._begun = next(iter(self._queue))
                compute, self._begun_turn = self._queue.pop(self._begun)
            value: Any = None
            error: BaseException | None = None
            try:
                value = compute()
            except BaseException as caught:  # noqa: BLE001 - a panic too: whoever asked is told
                error = caught
            with self._changed:
                if isinstance(error, PendingError):
                    # Whoever wants it after all asks again; one that came too late harms nobody.
                    self._provider.forget_interrupt()
                else:
                    self._answers[self._begun] = _Answer(value, error, self._turn)
                self._begun = None
