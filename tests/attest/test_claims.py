"""Signed claims: the vector, every bit, and that nobody can adopt another's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtrain.attest.claims import (
    compute_claim_digest,
    generate_run_id,
    sign_claim,
    verify_claim,
)
from vtrain.attest.keys import PrivateKey, generate_key, public_key
from vtrain.errors import EncodingError, SignatureError
from vtrain.spec.domains import TASK_ID, compute_domain_hash
from vtrain.wire import cbor
from vtrain.wire.claim import (
    Claim,
    SignedClaim,
    claim_to_map,
    decode_signed_claim,
    encode_signed_claim,
)

VECTOR = json.loads((Path(__file__).parent.parent / "vectors" / "claim.json").read_text())
KEY = PrivateKey.from_private_bytes(bytes.fromhex(VECTOR["secret_key"]))
CLAIM = Claim(
    run_id=bytes.fromhex(VECTOR["run_id"]),
    solver=bytes.fromhex(VECTOR["solver"]),
    task_id=bytes.fromhex(VECTOR["task_id"]),
    log_size=VECTOR["log_size"],
    log_root=bytes.fromhex(VECTOR["log_root"]),
)


def test_vector() -> None:
    assert cbor.encode(claim_to_map(CLAIM)).hex() == VECTOR["encoding"]
    assert compute_claim_digest(CLAIM).hex() == VECTOR["digest"]
    signed = sign_claim(CLAIM, KEY)
    assert signed.signature.hex() == VECTOR["signature"]
    assert encode_signed_claim(signed).hex() == VECTOR["signed_encoding"]
    assert decode_signed_claim(bytes.fromhex(VECTOR["signed_encoding"])) == signed
    verify_claim(signed)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": bytes(32)},
        {"task_id": bytes(32)},
        {"log_size": CLAIM.log_size + 1},
        {"log_size": 0},
        {"log_root": bytes(32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_field_is_signed(changes: dict[str, Any]) -> None:
    signed = sign_claim(CLAIM, KEY)
    with pytest.raises(SignatureError, match="does not verify"):
        verify_claim(replace(signed, claim=replace(CLAIM, **changes)))


def test_every_bit_of_a_signed_claim_counts() -> None:
    data = bytes.fromhex(VECTOR["signed_encoding"])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((EncodingError, SignatureError)):
            verify_claim(decode_signed_claim(bytes(changed)))
    for length in range(len(data)):
        with pytest.raises(EncodingError):
            decode_signed_claim(data[:length])


def test_nobody_adopts_anothers_claim(tmp_path: Path) -> None:
    thief = generate_key(tmp_path / "thief.key")
    signed = sign_claim(CLAIM, KEY)
    with pytest.raises(SignatureError, match="names another solver"):
        sign_claim(CLAIM, thief)
    with pytest.raises(SignatureError, match="does not verify"):
        verify_claim(replace(signed, claim=replace(CLAIM, solver=public_key(thief))))
    with pytest.raises(SignatureError, match="does not verify"):
        verify_claim(SignedClaim(CLAIM, thief.sign(compute_claim_digest(CLAIM))))


def test_a_signature_of_another_domain_does_not_count() -> None:
    encoded = cbor.encode(claim_to_map(CLAIM))
    for message in (encoded, compute_domain_hash(TASK_ID, encoded)):
        with pytest.raises(SignatureError, match="does not verify"):
            verify_claim(SignedClaim(CLAIM, KEY.sign(message)))


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("claim", "log_size"), -1, "signed_claim.claim.log_size"),
        (("claim", "log_size"), 2**48 + 1, "signed_claim.claim.log_size"),
        (("claim", "run_id"), bytes(31), "signed_claim.claim.run_id"),
        (("claim", "solver"), bytes(33), "signed_claim.claim.solver"),
        (("claim", "task_id"), "", "signed_claim.claim.task_id"),
        (("claim", "log_root"), b"", "signed_claim.claim.log_root"),
        (("claim", "more"), 0, "signed_claim.claim.more"),
        (("signature",), bytes(63), "signed_claim.signature"),
        (("more",), 0, "signed_claim.more"),
    ],
)
def test_each_field_is_checked(path: tuple[str, ...], value: cbor.Value, where: str) -> None:
    content = cbor.decode(bytes.fromhex(VECTOR["signed_encoding"]))
    place = content
    for key in path[:-1]:
        assert isinstance(place, dict)
        place = place[key]
    assert isinstance(place, dict)
    place[path[-1]] = value
    with pytest.raises(EncodingError) as caught:
        decode_signed_claim(cbor.encode(content))
    assert caught.value.where == where


def test_run_ids_are_fresh() -> None:
    ids = {generate_run_id() for _ in range(50)}
    assert len(ids) == 50
    assert {len(run_id) for run_id in ids} == {32}
