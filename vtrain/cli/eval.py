"""``vtrain eval``: loss and accuracy of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_pairs,
)

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
    from vtrain.train.deliver import evaluate_run, load_held_out

    samples, name = load_held_out(run, task, data)
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
