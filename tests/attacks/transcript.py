"""What anybody reads in a proof: the challenges, and which number is whose evaluation where.

ezkl's proofs are those of halo2 with KZG, SHPLONK and logUp ("mv-lookup"), over a Keccak
transcript; :class:`Layout` reads its order in the Solidity verifier of the circuit, which ezkl
makes of the verifying key.  The words of a proof, in this order:

- points: the committed columns (``Circuit.columns``) and the inner ones; then, after the challenge
  theta, m of every look-up argument; after beta and gamma, the products of the permutation, phi of
  every look-up argument and one random polynomial; after y, the pieces of the quotient;
- after x, numbers: every column's value at x, in the order of the points (what is read at another
  row too comes once more behind them), fixed columns, the random polynomial, the permutation; last
  phi(x), phi(omega x) and m(x) of each look-up argument; and
- two points of the opening, which follow from all others.

A point is x and y and a number one word, 32 bytes, big-endian.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, repeat
from typing import Final, NamedTuple

from vtrain.spec.field import SCALAR_FIELD

BLINDING: Final = 5
"""halo2's blinding factors; one row more is unusable."""
_ROOT: Final = pow(7, (SCALAR_FIELD - 1) >> 28, SCALAR_FIELD)


class Opening(NamedTuple):
    """The value of a column's polynomial at a point."""

    point: int
    value: int


class Lookup(NamedTuple):
    """What a proof says of one look-up argument."""

    multiplicities: bytes
    """The commitment to m, 64 bytes."""
    m: Opening
    phi: Opening
    phi_next: Opening


@dataclass(frozen=True)
class Domain:
    """The 2^k powers of omega, on which a column's values stand."""

    k: int

    @property
    def rows(self) -> int:
        return 1 << self.k

    @property
    def usable(self) -> int:
        """Rows before those of the blinding."""
        return self.rows - BLINDING - 1

    @property
    def omega(self) -> int:
        return self.points[1]

    @property
    def points(self) -> tuple[int, ...]:
        return _list_powers(self.k)

    def weigh(self, rows: Iterable[int], x: int) -> list[int]:
        """L_i(x) for each row i: what a value there counts for in the evaluation at x."""
        points = [self.points[row] for row in rows]
        scale = (pow(x, self.rows, SCALAR_FIELD) - 1) * _invert_rows(self.k)
        inverses = invert([x - point for point in points])
        return [
            scale * point % SCALAR_FIELD * inverse % SCALAR_FIELD
            for point, inverse in zip(points, inverses, strict=True)
        ]

    def evaluate(self, values: Sequence[int], x: int, *, fill: int = 0) -> int:
        """A column's polynomial at x: its values, zeros, and ``fill`` in the unusable rows."""
        weights = self.weigh([*range(len(values)), *range(self.usable, self.rows)], x)
        filling = [fill] * (self.rows - self.usable)
        return dot([*values, *filling], weights)


@cache
def _invert_rows(k: int) -> int:
    return pow(1 << k, -1, SCALAR_FIELD)


@cache
def _list_powers(k: int) -> tuple[int, ...]:
    omega = pow(_ROOT, 1 << (28 - k), SCALAR_FIELD)
    return tuple(accumulate(repeat(omega, (1 << k) - 1), _multiply, initial=1))


def _multiply(a: int, b: int) -> int:
    return a * b % SCALAR_FIELD


def dot(a: Iterable[int], b: Iterable[int]) -> int:
    """The sum of the products, in the field."""
    return sum(x * y for x, y in zip(a, b, strict=True)) % SCALAR_FIELD


def invert(numbers: Sequence[int]) -> list[int]:
    """The inverse of each in the field, for the price of one."""
    products = list(accumulate(numbers, _multiply, initial=1))
    inverse, found = pow(products[-1], -1, SCALAR_FIELD), []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        found.append(inverse * before % SCALAR_FIELD)
        inverse = inverse * number % SCALAR_FIELD
    return found[::-1]


@dataclass(frozen=True)
class Layout:
    """The order of words and challenges of a circuit's proofs."""

    digest: bytes
    """Of the verifying key: what the transcript begins with."""
    points: tuple[int, ...]
    """Before theta, before beta, before y, before x."""
    numbers: int
    k: int

    @classmethod
    def read(cls, source: str) -> Layout:
        """From the Solidity verifier of a circuit."""
        [digest] = {*re.findall(r"0x([0-9a-f]{64})\) // vk_digest", source)}
        [k] = {*re.findall(r"0x([0-9a-f]{64})\) // k\n", source)}
        read = re.findall(r"proof_cptr_end := add\(proof_cptr, (0x[0-9a-f]+)\)", source)
        *phases, numbers = (int(size, 16) for size in read)
        points = [size // 64 for size in phases]
        if len(points) == 3:  # nothing is looked up
            points.insert(1, 0)
        assert len(points) == 4, "challenges of the circuit's own"
        return cls(bytes.fromhex(digest), tuple(points), numbers // 32, int(k, 16))

    @property
    def lookups(self) -> int:
        return self.points[1]

    @property
    def length(self) -> int:
        """Of a proof, in bytes."""
        return 64 * (sum(self.points) + 2) + 32 * self.numbers

    def open(self, proof: bytes) -> Reading:
        assert len(proof) == self.length
        return Reading(self, proof)


@dataclass(frozen=True)
class Reading:
    """A proof, read."""

    layout: Layout
    proof: bytes

    @cached_property
    def challenges(self) -> dict[str, int]:
        """theta, beta, gamma, y and x: each squeezed from all that stands before it."""
        theta, beta, y, x = accumulate(self.layout.points)
        found, state, at = {}, self.layout.digest, 0
        for name, end in (("theta", theta), ("beta", beta), ("y", y), ("x", x)):
            # A second challenge without points between has a byte there.
            state, at = keccak256(state + (self.proof[64 * at : 64 * end] or b"\1")), end
            found[name] = int.from_bytes(state) % SCALAR_FIELD
            if name == "beta":
                state = keccak256(state + b"\1")
                found["gamma"] = int.from_bytes(state) % SCALAR_FIELD
        return found

    @property
    def x(self) -> int:
        return self.challenges["x"]

    def point(self, index: int) -> bytes:
        return self.proof[64 * index : 64 * (index + 1)]

    def number(self, index: int) -> int:
        """One of the evaluations; negative indices count from the last."""
        at = 64 * sum(self.layout.points) + 32 * (index % self.layout.numbers)
        return int.from_bytes(self.proof[at : at + 32])

    def column(self, index: int) -> tuple[bytes, Opening]:
        """The commitment to a committed column, and its evaluation."""
        return self.point(index), Opening(self.x, self.number(index))

    def lookup(self, index: int) -> Lookup:
        first = 3 * (index - self.layout.lookups)
        phi, phi_next, m = (self.number(first + part) for part in range(3))
        after = self.x * Domain(self.layout.k).omega % SCALAR_FIELD
        return Lookup(
            self.point(self.layout.points[0] + index),
            Opening(self.x, m),
            Opening(self.x, phi),
            Opening(after, phi_next),
        )


_LANES: Final = 25
_MASK: Final = (1 << 64) - 1


def _turn(lane: int, by: int) -> int:
    return (lane << by | lane >> (64 - by)) & _MASK if by else lane


def keccak256(data: bytes) -> bytes:
    """Keccak-256 as Ethereum has it: SHA3-256 but for the padding (FIPS 202 has 0x06 for 0x01)."""
    rate = 136
    padded = bytearray(data + bytes(rate - len(data) % rate))
    padded[len(data)] ^= 0x01
    padded[-1] ^= 0x80
    lanes = [0] * _LANES
    for start in range(0, len(padded), rate):
        for i in range(rate // 8):
            at = start + 8 * i
            lanes[i] ^= int.from_bytes(padded[at : at + 8], "little")
        lanes = _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _permute(lanes: list[int]) -> list[int]:
    shift_register = 1
    for _ in range(24):
        parity = [
            lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
            for x in range(5)
        ]
        lanes = [
            lanes[i] ^ parity[(i - 1) % 5] ^ _turn(parity[(i + 1) % 5], 1) for i in range(_LANES)
        ]
        x, y, moved = 1, 0, lanes[1]
        for t in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            moved, lanes[x + 5 * y] = lanes[x + 5 * y], _turn(moved, (t + 1) * (t + 2) // 2 % 64)
        lanes = [
            lanes[i] ^ (~lanes[i - i % 5 + (i + 1) % 5] & lanes[i - i % 5 + (i + 2) % 5] & _MASK)
            for i in range(_LANES)
        ]
        for j in range(7):
            shift_register = (shift_register << 1) ^ ((shift_register >> 7) * 0x171)
            if shift_register & 2:
                lanes[0] ^= 1 << ((1 << j) - 1)
    return lanes
