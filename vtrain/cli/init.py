"""``vtrain init``: a task file for a model and data."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import VtrainCommand, existing_file, json_option, print_pairs, require_new


@click.command("init", cls=VtrainCommand)
@existing_file("model")
@click.argument(
    "data",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="DATA...",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("task.toml"),
    show_default=True,
    metavar="FILE",
    help="The new task file.",
)
@json_option
def command(model: Path, data: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Write a task file, with comments, that trains the ONNX file MODEL on DATA.

    DATA are two .npy files (inputs, targets), two IDX files (images, labels), one .npz, a file of
    tokens (.npy, or .bin of uint16) for a model that takes ids, or a text.  What can be read off
    the files is filled in; rate, batch and steps are a beginning.  Nothing is trained.
    """
    from vtrain.train.new_task import write_new_task

    if len(data) > 2:
        raise click.UsageError("DATA are one file or two: inputs and targets")
    require_new(out)
    write_new_task(model, data, out)
    name = shlex.quote(str(out))
    after = [f"vtrain task check --lint {name}", f"vtrain profile {name}"]
    after.append(f"vtrain train {name} --out RUN")
    if as_json:
        print_json({"task": str(out), "next": after})
        return
    print_pairs({"task": out})
    for line in after:
        echo(f"next: {line}", err=True)
