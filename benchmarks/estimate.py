"""What `vtrain estimate` says of five tasks, beside what `vtrain bench` then measures.

Estimates are of a short calibration on this machine (a few steps, one of them traced and checked,
one dispute), but for rounds and bytes of disputes, proofs and memory, which are of a cost model.
Its constants were fitted to ``FITTED``; the tasks of ``HELD_OUT`` had no part in it.  A proof is of
a whole step of two tasks: one that the constants were fitted to, and one that they were not.

``fit`` measures memory of ``FITTED`` and says which constants suit it best; memory does not depend
on what else a machine does.  Nothing is written into the model by it.

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
import numpy as np
from _harness import ROOT, Result, at_most, main
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.bench.alone import measure_alone
from vtrain.bench.bench import measure_task
from vtrain.bench.estimate import MEMORY_FIXED as FIXED
from vtrain.bench.estimate import MEMORY_PER_NODE as EACH
from vtrain.bench.estimate import MOST_PACKED, estimate_task
from vtrain.bench.figures import STAGES
from vtrain.bench.proofs import ProofBench
from vtrain.bench.stages import EVERY, shorten
from vtrain.engines.cpu import CpuSession
from vtrain.graph.values import PRODUCTS
from vtrain.train.runner import train
from vtrain.train.task import TaskFile, compile_task, load_task

EXAMPLES: Final = ROOT / "examples"
FITTED: Final = ("tiny", "mlp", "gpt")
HELD_OUT: Final = ("cnn", "chars")
PROVEN: Final = {"tiny": "fitted", "784-32-10": "held out"}
LIMIT: Final = 0.25
THREADS: Final = 2
SEEDS: Final = 2


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
    """Task by task, without proofs; ``quick``: one seed, and a task of each kind."""
    plain = tuple(stage for stage in STAGES if stage != "proof")
    names = (FITTED[0], HELD_OUT[0]) if quick else (*FITTED, *HELD_OUT)
    yield from _measure([(name, plain, 1 if quick else SEEDS) for name in names])


def measure_proofs(quick: bool) -> Iterator[Result]:
    """A whole step of two tasks; ``quick``: of the smaller."""
    names = list(PROVEN)[: 1 if quick else None]
    yield from _measure([(name, ("proof",), 1) for name in names])


def _measure(work: list[tuple[str, tuple[str, ...], int]]) -> Iterator[Result]:
    rows: list[dict[str, Any]] = []
    for name, stages, seeds in work:
        with tempfile.TemporaryDirectory() as folder:
            file = load(name, Path(folder))
            if stages == ("proof",):
                file = replace(file, commitments=("blake3",), proof=None, batch=8)
            rows += compare(name, file, stages, seeds)
        figure = "proofs" if stages == ("proof",) else "estimates"
        yield Result({"fitted": ", ".join(FITTED), figure: list(rows)}, judge(rows))


# --- the model's constants


def fit(quick: bool) -> Result:
    """Bytes of a process beside its samples, its buffers and its packed operands, as a line over
    the nodes of a graph: of ``FITTED`` alone, by least squares of relative errors."""
    rows = [_measure_memory(name) for name in (FITTED[:2] if quick else FITTED)]
    known = np.array([row["samples, buffers, packed operands, bytes"] for row in rows], float)
    found = np.array([row["measured, bytes"] for row in rows], float)
    nodes = np.array([row["nodes"] for row in rows], float)
    matrix = np.stack([np.ones_like(nodes), nodes], axis=1) / found[:, None]
    (fixed, each), *_ = np.linalg.lstsq(matrix, (found - known) / found, rcond=None)
    for row, base in zip(rows, known, strict=True):
        for name, constants in {"fitted": (fixed, each), "of the model": (FIXED, EACH)}.items():
            value = base + constants[0] + constants[1] * row["nodes"]
            row[f"{name} / measured"] = round(float(value) / row["measured, bytes"], 3)
    return Result(
        {
            "memory": rows,
            "fitted, MEMORY_FIXED": round(float(fixed)),
            "fitted, MEMORY_PER_NODE": round(float(each)),
        }
    )


def _measure_memory(name: str) -> dict[str, Any]:
    """What training takes, and what is known of it beforehand."""
    with tempfile.TemporaryDirectory() as folder:
        file = load(name, Path(folder))
        task = compile_task(shorten(file, EVERY))
        run = Path(folder) / "run"
        train(
            task,
            run,
            key=Ed25519PrivateKey.generate(),
            engine="cpu",
            steps=2 * EVERY,
            threads=THREADS,
        )
        peak = measure_alone("training", run, every=EVERY, engine="cpu", threads=THREADS)
        session = CpuSession(task.graph, task.samples, threads=THREADS)
        graph = task.graph
        packed = max(
            sum(graph.type_of(ref).byte_length for ref in node.inputs)
            for node in graph.nodes
            if node.op in PRODUCTS
        )
        known = task.samples.table.nbytes + session.memory + min(packed, MOST_PACKED)
    return {
        "task": name,
        "nodes": len(graph.nodes),
        "samples, buffers, packed operands, bytes": known,
        "measured, bytes": peak,
    }


if __name__ == "__main__":
    main(
        "estimate",
        {"compare": measure, "proofs": measure_proofs, "fit": fit},
        about=(__doc__ or "").partition("\n")[0],
    )
