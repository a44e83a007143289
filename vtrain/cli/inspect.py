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
    from vtrain.commit.log import LogSurvey
    from vtrain.train.layout import RunPaths
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
    a run that was killed does not say yet is unknown (null in JSON): the solver, for one.
    """
    from vtrain.commit.files import read_file
    from vtrain.limits import LIMITS
    from vtrain.spec.commitment import compute_task_id
    from vtrain.train.layout import RunPaths, read_manifest
    from vtrain.train.saturation import measure_saturation, warn_of_saturation
    from vtrain.train.signed import read_graph, read_task
    from vtrain.wire.claim import decode_signed_claim

    paths = RunPaths(run)
    task = read_task(paths)
    log = _survey_log(paths)
    claim = None
    if paths.claim.exists():
        data = read_file(paths.claim, LIMITS.claim_bytes, root=paths.root)
        claim = decode_signed_claim(data).claim
    manifest = read_manifest(paths) if paths.manifest.exists() else None
    run_id = claim.run_id if claim else manifest.run_id if manifest else b""
    checkpoints = paths.list_checkpoints()
    sites: tuple[SiteSaturation, ...] = ()
    if manifest is not None and manifest.saturation:
        graph = read_graph(paths, task)
        sites = measure_saturation(graph, manifest.saturation, manifest.counted_steps)
        found = [site for site in sites if site.is_too_much]
        warn_of_saturation(graph, found, f"in {manifest.counted_steps} steps")
    complete = claim is not None and claim.log_size == task.steps
    pairs: dict[str, str | int | None] = {
        "run": str(run),
        "task_id": compute_task_id(task).hex(),
        "run_id": run_id.hex() or None,
        "solver": claim.solver.hex() if claim else None,
        "steps": log.size,
        "task_steps": task.steps,
        "root": (log.state_root or task.initial_state_root).hex(),
        "log_root": log.root.hex(),
        "software": manifest.software if manifest else None,
        "engine": manifest.engine if manifest else None,
    }
    if task.kzg is not None:
        pairs["kzg_root"] = claim.kzg_root.hex() if claim else None
    if log.fault is not None:
        echo(f"the log ends early: {log.fault}", err=True)
    if as_json:
        print_json(
            {
                **pairs,
                "complete": complete,
                "checkpoints": checkpoints,
                "saturation": list_saturation(sites),
                "warnings": list_warnings(),
            }
        )
        return
    print_pairs(
        {
            **{label: "unknown" if value is None else value for label, value in pairs.items()},
            "complete": "yes" if complete else "no" if claim else "no, nothing is claimed yet",
            "checkpoints": ", ".join(map(str, checkpoints)) or "none",
            "saturation": _describe(sites),
        }
    )


def _describe(sites: tuple[SiteSaturation, ...]) -> str:
    if not sites:
        return "0 elements clamped"
    elements = sum(site.count for site in sites)
    worst = sites[0]
    return (
        f"{count(elements, 'element')} clamped at {count(len(sites), 'site')}, the most at "
        f"{worst.site}: {worst.ppm:.3g} of a million"
    )


def _survey_log(paths: RunPaths) -> LogSurvey:
    """The log as it is now, be it still written."""
    import io

    from vtrain.commit.files import open_file
    from vtrain.commit.log import LOG_HEADER, survey_log
    from vtrain.limits import limits_here

    if not paths.log.exists():
        return survey_log(io.BytesIO(LOG_HEADER))
    most = limits_here().log_bytes
    with open_file(paths.log, most, root=paths.root, growing=True) as file:
        return survey_log(file)
