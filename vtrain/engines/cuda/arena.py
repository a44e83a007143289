"""One block of memory for all values of a step, shared by those that never live together."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

ALIGNMENT = 256
"""Every value begins at a multiple of this: the widest loads and copies need no more."""


class Lifetime(NamedTuple):
    """Bytes needed from job ``first`` to job ``last``, both included."""

    nbytes: int
    first: int
    last: int


class _Gaps:
    """Free ranges, neighbours joined; what lies beyond ``end`` is free as well.

    Each is found by its begin, by its end, and by its size: none is looked for among all.
    """

    def __init__(self) -> None:
        self._length_at: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}
        """Begin of the gap with this end."""
        self._by_size: list[tuple[int, int]] = []
        """(length, begin), rising."""
        self.end = 0

    def take(self, size: int) -> int:
        """Offset of the smallest gap that fits, or of new room at the end."""
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            length, offset = self._by_size[at]
            self._remove(offset, length)
            if length > size:
                self._add(offset + size, length - size)
            return offset
        offset = self.end
        if offset in self._begin_of:
            offset = self._begin_of[offset]
            self._remove(offset, self.end - offset)
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        if offset in self._begin_of:
            begin = self._begin_of[offset]
            self._remove(begin, offset - begin)
            offset, size = begin, size + offset - begin
        if offset + size in self._length_at:
            more = self._length_at[offset + size]
            self._remove(offset + size, more)
            size += more
        self._add(offset, size)

    def _add(self, offset: int, length: int) -> None:
        self._length_at[offset], self._begin_of[offset + length] = length, offset
        insort(self._by_size, (length, offset))

    def _remove(self, offset: int, length: int) -> None:
        del self._length_at[offset], self._begin_of[offset + length]
        del self._by_size[bisect_left(self._by_size, (length, offset))]


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
            _, done = heappop(live)
            gaps.give(offsets[done], _round_up(wanted[done].nbytes))
        offsets[i] = gaps.take(_round_up(wanted[i].nbytes))
        heappush(live, (wanted[i].last, i))
    return offsets, gaps.end


def _round_up(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
