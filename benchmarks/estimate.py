"""What `vtrain estimate` says of five tasks, beside what is then measured.

Two things are held against it: what `vtrain bench` measures (a step, a state root, a dispute), of
more seeds and for longer than the estimate's own calibration, and the run itself, trained to its
end, with an interval of each of its audits, at the task's own distances between state roots and
checkpoints.  A machine shared with others does the same work in one minute 1.6 times as fast as in
the next, so that a task is estimated and measured in turn, 3 to 9 times (`more_rounds`): what
counts is the median of the ratios, and the least and the greatest stand beside it.  Files are in memory where
there is such a folder: the same 300 MB of values took this disk 1.4 to 2.9 s within two minutes.

Rounds and bytes of disputes, and proofs, are of a cost model.  Its constants were fitted to
``FITTED``; the tasks of ``HELD_OUT`` had no part in it.  Proofs (``--part proofs``, kept in
results/estimate-proofs.json) are of a tile of a product and of a whole step of 784-16-10, to which
the constants were fitted, and of a whole step of 784-32-10, whose times had no part in it.

Predicted before the first run: 5 to 10 % off for steps and checks, which are measured for a moment
and later for longer; 20 % for memory and disputes.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import _harness as harness
from _harness import ROOT, Result, at_most, main
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.audit.replay import replay_segment
from vtrain.audit.structure import read_state
from vtrain.bench.bench import measure_task
from vtrain.bench.estimate import Estimated, Estimates, estimate_task
from vtrain.bench.figures import STAGES
from vtrain.bench.proofs import ProofBench
from vtrain.bench.stages import (
    Setting,
    make_checker,
    measure_dispute,
    sample,
    settle_disk,
    time_once,
)
from vtrain.commit.log import decode_log
from vtrain.commit.traces import TraceFolder
from vtrain.engines.registry import open_session
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import TaskFile, compile_task, load_task, profile_task
from vtrain.train.traces import write_traces

EXAMPLES: Final = ROOT / "examples"
FITTED: Final = ("tiny", "mlp", "gpt")
HELD_OUT: Final = ("cnn", "chars")
PROVEN: Final = ("mlp", "tiny", "784-32-10")
"""A task that is proven by tiles, and two of which a step is proven whole."""
LIMIT: Final = 0.25
THREADS: Final = 2
SEEDS: Final = 2
ROUNDS: Final = 3, 9
"""Least and most times that a task is estimated and then measured."""
ENOUGH: Final = 180.0
"""Seconds after which no round begins but the least: a task of milliseconds, whose figures are
decided by the machine's moment, gets more rounds than one of seconds."""


_RATIO: Final = "estimated / measured"


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only folders of tempfile are made there


def load(name: str, folder: Path) -> TaskFile:
    """A task by its name.

    The GPT has a tenth of its steps, a quarter of its batch, and fewer steps between two state
    roots: all values of an interval of ten would be 12 GB, and what writing gigabytes takes is the
    disk's affair, whose speed changes by half from minute to minute.
    """
    if name == "gpt":
        from _shakespeare import Variant

        both = Variant(steps=200).open(folder)
        return replace(both.file, batch=4, commit_every=4, checkpoint_every=40)
    if name == "chars":
        return load_task(EXAMPLES / "text" / "chars.toml")
    return load_task(EXAMPLES / "mnist" / f"{name}.toml")


def load_proven(name: str, folder: Path) -> TaskFile:
    """A task of ``PROVEN``: where steps are proven whole, MLP 784-16-10 or 784-32-10 in batches
    of 8."""
    from _models import load_make_models

    if name == "mlp":
        return load(name, folder)
    file = replace(load("tiny", folder), batch=8)
    if name != "tiny":
        path = folder / "model.onnx"
        path.write_bytes(load_make_models().make_model("small", 0).SerializeToString())
        file = replace(file, model=path)
    return replace(file, exponents=profile_task(file).exponents)


def compare_bench(
    name: str, file: TaskFile, found: Estimates, stages: tuple[str, ...], seeds: int
) -> Iterator[dict[str, Any]]:
    """A row for each thing that `vtrain bench` measures."""
    measured = measure_task(
        file,
        seeds=seeds,
        stages=stages,
        setting=Setting(threads=THREADS),
        open_prover=lambda folder: ProofBench(folder, THREADS),
    )
    left_out = {**found.skipped, **dict(measured.skipped)}.keys() & set(stages)
    assert not left_out, (found.skipped, measured.skipped)
    rows = {(row.stage, row.what, row.unit): row.mean for row in measured.rows}
    for item in found.each:
        if item.stage in stages:
            yield _put_beside(name, item, rows[item.stage, item.what, item.unit])


def compare_run(
    name: str, file: TaskFile, found: Estimates, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for the run as it is and one interval of each audit of it."""
    measured = dict(measure_run(file, folder))
    for item in found.all:
        yield _put_beside(name, item, measured[item.what, item.unit])


def measure_run(file: TaskFile, folder: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """What `found.all` of an estimate is about, by the same names."""
    task, key = compile_task(file), Ed25519PrivateKey.generate()
    run, steps = folder / "run", task.spec.steps

    def train_anew() -> float:
        shutil.rmtree(run, ignore_errors=True)
        settle_disk()
        return train(task, run, key=key, threads=THREADS).seconds

    yield (f"all {steps:,} steps", "s"), statistics.median(sample(train_anew, 1.0))
    paths = RunPaths(run)
    sizes = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    yield ("run directory, without samples", "bytes"), sizes - paths.samples.stat().st_size

    records = decode_log(paths.log.read_bytes())
    session = open_session("auto", task.graph, task.samples, threads=THREADS)
    segment, interval = min(file.checkpoint_every, steps), min(file.commit_every, steps)
    end = steps // segment * segment

    def replay() -> None:
        state = read_state(paths, task.spec, task.graph, records, end - segment, THREADS)
        session.load_state(state)
        assert replay_segment(session, records, end - segment, end) is None

    times = sample(lambda: time_once(replay), 1.0)
    yield (f"a segment of {segment:,} steps", "s"), statistics.median(times)

    text, traces = f"an interval of {interval:,} steps", folder / "traces"
    # One that begins with a checkpoint, and not with moments that are all zeros.
    first = segment if segment < steps else 0

    def write() -> float:
        shutil.rmtree(traces, ignore_errors=True)
        settle_disk()
        given = (first + interval,)
        return time_once(lambda: write_traces(run, given, key=key, out=traces, threads=THREADS))

    yield (f"{text}, traced", "s"), statistics.median(sample(write, 1.0))
    stored = sum(path.stat().st_size for path in traces.rglob("*") if path.is_file())
    yield (f"{text}, traced", "bytes"), stored
    store = TraceFolder(traces, THREADS)
    (trace,) = store.read_claim().traces.traces
    leaves = store.read_leaves(trace)
    checker = make_checker(task, store, bytes(32), "auto", THREADS)

    def check() -> None:
        assert checker.check(trace, leaves) is None

    times = sample(lambda: time_once(check), 1.0)
    yield (f"{text}, checked", "s"), statistics.median(times)

    played = measure_dispute(task, 2 * interval, engine="auto", threads=THREADS, seconds=1.0)
    yield (f"challenger, {text}", "s"), played.thinking
    yield (f"rounds, {text}", "count"), played.rounds
    yield (f"all moves, {text}", "bytes"), played.sent


def _put_beside(name: str, item: Estimated, measured: float) -> dict[str, Any]:
    return {
        "task": name,
        "figure": f"{item.stage}: {item.what}, {item.unit}",
        "how": item.how,
        "estimated": float(f"{item.value:.4g}"),
        "measured": float(f"{measured:.4g}"),
        _RATIO: round(item.value / measured, 3) if measured else None,
    }


def merge(rounds: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """One row for each figure: medians of all rounds, and the least and greatest ratio."""
    for rows in zip(*rounds, strict=True):
        row = dict(rows[0])
        assert all(other["figure"] == row["figure"] for other in rows)
        row |= {key: statistics.median(r[key] for r in rows) for key in ("estimated", "measured")}
        ratios = [r[_RATIO] for r in rows if r[_RATIO] is not None]
        row[_RATIO] = statistics.median(ratios) if ratios else None
        row |= {"least": min(ratios, default=None), "most": max(ratios, default=None)}
        yield row


def more_rounds(quick: bool) -> Iterator[int]:
    """A number for each round of a task, as it begins."""
    least, most = (1, 1) if quick else ROUNDS
    begun = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - begun > ENOUGH:
            return
        yield number


def judge(rows: list[dict[str, Any]], what: str) -> dict[str, harness.Target]:
    """By task, how far the worst estimate is off, as a share of what was measured."""
    worst: dict[str, float] = {}
    for row in rows:
        ratio = row[_RATIO]
        if ratio is not None:
            worst[row["task"]] = max(worst.get(row["task"], 0.0), abs(ratio - 1))
    return {
        f"{name}: most that {what} is off": at_most(value, LIMIT) for name, value in worst.items()
    }


def measure(quick: bool) -> Iterator[Result]:
    """Task by task, without proofs; ``quick``: one seed, and a task of each kind."""
    if _MEMORY.is_dir():
        tempfile.tempdir = str(_MEMORY)
    plain = tuple(stage for stage in STAGES if stage != "proof")
    rows: list[dict[str, Any]] = []
    taken: dict[str, int] = {}
    for name in (FITTED[0], HELD_OUT[0]) if quick else (*FITTED, *HELD_OUT):
        rounds: list[list[dict[str, Any]]] = []
        for _ in more_rounds(quick):
            with tempfile.TemporaryDirectory() as folder:
                file = load(name, Path(folder))
                found = estimate_task(file, threads=THREADS)
                each = compare_bench(name, file, found, plain, 1 if quick else SEEDS)
                rounds.append([*each, *compare_run(name, file, found, Path(folder))])
        rows += merge(rounds)
        taken[name] = len(rounds)
        figures = {"fitted": ", ".join(FITTED), "rounds": dict(taken), "estimates": list(rows)}
        yield Result(figures, judge(rows, "an estimate"))


def measure_proofs(quick: bool) -> Iterator[Result]:
    """A tile, and whole steps of two tasks; ``quick``: the tile."""
    rows: list[dict[str, Any]] = []
    for name in PROVEN[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            file = load_proven(name, Path(folder))
            found = estimate_task(file, threads=THREADS)
            rows += compare_bench(name, file, found, ("proof",), 1)
        yield Result({"proofs": list(rows)}, judge(rows, "an estimate of a proof"))


if __name__ == "__main__":
    main(
        "estimate",
        {"compare": measure, "proofs": measure_proofs},
        about=(__doc__ or "").partition("\n")[0],
    )
