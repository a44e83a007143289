"""What a solver signs of the values of single steps, so that they can be checked one by one.

All of it is encoded by ``vtrain.wire.structs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final

from vtrain.errors import EncodingError
from vtrain.wire import structs
from vtrain.wire.claim import SIGNATURE_LENGTH
from vtrain.wire.record import MAX_STEP
from vtrain.wire.structs import AtMost, Between, Digest, Length

MAX_TRACED: Final = 1 << 12
"""Traces that one claim is about."""


@dataclass(frozen=True)
class TensorTrace:
    """Root of the tree over the digests of every node's output, in ``size`` leaves: those of the
    steps after the last state root before ``step`` and up to ``step``, counted from 1.

    It is the tree that a dispute about ``step`` descends.
    """

    step: Annotated[int, Between(1, MAX_STEP)]
    size: Annotated[int, Between(1, 2**62)]
    root: Digest


@dataclass(frozen=True)
class TensorTraces:
    """Says which traces steps of a run have; signed by the run's solver.

    ``claim`` is the digest of the claim on the run.  ``traces`` come by rising step.
    """

    claim: Digest
    traces: Annotated[tuple[TensorTrace, ...], AtMost(MAX_TRACED)]


@dataclass(frozen=True)
class SignedTensorTraces:
    """The statement and the Ed25519 signature over its domain-separated hash."""

    traces: TensorTraces
    signature: Annotated[bytes, Length(SIGNATURE_LENGTH)]


def decode_signed_tensor_traces(data: bytes) -> SignedTensorTraces:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field at fault, or says
    that steps do not rise.

    The form alone is checked: ``vtrain.attest.traces`` judges the signature.
    """
    found = structs.decode(SignedTensorTraces, data, "signed_tensor_traces")
    steps = [trace.step for trace in found.traces.traces]
    if any(later <= step for step, later in pairwise(steps)):
        raise EncodingError("the steps do not rise", where="signed_tensor_traces.traces.traces")
    return found
