"""A small escrow market: it holds the money, and pays or slashes by the verdicts of disputes.

A client pays for a training run into escrow; a solver stakes, trains, and delivers a signed claim;
whoever does not believe it bonds another one while there is time; the game decides; the market
settles.  ``Escrow`` is what the arbiter (``vtrain.dispute.Arbiter``) asks of whoever holds the
money; when to ask for what is the arbiter's business.  three_deliveries.py uses both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import RLock

from vtrain.attest.claims import verify_claim
from vtrain.dispute import Arbiter, Genesis, make_bonds, make_clocks
from vtrain.dispute.game import get_claim
from vtrain.dispute.market import BondClaim, Notice, Settlement, compute_credits
from vtrain.dispute.problems import BondRefusedError
from vtrain.errors import VtrainError
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim, SignedClaim

PRICE, STAKE, BURN = 100, 50, 25
"""``BURN`` of a lost stake goes to nobody: who challenges itself must not get it all back."""

CLOCKS = make_clocks(replay_ms=1_000, intervals=12)
"""For runs of twelve intervals that a declared machine traces in a second each."""
BONDS = make_bonds(CLOCKS, price=1)
"""One unit for each second of work that a false claim can cost an honest party, twice over."""


@dataclass
class Deal:
    """A task that ``client`` has paid for; ``claim`` is what the solver delivered, if it has.

    ``game`` is the one game that decides whom the escrow pays, now or before.
    """

    client: bytes
    solver: bytes
    claim: Claim | None = None
    game: bytes | None = None


class Escrow:
    """``vtrain.dispute.market.Market``: accounts, and what is held for games.

    A solver is paid for one thing: the claim of the whole task that it delivered itself.  It gets
    price and stake back when that stands.  When it falls, the price goes back to the client,
    ``BURN`` of the stake to nobody, and the rest to those who worked for the claim that stands.
    Bonds are paid by the rules of the game.
    """

    def __init__(self, accounts: dict[bytes, int]) -> None:
        self.accounts = Counter(accounts)
        self.deals: dict[bytes, Deal] = {}  # by task, also when they are done
        self.games: dict[bytes, Deal] = {}
        self.bonds: dict[bytes, BondClaim] = {}
        self.copies: Counter[bytes] = Counter()
        self.held = self.burned = 0
        self._lock = RLock()  # calls come from several threads

    def post(self, task: bytes, client: bytes, solver: bytes) -> None:
        """The client pays for a task, the solver stakes on doing it."""
        with self._lock:
            if task in self.deals:
                raise BondRefusedError("is posted already", where="task")
            self._hold(client, PRICE)
            try:
                self._hold(solver, STAKE)
            except BondRefusedError:
                self._pay(client, PRICE)
                raise
            self.deals[task] = Deal(client, solver)

    def accept(self, signed: SignedClaim) -> Deal:
        """The solver delivers: its claim is the one that a game may be about."""
        verify_claim(signed)  # nobody else delivers in its name
        claim = signed.claim
        with self._lock:
            deal = self.deals.get(claim.task_id)
            if deal is None or deal.solver != claim.solver:
                raise BondRefusedError("nobody pays this solver for this task", where="claim")
            if deal.claim not in (None, claim):
                raise BondRefusedError("another claim is delivered already", where="task")
            deal.claim = claim
            return deal

    def deliver(self, arbiter: Arbiter, task: CompiledTask, signed: SignedClaim) -> bytes:
        """The solver delivers: the game in which anybody may say that it is false."""
        deal = self.accept(signed)
        try:
            return arbiter.open(task.spec, task.graph, signed, clocks=CLOCKS, bonds=BONDS)
        except VtrainError:
            if deal.game is None:
                deal.claim = None
            raise

    def open(self, game: bytes, genesis: Genesis) -> None:
        with self._lock:
            deal = self.deals.get(genesis.task_id)
            if deal is None or deal.claim != get_claim(genesis).claim:
                raise BondRefusedError("nobody pays for this claim", where="claim")
            if (genesis.clocks, genesis.bonds) != (CLOCKS, BONDS):
                raise BondRefusedError(f"this market has {CLOCKS} and {BONDS}", where="genesis")
            if deal.game not in (None, game):
                # Whoever may open games, at whatever host, the escrow pays by one of them.
                raise BondRefusedError(f"has game {deal.game.hex()} already", where="claim")
            deal.game = game
            self.games[game] = deal

    def cancel(self, game: bytes) -> None:
        with self._lock:
            deal = self.games.pop(game, None)
            if deal is not None:
                deal.game = None

    def lock(self, bond: BondClaim) -> None:
        with self._lock:
            if bond.key not in self.bonds:
                self._hold(bond.party, bond.amount)
                self.bonds[bond.key] = bond
            self.copies[bond.key] += 1

    def release(self, bond: BondClaim) -> None:
        with self._lock:
            self.copies[bond.key] -= 1
            if self.copies[bond.key] <= 0 and self.bonds.pop(bond.key, None) is not None:
                self._pay(bond.party, bond.amount)

    def settle(self, settlement: Settlement) -> None:
        with self._lock:
            deal = self.games.pop(settlement.verdict.game, None)
            if deal is None:
                return  # settled before
            self._settle_bonds(settlement)
            if settlement.verdict.solver is None:
                self._pay(deal.solver, PRICE + STAKE)
                return
            self._pay(deal.client, PRICE)
            left, total = STAKE, sum(settlement.work.values())
            for party, work in settlement.work.items():
                if not party:
                    continue  # nobody can tell who did that
                share = (STAKE - BURN) * work // total
                self._pay(party, share)
                left -= share
            self._burn(left)

    def notify(self, notice: Notice) -> None:
        """This market tells nobody."""

    def _settle_bonds(self, settlement: Settlement) -> None:
        held: Counter[bytes] = Counter()
        for key, bond in list(self.bonds.items()):
            if bond.game == settlement.verdict.game:
                held[bond.party] += bond.amount
                del self.bonds[key], self.copies[key]
        for party, amount in compute_credits(held, settlement.settled).items():
            self._pay(party, amount)
        self._burn(settlement.settled.burnt)

    def _hold(self, party: bytes, amount: int) -> None:
        if self.accounts[party] < amount:
            raise BondRefusedError(f"needs {amount}", where=party.hex())
        self._pay(party, -amount)

    def _pay(self, party: bytes, amount: int) -> None:
        self.accounts[party] += amount
        self.held -= amount

    def _burn(self, amount: int) -> None:
        self.held -= amount
        self.burned += amount
