"""What both sides of a proof need before they begin: specification, SRS, limits, and circuits with
their keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vtrain.errors import CircuitError, EncodingError, RunError
from vtrain.prove.backend.cost import estimate, require_fits
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.keys import Keys, load_keys, load_verifying_key
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit, pin
from vtrain.prove.backend.srs import CEREMONY, Progress, identify_srs, quiet
from vtrain.prove.circuit.circuit import Circuit
from vtrain.wire.proof import ProofSpec
from vtrain.wire.task import TaskSpec


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

    def _require(self, sha256: bytes) -> None:
        if sha256 != self.proof.srs:
            raise EncodingError(
                f"is the SRS {sha256.hex()}, the task has {self.proof.srs.hex()}",
                where=str(self.srs),
            )

    @property
    def is_insecure(self) -> bool:
        """Whether the SRS is of no ceremony; one for a larger k serves too."""
        return self.proof.srs.hex() not in CEREMONY.values()

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


def make_ready(
    name: str,
    circuit: Circuit,
    setup: ProofSetup,
    *,
    proving: bool,
    check: Callable[[], None] = lambda: None,
    progress: Progress = quiet,
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
