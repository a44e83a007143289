"""``vtrain plot``: the histories of runs as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import VtrainCommand, json_option, print_pairs


@click.command("plot", cls=VtrainCommand)
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="RUN...",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("history.png"),
    show_default=True,
    metavar="FILE",
    help="The picture, a .png or .svg; one that is there is replaced.",
)
@json_option
def command(runs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Draw loss, learning rate, saturation and time of each step of every RUN into one picture.

    Losses come from the log of the run, all else from its history.jsonl; nothing is checked, which
    is what verify does.  A run may still go on.  Needs the extra plot (matplotlib).
    """
    from vtrain.train.plot import check_format, draw_runs, save_figure

    check_format(out)
    save_figure(draw_runs(runs), out)
    pairs = {"picture": str(out), "runs": [str(run) for run in runs]}
    if as_json:
        print_json(pairs)
    else:
        print_pairs({"picture": out})
