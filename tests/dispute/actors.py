"""Who takes part in the matrix of ``test_matrix.py``: solvers and challengers, honest and not.

A cheat is what is false in a run (``CHEATS``), played to the end by whoever computed all that
follows from it; a habit is how a party behaves in the game (``SOLVERS``, ``CHALLENGERS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy.typing as npt

from tests.dispute.arena import Actor, make_game, make_key
from tests.dispute.claims import Patched, Run, bump, make_run
from tests.tasks import make_samples
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.demo.lies import Lie, Lies, LyingSession, add_one
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import compute_move_digest, find_deadline, get_depth, sign
from vtrain.dispute.players import MemoryJournal, Player
from vtrain.dispute.provider import ClaimTree, LeafOpening, TraceProvider
from vtrain.dispute.state import Game, compute_position
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError
from vtrain.graph.evaluate import apply_node
from vtrain.spec.frontier import compute_ranges
from vtrain.wire.dispute import (
    Accuse,
    Bond,
    Genesis,
    Member,
    Move,
    NodeOpening,
    Open,
    Reveal,
    SignedMove,
    Site,
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

_CHEATS: dict[tuple[int, str], Cheat] = {}


def make_cheat(run: Run, name: str) -> Cheat:
    """The cheat of this name about a run, made once."""
    if (id(run), name) not in _CHEATS:
        _CHEATS[id(run), name] = CHEATS[name](run)
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


LAST_MOMENT = 12
"""Milliseconds before a clock runs out: enough for the moves of all others."""


@dataclass
class Late:
    """Moves when a clock is about to run out, and not before."""

    player: Player

    def moves(self, game: Game) -> Iterator[SignedMove]:
        due = find_deadline(game)
        if due is not None and game.now >= due[0] - LAST_MOMENT:
            yield from self.player.moves(game)

    def wakes(self, game: Game) -> int | None:
        due = find_deadline(game)
        return None if due is None else due[0] - LAST_MOMENT


@dataclass
class Away:
    """Is away, again and again, and each time returns with nothing but its journal."""

    claim: TraceProvider
    key: PrivateKey
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    period: int = 90

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if game.now // self.period % 2:
            yield from Player(self.claim, self.key, self.journal).moves(game)

    def wakes(self, game: Game) -> int | None:
        return (game.now // self.period + 1) * self.period


@dataclass
class GarbageProvider:
    """Has the right claims, and opens them by garbage."""

    base: TraceProvider
    opens: bool = False

    def log(self) -> ClaimTree:
        return self.base.log()

    def trace(self, step: int) -> ClaimTree:
        return self.base.trace(step)

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self.base.chunks(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        return self.base.terms(step, node, element)

    def site(self, node: int) -> Site:
        return self.base.site(node)

    def source_of_state(self, node: int) -> NodeOpening:
        return self.base.source_of_state(node)

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        opening = self.base.open(step, node, element, block, first=first)
        chunks = tuple(
            tuple(replace(chunk, chunk=bytes(len(chunk.chunk)) + b"!") for chunk in of_input)
            for of_input in opening.chunks
        )
        rows = tuple(replace(row, row=row.row[::-1]) for row in opening.rows)
        return LeafOpening(chunks, rows, Member(b"leaf", 0, 1, ()))


@dataclass
class Equivocator:
    """Contradicts each of its bonds and reveals; an accuser finds it on the wire."""

    player: Player
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            yield signed
            move = decode_move(signed.move)
            if isinstance(move, Bond):
                yield sign(game, replace(move, root=b"?" * 32), self.key)
            elif isinstance(move, Reveal):
                yield sign(game, replace(move, items=(*move.items[::-1], b"")), self.key)


@dataclass
class Accuser:
    """Looks for contradictions in what everybody sends, and accuses."""

    wire: Sequence[SignedMove]
    key: PrivateKey
    seen: int = 0
    first: dict[tuple[bytes, bytes], SignedMove] = field(default_factory=dict)

    def moves(self, game: Game) -> Iterator[SignedMove]:
        while self.seen < len(self.wire):
            signed = self.wire[self.seen]
            self.seen += 1
            first = self.first.setdefault((signed.party, signed.position), signed)
            if signed.party != public_key(self.key) and first.move != signed.move:
                yield sign(game, Accuse(first, signed), self.key)


@dataclass
class StolenProvider:
    """A false log over the true trace: whoever has it bonds the true sub-claim for a false claim,
    before anybody else can."""

    claim: TraceProvider
    truth: TraceProvider

    def log(self) -> ClaimTree:
        return self.claim.log()

    def trace(self, step: int) -> ClaimTree:
        return self.truth.trace(step)

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self.truth.chunks(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        return self.truth.terms(step, node, element)

    def site(self, node: int) -> Site:
        return self.truth.site(node)

    def source_of_state(self, node: int) -> NodeOpening:
        return self.truth.source_of_state(node)

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        return self.truth.open(step, node, element, block, first=first)


@dataclass
class Flooder:
    """Sends moves of all kinds that nobody may make, and some that anybody may."""

    wire: Sequence[SignedMove]
    limit: int = 60
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
        yield sign(game, Bond(0, junk, 0, b"", ()), key)
        yield sign(game, Bond(0, junk, 1, b"", ()), SYBILS[-1])
        yield sign(game, Bond(99, junk, 0, b"", ()), key)
        yield sign(game, Reveal(99, (), None), key)
        for index, match in enumerate(game.matches):
            yield sign(game, Reveal(index, (junk,), match.site), key)
            yield sign(game, Open(index, (), (), None, None, None, None), key)
            if match.nested >= 0:
                for side in (0, 1):
                    yield sign(game, Bond(match.nested, junk, side, junk, (junk,)), key)
        for entry in game.tournaments[-1].entries:
            tournament = len(game.tournaments) - 1
            yield sign(game, Bond(tournament, entry.root, entry.side, b"", ()), key)
        yield SignedMove(game.id, public_key(key), bytes(32), b"\xff" * 100, bytes(64))
        for signed in self.wire[-2:]:
            yield replace(signed, signature=junk * 2)
            yield sign(game, Accuse(signed, signed), key)


@dataclass
class Replayer:
    """Sends again what others have signed, in this game and in another one."""

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
        yield replace(signed, game=game.id, position=bytes(32))
        yield sign(game, Accuse(signed, self.wire[0]), self.key)
        yield sign(game, Accuse(signed, signed), self.key)
        for old in self.others[:1]:
            yield sign(game, Accuse(signed, old), self.key)


@dataclass
class Forger:
    """Signs for the honest party: contradictions to accuse it of, and its moves, by its own key."""

    victim: bytes
    wire: Sequence[SignedMove]
    key: PrivateKey
    sent: int = 0

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for index, match in enumerate(game.matches[self.sent :], self.sent):
            self.sent += 1
            yield self._forge(game, Reveal(index, match.revealed[0] or (b"x" * 32,), None))
            yield self._forge(game, Open(index, (), (), None, None, None, None))
        tournament = len(game.tournaments) - 1
        bonds = [Bond(tournament, root * 32, 0, b"", ()) for root in (b"1", b"2")]
        first, second = (self._forge(game, bond) for bond in bonds)
        if tournament == 0 and not self.sent:
            yield first
        yield sign(game, Accuse(first, second), self.key)
        for signed in self.wire[-3:]:
            # What is on the wire may be noise that is no move.
            with suppress(EncodingError):
                if signed.party == self.victim:
                    other = self._forge(game, decode_move(signed.move))
                    yield sign(game, Accuse(signed, replace(other, move=first.move)), self.key)

    def _forge(self, game: Game, move: Move) -> SignedMove:
        position = compute_position(game, move)
        unsigned = SignedMove(game.id, self.victim, position, encode_move(move), bytes(64))
        return replace(unsigned, signature=self.key.sign(compute_move_digest(unsigned)))


@dataclass
class Hijacker:
    """Joins a claim, and reveals garbage for it or nothing at all."""

    root: bytes
    key: PrivateKey
    reveals: bool

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if game.tournaments[0].backed_by(public_key(self.key)) < 0:
            yield sign(game, Bond(0, self.root, 0, b"", ()), self.key)
        for index, match in enumerate(game.matches):
            if self.reveals and match.stage == "reveal":
                ranges = compute_ranges(match.start, match.end, get_depth(game.genesis))
                yield sign(game, Reveal(index, (b"g" * 32,) * len(ranges), match.site), self.key)


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


_HABITS: Mapping[str, Callable[[Run], Solver]] = {
    "honest": _honest(lambda claim: Player(claim, SOLVER)),
    "honest, late": _honest(lambda claim: Late(Player(claim, SOLVER))),
    "honest, goes away and returns": _honest(lambda claim: Away(claim, SOLVER)),
    "goes away and returns": _cheating(
        lambda run, claim: Away(claim, SOLVER), "refuted", located=True
    ),
    "moves late": _cheating(
        lambda run, claim: Late(Player(claim, SOLVER)), "refuted", located=True
    ),
    "stalls": _cheating(lambda run, claim: Quiet(), "silent", located=False),
    "withholds openings": _cheating(
        lambda run, claim: Only(Player(claim, SOLVER), _is_no_opening), "refuted", located=True
    ),
    "withholds sub-claims": _cheating(
        lambda run, claim: Only(Player(claim, SOLVER), _is_reveal), "undefended", located=False
    ),
    "publishes garbage openings": _cheating(
        lambda run, claim: Player(GarbageProvider(claim), SOLVER), "refuted", located=True
    ),
    "equivocates": _cheating(
        lambda run, claim: Equivocator(Player(claim, SOLVER), SOLVER),
        "silent",
        "undefended",
        located=False,
    ),
    "steals the true sub-claim": _cheating(
        lambda run, claim: Player(StolenProvider(claim, run.truth), SOLVER),
        "undefended",
        located=False,
    ),
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
    actors += [Hijacker(root, next(keys), reveals=True) for root in made_up]
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
        play(genesis, [Player(claim, SOLVER), Player(run.truth, HONEST)], wire=old)
        _OLD[id(run)] = old
    return _OLD[id(run)]


CHALLENGERS: Mapping[str, Challenger] = {
    "nobody": Challenger(lambda run, solver, wire: []),
    "honest": Challenger(lambda run, solver, wire: [Player(run.truth, CHALLENGER)], honest=True),
    "honest, late": Challenger(
        lambda run, solver, wire: [Late(Player(run.truth, CHALLENGER))], honest=True
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
    "moves late": Challenger(
        lambda run, solver, wire: [Late(Player(_wrong_claim(run), CHALLENGER))]
    ),
    "equivocates": Challenger(
        lambda run, solver, wire: [Equivocator(Player(_wrong_claim(run), CHALLENGER), CHALLENGER)]
    ),
    "steals the true sub-claim": Challenger(
        lambda run, solver, wire: [Player(StolenProvider(_wrong_claim(run), run.truth), CHALLENGER)]
    ),
    "floods": Challenger(lambda run, solver, wire: [Flooder(wire)]),
    "replays old signatures": Challenger(_replays),
    "signs for others": Challenger(
        lambda run, solver, wire: [
            Forger(public_key(SOLVER if solver.honest else HONEST), wire, CHALLENGER)
        ]
    ),
    "joins the true claim and stalls": Challenger(
        lambda run, solver, wire: [Hijacker(run.truth.log().root, CHALLENGER, False)]
    ),
    "joins the true claim and reveals garbage": Challenger(
        lambda run, solver, wire: [Hijacker(run.truth.log().root, CHALLENGER, True)]
    ),
    "joins the true claim and loses it on purpose": Challenger(
        lambda run, solver, wire: [
            Player(make_traitor(run, run.truth, step), key)
            for step, key in ((3, CHALLENGER), (4, ACCOMPLICE))
        ]
    ),
}


def make_tiny_runs() -> dict[str, Run]:
    """The runs of the matrix."""
    return {
        "mlp, a commitment every 2 steps": make_run("mlp", commit_every=2),
        "cnn, a commitment every step": make_run("cnn", commit_every=1),
    }
