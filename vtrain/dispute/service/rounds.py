"""A thread that does a round of work whenever it is woken, and once a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_LOG: Final = logging.getLogger("vtrain.dispute")


class Rounds:
    """Calls ``work`` in turns from a thread ``name``, once started; what it raises is logged."""

    def __init__(self, work: Callable[[], object], name: str, seconds: float = 1.0) -> None:
        self._work, self._seconds = work, seconds
        self._wake = threading.Event()
        self.closed = False
        # What a round raises, a defect too, is logged, and ends no thread.
        self._pool = ThreadPoolExecutor(1, name)
        self._thread = threading.Thread(target=self._loop, name=f"{name}-rounds", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Have a round soon; from any thread."""
        self._wake.set()

    def close(self) -> None:
        """Return after the round that is under way."""
        self.closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown()

    def _loop(self) -> None:
        while not self.closed:
            self._wake.wait(timeout=self._seconds)
            self._wake.clear()
            error = self._pool.submit(self._work).exception()
            if error is not None:
                _LOG.error("a round failed", exc_info=error)
