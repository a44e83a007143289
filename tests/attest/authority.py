"""A time-stamping authority of the tests' own (RFC 3161), which says what it is told.

Its responses are DER made here by hand: no library at hand signs a time of one's choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vtrain.attest.der import read_der

_DATA, _TST = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE, _MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
_SIGNING_TIME = "1.2.840.113549.1.9.5"
_SHA256, _SHA1 = "2.16.840.1.101.3.4.2.1", "1.3.14.3.2.26"
_ECDSA, _ECDSA_384 = "1.2.840.10045.4.3.2", "1.2.840.10045.4.3.3"
_RSA, _ED25519 = "1.2.840.113549.1.1.1", "1.3.101.112"
_FROM, _TO = datetime(2015, 1, 1, tzinfo=UTC), datetime(2049, 1, 1, tzinfo=UTC)


def der_of(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    if size < 128:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def _integer(value: int) -> bytes:
    return der_of(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytearray([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        out.extend(reversed(digits))
    return der_of(0x06, bytes(out))


def _sequence(*parts: bytes) -> bytes:
    return der_of(0x30, *parts)


def _set(parts: Sequence[bytes]) -> bytes:
    return der_of(0x31, *sorted(parts))


_HASH = _sequence(_oid(_SHA256), der_of(0x05))
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
Parts = Mapping[str, Any]
"""What a response has otherwise, by the names that :meth:`Authority.stamp` gives its parts."""


def _sign(key: Key, data: bytes) -> tuple[str, bytes]:
    """The algorithm of a signature with SHA-256, where the key leaves a choice, and it."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return _ECDSA, key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return _RSA, key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return _ED25519, key.sign(data)


@dataclass(frozen=True)
class Authority:
    """A root certificate, and a certificate for time stamps that leads to it."""

    key: Key
    leaf: x509.Certificate
    root: x509.Certificate

    @property
    def trusted(self) -> bytes:
        """The root's DER: what an auditor has of it."""
        return self.root.public_bytes(Encoding.DER)

    def stamp(
        self,
        message: bytes,
        time: datetime,
        *,
        accuracy: int | None = None,
        status: int = 0,
        others: Sequence[bytes] = (),
        parts: Parts | None = None,
    ) -> bytes:
        """A response that ``message`` existed at ``time``, to the second, with ``others`` (DER)
        among its certificates, which no signature is of, and with these ``parts``."""
        get = dict(parts or {}).get
        stamped = time.strftime("%Y%m%d%H%M%S").encode()
        info = [
            _integer(get("info_version", 1)),
            _oid("1.3.6.1.4.1.99999.1"),
            _sequence(_HASH, der_of(0x04, hashlib.sha256(message).digest())),
            _integer(7),
            der_of(0x18, get("time", stamped) + get("fraction", b"") + b"Z"),
        ]
        if accuracy is not None:
            info.append(_sequence(_integer(accuracy)))
        content = _sequence(*info, get("after_time", b""))
        digest = hashlib.sha256(get("digest_of", content)).digest()
        attributes = [
            _sequence(_oid(_CONTENT_TYPE), _set([get("content_type", _oid(_TST))])),
            _sequence(_oid(_MESSAGE_DIGEST), _set([der_of(0x04, digest)])),
            *get("attributes", ()),
        ]
        bare = get("bare", False)
        algorithm, signature = _sign(self.key, content if bare else _set(attributes))
        names = self.leaf.issuer.public_bytes(), _integer(self.leaf.serial_number)
        signer = _sequence(
            _integer(get("signer_version", 1)),
            get("sid", _sequence(*names)),
            get("signer_hash", _HASH),
            b"" if bare else der_of(0xA0, *sorted(attributes)),
            _sequence(_oid(get("algorithm", algorithm))),
            der_of(0x04, signature),
            get("unsigned", b""),
        )
        more = [*others, *(others if get("others_twice", False) else ())]
        own = [self.leaf.public_bytes(Encoding.DER)] * get("own", 1)
        certificates = sorted([*own, *more])
        signed = _sequence(
            _integer(get("data_version", 3)),
            _set(get("hashes", [_HASH])),
            _sequence(_oid(get("wrapped", _TST)), der_of(0xA0, der_of(0x04, content))),
            der_of(0xA0, *(certificates[::-1] if get("unsorted", False) else certificates)),
            get("crls", b""),
            _set([signer] * get("signers", 1)),
        )
        token = _sequence(_oid(_DATA), der_of(0xA0, signed))
        response = _sequence(_sequence(_integer(status), get("status_info", b"")), token)
        return bytes(get("recode", bytes)(response))


def _with_long_length(data: bytes) -> bytes:
    """The same value, with a length of a byte more than it takes."""
    return bytes([0x30, 0x83, 0]) + data[2:]


_REQUESTED = _sequence(_oid(_SIGNING_TIME), _set([der_of(0x17, b"230823150000Z")]))
FORMS: Final[dict[str, tuple[Parts, bool]]] = {
    "as it is": ({}, True),
    "with a text of its status": (
        {"status_info": _sequence(der_of(0x0C, b"Operation Okay"))},
        True,
    ),
    "with all that a TSTInfo may have": (
        {
            "after_time": der_of(0x01, b"\xff")
            + _integer(2**70)
            + der_of(0xA0, der_of(0x82, b"clock"))
            + der_of(0xA1, _sequence(_oid("1.2.3"), der_of(0x01, b"\xff"), der_of(0x04)))
        },
        True,
    ),
    "with the time of its signing": ({"attributes": [_REQUESTED]}, True),
    "with grantedWithMods": ({"status": 1}, False),
    "with a reason why it failed": ({"status_info": der_of(0x03, b"\x02\x04")}, False),
    "with a length that is too long": ({"recode": _with_long_length}, False),
    "with a byte behind it": ({"recode": lambda data: data + b"\0"}, False),
    "with ordering that says false": ({"after_time": der_of(0x01, b"\x00")}, False),
    "with a fraction that ends in zero": ({"fraction": b".50"}, False),
    "with a fraction after a comma": ({"fraction": b",5"}, False),
    "with certificates out of order": ({"unsorted": True}, False),
    "with revoked certificates": ({"crls": der_of(0xA1)}, False),
    "with attributes that are not signed": ({"unsigned": der_of(0xA1, _REQUESTED)}, False),
    "without signed attributes": ({"bare": True}, False),
    "with an attribute twice": ({"attributes": [_REQUESTED, _REQUESTED]}, False),
    "of another type of content": ({"content_type": _oid("1.2.840.113549.1.7.1")}, False),
    "of other content than its digest": ({"digest_of": b""}, False),
    "wrapped as another type": ({"wrapped": "1.2.840.113549.1.7.1"}, False),
    "of two signers": ({"signers": 2}, False),
    "of a signer named by its key": ({"sid": der_of(0x80, bytes(20))}, False),
    "with two hash algorithms": (
        {"hashes": [_HASH, _sequence(_oid("2.16.840.1.101.3.4.2.3"))]},
        False,
    ),
    "with SHA-1 in one place": ({"hashes": [_sequence(_oid(_SHA1))]}, False),
    "with another hash algorithm of its signer": (
        {"signer_hash": _sequence(_oid("2.16.840.1.101.3.4.2.3"))},
        False,
    ),
    "with a signature algorithm of another hash": ({"algorithm": _ECDSA_384}, False),
    "of version 1 of SignedData": ({"data_version": 1}, False),
    "of version 3 of SignerInfo": ({"signer_version": 3}, False),
    "of version 2 of TSTInfo": ({"info_version": 2}, False),
}
_AT = der_of(0x17, b"230823150000Z")
LATER_FORMS: Final[dict[str, tuple[Parts, bool]]] = {
    "with a hash algorithm of its signer that has no parameters": (
        {"signer_hash": _sequence(_oid(_SHA256))},
        True,
    ),
    "with a hash algorithm that has no parameters": ({"hashes": [_sequence(_oid(_SHA256))]}, True),
    "with the certificate of a CA twice": ({"others_twice": True}, True),
    "with an attribute of two equal values": (
        {"attributes": [_sequence(_oid(_SIGNING_TIME), _set([_AT, _AT]))]},
        True,
    ),
    "with an attribute of no value": (
        {"attributes": [_sequence(_oid(_SIGNING_TIME), _set([]))]},
        True,
    ),
    "with the certificate of its signer twice": ({"own": 2}, False),
    "with two attributes of one type": (
        {
            "attributes": [
                _REQUESTED,
                _sequence(_oid(_SIGNING_TIME), _set([der_of(0x17, b"230823150001Z")])),
            ]
        },
        False,
    ),
    "at a second 60": ({"time": b"20230823145960"}, False),
    "at an hour 24": ({"time": b"20230822240000"}, False),
}
"""The same, of what a later reader asked: in beacon.json they are of another authority."""
LAST_FORMS: Final[dict[str, tuple[Parts, bool]]] = {
    "with no text of its status": ({"status_info": _sequence()}, True),
    "with an attribute of a type that is longer than it can be": (
        {"attributes": [_sequence(der_of(0x06, b"\x2a\x80\x03"), _set([]))]},
        False,
    ),
    "with an attribute of a type that is cut off": (
        {"attributes": [_sequence(der_of(0x06, b"\x2a\x83"), _set([]))]},
        False,
    ),
    "with an attribute of no type": (
        {"attributes": [_sequence(der_of(0x06), _set([]))]},
        False,
    ),
    "with a value that is no identifier in an attribute": (
        {"attributes": [_sequence(_oid(_SIGNING_TIME), _set([der_of(0x06, b"\x80\x01")]))]},
        False,
    ),
}
"""And of one later still."""
"""Responses of one authority: what they have otherwise, and whether they hold (docs/format.md,
"Time", *Form*)."""


def make_authority(
    name: str = "a test's clock", usage: str = "stamps", serial: int | None = None
) -> Authority:
    """A new authority; with another ``usage`` its certificate is not for time stamps.  ``serial``
    is that of its certificate."""
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}, stamps")])
    root = (
        _begin(subject, subject, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    purpose = (
        ExtendedKeyUsageOID.TIME_STAMPING if usage == "stamps" else ExtendedKeyUsageOID.CODE_SIGNING
    )
    leaf = (
        _begin(own, subject, key.public_key(), serial)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    return Authority(key, leaf, root)


Extension = tuple[x509.ExtensionType, bool]
"""What a certificate has, and whether it is critical."""
STAMPS: Final[Extension] = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True)
CA: Final[Extension] = (x509.BasicConstraints(ca=True, path_length=None), True)


def make_name(name: str, *, printable: bool = False) -> x509.Name:
    """A name of one part, a UTF8String or a PrintableString."""
    kind = _ASN1Type.PrintableString if printable else _ASN1Type.UTF8String
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name, kind)])


def make_key() -> Key:
    """A key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_path(
    leaf: Sequence[Extension] = (STAMPS,),
    middle: Sequence[Extension] = (CA,),
    root: Sequence[Extension] = (CA,),
    *,
    until: Mapping[str, datetime] | None = None,
    keys: Mapping[str, Callable[[], Key]] | None = None,
    issuers: Mapping[str, x509.Name] | None = None,
    remake: Callable[[x509.Certificate, Key], x509.Certificate] = lambda leaf, by: leaf,
) -> tuple[Authority, x509.Certificate]:
    """An authority, and the certificate between its root and its own: the three have these
    extensions, and, where these name them ("leaf", "middle", "root"), end at ``until``, have
    ``keys`` of another kind, and name other ``issuers``.  The authority's own is what ``remake``
    makes of it with the key of its issuer."""
    made_keys = {name: (keys or {}).get(name, make_key)() for name in ("root", "middle", "leaf")}
    names = {name: make_name(f"a path's {name}") for name in made_keys}
    made = {}
    for name, by, extensions in (
        ("root", "root", root),
        ("middle", "root", middle),
        ("leaf", "middle", leaf),
    ):
        last = (until or {}).get(name, _TO)
        issuer = (issuers or {}).get(name, names[by])
        builder = _begin(names[name], issuer, made_keys[name].public_key(), last=last)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        key = made_keys[by]
        hashed = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        made[name] = builder.sign(key, hashed)
    leaf_made = remake(made["leaf"], made_keys["middle"])
    return Authority(made_keys["leaf"], leaf_made, made["root"]), made["middle"]


def _put_key(certificate: x509.Certificate, key: bytes, by: Key) -> x509.Certificate:
    """The same with another subjectPublicKeyInfo, signed again."""
    signed, algorithm, _ = read_der(certificate.public_bytes(Encoding.DER)).items
    old = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    fields = _sequence(*(key if item.raw == old else item.raw for item in signed.items))
    _, signature = _sign(by, fields)
    made = _sequence(fields, algorithm.raw, der_of(0x03, b"\0", signature))
    return x509.load_der_x509_certificate(made)


def _put_point(form: str) -> Callable[[x509.Certificate, Key], x509.Certificate]:
    def put(certificate: x509.Certificate, by: Key) -> x509.Certificate:
        public: Any = certificate.public_key()
        point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        sign = point[-1] & 1
        put = bytes([2 + sign]) + point[1:33] if form == "short" else bytes([6 + sign]) + point[1:]
        about = _sequence(_oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7"))
        return _put_key(certificate, _sequence(about, der_of(0x03, b"\0", put)), by)

    return put


def _drop_parameters(certificate: x509.Certificate, by: Key) -> x509.Certificate:
    key: Any = certificate.public_key()
    bits = der_of(0x03, b"\0", key.public_bytes(Encoding.DER, PublicFormat.PKCS1))
    return _put_key(certificate, _sequence(_sequence(_oid(_RSA)), bits), by)


def _sign_without_null(certificate: x509.Certificate, by: Any) -> x509.Certificate:
    """The same, with a DigestInfo whose algorithm has no parameters under its signature."""
    signed, algorithm, _ = read_der(certificate.public_bytes(Encoding.DER)).items
    digest = der_of(0x04, hashlib.sha256(signed.raw).digest())
    info = _sequence(_sequence(_oid(_SHA256)), digest)
    numbers = by.private_numbers()
    modulus = numbers.public_numbers.n
    size = modulus.bit_length() // 8
    padded = b"\0\1" + b"\xff" * (size - 3 - len(info)) + b"\0" + info
    signature = pow(int.from_bytes(padded), numbers.d, modulus).to_bytes(size)
    made = _sequence(signed.raw, algorithm.raw, der_of(0x03, b"\0", signature))
    return x509.load_der_x509_certificate(made)


def _usage(*purposes: x509.ObjectIdentifier, critical: bool = True) -> Extension:
    return x509.ExtendedKeyUsage(purposes), critical


def _key_usage(*names: str) -> Extension:
    known = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{name: name in names for name in known.split()}), True


STAMPED: Final = datetime(2023, 8, 23, 15, 0, tzinfo=UTC)
"""When what :data:`PATHS` are tried with is stamped."""
_AFTER: Final = datetime(2023, 8, 23, 15, 0, 1, tzinfo=UTC)
_CODE, _ANY = ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE
_SHORT: Extension = (x509.BasicConstraints(ca=True, path_length=0), True)
_UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
_POLICY = x509.CertificatePolicies([x509.PolicyInformation(x509.ObjectIdentifier("1.2.3.5"), None)])
_NAMES = x509.NameConstraints([x509.DirectoryName(make_name("a path's leaf"))], None)


def _make_rsa() -> Key:
    return rsa.generate_private_key(65537, 2048)


def _make_short_rsa() -> Key:
    return rsa.generate_private_key(65537, 1024)  # noqa: S505 - as short as it must not be


PATHS: Final[dict[str, tuple[Mapping[str, Any], bool]]] = {
    "a root, one between, the signer": ({}, True),
    "a signer for signatures": ({"leaf": [STAMPS, _key_usage("digital_signature")]}, True),
    "a signer that binds": ({"leaf": [STAMPS, _key_usage("content_commitment")]}, True),
    "an extension that nobody knows": ({"leaf": [STAMPS, (_UNKNOWN, False)]}, True),
    "a policy": ({"middle": [CA, (_POLICY, False)]}, True),
    "a CA for code": ({"middle": [CA, _usage(_CODE)]}, True),
    "RSA": ({"keys": {"leaf": _make_rsa, "middle": _make_rsa}}, True),
    "P-384 and P-521": (
        {
            "keys": {
                "leaf": lambda: ec.generate_private_key(ec.SECP384R1()),
                "root": lambda: ec.generate_private_key(ec.SECP521R1()),
            }
        },
        True,
    ),
    "a signer that ends a second later": ({"until": {"leaf": _AFTER}}, True),
    "a signer that encrypts, too": (
        {"leaf": [STAMPS, _key_usage("digital_signature", "key_encipherment")]},
        False,
    ),
    "a critical extension that nobody knows": ({"leaf": [STAMPS, (_UNKNOWN, True)]}, False),
    "a critical policy": ({"middle": [CA, (_POLICY, True)]}, False),
    "a critical policy of the root": ({"root": [CA, (_POLICY, True)]}, False),
    "names that are constrained": ({"middle": [CA, (_NAMES, True)]}, False),
    "names that are constrained, if you like": ({"middle": [CA, (_NAMES, False)]}, False),
    "a signer without a purpose": ({"leaf": []}, False),
    "a purpose that is not critical": (
        {"leaf": [_usage(ExtendedKeyUsageOID.TIME_STAMPING, critical=False)]},
        False,
    ),
    "two purposes": ({"leaf": [_usage(ExtendedKeyUsageOID.TIME_STAMPING, _CODE)]}, False),
    "any purpose": ({"leaf": [_usage(_ANY)]}, False),
    "one between that is no CA": ({"middle": []}, False),
    "one between for signatures alone": (
        {"middle": [CA, _key_usage("digital_signature")]},
        False,
    ),
    "a root that is no CA": ({"root": []}, False),
    "a CA by its keyUsage alone": ({"root": [_key_usage("key_cert_sign")]}, False),
    "a root of short paths": ({"root": [_SHORT]}, False),
    "a name in another kind of text": (
        {"issuers": {"leaf": make_name("a path's middle", printable=True)}},
        False,
    ),
    "a name in other letters": ({"issuers": {"leaf": make_name("A path's middle")}}, False),
    "a root of another issuer": ({"issuers": {"root": make_name("somebody")}}, False),
    "an Ed25519 key": ({"keys": {"middle": ed25519.Ed25519PrivateKey.generate}}, False),
    "a curve that is not taken": (
        {"keys": {"leaf": lambda: ec.generate_private_key(ec.SECP256K1())}},
        False,
    ),
    "a short RSA key": ({"keys": {"middle": _make_short_rsa}}, False),
    "a point by one coordinate": ({"remake": _put_point("short")}, False),
    "a point by both coordinates and a sign": ({"remake": _put_point("hybrid")}, False),
    "an RSA key without parameters": (
        {"keys": {"leaf": _make_rsa}, "remake": _drop_parameters},
        False,
    ),
    "a signature by RSA of a hash without parameters": (
        {"keys": {"middle": _make_rsa}, "remake": _sign_without_null},
        False,
    ),
    **{
        f"a {name} that has ended": ({"until": {name: STAMPED}}, False)
        for name in ("leaf", "middle", "root")
    },
}
"""Paths of three certificates: what :func:`make_path` makes them of, and whether they are ones
(docs/format.md, "Time", *Purpose*, *Path*, *Algorithms*)."""


def _raw(of: type[x509.ExtensionType], value: bytes, *, critical: bool = True) -> Extension:
    """An extension of this kind with any bytes as its value."""
    return x509.UnrecognizedExtension(of.oid, value), critical


LATER_PATHS: Final[dict[str, tuple[Mapping[str, Any], bool]]] = {
    "a signer that may be a CA": ({"leaf": [STAMPS, CA]}, True),
    "a signer whose basicConstraints say false": (
        {"leaf": [STAMPS, _raw(x509.BasicConstraints, b"\x30\3\1\1\0")]},
        True,
    ),
    "a signer whose basicConstraints are no DER": (
        {"leaf": [STAMPS, _raw(x509.BasicConstraints, b"\x30")]},
        True,
    ),
    "a CA whose extendedKeyUsage is no DER": (
        {"middle": [CA, _raw(x509.ExtendedKeyUsage, b"\x30")]},
        True,
    ),
    "a signer whose keyUsage is no DER": (
        {"leaf": [STAMPS, _raw(x509.KeyUsage, b"\3\2\7")]},
        False,
    ),
    "a CA whose basicConstraints say false": (
        {"middle": [_raw(x509.BasicConstraints, b"\x30\3\1\1\0")]},
        False,
    ),
    "a CA whose keyUsage is no DER": (
        {"middle": [CA, _raw(x509.KeyUsage, b"\3\2\2")]},
        False,
    ),
}
"""The same, of what a later reader asked."""


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    public: Any,
    serial: int | None = None,
    last: datetime = _TO,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(last)
    )
