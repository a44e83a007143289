"""What a game waits for, and until when: nothing that a player needs, but what people ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vtrain.dispute.state import Contest, Game, Place, list_bits


@dataclass(frozen=True)
class Wait:
    """``what`` is waited for; at the game's time ``until``, in milliseconds, time alone goes on
    without it.  None where nothing in the rules ends it.
    """

    what: str
    until: int | None


VERDICT = Wait("the service's signed verdict", None)
REPLAY = Wait("an answer of its own, for which it replays steps", None)


def find_wait(game: Game) -> Wait:
    """Of all that a game waits for, what ends first should nobody move.

    Until then nothing falls, and no round begins, by time alone.
    """
    if game.over:
        return VERDICT
    if game.round == 0:
        return Wait("others to join", game.genesis.opened + game.genesis.clocks.join)
    found = [
        ending
        for group in game.groups
        for contest in _list_contests(game, group)
        for ending in (*_list_windows(game, contest), *_list_answers(contest))
    ]
    if not found:  # there are rivals, who ask something of each other: this never comes
        return Wait("time to pass", None)
    until, what = min(found)
    return Wait(what, until)


def _list_contests(game: Game, id_: bytes) -> Iterator[Contest]:
    """A contest and all that decide disputes of it."""
    contest = game.contests[id_]
    yield contest
    for below in contest.below:
        yield from _list_contests(game, below)


def _list_windows(game: Game, contest: Contest) -> Iterator[tuple[int, str]]:
    """The windows of sides for which no sub-claim stands, which fall at their end."""
    for side in contest.sides.values():
        if side.closes >= game.now and not side.members & contest.live:
            yield side.closes, f"a sub-claim of the {contest.level}{_describe(contest.place)}"


def _list_answers(contest: Contest) -> Iterator[tuple[int, str]]:
    """The answers that living claims owe, by when they must come: then a claim falls."""
    due: dict[int, tuple[int, str]] = {}
    for dispute in map(contest.disputes.__getitem__, contest.asking):
        kind = "an opening of the leaf" if dispute.leaf else f"an answer in the {dispute.tree}"
        what = f"{kind}{_describe(dispute.place)}"
        for owed in dispute.classes.values():
            for owing, at in owed.asked:
                for index in list_bits(owing & contest.live):
                    due[index] = min(due.get(index, (at, what)), (at, what))
    for index, (at, what) in due.items():
        claim = contest.claims[index]
        yield max(at, claim.mark) + claim.left, what


def _describe(place: Place) -> str:
    return f" at {place.describe()}" if place.describe() else ""
