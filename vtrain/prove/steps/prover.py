"""The solver's side of proofs of whole steps: from a run directory to proof bundles."""

from __future__ import annotations

import threading
from pathlib import Path

from vtrain.errors import CircuitError
from vtrain.prove.backend.cost import estimate, require_fits
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.openings import Openings
from vtrain.prove.proof_files import Item
from vtrain.prove.prover import prove
from vtrain.prove.runs import SignedRun, StepSource, StepValues, require_logged_keys
from vtrain.prove.setup import ProofSetup, ReadyCircuit
from vtrain.prove.steps.circuits import STEP_CIRCUITS, build_step_circuit
from vtrain.prove.steps.prepare import prepare_circuit
from vtrain.prove.steps.probe import draw_locally
from vtrain.prove.steps.statement import describe_step
from vtrain.prove.verifier import commit_given
from vtrain.train.signed import read_hiding_of
from vtrain.wire.bundle import ProofBundle, encode_bundle


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
            read_hiding_of(run.paths, None),
            data=data,
            engine=engine,
            threads=threads,
        )

    def prove(
        self,
        item: Item,
        openings: Openings,
        progress: Progress = quiet,
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
        statement = describe_step(
            self._run, self._setup, step, ready.name, ready.pinned.digest, ready.keys.vk_digest
        )
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
