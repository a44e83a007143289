"""The time of a service: milliseconds that it has been serving, over all its lives.

The time is persisted with every event and every heartbeat and resumes from there, so that the time
in which the service was down runs on nobody's clock.  What anybody is told rests on persisted time:
no crash takes it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Ticks = Callable[[], int]
"""Milliseconds of some clock that never goes backwards."""


def count_monotonic() -> int:
    """The machine's own monotonic clock."""
    return time.monotonic_ns() // 1_000_000


class ServiceClock:
    """Goes on from ``resumed``, at most ``gap`` milliseconds between two calls of ``beat``."""

    def __init__(self, ticks: Ticks, resumed: int, gap: int) -> None:
        self._ticks, self._gap = ticks, gap
        self._base, self._last = resumed, ticks()

    def beat(self, persisted: int) -> int:
        """The time now, which is no earlier than ``persisted``, and a new start of the gap."""
        ticks = self._ticks()
        now = self._base + min(max(ticks - self._last, 0), self._gap)
        self._base, self._last = max(now, persisted), ticks
        return self._base
