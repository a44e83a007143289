"""``vtrain inspect``: what a run directory says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    VtrainCommand,
    count,
    existing_folder,
    json_option,
    list_saturation,
    list_warnings,
    print_pairs,
)

if TYPE_CHECKING:
    from vtrain.train.saturation import SiteSaturation


@click.command("inspect", cls=VtrainCommand)
@existing_folder("run")
@json_option
def command(run: Path, as_json: bool) -> None:
    """Show what RUN says of itself; nothing is checked, which is what verify does.

    ``root`` is the state root after the last step that has one; ``log_root`` is computed from the
    log as it is, ``kzg_root`` is the one claimed (of a task with KZG commitments); ``complete``
    says whether a claim covers all steps of the task; ``saturation`` are the sites that clamped,
    with the share of their elements (``ppm``, in millionths), and one above 100 is warned of. What
    a run that was killed does not say yet is unknown (null in JSON): the solver, for one, or what
    was clamped.
    """
    from vtrain.train.inspect import inspect_run

    info = inspect_run(run)
    pairs: dict[str, str | int | None] = {
        "run": str(run),
        "task_id": info.task_id.hex(),
        "run_id": info.run_id.hex() or None,
        "solver": info.solver.hex() or None,
        "steps": info.steps,
        "task_steps": info.task_steps,
        "root": info.root.hex(),
        "log_root": info.log_root.hex(),
        "software": info.software or None,
        "engine": info.engine or None,
    }
    if info.kzg_root is not None:
        pairs["kzg_root"] = info.kzg_root.hex() or None
    if info.fault:
        echo(f"the log ends early: {info.fault}", err=True)
    if as_json:
        print_json(
            {
                **pairs,
                "complete": info.complete,
                "checkpoints": list(info.checkpoints),
                "saturation": None if info.saturation is None else list_saturation(info.saturation),
                "warnings": list_warnings(),
            }
        )
        return
    begun = "no" if info.claimed else "no, nothing is claimed yet"
    print_pairs(
        {
            **{label: "unknown" if value is None else value for label, value in pairs.items()},
            "complete": "yes" if info.complete else begun,
            "checkpoints": ", ".join(map(str, info.checkpoints)) or "none",
            "saturation": _describe(info.saturation),
        }
    )


def _describe(sites: tuple[SiteSaturation, ...] | None) -> str:
    if sites is None:
        return "unknown"
    if not sites:
        return "0 elements clamped"
    elements = sum(site.count for site in sites)
    worst = sites[0]
    return (
        f"{count(elements, 'element')} clamped at {count(len(sites), 'site')}, the most at "
        f"{worst.site}: {worst.ppm:.3g} of a million"
    )
