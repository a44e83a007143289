"""Every game there is on tiny trees: adversaries do or leave any of their moves at every tick.

The machine is the real one, with clocks of a tick or two.  Adversaries have their claims, and may
at each tick make each move that a player of such a claim could make, or not; all of it is tried,
states that come about in several ways once.  The honest player answers at once, or each time at
the last tick that her clocks give her.  She never falls, and every game ends within the bound; with
one defence taken out, the same search finds the game in which she loses.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.dispute.arena import make_key
from tests.dispute.bounds import Bounds
from tests.dispute.crowd import HONEST_KEY, Pace, Paced
from tests.dispute.toy import TRUTH, Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.dispute.agenda import Agenda
from vtrain.dispute.consequences import Work
from vtrain.dispute.game import advance, apply, start
from vtrain.dispute.state import Claim, Event, Game
from vtrain.wire.dispute import Clocks, Genesis

NODES = 24
CLOCKS = Clocks(join=1, trace=2, terms=1, budget=1, grace=1, answer=0, opening=0, replay=0)
"""In ticks."""


def make_tiny_run(*, steps: int, blocks: int) -> ToyRun:
    run = ToyRun(
        steps=steps,
        nodes=NODES,
        commit_every=1,
        rows=1,
        columns=128,
        terms=64 * blocks,
        real=tuple(range(1, steps + 1)),
    )
    assert run.blocks == blocks
    return run


@dataclass(frozen=True)
class Cast:
    """Adversaries by what is false in their claims, in a game on so many steps and blocks.

    The solver's claim is the true one; who has no lie backs it and abandons it.
    """

    lies: tuple[Lie, ...]
    steps: int = 2
    blocks: int = 1
    arity: int = 32


LIAR = Lie(1, loss=1, product=1)
CASTS = {
    "a liar": Cast((LIAR,)),
    "a liar with a fold": Cast((Lie(1, loss=1, product=1, block=0, detour=1),), blocks=2),
    "a liar and a hijacker": Cast((LIAR, TRUTH)),
    "a liar and a traitor": Cast((LIAR, Lie(1, product=-1))),
}
LONGEST = "a liar and a traitor", "drips"
LARGE = {
    "a liar with a fold and a hijacker": Cast(
        (Lie(1, loss=1, product=1, block=0, detour=1), TRUTH), blocks=2
    ),
}


@dataclass
class Search:
    """All games of a cast, from the opening on."""

    genesis: Genesis
    run: ToyRun
    honest: Paced
    others: Sequence[Paced]
    limit: int
    seen: set[Hashable] = field(default_factory=set)
    last: int = 0

    def find_loss(self) -> Game | None:
        """A game in which the true claim falls, if there is one; AssertionError if one goes on."""
        root = self.genesis.log_root
        todo = [self._answer(start(self.genesis, self.run.disputed))]
        while todo:
            game = todo.pop()
            if game.logs[root].fall is not None:
                return game
            if game.over:
                self.last = max(self.last, game.ends)
                continue
            assert game.now <= self.limit, "a game goes on after its bound"
            key = make_key_of(game)
            if key in self.seen:
                continue
            self.seen.add(key)
            for player in self.others:
                todo += [
                    self._answer(apply(game, signed, game.now)) for signed in player.moves(game)
                ]
            todo.append(self._answer(advance(game, game.now + 1)))
        return None

    def _answer(self, game: Game) -> Game:
        """The honest player makes the moves that she makes now, and what follows from them."""
        while not game.over:
            sent = list(self.honest.moves(game))
            if not sent:
                break
            for signed in sent:
                game = apply(game, signed, game.now)
        return game


def make_key_of(game: Game) -> Hashable:
    """What the rest of a game depends on."""
    events = tuple(sorted(list_events(game.agenda)))
    return game.now, game.round, game.logs, game.contests, game.stands, game.facts, events


def list_events(agenda: Agenda | None) -> list[Event]:
    if agenda is None:
        return []
    return [agenda.event, *list_events(agenda.left), *list_events(agenda.right)]


def make_search(cast: Cast, pace: Pace, clocks: Clocks = CLOCKS) -> Search:
    run = make_tiny_run(steps=cast.steps, blocks=cast.blocks)
    truth = ToyProvider(run)
    genesis = make_toy_genesis(truth, HONEST_KEY, arity=cast.arity, group=4, clocks=clocks)
    count = len({ToyProvider(run, lie).log().root for lie in cast.lies} | {truth.log().root})
    bounds = Bounds(genesis, claims=(count, 4, 4), chunks=1, blocks=cast.blocks)
    others = [Paced(ToyProvider(run, lie), make_key(2 + i)) for i, lie in enumerate(cast.lies)]
    honest = Paced(truth, HONEST_KEY, pace, latency=0)
    return Search(genesis, run, honest, others, bounds.time)


@pytest.mark.parametrize(
    ("cast", "pace"),
    [
        *(
            pytest.param(
                cast,
                pace,
                id=f"{name}-{pace}",
                # The largest search, of another pace.
                marks=[pytest.mark.exhaustive] if (name, pace) == LONGEST else [],
            )
            for name, cast in CASTS.items()
            for pace in ("prompt", "drips")
        ),
        *(
            pytest.param(cast, "prompt", id=name, marks=pytest.mark.exhaustive)
            for name, cast in LARGE.items()
        ),
    ],
)
def test_no_game_is_lost_by_who_answers_in_time(cast: Cast, pace: Pace) -> None:
    search = make_search(cast, pace)
    assert search.find_loss() is None
    assert 0 < search.last <= search.limit


def test_the_search_finds_the_loss_without_the_defences_against_hijackers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hijacker makes the true trace at once and falls silent; she has it when her window ends.

    Either defence helps her here: nothing is overdue before that, and what fell may be made anew.
    """
    monkeypatch.setattr(Work, "_compute_start", lambda work, dispute: work.now)
    monkeypatch.setattr(Claim, "is_open", property(lambda claim: claim.fall is None))
    search = make_search(CASTS["a liar and a hijacker"], "drips", replace(CLOCKS, trace=3))
    assert search.find_loss() is not None
