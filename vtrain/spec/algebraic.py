"""The algebraic check of an exact product (Freivalds, 1977), and the vectors that it is made with.

C = A B is checked as C r = A (B r), modulo p = 2^61 - 1, with a vector r of independent residues
that nobody knew when C was fixed.  Let row i of C not be that of A B modulo p.  Then the row of C
- A B has an element d_j that is no multiple of p, and whatever the other elements of r are,
exactly one of the p values of r_j makes the sum of d_j r_j zero: the row passes with a probability
of 1/p, which is below 2^-60.  A right row always passes.

An element that is off by a multiple of p would always pass, too.  So each element is held to the
range that is proven for the accumulator.  It lies within 2^60 - 1 of zero; two numbers in it differ
by at most 2^61 - 2, which is less than p.

``vtrain_core::algebraic`` is the fast twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.spec import domains
from vtrain.wire import cbor

PRIME: Final = 2**61 - 1
"""p, the modulus; the least width of a range within which two numbers can be equal modulo it."""
REPETITIONS: Final = 2
"""Vectors of a check whose vectors follow from what is checked: whoever makes that can try many."""

_BLOCK: Final = 8 << 12


def compute_vector(
    randomness: bytes, traces: bytes, repetition: int, length: int
) -> npt.NDArray[np.uint64]:
    """Vector number ``repetition`` of ``length`` residues modulo p, evenly drawn.

    ``traces`` is the digest of the claim about what is checked, ``randomness`` what was drawn after
    it was known, empty where the vectors follow from the claim alone.  The stream is BLAKE3 in
    derive_key mode over the canonical map of the three, read as 8-byte little-endian words: a
    residue is the low 61 bits of a word, and a word whose low 61 bits are p is skipped.
    """
    material = cbor.encode({"randomness": randomness, "repetition": repetition, "traces": traces})
    stream = blake3(material, derive_key_context=domains.ALGEBRAIC)
    parts: list[npt.NDArray[np.uint64]] = []
    found, position = 0, 0
    while found < length:
        words = np.frombuffer(stream.digest(length=_BLOCK, seek=position), "<u8")
        residues = words & np.uint64(PRIME)
        parts.append(residues[residues != PRIME])
        found, position = found + len(parts[-1]), position + _BLOCK
    return np.concatenate(parts)[:length] if parts else np.empty(0, np.uint64)


def find_wrong_row(
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    c: npt.NDArray[Any],
    bounds: tuple[int, int],
    vectors: Sequence[npt.NDArray[np.uint64]],
) -> int | None:
    """The first row of the matrix ``c`` that is not that of the product of ``a`` and ``b``, as far
    as the ``vectors`` show; None where all rows pass.

    ``bounds`` are the least and the greatest element that is proven to be possible.  Of each vector
    the first elements are used, one for each column.
    """
    wrong = (c < bounds[0]) | (c > bounds[1])
    wrong_rows = wrong.any(axis=1)
    for vector in vectors:
        r = vector[: c.shape[1]].astype(object)
        wrong_rows |= _multiply(c, r) != _multiply(a, _multiply(b, r))
    rows = np.flatnonzero(wrong_rows)
    return int(rows[0]) if len(rows) else None


def _multiply(matrix: npt.NDArray[Any], vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Matrix times vector modulo p, in Python's own integers."""
    product: npt.NDArray[Any] = matrix.astype(object) @ vector % PRIME
    return product
