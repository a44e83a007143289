"""``vtrain eval``: loss and accuracy of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_pairs,
)

if TYPE_CHECKING:
    from vtrain.spec.samples import Samples

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("eval", cls=VtrainCommand)
@existing_folder("run")
@click.option("--task", type=_file, help="Evaluate on the [test] data of this task file.")
@click.option("--data", type=_file, help="Evaluate on a table, or tokens, of the run's own form.")
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the last]")
@json_option
def command(
    run: Path, task: Path | None, data: Path | None, step: int | None, as_json: bool
) -> None:
    """Loss and accuracy of a checkpoint of RUN; on its training data unless told otherwise.

    The checkpoint is held against the run's signed claim first. The loss is the mean over the
    samples: nats a label for cross-entropy, squared error for MSE; accuracy is the share of right
    labels.
    """
    if task is not None and data is not None:
        raise click.UsageError("--task and --data both name what to evaluate on")
    from vtrain.train.deliver import evaluate_run

    samples, name = _choose_samples(run, task, data)
    result = evaluate_run(run, samples, step)
    pairs = {
        "step": result.step,
        "data": name,
        "samples": result.count,
        "loss": round(result.loss, 6),
        "loss_unit": result.loss_unit,
        "accuracy": None if result.accuracy is None else round(result.accuracy, 6),
        "accuracy_unit": None if result.accuracy is None else "share of right answers",
    }
    if as_json:
        print_json(pairs)
    else:
        lines = {"step": result.step, "data": name, "samples": result.count}
        lines["loss"] = f"{pairs['loss']} {pairs['loss_unit']}"
        if result.accuracy is not None:
            lines["accuracy"] = f"{pairs['accuracy']} ({100 * result.accuracy:.2f} % right)"
        print_pairs(lines)


def _choose_samples(run: Path, task: Path | None, data: Path | None) -> tuple[Samples, str]:
    from vtrain.commit.files import storing
    from vtrain.errors import DataError, TaskError
    from vtrain.spec.samples import count_in_file
    from vtrain.train.data import compute_samples_root, load_samples, read_samples
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_task
    from vtrain.train.task import load_task

    if task is not None:
        test = load_task(task).test
        if test is None:
            raise TaskError("the task file has no [test] data", where=str(task))
        return load_samples(test), f"test data of {task}"
    paths = RunPaths(run)
    spec = read_task(paths).data
    if data is None:
        samples = read_samples(paths.samples, spec, root=paths.root)
        if compute_samples_root(samples) != spec.root:
            raise DataError(
                "are not the samples that the task commits to", where=str(paths.samples)
            )
        return samples, "the run's training data"
    with storing(data):
        size = data.stat().st_size
    try:
        found = count_in_file(spec, size)
    except DataError as error:
        raise DataError(error.message, where=str(data)) from None
    return read_samples(data, found), str(data)
