"""Trace providers from a run directory: for the claim that is in it, and for the true one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vtrain.audit.structure import Evidence, FindingError, check_structure, read_state
from vtrain.dispute.engine_provider import EngineProvider, State
from vtrain.dispute.kept_states import DEFAULT_KEEP, Keep
from vtrain.engines.registry import open_session
from vtrain.errors import NotProducedError
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import SignedClaim

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask


@dataclass(frozen=True)
class DisputedRun:
    """A run under dispute: its task, as its directory has it, and the claim about it."""

    paths: RunPaths
    task: CompiledTask
    signed: SignedClaim
    evidence: Evidence


def load_run(run: Path, *, data: Path | None = None) -> DisputedRun:
    """Read what a dispute about ``run`` needs: everything but the log is held against the task id.

    NotProducedError when task, graph, claim, samples or initial state are missing or are not those
    that the claim's task pins.  Whether the log is the claimed one matters to ``defend`` alone.
    """
    from vtrain.train.task import CompiledTask

    evidence = check_structure(run, data=data)
    known = (evidence.task, evidence.graph, evidence.samples, evidence.signed)
    task, graph, samples, signed = known
    if task is None or graph is None or samples is None or signed is None:
        failed = next(check for check in evidence.checks if check.status != "passed")
        raise NotProducedError(f"{failed.name}: {failed.detail}", where=failed.where or str(run))
    paths = RunPaths(run)
    try:
        initial = read_state(paths, task, graph, evidence.records, 0)
    except FindingError as error:
        raise NotProducedError(error.detail, where=error.where) from None
    compiled = CompiledTask(task, graph, samples, initial, b"", run.name)
    return DisputedRun(paths, compiled, signed, evidence)


def defend(
    run: DisputedRun,
    *,
    engine: str = "auto",
    keep: Keep = DEFAULT_KEEP,
    progress: Callable[[int], None] = lambda done: None,
) -> EngineProvider:
    """The claim of the run directory itself, from its log and checkpoints.

    The states between the checkpoints are kept first, as many as ``keep`` has room for, by doing
    the run again: without any room it is ready at once, and each answer takes longer.  ``progress``
    is told the steps that are ready.  NotProducedError when the run's log is not the one that the
    claim signs, RunError at a step that does not come out as the log says; others as of
    ``EngineProvider``.
    """
    evidence, task = run.evidence, run.task
    if not evidence.records:
        raise NotProducedError("there is no log that the solver signed", where=str(run.paths.log))

    def find_state(step: int) -> State | None:
        if step not in evidence.checkpoints:
            return None
        try:
            return read_state(run.paths, task.spec, task.graph, evidence.records, step)
        except FindingError:
            return None  # spoiled since the run was loaded: an earlier one does

    session = open_session(engine, task.graph, task.samples)
    provider = EngineProvider(
        task,
        session,
        records=evidence.records,
        states=find_state,
        given=evidence.checkpoints,
        keep=_keep_apart(keep, f"defend-{run.signed.claim.log_root.hex()}"),
    )
    provider.fill(progress)
    return provider


def redo(
    run: DisputedRun,
    *,
    engine: str = "auto",
    keep: Keep = DEFAULT_KEEP,
    progress: Callable[[int], None] = lambda done: None,
) -> EngineProvider:
    """The true claim about the run's task: trains it anew, from the initial state on.

    It is of as many steps as the run's claim has.  States are kept meanwhile, as many as ``keep``
    has room for; ``progress`` is told the steps done.  Errors are those of ``EngineProvider``.
    """
    task = run.task
    session = open_session(engine, task.graph, task.samples)
    steps = run.signed.claim.log_size
    return EngineProvider(
        task,
        session,
        steps=steps,
        progress=progress,
        keep=_keep_apart(keep, f"redo-{run.signed.claim.task_id.hex()}"),
    )


def _keep_apart(keep: Keep, name: str) -> Keep:
    """One folder may be named for many claims: each has its own in it."""
    return keep if keep.folder is None else replace(keep, folder=keep.folder / name)
