"""Random play: any moves of anyone at any time, while one honest player answers in time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.dispute.actors import (
    ACCOMPLICE,
    CHALLENGER,
    HONEST,
    SOLVER,
    STRANGER,
    SYBILS,
    Accuser,
    Equivocator,
    Flooder,
    Forger,
    Hijacker,
    Replayer,
    StolenProvider,
    get_old_moves,
    make_cheat,
    make_traitor,
    make_wrong_claim,
)
from tests.dispute.arena import Actor, make_game
from tests.dispute.bounds import make_bounds
from tests.dispute.claims import make_run
from vtrain.attest.keys import public_key
from vtrain.dispute.game import TRANSITIONS, advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game
from vtrain.dispute.transcript import TimedMove, replay
from vtrain.errors import VtrainError
from vtrain.wire import structs
from vtrain.wire.dispute import SignedMove

RUN = make_run("mlp", commit_every=2)
LIAR = make_cheat(RUN, "alters an optimizer state").claim
WRONG = make_wrong_claim(RUN, 2)
PLACES = frozenset(TRANSITIONS) | {place for after in TRANSITIONS.values() for place in after}


def find_reachable() -> frozenset[tuple[object, object]]:
    """Pairs of places of a match of which the second can follow the first, by one move or more."""
    pairs = {(before, after) for before, places in TRANSITIONS.items() for after in places}
    while True:
        longer = pairs | {(a, d) for a, b in pairs for c, d in pairs if b == c}
        if longer == pairs:
            return frozenset(pairs) | {(place, place) for place in PLACES}
        pairs = longer


REACHABLE = find_reachable()


class RandomPlay(RuleBasedStateMachine):
    """One honest player, solver or challenger; everybody else does what chance says."""

    def __init__(self) -> None:
        super().__init__()
        self.wire: list[SignedMove] = []
        self.transcript: list[TimedMove] = []
        self.begun = False

    @initialize(honest_solves=st.booleans(), arity=st.sampled_from([2, 4, 16]))
    def begin(self, honest_solves: bool, arity: int) -> None:
        self.begun = True
        claim, key = (RUN.truth, HONEST) if honest_solves else (LIAR, SOLVER)
        self.honest = Player(RUN.truth, HONEST)
        self.genesis = make_game(RUN.task, claim, key, arity=arity)
        self.game = start(self.genesis)
        traitor = make_traitor(RUN, RUN.truth, 3)
        self.others: list[Actor] = [
            Player(LIAR, SOLVER if not honest_solves else CHALLENGER),
            Player(WRONG, ACCOMPLICE),
            Player(traitor, SYBILS[0]),
            Equivocator(Player(WRONG, SYBILS[1]), SYBILS[1]),
            Player(StolenProvider(LIAR, RUN.truth), SYBILS[2]),
            Hijacker(RUN.truth.log().root, SYBILS[3], reveals=True),
            Flooder(self.wire, limit=40),
            Forger(public_key(HONEST), self.wire, SYBILS[4]),
            Replayer(self.wire, get_old_moves(RUN), SYBILS[5]),
            Accuser(self.wire, STRANGER),
        ]
        self.answer()

    def send(self, signed: SignedMove, wait: int) -> None:
        """Make a move, or have it refused: by a typed error, and with the game as it was."""
        self.wire.append(signed)
        before, game = structs.encode(self.game), self.game
        at = game.now + wait
        try:
            after = apply(game, signed, at)
        except VtrainError:
            assert structs.encode(game) == before
            return
        assert structs.encode(game) == before, "apply is pure"
        assert apply(game, signed, at) == after, "and deterministic"
        self.transcript.append(TimedMove(at, signed))
        self.change(after)

    def change(self, after: Game) -> None:
        """Go on to a later state, which the table of transitions must allow."""
        for old, new in zip(self.game.matches, after.matches, strict=False):
            assert ((old.stage, old.tree), (new.stage, new.tree)) in REACHABLE
            if old.stage == "over":
                assert new == old
        assert len(after.matches) >= len(self.game.matches)
        self.game = after

    def answer(self) -> None:
        """The honest player makes its moves."""
        while True:
            made = len(self.transcript)
            for signed in self.honest.moves(self.game):
                self.send(signed, 1)
            if len(self.transcript) == made:
                return

    @rule(who=st.integers(0, 9), count=st.integers(1, 12), wait=st.integers(0, 20))
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
            signed = chance.choice(self.wire)
            data = bytearray(structs.encode(signed))
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
            at = end if due is None else min(max(due[0], self.game.now), end)
            self.change(advance(self.game, at))
            self.answer()

    @invariant()
    def holds(self) -> None:
        if not self.begun:
            return
        top = self.game.tournaments[0]
        mine = top.entries[top.find(RUN.truth.log().root)]
        assert mine.fall is None, "an honest claim never falls"
        assert public_key(HONEST) not in self.game.barred
        encoded = structs.encode(self.game)
        assert structs.decode(Game, encoded, "game") == self.game
        assert find_deadline(self.game) is not None or self.game.over

    def teardown(self) -> None:
        """Everybody goes; the honest player wins, and the transcript says so to anyone."""
        if not self.begun:
            return
        for _ in range(1000):
            due = find_deadline(self.game)
            if self.game.over or due is None:
                break
            self.pass_until(max(due[0], self.game.now + 1))
        verdict = find_verdict(self.game)
        assert verdict is not None, "the game ends"
        assert verdict.standing == RUN.truth.log().root
        assert sum(entry.fall is None for entry in verdict.entries) == 1
        bounds = make_bounds(self.game, chunks=4, blocks=1)
        falls = [entry.fall.at for entry in verdict.entries if entry.fall is not None]
        assert max(falls, default=0) <= bounds.time
        again = advance(replay(self.genesis, self.transcript), self.game.now)
        assert again == self.game
        assert find_verdict(again) == verdict
        idle = advance(replay(self.genesis, with_idle_entries(self.transcript)), self.game.now)
        assert idle == self.game, "that time was looked at changes nothing"


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
TestRandomPlay.settings = settings(max_examples=25, stateful_step_count=20)
