"""The rule by which a signature holds (docs/format.md, section 4), in plain integers.

It shares nothing with ``vtrain.attest.keys``: no library, another way to tell points of small
order.  It is slow, and meant to be read.
"""

from __future__ import annotations

import hashlib
from typing import Final

P: Final = 2**255 - 19
L: Final = 2**252 + 27742317777372353535851937790883648493
D: Final = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_ONE: Final = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]
NEUTRAL: Final = (0, 1)


def add(a: Point, b: Point) -> Point:
    """Sum of two points of the twisted Edwards curve -x^2 + y^2 = 1 + d x^2 y^2."""
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P
    return x, y


def multiply(scalar: int, point: Point) -> Point:
    """``scalar`` (not negative) times ``point``."""
    total = NEUTRAL
    for bit in bin(scalar)[2:]:
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total


def encode(point: Point) -> bytes:
    """32 bytes: y, little-endian, with the lowest bit of x on top."""
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(data: bytes, *, lenient: bool = False) -> Point | None:
    """The point with this encoding; None where y is not reduced or no point has it.

    ``lenient``: y is reduced, and x = 0 may have a sign.
    """
    word = int.from_bytes(data, "little")
    y, sign = word & (2**255 - 1), word >> 255
    if y >= P and not lenient:
        return None
    y %= P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * SQRT_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign and not lenient):
        return None
    return (x if x & 1 == sign else P - x), y


def is_small(point: Point) -> bool:
    """Whether the point's order divides the cofactor, 8."""
    return multiply(8, point) == NEUTRAL


BASE: Final = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)
"""The base point: y = 4/5, x even."""


def hash_all(key: bytes, message: bytes, signature: bytes) -> int:
    """The factor of the key: SHA-512 of R, key and message, modulo the group order."""
    return int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L


def judge(key: bytes, message: bytes, signature: bytes) -> str:
    """ "holds", or the first condition that does not: "length", "key", "R", "S", "equation"."""
    if len(key) != 32 or len(signature) != 64:
        return "length"
    a, r = decode(key), decode(signature[:32])
    if a is None or is_small(a):
        return "key"
    if r is None or is_small(r):
        return "R"
    s = int.from_bytes(signature[32:], "little")
    if s >= L:
        return "S"
    h = hash_all(key, message, signature)
    return "holds" if multiply(s, BASE) == add(r, multiply(h, a)) else "equation"


def is_equation_met(key: bytes, message: bytes, signature: bytes) -> bool:
    """What OpenSSL asks, and no more: S is reduced, and [S] B - [h] A is encoded as R is.

    The key is decoded leniently, and nobody asks for its order: under the neutral point as key,
    R = the neutral point with S = 0 is a "signature" of every message.
    """
    a, s = decode(key, lenient=True), int.from_bytes(signature[32:], "little")
    if a is None or s >= L:
        return False
    x, y = multiply(hash_all(key, message, signature), a)
    return encode(add(multiply(s, BASE), (-x % P, y))) == signature[:32]
