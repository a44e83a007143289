"""Ed25519 keys on disk and strict Ed25519 verification; BLS keys on disk.

A key file is unencrypted PKCS #8 in PEM, readable by its owner alone; of a BLS key, for which there
is no such form, two lines: what it is, and the secret in hexadecimal.

Verification is RFC 8032's without cofactor, and stricter where RFC 8032 leaves room (Chalkias,
Garillot, Nikolaenko, "Taming the many EdDSAs", 2020): keys and R must be canonical encodings of
points and not of small order, as ``verify_strict`` of ed25519-dalek has it.  So a signature is
bound to one key and one message, and two verifiers never disagree.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vtrain.commit.files import read_file
from vtrain.errors import SignatureError, StorageError
from vtrain.limits import LIMITS
from vtrain.wire.claim import PUBLIC_KEY_LENGTH, SIGNATURE_LENGTH

PrivateKey = Ed25519PrivateKey

_FIELD: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_BLS_ORDER: Final = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
_Y_MASK: Final = 2**255 - 1
# The y coordinates of the eight points whose order divides the cofactor 8.
_SMALL_ORDER_8: Final = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_SMALL_ORDER_Y: Final = frozenset({0, 1, _FIELD - 1, _SMALL_ORDER_8, _FIELD - _SMALL_ORDER_8})


_BLS_HEADER: Final = b"vtrain bls12-381 secret 1\n"


@dataclass(frozen=True)
class BlsSecret:
    """A secret key of BLS12-381, with which reports are signed (:mod:`vtrain.attest.bls`)."""

    scalar: int = field(repr=False)


def generate_key(path: Path) -> PrivateKey:
    """Make a key and write it to the new file ``path``, readable by its owner alone (0600).

    StorageError when the file exists, which is never overwritten, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_secret(path, pem)
    return key


def generate_bls_key(path: Path) -> BlsSecret:
    """Make a BLS key as :func:`generate_key` makes one; MissingExtraError without py_ecc."""
    from vtrain.attest.bls import generate_secret

    secret = BlsSecret(generate_secret(secrets.token_bytes(32)))
    _write_secret(path, _BLS_HEADER + secret.scalar.to_bytes(32).hex().encode() + b"\n")
    return secret


def load_signing_key(path: Path) -> PrivateKey | BlsSecret:
    """The key in the file ``path``, of either kind; errors as of :func:`load_key`."""
    data = read_file(path, LIMITS.key_bytes, error=StorageError)
    if not data.startswith(_BLS_HEADER):
        return load_key(path)
    found = re.fullmatch(rb"([0-9a-f]{64})\n?", data.removeprefix(_BLS_HEADER))
    scalar = int(found[1], 16) if found else 0
    if not 0 < scalar < _BLS_ORDER:
        raise SignatureError("the file holds no BLS secret", where=str(path))
    return BlsSecret(scalar)


def _write_secret(path: Path, pem: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise StorageError("exists already; a key is never overwritten", where=str(path)) from error
    except OSError as error:
        raise StorageError(f"cannot write the key: {error.strerror}", where=str(path)) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StorageError(f"cannot write the key: {error.strerror}", where=str(path)) from error


def load_key(path: Path) -> PrivateKey:
    """The key in the file ``path``.

    StorageError when it is no regular file, too large for a key or cannot be read; SignatureError
    when it holds no unencrypted Ed25519 key.
    """
    pem = read_file(path, LIMITS.key_bytes, error=StorageError)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SignatureError("the file holds no unencrypted PEM key", where=str(path)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError("the key is not an Ed25519 key", where=str(path))
    return key


def public_key(key: PrivateKey) -> bytes:
    """The public key (32 bytes) that belongs to ``key``."""
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def verify_signature(key: bytes, message: bytes, signature: bytes) -> None:
    """SignatureError unless ``signature`` (64 bytes) of ``message`` is by ``key`` (32 bytes)."""
    if len(key) != PUBLIC_KEY_LENGTH:
        raise SignatureError("a public key has 32 bytes", where="public key")
    if len(signature) != SIGNATURE_LENGTH:
        raise SignatureError("a signature has 64 bytes", where="signature")
    _check_point(key, "public key")
    _check_point(signature[:32], "signature R")
    if int.from_bytes(signature[32:], "little") >= _ORDER:
        raise SignatureError("the scalar is not reduced", where="signature S")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise SignatureError("the signature does not verify", where="signature") from error


def _check_point(encoded: bytes, where: str) -> None:
    # The sign bit on top of y is canonical too: x = 0 only at y = +-1, which is of small order.
    y = int.from_bytes(encoded, "little") & _Y_MASK
    if y >= _FIELD:
        raise SignatureError("the point is not canonically encoded", where=where)
    if y in _SMALL_ORDER_Y:
        raise SignatureError("the point is of small order", where=where)
