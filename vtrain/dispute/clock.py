"""The time of a service: milliseconds that it has been serving, over all its lives.

The time is persisted with every event and every heartbeat and resumes from there, so that the time
in which the service was down runs on nobody's clock.  What anybody is told rests on persisted time:
no crash takes it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Ticks = Callable[[], int]
"""Milliseconds of some clock; should it go backwards, time stands still meanwhile."""


def count_monotonic() -> int:
    """The machine's own monotonic clock, which no change of the date moves."""
    return time.monotonic_ns() // 1_000_000


class ServiceClock:
    """Goes on from ``resumed``, at most ``gap`` milliseconds between two times that are kept.

    A time that could not be persisted is not kept: while the database takes nothing, nobody can
    move, and no player's clock runs for longer than the gap.
    """

    def __init__(self, ticks: Ticks, resumed: int, gap: int) -> None:
        self._ticks, self._gap = ticks, gap
        self._base, self._last = resumed, ticks()

    def read(self) -> tuple[int, int]:
        """The time now and the ticks at which it was read, for ``keep``."""
        ticks = self._ticks()
        self._last = min(self._last, ticks)
        return self._base + min(ticks - self._last, self._gap), ticks

    def keep(self, now: int, ticks: int) -> None:
        """``now``, which no writer's time was later than, is persisted."""
        self._base, self._last = max(self._base, now), ticks
