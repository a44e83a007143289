"""Connections whose every wait ends by one deadline (extra ``store`` or ``server``).

httpcore limits each wait alone, so that a peer which drips holds its reader for ever; and it asks
the system for the addresses of a name, which takes as long as whoever answers for the name likes.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

import httpcore

Clock = Callable[[], float]
Resolve = Callable[[str, int], list[str]]
"""The addresses of a host and port, as text; OSError."""
MOST_LOOKUPS: Final = 16
"""Names that are being looked up at once: a thread is with each, until the system is done."""

_pending = threading.BoundedSemaphore(MOST_LOOKUPS)


class Deadline(threading.local):
    """Until when what this thread asked for may take."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._at = 0.0

    def start(self, seconds: float) -> None:
        """It is so many seconds from now."""
        self._at = self._clock() + seconds

    def bound(self, error: type[Exception], timeout: float | None = None) -> float:
        """The seconds that are left, ``timeout`` at most; ``error`` where none are."""
        left = self._at - self._clock()
        if left <= 0:
            raise error("the deadline is over")
        return left if timeout is None else min(left, timeout)


class TimedStream(httpcore.NetworkStream):
    """A connection whose every wait ends by the deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadline.bound(httpcore.ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._deadline.bound(httpcore.WriteTimeout, timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = self._deadline.bound(httpcore.ConnectTimeout, timeout)
        inner = self._inner.start_tls(ssl_context, server_hostname, left)
        return TimedStream(inner, self._deadline)

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


def look_up(resolve: Resolve, host: str, port: int, seconds: float) -> list[str]:
    """What ``resolve`` says of a host, in so many seconds; httpcore.ConnectTimeout after them, or
    while too many names are being looked up.  The system cannot be stopped: a thread stays with it
    until it is done.
    """
    found: SimpleQueue[list[str] | Exception] = SimpleQueue()
    pending = _pending

    def ask() -> None:
        try:
            found.put(resolve(host, port))
        except Exception as error:  # noqa: BLE001 - for whoever asked
            found.put(error)
        finally:
            pending.release()

    if not pending.acquire(timeout=seconds):
        raise httpcore.ConnectTimeout(f"{MOST_LOOKUPS} names are being looked up already")
    threading.Thread(target=ask, name="vtrain-look-up", daemon=True).start()
    try:
        answer = found.get(timeout=seconds)
    except Empty:
        raise httpcore.ConnectTimeout(f"the address of {host} takes too long to find") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
