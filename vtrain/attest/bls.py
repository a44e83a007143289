"""BLS signatures over BLS12-381 (draft-irtf-cfrg-bls-signature-05), by either of two libraries.

py_ecc is the reference: pure Python, a few tenths of a second for a signature.  blst, through
pyblst, takes some milliseconds; a test holds each to the other.  :func:`open_library` takes the
faster one that is installed.

Points are in their compressed encoding (48 bytes in G1, 96 in G2).  What is no canonical encoding,
not in the group of prime order, or the point at infinity is refused, whichever library reads it.

A signature by several (:func:`verify_aggregate`) is of the proof-of-possession ciphersuite: every
key comes with a proof that somebody holds its secret.  Without that a last signer could choose its
key as the difference to the others' and sign for all of them alone (a rogue key).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import util
from typing import Any, Final, Literal, NoReturn, Protocol

from vtrain.errors import MissingExtraError, SignatureError

G1_LENGTH: Final = 48
G2_LENGTH: Final = 96
NUL_G1: Final = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
NUL_G2: Final = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_NUL_"
"""Tags of the basic scheme, by the group that signatures are in."""
POP: Final = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
POSSESSION: Final = b"BLS_POP_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
"""Tags of the ciphersuite with proofs of possession: of messages, and of these proofs."""
MOST_SIGNERS: Final = 256
"""Keys of one signature by several."""

_FIELD: Final = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
_COMPRESSED, _INFINITY, _SIGN = 1 << 383, 1 << 382, 1 << 381

LibraryName = Literal["auto", "py_ecc", "blst"]


class Library(Protocol):
    """What computes on the curve; every point handed in has passed :func:`check_encoding`."""

    @property
    def name(self) -> str:
        """Its name, as :func:`open_library` takes it."""

    def verify_in_g1(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        """Whether e(signature, generator) = e(H(message), public): keys in G2."""

    def verify_in_g2(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        """Whether e(generator, signature) = e(public, H(message)): keys in G1."""

    def add_publics(self, publics: Sequence[bytes]) -> bytes:
        """The sum of points of G1."""

    def add_signatures(self, signatures: Sequence[bytes]) -> bytes:
        """The sum of points of G2."""


def open_library(name: LibraryName = "auto") -> Library:
    """The library called ``name``; "auto" is blst where it is installed, else py_ecc.

    MissingExtraError, with the command that installs it, for one that is not there.
    """
    if name == "blst" or (name == "auto" and util.find_spec("pyblst") is not None):
        _require("pyblst", "blst")
        return _Blst()
    _require("py_ecc", "report")
    return _PyEcc()


def _require(module: str, extra: str) -> None:
    if util.find_spec(module) is None:
        command = f"{sys.executable} -m pip install 'vtrain[{extra}]'"
        raise MissingExtraError(f"needs {module}: {command}", where=module)


# --- encodings


def check_encoding(data: bytes, length: int, where: str) -> None:
    """SignatureError, at ``where``, unless ``data`` has ``length`` bytes and the form of a
    compressed point that is not infinity; whether there is such a point a library finds."""
    if len(data) != length:
        raise SignatureError(f"has {len(data)} bytes, not {length}", where=where)
    head, *rest = (int.from_bytes(data[i : i + G1_LENGTH]) for i in range(0, length, G1_LENGTH))
    if not head & _COMPRESSED:
        raise SignatureError("is not a compressed point", where=where)
    if head & _INFINITY:
        raise SignatureError("is the point at infinity, which anybody can sign for", where=where)
    if head % _SIGN >= _FIELD or any(word >= _FIELD for word in rest):
        raise SignatureError("has a coordinate that is not reduced", where=where)


def verify_in_g1(
    public: bytes, message: bytes, signature: bytes, tag: bytes, library: Library
) -> None:
    """SignatureError unless ``signature`` (48 bytes) of ``message`` is by the key ``public`` (96
    bytes) under the domain separation tag ``tag``."""
    check_encoding(public, G2_LENGTH, "public key")
    check_encoding(signature, G1_LENGTH, "signature")
    if not library.verify_in_g1(public, message, signature, tag):
        raise SignatureError("the signature does not verify", where="signature")


def verify_in_g2(
    public: bytes, message: bytes, signature: bytes, tag: bytes, library: Library
) -> None:
    """SignatureError unless ``signature`` (96 bytes) of ``message`` is by the key ``public`` (48
    bytes) under the domain separation tag ``tag``."""
    check_encoding(public, G1_LENGTH, "public key")
    check_encoding(signature, G2_LENGTH, "signature")
    if not library.verify_in_g2(public, message, signature, tag):
        raise SignatureError("the signature does not verify", where="signature")


# --- keys with proofs of possession


@dataclass(frozen=True)
class Possessed:
    """A public key (48 bytes) and the proof (96 bytes) that somebody holds its secret."""

    public: bytes
    possession: bytes


def generate_secret(material: bytes) -> int:
    """The secret key that follows from at least 32 secret random bytes (KeyGen of the draft)."""
    if len(material) < 32:
        raise SignatureError("needs at least 32 random bytes", where="key material")
    return int(_suite().KeyGen(material))


def prove_possession(secret: int) -> Possessed:
    """The public key of ``secret``, with the proof that its holder made it."""
    suite = _suite()
    return Possessed(bytes(suite.SkToPk(secret)), bytes(suite.PopProve(secret)))


def sign(secret: int, message: bytes) -> bytes:
    """The signature (96 bytes) of ``message`` in the ciphersuite with proofs of possession.

    By py_ecc, whose time depends on the secret: sign where nobody measures.
    """
    return bytes(_suite().Sign(secret, message))


def _suite() -> Any:
    _require("py_ecc", "report")
    return _load("py_ecc.bls").G2ProofOfPossession


def verify_possession(key: Possessed, library: Library) -> None:
    """SignatureError unless the proof shows that somebody holds the secret of the key."""
    try:
        verify_in_g2(key.public, key.public, key.possession, POSSESSION, library)
    except SignatureError as error:
        raise SignatureError(
            f"no proof of possession: {error.message}; without one a key can be made to cancel "
            "those of others",
            where=f"key {key.public.hex()}",
        ) from error


def aggregate(signatures: Sequence[bytes], library: Library) -> bytes:
    """One signature (96 bytes) in place of several of one message."""
    if not 1 <= len(signatures) <= MOST_SIGNERS:
        raise SignatureError(
            f"{len(signatures)} signatures, not 1 to {MOST_SIGNERS}", where="signatures"
        )
    for signature in signatures:
        check_encoding(signature, G2_LENGTH, "signature")
    return library.add_signatures(signatures)


def verify_aggregate(
    keys: Sequence[Possessed], message: bytes, signature: bytes, library: Library
) -> None:
    """SignatureError unless ``signature`` of ``message`` is by all of ``keys`` together.

    Each key needs its proof of possession, and none may occur twice: who is counted twice has not
    been joined by another.
    """
    if not 1 <= len(keys) <= MOST_SIGNERS:
        raise SignatureError(f"{len(keys)} keys, not 1 to {MOST_SIGNERS}", where="keys")
    seen: set[bytes] = set()
    for key in keys:
        if key.public in seen:
            raise SignatureError("signs twice", where=f"key {key.public.hex()}")
        seen.add(key.public)
        verify_possession(key, library)
    total = library.add_publics([key.public for key in keys])
    verify_in_g2(total, message, signature, POP, library)


# --- the libraries


def _load(name: str) -> Any:
    """A module of py_ecc.  Its import raises Python's recursion limit for the whole process, to
    where a deeply nested document ends it: the limit is put back."""
    from importlib import import_module

    limit = sys.getrecursionlimit()
    try:
        return import_module(name)
    finally:
        sys.setrecursionlimit(limit)


class _PyEcc:
    """py_ecc: the reference."""

    name = "py_ecc"

    def __init__(self) -> None:
        self._curve = _load("py_ecc.optimized_bls12_381")
        self._points = _load("py_ecc.bls.g2_primitives")
        self._hash = _load("py_ecc.bls.hash_to_curve")

    def verify_in_g1(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        signed, key = self._read_g1(signature, "signature"), self._read_g2(public, "public key")
        hashed = self._hash.hash_to_G1(message, tag, sha256)
        return self._cancels((self._curve.G2, self._curve.neg(signed)), (key, hashed))

    def verify_in_g2(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        signed, key = self._read_g2(signature, "signature"), self._read_g1(public, "public key")
        hashed = self._hash.hash_to_G2(message, tag, sha256)
        return self._cancels((signed, self._curve.neg(self._curve.G1)), (hashed, key))

    def add_publics(self, publics: Sequence[bytes]) -> bytes:
        total = self._curve.Z1
        for public in publics:
            total = self._curve.add(total, self._read_g1(public, "public key"))
        return bytes(self._points.G1_to_pubkey(total))

    def add_signatures(self, signatures: Sequence[bytes]) -> bytes:
        total = self._curve.Z2
        for signature in signatures:
            total = self._curve.add(total, self._read_g2(signature, "signature"))
        return bytes(self._points.G2_to_signature(total))

    def _cancels(self, *pairs: tuple[Any, Any]) -> bool:
        """Whether the product of the pairings of (G2, G1) is one."""
        product = self._curve.FQ12.one()
        for second, first in pairs:
            product *= self._curve.pairing(second, first, final_exponentiate=False)
        return bool(self._curve.final_exponentiate(product) == self._curve.FQ12.one())

    def _read_g1(self, data: bytes, where: str) -> Any:
        return self._check(self._points.pubkey_to_G1, data, where)

    def _read_g2(self, data: bytes, where: str) -> Any:
        return self._check(self._points.signature_to_G2, data, where)

    def _check(self, read: Any, data: bytes, where: str) -> Any:
        try:
            point = read(data)
        except (ValueError, AssertionError) as error:
            _refuse_point(where, error)
        if not self._points.subgroup_check(point):
            _refuse_point(where)
        return point


class _Blst:
    """blst, through pyblst, which looks at the group of a point as it reads it."""

    name = "blst"

    def __init__(self) -> None:
        import pyblst

        self._blst: Any = pyblst
        generators = bytes.fromhex(_G1), bytes.fromhex(_G2)
        self._g1 = self._read(pyblst.BlstP1Element, generators[0], "generator")
        self._g2 = self._read(pyblst.BlstP2Element, generators[1], "generator")

    def verify_in_g1(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        first, second = self._blst.BlstP1Element, self._blst.BlstP2Element
        signed = self._read(first, signature, "signature")
        key = self._read(second, public, "public key")
        hashed = first().hash_to_group(message, tag)
        return self._are_equal((signed, self._g2), (hashed, key))

    def verify_in_g2(self, public: bytes, message: bytes, signature: bytes, tag: bytes) -> bool:
        first, second = self._blst.BlstP1Element, self._blst.BlstP2Element
        signed = self._read(second, signature, "signature")
        key = self._read(first, public, "public key")
        hashed = second().hash_to_group(message, tag)
        return self._are_equal((self._g1, signed), (key, hashed))

    def add_publics(self, publics: Sequence[bytes]) -> bytes:
        return self._add(self._blst.BlstP1Element, publics, "public key")

    def add_signatures(self, signatures: Sequence[bytes]) -> bytes:
        return self._add(self._blst.BlstP2Element, signatures, "signature")

    def _add(self, group: Any, points: Sequence[bytes], where: str) -> bytes:
        total, *others = (self._read(group, point, where) for point in points)
        for point in others:
            total += point
        return bytes(total.compress())

    def _are_equal(self, left: tuple[Any, Any], right: tuple[Any, Any]) -> bool:
        loop = self._blst.miller_loop
        return bool(self._blst.final_verify(loop(*left), loop(*right)))

    def _read(self, group: Any, data: bytes, where: str) -> Any:
        try:
            return group().uncompress(data)
        except ValueError as error:
            _refuse_point(where, error)


def _refuse_point(where: str, error: BaseException | None = None) -> NoReturn:
    raise SignatureError("is no point of the group of prime order", where=where) from error


_G1: Final = (
    "97f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905"
    "a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb"
)
_G2: Final = (
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
"""The generators of both groups, compressed."""
