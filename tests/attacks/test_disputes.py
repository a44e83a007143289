"""Attacks on the dispute game: by whoever knows everything, and may send anything at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy.typing as npt
import pytest

from tests.dispute.actors import ACCOMPLICE, CHALLENGER, HONEST, SOLVER, Only, make_cheat
from tests.dispute.arena import CLOCKS, Actor, Play, make_game, make_key, play
from tests.dispute.claims import Patched, Run, bump, make_run
from tests.dispute.service.logs import make_log, make_log_genesis, make_players
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.cli import dispute as cli
from vtrain.demo.lies import Lies, LyingSession
from vtrain.dispute import client as clients
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, sign, start
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.journal import FileJournal
from vtrain.dispute.players import MemoryJournal, Player
from vtrain.dispute.provider import ClaimTree, MerkleTree, TraceProvider
from vtrain.dispute.service.problems import BusyError
from vtrain.dispute.state import Game
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError, MoveRefusedError, RunError, VtrainError
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.spec.domains import RUN_LOG, TRACE
from vtrain.spec.frontier import compute_ranges
from vtrain.spec.merkle import compute_leaf_hash, compute_node_hash
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Accuse, Bond, Genesis, Move, Open, Reveal, SignedMove, decode_move
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord
from vtrain.wire.task import TaskSpec

STEP = 4


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run("mlp", commit_every=2)


@pytest.fixture(scope="module")
def liar(run: Run) -> TraceProvider:
    """Who lies about the loss of a step, and about nothing else."""
    return make_liar(run, STEP)


def false_record(run: Run, step: int) -> StepRecord:
    record = run.record(step)
    return replace(record, loss=record.loss + 1)


def make_liar(run: Run, step: int) -> TraceProvider:
    return Patched(run.truth, run.task, records={step: false_record(run, step)})


def stands(result: Play, run: Run) -> bool:
    return result.verdict.standing == run.truth.log().root


def until(genesis: Genesis, players: Iterable[Player], stage: tuple[str, str]) -> Game:
    """The game as soon as its last match comes to a stage and tree."""
    game = start(genesis)
    for _ in range(200):
        before = game
        for player in players:
            for signed in player.moves(game):
                game = apply(game, signed, game.now + 1)
                if _is_at(game, stage):
                    return game
        if game == before:
            due = find_deadline(game)
            assert due is not None
            game = advance(game, due[0])
            if _is_at(game, stage):
                return game
    raise AssertionError(f"never came to {stage}")


def _is_at(game: Game, stage: tuple[str, str]) -> bool:
    return bool(game.matches) and (game.matches[-1].stage, game.matches[-1].tree) == stage


# --- one genesis, two histories: a second service, or one that was restored from a backup


def play_history(run: Run, step: int, journal: MemoryJournal) -> tuple[Play, list[SignedMove]]:
    """An honest solver against a lie about a step; what the solver signed."""
    wire: list[SignedMove] = []
    players = [Player(run.truth, SOLVER, journal), Player(make_liar(run, step), CHALLENGER)]
    result = play(make_game(run.task, run.truth, SOLVER), players, wire=wire)
    return result, [signed for signed in wire if signed.party == public_key(SOLVER)]


def test_honest_moves_of_two_histories_contradict_nothing(run: Run) -> None:
    (_, first), (_, second) = (play_history(run, step, MemoryJournal()) for step in (2, 4))
    game = start(make_game(run.task, run.truth, SOLVER))
    for one in first:
        for other in second:
            accusation = sign(game, Accuse(one, other), CHALLENGER)
            with pytest.raises(MoveRefusedError):
                apply(game, accusation, 1)


def test_a_journal_of_another_history_does_no_harm(run: Run) -> None:
    journal = MemoryJournal()
    for step in (2, 4, 3):
        result, _ = play_history(run, step, journal)
        assert stands(result, run)


def test_a_journal_of_another_history_with_the_same_leaf(run: Run) -> None:
    """The same element of the same step, under a trace that is longer by a step."""
    node = run.find("h")
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (3, node): bump(run.tensor(3, node), 0)
    }
    journal = MemoryJournal()
    for step in (3, 4):
        claim = Patched(run.truth, run.task, outputs, {step: false_record(run, step)})
        genesis = make_game(run.task, run.truth, SOLVER)
        quiet = Only(Player(claim, CHALLENGER), lambda move: not isinstance(move, Open))
        result = play(genesis, [quiet, Player(run.truth, SOLVER, journal)])
        assert stands(result, run)
        (fall,) = (entry.fall for entry in result.verdict.entries if entry.fall)
        assert fall.place.node == node


# --- a claim is more than its root: trees of other shapes


def test_a_root_over_more_leaves_than_the_size_says(run: Run) -> None:
    log = run.truth.log()
    leaves = [log.leaf(index) for index in range(log.size)]
    grown = MerkleTree(RUN_LOG, [*leaves, leaves[-1]])
    result = play(make_game(run.task, Rooted(run.truth, grown.root), SOLVER), [as_honest(run)])
    assert stands(result, run)
    assert result.verdict.solver is not None
    assert result.verdict.solver.reason == "silent"


def test_an_inner_node_is_no_leaf(run: Run) -> None:
    """What hashes to an inner node, shown as the data of a leaf, is a leaf of another hash."""
    log = run.truth.log()
    left, right = (compute_leaf_hash(RUN_LOG, log.leaf(index)) for index in (0, 1))
    node = compute_node_hash(RUN_LOG, left, right)
    root = Rooted(run.truth, node)
    genesis = replace(make_game(run.task, root, SOLVER))
    game = until(genesis, [as_honest(run)], ("reveal", "log"))
    ranges = compute_ranges(0, log.size, 4)
    assert len(ranges) == log.size
    for items in ((left + right,), (left, right), (node,) * log.size, (b"\x01" + left + right,)):
        with pytest.raises(MoveRefusedError, match="items"):
            apply(game, sign(game, Reveal(0, items, None), SOLVER), game.now)


@dataclass
class Rooted:
    """A claim of any root; only its root and size are to be had."""

    base: TraceProvider
    root: bytes

    @property
    def size(self) -> int:
        return self.base.log().size

    def log(self) -> ClaimTree:
        return cast(ClaimTree, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def as_honest(run: Run) -> Player:
    return Player(run.truth, HONEST)


def test_two_claims_that_fall_at_once_leave_the_third(run: Run) -> None:
    """Malformed records on both sides of one match: both fall, and the game goes on."""
    junk = [
        Player(Patched(run.truth, run.task, records={STEP: data}), key)
        for data, key in ((b"", SOLVER), (b"\xa0", CHALLENGER), (b"\xff" * 1000, ACCOMPLICE))
    ]
    genesis = make_game(run.task, Patched(run.truth, run.task, records={STEP: b""}), SOLVER)
    assert stands(play(genesis, [*junk, as_honest(run)]), run)
    result = play(genesis, junk[:2])
    assert (result.verdict.standing, result.game.tournaments[0].standing()) == (b"", [])


# --- sub-claims


def test_sub_claims_are_bound_to_their_side_and_place(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, [Player(liar, SOLVER), as_honest(run)], ("claims", "log"))
    nested = game.tournaments[1]
    entry = game.tournaments[0].find(run.truth.log().root)
    side = game.matches[0].sides.index(entry)
    true, false = run.truth.trace(STEP), liar.trace(STEP)
    record = nested.size - genesis.nodes + genesis.record_node
    same = MerkleTree(TRACE, [true.leaf(record)] * nested.size)
    shifted = MerkleTree(TRACE, [true.leaf(index) for index in range(1, true.size)])
    grown = MerkleTree(TRACE, [*(true.leaf(index) for index in range(true.size)), b"z" * 32])
    bonds = [
        Bond(1, true.root, 1 - side, true.leaf(record), true.path(record)),
        Bond(1, true.root, 1 - side, false.leaf(record), false.path(record)),
        Bond(1, false.root, side, true.leaf(record), true.path(record)),
        Bond(1, true.root, side, true.leaf(0), true.path(0)),
        Bond(1, same.root, side, same.leaf(0), same.path(0)),
        Bond(1, shifted.root, side, true.leaf(record), shifted.path(record - 1)),
        Bond(1, grown.root, side, true.leaf(record), grown.path(record)),
        Bond(1, true.root, side, true.leaf(record), ()),
    ]
    for bond in bonds:
        with pytest.raises(MoveRefusedError):
            apply(game, sign(game, bond, CHALLENGER), game.now)
    alone = apply(game, sign(game, replace(bonds[0], side=side), CHALLENGER), game.now)
    assert [entry.root for entry in alone.tournaments[1].entries] == [true.root]
    again = sign(alone, replace(bonds[0], side=1 - side), ACCOMPLICE)
    with pytest.raises(MoveRefusedError, match="other side"):
        apply(alone, again, game.now)


def test_false_sub_claims_on_both_sides(run: Run, liar: TraceProvider) -> None:
    """They may meet the honest one or each other: it stands, and its claim with it."""
    bases: list[tuple[dict[int, bytes | StepRecord], int]] = [
        ({}, 5),
        ({STEP: false_record(run, STEP)}, 15),
    ]
    sybils = [
        Player(
            Patched(run.truth, run.task, {(3, node + 10 * i): bytes([i]) * 32}, records),
            make_key(300 + 2 * i + len(records)),
        )
        for records, node in bases
        for i in range(3)
    ]
    for order in (1, -1):
        players = [*sybils, Player(liar, SOLVER), as_honest(run)][::order]
        assert stands(play(make_game(run.task, liar, SOLVER), players), run)


def test_false_fold_states_on_both_sides() -> None:
    """Sub-claims on one element that end as they must, and go wrong on the way there."""
    run = make_run("wide", steps=2, commit_every=2, batch=80, samples=100)
    node, element = run.find("h/acc/grad_b"), 77
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (2, node): bump(run.tensor(2, node), element, 5)
    }
    records: dict[int, bytes | StepRecord] = {2: false_record(run, 2)}
    false = [
        Player(
            Patched(run.truth, run.task, outputs, records, detours={(2, node): detour}),
            make_key(400 + i),
        )
        for i, detour in enumerate(([5, 5, 5], [0, 5, 5], [2**40, -(2**40), 5]))
    ]
    traitors = [
        Player(Patched(run.truth, run.task, detours={(2, node): detour}), make_key(500 + i))
        for i, detour in enumerate(([1, 1, 0], [0, 1, 0], [-(2**62), 2**62, 0]))
    ]
    claim = Patched(run.truth, run.task, outputs, records, detours={(2, node): [0, 0, 5]})
    players = [*traitors, *false, Player(claim, SOLVER), as_honest(run)]
    for order in (1, -1):
        result = play(make_game(run.task, claim, SOLVER), players[::order])
        assert stands(result, run)
        terms = result.game.tournaments[-1]
        assert (terms.tree, len(terms.entries)) == ("terms", 8)


# --- running ahead of the honest party


@dataclass
class FrontRunner:
    """Backs whatever the victim does, and makes each of its moves first, with variants of it."""

    victim: Player
    key: PrivateKey
    sent: set[bytes] = field(default_factory=set)

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for seen in self.victim.moves(game):
            move = decode_move(seen.move)
            variants: list[Move] = [move]
            if isinstance(move, Reveal) and move.site is not None:
                first = replace(move.site.node, path=move.site.node.path[::-1])
                variants = [
                    replace(move, site=replace(move.site, sources=())),
                    replace(move, site=replace(move.site, node=first)),
                    replace(move, site=None),
                    move,
                ]
            elif isinstance(move, Open):
                variants = [
                    replace(move, inputs=move.inputs[::-1]),
                    replace(move, rows=()),
                    replace(move, base=None, state_leaf=None),
                    replace(move, before=None),
                ]
            for variant in variants:
                signed = sign(game, variant, self.key)
                if signed.signature not in self.sent:
                    self.sent.add(signed.signature)
                    yield signed


@pytest.mark.parametrize("name", ["trains on other data", "alters an optimizer state"])
def test_running_ahead_of_honest_moves(run: Run, name: str) -> None:
    cheat = make_cheat(run, name)
    ahead = FrontRunner(Player(run.truth, HONEST), ACCOMPLICE)
    players: list[Actor] = [ahead, Player(cheat.claim, SOLVER), as_honest(run)]
    result = play(make_game(run.task, cheat.claim, SOLVER), players)
    assert stands(result, run)
    assert result.verdict.solver is not None
    assert result.verdict.solver.place.node == cheat.node
    assert not result.verdict.barred


def test_a_signature_binds_the_party_and_the_game(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    other = start(replace(genesis, nonce=b"o" * 32))
    game = start(genesis)
    bond = Bond(0, run.truth.log().root, 0, b"", ())
    signed = sign(game, bond, HONEST)
    elsewhere = sign(other, bond, HONEST)
    for forged in (
        elsewhere,
        replace(elsewhere, game=game.id),
        replace(elsewhere, game=game.id, position=signed.position),
        replace(signed, party=public_key(CHALLENGER)),
        replace(signed, position=elsewhere.position),
    ):
        with pytest.raises(VtrainError):
            apply(game, forged, 1)
    assert apply(game, signed, 1).moves == 1


def test_what_is_no_contradiction(run: Run, liar: TraceProvider) -> None:
    """The same said twice, other kinds of moves, an opening, and what somebody else signed."""
    game = start(make_game(run.task, liar, SOLVER))
    bond = Bond(0, run.truth.log().root, 0, b"", ())
    game = apply(game, sign(game, bond, HONEST), 1)
    reveal, opening = Reveal(5, (b"x",), None), Open(5, (), (), None, None, None, None)
    pairs: list[tuple[Move, Move]] = [
        (bond, bond),
        (bond, replace(bond, leaf=b"other", path=(bytes(32),))),
        (bond, reveal),
        (reveal, reveal),
        (opening, replace(opening, inputs=(), before=None)),
        (bond, replace(bond, tournament=1, root=b"t" * 32)),
    ]
    for first, second in pairs:
        accusation = Accuse(sign(game, first, HONEST), sign(game, second, HONEST))
        with pytest.raises(MoveRefusedError):
            apply(game, sign(game, accusation, CHALLENGER), 2)
    forged = replace(
        sign(game, replace(bond, root=b"t" * 32), CHALLENGER), party=public_key(HONEST)
    )
    accusation = Accuse(sign(game, bond, HONEST), forged)
    with pytest.raises(VtrainError):
        apply(game, sign(game, accusation, CHALLENGER), 2)


# --- time


def test_the_last_moment_counts_and_the_next_does_not(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, [Player(liar, SOLVER), as_honest(run)], ("reveal", "log"))
    (signed,) = as_honest(run).moves(game)
    deadline = game.now + CLOCKS.match
    after = apply(game, signed, deadline - 1)
    side = game.matches[0].sides.index(game.tournaments[0].find(run.truth.log().root))
    assert after.matches[0].left[side] == 1
    with pytest.raises(MoveRefusedError):
        apply(game, signed, deadline)
    # Both owed the move: both have fallen.  A leap over everything ends the game all the same.
    verdict = find_verdict(advance(game, 2**61))
    assert verdict is not None
    assert verdict.standing == b""
    with pytest.raises(MoveRefusedError, match="own time"):
        apply(game, signed, game.now - 1)


def test_a_slow_honest_party_has_its_grace_in_every_round(run: Run, liar: TraceProvider) -> None:
    """The opponent cannot wear it out: each answer has at least the grace, however many rounds."""

    @dataclass
    class Slow:
        """Answers when it must."""

        player: Player

        def moves(self, game: Game) -> Iterator[SignedMove]:
            due = find_deadline(game)
            if due is not None and game.now >= due[0] - 3:
                yield from self.player.moves(game)

        def wakes(self, game: Game) -> int | None:
            due = find_deadline(game)
            return None if due is None else due[0] - 3

    clocks = replace(CLOCKS, match=10, grace=10)
    genesis = make_game(run.task, liar, SOLVER, clocks=clocks, arity=2)
    assert stands(play(genesis, [Slow(as_honest(run)), Player(liar, SOLVER)]), run)


# --- size and work


def test_accepted_moves_are_small(run: Run, liar: TraceProvider) -> None:
    """Everyone who follows a game keeps its moves: no item is longer than a chunk."""
    game = start(make_game(run.task, liar, SOLVER))
    bond = Bond(0, liar.log().root, 0, b"", ())
    game = apply(game, sign(game, bond, CHALLENGER), 1)
    first, second = (
        sign(game, Reveal(9, (letter * 65536,) * 64, None), CHALLENGER) for letter in (b"a", b"b")
    )
    with pytest.raises(VtrainError):
        apply(game, sign(game, Accuse(first, second), CHALLENGER), 1)


def test_throw_away_keys_accuse_nobody(run: Run, liar: TraceProvider) -> None:
    game = start(make_game(run.task, liar, SOLVER))
    first, second = (
        sign(game, Reveal(9, (letter,), None), make_key(700)) for letter in (b"a", b"b")
    )
    with pytest.raises(MoveRefusedError, match="behind no claim"):
        apply(game, sign(game, Accuse(first, second), CHALLENGER), 1)


@dataclass
class Counting:
    """A session that counts how often it is asked to go through a step."""

    session: Session
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.session, name)
        if name in ("step", "trace") or name.startswith("evaluate"):
            self.asked += 1
        return found


def test_an_opening_takes_a_few_steps_however_many_states(run: Run) -> None:
    """``state_root`` has an input for every tensor of the state: they come of one evaluation."""
    task = run.task
    node = task.graph.find("state_root")
    assert len(task.graph.nodes[node].inputs) == 9
    counting = Counting(open_session("cpu", task.graph, task.samples))
    truth = EngineProvider(task, cast(Session, counting))
    false = LyingSession(task, Lies({(2, node): lambda value, before: value ^ 1}))
    claim = EngineProvider(task, false)
    counting.asked = 0
    players = [Player(truth, CHALLENGER), Player(claim, SOLVER)]
    result = play(make_game(task, claim, SOLVER), players)
    assert stands(result, run)
    # The trace of the interval (2 steps), the disputed tensor and the inputs, going back to each.
    assert counting.asked <= 8


# --- tasks that cannot be disputed are no games


def make_claim_about(spec: TaskSpec, graph: StepGraph) -> Genesis:
    log = b"l" * 32
    claim = Claim(b"r" * 32, public_key(SOLVER), compute_task_id(spec), spec.steps, log)
    return make_genesis(spec, graph, sign_claim(claim, SOLVER), opened=0)


def test_no_game_whose_rows_do_not_fit_a_move(run: Run) -> None:
    spec = run.task.spec
    long = replace(spec, data=replace(spec.data, x_shape=(2**23,)))
    assert make_claim_about(spec, run.task.graph).log_size == spec.steps
    with pytest.raises(RunError):
        make_claim_about(long, run.task.graph)


def test_no_game_whose_nodes_do_not_fit_a_move(run: Run) -> None:
    """A schedule of many entries: whoever reads it could lie, and nobody could reveal the site."""
    nodes = list(run.task.graph.nodes)
    at = run.task.graph.find("schedule")
    count = 200_000
    attrs = {"starts": tuple(range(count)), "rates": (40960,) * count}
    nodes[at] = replace(nodes[at], attrs={**nodes[at].attrs, **attrs})
    graph = StepGraph(tuple(nodes))
    with pytest.raises(RunError):
        make_claim_about(replace(run.task.spec, graph_root=compute_graph_root(graph)), graph)


# --- the honest party's tools


def test_a_journal_that_grew_before_its_bytes_came(tmp_path: Path) -> None:
    """As after a loss of power: what follows the last whole frame was never sent."""
    path = tmp_path / "journal"
    game = start(make_log_genesis())
    signed = sign(game, Bond(0, make_log().root, 0, b"", ()), HONEST)
    with closing(FileJournal(path)) as journal:
        journal.keep(signed)
    with path.open("ab") as file:
        file.write(bytes(4096))
    with closing(FileJournal(path)) as journal:
        assert journal.find(signed.position) == signed


def test_games_of_alike_ids_have_journals_of_their_own() -> None:
    """Whoever opens games chooses nonces: ids that begin alike cost few hashes."""
    ids = (bytes(32), bytes(31) + b"1")
    names = {cli._get_journal(Path("key.pem"), game, bytes(32)) for game in ids}
    assert len(names) == 2


class Flaky:
    """A service that is away when it is asked, every second time, and the log's liar in it."""

    def __init__(self) -> None:
        self.game = start(make_log_genesis())
        self._asked = 0
        self._liar, _ = make_players()

    def move(self, signed: SignedMove) -> None:
        self._asked += 1
        if self._asked % 2:
            raise BusyError("does not answer", where="move")
        self.game = apply(self.game, signed, self.game.now + 1)

    def poll(self, wait: float = 0) -> list[Any]:
        for signed in list(self._liar.moves(self.game)):
            self.game = apply(self.game, signed, self.game.now + 1)
        self.game = advance(self.game, self.game.now + round(1000 * wait))
        return []


def test_a_player_outlives_a_service_that_is_away() -> None:
    service = Flaky()
    _, honest = make_players()
    follower, client = cast(clients.Follower, service), cast(clients.DisputeClient, service)
    verdict = clients.play(follower, client, cast(Player, honest))
    assert verdict.standing == make_log().root


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_gateway_that_answers_for_the_service_is_no_fault_of_its(status: int) -> None:
    """Who floods a service brings its gateway to answer, in HTML: it is to be asked again."""
    asked = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            return httpx.Response(status, text="<html>busy</html>")
        return httpx.Response(200, json={"games": []})

    client = clients.DisputeClient(
        "http://service", transport=httpx.MockTransport(handle), pause=lambda seconds: None
    )
    with closing(client):
        assert client.list_games() == []
    assert asked == 2


def test_hostile_numbers_are_refused_by_name(run: Run, liar: TraceProvider) -> None:
    """Indices far outside: no wrap, no crash, and the game as it was."""
    genesis = make_game(run.task, liar, SOLVER)
    players = [Player(liar, SOLVER), as_honest(run)]
    game = until(genesis, players, ("open", "chunks"))
    (signed,) = as_honest(run).moves(game)
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    site = game.matches[-1].site
    assert site is not None
    chunks = move.inputs[0].chunks
    assert chunks
    for number in (2**32, 2**48, 2**62):
        inputs = (
            replace(move.inputs[0], chunks=(replace(chunks[0], index=number),)),
            *move.inputs[1:],
        )
        for hostile in (
            replace(move, inputs=inputs),
            replace(move, match=number),
            replace(move, source=replace(site.node, index=number)),
            Reveal(number, (b"",), None),
            Bond(number, bytes(32), 0, b"", ()),
        ):
            with pytest.raises(MoveRefusedError):
                apply(game, sign(game, hostile, HONEST), game.now)
    with pytest.raises(EncodingError):
        apply(game, sign(game, replace(move, match=2**62 + 1), HONEST), game.now)
    assert find_verdict(advance(apply(game, signed, game.now), 10**9)) is not None
