"""``vtrain profile``: calibrate the exponents of a task."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    VtrainCommand,
    count,
    existing_file,
    json_option,
    naming_lint,
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
    from vtrain.train.task import load_task, profile_task, write_exponents

    with naming_lint(task), show_progress() as progress:
        file = load_task(task)
        calibration = profile_task(
            file,
            lambda done: progress("calibrating", done, file.calibration_steps),
            open_evaluator=choose_evaluator(engine),
        )
    found = dict(sorted(calibration.exponents.items()))
    if check:
        _require_same(task, file.exponents, found)
    else:
        write_exponents(task, found)
    if as_json:
        print_json({"exponents": found, "silent": list(calibration.silent), "written": not check})
        return
    if check:
        echo(f"the exponents of all {count(len(found), 'site')} are those of calibration")
    else:
        print_pairs(found)
    for site in calibration.silent:
        echo(f"{site} saw nothing but zeros: its exponent is a guess", err=True)


def _require_same(task: Path, known: Mapping[str, int], found: Mapping[str, int]) -> None:
    """TaskError unless TASK has the exponents ``found``, with a note for each that differs."""
    from vtrain.errors import TaskError

    sites = sorted(found.keys() | known.keys())
    other = [site for site in sites if found.get(site) != known.get(site)]
    if not other:
        return
    error = TaskError(
        f"{len(other)} of {count(len(sites), 'exponent')} are not those that calibration gives: "
        f"`vtrain profile {shlex.quote(str(task))}` writes them",
        where=str(task),
    )
    for site in other:
        has, gives = known.get(site, "missing"), found.get(site, "none")
        error.add_note(f"exponents.{site} is {has}, calibration gives {gives}")
    raise error
