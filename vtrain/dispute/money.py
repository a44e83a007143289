"""What a verdict does to the bonds: which come back, and who is paid from those that fell.

All of it follows from the game, so that anyone with its transcript computes the same.  A bond comes
back when what it stands behind has not fallen, and stands for the claim that stands.  The bond of a
claim answers for the sub-claims that its party makes under it, so that nobody makes false ones for
a true claim at no price.

The others make one pot, which pays for the work that was done for the claim that stands, in
proportion to what the clocks of the game allow for it: an answer, an opening, the trace of an
interval.  Who only stood behind that claim has the bond back and no more.  Three things keep a
party from gaining by rivals of her own making:

- Work for another claim pays nothing, and who lost a bond or backed a claim that fell is not paid.
- Work below the log pays where one sub-claim for the standing claim is left.  Where there are two,
  nobody can tell which is the true one: rivals that fall early leave false friends unrefuted.  What
  such work would have been paid is nobody's; else it would go to those who answered above it.
- When no claim stands, or nobody worked for it, the pot is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from vtrain.dispute.state import Answer, BondRecord, Contest, Game, Level, list_chain
from vtrain.errors import MoveRefusedError
from vtrain.spec.domains import GAME, compute_domain_hash
from vtrain.wire import structs
from vtrain.wire.structs import Between, Count, Digest


@dataclass(frozen=True)
class BondOutcome:
    """What became of the bond of ``party`` behind ``root``; ``scope``: the game, or its contest."""

    party: Digest
    level: Level
    scope: Digest
    root: Digest
    amount: Count
    returned: Annotated[int, Between(0, 1)]


@dataclass(frozen=True)
class Share:
    """What ``party`` gets of the pot."""

    party: Digest
    amount: Count


@dataclass(frozen=True)
class Settled:
    """All bonds in the order in which they came; ``pot`` is what fell, ``burnt`` the unshared."""

    outcomes: tuple[BondOutcome, ...]
    shares: tuple[Share, ...]
    pot: Count
    burnt: Count


def find_standing(game: Game) -> bytes:
    """The log root that stands at the end; empty when none does."""
    standing = [root for root, claim in game.logs.items() if claim.fall is None]
    return standing[0] if game.over and standing else b""


def list_outcomes(game: Game) -> Settled:
    """What became of every bond; MoveRefusedError while the game goes on."""
    if not game.over:
        raise MoveRefusedError("there is no verdict yet", where="game")
    bonds = [item for item in list_chain(game.bonds) if isinstance(item, BondRecord)]
    standing = _Standing(game)
    liars = {bond.party for bond in bonds if not bond.amount and standing.has_lied(bond)}
    outcomes = tuple(
        BondOutcome(*bond, int(standing.stands(bond) and bond.party not in liars)) for bond in bonds
    )
    pot = sum(found.amount for found in outcomes if not found.returned)
    losers = {found.party for found in outcomes if not found.returned}
    work = _count_work(game, standing, losers) if pot else {}
    total = sum(work.values())
    shares = tuple(Share(party, pot * done // total) for party, done in work.items() if party)
    return Settled(outcomes, shares, pot, pot - sum(share.amount for share in shares))


def count_work(game: Game) -> dict[bytes, int]:
    """Work for the claim that stands, by party, in milliseconds of the clocks; first come first.

    It is what a pot is shared by, and what a market shares by that has more than the pot: the stake
    of the solver, who has no bond.  The work of nobody, ``b""``, is what nobody is to be paid for,
    since it cannot be told who did it.  MoveRefusedError while the game goes on.
    """
    losers = {found.party for found in list_outcomes(game).outcomes if not found.returned}
    return _count_work(game, _Standing(game), losers)


def compute_outcomes_digest(settled: Settled) -> bytes:
    """H_game(canonical encoding), which a verdict names."""
    return compute_domain_hash(GAME, structs.encode(settled))


class _Standing:
    """What stands at the end of a game: a claim of the log, and what stands for it below."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._root = find_standing(game)
        self._known: dict[bytes, int] = {}

    def backs(self, party: bytes) -> bool:
        """Does a party back no other claim of the log?"""
        return self._game.stands.get((self._game.id, party), self._root) == self._root

    def stands(self, bond: BondRecord) -> bool:
        """Has what a bond stands behind not fallen, and does it stand for the standing claim?"""
        if bond.level == "log":
            return bond.root == self._root
        contest = self._game.contests[bond.scope]
        return bool(self.find(contest) >> contest.index[bond.root] & 1)

    def has_lied(self, bond: BondRecord) -> bool:
        """Was a sub-claim false?  It did not only fall with all that it stood for."""
        if bond.level == "log":
            return False
        contest = self._game.contests[bond.scope]
        fall = contest.claims[contest.index[bond.root]].fall
        return fall is not None and fall.reason != "moot"

    def find(self, contest: Contest) -> int:
        """The claims of a contest that stand for the standing one."""
        if contest.id not in self._known:
            self._known[contest.id] = self._compute(contest)
        return self._known[contest.id]

    def _compute(self, contest: Contest) -> int:
        if contest.level == "log":
            index = contest.index.get(self._root)
            return 0 if index is None else 1 << index
        above = self._game.contests[contest.above]
        classes, found = above.disputes[contest.id].classes, 0
        for side in contest.sides.values():
            if classes[side.value].mask & self.find(above):
                found |= side.members & contest.live
        return found

    def find_only(self, contest: Contest) -> int:
        """The one claim of a contest that stands for the standing one; 0 where there are more."""
        found = self.find(contest)
        if found.bit_count() != 1:
            return 0
        if contest.level == "log" or self.find_only(self._game.contests[contest.above]):
            return found
        return 0


def _count_work(game: Game, standing: _Standing, losers: set[bytes]) -> dict[bytes, int]:
    """Work by party for what stands, in milliseconds of the clocks; first come first."""
    clocks, work = game.genesis.clocks, dict[bytes, int]()
    worth = {
        "answer": max(1, clocks.answer),
        "opening": max(1, clocks.opening),
        "log": 0,
        "trace": max(1, clocks.replay),
        "terms": max(1, clocks.answer),
    }
    for answer in list_chain(game.answers):
        if not isinstance(answer, Answer) or answer.party in losers:
            continue
        if not standing.backs(answer.party):
            continue
        party = answer.party
        if not _counts(game, answer, standing.find_only):
            if not _counts(game, answer, standing.find):
                continue
            party = b""
        work[party] = work.get(party, 0) + worth[answer.kind]
    return work


def _counts(game: Game, answer: Answer, find: Callable[[Contest], int]) -> bool:
    """Was it asked of the claims of a contest that ``find`` gives, or is it one of them?"""
    for contest_id, dispute, value in answer.where:
        contest = game.contests[contest_id]
        claims = find(contest)
        if answer.kind in ("trace", "terms"):
            if claims >> contest.index[value] & 1:
                return True
            continue
        classes = contest.disputes[dispute].classes
        if any(found.mask & claims for key, found in classes.items() if value in (key, b"")):
            return True
    return False
