"""``verify --mode proof``: an audit of sampled steps by their proofs.

Private: from what is public alone (task, graph, claim, logs, proofs).  Otherwise the auditor holds
the run's tensors as well: the structure check is whole, and the commitments of the steps are
computed from the tensors, so that it is known what the proofs speak of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vtrain.attest.claims import compute_claim_digest
from vtrain.audit.beacon import BeaconDraw
from vtrain.audit.order import PUBLIC_CHECKS
from vtrain.audit.pin import Pin, refuse_own_file
from vtrain.audit.plan import (
    Segments,
    Wanted,
    compute_sample_size,
    draw,
    draw_randomness,
    given_randomness,
)
from vtrain.audit.structure import Evidence, FindingError, check_structure
from vtrain.audit.verify import (
    describe_order,
    describe_signer,
    draw_given,
    list_assumptions,
    make_report,
)
from vtrain.errors import (
    CircuitError,
    EncodingError,
    NotProducedError,
    RunError,
    SignatureError,
    VtrainError,
)
from vtrain.prove.backend.ezkl import Verification, require_extra
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.batches import index_batches, verify_batches
from vtrain.prove.runs import SignedRun, StepDiffersError, StepSource
from vtrain.prove.setup import ProofSetup
from vtrain.prove.steps.verifier import StepVerifier
from vtrain.prove.tiles.protocol import (
    TileAudit,
    TileChances,
    compute_trace_claim_digest,
    draw_steps,
    find_contradiction,
    verify_trace_claim,
)
from vtrain.prove.tiles.verifier import (
    TracePin,
    check_answer,
    make_audit,
    read_traces,
    require_two_draws,
    traces_path,
)
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_hiding_of
from vtrain.wire.batches import SignedBatches
from vtrain.wire.proof import KzgRecord
from vtrain.wire.report import (
    Assumption,
    Blame,
    Check,
    Randomness,
    Report,
    Strength,
    Traced,
)
from vtrain.wire.task import TaskSpec
from vtrain.wire.tiles import SignedTraceClaim

PROOF_DOMAIN: Final = "proof steps"
"""Domain under which the steps to prove are drawn."""


@dataclass(frozen=True)
class ProofAudit:
    """What to audit: which steps (see :func:`choose_steps`), and with what.

    ``setup`` makes the setup for the task, once that is known: :meth:`ProofSetup.for_task` with the
    auditor's own SRS, cache and limits.  ``private`` goes by commitments in the signed log alone.
    ``pin`` is the claim that the auditor held before ``seed`` existed or the steps were named, and
    ``solver`` the public key that must have signed.  ``batches``: commitments to the batches that
    the data's ``owner`` (public key) signed.  An SRS of no ceremony makes the verdict conditional
    unless ``allow_insecure_srs``; so does a sample that was not drawn afresh, without a pin, since
    proofs are made after the draw.
    """

    setup: Callable[[TaskSpec], ProofSetup]
    steps: Sequence[int] | None = None
    sample: int | None = None
    seed: bytes | None = None
    beacon: BeaconDraw | None = None
    """A round of a beacon in place of ``seed``: of whole steps."""
    wanted: Wanted | None = None
    """What the sample is to be large enough for, in place of ``sample``: of whole steps."""
    private: bool = False
    allow_insecure_srs: bool = False
    pin: Pin | None = None
    solver: bytes | None = None
    batches: SignedBatches | None = None
    owner: bytes = b""
    traces: tuple[bytes, int] | None = None
    """Of tiles: randomness and number of the steps drawn first; ``seed`` and ``sample`` are then of
    the statements about them."""
    trace_pin: TracePin | None = None
    """Of tiles: the trace claim that the auditor held before ``seed`` existed."""
    task_id: bytes | None = None
    data: Path | None = None
    hiding: Path | None = None
    """Keys that the solver disclosed; by default its own file, where it is in the run."""
    engine: str = "auto"
    threads: int = 0


def verify_proofs(
    run: Path,
    audit: ProofAudit,
    *,
    progress: Progress = quiet,
    random: Callable[[int], bytes] = os.urandom,
) -> Report:
    """Audit the proofs of a run's steps; whatever ``run`` contains ends in a report.

    RunError for a folder that has no file of a run, a step that is not there, a k that is not the
    task's, draws that are not those of the task's circuits; SrsError for a file that is no SRS;
    MissingExtraError.
    """
    RunPaths(run).require_run()
    if audit.pin is not None:
        refuse_own_file(run, RunPaths(run).claim, audit.pin.source)
    if audit.trace_pin is not None:
        refuse_own_file(run, traces_path(run), audit.trace_pin.source)
    if (audit.batches is None) != (not audit.owner):
        raise RunError("belong together: give both, or neither", where="batches and owner")
    if audit.beacon is not None and (audit.seed is not None or audit.steps is not None):
        raise RunError("draws: name neither a seed nor steps", where="beacon")
    if audit.wanted is not None and (audit.sample is not None or audit.steps is not None):
        raise RunError("says how many steps to draw: name no number", where="probability")
    require_extra("ezkl")
    evidence = check_structure(
        run,
        pin=audit.pin,
        solver=audit.solver,
        task_id=audit.task_id,
        data=audit.data,
        threads=audit.threads,
        progress=progress,
    )
    # What convicts is never left out, also where it was not to be looked for.
    checks = [
        check
        for check in evidence.checks
        if not audit.private or check.name in PUBLIC_CHECKS or check.fault in ("solver", "task")
    ]
    examiner = _open(run, evidence, audit, progress)
    if isinstance(examiner, Check):
        checks.append(examiner)
        return _report(evidence, checks, _describe_unopened(audit, evidence))
    found = examiner.examine(random)
    checks.extend(found.checks)
    strength = _describe(audit, evidence, examiner.setup, found)
    return _report(evidence, checks, strength, found, _assume(audit, examiner.setup, found))


def _open(
    run: Path, evidence: Evidence, audit: ProofAudit, progress: Progress
) -> _Examiner | Check:
    """What examines the proofs, or why nothing can."""
    signed, task, graph = evidence.signed, evidence.task, evidence.graph
    if signed is None or task is None or graph is None or not evidence.records:
        reason = "there is no log of a known task that the solver signed"
        return Check("proofs", "not_done", reason)
    try:
        setup = audit.setup(task)
    except EncodingError as error:
        return Check("srs", "failed", error.message, error.where, "nobody")
    subject = SignedRun(RunPaths(run), signed, task, graph, evidence.records)
    return _Examiner(subject, evidence, audit, setup, progress)


@dataclass(frozen=True)
class _Findings:
    """What the proofs showed: the steps ``proven`` of ``population``; or, of tiles whose traces the
    claim of digest ``trace_claim`` fixed, ``chances``.  ``traced`` is their first draw, whatever
    came of it.

    ``owned``: whether it is known what batches the data's owner signed.  ``sampled``: the draws
    that left something out.  ``named``: steps were named in place of a draw, and not all of them.
    """

    checks: list[Check]
    owned: bool
    proven: tuple[int, ...] = ()
    population: int = 0
    randomness: Randomness | None = None
    chances: TileChances | None = None
    trace_claim: bytes = b""
    traced: Traced | None = None
    sampled: tuple[Randomness, ...] = ()
    named: bool = False


class _Examiner:
    """Checks the proofs of one run."""

    def __init__(
        self,
        run: SignedRun,
        evidence: Evidence,
        audit: ProofAudit,
        setup: ProofSetup,
        progress: Progress,
    ) -> None:
        self._run, self._evidence, self._audit, self._progress = run, evidence, audit, progress
        self._owned = False
        self.setup: Final = setup
        self._proven: list[int] = []

    def examine(self, random: Callable[[int], bytes]) -> _Findings:
        """The checks of the SRS, of what the data's owner signed, and of the proofs."""
        checks = [self._judge_srs()]
        if self._audit.batches is not None:
            checks.append(self._judge_owner(self._audit.batches))
        owned = self._owned
        audit, task = self._audit, self._run.task
        if self.setup.proof.circuit == "tiles":
            tiles = self._examine_tiles()
            return replace(tiles, checks=checks + tiles.checks)
        if audit.traces is not None or audit.trace_pin is not None:
            message = "the task commits to whole steps: traces (--trace-...) are of tiles"
            raise RunError(message, where="audit")
        every = 1 if task.kzg is None else task.kzg.every
        steps, randomness = choose_steps(
            self._run,
            every=every,
            steps=audit.steps,
            sample=audit.sample,
            seed=audit.seed,
            pinned=audit.pin is not None,
            given=draw_given(self._evidence, None, audit.beacon, pinned=audit.pin is not None),
            wanted=audit.wanted,
            random=random,
        )
        population = count_provable(self._run, every)
        whole = len(steps) == population
        if steps and audit.steps is None:
            checks.extend(_judge_size(audit.sample, population, "steps that can be proven"))
        checks.extend(self._examine_steps(steps))
        return _Findings(
            checks,
            owned,
            tuple(self._proven),
            population,
            randomness,
            sampled=() if randomness is None or whole else (randomness,),
            named=randomness is None and not whole,
        )

    def _judge_srs(self) -> Check:
        digest = self.setup.proof.srs.hex()
        origin = "no known ceremony" if self.setup.is_insecure else "a public ceremony"
        whose = (
            "the auditor's, as the task pins none" if self._run.task.proof is None else "the task's"
        )
        return Check("srs", "passed", f"{digest} is {whose}, and of {origin}")

    def _judge_owner(self, batches: SignedBatches) -> Check:
        try:
            verify_batches(batches, self._audit.owner, self._run.task)
        except VtrainError as error:
            return Check("owner", "failed", error.message, f"batches: {error.where}", "nobody")
        owned = index_batches(batches)
        for record in self._evidence.kzg or ():
            if owned.get(record.step) != record.batch:
                reason = "the logged batch is not the one that its owner signed"
                return Check("owner", "failed", reason, f"step {record.step}", "nobody")
        self._owned = True
        return Check("owner", "passed", "signed the commitments to the batches of this task")

    def _examine_steps(self, steps: Sequence[int]) -> list[Check]:
        if self._audit.private and self._run.task.kzg is None:
            reason = (
                "the run logs no KZG commitments, and without its tensors there is nothing to hold "
                'proofs against; its task would need commitments = ["blake3", "kzg"]'
            )
            return [Check("proof", "not_done", reason, "task.commitments")]
        opener = None if self._audit.private else self._open_source
        logged = None if self._run.task.kzg is None else self._evidence.kzg
        try:
            verifier = StepVerifier(self._run, self.setup, logged, opener, self._progress)
        except VtrainError as error:
            return [Check("proof", "not_done", error.message, error.where)]
        checks = []
        for done, step in enumerate(steps):
            self._progress("proofs", done, len(steps))
            checks.append(self._examine_step(step, verifier))
        self._progress("proofs", len(steps), len(steps))
        return checks or [Check("proof", "not_done", "no step was asked for")]

    def _examine_step(self, step: int, verifier: StepVerifier) -> Check:
        place = f"step {step}"
        try:
            found = verifier.verify(step)
        except StepDiffersError as error:
            return Check("replay", "failed", error.message, error.where, "solver")
        except FindingError as found_wrong:
            return Check("kzg", "failed", found_wrong.detail, place, found_wrong.fault)
        except VtrainError as error:
            where = self._shorten(error.where)
            where = f"{place}: {where}" if where else place
            return Check("proof", "failed", error.message, where, "nobody")
        if not found.holds:
            return Check(
                "proof", "failed", f"does not show the step: {found.reason}", place, "nobody"
            )
        self._proven.append(step)
        return Check("proof", "passed", "shows the step", place)

    def _open_source(self) -> StepSource:
        """What the commitments are of, from tensors of our own."""
        evidence = self._evidence
        if evidence.samples is None:
            raise NotProducedError(
                "needs the samples: bring them (--data), or audit by public files alone (--private)"
            )
        return StepSource(
            self._run,
            self.setup.proof,
            read_hiding_of(self._run.paths, self._audit.hiding),
            engine=self._audit.engine,
            threads=self._audit.threads,
            samples=evidence.samples,
            checkpoints=evidence.checkpoints,
        )

    def _examine_tiles(self) -> _Findings:
        """The proofs of sampled tiles."""
        audit, logged = self._audit, self._evidence.kzg
        if audit.beacon is not None or audit.wanted is not None:
            raise RunError(
                "an audit of tiles draws twice, by two seeds: give the randomness of two rounds of "
                "a beacon (--trace-seed, --seed), and the sizes of both draws",
                where="audit",
            )
        if audit.traces is None or audit.seed is None or audit.sample is None:
            raise RunError(
                "the task commits to tiles, and their audit needs the randomness and sizes of both "
                "draws: --trace-seed and --trace-samples drew the steps, --seed and --samples the "
                "statements about them",
                where="audit",
            )
        require_two_draws(audit.traces[0], audit.seed)
        claim, pinned = self._run.signed.claim, audit.pin is not None
        first = given_randomness(audit.traces[0], pinned=pinned)
        randomness = given_randomness(audit.seed, pinned=pinned and audit.trace_pin is not None)
        second = randomness.value, audit.sample
        steps = draw_steps(first.value, claim, self.setup.proof.every, audit.traces[1])
        traced = Traced(steps, first)

        def refuse(detail: str, where: str, fault: Blame = "nobody") -> _Findings:
            check = Check("tiles", "failed", detail, where, fault)
            return _Findings([check], self._owned, randomness=randomness, traced=traced)

        if not os.path.lexists(traces_path(self._run.paths.root)):
            detail = "the file is missing: the solver claimed no traces (vtrain prove traces)"
            return refuse(detail, "proofs/traces.cbor")
        if logged is None:
            return refuse("there are no signed commitments that they could be of", "kzg.bin")
        try:
            known = self._prepare_tiles(audit.traces, second, logged)
            traces = self._read_traces()
            found = self._check_answer(known, traces)
        except FindingError as error:
            return refuse(error.detail, error.where, error.fault)
        if not found.holds:
            return refuse(found.reason, "proofs")
        chances = known.chances
        one, more = "the statement drawn is", f"all {chances.samples} statements drawn are"
        return _Findings(
            [
                *_judge_size(audit.traces[1], chances.logged, "steps that can be proven"),
                *_judge_size(audit.sample, chances.statements, "statements about their tiles"),
                Check("tiles", "passed", f"{one if chances.samples == 1 else more} shown"),
            ],
            self._owned,
            population=chances.logged,
            randomness=randomness,
            chances=chances,
            trace_claim=compute_trace_claim_digest(traces.trace_claim),
            traced=traced,
            sampled=(
                *((first,) if chances.steps < chances.logged else ()),
                *((randomness,) if chances.samples < chances.statements else ()),
            ),
        )

    def _prepare_tiles(
        self, first: tuple[bytes, int], second: tuple[bytes, int], logged: Sequence[KzgRecord]
    ) -> TileAudit:
        """What is known before the answer; FindingError."""
        try:
            return make_audit(self._run, self.setup, first, second, logged)
        except CircuitError as error:
            raise FindingError(error.message, f"graph.cbor: {error.where}") from None
        except NotProducedError as error:
            raise FindingError(error.message, error.where) from None

    def _read_traces(self) -> SignedTraceClaim:
        """What the solver signed of tiles, as far as it is what was pinned; FindingError."""
        place, claim, pin = "proofs/traces.cbor", self._run.signed.claim, self._audit.trace_pin
        try:
            traces = read_traces(self._run.paths.root)
            verify_trace_claim(traces, claim)
            digest = compute_trace_claim_digest(traces.trace_claim)
            if pin is None or pin.digest == digest:
                return traces
            other = pin.kept and find_contradiction(pin.kept, traces, claim)
        except SignatureError as error:
            raise FindingError(error.message, f"{place}: {error.where}") from None
        except VtrainError as error:
            raise FindingError(error.message, self._shorten(error.where)) from None
        detail = f"is the trace claim {digest.hex()}, not {pin.digest.hex()} as pinned"
        if other:
            raise FindingError(f"{detail}: {other}", place, "solver")
        raise FindingError(detail, place)

    def _check_answer(self, known: TileAudit, traces: SignedTraceClaim) -> Verification:
        """Whether the answer shows what was drawn; FindingError where there is none of its form."""
        try:
            return check_answer(self._run, self.setup, known, traces, self._progress)
        except CircuitError as error:
            raise FindingError(error.message, f"proofs: {error.where}") from None
        except VtrainError as error:
            raise FindingError(error.message, self._shorten(error.where)) from None

    def _shorten(self, where: str) -> str:
        """Places inside the run are named from its root."""
        return where.removeprefix(f"{self._run.paths.root}{os.sep}")


def choose_steps(
    run: SignedRun,
    *,
    every: int,
    steps: Sequence[int] | None,
    sample: int | None,
    seed: bytes | None,
    pinned: bool = False,
    given: Randomness | None = None,
    wanted: Wanted | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> tuple[tuple[int, ...], Randomness | None]:
    """The steps that an audit asks for, of those that are multiples of ``every``.

    Named ones as they are, else ``sample`` of them, or as many as ``wanted`` takes, drawn from the
    claim and ``seed``, the randomness ``given`` or fresh randomness: all of them where there are no
    more (:func:`count_provable`).  ``pinned``: the auditor held the claim before ``seed`` existed.
    RunError for a step that is not there.
    """
    population = count_provable(run, every)
    if steps is not None:
        for step in steps:
            if not 1 <= step <= population * every or step % every:
                raise RunError(_describe_provable(run, every), where=f"step {step}")
        return tuple(sorted(set(steps))), None
    if seed is not None:
        given = given_randomness(seed, pinned=pinned)
    randomness = given or draw_randomness(random)
    count = 1 if sample is None else sample
    if wanted is not None:
        count = compute_sample_size(Segments(population, 1), wanted)
    digest = compute_claim_digest(run.signed.claim)
    drawn = draw(randomness.value, digest, PROOF_DOMAIN, population, count)
    return tuple(sorted((index + 1) * every for index in drawn)), randomness


def count_provable(run: SignedRun, every: int) -> int:
    """How many steps of a run are multiples of ``every``."""
    return run.signed.claim.log_size // every


def _describe_provable(run: SignedRun, every: int) -> str:
    last = run.signed.claim.log_size
    if every == 1:
        return f"the run has the steps 1 to {last}"
    return (
        f"of the {last} steps of the run, the multiples of {every} can be proven: "
        "the task logs commitments of no others"
    )


def _judge_size(asked: int | None, there: int, what: str) -> list[Check]:
    """What to say where fewer things are there than were to be drawn."""
    if asked is None or asked <= there:
        return []
    detail = f"{asked} were to be drawn, and there are {there} {what}: all of them were drawn"
    return [Check("sample", "passed", detail)]


def _describe(
    audit: ProofAudit, evidence: Evidence, setup: ProofSetup, found: _Findings
) -> Strength:
    checked: list[str] = []
    unchecked: list[str] = []
    proven, chances = found.proven, found.chances
    describe_signer(evidence.signed, audit.pin, audit.solver, checked, unchecked)
    rule = evidence.task.beacon if evidence.task is not None else None
    describe_order(found.randomness, audit.pin, rule, unchecked)
    if chances:
        _describe_tiles(audit, evidence, found, chances, checked, unchecked)
    if proven:
        shown = ", ".join(map(str, proven[:5])) + (" ..." if len(proven) > 5 else "")
        checked.append(
            f"{len(proven)} of {found.population} steps that can be proven, each whole, by ZK "
            f"proof (steps {shown}): forward, loss, backward and update as the law has them"
        )
    elif not chances:
        unchecked.append("every step: no proof was good")
    if not audit.private and proven:
        checked.append("each proof is of the tensors in the run, whose BLAKE3 roots are signed")
    elif proven or chances:
        checked.append("each proof is of the commitments in the signed log")
        unchecked.extend(_list_unlinked(audit, setup))
    _describe_batches(audit, evidence, found, checked, unchecked)
    unchecked.append(
        "what the run log says of tensors: losses are exact, and whoever knows all but a few bits "
        "of a batch or a state can test guesses of it with its digest"
    )
    unchecked.append(
        f"INSECURE SRS {setup.proof.srs.hex()}: whoever made it can forge every proof"
        if setup.is_insecure
        else f"that nobody knows the secret of the ceremony's SRS {setup.proof.srs.hex()}"
    )
    if not setup.proof.circuits:
        unchecked.append("the task pins no circuits: they follow from its graph and this version")
    if audit.steps is not None:
        unchecked.append("the steps were named, not drawn: whoever named them chose what is shown")
    steps = evidence.signed.claim.log_size if evidence.signed else 0
    if proven and len(proven) < steps:
        missing = found.population - len(proven)
        unchecked.append(
            f"the arithmetic of {steps - len(proven)} steps without a proof; of them {missing} "
            "could be proven"
        )
    unchecked.extend(_describe_task(audit, evidence))
    unchecked.append("ezkl, halo2 and the circuits themselves, which are trusted (docs/proofs.md)")
    return Strength(tuple(checked), tuple(unchecked))


def _describe_unopened(audit: ProofAudit, evidence: Evidence) -> Strength:
    whose = _describe_task(audit, evidence)
    return Strength((), (*whose, "every step: no proof was looked at"))


def _describe_tiles(
    audit: ProofAudit,
    evidence: Evidence,
    found: _Findings,
    chances: TileChances,
    checked: list[str],
    unchecked: list[str],
) -> None:
    """What the statements drawn show of the run, in sentences."""
    checked.append(f"statements about tiles of sampled steps: {chances.sentence}")
    left = evidence.signed.claim.log_size - chances.steps if evidence.signed else 0
    if left:
        unchecked.append(
            f"the arithmetic of {left} steps that were not drawn; of them "
            f"{chances.logged - chances.steps} have signed commitments and could be"
        )
    if audit.trace_pin is not None:
        checked.append(f"the trace claim is the one pinned, {found.trace_claim.hex()}")
        unchecked.append(
            "whether the trace claim was pinned before the second seed existed: the auditor "
            "who did both knows"
        )


def _list_unlinked(audit: ProofAudit, setup: ProofSetup) -> Iterator[str]:
    """What proofs about commitments in the log leave open, in sentences."""
    by_replay = "that needs the tensors" if audit.private else "a replay with --srs does that"
    yield f"KZG and BLAKE3 roots were not compared: {by_replay}"
    if setup.proof.every > 1:
        yield (
            f"whether the state before each step proven is the one to which the steps before it "
            f"led: of every {setup.proof.every} steps one has commitments, and nothing links a "
            "record to the one before"
        )


def _describe_batches(
    audit: ProofAudit,
    evidence: Evidence,
    found: _Findings,
    checked: list[str],
    unchecked: list[str],
) -> None:
    """What is known of where the batches came from, in sentences."""
    if found.owned and (found.proven or found.chances):
        checked.append("the batches of what was proven are those that the data's owner signed")
    elif found.owned and evidence.kzg:
        checked.append("the logged commitments to batches are those that the data's owner signed")
    elif audit.private:
        why = "were given" if audit.batches is None else "could be held against the log"
        unchecked.append(f"where the batches came from: no commitments of the data's owner {why}")


def _describe_task(audit: ProofAudit, evidence: Evidence) -> tuple[str, ...]:
    if audit.task_id is not None or evidence.task is None:
        return ()
    return ("whether this is the task agreed on: its id was taken from the run itself",)


def _assume(audit: ProofAudit, setup: ProofSetup, found: _Findings) -> tuple[Assumption, ...]:
    """What the verdict assumes beyond what every verdict by proofs does."""
    assumed = list(list_assumptions(*found.sampled))
    if found.named and audit.pin is None:
        detail = "whoever made this claim did not know which steps would be named"
        assumed.append(
            Assumption("predictable-sample", f"{detail}: no claim was pinned before (--claim)")
        )
    if setup.is_insecure:
        detail = f"whoever made the SRS {setup.proof.srs.hex()} forges no proofs: it is of no known"
        assumed.append(
            Assumption("insecure-srs", f"{detail} ceremony", accepted=audit.allow_insecure_srs)
        )
    return tuple(assumed)


def _report(
    evidence: Evidence,
    checks: list[Check],
    strength: Strength,
    found: _Findings | None = None,
    assumptions: tuple[Assumption, ...] = (),
) -> Report:
    # What is not listed is not counted either.
    structure = tuple(check for check in evidence.checks if check in checks)
    return make_report(
        replace(evidence, checks=structure),
        checks,
        strength,
        engine="ezkl",
        population=Segments(found.population if found else 0, 1),
        looked_at=tuple((step, step) for step in found.proven) if found else (),
        unit="step",
        randomness=found.randomness if found else None,
        traced=found.traced if found else None,
        assumptions=assumptions,
        rung="proof",
    )
