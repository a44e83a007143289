"""The auditor's side of proofs of whole steps: what one proof in a run's files shows.

Read from the top: the bundle, what it must be of, the circuit and its key, what each given column
is committed to, and the proof itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vtrain.audit.structure import FindingError
from vtrain.errors import EncodingError, NotProducedError, VtrainError
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.srs import Progress
from vtrain.prove.proof_files import Item, naming, proof_path, read_proof_file
from vtrain.prove.runs import SignedRun, StepSource
from vtrain.prove.setup import ProofSetup, ReadyCircuit
from vtrain.prove.steps.builder import BEFORE
from vtrain.prove.steps.circuits import STEP_CIRCUITS
from vtrain.prove.steps.prepare import prepare_circuit
from vtrain.prove.steps.statement import compute_parameters, describe_step, expect
from vtrain.prove.verifier import commit_given, verify
from vtrain.wire.bundle import ProofBundle, decode_bundle, encode_bundle, find_difference
from vtrain.wire.proof import KzgRecord


class StepVerifier:
    """Checks proofs of steps of one run; circuits and keys are made once."""

    def __init__(
        self,
        run: SignedRun,
        setup: ProofSetup,
        logged: Sequence[KzgRecord] | None,
        open_source: Callable[[], StepSource] | None,
        progress: Progress,
    ) -> None:
        """``logged`` is all of the run's KZG log, held against the claim.  ``open_source`` opens
        the run's tensors; without it, commitments are those in the log.

        EncodingError and SrsError as of :meth:`ProofSetup.open_key`.
        """
        self._run, self._setup, self._logged, self._progress = run, setup, logged, progress
        self._key: CommitKey = setup.open_key()
        self._open_source = open_source
        self._source: StepSource | None = None
        self._ready: dict[str, ReadyCircuit | VtrainError] = {}

    def verify(self, step: int) -> Verification:
        """Whether the run's proof of ``step`` (from 1) shows it.

        FindingError where the log has commitments to other tensors; StepDiffersError;
        NotProducedError, EncodingError and others where nothing can be said.
        """
        bundle = self._read_bundle(step)
        pinned, name = self._setup.proof.circuits, bundle.statement.circuit_name
        if name not in STEP_CIRCUITS or (pinned and name not in pinned):
            return Verification(False, f"circuit {name!r} is none that the task allows")
        said = bundle.statement.circuit, bundle.statement.key
        # Before keys are made, which takes long: what is of another step has made none.
        if wrong := self._find_difference(bundle, step, *said):
            which = f": it is of step {bundle.statement.step}" if wrong == "step" else ""
            return Verification(False, f"{wrong} is not that of this step{which}")
        ready = self._prepare(name)
        if wrong := self._find_difference(bundle, step, ready.pinned.digest, ready.keys.vk_digest):
            return Verification(False, f"{wrong} is not that of this step")
        return verify(
            ready.circuit,
            ready.pinned,
            ready.keys,
            bundle.proof,
            expected=self._find_commitments(step),
            parameters=compute_parameters(self._run.graph, self._run.records[step - 1]),
            commit_key=self._key,
            limits=self._setup.limits,
            claim=bundle.statement.claim,
            hash=self._setup.proof.hash,
        )

    def _read_bundle(self, step: int) -> ProofBundle:
        run, item = self._run.paths.root, Item("step", step)
        data = read_proof_file(run, item)
        with naming(proof_path(run, item)):
            bundle = decode_bundle(data)
            if encode_bundle(bundle) != data:
                raise EncodingError("is not the encoding of the bundle that it describes")
        return bundle

    def _find_difference(
        self, bundle: ProofBundle, step: int, circuit: bytes, key: bytes
    ) -> str | None:
        """Where a bundle is said to be of something else than ``step`` by this circuit."""
        said = bundle.statement
        wanted = describe_step(self._run, self._setup, step, said.circuit_name, circuit, key)
        return find_difference(said, wanted)

    def _prepare(self, name: str) -> ReadyCircuit:
        """A circuit with its key; what cannot be had is not tried again for the next step."""
        if name not in self._ready:
            try:
                self._ready[name] = prepare_circuit(
                    self._run.graph, self._setup, name, proving=False, progress=self._progress
                )
            except VtrainError as error:
                self._ready[name] = error
        found = self._ready[name]
        if isinstance(found, VtrainError):
            raise found
        return found

    def _find_commitments(self, step: int) -> dict[str, bytes]:
        """The commitments to the given columns of ``step``: computed where there are tensors, else
        those in the log."""
        record = None if self._logged is None else self._logged[step // self._setup.proof.every - 1]
        if record is None and (self._open_source is None or self._run.task.kzg is not None):
            raise NotProducedError(
                "cannot be checked: the signed logs have no commitments to this step's tensors"
            )
        logged = {} if record is None else expect(record)
        if self._open_source is None:
            return logged
        if self._source is None:
            self._source = self._open_source()
        values = self._source.values(step)
        computed = commit_given(self._key, values.given, values.hiding)
        if record is not None:
            _require_logged(record, logged, values.keys, computed)
        return computed


def _require_logged(
    record: KzgRecord,
    logged: Mapping[str, bytes],
    keys: Mapping[str, bytes],
    computed: Mapping[str, bytes],
) -> None:
    """FindingError unless the logged commitments are those to the tensors of the run.

    NotProducedError unless the ids of the ``keys`` known are those that the log has: behind others,
    commitments that differ show nothing.
    """
    for name, known in keys.items():
        if known != getattr(record, f"{name}_key"):
            raise NotProducedError(f"the key disclosed of {name} is not the one in the log")
    wrong = next((name for name in computed if computed[name] != logged.get(name)), None)
    if wrong is not None:
        of_task = record.step == 1 and wrong.split()[0] == BEFORE
        raise FindingError(
            f"the logged commitment of {wrong} is of other tensors",
            fault="task" if of_task else "solver",
        )
