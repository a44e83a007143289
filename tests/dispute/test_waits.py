"""What is said to be waited for is what time alone ends, and at that time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from tests.dispute.actors import (
    CHALLENGERS,
    HONEST,
    SOLVER,
    Late,
    Only,
    Quiet,
    make_cheat,
    make_solver,
    make_tiny_runs,
)
from tests.dispute.arena import CLOCKS, Actor, make_game, play
from vtrain.dispute.game import advance, start
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game
from vtrain.dispute.waits import VERDICT, find_wait
from vtrain.wire.dispute import Bond, Move, Open, SignedMove

RUN = make_tiny_runs()["mlp, a commitment every 2 steps"]


def count_living(game: Game) -> tuple[int, int, bool]:
    """What time alone takes: claims and sub-claims that live, and the round."""
    living = sum(contest.live.bit_count() for contest in game.contests.values())
    return living, game.round, game.over


@dataclass
class Witness:
    """Makes no move, and holds what is said of each state to what time alone does to it."""

    seen: set[str] = field(default_factory=set)

    def moves(self, game: Game) -> Iterable[SignedMove]:
        wait = find_wait(game)
        if game.over:
            assert wait == VERDICT
            return ()
        assert wait.until is not None
        assert wait.until >= game.now
        assert count_living(advance(game, wait.until)) == count_living(game)
        assert count_living(advance(game, wait.until + 1)) != count_living(game)
        self.seen.add(wait.what.partition(" at ")[0])
        return ()


def is_answer(move: Move) -> bool:
    return not isinstance(move, Bond | Open)


def test_time_alone_ends_a_wait_when_it_says() -> None:
    cheat = make_cheat(RUN, "alters an optimizer state").claim
    liar, honest = Player(cheat, SOLVER), Player(RUN.truth, HONEST)
    seen: set[str] = set()
    habits: list[Actor] = [liar, Quiet(), Only(liar, is_answer), Late(liar)]
    for habit in habits:
        witness = Witness()
        play(make_game(RUN.task, cheat, SOLVER), RUN.graph, [witness, habit, honest, witness])
        seen |= witness.seen
    assert {"others to join", "an answer in the log", "a sub-claim of the trace"} <= seen
    assert "an answer in the chunks" in seen
    assert "an opening of the leaf" in seen


@pytest.mark.parametrize("challenger", sorted(CHALLENGERS))
def test_so_it_is_whoever_plays(challenger: str) -> None:
    wire: list[SignedMove] = []
    solver = make_solver(RUN, "alters an optimizer state")
    genesis = make_game(RUN.task, solver.claim, SOLVER)
    rivals = CHALLENGERS[challenger].actors(RUN, solver, wire)
    actors = [Witness(), solver.actor(genesis, wire), *rivals, Player(RUN.truth, HONEST)]
    play(genesis, RUN.graph, actors, limit=2000, wire=wire)


def test_who_may_join_is_waited_for_first() -> None:
    wait = find_wait(start(make_game(RUN.task, RUN.truth, SOLVER), RUN.graph))
    assert (wait.what, wait.until) == ("others to join", CLOCKS.join)
