"""What one service takes on, so that hostile traffic costs no more than honest traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.wire.dispute import Clocks

LEAST_CLOCKS: Final = Clocks(
    join=60_000,
    trace=60_000,
    terms=15_000,
    budget=60_000,
    grace=5_000,
    answer=0,
    opening=0,
    replay=0,
)


@dataclass(frozen=True)
class Limits:
    """Bounds of a service; lengths are in bytes, times in milliseconds unless they say seconds."""

    opening: int = 16 << 20
    """Body that opens a game: genesis, task and graph; a node of a graph takes some 500 bytes."""
    move: int = (4 << 20) + 4096
    """Body of a move; how long the answer to something that is asked may be, its game says."""
    other: int = 64 << 10
    """Any other body."""
    bodies: int = 256 << 20
    """All bodies that are arriving or being worked on."""
    bodies_each: int = 64 << 20
    """Those of one address."""
    body_seconds: float = 30.0
    """For a whole body to arrive."""
    head_seconds: float = 20.0
    """For the head of a request to arrive, after the connection was made or was last used."""
    whole_seconds: float = 120.0
    """For a request in all, until its answer was taken."""
    connections: int = 2048
    """Connections at once, those that wait for events among them."""
    connections_each: int = 256
    """Those of one address: one more, and the idlest of them is closed."""
    opening_burst: int = 256
    """Games that one address opens at once..."""
    opening_seconds: float = 1.0
    """...and one more in so many seconds."""
    openings_each: int = 16
    """Openings of one address that wait; one is worked on at a time."""
    strangers: int = 4
    """Moves at once by parties that back nothing they are asked of: bonds, and what is refused."""
    backers: int = 32
    """Moves at once by parties that back what they answer for."""
    waiting: int = 64
    """Requests of one address, or moves of one party, that wait for their turn."""
    readers: int = 4
    """Requests at once that read the database."""
    bonds: int = 1 << 16
    """Paid bonds behind one claim of a game; all bonds of a game where they cost nothing.

    Filling it must cost more than any game is worth: see the market port.
    """
    games: int = 1 << 20
    """Games that are not over yet."""
    cached: int = 4096
    """Games whose state is kept in memory; others are folded anew from their events."""
    tail: int = 32
    """Last events of a game that are kept in memory with it..."""
    tail_bytes: int = 64 << 10
    """...and their bytes, at most."""
    queue: int = 1024
    """Writes that wait; beyond them the service says that it is busy."""
    batch: int = 64
    """Writes that share one transaction."""
    page: int = 256
    """Events of one answer."""
    page_bytes: int = 1 << 20
    """Bodies of the events of one answer, unless it has one event alone."""
    wait_seconds: float = 30.0
    """The longest that a request for events waits for one."""
    hooks: int = 64
    """Webhooks of the service."""
    beat: int = 250
    """Between two heartbeats, by which time goes on and is persisted."""
    gap: int = 5_000
    """The most that the clock goes on between heartbeats: a frozen process charges no player."""
    least: Clocks = LEAST_CLOCKS
    """The shortest clocks that a game may have: nobody could answer in time with shorter ones."""


LIMITS: Final = Limits()
