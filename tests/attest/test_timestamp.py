"""Tokens of a time-stamping authority: a real one, and attacks with one of the tests' own."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.attest.authority import CA, STAMPS, Authority, Extension, make_authority, make_path
from vtrain.attest.timestamp import (
    identify_root,
    load_roots,
    make_request,
    read_token,
    verify_token,
)
from vtrain.errors import MissingExtraError, TimestampError

TOKENS = Path(__file__).parent / "tokens"
MESSAGE = bytes(range(32))
TIME = datetime(2023, 8, 23, 15, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


def test_a_real_token() -> None:
    roots, token = load_roots(TOKENS / "identrust-root.der"), read_token(TOKENS / "identrust.tsr")
    proven = verify_token(token, b"hello", roots)
    assert proven.latest == datetime(2025, 3, 11, 8, 52, 8, tzinfo=UTC)
    assert "IdenTrust" in proven.authority
    assert proven.root == identify_root(roots[0])
    with pytest.raises(TimestampError, match="is of other bytes"):
        verify_token(token, b"hallo", roots)


def test_a_token_of_ones_own_authority(authority: Authority) -> None:
    token = authority.stamp(MESSAGE, TIME)
    assert verify_token(token, MESSAGE, (authority.root,)).latest == TIME
    other = make_authority("another")
    assert verify_token(token, MESSAGE, (other.root, authority.root)).latest == TIME


def test_what_a_time_may_be_off_by_is_added(authority: Authority) -> None:
    """The claim existed at the latest then: an early time must not put it before a round."""
    token = authority.stamp(MESSAGE, TIME, accuracy=90)
    assert verify_token(token, MESSAGE, (authority.root,)).latest == TIME + timedelta(seconds=90)
    for accuracy in (7200, 10**17):
        token = authority.stamp(MESSAGE, TIME, accuracy=accuracy)
        with pytest.raises(TimestampError, match="microseconds, too much"):
            verify_token(token, MESSAGE, (authority.root,))


def test_tokens_that_prove_nothing(authority: Authority) -> None:
    good, roots = authority.stamp(MESSAGE, TIME), (authority.root,)
    namesake = make_authority()
    cases = {
        "is no response of an authority": b"no DER",
        "was not granted: status 2": authority.stamp(MESSAGE, TIME, status=2),
        "does not hold against the roots given": namesake.stamp(MESSAGE, TIME),
        "is of other bytes": authority.stamp(MESSAGE[::-1], TIME),
    }
    for message, token in cases.items():
        with pytest.raises(TimestampError, match=message) as caught:
            verify_token(token, MESSAGE, roots)
        assert (caught.value.code, caught.value.where) == ("timestamp", "token")
    with pytest.raises(TimestampError, match="no root certificate"):
        verify_token(good, MESSAGE, ())
    signer = make_authority(usage="code")
    with pytest.raises(TimestampError, match="certificate purpose"):
        verify_token(signer.stamp(MESSAGE, TIME), MESSAGE, (signer.root,))
    for year in (2001, 2050):  # before the certificate, and after it
        late = authority.stamp(MESSAGE, datetime(year, 1, 1, tzinfo=UTC))
        with pytest.raises(TimestampError, match="does not hold"):
            verify_token(late, MESSAGE, roots)


def test_a_certificate_for_stamps_lends_its_purpose_to_no_other() -> None:
    """Certificates in a token are signed by nobody: another of the signer's issuer and number must
    not be taken for that of whoever signed, nor one auditor take a token that another refuses."""
    for usage, other in (("code", "stamps"), ("stamps", "code"), ("stamps", "stamps")):
        signer = make_authority(usage=usage, serial=7)
        twin = make_authority(usage=other, serial=7).leaf.public_bytes(Encoding.DER)
        token = signer.stamp(MESSAGE, TIME, others=(twin,))
        with pytest.raises(TimestampError, match="two certificates"):
            verify_token(token, MESSAGE, (signer.root,))
    stranger = make_authority("another").leaf.public_bytes(Encoding.DER)
    good = make_authority()
    token = good.stamp(MESSAGE, TIME, others=(stranger, good.root.public_bytes(Encoding.DER)))
    assert verify_token(token, MESSAGE, (good.root,)).latest == TIME
    version = stranger.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x72", 1)
    with pytest.raises(TimestampError, match="not a valid X509 version"):
        verify_token(good.stamp(MESSAGE, TIME, others=(version,)), MESSAGE, (good.root,))


def usage(*purposes: x509.ObjectIdentifier, critical: bool = True) -> Extension:
    return x509.ExtendedKeyUsage(purposes), critical


def key_usage(*names: str) -> Extension:
    known = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{name: name in names for name in known.split()}), True


STAMPING, CODE = ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.CODE_SIGNING
UNKNOWN: Extension = (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
SHORT: Extension = (x509.BasicConstraints(ca=True, path_length=0), True)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, True),
        ({"leaf": [STAMPS, key_usage("digital_signature")]}, True),
        ({"leaf": [STAMPS, key_usage("content_commitment")]}, True),
        ({"leaf": [STAMPS, key_usage("digital_signature", "key_encipherment")]}, False),
        ({"leaf": [STAMPS, UNKNOWN]}, False),
        ({"leaf": []}, False),
        ({"leaf": [usage(STAMPING, critical=False)]}, False),
        ({"leaf": [usage(STAMPING, CODE)]}, False),
        ({"leaf": [usage(ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)]}, False),
        ({"middle": []}, False),
        ({"middle": [CA, usage(CODE)]}, True),
        ({"middle": [CA, key_usage("digital_signature")]}, False),
        ({"root": []}, False),
        ({"root": [SHORT]}, False),
        *(({"until": {name: TIME}}, False) for name in ("leaf", "middle", "root")),
        ({"until": {"leaf": TIME + timedelta(seconds=1)}}, True),
    ],
)
def test_what_a_path_of_certificates_must_have(given: dict[str, Any], holds: bool) -> None:
    """docs/format.md, "Time": whatever library looks at the path, these are what it must say."""
    signer, middle = make_path(**given)
    token = signer.stamp(MESSAGE, TIME, others=(middle.public_bytes(Encoding.DER),))
    if holds:
        assert verify_token(token, MESSAGE, (signer.root,)).latest == TIME
        return
    with pytest.raises(TimestampError, match="does not hold"):
        verify_token(token, MESSAGE, (signer.root,))


def test_the_path_is_in_the_token_and_ends_in_a_root() -> None:
    signer, middle = make_path()
    bare = signer.stamp(MESSAGE, TIME)
    whole = signer.stamp(MESSAGE, TIME, others=(middle.public_bytes(Encoding.DER),))
    for token, trusted in (
        (bare, (signer.root, middle)),
        (whole, (middle,)),
        (whole, (signer.leaf,)),
        (whole + b"\0", (signer.root,)),
    ):
        with pytest.raises(TimestampError):
            verify_token(token, MESSAGE, trusted)


def test_no_altered_byte_changes_the_time(authority: Authority) -> None:
    """Bytes outside what is signed may change; what is proven does not."""
    token, roots = authority.stamp(MESSAGE, TIME), (authority.root,)
    refused = 0
    for i in range(0, len(token), 7):
        altered = bytearray(token)
        altered[i] ^= 1
        try:
            assert verify_token(bytes(altered), MESSAGE, roots).latest == TIME
        except TimestampError:
            refused += 1
    assert refused > len(token) // 7 // 2
    at = token.index(b"20230823150000Z")
    altered = bytearray(token)
    altered[at + 5] -= 1
    with pytest.raises(TimestampError, match="does not hold"):
        verify_token(bytes(altered), MESSAGE, roots)


def test_roots_are_pem_or_der(authority: Authority, tmp_path: Path) -> None:
    other = make_authority("another")
    pem = tmp_path / "roots.pem"
    pem.write_bytes(b"".join(a.root.public_bytes(Encoding.PEM) for a in (authority, other)))
    assert load_roots(pem) == (authority.root, other.root)
    der = tmp_path / "root.der"
    der.write_bytes(authority.root.public_bytes(Encoding.DER))
    assert load_roots(der) == (authority.root,)
    der.write_bytes(b"-----BEGIN CERTIFICATE-----")
    with pytest.raises(TimestampError, match="is no certificate") as caught:
        load_roots(der)
    assert caught.value.where == str(der)


def test_a_request_asks_for_a_token_of_the_message() -> None:
    request = make_request(MESSAGE)
    assert hashlib.sha512(MESSAGE).digest() in request
    assert request.endswith(b"\x01\x01\xff"), "certReq: the answer shall have the certificates"
    assert request != make_request(MESSAGE), "a nonce each"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vtrain\[report\]'"):
        verify_token(b"", b"", ())
