"""The auditor's side of proofs of sampled tiles: what the files of a run answer.

The protocol is that of ``vtrain.prove.tiles.protocol``; here are its files:
``RUN/proofs/traces.cbor``, the signed trace claim, and ``RUN/proofs/tile-STEP-INDEX.cbor``, the
proof of each statement drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vtrain.attest.claims import compute_claim_digest
from vtrain.commit.files import read_file
from vtrain.errors import (
    EncodingError,
    NotProducedError,
    RunError,
)
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.proof_files import Item, naming, proof_path, read_proof_file
from vtrain.prove.runs import SignedRun
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles.protocol import (
    LoggedStep,
    TileAudit,
    compute_trace_claim_digest,
    draw_statements,
    draw_steps,
    verify_tile_answer,
    verify_trace_claim,
)
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.tiling import Tiling
from vtrain.wire import structs
from vtrain.wire.proof import KzgRecord
from vtrain.wire.tiles import (
    SignedTraceClaim,
    TileAnswer,
    TileProof,
    TileTrace,
    decode_signed_trace_claim,
)


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


def require_two_draws(first: bytes, second: bytes) -> None:
    """RunError when both draws have one randomness: the solver then knew the second before it
    claimed traces, and could claim until nothing false is drawn."""
    if first == second:
        raise RunError(
            "is that of the first draw: draw another, once the traces are claimed", where="seed"
        )


def read_answer(run: Path, asked: Sequence[tuple[TileTrace, int]]) -> TileAnswer:
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
    progress: Progress = quiet,
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
