"""When something existed at the latest: tokens of a time-stamping authority (RFC 3161).

The authority signs a hash of the bytes with its time.  A token is checked offline, against root
certificates that the caller trusts, as they were at the token's time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vtrain.commit.files import read_file
from vtrain.errors import MissingExtraError, StorageError, TimestampError
from vtrain.limits import LIMITS

if TYPE_CHECKING:
    from cryptography import x509

_HASHES: Final = {
    "2.16.840.1.101.3.4.2.1": hashlib.sha256,
    "2.16.840.1.101.3.4.2.2": hashlib.sha384,
    "2.16.840.1.101.3.4.2.3": hashlib.sha512,
}
"""What a token may have hashed by, by object identifier."""
_MOST_ACCURACY: Final = 3600
"""Seconds by which a token may say that its time is off."""


@dataclass(frozen=True)
class ProvenTime:
    """The bytes existed at ``latest``, in UTC: the token's time and what it may be off by.

    ``authority`` names the root certificate that this rests on, ``root`` is the SHA-256 of its DER.
    """

    latest: datetime
    authority: str
    root: bytes


def require_extra() -> None:
    """MissingExtraError, with the command that installs it, unless tokens can be read here."""
    if util.find_spec("rfc3161_client") is None:
        command = f"{sys.executable} -m pip install 'vtrain[report]'"
        raise MissingExtraError(f"needs rfc3161_client: {command}", where="rfc3161_client")


def make_request(message: bytes) -> bytes:
    """A request (DER, `application/timestamp-query`) for a token of ``message``, with a nonce and
    for the authority's certificates."""
    require_extra()
    from rfc3161_client import TimestampRequestBuilder

    return bytes(TimestampRequestBuilder(data=message).build().as_bytes())


def load_roots(path: Path) -> tuple[x509.Certificate, ...]:
    """The root certificates in a file, PEM (one or more) or DER.

    TimestampError where it holds none; StorageError where it cannot be read.
    """
    from cryptography import x509

    data = read_file(path, LIMITS.roots_bytes, error=StorageError)
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            return tuple(x509.load_pem_x509_certificates(data))
        return (x509.load_der_x509_certificate(data),)
    except ValueError as error:
        raise TimestampError(f"is no certificate: {error}", where=str(path)) from None


def identify_root(root: x509.Certificate) -> bytes:
    """The SHA-256 of a certificate's DER, 32 bytes: what a task pins of an authority."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return hashlib.sha256(root.public_bytes(Encoding.DER)).digest()


def read_token(path: Path) -> bytes:
    """The bytes of a token's file; StorageError where it cannot be read."""
    return read_file(path, LIMITS.timestamp_bytes, error=StorageError)


def verify_token(
    token: bytes, message: bytes, roots: Sequence[x509.Certificate], where: str = "token"
) -> ProvenTime:
    """When ``message`` existed at the latest, by a response (DER, `application/timestamp-reply`)
    of an authority whose certificate leads to one of ``roots``.

    TimestampError, at ``where``, for bytes that are no granted response, a token of another
    message, a signature that does not hold, a certificate that leads to none of the roots, was not
    valid at the token's time or is not for time stamps.
    """
    require_extra()
    import rfc3161_client

    if not roots:
        raise TimestampError("there is no root certificate to hold it against", where=where)
    try:
        response = rfc3161_client.decode_timestamp_response(token)
        if response.status != rfc3161_client.PKIStatus.GRANTED:
            raise TimestampError(f"was not granted: status {response.status}", where=where)
        info = response.tst_info
        name = info.message_imprint.hash_algorithm.dotted_string
        if name not in _HASHES:
            raise TimestampError(f"is of a hash that is not taken here, {name}", where=where)
        hashed = _HASHES[name](message).digest()
        if info.message_imprint.message != hashed:
            raise TimestampError("is of other bytes than these", where=where)
        _require_one_signer(response.signed_data, where)
    except TimestampError:
        raise
    except Exception as error:  # noqa: BLE001 - of a stranger's DER, whatever its readers meet
        raise TimestampError(f"is no response of an authority: {error}", where=where) from None
    reason = "nothing was tried"
    for root in roots:
        verifier = rfc3161_client.VerifierBuilder().add_root_certificate(root).build()
        try:
            verifier.verify(response, hashed)
        except Exception as error:  # noqa: BLE001 - as before
            reason = str(error).strip() or type(error).__name__
            continue
        latest = _as_utc(info.gen_time) + _read_accuracy(info.accuracy, where)
        return ProvenTime(latest, root.subject.rfc4514_string(), identify_root(root))
    raise TimestampError(f"does not hold against the roots given: {reason}", where=where)


def _require_one_signer(signed: Any, where: str) -> None:
    """TimestampError where the signer's certificate is not one alone.

    It is named by issuer and number, and what certificates a token brings nobody has signed: of two
    that have them, one could be looked at for its purpose and the other for its key.
    """
    from cryptography import x509

    names = {(signer.issuer, signer.serial_number) for signer in signed.signer_infos}
    certificates = [x509.load_der_x509_certificate(data) for data in signed.certificates]
    found = [cert for cert in certificates if (cert.issuer, cert.serial_number) in names]
    if len(found) > 1:
        raise TimestampError("has two certificates of its signer's name and number", where=where)


def _as_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _read_accuracy(accuracy: Any, where: str) -> timedelta:
    """By how much the true time may be later; nothing where the token does not say."""
    if accuracy is None:
        return timedelta()
    parts = accuracy.seconds or 0, accuracy.millis or 0, accuracy.micros or 0
    micros = (parts[0] * 1000 + parts[1]) * 1000 + parts[2]
    if not 0 <= micros <= _MOST_ACCURACY * 1_000_000:
        raise TimestampError(f"may be off by {micros} microseconds, too much", where=where)
    return timedelta(microseconds=micros)
