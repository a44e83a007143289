"""Tokens of a time-stamping authority: a real one, and attacks with one of the tests' own."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path

import pytest
import rfc3161_client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from tests.attest.authority import (
    CA,
    FORMS,
    LATER_FORMS,
    PATHS,
    STAMPED,
    STAMPS,
    Authority,
    der_of,
    make_authority,
    make_key,
    make_name,
    make_path,
)
from vtrain.attest.der import read_der
from vtrain.attest.timestamp import (
    identify_root,
    load_roots,
    make_request,
    order_token,
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


def test_a_real_token_whose_certificates_are_out_of_order() -> None:
    roots, token = load_roots(TOKENS / "freetsa-root.der"), read_token(TOKENS / "freetsa.tsr")
    with pytest.raises(TimestampError, match=r"order of a set; .* --ordered NEW puts it in order"):
        verify_token(token, b"test", roots)
    ordered = order_token(token)
    proven = verify_token(ordered, b"test", roots)
    assert proven.latest == datetime(2024, 4, 9, 5, 29, 39, tzinfo=UTC)
    assert order_token(ordered) == ordered


def test_a_token_of_ones_own_authority(authority: Authority) -> None:
    token = authority.stamp(MESSAGE, TIME)
    assert verify_token(token, MESSAGE, (authority.trusted,)).latest == TIME
    other = make_authority("another")
    assert verify_token(token, MESSAGE, (other.trusted, authority.trusted)).latest == TIME


def test_what_a_time_may_be_off_by_is_added(authority: Authority) -> None:
    """The claim existed at the latest then: an early time must not put it before a round."""
    token = authority.stamp(MESSAGE, TIME, accuracy=90)
    assert verify_token(token, MESSAGE, (authority.trusted,)).latest == TIME + timedelta(seconds=90)
    for accuracy in (7200, 10**17):
        token = authority.stamp(MESSAGE, TIME, accuracy=accuracy)
        with pytest.raises(TimestampError, match="microseconds, too much"):
            verify_token(token, MESSAGE, (authority.trusted,))


def test_tokens_that_prove_nothing(authority: Authority) -> None:
    good, roots = authority.stamp(MESSAGE, TIME), (authority.trusted,)
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
    with pytest.raises(TimestampError, match="not for time stamps alone"):
        verify_token(signer.stamp(MESSAGE, TIME), MESSAGE, (signer.trusted,))
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
            verify_token(token, MESSAGE, (signer.trusted,))
    stranger = make_authority("another").leaf.public_bytes(Encoding.DER)
    good = make_authority()
    token = good.stamp(MESSAGE, TIME, others=(stranger, good.trusted))
    assert verify_token(token, MESSAGE, (good.trusted,)).latest == TIME
    version = stranger.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x72", 1)
    with pytest.raises(TimestampError, match="is not version 3"):
        verify_token(good.stamp(MESSAGE, TIME, others=(version,)), MESSAGE, (good.trusted,))


@pytest.mark.parametrize("name", [*FORMS, *LATER_FORMS])
def test_what_form_a_response_must_have(authority: Authority, name: str) -> None:
    """docs/format.md, "Time", *Form*; of what holds, a library that reads more than we do says the
    same."""
    parts, holds = {**FORMS, **LATER_FORMS}[name]
    token = authority.stamp(
        MESSAGE,
        TIME,
        others=(authority.trusted,),
        status=parts.get("status", 0),
        parts=parts,
    )
    if holds:
        assert verify_token(token, MESSAGE, (authority.trusted,)).latest == TIME
        assert verify_by_library(token, authority.root)
        return
    with pytest.raises(TimestampError):
        verify_token(token, MESSAGE, (authority.trusted,))


_UNSIGNED = (
    "with certificates out of order",
    "with revoked certificates",
    "with attributes that are not signed",
    "with the certificate of its signer twice",
)
"""Forms that differ in what nobody signs."""


@pytest.mark.parametrize("name", [*FORMS, *LATER_FORMS])
def test_what_nobody_signs_of_a_response_is_put_right_and_nothing_else(
    authority: Authority, name: str
) -> None:
    parts, holds = {**FORMS, **LATER_FORMS}[name]
    roots, others = (authority.trusted,), (authority.trusted,)
    token = authority.stamp(
        MESSAGE, TIME, others=others, status=parts.get("status", 0), parts=parts
    )
    try:
        ordered = order_token(token)
    except TimestampError:
        ordered = token
    if holds or name in _UNSIGNED:
        assert verify_token(ordered, MESSAGE, roots).latest == TIME
        assert verify_by_library(ordered, authority.root)
        return
    with pytest.raises(TimestampError) as refused:
        verify_token(ordered, MESSAGE, roots)
    assert "--ordered" not in refused.value.message


def test_what_is_no_response_is_not_put_in_order() -> None:
    for data in (b"", b"no DER", der_of(0x30), der_of(0x04, b"x"), der_of(0x30, der_of(0x30))):
        with pytest.raises(TimestampError, match="is no response of an authority") as caught:
            order_token(data, "claim.tsr")
        assert caught.value.where == "claim.tsr"


def verify_by_library(token: bytes, root: x509.Certificate) -> bool:
    """What rfc3161-client, and OpenSSL in it, say of a token of :data:`MESSAGE`."""
    verifier = rfc3161_client.VerifierBuilder().add_root_certificate(root).build()
    response = rfc3161_client.decode_timestamp_response(token)
    return bool(verifier.verify(response, hashlib.sha256(MESSAGE).digest()))


@pytest.mark.parametrize("name", PATHS)
def test_what_a_path_of_certificates_must_have(name: str) -> None:
    """docs/format.md, "Time": *Purpose*, *Path* and *Algorithms*."""
    given, holds = PATHS[name]
    signer, middle = make_path(**given)
    token = signer.stamp(MESSAGE, STAMPED, others=(middle.public_bytes(Encoding.DER),))
    if holds:
        assert verify_token(token, MESSAGE, (signer.trusted,)).latest == STAMPED
        assert verify_by_library(token, signer.root)
        return
    with pytest.raises(TimestampError, match="does not hold"):
        verify_token(token, MESSAGE, (signer.trusted,))


def test_a_fraction_of_a_second_counts(authority: Authority) -> None:
    """The claim existed by then, not a second earlier: a round is no later than its due for it."""
    for fraction, micros in ((b".5", 500_000), (b".0000001", 1), (b"." + b"0" * 5000 + b"1", 1)):
        token = authority.stamp(MESSAGE, TIME, accuracy=1, parts={"fraction": fraction})
        late = TIME + timedelta(seconds=1, microseconds=micros)
        assert verify_token(token, MESSAGE, (authority.trusted,)).latest == late


def test_the_signer_itself_may_be_a_root() -> None:
    """A certificate that is its own issuer, trusted by the auditor; no CA needs it to be."""
    key, name = make_key(), make_name("a clock of its own")
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.not_valid_before(TIME).not_valid_after(TIME + timedelta(days=1))
    for extension, critical in (STAMPS, CA):
        builder = builder.add_extension(extension, critical)
    own = builder.public_key(key.public_key()).sign(key, hashes.SHA256())
    signer = Authority(key, own, own)
    token = signer.stamp(MESSAGE, TIME)
    assert verify_token(token, MESSAGE, (signer.trusted,)).authority == "CN=a clock of its own"
    with pytest.raises(TimestampError, match="leads to the root"):
        verify_token(token, MESSAGE, (make_authority().trusted,))


def test_no_certificate_that_is_added_changes_what_holds() -> None:
    """Nobody signs what certificates a response brings: one with the name of a CA and another key,
    in whatever place, hides no path."""
    signer, middle = make_path()
    for _ in range(4):
        _, twin = make_path()
        others = [one.public_bytes(Encoding.DER) for one in (middle, twin, signer.root)]
        token = signer.stamp(MESSAGE, TIME, others=others)
        assert verify_token(token, MESSAGE, (signer.trusted,)).latest == TIME
    many = [make_authority().root.public_bytes(Encoding.DER) for _ in range(16)]
    with pytest.raises(TimestampError, match="1 to 16"):
        verify_token(signer.stamp(MESSAGE, TIME, others=many), MESSAGE, (signer.trusted,))


def test_a_response_nested_without_end_is_refused() -> None:
    data = b""
    for _ in range(2000):
        data = der_of(0x30, data)
    with pytest.raises(TimestampError, match="nested deeper"):
        verify_token(data, MESSAGE, (make_authority().trusted,))


def test_the_path_is_in_the_token_and_ends_in_a_root() -> None:
    signer, middle = make_path()
    between = middle.public_bytes(Encoding.DER)
    bare = signer.stamp(MESSAGE, TIME)
    whole = signer.stamp(MESSAGE, TIME, others=(between,))
    for token, trusted in (
        (bare, (signer.trusted, between)),
        (whole, (between,)),
        (whole, (signer.leaf.public_bytes(Encoding.DER),)),
        (whole + b"\0", (signer.trusted,)),
    ):
        with pytest.raises(TimestampError):
            verify_token(token, MESSAGE, trusted)


def test_no_altered_byte_changes_the_time(authority: Authority) -> None:
    """Bytes outside what is signed may change; what is proven does not."""
    token, roots = authority.stamp(MESSAGE, TIME), (authority.trusted,)
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
    with pytest.raises(TimestampError, match="not that of the content"):
        verify_token(bytes(altered), MESSAGE, roots)


def test_roots_are_pem_or_der(authority: Authority, tmp_path: Path) -> None:
    other = make_authority("another")
    pem = tmp_path / "roots.pem"
    pem.write_bytes(b"".join(a.root.public_bytes(Encoding.PEM) for a in (authority, other)))
    assert load_roots(pem) == (authority.trusted, other.trusted)
    der = tmp_path / "root.der"
    der.write_bytes(authority.trusted)
    assert load_roots(der) == (authority.trusted,)
    der.write_bytes(b"-----BEGIN CERTIFICATE-----")
    with pytest.raises(TimestampError, match="is no certificate") as caught:
        load_roots(der)
    assert caught.value.where == str(der)


@pytest.mark.parametrize("version", [None, 0, 1, 3, 9])
def test_a_root_of_another_version_serves_nobody(
    authority: Authority, tmp_path: Path, version: int | None
) -> None:
    """It is no bad file, and stops no other root in it."""
    signed, *rest = read_der(authority.trusted).items
    head = b"" if version is None else der_of(0xA0, der_of(0x02, bytes([version])))
    fields = der_of(0x30, head, *(item.raw for item in signed.items[1:]))
    path = tmp_path / "root.der"
    path.write_bytes(der_of(0x30, fields, *(item.raw for item in rest)))
    assert load_roots(path) == ()


def test_a_request_asks_for_a_token_of_the_message() -> None:
    request = make_request(MESSAGE)
    assert hashlib.sha512(MESSAGE).digest() in request
    assert request.endswith(b"\x01\x01\xff"), "certReq: the answer shall have the certificates"
    assert request != make_request(MESSAGE), "a nonce each"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vtrain\[report\]'"):
        make_request(b"")
