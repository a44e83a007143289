"""A solver's signed statement of what its run log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.wire import cbor
from vtrain.wire.fields import Fields
from vtrain.wire.record import MAX_STEP

RUN_ID_LENGTH: Final = 32
PUBLIC_KEY_LENGTH: Final = 32
SIGNATURE_LENGTH: Final = 64


@dataclass(frozen=True)
class Claim:
    """Says that run ``run_id`` of task ``task_id`` has this log; signed by ``solver``.

    ``run_id`` is 32 random bytes drawn when the run is created and ``solver`` an Ed25519 public
    key: with both signed, nobody can adopt another's claim.  The log has ``log_size`` records.
    ``kzg_root`` is the root of the log of KZG commitments, empty where the task asks for none; how
    many records that log has follows from the task and ``log_size``.
    """

    run_id: bytes
    solver: bytes
    task_id: bytes
    log_size: int
    log_root: bytes
    kzg_root: bytes = b""


@dataclass(frozen=True)
class SignedClaim:
    """A claim and the Ed25519 signature (64 bytes, RFC 8032) over its domain-separated hash."""

    claim: Claim
    signature: bytes


def claim_to_map(claim: Claim) -> dict[str, cbor.Value]:
    """The map whose canonical encoding is hashed and signed: ``kzg_root`` only where it is one."""
    value: dict[str, cbor.Value] = {
        "log_root": claim.log_root,
        "log_size": claim.log_size,
        "run_id": claim.run_id,
        "solver": claim.solver,
        "task_id": claim.task_id,
    }
    if claim.kzg_root:
        value["kzg_root"] = claim.kzg_root
    return value


def encode_signed_claim(signed: SignedClaim) -> bytes:
    """Canonical encoding of a claim with its signature, as stored and sent."""
    return cbor.encode({"claim": claim_to_map(signed.claim), "signature": signed.signature})


def decode_signed_claim(data: bytes) -> SignedClaim:
    """Inverse of :func:`encode_signed_claim`; EncodingError names the byte or field at fault.

    The form alone is checked: ``vtrain.attest.claims.verify_claim`` judges the signature.
    """
    outer = Fields(cbor.decode(data), "signed_claim")
    fields = outer.map("claim")
    signature = outer.bytes("signature", SIGNATURE_LENGTH)
    outer.done()
    claim = Claim(
        run_id=fields.bytes("run_id", RUN_ID_LENGTH),
        solver=fields.bytes("solver", PUBLIC_KEY_LENGTH),
        task_id=fields.bytes("task_id"),
        log_size=fields.int("log_size", 0, MAX_STEP),
        log_root=fields.bytes("log_root"),
        kzg_root=fields.bytes("kzg_root") if fields.has("kzg_root") else b"",
    )
    fields.done()
    return SignedClaim(claim, signature)
