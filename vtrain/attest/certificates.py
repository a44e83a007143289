"""Certificates of a time-stamping authority, and the path from its own to a root.

The rule is that of docs/format.md ("Time"), a part of RFC 5280 that leaves nothing to choose: a
library's path building goes by the order of certificates that nobody signed, compares names
loosely, and knows more extensions with each version, so that of two auditors one would take a token
that the other refuses.  Keys and signatures are the library's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from vtrain.attest import der
from vtrain.attest.der import Element, Fields
from vtrain.errors import EncodingError

HASHES: Final = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
"""Hash algorithms that are taken, by object identifier."""
_RSA, _EC = "1.2.840.113549.1.1.1", "1.2.840.10045.2.1"
_SIGNATURES: Final = {
    "1.2.840.113549.1.1.11": (_RSA, "sha256"),
    "1.2.840.113549.1.1.12": (_RSA, "sha384"),
    "1.2.840.113549.1.1.13": (_RSA, "sha512"),
    "1.2.840.10045.4.3.2": (_EC, "sha256"),
    "1.2.840.10045.4.3.3": (_EC, "sha384"),
    "1.2.840.10045.4.3.4": (_EC, "sha512"),
}
"""Signature algorithms that are taken: of what key, with what hash."""
_CURVES: Final = frozenset({"1.2.840.10045.3.1.7", "1.3.132.0.34", "1.3.132.0.35"})
_CLASSES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
_RSA_BITS: Final = range(2048, 4096 + 1)
_RSA_EXPONENTS: Final = range(3, 2**64, 2)
_KEY_USAGE, _BASIC, _PURPOSES = "2.5.29.15", "2.5.29.19", "2.5.29.37"
_KNOWN: Final = frozenset({_KEY_USAGE, _BASIC, _PURPOSES})
"""Extensions that may be critical."""
_NAME_CONSTRAINTS: Final = "2.5.29.30"
_TIME_STAMPING: Final = "1.3.6.1.5.5.7.3.8"
_SIGNS, _BINDS, _SIGNS_CERTIFICATES = 0, 1, 5
"""Bits of a keyUsage."""


@dataclass(frozen=True)
class Certificate:
    """What is looked at of a certificate; ``raw`` is all of it, ``signed`` what its issuer
    signed."""

    raw: bytes
    signed: bytes
    algorithm: Element
    signature: bytes
    serial: bytes
    issuer: bytes
    subject: bytes
    since: datetime
    until: datetime
    key: Element
    extensions: Element | None

    @property
    def is_own_issuer(self) -> bool:
        """Whether its two names are one, byte by byte."""
        return self.issuer == self.subject


def read_certificate(element: Element) -> Certificate:
    """A certificate of version 3; EncodingError for what is none."""
    outer = Fields(element, "certificate")
    signed = outer.take(der.SEQUENCE, "what is signed")
    algorithm = outer.take(der.SEQUENCE, "signatureAlgorithm")
    signature = outer.take(der.BIT_STRING, "signature").body
    outer.end()
    if signature[:1] != b"\0":
        raise EncodingError("is not whole bytes", where="certificate: signature")
    fields = Fields(signed, "certificate")
    if fields.take_explicit(0, der.INTEGER, "version").body != b"\2":
        raise EncodingError("is not version 3", where="certificate: version")
    serial = fields.take(der.INTEGER, "serialNumber")
    if fields.take(der.SEQUENCE, "signature").raw != algorithm.raw:
        raise EncodingError("names two algorithms", where="certificate: signatureAlgorithm")
    issuer = fields.take(der.SEQUENCE, "issuer")
    validity = Fields(fields.take(der.SEQUENCE, "validity"), "certificate: validity")
    since, until = _take_time(validity, "notBefore"), _take_time(validity, "notAfter")
    validity.end()
    subject = fields.take(der.SEQUENCE, "subject")
    key = fields.take(der.SEQUENCE, "subjectPublicKeyInfo")
    wrapped = fields.maybe(0xA3)
    fields.end()
    return Certificate(
        raw=element.raw,
        signed=signed.raw,
        algorithm=algorithm,
        signature=signature[1:],
        serial=serial.body,
        issuer=issuer.raw,
        subject=subject.raw,
        since=since,
        until=until,
        key=key,
        extensions=None if wrapped is None else der.take_one(wrapped, der.SEQUENCE, "extensions"),
    )


def _take_time(fields: Fields, name: str) -> datetime:
    short = fields.maybe(der.UTC_TIME)
    if short is None:
        return read_time(fields.take(der.GENERALIZED_TIME, name).body, name)
    century = b"20" if short.body[:2] < b"50" else b"19"
    return read_time(century + short.body, name)


def read_time(text: bytes, name: str) -> datetime:
    """YYYYMMDDHHMMSSZ, in UTC; EncodingError."""
    try:
        if len(text) == 15 and text[:14].isdigit() and text[14:] == b"Z":
            return datetime.strptime(text[:14].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        pass
    raise EncodingError("is no time", where=name)


def read_algorithm(element: Element, name: str) -> str:
    """The identifier of an algorithm without parameters, which are NULL or left out;
    EncodingError."""
    fields = Fields(element, name)
    found = der.read_oid(fields.take(der.OID, "algorithm"))
    fields.maybe(der.NULL)
    fields.end()
    return found


# --- signatures


def verify_with(key: Element, algorithm: str, signature: bytes, data: bytes) -> bool:
    """Whether the holder of a public ``key`` signed ``data`` by the signature ``algorithm``; False
    too for a key or an algorithm that is not taken."""
    try:
        kind, name = _SIGNATURES[algorithm]
        public = _load_key(key, kind)
        if isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, data, padding.PKCS1v15(), _CLASSES[name]())
        else:
            public.verify(signature, data, ec.ECDSA(_CLASSES[name]()))
    except (EncodingError, InvalidSignature, KeyError, UnsupportedAlgorithm, ValueError):
        return False
    return True


def match_algorithm(algorithm: str, hash_name: str) -> str:
    """The signature algorithm that a token means with this hash: one of RSA may leave the hash out;
    "" where it is none that is taken, or has another hash."""
    if algorithm == _RSA:
        return next(name for name, pair in _SIGNATURES.items() if pair == (_RSA, hash_name))
    return algorithm if _SIGNATURES.get(algorithm, ("", ""))[1] == hash_name else ""


def _identify_key(key: Element) -> tuple[str, str]:
    """The kind of a public key and, of one on a curve, that curve; EncodingError."""
    fields = Fields(key, "key")
    about = Fields(fields.take(der.SEQUENCE, "algorithm"), "key: algorithm")
    bits = fields.take(der.BIT_STRING, "subjectPublicKey").body
    fields.end()
    kind = der.read_oid(about.take(der.OID, "algorithm"))
    curve = ""
    if kind == _EC:
        curve = der.read_oid(about.take(der.OID, "curve"))
        # Of the other forms of a point some libraries take one, some both, some none.
        if bits[:2] != b"\0\4":
            raise EncodingError("is a point in another form than both coordinates", where="key")
    else:
        about.take(der.NULL, "parameters")
    about.end()
    return kind, curve


def _load_key(key: Element, kind: str) -> rsa.RSAPublicKey | ec.EllipticCurvePublicKey:
    """A key of this kind; ValueError, EncodingError, UnsupportedAlgorithm."""
    found, curve = _identify_key(key)
    if found != kind or (kind == _EC and curve not in _CURVES):
        raise ValueError("is of another kind")
    public = load_der_public_key(key.raw)
    if isinstance(public, rsa.RSAPublicKey):
        exponent = public.public_numbers().e
        if public.key_size not in _RSA_BITS or exponent not in _RSA_EXPONENTS:
            raise ValueError("is too short, or too long")
        return public
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise ValueError("is of another kind")
    return public


# --- paths


def find_path(
    signer: Certificate, others: Sequence[Certificate], root: Certificate, time: datetime
) -> str:
    """Why no path leads from ``signer``, over ``others``, to ``root`` at ``time``; "" where one
    does.

    Certificates are reached by as few others as can be, which is best for every limit on a path's
    length: so no order matters, and each is looked at once.
    """
    if not root.is_own_issuer:
        return "the root is not its own issuer"
    if reason := _refuse(signer, time, signer=True):
        return f"the signer's certificate {reason}"
    reason = "no certificate given leads to the root"
    between, reached = 0, [signer]
    left = [other for other in others if other.raw != signer.raw]
    while reached:
        if any(one.raw == root.raw for one in reached):
            return ""
        if any(_issued(one, root) for one in reached):
            refused = _refuse(root, time, between=between)
            if not refused:
                return ""
            reason = f"the root {refused}"
        found = []
        for other in left:
            if any(_issued(one, other) for one in reached):
                refused = _refuse(other, time, between=between)
                if refused:
                    reason = f"a certificate between signer and root {refused}"
                else:
                    found.append(other)
        left = [other for other in left if other not in found]
        between, reached = between + 1, found
    return reason


def _issued(one: Certificate, by: Certificate) -> bool:
    """Whether ``by`` is named as the issuer of ``one``, and signed it."""
    if one.issuer != by.subject:
        return False
    try:
        algorithm = read_algorithm(one.algorithm, "certificate: signatureAlgorithm")
    except EncodingError:
        return False
    return verify_with(by.key, algorithm, one.signature, one.signed)


def _refuse(
    certificate: Certificate, time: datetime, *, signer: bool = False, between: int = 0
) -> str:
    """Why a certificate cannot be on a path at ``time``, as that of the signer, or as that of a CA
    with so many ``between`` it and the signer; "" where it can."""
    if not certificate.since <= time < certificate.until:
        return "was not valid at the token's time"
    try:
        extensions = _read_extensions(certificate)
        for name, (critical, _) in extensions.items():
            if name == _NAME_CONSTRAINTS or (critical and name not in _KNOWN):
                return f"has the extension {name}, which nobody takes"
        return _refuse_signer(extensions) if signer else _refuse_ca(extensions, between)
    except EncodingError as error:
        return f"is malformed: {error.where}: {error.message}"


_Extensions = dict[str, tuple[bool, bytes]]
"""By identifier: whether it is critical, and its value."""


def _read_extensions(certificate: Certificate) -> _Extensions:
    found: _Extensions = {}
    for item in () if certificate.extensions is None else certificate.extensions.items:
        fields = Fields(item, "extension")
        name = der.read_oid(fields.take(der.OID, "extnID"))
        critical = fields.maybe(der.BOOLEAN)
        value = fields.take(der.OCTET_STRING, "extnValue").body
        fields.end()
        _require_true(critical, f"extension {name}")
        if name in found:
            raise EncodingError("is there twice", where=f"extension {name}")
        found[name] = (critical is not None, value)
    return found


def _require_true(flag: Element | None, where: str) -> None:
    """EncodingError for a truth value that says false, which DER leaves out."""
    if flag is not None and flag.body != b"\xff":
        raise EncodingError("says false, which is left out", where=where)


def _read_value(extensions: _Extensions, name: str, tag: int) -> Element | None:
    if name not in extensions:
        return None
    found = der.read_der(extensions[name][1])
    if found.tag != tag:
        raise EncodingError("is of another type", where=f"extension {name}")
    return found


def _refuse_signer(extensions: _Extensions) -> str:
    purposes = _read_value(extensions, _PURPOSES, der.SEQUENCE)
    named = [] if purposes is None else [_read_purpose(item) for item in purposes.items]
    if named != [_TIME_STAMPING] or not extensions[_PURPOSES][0]:
        return "is not for time stamps alone, as a critical extendedKeyUsage says it"
    usage = _read_value(extensions, _KEY_USAGE, der.BIT_STRING)
    if usage is not None:
        bits = der.read_bits(usage, "keyUsage")
        if not bits or bits - {_SIGNS, _BINDS}:
            return "has a keyUsage that is not digitalSignature or nonRepudiation alone"
    return ""


def _read_purpose(item: Element) -> str:
    return der.read_oid(item) if item.tag == der.OID else ""


def _refuse_ca(extensions: _Extensions, between: int) -> str:
    basic = _read_value(extensions, _BASIC, der.SEQUENCE)
    if basic is None:
        return "is of no CA by its basicConstraints"
    fields = Fields(basic, "basicConstraints")
    ca, most = fields.maybe(der.BOOLEAN), fields.maybe(der.INTEGER)
    fields.end()
    _require_true(ca, "basicConstraints: cA")
    if ca is None:
        return "is of no CA by its basicConstraints"
    if most is not None and not 0 <= between <= der.read_integer(most):
        return f"has {between} certificates between it and the signer, more than it allows"
    usage = _read_value(extensions, _KEY_USAGE, der.BIT_STRING)
    if usage is not None and _SIGNS_CERTIFICATES not in der.read_bits(usage, "keyUsage"):
        return "has a keyUsage without keyCertSign"
    return ""


def compute_hash(name: str, data: bytes) -> bytes:
    """The hash of that name, one of :data:`HASHES`."""
    return hashlib.new(name, data).digest()
