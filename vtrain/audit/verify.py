"""``verify``: an audit of one run, from its bytes to a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from vtrain.attest.claims import compute_claim_digest
from vtrain.audit.beacon import RULE, BeaconDraw, draw_from_beacon
from vtrain.audit.order import STRUCTURE
from vtrain.audit.pin import Pin, refuse_own_file
from vtrain.audit.plan import (
    REPLAY_DOMAIN,
    Segments,
    Wanted,
    compute_detections,
    compute_sample_size,
    draw,
    draw_randomness,
    given_randomness,
)
from vtrain.audit.replay import KzgComparison, describe_state_difference, replay_segment
from vtrain.audit.structure import (
    Evidence,
    FindingError,
    Progress,
    check_structure,
    read_state,
)
from vtrain.commit.kzg_log import OpenKey
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session, resolve_engine
from vtrain.engines.saving import PLAIN, Saving
from vtrain.errors import RunError, VtrainError
from vtrain.graph.rewrite import check_parts
from vtrain.limits import Limits, limits_here
from vtrain.spec.number import LOSS_EXPONENT
from vtrain.spec.samples import Samples
from vtrain.threads import check_threads
from vtrain.train.kzg import Committed, KzgRecorder
from vtrain.train.layout import Manifest, RunPaths
from vtrain.train.saturation import select_possible
from vtrain.train.signed import read_hiding_of
from vtrain.wire.claim import PUBLIC_KEY_LENGTH, SignedClaim
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord
from vtrain.wire.report import (
    MOST_SITES,
    Assumption,
    Blame,
    Check,
    Clamped,
    Coverage,
    Detection,
    Pictures,
    Randomness,
    Report,
    Rung,
    SampledRows,
    Strength,
    Traced,
    compute_loss_points,
    compute_verdict,
)
from vtrain.wire.task import BeaconRule, TaskSpec

if TYPE_CHECKING:
    from vtrain.audit.published import BroughtStates, Published

DEFAULT_SAMPLES: Final = 3
"""Segments replayed when the caller names no number."""
TASK_ID_BYTES: Final = 32
_OTHER_MODES: Final = {"proofs/": ("proofs", "proof"), "traces/": ("traces", "algebraic")}
"""What else lies in a run's folder: where, what it is called, and what checks it."""
_AS_DRAWN: Final = frozenset({"samples", "batches", "checkpoints"})
"""Checks of a published run that are about what was drawn alone."""


def verify(
    run: Path,
    *,
    samples: int | None = None,
    all_: bool = False,
    seed: bytes | None = None,
    pin: Pin | None = None,
    solver: bytes | None = None,
    task_id: bytes | None = None,
    data: Path | None = None,
    engine: str = "auto",
    threads: int = 0,
    saving: Saving = PLAIN,
    progress: Progress = lambda what, done, total: None,
    limits: Limits | None = None,
    random: Callable[[int], bytes] = os.urandom,
    srs: Path | None = None,
    open_key: OpenKey | None = None,
    hiding: Path | None = None,
    beacon: BeaconDraw | None = None,
    wanted: Wanted | None = None,
    published: Published | None = None,
) -> Report:
    """Check the structure of ``run`` in full, then replay ``samples`` of its segments, or ``all_``,
    or as many as ``wanted`` takes.

    Whatever ``run`` contains ends in a report.  No ``samples`` (0) is an audit of the structure
    alone.  ``pin`` is the claim that the auditor holds, ``solver`` the public key that must have
    signed; what they do not allow is refused.  ``random`` is asked for fresh randomness after the
    claim was read; ``seed`` (1 to 64 bytes) replaces it: without a ``pin`` from before it existed
    the sample is predictable, and the verdict at most conditional.  ``beacon`` replaces it too, by
    a round that the task's rule gives for the time that is proven for the claim.
    ``data`` is the sample table for a run published without it.  ``limits`` bound what it takes
    on; by default they are cut down to this machine's memory.  ``srs`` is the SRS file, opened by
    ``open_key`` (``vtrain.prove.backend.kzg.CommitKey``), with which the KZG commitments of
    replayed steps are compared, where the task asks for such; ``hiding`` has the keys that hide
    them, by default the solver's own file, where it is in the run.  ``published`` is a run in a
    store, and ``run`` its folder of what was brought: of samples, batches and checkpoints only what
    the draw asks for is checked.  RunError when ``run`` has no file of a run, for an unknown
    engine, for a seed, key or task id of another length, for ``data`` that is no file, for an SRS
    that is none or that nothing opens, and beyond the threads allowed; MissingExtraError,
    DeviceError, KernelError, before anything is read, for an engine that this machine lacks.
    GraphError when segments are to be replayed by ``saving`` in parts that a batch of the run does
    not have.
    """
    if wanted is not None and (all_ or samples is not None):
        raise RunError("says how many segments to replay: name no number", where="probability")
    check_arguments(run, samples, seed, beacon, pin, solver, task_id, published)
    check_threads(threads)
    if srs is not None:
        _check_srs(srs, open_key)
    resolved = resolve_engine(engine)
    limits = limits_here() if limits is None else limits
    if resolved == "numpy":
        limits = limits.by_law()
    evidence = check_structure(
        run,
        pin=pin,
        solver=solver,
        task_id=task_id,
        data=data,
        threads=threads,
        limits=limits,
        progress=progress,
        bringer=published,
    )
    given = draw_given(evidence, seed, beacon, pinned=pin is not None)
    subject = _find_subject(evidence)
    count = DEFAULT_SAMPLES if samples is None else samples
    if wanted is not None and evidence.segments is not None:
        count = compute_sample_size(evidence.segments, wanted)
    randomness: Randomness | None = None  # of a draw: a replay of everything draws nothing
    digest = b"" if evidence.signed is None else compute_claim_digest(evidence.signed.claim)
    chosen: tuple[int, ...] = ()
    states: BroughtStates | None = None
    if (count or all_) and not isinstance(subject, str):
        check_parts(subject.task.batch, saving.accumulate)
        population = subject.segments.count
        chosen = tuple(range(population))
        if not all_ and count < population:
            randomness = given or draw_randomness(random)
            drawn = draw(randomness.value, digest, REPLAY_DOMAIN, population, count)
            chosen = tuple(sorted(drawn))
        if published is not None and chosen:
            bounds = [subject.segments.bounds(index) for index in chosen]
            evidence, states = published.bring_segments(evidence, bounds, threads)
            subject = _find_subject(evidence)
            if states and srs is not None and bounds[0][0] == 0 and not isinstance(subject, str):
                subject = replace(subject, checkpoints=states.bring(0))
    kzg = _prepare_kzg(RunPaths(run), evidence, subject, srs, open_key, hiding, threads)
    if count == 0 and not all_:
        replay = _Replay((), ())
    elif isinstance(subject, str):
        replay = _Replay((Check("replay", "not_done", subject),), ())
    else:
        compute = _Compute(resolved, threads, saving)
        replay = _replay(RunPaths(run), subject, chosen, compute, progress, kzg, states)
    if published is not None:
        evidence = evidence if states is None else states.conclude(evidence)
        replay = replace(replay, checks=tuple(ask_again(replay.checks, digest, randomness)))
    strength = _describe_strength(
        evidence,
        replay,
        randomness,
        resolved,
        kzg,
        given_id=task_id,
        given_srs=srs is not None,
        pin=pin,
        solver=solver,
        published=published,
    )
    return make_report(
        evidence,
        evidence.checks + _list_kzg_checks(kzg, replay) + replay.checks,
        strength,
        engine=resolved,
        population=evidence.segments,
        looked_at=replay.segments,
        randomness=randomness,
        assumptions=list_assumptions(randomness),
    )


def check_arguments(
    run: Path,
    samples: int | None,
    seed: bytes | None,
    beacon: BeaconDraw | None,
    pin: Pin | None,
    solver: bytes | None,
    task_id: bytes | None,
    published: Published | None = None,
) -> None:
    """RunError for what no audit can be made with, before anything is read."""
    if published is None:
        RunPaths(run).require_run()
    if pin is not None:
        own = run if published is None else published.own
        refuse_own_file(own, RunPaths(own).claim, pin.source)
    if samples is not None and samples < 0:
        raise RunError(
            "is negative: name how many segments to replay, or 0 for the structure alone",
            where=f"samples {samples}",
        )
    _check_bytes(task_id, TASK_ID_BYTES, "task_id")
    _check_bytes(solver, PUBLIC_KEY_LENGTH, "solver")
    if seed is not None:
        given_randomness(seed, pinned=pin is not None)
    if beacon is not None and seed is not None:
        raise RunError("draws, and so does a seed: give one of them", where="beacon")


def draw_given(
    evidence: Evidence, seed: bytes | None, beacon: BeaconDraw | None, *, pinned: bool
) -> Randomness | None:
    """The randomness that an auditor names, as a seed or as a round of a beacon; None where it
    names none, or the claim and the task to which a round is held are not known."""
    if seed is not None:
        return given_randomness(seed, pinned=pinned)
    if beacon is None or evidence.signed is None or evidence.task is None:
        return None
    digest = compute_claim_digest(evidence.signed.claim)
    return draw_from_beacon(beacon, evidence.task.beacon or RULE, digest, pinned=pinned)


def make_report(
    evidence: Evidence,
    checks: Sequence[Check],
    strength: Strength,
    *,
    engine: str,
    population: Segments | None = None,
    looked_at: Sequence[tuple[int, int]] = (),
    unit: Literal["segment", "step"] = "segment",
    randomness: Randomness | None = None,
    traced: Traced | None = None,
    assumptions: tuple[Assumption, ...] = (),
    rung: Rung = "replay",
    sampled: SampledRows | None = None,
) -> Report:
    """The report of an audit, of whichever mode.

    ``looked_at`` of the ``population`` were looked at on the ``rung``, drawn by ``randomness``
    unless it is None; ``unit`` is what each is called.  ``traced`` is the first of two draws,
    ``sampled`` what of each step was looked at by rows.
    """
    caught = 1 - sampled.bound_missed(1) if sampled else Fraction(1)
    found = evidence.signed or evidence.refused
    claim = found.claim if found else None
    last = evidence.records[-1] if evidence.records else None
    detections: tuple[Detection, ...] = ()
    if population is not None and randomness is not None and looked_at:
        detections = compute_detections(population, len(looked_at))
    return Report(
        verdict=compute_verdict(tuple(checks), assumptions),
        checks=tuple(checks),
        strength=strength,
        randomness=randomness,
        detections=tuple(replace(item, unit=unit, caught=caught) for item in detections),
        segments=tuple(looked_at),
        engine=engine,
        task_id=evidence.task_id,
        run_id=claim.run_id if claim else b"",
        solver=claim.solver if claim else b"",
        steps=claim.log_size if claim else 0,
        root=last.state_root if last else b"",
        log_root=claim.log_root if claim else b"",
        claim=compute_claim_digest(claim) if claim else b"",
        traced=traced,
        assumptions=assumptions,
        coverage=_measure_coverage(evidence, rung, looked_at, claim.log_size if claim else 0),
        pictures=_draw_pictures(evidence),
        sampled=sampled,
    )


def _measure_coverage(
    evidence: Evidence, rung: Rung, looked_at: Sequence[tuple[int, int]], steps: int
) -> tuple[Coverage, ...]:
    whole = [check for check in evidence.checks if check.name not in _AS_DRAWN]
    passed = sum(check.status == "passed" for check in whole if evidence.partial)
    logs_kzg = evidence.task is not None and evidence.task.kzg is not None
    due = sum(logs_kzg or not rule.only for rule in STRUCTURE)
    structure = Coverage("structure", passed, due)
    if not evidence.partial:
        passed = sum(check.status == "passed" for check in evidence.checks)
        structure = Coverage("structure", passed, len(evidence.checks))
    done = sum(last - first + 1 for first, last in looked_at)
    return (structure, Coverage(rung, done, steps)) if steps else (structure,)


def _draw_pictures(evidence: Evidence) -> Pictures | None:
    """What can be drawn of a run whose log is the signed one."""
    if not evidence.records or evidence.graph is None:
        return None
    losses = compute_loss_points([record.loss for record in evidence.records])
    manifest = _find_index(evidence)
    if manifest is None or not manifest.counted_steps:
        return Pictures(losses, LOSS_EXPONENT, ())
    counts, steps = manifest.saturation, manifest.counted_steps
    possible, elements = select_possible(evidence.graph, counts, steps)
    clamped = [Clamped(site, count, elements[site]) for site, count in possible.items()]
    clamped.sort(key=lambda item: (-Fraction(item.count, item.elements), item.site))
    impossible = sum(count > 0 for count in counts.values()) - len(clamped)
    return Pictures(losses, LOSS_EXPONENT, tuple(clamped[:MOST_SITES]), steps, impossible)


def _find_index(evidence: Evidence) -> Manifest | None:
    """The manifest, where it is that of the run claimed: another counts another run's elements."""
    passed = {check.name for check in evidence.checks if check.status == "passed"}
    return evidence.manifest if "index" in passed else None


def list_assumptions(*draws: Randomness | None) -> tuple[Assumption, ...]:
    """What a verdict assumes that rests on these draws; None is a draw that left nothing out."""
    assumed: list[Assumption] = []
    made = [randomness for randomness in draws if randomness is not None]
    if any(randomness.predictable for randomness in made):
        unproven = any(randomness.predictable and randomness.beacon for randomness in made)
        detail = (
            "whoever made this claim did not know the round that drew: no token shows that the "
            "claim came first (--token)"
            if unproven
            else "whoever made this claim did not know what would be drawn: a seed was given, and "
            "no claim was pinned before it existed (--claim)"
        )
        assumed.append(Assumption("predictable-sample", detail))
    if any(randomness.chosen for randomness in made):
        detail = (
            "the solver had no other claim stamped before the round, and this one no more than "
            "once, to show what leads to a sample that misses: who held claim and token by then "
            "names the claim (--claim)"
        )
        assumed.append(Assumption("chosen-claim", detail))
    return tuple(assumed)


def _check_srs(srs: Path, open_key: OpenKey | None) -> None:
    reason = "" if srs.is_file() else "is no file: name the SRS file whose SHA-256 the task has"
    if open_key is None:
        reason = "needs open_key, by which it is read: vtrain.prove.backend.kzg.CommitKey"
    if reason:
        raise RunError(reason, where=str(srs))


def _check_bytes(value: object, length: int, where: str) -> None:
    if value is not None and not (isinstance(value, bytes) and len(value) == length):
        has = f"has {len(value)}" if isinstance(value, bytes) else f"is {type(value).__name__}"
        raise RunError(
            f"needs {length} bytes, and {has}: give all of them (of hex text: bytes.fromhex)",
            where=where,
        )


@dataclass(frozen=True)
class _Subject:
    """What a replay works on: all of it established by the structure check."""

    task: TaskSpec
    graph: StepGraph
    samples: Samples
    records: tuple[StepRecord, ...]
    segments: Segments
    checkpoints: frozenset[int]
    partial: bool
    """Whether only the segments drawn are here: a replay begins nowhere else."""


def _find_subject(evidence: Evidence) -> _Subject | str:
    """What can be replayed, or why nothing can."""
    found = (evidence.task, evidence.graph, evidence.samples, evidence.segments)
    match found:
        case (TaskSpec() as task, StepGraph() as graph, Samples() as samples, Segments() as cut):
            return _Subject(
                task, graph, samples, evidence.records, cut, evidence.checkpoints, evidence.partial
            )
    if not evidence.records:
        return "there is no log that the solver signed"
    names = ("the task", "a legal graph", "the samples", "a committed state")
    missing = [name for name, value in zip(names, found, strict=True) if value is None]
    return f"needs {', '.join(missing)}"


def _prepare_kzg(
    paths: RunPaths,
    evidence: Evidence,
    subject: _Subject | str,
    srs: Path | None,
    open_key: OpenKey | None,
    hiding: Path | None,
    threads: int,
) -> KzgComparison | Check | None:
    """What compares KZG commitments, why nothing can, or None where there is nothing to compare."""
    proof = evidence.task.kzg if evidence.task is not None else None
    if proof is None or srs is None or open_key is None:
        return None
    if isinstance(subject, str):
        return Check("kzg", "not_done", subject)
    if evidence.kzg is None:
        return Check("kzg", "not_done", "there is no KZG log that the solver signed")
    try:
        key = open_key(srs, proof.k, proof.blinding)
        secrets = read_hiding_of(paths, hiding)
        recorder = KzgRecorder(subject.task, subject.graph, subject.samples, key, threads, secrets)
    except VtrainError as error:
        return Check("kzg", "not_done", f"the files given are of no use here: {error}")
    if 0 in subject.checkpoints:
        try:
            state = read_state(paths, subject.task, subject.graph, subject.records, 0, threads)
        except FindingError as found:
            return Check("kzg", "not_done", found.detail, found.where)
        if recorder.commit_state(0, state) != Committed(proof.initial, proof.initial_key):
            detail = "the task's commitments are not those to its initial state"
            return Check("kzg", "failed", detail, "task.proof.initial", "task")
    return KzgComparison(recorder, evidence.kzg, proof.every)


def _list_kzg_checks(kzg: KzgComparison | Check | None, replay: _Replay) -> tuple[Check, ...]:
    """The check of KZG commitments; a replay that found one to differ has entered it itself."""
    if kzg is None or any(check.name == "kzg" for check in replay.checks):
        return ()
    if isinstance(kzg, Check):
        return (kzg,)
    if kzg.hidden:
        (step, part), reason = next(iter(kzg.hidden.items()))
        detail = f"{len(kzg.hidden)} states and batches could not be compared: {reason}"
        return (Check("kzg", "not_done", detail, f"step {step}: {part}"),)
    if not kzg.count:  # nothing to find: the strength says what was not compared
        return ()
    detail = f"KZG commitments of {kzg.count} steps made again from their tensors, all the same"
    return (Check("kzg", "passed", detail),)


@dataclass(frozen=True)
class _Compute:
    """With what steps are done again."""

    engine: str
    threads: int
    saving: Saving

    def open_session(self, graph: StepGraph, samples: Samples) -> Session:
        return open_session(self.engine, graph, samples, threads=self.threads, saving=self.saving)


@dataclass(frozen=True)
class _Replay:
    """Outcome of the replay; ``segments`` are the (first, last) steps that were done again.

    ``stopped``: how many segments were chosen and left out, as the first difference ends a replay.
    """

    checks: tuple[Check, ...]
    segments: tuple[tuple[int, int], ...]
    stopped: int = 0


def _replay(
    paths: RunPaths,
    subject: _Subject,
    chosen: tuple[int, ...],
    compute: _Compute,
    progress: Progress,
    kzg: KzgComparison | Check | None,
    states: BroughtStates | None,
) -> _Replay:
    """Replay the chosen segments in order, up to the first difference; of a run in a store
    ``states`` brings what each begins with."""
    bounds = [subject.segments.bounds(index) for index in chosen]
    total = sum(end - start for start, end in bounds)
    try:
        session = compute.open_session(subject.graph, subject.samples)
    except VtrainError as error:
        reason = f"the {compute.engine} engine does not take it on: {error.message}"
        return _Replay((Check("replay", "not_done", reason, error.where),), ())
    checks: list[Check] = []
    replayed: list[tuple[int, int]] = []
    done = 0
    standing: int | None = None
    comparison = kzg if isinstance(kzg, KzgComparison) else None
    for count, (start, end) in enumerate(bounds, start=1):
        if states is not None and standing != start:
            subject = replace(subject, checkpoints=states.bring(start))
        first = _load_nearest(paths, subject, session, start, standing, compute.threads)
        if states is not None:
            states.drop()
        if first is None:
            reason = f"no checkpoint up to step {start} was produced"
            checks.append(Check("replay", "not_done", reason, f"steps {start + 1} to {end}"))
            done += end - start
            continue

        def show(steps: int, before: int = done, ahead: int = start - first) -> None:
            progress("replay", before + max(steps - ahead, 0), total)

        try:
            difference = replay_segment(session, subject.records, first, end, show, comparison)
        except VtrainError as error:
            reason = f"the {compute.engine} engine gave up: {error.message}"
            checks.append(Check("replay", "not_done", reason, f"steps {start + 1} to {end}"))
            break
        replayed.append((first + 1, end if difference is None else difference.step))
        if difference is not None:
            detail = difference.describe()
            if difference.step == end and difference.field == "state_root":
                detail += _compare_checkpoint(paths, subject, session, end, compute.threads)
            # Each batch digest was recomputed before: one that differs now convicts nobody.
            changed = difference.field == "batch_digest"
            if changed:
                detail += "; yet it was right when it was recomputed from the samples before"
            blame: Blame = "nobody" if changed else "solver"
            checks.append(Check(difference.check, "failed", detail, difference.where, blame))
            return _Replay(tuple(checks), tuple(replayed), stopped=len(bounds) - count)
        standing = end
        done += end - start
    if not checks:
        count = sum(last - first + 1 for first, last in replayed)
        steps = f"{count} of {subject.segments.steps} steps"
        detail = f"{steps} done again by the {compute.engine} engine, every bit the same"
        checks.append(Check("replay", "passed", detail))
    return _Replay(tuple(checks), tuple(replayed))


def _load_nearest(
    paths: RunPaths,
    subject: _Subject,
    session: Session,
    start: int,
    standing: int | None,
    threads: int,
) -> int | None:
    """Bring ``session``, which holds the state after ``standing`` steps, to the last state up to
    ``start`` that was produced, and say which; None where there is none.

    A checkpoint that was not produced shields nothing: the steps that lead to it are done again.
    """
    if subject.partial and standing != start and start not in subject.checkpoints:
        return None
    for step in sorted((step for step in subject.checkpoints if step <= start), reverse=True):
        if standing is not None and standing >= step:
            break
        try:
            state = read_state(paths, subject.task, subject.graph, subject.records, step, threads)
        except FindingError:
            continue
        session.load_state(state)
        return step
    return standing


def _compare_checkpoint(
    paths: RunPaths, subject: _Subject, session: Session, step: int, threads: int
) -> str:
    """Which element of the solver's own checkpoint is the first that is not as computed."""
    if step not in subject.checkpoints:
        return ""
    try:
        claimed = read_state(paths, subject.task, subject.graph, subject.records, step, threads)
    except FindingError:
        return ""
    found = describe_state_difference(subject.graph, session.read_state(), claimed)
    return f"; {found}" if found else ""


MODEL: Final = (
    "what model.onnx holds: its BLAKE3 is the task's, and the graph, not this file, is what was "
    "trained"
)
"""What the check of the model leaves open: it opens no file of a stranger's for more than that."""


def describe_structure(
    evidence: Evidence, published: Published | None
) -> tuple[list[str], list[str]]:
    """What of the structure was checked, and what was not, in sentences."""
    passed = [check.name for check in evidence.checks if check.status == "passed"]
    complete = len(passed) == len(evidence.checks)
    title = "structure, in full" if complete else "structure, in part"
    if published is not None:
        title = "structure, as far as the draw asks for it" if complete else "structure, in part"
    checked = [f"{title}: {', '.join(passed)}"] if passed else []
    unchecked = [MODEL] if "model" in passed else []
    if published is None:
        return checked, unchecked
    fetched, left = published.describe(evidence)
    return [*checked, fetched], [left, *unchecked]


def ask_again(checks: Sequence[Check], digest: bytes, randomness: Randomness | None) -> list[Check]:
    """Checks of what a store keeps back, with how to come back for the same draw: whoever keeps
    bytes back shall not have another for it."""
    if randomness is None or not randomness.fresh:
        return list(checks)
    seed = f"--seed {randomness.value.hex()}"
    again = (
        f"; when it is there, come back for the same draw with --claim {digest.hex()} {seed}, and "
        "take a run that never shows it as not verified"
    )
    return [
        replace(check, detail=check.detail + again)
        if check.status != "passed"
        and check.fault in {"", "nobody"}
        and seed not in check.detail  # all of it: a store may have written "--seed" there
        else check
        for check in checks
    ]


ORDER: Final = (
    "whether the claim was pinned before the seed existed: the auditor who did both knows"
)
"""What a report with a pin and a given seed cannot tell."""


def describe_signer(
    signed: SignedClaim | None,
    pin: Pin | None,
    solver: bytes | None,
    checked: list[str],
    unchecked: list[str],
) -> None:
    """What is known of who signed, and of which claim it is, in sentences."""
    if signed is None:
        return
    if pin is not None:
        checked.append(f"the claim is the one that was pinned, {pin.digest.hex()}")
    if solver is not None:
        checked.append(f"the claim is signed by the key asked for, {solver.hex()}")
    else:
        unchecked.append(
            f"who signed: the run names the key {signed.claim.solver.hex()} itself (name the one "
            "you want with --solver)"
        )
    unchecked.append("who holds the solver's key")


def describe_order(
    randomness: Randomness | None, pin: Pin | None, rule: BeaconRule | None, unchecked: list[str]
) -> None:
    """What the order of claim and draw rests on, in sentences."""
    if randomness is None:
        return
    use = randomness.beacon
    if use is None:
        if pin is not None and not randomness.fresh:
            unchecked.append(ORDER)
        if rule is not None:
            unchecked.append(
                "a sample by the beacon that the task names: this one was drawn otherwise, and "
                "shows its auditor alone that nobody foresaw it"
            )
        return
    if rule is None:
        unchecked.append(
            "whether chain and delay were agreed on: the task names no beacon, and those of vtrain "
            "were taken"
        )
    unchecked.append(
        "that too few members of the beacon's network joined to know the round before its time"
    )
    if use.claimed is None:
        return
    unchecked.append(
        f"clock and key of the authority {use.authority!r:.200}, by which the claim is dated"
    )
    if rule is None or not rule.authorities:
        unchecked.append("whether that authority was agreed on: the task pins none")
    if pin is not None:
        unchecked.append(
            "whether claim and token were pinned before the round: that no other claim or token "
            "was there to choose from only those know who held them"
        )


def _describe_strength(
    evidence: Evidence,
    replay: _Replay,
    randomness: Randomness | None,
    engine: str,
    kzg: KzgComparison | Check | None,
    *,
    given_id: bytes | None,
    given_srs: bool,
    pin: Pin | None,
    solver: bytes | None,
    published: Published | None,
) -> Strength:
    """What the verdict rests on and what it leaves open, in sentences."""
    passed = [check.name for check in evidence.checks if check.status == "passed"]
    checked, unchecked = describe_structure(evidence, published)
    if given_id is not None and evidence.task is not None:
        checked.append("the task is the one asked for")
    elif given_id is None:
        unchecked.append(
            "whether this is the task agreed on: its id was taken from the run itself "
            "(name the one you want with --task-id)"
        )
    describe_signer(evidence.signed, pin, solver, checked, unchecked)
    rule = evidence.task.beacon if evidence.task is not None else None
    describe_order(randomness, pin, rule, unchecked)
    replayed = sum(last - first + 1 for first, last in replay.segments)
    if evidence.segments is not None:
        whole = evidence.segments.count
        drawn = "" if randomness is None else f", drawn with {randomness.source}"
        if replayed:
            checked.append(
                f"{replayed} of {evidence.segments.steps} steps in {len(replay.segments)} of "
                f"{whole} segments, replayed by the {engine} engine{drawn}"
            )
        if not replay.checks:
            unchecked.append("structure alone was asked for: no step was done again")
        if replayed < evidence.segments.steps:
            known = "batches" in passed and not evidence.partial
            batches = " (their batches and order were checked)" if known else ""
            unchecked.append(
                f"the arithmetic of {evidence.segments.steps - replayed} steps that were not "
                f"replayed{batches}"
            )
    _describe_kzg(evidence, kzg, replayed, checked, unchecked, given_srs=given_srs)
    if any(check.status == "failed" for check in replay.checks):
        left = f"; {replay.stopped} of the segments chosen were not begun" if replay.stopped else ""
        unchecked.append(f"what follows the first difference: the replay stopped there{left}")
    task, signed = evidence.task, evidence.signed
    if task is not None and signed is not None and signed.claim.log_size < task.steps:
        first = signed.claim.log_size + 1
        unchecked.append(f"steps {first} to {task.steps} of the task, which nobody has claimed yet")
    unchecked.extend(
        f"{check.name}: {check.detail}" for check in evidence.checks if check.status == "not_done"
    )
    unchecked.append("whether the model is any good")
    for folder, (what, mode) in _OTHER_MODES.items():
        if any(name.startswith(folder) for name in evidence.extra_files):
            unchecked.append(f"what lies in {folder}: {what} are for verify --mode {mode} to check")
    extra = [name for name in evidence.extra_files if not name.startswith(tuple(_OTHER_MODES))]
    if extra:
        shown = ", ".join(repr(name) for name in extra[:5])
        more = " and more" if len(extra) > 5 else ""
        unchecked.append(f"files that belong to no run, ignored: {shown}{more}")
    return Strength(tuple(checked), tuple(unchecked))


def _describe_kzg(
    evidence: Evidence,
    kzg: KzgComparison | Check | None,
    replayed: int,
    checked: list[str],
    unchecked: list[str],
    *,
    given_srs: bool,
) -> None:
    """What is known of the KZG commitments in the log, in sentences."""
    proof = evidence.task.kzg if evidence.task is not None else None
    if proof is None:
        if given_srs and evidence.task is not None:
            unchecked.append("the SRS given: the task asks for no KZG commitments")
        return
    compared = kzg.count if isinstance(kzg, KzgComparison) else 0
    total = len(evidence.kzg or ())
    if compared:
        checked.append(
            f"KZG commitments of {compared} of {total} steps that have them, made again from their "
            f"tensors with the SRS {proof.srs.hex()}"
        )
    elif replayed and not given_srs:
        unchecked.append(
            "whether the KZG commitments of the steps replayed are those to their tensors: no SRS "
            "was given (--srs)"
        )
    if compared < total:
        unchecked.append(
            f"whether KZG commitments and BLAKE3 roots are of the same tensors in "
            f"{total - compared} of {total} steps that have KZG commitments: they were not "
            "compared there"
        )
