"""A time-stamping authority of the tests' own (RFC 3161), which says what it is told.

Its responses are DER made here by hand: no library at hand signs a time of one's choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DATA, _TST = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE, _MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
_SHA256, _ECDSA = "2.16.840.1.101.3.4.2.1", "1.2.840.10045.4.3.2"
_FROM, _TO = datetime(2015, 1, 1, tzinfo=UTC), datetime(2049, 1, 1, tzinfo=UTC)


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    if size < 128:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytearray([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        out.extend(reversed(digits))
    return _der(0x06, bytes(out))


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, *parts)


def _set(parts: Sequence[bytes]) -> bytes:
    return _der(0x31, *sorted(parts))


_HASH = _sequence(_oid(_SHA256), _der(0x05))


@dataclass(frozen=True)
class Authority:
    """A root certificate, and a certificate for time stamps that it signed."""

    key: ec.EllipticCurvePrivateKey
    leaf: x509.Certificate
    root: x509.Certificate

    def stamp(
        self,
        message: bytes,
        time: datetime,
        *,
        accuracy: int | None = None,
        status: int = 0,
        others: Sequence[bytes] = (),
    ) -> bytes:
        """A response that ``message`` existed at ``time``, to the second, with ``others`` (DER)
        among its certificates, which no signature is of."""
        info = [
            _integer(1),
            _oid("1.3.6.1.4.1.99999.1"),
            _sequence(_HASH, _der(0x04, hashlib.sha256(message).digest())),
            _integer(7),
            _der(0x18, time.strftime("%Y%m%d%H%M%SZ").encode()),
        ]
        if accuracy is not None:
            info.append(_sequence(_integer(accuracy)))
        content = _sequence(*info)
        attributes = [
            _sequence(_oid(_CONTENT_TYPE), _set([_oid(_TST)])),
            _sequence(_oid(_MESSAGE_DIGEST), _set([_der(0x04, hashlib.sha256(content).digest())])),
        ]
        signature = self.key.sign(_set(attributes), ec.ECDSA(hashes.SHA256()))
        signer = _sequence(
            _integer(1),
            _sequence(self.leaf.issuer.public_bytes(), _integer(self.leaf.serial_number)),
            _HASH,
            _der(0xA0, *sorted(attributes)),
            _sequence(_oid(_ECDSA)),
            _der(0x04, signature),
        )
        signed = _sequence(
            _integer(3),
            _set([_HASH]),
            _sequence(_oid(_TST), _der(0xA0, _der(0x04, content))),
            _der(0xA0, *sorted((self.leaf.public_bytes(Encoding.DER), *others))),
            _set([signer]),
        )
        token = _sequence(_oid(_DATA), _der(0xA0, signed))
        return _sequence(_sequence(_integer(status)), token)


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


def make_path(
    leaf: Sequence[Extension] = (STAMPS,),
    middle: Sequence[Extension] = (CA,),
    root: Sequence[Extension] = (CA,),
    *,
    until: Mapping[str, datetime] | None = None,
) -> tuple[Authority, x509.Certificate]:
    """An authority, and the certificate between its root and its own: the three have these
    extensions, and end at ``until`` ("leaf", "middle", "root"), where it names them."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "middle", "leaf")}
    names = {
        name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"a path's {name}")])
        for name in keys
    }
    made = {}
    for name, by, extensions in (
        ("root", "root", root),
        ("middle", "root", middle),
        ("leaf", "middle", leaf),
    ):
        last = (until or {}).get(name, _TO)
        builder = _begin(names[name], names[by], keys[name].public_key(), last=last)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        made[name] = builder.sign(keys[by], hashes.SHA256())
    return Authority(keys["leaf"], made["leaf"], made["root"]), made["middle"]


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
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
