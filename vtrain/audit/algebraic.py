"""``verify --mode algebraic``: an audit of sampled steps by their traces.

Who chooses what when (docs/adr/0029-algebraic.md):

1. The solver has signed its claim, and the auditor has pinned it.
2. A first draw picks intervals between two state roots; the auditor's own, or a seed that came into
   being after the pin.
3. The solver signs the traces of these (``vtrain trace``): the digest of every node's output.
4. The auditor holds what was signed.  Then the vectors of Freivalds' check are drawn, of randomness
   that nobody knew before; or, where they are to follow from what was signed alone, two of each.
5. The bytes of tensors may come after that: what is signed fixes them.

Of tensors that are too large to be read whole rows are drawn at 4 (``vtrain.audit.rows``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.traces import compute_traces_digest, find_contradiction, verify_traces
from vtrain.audit.beacon import BeaconDraw
from vtrain.audit.pin import Pin, refuse_own_file
from vtrain.audit.plan import (
    Segments,
    Wanted,
    compute_sample_size,
    draw,
    draw_randomness,
    given_randomness,
)
from vtrain.audit.rows import DEFAULT_ABOVE, RowChecker, RowDraw, check_rows, plan_rows
from vtrain.audit.structure import Evidence, FindingError, Progress, check_structure, read_state
from vtrain.audit.traces import TraceChecker, Traces, WrongValue, choose_arithmetic
from vtrain.audit.verify import (
    ask_again,
    check_arguments,
    describe_order,
    describe_signer,
    describe_structure,
    draw_given,
    list_assumptions,
    make_report,
)
from vtrain.commit.files import refuse_link
from vtrain.commit.traces import (
    TRACES_FOLDER,
    TraceFolder,
    compute_record_digest,
    compute_trace_root,
    read_claim,
)
from vtrain.engines.registry import check_engine
from vtrain.errors import EncodingError, NotProducedError, RunError, SignatureError, VtrainError
from vtrain.graph.values import PRODUCTS
from vtrain.limits import Limits, limits_here
from vtrain.spec.algebraic import REPETITIONS, compute_vector
from vtrain.spec.samples import Samples
from vtrain.threads import check_threads
from vtrain.train import signed as evidence_of
from vtrain.train.layout import RunPaths
from vtrain.train.traces import find_interval
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord
from vtrain.wire.report import (
    Assumption,
    Blame,
    Check,
    Randomness,
    Report,
    SampledRows,
    Strength,
    Traced,
    format_percent_up,
)
from vtrain.wire.task import TaskSpec
from vtrain.wire.traces import SignedTensorTraces, TensorTrace

if TYPE_CHECKING:
    from vtrain.audit.published import Published

ALGEBRAIC_DOMAIN: Final = "algebraic intervals"
"""Domain under which the intervals to check are drawn."""
DEFAULT_INTERVALS: Final = 1
"""Intervals that are drawn when the caller names no number."""
ERROR: Final = "2^-60"
"""The chance that a false value passes, for vectors that nobody foresaw."""


@dataclass(frozen=True)
class TracesPin:
    """The ``digest`` (32 bytes) of what was signed of traces, and the file of it where it was
    kept."""

    digest: bytes
    kept: SignedTensorTraces | None = None
    source: Path | None = None


def make_traces_pin(value: bytes | Path) -> TracesPin:
    """The pin of a digest, or of a copy of ``traces.cbor``; NotProducedError, EncodingError."""
    if isinstance(value, bytes):
        return TracesPin(value)
    kept = read_claim(value)
    return TracesPin(compute_traces_digest(kept.traces), kept, value)


@dataclass(frozen=True)
class AlgebraicAudit:
    """What to audit, and with what.

    ``folder`` has the traces, RUN/traces unless given.  ``steps`` are named, or else ``sample``
    intervals, or as many as ``wanted`` takes, are drawn, by ``seed``, a round of a ``beacon`` or of
    fresh randomness.  ``challenge`` replaces the fresh
    randomness of the vectors: without a ``traces_pin`` from before it existed the verdict is at
    most conditional.  ``derived``: the vectors follow from what was signed, so that anyone has the
    same.  ``rows`` of each output of a node with a tensor of more than ``rows_above`` bytes are
    drawn, and nothing else of these is looked at; None looks at everything.  ``pin``, ``solver``,
    ``task_id``, ``data`` and ``threads`` are those of :func:`vtrain.audit.verify.verify`.
    ``engine`` numpy checks by the law.  ``on_wrong`` is given the first wrong value, and says what
    it made of it.  ``published`` is a run in a store, whose traces are there too, unless ``folder``
    has them.
    """

    folder: Path | None = None
    steps: Sequence[int] | None = None
    sample: int | None = None
    seed: bytes | None = None
    beacon: BeaconDraw | None = None
    wanted: Wanted | None = None
    challenge: bytes | None = None
    derived: bool = False
    rows: int | None = None
    rows_above: int = DEFAULT_ABOVE
    pin: Pin | None = None
    traces_pin: TracesPin | None = None
    solver: bytes | None = None
    task_id: bytes | None = None
    data: Path | None = None
    engine: str = "auto"
    threads: int = 0
    published: Published | None = None
    on_wrong: Callable[[WrongValue, AlgebraicSubject], str] = lambda wrong, subject: ""


@dataclass(frozen=True)
class AlgebraicSubject:
    """What is checked: all of it established by the structure check."""

    paths: RunPaths
    evidence: Evidence
    task: TaskSpec
    graph: StepGraph
    samples: Samples
    records: tuple[StepRecord, ...]
    claim: bytes

    @property
    def intervals(self) -> Segments:
        """The stretches between two state roots."""
        every = self.task.commit_every
        return Segments(len(self.records) // every * every, every)

    def root_before(self, step: int) -> bytes:
        """The state root before ``step``, the first of an interval."""
        return self.records[step - 2].state_root if step > 1 else self.task.initial_state_root


def draw_steps(run: Path, randomness: bytes, count: int) -> tuple[int, ...]:
    """The last steps of the intervals that an auditor draws of a run by ``randomness``, rising:
    what its solver has to trace.  Errors of the claim and the task, which are read here, and
    RunError as of :func:`vtrain.audit.plan.draw`."""
    paths = RunPaths(run)
    claim = evidence_of.read_claim(paths).claim
    task = evidence_of.read_task(paths)
    cut = Segments(claim.log_size // task.commit_every * task.commit_every, task.commit_every)
    digest = compute_claim_digest(claim)
    drawn = draw(randomness, digest, ALGEBRAIC_DOMAIN, cut.count, count)
    return tuple(sorted(cut.bounds(index)[1] for index in drawn))


def verify_algebraic(
    run: Path,
    audit: AlgebraicAudit,
    *,
    progress: Progress = lambda what, done, total: None,
    limits: Limits | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> Report:
    """Check the structure of ``run`` in full, then sampled steps of it by their traces.

    Whatever ``run`` and the traces contain ends in a report.  RunError when ``run`` is no folder,
    for an unknown engine, for a step that is not there, for a seed of another length, and where
    randomness of the vectors is given and they are to be derived too.
    """
    check_arguments(
        run,
        audit.sample,
        audit.seed,
        audit.beacon,
        audit.pin,
        audit.solver,
        audit.task_id,
        audit.published,
    )
    published = audit.published
    place = run if published is None else published.own
    own = TraceFolder(audit.folder or place / TRACES_FOLDER, audit.threads)
    draws = audit.sample, audit.seed, audit.beacon, audit.wanted
    if audit.steps is not None and any(given is not None for given in draws):
        raise RunError("are named: nothing is drawn", where="steps")
    if audit.wanted is not None and audit.sample is not None:
        raise RunError("says how many intervals to draw: name no number", where="probability")
    if audit.traces_pin is not None:
        for root in (own.root, place):
            refuse_own_file(root, own.claim, audit.traces_pin.source)
    if audit.challenge is not None and audit.derived:
        raise RunError(
            "is given, and is to follow from the traces: leave one out", where="challenge"
        )
    if audit.rows is not None:
        check_rows(audit.rows, audit.rows_above)
        if audit.derived:
            raise RunError(
                "are drawn, and are to follow from the traces: their solver would try traces until "
                "its false rows are not drawn; leave --derived out",
                where="rows",
            )
    check_engine(audit.engine)
    check_threads(audit.threads)
    limits = limits_here() if limits is None else limits
    evidence = check_structure(
        run,
        pin=audit.pin,
        solver=audit.solver,
        task_id=audit.task_id,
        data=audit.data,
        threads=audit.threads,
        limits=limits,
        progress=progress,
        bringer=published,
    )
    folder: Traces = own
    if published is not None and audit.folder is None:
        folder = published.open_traces()
    given = draw_given(evidence, audit.seed, audit.beacon, pinned=audit.pin is not None)
    subject = _find_subject(run, evidence)
    if isinstance(subject, Check):
        return _report(evidence, audit, _Findings([subject]))
    found = _examine(subject, audit, given, folder, limits, progress, random)
    if published is not None:
        found.checks = ask_again(found.checks, subject.claim, found.drawn)
    return _report(found.evidence or evidence, audit, found)


def _find_subject(run: Path, evidence: Evidence) -> AlgebraicSubject | Check:
    match (evidence.task, evidence.graph, evidence.samples, evidence.signed):
        case (TaskSpec() as task, StepGraph() as graph, Samples() as samples, signed) if (
            signed is not None and evidence.records
        ):
            digest = compute_claim_digest(signed.claim)
            records = evidence.records
            return AlgebraicSubject(RunPaths(run), evidence, task, graph, samples, records, digest)
    reason = "there is no log of a known task that the solver signed, or no samples"
    return Check("algebraic", "not_done", reason)


@dataclass
class _Findings:
    """What came of the traces: the intervals that hold (first and last steps), of ``population``.

    ``drawn`` is the first draw, None where steps were named or all are looked at; ``whole`` the
    latter.  ``vectors``: how many were used, and the randomness of them, None where it was not
    drawn.
    """

    checks: list[Check] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    population: Segments | None = None
    drawn: Randomness | None = None
    asked: tuple[int, ...] = ()
    whole: bool = False
    challenge: Randomness | None = None
    traces: bytes = b""
    sampled: SampledRows | None = None
    """What was looked at by rows."""
    evidence: Evidence | None = None
    """What is established of the run, where the draw added to it."""


def _examine(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    given: Randomness | None,
    folder: Traces,
    limits: Limits,
    progress: Progress,
    random: Callable[[int], bytes],
) -> _Findings:
    """Draw, of the randomness ``given`` if there is any, read what was signed, draw again,
    check."""
    found = _Findings(population=subject.intervals)
    chosen = _choose(subject, audit, given, found, random)
    if not chosen:
        found.checks.append(Check("trace", "not_done", "the log commits to no state"))
        return found
    try:
        traces = _read_traces(subject, audit, folder, chosen, found)
    except (FindingError, VtrainError) as error:
        found.checks.append(_fail_trace(subject, audit, error))
        return found
    one = "the trace asked for is" if len(traces) == 1 else f"the {len(traces)} traces are"
    detail = f"{one} signed by the solver for this claim, and end in the records of its log"
    found.checks.append(Check("trace", "passed", detail))
    if not _bring_samples(subject, audit, chosen, found):
        return found
    vectors = _draw_vectors(subject, audit, found, random)
    # What was signed is known from here on; nobody knew the vectors before.
    total = sum(trace.size for trace, _ in traces)
    done = 0
    checker = TraceChecker(
        subject.graph,
        subject.samples,
        folder,
        vectors,
        choose_arithmetic(audit.engine, audit.threads),
        limits.trace_held_bytes,
        audit.threads,
        lambda nodes: progress("values", done + nodes, total),
    )
    by_rows = _plan_rows(subject, audit, checker, folder, found)
    for (trace, leaves), (first, last) in zip(traces, chosen, strict=True):
        place = f"steps {first} to {last}" if first < last else f"step {last}"
        try:
            wrong = _check_trace(subject, checker, by_rows, trace, leaves, first)
        except FindingError as error:
            found.checks.append(Check("algebraic", "failed", error.detail, place, error.fault))
            return found
        except VtrainError as error:
            where = _join(place, _shorten(subject, audit, error.where))
            fault: Blame = "nobody" if isinstance(error, NotProducedError) else ""
            status = "failed" if fault else "not_done"
            detail = error.message + (_ask_for_rows(found) if fault else "")
            found.checks.append(Check("algebraic", status, detail, where, fault))  # type: ignore[arg-type]
            return found
        if wrong is not None:
            try:
                said = audit.on_wrong(wrong, subject)
            except VtrainError as error:  # of whoever was told: it takes nothing from the verdict
                said = f"what follows from it could not be written: {error}"
            detail = wrong.describe() + (f"; {said}" if said else "")
            found.checks.append(Check("algebraic", "failed", detail, wrong.where, wrong.fault))
            return found
        found.held.append((first, last))
        done += trace.size
    products = sum(node.op in PRODUCTS for node in subject.graph.nodes)
    steps = sum(last - first + 1 for first, last in found.held)
    count = f"{steps} steps" if steps > 1 else "1 step"
    detail = f"{count}: {products * steps} products checked, every other value done again"
    if found.sampled is not None:
        detail = f"{count}: rows of {len(found.sampled.nodes)} nodes, all other nodes whole"
    found.checks.append(Check("algebraic", "passed", detail))
    return found


def _fail_trace(
    subject: AlgebraicSubject, audit: AlgebraicAudit, error: FindingError | VtrainError
) -> Check:
    where = _shorten(subject, audit, error.where)
    if isinstance(error, FindingError):
        return Check("trace", "failed", error.detail, where, error.fault)
    owed = isinstance(error, NotProducedError | EncodingError) and "owes" not in error.message
    detail = error.message + "; the solver owes it" * owed
    return Check("trace", "failed", detail, where, "nobody")


def _join(place: str, owed: str) -> str:
    """An interval, and what is owed of it."""
    return f"{place}: {owed}" if owed else place


def _shorten(subject: AlgebraicSubject, audit: AlgebraicAudit, where: str) -> str:
    """A place in the folder of traces as one in the run, wherever the reader has them."""
    at = f"{audit.folder or subject.paths.root / TRACES_FOLDER}{os.sep}"
    if where.startswith(at):
        return f"{TRACES_FOLDER}/{where.removeprefix(at)}"
    where = where.removeprefix(f"{subject.paths.root}{os.sep}")
    return where if audit.published is None else audit.published.shorten(where)


def _bring_samples(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    chosen: Sequence[tuple[int, int]],
    found: _Findings,
) -> bool:
    """Have the samples of the steps chosen, of a published run; whether they are there."""
    if audit.published is None:
        return True
    steps = [step for first, last in chosen for step in range(first, last + 1)]
    found.evidence = audit.published.bring_steps(subject.evidence, steps)
    if found.evidence.samples is None:
        reason = "the samples of these steps are not there"
        found.checks.append(Check("algebraic", "not_done", reason))
    return found.evidence.samples is not None


def _choose(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    given: Randomness | None,
    found: _Findings,
    random: Callable[[int], bytes],
) -> list[tuple[int, int]]:
    """The intervals to look at, as (first step, last step), rising."""
    cut = subject.intervals
    if audit.steps is not None:
        named = {find_interval(cut.every, cut.steps, step) for step in audit.steps}
        found.whole = len(named) == cut.count
        chosen = sorted(named)
    else:
        count = DEFAULT_INTERVALS if audit.sample is None else audit.sample
        if audit.wanted is not None:
            count = compute_sample_size(cut, audit.wanted)
        found.whole = count >= cut.count
        indices: Sequence[int] = range(cut.count)
        if not found.whole:
            found.drawn = given or draw_randomness(random)
            value = found.drawn.value
            indices = sorted(draw(value, subject.claim, ALGEBRAIC_DOMAIN, cut.count, count))
        chosen = [(start + 1, end) for start, end in map(cut.bounds, indices)]
    found.asked = tuple(last for _, last in chosen)
    return chosen


def _read_traces(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    folder: Traces,
    chosen: Sequence[tuple[int, int]],
    found: _Findings,
) -> list[tuple[TensorTrace, list[bytes]]]:
    """The traces asked for with their leaves, as signed; FindingError and VtrainError otherwise."""
    claim = subject.evidence.signed
    place = folder.locate_claim()
    if isinstance(folder, TraceFolder) and audit.folder is None:
        refuse_link(folder.root)
    if claim is None or not folder.is_there():
        raise FindingError(_owe(subject, found, [last for _, last in chosen]), place)
    signed = folder.read_claim()
    try:
        verify_traces(signed, claim.claim)
    except SignatureError as error:
        raise FindingError(f"is not what the solver signed: {error.message}", place) from None
    digest, pin = compute_traces_digest(signed.traces), audit.traces_pin
    if pin is not None and pin.digest != digest:
        detail = f"is what was signed as {digest.hex()}, not {pin.digest.hex()} as pinned"
        try:
            other = pin.kept and find_contradiction(pin.kept, signed, claim.claim)
        except SignatureError as error:  # whoever wrote it, it convicts nobody
            why = f"what was kept is not what the solver signed for this claim: {error.message}"
            raise FindingError(f"{detail}; {why}", place) from None
        if other:
            raise FindingError(f"{detail}: {other}", place, "solver")
        raise FindingError(detail, place)
    found.traces = digest
    there = {trace.step: trace for trace in signed.traces.traces}
    if missing := [last for _, last in chosen if last not in there]:
        raise FindingError(_owe(subject, found, missing), place)
    return [
        (there[last], _read_leaves(subject, folder, there[last], first)) for first, last in chosen
    ]


def _owe(subject: AlgebraicSubject, found: _Findings, steps: Sequence[int]) -> str:
    """What the solver has to make, in one sentence.

    The claim that was drawn for is named: one that is kept from now on may be another, which its
    solver made when it knew what is drawn.
    """
    shown = ", ".join(map(str, steps[:10])) + (" ..." if len(steps) > 10 else "")
    asked = ",".join(map(str, steps[:10]))
    text = f"the solver owes the traces of these steps: {shown} (vtrain trace RUN --step {asked})"
    drawn = found.drawn
    if drawn is not None and drawn.fresh:
        text += (
            f"; they were drawn with {drawn.value.hex()}: ask for them, and come back with "
            f"--claim {subject.claim.hex()} --seed {drawn.value.hex()}"
        )
    return text


def _read_leaves(
    subject: AlgebraicSubject, folder: Traces, trace: TensorTrace, first: int
) -> list[bytes]:
    """The digests of a trace, which ends in the records of the log."""
    nodes, place = len(subject.graph.nodes), f"step {trace.step}"
    size = (trace.step - first + 1) * nodes
    if trace.size != size:
        raise FindingError(f"its trace has {trace.size} values, not {size}", place, "solver")
    leaves = folder.read_leaves(trace)
    if compute_trace_root(leaves) != trace.root:
        raise NotProducedError(
            "the digests are not those under the root that was signed: the solver owes them",
            where=folder.locate_leaves(trace.step),
        )
    record = subject.graph.find("record")
    for offset in range(trace.size // nodes):
        step = first + offset
        if leaves[offset * nodes + record] != compute_record_digest(subject.records[step - 1]):
            raise FindingError(
                "the solver signed a trace that does not end in the record that its log has of "
                "this step",
                f"step {step}",
                "solver",
            )
    return leaves


def _draw_vectors(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    found: _Findings,
    random: Callable[[int], bytes],
) -> list[npt.NDArray[np.uint64]]:
    """The vectors of Freivalds' check, as long as the widest product is wide."""
    widths = [node.outputs[0].shape[-1] for node in subject.graph.nodes if node.op in PRODUCTS]
    width = max(widths, default=0)
    if audit.derived:
        count, randomness = REPETITIONS, b""
    elif audit.challenge is not None:
        pinned = audit.traces_pin is not None
        source = "randomness of the vectors that was given"
        found.challenge = replace(
            given_randomness(audit.challenge, pinned=pinned),
            source=f"{source}, for the traces that were pinned before" if pinned else source,
        )
        count, randomness = 1, audit.challenge
    else:
        source = "randomness of the auditor's own for the vectors, drawn after the traces were read"
        found.challenge = replace(draw_randomness(random), source=source)
        count, randomness = 1, found.challenge.value
    return [compute_vector(randomness, found.traces, i, width) for i in range(count)]


def _plan_rows(
    subject: AlgebraicSubject,
    audit: AlgebraicAudit,
    checker: TraceChecker,
    folder: Traces,
    found: _Findings,
) -> RowChecker | None:
    """What checks traces by rows; None where everything is looked at."""
    if audit.rows is None or found.challenge is None:
        return None
    plan = plan_rows(subject.graph, subject.samples, audit.rows, audit.rows_above)
    found.sampled = plan.describe(subject.graph, audit.rows, audit.rows_above)
    if found.sampled is None:
        return None
    draw_rows = RowDraw(audit.rows, audit.rows_above, found.challenge.value, found.traces)
    return RowChecker(checker, folder, plan, draw_rows, by_law=audit.engine == "numpy")


def _ask_for_rows(found: _Findings) -> str:
    """How to go on where rows are owed: by the same draw, since a solver that may wait for another
    one keeps back whatever draw finds it out."""
    challenge = found.challenge
    if found.sampled is None or challenge is None or not challenge.fresh:
        return ""
    return (
        f"; rows were drawn with {challenge.value.hex()}: ask for what is owed, and come back with "
        f"--trace-claim {found.traces.hex()} --challenge {challenge.value.hex()}, for another draw "
        "may miss what is kept back"
    )


def _check_trace(
    subject: AlgebraicSubject,
    checker: TraceChecker,
    by_rows: RowChecker | None,
    trace: TensorTrace,
    leaves: Sequence[bytes],
    first: int,
) -> WrongValue | None:
    """The first wrong value of a trace; FindingError where the states that it begins with are not
    those of the log, and it cannot be told which of them is wrong."""
    if checker.is_base(leaves, subject.root_before(first)):
        return (by_rows or checker).check(trace, leaves)
    if first - 1 in subject.evidence.checkpoints:
        task, graph = subject.task, subject.graph
        state = read_state(subject.paths, task, graph, subject.records, first - 1, checker.threads)
        wrong = checker.find_wrong_state(trace, leaves, state)
        if wrong is not None:
            return wrong
    raise FindingError(
        f"the trace begins with states that are not those after step {first - 1}, to which the log "
        "commits",
        fault="solver",
    )


def _report(evidence: Evidence, audit: AlgebraicAudit, found: _Findings) -> Report:
    drawn = found.drawn
    challenge = found.challenge
    named = audit.steps is not None and not found.whole and audit.pin is None
    assumptions = list(list_assumptions(drawn))
    if named:
        detail = "whoever made this claim did not know which steps would be named"
        assumptions.append(
            Assumption("predictable-sample", f"{detail}: no claim was pinned before (--claim)")
        )
    if challenge is not None and challenge.predictable:
        detail = "whoever signed the traces did not know the randomness of the check"
        assumptions.append(
            Assumption(
                "predictable-sample",
                f"{detail}: no traces were pinned before it existed (--trace-claim)",
            )
        )
    return make_report(
        evidence,
        evidence.checks + tuple(found.checks),
        _describe(evidence, audit, found),
        engine="numpy" if audit.engine == "numpy" else "cpu",
        population=found.population if drawn is not None else None,
        looked_at=found.held,
        randomness=challenge or drawn,
        traced=None if drawn is None or challenge is None else Traced(found.asked, drawn),
        assumptions=tuple(assumptions),
        rung="rows" if found.sampled else "algebraic",
        sampled=found.sampled,
    )


def _describe(evidence: Evidence, audit: AlgebraicAudit, found: _Findings) -> Strength:
    """What the verdict rests on and what it leaves open, in sentences."""
    checked, unchecked = describe_structure(evidence, audit.published)
    if audit.task_id is not None and evidence.task is not None:
        checked.append("the task is the one asked for")
    elif audit.task_id is None:
        unchecked.append(
            "whether this is the task agreed on: its id was taken from the run itself "
            "(name the one you want with --task-id)"
        )
    describe_signer(evidence.signed, audit.pin, audit.solver, checked, unchecked)
    rule = evidence.task.beacon if evidence.task is not None else None
    describe_order(found.drawn, audit.pin, rule, unchecked)
    if found.traces and audit.traces_pin is not None:
        checked.append(f"what was signed of the traces is what was pinned, {found.traces.hex()}")
        if audit.challenge is not None:
            unchecked.append(
                "whether the traces were pinned before the randomness of the check existed: the "
                "auditor who did both knows"
            )
    steps = sum(last - first + 1 for first, last in found.held)
    population = found.population
    if population is not None:
        if steps:
            drawn = f", drawn with {found.drawn.source}" if found.drawn else ""
            error = _describe_error(audit, found)
            checked.append(
                f"{steps} of {population.steps} steps, in {len(found.held)} of {population.count} "
                f"stretches between state roots, by their traces{drawn}: {error}"
            )
        if steps < population.steps:
            unchecked.append(f"the arithmetic of {population.steps - steps} steps")
        if steps and found.sampled is not None:
            unchecked.append(_describe_left(found.sampled))
    if audit.steps is not None and not found.whole:
        unchecked.append("the steps were named, not drawn: whoever named them chose what is shown")
    if any(check.status == "failed" for check in found.checks):
        unchecked.append("what follows the first difference: the check stopped there")
    task, signed = evidence.task, evidence.signed
    if task is not None and signed is not None and signed.claim.log_size < task.steps:
        first = signed.claim.log_size + 1
        unchecked.append(f"steps {first} to {task.steps} of the task, which nobody has claimed yet")
    unchecked.append("whether the model is any good")
    return Strength(tuple(checked), tuple(unchecked))


def _describe_left(sampled: SampledRows) -> str:
    """What was not looked at of values that are looked at by rows."""
    left = max(sampled.nodes, key=lambda node: node.units - node.drawn)
    return (
        f"the rows that were not drawn, of {len(sampled.nodes)} nodes with values of more than "
        f"{sampled.above} bytes: of {left.name} {left.units - left.drawn} of {left.units}"
    )


def _describe_error(audit: AlgebraicAudit, found: _Findings) -> str:
    """The chance of an error, in words."""
    if found.sampled is not None:
        return _describe_rows(found.sampled) + _describe_unknown(found)
    if audit.derived:
        return (
            f"with {REPETITIONS} vectors that follow from what was signed, a solver that tries Q "
            "signed statements hides a false value with a chance below Q / 2^121"
        )
    return f"a false value in them passes with a chance below {ERROR}{_describe_unknown(found)}"


def _describe_unknown(found: _Findings) -> str:
    if found.challenge is not None and found.challenge.predictable:
        return ", if whoever signed them did not know the randomness of the check"
    return ""


def _describe_rows(sampled: SampledRows) -> str:
    """What was looked at by rows, and the chance of an error."""
    worst = sampled.worst
    whole = f" ({len(sampled.whole)} such nodes whole)" if sampled.whole else ""
    one, ten = (format_percent_up(sampled.bound_missed(false)) for false in (1, 10))
    return (
        f"by {sampled.rows} rows of each output, or all that there are, of {len(sampled.nodes)} "
        f"nodes with values of more than {sampled.above} bytes{whole}: a single false row in them "
        f"is missed with a chance of {one} % at most, of {worst.name}, of which {worst.drawn} of "
        f"{worst.units} were drawn; ten false rows with {ten} % at most; a false value elsewhere "
        f"passes with a chance below {ERROR}"
    )
