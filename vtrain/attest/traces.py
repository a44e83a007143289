"""Signing what the traces of a run's steps are: see :class:`vtrain.wire.traces.TensorTraces`."""

from __future__ import annotations

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.errors import SignatureError
from vtrain.spec.domains import TENSOR_TRACES, compute_domain_hash
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.traces import SignedTensorTraces, TensorTraces


def compute_traces_digest(traces: TensorTraces) -> bytes:
    """What is signed, and what an auditor pins: 32 bytes."""
    return compute_domain_hash(TENSOR_TRACES, structs.encode(traces))


def sign_traces(traces: TensorTraces, claim: Claim, key: PrivateKey) -> SignedTensorTraces:
    """Sign; SignatureError unless ``key`` is that of the solver of ``claim``, the claim named."""
    if claim.solver != public_key(key):
        raise SignatureError("the claim names another solver than the key's", where="claim.solver")
    if traces.claim != compute_claim_digest(claim):
        raise SignatureError("is of another claim", where="traces.claim")
    return SignedTensorTraces(traces, key.sign(compute_traces_digest(traces)))


def verify_traces(signed: SignedTensorTraces, claim: Claim) -> None:
    """SignatureError unless the solver of ``claim`` has signed the traces, and for that claim."""
    if signed.traces.claim != compute_claim_digest(claim):
        raise SignatureError("is of another claim", where="traces.claim")
    verify_signature(claim.solver, compute_traces_digest(signed.traces), signed.signature)


def find_contradiction(kept: SignedTensorTraces, found: SignedTensorTraces, claim: Claim) -> str:
    """How two statements about one claim exclude each other, which convicts who signed both; empty
    where they do not.

    A step has one trace.  ``found`` is known to be signed by the solver of ``claim``, and for it;
    SignatureError unless ``kept`` is: a statement that anybody wrote, or one about another claim,
    contradicts nothing.
    """
    verify_traces(kept, claim)
    before = {trace.step: trace for trace in kept.traces.traces}
    for trace in found.traces.traces:
        if before.get(trace.step, trace) != trace:
            return f"both are signed by {claim.solver.hex()}, with two traces of step {trace.step}"
    return ""
