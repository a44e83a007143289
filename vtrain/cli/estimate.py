"""``vtrain estimate``: what a task would cost, before it is run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    CleanCommand,
    engine_option,
    existing_file,
    json_option,
    print_pairs,
    threads_option,
)


@click.command("estimate", cls=CleanCommand)
@existing_file("task")
@engine_option
@threads_option
@json_option
def command(task: Path, engine: str, threads: int, as_json: bool) -> int:
    """Say what TASK would cost on this machine: to train, to commit to, to replay, to check by its
    traces, to dispute and to prove (docs/measuring.md).

    All but proofs is done for it, a few steps of each, in some twenty seconds for small models.
    Rounds and bytes of disputes, and proofs, are estimated by a model, fitted to measurements (~).
    """
    from vtrain.bench.estimate import estimate_task
    from vtrain.bench.figures import describe
    from vtrain.train.task import load_task

    found = estimate_task(load_task(task), engine=engine, threads=threads)
    if as_json:
        shown = {
            "each": [asdict(item) for item in found.each],
            "all": [asdict(item) for item in found.all],
            "skipped": dict(found.skipped),
        }
        print_json(shown)
        return 0
    for title, items in (("each", found.each), ("the run and its audits", found.all)):
        echo(title)
        print_pairs(
            {
                f"  {item.stage}: {item.what}, {item.unit}": ("~" if item.how == "model" else "")
                + describe(item.value, item.unit)
                for item in items
            }
        )
    for name, reason in found.skipped.items():
        echo(f"not estimated: {name}: {reason}", err=True)
    return 0
