"""What a dispute costs: time to the verdict, moves and bytes; the referee's leaf; the engine.

The scale figures are of a run of 2^20 steps with a state root every 16, 2^12 nodes a step and
tensors of 2^20 chunks, played on a toy run (tests/dispute/toy.py) whose openings are real.  A round
is an exchange in which all that is asked for at one time is answered: both sides' frontiers, both
sides' sub-claims, or the opening of a leaf.  Bounds are those of tests/dispute/bounds.py.

Predicted before measuring, at k = 16: 20 rounds (log 5, sub-claims 1, trace 4, chunks 5 and the
chunk 1, sub-claims 1, fold 2, opening 1) and 85 KB (36 reveals of 0.8 KB, an opening of 56 KB).
A leaf of 32 chunks hashes 32 KiB and 640 nodes above them: 0.3 ms.

Predicted for the time to a verdict, with windows and budgets of an hour, graces of five minutes and
a replay of 15: two parties 7.1 h at most; 257 claims in every level 1.1 times that where traces are
at hand and all play in one group, 4.6 times with one machine that replays and groups of 17, and
more in smaller ones (more rounds) as in larger ones (more replays a round).  Played games should
come to half of it: no adversary uses up windows, graces and budgets alike for all claims, and all
but the honest party's groups are done sooner.  Her moves: 20 where all lie about one step, whatever
their number, since what she says serves against all.

The MNIST dispute is about the step farthest from a checkpoint, so that each side does some 100 of
1400 steps again, twice: predicted was 0.3 of the time of training for everything.  That was wrong
for the whole: the engine trains the run in half a second, and the cheat, who does the false step by
the numpy law, needs as long again for a few of those.  Hence the limit is on the challenger with
the machine and its referee: no longer than training once more.

The GPT dispute is about one element of the largest weight gradient of examples/shakespeare, a sum
over 16 x 128 places, in the last but one of 20 steps (1,920 nodes each, a state root every 10).
Predicted before measuring, at k = 16: 15 rounds (log 2, sub-claims 1, a trace of 19,200 leaves 4,
512 chunks 3 and the chunk 1, sub-claims 1, the fold of 64 to 128 blocks 2, the opening 1) and 55 KB
(26 reveals of 0.6 KB, an opening of 32 chunks with their paths of 36 KB); the leaf 0.3 ms, as that
of the toy run.  Each side traces 10 steps, at three times the time of training, and evaluates two
nodes: 3 times the time of training 20 steps for the challenger and the machine.  Found: 13 rounds
and 33 KB, since a block of this fold has the terms of 10 chunks, not of 32; 1.7 times the training.
Predicted of the Llama, of which the same is asked: the same, as its largest gradient is a sum over
as many places.  Found: 14 rounds and 60 KB, as a block of it has the terms of 30 chunks.

``--part models`` measures the disputes about MNIST, the GPT and the Llama alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import _harness as harness
import numpy.typing as npt
from _shakespeare import Variant

from tests.dispute.arena import make_game, make_key
from tests.dispute.bounds import Bounds
from tests.dispute.crowd import (
    HONEST,
    HONEST_KEY,
    Pace,
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
from vtrain import _core
from vtrain.demo.lies import Lies, LyingProvider, LyingSession
from vtrain.dispute import money, statement
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.genesis import DEFAULT_CLOCKS, GROUP, MINUTE
from vtrain.dispute.players import Player
from vtrain.dispute.state import DisputedGraph
from vtrain.engines.base import Session, State
from vtrain.engines.registry import open_session
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.wire.dispute import Clocks, Open, decode_move
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.record import StepRecord

TASK = harness.ROOT / "examples" / "mnist" / "mlp.toml"
ARITIES = (2, 4, 16, 64)
COUNTS = (2, 17, 257)
GROUPS = (2, 4, 5, 7, 9, 16, 17, 33, 65, 257)
CHECKPOINT_EVERY = 100
LATENCY = 1000
"""Milliseconds of an exchange in the games of many, which have the clocks of real ones."""
CLOCKS = replace(DEFAULT_CLOCKS, replay=15 * MINUTE)
AT_HAND = replace(CLOCKS, replay=0)
HOUR = 60 * MINUTE
LEVELS = {
    "logs": "one level",
    "all": "every level",
    "intervals": "every level, each log in another interval",
}
PACES: dict[str, tuple[Pace, ...]] = {
    "prompt": ("prompt",),
    "full-clock stallers": ("stalls",),
    "grace-drippers": ("drips",),
    "late joiners": ("late",),
    "instant conceders": ("concedes",),
    "mixed": ("stalls", "late", "prompt", "drips", "silent", "concedes", "sprints"),
}

ROUNDS_LIMIT = 20
BYTES_LIMIT = 86_000
AT_HAND_LIMIT = 1.5
ONE_MACHINE_LIMIT = 6.0
MOVES_LIMIT = 21
"""Moves of an honest party for each bond that fell: a way down from end to end."""
LEAF_SECONDS_LIMIT = 1e-3
LEAF_BYTES_LIMIT = 80_000
MNIST_LIMIT = 1.0
TOO_MUCH = 1 << 24
"""What a false gradient is too great by: more than rounding takes away."""


# --- one lie at scale


def measure_arities(run: ToyRun) -> list[dict[str, Any]]:
    """A row for each k."""
    rows = []
    for arity in ARITIES:
        record = play_pair(run, arity)
        rows.append(
            {
                "k": arity,
                "rounds": record.rounds,
                "moves": record.game.moves,
                "bytes": sum(record.sent_bytes.values()),
            }
        )
    return rows


def measure_leaf(kind: Kind, seconds: float) -> dict[str, Any]:
    """The statement about a block in the midst of a product's element, and the time to judge it."""
    return judge_opening(play_pair(ToyRun(kind=kind), 16), seconds)


def judge_opening(record: Record, seconds: float) -> dict[str, Any]:
    """The statement of the last opening of a game, and the time to judge it."""
    assert record.opening is not None
    game, signed = record.opening
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    ((contest, dispute),) = game.asked[signed.about].where
    data = statement.compose(game, contest, dispute, move)
    judged = statement.decode_ruling(_core.referee_judge(data))
    assert judged.after in game.contests[contest].disputes[dispute].classes
    rounds = max(5, round(seconds / 0.01))
    times = [harness.time_once(lambda: _core.referee_judge(data), 20) for _ in range(rounds)]
    return {
        "blocks": judged.blocks,
        "chunks": sum(len(item.chunks) for item in move.inputs),
        "statement bytes": len(data),
        "seconds": harness.spread(times),
    }


# --- the engine


def train(
    task: CompiledTask, session: Session, provider: type[EngineProvider] = EngineProvider
) -> tuple[EngineProvider, float]:
    """Do all steps, keeping a state as often as a run has checkpoints; and the seconds it took."""
    states: dict[int, State] = {}
    records: list[StepRecord] = []
    session.load_state(task.initial_state)

    def run() -> None:
        for step in range(1, task.spec.steps + 1):
            records.append(session.step())
            if step % CHECKPOINT_EVERY == 0:
                states[step] = session.read_state()

    seconds = harness.time_once(run)
    return provider(task, session, records=records, states=states.get), seconds


def add_much(value: npt.NDArray[Any], before: object) -> npt.NDArray[Any]:
    """A gradient's accumulator with a false element."""
    false = value.copy()
    false.flat[12_345] += TOO_MUCH
    return false


def measure_mnist(steps: int, games: int) -> dict[str, Any]:
    """Disputes about one gradient element of the MLP, in the step farthest from a checkpoint."""
    task = compile_task(replace(load_task(TASK), steps=steps))
    return measure_task(task, steps - 1, games)


def measure_language(model: str, steps: int, games: int) -> dict[str, Any]:
    """Disputes about one gradient element of a model of examples/shakespeare."""
    with tempfile.TemporaryDirectory() as folder:
        file = Variant(model=model).open(Path(folder)).file
        task = compile_task(replace(file, steps=steps, checkpoint_every=steps))
        return measure_task(task, steps - 1, games)


def measure_task(task: CompiledTask, lies_at: int, games: int) -> dict[str, Any]:
    """Disputes about one element of the largest gradient, a sum over all samples and places."""
    nodes = task.graph.nodes
    gradients = [i for i, n in enumerate(nodes) if n.op == "matmul" and n.attrs["transpose_a"]]
    node = max(gradients, key=lambda index: nodes[index].outputs[0].size)
    figures: dict[str, list[float]] = {}
    training: list[float] = []
    leaf: dict[str, Any] = {}
    place = ""
    for number in range(games):
        honest, seconds = train(task, open_session("auto", task.graph, task.samples))
        session = open_session("auto", task.graph, task.samples)
        lying = LyingSession(task, Lies({(lies_at, node): add_much}), session)
        cheat, _ = train(task, lying, LyingProvider)
        key = make_key(1)
        genesis = make_game(task, cheat, key, nonce=bytes([number]) * 32)
        players = [Player(cheat, key), Player(honest, make_key(2))]
        record = play_together(genesis, DisputedGraph(task.graph, genesis.graph_root), players)
        assert record.verdict is not None
        fall = record.verdict.solver
        assert fall is not None
        assert (fall.reason, fall.place.step, fall.place.node) == ("refuted", lies_at, node)
        place = fall.place.describe()
        leaf = leaf or judge_opening(record, 0.5)
        thinking = record.thinking
        wall = record.judging + sum(thinking.values())
        training.append(seconds)
        for name, value in (
            ("all of it, seconds", wall),
            ("cheat, seconds", thinking[0]),
            ("challenger, seconds", thinking[1]),
            ("machine and referee, seconds", record.judging),
            ("all of it / training", wall / seconds),
            ("challenger and machine / training", (wall - thinking[0]) / seconds),
        ):
            figures.setdefault(name, []).append(value)
    return {
        "steps": task.spec.steps,
        "place": place,
        "node": f"{nodes[node].name}: {nodes[node].op} {nodes[node].outputs[0].shape}",
        "rounds": record.rounds,
        "moves": record.game.moves,
        "bytes": sum(record.sent_bytes.values()),
        "leaf": leaf,
        "training, seconds": harness.spread(training),
        **{name: harness.spread(values) for name, values in figures.items()},
    }


# --- many challengers


def make_bounds(run: ToyRun, clocks: Clocks, group: int, count: int, *, everywhere: bool) -> Bounds:
    """The bounds of a game of ``count`` logs, with as many traces and folds, or two of each."""
    genesis = make_toy_genesis(ToyProvider(run), HONEST_KEY, clocks=clocks, group=group)
    chunks = run.rows * run.columns * OUTPUT_WIDTH // CHUNK_LENGTH
    inner = count if everywhere else 2
    return Bounds(genesis, claims=(count, inner, inner), chunks=chunks, blocks=run.blocks)


def tabulate_bounds(run: ToyRun) -> list[dict[str, Any]]:
    """Hours to the verdict at most, by clocks and group."""
    rows = []
    for name, clocks in (("at hand", AT_HAND), ("one machine", CLOCKS)):
        for group in GROUPS:
            row: dict[str, Any] = {"traces": name, "group": group}
            for everywhere in (False, True):
                for count in COUNTS:
                    where = "in every level" if everywhere else "logs"
                    bounds = make_bounds(run, clocks, group, count, everywhere=everywhere)
                    row[f"{count} {where}, hours"] = round(bounds.time / HOUR, 2)
            most, two = row["257 in every level, hours"], row["2 in every level, hours"]
            row["257 in every level / 2"] = round(most / two, 2)
            rows.append(row)
    return rows


def make_lies(run: ToyRun, count: int, level: str) -> list[Lie]:
    """False logs about one step, each with a trace and a fold; or each about another interval."""
    if level == "intervals":
        steps = run.real[: count - 1]
        return [Lie(step, loss=1, product=i, detour=i) for i, step in enumerate(steps, 1)]
    return [Lie(run.real[0], loss=i, product=i, detour=i) for i in range(1, count)]


def measure_gang(run: ToyRun, count: int, name: str, level: str, *, replay: bool) -> dict[str, Any]:
    """What it takes an honest party against a gang of one kind."""
    clocks, group = (CLOCKS, GROUP) if replay else (AT_HAND, COUNTS[-1])
    record = play_gang(
        run,
        make_lies(run, count, level),
        pace=PACES[name],
        replay=replay,
        shallow=level == "logs",
        clocks=clocks,
        group=group,
        latency=LATENCY,
    )
    game = record.game
    bounds = make_bounds(run, clocks, group, count, everywhere=level != "logs")
    assert record.standing == ToyProvider(run).log().root
    bonds = money.list_outcomes(game).outcomes
    return {
        "claims": count,
        "in": LEVELS[level],
        "traces": "one machine" if replay else "at hand",
        "adversary": name,
        "hours to verdict": round(game.ends / HOUR, 2),
        "at most": round(bounds.time / HOUR, 2),
        "honest moves": record.moves[HONEST],
        "honest bytes": record.sent_bytes[HONEST],
        "bonds against her": sum(not bond.returned for bond in bonds),
        "machine, ms a move": round(1000 * record.judging / game.moves, 3),
    }


def measure_gangs(*, quick: bool) -> list[dict[str, Any]]:
    """A row for each adversary, number of claims, and kind of honest party."""
    wide = ToyRun(real=tuple(range(40_008, 40_008 + 256 * 64, 64)))
    counts = COUNTS[:2] if quick else COUNTS
    return [
        measure_gang(wide, count, name, level, replay=replay)
        for count in counts
        for level in LEVELS
        if level != "intervals" or count == COUNTS[1]
        for replay in (False, True)
        for name in PACES
    ]


def measure_scale(quick: bool) -> harness.Result:
    """The toy run: one lie, the referee's leaf, many challengers."""
    run = ToyRun()
    arities = measure_arities(run)
    kinds: tuple[Kind, ...] = tuple(TRANSPOSED)
    leaves = {kind: measure_leaf(kind, 0.2 if quick else 2.0) for kind in kinds}
    table = tabulate_bounds(run)
    gangs = measure_gangs(quick=quick)
    at_16 = next(row for row in arities if row["k"] == 16)
    ratios = {(row["traces"], row["group"]): row["257 in every level / 2"] for row in table}
    excess = max(row["hours to verdict"] - row["at most"] for row in gangs)
    each = max(row["honest moves"] / max(1, row["bonds against her"]) for row in gangs)
    targets = {
        "rounds at k = 16": harness.at_most(at_16["rounds"], ROUNDS_LIMIT),
        "bytes at k = 16": harness.at_most(at_16["bytes"], BYTES_LIMIT),
        "bound at 257 claims in every level / 2, traces at hand": harness.at_most(
            ratios["at hand", COUNTS[-1]], AT_HAND_LIMIT
        ),
        "bound at 257 claims in every level / 2, one machine": harness.at_most(
            ratios["one machine", GROUP], ONE_MACHINE_LIMIT
        ),
        "hours beyond the bound": harness.at_most(excess, 0),
        "honest moves a bond that fell": harness.at_most(each, MOVES_LIMIT),
    }
    for kind, leaf in leaves.items():
        targets[f"referee, {kind}, K = 4096, s"] = harness.at_most(
            leaf["seconds"]["median"], LEAF_SECONDS_LIMIT
        )
        targets[f"referee, {kind}, K = 4096, bytes"] = harness.at_most(
            leaf["statement bytes"], LEAF_BYTES_LIMIT
        )
    return harness.Result(
        {
            "by k": arities,
            "referee's leaf": leaves,
            "hours to the verdict at most, by group": table,
            "many challengers, what it takes an honest party": gangs,
        },
        targets,
    )


def measure_models(quick: bool) -> harness.Result:
    """Disputes about one element of a gradient of real models."""
    mnist = measure_mnist(1400, 3 if quick else 9)
    targets = {
        "MNIST dispute, challenger and machine / training": harness.at_most(
            mnist["challenger and machine / training"]["median"], MNIST_LIMIT
        )
    }
    figures, rows = {"MNIST dispute": mnist}, [describe_dispute("MNIST", mnist)]
    for model, name in (("gpt", "GPT"), ("llama", "Llama")):
        found = measure_language(model, 20, 1 if quick else 3)
        figures[f"{name} dispute"] = found
        rows.append(describe_dispute(name, found))
        targets |= {
            f"{name} dispute, rounds": harness.at_most(found["rounds"], ROUNDS_LIMIT),
            f"{name} dispute, bytes": harness.at_most(found["bytes"], BYTES_LIMIT),
            f"{name} dispute, referee's leaf, s": harness.at_most(
                found["leaf"]["seconds"]["median"], LEAF_SECONDS_LIMIT
            ),
        }
    return harness.Result({**figures, "disputes about a gradient": rows}, targets)


def describe_dispute(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What a dispute came to, as a row."""
    return {
        "model": name,
        "about": found["node"],
        "rounds": found["rounds"],
        "moves": found["moves"],
        "bytes": found["bytes"],
        "blocks of the element": found["leaf"]["blocks"],
        "bytes for the referee": found["leaf"]["statement bytes"],
        "referee's leaf, ms": round(1000 * found["leaf"]["seconds"]["median"], 3),
    }


if __name__ == "__main__":
    harness.main("dispute", {"scale": measure_scale, "models": measure_models})
