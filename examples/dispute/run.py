"""A cheat is found: two parties that do not trust each other, and a referee service, over HTTP.

Run it from the project's root:  .venv/bin/python examples/dispute/run.py
It trains the smallest MNIST task, or another (--task), twice, once with one element of one gradient
altered by one unit in the last place; then the cheating solver and a challenger, each a process of
its own, play against each other through the service until one element is left, which the referee
recomputes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from solver import FALSE_STEP

import vtrain
from vtrain.attest.keys import generate_key, public_key
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.dispute.client import DisputeClient, Follower, connect
from vtrain.dispute.game import advance, find_verdict
from vtrain.dispute.receipts import to_moves
from vtrain.dispute.service import require_server
from vtrain.dispute.state import Game, Place, Verdict
from vtrain.dispute.transcript import find_statements, make, replay
from vtrain.errors import RunError, VtrainError
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_claim
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Open, Reveal, SignedMove, decode_move
from vtrain.wire.graph import encode_graph

HERE = Path(__file__).parent
TASK = HERE.parent / "mnist" / "tiny.toml"
PYTHON = sys.executable
VTRAIN = Path(PYTHON).with_name("vtrain")
ROLES = ("solver", "challenger", "service")
SLACK = 16
"""Times that a step's time in training is allowed to trace it, on a machine that others use too."""


@dataclass(frozen=True)
class Twice:
    """The log root of the honest run, and the milliseconds allowed for a trace of an interval."""

    honest: bytes
    trace: int


@contextmanager
def start(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_line(process: subprocess.Popen[str]) -> str:
    """What a process says next; RunError when it ends instead."""
    line = process.stdout.readline().strip() if process.stdout else ""
    if not line:
        raise RunError("has ended", where=str(process.args))
    return line


def train_twice(task: CompiledTask, folder: Path, step: int) -> Twice:
    """An honest run and one with a false ``step``, both signed."""
    for name in ROLES:
        generate_key(folder / f"{name}.pem")
    key = vtrain.load_key(folder / "solver.pem")
    run = vtrain.train(task, folder / "honest", key=key)
    train_falsely(task, folder / "false", key=key, cheat=alter_gradient, step=step)
    roots = [read_claim(RunPaths(folder / run)).claim.log_root for run in ("honest", "false")]
    print(f"an honest run of {task.spec.steps} steps: log root {roots[0].hex()[:8]}...")
    print(f"one with step {step} altered:  log root {roots[1].hex()[:8]}..., also signed")
    interval = 1000 * run.seconds * task.spec.commit_every / task.spec.steps
    return Twice(roots[0], round(SLACK * interval))


def describe(game: Game, signed: SignedMove) -> str:
    """A move in a few words; ``game`` is the one that it is made in."""
    move, size = decode_move(signed.move), len(signed.move)
    match move:
        case Bond():
            contest = game.sides.get(signed.about)
            level = "log" if contest is None else game.contests[contest].level
            return f"stands behind {move.root.hex()[:8]}..., its {level}"
        case Reveal():
            contest, dispute = game.asked[signed.about].where[0]
            tree = game.contests[contest].disputes[dispute].tree
            return f"reveals what it has in its {tree}: {size} bytes"
        case Open():
            return f"opens the leaf for the referee: {size} bytes"


def locate(game: Game) -> Place:
    """How far the disagreement is narrowed down: the most that any dispute knows."""
    places = [
        dispute.place for contest in game.contests.values() for dispute in contest.disputes.values()
    ]
    return max(places, key=lambda place: place.describe().count(" "), default=Place())


def watch(follower: Follower, names: dict[bytes, str]) -> Verdict:
    """Print the game as it goes on, by what its signed moves say, to the verdict signed."""
    game, place = follower.game, Place()
    while (verdict := follower.verdict) is None:
        known = len(follower.events)
        follower.poll(wait=0.25)
        for entry in to_moves(follower.events[known:]):
            if entry.move is not None:
                who, what = names[entry.move.party], describe(advance(game, entry.at), entry.move)
                print(f"{entry.at / 1000:5.1f} s  {who:<10}  {what}")
            game = make(game, entry, "game")
            if locate(game) != place:
                place = locate(game)
                print(f"{'':9}they differ first in {place.describe()}")
    return verdict


def show_verdict(task: CompiledTask, verdict: Verdict, honest: bytes) -> None:
    """Who stands, and where the other fell."""
    fall = verdict.solver
    if fall is None or verdict.standing != honest:
        raise RunError("the cheat was not found", where="verdict")
    node = task.graph.nodes[fall.place.node]
    print(f"\nThe solver's claim fell: {fall.reason} at {fall.place.describe()}")
    print(f"That node is {node.name!r}, a {node.op} of shape {node.outputs[0].shape}.")
    print("What stands is the root of the honest run.")


def judge(follower: Follower, verdict: Verdict, path: Path) -> None:
    """Replay the transcript to the same verdict, and have the referee's statement judged again."""
    genesis, graph, moves = follower.game.genesis, follower.game.graph, to_moves(follower.events)
    if find_verdict(replay(genesis, graph, moves)) != verdict:
        raise RunError("the transcript leads to another verdict", where="transcript")
    print(f"\n{len(moves)} entries of the transcript, replayed here: the same verdict.")
    (statement,) = find_statements(genesis, graph, moves)
    path.write_bytes(statement)
    print(f"What the referee was asked: {len(statement)} bytes; --statement FILE keeps them.\n")
    print(f"$ vtrain referee {path.name}")
    done = subprocess.run([VTRAIN, "referee", path], capture_output=True, text=True, check=True)
    print(done.stdout, end="")


def keep_transcript(client: DisputeClient, game: bytes, graph: bytes, folder: Path) -> None:
    """What replay.py reads: every page of the transcript, and the graph."""
    folder.mkdir(parents=True)
    (folder / "graph.cbor").write_bytes(graph)
    after, more = 0, True
    while more:
        page = client.transcript(game, after)
        (folder / f"page-{after:06}.cbor").write_bytes(structs.encode(page))
        after, more = after + len(page.events), bool(page.more)


def parse_arguments() -> argparse.Namespace:
    """What is disputed, and what is kept."""
    parser = argparse.ArgumentParser(description="A cheat is found in a dispute over HTTP.")
    parser.add_argument("--task", type=Path, default=TASK, help="a task file with its exponents")
    parser.add_argument("--steps", type=int, help="train so many steps, not as many as it has")
    parser.add_argument("--commit-every", type=int, help="steps of an interval, not the task's")
    parser.add_argument("--false-step", type=int, default=FALSE_STEP, help="the step altered")
    parser.add_argument("--statement", type=Path, help="keep what the referee was asked here")
    parser.add_argument("--transcript", type=Path, help="keep the game in this new folder")
    return parser.parse_args()


def main() -> None:
    """Everything but a statement that is asked for in a temporary folder."""
    given = parse_arguments()
    try:
        require_server()
        file = load_task(given.task)
        steps = given.steps or file.steps
        if not 1 <= given.false_step <= steps:
            raise RunError(f"is none of the {steps} steps of the run", where="--false-step")
        every = given.commit_every or file.commit_every
        task = compile_task(replace(file, steps=steps, commit_every=every))
        find_cheat(task, given.false_step, given.statement, given.transcript)
    except VtrainError as error:
        sys.exit(str(error))


def find_cheat(
    task: CompiledTask, step: int, statement: Path | None, transcript: Path | None = None
) -> None:
    """The whole story; RunError when it does not end as it should."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        made = train_twice(task, folder, step)
        run, keys = folder / "false", {who: folder / f"{who}.pem" for who in ROLES}
        db = f"sqlite:///{folder / 'games.db'}"
        options: list[str | Path] = [
            "--db",
            db,
            "--key",
            keys["service"],
            "--port",
            "0",
            "--least-clock",
            "2",
            "--free-bonds",
        ]
        service = stack.enter_context(start(VTRAIN, "serve", *options))
        url, service_key = read_line(service).split()
        solver = stack.enter_context(
            start(PYTHON, HERE / "solver.py", run, keys["solver"], url, str(step))
        )
        read_line(solver)
        print(f"\nreferee service at {url}; the challenger does the run again")
        script = HERE / "challenger.py"
        challenger = stack.enter_context(
            start(PYTHON, script, run, keys["challenger"], url, str(made.trace))
        )
        game = read_line(challenger)
        print(f"it comes out differently: game {game[:16]}... is opened\n")
        print(game, file=solver.stdin, flush=True)
        client = stack.enter_context(connect(url, bytes.fromhex(service_key)))
        follower = Follower(client, bytes.fromhex(game), graph=task.graph)
        parties = {public_key(vtrain.load_key(path)): who for who, path in keys.items()}
        verdict = watch(follower, parties)
        solver.wait()
        challenger.wait()
        show_verdict(task, verdict, made.honest)
        judge(follower, verdict, statement or folder / "statement.cbor")
        if transcript is not None:
            keep_transcript(client, bytes.fromhex(game), encode_graph(task.graph), transcript)
    print(f"\nAll that in {time.monotonic() - begin:.0f} s.")


if __name__ == "__main__":
    main()
