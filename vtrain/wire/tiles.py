"""What a solver says and shows of the tiles of steps, in answer to two draws.

All of it is encoded by ``vtrain.wire.structs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from vtrain.wire import structs
from vtrain.wire.claim import SIGNATURE_LENGTH
from vtrain.wire.opening import MAX_PATH
from vtrain.wire.proof import COMMITMENT_LENGTH, MAX_PROOF
from vtrain.wire.record import MAX_STEP
from vtrain.wire.structs import AtMost, Between, Count, Digest, Length

MAX_RANDOMNESS: Final = 64
MAX_TRACES: Final = 1 << 12
"""Steps that one trace claim is about."""
MAX_OPENINGS: Final = 1 << 16
"""Tiles that one statement is about."""
MAX_ANSWERS: Final = 1 << 16
"""Statements that one answer is about."""

Step = Annotated[int, Between(1, MAX_STEP)]


@dataclass(frozen=True)
class TileTrace:
    """Root of the tree over the commitments to the ``count`` tiles of a step's trace.

    ``step`` counts from 1.  A leaf is a commitment (64 bytes); their order follows from the graph
    (``vtrain.prove.tiles.statements``).
    """

    step: Step
    root: Digest
    count: Count


@dataclass(frozen=True)
class TraceClaim:
    """Says which traces the steps that ``randomness`` drew have; signed by the run's solver.

    ``claim`` is the digest of the claim on the run.  ``traces`` come in the order of the draw.
    """

    claim: Digest
    randomness: Annotated[bytes, AtMost(MAX_RANDOMNESS)]
    traces: Annotated[tuple[TileTrace, ...], AtMost(MAX_TRACES)]


@dataclass(frozen=True)
class SignedTraceClaim:
    """A trace claim and the Ed25519 signature over its domain-separated hash."""

    trace_claim: TraceClaim
    signature: Annotated[bytes, Length(SIGNATURE_LENGTH)]


@dataclass(frozen=True)
class TileOpening:
    """Leaf ``index`` of a trace's tree: the commitment, and its path upwards (RFC 9162)."""

    index: Count
    commitment: Annotated[bytes, Length(COMMITMENT_LENGTH)]
    path: Annotated[tuple[Digest, ...], AtMost(MAX_PATH)]


@dataclass(frozen=True)
class TileProof:
    """What shows statement number ``statement`` about ``step``: its tiles, and a proof.

    ``openings`` are of the tiles in the trace's tree that it speaks of, by rising index.
    """

    step: Step
    statement: Count
    openings: Annotated[tuple[TileOpening, ...], AtMost(MAX_OPENINGS)]
    proof: Annotated[bytes, AtMost(MAX_PROOF)]


@dataclass(frozen=True)
class TileAnswer:
    """The proofs of the statements drawn, in the order of the draw."""

    proofs: Annotated[tuple[TileProof, ...], AtMost(MAX_ANSWERS)]


def decode_signed_trace_claim(data: bytes) -> SignedTraceClaim:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field at fault.

    The form alone is checked: ``vtrain.prove.tiles.protocol`` judges the signature.
    """
    return structs.decode(SignedTraceClaim, data, "signed_trace_claim")


def decode_tile_answer(data: bytes) -> TileAnswer:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field at fault."""
    return structs.decode(TileAnswer, data, "tile_answer")
