"""How a dispute grows: with the run's size, with the number of false claims, with nested levels.

On a toy run of full size: 2^20 steps, 2^12 nodes a step, tensors of 2^20 chunks, K = 4096.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.dispute.arena import Actor, make_key
from tests.dispute.bounds import Bounds, make_bounds
from tests.dispute.crowd import (
    HONEST,
    HONEST_KEY,
    Flood,
    Gang,
    Hijacker,
    Machine,
    Pace,
    Paced,
    Record,
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
from tests.exhaustive import spare
from vtrain.dispute import money
from vtrain.dispute.game import advance
from vtrain.dispute.genesis import make_bonds
from vtrain.dispute.players import Player
from vtrain.dispute.transcript import replay
from vtrain.wire.dispute import Clocks, Open, decode_move
from vtrain.wire.opening import CHUNK_LENGTH

KINDS: tuple[Kind, ...] = tuple(TRANSPOSED)
LEAF_BYTES = 80_000
REPLAY = 50
LEAST = Clocks(
    join=100,
    trace=2 * REPLAY,
    terms=50,
    budget=50,
    grace=20,
    answer=1,
    opening=1,
    replay=REPLAY,
)
"""The least clocks with which one machine is in time: a trace may take two replays."""
PACES: dict[str, tuple[Pace, ...]] = {
    "full-clock stallers": ("stalls",),
    "instant conceders": ("concedes",),
    "grace-drippers": ("drips",),
    "late joiners": ("late",),
    "sprinters": ("sprints",),
    "silent": ("silent",),
    "prompt": ("prompt",),
    "mixed": ("stalls", "late", "prompt", "drips", "silent", "concedes", "sprints"),
}


@pytest.fixture(scope="module")
def run() -> ToyRun:
    return ToyRun()


@pytest.fixture(scope="module")
def wide() -> ToyRun:
    """A run with disputable steps in 256 intervals."""
    return ToyRun(real=tuple(range(40_008, 40_008 + 256 * 64, 64)))


def make_lies(run: ToyRun, count: int, *, nested: bool) -> list[Lie]:
    """One false log less than ``count``: about one step, with a trace and a fold each; or each
    about another interval."""
    if nested:
        return [Lie(run.real[0], loss=i, product=i, detour=i) for i in range(1, count)]
    steps = run.real[:: len(run.real) // (count - 1)]
    return [Lie(step, loss=1, product=i, detour=i) for i, step in enumerate(steps, 1)]


def make_game_bounds(record: Record, run: ToyRun) -> Bounds:
    chunks = run.rows * run.columns * OUTPUT_WIDTH // CHUNK_LENGTH
    return make_bounds(record.game, chunks=chunks, blocks=run.blocks)


def assert_truth_stands(record: Record, run: ToyRun) -> None:
    truth = ToyProvider(run).log().root
    assert record.standing == truth
    for root, claim in record.game.logs.items():
        assert (claim.fall is None) == (root == truth)


def assert_within_bounds(record: Record, run: ToyRun) -> None:
    bounds = make_game_bounds(record, run)
    assert record.game.ends <= bounds.time
    assert record.moves[HONEST] <= bounds.moves
    assert record.sent_bytes[HONEST] <= bounds.bytes
    assert not record.refused[HONEST]


def assert_paid_for_work(record: Record) -> None:
    """The honest party has her bonds back, and as much as her work cost by the declared clocks."""
    game = record.game
    settled = money.list_outcomes(game)
    assert all(found.returned for found in settled.outcomes if found.party == HONEST)
    paid = sum(share.amount for share in settled.shares if share.party == HONEST)
    cost = money.count_work(game).get(HONEST, 0)
    assert paid * 1000 >= cost, "bonds are for a price of one unit a second"


@pytest.mark.parametrize(("arity", "rounds"), [(2, 68), (4, 36), (16, 20), (64, 17)], ids=str)
def test_a_dispute_at_scale(run: ToyRun, arity: int, rounds: int) -> None:
    record = play_pair(run, arity)
    assert_truth_stands(record, run)
    assert record.rounds == rounds
    assert record.game.moves == 2 * rounds, "a bond to join, two answers a round, one opening"
    assert sum(record.sent_bytes.values()) <= 200_000
    assert_within_bounds(record, run)


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
    fall = next(claim.fall for claim in record.game.logs.values() if claim.fall)
    assert fall.reason == "refuted"
    assert (fall.place.step, fall.place.node) == (run.real[0], run.product)
    assert (fall.place.element, fall.place.block) == (run.element, run.block)


@pytest.mark.parametrize("paces", PACES.values(), ids=PACES)
@pytest.mark.parametrize(
    ("group", "nested"),
    spare([(17, True), (17, False), (4, True), (4, False)], (17, True).__eq__),
)
def test_no_adversary_delays_or_costs_more_than_the_bound(
    wide: ToyRun, paces: Sequence[Pace], group: int, nested: bool
) -> None:
    lies = make_lies(wide, 17, nested=nested)
    bonds = make_bonds(LEAST, price=1)
    record = play_gang(wide, lies, pace=paces, replay=True, clocks=LEAST, group=group, bonds=bonds)
    assert_truth_stands(record, wide)
    assert_within_bounds(record, wide)
    assert_paid_for_work(record)
    again = replay(record.game.genesis, wide.disputed, record.transcript)
    assert advance(again, record.game.now) == record.game


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "paces"),
    spare([(17, PACES["mixed"]), (257, PACES["full-clock stallers"])], lambda case: case[0] == 17),
    ids=str,
)
def test_257_claims_in_every_level(run: ToyRun, paces: Sequence[Pace], group: int) -> None:
    clocks = LEAST if group == 17 else replace(LEAST, replay=0)
    lies = make_lies(run, 257, nested=True)
    record = play_gang(run, lies, pace=paces, replay=True, clocks=clocks, group=group)
    assert_truth_stands(record, run)
    assert_within_bounds(record, run)


@pytest.mark.parametrize(
    ("pace", "rivals", "group"),
    [
        *spare(
            itertools.product(("prompt", "stalls", "sprints"), (16, 64), (4, 17)),
            lambda case: case[1] == 16,
        ),
        pytest.param("sprints", 256, 4, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_one_machine_is_in_time_when_each_rival_lies_in_another_interval(
    wide: ToyRun, pace: Pace, rivals: int, group: int
) -> None:
    """With the least clocks, and hijackers who answer for her ahead of her."""
    lies = make_lies(wide, rivals + 1, nested=False)
    hijacker = Hijacker(ToyProvider(wide), make_key(2), "below")
    record = play_gang(
        wide, lies, pace=pace, hijackers=[hijacker], replay=True, clocks=LEAST, group=group
    )
    assert_truth_stands(record, wide)
    assert_within_bounds(record, wide)


def test_a_flood_and_false_sub_claims_in_her_name_cost_an_honest_party_nothing(
    run: ToyRun,
) -> None:
    step, truth = run.real[0], ToyProvider(run)
    traitors = [
        Paced(ToyProvider(run, lie), make_key(50 + i))
        for i, lie in enumerate((Lie(step, product=-1), Lie(step, detour=1), Lie(step, product=-2)))
    ]
    flood = Flood([make_key(60 + i) for i in range(4)])
    gang = Gang([Paced(ToyProvider(run, Lie(step, loss=1, product=1)), make_key(70))])
    honest = Machine(truth, HONEST_KEY, REPLAY)
    genesis = make_toy_genesis(truth, HONEST_KEY, clocks=LEAST)
    record = play_together(genesis, run.disputed, [*traitors, flood, gang, honest])
    assert record.standing == truth.log().root
    assert record.game.ends <= make_game_bounds(record, run).time
    assert record.moves[HONEST] <= 60


def test_nobody_moves_for_a_claim_that_only_its_hijackers_back(run: ToyRun) -> None:
    """Without an honest party the true claim falls: a hijacker's silence is worth something."""
    truth, liar = ToyProvider(run), ToyProvider(run, Lie(run.real[0], 1, 1))
    genesis = make_toy_genesis(truth, make_key(2))
    actors: list[Actor] = [Paced(truth, make_key(2), "silent"), Player(liar, make_key(3))]
    assert play_together(genesis, run.disputed, actors).standing == liar.log().root
    late = play_together(genesis, run.disputed, [*actors, Player(truth, HONEST_KEY)])
    assert late.standing == truth.log().root


@pytest.mark.parametrize("first", ["stalls", "late", "drips"])
@pytest.mark.parametrize("second", ["stalls", "late", "silent", "concedes"])
def test_a_game_without_honest_parties_ends_too(run: ToyRun, first: Pace, second: Pace) -> None:
    """Rivals who both use up their budgets take twice as many of them as the honest do."""
    step = run.real[0]
    liars = [ToyProvider(run, lie) for lie in (Lie(step, 1, 1), Lie(step, 2, 2, detour=1))]
    genesis = make_toy_genesis(liars[0], make_key(2), clocks=LEAST)
    actors = [
        Paced(liar, make_key(2 + i), pace)
        for i, (liar, pace) in enumerate(zip(liars, (first, second), strict=True))
    ]
    record = play_together(genesis, run.disputed, actors)
    assert record.game.ends <= make_game_bounds(record, run).time_of_nobody
