"""When something existed at the latest: tokens of a time-stamping authority (RFC 3161).

The authority signs a hash of the bytes with its time.  A token is checked offline, against root
certificates that the caller trusts, as they were at the token's time.  What is taken is a part of
RFC 3161 and RFC 5652 that docs/format.md ("Time") names; whatever is outside it is refused, so that
every auditor says the same.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from importlib import util
from pathlib import Path
from typing import Final

from vtrain.attest import der
from vtrain.attest.certificates import (
    HASHES,
    Certificate,
    compute_hash,
    find_path,
    match_algorithm,
    read_algorithm,
    read_certificate,
    read_time,
    verify_with,
)
from vtrain.attest.der import Element, Fields
from vtrain.commit.files import read_file
from vtrain.errors import EncodingError, MissingExtraError, StorageError, TimestampError
from vtrain.limits import LIMITS

_SIGNED_DATA, _TST_INFO = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE, _MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
_PEM_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_PEM_END: Final = b"-----END CERTIFICATE-----"
_EXPLICIT, _CERTIFICATES, _REVOKED, _UNSIGNED = 0xA0, 0xA0, 0xA1, 0xA1
"""Tags of a SignedData's content and of the fields in it, and in a SignerInfo."""
_MOST_ACCURACY: Final = 3600
"""Seconds by which a token may say that its time is off."""
_MOST_CERTIFICATES: Final = 16


@dataclass(frozen=True)
class ProvenTime:
    """The bytes existed at ``latest``, in UTC: the token's time and what it may be off by.

    ``authority`` names the root certificate that this rests on, ``root`` is the SHA-256 of its DER.
    """

    latest: datetime
    authority: str
    root: bytes


def require_extra() -> None:
    """MissingExtraError, with the command that installs it, unless requests can be made here."""
    if util.find_spec("rfc3161_client") is None:
        command = f"{sys.executable} -m pip install 'vtrain[report]'"
        raise MissingExtraError(f"needs rfc3161_client: {command}", where="rfc3161_client")


def make_request(message: bytes) -> bytes:
    """A request (DER, `application/timestamp-query`) for a token of ``message``, with a nonce and
    for the authority's certificates."""
    require_extra()
    from rfc3161_client import TimestampRequestBuilder

    return bytes(TimestampRequestBuilder(data=message).build().as_bytes())


def load_roots(path: Path) -> tuple[bytes, ...]:
    """The root certificates (DER) in a file, PEM (one or more) or DER (docs/format.md, *Files*):
    those that can serve, which may be none.

    TimestampError for a file of another form; StorageError where it cannot be read.
    """
    data = read_file(path, LIMITS.roots_bytes, error=StorageError)
    try:
        blocks = _read_pem(data) if data.lstrip().startswith(b"-----BEGIN") else [data]
        found = [block for block in blocks if _can_serve(der.read_der(block))]
    except EncodingError as error:
        place = f"{error.where}: " if error.where else ""
        reason = f"is no certificate: {place}{error.message}"
        raise TimestampError(reason, where=str(path)) from None
    return tuple(found)


def _read_pem(data: bytes) -> list[bytes]:
    """What the blocks of certificates have, one at least; EncodingError.

    By lines, and by our own reading: RFC 7468 has three grammars, and libraries others still.
    """
    found, block = list[bytes](), None
    for number, line in enumerate(map(bytes.strip, data.split(b"\n")), 1):
        if block is None:
            block = list[bytes]() if line == _PEM_BEGIN else None
        elif line != _PEM_END:
            block.append(line)
        else:
            text = b"".join(block)
            try:
                content = base64.b64decode(text, validate=True)
            except ValueError:
                content = b""
            if base64.b64encode(content) != text:
                raise EncodingError("a block of PEM is no base64", where=f"line {number}")
            found.append(content)
            block = None
    if block is not None or not found:
        raise EncodingError("is PEM without a whole block of a certificate")
    return found


def _can_serve(element: Element) -> bool:
    """Whether a path may lead to this: not to what is DER, and no certificate that is taken."""
    try:
        read_certificate(element)
    except EncodingError:
        return False
    return True


def _name_subject(root: bytes) -> str:
    """A root's subject, for people; "" where its values are no text, or a library does not take
    the certificate, as nobody has to see them."""
    from cryptography import x509

    try:
        return x509.load_der_x509_certificate(root).subject.rfc4514_string()
    except (ValueError, x509.InvalidVersion):
        return ""


def identify_root(root: bytes) -> bytes:
    """The SHA-256 of a certificate's DER, 32 bytes: what a task pins of an authority."""
    return hashlib.sha256(root).digest()


def read_token(path: Path) -> bytes:
    """The bytes of a token's file; StorageError where it cannot be read."""
    return read_file(path, LIMITS.timestamp_bytes, error=StorageError)


def order_token(token: bytes, where: str = "token") -> bytes:
    """The same response with what nobody signs of it as audits take it: certificates in the order
    of a set, each once, no lists of revoked ones, no attributes beside the signed ones.

    Many authorities send their certificates from their own to the root's.  TimestampError, at
    ``where``, for what is no response.
    """
    try:
        return _order(der.read_der(token))
    except EncodingError as error:
        raise TimestampError(_describe(error), where=where) from None


def _describe(error: EncodingError) -> str:
    place = f"{error.where}: " if error.where else ""
    return f"is no response of an authority: {place}{error.message}"


def _order(element: Element) -> bytes:
    response = Fields(element, "response")
    status = response.take(der.SEQUENCE, "status")
    token = Fields(response.take(der.SEQUENCE, "timeStampToken"), "timeStampToken")
    response.end()
    kind = token.take(der.OID, "contentType")
    data = Fields(token.take_explicit(0, der.SEQUENCE, "content"), "SignedData")
    token.end()
    fields = [
        data.take(der.INTEGER, "version").raw,
        data.take(der.SET, "digestAlgorithms").raw,
        data.take(der.SEQUENCE, "encapContentInfo").raw,
    ]
    certificates = data.maybe(_CERTIFICATES)
    if certificates is not None:
        each = sorted({item.raw for item in certificates.items})
        fields.append(der.write_der(_CERTIFICATES, *each))
    data.maybe(_REVOKED)
    signers = [
        der.write_der(signer.tag, *(item.raw for item in signer.items if item.tag != _UNSIGNED))
        for signer in data.take(der.SET, "signerInfos").items
    ]
    data.end()
    fields.append(der.write_der(der.SET, *sorted(signers)))
    content = der.write_der(_EXPLICIT, der.write_der(der.SEQUENCE, *fields))
    whole = der.write_der(der.SEQUENCE, kind.raw, content)
    return der.write_der(der.SEQUENCE, status.raw, whole)


def _suggest(token: bytes) -> str:
    """What puts a response right that is refused for what nobody signs of it; "" for others."""
    try:
        _read_response(der.read_der(order_token(token)))
    except (EncodingError, TimestampError):
        return ""
    return "; nobody signs that: vtrain claim RUN --token FILE --ordered NEW puts it in order"


def verify_token(
    token: bytes, message: bytes, roots: Sequence[bytes], where: str = "token"
) -> ProvenTime:
    """When ``message`` existed at the latest, by a response (DER, `application/timestamp-reply`)
    of an authority whose certificate leads to one of ``roots`` (DER), the first that holds.

    TimestampError, at ``where``, for bytes that are no granted response, a token of another
    message, a signature that does not hold, a certificate that leads to none of the roots, was not
    valid at the token's time or is not for time stamps.
    """
    if not roots:
        raise TimestampError("there is no root certificate to hold it against", where=where)
    try:
        found = _read_response(der.read_der(token))
    except EncodingError as error:
        reason = _describe(error) + _suggest(token)
        raise TimestampError(reason, where=where) from None
    try:
        info = _read_info(der.read_der(found.content))
    except EncodingError as error:
        reason = _describe(error)
        raise TimestampError(reason, where=where) from None
    if info.imprint != compute_hash(info.imprint_hash, message):
        raise TimestampError("is of other bytes than these", where=where)
    if info.accuracy > _MOST_ACCURACY:
        micros = int(info.accuracy * 1_000_000)
        raise TimestampError(f"may be off by {micros} microseconds, too much", where=where)
    signer = _find_signer(found, where)
    if not verify_with(signer.key, found.algorithm, found.signature, found.signed):
        raise TimestampError("the signature does not hold for its certificate", where=where)
    reason = "nothing was tried"
    for root in roots:
        try:
            trusted = read_certificate(der.read_der(root))
        except EncodingError as error:
            reason = f"a root is no certificate that is taken: {error.where}: {error.message}"
            continue
        reason = find_path(signer, found.certificates, trusted, info.time)
        if not reason:
            latest = _compute_latest(info, where)
            return ProvenTime(latest, _name_subject(root), identify_root(root))
    raise TimestampError(f"does not hold against the roots given: {reason}", where=where)


# --- what a response says


@dataclass(frozen=True)
class _Response:
    """``signed`` are the bytes under the ``signature``, which bind the ``content``; ``issuer`` and
    ``serial`` name the signer's certificate."""

    content: bytes
    certificates: tuple[Certificate, ...]
    issuer: bytes
    serial: bytes
    algorithm: str
    signed: bytes
    signature: bytes


def _read_response(element: Element) -> _Response:
    """A response that was granted; EncodingError for any other, and where its content is not what
    the signed attributes are of."""
    _require_tag(element, der.SEQUENCE, "response")
    response = Fields(element, "response")
    status = Fields(response.take(der.SEQUENCE, "status"), "status")
    number = der.read_integer(status.take(der.INTEGER, "status"))
    if number != 0:
        raise EncodingError(f"was not granted: status {number}")
    texts = status.maybe(der.SEQUENCE)
    for text in () if texts is None else texts.items:
        _require_tag(text, der.UTF8_STRING, "statusString")
    status.end()
    token = Fields(response.take(der.SEQUENCE, "timeStampToken"), "timeStampToken")
    response.end()
    _require_oid(token, _SIGNED_DATA, "contentType")
    data = Fields(token.take_explicit(0, der.SEQUENCE, "content"), "SignedData")
    token.end()
    _require_version(data, 3)
    digests = der.take_one(data.take(der.SET, "digestAlgorithms"), der.SEQUENCE, "digestAlgorithms")
    hash_name = _read_hash(digests, "digestAlgorithms")
    wrapped = Fields(data.take(der.SEQUENCE, "encapContentInfo"), "encapContentInfo")
    _require_oid(wrapped, _TST_INFO, "eContentType")
    content = wrapped.take_explicit(0, der.OCTET_STRING, "eContent").body
    wrapped.end()
    certificates = data.take(0xA0, "certificates").items
    if not der.is_in_order(certificates):
        raise EncodingError("are not in the order of a set", where="certificates")
    if not 1 <= len(certificates) <= _MOST_CERTIFICATES:
        raise EncodingError(f"are not 1 to {_MOST_CERTIFICATES}", where="certificates")
    for one in certificates:
        _require_tag(one, der.SEQUENCE, "certificates")
    signer = Fields(
        der.take_one(data.take(der.SET, "signerInfos"), der.SEQUENCE, "signerInfos"), "SignerInfo"
    )
    data.end()
    _require_version(signer, 1)
    named = Fields(signer.take(der.SEQUENCE, "issuerAndSerialNumber"), "issuerAndSerialNumber")
    issuer, serial = named.take(der.SEQUENCE, "issuer"), named.take(der.INTEGER, "serialNumber")
    named.end()
    if _read_hash(signer.take(der.SEQUENCE, "digestAlgorithm"), "digestAlgorithm") != hash_name:
        raise EncodingError("is another than that of the SignedData", where="digestAlgorithm")
    attributes = signer.take(0xA0, "signedAttrs")
    _check_attributes(attributes, compute_hash(hash_name, content))
    meant = read_algorithm(signer.take(der.SEQUENCE, "signatureAlgorithm"), "signatureAlgorithm")
    algorithm = match_algorithm(meant, hash_name)
    if not algorithm:
        raise EncodingError(f"is {meant}, which is not taken here", where="signatureAlgorithm")
    signature = signer.take(der.OCTET_STRING, "signature").body
    signer.end()
    return _Response(
        content=content,
        certificates=tuple(map(read_certificate, certificates)),
        issuer=issuer.raw,
        serial=serial.body,
        algorithm=algorithm,
        signed=bytes([der.SET]) + attributes.raw[1:],
        signature=signature,
    )


def _check_attributes(attributes: Element, digest: bytes) -> None:
    """EncodingError unless the signed attributes are of a TSTInfo with this ``digest``."""
    if not der.is_in_order(attributes.items):
        raise EncodingError("are not in the order of a set", where="signedAttrs")
    values: dict[str, tuple[Element, ...]] = {}
    for item in attributes.items:
        _require_tag(item, der.SEQUENCE, "signedAttrs")
        fields = Fields(item, "signedAttrs")
        name = der.read_oid(fields.take(der.OID, "type"))
        if name in values:
            raise EncodingError(f"has {name} twice", where="signedAttrs")
        values[name] = fields.take(der.SET, "values").items
        fields.end()

    def find(name: str, tag: int) -> Element:
        found = values.get(name, ())
        if len(found) != 1 or found[0].tag != tag:
            raise EncodingError(f"has no {name}, or not one value of it", where="signedAttrs")
        return found[0]

    if der.read_oid(find(_CONTENT_TYPE, der.OID)) != _TST_INFO:
        raise EncodingError("is not that of a TSTInfo", where="content-type")
    if find(_MESSAGE_DIGEST, der.OCTET_STRING).body != digest:
        raise EncodingError("is not that of the content", where="message-digest")


@dataclass(frozen=True)
class _Info:
    """What an authority signed: the hash of the message, the ``time`` in whole seconds, the
    ``fraction`` of a second after it, and the seconds (``accuracy``) that it may be off by."""

    imprint_hash: str
    imprint: bytes
    time: datetime
    fraction: Fraction
    accuracy: Fraction


def _read_info(element: Element) -> _Info:
    """A TSTInfo; EncodingError."""
    _require_tag(element, der.SEQUENCE, "TSTInfo")
    info = Fields(element, "TSTInfo")
    _require_version(info, 1)
    info.take(der.OID, "policy")
    imprint = Fields(info.take(der.SEQUENCE, "messageImprint"), "messageImprint")
    hash_name = _read_hash(imprint.take(der.SEQUENCE, "hashAlgorithm"), "messageImprint")
    hashed = imprint.take(der.OCTET_STRING, "hashedMessage").body
    imprint.end()
    info.take(der.INTEGER, "serialNumber")
    time, fraction = _read_gen_time(info.take(der.GENERALIZED_TIME, "genTime").body)
    accuracy = _read_accuracy(info.maybe(der.SEQUENCE))
    ordering = info.maybe(der.BOOLEAN)
    if ordering is not None and ordering.body != b"\xff":
        raise EncodingError("says false, which is left out", where="TSTInfo: ordering")
    for unread in (der.INTEGER, 0xA0, 0xA1):  # nonce, tsa, extensions
        info.maybe(unread)
    info.end()
    return _Info(hash_name, hashed, time, fraction, accuracy)


def _read_gen_time(text: bytes) -> tuple[datetime, Fraction]:
    """A time in whole seconds, and the fraction of a second after it."""
    found = re.fullmatch(rb"([0-9]{14})(?:\.([0-9]*[1-9]))?Z", text)
    if found is None:
        raise EncodingError("is no time", where="TSTInfo: genTime")
    digits = found[2] or b""
    # More digits than a number can be made of say no more than those before them and one.
    kept = digits if len(digits) <= 1000 else digits[:1000] + b"1"
    fraction = Fraction(int(kept or b"0"), 10 ** len(kept))
    return read_time(found[1] + b"Z", "TSTInfo: genTime"), fraction


def _read_accuracy(element: Element | None) -> Fraction:
    """By how many seconds the true time may be later; 0 where the token does not say."""
    if element is None:
        return Fraction(0)
    fields, total = Fields(element, "TSTInfo: accuracy"), Fraction(0)
    seconds = fields.maybe(der.INTEGER)
    if seconds is not None:
        total += der.read_integer(seconds)
    if total < 0:
        raise EncodingError("is negative", where="TSTInfo: accuracy")
    for tag, unit in ((0x80, 1000), (0x81, 1_000_000)):
        part = fields.maybe(tag)
        if part is None:
            continue
        value = der.read_integer(part)
        if not 1 <= value <= 999 or not der.is_short(part.body):
            raise EncodingError("is not 1 to 999", where="TSTInfo: accuracy")
        total += Fraction(value, unit)
    fields.end()
    return total


def _require_tag(element: Element, tag: int, name: str) -> None:
    if element.tag != tag:
        raise EncodingError("is of another type", where=name)


def _require_oid(fields: Fields, due: str, name: str) -> None:
    found = der.read_oid(fields.take(der.OID, name))
    if found != due:
        raise EncodingError(f"is {found}, not {due}", where=name)


def _require_version(fields: Fields, due: int) -> None:
    found = der.read_integer(fields.take(der.INTEGER, "version"))
    if found != due:
        raise EncodingError(f"is {found}, not {due}", where="version")


def _read_hash(element: Element, name: str) -> str:
    found = read_algorithm(element, name)
    if found not in HASHES:
        raise EncodingError(f"is of a hash that is not taken here, {found}", where=name)
    return HASHES[found]


# --- what follows from it


def _find_signer(found: _Response, where: str) -> Certificate:
    """The signer's certificate; TimestampError where there is not just one.

    It is named by issuer and number, and what certificates a token brings nobody has signed: of two
    that have them, one could be looked at for its purpose and the other for its key.
    """
    named = [
        one
        for one in found.certificates
        if (one.issuer, one.serial) == (found.issuer, found.serial)
    ]
    if len(named) != 1:
        count = "two certificates" if named else "no certificate"
        raise TimestampError(f"has {count} of its signer's name and number", where=where)
    return named[0]


def _compute_latest(info: _Info, where: str) -> datetime:
    """The token's time and what it may be off by, in microseconds that are begun."""
    late = info.fraction + info.accuracy
    micros = -(-late.numerator * 1_000_000 // late.denominator)
    try:
        return info.time + timedelta(microseconds=micros)
    except OverflowError:
        raise TimestampError("is of a time after the year 9999", where=where) from None
