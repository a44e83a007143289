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
from vtrain.audit.structure import Evidence, check_structure
from vtrain.errors import EncodingError, NotProducedError, RunError
from vtrain.prove.ezkl_adapter import Verification
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
from vtrain.prove.srs import Progress, Srs
from vtrain.prove.step import STEP_CIRCUITS
from vtrain.prove.verifier import commit_vector, verify
from vtrain.train.layout import RunPaths
from vtrain.wire.bundle import ProofBundle, decode_bundle, encode_bundle, find_difference
from vtrain.wire.proof import KzgRecord
from vtrain.wire.report import Check, Randomness, Report, Strength, compute_verdict

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

    ``private`` goes by commitments in the signed log alone.  ``batches``: commitments to batches
    that the data's owner signed, by step.  An SRS of no ceremony makes the verdict
    inconclusive unless ``allow_insecure_srs``.
    """

    setup: ProofSetup
    steps: Sequence[int] | None = None
    sample: int | None = None
    seed: bytes | None = None
    private: bool = False
    allow_insecure_srs: bool = False
    batches: Mapping[int, tuple[bytes, ...]] | None = None
    task_id: bytes | None = None
    data: Path | None = None
    engine: str = "auto"


def verify_proofs(
    run: Path,
    audit: ProofAudit,
    *,
    progress: Progress = lambda what, done, total: None,
    random: Callable[[int], bytes] = os.urandom,
) -> Report:
    """Audit the proofs of a run's steps; whatever ``run`` contains ends in a report.

    RunError for a run that is no folder or a step that is not there; errors of ``setup`` as they are.
    """
    if not run.is_dir():
        raise RunError("is not a run directory", where=str(run))
    evidence = check_structure(run, task_id=audit.task_id, data=audit.data, progress=progress)
    checks = [
        check for check in evidence.checks if not audit.private or check.name in _PUBLIC_CHECKS
    ]
    chosen: tuple[int, ...] = ()
    randomness: Randomness | None = None
    proven: tuple[int, ...] = ()
    subject = _find_subject(run, evidence)
    every = 1
    if isinstance(subject, str):
        checks.append(Check("proofs", "not_done", subject))
    else:
        every = audit.setup.proof.every if _logs(subject) else 1
        chosen, randomness = choose_steps(
            subject,
            every=every,
            steps=audit.steps,
            sample=audit.sample,
            seed=audit.seed,
            random=random,
        )
        examiner = _Examiner(subject, evidence, audit, progress)
        checks.extend(examiner.examine(chosen))
        proven = tuple(examiner.proven)
    claim = evidence.signed.claim if evidence.signed else None
    last = evidence.records[-1] if evidence.records else None
    population = claim.log_size // every if claim else 0
    verdict = compute_verdict(tuple(checks))
    return Report(
        verdict=verdict,
        checks=tuple(checks),
        strength=_describe(audit, evidence, proven, population, randomness),
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


def _logs(run: SignedRun) -> bool:
    """Whether the run logs KZG commitments."""
    return "kzg" in run.task.commitments


class _Examiner:
    """Checks the proofs of one run."""

    def __init__(
        self, run: SignedRun, evidence: Evidence, audit: ProofAudit, progress: Progress
    ) -> None:
        self._run, self._evidence, self._audit, self._progress = run, evidence, audit, progress
        self._ready: dict[str, ReadyCircuit] = {}
        self._source: StepSource | None = None
        self.proven: list[int] = []

    def examine(self, steps: Sequence[int]) -> list[Check]:
        """The checks of the SRS and of each step's proof."""
        setup = self._audit.setup
        insecure = not Srs(setup.proof.k, setup.proof.srs).is_ceremony
        checks = [self._judge_srs(insecure)]
        key = setup.open_key()
        for done, step in enumerate(steps):
            self._progress("proofs", done, len(steps))
            checks.append(self._examine_step(step, key))
        self._progress("proofs", len(steps), len(steps))
        if not steps:
            checks.append(Check("proof", "not_done", "no step was asked for"))
        return checks

    def _judge_srs(self, insecure: bool) -> Check:
        digest = self._audit.setup.proof.srs.hex()
        if not insecure:
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
            return Check("proof", "failed", error.message, error.where, "solver")
        except (NotProducedError, EncodingError) as error:
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
        setup = self._audit.setup
        name = bundle.statement.circuit_name
        if name not in STEP_CIRCUITS or (setup.proof.circuits and name not in setup.proof.circuits):
            return Verification(False, f"circuit {name!r} is none that the task allows")
        if name not in self._ready:
            self._ready[name] = prepare_circuit(
                self._run.graph, setup, name, proving=False, progress=self._progress
            )
        ready = self._ready[name]
        expected = make_statement(self._run, setup, ready, step)
        if wrong := find_difference(bundle.statement, expected):
            return Verification(False, f"{wrong} is not that of this step")
        return self._verify_bundle(bundle, ready, step, key)

    def _verify_bundle(
        self, bundle: ProofBundle, ready: ReadyCircuit, step: int, key: CommitKey
    ) -> Verification:
        record = self._find_record(step)
        if record is not None:
            commitments = expect(record)
            owned = (self._audit.batches or {}).get(step)
            if owned is not None and owned != record.batch:
                return Verification(False, "the logged batch is not the one that its owner signed")
        if not self._audit.private:
            computed = self._compute(step, key)
            if record is not None and computed != commitments:
                name = next(name for name in computed if computed[name] != commitments.get(name))
                return Verification(False, f"the logged commitment of {name} is of other tensors")
            commitments = computed
        elif record is None:
            raise NotProducedError("the run logs no commitments that a private audit could use")
        return verify(
            ready.circuit,
            ready.pinned,
            ready.keys,
            bundle.proof,
            expected=commitments,
            parameters=compute_parameters(self._run.graph, self._run.records[step - 1]),
            commit_key=key,
            limits=self._audit.setup.limits,
        )

    def _find_record(self, step: int) -> KzgRecord | None:
        return next((item for item in self._evidence.kzg or () if item.step == step), None)

    def _compute(self, step: int, key: CommitKey) -> dict[str, bytes]:
        """The commitments, from tensors of our own."""
        audit = self._audit
        if self._source is None:
            self._source = StepSource(
                self._run,
                audit.setup.proof.usable,
                data=audit.data,
                engine=audit.engine,
                threads=audit.setup.limits.threads,
            )
        values = self._source.values(step)
        return {name: commit_vector(key, column) for name, column in values.given.items()}


def _describe(
    audit: ProofAudit,
    evidence: Evidence,
    proven: tuple[int, ...],
    population: int,
    randomness: Randomness | None,
) -> Strength:
    checked, unchecked = [], []
    proof = audit.setup.proof
    if proven:
        shown = ", ".join(map(str, proven[:5])) + (" ..." if len(proven) > 5 else "")
        checked.append(
            f"{len(proven)} of {population} steps that can be proven, each whole, by ZK proof "
            f"(steps {shown}): forward, loss, backward and update as the law has them"
        )
    if audit.private:
        checked.append("each proof is of the commitments in the signed log")
        if audit.batches:
            checked.append("batches of the proven steps are those that the data's owner signed")
        else:
            unchecked.append("where the batches came from: no commitments of the data's owner")
        unchecked.append("KZG and BLAKE3 roots were not compared: that needs the tensors")
    elif proven:
        checked.append("each proof is of the tensors in the run, whose BLAKE3 roots are signed")
    unchecked.append(
        "KZG commitments are not blinded: tensors of few possible values can be guessed and compared"
    )
    if not Srs(proof.k, proof.srs).is_ceremony:
        unchecked.append(f"INSECURE SRS {proof.srs.hex()}: whoever made it can forge every proof")
    else:
        unchecked.append(f"that nobody knows the secret of the ceremony's SRS {proof.srs.hex()}")
    if not proof.circuits:
        unchecked.append("the task pins no circuits: they follow from its graph and this version")
    if audit.steps is not None:
        unchecked.append("the steps were named, not drawn: whoever named them chose what is shown")
    if len(proven) < population:
        unchecked.append(f"the arithmetic of {population - len(proven)} steps without a proof")
    if audit.task_id is None and evidence.task is not None:
        unchecked.append("whether this is the task agreed on: its id was taken from the run itself")
    unchecked.append("ezkl, halo2 and the circuits themselves, which are trusted (docs/proofs.md)")
    return Strength(tuple(checked), tuple(unchecked))
