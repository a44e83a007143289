"""How a dispute grows: with the run's size, with the number of false claims, with nested levels.

On a toy run of full size: 2^20 steps, 2^12 nodes a step, tensors of 2^20 chunks, K = 4096.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.dispute.arena import Actor, make_key
from tests.dispute.bounds import Bounds
from tests.dispute.crowd import (
    HONEST,
    HONEST_KEY,
    Record,
    Silent,
    play_gang,
    play_pair,
    play_together,
)
from tests.dispute.toy import (
    OUTPUT_WIDTH,
    TRANSPOSED,
    Kind,
    Lie,
    ToyProvider,
    ToyRun,
    make_toy_genesis,
)
from vtrain.dispute.players import Player
from vtrain.wire.dispute import Open, decode_move
from vtrain.wire.opening import CHUNK_LENGTH

KINDS: tuple[Kind, ...] = tuple(TRANSPOSED)
LEAF_BYTES = 80_000


@pytest.fixture(scope="module")
def run() -> ToyRun:
    return ToyRun()


def assert_truth_stands(record: Record, run: ToyRun) -> None:
    assert record.verdict.standing == ToyProvider(run).log().root
    top = record.game.tournaments[0]
    for entry in top.entries:
        assert (entry.fall is None) == (HONEST in entry.backers)


def assert_within_bounds(record: Record, run: ToyRun) -> None:
    logs, traces, folds = record.count_claims().values()
    chunks = run.rows * run.columns * OUTPUT_WIDTH // CHUNK_LENGTH
    bounds = Bounds(
        record.game.genesis, claims=(logs, traces, folds), chunks=chunks, blocks=run.blocks
    )
    assert record.count_matches(HONEST) <= record.bound_matches()
    assert record.moves[HONEST] <= bounds.moves
    assert record.game.now <= bounds.time


@pytest.mark.parametrize(("arity", "rounds"), [(2, 68), (4, 36), (16, 20), (64, 17)], ids=str)
def test_a_dispute_at_scale(run: ToyRun, arity: int, rounds: int) -> None:
    record = play_pair(run, arity)
    assert_truth_stands(record, run)
    assert record.count_rounds() == rounds
    assert record.game.moves == 2 * rounds, "a bond to join, two answers a round, one opening"
    assert sum(record.sent_bytes.values()) <= 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_stays_small(run: ToyRun, kind: Kind) -> None:
    record = play_pair(replace(run, kind=kind))
    assert_truth_stands(record, run)
    assert record.opening is not None
    _, signed = record.opening
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    assert 0 < sum(len(item.chunks) for item in move.inputs) <= 32
    assert len(signed.move) < LEAF_BYTES


def test_the_place_of_the_lie_is_found(run: ToyRun) -> None:
    record = play_pair(run)
    fall = next(entry.fall for entry in record.game.tournaments[0].entries if entry.fall)
    assert fall.reason == "refuted"
    place = fall.place
    assert (place.step, place.node) == (run.real[0], run.product)
    assert (place.element, place.block) == (run.element, run.block)


@pytest.mark.parametrize("hijacked", [False, True], ids=["plain", "hijacked"])
@pytest.mark.parametrize("sybils", [1, 16, 256])
def test_work_grows_with_the_logarithm_of_the_claims(
    run: ToyRun, sybils: int, hijacked: bool
) -> None:
    step = run.real[0]
    record = play_gang(run, [Lie(step, i, i) for i in range(1, sybils + 1)], hijacked=hijacked)
    assert_truth_stands(record, run)
    matches = math.ceil(math.log2(sybils + 1))
    game = record.game
    assert game.tournaments[0].round == matches + 1, "a tournament ends in the round after"
    played = [
        match
        for match in game.matches
        if match.tournament == 0 and game.tournaments[0].backed_by(HONEST) in match.sides
    ]
    assert len(played) == matches
    assert_within_bounds(record, run)


@pytest.mark.parametrize("hijacked", [False, True], ids=["plain", "hijacked"])
@pytest.mark.parametrize(("logs", "traces", "folds"), [(1, 16, 16), (4, 4, 4), (16, 2, 2)])
def test_nested_claims_multiply_logarithms(
    run: ToyRun, logs: int, traces: int, folds: int, hijacked: bool
) -> None:
    step = run.real[0]
    lies = [
        Lie(step, i, j, detour=k)
        for i in range(1, logs + 1)
        for j in range(1, traces + 1)
        for k in range(folds)
    ]
    record = play_gang(run, lies, hijacked=hijacked)
    assert_truth_stands(record, run)
    claims = record.count_claims()
    own = 2 if hijacked else 0
    assert claims["log"] == logs + 1
    assert traces + 1 <= claims["trace"] <= 2 * traces + 1 + own
    assert_within_bounds(record, run)


def test_nobody_moves_for_a_claim_that_only_its_hijackers_back(run: ToyRun) -> None:
    """Without an honest party the true claim falls: a hijacker's silence is worth something."""
    truth, liar = ToyProvider(run), ToyProvider(run, Lie(run.real[0], 1, 1))
    genesis = make_toy_genesis(truth, make_key(2))
    actors: list[Actor] = [Silent(Player(truth, make_key(2))), Player(liar, make_key(3))]
    assert play_together(genesis, actors).verdict.standing == liar.log().root
    late = play_together(genesis, [*actors, Player(truth, HONEST_KEY)])
    assert late.verdict.standing == truth.log().root
