"""Proofs of sampled tiles of a run's steps: from a run directory to answers, and back.

The protocol is that of ``vtrain.prove.tiles.protocol``; here are its files and what works it out:
``RUN/proofs/traces.cbor``, the signed trace claim, and ``RUN/proofs/tile-STEP-INDEX.cbor``, the
proof of each statement drawn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.files import read_file, storing, write_atomic
from vtrain.commit.hiding import identify_key
from vtrain.errors import (
    CircuitError,
    EncodingError,
    NotProducedError,
    RunError,
    SignatureError,
    TaskError,
)
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.srs import Progress
from vtrain.prove.circuit.values import Ints
from vtrain.prove.openings import Openings
from vtrain.prove.proof_files import Item, naming, proof_path, read_proof_file
from vtrain.prove.prover import prove
from vtrain.prove.runs import (
    ProofSetup,
    ReadyCircuit,
    SignedRun,
    StepSource,
    make_ready,
    require_blinding,
    require_logged_keys,
)
from vtrain.prove.tiles.circuits import build_tile_circuit, linear_challenge
from vtrain.prove.tiles.protocol import (
    LoggedStep,
    TileAudit,
    TraceCommitments,
    compute_trace_claim_digest,
    draw_statements,
    draw_steps,
    list_logged,
    sign_trace_claim,
    verify_tile_answer,
    verify_trace_claim,
)
from vtrain.prove.tiles.statements import LINEAR, StepFacts, TileContents, TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.verifier import Expansion, verify
from vtrain.train.signed import read_hiding_of
from vtrain.wire import structs
from vtrain.wire.proof import TILE, KzgRecord
from vtrain.wire.tiles import (
    SignedTraceClaim,
    StepTrace,
    TileAnswer,
    TileProof,
    TraceClaim,
    decode_signed_trace_claim,
)

_KEPT: Final = 2
"""Steps whose values and commitments a prover keeps: each may take hundreds of MiB."""
_quiet: Final[Progress] = lambda what, done, total: None  # noqa: E731 - named for the signatures


def traces_path(run: Path) -> Path:
    """Where the signed trace claim lies."""
    return run / "proofs" / "traces.cbor"


def read_traces(run: Path) -> SignedTraceClaim:
    """The trace claim of a run, its signature unchecked; NotProducedError, EncodingError."""
    return _read_traces(traces_path(run), root=run)


def _read_traces(path: Path, root: Path | None = None) -> SignedTraceClaim:
    data = read_file(path, LIMITS.traces_bytes, root=root)
    with naming(path):
        found = decode_signed_trace_claim(data)
        if structs.encode(found) != data:
            raise EncodingError("is not canonical")
    return found


@dataclass(frozen=True)
class TracePin:
    """The ``digest`` of a trace claim (32 bytes), and the signed trace claim where it was kept."""

    digest: bytes
    kept: SignedTraceClaim | None = None
    source: Path | None = None


def make_trace_pin(value: bytes | Path) -> TracePin:
    """The pin of a digest, or of a copy of ``traces.cbor``; NotProducedError, EncodingError."""
    if isinstance(value, bytes):
        return TracePin(value)
    kept = _read_traces(value)
    return TracePin(compute_trace_claim_digest(kept.trace_claim), kept, value)


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
        progress: Progress = _quiet,
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
        progress: Progress = _quiet,
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
        progress: Progress = _quiet,
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

    def trace(self, step: int, progress: Progress = _quiet) -> TraceCommitments:
        """The commitments to all tiles of ``step``; those of the last few steps are kept.

        RunError when the run has no such step, or was logged with other secrets: a trace that they
        hide would be another one.
        """
        if step not in self._traces:
            outputs, keys = self._source.outputs(step)
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
        self, randomness: bytes, count: int, key: PrivateKey, progress: Progress = _quiet
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
        progress: Progress = _quiet,
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


def require_two_draws(first: bytes, second: bytes) -> None:
    """RunError when both draws have one randomness: the solver then knew the second before it
    claimed traces, and could claim until nothing false is drawn."""
    if first == second:
        raise RunError(
            "is that of the first draw: draw another, once the traces are claimed", where="seed"
        )


def read_answer(run: Path, asked: Sequence[tuple[StepTrace, int]]) -> TileAnswer:
    """The proofs of the statements drawn, from a run's files; NotProducedError, EncodingError.

    NotProducedError also for files that are too long together.
    """
    proofs = []
    room = LIMITS.answer_bytes
    for trace, index in asked:
        statement = Item("tile", trace.step, index)
        data = read_proof_file(run, statement)
        room -= len(data)
        if room < 0:
            most = LIMITS.answer_bytes
            raise NotProducedError(f"the proofs have more than {most} bytes together")
        with naming(proof_path(run, statement)):
            proof = structs.decode(TileProof, data, "proof")
            if structs.encode(proof) != data:
                raise EncodingError("is not canonical")
        proofs.append(proof)
    return TileAnswer(tuple(proofs))


def make_audit(
    run: SignedRun,
    setup: ProofSetup,
    first: tuple[bytes, int],
    second: tuple[bytes, int],
    logged: Sequence[KzgRecord],
) -> TileAudit:
    """What an auditor knows before it sees an answer; draws are (randomness, count).

    ``logged`` is all of the run's KZG log, held against the claim.  NotProducedError when it has no
    record of a step drawn; RunError as of :func:`require_two_draws`.
    """
    require_two_draws(first[0], second[0])
    every = setup.proof.every
    records = {record.step: record for record in logged}
    found = {}
    for step in draw_steps(first[0], run.signed.claim, every, first[1]):
        if step not in records:
            raise NotProducedError("has no signed commitments", where=f"step {step}")
        found[step] = LoggedStep(records[step], run.records[step - 1].loss)
    return TileAudit(Tiling(run.graph), run.signed, every, *first, *second, found)


def check_answer(
    run: SignedRun,
    setup: ProofSetup,
    audit: TileAudit,
    traces: SignedTraceClaim,
    progress: Progress = _quiet,
) -> Verification:
    """Whether the run's files answer the draws; NotProducedError and EncodingError for files."""
    verify_trace_claim(traces, run.signed.claim)
    key = setup.open_key()
    claim = compute_claim_digest(run.signed.claim)
    circuits = TileCircuits(setup, key, claim, proving=False)
    asked = draw_statements(audit.second, traces.trace_claim, audit.tiling, audit.samples)
    answer = read_answer(run.paths.root, asked)
    judge = partial(circuits.verify, progress=progress)
    return verify_tile_answer(
        audit, traces, answer, key=key, verify=judge, threads=setup.limits.threads
    )
