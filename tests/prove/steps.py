"""Runs whose steps are to be proven, and proof files that only ezkl could tell from proofs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.audit.runs import KEY
from tests.kzg import SECRET, add_kzg, make_key
from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.prove import audit as audit_module
from vtrain.prove import verifier
from vtrain.prove.audit import ProofAudit
from vtrain.prove.backend.ezkl import Limits, Proof, Verification
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import pin
from vtrain.prove.runs import SignedRun, StepSource, read_run
from vtrain.prove.setup import ProofSetup, ReadyCircuit
from vtrain.prove.steps import verifier as step_verifier
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.steps.statement import describe_step
from vtrain.prove.verifier import commit_columns, draw_challenge
from vtrain.train.runner import train
from vtrain.train.signed import read_hiding_of
from vtrain.train.task import CompiledTask
from vtrain.wire.bundle import BundleHeader, ProofBundle, encode_bundle
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import ProofSpec
from vtrain.wire.task import TaskSpec

K = 17
"""The least for whole steps."""
LIMITS = Limits(memory=16 << 30, seconds=600, threads=1)
MEMORY = 12 << 30
STEPS = 6


def make_proof_task(srs: Path, every: int = 1, steps: int = STEPS) -> CompiledTask:
    """The tiny MLP, with KZG commitments over the SRS in ``srs``."""
    task = make_tiny_task(steps=steps, commit_every=1, checkpoint_every=3, samples=10, batch=4)
    return add_kzg(task, open_key(srs), every)


@cache
def open_key(srs: Path) -> CommitKey:
    """The key over the SRS in ``srs``, which is made where it is not there; always the same."""
    return make_key(srs, K)


def train_run(task: CompiledTask, out: Path) -> Path:
    train(task, out, key=KEY, engine="numpy", batch_secret=SECRET if task.spec.kzg else b"")
    return out


def make_setup(task: TaskSpec, srs: Path, cache: Path) -> ProofSetup:
    return ProofSetup.for_task(task, srs, cache, LIMITS, MEMORY)


def make_audit(srs: Path, cache: Path, **options: Any) -> ProofAudit:
    """A private audit of step 5, over an SRS that is insecure, unless ``options`` say otherwise."""
    wanted = {"steps": (5,), "private": True, "allow_insecure_srs": True, "engine": "numpy"}
    return ProofAudit(lambda task: make_setup(task, srs, cache), **{**wanted, **options})


def make_ready(graph: StepGraph, setup: ProofSetup, name: str = "step") -> ReadyCircuit:
    """A circuit with keys that are none: its digest is real, and proofs have some length."""
    circuit = build_step_circuit(graph, K, name)
    pinned = pin(circuit, K)
    length = 64 * len(circuit.columns) + 128
    keys = Keys(setup.cache, pinned.digest, setup.proof.srs, b"\7" * 32, length)
    return ReadyCircuit(name, circuit, pinned, keys)


@dataclass
class FakeEzkl:
    """Stands in for keys and for ezkl: a proof holds if it is one of ``good``."""

    good: set[bytes]
    prepared: list[str]

    def prepare(
        self, graph: StepGraph, setup: ProofSetup, name: str, **options: Any
    ) -> ReadyCircuit:
        self.prepared.append(name)
        return make_ready(graph, setup, name)

    def verify(self, proof: Proof, **options: Any) -> Verification:
        holds = proof.data in self.good
        return Verification(holds, "" if holds else "ezkl said no")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_verifier, "prepare_circuit", self.prepare)
        monkeypatch.setattr(audit_module, "require_extra", lambda *modules: None)
        monkeypatch.setattr(verifier, "verify_proof", self.verify)


def hiding_of(signed: SignedRun) -> Hiding:
    """What a solver has of its run's keys."""
    return read_hiding_of(signed.paths, None)


PLAIN = ProofSpec("step", bytes(32), 11, 5, 1, (), {})
"""Of runs without commitments, in whose steps nothing is proven."""


def uncounted(opened: Collection[bytes]) -> None:
    """In place of what counts openings."""


def make_bundle(
    run: Path, srs: Path, step: int, *, changed: Mapping[str, Any] | None = None
) -> ProofBundle:
    """What a solver would hand out for ``step``, but for what ezkl adds: real commitments to all
    columns, and a tail of zeros.  ``changed`` replaces given vectors."""
    signed = read_run(run)
    setup = make_setup(signed.task, srs, run)
    ready, key = make_ready(signed.graph, setup), open_key(srs)
    values = StepSource(signed, setup.proof, hiding_of(signed), engine="numpy").values(step)
    commitments: dict[str, bytes] = {}

    def draw(before: Mapping[str, Any]) -> Sequence[int]:
        commitments.update(commit_columns(ready.circuit, key, ready.circuit.lay_out(before)))
        claim = compute_claim_digest(signed.signed.claim)
        return draw_challenge(ready.circuit, ready.pinned, commitments, claim=claim)

    given = {**values.given, **(changed or {})}
    vectors = ready.circuit.assign(given, values.parameters, draw, hiding=values.hiding)
    columns = {**ready.circuit.lay_out(vectors), **ready.circuit.evaluate(vectors)}
    prefix = b"".join(
        commit_columns(ready.circuit, key, columns)[name] for name in ready.circuit.columns
    )
    return ProofBundle(describe(signed, setup, ready, step), prefix + bytes(128))


def describe(run: SignedRun, setup: ProofSetup, ready: ReadyCircuit, step: int) -> BundleHeader:
    """What a proof of ``step`` by this circuit says it is of."""
    return describe_step(run, setup, step, ready.name, ready.pinned.digest, ready.keys.vk_digest)


def put_bundle(run: Path, bundle: ProofBundle, step: int | None = None) -> Path:
    """Put a bundle where the proof of ``step``, its own unless told, is looked for."""
    path = run / "proofs" / f"step-{step or bundle.statement.step:012d}.cbor"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_bundle(bundle))
    return path


def alter(bundle: ProofBundle, **fields: Any) -> ProofBundle:
    return replace(bundle, statement=replace(bundle.statement, **fields))
