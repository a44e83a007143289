"""Signing a claim and checking one: see :class:`vtrain.wire.claim.Claim` for what it says."""

from __future__ import annotations

import secrets

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.errors import SignatureError
from vtrain.spec.domains import CLAIM, compute_domain_hash
from vtrain.wire import cbor
from vtrain.wire.claim import RUN_ID_LENGTH, Claim, SignedClaim, claim_to_map


def generate_run_id() -> bytes:
    """32 random bytes for a new run, so that no two runs share claims."""
    return secrets.token_bytes(RUN_ID_LENGTH)


def compute_claim_digest(claim: Claim) -> bytes:
    """What is signed: H_claim(canonical encoding of the claim), 32 bytes."""
    return compute_domain_hash(CLAIM, cbor.encode(claim_to_map(claim)))


def sign_claim(claim: Claim, key: PrivateKey) -> SignedClaim:
    """Sign ``claim``; SignatureError when it names another solver than the holder of ``key``."""
    if claim.solver != public_key(key):
        raise SignatureError("the claim names another solver than the key's", where="claim.solver")
    return SignedClaim(claim, key.sign(compute_claim_digest(claim)))


def verify_claim(signed: SignedClaim) -> None:
    """SignatureError unless the claim is signed by the solver that it names."""
    verify_signature(signed.claim.solver, compute_claim_digest(signed.claim), signed.signature)
