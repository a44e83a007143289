"""Proofs of a run's whole steps: from a run directory to proof bundles.

A statement about a step is of what its circuit is given (state before, batch, state after, as
columns of integers: ``vtrain.commit.kzg_layout``) and of its parameters (learning rate and loss).
The solver, and an auditor who holds the tensors, compute them here from checkpoints; any other
auditor has the commitments from the run's log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.commit.hiding import KeyFinder, derive_elements, identify_key
from vtrain.commit.kzg_layout import batch_vectors, state_vectors
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import CircuitError, EncodingError, NotProducedError, RunError, VtrainError
from vtrain.ops import TABLE
from vtrain.prove.backend.cost import estimate, require_fits
from vtrain.prove.backend.ezkl import EZKL_VERSION, Limits
from vtrain.prove.backend.keys import Keys, load_keys, load_verifying_key
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit, pin
from vtrain.prove.backend.srs import CEREMONY, Progress, identify_srs
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.openings import Openings
from vtrain.prove.probe import draw_locally, probe_step_circuit
from vtrain.prove.proof_files import Item
from vtrain.prove.prover import prove
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS, RATE
from vtrain.prove.steps.circuits import STEP_CIRCUITS, build_step_circuit
from vtrain.prove.verifier import commit_given
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import Samples
from vtrain.train import signed
from vtrain.train.data import compute_samples_root, gather_batch, read_samples
from vtrain.train.layout import RunPaths
from vtrain.wire.bundle import ProofBundle, Statement, encode_bundle
from vtrain.wire.claim import SignedClaim
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import KzgRecord, ProofSpec
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.task import TaskSpec

Array = npt.NDArray[Any]
State = Mapping[str, Array]

_quiet: Final[Progress] = lambda what, done, total: None  # noqa: E731 - named for the signatures


@dataclass(frozen=True)
class SignedRun:
    """What a claim signs of a run, each part held against it: all that is public of a run.

    The graph is legal and of a size that this machine takes on.  Whether graph, log and task belong
    together as the law has it is for the structure check.
    """

    paths: RunPaths
    signed: SignedClaim
    task: TaskSpec
    graph: StepGraph
    records: tuple[StepRecord, ...]


def read_run(run: Path) -> SignedRun:
    """Claim, task, graph and log of a run; NotProducedError, EncodingError, SignatureError, and
    errors of :func:`vtrain.train.signed.read_legal_graph`."""
    paths = RunPaths(run)
    claim = signed.read_claim(paths)
    task = signed.read_task(paths)
    if compute_task_id(task) != claim.claim.task_id:
        raise EncodingError("is not the task that the signed claim is about", where=str(paths.task))
    graph = signed.read_legal_graph(paths, task)
    records = tuple(decode_record(leaf) for leaf in signed.read_leaves(paths, claim.claim))
    return SignedRun(paths, claim, task, graph, records)


@dataclass(frozen=True)
class StepValues:
    """What a proof of one step speaks of: columns by name, what hides each, and what the verifier
    knows.  ``keys`` are the ids of the keys behind ``before``, ``batch`` and ``after``."""

    step: int
    given: Mapping[str, Array]
    hiding: Mapping[str, Sequence[int]]
    parameters: Mapping[str, Ints]
    keys: Mapping[str, bytes]


def compute_parameters(graph: StepGraph, record: StepRecord) -> dict[str, Ints]:
    """Learning rate (mantissa) and loss of the step that ``record`` is of, each of shape [1]."""
    schedule = graph.nodes[graph.find("schedule")]
    rate = TABLE["schedule"].law(schedule.attrs, [np.asarray(record.step - 1, dtype=np.int64)])
    return {
        RATE: np.asarray([int(rate)], dtype=object),
        LOSS: np.asarray([record.loss], dtype=object),
    }


def name_columns(vectors: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Columns under the names that circuits give them: "before", or "before 0", "before 1" ..."""
    named = {}
    for name, columns in vectors.items():
        for index, column in enumerate(columns):
            named[name if len(columns) == 1 else f"{name} {index}"] = column
    return named


def expect(record: KzgRecord) -> dict[str, bytes]:
    """The commitments to the given columns of a step, as its record has them."""
    return name_columns({BEFORE: record.before, BATCH: record.batch, AFTER: record.after})


def require_logged_keys(run: SignedRun, step: int, ids: Mapping[str, bytes]) -> KzgRecord:
    """The record of ``step``; RunError unless it has the ``ids`` of the keys that were found.

    NotProducedError where nothing is logged of the step.
    """
    record = signed.read_kzg_record(run.paths, run.task, run.signed.claim, step)
    logged = {BEFORE: record.before_key, BATCH: record.batch_key, AFTER: record.after_key}
    for name, found in logged.items():
        if ids[name] != found:
            raise RunError(
                f"the key of {name} at step {step} follows from other secrets than those that the "
                "run was logged with: put back the file",
                where=str(run.paths.hiding),
            )
    return record


class StepDiffersError(VtrainError):
    """A step done again is not the one in the signed log."""

    code = "step-differs"
    fault = "solver"


class StepSource:
    """Computes statements from a run's checkpoints and samples.  Not thread-safe.

    Whoever uses it redoes the steps between a checkpoint and the step asked for.
    """

    def __init__(
        self,
        run: SignedRun,
        proof: ProofSpec,
        hiding: Hiding,
        *,
        data: Path | None = None,
        engine: str = "auto",
        threads: int = 0,
        samples: Samples | None = None,
        checkpoints: Collection[int] | None = None,
    ) -> None:
        """``hiding`` is what is known of the run's secrets.  ``data`` is the sample table of a run
        without it, or else ``samples`` are the samples themselves; ``checkpoints`` are those to
        begin from, all that are there unless given."""
        self._run, self._usable, self._checkpoints = run, proof.usable, checkpoints
        secrets = None if run.task.kzg is None else hiding
        task = run.signed.claim.task_id
        self._keys = KeyFinder(task, proof, run.graph, secrets, threads)
        self._samples = _read_samples(run, data) if samples is None else samples
        self._session: Session = open_session(engine, run.graph, self._samples, threads=threads)
        self._standing: int | None = None
        self._threads = threads

    def state(self, step: int) -> State:
        """The state after ``step`` steps, redone from the last checkpoint before.

        NotProducedError where there is none; StepDiffersError.
        """
        if (
            self._standing is None
            or self._standing > step
            or any(self._standing < found <= step for found in self._list_checkpoints())
        ):
            self._load(step)
        while self._standing is not None and self._standing < step:
            self._redo(self._standing + 1)
        return self._session.read_state()

    def _redo(self, step: int) -> None:
        """Do the session's next step, which is this one."""
        self._standing = None
        if self._session.step() != self._run.records[step - 1]:
            raise StepDiffersError(
                "was done again, and is not the step logged", where=f"step {step}"
            )
        self._standing = step

    def _list_checkpoints(self) -> Collection[int]:
        found = self._checkpoints
        return self._run.paths.list_checkpoints() if found is None else found

    def _load(self, step: int) -> None:
        paths, task = self._run.paths, self._run.task
        for found in sorted(self._list_checkpoints(), reverse=True):
            if found > step:
                continue
            root = self._run.records[found - 1].state_root if found else task.initial_state_root
            state = signed.read_state(paths, self._run.graph, found, root, self._threads)
            self._session.load_state(state)
            self._standing = found
            return
        raise NotProducedError(f"has no checkpoint before step {step + 1}", where=str(paths.root))

    def values(self, step: int) -> StepValues:
        """The statement about ``step`` (from 1)."""
        run = self._run
        if not 1 <= step <= len(run.records):
            raise RunError(
                f"is none of this run, which has the steps 1 to {len(run.records)}",
                where=f"step {step}",
            )
        before = self.state(step - 1)
        x, y = gather_batch(self._samples, run.task.seed, run.task.batch, step)
        after = self.state(step)
        columns = {
            BEFORE: state_vectors("step", run.graph, before, self._usable),
            BATCH: batch_vectors("step", x, y, self._usable),
            AFTER: state_vectors("step", run.graph, after, self._usable),
        }
        keys = self._find_keys(step, before, (x, y), after)
        hiding = {
            name: [derive_elements(keys[name], column) for column in range(len(vectors))]
            for name, vectors in columns.items()
        }
        return StepValues(
            step,
            name_columns(columns),
            name_columns(hiding),
            compute_parameters(run.graph, run.records[step - 1]),
            {name: identify_key(key) for name, key in keys.items()},
        )

    def _find_keys(
        self, step: int, before: State, batch: tuple[Array, Array], after: State
    ) -> dict[str, bytes]:
        """The keys of the state before ``step`` (from 1), of its batch and of the state after it.

        NotProducedError where one is not known.
        """
        found = {
            BEFORE: self._keys.of_state(step - 1, before),
            BATCH: self._keys.of_batch(step, *batch),
            AFTER: self._keys.of_state(step, after),
        }
        known = {name: key for name, key in found.items() if key is not None}
        for name in found:
            if name not in known:
                raise NotProducedError(
                    "the key behind its commitments is not known: the solver has it in hiding.key",
                    where=f"step {step}: {name}",
                )
        return known

    def keys(self, step: int) -> dict[str, bytes]:
        """The keys of the state before ``step`` (from 1), of its batch and of the state after it.

        NotProducedError where one is not known; StepDiffersError.
        """
        before = self.state(step - 1)
        batch = gather_batch(self._samples, self._run.task.seed, self._run.task.batch, step)
        return self._find_keys(step, before, batch, self.state(step))

    def outputs(self, step: int) -> tuple[dict[int, Array], dict[str, bytes]]:
        """The outputs of all nodes of ``step`` (from 1), by the nodes' index, and the keys of the
        state before it, of its batch and of the state after it.

        StepDiffersError where they are not those of the step logged; NotProducedError for a key
        that is not known.
        """
        run = self._run
        if not 1 <= step <= len(run.records):
            raise RunError(
                f"is none of this run, which has the steps 1 to {len(run.records)}",
                where=f"step {step}",
            )
        before = self.state(step - 1)
        nodes = [index for index, node in enumerate(run.graph.nodes) if node.outputs]
        outputs = dict(zip(nodes, self._session.evaluate_all(nodes), strict=True))
        batch = gather_batch(self._samples, run.task.seed, run.task.batch, step)
        self._redo(step)
        return outputs, self._find_keys(step, before, batch, self._session.read_state())


def _read_samples(run: SignedRun, data: Path | None) -> Samples:
    path = data or run.paths.samples
    samples = read_samples(path, run.task.data, root=None if data else run.paths.root)
    if compute_samples_root(samples) != run.task.data.root:
        raise EncodingError("are not the samples that the task pins", where=str(path))
    return samples


@dataclass(frozen=True)
class ProofSetup:
    """What both sides of a proof need: the specification, the SRS, where keys are kept, limits.

    ``memory`` bounds what a circuit may take; larger ones are refused with the estimate.
    """

    proof: ProofSpec
    srs: Path
    cache: Path
    limits: Limits
    memory: int

    @staticmethod
    def for_task(
        task: TaskSpec, srs: Path, cache: Path, limits: Limits, memory: int, k: int | None = None
    ) -> ProofSetup:
        """As the task pins it, or, for a task that pins nothing, over any SRS, at its k or ``k``.

        RunError for a ``k`` that is not the task's; SrsError for a file that is no SRS,
        EncodingError for one that is not the task's.
        """
        proof, found = task.proof, identify_srs(srs)
        if proof is None:
            proof = ProofSpec("step", found.sha256, k or found.k, BLINDING, 1, (), {})
        elif k not in (None, proof.k):
            raise RunError(f"the task has {proof.k}: give that k, or none", where=f"k {k}")
        setup = ProofSetup(proof, srs, cache, limits, memory)
        setup._require(found.sha256)
        return setup

    @property
    def is_insecure(self) -> bool:
        """Whether the SRS is of no ceremony; one for a larger k serves too."""
        return self.proof.srs.hex() not in CEREMONY.values()

    def _require(self, sha256: bytes) -> None:
        if sha256 != self.proof.srs:
            raise EncodingError(
                f"is the SRS {sha256.hex()}, the task has {self.proof.srs.hex()}",
                where=str(self.srs),
            )

    def open_key(self) -> CommitKey:
        """The commit key; EncodingError when the file is not the SRS that the task pins, SrsError
        when it is too small for its k."""
        key = CommitKey(self.srs, self.proof.k, self.proof.blinding, threads=self.limits.threads)
        self._require(key.srs.sha256)
        return key


@dataclass(frozen=True)
class ReadyCircuit:
    """A circuit with its pinned form and keys."""

    name: str
    circuit: Circuit
    pinned: PinnedCircuit
    keys: Keys


def require_blinding(proof: ProofSpec) -> None:
    """CircuitError unless commitments are made for the blinding factors that circuits have."""
    if proof.blinding != BLINDING:
        raise CircuitError(f"circuits have {BLINDING} blinding factors", where="proof.blinding")


def prepare_circuit(
    graph: StepGraph,
    setup: ProofSetup,
    name: str,
    *,
    proving: bool,
    values: StepValues | None = None,
    progress: Progress = _quiet,
    cancelled: threading.Event | None = None,
) -> ReadyCircuit:
    """Build a step circuit and make or find its keys: see :func:`make_ready`.

    Before keys are made the circuit is tried (``vtrain.prove.probe``) on the step that ``values``
    are of, if any, and on others; CircuitError when it is at fault.
    """
    circuit = build_step_circuit(graph, setup.proof.k, name)

    def probe() -> None:
        real = None if values is None else (values.given, values.parameters)
        probe_step_circuit(graph, circuit, name, real, progress=progress, cancelled=cancelled)

    return make_ready(
        name,
        circuit,
        setup,
        proving=proving,
        check=probe,
        progress=progress,
        cancelled=cancelled,
    )


def make_ready(
    name: str,
    circuit: Circuit,
    setup: ProofSetup,
    *,
    proving: bool,
    check: Callable[[], None] = lambda: None,
    progress: Progress = _quiet,
    cancelled: threading.Event | None = None,
) -> ReadyCircuit:
    """Pin a circuit and make or find its keys; ``check`` is called before they are made.

    CircuitError when it is too large, with the estimate, before any work starts, or is not one that
    the task pins.
    """
    require_blinding(setup.proof)
    require_fits(estimate(circuit, setup.proof.k), setup.memory)
    pinned = pin(circuit, setup.proof.k)
    agreed = setup.proof.circuits.get(name)
    if setup.proof.circuits and agreed is None:
        raise CircuitError("is none that the task pins", where=f"circuit {name}")
    if agreed is not None and agreed.circuit != pinned.digest:
        raise CircuitError(
            "is not the circuit that the task pins: "
            f"its digest is {pinned.digest.hex()}, the task has {agreed.circuit.hex()}",
            where=f"circuit {name}",
        )
    load = load_keys if proving else load_verifying_key
    keys = load(
        pinned,
        setup.srs,
        setup.cache,
        setup.limits,
        check=check,
        progress=progress,
        cancelled=cancelled,
    )
    if agreed is not None and agreed.key != keys.vk_digest:
        raise CircuitError(
            "its key is not the one that the task pins: "
            f"its digest is {keys.vk_digest.hex()}, the task has {agreed.key.hex()}",
            where=f"circuit {name}",
        )
    return ReadyCircuit(name, circuit, pinned, keys)


def make_statement(run: SignedRun, setup: ProofSetup, ready: ReadyCircuit, step: int) -> Statement:
    """What a proof of ``step`` by this circuit says it is of."""
    return describe_step(run, setup, step, ready.name, ready.pinned.digest, ready.keys.vk_digest)


def describe_step(
    run: SignedRun, setup: ProofSetup, step: int, name: str, circuit: bytes, key: bytes
) -> Statement:
    """What a proof of ``step`` says it is of: a circuit of this name, these digests."""
    claim = run.signed.claim
    parameters = compute_parameters(run.graph, run.records[step - 1])
    return Statement(
        kind="step",
        task_id=claim.task_id,
        run_id=claim.run_id,
        claim=compute_claim_digest(claim),
        step=step,
        name="step",
        index=0,
        circuit_name=name,
        circuit=circuit,
        key=key,
        srs=setup.proof.srs,
        insecure=setup.is_insecure,
        k=setup.proof.k,
        ezkl=EZKL_VERSION,
        parameters={name: tuple(map(int, value)) for name, value in parameters.items()},
    )


class StepProver:
    """Proves steps of one run; circuits and keys are made once, states are redone in order."""

    def __init__(
        self,
        run: SignedRun,
        setup: ProofSetup,
        *,
        data: Path | None = None,
        engine: str = "auto",
    ) -> None:
        """Refuses at once what cannot be proven: an SRS, a circuit or a size that does not fit."""
        self._run = run
        self._setup = setup
        self._key = setup.open_key()
        self._ready: dict[str, ReadyCircuit] = {}
        self._allowed = [
            name
            for name in STEP_CIRCUITS
            if not setup.proof.circuits or name in setup.proof.circuits
        ]
        if setup.proof.circuit != "step" or not self._allowed:
            raise CircuitError("the task pins no circuit of whole steps", where="task.proof")
        circuit = build_step_circuit(self._run.graph, setup.proof.k, self._allowed[0])
        require_fits(estimate(circuit, setup.proof.k), setup.memory)
        threads = setup.limits.threads
        self._source = StepSource(
            self._run,
            setup.proof,
            signed.read_hiding_of(run.paths, None),
            data=data,
            engine=engine,
            threads=threads,
        )

    def prove(
        self,
        item: Item,
        openings: Openings,
        progress: Progress = _quiet,
        cancelled: threading.Event | None = None,
    ) -> bytes:
        """The encoded proof bundle of one whole step; ``openings`` counts what it opens.

        CircuitError when no circuit holds of it, which an honest step of a supported model never
        meets, or when the log has other commitments; RunError when what hides them is not what the
        run was logged with; OpeningsError when what hides the step is used
        up; ProverError.
        """
        if item.kind != "step":
            raise CircuitError("is no whole step", where=f"statement {item.index}")
        step = item.step
        values = self._source.values(step)
        if self._run.task.kzg is not None:
            require_logged_keys(self._run, step, values.keys)
        ready = self._choose(values, progress, cancelled)
        statement = make_statement(self._run, self._setup, ready, step)
        threads = self._setup.limits.threads
        logged = commit_given(self._key, values.given, values.hiding, threads=threads).values()
        proof = prove(
            ready.circuit,
            ready.pinned,
            ready.keys,
            given=values.given,
            hiding=values.hiding,
            count=lambda: openings(logged),
            parameters=values.parameters,
            srs=self._setup.srs,
            commit_key=self._key,
            limits=self._setup.limits,
            claim=statement.claim,
            hash=self._setup.proof.hash,
            progress=progress,
            cancelled=cancelled,
        )
        return encode_bundle(ProofBundle(statement, proof.data))

    def _choose(
        self, values: StepValues, progress: Progress, cancelled: threading.Event | None
    ) -> ReadyCircuit:
        """The smallest circuit that holds of the step."""
        broken: list[str] = []
        for name in self._allowed:
            circuit = build_step_circuit(self._run.graph, self._setup.proof.k, name)
            vectors = circuit.assign(values.given, values.parameters, draw_locally(circuit))
            broken = circuit.find_broken(vectors)
            if broken:
                continue
            if name not in self._ready:
                self._ready[name] = prepare_circuit(
                    self._run.graph,
                    self._setup,
                    name,
                    proving=True,
                    values=values,
                    progress=progress,
                    cancelled=cancelled,
                )
            return self._ready[name]
        raise CircuitError(
            f"no circuit of {', '.join(self._allowed)} holds of it: {', '.join(broken[:3])}",
            where=f"step {values.step}",
        )
