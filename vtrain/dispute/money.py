"""What a verdict does to the bonds: which come back, and who is paid from those that fell.

All of it follows from the game, so that anyone with its transcript computes the same.  A bond comes
back when what it stands behind has not fallen.  The others make one pot, which pays for the work
that was done for the claim that stands, in proportion to what the clocks of the game allow for it:
an answer, an opening, the trace of an interval.  Who only stood behind that claim has the bond back
and no more; work for any other claim pays nothing, so that a party gains nothing by rivals of her
own making.  When no claim stands, or nobody worked for it, the pot is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vtrain.dispute.state import Answer, BondRecord, Game, Level, list_chain
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
    outcomes = tuple(BondOutcome(*bond, int(_stands(game, bond))) for bond in bonds)
    pot = sum(found.amount for found in outcomes if not found.returned)
    work = count_work(game) if pot else {}
    total = sum(work.values())
    shares = tuple(Share(party, pot * done // total) for party, done in work.items())
    return Settled(outcomes, shares, pot, pot - sum(share.amount for share in shares))


def count_work(game: Game) -> dict[bytes, int]:
    """Work by party for the claim that stands, in milliseconds of the clocks; first come first."""
    clocks, work = game.genesis.clocks, dict[bytes, int]()
    worth = {
        "answer": max(1, clocks.answer),
        "opening": max(1, clocks.opening),
        "log": 0,
        "trace": max(1, clocks.replay),
        "terms": max(1, clocks.answer),
    }
    standing = find_standing(game)
    for answer in list_chain(game.answers):
        if isinstance(answer, Answer) and _counts(game, answer, standing):
            work[answer.party] = work.get(answer.party, 0) + worth[answer.kind]
    return work


def compute_outcomes_digest(settled: Settled) -> bytes:
    """H_game(canonical encoding), which a verdict names."""
    return compute_domain_hash(GAME, structs.encode(settled))


def _stands(game: Game, bond: BondRecord) -> bool:
    if bond.level == "log":
        return game.logs[bond.root].fall is None
    contest = game.contests[bond.scope]
    return contest.claims[contest.index[bond.root]].fall is None


def _counts(game: Game, answer: Answer, standing: bytes) -> bool:
    """Was it work for the standing claim, or for a sub-claim of it that has not fallen?"""
    for contest_id, dispute, value in answer.where:
        contest = game.contests[contest_id]
        own = game.find_own(contest, answer.party)
        if not own:
            continue
        claim = contest.claims[own.bit_length() - 1]
        stands = claim.root == standing if contest.level == "log" else claim.fall is None
        if not stands:
            continue
        if answer.kind in ("trace", "terms"):
            if claim.root == value:
                return True
            continue
        classes = contest.disputes[dispute].classes
        if any(found.mask & own for key, found in classes.items() if value in (key, b"")):
            return True
    return False
