"""``vtrain export``: hand over the trained model as floats."""

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


@click.command("export", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the last]")
@json_option
def command(run: Path, out: Path, step: int | None, as_json: bool) -> None:
    """Write the weights of RUN as floats into DIR: the task's ONNX model, and safetensors.

    The checkpoint is held against the run's signed claim first.
    """
    from vtrain.train.deliver import export_run
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim

    onnx, safetensors = export_run(run, out, step)
    claimed = read_claim(RunPaths(run)).claim.log_size
    pairs = {
        "step": claimed if step is None else step,
        "onnx": str(onnx),
        "safetensors": str(safetensors),
    }
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)
