"""Games of many, all of whom move at the same time, and what they took.

``tests.dispute.arena`` lets one move after another, so that its clock counts moves; here the clock
tells how long a game takes however many play it.  An adversary is a player of a false claim with
a pace: when, of all the time that it has for a move, it makes it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.dispute.arena import Actor, Sleeper, make_key
from tests.dispute.toy import BONDS, CLOCKS, Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, sign, start
from vtrain.dispute.players import Player
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import (
    Contest,
    Dispute,
    DisputedGraph,
    Game,
    Verdict,
    get_base_step,
    list_bits,
)
from vtrain.dispute.transcript import TimedMove
from vtrain.errors import VtrainError
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Bonds, Clocks, Genesis, Open, Reveal, SignedMove, decode_move

Pace = Literal["prompt", "drips", "stalls", "sprints", "silent", "late", "concedes"]
"""When a claim moves: at once; when each answer is due; when its budget is all but spent; so, but
at once about a tensor, and no opening; never after its bonds; like "stalls", and with bonds that
come when their window is all but over; never, not even with sub-claims."""
NEVER = 1 << 62

Asked = list[tuple[int, Contest, Dispute]]
Sides = list[tuple[Contest, bytes]]


class Paced(Player):
    """A player who makes each move as late as its pace says; a ``shallow`` one no sub-claims."""

    def __init__(
        self,
        provider: TraceProvider,
        key: PrivateKey,
        pace: Pace = "prompt",
        latency: int = 1,
        *,
        shallow: bool = False,
    ) -> None:
        super().__init__(provider, key)
        self._pace, self._latency, self._wake = pace, latency, NEVER
        self._shallow = shallow

    def moves(self, game: Game) -> Iterator[SignedMove]:
        self._wake = NEVER
        joins = game.round == 0 and (game.id, self.party) not in game.stands
        if joins and self._pace == "late" and not self._is_time(game, _end_of_join(game)):
            return
        yield from super().moves(game)

    def wakes(self, game: Game) -> int | None:
        """When the next move that is held back is made."""
        return self._wake if self._wake < NEVER else None

    def _make(self, game: Game, asked: Asked, sides: Sides) -> Iterator[SignedMove]:
        self.hold_back(game, asked, sides)
        yield from super()._make(game, asked, sides)

    def hold_back(self, game: Game, asked: Asked, sides: Sides) -> None:
        """Keep what is to be done now."""
        asked[:] = [item for item in asked if self._is_time(game, self._when(game, *item))]
        sides[:] = [item for item in sides if self._is_time(game, self._when_bonded(*item))]

    def make(self, game: Game, asked: Asked, sides: Sides) -> Iterator[SignedMove]:
        """The moves that are due now, of those that somebody else has looked for."""
        self._wake = NEVER
        yield from self._make(game, asked, sides)

    def _is_time(self, game: Game, at: int) -> bool:
        """May a move be made that has time until ``at``?"""
        begin = at - self._latency
        if begin > game.now:
            self._wake = min(self._wake, begin)
        return begin <= game.now

    def _when(self, game: Game, due: int, contest: Contest, dispute: Dispute) -> int:
        if self._pace == "prompt":
            return 0
        if self._pace == "sprints" and (dispute.tree == "chunks" or dispute.leaf):
            return NEVER if dispute.leaf else 0
        if self._pace in {"silent", "concedes"}:
            return NEVER
        if self._pace == "drips":
            return due
        claim = contest.claims[game.find_own(contest, self.party).bit_length() - 1]
        return max(due, claim.mark) + claim.left

    def _when_bonded(self, contest: Contest, value: bytes) -> int:
        if self._shallow or self._pace == "concedes":
            return NEVER
        if self._pace not in {"late", "drips"}:
            return 0
        sides = (side for side in contest.sides.values() if side.value == value)
        return next(sides).closes


class Gang:
    """Many players of false claims, for all of whom one looks at the game."""

    def __init__(self, players: Iterable[Paced]) -> None:
        self._players = {player.party: player for player in players}
        self._wake = NEVER

    def moves(self, game: Game) -> Iterator[SignedMove]:
        self._wake = NEVER
        for party, player in self._players.items():
            if (game.id, party) not in game.stands:
                yield from player.moves(game)
                self._wake = min(self._wake, player.wakes(game) or NEVER)
        asked: dict[bytes, Asked] = {}
        sides: dict[bytes, Sides] = {}
        for group in game.groups:
            self._look(game, game.contests[group], asked, sides)
        for party in asked | sides:
            player = self._players[party]
            yield from player.make(game, asked.get(party, []), sides.get(party, []))
            self._wake = min(self._wake, player.wakes(game) or NEVER)

    def wakes(self, game: Game) -> int | None:
        """When one of them makes a move that is held back."""
        return self._wake if self._wake < NEVER else None

    def _look(
        self,
        game: Game,
        contest: Contest,
        asked: dict[bytes, Asked],
        sides: dict[bytes, Sides],
    ) -> None:
        for dispute in map(contest.disputes.__getitem__, contest.asking):
            for found in dispute.classes.values():
                for owing, due in found.asked:
                    for party in self._find_backers(game, contest, owing & contest.live):
                        asked.setdefault(party, []).append((due, contest, dispute))
        for below in map(game.contests.__getitem__, contest.below):
            classes = contest.disputes[below.id].classes
            for side in below.sides.values():
                if side.closes < game.now:
                    continue
                live = classes[side.value].mask & contest.live
                for party in self._find_backers(game, contest, live):
                    if (below.id, party) not in game.stands:
                        sides.setdefault(party, []).append((below, side.value))
            self._look(game, below, asked, sides)

    def _find_backers(self, game: Game, contest: Contest, claims: int) -> Iterator[bytes]:
        scope = game.get_scope(contest)
        for claim in list_bits(claims):
            for party in game.backers[scope, contest.claims[claim].root]:
                if party in self._players:
                    yield party


class _Wanting(ToyProvider):
    """Tells a machine what is wanted of it."""

    def __init__(self, run: ToyRun, lie: Lie, machine: Machine) -> None:
        super().__init__(run, lie)
        self._machine = machine

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        for step in traces:
            self._machine.is_there(step, -1)
        for step, node in tensors:
            self._machine.is_there(step, node)


class Machine(Paced):
    """An honest player with one machine, which traces one interval at a time again.

    What it has to trace takes ``replay`` milliseconds an interval; what is asked about one interval
    is traced together.  Traces come before tensors, what was asked first before the rest.
    """

    def __init__(self, provider: ToyProvider, key: PrivateKey, replay: int) -> None:
        super().__init__(_Wanting(provider.run, provider.lie, self), key)
        self._run, self._replay = provider.run, replay
        self._has: set[tuple[int, int]] = set()
        self._wants: dict[int, set[tuple[int, int]]] = {}
        self._doing: set[tuple[int, int]] = set()
        self._done = 0
        self.replays = 0

    def hold_back(self, game: Game, asked: Asked, sides: Sides) -> None:
        """Keep what is traced already; begin to trace the rest."""
        if self._doing and self._done <= game.now:
            self._has |= self._doing
            self._doing = set()
        asked[:] = [
            item
            for item in asked
            if not (item[2].tree == "chunks" or item[2].leaf)
            or self.is_there(item[2].place.step, item[2].place.node)
        ]
        sides[:] = [item for item in sides if self.is_there(item[0].place.step, item[0].place.node)]
        if not self._doing:
            self._begin(game)
        if self._doing:
            self._wake = min(self._wake, self._done)

    def is_there(self, step: int, node: int) -> bool:
        """Is a trace there (``node`` -1), or a tensor?  It is wanted otherwise."""
        what = (step, node)
        if what in self._has or not self._replay:
            return True
        if what not in self._doing:
            base = get_base_step(self._run.commit_every, step)
            self._wants.setdefault(base, set()).add(what)
        return False

    def _begin(self, game: Game) -> None:
        if self._wants:
            traces = [at for at, wants in self._wants.items() if any(node < 0 for _, node in wants)]
            base = next(iter(traces or self._wants))
            self._doing = self._wants.pop(base)
            self._done = game.now + self._replay
            self.replays += 1


class Hijacker(Paced):
    """Backs the claim of ``provider`` and answers for it at once, but not what a replay is for.

    So the honest backer is asked for what lies deeper as early as can be.  ``stops`` says before
    what: the first answer about a "trace", a tensor's "chunks" or a fold's "terms".
    """

    def __init__(self, provider: ToyProvider, key: PrivateKey, stops: str) -> None:
        super().__init__(provider, key)
        self._stops = stops

    def _when(self, game: Game, due: int, contest: Contest, dispute: Dispute) -> int:
        order = ("log", "trace", "chunks", "below", "terms", "leaf")
        tree: str = dispute.tree
        if dispute.leaf:
            tree = "leaf"
        elif tree == "chunks" and not dispute.is_root:
            tree = "below"
        return 0 if order.index(tree) < order.index(self._stops) else NEVER


@dataclass
class Flood:
    """Sends what nobody asks for, and bonds made-up claims of the log."""

    keys: Sequence[PrivateKey]
    sent: int = 0

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for key in self.keys:
            self.sent += 1
            junk = self.sent.to_bytes(32, "big")
            yield sign(game.id, junk, Reveal((junk,)), key)
            if game.round == 0:
                yield sign(game.id, game.id, Bond(junk, b"", ()), key)
            for about in list(game.sides)[:4]:
                yield sign(game.id, about, Bond(junk, junk, ()), key)


def _end_of_join(game: Game) -> int:
    return game.genesis.opened + game.genesis.clocks.join


@dataclass
class Record:
    """What a game took: accepted moves, bytes sent and refusals by party; seconds of thinking by
    actor, and of the machine and its referee.

    ``rounds`` are the exchanges after the window for joining; ``opening`` is the last one accepted,
    with the game that it was made in.
    """

    game: Game
    verdict: Verdict | None = None
    moves: Counter[bytes] = field(default_factory=Counter)
    sent_bytes: Counter[bytes] = field(default_factory=Counter)
    refused: Counter[bytes] = field(default_factory=Counter)
    rounds: int = 0
    thinking: dict[int, float] = field(default_factory=dict)
    judging: float = 0.0
    opening: tuple[Game, SignedMove] | None = None
    transcript: list[TimedMove] = field(default_factory=list)

    @property
    def standing(self) -> bytes:
        """The log root that stands at the end."""
        return b"" if self.verdict is None else self.verdict.standing


def play_together(
    genesis: Genesis,
    graph: DisputedGraph,
    actors: Sequence[Actor],
    *,
    latency: int = 1,
    limit: int = 1_000_000,
    watch: Callable[[Game], None] | None = None,
) -> Record:
    """Let all move at once until there is a verdict; an exchange takes ``latency`` milliseconds."""
    game = start(genesis, graph)
    record = Record(game)
    for _ in range(limit):
        accepted, now = 0, game.now + latency
        for index, actor in enumerate(actors):
            begin = time.perf_counter()
            sent = list(actor.moves(game))
            middle = time.perf_counter()
            record.thinking[index] = record.thinking.get(index, 0.0) + middle - begin
            for signed in sent:
                record.sent_bytes[signed.party] += len(structs.encode(signed))
                try:
                    after = apply(game, signed, now)
                except VtrainError:
                    record.refused[signed.party] += 1
                    continue
                if signed.about in game.asked and isinstance(decode_move(signed.move), Open):
                    record.opening = (game, signed)
                game = after
                accepted += 1
                record.moves[signed.party] += 1
                record.transcript.append(TimedMove(now, signed))
            record.judging += time.perf_counter() - middle
        record.rounds += bool(accepted and game.round)
        if watch is not None:
            watch(game)
        record.game, record.verdict = game, find_verdict(game)
        if game.over:
            return record
        if accepted == 0:
            due = find_deadline(game)
            assert due is not None, "a game that goes on has a deadline"
            wakes = [actor.wakes(game) for actor in actors if isinstance(actor, Sleeper)]
            game = advance(game, min([due, *(at for at in wakes if at and at > game.now)]))
    raise AssertionError(f"no verdict after {limit} rounds")


HONEST_KEY = make_key(1)
HONEST = public_key(HONEST_KEY)


def play_pair(run: ToyRun, arity: int = 16) -> Record:
    """An honest solver against a challenger with a false product, to the end."""
    honest, liar = ToyProvider(run), ToyProvider(run, Lie(run.real[0], loss=1, product=1))
    genesis = make_toy_genesis(honest, HONEST_KEY, arity=arity)
    actors = [Player(honest, HONEST_KEY), Player(liar, make_key(2))]
    return play_together(genesis, run.disputed, actors)


def play_gang(
    run: ToyRun,
    lies: Sequence[Lie],
    *,
    pace: Pace | Sequence[Pace] = "prompt",
    hijackers: Sequence[Actor] = (),
    replay: bool = False,
    shallow: bool = False,
    clocks: Clocks = CLOCKS,
    bonds: Bonds = BONDS,
    latency: int = 1,
    arity: int = 16,
    group: int = 17,
    watch: Callable[[Game], None] | None = None,
) -> Record:
    """An honest party against a gang, each with a lie of their own and a pace of the given ones.

    ``replay``: does the honest party have to trace each disputed interval again, on one machine?
    ``shallow``: are all of them but one such that make no sub-claims?
    """
    truth = ToyProvider(run)
    paces = [pace] if isinstance(pace, str) else list(pace)
    actors: list[Actor] = [*hijackers]
    actors.append(
        Machine(truth, HONEST_KEY, clocks.replay) if replay else Player(truth, HONEST_KEY)
    )
    actors.append(
        Gang(
            Paced(
                ToyProvider(run, lie),
                make_key(1000 + i),
                paces[i % len(paces)],
                latency,
                shallow=shallow and i > 0,
            )
            for i, lie in enumerate(lies)
        )
    )
    genesis = make_toy_genesis(truth, HONEST_KEY, clocks=clocks, arity=arity, group=group)
    genesis = replace(genesis, bonds=bonds)
    return play_together(genesis, run.disputed, actors, latency=latency, watch=watch)
