"""Who takes part in the matrix of ``test_matrix.py``: solvers and challengers, honest and not.

A cheat is what is false in a run (``CHEATS``), played to the end by whoever computed all that
follows from it; a habit is how a party behaves in the game (``SOLVERS``, ``CHALLENGERS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy.typing as npt

from tests.dispute.arena import Actor, make_game, make_key
from tests.dispute.claims import Patched, Run, bump, make_run
from tests.tasks import make_samples
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.demo.lies import Lie, Lies, LyingSession, add_one
from vtrain.dispute.consequences import get_depth
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import compute_move_digest, sign
from vtrain.dispute.players import Player
from vtrain.dispute.provider import ClaimTree, LeafOpening, MerkleTree, TraceProvider
from vtrain.dispute.state import Game, Question, list_bits
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError
from vtrain.graph.evaluate import apply_node
from vtrain.spec.domains import RUN_LOG
from vtrain.spec.frontier import compute_ranges
from vtrain.wire.dispute import (
    MAX_BOND,
    Bond,
    Genesis,
    Member,
    Move,
    Open,
    Reveal,
    SignedMove,
    decode_move,
    encode_move,
)

Array = npt.NDArray[Any]

SOLVER, HONEST, CHALLENGER, ACCOMPLICE, STRANGER = (make_key(number) for number in range(1, 6))
SYBILS = tuple(make_key(number) for number in range(100, 108))


# --- what is false in a run


@dataclass(frozen=True)
class Cheat:
    """Something false about a run: who defends it, and where it begins: (step, node)."""

    claim: TraceProvider
    step: int
    node: int


def _lie(run: Run, step: int, lies: Mapping[int, Lie]) -> Cheat:
    """Nodes of one step put out something false; the place is that of the first of them."""
    session = LyingSession(run.task, Lies({(step, node): lie for node, lie in lies.items()}))
    return Cheat(EngineProvider(run.task, session), step, min(lies))


def _find(run: Run, *names: str) -> int:
    """The first of these nodes that the graph has: the models differ in the names of layers."""
    known = [node.name for node in run.task.graph.nodes]
    return known.index(next(name for name in names if name in known))


def _other_attrs(run: Run, node: int, **attrs: int) -> Lie:
    """What the node would put out with other attributes."""
    law = run.task.graph.nodes[node]
    other = replace(law, attrs={**law.attrs, **attrs})

    def lie(value: Array, before: Mapping[int, Array]) -> Array:
        return apply_node(other, [before[ref.node] for ref in law.inputs], {}, run.task.samples)

    return lie


def _passes(node: int) -> Lie:
    """Puts out what another node does."""
    return lambda value, before: before[node].copy()


def skip_a_step(run: Run) -> Cheat:
    """The state after the step is that before it, but for the counter."""
    graph, before = run.task.graph, run.task.graph.states()
    after = {name: graph.nodes[ref.node].inputs[0] for name, ref in graph.next_states().items()}
    return _lie(
        run,
        3,
        {ref.node: _passes(before[name].node) for name, ref in after.items() if name != "step"},
    )


def train_on_other_data(run: Run) -> Cheat:
    return _lie(run, 3, {_find(run, "x"): lambda value, before: 255 - value})


def reorder_batches(run: Run) -> Cheat:
    return _lie(run, 4, {_find(run, "sample_index"): lambda value, before: value[::-1].copy()})


def start_from_other_weights(run: Run) -> Cheat:
    weights = _find(run, "param/w1")
    return _lie(run, 1, {weights: lambda value, before: value + 4096})


def alter_a_gradient(run: Run) -> Cheat:
    node = _find(run, "logits/biased/grad_bias")
    return _lie(run, 4, {node: add_one(2)})


def alter_an_optimizer_state(run: Run) -> Cheat:
    return _lie(run, 3, {_find(run, "momentum/w1/next"): add_one(5)})


def round_the_other_way(run: Run) -> Cheat:
    return _lie(run, 4, {_find(run, "param/w1/next"): lambda value, before: bump(value, 7, -1)})


def use_other_exponents(run: Run) -> Cheat:
    node = _find(run, "param/w1/next")
    shift = run.task.graph.nodes[node].attrs["shift"]
    assert isinstance(shift, int)
    return _lie(run, 3, {node: _other_attrs(run, node, shift=shift - 1)})


def use_another_graph(run: Run) -> Cheat:
    node = _find(run, "a")
    return _lie(run, 3, {node: _passes(run.task.graph.nodes[node].inputs[0].node)})


def commit_to_a_false_data_root(run: Run) -> Cheat:
    spec = run.task.spec
    other = make_samples(spec.data.x_shape, spec.data.samples, seed=99)
    task = replace(run.task, samples=other)
    session = open_session("cpu", task.graph, other)
    return Cheat(EngineProvider(task, session), 1, _find(run, "x"))


def _lie_in_record(run: Run, step: int, **fields: Any) -> Cheat:
    session = LyingSession(run.task, Lies(records={step: lambda record: replace(record, **fields)}))
    return Cheat(EngineProvider(run.task, session), step, run.task.graph.find("record"))


def lie_about_the_loss(run: Run) -> Cheat:
    return _lie_in_record(run, 3, loss=12345)


def lie_about_the_batch(run: Run) -> Cheat:
    return _lie_in_record(run, 4, batch_digest=b"b" * 32)


def lie_about_the_state(run: Run) -> Cheat:
    return _lie_in_record(run, 4, state_root=b"s" * 32)


CHEATS: Mapping[str, Callable[[Run], Cheat]] = {
    "skips a step": skip_a_step,
    "trains on other data": train_on_other_data,
    "reorders batches": reorder_batches,
    "starts from other weights": start_from_other_weights,
    "alters a gradient": alter_a_gradient,
    "alters an optimizer state": alter_an_optimizer_state,
    "rounds the other way": round_the_other_way,
    "uses other exponents": use_other_exponents,
    "uses another graph": use_another_graph,
    "commits to a false data root": commit_to_a_false_data_root,
    "lies about the loss": lie_about_the_loss,
    "lies about the batch": lie_about_the_batch,
    "lies about the state": lie_about_the_state,
}


def change_weights_after_a_step(run: Run) -> Cheat:
    return _lie(run, 2, {_find(run, "param/w1/next"): lambda value, before: value + 4096})


_MORE_CHEATS: Mapping[str, Callable[[Run], Cheat]] = {
    "changes weights after a step": change_weights_after_a_step
}
"""Those that others hide behind."""

_CHEATS: dict[tuple[int, str], Cheat] = {}


def make_cheat(run: Run, name: str) -> Cheat:
    """The cheat of this name about a run, made once."""
    if (id(run), name) not in _CHEATS:
        _CHEATS[id(run), name] = {**CHEATS, **_MORE_CHEATS}[name](run)
    return _CHEATS[id(run), name]


# --- how a party behaves


class Quiet:
    """Never moves."""

    def moves(self, game: Game) -> Iterable[SignedMove]:
        return ()


@dataclass
class Only:
    """A player who makes only some of its moves."""

    player: Player
    wanted: Callable[[Move], bool]

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            if self.wanted(decode_move(signed.move)):
                yield signed


MARGIN = 60
"""Milliseconds before it is too late: enough for the moves of all others."""


def find_due(game: Game, party: bytes, *, budget: bool) -> int | None:
    """Until when a party must do the next that it has to; with its whole ``budget``, or without."""
    found = []
    if (game.id, party) not in game.stands:
        found.append(game.genesis.opened + game.genesis.clocks.join)
    for contest in game.contests.values():
        own = game.find_own(contest, party) & contest.live
        for index, due in contest.find_due(own, 1 << 62).items():
            claim = contest.claims[index]
            found.append(max(due, claim.mark) + claim.left if budget else due)
        for below in map(game.contests.__getitem__, contest.below if own else ()):
            for side in below.sides.values():
                backed = contest.disputes[below.id].classes[side.value].mask & own
                if backed and side.closes >= 0 and (below.id, party) not in game.stands:
                    found.append(side.closes)
    # What is over was missed: a sub-claim of somebody else may stand there.
    return min((at for at in found if at >= game.now), default=None)


@dataclass
class Late:
    """Moves when it is nearly too late, and not before: it joins last, and spends its whole budget
    (or, as a dripper, none of it: it answers when the answer is due)."""

    player: Player
    budget: bool = True

    def moves(self, game: Game) -> Iterator[SignedMove]:
        wakes = self._find(game)
        if wakes is not None and game.now >= wakes:
            yield from self.player.moves(game)

    def wakes(self, game: Game) -> int | None:
        return self._find(game)

    def _find(self, game: Game) -> int | None:
        due = find_due(game, self.player.party, budget=self.budget)
        return None if due is None else due - MARGIN


@dataclass
class Away:
    """Is away, again and again, and each time returns remembering nothing."""

    claim: TraceProvider
    key: PrivateKey
    period: int = 90

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if game.now // self.period % 2:
            yield from Player(self.claim, self.key).moves(game)

    def wakes(self, game: Game) -> int | None:
        return (game.now // self.period + 1) * self.period


@dataclass
class Built:
    """A ``TraceProvider`` that is ``base`` in all that its kind does not change."""

    base: TraceProvider

    def log(self) -> ClaimTree:
        return self.base.log()

    def trace(self, step: int) -> ClaimTree:
        return self.base.trace(step)

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self.base.chunks(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        return self.base.terms(step, node, element)

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        self.base.want(traces=traces, tensors=tensors)

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        return self.base.open(step, node, element, block, first=first)


class GarbageProvider(Built):
    """Has the right claims, and opens them by garbage."""

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        opening = self.base.open(step, node, element, block, first=first)
        chunks = tuple(
            tuple(replace(chunk, chunk=bytes(len(chunk.chunk)) + b"!") for chunk in of_input)
            for of_input in opening.chunks
        )
        rows = tuple(replace(row, row=row.row[::-1]) for row in opening.rows)
        return LeafOpening(chunks, rows, Member(b"leaf", 0, 1, ()))


@dataclass
class StolenProvider(Built):
    """The false log of ``claim`` over the true trace: whoever has it bonds the true sub-claim for a
    false claim, before anybody else can."""

    claim: TraceProvider

    def log(self) -> ClaimTree:
        return self.claim.log()


@dataclass
class Contradictor:
    """Says something else before and after each of its moves: two bonds in one contest, two answers
    to one question."""

    player: Player
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            move = decode_move(signed.move)
            if isinstance(move, Reveal):
                yield sign(game.id, signed.about, Reveal((*move.items[::-1], b"")), self.key)
            elif isinstance(move, Open):
                yield sign(game.id, signed.about, replace(move, inputs=()), self.key)
            yield signed
            yield signed
            if isinstance(move, Bond):
                yield sign(game.id, signed.about, replace(move, root=b"?" * 32), self.key)


@dataclass
class Flooder:
    """Sends moves of all kinds that nobody may make, and some that anybody may."""

    wire: Sequence[SignedMove]
    limit: int = 120
    sent: int = 0

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for move in self._moves(game):
            if self.sent == self.limit:
                return
            self.sent += 1
            yield move

    def _moves(self, game: Game) -> Iterator[SignedMove]:
        key = SYBILS[self.sent % len(SYBILS)]
        junk = self.sent.to_bytes(32, "big")
        opening = Open(junk, junk, (), (), None, None, None, None)
        yield sign(game.id, game.id, Bond(junk, b"", ()), key)
        yield sign(game.id, game.id, Bond(junk, b"leaf", (junk,)), SYBILS[-1])
        yield sign(game.id, junk, Bond(junk, b"", ()), key)
        yield sign(game.id, junk, Reveal((junk,)), key)
        yield sign(game.id, game.id, opening, key)
        for about, question in game.asked.items():
            yield sign(game.id, about, Reveal((junk,)), key)
            yield sign(game.id, about, opening, key)
            yield sign(game.id, about, Bond(junk, b"", ()), key)
            yield _noise(game, about, key, question.limit)
            yield _noise(game, about, key, question.limit + 1)
        for side in game.sides:
            yield sign(game.id, side, Bond(junk, junk, (junk,)), key)
            yield sign(game.id, side, Reveal((junk,)), key)
            yield _noise(game, side, key, MAX_BOND + 1)
        yield _noise(game, game.id, key, 100)
        for signed in self.wire[-2:]:
            yield replace(signed, signature=junk * 2)


def _noise(game: Game, about: bytes, key: PrivateKey, size: int) -> SignedMove:
    unsigned = SignedMove(game.id, public_key(key), about, b"\xff" * size, bytes(64))
    return replace(unsigned, signature=key.sign(compute_move_digest(unsigned)))


@dataclass
class Replayer:
    """Sends again what others have signed, in this game and in another one, and signs it itself."""

    wire: Sequence[SignedMove]
    others: Sequence[SignedMove]
    key: PrivateKey
    seen: int = 0
    limit: int = 100

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if self.seen == 0:
            yield from self.others
            self.seen = len(self.wire)
        new = self.wire[self.seen : self.limit]
        self.seen = len(self.wire)
        for signed in new:
            for again in self._abuse(game, signed):
                yield again
                self.seen += 1  # it comes by the wire too

    def _abuse(self, game: Game, signed: SignedMove) -> Iterator[SignedMove]:
        yield signed
        yield replace(signed, about=game.id)
        for old in self.others[:1]:
            yield replace(old, game=game.id)
            yield replace(signed, game=old.game)
        # What is on the wire may be noise that is no move, and a bond would bind this party.
        with suppress(EncodingError):
            move = decode_move(signed.move)
            if not isinstance(move, Bond):
                yield sign(game.id, signed.about, move, self.key)


@dataclass
class Meddler:
    """Answers what it has not bonded for: what an honest player would say, signed by nobody of its
    claim."""

    claim: TraceProvider
    victim: PrivateKey
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in Player(self.claim, self.victim).moves(game):
            move = decode_move(signed.move)
            if not isinstance(move, Bond):
                yield sign(game.id, signed.about, move, self.key)


@dataclass
class Spliced(Built):
    """The true log up to a step, and that of ``base``, which trained on from a false state, after
    it: what is false is the state that a trace begins with."""

    truth: TraceProvider
    step: int

    def log(self) -> ClaimTree:
        trees = self.truth.log(), self.base.log()
        leaves = [trees[at >= self.step].leaf(at) for at in range(trees[0].size)]
        return MerkleTree(RUN_LOG, leaves)

    def trace(self, step: int) -> ClaimTree:
        return self._at(step).trace(step)

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self._at(step).chunks(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        return self._at(step).terms(step, node, element)

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        return self._at(step).open(step, node, element, block, first=first)

    def _at(self, step: int) -> TraceProvider:
        return self.base if step > self.step else self.truth


@dataclass
class Misquoter:
    """Plays a claim, and opens it against the log of another one that it bonded too: the agreed
    record of that one has the false state."""

    player: Player
    other: TraceProvider
    step: int
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        log = self.other.log()
        base = Member(log.leaf(self.step - 1), self.step - 1, log.size, log.path(self.step - 1))
        for signed in self.player.moves(game):
            move = decode_move(signed.move)
            if isinstance(move, Open):
                false = replace(move, log=log.root, base=base)
                yield sign(game.id, signed.about, false, self.key)
            else:
                yield signed


@dataclass
class Forger:
    """Signs for the honest party: bonds that it never made, before it can, and bad answers."""

    victim: bytes
    wire: Sequence[SignedMove]
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if (game.id, self.victim) not in game.stands:
            yield self._forge(game, game.id, Bond(b"1" * 32, b"", ()))
        for side, contest in game.sides.items():
            if (contest, self.victim) not in game.stands:
                yield self._forge(game, side, Bond(b"2" * 32, b"", ()))
        for about in game.asked:
            yield self._forge(game, about, Reveal((b"x" * 32,)))
        for signed in self.wire[-3:]:
            with suppress(EncodingError):
                if signed.party == self.victim:
                    yield self._forge(game, signed.about, decode_move(signed.move))

    def _forge(self, game: Game, about: bytes, move: Move) -> SignedMove:
        unsigned = SignedMove(game.id, self.victim, about, encode_move(move), bytes(64))
        return replace(unsigned, signature=self.key.sign(compute_move_digest(unsigned)))


@dataclass
class Hijacker:
    """Joins a claim, and all sub-claims for it that others make; answers garbage or nothing."""

    root: bytes
    key: PrivateKey
    answers: bool

    def moves(self, game: Game) -> Iterator[SignedMove]:
        party = public_key(self.key)
        if (game.id, party) not in game.stands:
            yield sign(game.id, game.id, Bond(self.root, b"", ()), self.key)
            return
        for side, scope in game.sides.items():
            contest = game.contests[scope]
            members = list(list_bits(contest.sides[side].members & contest.live))
            above = game.contests[contest.above]
            backed = above.disputes[scope].classes[contest.sides[side].value].mask
            if (
                members
                and backed & game.find_own(above, party)
                and (scope, party) not in game.stands
            ):
                yield sign(game.id, side, Bond(contest.claims[members[0]].root, b"", ()), self.key)
        if self.answers:
            for about, question in game.asked.items():
                yield from self._answer(game, about, question)

    def _answer(self, game: Game, about: bytes, question: Question) -> Iterator[SignedMove]:
        contest, place = question.where[0]
        dispute = game.contests[contest].disputes[place]
        if dispute.leaf:
            none = Open(self.root, self.root, (), (), None, None, None, None)
            yield sign(game.id, about, none, self.key)
            return
        ranges = compute_ranges(dispute.start, dispute.end, get_depth(game.genesis))
        for items in ((b"g" * 32,) * len(ranges), (b"g" * 1024,), ()):
            yield sign(game.id, about, Reveal(items), self.key)


@dataclass
class Follower:
    """Makes its moves only when somebody else has sub-claims on the same side already."""

    player: Player

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            scope = game.sides.get(signed.about)
            if scope is None or game.contests[scope].sides[signed.about].members:
                yield signed


@dataclass
class NoTerms:
    """Makes no sub-claims of terms, and so falls when their windows end."""

    player: Player

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            scope = game.sides.get(signed.about)
            if scope is None or game.contests[scope].level != "terms":
                yield signed


# --- the casts


@dataclass(frozen=True)
class Solver:
    """A solver: its claim, how it plays, and how its claim must fall, where that is certain.

    ``falls`` are the reasons it may fall for; ``place`` is (step, node), -1 where it never comes to
    be known.
    """

    claim: TraceProvider
    actor: Callable[[Genesis, list[SignedMove]], Actor]
    falls: frozenset[str] = frozenset()
    place: tuple[int, int] = (-1, -1)

    @property
    def honest(self) -> bool:
        return not self.falls


def _player(claim: TraceProvider) -> Callable[[Genesis, list[SignedMove]], Actor]:
    return lambda genesis, wire: Player(claim, SOLVER)


def make_solver(run: Run, name: str) -> Solver:
    """The solver of this name about a run."""
    if name in CHEATS:
        cheat = make_cheat(run, name)
        place = (cheat.step, cheat.node)
        return Solver(cheat.claim, _player(cheat.claim), frozenset({"refuted"}), place)
    return _HABITS[name](run)


def _honest(actor: Callable[[TraceProvider], Actor]) -> Callable[[Run], Solver]:
    return lambda run: Solver(run.truth, lambda genesis, wire: actor(run.truth))


def _cheating(
    actor: Callable[[Run, TraceProvider], Actor], *reasons: str, located: bool
) -> Callable[[Run], Solver]:
    """Someone who altered the optimizer's state, and behaves in some way."""

    def make(run: Run) -> Solver:
        cheat = make_cheat(run, "alters an optimizer state")
        place = (cheat.step, cheat.node) if located else (-1, -1)
        return Solver(
            cheat.claim, lambda genesis, wire: actor(run, cheat.claim), frozenset(reasons), place
        )

    return make


def _is_reveal(move: Move) -> bool:
    return isinstance(move, Reveal)


def _is_no_opening(move: Move) -> bool:
    return not isinstance(move, Open)


def _concede(run: Run, claim: TraceProvider) -> Actor:
    """Sub-claims that are no such thing, at once."""
    return Player(make_conceding(run, claim), SOLVER)


def make_conceding(run: Run, claim: TraceProvider) -> TraceProvider:
    """Has the log of a claim, and a trace with leaves that are no digests."""
    assert isinstance(claim, EngineProvider)
    junk = {(step, 0): b"" for step in range(1, run.task.spec.steps + 1)}
    return Patched(claim, run.task, leaves=junk)


def _change_a_state(run: Run) -> TraceProvider:
    """Weights that are false after step 2, and all that follows from them."""
    return make_cheat(run, "changes weights after a step").claim


def _misquote(run: Run) -> Solver:
    """Hides that change: its log is the true one until then.  Another claim of its own has it."""
    other = _change_a_state(run)
    claim = Spliced(other, run.truth, 2)

    def make(genesis: Genesis, wire: list[SignedMove]) -> Actor:
        return Both(Player(other, ACCOMPLICE), Misquoter(Player(claim, SOLVER), other, 2, SOLVER))

    return Solver(claim, make, frozenset({"refuted"}), (3, _find(run, "param/w1")))


@dataclass
class Both:
    """Two actors as one."""

    first: Actor
    second: Actor

    def moves(self, game: Game) -> Iterator[SignedMove]:
        yield from self.first.moves(game)
        yield from self.second.moves(game)


_HABITS: Mapping[str, Callable[[Run], Solver]] = {
    "honest": _honest(lambda claim: Player(claim, SOLVER)),
    "honest, spends its whole budget": _honest(lambda claim: Late(Player(claim, SOLVER))),
    "honest, answers when it is due": _honest(lambda claim: Late(Player(claim, SOLVER), False)),
    "honest, goes away and returns": _honest(lambda claim: Away(claim, SOLVER)),
    "goes away and returns": _cheating(
        lambda run, claim: Away(claim, SOLVER), "refuted", located=True
    ),
    "spends its whole budget": _cheating(
        lambda run, claim: Late(Player(claim, SOLVER)), "refuted", located=True
    ),
    "answers when it is due": _cheating(
        lambda run, claim: Late(Player(claim, SOLVER), False), "refuted", located=True
    ),
    "stalls": _cheating(lambda run, claim: Quiet(), "silent", located=False),
    "concedes": _cheating(_concede, "malformed", located=False),
    "withholds openings": _cheating(
        lambda run, claim: Only(Player(claim, SOLVER), _is_no_opening), "refuted", located=True
    ),
    "withholds sub-claims": _cheating(
        lambda run, claim: Only(Player(claim, SOLVER), _is_reveal), "undefended", located=False
    ),
    "publishes garbage openings": _cheating(
        lambda run, claim: Player(GarbageProvider(claim), SOLVER), "refuted", located=True
    ),
    "contradicts itself": _cheating(
        lambda run, claim: Contradictor(Player(claim, SOLVER), SOLVER), "refuted", located=True
    ),
    "steals the true sub-claim": _cheating(
        lambda run, claim: Player(StolenProvider(run.truth, claim), SOLVER),
        "undefended",
        located=False,
    ),
    "opens against another log": _misquote,
}
SOLVERS = (*_HABITS, *CHEATS)


@dataclass(frozen=True)
class Challenger:
    """Actors against a solver, and whether one of them is honest."""

    actors: Callable[[Run, Solver, list[SignedMove]], Sequence[Actor]]
    honest: bool = False


def _wrong_claim(run: Run) -> TraceProvider:
    """A false claim that no solver of ours makes."""
    return make_wrong_claim(run, 2)


@cache
def _make_wrong(run_id: int, step: int) -> TraceProvider:
    run = _RUN_BY_ID[run_id]
    return _lie(run, step, {_find(run, "momentum/b1/next"): add_one(1)}).claim


_RUN_BY_ID: dict[int, Run] = {}


def make_wrong_claim(run: Run, step: int) -> TraceProvider:
    """A false claim about that step, which no solver makes; made once."""
    _RUN_BY_ID[id(run)] = run
    return _make_wrong(id(run), step)


def make_traitor(run: Run, claim: TraceProvider, step: int) -> TraceProvider:
    """Has the same log as the true claim or a false one, and a false trace under it."""
    assert isinstance(claim, EngineProvider)
    node = _find(run, "loss/grad")
    return Patched(claim, run.task, {(step, node): bump(run.tensor(step, node), 0)})


def _attack_everything(run: Run, solver: Solver, wire: list[SignedMove]) -> Sequence[Actor]:
    keys = iter(SYBILS)
    claims = [make_wrong_claim(run, step) for step in (2, 5)]
    actors: list[Actor] = [Player(claim, next(keys)) for claim in claims]
    made_up = [bytes([number]) * 32 for number in range(3)]
    actors += [Hijacker(root, next(keys), answers=True) for root in made_up]
    actors += [Player(make_traitor(run, run.truth, step), next(keys)) for step in (2, 3)]
    return actors


def _replays(run: Run, solver: Solver, wire: list[SignedMove]) -> Sequence[Actor]:
    return [Replayer(wire, get_old_moves(run), CHALLENGER)]


_OLD: dict[int, list[SignedMove]] = {}


def get_old_moves(run: Run) -> list[SignedMove]:
    """What the parties signed in another game about the run."""
    from tests.dispute.arena import play

    if id(run) not in _OLD:
        old: list[SignedMove] = []
        claim = make_wrong_claim(run, 2)
        genesis = make_game(run.task, claim, SOLVER, nonce=b"o" * 32)
        players = [Player(claim, SOLVER), Player(run.truth, HONEST)]
        play(genesis, run.graph, players, wire=old)
        _OLD[id(run)] = old
    return _OLD[id(run)]


def _join_truth(*, answers: bool) -> Challenger:
    return Challenger(
        lambda run, solver, wire: [Hijacker(run.truth.log().root, CHALLENGER, answers)]
    )


def _betray(run: Run, solver: Solver, wire: list[SignedMove]) -> Sequence[Actor]:
    """False traces for the honest side: the first before her own, the other after it."""
    first, second = (make_traitor(run, run.truth, step) for step in (3, 4))
    return [Player(first, CHALLENGER), Follower(Player(second, ACCOMPLICE))]


CHALLENGERS: Mapping[str, Challenger] = {
    "nobody": Challenger(lambda run, solver, wire: []),
    "honest": Challenger(lambda run, solver, wire: [Player(run.truth, CHALLENGER)], honest=True),
    "honest, spends its whole budget": Challenger(
        lambda run, solver, wire: [Late(Player(run.truth, CHALLENGER))], honest=True
    ),
    "honest, answers when it is due": Challenger(
        lambda run, solver, wire: [Late(Player(run.truth, CHALLENGER), False)], honest=True
    ),
    "honest, goes away and returns": Challenger(
        lambda run, solver, wire: [Away(run.truth, CHALLENGER)], honest=True
    ),
    "attacks everything": Challenger(_attack_everything),
    "makes a wrong claim": Challenger(
        lambda run, solver, wire: [Player(_wrong_claim(run), CHALLENGER)]
    ),
    "stalls": Challenger(
        lambda run, solver, wire: [Hijacker(_wrong_claim(run).log().root, CHALLENGER, False)]
    ),
    "spends its whole budget": Challenger(
        lambda run, solver, wire: [Late(Player(_wrong_claim(run), CHALLENGER))]
    ),
    "answers when it is due": Challenger(
        lambda run, solver, wire: [Late(Player(_wrong_claim(run), CHALLENGER), False)]
    ),
    "concedes at once": Challenger(
        lambda run, solver, wire: [
            Player(make_conceding(run, make_wrong_claim(run, step)), key)
            for step, key in zip((2, 5), SYBILS, strict=False)
        ]
    ),
    "contradicts itself": Challenger(
        lambda run, solver, wire: [Contradictor(Player(_wrong_claim(run), CHALLENGER), CHALLENGER)]
    ),
    "steals the true sub-claim": Challenger(
        lambda run, solver, wire: [Player(StolenProvider(run.truth, _wrong_claim(run)), CHALLENGER)]
    ),
    "floods": Challenger(lambda run, solver, wire: [Flooder(wire)]),
    "replays old signatures": Challenger(_replays),
    "answers for others": Challenger(
        lambda run, solver, wire: [
            Meddler(run.truth, SOLVER if solver.honest else HONEST, CHALLENGER)
        ]
    ),
    "signs for others": Challenger(
        lambda run, solver, wire: [
            Forger(public_key(SOLVER if solver.honest else HONEST), wire, CHALLENGER)
        ]
    ),
    "joins the true claim and stalls": _join_truth(answers=False),
    "joins the true claim and answers garbage": _join_truth(answers=True),
    "joins the true claim and opens garbage": Challenger(
        lambda run, solver, wire: [Player(GarbageProvider(run.truth), CHALLENGER)]
    ),
    "joins the true claim and loses it on purpose": Challenger(_betray),
    "a crowd of all kinds": Challenger(
        lambda run, solver, wire: [
            *_betray(run, solver, wire),
            Hijacker(run.truth.log().root, SYBILS[0], answers=True),
            Late(Player(make_wrong_claim(run, 2), SYBILS[1])),
            Late(Player(make_wrong_claim(run, 5), SYBILS[2]), False),
            Player(make_conceding(run, make_wrong_claim(run, 5)), SYBILS[3]),
            Player(GarbageProvider(run.truth), SYBILS[4]),
        ]
    ),
}


def make_tiny_runs() -> dict[str, Run]:
    """The runs of the matrix."""
    return {
        "mlp, a commitment every 2 steps": make_run("mlp", commit_every=2),
        "cnn, a commitment every step": make_run("cnn", commit_every=1),
    }
