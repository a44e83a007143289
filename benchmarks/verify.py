"""What an audit costs: replay against training, start-up, and the structure check.

Training an interval is steps, log records and one checkpoint, as a solver does them; replaying it
is reading and hashing the checkpoint, the same steps, and comparing records.  The two differ by
less than the noise of a shared machine, hence a limit of 1.05 for a target of 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import _harness as harness
from _harness import ROOT, Result, at_most, main, spread, time_once
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.audit.replay import replay_segment
from vtrain.audit.structure import check_structure, read_state
from vtrain.audit.verify import verify
from vtrain.commit.checkpoint import write_checkpoint
from vtrain.commit.log import RunLog, decode_log, encode_frame
from vtrain.engines.registry import open_session
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, compile_task, load_task

TASK = ROOT / "examples" / "mnist" / "mlp.toml"
COMMAND = (sys.executable, "-c", "from vtrain.cli import main; main()")
REPLAY_LIMIT = 1.05
START_UP_LIMIT = 1.0


def make_run(folder: Path, steps: int) -> tuple[CompiledTask, Path]:
    """A run of the MNIST MLP of so many steps, with a checkpoint every 50."""
    task = compile_task(replace(load_task(TASK), steps=steps, checkpoint_every=50))
    train(task, folder / "run", key=Ed25519PrivateKey.generate())
    return task, folder / "run"


def measure_replay(
    task: CompiledTask, run: Path, seconds: float, interval: int = 50, least_rounds: int = 5
) -> harness.Comparison:
    """Seconds for the second ``interval`` steps: replayed (ours) and trained (theirs)."""
    paths, start, end = RunPaths(run), interval, 2 * interval
    records = decode_log(paths.log.read_bytes())
    sessions = [open_session("auto", task.graph, task.samples) for _ in range(2)]
    trained = run.parent / "trained"
    trained.mkdir()

    def replay() -> None:
        sessions[0].load_state(read_state(paths, task.spec, task.graph, records, start))
        assert replay_segment(sessions[0], records, start, end) is None

    begin = read_state(paths, task.spec, task.graph, records, start)

    def do_train() -> None:
        sessions[1].load_state(begin)
        log = RunLog(records[:start])
        with (trained / "log.bin").open("wb", buffering=0) as file:
            for _ in range(start, end):
                record = sessions[1].step()
                log.append(record)
                file.write(encode_frame(record))
            os.fsync(file.fileno())
        write_checkpoint(trained / "state.safetensors", task.graph, sessions[1].read_state())

    return harness.compare(replay, do_train, seconds=seconds, least_rounds=least_rounds)


def start(*arguments: str | Path) -> float:
    """Seconds that a command takes from a cold interpreter."""
    command = [*COMMAND, *map(str, arguments)]
    return time_once(lambda: subprocess.run(command, check=True, capture_output=True))


def measure(quick: bool) -> Result:
    """All figures; see the module's text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task, run = make_run(folder, 100 if quick else 400)
        replay = measure_replay(task, run, 8 if quick else 40)
        rounds = 3 if quick else 9
        tiny = folder / "tiny"
        tiny.mkdir()
        small = compile_task(
            replace(load_task(TASK.with_name("tiny.toml")), steps=20, checkpoint_every=10)
        )
        train(small, tiny / "run", key=Ed25519PrivateKey.generate())
        helps = [start("verify", "--help") for _ in range(rounds)]
        starts = [start("verify", tiny / "run") for _ in range(rounds)]
        structure = [time_once(lambda: check_structure(run)) for _ in range(rounds)]
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        batches = task.spec.steps * task.spec.batch * task.samples.table.shape[1]
        whole = [time_once(lambda: assert_verified(run)) for _ in range(1 if quick else 3)]
    structure_seconds = spread(structure)
    ratio = replay["ratio"]
    return Result(
        figures={
            "replay_of_50_steps": replay,
            "help_seconds": spread(helps),
            "verify_tiny_run_seconds": spread(starts),
            "structure_seconds": structure_seconds,
            "structure_run_bytes": size,
            "structure_batch_bytes": batches,
            "structure_megabytes_per_second": (size + batches) / structure_seconds["median"] / 1e6,
            "structure_steps_per_second": task.spec.steps / structure_seconds["median"],
            "verify_all_steps": task.spec.steps,
            "verify_all_seconds": spread(whole),
        },
        targets={
            "replay / training, median of rounds": at_most(ratio["median"], REPLAY_LIMIT),
            "start-up of verify --help, s": at_most(spread(helps)["median"], START_UP_LIMIT),
            "verify of a tiny run, s": at_most(spread(starts)["median"], START_UP_LIMIT),
        },
    )


def assert_verified(run: Path) -> None:
    """Replay everything; the run is honest."""
    assert verify(run, all_=True).exit_code == 0


if __name__ == "__main__":
    main("verify", measure)
