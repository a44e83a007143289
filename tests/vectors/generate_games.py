"""Writes ``games/``: whole games of disputes, move by move, with what follows from each.

``python -m tests.vectors.generate_games`` plays games about a tiny run of its own, and writes them;
``--check`` compares and exits 1 when one differs.  README.md documents the format.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from blake3 import blake3
from onnx import helper, numpy_helper

from tests.dispute.actors import Hijacker, NoTerms, Only, Quiet
from tests.dispute.arena import Actor, Sleeper, make_key
from tests.dispute.claims import Patched, bump
from tests.dispute.crowd import Paced
from tests.tasks import CLASSES, CONTEXT, make_bigram_onnx, make_samples, make_tokens
from tests.vectors.generate_statements import splice
from vtrain import _core
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.state import compute_root_of_state
from vtrain.demo.lies import Lie, Lies, LyingSession
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import (
    advance,
    apply,
    compute_move_digest,
    find_deadline,
    find_verdict,
    sign,
    start,
)
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.money import count_work, list_outcomes
from vtrain.dispute.players import Player
from vtrain.dispute.provider import ChunkTree, LeafOpening, MerkleTree, TraceProvider
from vtrain.dispute.receipts import compute_body_digest
from vtrain.dispute.state import (
    Contest,
    Dispute,
    DisputedGraph,
    Fall,
    Game,
    compute_side_id,
)
from vtrain.dispute.statement import compose, decode_ruling
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import VtrainError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.step import Affine, Ids, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.spec.commitment import compute_graph_root, compute_tensor_digest
from vtrain.spec.domains import TERMS
from vtrain.spec.samples import Samples
from vtrain.train.task import CompiledTask
from vtrain.wire import cbor, structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import (
    MAX_BOND,
    Bond,
    Bonds,
    Chunk,
    Clocks,
    Genesis,
    Member,
    Move,
    Open,
    Reveal,
    Row,
    SignedMove,
    decode_move,
)
from vtrain.wire.graph import encode_graph
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.task import LAW_VERSION, TaskSpec, Windows

FOLDER = Path(__file__).with_name("games")
SIDE, BATCH, STEPS, EVERY = 16, 10, 9, 3
MANY = 48
"""In a batch, so that their tokens take two chunks."""
CLOCKS = Clocks(
    join=1000, trace=600, terms=300, budget=500, grace=40, answer=3, opening=7, replay=50
)
BONDS = Bonds(log=1009, trace=103, terms=11)
OPENED = 5000
SOLVER, OTHER, THIRD, FOURTH, FIFTH, SIXTH, STRANGER = KEYS = tuple(map(make_key, range(1, 8)))
HOST = make_key(20)
LATE = OPENED + 2700
SIGNATURE = 64
REFUTED_TWICE = 11
"""Draws when the parties of that game move: so that a sub-claim comes late enough."""
Json = Any
Array = npt.NDArray[Any]


# --- a run of few nodes, in which the sum over a window takes eight blocks of one chunk


@cache
def make_task() -> CompiledTask:
    """The mean of an image and a linear layer on it, trained for nine steps."""
    rng = np.random.default_rng(1)
    weight = rng.uniform(-1, 1, (CLASSES, 1)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], "pool", kernel_shape=[SIDE, SIDE]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w", "b"], ["logits"], "fc", transB=1),
    ]
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("x", float32, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", float32, ["batch", CLASSES])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.zeros(CLASSES, np.float32), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model_bytes = bytes(model.SerializeToString(deterministic=True))
    data = make_samples((1, SIDE, SIDE), 2 * BATCH, 7)
    affine = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    return compile_model(model_bytes, data, affine, BATCH, 40960)


@cache
def make_language_task() -> CompiledTask:
    """A table of embeddings and a layer on it, which name the second token after each of a window:
    for nine steps, on windows over the three chunks of a file, the last of which ends early."""
    tokens = make_tokens(700, 7, dtype="u32", shift=2)
    return compile_model(make_bigram_onnx(), tokens, Ids(), MANY, 8192)


def compile_model(
    model_bytes: bytes, data: Samples, prepare: Affine | Ids, batch: int, rate: int
) -> CompiledTask:
    """The task that trains the model."""
    model = import_onnx(model_bytes)
    plan = StepPlan(
        data=data.spec,
        prepare=prepare,
        loss="cross_entropy",
        optimizer=Momentum(decay=round(2**16 * 0.1), starts=(0,), rates=(rate,), exponent=22),
        seed=7,
        batch=batch,
        commit_every=EVERY,
    )
    state = compute_initial_state(model.params)

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    exponents = calibrate(emit, state, data, steps=4, margin=3).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    graph = builder.graph()
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(graph),
        initial_state_root=compute_root_of_state(graph, state),
        model_digest=compute_tensor_digest(np.frombuffer(model_bytes, np.uint8)),
        data=data.spec,
        exponents=exponents,
        seed=7,
        steps=STEPS,
        batch=batch,
        commit_every=EVERY,
        checkpoint_every=EVERY,
        commitments=("blake3",),
    )
    return CompiledTask(spec, graph, data, state, model_bytes, "of games")


@cache
def make_truth() -> EngineProvider:
    """The true claim, by the law alone."""
    return EngineProvider(make_task(), LyingSession(make_task(), Lies()))


@dataclass(frozen=True)
class Subject:
    """What games are about: a task, and the file that has its graph."""

    file: str
    task: Callable[[], CompiledTask]


IMAGES = Subject("graph.json", make_task)
LANGUAGE = Subject("graph-windows.json", make_language_task)


@cache
def make_graph(subject: Subject) -> DisputedGraph:
    """The graph as games take it."""
    task = subject.task()
    return DisputedGraph(task.graph, task.spec.graph_root)


@cache
def find_node(name: str) -> int:
    """Index of the node of this name."""
    return [node.name for node in make_task().graph.nodes].index(name)


def get_record(step: int) -> StepRecord:
    """The true record of a step."""
    return decode_record(make_truth().log().leaf(step - 1))


def make_lie(
    step: int,
    node: str = "logits",
    element: int = 0,
    by: int = 1,
    *,
    loss: int = 1,
    detour: Sequence[int] = (),
    **more: Any,
) -> Patched:
    """The truth, but for an element of a node in a step, and for the loss of that step's record."""
    place = (step, find_node(node))
    false = bump(make_truth().tensor(*place), element, by)
    record = get_record(step)
    return Patched(
        make_truth(),
        make_task(),
        outputs={place: false},
        records={step: replace(record, loss=record.loss + loss)} if loss else {},
        detours={place: detour},
        **more,
    )


def make_sum_lie(step: int, block: int, by: int = 5, *, loss: int = 1, detour: int = 0) -> Patched:
    """The sum over a window is ``by`` too great, which came about in ``block``.

    Until the last block it is by ``detour`` more, which tells folds apart.
    """
    steps = [by + detour if at < 7 else by for at in range(8)]
    states = [more if at >= block else 0 for at, more in enumerate(steps)]
    return make_lie(step, "p/sum", 4, by, loss=loss, detour=states)


def make_record_lie(at: int, **fields: Any) -> Patched:
    """The truth, but for fields of the record of step ``at``; of nothing else in the trace."""
    records = {at: replace(get_record(at), **fields)}
    return Patched(make_truth(), make_task(), records=records)


# --- a game, written down


@dataclass
class Table:
    """A game that is played here, with an entry for each move, and each time that changed it."""

    name: str
    about: str
    genesis: Genesis
    entries: list[Json] = field(default_factory=list)
    statements: bool = False
    """Are the statements that the referee is asked written down whole?"""
    subject: Subject = IMAGES

    def __post_init__(self) -> None:
        self._sent: dict[int, bytes] = {}
        self.game = start(self.genesis, make_graph(self.subject))
        self.first = self.describe_state({})
        self._last = self.first

    def send(self, signed: SignedMove, at: int = 0) -> bool:
        """Make a move, a millisecond later unless told when; is it accepted?"""
        at = at or self.game.now + 1
        encoded = structs.encode(signed)
        entry: Json = {"at": at, "move": self._shorten(encoded)}
        self._sent[len(self.entries)] = encoded
        try:
            entry |= self._judge(signed, at)
            self.game = apply(self.game, signed, at)
        except VtrainError as error:
            entry["refused"] = {"code": error.code, "place": error.where}
            if "after" in entry.get("judged", {}):
                del entry["judged"]  # it was refused before the referee was asked
            if error.code != "move-refused":
                del entry["refused"]["place"]
            if at >= self.game.now:
                self.game = advance(self.game, at)
        self._write(entry)
        return "refused" not in entry

    def wait(self, at: int, *, write: bool = False) -> None:
        """Let time pass; it is written down where it changes anything."""
        before = list_falls(self.game), self.game.round
        self.game = advance(self.game, at)
        if write or (list_falls(self.game), self.game.round) != before:
            self._write({"at": at})

    def _shorten(self, encoded: bytes) -> Json:
        """A move; or what it has other than the one before it that is most like it, and its last
        bytes, which are the signature."""
        unsigned, signature = encoded[:-SIGNATURE], encoded[-SIGNATURE:].hex()
        best: Json = encoded.hex()
        saved = 80
        for of, data in self._sent.items():
            found = splice(data[:-SIGNATURE], unsigned)
            if found["head"] + found["tail"] > saved:
                saved = found["head"] + found["tail"]
                best = {"of": of, **found, "signature": signature}
        return best

    def _judge(self, signed: SignedMove, at: int) -> Json:
        """What the referee is asked by an opening that is in its place, and says."""
        game = advance(self.game, at)
        question = game.asked.get(signed.about)
        if question is None or question.value:
            return {}
        try:
            move = decode_move(signed.move)
            assert isinstance(move, Open)
            ((contest, dispute),) = question.where
            statement = compose(game, contest, dispute, move)
        except (VtrainError, AssertionError):
            return {}
        said: Json = {"digest": blake3(statement).hexdigest()}
        try:
            said["after"] = decode_ruling(_core.referee_judge(statement)).after.hex()
        except VtrainError as error:
            return {"judged": {**said, "place": error.where}}
        if self.statements:
            said["statement"] = statement.hex()
        return {"judged": said}

    def _write(self, entry: Json) -> None:
        state = self.describe_state(self._last)
        self.entries.append({**entry, **state})
        self._last = {**self._last, **state}

    def describe_state(self, last: Mapping[str, Json]) -> Json:
        """What there is to compare; of what is a list, nothing where it is as it was."""
        game = self.game
        known = {structs_key(fall) for fall in last.get("_fallen", [])}
        falls = [fall for fall in list_falls(game) if structs_key(fall) not in known]
        state: Json = {"round": game.round, "next": find_next(game), "falls": falls}
        asked = [list_question(game, about) for about in sorted(game.asked)]
        sides = list_sides(game)
        for key, value in (("asked", asked), ("sides", sides)):
            if key not in last or last[key] != value:
                state[key] = value
        state["_fallen"] = last.get("_fallen", []) + falls
        return state

    def end(self) -> Json:
        """The file's content."""
        verdict = find_verdict(self.game)
        assert verdict is not None
        encoded, settled = structs.encode(verdict), list_outcomes(self.game)
        work = count_work(self.game)
        for entry in (self.first, *self.entries):
            entry.pop("_fallen")
        return {
            "about": self.about,
            **({} if self.subject == IMAGES else {"graph": self.subject.file}),
            "genesis": structs.encode(self.genesis).hex(),
            "game": self.game.id.hex(),
            "start": self.first,
            "entries": self.entries,
            "verdict": encoded.hex(),
            "digest": compute_body_digest(encoded).hex(),
            "settled": structs.encode(settled).hex(),
            "work": [[party.hex(), done] for party, done in work.items()],
        }


def structs_key(fall: Json) -> str:
    """The same for the same fall."""
    return json.dumps(fall, sort_keys=True)


def list_falls(game: Game) -> list[Json]:
    """All claims and sub-claims that have fallen, by time, contest, root."""
    found = []
    for contest in game.contests.values():
        for number, claim in enumerate(contest.claims):
            if claim.fall is not None:
                found.append((claim.fall.at, contest.id, claim.root, number, contest, claim.fall))
    return [
        describe_fall(contest, root, fall)
        for _, _, root, _, contest, fall in sorted(found, key=lambda item: item[:4])
    ]


def describe_fall(contest: Contest, root: bytes, fall: Fall) -> Json:
    """A fall, for a file."""
    place = fall.place
    return {
        "level": contest.level,
        "contest": contest.id.hex(),
        "root": root.hex(),
        "reason": fall.reason,
        "place": [place.step, place.node, place.chunk, place.element, place.block],
        "at": fall.at,
    }


def list_question(game: Game, about: bytes) -> Json:
    """What is asked: what it is about, the bytes that an answer may have, when the first is due."""
    question = game.asked[about]
    dues = []
    for contest_id, dispute_id in question.where:
        contest = game.contests[contest_id]
        for value, found in contest.disputes[dispute_id].classes.items():
            if question.value in (value, b""):
                dues += [due for claims, due in found.asked if claims & contest.live]
    return [about.hex(), question.limit, min(dues)]


def list_sides(game: Game) -> list[Json]:
    """The sides that take new sub-claims now, and until when."""
    found = []
    for side, scope in game.sides.items():
        closes = game.contests[scope].sides[side].closes
        if closes >= game.now and not game.over:
            found.append([side.hex(), closes])
    return sorted(found)


def find_next(game: Game) -> int | None:
    """The first time at which, nobody moving, something falls, a round begins or the game ends."""
    before = list_falls(game), game.round
    while (due := find_deadline(game)) is not None:
        game = advance(game, due)
        if game.over or (list_falls(game), game.round) != before:
            return due
    return None


def play(table: Table, *actors: Actor, refused: int = 0, until: int = 1 << 62) -> None:
    """Let all move at once, again and again, to the verdict or a time.

    So many ``refused`` moves are written down, the others are not sent.
    """
    while not table.game.over and table.game.now < until:
        accepted, now = 0, table.game.now + 1
        for actor in actors:
            for signed in list(actor.moves(table.game)):
                try:
                    apply(table.game, signed, now)
                except VtrainError:
                    refused -= 1
                    if refused < 0:
                        continue
                accepted += table.send(signed, now)
        if accepted == 0 and not table.game.over:
            due = find_deadline(table.game)
            assert due is not None
            wakes = [actor.wakes(table.game) for actor in actors if isinstance(actor, Sleeper)]
            times = [due, until, *(at for at in wakes if at and at > table.game.now)]
            table.wait(min(times))


@dataclass
class Busy:
    """Joins at once, and makes its other moves from a time on."""

    actor: Actor
    begin: int

    def moves(self, game: Game) -> Iterator[SignedMove]:
        if game.round == 0 or game.now >= self.begin:
            yield from self.actor.moves(game)

    def wakes(self, game: Game) -> int | None:
        return self.begin


@dataclass
class Dripping:
    """Makes its moves once in a while, as drawn: ``chance`` sixteenths of those it could make."""

    actor: Actor
    words: list[int]
    chance: int = 3

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in list(self.actor.moves(game)):
            if game.round == 0 or self.words.pop() % 16 < self.chance:
                yield signed

    def wakes(self, game: Game) -> int | None:
        return game.now + 5


@dataclass
class Sorted:
    """Makes the moves of one who looks at a game in no order."""

    actor: Actor

    def moves(self, game: Game) -> Iterable[SignedMove]:
        return sorted(self.actor.moves(game), key=structs.encode)


def is_no_sub_claim(move: Move) -> bool:
    """Is it no bond behind a sub-claim?"""
    return not (isinstance(move, Bond) and move.leaf)


def is_bond(move: Move) -> bool:
    return isinstance(move, Bond)


def is_no_opening(move: Move) -> bool:
    return not isinstance(move, Open)


def bond(table: Table, key: PrivateKey, root: bytes) -> SignedMove:
    """Stand behind a claim of the log."""
    return sign(table.game.id, table.game.id, Bond(root, b"", ()), key)


# --- the games

Provide = Callable[[], TraceProvider]


@dataclass(frozen=True)
class Plan:
    """How a game is set up, and who plays it."""

    about: str
    play: Callable[[Table], None]
    solver: Provide
    statements: bool
    options: Mapping[str, Any]
    subject: Subject = IMAGES

    def make(self, name: str) -> Json:
        """Play it to its end."""
        log, task = self.solver().log(), self.subject.task()
        claim = Claim(b"r" * 32, public_key(SOLVER), task.task_id, log.size, log.root)
        options = {"clocks": CLOCKS, "bonds": BONDS, "arity": 16, "group": 17, **self.options}
        genesis = make_genesis(
            task.spec,
            task.graph,
            sign_claim(claim, SOLVER),
            host=public_key(HOST),
            opened=OPENED,
            nonce=blake3(name.encode()).digest(),
            **options,
        )
        table = Table(name, self.about, genesis, statements=self.statements, subject=self.subject)
        self.play(table)
        return table.end()


GAMES: dict[str, Plan] = {}


def game(
    about: str,
    *,
    solver: Provide = make_truth,
    statements: bool = False,
    subject: Subject = IMAGES,
    **options: Any,
) -> Callable[[Callable[[Table], None]], Callable[[Table], None]]:
    """Have a function's game among those that are written, under the function's name."""

    def keep(function: Callable[[Table], None]) -> Callable[[Table], None]:
        GAMES[function.__name__.replace("_", "-")] = Plan(
            about, function, solver, statements, options, subject
        )
        return function

    return keep


# two parties, to the end


@game("Nobody disputes the claim.")
def alone(table: Table) -> None:
    table.wait(OPENED + 500, write=True)
    table.wait(OPENED + CLOCKS.join, write=True)
    table.wait(OPENED + CLOCKS.join + 1)


@game("A rival's log has a leaf that is no record: it falls when that is reached.", arity=4)
def no_record(table: Table) -> None:
    junk = Patched(make_truth(), make_task(), records={6: b"no record"})
    play(table, Player(make_truth(), SOLVER), Player(junk, OTHER))


@game("Records of another step, with a state root too many, and without one.", arity=4)
def wrong_records(table: Table) -> None:
    lies = (
        make_record_lie(4, step=5),
        make_record_lie(5, state_root=b"s" * 32),
        make_record_lie(6, state_root=b""),
    )
    rivals = [Player(lie, key) for lie, key in zip(lies, KEYS[1:], strict=False)]
    play(table, Player(make_truth(), SOLVER), *rivals)


@game("An element of a tensor of five chunks; the solver is right.", arity=2)
def chunks(table: Table) -> None:
    lie = make_lie(5, "x/prepared", 1301)
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER))


@game(
    "Block 3 of a fold of eight; the solver lies.",
    solver=lambda: make_sum_lie(4, 3),
    statements=True,
    arity=4,
)
def terms(table: Table) -> None:
    play(table, Player(make_sum_lie(4, 3), SOLVER), Player(make_truth(), OTHER))


@game("Block 0 of a fold; the liar opens it himself.", arity=4, statements=True)
def first_block(table: Table) -> None:
    actors = Only(Player(make_truth(), SOLVER), is_no_opening), Player(make_sum_lie(4, 0), OTHER)
    play(table, *actors)


@game(
    "The state that the second interval begins with: a leaf of the base, in the log.",
    statements=True,
)
def first_state(table: Table) -> None:
    lie = make_lie(5, "param/w", 2)
    # It is false in the first step of the interval, before the record that differs.
    lie.outputs = {(4, find_node("param/w")): bump(make_truth().tensor(4, find_node("param/w")), 2)}
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER))


@game("The state that the run begins with: a leaf of the genesis' state root.", statements=True)
def initial_state(table: Table) -> None:
    lie = make_lie(1, "momentum/b", 1)
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER))


@game("A state in a later step of an interval, put out by the step before.", statements=True)
def later_state(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Player(make_lie(6, "param/b", 3), OTHER))


@game("Samples: rows under the data root.", statements=True)
def samples(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Player(make_lie(2, "x", 700), OTHER))


@game(
    "The traces differ nowhere but in the record itself.",
    solver=lambda: make_record_lie(7, loss=12),
    statements=True,
)
def record(table: Table) -> None:
    play(table, Player(make_record_lie(7, loss=12), SOLVER), Player(make_truth(), OTHER))


@game("A state root that is none.", solver=lambda: make_record_lie(6, state_root=b"s" * 32))
def state_root(table: Table) -> None:
    lie = make_record_lie(6, state_root=b"s" * 32)
    play(table, Player(lie, SOLVER), Player(make_truth(), OTHER))


@game("A product of matrices, of one block: no sub-claims of terms.", arity=32)
def product(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Player(make_lie(8, "logits/acc", 9, 77), OTHER))


# silence


@game("The solver says nothing: its claim falls in the log.", solver=lambda: make_lie(4))
def silent_log(table: Table) -> None:
    play(table, Quiet(), Player(make_truth(), OTHER))


@game("Answers about the log, and no sub-claim: the side falls as its window ends.")
def silent_trace_window(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Only(Player(make_lie(4), OTHER), is_no_sub_claim))


@dataclass
class Without:
    """Makes no answer that is asked in a contest of a level, or about a tree or a node."""

    player: Player
    level: str = ""
    tree: str = ""
    node: int = -2
    opens: bool = True

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for signed in self.player.moves(game):
            question = game.asked.get(signed.about)
            if question is not None:
                contest = game.contests[question.where[0][0]]
                dispute = contest.disputes[question.where[0][1]]
                if contest.level == self.level or dispute.tree == self.tree:
                    continue
                if dispute.place.node == self.node:
                    continue
            if self.opens or is_no_opening(decode_move(signed.move)):
                yield signed


@game("A sub-claim that is not answered for falls, and with it what it stood for.")
def silent_trace(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Without(Player(make_lie(4), OTHER), "trace"))


@game("A sub-claim of terms that is not answered for.")
def silent_terms(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), Without(Player(make_sum_lie(4, 3), OTHER), "terms"))


@game("A trace falls while sub-claims of terms stand for it, which fall with it.")
def moot_terms(table: Table) -> None:
    friend = Player(make_lie(4, "x", 5, loss=0), THIRD)
    liar = Without(Player(make_sum_lie(4, 3), OTHER), node=find_node("x"), opens=False)
    honest = Only(Player(make_truth(), SOLVER), is_no_opening)
    play(table, honest, Only(friend, is_no_opening), liar)


@game("No sub-claim of terms.")
def silent_terms_window(table: Table) -> None:
    play(table, Player(make_truth(), SOLVER), NoTerms(Player(make_sum_lie(4, 3), OTHER)))


@game("Nobody opens the leaf: both fall at one time, and nobody stands.")
def silent_opening(table: Table) -> None:
    lie = make_lie(4, "logits", 3)
    actors = [
        Only(Player(claim, key), is_no_opening)
        for claim, key in ((make_truth(), SOLVER), (lie, OTHER))
    ]
    play(table, *actors)


@game("Both are silent from the first question on: nobody stands.", solver=lambda: make_lie(4))
def silent_both(table: Table) -> None:
    table.send(bond(table, OTHER, make_truth().log().root))
    play(table, Quiet())


@game("Each of the rival's answers comes at its last moment, without any of its budget.", arity=4)
def drips(table: Table) -> None:
    lie = make_sum_lie(4, 3)
    play(table, Player(make_truth(), SOLVER), Paced(lie, OTHER, "drips"))


@game("Each claim and sub-claim of the rival spends its budget to the last moment.", arity=4)
def stalls(table: Table) -> None:
    lie = make_sum_lie(5, 6)
    play(table, Player(make_truth(), SOLVER), Paced(lie, OTHER, "stalls"))


@game("Like stalls, and a millisecond too late.", arity=4)
def stalls_too_long(table: Table) -> None:
    lie = make_sum_lie(5, 6)
    play(table, Player(make_truth(), SOLVER), Paced(lie, OTHER, "stalls", 0))


@game("Bonds at the last moment of each window, answers at that of each budget.", arity=4)
def late(table: Table) -> None:
    lie = make_sum_lie(5, 6)
    play(table, Paced(make_truth(), SOLVER, "drips"), Paced(lie, OTHER, "late"))


@game(
    "An answer takes what is overdue off a budget, in part: two questions run one clock.",
    arity=2,
    clocks=replace(CLOCKS, budget=90, grace=10, answer=1),
)
def budget(table: Table) -> None:
    lie, other = make_lie(4, element=6), make_lie(7, element=7)

    @dataclass
    class Slow:
        """Answers the second of two questions 25 late, then the first 20 later."""

        player: Player

        def moves(self, game: Game) -> Iterable[SignedMove]:
            found = list(self.player.moves(game))
            if game.round == 0:
                yield from found
            elif game.now >= self.wakes(game):
                yield from found[-1:]

        def wakes(self, game: Game) -> int:
            dues = [list_question(game, about)[2] for about in game.asked]
            return min(dues, default=game.now) + 22

    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), Slow(Player(other, THIRD)))


@game("A sub-claim is silent in two tensors at one time: the lower id gives the place.")
def two_places(table: Table) -> None:
    friend = Player(make_lie(4, "x", 5, loss=0), THIRD)
    liar = Without(Player(make_lie(4), OTHER), tree="chunks")
    play(table, Player(make_truth(), SOLVER), friend, liar)


# many


def make_lie_in_steps(*lies: tuple[int, int]) -> Patched:
    """The truth, but for an element of the prepared samples in each of several steps, and the loss
    of their records: (step, element)."""
    outputs, records = {}, {}
    for step, element in lies:
        place = (step, find_node("x/prepared"))
        outputs[place] = bump(make_truth().tensor(*place), element, 3)
        records[step] = replace(get_record(step), loss=get_record(step).loss + 3)
    return Patched(make_truth(), make_task(), outputs=outputs, records=records)


@game(
    "A claim whose sub-claims were refuted in two contests: of the one that began first counts the "
    "place, though its sub-claim came last.",
    solver=lambda: make_lie_in_steps((1, 27), (2, 30)),
)
def refuted_twice(table: Table) -> None:
    lies = (((1, 27), (2, 30)), ((1, 27), (3, 36)), ((3, 36),))
    keys = (SOLVER, OTHER, THIRD)
    words = np.random.Philox(key=REFUTED_TWICE).random_raw((3, 2000))
    play(
        table,
        *(
            Dripping(Player(make_lie_in_steps(*lie), key), some.tolist())
            for lie, key, some in zip(lies, keys, words, strict=True)
        ),
    )


def make_lies(*steps: int) -> list[Patched]:
    """Lies in these steps."""
    return [make_lie(step, "logits", step % 4) for step in steps]


@game("Four rivals in one group, all of whom play.")
def four(table: Table) -> None:
    rivals = zip(make_lies(2, 4, 8), KEYS[1:], strict=False)
    play(table, Player(make_truth(), SOLVER), *(Player(lie, key) for lie, key in rivals))


@game("Five claims in groups of two: three rounds.", group=2)
def groups_of_two(table: Table) -> None:
    rivals = zip(make_lies(1, 3, 4, 8), KEYS[1:], strict=False)
    play(table, Player(make_truth(), SOLVER), *(Player(lie, key) for lie, key in rivals))


@game("Seven claims in groups of three, of which the made-up ones are silent.", group=3)
def groups_of_three(table: Table) -> None:
    made_up = [Hijacker(bytes([40 * i]) * 32, key, False) for i, key in enumerate(KEYS[2:])]
    play(table, Player(make_truth(), SOLVER), Player(make_lie(4), OTHER), *made_up)


@game("Two claims that differ from the truth first in one record, and in one element.")
def same_element(table: Table) -> None:
    rivals = [make_lie(4, "logits", 1, by, loss=by) for by in (1, 2)]
    players = [Player(lie, key) for lie, key in zip(rivals, KEYS[1:], strict=False)]
    play(table, Player(make_truth(), SOLVER), *players)


@game("Two claims that differ in one output, in different elements and chunks, and one before.")
def same_output(table: Table) -> None:
    rivals = [
        make_lie(4, "x/prepared", 100, loss=1),
        make_lie(4, "x/prepared", 1100, loss=2),
        make_lie(4, "x", 2, loss=3),
    ]
    players = [Player(lie, key) for lie, key in zip(rivals, KEYS[1:], strict=False)]
    play(table, Player(make_truth(), SOLVER), *players)


@game("Three sub-claims of terms on one side, and a rival on the other.", arity=4)
def sub_claims_of_terms(table: Table) -> None:
    lie, log = make_sum_lie(5, 2), make_sum_lie(5, 2).log().root
    folds = [make_sum_lie(5, block, detour=detour) for block, detour in ((4, 3), (6, 0))]
    friends = [Player(fold, key) for fold, key in zip(folds, KEYS[2:], strict=False)]
    assert all(fold.log().root == log for fold in folds)
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), *friends)


@game("States of a fold that are of no length that a state has: they fall when they are reached.")
def malformed_states(table: Table) -> None:
    @dataclass
    class Folded(Patched):
        junk: bytes = b""

        def terms(self, step: int, node: int, element: int) -> MerkleTree:
            tree = super().terms(step, node, element)
            states = [tree.leaf(index) for index in range(tree.size)]
            return MerkleTree(TERMS, [*states[:3], self.junk, *states[4:]])

    lie = make_sum_lie(5, 3)
    bad = [
        Folded(lie.base, lie.task, lie.outputs, lie.records, {}, lie.detours, junk=junk)
        for junk in (b"", bytes(9))
    ]
    friends = [Player(claim, key) for claim, key in zip(bad, KEYS[2:], strict=False)]
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), *friends)


@game("Traces with leaves that are no digests.")
def malformed_traces(table: Table) -> None:
    junk = {(step, node): b"" for step in range(1, 10) for node in (4, 20)}
    lie = make_lie(5, leaves=junk)
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER))


@game("False friends of the true log: two false traces beside the true one, under free bonds.")
def traitors(table: Table) -> None:
    friends = [make_lie(5, "loss/grad", 1, loss=0), make_lie(5, "logits", 1, loss=0)]
    lie = make_lie(5, "logits", 0)
    actors = [Player(friend, key) for friend, key in zip(friends, KEYS[2:], strict=False)]
    play(table, *actors, Player(make_truth(), SOLVER), Player(lie, OTHER))


@game("A false friend is refuted: its sub-claim was free, and it loses the bond of its log.")
def refuted_friend(table: Table) -> None:
    friend, lie = make_lie(5, "loss/grad", 1, loss=0), make_lie(5, "loss/grad", 1, 2)
    actors = Player(friend, THIRD), Player(lie, OTHER), Player(make_truth(), SOLVER)
    play(table, *actors)


@game("One comes to an element when it has been ruled on, and falls as it comes.")
def after_the_ruling(table: Table) -> None:
    first, second = (make_lie(4, "logits", 1, by, loss=by) for by in (1, 2))
    late = Paced(second, THIRD, "drips")
    play(table, Player(make_truth(), SOLVER), Player(first, OTHER), late)


@game("Who backs the true log and each true sub-claim and answers garbage, or nothing.")
def hijackers(table: Table) -> None:
    root = make_truth().log().root
    actors = [
        Sorted(Hijacker(root, key, answers=answers))
        for key, answers in ((THIRD, True), (FOURTH, False))
    ]
    play(table, *actors, Player(make_truth(), SOLVER), Player(make_lie(4), OTHER), refused=12)


@game("Two share the work; one backs everything and does nothing.", solver=lambda: make_lie(4))
def shared_work(table: Table) -> None:
    @dataclass
    class Half:
        player: Player
        log: bool

        def moves(self, game: Game) -> Iterable[SignedMove]:
            for signed in self.player.moves(game):
                question = game.asked.get(signed.about)
                is_log = bool(question) and game.contests[question.where[0][0]].level == "log"  # type: ignore[union-attr]
                if signed.about == game.id or is_log == self.log:
                    yield signed

    truth = make_truth()
    actors: list[Actor] = [
        Half(Player(truth, THIRD), log=True),
        Half(Player(truth, FOURTH), log=False),
        Sorted(Hijacker(truth.log().root, FIFTH, answers=False)),
    ]
    play(table, *actors, Player(make_lie(4), SOLVER), Player(make_lie(8), OTHER))


def make_four() -> Patched:
    return make_lie(4)


@dataclass
class Helper:
    """Backs no log: bonds a sub-claim for the side of a claim that has its record."""

    claim: TraceProvider
    step: int
    key: PrivateKey

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for scope in sorted(set(game.sides.values())):
            contest = game.contests[scope]
            about = compute_side_id(scope, self.claim.log().leaf(self.step - 1))
            if contest.level != "trace" or contest.place.step != self.step:
                continue
            if about not in contest.sides or (scope, public_key(self.key)) in game.stands:
                continue
            tree = self.claim.trace(self.step)
            at = contest.size - game.genesis.nodes + game.genesis.record_node
            yield sign(game.id, about, Bond(tree.root, tree.leaf(at), tree.path(at)), self.key)


@game("Who backs no log bonds sub-claims for both sides, at the price of one; the true one earns.")
def helpers(table: Table) -> None:
    lie = make_lie(4, "logits", 1)
    helper, false = Helper(make_truth(), 4, THIRD), Helper(make_lie(4, "x"), 4, FOURTH)
    silent = [
        Only(Player(claim, key), is_no_sub_claim)
        for claim, key in ((lie, OTHER), (make_truth(), SOLVER))
    ]
    answer = Player(make_truth(), FIFTH)
    play(table, helper, false, *silent, answer)


@game(
    "Two sub-claims are left for what stands: work below pays nobody.", solver=lambda: make_lie(5)
)
def two_left(table: Table) -> None:
    friend = make_lie(5, "loss/grad", 1, loss=0)
    actors: list[Actor] = [
        Only(Player(friend, THIRD), is_bond),
        Sorted(Hijacker(make_lie(2).log().root, FOURTH, answers=False)),
        Only(Player(make_lie(5), SOLVER), lambda move: isinstance(move, Reveal)),
    ]
    play(table, *actors, Player(make_truth(), OTHER))


@game(
    "A claim that is alone in its group, the others silent: nobody worked, the pot is nobody's.",
    group=2,
)
def nobody_worked(table: Table) -> None:
    for root, key in ((bytes(32), OTHER), (b"\xff" * 32, THIRD)):
        table.send(bond(table, key, root))
    play(table, Quiet())


def add_silent_friends(table: Table, *friends: Actor) -> None:
    """Have the author of a false log make no sub-claim, and others those that they have."""
    author = Only(Player(make_lie(4), OTHER), is_no_sub_claim)
    play(table, Player(make_truth(), SOLVER), author, *friends)


@game("Two sub-claims fell, none of the author's: that which was refuted says why, not the first.")
def refuted_first(table: Table) -> None:
    silent = Without(Player(make_lie(4, "x", 9), THIRD), "trace")
    add_silent_friends(table, silent, Player(make_lie(4, "logits", 2), FOURTH))


@game("Two sub-claims were refuted, none of the author's: the first that came says why.")
def first_of_two(table: Table) -> None:
    friends = (Player(make_lie(4, "x", 9), THIRD), Player(make_lie(4, "logits", 2), FOURTH))
    add_silent_friends(table, *friends)


@game("The solver bonds the true sub-claim, and its claim falls: no pay.", solver=make_four)
def solver_helps(table: Table) -> None:
    liar, honest = Player(make_lie(4), FOURTH), Player(make_truth(), OTHER)
    play(table, Helper(make_truth(), 4, SOLVER), liar, honest)


@game(
    "A pot of less than there are parties to share it: they get nothing, and are in the list.",
    solver=make_four,
    bonds=Bonds(log=1, trace=1, terms=1),
)
def small_pot(table: Table) -> None:
    false = Only(Player(make_lie(8), FOURTH), is_no_sub_claim)
    share = Only(Player(make_truth(), OTHER), is_no_sub_claim)
    play(table, Player(make_lie(4), SOLVER), share, Player(make_truth(), THIRD), false)


@game(
    "The genesis asks nothing for a sub-claim of a trace: whose is refuted has lied, free or not.",
    bonds=replace(BONDS, trace=0),
)
def bonds_of_nothing(table: Table) -> None:
    lie = make_lie(4)
    table.send(bond(table, THIRD, make_truth().log().root))
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), Helper(lie, 4, THIRD))


@dataclass
class If:
    """Makes the moves that are allowed."""

    actor: Actor
    allows: Callable[[Game, SignedMove], bool]

    def moves(self, game: Game) -> Iterator[SignedMove]:
        return (signed for signed in self.actor.moves(game) if self.allows(game, signed))


@game(
    "Shares stand in the order of the first work that is one's own: a sub-claim beside a false "
    "one, which pays nobody, comes before both.",
    arity=2,
)
def order_of_shares(table: Table) -> None:
    early, late, truth = make_lie(4, "logits", 1), make_lie(8, "logits", 2), make_truth()

    def find_start(game: Game, signed: SignedMove) -> int:
        """Of what is asked about the log; -1 for any other move."""
        question = game.asked.get(signed.about)
        if question is None or game.contests[question.where[0][0]].level != "log":
            return -1
        contest, dispute = question.where[0]
        return game.contests[contest].disputes[dispute].start

    def has_traced(game: Game) -> bool:
        return any(party == public_key(FIFTH) and at != game.id for at, party in game.stands)

    def first(game: Game, signed: SignedMove) -> bool:
        return signed.about == game.id or 0 <= find_start(game, signed) < 4

    def second(game: Game, signed: SignedMove) -> bool:
        return signed.about == game.id or (find_start(game, signed) == 4 and has_traced(game))

    def third(game: Game, signed: SignedMove) -> bool:
        return find_start(game, signed) in (-1, 6)

    play(
        table,
        Helper(make_lie(4, "loss/grad", 1, loss=0), 4, FOURTH),
        Only(Player(early, OTHER), is_no_sub_claim),
        Only(Player(late, THIRD), is_no_sub_claim),
        If(Player(truth, SOLVER), first),
        If(Player(truth, SIXTH), second),
        If(Player(truth, FIFTH), third),
    )


# who comes later


@dataclass
class Spoiled:
    """Two false logs that are true but for a leaf that is no record, which makes both fall as soon
    as the second answers: it begins to at a time."""

    begin: int = OPENED + CLOCKS.join + 20

    def make(self) -> tuple[Player, Busy]:
        first, second = (
            Player(Patched(make_truth(), make_task(), records={8: junk}), key)
            for junk, key in ((b"one", THIRD), (b"other", FOURTH))
        )
        return first, Busy(second, self.begin)


@game("What fell with others is claimed anew, by one who comes to the side later.")
def claimed_anew(table: Table) -> None:
    # The friend's log is true up to step 7: it comes to the side of the true record, and has the
    # true trace there.
    friend, accomplice = Spoiled().make()
    liar = Player(make_lie(3, "logits", 1), OTHER)
    honest = Paced(make_truth(), SOLVER, "drips")
    play(table, liar, friend, accomplice, honest)


@game("What fell with others gives no reason: who comes to the side and bonds nothing falls so.")
def moot_before(table: Table) -> None:
    friend, accomplice = Spoiled().make()
    liar = Player(make_lie(3, "logits", 1), OTHER)
    honest = Paced(make_truth(), SOLVER, "drips", shallow=True)
    play(table, liar, friend, accomplice, honest)


@game(
    "A sub-claim of no price falls with all that it stood for: its party has not lied.",
    bonds=replace(BONDS, trace=0),
)
def moot_is_no_lie(table: Table) -> None:
    first, second = make_lie(3, "logits", 1), make_lie(3, "logits", 1)
    for lie, junk in ((first, b"one"), (second, b"other")):
        lie.records = {**lie.records, 8: junk}
    table.send(bond(table, FIFTH, make_truth().log().root))
    accomplice = Busy(Player(second, FOURTH), Spoiled().begin)
    honest = Without(Player(make_truth(), SOLVER), "trace")
    play(table, Player(first, THIRD), accomplice, Helper(first, 3, FIFTH), honest)


@game("A bond behind a side is free only behind a claim that lives.")
def free_no_more(table: Table) -> None:
    friend, accomplice = Spoiled().make()
    liar, honest = Player(make_lie(3, "logits", 1), OTHER), Player(make_truth(), SOLVER)
    actors = liar, Only(friend, is_no_sub_claim), accomplice, honest
    until = OPENED + CLOCKS.join + 40
    play(table, *actors, until=until)
    (signed,) = Helper(make_truth(), 3, THIRD).moves(table.game)
    table.send(signed)
    play(table, *actors)


@game(
    "Claims come to a side later: it has a window anew, and its sub-claims more time.",
    clocks=replace(CLOCKS, budget=50, grace=200, trace=200, replay=0),
)
def whole_budgets(table: Table) -> None:
    liar, friend = Player(make_lie(3, "logits", 1), OTHER), Player(make_lie(8), THIRD)
    play(
        table,
        Without(liar, "trace"),
        Without(friend, "trace"),
        Paced(make_truth(), SOLVER, "stalls"),
    )


@dataclass
class Once:
    """Answers about a trace once, at a time, and never again."""

    player: Player
    at: int
    done: bool = False

    def moves(self, game: Game) -> Iterable[SignedMove]:
        yield from Without(self.player, "trace").moves(game)
        if game.now >= self.at and not self.done:
            self.done = True
            yield from list(self.player.moves(game))[:1]

    def wakes(self, game: Game) -> int | None:
        return None if self.done else self.at


@game(
    "The same, where part of their budgets is spent: they have it back.",
    clocks=replace(CLOCKS, trace=60, replay=0),
)
def spent_budgets(table: Table) -> None:
    liar = Player(make_lie(3, "logits", 1), OTHER)
    friend = Once(Player(make_lie(8), THIRD), OPENED + CLOCKS.join + 400)
    honest = Paced(make_truth(), SOLVER, "stalls")
    play(table, liar, friend, honest)


@game(
    "Who traces one interval after another: what is asked about a tensor is due later.",
    clocks=replace(CLOCKS, trace=60, replay=200, terms=30),
)
def replays(table: Table) -> None:
    rivals = (make_sum_lie(4, 2), make_lie(8, "x", 300))
    players = [Player(lie, key) for lie, key in zip(rivals, KEYS[1:], strict=False)]
    play(table, Paced(make_truth(), SOLVER, "drips"), *players)


@dataclass
class SlowTrace:
    """Answers about traces from a time on."""

    player: Player
    begin: int

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for signed in self.player.moves(game):
            question = game.asked.get(signed.about)
            is_trace = question and game.contests[question.where[0][0]].level == "trace"
            if not is_trace or game.now >= self.begin:
                yield signed

    def wakes(self, game: Game) -> int | None:
        return self.begin


@game(
    "A claim comes to a tensor about which another was asked before: what is due stays due then.",
    clocks=replace(CLOCKS, replay=400, trace=800),
)
def late_at_the_tensor(table: Table) -> None:
    silent = Without(Player(make_lie(4, "x/prepared", 100, loss=1), OTHER), tree="chunks")
    slow = SlowTrace(Player(make_lie(4, "x/prepared", 1100, loss=2), THIRD), LATE)
    play(table, Player(make_truth(), SOLVER), silent, slow)


# what no round goes on to ask, and what windows and clocks leave to be decided


@game(
    "A round ends while two sub-claims of terms are asked, whose side has no rival left: nobody "
    "answers for them any more, and they do not fall. What lived in a past round may be backed.",
    group=2,
)
def past_round(table: Table) -> None:
    lie, other = make_sum_lie(4, 3), make_lie(8, loss=3)
    friend = make_sum_lie(4, 2, 7)
    assert friend.log().root == lie.log().root
    made_up = b"\xff" * 32
    players = Player(lie, OTHER), Player(friend, FIFTH)
    table.send(bond(table, FOURTH, made_up))
    silent = [Without(player, "terms") for player in players]

    def has_no_terms(game: Game, signed: SignedMove) -> bool:
        scope = game.sides.get(signed.about)
        return scope is None or game.contests[scope].level != "terms"

    honest = If(Player(make_truth(), SOLVER), has_no_terms)
    play(table, *silent, honest, Player(other, THIRD), until=OPENED + CLOCKS.join + 900)
    answers = [
        signed
        for player in players
        for signed in player.moves(table.game)
        if signed.about in table.game.asked
    ]
    assert len(answers) == 2
    while table.game.round == 1:
        due = find_deadline(table.game)
        assert due is not None
        table.wait(due)
    assert not table.game.over
    for signed in answers:
        table.send(signed)
    table.send(sign_bytes(table, answers[0].about, answers[0].move, STRANGER))
    contest = next(c for c in table.game.contests.values() if c.level == "terms")
    lives, side = contest.claims[0].root, contest.claims[0].side
    table.send(sign(table.game.id, side, Bond(lives, b"", ()), SIXTH))
    table.send(sign(table.game.id, side, Bond(bytes(32), b"", ()), STRANGER))
    play(table, *(Only(player, is_no_sub_claim) for player in players), Player(other, THIRD))


def find_closes(table: Table) -> int:
    """When the last window of all ends."""
    closes: int = max(closes for _, closes in list_sides(table.game))
    return closes


def send_all(table: Table, actor: Actor, at: int) -> None:
    """Have someone make all moves there are, at a time."""
    while True:
        sent = list(actor.moves(table.game))
        for signed in sent:
            table.send(signed, at)
        if not sent:
            return


@game(
    "An opening at the very end of a window leaves a side without a sub-claim. The window is over "
    "for no move at that time: the side stands, and another's sub-claim comes to it; but for one "
    "that is later."
)
def end_of_a_window(table: Table) -> None:
    honest, liar = Player(make_truth(), SOLVER), Player(make_lie(4), OTHER)
    until = OPENED + CLOCKS.join + 100
    play(table, Only(honest, is_no_opening), Only(liar, is_no_opening), until=until)
    ends = find_closes(table)
    send_all(table, honest, ends)
    for node, key, at in (("x", FIFTH, ends), ("p", SIXTH, ends + 1)):
        for signed in Helper(make_lie(4, node), 4, key).moves(table.game):
            table.send(signed, at)
    play(table, honest)


def has_level(level: str) -> Callable[[Game, SignedMove], bool]:
    """Is a move a bond of that level?"""

    def check(game: Game, signed: SignedMove) -> bool:
        scope = game.sides.get(signed.about)
        return scope is not None and game.contests[scope].level == level

    return check


def leaves_out(level: str) -> Callable[[Game, SignedMove], bool]:
    """Is a move no bond of that level?"""
    has = has_level(level)
    return lambda game, signed: not has(game, signed)


@game(
    "A sub-claim falls as its windows for terms end, at which time the new window of its own side "
    "ends too: that is over, and the claim falls then."
)
def windows_at_one_time(table: Table) -> None:
    lie = make_sum_lie(4, 3)
    late = make_record_lie(8, loss=9)
    late.records = {**late.records, **lie.records}
    honest = Player(make_truth(), SOLVER)
    liar = If(Player(lie, OTHER), leaves_out("terms"))
    table.send(bond(table, THIRD, late.log().root))
    play(table, honest, liar, until=OPENED + CLOCKS.join + 100)
    ends = find_closes(table)
    at = ends - CLOCKS.trace - CLOCKS.replay
    send_all(table, Only(Player(late, THIRD), is_no_sub_claim), at)
    assert {closes for _, closes in list_sides(table.game)} > {ends}
    play(table, honest, liar)


@game(
    "Whose windows end last falls, and its side has none any more; what others are asked is due no "
    "earlier. Then one comes to a side, whose new window ends before that: its sub-claims have "
    "the time all the same.",
    clocks=replace(CLOCKS, replay=100),
)
def last_window(table: Table) -> None:
    lie, late = make_lie_in_steps((4, 1)), make_lie_in_steps((4, 1), (8, 2))
    gone = [
        Patched(
            make_truth(),
            make_task(),
            records={4: replace(get_record(4), loss=9), 8: junk},
        )
        for junk in (b"one", b"other")
    ]
    for claim, key in zip((late, *gone), (THIRD, FOURTH, FIFTH), strict=True):
        table.send(bond(table, key, claim.log().root))
    honest, liar = Player(make_truth(), SOLVER), Without(Player(lie, OTHER), "trace")
    until = OPENED + CLOCKS.join + 400
    play(table, honest, liar, until=until)
    ends = find_closes(table)
    for claim, key, at in zip((*gone, late), (FOURTH, FIFTH, THIRD), (0, 100, 110), strict=True):
        for signed in Only(Player(claim, key), is_no_sub_claim).moves(table.game):
            table.send(signed, until + at)
    assert ends < find_closes(table)
    send_all(table, Helper(make_lie(4, "x", 5, loss=3), 4, SIXTH), until + 120)
    play(table, honest, liar)


@game("Who paid for a sub-claim that was refuted keeps the bond of the log, which stands.")
def paid_for(table: Table) -> None:
    lie = make_lie(4)
    table.send(bond(table, THIRD, make_truth().log().root))
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), Helper(lie, 4, THIRD))


@game(
    "What is due at the very time at which a budget is spent is overdue then: its dispute, of the "
    "lower id, gives the place."
)
def overdue_at_once(table: Table) -> None:
    friend = Player(make_lie(4, "x", 5, loss=0), THIRD)
    honest = Player(make_truth(), SOLVER)
    liar = Without(Player(make_lie(4, loss=2), OTHER), tree="chunks")
    play(table, honest, liar, Only(friend, is_bond), until=OPENED + CLOCKS.join + 200)
    first = max(list_question(table.game, about)[2] for about in table.game.asked)
    spent = first + CLOCKS.budget
    at = spent - 2 * CLOCKS.replay - CLOCKS.grace - 5 * CLOCKS.answer
    play(table, honest, liar, until=at)
    for actor in (friend, liar, friend):
        for signed in list(actor.moves(table.game)):
            table.send(signed, at)
    dues = {list_question(table.game, about)[2] for about in table.game.asked}
    assert dues == {first, spent}
    play(table, honest, liar, friend)


@game(
    "A claim is left without sub-claims in two contests: malformed in the first that began, "
    "refuted in the other. That says why."
)
def refuted_later(table: Table) -> None:
    lie, rival = make_lie_in_steps((1, 27), (5, 30)), make_lie_in_steps((1, 27), (8, 36))
    lie.leaves = {(1, 4): b""}

    def is_about_the_second(game: Game, signed: SignedMove) -> bool:
        scope = game.sides.get(signed.about)
        return scope is None or game.contests[scope].place.step == 5

    second = If(Player(rival, THIRD), is_about_the_second)
    play(table, Player(make_truth(), SOLVER), Player(lie, OTHER), second)


@game(
    "A sub-claim fell since nobody answered for it any more. One comes to its side later, and in "
    "the new window another claims it anew: what was answered for it before counts.",
    arity=4,
    clocks=replace(CLOCKS, budget=1, grace=200, trace=30, replay=0),
)
def silent_anew(table: Table) -> None:
    lie, late, truth = make_lie(3), make_lie(4), make_truth()
    friend = make_lie(3, "x", 5, loss=0)
    honest, liar = Player(truth, SOLVER), Player(lie, OTHER)
    table.send(bond(table, FIFTH, truth.log().root))
    others = Without(Player(friend, FOURTH), opens=False), Paced(late, THIRD, "drips", shallow=True)
    silent, waiting = (Without(player, "trace", opens=False) for player in (honest, liar))
    play(table, silent, waiting, *others, until=OPENED + CLOCKS.join + 10)
    for player in (honest, liar):
        table.send(next(iter(player.moves(table.game))))
    slow = SlowTrace(Without(liar, opens=False), OPENED + CLOCKS.join + 240)  # type: ignore[arg-type]
    play(table, silent, slow, *others, until=OPENED + CLOCKS.join + 300)
    (contest,) = (c for c in table.game.contests.values() if c.level == "trace")
    assert [c.root for c in contest.claims if c.fall is not None] == [truth.trace(3).root]
    play(table, silent, slow, *others, Player(truth, FIFTH))


def get_dispute(table: Table, about: bytes) -> Dispute:
    """The first dispute that waits for an answer."""
    contest, dispute = table.game.asked[about].where[0]
    return table.game.contests[contest].disputes[dispute]


@game(
    "Who backs what has fallen may open, where what stands there still is asked too; and opens "
    "under the terms, the trace and the log that have fallen."
)
def opened_by_the_fallen(table: Table) -> None:
    lie = make_sum_lie(4, 3)
    # The state after block 3 is that of the lie which stands, what comes later is not.
    detour = (0, 0, 0, 5, 7, 7, 7, 7)
    gone, other = (make_lie(4, "p/sum", 4, 7, loss=2, detour=detour) for _ in range(2))
    for claim, junk in ((gone, b"one"), (other, b"other")):
        claim.records = {**claim.records, 8: junk}
    table.send(bond(table, FOURTH, other.log().root))
    fallen = Player(gone, THIRD)
    players = Player(make_truth(), SOLVER), Player(lie, OTHER), fallen
    actors = [Only(player, is_no_opening) for player in players]
    play(table, *actors, until=OPENED + CLOCKS.join + 100)
    (opening,) = (
        signed
        for signed in fallen.moves(table.game)
        if get_dispute(table, signed.about).place.block == 3
    )
    (answer,) = Player(other, FOURTH).moves(table.game)
    table.send(answer)
    assert {c.fall.reason for k in table.game.contests.values() for c in k.claims if c.fall} == {
        "malformed",
        "moot",
    }
    table.send(opening)
    play(table, *players)


def make_logs(*logs: Mapping[int, bytes | int]) -> list[Patched]:
    """The truth, but for records of the log: other bytes, or with so much more loss."""
    return [
        Patched(
            make_truth(),
            make_task(),
            records={
                step: more
                if isinstance(more, bytes)
                else replace(get_record(step), loss=get_record(step).loss + more)
                for step, more in log.items()
            },
        )
        for log in logs
    ]


def find_answer(table: Table, player: Player, start: int, end: int) -> SignedMove:
    """A player's answer about these leaves."""
    (signed,) = (
        signed
        for signed in player.moves(table.game)
        if signed.about in table.game.asked
        and (dispute := get_dispute(table, signed.about)).start == start
        and dispute.end == end
    )
    return signed


def reveal(table: Table, player: Player, start: int, end: int) -> None:
    """Answer what is asked about these leaves."""
    assert table.send(find_answer(table, player, start, end))


@game(
    "Two disputes wait for one fact, the first for a claim that falls: the answer counts by the "
    "second.",
    arity=4,
)
def waited_for_twice(table: Table) -> None:
    lies = make_logs({1: 1}, {1: 1, 6: 1}, {6: 2})
    first, second, third = (Player(lie, key) for lie, key in zip(lies, KEYS[1:], strict=False))
    honest = Player(make_truth(), SOLVER)
    play(table, first, second, third, honest, until=OPENED + CLOCKS.join + 1)
    for player in (first, second, honest, third):
        reveal(table, player, 0, STEPS)
    play(table, honest)


@game(
    "Who backs what has fallen answers for those who have the same. What is under a hash becomes "
    "known elsewhere while nobody asks for it in a dispute; then one comes for whom it is needed: "
    "it is not asked for, and the newcomer falls, but has had a window by then.",
    arity=4,
)
def known_by_now(table: Table) -> None:
    logs = make_logs(
        {1: 1},
        {1: 1, 6: 2, 9: b"one"},
        {1: 1, 6: 2, 9: b"other"},
        {6: b"none"},
        {1: 1, 6: b"none"},
    )
    players = [Player(log, key) for log, key in zip(logs, KEYS[1:], strict=False)]
    first, second, third, fourth, fifth = players
    honest = Player(make_truth(), SOLVER)
    assert make_truth().log().root < logs[0].log().root
    play(table, *players, honest, until=OPENED + CLOCKS.join + 1)
    for player in (first, second, honest):
        reveal(table, player, 0, STEPS)
    answer = find_answer(table, second, 0, 4)
    reveal(table, third, 0, STEPS)
    assert table.game.logs[logs[1].log().root].fall is not None
    assert table.send(answer)
    reveal(table, honest, 0, 4)
    reveal(table, fourth, 0, STEPS)
    for player in (honest, fourth):
        reveal(table, player, 4, 8)
    table.wait(OPENED + CLOCKS.join + 300)
    reveal(table, fifth, 0, STEPS)
    play(table, honest)


def make_trace_lie(outputs: Mapping[tuple[int, str], Array], step: int, loss: int) -> Patched:
    """The truth, but for outputs by step and node, and the loss of the record of ``step``."""
    false = {(at, find_node(name)): value for (at, name), value in outputs.items()}
    record = get_record(step)
    records = {step: replace(record, loss=record.loss + loss)}
    return Patched(make_truth(), make_task(), outputs=false, records=records)


@game(
    "Two steps of two false traces put out the same, which is asked for in two disputes. The first "
    "that waited is first: where the traces part there is asked what is asked before the other "
    "falls, at an element that was ruled on."
)
def order_of_waiting(table: Table) -> None:
    true = make_truth().tensor(5, find_node("logits"))
    false = bump(true, 0, 2)
    lie = make_trace_lie({(5, "logits"): bump(true, 0)}, 6, 1)
    honest, liar = Player(make_truth(), SOLVER), Player(lie, OTHER)
    play(table, honest, liar, until=OPENED + CLOCKS.join + 50)
    friends = [
        Player(make_trace_lie({(step, "logits"): false}, 6, 1), key)
        for step, key in ((4, THIRD), (5, FOURTH))
    ]
    for friend in friends:
        send_all(table, If(friend, has_level("trace")), table.game.now + 1)
    play(table, honest, *friends)


@game(
    "What is touched again keeps its place: one comes to an element where it has a window by the "
    "time it falls at another, that was ruled on; the first is touched again as a third falls.",
    arity=64,
)
def kept_place(table: Table) -> None:
    lie = make_sum_lie(4, 3)
    logits = bump(make_truth().tensor(4, find_node("logits")), 0)
    other = make_trace_lie({(4, "logits"): logits}, 4, 2)
    grad = bump(make_truth().tensor(4, find_node("loss/grad")), 0)
    late = make_trace_lie({(4, "logits"): logits, (4, "loss/grad"): grad}, 4, 2)
    malformed = Patched(make_truth(), make_task(), leaves={(4, find_node("f")): b""})
    honest, liar, third = Player(make_truth(), SOLVER), Player(lie, OTHER), Player(other, THIRD)
    for player, claim in ((FOURTH, make_truth()), (FIFTH, other)):
        table.send(bond(table, player, claim.log().root))
    actors = [If(player, leaves_out("terms")) for player in (honest, liar)]
    play(table, *actors, third, until=OPENED + CLOCKS.join + 50)
    friend = Player(malformed, FOURTH)
    play(table, *actors, third, friend, until=OPENED + CLOCKS.join + 100)
    last = Player(late, FIFTH)
    play(table, *actors, third, friend, Only(last, is_bond), until=OPENED + CLOCKS.join + 800)
    for signed in list(last.moves(table.game)):
        table.send(signed)
    play(table, honest)


# refusals


@game("Bonds that are refused, each for a reason of its own, and some that are not.")
def bonds(table: Table) -> None:
    truth, lie, id_ = make_truth().log().root, make_lie(4).log().root, table.game.id
    good = bond(table, OTHER, lie)
    table.send(replace(good, signature=bytes(64)))
    table.send(replace(good, signature=good.signature[:63] + b"\0"))
    table.send(replace(good, party=public_key(THIRD)))
    table.send(replace(good, game=b"g" * 32))
    table.send(replace(good, about=b"a" * 32))
    table.send(sign(id_, id_, Bond(lie, b"leaf", ()), OTHER))
    table.send(sign(id_, id_, Bond(lie, b"", (lie,)), OTHER))
    table.send(sign(id_, id_, Reveal((lie,)), OTHER))
    table.send(sign(id_, id_, Open(lie, lie, (), (), None, None, None, None), OTHER))
    for noise in (b"", b"\xff", good.move + b"\0", good.move[:-1], b"\xa0"):
        table.send(sign_bytes(table, id_, noise, OTHER))
    table.send(sign_bytes(table, id_, b"x" * (MAX_BOND + 1), OTHER))
    table.send(bond(table, SOLVER, truth))  # the solver stands behind its own claim already
    table.send(good)
    table.send(good)
    table.send(bond(table, OTHER, truth))
    table.send(bond(table, THIRD, lie))
    table.send(bond(table, FOURTH, truth))
    table.send(bond(table, FIFTH, truth), table.game.now)
    table.send(bond(table, SIXTH, b"j" * 32), table.game.now - 1)
    table.send(bond(table, SIXTH, b"j" * 32), OPENED + CLOCKS.join)
    table.send(bond(table, STRANGER, b"k" * 32), OPENED + CLOCKS.join + 1)
    table.send(bond(table, STRANGER, lie))  # it stands, so that anyone may back it
    play(table, Player(make_truth(), SOLVER), until=OPENED + CLOCKS.join + 700)
    table.send(bond(table, make_key(8), lie))
    play(table, Quiet())
    table.send(bond(table, make_key(8), truth))
    table.send(good, OPENED)


def sign_bytes(table: Table, about: bytes, data: bytes, key: PrivateKey) -> SignedMove:
    """A move of any bytes, signed."""
    unsigned = SignedMove(table.game.id, public_key(key), about, data, bytes(64))
    return replace(unsigned, signature=key.sign(compute_move_digest(unsigned)))


@game("Answers and sub-claims that are refused, each for a reason of its own.", arity=4)
def answers_and_sub_claims(table: Table) -> None:
    truth, lie = make_truth(), make_sum_lie(5, 3)
    honest, liar = Player(truth, SOLVER), Player(lie, OTHER)
    table.send(next(iter(liar.moves(table.game))))
    table.send(bond(table, SIXTH, make_lie(9).log().root))
    table.wait(OPENED + CLOCKS.join + 1)
    first = next(iter(honest.moves(table.game)))
    move = decode_move(first.move)
    assert isinstance(move, Reveal)
    table.send(replace(first, party=public_key(OTHER)))
    id_ = table.game.id
    table.send(sign(id_, first.about, move, OTHER))  # it is asked of the others
    table.send(sign(id_, first.about, move, STRANGER))
    table.send(sign(id_, first.about, Bond(b"b" * 32, b"", ()), SOLVER))
    table.send(sign(id_, first.about, Open(id_, id_, (), (), None, None, None, None), SOLVER))
    short = Reveal(move.items[:-1])
    table.send(sign(id_, first.about, short, SOLVER))
    table.send(sign(id_, first.about, Reveal((b"x", *move.items[1:])), SOLVER))
    table.send(sign(id_, first.about, Reveal((bytes(32), *move.items[1:])), SOLVER))
    limit = table.game.asked[first.about].limit
    table.send(sign_bytes(table, first.about, bytes(limit), SOLVER))
    table.send(sign_bytes(table, first.about, bytes(limit + 1), SOLVER))
    table.send(first)
    table.send(first)
    while not table.game.sides:
        for player in (honest, liar):
            for signed in list(player.moves(table.game)):
                table.send(signed)
    # The sides are open: what is bound to no record, to that of the other side, or to no tree.
    good, false = (next(iter(player.moves(table.game))) for player in (honest, liar))
    true_move, false_move = decode_move(good.move), decode_move(false.move)
    assert isinstance(true_move, Bond)
    assert isinstance(false_move, Bond)
    table.send(sign(id_, good.about, false_move, SOLVER))
    table.send(sign(id_, good.about, replace(true_move, leaf=bytes(32)), SOLVER))
    table.send(sign(id_, good.about, replace(true_move, path=true_move.path[1:]), SOLVER))
    table.send(sign(id_, good.about, replace(true_move, root=bytes(32)), SOLVER))
    table.send(sign(id_, good.about, Reveal(()), SOLVER))
    table.send(good)
    table.send(sign(id_, false.about, true_move, OTHER))  # it supports the other side
    table.send(sign(id_, good.about, replace(true_move, leaf=b"", path=()), THIRD))
    table.send(sign(id_, good.about, replace(true_move, root=bytes(32)), THIRD))
    table.send(false)
    play(table, honest, liar, until=table.game.now + 700)
    level = {found.level for found in table.game.contests.values()}
    assert "terms" in level or table.game.over, level
    play(table, honest, liar, Player(make_truth(), FOURTH), refused=2)


@game("Bonds behind what has fallen, and behind what stands where windows are over.")
def fallen(table: Table) -> None:
    truth, lie, junk = make_truth(), make_lie(4), make_record_lie(6, state_root=b"")
    honest, liar, clown = Player(truth, SOLVER), Player(lie, OTHER), Player(junk, THIRD)
    slow = Player(make_lie(8), FOURTH)
    at = OPENED + CLOCKS.join + 30
    play(table, honest, liar, clown, Busy(slow, at + 500), until=at)
    assert table.game.logs[junk.log().root].fall is not None
    assert len(table.game.sides) == 2
    table.send(bond(table, STRANGER, junk.log().root))
    (scope,) = set(table.game.sides.values())
    true_side, false_side = (compute_side_id(scope, claim.log().leaf(3)) for claim in (truth, lie))
    tree = lie.trace(4)
    at_record = tree.size - 1
    again = Bond(tree.root, tree.leaf(at_record), tree.path(at_record))
    table.send(sign(table.game.id, false_side, again, STRANGER))  # it was refuted
    play(table, honest, liar, Busy(slow, at + 500), until=at + 640)
    other = make_lie(4, "p").trace(4)
    new = Bond(other.root, other.leaf(at_record), other.path(at_record))
    table.send(sign(table.game.id, true_side, Bond(truth.trace(4).root, b"", ()), STRANGER))
    play(table, honest, liar, slow, until=at + 900)
    table.send(sign(table.game.id, true_side, new, FIFTH))
    table.send(sign(table.game.id, false_side, again, SIXTH))
    play(table, honest, liar, slow)


@game("A sub-claim of terms, and openings, that are refused; the referee's places.", arity=4)
def openings(table: Table) -> None:
    truth, lie = make_truth(), make_sum_lie(5, 3)
    honest, liar = Player(truth, SOLVER), Player(lie, OTHER)

    def is_leaf(game: Game) -> bool:
        return any(not question.value for question in game.asked.values())

    tried = False
    while not is_leaf(table.game):
        sent = [signed for player in (honest, liar) for signed in player.moves(table.game)]
        for signed in sent:
            scope = table.game.sides.get(signed.about)
            move = decode_move(signed.move)
            at_terms = scope is not None and table.game.contests[scope].level == "terms"
            if at_terms and not tried and isinstance(move, Bond):
                tried = True
                other = replace(move, leaf=bytes(8))
                key = SOLVER if signed.party == honest.party else OTHER
                table.send(sign(table.game.id, signed.about, other, key))
            table.send(signed)
        if not sent:
            due = find_deadline(table.game)
            assert due is not None
            table.wait(due)
    ((about, _),) = ((about, q) for about, q in table.game.asked.items() if not q.value)
    (good,) = (signed for signed in honest.moves(table.game) if signed.about == about)
    opening = decode_move(good.move)
    assert isinstance(opening, Open)
    assert opening.before is not None
    before = opening.before
    first = opening.inputs[0]
    chunk = first.chunks[0]
    record = Member(truth.log().leaf(2), 2, STEPS, truth.log().path(2))
    for false in (
        replace(opening, before=None),
        replace(opening, terms=None),
        replace(opening, terms=b"t" * 32),
        replace(opening, before=replace(before, index=before.index + 1)),
        replace(opening, before=replace(before, data=bytes(8))),
        replace(opening, trace=b"t" * 32),
        replace(opening, log=b"t" * 32),
        replace(opening, base=Member(b"", 2, STEPS, ())),
        replace(opening, base=replace(record, index=1)),
        replace(opening, inputs=()),
        replace(opening, inputs=(replace(first, path=()),)),
        replace(opening, inputs=(replace(first, chunks=(replace(chunk, chunk=bytes(1024)),)),)),
        replace(opening, inputs=(replace(first, chunks=(chunk, chunk)),)),
        replace(opening, inputs=(replace(first, chunks=(replace(chunk, chunk=b""),) * 33),)),
    ):
        table.send(sign(table.game.id, about, false, SOLVER))
    table.send(sign(table.game.id, about, opening, STRANGER))
    table.send(sign(table.game.id, about, Reveal(()), SOLVER))
    # A base that nothing reads may be opened; that it is one is looked at all the same.
    table.send(sign(table.game.id, about, replace(opening, base=record), OTHER))
    table.send(good)
    play(table, honest, liar)


# about windows of tokens


@cache
def make_language_truth() -> EngineProvider:
    """The true claim, by the law alone."""
    return EngineProvider(make_language_task(), LyingSession(make_language_task(), Lies()))


@cache
def find_language_node(name: str) -> int:
    """Index of the node of this name."""
    return [node.name for node in make_language_task().graph.nodes].index(name)


def get_windows() -> Windows:
    """How the samples lie in the file."""
    windows = make_language_task().samples.spec.windows
    assert windows is not None
    return windows


def get_language_record(step: int) -> StepRecord:
    """The true record of a step."""
    return decode_record(make_language_truth().log().leaf(step - 1))


def find_places(step: int, part: str) -> list[int]:
    """Which token of the file each element of x or y of a step is."""
    index = make_language_truth().tensor(step, find_language_node("sample_index"))
    places = [get_windows().find_token(part, int(i), at) for i in index for at in range(CONTEXT)]
    assert None not in places
    return [place for place in places if place is not None]


def find_chunk(place: int) -> int:
    """The chunk of the file that a token lies in."""
    return place * get_windows().width // 1024


def make_language_lie(step: int, outputs: Mapping[str, Array | bytes], *, loss: int = 1) -> Patched:
    """The truth, but for outputs of nodes in a step, and for the loss of that step's record."""
    record = get_language_record(step)
    false = {(step, find_language_node(name)): value for name, value in outputs.items()}
    records = {step: replace(record, loss=record.loss + loss)}
    return Patched(make_language_truth(), make_language_task(), false, records)


def make_token_lie(step: int, part: str, element: int, by: int = 1) -> Patched:
    """The truth, but for one token of a window."""
    value = make_language_truth().tensor(step, find_language_node(part))
    return make_language_lie(step, {part: bump(value, element, by)})


def find_late_token(step: int) -> int:
    """An element in the second chunk of x, whose token lies in the last chunk of the file."""
    places = find_places(step, "x")
    last = find_chunk(get_windows().tokens - 1)
    return next(i for i, at in enumerate(places) if i >= 256 and find_chunk(at) == last)


def find_parted_label(step: int) -> int:
    """A label in another chunk of the file than its token."""
    pairs = zip(find_places(step, "x"), find_places(step, "y"), strict=True)
    return next(i for i, (x, y) in enumerate(pairs) if find_chunk(x) != find_chunk(y))


@game(
    "A token in the last chunk of the file, which is shorter; the solver is right.",
    solver=make_language_truth,
    statements=True,
    subject=LANGUAGE,
)
def windows_token(table: Table) -> None:
    lie = make_token_lie(5, "x", find_late_token(5))
    play(table, Player(make_language_truth(), SOLVER), Player(lie, OTHER))


LABELLED = 2
"""A step with a label in another chunk than its token."""


def make_label_lie() -> Patched:
    """The truth, but for that label."""
    return make_token_lie(LABELLED, "y", find_parted_label(LABELLED), -1)


@game(
    "A label, two tokens on, in another chunk of the file than its token; the solver lies.",
    solver=make_label_lie,
    statements=True,
    subject=LANGUAGE,
    arity=4,
)
def windows_label(table: Table) -> None:
    play(table, Player(make_label_lie(), SOLVER), Player(make_language_truth(), OTHER))


def take_others(part: str) -> Lie:
    """The windows after those of the batch."""

    def lie(value: Array, before: Mapping[int, Array]) -> Array:
        samples = make_language_task().samples
        index = before[find_language_node("sample_index")]
        return samples.gather(part, (index + 1) % samples.spec.samples)

    return lie


@cache
def make_other_windows() -> EngineProvider:
    """A run that takes other windows than those drawn in a step, and goes on from there."""
    lies = {(4, find_language_node(part)): take_others(part) for part in "xy"}
    return EngineProvider(make_language_task(), LyingSession(make_language_task(), Lies(lies)))


@game(
    "In a step other windows were taken than those drawn, and all after follows; the solver lies.",
    solver=make_other_windows,
    statements=True,
    subject=LANGUAGE,
)
def windows_others(table: Table) -> None:
    play(table, Player(make_other_windows(), SOLVER), Player(make_language_truth(), OTHER))


@cache
def make_other_draw() -> EngineProvider:
    """A run that draws another window in a step, and goes on from there."""

    def draw(value: Array, before: Mapping[int, Array]) -> Array:
        return bump(value, 7, -1 if value[7] else 1)

    lies = {(6, find_language_node("sample_index")): draw}
    return EngineProvider(make_language_task(), LyingSession(make_language_task(), Lies(lies)))


@game(
    "In a step one of the windows drawn is another. That is found where they are drawn, and an "
    "opening of that has no tokens.",
    solver=make_language_truth,
    subject=LANGUAGE,
)
def windows_draw(table: Table) -> None:
    honest, liar = Player(make_language_truth(), SOLVER), Player(make_other_draw(), OTHER)
    about, opening, _ = play_to_leaf(table, honest, liar)
    spare = (open_tokens(0),)
    table.send(sign(table.game.id, about, replace(opening, tokens=spare), SOLVER))
    play(table, honest, liar)


@game(
    "The traces differ nowhere but in the record, which says that a step took the windows of the "
    "one before.",
    solver=make_language_truth,
    statements=True,
    subject=LANGUAGE,
)
def windows_record(table: Table) -> None:
    false = replace(get_language_record(8), batch_digest=get_language_record(7).batch_digest)
    lie = Patched(make_language_truth(), make_language_task(), records={8: false})
    play(table, Player(make_language_truth(), SOLVER), Player(lie, OTHER))


@cache
def make_other_run(seed: int, shift: int) -> EngineProvider:
    """A run on another file of as many tokens, or on other labels."""
    task, other = make_language_task(), make_tokens(700, seed, dtype="u32", shift=shift)
    assert other.spec.samples == task.samples.spec.samples
    return EngineProvider(replace(task, samples=other), NumpySession(task.graph, other))


@game(
    "One rival has another file of as many tokens, another the next tokens as labels.",
    solver=make_language_truth,
    subject=LANGUAGE,
)
def windows_rivals(table: Table) -> None:
    claims = make_language_truth(), make_other_run(8, 2), make_other_run(7, 1)
    play(table, *(Player(claim, key) for claim, key in zip(claims, KEYS, strict=False)))


@game(
    "A digest of windows that nobody has: its claim falls above the leaf, in the tensor.",
    solver=lambda: make_language_lie(3, {"x": b"w" * 32}),
    subject=LANGUAGE,
)
def windows_unknown(table: Table) -> None:
    lie = make_language_lie(3, {"x": b"w" * 32})
    play(table, Player(lie, SOLVER), Player(make_language_truth(), OTHER))


@game(
    "What is revealed of a chunk of x is a byte short, or of the file, or zeros: it is refused.",
    solver=make_language_truth,
    subject=LANGUAGE,
)
def windows_reveals(table: Table) -> None:
    element = find_late_token(7)
    lie = make_token_lie(7, "x", element)
    honest, liar = Player(make_language_truth(), SOLVER), Player(lie, OTHER)
    node, tried = find_language_node("x"), False
    file = make_language_task().samples.table.tobytes()
    while not table.game.over and not tried:
        sent = [signed for player in (honest, liar) for signed in player.moves(table.game)]
        for signed in sent:
            question = table.game.asked.get(signed.about)
            if question is not None and is_one_chunk(table.game, question.where[0], node):
                tried = True
                move = decode_move(signed.move)
                assert isinstance(move, Reveal)
                (chunk,) = move.items
                key = SOLVER if signed.party == honest.party else OTHER
                for other in (chunk[:-1], file[1024:2048][: len(chunk)], bytes(len(chunk))):
                    table.send(sign(table.game.id, signed.about, Reveal((other,)), key))
            table.send(signed)
        if not sent:
            due = find_deadline(table.game)
            assert due is not None
            table.wait(due)
    assert tried
    play(table, honest, liar)


def is_one_chunk(game: Game, where: tuple[bytes, bytes], node: int) -> bool:
    """Is a dispute about a single chunk of the output of a node?"""
    dispute = game.contests[where[0]].disputes[where[1]]
    is_chunk = dispute.tree == "chunks" and dispute.end - dispute.start == 1
    return is_chunk and dispute.place.node == node and dispute.leaf == ""


@dataclass
class Beyond(Patched):
    """Claims a window that is not in the file; of x it opens what there is to open."""

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        index = self.chunks(step, find_language_node("sample_index"))
        assert isinstance(index, ChunkTree)
        return LeafOpening(((index.open(element // CONTEXT * 8 // 1024),),), (), None)


def make_beyond(token: int) -> Beyond:
    """The first window of step 5 is the one after the last: its tokens are 0, or one of another
    value."""
    step, count = 5, get_windows().count
    truth, nodes = make_language_truth(), map(find_language_node, ("sample_index", "x"))
    index, x = (truth.tensor(step, node).copy() for node in nodes)
    index[0], x[0] = count, 0
    x[0, 3] = token
    lie = make_language_lie(step, {"sample_index": index, "x": x}, loss=1 + token)
    return Beyond(lie.base, lie.task, lie.outputs, lie.records)


@game(
    "Two claims agree on a window that is not in the file, both falsely: its tokens are 0, and no "
    "chunk is opened.",
    solver=lambda: make_beyond(0),
    statements=True,
    subject=LANGUAGE,
)
def windows_beyond(table: Table) -> None:
    play(table, Player(make_beyond(0), SOLVER), Player(make_beyond(9), OTHER))


def play_to_leaf(table: Table, honest: Player, liar: Player) -> tuple[bytes, Open, SignedMove]:
    """Play until a leaf is to be opened: what it is about, and how the honest one would do it."""
    while True:
        opened = [about for about, question in table.game.asked.items() if not question.value]
        if opened:
            (about,) = opened
            (good,) = (move for move in honest.moves(table.game) if move.about == about)
            opening = decode_move(good.move)
            assert isinstance(opening, Open)
            return about, opening, good
        sent = [signed for player in (honest, liar) for signed in player.moves(table.game)]
        for signed in sent:
            table.send(signed)
        if not sent:
            due = find_deadline(table.game)
            assert due is not None
            table.wait(due)


def open_tokens(index: int) -> Chunk:
    """A chunk of the file."""
    return ChunkTree(make_language_task().samples.table).open(index)


@game(
    "Openings of a window that are refused: without its chunk, with another, with more, with a "
    "false one, with rows.",
    solver=make_language_truth,
    subject=LANGUAGE,
)
def windows_openings(table: Table) -> None:
    truth, element = make_language_truth(), find_late_token(6)
    honest, liar = Player(truth, SOLVER), Player(make_token_lie(6, "x", element), OTHER)
    about, opening, good = play_to_leaf(table, honest, liar)
    (chunk,) = opening.tokens
    assert chunk.index == 2
    first, second = open_tokens(0), open_tokens(1)
    at = find_places(6, "x")[element] * 4 % 1024
    token = int.from_bytes(chunk.chunk[at : at + 4], "little")
    false = chunk.chunk[:at] + (token + 1).to_bytes(4, "little") + chunk.chunk[at + 4 :]
    for tokens in (
        (),
        (second,),
        (first, chunk),
        (chunk, chunk),
        (chunk, second),
        (replace(chunk, chunk=false),),
        (first, replace(chunk, chunk=false)),
        (replace(chunk, chunk=chunk.chunk + bytes(1024 - len(chunk.chunk))),),
        (replace(chunk, chunk=chunk.chunk[:-1]),),
        (replace(chunk, path=chunk.path[:-1]),),
        (replace(chunk, index=3),),
        (replace(second, index=2),),
        (replace(chunk, index=2**62),),
        (replace(chunk, chunk=b""),) * 33,
    ):
        table.send(sign(table.game.id, about, replace(opening, tokens=tokens), SOLVER))
    row = Row(0, bytes(24), ())
    table.send(sign(table.game.id, about, replace(opening, rows=(row,)), SOLVER))
    table.send(sign(table.game.id, about, replace(opening, rows=(row,), tokens=()), SOLVER))
    value: Any = cbor.decode(good.move)
    value["move"]["tokens"] = []
    table.send(sign_bytes(table, about, cbor.encode(value), SOLVER))
    # The liar's own: what would make its token true is no chunk of the file.
    lying = replace(opening, tokens=(replace(chunk, chunk=false),))
    table.send(sign(table.game.id, about, lying, OTHER))
    table.send(good)
    play(table, honest, liar)


def make_crowd(seed: int) -> tuple[list[Actor], TraceProvider]:
    """Parties of all kinds, drawn; and the solver's claim."""
    words = np.random.Philox(key=seed).random_raw(64).tolist()

    def draw(count: int) -> int:
        return int(words.pop() % count)

    solver: TraceProvider = make_truth() if draw(2) else make_lie(4, "logits", 1)
    actors: list[Actor] = []
    nodes = ("x/prepared", "logits", "p/sum")
    for key in KEYS[1:]:
        step, node = 1 + draw(STEPS), nodes[draw(3)]
        lie = make_sum_lie(step, draw(8)) if node == "p/sum" else make_lie(step, node, draw(40))
        friend = make_lie(step, "loss/grad", draw(40), loss=0)
        pace = ("prompt", "drips", "stalls", "late")[draw(4)]
        kinds: list[Actor] = [
            Player(lie, key),
            Paced(lie, key, pace),  # type: ignore[arg-type]
            Only(Player(friend, key), is_bond),
            Only(Player(lie, key), is_no_opening),
            Sorted(Hijacker(make_truth().log().root, key, answers=False)),
            Helper(friend, step, key),
            Player(make_truth(), key),
        ]
        actors.append(kinds[draw(len(kinds))])
    actors.append(Player(solver, SOLVER))
    return actors, solver


def _add_crowds() -> None:
    for seed in (0,):

        def crowd(table: Table, seed: int = seed) -> None:
            play(table, *make_crowd(seed)[0])

        def solver(seed: int = seed) -> TraceProvider:
            return make_crowd(seed)[1]

        about = "Parties of all kinds, drawn at random."
        GAMES[f"crowd-{seed}"] = Plan(about, crowd, solver, False, {})


_add_crowds()


def make_files() -> Iterator[tuple[str, str]]:
    """Names of the files, and what is in them."""
    for subject in (IMAGES, LANGUAGE):
        graph = subject.task().graph
        content = {"root": compute_graph_root(graph).hex(), "graph": encode_graph(graph).hex()}
        yield subject.file, render(content)
    for name, plan in GAMES.items():
        yield f"game-{name}.json", render(plan.make(name))


def render(content: Json) -> str:
    """One line for each entry of a game."""
    if "entries" not in content:
        return json.dumps(content, indent=1) + "\n"
    rest = {key: value for key, value in content.items() if key != "entries"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    entries = ",\n".join(f"  {json.dumps(entry)}" for entry in content["entries"])
    return "{\n" + ",\n".join([*lines, f' "entries": [\n{entries}\n ]']) + "\n}\n"


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    files = dict(make_files())
    known = {path.name for path in FOLDER.glob("*")}
    different = sorted(known ^ files.keys())
    for name, text in files.items():
        path = FOLDER / name
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
        elif name in known and path.read_text() != text:
            different.append(name)
    if not check:
        for name in known - files.keys():
            (FOLDER / name).unlink()
    elif different:
        sys.stderr.write(f"{', '.join(different)}: not what the rules give\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
