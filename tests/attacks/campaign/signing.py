"""Ed25519 in plain Python, with a nonce of the signer's own choice: any number of valid signatures
of one message, as RFC 8032 does not ask a verifier to see how the nonce came about."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

FIELD: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, FIELD) % FIELD

Point = tuple[int, int, int, int]
"""Extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z."""
_X: Final = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_Y: Final = 46316835694926478169428394003475163141307993866256225615783033603165251855960
_BASE: Final[Point] = (_X, _Y, 1, _X * _Y % FIELD)


def _add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % FIELD
    b = (p[1] + p[0]) * (q[1] + q[0]) % FIELD
    c = 2 * p[3] * q[3] * _D % FIELD
    d = 2 * p[2] * q[2] % FIELD
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % FIELD, g * h % FIELD, f * g % FIELD, e * h % FIELD


def _multiply(scalar: int, point: Point = _BASE) -> Point:
    result: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, FIELD)
    x, y = point[0] * inverse % FIELD, point[1] * inverse % FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


def sign(key: Ed25519PrivateKey, message: bytes, nonce: bytes) -> bytes:
    """A valid signature of ``message`` with a nonce that follows from ``nonce`` alone."""
    secret = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    half = bytearray(hashlib.sha512(secret).digest()[:32])
    half[0] &= 248
    half[31] = half[31] & 127 | 64
    scalar = int.from_bytes(half, "little")
    r = int.from_bytes(hashlib.sha512(b"a nonce of my own" + nonce).digest(), "little") % ORDER
    point = _encode(_multiply(r))
    challenge = hashlib.sha512(point + public + message).digest()
    s = (r + int.from_bytes(challenge, "little") * scalar) % ORDER
    return point + s.to_bytes(32, "little")
