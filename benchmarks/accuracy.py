"""Test accuracy: exact integers against torch fp32, same weights, data order and schedule.

Predicted before measuring: a mean paired gap of 0.0 to 0.1 points, since the number-format study
saw no loss difference; single seeds may differ by a few images of the 1,000 either way.

``--part resnet``: ResNet-18 of torchvision through ``vtrain.from_torch``, BatchNorm by the batch in
training and by running statistics on the test images; see _resnet.py.  Predicted before measuring:
a mean gap of 0.1 points, at 98.5 % right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import _harness as harness
import _resnet as resnet
import click
import numpy as np
import onnx
import torch
from _models import EXAMPLES, compile_variant, load_make_models, make_torch_model

from vtrain.engines.registry import open_session
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.train.data import load_samples
from vtrain.train.deliver import evaluate
from vtrain.train.task import CompiledTask, TaskFile, load_task

SEEDS = (0, 1, 2)
GAP_LIMIT = 0.2
BASELINE_LEAST = {"mlp": 94.0, "cnn": 97.0}
RESNET_GAP_LIMIT = 0.3
RESNET_LEAST = 97.0
THREADS = 2


def to_floats(kind: str, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """Images scaled to [0, 1] in the shape that ``kind`` takes, and labels."""
    shape = (-1, 1, 28, 28) if kind == "cnn" else (-1, 784)
    x = torch.from_numpy(samples.part("x").astype(np.float32) / 255).reshape(shape)
    return x, torch.from_numpy(samples.part("y").astype(np.int64))


def train_torch(
    kind: str, file: TaskFile, model: onnx.ModelProto, train: Samples, test: Samples
) -> float:
    """Test accuracy in percent of fp32 SGD with momentum over the task's own batches."""
    network = make_torch_model(model)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.0, momentum=float(file.optimizer.momentum)
    )
    x, y = to_floats(kind, train)
    rates = dict(file.optimizer.rates)
    for step in range(file.steps):
        if step in rates:
            optimizer.param_groups[0]["lr"] = float(rates[step])
        index = torch.from_numpy(
            compute_batch_indices(file.seed, train.spec.samples, file.batch, step)
        )
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x[index]), y[index]).backward()
        optimizer.step()
    x, y = to_floats(kind, test)
    with torch.no_grad():
        return 100 * float((network(x).argmax(1) == y).double().mean())


def train_integers(task: CompiledTask, test: Samples) -> tuple[float, float, int]:
    """Test accuracy in percent, test loss in nats, and saturated elements of the exact run."""
    session = open_session("cpu", task.graph, task.samples, threads=THREADS)
    session.load_state(task.initial_state)
    for _ in range(task.spec.steps):
        session.step()
    result = evaluate(task.graph, session.read_state(), test)
    accuracy = result.accuracy or 0.0  # a task with classes always has one
    return 100 * accuracy, result.loss, sum(session.saturation().values())


def train_resnet_integers(both: resnet.Both) -> dict[str, float]:
    """The exact run of a task of ResNet-18."""
    session = open_session("cpu", both.task.graph, both.task.samples, threads=THREADS)
    session.load_state(both.task.initial_state)
    begin = time.perf_counter()
    for _ in range(both.task.spec.steps):
        session.step()
    seconds = (time.perf_counter() - begin) / both.task.spec.steps
    result = evaluate(both.task.graph, session.read_state(), both.test)
    return {
        "exact": 100 * (result.accuracy or 0.0),
        "loss": result.loss,
        "saturated": sum(session.saturation().values()),
        "exact, s a step": seconds,
    }


def train_resnet_torch(both: resnet.Both) -> dict[str, float]:
    """The fp32 run of the same module, batches and rates."""
    network = both.copy_network()
    step = both.make_torch_step(network)
    begin = time.perf_counter()
    for index in range(both.task.spec.steps):
        step(index)
    seconds = (time.perf_counter() - begin) / both.task.spec.steps
    return {"fp32": resnet.measure_network(network), "fp32, s a step": seconds}


def measure_resnet(quick: bool) -> Iterator[harness.Result]:
    """Three seeds of ResNet-18; ``quick`` does a few steps of one, and sets no targets."""
    torch.set_num_threads(THREADS)
    rows: list[dict[str, Any]] = []
    for seed in SEEDS[:1] if quick else SEEDS:
        both = resnet.make_both(seed, resnet.STEPS // 16 if quick else resnet.STEPS)
        row = {"seed": seed, **train_resnet_torch(both), **train_resnet_integers(both)}
        rows.append({key: round(value, 4) for key, value in row.items()})
        click.echo(f"  resnet: {rows[-1]}", err=True)
        gaps = [row["fp32"] - row["exact"] for row in rows]
        baseline = [row["fp32"] for row in rows]
        figures = {
            "resnet": rows,
            "resnet: fp32_percent": harness.spread(baseline),
            "resnet: exact_percent": harness.spread([row["exact"] for row in rows]),
            "resnet: gap_points": harness.spread(gaps),
        }
        if len(rows) < len(SEEDS):
            yield harness.Result(figures)
    if quick:
        return
    yield harness.Result(
        figures,
        {
            "resnet: mean paired gap, points": harness.at_most(
                math.fsum(gaps) / len(gaps), RESNET_GAP_LIMIT
            ),
            "resnet: fp32 baseline, percent": harness.at_least(
                math.fsum(baseline) / len(baseline), RESNET_LEAST
            ),
        },
    )


def measure_examples(quick: bool) -> harness.Result:
    """Three seeds of each model; ``quick`` trains an eighth as long and sets no targets."""
    torch.set_num_threads(THREADS)
    make_models = load_make_models()
    figures: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    for kind in ("mlp", "cnn"):
        file = load_task(EXAMPLES / f"{kind}.toml")
        assert file.test is not None  # the shipped examples have one
        train, test = load_samples(file.data), load_samples(file.test)
        rows = []
        for seed in SEEDS:
            model = make_models.make_model(kind, seed)
            steps = file.steps // 8 if quick else file.steps
            seeded, task = compile_variant(
                file, model, seed=seed, steps=steps, commit_every=steps, checkpoint_every=steps
            )
            fp32 = train_torch(kind, seeded, model, train, test)
            exact, loss, saturated = train_integers(task, test)
            rows.append(
                {"seed": seed, "fp32": fp32, "exact": exact, "loss": loss, "saturated": saturated}
            )
        gaps = [row["fp32"] - row["exact"] for row in rows]
        baseline = [row["fp32"] for row in rows]
        gap = math.fsum(gaps) / len(gaps)
        figures[kind] = {
            "rows": rows,
            "fp32_percent": harness.spread(baseline),
            "exact_percent": harness.spread([row["exact"] for row in rows]),
            "gap_points": harness.spread(gaps),
            "mean_gap_points": gap,
        }
        if not quick:
            targets[f"{kind}: mean paired gap, points"] = harness.at_most(gap, GAP_LIMIT)
            least = math.fsum(baseline) / len(baseline)
            targets[f"{kind}: fp32 baseline, percent"] = harness.at_least(
                least, BASELINE_LEAST[kind]
            )
    return harness.Result(figures, targets)


if __name__ == "__main__":
    harness.main("accuracy", {"examples": measure_examples, "resnet": measure_resnet})
