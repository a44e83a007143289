"""What a dispute costs: rounds, moves and bytes; the referee's leaf; the engine; many challengers.

The scale figures are of a run of 2^20 steps with a state root every 16, 2^12 nodes a step and
tensors of 2^20 chunks, played on a toy run (tests/dispute/toy.py) whose openings are real.  A round
is an exchange in which all that is asked for at one time is answered: both sides' frontiers, both
sides' sub-claims, or the opening of a leaf.

Predicted before measuring, at k = 16: 20 rounds (log 5, sub-claims 1, trace 4, chunks 5 and the
chunk 1, sub-claims 1, fold 2, opening 1) and 85 KB (36 reveals of 0.8 KB, an opening of 56 KB).
A leaf of 32 chunks hashes 32 KiB and 640 nodes above them: 0.3 ms.  An honest party should play
ceil(log2(claims)) matches, each as long as one alone.

The MNIST dispute is about the step farthest from a checkpoint, so that each side does some 100 of
1400 steps again, twice: predicted was 0.3 of the time of training for everything.  That was wrong
for the whole: the engine trains the run in half a second, and the cheat, who does the false step by
the numpy law, needs as long again for a few of those.  Hence the limit is on the challenger with
the machine and its referee: no longer than training once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import _harness as harness
import numpy.typing as npt

from tests.dispute.arena import make_game, make_key
from tests.dispute.crowd import HONEST, play_gang, play_pair, play_together
from tests.dispute.toy import TRANSPOSED, Kind, Lie, ToyProvider, ToyRun
from vtrain import _core
from vtrain.demo.lies import Lies, LyingProvider, LyingSession
from vtrain.dispute import statement
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.genesis import DEFAULT_CLOCKS
from vtrain.dispute.players import Player
from vtrain.engines.base import Session, State, Trace
from vtrain.engines.registry import open_session
from vtrain.graph.step import STEP_STATE
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.wire.dispute import Open, decode_move
from vtrain.wire.record import StepRecord

TASK = harness.ROOT / "examples" / "mnist" / "mlp.toml"
ARITIES = (2, 4, 16, 64)
SYBILS = (1, 16, 256)
CHECKPOINT_EVERY = 100
LATENCY = 1000
"""Milliseconds of an exchange in the games of many, which have the clocks of real ones."""

ROUNDS_LIMIT = 20
BYTES_LIMIT = 200_000
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
                "rounds": record.count_rounds(),
                "moves": record.game.moves,
                "bytes": sum(record.sent_bytes.values()),
            }
        )
    return rows


def measure_leaf(kind: Kind, seconds: float) -> dict[str, Any]:
    """The statement about a block in the midst of a product's element, and the time to judge it."""
    run = ToyRun(kind=kind)
    opening = play_pair(run, 16).opening
    assert opening is not None
    game, signed = opening
    move = decode_move(signed.move)
    assert isinstance(move, Open)
    match = game.matches[move.match]
    mover = game.tournaments[match.tournament].backed_by(signed.party)
    data = statement.compose(game, move.match, match.sides.index(mover), move)
    judged = statement.decode_ruling(_core.referee_judge(data))
    assert sorted(judged.right) == [0, 1]
    rounds = max(5, round(seconds / 0.01))
    times = [harness.time_once(lambda: _core.referee_judge(data), 20) for _ in range(rounds)]
    return {
        "blocks": judged.blocks,
        "chunks": sum(len(item.chunks) for item in move.inputs),
        "statement bytes": len(data),
        "seconds": harness.spread(times),
    }


# --- the engine


class CheatingSession:
    """The engine, but for one step in which another session lies."""

    name = "cheating"

    def __init__(self, honest: Session, lying: Session, step: int) -> None:
        self._honest, self._lying, self._step = honest, lying, step
        self._done = 0

    def load_state(self, state: State) -> None:
        self._honest.load_state(state)
        self._done = int(state[STEP_STATE])

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        return self._honest.read_state()

    def saturation(self) -> dict[str, int]:
        return self._honest.saturation()

    def step(self) -> StepRecord:
        self._done += 1
        if self._done != self._step:
            return self._honest.step()
        self._lying.load_state(self._honest.read_state())
        record = self._lying.step()
        self._honest.load_state(self._lying.read_state())
        return record

    def trace(self) -> Trace:
        self._done += 1
        if self._done != self._step:
            return self._honest.trace()
        self._lying.load_state(self._honest.read_state())
        trace = self._lying.trace()
        self._honest.load_state(self._lying.read_state())
        return trace

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        if self._done + 1 != self._step:
            return self._honest.evaluate_all(nodes)
        self._lying.load_state(self._honest.read_state())
        return self._lying.evaluate_all(nodes)


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
    lies_at = steps - 1
    nodes = task.graph.nodes
    gradients = [i for i, n in enumerate(nodes) if n.op == "matmul" and n.attrs["transpose_a"]]
    node = max(gradients, key=lambda index: nodes[index].outputs[0].size)
    figures: dict[str, list[float]] = {}
    training: list[float] = []
    place = ""
    for number in range(games):
        honest, seconds = train(task, open_session("auto", task.graph, task.samples))
        lying = LyingSession(task, Lies({(lies_at, node): add_much}))
        session = open_session("auto", task.graph, task.samples)
        cheat, _ = train(task, CheatingSession(session, lying, lies_at), LyingProvider)
        key = make_key(1)
        genesis = make_game(task, cheat, key, nonce=bytes([number]) * 32)
        players = [Player(cheat, key), Player(honest, make_key(2))]
        record = play_together(genesis, players)
        fall = record.verdict.solver
        assert fall is not None
        assert (fall.reason, fall.place.step, fall.place.node) == ("refuted", lies_at, node)
        place = fall.place.describe()
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
        "steps": steps,
        "place": place,
        "moves": record.game.moves,
        "bytes": sum(record.sent_bytes.values()),
        "training, seconds": harness.spread(training),
        **{name: harness.spread(values) for name, values in figures.items()},
    }


# --- many challengers


def measure_gang(run: ToyRun, lies: list[Lie], *, hijacked: bool) -> dict[str, Any]:
    """What it takes an honest party against a gang, each with a lie of their own."""
    record = play_gang(run, lies, hijacked=hijacked, clocks=DEFAULT_CLOCKS, latency=LATENCY)
    game = record.game
    assert record.verdict.standing == ToyProvider(run).log().root
    return {
        "false logs": len({lie.loss for lie in lies}),
        "claims in a tournament": "/".join(map(str, record.count_claims().values())),
        "hijacked": "yes" if hijacked else "no",
        "matches": record.count_matches(HONEST),
        "at most": record.bound_matches(),
        "moves": record.moves[HONEST],
        "bytes": record.sent_bytes[HONEST],
        "hours to verdict": round(game.now / 3_600_000, 2),
        "matches of all": len(game.matches),
        "machine, ms a move": round(1000 * record.judging / game.moves, 3),
    }


def measure_sybils(run: ToyRun) -> list[dict[str, Any]]:
    """A row for each number of false logs, then with sub-claims of each of them, with hijackers."""
    step = run.real[0]
    rows = [
        measure_gang(run, [Lie(step, i, i) for i in range(1, count + 1)], hijacked=False)
        for count in SYBILS
    ]
    for logs, traces, folds in ((1, 16, 16), (4, 8, 8)):
        lies = [
            Lie(step, i, j, detour=k)
            for i in range(1, logs + 1)
            for j in range(1, traces + 1)
            for k in range(folds)
        ]
        rows += [measure_gang(run, lies, hijacked=hijacked) for hijacked in (False, True)]
    rows.append(measure_gang(run, [Lie(step, i, i) for i in range(1, 257)], hijacked=True))
    return rows


def measure(quick: bool) -> harness.Result:
    """All figures; see the module's text."""
    run = ToyRun()
    arities = measure_arities(run)
    kinds: tuple[Kind, ...] = tuple(TRANSPOSED)
    leaves = {kind: measure_leaf(kind, 0.2 if quick else 2.0) for kind in kinds}
    sybils = measure_sybils(run)
    mnist = measure_mnist(1400, 3 if quick else 9)
    at_16 = next(row for row in arities if row["k"] == 16)
    growth = sybils[len(SYBILS) - 1]["moves"] / sybils[0]["moves"]
    excess = max(row["matches"] - row["at most"] for row in sybils)
    targets = {
        "rounds at k = 16": harness.at_most(at_16["rounds"], ROUNDS_LIMIT),
        "bytes at k = 16": harness.at_most(at_16["bytes"], BYTES_LIMIT),
        "an honest party's matches beyond the bound": harness.at_most(excess, 0),
        "its moves, 256 Sybils / 1": harness.at_most(growth, math.ceil(math.log2(257))),
        "MNIST dispute, challenger and machine / training": harness.at_most(
            mnist["challenger and machine / training"]["median"], MNIST_LIMIT
        ),
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
            "many challengers, what it takes an honest party": sybils,
            "MNIST dispute": mnist,
        },
        targets,
    )


if __name__ == "__main__":
    harness.main("dispute", measure)
