"""What is to happen when: a priority queue that is a value, as all of a game's state is.

A leftist heap (Crane, 1972): adding and taking are O(log n) and share all that did not change.
"""

from __future__ import annotations

from typing import NamedTuple

from vtrain.dispute.state import Event


class Agenda(NamedTuple):
    """A heap of events, none of them before ``event``; None stands for an empty one."""

    event: Event
    rank: int
    left: Agenda | None
    right: Agenda | None


def add_event(agenda: Agenda | None, event: Event) -> Agenda:
    """The agenda with one more event."""
    return _merge(agenda, Agenda(event, 1, None, None)) or Agenda(event, 1, None, None)


def drop_first(agenda: Agenda) -> Agenda | None:
    """The agenda without its first event."""
    return _merge(agenda.left, agenda.right)


def _merge(first: Agenda | None, second: Agenda | None) -> Agenda | None:
    # The right spine of a leftist heap has at most log2(n + 1) nodes: so deep goes the recursion.
    if first is None or second is None:
        return first or second
    if second.event < first.event:
        first, second = second, first
    left, right = first.left, _merge(first.right, second)
    if _rank(left) < _rank(right):
        left, right = right, left
    return Agenda(first.event, _rank(right) + 1, left, right)


def _rank(agenda: Agenda | None) -> int:
    return 0 if agenda is None else agenda.rank
