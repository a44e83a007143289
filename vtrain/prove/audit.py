"""``verify --mode proof``: an audit of sampled steps by their proofs.

Private: from what is public alone (task, graph, claim, logs, proofs).  Otherwise the auditor holds
the run's tensors as well: the structure check is whole, and the commitments of the steps are
computed from the tensors, so that it is known what the proofs speak of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vtrain.audit.plan import (
    Segments,
    compute_detections,
    draw,
    draw_randomness,
    given_randomness,
)
from vtrain.audit.structure import Evidence, FindingError, check_structure
from vtrain.errors import EncodingError, NotProducedError, RunError, VtrainError
from vtrain.prove.batches import index_batches, verify_batches
from vtrain.prove.ezkl_adapter import Verification, require_extra
from vtrain.prove.kzg import CommitKey
from vtrain.prove.proof_files import Statement as Item
from vtrain.prove.proof_files import read_proof_file
from vtrain.prove.runs import (
    ProofSetup,
    ReadyCircuit,
    SignedRun,
    StepDiffersError,
    StepSource,
    compute_parameters,
    expect,
    make_statement,
    prepare_circuit,
)
from vtrain.prove.srs import Progress
from vtrain.prove.step import BEFORE, STEP_CIRCUITS
from vtrain.prove.tile_runs import check_answer, make_audit
from vtrain.prove.verifier import commit_vector, verify
from vtrain.train.layout import RunPaths
from vtrain.wire.batches import SignedBatches
from vtrain.wire.bundle import ProofBundle, decode_bundle, encode_bundle, find_difference
from vtrain.wire.proof import KzgRecord
from vtrain.wire.report import Blame, Check, Randomness, Report, Strength, compute_verdict
from vtrain.wire.task import TaskSpec

PROOF_DOMAIN: Final = "proof steps"
"""Domain under which the steps to prove are drawn."""
_PUBLIC_CHECKS: Final = frozenset(
    {"claim", "task", "complete", "graph", "kzg_log", "kzg_records", "legality", "log", "records"}
)
"""The checks of the structure that need nothing but public files."""


def choose_steps(
    run: SignedRun,
    *,
    every: int,
    steps: Sequence[int] | None,
    sample: int | None,
    seed: bytes | None,
    random: Callable[[int], bytes] = os.urandom,
) -> tuple[tuple[int, ...], Randomness | None]:
    """The steps that an audit asks for, of those that are multiples of ``every``.

    Named ones as they are, else ``sample`` of them, drawn from the signed claim and ``seed`` or
    fresh randomness.  RunError for a step that is not there.
    """
    population = run.signed.claim.log_size // every
    if steps is not None:
        for step in steps:
            if not 1 <= step <= population * every or step % every:
                raise RunError(
                    f"proofs are of multiples of {every} up to {population * every}",
                    where=f"step {step}",
                )
        return tuple(sorted(set(steps))), None
    randomness = given_randomness(seed) if seed is not None else draw_randomness(random)
    count = 1 if sample is None else sample
    drawn = draw(randomness.value, run.signed, PROOF_DOMAIN, population, count)
    return tuple(sorted((index + 1) * every for index in drawn)), randomness


@dataclass(frozen=True)
class ProofAudit:
    """What to audit: which steps (see :func:`choose_steps`), and with what.

    ``setup`` makes the setup for the task, once that is known: :meth:`ProofSetup.for_task` with the
    auditor's own SRS, cache and limits.  ``private`` goes by commitments in the signed log alone.
    ``batches``: commitments to the batches that the data's ``owner`` (public key) signed.  An SRS
    of no ceremony makes the verdict inconclusive unless ``allow_insecure_srs``.
    """

    setup: Callable[[TaskSpec], ProofSetup]
    steps: Sequence[int] | None = None
    sample: int | None = None
    seed: bytes | None = None
    private: bool = False
    allow_insecure_srs: bool = False
    batches: SignedBatches | None = None
    owner: bytes = b""
    traces: tuple[bytes, int] | None = None
    """Of tiles: randomness and number of the steps drawn first; ``seed`` and ``sample`` are then of
    the statements about them."""
    task_id: bytes | None = None
    data: Path | None = None
    engine: str = "auto"
    threads: int = 0


def verify_proofs(
    run: Path,
    audit: ProofAudit,
    *,
    progress: Progress = lambda what, done, total: None,
    random: Callable[[int], bytes] = os.urandom,
) -> Report:
    """Audit the proofs of a run's steps; whatever ``run`` contains ends in a report.

    RunError for a run that is no folder, a step that is not there, a k that is not the task's;
    SrsError for a file that is no SRS; MissingExtraError.
    """
    if not run.is_dir():
        raise RunError("is not a run directory", where=str(run))
    if (audit.batches is None) != (not audit.owner):
        raise RunError("belong together", where="batches and owner")
    require_extra("ezkl")
    evidence = check_structure(
        run, task_id=audit.task_id, data=audit.data, threads=audit.threads, progress=progress
    )
    # What convicts is never left out, also where it was not to be looked for.
    checks = [
        check
        for check in evidence.checks
        if not audit.private or check.name in _PUBLIC_CHECKS or check.fault in ("solver", "task")
    ]
    chosen: tuple[int, ...] = ()
    randomness: Randomness | None = None
    proven: tuple[int, ...] = ()
    subject = _find_subject(run, evidence)
    examiner: _Examiner | None = None
    if isinstance(subject, str):
        checks.append(Check("proofs", "not_done", subject))
    else:
        try:
            setup = audit.setup(subject.task)
            examiner = _Examiner(subject, evidence, audit, setup, progress)
        except EncodingError as error:
            checks.append(Check("srs", "failed", error.message, error.where, "nobody"))
    every = 1
    chances = ""
    if examiner is None or isinstance(subject, str):
        pass
    elif examiner.setup.proof.circuit == "tiles":
        found, chances = examiner.examine_tiles()
        checks.extend(found)
    else:
        every = examiner.setup.proof.every if subject.task.kzg is not None else 1
        chosen, randomness = choose_steps(
            subject,
            every=every,
            steps=audit.steps,
            sample=audit.sample,
            seed=audit.seed,
            random=random,
        )
        checks.extend(examiner.examine(chosen))
        proven = tuple(examiner.proven)
    claim = evidence.signed.claim if evidence.signed else None
    last = evidence.records[-1] if evidence.records else None
    population = claim.log_size // every if claim else 0
    verdict = compute_verdict(tuple(checks))
    return Report(
        verdict=verdict,
        checks=tuple(checks),
        strength=_describe(audit, evidence, examiner, population, chances),
        randomness=randomness,
        detections=(
            compute_detections(Segments(population, 1), len(proven))
            if randomness is not None and proven
            else ()
        ),
        segments=tuple((step, step) for step in proven),
        engine="ezkl",
        task_id=evidence.task_id,
        run_id=claim.run_id if claim else b"",
        solver=claim.solver if claim else b"",
        steps=claim.log_size if claim else 0,
        root=last.state_root if last else b"",
        log_root=claim.log_root if claim else b"",
    )


def _find_subject(run: Path, evidence: Evidence) -> SignedRun | str:
    signed, task, graph = evidence.signed, evidence.task, evidence.graph
    if signed is None or task is None or graph is None or not evidence.records:
        return "there is no log of a known task that the solver signed"
    return SignedRun(RunPaths(run), signed, task, graph, evidence.records)


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
        self._ready: dict[str, ReadyCircuit | VtrainError] = {}
        self._source: StepSource | None = None
        self._owned: Mapping[int, tuple[bytes, ...]] | None = None
        self.setup: Final = setup
        self.proven: list[int] = []

    @property
    def knows_batches(self) -> bool:
        """Whether it is known what the data's owner signed for this task."""
        return self._owned is not None

    def _begin(self) -> list[Check]:
        """The checks of the SRS, and of what the data's owner signed."""
        checks = [self._judge_srs()]
        batches = self._audit.batches
        if batches is None:
            return checks
        try:
            verify_batches(batches, self._audit.owner, self._run.task)
        except VtrainError as error:
            return [*checks, Check("owner", "failed", error.message, error.where, "nobody")]
        self._owned = index_batches(batches)
        return [*checks, Check("owner", "passed", "signed the commitments to all of the batches")]

    def examine(self, steps: Sequence[int]) -> list[Check]:
        """The checks of the SRS and of each step's proof."""
        checks = self._begin()
        try:
            key = self.setup.open_key()
        except VtrainError as error:
            return [*checks, Check("proof", "not_done", error.message, error.where)]
        for done, step in enumerate(steps):
            self._progress("proofs", done, len(steps))
            checks.append(self._examine_step(step, key))
        self._progress("proofs", len(steps), len(steps))
        if not steps:
            checks.append(Check("proof", "not_done", "no step was asked for"))
        return checks

    def examine_tiles(self) -> tuple[list[Check], str]:
        """The checks of the proofs of sampled tiles, and what the verdict on them rests on."""
        audit = self._audit
        if audit.traces is None or audit.seed is None or audit.sample is None:
            raise RunError("of tiles needs the randomness and sizes of both draws", where="audit")
        setup, checks = self.setup, self._begin()
        second = (given_randomness(audit.seed).value, audit.sample)
        try:
            known = make_audit(self._run, setup, audit.traces, second)
            for step, logged in known.logged.items():
                if (self._owned or {}).get(step, logged.record.batch) != logged.record.batch:
                    reason = "the logged batch is not the one that its owner signed"
                    checks.append(Check("tiles", "failed", reason, f"step {step}", "nobody"))
                    return checks, ""
            found = check_answer(self._run, setup, known)
        except VtrainError as error:
            checks.append(Check("tiles", "failed", error.message, error.where, "nobody"))
            return checks, ""
        if not found.holds:
            checks.append(Check("tiles", "failed", found.reason, "proofs", "nobody"))
            return checks, ""
        checks.append(Check("tiles", "passed", f"all {audit.sample} statements drawn are shown"))
        return checks, known.chances.sentence

    def _judge_srs(self) -> Check:
        digest = self.setup.proof.srs.hex()
        if not self.setup.is_insecure:
            return Check("srs", "passed", f"{digest} is of a public ceremony")
        if self._audit.allow_insecure_srs:
            return Check("srs", "passed", f"{digest} is insecure, which was allowed")
        return Check(
            "srs",
            "failed",
            f"{digest} is of no known ceremony: whoever made it can forge proofs",
            fault="nobody",
        )

    def _examine_step(self, step: int, key: CommitKey) -> Check:
        place = f"step {step}"
        try:
            found = self._check_proof(step, key)
        except StepDiffersError as error:
            return Check("replay", "failed", error.message, error.where, "solver")
        except FindingError as found_wrong:
            return Check("kzg", "failed", found_wrong.detail, place, found_wrong.fault)
        except VtrainError as error:
            return Check("proof", "failed", error.message, error.where or place, "nobody")
        if not found.holds:
            return Check(
                "proof", "failed", f"does not show the step: {found.reason}", place, "nobody"
            )
        self.proven.append(step)
        return Check("proof", "passed", "shows the step", place)

    def _check_proof(self, step: int, key: CommitKey) -> Verification:
        data = read_proof_file(self._run.paths.root, Item("step", step))
        bundle = decode_bundle(data)
        if encode_bundle(bundle) != data:
            raise EncodingError("is not the encoding of the bundle that it describes")
        pinned, name = self.setup.proof.circuits, bundle.statement.circuit_name
        if name not in STEP_CIRCUITS or (pinned and name not in pinned):
            return Verification(False, f"circuit {name!r} is none that the task allows")
        ready = self._prepare(name)
        expected = make_statement(self._run, self.setup, ready, step)
        if wrong := find_difference(bundle.statement, expected):
            return Verification(False, f"{wrong} is not that of this step")
        return self._verify_bundle(bundle, ready, step, key)

    def _prepare(self, name: str) -> ReadyCircuit:
        """A circuit with its key; what cannot be had is not tried again for the next step."""
        if name not in self._ready:
            try:
                self._ready[name] = prepare_circuit(
                    self._run.graph, self.setup, name, proving=False, progress=self._progress
                )
            except VtrainError as error:
                self._ready[name] = error
        found = self._ready[name]
        if isinstance(found, VtrainError):
            raise found
        return found

    def _verify_bundle(
        self, bundle: ProofBundle, ready: ReadyCircuit, step: int, key: CommitKey
    ) -> Verification:
        record = self._find_record(step)
        if record is None and (self._audit.private or self._run.task.kzg is not None):
            raise NotProducedError("there are no signed commitments that it could be of")
        if self._owned is not None and (record is None or self._owned.get(step) != record.batch):
            return Verification(False, "the logged batch is not the one that its owner signed")
        commitments = {} if record is None else expect(record)
        if not self._audit.private:
            computed = self._compute(step, key)
            if record is not None:
                self._compare(record, commitments, computed)
            commitments = computed
        return verify(
            ready.circuit,
            ready.pinned,
            ready.keys,
            bundle.proof,
            expected=commitments,
            parameters=compute_parameters(self._run.graph, self._run.records[step - 1]),
            commit_key=key,
            limits=self.setup.limits,
        )

    def _compare(
        self, record: KzgRecord, logged: Mapping[str, bytes], computed: Mapping[str, bytes]
    ) -> None:
        """FindingError unless the logged commitments are those to the tensors of the run."""
        wrong = next((name for name in computed if computed[name] != logged.get(name)), None)
        if wrong is None:
            return
        of_task = record.step == 1 and wrong.split()[0] == BEFORE
        fault: Blame = "task" if of_task else "solver"
        raise FindingError(f"the logged commitment of {wrong} is of other tensors", fault=fault)

    def _find_record(self, step: int) -> KzgRecord | None:
        return next((item for item in self._evidence.kzg or () if item.step == step), None)

    def _compute(self, step: int, key: CommitKey) -> dict[str, bytes]:
        """The commitments, from tensors of our own."""
        evidence = self._evidence
        if evidence.samples is None:
            raise NotProducedError("needs the samples: without them, audit with private")
        if self._source is None:
            self._source = StepSource(
                self._run,
                self.setup.proof.usable,
                engine=self._audit.engine,
                threads=self._audit.threads,
                samples=evidence.samples,
                checkpoints=evidence.checkpoints,
            )
        values = self._source.values(step)
        return {name: commit_vector(key, column) for name, column in values.given.items()}


def _describe(
    audit: ProofAudit,
    evidence: Evidence,
    examiner: _Examiner | None,
    population: int,
    chances: str,
) -> Strength:
    checked: list[str] = []
    unchecked: list[str] = []
    if audit.task_id is None and evidence.task is not None:
        unchecked.append("whether this is the task agreed on: its id was taken from the run itself")
    if examiner is None:
        unchecked.append("every step: no proof was looked at")
        return Strength((), tuple(unchecked))
    proof, proven = examiner.setup.proof, examiner.proven
    if chances:
        checked.append(f"statements about tiles of sampled steps: {chances}")
    if proven:
        shown = ", ".join(map(str, proven[:5])) + (" ..." if len(proven) > 5 else "")
        checked.append(
            f"{len(proven)} of {population} steps that can be proven, each whole, by ZK proof "
            f"(steps {shown}): forward, loss, backward and update as the law has them"
        )
    if audit.private:
        if proven or chances:
            checked.append("each proof is of the commitments in the signed log")
        if examiner.knows_batches:
            checked.append("batches of the proven steps are those that the data's owner signed")
        else:
            unchecked.append("where the batches came from: no commitments of the data's owner")
        unchecked.append("KZG and BLAKE3 roots were not compared: that needs the tensors")
    elif chances:
        unchecked.append("KZG and BLAKE3 roots were not compared: a replay with --srs does that")
    elif proven:
        checked.append("each proof is of the tensors in the run, whose BLAKE3 roots are signed")
    unchecked.append(
        "KZG commitments are not blinded: tensors of few possible values can be guessed"
    )
    if examiner.setup.is_insecure:
        unchecked.append(f"INSECURE SRS {proof.srs.hex()}: whoever made it can forge every proof")
    else:
        unchecked.append(f"that nobody knows the secret of the ceremony's SRS {proof.srs.hex()}")
    if not proof.circuits:
        unchecked.append("the task pins no circuits: they follow from its graph and this version")
    if audit.steps is not None:
        unchecked.append("the steps were named, not drawn: whoever named them chose what is shown")
    if len(proven) < population and not chances:
        unchecked.append(f"the arithmetic of {population - len(proven)} steps without a proof")
    unchecked.append("ezkl, halo2 and the circuits themselves, which are trusted (docs/proofs.md)")
    return Strength(tuple(checked), tuple(unchecked))
