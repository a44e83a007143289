"""The market port: what a service asks of whoever holds the money, and an adapter in memory.

A marketplace implements :class:`Market`.  Calls come from several threads, and each may come again
after a crash: ``lock`` and ``release`` are keyed by the bond, ``settle`` by the game.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vtrain.dispute.service.problems import BondRefusedError
from vtrain.dispute.service.receipts import EventKind
from vtrain.dispute.state import Game, Verdict
from vtrain.wire.dispute import Genesis


@dataclass(frozen=True)
class BondClaim:
    """``party`` stands behind ``root`` in a tournament of a game; ``key`` tells bonds apart."""

    key: bytes
    game: bytes
    party: bytes
    tournament: int
    root: bytes


@dataclass(frozen=True)
class Outcome:
    """What became of a bond: ``stands`` unless its claim fell or its party is barred."""

    bond: BondClaim
    stands: bool


@dataclass(frozen=True)
class Settlement:
    """The end of a game: its verdict and what became of every bond that was accepted.

    Bonds that were locked but are not here belong to moves that never were accepted: release them.
    """

    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    state: Game


@dataclass(frozen=True)
class Notice:
    """Something happened in a game.  A hint: the service's events are the record."""

    game: bytes
    sequence: int
    kind: EventKind
    at: int


class Market(Protocol):
    """What a service needs of a market."""

    def open(self, game: bytes, genesis: Genesis) -> None:
        """A game is about to begin, its solver's claim standing; BondRefusedError to prevent it."""
        ...

    def lock(self, bond: BondClaim) -> None:
        """Lock the bond before its move is accepted; BondRefusedError to prevent that."""
        ...

    def release(self, bond: BondClaim) -> None:
        """The move of this bond was refused after all."""
        ...

    def settle(self, settlement: Settlement) -> None:
        """The verdict.  Called until it returns, and not again once that is on record."""
        ...

    def notify(self, notice: Notice) -> None:
        """An event; must return at once."""
        ...


class MemoryMarket:
    """A market for tests and examples: balances in memory, one price for every bond.

    Whoever has no balance may play for nothing if ``balances`` is None.  At settlement standing
    bonds are paid back, and the others shared among the parties whose bonds stand, remainders kept.
    """

    def __init__(self, price: int = 0, balances: Mapping[bytes, int] | None = None) -> None:
        self._lock = threading.Lock()
        self._price, self._free = price, balances is None
        self.balances: Counter[bytes] = Counter(balances or {})
        self.locked: dict[bytes, BondClaim] = {}
        self.settled: dict[bytes, Settlement] = {}
        self.notices: list[Notice] = []

    def open(self, game: bytes, genesis: Genesis) -> None:
        """Takes every game."""

    def lock(self, bond: BondClaim) -> None:
        with self._lock:
            if bond.key in self.locked:
                return
            if not self._free and self.balances[bond.party] < self._price:
                raise BondRefusedError(f"needs {self._price}", where=bond.party.hex())
            self.balances[bond.party] -= self._price
            self.locked[bond.key] = bond

    def release(self, bond: BondClaim) -> None:
        with self._lock:
            if self.locked.pop(bond.key, None) is not None:
                self.balances[bond.party] += self._price

    def settle(self, settlement: Settlement) -> None:
        game = settlement.verdict.game
        with self._lock:
            if game in self.settled:
                return
            self.settled[game] = settlement
            fate = {outcome.bond.key: outcome.stands for outcome in settlement.outcomes}
            held = [bond for bond in self.locked.values() if bond.game == game]
            pot = self._price * sum(fate.get(bond.key) is False for bond in held)
            winners = sorted({bond.party for bond in held if fate.get(bond.key) is True})
            for bond in held:
                del self.locked[bond.key]
                if fate.get(bond.key) is not False:
                    self.balances[bond.party] += self._price
            for party in winners:
                self.balances[party] += pot // len(winners)

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)
