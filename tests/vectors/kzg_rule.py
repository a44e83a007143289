"""An SRS file and commitments by it, from tau and the formulas of docs/format.md, section 4a, and
the keys that hide what is committed to.

Whoever knows tau needs no points of the file to commit: f(tau) G, with f from the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from blake3 import blake3

from vtrain.prove.backend.srs import load_curve
from vtrain.wire import cbor

bn128 = load_curve()
P: int = bn128.field_modulus
R: int = bn128.curve_order


def make_root(k: int) -> int:
    """w, a primitive 2^k-th root of unity."""
    return pow(7, (R - 1) >> k, R)


@cache
def compute_lagrange(tau: int, k: int) -> list[int]:
    """l_i(tau) = 1/n sum over j of (tau / w^i)^j, for i < n = 2^k.

    As w^n = 1, that is (tau^n - 1) / n / (tau / w^i - 1).
    """
    n, root = 1 << k, make_root(k)
    factor = (pow(tau, n, R) - 1) * pow(n, -1, R) % R
    back, found, ratio = pow(root, -1, R), [], tau
    for _ in range(n):
        found.append(factor * pow(ratio - 1, -1, R) % R)
        ratio = ratio * back % R
    return found


@cache
def compute_lagrange_at(tau: int, k: int, i: int) -> int:
    """One of these, for columns of which most is zeros."""
    n = 1 << k
    factor = (pow(tau, n, R) - 1) * pow(n, -1, R) % R
    return factor * pow(tau * pow(make_root(k), -i, R) - 1, -1, R) % R


def _store(*coordinates: int) -> bytes:
    return b"".join(((c << 256) % P).to_bytes(32, "little") for c in coordinates)


@cache
def _list_multiples() -> list[list[Any]]:
    """d 16^i G, for each place i of a factor and each digit d."""
    found, unit = [], bn128.G1
    for _ in range(64):
        row = [bn128.Z1]
        for _ in range(16):
            row.append(bn128.add(row[-1], unit))
        unit = row.pop()
        found.append(row)
    return found


def _find_point(factor: int) -> tuple[int, int]:
    total, left = bn128.Z1, factor % R
    for row in _list_multiples():
        total = bn128.add(total, row[left & 15])
        left >>= 4
    x, y = bn128.normalize(total)
    return int(x), int(y)


@cache
def make_srs(tau: int, k: int) -> bytes:
    """The file."""
    powers = [pow(tau, i, R) for i in range(1 << k)]
    points = [_store(*_find_point(factor)) for factor in [*powers, *compute_lagrange(tau, k)]]
    second = []
    for factor in (1, tau):
        pair = bn128.normalize(bn128.multiply(bn128.G2, factor))
        second.append(_store(*(int(c) for item in pair for c in item.coeffs)))
    return k.to_bytes(4, "little") + b"".join(points + second)


def commit(
    tau: int, k: int, blinding: int, values: Sequence[int], hiding: Sequence[int] = ()
) -> bytes:
    """The commitment to a column: its values, and behind them what hides them."""
    used = [*values, *hiding]
    column = used + [0] * ((1 << k) - blinding - 1 - len(used)) + [1] * (blinding + 1)
    rows = [i for i, v in enumerate(column) if v]
    if len(rows) > 1000:
        total = sum(v * at for v, at in zip(column, compute_lagrange(tau, k), strict=True))
    else:
        total = sum(column[i] * compute_lagrange_at(tau, k, i) for i in rows)
    x, y = _find_point(total)
    return x.to_bytes(32, "big") + y.to_bytes(32, "big")


# --- keys


def _derive(domain: str, value: cbor.Value, length: int = 32) -> bytes:
    material = value if isinstance(value, bytes) else cbor.encode(value)
    return blake3(material, derive_key_context=f"vtrain 2026 {domain}").digest(length=length)


def derive_key(secret: bytes, task: bytes, kind: str, index: int, digest: bytes) -> bytes:
    """The key of the state or batch of this index, of which ``digest`` is the root or digest."""
    about: dict[str, cbor.Value] = {"digest": digest, "index": index, "kind": kind, "task": task}
    return _derive("hiding key v1", {**about, "secret": secret})


def derive_trace_key(before: bytes, batch: bytes) -> bytes:
    """The key of a step's trace."""
    return _derive("hiding key v1", {"batch": batch, "kind": "tiling 1", "state": before})


def derive_own_key(
    layout: str, k: int, srs: bytes, kind: str, index: int, digest: bytes, tensors: bytes
) -> bytes:
    """The key of a state or batch that is its own secret."""
    secret = _derive("hiding own v1", tensors)
    place = _derive("hiding own v1", {"circuit": layout, "k": k, "srs": srs})
    return derive_key(secret, place, kind, index, digest)


def identify(key: bytes) -> bytes:
    """The id of a key."""
    return _derive("hiding key id v1", key)


def derive_elements(key: bytes, column: int) -> list[int]:
    """What hides a column."""
    stream = _derive("hiding v1", {"column": column, "key": key}, 48 * 64)
    return [int.from_bytes(stream[at : at + 48], "little") % R for at in range(0, 48 * 64, 48)]
