"""A replay for one rival makes nothing late that another one waits for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import pytest

from tests.dispute.arena import make_game, make_key
from tests.dispute.claims import Patched
from tests.dispute.counting import CountingSession
from tests.tasks import make_tiny_task
from vtrain.attest.keys import public_key
from vtrain.dispute.background import Background
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.kept_states import Keep
from vtrain.dispute.players import Player
from vtrain.dispute.provider import PendingError, TraceProvider
from vtrain.dispute.state import Game, Verdict
from vtrain.engines.base import Trace
from vtrain.engines.registry import open_session
from vtrain.errors import RunError
from vtrain.wire.dispute import Clocks
from vtrain.wire.record import StepRecord, decode_record

T = TypeVar("T")
STEPS, EVERY = 60, 20
TASK = make_tiny_task(steps=STEPS, commit_every=EVERY, checkpoint_every=20)
HONEST, SOLVER, RIVAL = make_key(1), make_key(2), make_key(3)
CLOCKS = Clocks(
    join=1, trace=1, terms=1, budget=10**6, grace=1, answer=10**6, opening=1, replay=10**6
)
"""Windows of sub-claims close long before a replay is late."""
PATIENCE = 60.0


@dataclass
class GatedSession(CountingSession):
    """Steps after ``shut`` take until the gate is opened; nobody but a thread may wait for it."""

    shut: int = STEPS
    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)

    def step(self) -> StepRecord:
        return self._pass(super().step())

    def trace(self) -> Trace:
        trace = super().trace()
        self._pass(trace.record)
        return trace

    def _pass(self, record: StepRecord) -> StepRecord:
        if record.step > self.shut and not self.gate.is_set():
            if threading.current_thread() is threading.main_thread():
                raise LateError
            self.arrived.set()
            assert self.gate.wait(PATIENCE)
        return record


class LateError(Exception):
    """Everything else that is owed would wait for this step."""


def make_provider() -> tuple[EngineProvider, GatedSession]:
    session = GatedSession(open_session("cpu", TASK.graph, TASK.samples, threads=1))
    session.gate.set()
    return EngineProvider(TASK, session), session


@pytest.fixture(scope="module")
def truth() -> EngineProvider:
    return make_provider()[0]


def shut(session: GatedSession, after: int) -> None:
    session.shut = after
    session.gate.clear()


def wait_for(background: Background, key: Hashable, ask: Callable[[], T]) -> T:
    """What is asked for, as soon as it is there."""
    end = time.monotonic() + PATIENCE
    while True:
        background.begin_turn()
        try:
            return background.find(key, ask)
        except PendingError:
            assert time.monotonic() < end
            time.sleep(0.002)


def test_what_is_at_hand_is_given_while_a_replay_goes_on(truth: EngineProvider) -> None:
    inner, session = make_provider()
    known, node = inner.trace(7), TASK.graph.find("state_root")
    inner.chunks(7, node)
    shut(session, 20)
    with Background(inner) as background:
        for _ in range(3):
            with pytest.raises(PendingError):
                background.find("late", partial(inner.trace, 45))
            assert session.arrived.wait(PATIENCE)
            assert background.find("early", partial(inner.trace, 7)).root == known.root
            chunks = background.find("chunks", partial(inner.chunks, 7, node))
            assert chunks.root == truth.chunks(7, node).root
        session.gate.set()
        found = wait_for(background, "late", partial(inner.trace, 45))
        assert found.root == truth.trace(45).root


def test_it_gives_what_its_provider_gives(truth: EngineProvider) -> None:
    state = next(i for i, found in enumerate(TASK.graph.nodes) if found.op == "state")
    inner, _ = make_provider()
    with Background(inner) as background:
        for place in itertools.product((1, 33, 60), range(0, len(TASK.graph.nodes), 5)):
            tree = wait_for(background, place, partial(inner.chunks, *place))
            assert tree.root == truth.chunks(*place).root
        for step in (1, 21):
            ask = partial(inner.open, step, state, 0, 0, first=True)
            assert wait_for(background, step, ask) == truth.open(step, state, 0, 0, first=True)


def test_what_nobody_asks_for_any_more_is_not_computed() -> None:
    inner, session = make_provider()
    shut(session, 20)
    asks = {step: partial(inner.trace, step) for step in (45, 25, 5)}
    with Background(inner) as background:
        for step, ask in asks.items():
            with pytest.raises(PendingError):
                background.find(step, ask)
        assert session.arrived.wait(PATIENCE)
        for _ in range(3):  # only the one that was begun, and that of step 5, are wanted still
            background.begin_turn()
            with pytest.raises(PendingError):
                background.find(5, asks[5])
        before = inner.replays  # the one that was begun is counted
        session.gate.set()
        wait_for(background, 5, asks[5])
        assert inner.replays == before + 1


def test_an_error_reaches_whoever_asked() -> None:
    given, _ = make_provider()
    records = [decode_record(given.log().leaf(at)) for at in range(STEPS)]
    records[40] = replace(records[40], loss=records[40].loss + 1)
    session = open_session("cpu", TASK.graph, TASK.samples, threads=1)
    inner = EngineProvider(TASK, session, records=records)
    with Background(inner) as background:
        with pytest.raises(RunError, match="step 41"):
            wait_for(background, 45, partial(inner.trace, 45))
        found = wait_for(background, 5, partial(inner.trace, 5))
        assert found.root == given.trace(5).root


def test_a_replay_that_nobody_wants_any_more_ends(truth: EngineProvider) -> None:
    """Its rival is gone; the next one's interval must not wait for it."""
    inner, session = make_provider()
    shut(session, 20)
    with Background(inner) as background:
        with pytest.raises(PendingError):
            background.find(59, partial(inner.trace, 59))
        assert session.arrived.wait(PATIENCE)
        before = session.done
        for _ in range(3):
            background.begin_turn()
        session.gate.set()
        found = wait_for(background, 5, partial(inner.trace, 5))
        assert found.root == truth.trace(5).root
        assert session.done == before + 5
        # Wanted after all, it is done from its beginning.
        found = wait_for(background, 59, partial(inner.trace, 59))
        assert found.root == truth.trace(59).root


class PanicError(BaseException):
    """As the engine's is in Python: no Exception."""


def test_a_panic_reaches_whoever_asked_and_ends_nothing(truth: EngineProvider) -> None:
    """Swallowed, it would leave the question pending for ever, and the player silent."""
    inner, _ = make_provider()

    def panic() -> None:
        inner._check_may_replay()
        raise PanicError

    with Background(inner) as background:
        with pytest.raises(PanicError):
            wait_for(background, "panic", panic)
        found = wait_for(background, 45, partial(inner.trace, 45))
        assert found.root == truth.trace(45).root


def test_what_is_wanted_no_more_is_not_replayed() -> None:
    """Tensors of a dispute that is over would take the room of those that are asked for."""
    inner, session = make_provider()
    nodes = range(0, len(TASK.graph.nodes), 3)
    inner.want(tensors=[(step, node) for step in range(41, 60) for node in nodes])
    inner.want(traces=[45])
    before = session.evaluated
    inner.trace(45)
    assert session.evaluated == before


def test_closing_ends_a_replay_within_a_step(truth: EngineProvider) -> None:
    inner, session = make_provider()
    shut(session, 20)
    background = Background(inner)
    with pytest.raises(PendingError):
        background.find(59, partial(inner.trace, 59))
    assert session.arrived.wait(PATIENCE)
    before = session.done
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(background.close)
        assert inner._interrupted.wait(PATIENCE)
        session.gate.set()
        closing.result(PATIENCE)
    assert session.done == before
    assert inner.trace(59).root == truth.trace(59).root  # it is whole, and the caller's again
    with pytest.raises(PendingError):
        background.find(33, partial(inner.trace, 33))


# --- games


def make_lie(truth: EngineProvider, step: int) -> TraceProvider:
    """A record of one step has another loss."""
    record = decode_record(truth.log().leaf(step - 1))
    return Patched(truth, TASK, records={step: replace(record, loss=record.loss + 1)})


def play(
    truth: EngineProvider,
    honest: Player,
    *,
    heard: Callable[[Game], None] = lambda game: None,
    is_stuck: Callable[[], bool] = lambda: False,
) -> tuple[Verdict, Game]:
    """The solver lies in step 5, a rival in step 45; ``heard`` is told after each round of moves.

    The game's clock stands while the honest player waits for a replay that goes on.
    """
    lies = {SOLVER: make_lie(truth, 5), RIVAL: make_lie(truth, 45)}
    players = [honest, *(Player(lie, key) for key, lie in lies.items())]
    game = start(make_game(TASK, lies[SOLVER], SOLVER, clocks=CLOCKS), TASK.graph)
    while (verdict := find_verdict(game)) is None:
        before = game.moves
        for move in [move for player in players for move in player.moves(game)]:
            if not game.over and move.about in (game.id, *game.sides, *game.asked):
                game = apply(game, move, game.now)
        heard(game)
        if game.moves == before and not game.over:
            if honest.waits and not is_stuck():
                time.sleep(0.002)
                continue
            due = find_deadline(game)
            assert due is not None
            game = advance(game, due)
    return verdict, game


class Shutter:
    """Shuts the gate once both intervals are traced, and opens it when the solver has fallen."""

    def __init__(self, session: GatedSession, lie: bytes) -> None:
        self._session, self._lie = session, lie
        self.shut = False
        self.still_shut: bool | None = None
        """Was the gate shut when the solver fell?"""

    def __call__(self, game: Game) -> None:
        traces = {contest for contest, party in game.stands if party == public_key(HONEST)}
        if not self.shut and len(traces) == 3:
            shut(self._session, 20)
            self.shut = True
        known = game.logs.get(self._lie)
        if known is not None and known.fall is not None and self.still_shut is None:
            self.still_shut = not self._session.gate.is_set()
            self._session.gate.set()

    def is_stuck(self) -> bool:
        return self._session.arrived.is_set() and not self._session.gate.is_set()


def test_a_rival_falls_while_another_ones_interval_is_replayed(truth: EngineProvider) -> None:
    inner, session = make_provider()
    shutter = Shutter(session, make_lie(truth, 5).log().root)
    with Background(inner) as background:
        honest = Player(inner, HONEST, background)
        verdict, game = play(truth, honest, heard=shutter, is_stuck=shutter.is_stuck)
    assert shutter.still_shut
    assert verdict.standing == truth.log().root
    assert [claim.fall and claim.fall.reason for claim in game.logs.values()].count("refuted") == 2


def test_in_one_thread_all_would_wait_for_the_replay(truth: EngineProvider) -> None:
    inner, session = make_provider()
    shutter = Shutter(session, make_lie(truth, 5).log().root)
    with pytest.raises(LateError):
        play(truth, Player(inner, HONEST), heard=shutter)
    assert shutter.still_shut is None


def test_threads_that_ask_at_once_get_what_is_true(truth: EngineProvider) -> None:
    """One replays, another reads what is at hand: arrays are spilled and read back meanwhile."""
    session = open_session("cpu", TASK.graph, TASK.samples, threads=1)
    inner = EngineProvider(TASK, session, keep=Keep(1 << 20, memory_bytes=4096))
    node = TASK.graph.find("state_root")
    expected = {step: truth.chunks(step, node).root for step in range(1, STEPS + 1)}
    stop = threading.Event()

    def read() -> int:
        given = 0
        while not stop.is_set():
            for step, root in expected.items():
                with suppress(PendingError), inner.at_hand():
                    assert inner.chunks(step, node).root == root
                    given += 1
        return given

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for _ in range(3):
            for step, root in expected.items():
                assert inner.chunks(step, node).root == root
        stop.set()
        assert reader.result(PATIENCE) > 0
