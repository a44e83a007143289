"""The law of Freivalds' check: its vectors, what it catches, and what it is blind to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from vtrain.attest.traces import compute_traces_digest
from vtrain.spec import domains
from vtrain.spec.algebraic import PRIME, compute_vector, find_wrong_row
from vtrain.wire import cbor, structs
from vtrain.wire.traces import decode_signed_tensor_traces

TRACES = bytes(range(32))
BOUNDS = (-(2**60) + 1, 2**60 - 1)


def test_a_vector_is_residues_of_its_own_stream() -> None:
    found = compute_vector(b"r", TRACES, 0, 5000)
    assert found.dtype == np.uint64
    assert int(found.max()) < PRIME
    assert len(set(found.tolist())) == 5000
    assert compute_vector(b"r", TRACES, 0, 70).tolist() == found[:70].tolist()
    assert compute_vector(b"r", TRACES, 0, 0).tolist() == []
    material = cbor.encode({"randomness": b"r", "repetition": 0, "traces": TRACES})
    words = blake3(material, derive_key_context=domains.ALGEBRAIC).digest(length=24)
    expected = [int.from_bytes(words[i : i + 8], "little") & PRIME for i in (0, 8, 16)]
    assert found[:3].tolist() == expected  # none of them is p itself: one in 2^61 is


@pytest.mark.parametrize(
    "other", [(b"s", TRACES, 0), (b"r", bytes(32), 0), (b"r", TRACES, 1), (b"", TRACES, 0)]
)
def test_whatever_goes_in_changes_the_vector(other: tuple[bytes, bytes, int]) -> None:
    assert not set(compute_vector(*other, 64)) & set(compute_vector(b"r", TRACES, 0, 64))


def test_a_word_that_is_the_prime_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, data: bytes, derive_key_context: str) -> None: ...

        def digest(self, length: int, seek: int) -> bytes:
            words = [PRIME, 1, 2**64 - 1, 2, (1 << 61) | 3]  # the third is p in its low 61 bits
            return b"".join(word.to_bytes(8, "little") for word in words)

    monkeypatch.setattr("vtrain.spec.algebraic.blake3", Stream)
    assert compute_vector(b"", TRACES, 0, 5).tolist() == [1, 2, 3, 1, 2]


def test_vectors() -> None:
    found = json.loads((Path(__file__).parents[1] / "vectors" / "algebraic.json").read_text())
    signed = decode_signed_tensor_traces(bytes.fromhex(found["signed_encoding"]))
    assert structs.encode(signed.traces).hex() == found["encoding"]
    digest = compute_traces_digest(signed.traces)
    assert digest.hex() == found["digest"]
    for case in found["vectors"]:
        given = bytes.fromhex(case["randomness"]), digest, case["repetition"], len(case["vector"])
        assert [str(x) for x in compute_vector(*given)] == case["vector"]


def test_every_single_wrong_element_is_found() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-32639, 32640, (5, 7)), rng.integers(-32639, 32640, (7, 4))
    c, vectors = a @ b, [compute_vector(b"x", TRACES, 0, 4)]
    assert find_wrong_row(a, b, c, BOUNDS, vectors) is None
    for index in np.ndindex(c.shape):
        for other in (c[index] + 1, c[index] - 1, -c[index], c[index] + PRIME, c[index] - PRIME):
            wrong = c.copy()
            wrong[index] = other
            assert find_wrong_row(a, b, wrong, BOUNDS, vectors) == index[0]


def test_multiples_of_the_prime_are_caught_by_the_range_alone() -> None:
    """The check itself is blind to them, however many vectors it has."""
    a, b = np.array([[3, -2]]), np.array([[5], [7]])
    vectors = [compute_vector(b"x", TRACES, i, 1) for i in range(8)]
    wrong = a @ b + PRIME
    assert find_wrong_row(a, b, wrong, (-(2**62), 2**62), vectors) is None
    assert find_wrong_row(a, b, wrong, BOUNDS, vectors) == 0


def test_a_vector_that_was_foreseen_hides_a_fault() -> None:
    """Why the vectors come after the signature: a fault orthogonal to one passes."""
    a, b = np.array([[1, 2]]), np.array([[3, 4], [5, 6]])
    r = np.array([2, 3], np.uint64)
    wrong = a @ b + np.array([[3, -2]])
    assert find_wrong_row(a, b, wrong, BOUNDS, [r]) is None
    assert find_wrong_row(a, b, wrong, BOUNDS, [r, compute_vector(b"x", TRACES, 0, 2)]) == 0
