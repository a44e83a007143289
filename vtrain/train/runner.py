"""Training: from a compiled task to a signed run directory, in one go or in several."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.base import Session
from vtrain.engines.registry import check_engine, open_session, resolve_engine
from vtrain.engines.saving import PLAIN, Saving
from vtrain.errors import DataError, RunError, SignatureError, TaskError
from vtrain.printable import format_seconds, make_html_table
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.threads import check_threads
from vtrain.train.background import CheckpointWriter
from vtrain.train.data import compute_samples_root
from vtrain.train.history import Entry, draw_losses, read_history
from vtrain.train.kzg import Committed, KzgRecorder
from vtrain.train.saturation import SiteSaturation, measure_saturation, warn_of_saturation
from vtrain.train.store import RunDirectory, Tally, is_done, open_run
from vtrain.train.watch import Callback, Progress, Watch
from vtrain.wire.claim import Claim
from vtrain.wire.graph import StepGraph

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask
    from vtrain.train.torch_hooks.back import StateDict


@dataclass(frozen=True, repr=False)
class RunSummary:
    """What a run came to.

    ``root`` is the state root after ``steps`` steps, ``log_root`` that of the log signed in the
    claim and ``kzg_root`` that of the KZG log, empty where there is none; ``saturation`` covers the
    steps executed, most affected site first; ``engine`` (empty where no step was left to do),
    ``seconds``, ``kzg_seconds`` (of them, spent on KZG commitments) and ``resumed_from`` (the step
    begun from) are of this call alone.  ``name`` is the task's, which no file of a run has.
    """

    path: Path
    task_id: bytes
    run_id: bytes
    root: bytes
    log_root: bytes
    steps: int
    resumed_from: int
    engine: str
    saturation: tuple[SiteSaturation, ...]
    seconds: float
    kzg_root: bytes = b""
    kzg_seconds: float = 0.0
    name: str = ""

    @property
    def warnings(self) -> tuple[SiteSaturation, ...]:
        """Sites that clamp too much: `vtrain profile` with a larger margin helps."""
        return tuple(site for site in self.saturation if site.is_too_much)

    def __repr__(self) -> str:
        return (
            f"<run {str(self.path)!r} of task {self.task_id.hex()[:16]}: {self.steps:,} steps, "
            f"root {self.root.hex()[:16]}, {self.seconds:.1f} s>"
        )

    def _repr_html_(self) -> str:
        rows = {
            "task": self.task_id.hex(),
            "steps": f"{self.steps:,}, {self.steps - self.resumed_from:,} of them in this call",
            "root": self.root.hex(),
            "claim's log root": self.log_root.hex(),
            "time": f"{format_seconds(self.seconds)} ({self.engine or 'no step was left to do'})",
            "clamped too often": ", ".join(site.site for site in self.warnings),
        }
        picture = draw_losses(self.history)
        return make_html_table(f"run {self.path}", rows.items(), below=picture)

    @property
    def history(self) -> tuple[Entry, ...]:
        """Each step of the run, for people: loss, learning rate, time, and what was measured.

        Errors as of :func:`vtrain.train.history.read_history`."""
        return read_history(self.path)

    def state_dict(self, step: int | None = None) -> StateDict:
        """The trained weights, for ``module.load_state_dict``; of the last checkpoint unless
        ``step`` names one.  Needs the extra torch; errors as of
        :func:`vtrain.train.deliver.export_run`."""
        from vtrain.train.torch_hooks.back import read_state_dict

        return read_state_dict(self.path, step)


def train(
    task: CompiledTask,
    out: Path,
    *,
    key: PrivateKey,
    engine: str = "auto",
    steps: int | None = None,
    threads: int = 0,
    selfcheck_every: int = 0,
    saving: Saving = PLAIN,
    keep_data: bool = True,
    batch_secret: bytes = b"",
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    eval_every: int = 0,
) -> RunSummary:
    """Train ``task`` into the run directory ``out``, or go on with the run that is there.

    ``steps`` stops earlier than the task, at a commitment step, with a claim for so many steps; a
    later call with more goes on and signs a new claim, of which the old log is a prefix.  The same
    ``out`` and task always end in the same final root, however often the process was killed.

    With engine cuda, ``selfcheck_every`` > 0 compares its fast kernels with their readable twins
    again after so many steps.  ``saving`` takes less memory and changes no bit.  The engine is
    opened before anything in ``out`` changes: where it is not to be had, the folder and its claim
    stay as they are.

    A site that clamps more than ``SATURATION_WARNING_PPM`` of its elements is named in a
    VtrainWarning at the next checkpoint, with what helps.

    ``progress`` and ``callbacks`` hear of each step, and so does ``history.jsonl`` in ``out``.
    ``eval_every`` > 0 measures on the task's test data after so many steps, and after the last.
    None of it is a part of what is committed to.

    A task that logs KZG commitments needs ``task.kzg``, which ``compile_task`` opened;
    ``batch_secret`` (32 bytes) is that of the batches' owner, who signed commitments to them.

    RunError: ``out`` is in use, has another task, or is further than ``steps``, ``threads`` are
    more than ``vtrain.limits.most_threads``, ``selfcheck_every`` has no meaning for ``engine``, or
    there are no test data for ``eval_every``;
    MissingExtraError, DeviceError, KernelError: what engine cuda lacks, or a GPU failed;
    SignatureError: ``key`` is no private key; TaskError, DataError: the parts of ``task`` are not
    what its spec pins; StorageError: the disk is full or the folder read-only, and what was
    committed is safe; EncodingError: the logs were altered since their claim was signed, and
    nothing is signed anew.
    """
    started = time.perf_counter()
    check_key(key)
    check_threads(threads)
    target = _check_target(task, steps)
    check_task(task)
    check_selfcheck(selfcheck_every, engine)
    kzg = _make_recorder(task, threads)
    watch = Watch(
        task, engine=engine, callbacks=callbacks, progress=progress, eval_every=eval_every
    )

    def open_engine() -> tuple[str, Session]:
        name = resolve_engine(engine)
        return name, open_session(
            name,
            task.graph,
            task.samples,
            threads=threads,
            selfcheck_every=selfcheck_every,
            saving=saving,
        )

    opened, ran = None if is_done(out, task, target) else open_engine(), ""
    with open_run(out, task, keep_data=keep_data, batch_secret=batch_secret) as run:
        begun = run.log.size
        if begun > target:
            raise RunError(
                f"has {begun} steps already, more than the {target} asked for: "
                "ask for more, or train into another folder",
                where=str(out),
            )
        if run.read_claimant() not in (None, public_key(key)):
            raise RunError(
                "is signed with another key: use that one, or train into another folder",
                where=str(run.paths.claim),
            )
        run.check_own_claim(public_key(key))
        counts = _Saturation(task.graph, run)
        if begun < target:
            ran, session = open_engine() if opened is None else opened
            run.remove_claim()
            if kzg is not None:
                kzg.keys.hiding = run.hiding
            try:
                watch.begin(out, run.paths.history, begun, target)
                with CheckpointWriter(run) as writer:
                    _advance(task, run, writer, target, session, ran, counts, kzg, watch)
            finally:
                watch.end()
        elif run.manifest is not None and run.manifest.steps != begun:
            run.write_manifest(counts.as_tally(run.manifest.engine))
        run.check_own_claim(public_key(key))
        claim = Claim(
            run_id=run.run_id,
            solver=public_key(key),
            task_id=compute_task_id(task.spec),
            log_size=run.log.size,
            log_root=run.log.root(),
            kzg_root=b"" if run.kzg is None else run.kzg.root(),
        )
        run.write_claim(sign_claim(claim, key))
        counts.warn_of_all()
        return RunSummary(
            path=out,
            task_id=claim.task_id,
            run_id=claim.run_id,
            root=run.log.records[-1].state_root,
            log_root=claim.log_root,
            steps=claim.log_size,
            resumed_from=begun,
            engine=ran,
            saturation=counts.by_site(),
            seconds=time.perf_counter() - started,
            kzg_root=claim.kzg_root,
            kzg_seconds=0.0 if kzg is None else kzg.seconds,
            name=task.name,
        )


def check_task(task: CompiledTask) -> None:
    """See that graph, initial state and samples are those that the spec pins.

    DataError when the samples do not have their root, TaskError for the other two.
    """
    spec = task.spec
    if spec.data != task.samples.spec or compute_samples_root(task.samples) != spec.data.root:
        raise DataError("are not those that the task commits to", where="samples")
    if compute_graph_root(task.graph) != spec.graph_root:
        raise TaskError(
            "is not the root of the graph at hand: compile the task again", where="graph_root"
        )
    if compute_root_of_state(task.graph, task.initial_state) != spec.initial_state_root:
        raise TaskError(
            "is not the root of the initial state at hand: compile the task again",
            where="initial_state_root",
        )


def _make_recorder(task: CompiledTask, threads: int) -> KzgRecorder | None:
    """None for a task without KZG commitments; TaskError for initial ones that are not so."""
    proof = task.spec.kzg
    if proof is None:
        return None
    recorder = KzgRecorder(task.spec, task.graph, task.samples, task.kzg, threads)
    found = recorder.commit_state(0, task.initial_state)
    if found != Committed(proof.initial, proof.initial_key):
        raise TaskError(
            "are not the commitments to the initial state: compile the task again with its SRS",
            where="proof.initial",
        )
    return recorder


def check_selfcheck(every: int, engine: str) -> None:
    """RunError for an unknown engine, or one that has nothing to repeat a self-check of."""
    check_engine(engine)
    if every < 0:
        raise RunError("is negative", where=f"selfcheck_every {every}")
    if every > 0 and engine not in ("auto", "cuda"):
        raise RunError(
            "repeats the self-check of engine cuda, which this engine does not have: "
            "leave it out, or take engine cuda or auto",
            where=f"selfcheck_every {every}",
        )


def check_key(key: object) -> None:
    """SignatureError unless ``key`` is a private key as of ``load_key``: no path, no text."""
    if not isinstance(key, PrivateKey):
        raise SignatureError("is no Ed25519 private key: load one with load_key", where="key")


def _check_target(task: CompiledTask, steps: int | None) -> int:
    spec = task.spec
    if spec.steps % spec.commit_every != 0:
        raise TaskError("is not a multiple of commit_every", where="steps")
    target = spec.steps if steps is None else steps
    if not 1 <= target <= spec.steps or target % spec.commit_every != 0:
        raise RunError(
            f"must be a multiple of {spec.commit_every} (commit_every), at most {spec.steps}",
            where=f"steps {target}",
        )
    return target


class _Saturation:
    """Counts of clamped elements: those of earlier processes and those of this session."""

    def __init__(self, graph: StepGraph, run: RunDirectory) -> None:
        self._graph = graph
        before = run.manifest
        self._steps = before.counted_steps if before is not None else 0
        self._counts = Counter(before.saturation if before is not None else {})
        self._named: set[str] = set()

    def add(self, last: int, steps: int, counts: Mapping[str, int]) -> tuple[SiteSaturation, ...]:
        """Count ``steps`` more, up to step ``last``; the sites that clamped in these.

        VtrainWarning names those that clamped too much, each once.
        """
        self._steps += steps
        self._counts.update(counts)
        found = measure_saturation(self._graph, counts, steps)
        self._warn(found, f"in steps {last - steps + 1} to {last}")
        return found

    def warn_of_all(self) -> None:
        """VtrainWarning for sites that clamped too much in all steps, and were not named yet."""
        self._warn(self.by_site(), "in all of the run")

    def as_tally(self, engine: str) -> Tally:
        return Tally(engine, self._steps, dict(self._counts))

    def by_site(self) -> tuple[SiteSaturation, ...]:
        return measure_saturation(self._graph, self._counts, self._steps)

    def _warn(self, sites: tuple[SiteSaturation, ...], when: str) -> None:
        new = [site for site in sites if site.is_too_much and site.site not in self._named]
        self._named.update(site.site for site in new)
        warn_of_saturation(self._graph, new, when)


def _advance(
    task: CompiledTask,
    run: RunDirectory,
    writer: CheckpointWriter,
    target: int,
    session: Session,
    engine: str,
    counts: _Saturation,
    kzg: KzgRecorder | None,
    watch: Watch,
) -> None:
    """Do the steps up to ``target``, and begin a checkpoint at each one due and at the last."""
    spec = task.spec
    session.load_state(run.state)
    counted, reported = run.log.size, Counter[str]()
    if kzg is not None and run.kzg is not None and run.kzg.last is not None:
        last = run.kzg.last
        kzg.remember(last.step, Committed(last.after, last.after_key))
    for step in range(run.log.size + 1, target + 1):
        started = time.perf_counter()
        if kzg is not None and kzg.is_due(step):
            before = kzg.commit_before(step, session)
            record = session.step()
            run.append_kzg(kzg.make_record(step, before, session))
        else:
            record = session.step()
        run.append(record)
        seconds, found = time.perf_counter() - started, None
        writer.check()
        if step % spec.checkpoint_every == 0 or step == target:
            clamped = Counter(session.saturation())
            found = counts.add(step, step - counted, clamped - reported)
            counted, reported = step, clamped
            writer.begin(session, counts.as_tally(engine))
        watch.step(record, seconds, found, session)
