"""A lie in every region of a run of 10,000 steps, with the least clocks that the rules allow.

The honest player has one machine.  What it does is counted in steps of the engine, each of which
takes ``STEP`` milliseconds of the game's time, before anything that it says arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from tests.dispute.arena import make_game, make_key
from tests.dispute.claims import Patched
from tests.dispute.counting import CountingSession
from tests.tasks import make_tiny_task
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.kept_states import Keep
from vtrain.dispute.players import Player
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import Game, Verdict
from vtrain.engines.registry import open_session
from vtrain.wire.dispute import Clocks, SignedMove
from vtrain.wire.record import decode_record

STEPS, EVERY, STEP = 10_000, 20, 10
REPLAY = EVERY * STEP
CLOCKS = Clocks(
    join=1, trace=REPLAY + 1, terms=1, budget=1, grace=1, answer=1, opening=1, replay=REPLAY
)
"""A trace takes just as long as its window; nothing that is late is forgiven."""
REGIONS = (1, 2, 19, 20, 21, 595, 2_500, 5_000, 5_001, 7_777, 9_961, 9_980, 9_981, 9_999, 10_000)
TASK = make_tiny_task(steps=STEPS, commit_every=EVERY, checkpoint_every=5_000)
HONEST, LIAR = make_key(1), make_key(2)


def open_counting() -> CountingSession:
    return CountingSession(open_session("cpu", TASK.graph, TASK.samples, threads=1))


@cache
def get_base() -> EngineProvider:
    """The run as the liar has it: whatever it takes him is no matter."""
    return EngineProvider(TASK, open_counting())


def make_lie(step: int) -> TraceProvider:
    """A record of one step has another loss."""
    record = decode_record(get_base().log().leaf(step - 1))
    return Patched(get_base(), TASK, records={step: replace(record, loss=record.loss + 1)})


class OneMachine:
    """An honest player whose answers arrive when they are computed."""

    def __init__(self, keep: Keep) -> None:
        self.session = open_counting()
        self.player = Player(EngineProvider(TASK, self.session, keep=keep), HONEST)

    def answers(self, game: Game) -> Iterator[tuple[int, SignedMove]]:
        """(milliseconds from now, move)."""
        before = self.session.done
        for move in self.player.moves(game):
            yield (self.session.done - before) * STEP, move


def play(honest: OneMachine, liar: Player, solver: TraceProvider) -> Verdict:
    """To the verdict; the solver of the claim is the liar."""
    game = start(make_game(TASK, solver, LIAR, clocks=CLOCKS), TASK.graph)
    while (verdict := find_verdict(game)) is None:
        before = game
        for move in liar.moves(game):
            game = apply(game, move, game.now)
        now = game.now
        begun = honest.session.done
        for later, move in honest.answers(game):
            game = advance(game, max(game.now, now + later))
            if game.over or move.about not in (game.id, *game.sides, *game.asked):
                continue  # too late, or overtaken
            game = apply(game, move, game.now)
        busy = now + (honest.session.done - begun) * STEP
        game = advance(game, max(game.now, busy))
        due = find_deadline(game)
        if game.moves == before.moves and due is not None:
            game = advance(game, max(due, game.now))
    return verdict


@pytest.fixture(scope="module")
def honest() -> OneMachine:
    return OneMachine(Keep())


@pytest.mark.parametrize("step", REGIONS)
def test_a_lie_anywhere_in_a_long_run_falls_in_the_least_of_time(
    honest: OneMachine, step: int
) -> None:
    lie = make_lie(step)
    verdict = play(honest, Player(lie, LIAR), lie)
    assert verdict.standing == get_base().log().root
    assert verdict.solver is not None
    assert verdict.solver.reason == "refuted"
    assert verdict.solver.place.step == step


def test_who_keeps_no_states_is_late_for_a_late_lie() -> None:
    lie = make_lie(9_981)
    verdict = play(OneMachine(Keep(keep_bytes=0)), Player(lie, LIAR), lie)
    assert verdict.standing == lie.log().root
