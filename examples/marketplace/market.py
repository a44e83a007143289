"""A small escrow market: it holds the money, and pays or slashes by the verdicts of disputes.

A client pays for a training run into escrow; a solver stakes, trains, and delivers a signed claim;
whoever does not believe it bonds another one while there is time; the game decides; the market
settles.  ``Escrow`` is a market port as vtrain's service asks for, so that it may be handed to
``vtrain.dispute.service.run.serve`` as it is; ``play`` has a game played in this process, on a
clock that jumps to the next deadline.  three_deliveries.py uses both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock

from vtrain.dispute import Clocks, Game, Genesis, Player, SignedMove
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.genesis import DEFAULT_CLOCKS
from vtrain.dispute.service.market import BondClaim, Notice, Outcome, Settlement
from vtrain.dispute.service.problems import BondRefusedError
from vtrain.dispute.service.receipts import compute_body_digest
from vtrain.errors import MoveRefusedError
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, decode_move

PRICE, STAKE, BURN, BOND = 100, 50, 25, 10
"""``BURN`` of a lost stake goes to nobody: who challenges itself must not get it all back."""


@dataclass(frozen=True)
class Deal:
    """A task that ``client`` has paid for, and that ``solver`` has staked on.

    A game about it has the deal's ``clocks``, whoever opens it: in shorter ones nobody could join,
    longer ones would hold the money.
    """

    client: bytes
    solver: bytes
    clocks: Clocks


class Escrow:
    """``vtrain.dispute.service.market.Market``: accounts, and what is held for games.

    The solver gets price and stake back when its claim stands.  When it falls, the price goes back
    to the client, ``BURN`` of the stake to nobody, and the rest to whoever is behind the claim that
    stands (the client, if none does).  Every bond that stands is paid back, those that fell are
    shared by the winners.  A task has one game: its verdict is about what was delivered.
    """

    def __init__(self, accounts: dict[bytes, int]) -> None:
        self.accounts = Counter(accounts)
        self.deals: dict[bytes, Deal] = {}
        self.games: dict[bytes, bytes] = {}  # of each task, also once it is settled
        self.bonds: dict[bytes, BondClaim] = {}
        self.held = self.burned = 0
        self._lock = RLock()  # a service calls from several threads

    def post(
        self, task: bytes, client: bytes, solver: bytes, clocks: Clocks = DEFAULT_CLOCKS
    ) -> None:
        """The client pays for a task, the solver stakes on doing it."""
        with self._lock:
            if task in self.deals or task in self.games:
                raise BondRefusedError("is posted already", where="task")
            self._hold(client, PRICE)
            try:
                self._hold(solver, STAKE)
            except BondRefusedError:
                self._pay(client, PRICE)
                raise
            self.deals[task] = Deal(client, solver, clocks)

    def open(self, game: bytes, genesis: Genesis) -> None:
        with self._lock:
            task = genesis.task_id
            deal, known = self.deals.get(task), self.games.get(task)
            if known is not None and known != game:
                raise BondRefusedError(f"has game {known.hex()} already", where="task")
            if known is None and (deal is None or deal.solver != genesis.solver):
                raise BondRefusedError("nobody pays this solver for this task", where="genesis")
            if deal is not None and genesis.clocks != deal.clocks:
                raise BondRefusedError(f"the deal has {deal.clocks}", where="genesis.clocks")
            self.games[task] = game

    def lock(self, bond: BondClaim) -> None:
        with self._lock:
            if bond.key not in self.bonds:
                self._hold(bond.party, BOND)
                self.bonds[bond.key] = bond

    def release(self, bond: BondClaim) -> None:
        with self._lock:
            if self.bonds.pop(bond.key, None) is not None:
                self._pay(bond.party, BOND)

    def settle(self, settlement: Settlement) -> None:
        with self._lock:
            verdict = settlement.verdict
            deal, pot = self.deals.pop(settlement.state.genesis.task_id, None), 0
            if deal is None:
                return  # settled before
            fell = {outcome.bond.key for outcome in settlement.outcomes if not outcome.stands}
            for key in [key for key, bond in self.bonds.items() if bond.game == verdict.game]:
                if key in fell:
                    pot += BOND
                    del self.bonds[key]
                else:
                    self.release(self.bonds[key])
            behind = [
                party for entry in verdict.entries if entry.fall is None for party in entry.backers
            ]
            winners = [party for party in behind if party not in verdict.barred]
            if verdict.solver is None:
                self._pay(deal.solver, PRICE + STAKE)
            else:
                self._pay(deal.client, PRICE)
                self.held -= BURN
                self.burned += BURN
                pot += STAKE - BURN
            for party in winners:
                self._pay(party, pot // len(winners))
            rest = pot - pot // len(winners) * len(winners) if winners else pot
            self._pay(deal.client, rest)

    def notify(self, notice: Notice) -> None:
        """This market tells nobody."""

    def _hold(self, party: bytes, amount: int) -> None:
        if self.accounts[party] < amount:
            raise BondRefusedError(f"needs {amount}", where=party.hex())
        self._pay(party, -amount)

    def _pay(self, party: bytes, amount: int) -> None:
        self.accounts[party] += amount
        self.held -= amount


def play(escrow: Escrow, genesis: Genesis, players: Sequence[Player]) -> Game:
    """A game from its opening to its settlement, each move taking a millisecond."""
    game, outcomes = start(genesis), []
    escrow.open(game.id, genesis)
    bonds: list[BondClaim] = []
    while (verdict := find_verdict(game)) is None:
        before = game
        for signed in [signed for player in players for signed in player.moves(game)]:
            bond = find_bond(signed)
            try:
                if bond is not None:
                    escrow.lock(bond)
                game = apply(game, signed, game.now + 1)
                bonds += [] if bond is None else [bond]
            except BondRefusedError:
                continue  # no money, no move: its clock runs
            except MoveRefusedError:  # another move has overtaken it
                if bond is not None:
                    escrow.release(bond)
        due = find_deadline(game)
        if game is before and due is not None:
            game = advance(game, due[0])
    for bond in bonds:
        tournament = game.tournaments[bond.tournament]
        entry = tournament.entries[tournament.find(bond.root)]
        stands = entry.fall is None and bond.party not in game.barred
        outcomes.append(Outcome(bond, stands))
    escrow.settle(Settlement(verdict, tuple(outcomes), game))
    return game


def find_bond(signed: SignedMove) -> BondClaim | None:
    """What a move has its party bond, if anything."""
    move = decode_move(signed.move)
    if not isinstance(move, Bond):
        return None
    key = compute_body_digest(structs.encode(signed))
    return BondClaim(key, signed.game, signed.party, move.tournament, move.root)
