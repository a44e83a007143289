"""A GPT and a Llama on Tiny Shakespeare, exact integers beside torch fp32.

Loss: both sides have the same initial weights, windows in the same order, AdamW, rates, clipping;
what is compared is the loss over the last tenth of the text, which nobody trained on.  How far two
fp32 runs differ whose initial weights differ by 0.01 % says what a difference means.  A run of ours
is one result for ever: it is kept under its task's id in results/transformer-runs.json, and torch's
under what determines it but for torch's own version, which the row names. Only what is not there is
run.

Speed (``--part speed``): a whole step, batch 16 and 128 places, over torch fp32 eager on the same
two threads, which gets a fixed ready batch; ours draws and digests its batch.  No state root falls
into it.  Peak memory is that of a process that does nothing but load and step, beyond what it
imports.  Replay is that of verify.py: reading and hashing a checkpoint, and the steps.

Predicted before measuring: a mean difference of losses of 0.001 to 0.003 nats over five seeds, as
the number format's study had on such a model; a step of 0.8 of torch's time with AVX512-VNNI and of
1.5 with AVX2, since products are half of torch's step and take 0.45 of its time, and all else takes
longer than in float32, as softmax and norms are several passes; 0.9 of torch's memory, since most
of what is kept is int16.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import _harness as harness
import click
import numpy as np
import torch
from _shakespeare import Both, Variant, perturb
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from step import finish_imports, measure_phases, read_peak, save_task
from verify import measure_replay

from vtrain.engines.cpu import CpuSession
from vtrain.engines.registry import open_session
from vtrain.train.deliver import evaluate
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, compile_task, load_task

SEEDS = range(5)
PERTURBED = 1e-4
LOSS_LIMIT = 0.005
KEPT = harness.ROOT / "benchmarks" / "results" / "transformer-runs.json"
SINGLE = {
    "2,000 steps": Variant(steps=2000),
    "8 layers": Variant(layers=8),
    "dropout 0.1": Variant(dropout=0.1),
    "llama": Variant("llama"),
}
"""One seed each, beside the five."""
SPEED = {"gpt": Variant(steps=10**6), "llama": Variant("llama", steps=10**6)}
"""What steps are timed of, never at the end of their schedule."""
NEVER = 10**6
"""Steps between two commitments, none of which falls into what is timed."""
TIME_LIMITS = {"avx512_vnni": 1.0, "avx2": 1.6}
MEMORY_LIMIT = 1.0
REPLAY_LIMIT = 1.05
PEAK_STEPS = 5
PHASE_STEPS = 5
INTERVAL = 10
"""Steps that are replayed: as many as the examples have between two state roots."""
THREADS = int(os.environ.get("VTRAIN_BENCH_THREADS", "2"))


def train_integers(both: Both, task: CompiledTask) -> dict[str, Any]:
    """The exact run: loss in nats a place, saturated elements, and where there are most."""
    begin = time.perf_counter()
    session = open_session("cpu", task.graph, task.samples, threads=THREADS)
    session.load_state(task.initial_state)
    for step in range(both.file.steps):
        session.step()
        if step % 100 == 99:
            click.echo(f"  exact: {step + 1} steps", err=True)
    seconds = time.perf_counter() - begin
    result = evaluate(task.graph, session.read_state(), both.test)
    saturation = session.saturation()
    worst = max(saturation, key=saturation.__getitem__, default="")
    return {
        "loss": result.loss,
        "saturated": sum(saturation.values()),
        "most saturated": {worst: saturation[worst]} if worst else {},
        "seconds a step": seconds / both.file.steps,
    }


def train_torch(both: Both, share: float) -> dict[str, Any]:
    """The fp32 run, its initial weights perturbed by ``share``: loss in nats a place."""
    torch.set_num_threads(THREADS)
    network = both.variant.make_network()
    perturb(network, 1000 + both.variant.seed, share)
    step = both.make_torch_step(network)
    begin = time.perf_counter()
    for index in range(both.file.steps):
        step(index)
        if index % 100 == 99:
            click.echo(f"  fp32: {index + 1} steps", err=True)
    seconds = time.perf_counter() - begin
    return {
        "loss": both.measure_torch(network),
        "seconds a step": seconds / both.file.steps,
        "torch": torch.__version__,
    }


class Kept:
    """Results of runs, in a file: what a run's key was found to give."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        found = path is not None and path.exists()
        self._rows: dict[str, Any] = json.loads(path.read_text()) if path and found else {}

    def read(self, key: str, run: Any) -> dict[str, Any]:
        """The result under ``key``, of ``run()`` if there is none."""
        if key not in self._rows:
            click.echo(key, err=True)
            self._rows[key] = run()
            if self._path is not None:
                text = json.dumps(self._rows, indent=1, sort_keys=True)
                whole = self._path.with_suffix(".part")
                whole.write_text(text + "\n")
                whole.replace(self._path)
        row: dict[str, Any] = self._rows[key]
        return row


def train_both(name: str, both: Both, kept: Kept) -> dict[str, Any]:
    """fp32, and fp32 that began a little beside; kept by what determines them."""
    run = both.digest_fp32()[:32]
    return {
        side: kept.read(
            f"{name}, seed {both.variant.seed}: {side}, {run}",
            lambda share=share: train_torch(both, share),
        )
        for side, share in (("fp32", 0.0), ("perturbed", PERTURBED))
    }


def name_run(task: CompiledTask) -> str:
    """What determines a run of ours: its task but for the bytes of the model's file, into which
    exporters put versions and paths; the weights and the graph that they give are in the task."""
    return replace(task, spec=replace(task.spec, model_digest=bytes(32))).task_id.hex()[:32]


def run_variant(name: str, variant: Variant, kept: Kept) -> dict[str, Any]:
    """Losses of the exact run, of fp32, and of fp32 that began a little beside."""
    with tempfile.TemporaryDirectory() as folder:
        both = variant.open(Path(folder))
        sides = train_both(name, both, kept)
        task = both.compile()
        key = f"{name}, seed {variant.seed}: exact, {name_run(task)}"
        rows = {"exact": kept.read(key, lambda: train_integers(both, task)), **sides}
    return {
        "seed": variant.seed,
        "loss": {side: row["loss"] for side, row in rows.items()},
        "saturated": rows["exact"]["saturated"],
        "difference": rows["exact"]["loss"] - rows["fp32"]["loss"],
        "spread": rows["perturbed"]["loss"] - rows["fp32"]["loss"],
    }


def judge(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, harness.Target]]:
    """The paired differences of several seeds, and their targets."""
    gaps, spreads = ([row[key] for row in rows] for key in ("difference", "spread"))
    mean = math.fsum(gaps) / len(gaps)
    own, error = (float(np.std(x, ddof=1)) / math.sqrt(len(x)) for x in (gaps, spreads))
    figure = {
        "rows": rows,
        "mean difference": mean,
        "standard error of the mean difference": own,
        "standard error of fp32's own": error,
    }
    name = "GPT, five seeds: |mean difference| of losses"
    return figure, {
        f"{name}, nats": harness.at_most(abs(mean), LOSS_LIMIT),
        f"{name}, of two standard errors": harness.at_most(abs(mean) / (2 * error), 1.0),
    }


def measure_losses(quick: bool) -> Iterator[harness.Result]:
    """Five seeds at 1,000 steps, then one of each other; ``quick``: one of 30 steps, no targets."""
    figures: dict[str, Any] = {}
    targets: dict[str, harness.Target] = {}
    if quick:
        short = {"schedule": {"warmup": 5}}
        figures["gpt"] = run_variant("gpt", Variant(steps=30, settings=short), Kept(None))
        yield harness.Result(figures, targets)
        return
    kept = Kept(KEPT)
    figures["gpt"] = []
    for seed in SEEDS:
        figures["gpt"].append(run_variant("gpt", Variant(seed=seed), kept))
        yield harness.Result(dict(figures), targets)
    figures["gpt"], found = judge(figures["gpt"])
    targets |= found
    for name, variant in SINGLE.items():
        row = run_variant(name, variant, kept)
        figures[name] = row
        limit = max(LOSS_LIMIT, abs(row["spread"]))
        targets[f"{name}: |difference| of losses, nats"] = harness.at_most(
            abs(row["difference"]), limit
        )
        yield harness.Result(dict(figures), dict(targets))


# --- step time, memory, replay


def open_for_speed(name: str, folder: Path) -> Both:
    """A model of the examples as a task that never commits, its files in ``folder``."""
    both = SPEED[name].open(folder)
    file = replace(both.file, commit_every=NEVER, checkpoint_every=NEVER)
    return Both(both.variant, file)


def compare_steps(both: Both, task: CompiledTask, seconds: float) -> dict[str, Any]:
    """Seconds a step of both sides, their ratio, and where ours goes."""
    torch.set_num_threads(THREADS)
    session = open_session("cpu", task.graph, task.samples, threads=THREADS)
    session.load_state(task.initial_state)
    theirs = both.make_torch_step(both.variant.make_network(), fixed=True)
    figure: dict[str, Any] = dict(harness.compare(session.step, theirs, seconds=seconds))
    assert isinstance(session, CpuSession)
    figure["phases, seconds a step"] = measure_phases(task.graph, session, PHASE_STEPS)
    return figure


def run_torch_peak(name: str, folder: str) -> None:
    """What a process of its own does: print its peak memory before and after some steps."""
    finish_imports()
    before = read_peak()
    torch.set_num_threads(THREADS)
    variant = SPEED[name]
    both = Both(variant, load_task(Path(folder) / f"{variant.model}.toml"))
    step = both.make_torch_step(variant.make_network(), fixed=True)
    for _ in range(PEAK_STEPS):
        step()
    print(json.dumps({"imports, MB": before, "peak, MB": read_peak()}))


def measure_peaks(name: str, task: CompiledTask, folder: Path) -> dict[str, Any]:
    """Peak memory of both sides beyond what they import, each in a process of its own."""
    save_task(task, folder)
    place = str(folder)
    figures: dict[str, Any] = {
        "vtrain": harness.ask_process(
            f"import step; step.run_peak('vtrain', {place!r}, {PEAK_STEPS})"
        ),
        "torch": harness.ask_process(
            f"import transformer; transformer.run_torch_peak({name!r}, {place!r})"
        ),
    }
    grown = [figures[side]["peak, MB"] - figures[side]["imports, MB"] for side in figures]
    figures["beyond the imports, ratio"] = grown[0] / max(grown[1], 0.1)
    return figures


def compare_replay(both: Both, folder: Path, seconds: float, interval: int) -> harness.Comparison:
    """Seconds for an interval of a run: replayed (ours) and trained (theirs)."""
    file = replace(both.file, steps=2 * interval, commit_every=interval, checkpoint_every=interval)
    task = compile_task(file)
    train(task, folder / "run", key=Ed25519PrivateKey.generate(), engine="cpu", threads=THREADS)
    return measure_replay(task, folder / "run", seconds, interval)


def measure_speed(quick: bool) -> Iterator[harness.Result]:
    """Steps, memory and replay of the GPT and the Llama; ``quick`` takes fewer rounds."""
    figures: dict[str, Any] = {}
    targets: dict[str, harness.Target] = {}
    for name in SPEED:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            both = open_for_speed(name, folder)
            task = both.compile()
            steps = compare_steps(both, task, 5.0 if quick else 60.0)
            memory = measure_peaks(name, task, folder)
            figures |= {f"{name}: steps": steps, f"{name}: memory": memory}
            targets[f"{name}: step, two threads, of torch fp32"] = harness.at_most_here(
                steps["ratio"]["median"], **TIME_LIMITS
            )
            targets[f"{name}: peak memory beyond the imports, of torch's"] = harness.at_most(
                memory["beyond the imports, ratio"], MEMORY_LIMIT
            )
            yield harness.Result(dict(figures), dict(targets))
            interval, seconds = (2, 5.0) if quick else (INTERVAL, 60.0)
            replay = compare_replay(both, folder, seconds, interval)
            figures[f"{name}: replay of {interval} steps"] = replay
            targets[f"{name}: replay of an interval, of training it"] = harness.at_most(
                replay["ratio"]["median"], REPLAY_LIMIT
            )
            yield harness.Result(dict(figures), dict(targets))


if __name__ == "__main__":
    harness.main(
        "transformer",
        {"speed": measure_speed, "losses": measure_losses},
        quick_help="Few rounds of steps, and one run of 30 steps: some minutes.",
    )
