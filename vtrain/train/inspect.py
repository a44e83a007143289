"""What a run directory says of itself; nothing is checked, which is what verify does."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from vtrain.commit.files import open_file, read_file
from vtrain.commit.log import LOG_HEADER, LogSurvey, survey_log
from vtrain.errors import warn
from vtrain.limits import LIMITS, limits_here
from vtrain.printable import make_html_table
from vtrain.spec.commitment import compute_task_id
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.saturation import (
    SiteSaturation,
    measure_saturation,
    select_possible,
    warn_of_saturation,
)
from vtrain.train.signed import read_graph, read_task
from vtrain.wire.claim import decode_signed_claim


@dataclass(frozen=True, repr=False)
class RunInfo:
    """What a run says.  Of a run that was killed ``run_id``, ``solver``, ``software`` and
    ``engine`` may be unknown: empty.

    ``root`` is the state root after the last step that has one; ``log_root`` is computed from the
    log as it is, ``kzg_root`` the one claimed (None where the task asks for no KZG commitments).
    ``complete``: a claim covers all steps of the task; ``claimed``: there is one at all.
    ``saturation`` are the sites that clamped, the worst first, None where nobody counted or the
    count is gone.  ``fault``: why the log ends where it does, empty where nothing is wrong.
    """

    path: Path
    task_id: bytes
    run_id: bytes
    solver: bytes
    steps: int
    task_steps: int
    root: bytes
    log_root: bytes
    kzg_root: bytes | None
    software: str
    engine: str
    claimed: bool
    complete: bool
    checkpoints: tuple[int, ...]
    saturation: tuple[SiteSaturation, ...] | None
    fault: str

    def __repr__(self) -> str:
        return (
            f"<run {str(self.path)!r} of task {self.task_id.hex()[:16]}: {self.steps:,} of "
            f"{self.task_steps:,} steps, root {self.root.hex()[:16]}, not checked>"
        )

    def _repr_html_(self) -> str:
        return make_html_table(f"run {self.path}, as it says", self._list().items())

    def _list(self) -> dict[str, object]:
        worst = "nothing" if self.saturation is not None else "unknown"
        if self.saturation:
            worst = f"{self.saturation[0].site}: {self.saturation[0].ppm:.3g} ppm"
        return {
            "task": self.task_id.hex(),
            "solver": self.solver.hex() or "unknown",
            "steps": f"{self.steps:,} of {self.task_steps:,}",
            "root": self.root.hex(),
            "claim": "covers all steps" if self.complete else "yes" if self.claimed else "none yet",
            "checkpoints": ", ".join(map(str, self.checkpoints)) or "none",
            "clamped most": worst,
            "log": self.fault,
        }


def inspect_run(run: Path) -> RunInfo:
    """What the run directory ``run`` says of itself.

    A VtrainWarning names the sites that clamped too much.  RunError for what is no run directory,
    NotProducedError or EncodingError for a task, graph or claim that is missing or malformed.
    """
    paths = RunPaths(run)
    paths.require_run()
    task = read_task(paths)
    log = _survey_log(paths)
    claim = None
    if paths.claim.exists():
        data = read_file(paths.claim, LIMITS.claim_bytes, root=paths.root)
        claim = decode_signed_claim(data).claim
    manifest = read_manifest(paths) if paths.manifest.exists() else None
    sites: tuple[SiteSaturation, ...] | None = None
    if manifest is not None and (manifest.counted_steps or not log.size):
        sites = ()
    if manifest is not None and manifest.saturation:
        graph = read_graph(paths, task)
        counts, steps = manifest.saturation, manifest.counted_steps
        possible, _ = select_possible(graph, counts, steps)
        if impossible := sum(count > 0 for count in counts.values()) - len(possible):
            warn(
                f"what manifest.json counts as clamped at {impossible} of {len(counts)} sites "
                f"cannot be right in {steps} steps, and is left out",
                "take no number of this manifest for more than what somebody wrote: nobody signs "
                "it, and `vtrain verify` checks the run",
            )
        sites = measure_saturation(graph, possible, steps)
        found = [site for site in sites if site.is_too_much]
        warn_of_saturation(graph, found, f"in {steps} steps")
    kzg_root = None if task.kzg is None else b"" if claim is None else claim.kzg_root
    return RunInfo(
        path=run,
        task_id=compute_task_id(task),
        run_id=claim.run_id if claim else manifest.run_id if manifest else b"",
        solver=claim.solver if claim else b"",
        steps=log.size,
        task_steps=task.steps,
        root=log.state_root or task.initial_state_root,
        log_root=log.root,
        kzg_root=kzg_root,
        software=manifest.software if manifest else "",
        engine=manifest.engine if manifest else "",
        claimed=claim is not None,
        complete=claim is not None and claim.log_size == task.steps,
        checkpoints=tuple(paths.list_checkpoints()),
        saturation=sites,
        fault=str(log.fault) if log.fault is not None else "",
    )


def _survey_log(paths: RunPaths) -> LogSurvey:
    """The log as it is now, be it still written."""
    if not paths.log.exists():
        return survey_log(io.BytesIO(LOG_HEADER))
    most = limits_here().log_bytes
    with open_file(paths.log, most, root=paths.root, growing=True) as file:
        return survey_log(file)
