"""Memory of all stages but proofs: each in a process of its own, which has done nothing else, so
that nothing is already there which it could use again.

The process reads a run as a solver or an auditor does, and says how much more memory it took at
most than its imports did.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.audit.structure import read_state
from vtrain.bench.stages import Recorded, Script, make_checker, play_out
from vtrain.commit.checkpoint import write_checkpoint
from vtrain.commit.log import decode_log
from vtrain.commit.state import compute_root_of_state
from vtrain.commit.traces import TraceFolder
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.engines.base import Session, State, take_snapshot
from vtrain.engines.registry import open_session
from vtrain.errors import RunError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.train.data import read_samples
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_graph, read_task
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.record import StepRecord

STATUS: Final = Path("/proc/self/status")
"""Where a system tells the memory of a process."""
CHECKPOINT: Final = "alone.safetensors"
"""The checkpoint that "commitment" writes, beside the folder of the run."""


def measure_alone(
    what: str,
    run: Path,
    *,
    every: int,
    engine: str,
    threads: int,
    beside: Path | None = None,
    processes: int = 1,
) -> int | None:
    """Bytes that the stage ``what`` takes on ``run``, whose first checkpoint is after ``every``
    steps: the median of so many processes; None where the system does not tell the memory of a
    process.

    ``beside`` is the folder of traces that "algebraic" checks, the file of the game that "dispute"
    plays (:class:`vtrain.bench.stages.Script`), of the same run.

    Each takes some hundred kB more or less, as its threads happen to allocate.

    RunError when the process fails.
    """
    if not STATUS.exists():
        return None
    given = json.dumps([what, str(run), every, engine, threads, str(beside) if beside else None])
    code = "import sys; from vtrain.bench.alone import answer; answer(sys.argv[1])"
    # -P: nothing is imported from the folder that the user is in, which may be a stranger's run.
    command = [sys.executable, "-P", "-c", code, given]
    return statistics.median_low(_ask(command, what) for _ in range(processes))


def _ask(command: list[str], what: str) -> int:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise RunError(f"the process that was to be measured failed: {last}", where=what)
    return int(done.stdout)


def answer(given: str) -> None:
    """What that process does: print the bytes."""
    what, run, every, engine, threads, beside = json.loads(given)
    work = prepare(what, Path(run), every, engine, threads, Path(beside) if beside else None)
    before = read_peak()
    work()
    sys.stdout.write(f"{read_peak() - before}\n")


def read_peak() -> int:
    """The largest resident set of this process so far, in bytes.

    Not getrusage: that of a child begins with its parent's.
    """
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RunError("does not tell the peak of a process", where=str(STATUS))


def prepare(
    what: str, run: Path, every: int, engine: str, threads: int, beside: Path | None
) -> Callable[[], None]:
    """The work that is measured: everything from the files on."""
    given = _Given(RunPaths(run), every, engine, threads, beside or run)
    return lambda: _WORK[what](given)


@dataclass(frozen=True)
class _Given:
    """A run whose first checkpoint is after ``every`` steps, how it is gone through, and what is
    ``beside`` it (the run, where nothing is)."""

    paths: RunPaths
    every: int
    engine: str
    threads: int
    beside: Path

    def read_task(self) -> CompiledTask:
        """Task, graph and samples, without the state that a run begins with."""
        task = read_task(self.paths)
        graph = read_graph(self.paths, task)
        return CompiledTask(task, graph, read_samples(self.paths.samples, task.data), {}, b"")

    def open_session(self, task: CompiledTask) -> Session:
        """The engine, ready for that graph and those samples."""
        return open_session(self.engine, task.graph, task.samples, threads=self.threads)

    def read_records(self) -> list[StepRecord]:
        """The log."""
        return decode_log(self.paths.log.read_bytes())

    def read_state(self, task: CompiledTask, records: list[StepRecord], step: int) -> State:
        """The state of a checkpoint."""
        return read_state(self.paths, task.spec, task.graph, records, step, self.threads)


def _train(given: _Given) -> None:
    """As many steps as there are up to a checkpoint."""
    task = given.read_task()
    session = given.open_session(task)
    kinds = {name: task.graph.type_of(ref) for name, ref in task.graph.states().items()}
    session.load_state(
        {name: np.zeros(kind.shape, NUMPY_DTYPES[kind.dtype]) for name, kind in kinds.items()}
    )
    for _ in range(given.every):
        session.step()


def _commit(given: _Given) -> None:
    """The state root and the checkpoint of a state that an engine holds, as in a run."""
    task = given.read_task()
    session, records = given.open_session(task), given.read_records()
    session.load_state(given.read_state(task, records, given.every))
    state = take_snapshot(session)()
    root = compute_root_of_state(task.graph, state, given.threads)
    if root != records[given.every - 1].state_root:
        raise RunError("has another state root on this machine", where=str(given.paths.root))
    write_checkpoint(given.paths.root.with_name(CHECKPOINT), task.graph, state)


def _replay(given: _Given) -> None:
    """The steps from the first checkpoint to the second."""
    task = given.read_task()
    session, records = given.open_session(task), given.read_records()
    session.load_state(given.read_state(task, records, given.every))
    for record in records[given.every : 2 * given.every]:
        if session.step() != record:
            raise RunError("does not replay on this machine", where=str(given.paths.root))


def _check(given: _Given) -> None:
    """A traced step, from the folder of traces that is ``beside`` the run."""
    task, folder = given.read_task(), TraceFolder(given.beside, given.threads)
    (trace,) = folder.read_claim().traces.traces
    checker = make_checker(task, folder, bytes(32), given.engine, given.threads)
    if checker.check(trace, folder.read_leaves(trace)) is not None:
        raise RunError("does not check on this machine", where=str(given.beside))


def _dispute(given: _Given) -> None:
    """The challenger's part of the game that is ``beside`` the run, from its log and its
    checkpoints."""
    script = structs.decode(Script, given.beside.read_bytes(), str(given.beside))
    task, records = given.read_task(), given.read_records()
    steps = range(given.every, len(records) + 1, given.every)
    challenger = EngineProvider(
        task,
        given.open_session(task),
        records=records,
        states=lambda step: given.read_state(task, records, step) if step in steps else None,
        given=steps,
    )
    with closing(challenger):
        key = Ed25519PrivateKey.from_private_bytes(script.key)
        play_out(task.graph, script.genesis, Recorded(script.turns), challenger, key)


_WORK: Final[dict[str, Callable[[_Given], None]]] = {
    "training": _train,
    "commitment": _commit,
    "replay": _replay,
    "algebraic": _check,
    "dispute": _dispute,
}
