"""Key files, and signature verification that is as strict as it says."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vtrain.attest.keys import generate_key, load_key, public_key, verify_signature
from vtrain.errors import SignatureError, StorageError

SPECCHECK = json.loads(
    (Path(__file__).parent.parent / "vectors" / "ed25519_speccheck.json").read_text()
)["cases"]
ORDER = 2**252 + 27742317777372353535851937790883648493

# RFC 8032, section 7.1: public key, message, signature of tests 1, 2, 3 and SHA(abc).
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "ed25519.json").read_text())[
    "cases"
]

# What each case of ed25519-speccheck gives under these rules; None: it verifies.  Case 3 has key
# and R of mixed order and holds without the cofactor.  The others hold for some verifiers only; the
# library alone takes 0, 1, 2, 3 and 11.
STRICT: list[str | None] = [
    "public key: the point is of small order",
    "public key: the point is of small order",
    "signature R: the point is of small order",
    None,
    "signature: the signature does not verify",
    "signature: the signature does not verify",
    "signature S: the scalar is not reduced",
    "signature S: the scalar is not reduced",
    "signature R: the point is of small order",
    "signature R: the point is of small order",
    "public key: the point is of small order",
    "public key: the point is of small order",
]

# Every encoding, canonical or not, of a point whose order divides 8.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]
NON_CANONICAL = [
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def refusal(key: bytes, message: bytes, signature: bytes) -> str | None:
    try:
        verify_signature(key, message, signature)
    except SignatureError as error:
        return f"{error.where}: {error.message}"
    return None


@pytest.mark.parametrize("vector", RFC_8032)
def test_rfc_8032(vector: tuple[str, str, str]) -> None:
    key, message, signature = (bytes.fromhex(item) for item in vector)
    verify_signature(key, message, signature)
    assert refusal(key, message + b"\x00", signature) == "signature: the signature does not verify"


@pytest.mark.parametrize("index", range(12))
def test_speccheck(index: int) -> None:
    case: dict[str, Any] = SPECCHECK[index]
    key, message, signature = (
        bytes.fromhex(case[part]) for part in ("pub_key", "message", "signature")
    )
    assert refusal(key, message, signature) == STRICT[index]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(case["name"]))
def test_the_vectors_of_the_rule(case: dict[str, Any]) -> None:
    key, message, signature = (bytes.fromhex(case[k]) for k in ("key", "message", "signature"))
    assert (refusal(key, message, signature) is None) == case["holds"]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(case["name"]))
def test_the_library_alone_takes_forgeries(case: dict[str, Any]) -> None:
    """What docs/format.md says of OpenSSL: it takes a claim that nobody signed."""
    key, message, signature = (bytes.fromhex(case[k]) for k in ("key", "message", "signature"))
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        taken = True
    except (InvalidSignature, ValueError):
        taken = False
    assert taken == case["openssl"]
    assert taken or not case["holds"]


def test_the_vectors_have_every_speccheck_case() -> None:
    named = {case["name"]: case for case in VECTORS}
    for index, case in enumerate(SPECCHECK):
        found = named[f"speccheck {index}"]
        assert (found["key"], found["message"], found["signature"]) == (
            case["pub_key"],
            case["message"],
            case["signature"],
        )
    forged = [case["name"] for case in VECTORS if case["openssl"] and not case["holds"]]
    assert len(forged) == 6


@pytest.mark.parametrize("encoded", SMALL_ORDER)
def test_points_of_small_order_are_refused(encoded: str) -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[0])
    point = bytes.fromhex(encoded)
    expected = "the point is of small order"
    # S = 0 and R = key = the neutral point satisfies the equation for every message.
    assert refusal(point, message, point + bytes(32)) == f"public key: {expected}"
    assert refusal(key, message, point + signature[32:]) == f"signature R: {expected}"


@pytest.mark.parametrize("encoded", NON_CANONICAL)
def test_points_not_canonically_encoded_are_refused(encoded: str) -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[0])
    point = bytes.fromhex(encoded)
    expected = "the point is not canonically encoded"
    assert refusal(point, message, signature) == f"public key: {expected}"
    assert refusal(key, message, point + signature[32:]) == f"signature R: {expected}"


def test_the_scalar_has_one_form() -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[1])
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 15):
        other = (scalar + multiple * ORDER).to_bytes(32, "little")
        expected = "signature S: the scalar is not reduced"
        assert refusal(key, message, signature[:32] + other) == expected


def test_every_bit_of_key_message_and_signature_counts() -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[2])
    whole = key + signature + message
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        data = bytes(changed)
        assert refusal(data[:32], data[96:], data[32:96]) is not None, bit


def test_lengths() -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[0])
    for length in (0, 31, 33):
        assert refusal((key + b"\x00")[:length], message, signature) == (
            "public key: a public key has 32 bytes"
        )
    for length in (0, 63, 65):
        assert refusal(key, message, (signature + b"\x00")[:length]) == (
            "signature: a signature has 64 bytes"
        )


def test_a_key_no_curve_point_is_refused() -> None:
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[0])
    assert len(key) == 32
    # y = 2 is on no point of the curve.
    off_curve = (2).to_bytes(32, "little")
    assert refusal(off_curve, message, signature) == "signature: the signature does not verify"


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "solver.key"
    key = generate_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_key(load_key(path)) == public_key(key)
    assert len(public_key(key)) == 32
    before = path.read_bytes()
    with pytest.raises(StorageError, match="never overwritten"):
        generate_key(path)
    assert path.read_bytes() == before
    assert public_key(generate_key(tmp_path / "other.key")) != public_key(key)


def test_a_key_file_is_of_a_size_that_a_key_has(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 10_000)
    with pytest.raises(StorageError, match="more than the 4096"):
        load_key(tmp_path / "huge")


def test_key_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        load_key(tmp_path / "absent")
    with pytest.raises(StorageError, match="cannot be read"):
        load_key(tmp_path)
    with pytest.raises(StorageError, match="cannot write the key"):
        generate_key(tmp_path / "absent" / "key")
    generate_key(tmp_path / "key")
    pem = (tmp_path / "key").read_bytes()
    for name, content in {
        "empty": b"",
        "cut": pem[:-30],
        "text": b"not a key\n",
        "long": b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 4000,
        "binary": bytes(range(256)),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(SignatureError) as caught:
            load_key(path)
        assert caught.value.where == str(path)


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    none = serialization.NoEncryption()
    path.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(encoding, form, none))
    with pytest.raises(SignatureError, match="not an Ed25519 key"):
        load_key(path)
    secret = serialization.BestAvailableEncryption(b"word")
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(encoding, form, secret))
    with pytest.raises(SignatureError, match="no unencrypted PEM key"):
        load_key(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_key_that_could_not_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    opened = os.open

    def open_full(name: Path, flags: int, mode: int) -> int:
        os.close(opened(name, flags, mode))
        return opened("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(StorageError, match="No space left"):
        generate_key(path)
    assert not path.exists()
