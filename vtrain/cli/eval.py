"""``vtrain eval``: loss and accuracy of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_json,
    print_pairs,
)

if TYPE_CHECKING:
    from vtrain.spec.samples import Samples

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("eval", cls=VtrainCommand)
@existing_folder("run")
@click.option("--task", type=_file, help="Evaluate on the [test] data of this task file.")
@click.option("--data", type=_file, help="Evaluate on a sample table of the run's own form.")
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the last]")
@json_option
def command(
    run: Path, task: Path | None, data: Path | None, step: int | None, as_json: bool
) -> None:
    """Loss and accuracy of a checkpoint of RUN; on its training data unless told otherwise."""
    if task is not None and data is not None:
        raise click.UsageError("--task and --data both name what to evaluate on")
    from vtrain.train.deliver import evaluate_run

    samples, name = _choose_samples(run, task, data)
    result = evaluate_run(run, samples, step)
    pairs = {
        "data": name,
        "samples": result.count,
        "loss": round(result.loss, 6),
        "accuracy": None if result.accuracy is None else round(result.accuracy, 6),
    }
    if as_json:
        print_json(pairs)
    else:
        print_pairs({label: value for label, value in pairs.items() if value is not None})


def _choose_samples(run: Path, task: Path | None, data: Path | None) -> tuple[Samples, str]:
    from vtrain.commit.files import read_file, storing
    from vtrain.errors import TaskError
    from vtrain.spec.samples import compute_row_length
    from vtrain.train.data import load_samples, map_samples
    from vtrain.train.layout import RunPaths
    from vtrain.train.task import load_task
    from vtrain.wire.task import decode_task

    if task is not None:
        test = load_task(task).test
        if test is None:
            raise TaskError("the task file has no [test] data", where=str(task))
        return load_samples(test), f"test data of {task}"
    paths = RunPaths(run)
    spec = decode_task(read_file(paths.task, 1 << 20)).data
    if data is None:
        return map_samples(paths.samples, spec), "the run's training data"
    with storing(data):
        rows = data.stat().st_size // compute_row_length(spec)
    return map_samples(data, replace(spec, samples=max(rows, 1))), str(data)
