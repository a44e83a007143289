"""The solver's side of proofs of sampled tiles: from a run directory to traces and answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.files import storing, write_atomic
from vtrain.commit.hiding import identify_key
from vtrain.errors import (
    CircuitError,
    RunError,
    SignatureError,
)
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.circuit.values import Ints
from vtrain.prove.openings import Openings
from vtrain.prove.proof_files import Item
from vtrain.prove.runs import SignedRun, StepSource, require_logged_keys
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles.protocol import (
    TraceCommitments,
    draw_statements,
    draw_steps,
    list_logged,
    sign_trace_claim,
    verify_trace_claim,
)
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import StepFacts, TileContents, TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import read_traces, require_two_draws, traces_path
from vtrain.train.signed import read_hiding_of
from vtrain.wire import structs
from vtrain.wire.tiles import (
    SignedTraceClaim,
    TraceClaim,
)

_KEPT: Final = 2
"""Steps whose values and commitments a prover keeps: each may take hundreds of MiB."""


class TileProver:
    """The solver's side of one run."""

    def __init__(
        self, run: SignedRun, setup: ProofSetup, *, data: Path | None = None, engine: str = "auto"
    ) -> None:
        """TaskError when the run's commitments are not to tiles; refuses a wrong SRS at once."""
        self._run, self._setup = run, setup
        self._key = setup.open_key()
        claim = compute_claim_digest(run.signed.claim)
        self.circuits = TileCircuits(setup, self._key, claim, proving=True)
        self.tiling = Tiling(run.graph)
        threads = setup.limits.threads
        self._source = StepSource(
            run,
            setup.proof,
            read_hiding_of(run.paths, None),
            data=data,
            engine=engine,
            threads=threads,
        )
        self._traces: dict[int, TraceCommitments] = {}

    def trace(self, step: int, progress: Progress = quiet) -> TraceCommitments:
        """The commitments to all tiles of ``step``; those of the last few steps are kept.

        RunError when the run has no such step, or was logged with other secrets: a trace that they
        hide would be another one.
        """
        if step not in self._traces:
            outputs, keys = self._source.outputs(step, self.tiling.cut_nodes)
            ids = {name: identify_key(key) for name, key in keys.items()}
            record = require_logged_keys(self._run, step, ids)
            facts = StepFacts(step, self._run.records[step - 1].loss)
            while len(self._traces) >= _KEPT:
                del self._traces[next(iter(self._traces))]
            self._traces[step] = TraceCommitments(
                TileContents(self.tiling, facts, outputs),
                self._key,
                list_logged(record),
                keys,
                threads=self._setup.limits.threads,
                progress=lambda done, total: progress(f"tiles of step {step}", done, total),
            )
        return self._traces[step]

    def claim_traces(
        self, randomness: bytes, count: int, key: PrivateKey, progress: Progress = quiet
    ) -> SignedTraceClaim:
        """Commit to the ``count`` steps that ``randomness`` draws, sign, and keep it in the run.

        SignatureError, before anything is computed, for a key that is not the solver's.  RunError
        when other traces were claimed already: two claims would be two chances.
        """
        run = self._run
        solver = run.signed.claim.solver
        if solver != public_key(key):
            raise SignatureError(
                f"is not the solver's: the run is signed with the key {solver.hex()}", where="key"
            )
        every = self._setup.proof.every
        traces = tuple(
            self.trace(step, progress).trace
            for step in draw_steps(randomness, run.signed.claim, every, count)
        )
        claim = TraceClaim(compute_claim_digest(run.signed.claim), randomness, traces)
        signed = sign_trace_claim(claim, run.signed.claim, key)
        path = traces_path(run.paths.root)
        with storing(path):
            path.parent.mkdir(exist_ok=True)
            is_there = os.path.lexists(path)
        if is_there:
            if read_traces(run.paths.root).trace_claim != claim:
                raise RunError(
                    "has claimed other traces already, for another audit: "
                    "move the file away to answer this one",
                    where=str(path),
                )
            return signed
        write_atomic(path, [structs.encode(signed)])
        return signed

    def statements(self, traces: SignedTraceClaim, randomness: bytes, count: int) -> list[Item]:
        """The statements that the second draw asks for, as jobs, those of one step together.

        RunError as of :func:`require_two_draws`.
        """
        require_two_draws(traces.trace_claim.randomness, randomness)
        verify_trace_claim(traces, self._run.signed.claim)
        drawn = draw_statements(randomness, traces.trace_claim, self.tiling, count)
        asked = sorted((trace.step, index) for trace, index in drawn)
        return [Item("tile", step, index) for step, index in asked]

    def prove(
        self,
        statement: Item,
        openings: Openings,
        progress: Progress = quiet,
        cancelled: threading.Event | None = None,
    ) -> bytes:
        """The encoded :class:`~vtrain.wire.tiles.TileProof` of one statement; ``openings`` counts
        what it opens.

        RunError and CircuitError for what is no statement about tiles of the run; OpeningsError
        when what hides one of its tiles is used up.
        """
        if statement.kind != "tile":
            raise CircuitError("is no statement about tiles", where=statement.kind)
        trace = self.trace(statement.step, progress)

        def make(
            about: TileStatement,
            given: Mapping[str, Ints],
            hiding: Mapping[str, Sequence[int]],
            opened: Collection[bytes],
        ) -> bytes:
            return self.circuits.prove(
                about, given, hiding, lambda: openings(opened), progress, cancelled
            )

        return structs.encode(trace.prove(statement.index, make))
