"""SRS files: the structured reference string that ezkl's KZG commitments and proofs rest on.

An SRS is a list of powers of a secret number tau, hidden in points of the curve BN254.  Whoever
knows tau can forge proofs, so a file is worth something only if tau was made in a ceremony of which
one party, at least, was honest.  A file cannot show that; its SHA-256 on the list of a public
ceremony does.  Every other file is *insecure*, whatever it says of itself.

The format is that of ``ParamsKZG::write_custom`` with raw bytes in halo2 (ezkl: ``gen_srs``)::

    4 bytes           k, little-endian; n = 2^k
    64 n bytes        tau^0 G, tau^1 G, ... tau^(n-1) G
    64 n bytes        l_0(tau) G, ... l_(n-1)(tau) G: Lagrange's basis over the n-th roots of unity
    128 + 128 bytes   H and tau H in the second group

with each coordinate 32 bytes, little-endian, in Montgomery form to the base 2^256, and in the
second group the real part first.  ezkl reads it without any check.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

from blake3 import blake3

from vtrain._core import G1Points, SrsSecret
from vtrain.commit.files import BoundedFile, open_file, storing, sync_folder
from vtrain.errors import EncodingError, SrsError, StorageError
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import require_extra
from vtrain.spec.domains import SRS_TAU
from vtrain.spec.field import BASE_FIELD
from vtrain.spec.field import SCALAR_FIELD as _R
from vtrain.threads import check_threads

MIN_K: Final = 1
MAX_K: Final = 28
"""The field of BN254's scalars has 2^28-th roots of unity and no larger ones."""

CEREMONY: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "cafb2aa72c200ddc4e28aacabb8066e829207e2484b8d17059a566232f8a297b",
        2: "8194ec51da5d332d2e17283ade34920644774452c2fadf33742e8c739e275d8e",
        3: "0729e815bce2ac4dfad7819982c6479c3b22c32b71f64dca05e8fdd90e8535ef",
        4: "2c0785da20217fcafd3b12cc363a95eb2529037cc8a9bddf8fb15025cbc8cdc9",
        5: "5b950e3b76e7a9923d69f6d6585ce6b5f9458e5ec57a71c9de5005d32d544692",
        6: "85030b2924111fc60acaf4fb8a7bad89531fbe0271aeab0c21e545f71eee273d",
        7: "e65f95150519fe01c2bedf8f832f5249822ef84c9c017307419e10374ff9eeb1",
        8: "446092fd1d6030e5bb2f2a8368267d5ed0fbdb6a766f6c5e4a4841827ad3106f",
        9: "493d088951882ad81af11e08c791a38a37c0ffff14578cf2c7fb9b7bca654d8b",
        10: "9705d450e5dfd06adb673705f7bc34418ec86339203198beceb2ae7f1ffefedb",
        11: "257fa566ed9bc0767d3e63e92b5e966829fa3347d320a32055dc31ee7d33f8a4",
        12: "28b151069f41abc121baa6d2eaa8f9e4c4d8326ddbefee2bd9c0776b80ac6fad",
        13: "d5d94bb25bdc024f649213593027d861042ee807cafd94b49b54f1663f8f267d",
        14: "c09129f064c08ecb07ea3689a2247dcc177de6837e7d2f5f946e30453abbccef",
        15: "90807800a1c3b248a452e1732c45ee5099f38b737356f5542c0584ec9c3ebb45",
        16: "2a1a494630e71bc026dd5c0eab4c1b9a5dbc656228c1f0d48f5dbd3909b161d3",
        17: "41509f380362a8d14401c5ae92073154922fe23e45459ce6f696f58607655db7",
        18: "d0148475717a2ba269784a178cb0ab617bc77f16c58d4a3cbdfe785b591c7034",
        19: "d1a1655b4366a766d1578beb257849a92bf91cb1358c1a2c37ab180c5d3a204d",
        20: "54ef75911da76d7a6b7ea341998aaf66cb06c679c53e0a88a4fe070dd3add963",
        21: "486e044cf98704e07f41137d2b89698dc03d1fbf34d13b60902fea19a6013b4b",
        22: "1ee9b4396db3e4e2516ac5016626ab6ba967f091d5d23afbdb7df122a0bb9d0c",
        23: "748e48b9b6d06f9c82d26bf551d0af43ee2e801e4be56d7ccb20312e267fd1d6",
        24: "f94fa4afa2f5147680f907d4dd96a8826206c26bd3328cd379feaed614b234de",
        25: "dec49a69893fbcd66cd06296b2d936a6aceb431c130b2e52675fe4274b504f57",
        26: "b198a51d48b88181508d8e4ea9dea39db285e4585663b29b7e4ded0c22a94875",
    }
)
"""k -> SHA-256 of the file made of Ethereum's perpetual powers of tau for that k.

Source: ``PUBLIC_SRS_SHA256_HASHES`` in ezkl's src/srs_sha.rs (github.com/zkonduit/ezkl, commit
5da444ee72a0); the same strings are in the published package ezkl 23.0.5, which a test compares.
The files are those of github.com/han0110/halo2-kzg-srs.
"""

SRS_POINT: Final = 64
"""Bytes of a point of the first group."""
_BLOCK: Final = 1 << 16
"""Points held at once."""
_LARGE: Final = 1 << 30
_TAIL: Final = 256
_UNMONTGOMERY: Final = pow(1 << 256, -1, BASE_FIELD)
_ROOT: Final = pow(7, (_R - 1) >> MAX_K, _R)
"""halo2's primitive 2^28-th root of unity: 7 generates the scalars' multiplicative group."""

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""


def quiet(what: str, done: int, total: int) -> None:
    """A :data:`Progress` that shows nothing."""


@dataclass(frozen=True)
class Srs:
    """What a file is: the logarithm of its size and its SHA-256 (32 bytes)."""

    k: int
    sha256: bytes

    @property
    def is_ceremony(self) -> bool:
        """Whether it is a file of the public ceremony; if not, it is insecure."""
        return CEREMONY.get(self.k) == self.sha256.hex()


def identify_srs(path: Path) -> Srs:
    """k and SHA-256 of a file of the length of an SRS, its points not looked at.

    SrsError names the byte where it ends too early or too late.
    """
    with open_srs(path) as reader:
        return reader.finish()


def check_srs(
    path: Path,
    *,
    threads: int = 0,
    progress: Progress = quiet,
) -> Srs:
    """Check that a file is an SRS and say which; SrsError names the byte or the point at fault.

    Checked: the length; that every coordinate is reduced and every point finite, on its curve and
    in its group; that both groups' first points are the generators; and, at a random s drawn
    afresh, with P_j the powers, L_i the Lagrange points, H and T the last two, and w the n-th root
    of unity::

        e(sum s^j P_(j+1), H) = e(sum s^j P_j, T)  over j < n - 1     P_(j+1) = tau P_j, T = tau H
        sum (s^n - 1) / (s w^i - 1) L_i = sum s^j P_j  over i, j < n  L_i = l_i(tau) G

    The factors on the left of the second line are the values of sum s^j X^j at the roots w^i.
    Where a point is false, one of the lines is a false polynomial identity in s of degree below n:
    the file passes with a chance below 2 n / (2^253 - n).

    Not checked, since no file can show it: that nobody knows tau (:attr:`Srs.is_ceremony`).

    Memory: some 64 MiB whatever k.  ``threads``: 0 takes every core.  MissingExtraError without
    py_ecc, which computes the pairings.
    """
    check_threads(threads)
    require_extra("py_ecc")
    with open_srs(path) as reader:
        n = 1 << reader.k
        s = _draw_challenge(n)
        powers, first, last = _combine(reader, "power", _powers(s), threads, progress)
        lagrange, _, _ = _combine(
            reader, "Lagrange point", _weights(s, reader.k), threads, progress
        )
        tail = reader.read(_TAIL)
    _check_relations(reader, s, powers, first, last, lagrange, tail)
    return reader.finish()


def generate_srs(
    path: Path,
    k: int,
    *,
    seed: bytes | None = None,
    threads: int = 0,
    progress: Progress = quiet,
) -> Srs:
    """Make an SRS of size 2^k in the new file ``path``, for tests and trials: it is insecure.

    Its tau was known to this machine, so that proofs made with it convince nobody else.  It comes
    from ``seed``, of at least one byte, or from 32 random bytes: the 64 bytes that BLAKE3's
    derive_key puts out under ``vtrain.spec.domains.SRS_TAU``, little-endian, modulo the scalars'
    order.  A seed always makes the same bytes.

    SrsError for a k out of range, a seed that is empty or makes a tau of 0 or a 2^k-th root of
    unity; StorageError when the file is there or cannot be written.
    """
    check_threads(threads)
    if not MIN_K <= k <= MAX_K:
        raise SrsError(f"k is {k}, not {MIN_K} to {MAX_K}", where="k")
    if seed == b"":
        raise SrsError("is empty", where="seed")
    tau = _derive_tau(secrets.token_bytes(32) if seed is None else seed)
    try:
        secret = SrsSecret(tau.to_bytes(32, "little"), k, threads)
    except EncodingError as error:
        raise SrsError(error.message, where="seed") from None
    hasher = hashlib.sha256()
    with storing(path):
        path = path.resolve()
        if path.exists():
            raise StorageError("the file exists: name a new one", where=str(path))
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            made = Path(folder) / "srs"
            with made.open("wb") as file:
                for part in _make_parts(secret, k, threads, progress):
                    hasher.update(part)
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.link(made, path)  # unlike a rename, never over a file that came meanwhile
        sync_folder(path.parent)
    return Srs(k, hasher.digest())


def _derive_tau(seed: bytes) -> int:
    return int.from_bytes(blake3(seed, derive_key_context=SRS_TAU).digest(64), "little") % _R


def _make_parts(secret: SrsSecret, k: int, threads: int, progress: Progress) -> Iterator[bytes]:
    """The bytes of a file, block by block."""
    yield k.to_bytes(4, "little")
    n = 1 << k
    for what, make in (("powers", secret.powers), ("Lagrange points", secret.lagrange)):
        for start in range(0, n, _BLOCK):
            count = min(_BLOCK, n - start)
            yield make(start, count, threads)
            progress(what, start + count, n)
    yield secret.second_group()


class SrsReader:
    """Reads an SRS file from front to back, hashing every byte; ``left`` are yet to be read."""

    def __init__(self, file: BoundedFile, path: Path) -> None:
        self.path = path
        self._file, self._hasher = file, hashlib.sha256()
        size = self._size = self.left = file.size
        self.k = int.from_bytes(self.read(4), "little")
        if not MIN_K <= self.k <= MAX_K:
            raise self.refuse(f"is no SRS: its k is {self.k}, not {MIN_K} to {MAX_K}", "byte 0")
        wanted = 4 + 2 * (SRS_POINT << self.k) + _TAIL
        if size != wanted:
            raise self.refuse(
                f"has {size} bytes; with k = {self.k} it would have {wanted}",
                f"byte {min(size, wanted)}",
            )

    def refuse(self, message: str, place: str) -> SrsError:
        return SrsError(message, where=f"{self.path}: {place}")

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self.refuse("the file ends here", f"byte {self._size - self.left + len(data)}")
        self._hasher.update(data)
        self.left -= count
        return data

    def skip(self, count: int) -> None:
        while count:
            count -= len(self.read(min(count, _BLOCK * SRS_POINT)))

    def finish(self) -> Srs:
        """Read what is left; the whole file's identity."""
        self.skip(self.left)
        return Srs(self.k, self._hasher.digest())


@contextmanager
def open_srs(path: Path) -> Iterator[SrsReader]:
    """A reader of a file of the length of an SRS, behind its k; SrsError for another file."""
    with open_file(path, LIMITS.srs_bytes, error=SrsError) as file:
        # Points are as good as random, and no file system stores them in less: what has holes
        # would be hashed for a minute, and be none.
        stored = os.fstat(file.fileno()).st_blocks * 512
        if file.size > _LARGE and 0 < stored < file.size // 2:
            raise SrsError(
                f"has {file.size} bytes, of which {stored} are stored: it is mostly holes, fetch "
                "the file again",
                where=str(path),
            )
        yield SrsReader(file, path)


def _draw_challenge(n: int) -> int:
    """s, never 0 nor an n-th root of unity, where the relations would divide by zero."""
    while True:
        s = secrets.randbelow(_R)
        if s and pow(s, n, _R) != 1:
            return s


Weights = Callable[[int, int], list[int]]
"""(start, count) -> the factors of so many points."""


def _powers(s: int) -> Weights:
    def weights(start: int, count: int) -> list[int]:
        values = [pow(s, start, _R)]
        for _ in range(count - 1):
            values.append(values[-1] * s % _R)
        return values

    return weights


def _weights(s: int, k: int) -> Weights:
    root, top = pow(_ROOT, 1 << (MAX_K - k), _R), (pow(s, 1 << k, _R) - 1) % _R

    def weights(start: int, count: int) -> list[int]:
        # One inversion for all: products up to each term, then back from the inverse of the whole.
        term, terms, products = s * pow(root, start, _R) % _R, [], [1]
        for _ in range(count):
            terms.append(term - 1)
            products.append(products[-1] * (term - 1) % _R)
            term = term * root % _R
        inverse, values = pow(products.pop(), -1, _R) * top % _R, [0] * count
        for i in reversed(range(count)):
            values[i] = inverse * products[i] % _R
            inverse = inverse * terms[i] % _R
        return values

    return weights


def _combine(
    reader: SrsReader, what: str, weights: Weights, threads: int, progress: Progress
) -> tuple[Any, bytes, bytes]:
    """The weighted sum of the next 2^k points; the first and the last of them as they stand."""
    curve = load_curve()

    n, total, first, last = 1 << reader.k, curve.Z1, b"", b""
    for start in range(0, n, _BLOCK):
        count = min(_BLOCK, n - start)
        raw = reader.read(count * SRS_POINT)
        scalars = b"".join(value.to_bytes(32, "little") for value in weights(start, count))
        try:
            part = G1Points(raw, start, threads).combine(scalars, threads)
        except EncodingError as error:
            raise reader.refuse(error.message, f"{what}s") from None
        total = curve.add(total, _first_group(part))
        first, last = first or raw[:SRS_POINT], raw[-SRS_POINT:]
        progress(f"{what}s", start + count, n)
    return total, first, last


def load_curve() -> Any:
    """py_ecc's curve BN254, called bn128 there.

    Its import raises Python's recursion limit for the whole process, to where a deeply nested
    document ends it: the limit is put back.
    """
    limit = sys.getrecursionlimit()
    from py_ecc import optimized_bn128

    sys.setrecursionlimit(limit)
    return optimized_bn128


def _first_group(point: bytes) -> Any:
    """x and y, big-endian, zeros for infinity, as py_ecc has it."""
    curve = load_curve()

    x, y = int.from_bytes(point[:32]), int.from_bytes(point[32:])
    return (curve.FQ(x), curve.FQ(y), curve.FQ(1)) if x or y else curve.Z1


def subtract_points(left: bytes, right: bytes) -> bytes:
    """The difference of two points of the first group, 64 bytes each: x and y, big-endian."""
    curve = load_curve()
    found = curve.add(_first_group(left), curve.neg(_first_group(right)))
    if curve.is_inf(found):
        return bytes(SRS_POINT)
    x, y = curve.normalize(found)
    return int(x).to_bytes(32) + int(y).to_bytes(32)


def _read_coordinates(reader: SrsReader, raw: bytes, place: str) -> list[int]:
    values = [int.from_bytes(raw[at : at + 32], "little") for at in range(0, len(raw), 32)]
    if max(values) >= BASE_FIELD:
        raise reader.refuse("a coordinate is not reduced", place)
    return [value * _UNMONTGOMERY % BASE_FIELD for value in values]


def _check_relations(
    reader: SrsReader, s: int, powers: Any, first: bytes, last: bytes, lagrange: Any, tail: bytes
) -> None:
    """Everything that takes more than one point at once; SrsError names what does not hold."""
    curve = load_curve()

    def is_same(a: Any, b: Any) -> bool:
        return bool(curve.eq(a, b))

    def read_second(raw: bytes, place: str) -> Any:
        x0, x1, y0, y1 = _read_coordinates(reader, raw, place)
        point = (curve.FQ2((x0, x1)), curve.FQ2((y0, y1)), curve.FQ2.one())
        if not curve.is_on_curve(point, curve.b2):
            raise reader.refuse("the point is not on the curve", place)
        if not curve.is_inf(curve.multiply(point, curve.curve_order)):
            raise reader.refuse("the point is not in the group", place)
        return point

    def read_first(raw: bytes, place: str) -> Any:
        x, y = _read_coordinates(reader, raw, place)
        return curve.FQ(x), curve.FQ(y), curve.FQ(1)

    generator = read_second(tail[: _TAIL // 2], "point H")
    shifted = read_second(tail[_TAIL // 2 :], "point tau H")
    start, end = read_first(first, "power 0"), read_first(last, "last power")
    if not is_same(start, curve.G1):
        raise reader.refuse("is not the generator", "power 0")
    if not is_same(generator, curve.G2):
        raise reader.refuse("is not the generator", "point H")
    if not is_same(powers, lagrange):
        raise reader.refuse("they are not the Lagrange basis of the powers", "Lagrange points")
    n = 1 << reader.k
    without_last = curve.add(powers, curve.neg(curve.multiply(end, pow(s, n - 1, _R))))
    without_first = curve.add(powers, curve.neg(start))
    moved = curve.multiply(without_first, pow(s, -1, _R))
    if curve.pairing(generator, moved) != curve.pairing(shifted, without_last):
        raise reader.refuse("they are not the powers of the tau in tau H", "powers")
