"""Attacks on the dispute game: by whoever knows everything, and may send anything at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
import numpy.typing as npt
import pytest

from tests.dispute.actors import (
    ACCOMPLICE,
    CHALLENGER,
    HONEST,
    SOLVER,
    Follower,
    Late,
    make_cheat,
    make_traitor,
)
from tests.dispute.arena import CLOCKS, HOST, Actor, Play, Sleeper, make_game, make_key, play
from tests.dispute.claims import Patched, Run, bump, make_run
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.demo.lies import Lies, LyingSession
from vtrain.dispute import client as clients
from vtrain.dispute.consequences import Work
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import (
    advance,
    apply,
    check_offer,
    find_deadline,
    find_verdict,
    sign,
    start,
)
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.players import Player
from vtrain.dispute.problems import BusyError
from vtrain.dispute.provider import ClaimTree, MerkleTree, TraceProvider
from vtrain.dispute.state import Contest, Game, Verdict, compute_side_id
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError, MoveRefusedError, RunError, SignatureError, VtrainError
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.spec.domains import RUN_LOG, TRACE
from vtrain.spec.frontier import compute_ranges
from vtrain.spec.merkle import compute_leaf_hash, compute_node_hash
from vtrain.wire.claim import Claim
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
)
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


def until(
    genesis: Genesis, run: Run, players: Sequence[Actor], arrived: Callable[[Game], bool]
) -> Game:
    """The game as soon as it has come somewhere."""
    game = start(genesis, run.graph)
    for _ in range(500):
        before = game
        for player in players:
            for signed in player.moves(game):
                try:
                    game = apply(game, signed, game.now + 1)
                except MoveRefusedError:
                    continue  # it was overtaken
                if arrived(game):
                    return game
        if game is before:
            due = find_deadline(game)
            assert due is not None
            wakes = [player.wakes(game) for player in players if isinstance(player, Sleeper)]
            game = advance(game, min([due, *(at for at in wakes if at and at > game.now)]))
            if arrived(game):
                return game
    raise AssertionError("never came there")


def asks_items(game: Game) -> bool:
    return any(question.value for question in game.asked.values())


def asks_opening(game: Game) -> bool:
    return any(not question.value for question in game.asked.values())


def has_sides(game: Game) -> bool:
    return bool(game.sides)


def get_contest(game: Game, level: str) -> Contest:
    """The only contest of a level."""
    (found,) = (contest for contest in game.contests.values() if contest.level == level)
    return found


def find_side(game: Game, contest: Contest, root: bytes) -> bytes:
    """The side of a contest below the log that a log claim is on."""
    above = game.contests[contest.above]
    own = 1 << above.index[root]
    classes = above.disputes[contest.id].classes.items()
    value = next(value for value, found in classes if found.mask & own)
    return compute_side_id(contest.id, value)


def find_fall_of(contest: Contest, root: bytes) -> str:
    """Why a claim of a contest fell; empty when it has not."""
    fall = contest.claims[contest.index[root]].fall
    return "" if fall is None else fall.reason


# --- a claim is more than its root: trees of other shapes


def test_a_root_over_more_leaves_than_the_size_says(run: Run) -> None:
    log = run.truth.log()
    leaves = [log.leaf(index) for index in range(log.size)]
    grown = MerkleTree(RUN_LOG, [*leaves, leaves[-1]])
    genesis = make_game(run.task, Rooted(run.truth, grown.root), SOLVER)
    result = play(genesis, run.graph, [as_honest(run)])
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
    game = until(genesis, run, [as_honest(run)], asks_items)
    (about,) = (about for about, question in game.asked.items() if question.value == node)
    ranges = compute_ranges(0, log.size, 4)
    assert len(ranges) == log.size
    for items in ((left + right,), (left, right), (node,) * log.size, (b"\x01" + left + right,)):
        with pytest.raises(MoveRefusedError, match="items"):
            apply(game, sign(game.id, about, Reveal(items), SOLVER), game.now)


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
    assert stands(play(genesis, run.graph, [*junk, as_honest(run)]), run)
    result = play(genesis, run.graph, junk[:2])
    assert result.verdict.standing == b""
    assert all(claim.fall is not None for claim in result.game.logs.values())


# --- sub-claims


def test_sub_claims_are_bound_to_their_side_and_place(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, run, [Player(liar, SOLVER), as_honest(run)], has_sides)
    nested = get_contest(game, "trace")
    side, other = (find_side(game, nested, p.log().root) for p in (run.truth, liar))
    true, false = run.truth.trace(STEP), liar.trace(STEP)
    record = nested.size - genesis.nodes + genesis.record_node
    same = MerkleTree(TRACE, [true.leaf(record)] * nested.size)
    shifted = MerkleTree(TRACE, [true.leaf(index) for index in range(1, true.size)])
    grown = MerkleTree(TRACE, [*(true.leaf(index) for index in range(true.size)), b"z" * 32])
    bonds = [
        (other, Bond(true.root, true.leaf(record), true.path(record))),
        (side, Bond(true.root, false.leaf(record), false.path(record))),
        (side, Bond(false.root, true.leaf(record), true.path(record))),
        (side, Bond(true.root, true.leaf(0), true.path(0))),
        (side, Bond(same.root, same.leaf(0), same.path(0))),
        (side, Bond(shifted.root, true.leaf(record), shifted.path(record - 1))),
        (side, Bond(grown.root, true.leaf(record), grown.path(record))),
        (side, Bond(true.root, true.leaf(record), ())),
        (b"s" * 32, Bond(true.root, true.leaf(record), true.path(record))),
        (nested.id, Bond(true.root, true.leaf(record), true.path(record))),
    ]
    for about, bond in bonds:
        with pytest.raises(MoveRefusedError):
            apply(game, sign(game.id, about, bond, CHALLENGER), game.now)
    alone = apply(game, sign(game.id, side, bonds[0][1], CHALLENGER), game.now)
    assert [claim.root for claim in get_contest(alone, "trace").claims] == [true.root]
    again = sign(alone.id, other, bonds[0][1], ACCOMPLICE)
    with pytest.raises(MoveRefusedError, match="another side"):
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
        assert stands(play(make_game(run.task, liar, SOLVER), run.graph, players), run)


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
        result = play(make_game(run.task, claim, SOLVER), run.graph, players[::order])
        assert stands(result, run)
        terms = get_contest(result.game, "terms")
        assert len(terms.claims) == 8
        assert find_fall_of(terms, run.truth.terms(2, node, element).root) == ""


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
            if isinstance(move, Reveal):
                variants = [replace(move, items=move.items[::-1]), move]
            elif isinstance(move, Open):
                variants = [
                    replace(move, inputs=move.inputs[::-1]),
                    replace(move, rows=()),
                    replace(move, base=None, state_leaf=None),
                    replace(move, log=game.genesis.log_root),
                    replace(move, trace=move.log),
                    replace(move, before=None),
                ]
            for variant in variants:
                signed = sign(game.id, seen.about, variant, self.key)
                if signed.signature not in self.sent:
                    self.sent.add(signed.signature)
                    yield signed


@pytest.mark.parametrize("name", ["trains on other data", "alters an optimizer state"])
def test_running_ahead_of_honest_moves(run: Run, name: str) -> None:
    cheat = make_cheat(run, name)
    ahead = FrontRunner(Player(run.truth, HONEST), ACCOMPLICE)
    players: list[Actor] = [ahead, Player(cheat.claim, SOLVER), as_honest(run)]
    result = play(make_game(run.task, cheat.claim, SOLVER), run.graph, players)
    assert stands(result, run)
    assert result.verdict.solver is not None
    assert result.verdict.solver.place.node == cheat.node


def test_a_signature_binds_the_party_the_game_and_what_it_answers(
    run: Run, liar: TraceProvider
) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    other = start(replace(genesis, nonce=b"o" * 32), run.graph)
    game = start(genesis, run.graph)
    bond = Bond(run.truth.log().root, b"", ())
    signed = sign(game.id, game.id, bond, HONEST)
    elsewhere = sign(other.id, other.id, bond, HONEST)
    for forged in (
        elsewhere,
        replace(elsewhere, game=game.id),
        replace(elsewhere, game=game.id, about=game.id),
        replace(signed, party=public_key(CHALLENGER)),
        replace(signed, about=other.id),
        replace(signed, move=sign(game.id, game.id, replace(bond, root=b"?" * 32), HONEST).move),
    ):
        with pytest.raises(VtrainError):
            apply(game, forged, 1)
    assert apply(game, signed, 1).moves == 1


def test_a_bond_for_a_game_of_one_host_is_none_at_another(run: Run, liar: TraceProvider) -> None:
    """All else being the same: whoever runs it twice cannot have a party be silent there."""
    genesis = make_game(run.task, liar, SOLVER)
    game, copied = (start(replace(genesis, host=host), run.graph) for host in (HOST, b"H" * 32))
    bond = sign(game.id, game.id, Bond(run.truth.log().root, b"", ()), HONEST)
    assert apply(game, bond, 1).moves == 1
    with pytest.raises(MoveRefusedError, match="another game"):
        apply(copied, bond, 1)
    with pytest.raises(SignatureError):
        apply(copied, replace(bond, game=copied.id, about=copied.id), 1)


def test_an_answer_that_was_signed_in_another_game_is_none_here(
    run: Run, liar: TraceProvider
) -> None:
    """Facts have the same ids in all games: what is signed is for one of them."""
    players = [as_honest(run), Player(liar, SOLVER)]
    genesis = make_game(run.task, liar, SOLVER)
    first, second = (
        until(replace(genesis, nonce=nonce), run, players, asks_items)
        for nonce in (b"1" * 32, b"2" * 32)
    )
    (signed,) = as_honest(run).moves(first)
    assert signed.about in second.asked
    with pytest.raises(MoveRefusedError, match="another game"):
        apply(second, signed, second.now)


def test_a_genesis_is_signed_and_of_its_graph(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    with pytest.raises(SignatureError):
        start(replace(genesis, signature=bytes(64)), run.graph)
    with pytest.raises(SignatureError):
        start(replace(genesis, log_root=b"r" * 32), run.graph)
    for false in (
        replace(genesis, arity=12),
        replace(genesis, nodes=genesis.nodes + 1),
        replace(genesis, record_node=genesis.record_node - 1),
        replace(genesis, graph_root=b"g" * 32),
    ):
        with pytest.raises(MoveRefusedError):
            start(false, run.task.graph)


# --- what is refused, and says why


def test_the_same_bytes_twice_are_one_move(run: Run, liar: TraceProvider) -> None:
    """Bonds, answers and openings: the second is refused, and changes nothing."""
    genesis = make_game(run.task, liar, SOLVER)
    result = play(genesis, run.graph, [Player(liar, SOLVER), as_honest(run)])
    game = start(genesis, run.graph)
    for entry in result.transcript:
        assert entry.move is not None
        game = apply(game, entry.move, entry.at)
        if not game.over:
            with pytest.raises(MoveRefusedError):
                apply(game, entry.move, entry.at)
    game = advance(game, result.game.now)
    assert find_verdict(game) == result.verdict
    for entry in result.transcript:
        assert entry.move is not None
        with pytest.raises(MoveRefusedError, match="over"):
            apply(game, entry.move, game.now)


def test_a_party_has_one_claim_in_a_contest(run: Run, liar: TraceProvider) -> None:
    """The second bond is refused, whether it says the same or something else, at every level."""
    genesis = make_game(run.task, liar, SOLVER)
    players = [Player(liar, SOLVER), as_honest(run)]
    game = until(genesis, run, players[1:], lambda game: game.moves == 1)
    for root in (run.truth.log().root, liar.log().root, b"?" * 32):
        with pytest.raises(MoveRefusedError, match="already"):
            apply(game, sign(game.id, game.id, Bond(root, b"", ()), HONEST), game.now)
    game = until(genesis, run, players, has_sides)
    nested = get_contest(game, "trace")
    (bond,) = as_honest(run).moves(game)
    game = apply(game, bond, game.now)
    traitor = make_traitor(run, run.truth, 3).trace(STEP).root
    for about in (bond.about, find_side(game, nested, liar.log().root)):
        other = replace(cast(Bond, decode_move(bond.move)), root=traitor)
        with pytest.raises(MoveRefusedError, match="already"):
            apply(game, sign(game.id, about, other, HONEST), game.now)


def test_only_what_is_asked_is_answered_and_only_by_who_backs_it(
    run: Run, liar: TraceProvider
) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, run, [Player(liar, SOLVER), as_honest(run)], asks_items)
    true = next(iter(as_honest(run).moves(game)))
    false = next(iter(Player(liar, SOLVER).moves(game)))
    assert {true.about, false.about} == set(game.asked)
    for about, move, key, why in (
        (true.about, true.move, CHALLENGER, "backs no claim"),
        (true.about, true.move, SOLVER, "backs no claim"),
        (false.about, false.move, HONEST, "backs no claim"),
        (b"a" * 32, true.move, HONEST, "not asked for"),
        (get_contest(game, "log").root, true.move, HONEST, "not asked for"),
        (true.about, false.move, HONEST, "do not give the hash"),
        (game.id, true.move, CHALLENGER, "no items are asked for"),
    ):
        with pytest.raises(MoveRefusedError, match=why):
            apply(game, sign(game.id, about, decode_move(move), key), game.now)
    opening = Open(run.truth.log().root, b"t" * 32, (), (), None, None, None, None)
    with pytest.raises(MoveRefusedError, match="no opening is asked for"):
        apply(game, sign(game.id, true.about, opening, HONEST), game.now)
    bond = Bond(run.truth.log().root, b"", ())
    with pytest.raises(MoveRefusedError, match="no side"):
        apply(game, sign(game.id, true.about, bond, HONEST), game.now)


@pytest.mark.parametrize("arity", [2, 16])
def test_no_answer_is_longer_than_it_may_be(run: Run, arity: int) -> None:
    """Whatever an honest player sends is within what its kind may have, and one byte more is
    refused before it is decoded or its signature is looked at."""
    node = run.find("h/acc")
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (3, node): bump(run.tensor(3, node), 5)
    }
    claim = Patched(run.truth, run.task, outputs, {STEP: false_record(run, STEP)})
    genesis = make_game(run.task, claim, SOLVER, arity=arity)
    result = play(genesis, run.graph, [Player(claim, SOLVER), as_honest(run)])
    assert stands(result, run)
    game, kinds = start(genesis, run.graph), set()
    for entry in result.transcript:
        assert entry.move is not None
        game = advance(game, entry.at)
        question = game.asked.get(entry.move.about)
        limit = MAX_BOND if question is None else question.limit
        kinds.add(type(decode_move(entry.move.move)))
        assert len(entry.move.move) <= limit
        check_offer(game, replace(entry.move, move=b"\xff" * limit, signature=bytes(64)))
        with pytest.raises(MoveRefusedError, match="more than"):
            check_offer(game, replace(entry.move, move=b"\xff" * (limit + 1)))
        game = apply(game, entry.move, entry.at)
    assert kinds == {Bond, Reveal, Open}


def test_an_opening_is_against_claims_that_meet_in_the_dispute(
    run: Run, liar: TraceProvider
) -> None:
    """Other claims, live and with records and traces of their own, need not agree on anything."""
    node = run.find("h/acc")
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (STEP, node): bump(run.tensor(STEP, node), 5)
    }
    claim = Patched(run.truth, run.task, outputs, {STEP: false_record(run, STEP)})
    away = make_liar(run, 2)
    players: list[Actor] = [
        Player(claim, SOLVER),
        Player(away, CHALLENGER),
        Player(make_traitor(run, run.truth, 3), ACCOMPLICE),
        as_honest(run),
    ]

    def is_at_node(game: Game) -> bool:
        for question in game.asked.values():
            contest, dispute = question.where[0]
            place = game.contests[contest].disputes[dispute].place
            if not question.value and (place.step, place.node) == (STEP, node):
                return True
        return False

    game = until(make_game(run.task, claim, SOLVER), run, players, is_at_node)
    opened = [
        signed
        for signed in as_honest(run).moves(game)
        if isinstance(decode_move(signed.move), Open)
        and game.contests[game.asked[signed.about].where[0][0]].disputes[signed.about].place.node
        == node
    ]
    (signed,) = opened
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    for false in (
        replace(move, log=away.log().root),
        replace(move, log=b"l" * 32),
        replace(move, trace=make_traitor(run, run.truth, 3).trace(STEP).root),
        replace(move, trace=away.trace(2).root),
        replace(move, trace=move.log),
        replace(move, terms=move.trace),
    ):
        with pytest.raises(MoveRefusedError):
            apply(game, sign(game.id, signed.about, false, HONEST), game.now)
    assert apply(game, signed, game.now).moves == game.moves + 1


def test_no_bond_after_its_window(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = start(genesis, run.graph)
    truth = Bond(run.truth.log().root, b"", ())
    at = genesis.opened + CLOCKS.join
    assert apply(game, sign(game.id, game.id, truth, HONEST), at).logs[truth.root].fall is None
    with pytest.raises(MoveRefusedError, match="over"):
        apply(game, sign(game.id, game.id, truth, HONEST), at + 1)  # nobody had contradicted
    game = until(genesis, run, [as_honest(run), Player(liar, SOLVER)], has_sides)
    with pytest.raises(MoveRefusedError, match="no new claims"):
        apply(game, sign(game.id, game.id, Bond(b"n" * 32, b"", ()), CHALLENGER), game.now)
    joined = apply(game, sign(game.id, game.id, truth, CHALLENGER), game.now)
    assert joined.moves == game.moves + 1, "a claim that is in it takes backers while it stands"
    (bond,) = as_honest(run).moves(game)
    closes = get_contest(game, "trace").sides[bond.about].closes
    assert closes == game.now + CLOCKS.trace
    assert apply(game, bond, closes).moves == game.moves + 1
    with pytest.raises(MoveRefusedError):
        apply(game, bond, closes + 1)


def test_no_bond_behind_what_has_fallen(run: Run, liar: TraceProvider) -> None:
    other = make_liar(run, 2)
    players: list[Actor] = [Player(liar, SOLVER), as_honest(run), Player(other, CHALLENGER)]
    game = until(
        make_game(run.task, liar, SOLVER),
        run,
        players,
        lambda game: any(claim.fall for claim in game.logs.values()),
    )
    assert not game.over
    fallen = next(root for root, claim in game.logs.items() if claim.fall)
    with pytest.raises(MoveRefusedError, match="fallen"):
        apply(game, sign(game.id, game.id, Bond(fallen, b"", ()), make_key(900)), game.now)


# --- time


def test_the_last_moment_counts_and_the_next_does_not(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, run, [Player(liar, SOLVER), as_honest(run)], asks_items)
    (signed,) = as_honest(run).moves(game)
    contest = get_contest(game, "log")
    own = contest.index[run.truth.log().root]
    due = genesis.opened + CLOCKS.join + CLOCKS.grace + 2 * CLOCKS.answer
    assert contest.find_due(1 << own, 1 << 60) == {own: due}

    def left_after(at: int) -> int:
        claim = get_contest(apply(game, signed, at), "log").claims[own]
        assert claim.fall is None
        return claim.left

    # Nothing runs until the answer is due; then its budget does, to the last millisecond.
    assert left_after(due) == CLOCKS.budget
    assert left_after(due + 1) == CLOCKS.budget - 1
    assert left_after(due + CLOCKS.budget) == 0
    with pytest.raises(MoveRefusedError):
        apply(game, signed, due + CLOCKS.budget + 1)
    # Both owed an answer: both have fallen.  A leap over everything ends the game all the same.
    verdict = find_verdict(advance(game, 2**61))
    assert verdict is not None
    assert verdict.standing == b""
    assert verdict.at == due + CLOCKS.budget
    with pytest.raises(MoveRefusedError, match="own time"):
        apply(game, signed, game.now - 1)


@pytest.mark.parametrize("arity", [2, 4, 16])
def test_a_budget_is_spent_once_however_many_answers_are_late(run: Run, arity: int) -> None:
    """Who always answers a little late lives as long as the sum of it, and not a millisecond
    longer: every answer is charged, and those that run at once are charged once."""
    truth, claim = run.truth, make_liar(run, STEP)
    clocks = replace(CLOCKS, budget=40)
    genesis = make_game(run.task, claim, SOLVER, arity=arity, clocks=clocks)
    game = until(genesis, run, [as_honest(run), Player(claim, SOLVER)], asks_items)
    spent = 0
    while not game.sides:
        for signed in Player(claim, SOLVER).moves(game):
            game = apply(game, signed, game.now)
        contest = get_contest(game, "log")
        own = contest.index[truth.log().root]
        due = contest.find_due(1 << own, 1 << 60)[own]
        (signed,) = as_honest(run).moves(game)
        spent += 7
        with pytest.raises(MoveRefusedError):
            apply(game, signed, due + 7 + 40 - spent + 1)
        game = apply(game, signed, due + 7)
        assert get_contest(game, "log").claims[own].left == 40 - spent
    assert spent == 7 * {2: 3, 4: 2, 16: 1}[arity]


def test_a_slow_honest_party_has_its_grace_in_every_answer(run: Run, liar: TraceProvider) -> None:
    """The opponent cannot wear it out: each answer has at least the grace, however many there
    are, and of a budget of a few milliseconds all is left."""
    clocks = replace(CLOCKS, budget=10)
    genesis = make_game(run.task, liar, SOLVER, clocks=clocks, arity=2)
    slow = Late(as_honest(run), budget=False)
    result = play(genesis, run.graph, [slow, Player(liar, SOLVER)])
    assert stands(result, run)
    for contest in result.game.contests.values():
        for claim in contest.claims:
            assert claim.fall is not None or claim.left == 10


@dataclass
class Slow:
    """A player who does nothing before a time, but to bond and to answer about its log's top."""

    player: Player
    until: int
    firsts: int = 1

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            if signed.about == game.id or game.now >= self.until:
                yield signed

    def wakes(self, game: Game) -> int | None:
        return self.until


def test_who_comes_late_to_a_dispute_has_his_own_time(run: Run) -> None:
    """Claims with the same hash in a dispute are one class, each with its own due time."""
    liar, late = make_liar(run, 1), make_liar(run, 5)
    genesis = make_game(run.task, liar, SOLVER, arity=2)
    honest, away = as_honest(run), Slow(Player(late, CHALLENGER), 1700)
    players: list[Actor] = [honest, Player(liar, SOLVER), away]
    game = start(genesis, run.graph)
    for player in players:
        for signed in player.moves(game):
            game = apply(game, signed, game.now + 1)
    game = advance(game, genesis.clocks.join + 1)
    for key, claim in ((HONEST, run.truth), (SOLVER, liar)):
        (signed,) = Player(claim, key).moves(game)
        game = apply(game, signed, game.now + 1)
    # The honest claim and the liar are at the left half; the late one has not said its halves.
    contest = get_contest(game, "log")
    own = contest.index[run.truth.log().root]
    left = next(d for d in contest.disputes.values() if (d.start, d.end) == (0, 4))
    (shared,) = (found for found in left.classes.values() if found.mask >> own & 1)
    assert shared.mask.bit_count() == 1
    first_due = shared.asked[0][1]
    game = advance(game, 1700)
    (signed,) = away.moves(game)
    game = apply(game, signed, 1700)
    contest = get_contest(game, "log")
    left = contest.disputes[left.id]
    (shared,) = (found for found in left.classes.values() if found.mask >> own & 1)
    newcomer = 1 << contest.index[late.log().root]
    grace = CLOCKS.grace + 3 * CLOCKS.answer
    assert shared.asked == ((1 << own, first_due), (newcomer, 1700 + grace))
    # One of the two answers for both, and each is charged what he was late himself.
    signed = next(
        signed for signed in honest.moves(game) if isinstance(decode_move(signed.move), Reveal)
    )
    after = get_contest(apply(game, signed, 1700 + grace + 5), "log")
    assert after.claims[own].left == CLOCKS.budget - (1700 + grace + 5 - first_due)
    assert after.claims[newcomer.bit_length() - 1].left < CLOCKS.budget
    # If neither does, the first falls by its own clock, and the other later.
    for player in (honest, away):
        for signed in player.moves(game):
            if isinstance(decode_move(signed.move), Bond):
                game = apply(game, signed, game.now)
    silent = get_contest(advance(game, first_due + CLOCKS.budget + 1), "log")
    assert silent.claims[own].fall is not None
    assert silent.claims[newcomer.bit_length() - 1].fall is None


def test_who_comes_late_to_a_side_has_a_window_of_its_own(run: Run) -> None:
    """It shares the record at which two others differ, and arrives after their window: sub-claims
    for its side are taken again, and for the other side they are not."""
    liar, late = make_liar(run, STEP), make_liar(run, 5)
    genesis = make_game(run.task, liar, SOLVER)
    quiet = SlowTrace(Player(liar, SOLVER))
    away = Slow(Player(late, CHALLENGER), 2600)
    players: list[Actor] = [as_honest(run), quiet, away]
    game = until(genesis, run, players, lambda game: game.now >= 2600)
    nested = get_contest(game, "trace")
    mine, theirs = (find_side(game, nested, p.log().root) for p in (run.truth, liar))
    closed = nested.sides[mine].closes
    assert closed < game.now
    traitor = make_traitor(run, run.truth, 3)
    tree = traitor.trace(STEP)
    at = nested.size - genesis.nodes + genesis.record_node
    bond = Bond(tree.root, tree.leaf(at), tree.path(at))
    with pytest.raises(MoveRefusedError, match="no new claims"):
        apply(game, sign(game.id, mine, bond, ACCOMPLICE), game.now)
    (signed, *_) = away.moves(game)
    game = apply(game, signed, 2600)
    nested = game.contests[nested.id]
    assert nested.sides[mine].closes == 2600 + CLOCKS.trace + CLOCKS.replay
    assert nested.sides[theirs].closes == closed
    assert apply(game, sign(game.id, mine, bond, ACCOMPLICE), 2601).moves == game.moves + 1
    other = Patched(run.truth, run.task, {(3, 5): b"5" * 32}, {STEP: false_record(run, STEP)})
    tree = other.trace(STEP)
    false = Bond(tree.root, tree.leaf(at), tree.path(at))
    with pytest.raises(MoveRefusedError, match="no new claims"):
        apply(game, sign(game.id, theirs, false, ACCOMPLICE), 2601)
    result = play(genesis, run.graph, players)
    assert stands(result, run)


@dataclass
class SlowTrace:
    """Answers about its log at once, and about its trace never: it lives from its budget."""

    player: Player

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            question = game.asked.get(signed.about)
            if question is None or game.contests[question.where[0][0]].level == "log":
                yield signed


def test_a_claim_that_shares_records_with_the_honest_one_gains_nothing(run: Run) -> None:
    """False only after the record that is disputed: it backs the honest side there with a false
    trace, goes silent, concedes, or plays; then it falls where it is false itself."""
    liar = make_liar(run, STEP)
    for step, node in ((3, run.find("loss/grad")), (STEP, run.find("h/acc"))):
        outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
            (step, node): bump(run.tensor(step, node), 0)
        }
        shares = Patched(run.truth, run.task, outputs, {5: false_record(run, 5)})
        for order in (1, -1):
            players: list[Actor] = [
                Player(shares, CHALLENGER),
                Late(Player(shares, ACCOMPLICE)),
                Player(liar, SOLVER),
                as_honest(run),
            ]
            result = play(make_game(run.task, liar, SOLVER), run.graph, players[::order])
            assert stands(result, run)
            fall = result.game.logs[shares.log().root].fall
            assert fall is not None
            assert fall.place.step == 5


def test_everybody_joins_at_the_last_millisecond(run: Run, liar: TraceProvider) -> None:
    genesis = make_game(run.task, liar, SOLVER)
    game = start(genesis, run.graph)
    at = genesis.opened + CLOCKS.join
    claims = [make_liar(run, step) for step in (1, 2, 3, 5)]
    keys = [make_key(800 + number) for number in range(len(claims))]
    bonds = [Bond(claim.log().root, b"", ()) for claim in claims]
    for bond, key in zip(bonds, keys, strict=True):
        game = apply(game, sign(game.id, game.id, bond, key), at)
    game = apply(game, sign(game.id, game.id, Bond(run.truth.log().root, b"", ()), HONEST), at)
    assert game.round == 0
    game = advance(game, at + 1)
    assert get_contest(game, "log").live.bit_count() == 6
    actors: list[Actor] = [
        *(Late(Player(claim, key)) for claim, key in zip(claims, keys, strict=True)),
        Late(Player(liar, SOLVER)),
        as_honest(run),
    ]
    assert stands(play(genesis, run.graph, actors), run)


def test_sub_claims_fall_with_all_that_they_stand_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims that are false in the same record, and silent elsewhere: when both have fallen,
    nobody owes anything to their sub-claim, which falls too."""

    def play_moot() -> tuple[Play, str]:
        first = Patched(run.truth, run.task, records={1: false_record(run, 1)})
        both = {1: false_record(run, 1), 5: false_record(run, 5)}
        second = Patched(run.truth, run.task, records=both)
        genesis = make_game(run.task, first, SOLVER, arity=2)
        players: list[Actor] = [
            Shy(Player(first, SOLVER), 4),
            Shy(Player(second, CHALLENGER), 4),
            as_honest(run),
        ]
        result = play(genesis, run.graph, players)
        nested = next(c for c in result.game.contests.values() if c.place.step == 1)
        return result, find_fall_of(nested, first.trace(1).root)

    result, fall = play_moot()
    assert stands(result, run)
    assert fall == "moot"
    monkeypatch.setattr(Work, "_drop_moot", lambda *args: None)
    _, fall = play_moot()
    assert fall == ""


@dataclass
class Shy:
    """Says of its log what is left of a leaf, and plays its trace never."""

    player: Player
    leaf: int

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for signed in self.player.moves(game):
            question = game.asked.get(signed.about)
            if question is None:
                yield signed
                continue
            contest, place = question.where[0]
            dispute = game.contests[contest].disputes[place]
            if dispute.tree == "log" and dispute.start < self.leaf:
                yield signed


def test_what_was_learnt_elsewhere_is_not_asked_again(run: Run) -> None:
    """An answer is the same bytes wherever it is asked for: a service that has it once would take
    a second one for a copy, so that nobody may owe it twice."""
    first, second = make_liar(run, 2), make_liar(run, STEP)
    players: list[Actor] = [
        Player(first, SOLVER),
        Player(second, CHALLENGER),
        Follower(Player(make_traitor(run, run.truth, 3), ACCOMPLICE)),
        as_honest(run),
    ]
    for arity in (2, 16):
        result = play(make_game(run.task, first, SOLVER, arity=arity), run.graph, players)
        assert stands(result, run)
        answers = [
            entry.move.about
            for entry in result.transcript
            if entry.move is not None and isinstance(decode_move(entry.move.move), Reveal)
        ]
        assert len(set(answers)) == len(answers)


# --- size and work


def test_accepted_moves_are_small(run: Run, liar: TraceProvider) -> None:
    """Everyone who follows a game keeps its moves: no item is longer than a chunk."""
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, run, [as_honest(run), Player(liar, SOLVER)], asks_items)
    about = next(iter(as_honest(run).moves(game))).about
    for items in ((b"a" * 65536,) * 64, (b"a" * 1025,) * 5, (b"a" * 1024,) * 5, (b"",) * 300):
        with pytest.raises(VtrainError):
            apply(game, sign(game.id, about, Reveal(items), HONEST), game.now)


def test_nothing_is_decoded_before_it_is_known_to_be_asked_for(
    run: Run, liar: TraceProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers cost a look-up: neither signatures nor bytes of theirs are looked at."""
    genesis = make_game(run.task, liar, SOLVER)
    game = until(genesis, run, [as_honest(run), Player(liar, SOLVER)], asks_items)
    (own,) = as_honest(run).moves(game)

    def touch(*args: object) -> None:
        raise AssertionError("was looked at")

    monkeypatch.setattr("vtrain.dispute.game.verify_signature", touch)
    monkeypatch.setattr("vtrain.dispute.game.decode_move", touch)
    junk = b"\xff" * (4 << 20)
    for signed in (
        replace(own, party=public_key(CHALLENGER)),
        replace(own, about=b"n" * 32),
        replace(own, move=junk),
        replace(own, game=b"g" * 32),
        replace(own, about=game.id),
        replace(own, party=public_key(CHALLENGER), about=game.id, move=junk),
    ):
        with pytest.raises(MoveRefusedError):
            apply(game, signed, game.now)
    with pytest.raises(AssertionError, match="looked at"):
        apply(game, own, game.now)


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
    result = play(make_game(task, claim, SOLVER), run.graph, players)
    assert stands(result, run)
    # The trace of the interval (2 steps), the disputed tensor and the inputs, going back to each.
    assert counting.asked <= 8


# --- tasks that cannot be disputed are no games


def make_claim_about(spec: TaskSpec, graph: StepGraph) -> Genesis:
    log = b"l" * 32
    claim = Claim(b"r" * 32, public_key(SOLVER), compute_task_id(spec), spec.steps, log)
    return make_genesis(spec, graph, sign_claim(claim, SOLVER), host=HOST, opened=0)


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


class Flaky:
    """A service that is away when it is asked, every second time, and a liar in it."""

    def __init__(self, game: Game, liar: Player) -> None:
        self.game = game
        self._asked = 0
        self._liar = liar
        self.more = False
        self.events: list[Any] = []

    @property
    def verdict(self) -> Verdict | None:
        return find_verdict(self.game)

    def move(self, signed: SignedMove) -> None:
        self._asked += 1
        if self._asked % 2:
            raise BusyError("does not answer", where="move")
        self.game = apply(self.game, signed, self.game.now + 1)

    def poll(self, wait: float = 0, **_: object) -> list[Any]:
        for signed in list(self._liar.moves(self.game)):
            self.game = apply(self.game, signed, self.game.now + 1)
        self.game = advance(self.game, self.game.now + round(1000 * wait))
        return []


def test_a_player_outlives_a_service_that_is_away(run: Run) -> None:
    liar = Patched(run.truth, run.task, records={STEP: b"no record"})
    clocks = replace(CLOCKS, join=60_000, budget=60_000, grace=5_000)
    game = start(make_game(run.task, liar, SOLVER, clocks=clocks), run.graph)
    service = Flaky(game, Player(liar, SOLVER))
    follower, client = cast(clients.Follower, service), cast(clients.DisputeClient, service)
    verdict = clients.play(follower, client, as_honest(run))
    assert verdict.standing == run.truth.log().root


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
    node = run.find("param/w1")
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (3, node): bump(run.tensor(3, node), 5)
    }
    claim = Patched(run.truth, run.task, outputs, {STEP: false_record(run, STEP)})
    genesis = make_game(run.task, claim, SOLVER)
    game = until(genesis, run, [Player(claim, SOLVER), as_honest(run)], asks_opening)
    (signed,) = as_honest(run).moves(game)
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    assert move.base is not None
    assert move.state_leaf is not None
    chunks = move.inputs[0].chunks
    assert chunks
    for number in (2**32, 2**48, 2**62):
        inputs = (
            replace(move.inputs[0], chunks=(replace(chunks[0], index=number),)),
            *move.inputs[1:],
        )
        for hostile in (
            replace(move, inputs=inputs),
            replace(move, base=replace(move.base, index=number)),
            replace(move, base=replace(move.base, size=number)),
            replace(move, state_leaf=replace(move.state_leaf, index=number)),
            replace(move, state_leaf=replace(move.state_leaf, size=number)),
            replace(move, before=Member(bytes(8), number, number, ())),
        ):
            with pytest.raises(MoveRefusedError):
                apply(game, sign(game.id, signed.about, hostile, HONEST), game.now)
    far = replace(move, base=replace(move.base, index=2**63))
    with pytest.raises(EncodingError):
        apply(game, sign(game.id, signed.about, far, HONEST), game.now)
    assert find_verdict(advance(apply(game, signed, game.now), 10**9)) is not None
