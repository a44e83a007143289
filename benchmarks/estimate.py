"""What `vtrain estimate` says of five tasks, beside what `vtrain bench` then measures.

Estimates are of a short calibration on this machine (a few steps, one of them traced and checked),
but for those of disputes, proofs and memory, which are of a cost model.  Its constants were fitted
to ``FITTED``; the tasks of ``HELD_OUT`` had no part in it.  A proof is of a whole step of two
tasks: one that the constants were fitted to, and one that they were not.

Predicted before the first run: 5 to 10 % off for steps and checks, which are measured for a moment
and later for longer; 20 % for memory and disputes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import _harness as harness
from _harness import ROOT, Result, at_most, main

from vtrain.bench.bench import measure_task
from vtrain.bench.estimate import estimate_task
from vtrain.bench.figures import STAGES
from vtrain.bench.proofs import ProofBench
from vtrain.train.task import TaskFile, load_task

EXAMPLES: Final = ROOT / "examples"
FITTED: Final = ("tiny", "mlp", "gpt")
HELD_OUT: Final = ("cnn", "chars")
PROVEN: Final = {"tiny": "fitted", "784-32-10": "held out"}
LIMIT: Final = 0.25
THREADS: Final = 2


def load(name: str, folder: Path) -> TaskFile:
    """A task by its name."""
    if name == "gpt":
        from _shakespeare import Variant

        return Variant().open(folder).file
    paths = {"chars": EXAMPLES / "text" / "chars.toml", "784-32-10": EXAMPLES / "zk" / "task.toml"}
    return load_task(paths.get(name, EXAMPLES / "mnist" / f"{name}.toml"))


def compare(
    name: str, file: TaskFile, stages: tuple[str, ...], seeds: int
) -> Iterator[dict[str, Any]]:
    """A row for each estimate of a stage that was measured."""
    found = estimate_task(file, threads=THREADS)
    from vtrain.bench.stages import Setting

    measured = measure_task(
        file,
        seeds=seeds,
        stages=stages,
        setting=Setting(threads=THREADS),
        open_prover=lambda folder: ProofBench(folder, THREADS),
    )
    rows = {(row.stage, row.what, row.unit): row for row in measured.rows}
    for item in found.each:
        row = rows.get((item.stage, item.what, item.unit))
        if row is None or item.stage not in stages:
            continue
        yield {
            "task": name,
            "figure": f"{item.stage}: {item.what}, {item.unit}",
            "how": item.how,
            "estimated": float(f"{item.value:.4g}"),
            "measured": float(f"{row.mean:.4g}"),
            "estimated / measured": round(item.value / row.mean, 3) if row.mean else None,
        }


def judge(rows: list[dict[str, Any]]) -> dict[str, harness.Target]:
    """By task, how far the worst estimate is off, as a share of what was measured."""
    worst: dict[str, float] = {}
    for row in rows:
        ratio = row["estimated / measured"]
        if ratio is not None:
            worst[row["task"]] = max(worst.get(row["task"], 0.0), abs(ratio - 1))
    return {f"{name}: most that an estimate is off": at_most(v, LIMIT) for name, v in worst.items()}


def measure(quick: bool) -> Iterator[Result]:
    """Task by task; ``quick``: one seed, and no proofs."""
    rows: list[dict[str, Any]] = []
    plain = tuple(stage for stage in STAGES if stage != "proof")
    work = [(name, plain, 1 if quick else 3) for name in (*FITTED, *HELD_OUT)]
    work += [] if quick else [(name, ("proof",), 1) for name in PROVEN]
    for name, stages, seeds in work:
        with tempfile.TemporaryDirectory() as folder:
            file = load(name, Path(folder))
            if stages == ("proof",):
                file = replace(file, commitments=("blake3",), proof=None, batch=8)
            rows += compare(name, file, stages, seeds)
        yield Result(
            {"fitted": ", ".join(FITTED), "estimates": list(rows)},
            judge(rows),
        )


if __name__ == "__main__":
    main("estimate", measure, about=(__doc__ or "").partition("\n")[0])
