"""The market port: what a service asks of whoever holds the money, and an adapter in memory.

A marketplace implements :class:`Market`.  Calls come from several threads, and from several
processes where these serve one database; each may come again after a crash.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vtrain.dispute.money import Settled
from vtrain.dispute.problems import BondRefusedError
from vtrain.dispute.receipts import EventKind
from vtrain.dispute.state import Level, Verdict
from vtrain.wire.dispute import Genesis


@dataclass(frozen=True)
class BondClaim:
    """``party`` stands behind ``root`` at a ``level`` of a game, with ``amount`` for a bond.

    ``about`` is the side that it is for (of the log: the game); ``key``, which tells bonds apart,
    the digest of the move.
    """

    key: bytes
    game: bytes
    party: bytes
    level: Level
    about: bytes
    root: bytes
    amount: int


@dataclass(frozen=True)
class Settlement:
    """The end of a game: its verdict, what became of every bond, and who is paid from the pot.

    Bonds that were locked but are not here belong to moves that never were accepted: they are given
    back.  ``work`` is what each party did for the claim that stands, in milliseconds of the game's
    clocks: what to share by when there is more than the pot to share, such as a solver's stake.
    """

    verdict: Verdict
    settled: Settled
    work: Mapping[bytes, int]


@dataclass(frozen=True)
class Notice:
    """Something happened in a game.  A hint: the service's events are the record."""

    game: bytes
    sequence: int
    kind: EventKind
    at: int


class Market(Protocol):
    """What a service needs of a market.

    ``open`` and ``lock`` count: after each that returned, either the game was opened, or the move
    accepted, or there is one ``cancel`` or ``release``.  Two copies of one bond are two of ``lock``
    with one key, which lock its amount once; when the second copy is refused, ``release`` comes
    once, and the first copy's bond stays locked.
    """

    def open(self, game: bytes, genesis: Genesis) -> None:
        """A game is about to begin, its solver's claim standing; BondRefusedError to prevent it."""
        ...

    def cancel(self, game: bytes) -> None:
        """The game of one ``open`` was refused after all; nothing when there is no such game."""
        ...

    def lock(self, bond: BondClaim) -> None:
        """Lock the bond before its move is accepted; BondRefusedError to prevent that."""
        ...

    def release(self, bond: BondClaim) -> None:
        """The move of one ``lock`` was refused after all; nothing when there is no such lock."""
        ...

    def settle(self, settlement: Settlement) -> None:
        """The verdict.  Called until it returns, and not again once that is on record."""
        ...

    def notify(self, notice: Notice) -> None:
        """An event; must return at once."""
        ...


def compute_credits(held: Mapping[bytes, int], settled: Settled) -> dict[bytes, int]:
    """What each party gets back at the end of a game, of what is ``held`` of it and of the pot."""
    credits = Counter(held)
    for outcome in settled.outcomes:
        if not outcome.returned:
            credits[outcome.party] -= outcome.amount
    for share in settled.shares:
        credits[share.party] += share.amount
    return dict(credits)


@dataclass
class _Lock:
    bond: BondClaim
    count: int = 1


class MemoryMarket:
    """A market for tests and examples: balances in memory.

    Whoever has no balance may play for nothing if ``balances`` is None.
    """

    def __init__(self, balances: Mapping[bytes, int] | None = None) -> None:
        self._lock = threading.Lock()
        self._free = balances is None
        self.balances: Counter[bytes] = Counter(balances or {})
        self.games: Counter[bytes] = Counter()
        self.locked: dict[bytes, _Lock] = {}
        self.settled: dict[bytes, Settlement] = {}
        self.notices: list[Notice] = []

    def open(self, game: bytes, genesis: Genesis) -> None:
        with self._lock:
            self.games[game] += 1

    def cancel(self, game: bytes) -> None:
        with self._lock:
            self.games[game] -= 1
            if self.games[game] <= 0:
                del self.games[game]

    def lock(self, bond: BondClaim) -> None:
        with self._lock:
            known = self.locked.get(bond.key)
            if known is not None:
                known.count += 1
                return
            if not self._free and self.balances[bond.party] < bond.amount:
                raise BondRefusedError(f"needs {bond.amount}", where=bond.party.hex())
            self.balances[bond.party] -= bond.amount
            self.locked[bond.key] = _Lock(bond)

    def release(self, bond: BondClaim) -> None:
        with self._lock:
            known = self.locked.get(bond.key)
            if known is None:
                return
            known.count -= 1
            if not known.count:
                del self.locked[bond.key]
                self.balances[known.bond.party] += known.bond.amount

    def settle(self, settlement: Settlement) -> None:
        game = settlement.verdict.game
        with self._lock:
            if game in self.settled:
                return
            self.settled[game] = settlement
            held: Counter[bytes] = Counter()
            for key, lock in list(self.locked.items()):
                if lock.bond.game == game:
                    held[lock.bond.party] += lock.bond.amount
                    del self.locked[key]
            self.balances.update(compute_credits(held, settlement.settled))

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)
