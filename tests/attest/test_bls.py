"""BLS signatures: two libraries that agree on what holds and on what is refused, and attacks."""

from __future__ import annotations

import json
import sys
from functools import cache
from hashlib import sha256
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from vtrain.attest import bls
from vtrain.attest.bls import (
    NUL_G1,
    POP,
    Library,
    LibraryName,
    Possessed,
    aggregate,
    generate_secret,
    open_library,
    prove_possession,
    sign,
    verify_aggregate,
    verify_in_g1,
    verify_in_g2,
    verify_possession,
)
from vtrain.errors import MissingExtraError, SignatureError

DRAND = json.loads((Path(__file__).parents[1] / "audit" / "drand.json").read_text())
PUBLIC = bytes.fromhex(DRAND["chains"]["quicknet"]["public_key"])
ROUND = bytes.fromhex(next(b for b in DRAND["beacons"] if b["chain"] == "quicknet")["signature"])
SIGNED = sha256((1000).to_bytes(8)).digest()
MESSAGE = b"a report"
ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
INFINITY = 0xC0


@cache
def open_remembering(name: LibraryName) -> Library:
    """The library, which checks a signature once that several tests have: py_ecc takes long."""
    library = open_library(name)
    for check in ("verify_in_g1", "verify_in_g2"):
        setattr(library, check, cache(getattr(library, check)))
    return library


@pytest.fixture(params=["py_ecc", "blst"])
def library(request: pytest.FixtureRequest) -> Library:
    return open_remembering(request.param)


@cache
def make_key(secret: int) -> Possessed:
    return prove_possession(secret)


@cache
def make_signature(secret: int) -> bytes:
    return sign(secret, MESSAGE)


def load_py_ecc() -> tuple[Any, Any]:
    open_library("py_ecc")
    from py_ecc import optimized_bls12_381
    from py_ecc.bls import g2_primitives

    return optimized_bls12_381, g2_primitives


def load_suite() -> Any:
    load_py_ecc()
    from py_ecc.bls import ciphersuites

    return ciphersuites.G2ProofOfPossession


@cache
def find_stray(length: int) -> bytes:
    """A point of the curve of G1 (48 bytes) or G2 (96) that is not in the group of prime order."""
    _, points = load_py_ecc()
    read = points.pubkey_to_G1 if length == 48 else points.signature_to_G2
    for x in range(1, 100):
        data = (0x80).to_bytes(1) + x.to_bytes(length - 1)
        try:
            point = read(data)
        except ValueError:
            continue
        if not points.subgroup_check(point):
            return data
    raise AssertionError("there are many")


# --- what holds


def test_a_real_signature_of_the_tag_with_keys_in_g2(library: Library) -> None:
    verify_in_g1(PUBLIC, SIGNED, ROUND, NUL_G1, library)
    with pytest.raises(SignatureError, match="does not verify"):
        verify_in_g1(PUBLIC, SIGNED[::-1], ROUND, NUL_G1, library)
    with pytest.raises(SignatureError, match="does not verify"):
        verify_in_g1(PUBLIC, SIGNED, ROUND, POP, library)


def test_keys_and_signatures_are_those_of_the_ciphersuite() -> None:
    """py_ecc's own verification, which is another path through its code."""
    Suite: Any = load_suite()
    secret = generate_secret(bytes(range(32)))
    key, signature = prove_possession(secret), sign(secret, MESSAGE)
    assert Suite.Verify(key.public, MESSAGE, signature)
    assert Suite.PopVerify(key.public, key.possession)
    assert generate_secret(bytes(32)) != secret
    with pytest.raises(SignatureError, match="at least 32"):
        generate_secret(bytes(31))


def test_several_sign_with_one_signature(library: Library) -> None:
    keys = [make_key(secret) for secret in (5, 7)]
    signature = aggregate([make_signature(secret) for secret in (5, 7)], library)
    assert len(signature) == 96
    verify_aggregate(keys[::-1], MESSAGE, signature, library)
    verify_aggregate(keys[:1], MESSAGE, make_signature(5), library)
    with pytest.raises(SignatureError, match="does not verify"):
        verify_aggregate(keys[:1], MESSAGE, signature, library)


def test_sums_are_the_same_points() -> None:
    slow, fast = open_library("py_ecc"), open_library("blst")
    publics = [make_key(secret).public for secret in (5, 7, 11)]
    signatures = [make_signature(secret) for secret in (5, 7, 11)]
    assert slow.add_publics(publics) == fast.add_publics(publics) == make_key(23).public
    assert slow.add_signatures(signatures) == fast.add_signatures(signatures) == make_signature(23)


# --- attacks


def test_a_rogue_key_signs_for_nobody_else(library: Library) -> None:
    """The last signer takes as its key what cancels the others': alone it then signs for all.

    Without proofs of possession that works, as the first check shows.
    """
    curve, points = load_py_ecc()
    honest, rogue = make_key(5), 1234567
    difference = curve.add(
        points.pubkey_to_G1(make_key(rogue).public), curve.neg(points.pubkey_to_G1(honest.public))
    )
    public = points.G1_to_pubkey(difference)
    forged = sign(rogue, MESSAGE)
    total = library.add_publics([honest.public, public])
    verify_in_g2(total, MESSAGE, forged, POP, library)
    for possession in (honest.possession, make_key(rogue).possession, sign(rogue, public)):
        key = Possessed(public, possession)
        with pytest.raises(SignatureError, match="no proof of possession") as caught:
            verify_aggregate([honest, key], MESSAGE, forged, library)
        assert caught.value.where == f"key {public.hex()}"


def test_who_signs_twice_is_refused(library: Library) -> None:
    key, signature = make_key(5), make_signature(5)
    twice = aggregate([signature, signature], library)
    with pytest.raises(SignatureError, match="signs twice"):
        verify_aggregate([key, key], MESSAGE, twice, library)


def test_keys_that_cancel_each_other_sign_nothing(library: Library) -> None:
    """Somebody who holds both can prove both; their sum is infinity, which signs anything."""
    both = [make_key(5), prove_possession(ORDER - 5)]
    nothing = bytes([INFINITY]) + bytes(95)
    for signature in (nothing, make_signature(5)):
        with pytest.raises(SignatureError, match="point at infinity"):
            verify_aggregate(both, MESSAGE, signature, library)


def test_a_message_is_no_proof_of_possession(library: Library) -> None:
    """Who can have somebody sign a message of its choice gets no proof by that."""
    key = make_key(5)
    with pytest.raises(SignatureError, match="no proof of possession"):
        verify_possession(Possessed(key.public, sign(5, key.public)), library)
    verify_possession(key, library)


def flip(data: bytes, bit: int) -> bytes:
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


@pytest.mark.parametrize("length", [48, 96])
def test_bytes_that_are_no_point(library: Library, length: int) -> None:
    good = {48: make_key(5).public, 96: make_signature(5)}[length]
    field = bls._FIELD.to_bytes(48)
    bad = {
        "bytes, not": good[:-1],
        "is not a compressed point": flip(good, 7),
        "point at infinity": bytes([INFINITY]) + bytes(length - 1),
        "is not reduced": bytes([0x80 | field[0]]) + field[1:] + bytes(length - 48),
        "is no point of the group": find_stray(length),
    }
    if length == 96:
        bad["coordinate that is not reduced"] = good[:48] + field
    key, signature = make_key(5).public, make_signature(5)
    for message, data in bad.items():
        pair = (data, signature) if length == 48 else (key, data)
        with pytest.raises(SignatureError, match=message):
            verify_in_g2(pair[0], MESSAGE, pair[1], POP, library)
        pair = (data, PUBLIC) if length == 48 else (ROUND, data)
        with pytest.raises(SignatureError, match=message):
            verify_in_g1(pair[1], SIGNED, pair[0], NUL_G1, library)


def test_both_libraries_say_the_same_of_altered_bytes() -> None:
    """Each is held to the other, refusals included."""
    verdicts = []
    libraries = (open_library("py_ecc"), open_library("blst"))
    for library in libraries:
        found = []
        for bit in (0, 5, 6, 7, 9, 100, 383):
            try:
                verify_in_g1(PUBLIC, SIGNED, flip(ROUND, bit), NUL_G1, library)
                found.append("holds")
            except SignatureError as error:
                found.append(f"{error.where}: {error.message}")
        verdicts.append(found)
    assert verdicts[0] == verdicts[1]
    assert "holds" not in verdicts[0]


def test_no_more_signers_than_are_taken(library: Library) -> None:
    for count in (0, bls.MOST_SIGNERS + 1):
        with pytest.raises(SignatureError, match=f"{count} keys"):
            verify_aggregate([make_key(5)] * count, MESSAGE, make_signature(5), library)
        with pytest.raises(SignatureError, match=f"{count} signatures"):
            aggregate([make_signature(5)] * count, library)


# --- libraries


def test_the_faster_library_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_library().name == "blst"
    there = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "pyblst" else there(name))
    assert open_library().name == "py_ecc"
    with pytest.raises(MissingExtraError, match=r"pip install 'vtrain\[blst\]'"):
        open_library("blst")
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vtrain\[report\]'"):
        open_library()


def test_the_recursion_limit_stays_as_it_is() -> None:
    """py_ecc raises it on import, and a hostile document would end the process."""
    limit = sys.getrecursionlimit()
    open_library("py_ecc")
    assert sys.getrecursionlimit() == limit
