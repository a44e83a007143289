"""A run as its proofs see it: what its claim signs, and the values of its steps.

The solver, and an auditor who holds the tensors, compute the columns of a step here from
checkpoints; any other auditor has the commitments to them from the run's log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from vtrain.commit.hiding import KeyFinder, derive_elements, identify_key
from vtrain.commit.kzg_layout import batch_vectors, state_vectors
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError, NotProducedError, RunError, VtrainError
from vtrain.prove.circuit.values import Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE
from vtrain.prove.steps.statement import compute_parameters, name_columns
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import Samples
from vtrain.train import signed
from vtrain.train.data import compute_samples_root, gather_batch, read_samples
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import SignedClaim
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import KzgRecord, ProofSpec
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.task import TaskSpec

Array = npt.NDArray[Any]
State = Mapping[str, Array]


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

    def outputs(
        self, step: int, nodes: Collection[int]
    ) -> tuple[dict[int, Array], dict[str, bytes]]:
        """The outputs of these nodes of ``step`` (from 1), by their index, and the keys of the
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
        wanted = sorted(nodes)
        outputs = dict(zip(wanted, self._session.evaluate_all(wanted), strict=True))
        batch = gather_batch(self._samples, run.task.seed, run.task.batch, step)
        self._redo(step)
        return outputs, self._find_keys(step, before, batch, self._session.read_state())


def _read_samples(run: SignedRun, data: Path | None) -> Samples:
    path = data or run.paths.samples
    samples = read_samples(path, run.task.data, root=None if data else run.paths.root)
    if compute_samples_root(samples) != run.task.data.root:
        raise EncodingError("are not the samples that the task pins", where=str(path))
    return samples
