"""Whoever backs the honest claim for others than its author does not make her lose it.

A sub-claim belongs to its root, so that a hijacker may make the true one long before an honest
party with one machine has traced it, answer for it up to some point, and fall silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.dispute.arena import Actor, make_key
from tests.dispute.crowd import HONEST_KEY, Hijacker, Pace, Paced, play_gang, play_together
from tests.dispute.toy import Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.dispute.state import Game
from vtrain.wire.dispute import Clocks, SignedMove

STEPS = tuple(range(40_008, 40_008 + 16 * 64, 64))
"""Steps in 16 intervals."""
REPLAY = 1000
CLOCKS = Clocks(
    join=1000,
    trace=2 * REPLAY,
    terms=500,
    budget=500,
    grace=100,
    answer=2,
    opening=2,
    replay=REPLAY,
)


@pytest.fixture(scope="module")
def run() -> ToyRun:
    return ToyRun(real=STEPS)


@pytest.mark.parametrize("stops", ["trace", "chunks", "below", "terms", "leaf"])
@pytest.mark.parametrize("pace", ["prompt", "sprints"])
def test_a_hijacker_cannot_make_one_machine_late(run: ToyRun, stops: str, pace: Pace) -> None:
    """16 rivals in 16 intervals; the hijackers make and answer for all true sub-claims at once."""
    lies = [Lie(step, loss=1, product=1, detour=1) for step in STEPS]
    truth = ToyProvider(run)
    hijacker = Hijacker(truth, make_key(2), stops)
    record = play_gang(run, lies, pace=pace, hijackers=[hijacker], replay=True, clocks=CLOCKS)
    assert record.standing == truth.log().root


@dataclass
class From:
    """Plays from a time on."""

    player: Paced
    begin: int

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if game.round == 0 or game.now >= self.begin:
            yield from self.player.moves(game)

    def wakes(self, game: Game) -> int | None:
        return self.begin


def test_whoever_comes_late_to_a_side_may_claim_anew_what_fell_with_others(run: ToyRun) -> None:
    """A false log that agrees with the true one in the disputed record arrives there first, has the
    true trace, and falls by its own accomplice; the honest party takes its time to get there."""
    step, truth = STEPS[3], ToyProvider(run)
    liar = Paced(ToyProvider(run, Lie(step, loss=1, product=1)), make_key(2))
    friend = Paced(ToyProvider(run, Lie(step + 1000, loss=1)), make_key(3))
    accomplice = Paced(ToyProvider(run, Lie(step + 1000, loss=2)), make_key(4))
    honest = Paced(truth, HONEST_KEY, "drips")
    actors: list[Actor] = [liar, friend, From(accomplice, CLOCKS.join + 20), honest]
    genesis = make_toy_genesis(truth, HONEST_KEY, clocks=CLOCKS)
    record = play_together(genesis, run.disputed, actors)
    assert record.standing == truth.log().root
    contest = next(found for found in record.game.contests.values() if found.level == "trace")
    falls = [claim.fall for claim in contest.claims if claim.root == truth.trace(step).root]
    assert [fall and fall.reason for fall in falls] == ["moot", None]


def test_whoever_comes_late_to_a_side_finds_its_sub_claims_with_all_of_their_budgets(
    run: ToyRun,
) -> None:
    """Where answers take long against the budget, others may have spent it before."""
    clocks = replace(CLOCKS, budget=50, grace=200, replay=0, trace=200)
    step, truth = STEPS[3], ToyProvider(run)
    liar = Paced(ToyProvider(run, Lie(step, loss=1, product=1)), make_key(2))
    friend = Hijacker(ToyProvider(run, Lie(STEPS[9], loss=1)), make_key(3), "trace")
    honest = Paced(truth, HONEST_KEY, "drips")
    genesis = make_toy_genesis(truth, HONEST_KEY, clocks=clocks)
    record = play_together(genesis, run.disputed, [liar, friend, honest])
    assert record.standing == truth.log().root
