"""What one service takes on, so that hostile traffic costs no more than honest traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.wire.dispute import Clocks

LEAST_CLOCKS: Final = Clocks(join=60_000, trace=60_000, terms=15_000, match=60_000, grace=0)


@dataclass(frozen=True)
class Limits:
    """Bounds of a service; lengths are in bytes, times in milliseconds unless they say seconds."""

    opening: int = 16 << 20
    """Body that opens a game: genesis, task and graph; a node of a graph takes some 500 bytes."""
    move: int = 4 << 20
    """Body of a move; one of arity 16 has less than 100 KB, unless samples are large."""
    stranger: int = 256 << 10
    """Body of a move by a party that backs no claim of the game: a bond or an accusation."""
    other: int = 64 << 10
    """Any other body."""
    body_seconds: float = 30.0
    """For a whole body to arrive."""
    bonds: int = 1 << 16
    """Bonds of a game.  Filling it must cost more than any game is worth: see the market port."""
    games: int = 1 << 20
    """Games that are not over yet."""
    cached: int = 512
    """Games whose state is kept in memory; others are folded anew from their events."""
    queue: int = 1024
    """Writes that wait; beyond them the service says that it is busy."""
    batch: int = 64
    """Writes that share one transaction."""
    page: int = 256
    """Events of one answer."""
    page_bytes: int = 8 << 20
    """Bodies of the events of one answer, unless it has one event alone."""
    wait_seconds: float = 30.0
    """The longest that a request for events waits for one."""
    connections: int = 2048
    """Connections at once, those that wait for events among them."""
    hooks: int = 64
    """Webhooks of the service."""
    beat: int = 250
    """Between two heartbeats, by which time goes on and is persisted."""
    gap: int = 5_000
    """The most that the clock goes on between heartbeats: a frozen process charges no player."""
    least: Clocks = LEAST_CLOCKS
    """The shortest clocks that a game may have: nobody could answer in time with shorter ones."""


LIMITS: Final = Limits()
