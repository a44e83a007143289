"""The tile circuits with their keys, and proofs by them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from vtrain.errors import (
    CircuitError,
    TaskError,
)
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.setup import ProofSetup, ReadyCircuit, make_ready, require_blinding
from vtrain.prove.tiles.circuits import build_tile_circuit, linear_challenge
from vtrain.prove.tiles.statements import LINEAR, TileStatement
from vtrain.prove.verifier import Expansion, verify
from vtrain.wire.proof import TILE


class TileCircuits:
    """The tile circuits with their keys, each made once: they serve every model.

    Proofs are made for, and answer for, the one claim of the digest ``claim``.
    """

    def __init__(self, setup: ProofSetup, key: CommitKey, claim: bytes, *, proving: bool) -> None:
        if setup.proof.circuit != "tiles":
            raise TaskError('has no commitments to tiles (circuit = "tiles")', where="proof")
        require_blinding(setup.proof)
        self._setup, self._key, self._proving = setup, key, proving
        self._claim = claim
        self._ready: dict[str, ReadyCircuit] = {}

    def ready(
        self,
        name: str,
        progress: Progress = quiet,
        cancelled: threading.Event | None = None,
    ) -> ReadyCircuit:
        """A circuit by name; CircuitError when it is not the one that the task pins."""
        if name not in self._ready:
            self._ready[name] = make_ready(
                name,
                build_tile_circuit(name),
                self._setup,
                proving=self._proving,
                progress=progress,
                cancelled=cancelled,
            )
        return self._ready[name]

    def prove(
        self,
        statement: TileStatement,
        given: Mapping[str, Ints],
        hiding: Mapping[str, Sequence[int]],
        count: Callable[[], None],
        progress: Progress = quiet,
        cancelled: threading.Event | None = None,
    ) -> bytes:
        """The proof of a statement; errors are those of :func:`vtrain.prove.prover.prove`."""
        ready = self.ready(statement.circuit, progress, cancelled)
        proof = prove(
            ready.circuit,
            ready.pinned,
            ready.keys,
            given=given,
            hiding=hiding,
            count=count,
            parameters=statement.parameters,
            srs=self._setup.srs,
            commit_key=self._key,
            limits=self._setup.limits,
            expansion=_expand(statement),
            claim=self._claim,
            hash=self._setup.proof.hash,
            progress=progress,
            cancelled=cancelled,
        )
        return proof.data

    def verify(
        self,
        statement: TileStatement,
        expected: Mapping[str, bytes],
        proof: bytes,
        progress: Progress = quiet,
    ) -> Verification:
        """Whether a proof shows a statement about tiles with these commitments."""
        ready = self.ready(statement.circuit, progress)
        return verify(
            ready.circuit,
            ready.pinned,
            ready.keys,
            proof,
            expected=expected,
            parameters=statement.parameters,
            commit_key=self._key,
            limits=self._setup.limits,
            expansion=_expand(statement),
            claim=self._claim,
            hash=self._setup.proof.hash,
        )


def _expand(statement: TileStatement) -> Expansion | None:
    """What the verifier computes from the element drawn for a statement."""
    if statement.circuit != LINEAR:
        return None
    if statement.linear is None:
        raise CircuitError("has no map", where=statement.node)
    return partial(linear_challenge, TILE, image=statement.linear)
