"""Memory of training, replaying and checking: each in a process of its own, which has done nothing
else, so that nothing is already there which it could use again.

The process reads a run as a solver or an auditor does, and says how much more memory it took at
most than its imports did.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from vtrain.audit.structure import read_state
from vtrain.bench.stages import make_checker
from vtrain.commit.log import decode_log
from vtrain.commit.traces import TraceFolder
from vtrain.engines.registry import open_session
from vtrain.errors import RunError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.train.data import read_samples
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_graph, read_task
from vtrain.train.task import CompiledTask

_STATUS: Final = Path("/proc/self/status")


def measure_alone(
    what: str,
    run: Path,
    *,
    every: int,
    engine: str,
    threads: int,
    traces: Path | None = None,
    processes: int = 1,
) -> int | None:
    """Bytes that "training", "replay" or "algebraic" takes on ``run``, whose first checkpoint is
    after ``every`` steps: the median of so many processes; None where the system does not tell the
    memory of a process.

    Each takes some hundred kB more or less, as its threads happen to allocate.

    RunError when the process fails.
    """
    if not _STATUS.exists():
        return None
    given = json.dumps([what, str(run), every, engine, threads, str(traces) if traces else None])
    code = "import sys; from vtrain.bench.alone import answer; answer(sys.argv[1])"
    command = [sys.executable, "-c", code, given]
    return statistics.median_low(_ask(command, what) for _ in range(processes))


def _ask(command: list[str], what: str) -> int:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise RunError(f"the process that was to be measured failed: {last}", where=what)
    return int(done.stdout)


def answer(given: str) -> None:
    """What that process does: print the bytes."""
    what, run, every, engine, threads, traces = json.loads(given)
    work = prepare(what, Path(run), every, engine, threads, Path(traces) if traces else None)
    before = read_peak()
    work()
    sys.stdout.write(f"{read_peak() - before}\n")


def read_peak() -> int:
    """The largest resident set of this process so far, in bytes.

    Not getrusage: that of a child begins with its parent's.
    """
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RunError("does not tell the peak of a process", where=str(_STATUS))


def prepare(
    what: str, run: Path, every: int, engine: str, threads: int, traces: Path | None
) -> Callable[[], None]:
    """The work that is measured: everything from the files on."""
    paths = RunPaths(run)

    def work() -> None:
        task = read_task(paths)
        graph = read_graph(paths, task)
        samples = read_samples(paths.samples, task.data)
        if what == "algebraic" and traces is not None:
            folder = TraceFolder(traces, threads)
            (trace,) = folder.read_claim().traces.traces
            compiled = CompiledTask(task, graph, samples, {}, b"")
            checker = make_checker(compiled, folder, bytes(32), engine, threads)
            if checker.check(trace, folder.read_leaves(trace)) is not None:
                raise RunError("does not check on this machine", where=str(traces))
            return
        session = open_session(engine, graph, samples, threads=threads)
        if what == "training":
            kinds = {name: graph.type_of(ref) for name, ref in graph.states().items()}
            session.load_state(
                {
                    name: np.zeros(kind.shape, NUMPY_DTYPES[kind.dtype])
                    for name, kind in kinds.items()
                }
            )
            for _ in range(every):
                session.step()
            return
        records = decode_log(paths.log.read_bytes())
        session.load_state(read_state(paths, task, graph, records, every, threads))
        for record in records[every : 2 * every]:
            if session.step() != record:
                raise RunError("does not replay on this machine", where=str(run))

    return work
