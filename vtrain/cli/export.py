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
@click.option(
    "--hub",
    is_flag=True,
    help="Make DIR a folder for a hub of models, with a model card: task id, root, how to verify.",
)
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the last]")
@json_option
def command(run: Path, out: Path, hub: bool, step: int | None, as_json: bool) -> None:
    """Write the weights of RUN as floats into DIR: the task's ONNX model, and safetensors.

    The checkpoint is held against the run's signed claim first.  With --hub DIR is new, and has
    README.md (a model card) and the claim too.
    """
    from vtrain.train.deliver import export_run
    from vtrain.train.hub import export_hub
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim

    export = export_hub if hub else export_run
    onnx, safetensors = export(run, out, step)
    claimed = read_claim(RunPaths(run)).claim.log_size
    pairs = {
        "step": claimed if step is None else step,
        "onnx": str(onnx),
        "safetensors": str(safetensors),
        **({"card": str(out / "README.md")} if hub else {}),
    }
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)
