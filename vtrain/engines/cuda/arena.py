"""One block of memory for all values of a step, shared by those that never live together."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

ALIGNMENT = 256
"""Every value begins at a multiple of this: the widest loads and copies need no more."""


class Lifetime(NamedTuple):
    """Bytes needed from job ``first`` to job ``last``, both included."""

    nbytes: int
    first: int
    last: int


class _Gaps:
    """Free ranges by offset, neighbours joined; what lies beyond ``end`` is free as well."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        """Offset of the smallest gap that fits, or of new room at the end."""
        fits = [gap for gap in self._free if gap[1] >= size]
        if fits:
            offset, length = min(fits, key=lambda gap: (gap[1], gap[0]))
            self._free.remove((offset, length))
            if length > size:
                insort(self._free, (offset + size, length - size))
            return offset
        if self._free and sum(self._free[-1]) == self.end:
            offset, _ = self._free.pop()
        else:
            offset = self.end
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        insort(self._free, (offset, size))
        at = self._free.index((offset, size))
        for left in (at, at - 1):
            if 0 <= left < len(self._free) - 1:
                start, length = self._free[left]
                following, more = self._free[left + 1]
                if start + length == following:
                    self._free[left : left + 2] = [(start, length + more)]


def place(lifetimes: Iterable[Lifetime]) -> tuple[list[int], int]:
    """Offset of each, and the size of the arena: best fit, in the order in which they begin.

    Two that live at one time never overlap.  Equal beginnings are placed largest first.
    """
    wanted = list(lifetimes)
    offsets = [0] * len(wanted)
    gaps = _Gaps()
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i].first, -wanted[i].nbytes, i))
    live: list[tuple[int, int]] = []
    for i in order:
        while live and live[0][0] < wanted[i].first:
            _, done = live.pop(0)
            gaps.give(offsets[done], _round_up(wanted[done].nbytes))
        offsets[i] = gaps.take(_round_up(wanted[i].nbytes))
        insort(live, (wanted[i].last, i))
    return offsets, gaps.end


def _round_up(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
