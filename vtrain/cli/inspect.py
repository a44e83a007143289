"""``vtrain inspect``: what a run directory says of itself."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_json,
    print_pairs,
)

MAX_LOG = 1 << 36


@click.command("inspect", cls=VtrainCommand)
@existing_folder("run")
@json_option
def command(run: Path, as_json: bool) -> None:
    """Show what RUN says of itself; nothing is checked, which is what verify does.

    ``root`` is the state root after the last step that has one; ``log_root`` is computed from the
    log as it is, ``kzg_root`` is the one claimed (of a task with KZG commitments); ``complete``
    says whether a claim covers all steps of the task. What a run that was killed does not say yet
    is unknown (null in JSON): the solver, for one.
    """
    from vtrain.commit.files import read_file
    from vtrain.commit.log import RunLog, recover_prefix
    from vtrain.spec.commitment import compute_task_id
    from vtrain.train.layout import RunPaths, read_manifest
    from vtrain.train.signed import MAX_CLAIM, read_task
    from vtrain.wire.claim import decode_signed_claim

    paths = RunPaths(run)
    task = read_task(paths)
    recovered = recover_prefix(read_file(paths.log, MAX_LOG)) if paths.log.exists() else None
    records = recovered.records if recovered else ()
    roots = [record.state_root for record in records if record.state_root]
    claim = None
    if paths.claim.exists():
        claim = decode_signed_claim(read_file(paths.claim, MAX_CLAIM)).claim
    manifest = read_manifest(paths) if paths.manifest.exists() else None
    run_id = claim.run_id if claim else manifest.run_id if manifest else b""
    checkpoints = paths.list_checkpoints() if paths.checkpoints.is_dir() else []
    saturation = dict(manifest.saturation) if manifest else {}
    complete = claim is not None and claim.log_size == task.steps
    pairs: dict[str, str | int | None] = {
        "run": str(run),
        "task_id": compute_task_id(task).hex(),
        "run_id": run_id.hex() or None,
        "solver": claim.solver.hex() if claim else None,
        "steps": len(records),
        "task_steps": task.steps,
        "root": (roots[-1] if roots else task.initial_state_root).hex(),
        "log_root": RunLog(records).root().hex(),
        "software": manifest.software if manifest else None,
        "engine": manifest.engine if manifest else None,
    }
    if task.kzg is not None:
        pairs["kzg_root"] = claim.kzg_root.hex() if claim else None
    if recovered is not None and recovered.fault is not None:
        click.echo(f"the log ends early: {recovered.fault}", err=True)
    if as_json:
        print_json(
            {
                **pairs,
                "complete": complete,
                "checkpoints": checkpoints,
                "saturation": saturation,
            }
        )
        return
    print_pairs(
        {
            **{label: "unknown" if value is None else value for label, value in pairs.items()},
            "complete": "yes" if complete else "no" if claim else "no, nothing is claimed yet",
            "checkpoints": ", ".join(map(str, checkpoints)) or "none",
            "saturation": f"{sum(saturation.values())} elements clamped",
        }
    )
