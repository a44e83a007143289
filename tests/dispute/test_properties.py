"""Random play: any moves of anyone at any time, while one honest player answers in time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.dispute.arena import Actor, make_key
from tests.dispute.bounds import make_bounds
from tests.dispute.campaign import play_many
from tests.dispute.crowd import HONEST_KEY, Flood, Hijacker, Paced
from tests.dispute.toy import OUTPUT_WIDTH, Lie, ToyProvider, ToyRun, make_toy_genesis
from tests.exhaustive import spare
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.state import Game
from vtrain.dispute.transcript import TimedMove, replay
from vtrain.errors import VtrainError
from vtrain.wire import structs
from vtrain.wire.dispute import Clocks, SignedMove
from vtrain.wire.opening import CHUNK_LENGTH

STEP = 9
RUN = ToyRun(64, 64, 4, rows=4, columns=512, terms=96, real=(STEP, 40))
CHUNKS = -(-RUN.rows * RUN.columns * OUTPUT_WIDTH // CHUNK_LENGTH)
TRUTH = ToyProvider(RUN)
LIAR = ToyProvider(RUN, Lie(STEP, loss=1, product=1))
CLOCKS = Clocks(
    join=1000, trace=1000, terms=1000, budget=2000, grace=100, answer=2, opening=2, replay=50
)


class RandomPlay(RuleBasedStateMachine):
    """One honest player, solver or challenger; everybody else does what chance says."""

    def __init__(self) -> None:
        super().__init__()
        self.wire: list[SignedMove] = []
        self.transcript: list[TimedMove] = []
        self.begun = False

    @initialize(
        honest_solves=st.booleans(),
        arity=st.sampled_from([2, 4, 16]),
        group=st.sampled_from([2, 3, 17]),
    )
    def begin(self, honest_solves: bool, arity: int, group: int) -> None:
        self.begun = True
        claim, key = (TRUTH, HONEST_KEY) if honest_solves else (LIAR, make_key(2))
        self.honest = Paced(TRUTH, HONEST_KEY)
        self.genesis = make_toy_genesis(claim, key, arity=arity, group=group, clocks=CLOCKS)
        self.game = start(self.genesis, RUN.disputed)
        lies = [
            Lie(STEP, loss=1, product=1),
            Lie(STEP, loss=2, product=2, detour=1),
            Lie(STEP, loss=2, product=2, detour=2),
            Lie(40, loss=1, product=1),
            Lie(STEP, product=-1),
            Lie(STEP, detour=1),
        ]
        self.others: list[Actor] = [
            Paced(ToyProvider(RUN, lie), make_key(2 + i)) for i, lie in enumerate(lies)
        ]
        self.others += [
            Hijacker(TRUTH, make_key(20), "trace"),
            Hijacker(TRUTH, make_key(21), "below"),
            Flood([make_key(22)]),
        ]
        self.answer()

    def send(self, signed: SignedMove, wait: int) -> None:
        """Make a move, or have it refused: by a typed error, and with the game as it was."""
        self.wire.append(signed)
        game = self.game
        at = game.now + wait
        try:
            after = apply(game, signed, at)
        except VtrainError:
            assert self.game == game
            return
        assert apply(game, signed, at) == after, "apply is deterministic"
        self.transcript.append(TimedMove(at, signed))
        self.change(after)

    def change(self, after: Game) -> None:
        """Go on to a later state, in which nothing that fell stands again."""
        for root, claim in self.game.logs.items():
            if claim.fall is not None:
                assert after.logs[root] == claim
        for contest in self.game.contests.values():
            later = after.contests[contest.id]
            fallen = (1 << len(contest.claims)) - 1 & ~contest.live
            assert not later.live & fallen
        self.game = after

    def answer(self) -> None:
        """The honest player makes its moves."""
        while True:
            made = len(self.transcript)
            for signed in self.honest.moves(self.game):
                self.send(signed, 1)
            if len(self.transcript) == made:
                return

    @rule(who=st.integers(0, 8), count=st.integers(1, 12), wait=st.integers(0, 20))
    def act(self, who: int, count: int, wait: int) -> None:
        """Somebody makes some moves."""
        if not self.game.over:
            for signed in take(self.others[who].moves(self.game), count):
                self.send(signed, wait)
            self.answer()

    @rule(seed=st.integers(0, 2**32), wait=st.integers(0, 5))
    def send_noise(self, seed: int, wait: int) -> None:
        """A move that somebody made, with bytes changed."""
        if self.wire:
            chance = random.Random(seed)  # noqa: S311
            data = bytearray(structs.encode(chance.choice(self.wire)))
            for _ in range(chance.choice((1, 1, 3))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                noise = structs.decode(SignedMove, bytes(data), "move")
            except VtrainError:
                return
            self.send(noise, wait)
            self.answer()

    @rule(time=st.integers(1, 2500))
    def wait(self, time: int) -> None:
        """Time passes; the honest player answers whatever comes to be asked."""
        self.pass_until(self.game.now + time)

    def pass_until(self, end: int) -> None:
        while self.game.now < end:
            due = find_deadline(self.game)
            at = end if due is None else min(max(due, self.game.now), end)
            self.change(advance(self.game, at))
            self.answer()

    @invariant()
    def holds(self) -> None:
        if not self.begun:
            return
        claim = self.game.logs.get(TRUTH.log().root)
        assert claim is not None
        assert claim.fall is None, "an honest claim never falls"
        assert find_deadline(self.game) is not None or self.game.over

    def teardown(self) -> None:
        """Everybody goes; the honest player wins, and the transcript says so to anyone."""
        if not self.begun:
            return
        for _ in range(1000):
            due = find_deadline(self.game)
            if self.game.over or due is None:
                break
            self.pass_until(max(due, self.game.now + 1))
        verdict = find_verdict(self.game)
        assert verdict is not None, "the game ends"
        assert verdict.standing == TRUTH.log().root
        assert self.game.ends <= make_bounds(self.game, chunks=CHUNKS, blocks=RUN.blocks).time
        for entries in (self.transcript, with_idle_entries(self.transcript)):
            again = advance(replay(self.genesis, RUN.disputed, entries), self.game.now)
            assert again == self.game, "that time was looked at changes nothing"
            assert find_verdict(again) == verdict


def take(moves: Iterable[SignedMove], count: int) -> Iterator[SignedMove]:
    """The first few of them."""
    for number, signed in enumerate(moves):
        if number == count:
            return
        yield signed


def with_idle_entries(transcript: list[TimedMove]) -> Iterator[TimedMove]:
    """The transcript with entries that only say that time passed."""
    last = 0
    for entry in transcript:
        yield TimedMove((last + entry.at) // 2, None)
        yield TimedMove(entry.at, None)
        yield entry
        last = entry.at


TestRandomPlay = RandomPlay.TestCase
TestRandomPlay.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("seed", spare([2, 3, 4], lambda seed: seed == 2))
def test_random_games_of_actors_of_every_kind_break_no_promise(seed: int) -> None:
    assert play_many(100, seed).games == 100
