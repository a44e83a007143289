"""Random games of actors of every kind: ``python -m tests.dispute.campaign --games 10000``.

Each game has one honest player, of a solver's or a challenger's claim, and some adversaries, with
claims, paces, hijackings and floods of chance, on a toy run of chance, with clocks of chance.
She never loses, the game ends within its bound, her moves are within theirs, and the transcript
replays to the same state, also where it says that time passed in between.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

import click

from tests.dispute.arena import Actor, make_key
from tests.dispute.bounds import make_bounds
from tests.dispute.crowd import (
    HONEST,
    HONEST_KEY,
    Flood,
    Hijacker,
    Machine,
    Pace,
    Paced,
    Record,
    play_together,
)
from tests.dispute.toy import OUTPUT_WIDTH, Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.dispute import money
from vtrain.dispute.game import advance
from vtrain.dispute.transcript import TimedMove, replay
from vtrain.wire.dispute import Clocks
from vtrain.wire.opening import CHUNK_LENGTH

PACES: tuple[Pace, ...] = ("prompt", "drips", "stalls", "sprints", "silent", "late", "concedes")
STEPS = (3, 4, 9, 17, 40)
RUNS = [
    ToyRun(64, 64, every, rows=4, columns=512, terms=terms, real=STEPS)
    for every in (1, 4, 16)
    for terms in (16, 96)
]


@dataclass
class Summary:
    """What a campaign came to."""

    games: int = 0
    moves: int = 0
    claims: int = 0
    longest: float = 0.0


def play_one(chance: random.Random) -> Record:
    """One game, held against all that is promised; AssertionError names what is not so."""
    run = chance.choice(RUNS)
    truth = ToyProvider(run)
    replays = chance.choice((0, 0, 5, 40))
    clocks = Clocks(
        join=chance.randrange(20, 100),
        trace=2 * replays + chance.randrange(5, 80),
        terms=chance.randrange(5, 60),
        budget=chance.randrange(1, 120),
        grace=chance.randrange(6, 60),
        answer=chance.randrange(1, 4),
        opening=chance.randrange(1, 4),
        replay=replays,
    )
    actors = [_make_adversary(chance, run, number) for number in range(chance.randrange(1, 9))]
    actors.insert(chance.randrange(len(actors) + 1), Machine(truth, HONEST_KEY, replays))
    liar = ToyProvider(run, Lie(chance.choice(STEPS), loss=1, product=1))
    claim, key = chance.choice(((truth, HONEST_KEY), (liar, make_key(2)), (truth, make_key(2))))
    genesis = make_toy_genesis(
        claim, key, clocks=clocks, arity=chance.choice((2, 4, 16)), group=chance.choice((2, 3, 17))
    )
    record = play_together(genesis, run.disputed, actors)
    check(record, run, truth.log().root)
    return record


def _make_adversary(chance: random.Random, run: ToyRun, number: int) -> Actor:
    key = make_key(2 + number)
    step, false = chance.choice(STEPS), chance.randrange(1, 4)
    detour, block = chance.randrange(3), chance.randrange(-1, 2)
    kind = chance.randrange(8)
    if kind == 0:
        return Flood([make_key(200 + number)])
    if kind == 1:
        stops = chance.choice(("trace", "chunks", "below", "terms", "leaf"))
        return Hijacker(ToyProvider(run), key, stops)
    pace = chance.choice(PACES)
    if kind == 2:
        traitor = Lie(step, product=-false, detour=detour)
        return Paced(ToyProvider(run, traitor), key, pace)
    # Who lies alike about the product does so about the record: a toy run has one node to dispute.
    lie = Lie(step, loss=false, product=false, block=block, detour=detour)
    return Paced(ToyProvider(run, lie), key, pace, shallow=chance.random() < 0.1)


def check(record: Record, run: ToyRun, truth: bytes) -> None:
    """Hold a game against what is promised."""
    game = record.game
    assert record.standing == truth, "an honest claim never falls"
    chunks = -(-run.rows * run.columns * OUTPUT_WIDTH // CHUNK_LENGTH)
    bounds = make_bounds(game, chunks=chunks, blocks=run.blocks)
    assert game.ends <= bounds.time, f"ended at {game.ends}, after {bounds.time}"
    assert record.moves[HONEST] <= bounds.moves
    settled = money.list_outcomes(game)
    assert all(found.returned for found in settled.outcomes if found.party == HONEST)
    assert sum(share.amount for share in settled.shares) + settled.burnt == settled.pot
    for idle in (False, True):
        moves = [entry for move in record.transcript for entry in _with_idle(move, idle=idle)]
        again = advance(replay(game.genesis, run.disputed, moves), game.now)
        assert again == game, "a transcript replays to the same state"


def _with_idle(move: TimedMove, *, idle: bool) -> list[TimedMove]:
    return [TimedMove(move.at, None), move] if idle else [move]


def play_many(games: int, seed: int, *, first: int = 0) -> Summary:
    """So many games, numbered from ``first`` on; AssertionError names the one that goes wrong."""
    summary = Summary()
    for number in range(first, first + games):
        begin = time.perf_counter()
        try:
            record = play_one(random.Random(f"{seed}/{number}"))  # noqa: S311
        except AssertionError as error:
            raise AssertionError(f"game {number} of seed {seed}: {error}") from error
        summary = replace(
            summary,
            games=summary.games + 1,
            moves=summary.moves + record.game.moves,
            claims=summary.claims + len(record.game.logs),
            longest=max(summary.longest, time.perf_counter() - begin),
        )
    return summary


@click.command()
@click.option("--games", default=10_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first game.")
def main(games: int, seed: int, first: int) -> None:
    """Play random games; the first that breaks a promise ends it, by its number."""
    step = 100
    total = Summary()
    for at in range(first, first + games, step):
        part = play_many(min(step, first + games - at), seed, first=at)
        total = Summary(
            total.games + part.games,
            total.moves + part.moves,
            total.claims + part.claims,
            max(total.longest, part.longest),
        )
        click.echo(f"{total.games} games, {total.moves} moves, {total.claims} claims", err=True)
    click.echo(f"{total.games} games of seed {seed}, {total.moves} moves: nothing broken")


if __name__ == "__main__":
    main()
