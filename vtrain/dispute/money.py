"""What a verdict does to the bonds: which come back, and who is paid from those that fell.

All of it follows from the game, so that anyone with its transcript computes the same.  A bond comes
back when what it stands behind has not fallen.  The others make one pot, which pays for the work
that was done for the claim that stands, in proportion to what the clocks of the game allow for it:
an answer, an opening, the trace of an interval.  The bond of a claim answers for the sub-claims
that its party makes under it, so that nobody makes false ones for a true claim at no price.  Who
only stood behind that claim has the bond back
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
    liars = _find_liars(game, bonds)
    outcomes = tuple(
        BondOutcome(*bond, int(not _find_reason(game, bond) and bond.party not in liars))
        for bond in bonds
    )
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


def _find_liars(game: Game, bonds: list[BondRecord]) -> set[bytes]:
    """Parties of whom a sub-claim fell that had no bond of its own."""
    free = [bond for bond in bonds if bond.level != "log" and not bond.amount]
    return {bond.party for bond in free if _find_reason(game, bond) not in ("", "moot")}


def _find_reason(game: Game, bond: BondRecord) -> str:
    """Why what a bond stands behind fell; empty when it has not."""
    fall = game.logs[bond.root].fall if bond.level == "log" else None
    if bond.level != "log":
        contest = game.contests[bond.scope]
        fall = contest.claims[contest.index[bond.root]].fall
    return "" if fall is None else fall.reason


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
