"""``vtrain profile``: calibrate the exponents of a task."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_file,
    json_option,
    print_pairs,
    show_progress,
)


@click.command("profile", cls=VtrainCommand)
@existing_file("task")
@click.option("--check", is_flag=True, help="Write nothing; fail unless TASK has these exponents.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "cpu", "cuda", "numpy"]),
    default="auto",
    show_default=True,
    help="Where the steps are done; the exponents are the same. auto: cuda where there is a GPU "
    "that can be used, else cpu.",
)
@json_option
def command(task: Path, check: bool, engine: str, as_json: bool) -> None:
    """Train a few steps of TASK and write the exponents that they call for into the file.

    All of it is exact integers: whoever repeats it gets the same exponents, and --check does.
    """
    from vtrain.engines.registry import choose_evaluator
    from vtrain.errors import TaskError
    from vtrain.train.task import load_task, profile_task, write_exponents

    file = load_task(task)
    with show_progress() as progress:
        calibration = profile_task(
            file,
            lambda done: progress("calibrating", done, file.calibration_steps),
            open_evaluator=choose_evaluator(engine),
        )
    found = dict(sorted(calibration.exponents.items()))
    if check:
        known = file.exponents
        for site in sorted(found.keys() | known.keys()):
            if found.get(site) != known.get(site):
                raise TaskError(
                    f"is {known.get(site, 'missing')}, calibration gives {found.get(site, 'none')}",
                    where=f"exponents.{site}",
                )
    else:
        write_exponents(task, found)
    if as_json:
        print_json({"exponents": found, "silent": list(calibration.silent), "written": not check})
        return
    print_pairs(found)
    for site in calibration.silent:
        echo(f"{site} saw nothing but zeros: its exponent is a guess", err=True)
