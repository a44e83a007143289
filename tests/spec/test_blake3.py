"""The readable BLAKE3 and its Rust twin: BLAKE3's own vectors, chunk openings, tampering."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from vtrain.commit import digest, openings
from vtrain.errors import EncodingError
from vtrain.spec import blake3_tree, domains
from vtrain.wire.opening import ChunkOpening

VECTORS = Path(__file__).parent.parent / "vectors"
OFFICIAL = json.loads((VECTORS / "blake3.json").read_text())
OPENINGS = json.loads((VECTORS / "chunk_opening.json").read_text())
BOUNDARIES = (0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 4097, 5121)

Verify = Callable[[bytes, int, ChunkOpening], bool]
verifiers = pytest.mark.parametrize(
    "verify",
    [blake3_tree.verify_chunk_opening, openings.verify_chunk_opening],
    ids=["spec", "rust"],
)


def fill(length: int) -> bytes:
    return bytes(i % 251 for i in range(length))


def as_tensor(data: bytes) -> digest.Tensor:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("case", OFFICIAL["cases"], ids=lambda case: str(case["input_len"]))
def test_official_vectors(case: Any) -> None:
    data = fill(case["input_len"])
    expected = bytes.fromhex(case["hash"])
    assert blake3_tree.compute_hash(data, len(expected)) == expected
    assert digest.compute_tensor_digest(as_tensor(data)) == expected[:32]
    derived = bytes.fromhex(case["derive_key"])
    assert (
        blake3_tree.compute_derived_key(OFFICIAL["context_string"], data, len(derived)) == derived
    )


def test_domains_are_derive_key_contexts() -> None:
    table = json.loads((VECTORS / "domains.json").read_text())
    assert table.keys() == {*domains.TREE_DOMAINS, *domains.DIGEST_DOMAINS}
    for context, hashes in table.items():
        for name, data in (("empty", b""), ("abc", b"abc")):
            assert blake3_tree.compute_derived_key(context, data).hex() == hashes[name]
            assert domains.compute_domain_hash(context, data).hex() == hashes[name]
    assert len({hashes["empty"] for hashes in table.values()}) == len(table)


@pytest.mark.parametrize("case", OPENINGS, ids=lambda case: str(case["length"]))
def test_opening_vectors(case: Any) -> None:
    length = case["length"]
    data, root = fill(length), bytes.fromhex(case["digest"])
    assert blake3(data).digest() == root
    assert len(case["paths"]) == blake3_tree.compute_chunk_count(length)
    for index, path in enumerate(case["paths"]):
        chunk = data[1024 * index : 1024 * index + 1024]
        expected = ChunkOpening(index, chunk, tuple(bytes.fromhex(item) for item in path))
        assert blake3_tree.compute_chunk_opening(data, index) == expected
        assert openings.compute_chunk_opening(as_tensor(data), index) == expected
        assert blake3_tree.verify_chunk_opening(root, length, expected)
        assert openings.verify_chunk_opening(root, length, expected)


@verifiers
@pytest.mark.parametrize("length", BOUNDARIES)
def test_tampered_openings_are_refused(verify: Verify, length: int) -> None:
    data = fill(length)
    root = blake3(data).digest()
    for index in range(blake3_tree.compute_chunk_count(length)):
        opening = blake3_tree.compute_chunk_opening(data, index)
        assert verify(root, length, opening)
        for changed in tampered(opening):
            assert not verify(root, length, changed), changed
        for byte in range(32):
            assert not verify(flip(root, byte), length, opening)
        assert not verify(root[:31], length, opening)
        assert not verify(root + b"\x00", length, opening)


def tampered(opening: ChunkOpening) -> Iterator[ChunkOpening]:
    for index in (opening.index + 1, opening.index - 1, -1, 2**62, 2**63, 2**64, 2**200):
        yield replace(opening, index=index)
    # Each byte of the path, and bytes from each block of the chunk.
    for byte in {*range(0, len(opening.chunk), 61), len(opening.chunk) - 1} - {-1}:
        yield replace(opening, chunk=flip(opening.chunk, byte))
    yield replace(opening, chunk=opening.chunk + b"\x00")
    if opening.chunk:
        yield replace(opening, chunk=opening.chunk[:-1])
        yield replace(opening, chunk=b"")
    path = opening.path
    for level, item in enumerate(path):
        for byte in range(32):
            yield replace(opening, path=(*path[:level], flip(item, byte), *path[level + 1 :]))
        yield replace(opening, path=(*path[:level], item[:31], *path[level + 1 :]))
        yield replace(opening, path=(*path[:level], *path[level + 1 :]))
    if len(path) > 1:
        yield replace(opening, path=(path[1], path[0], *path[2:]))
    yield replace(opening, path=(*path, bytes(32)))


def flip(data: bytes, byte: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << byte % 8]) + data[byte + 1 :]


@verifiers
def test_every_bit_of_a_small_opening_counts(verify: Verify) -> None:
    data = fill(1025)
    root = blake3(data).digest()
    opening = blake3_tree.compute_chunk_opening(data, 1)
    whole = opening.chunk + opening.path[0] + root
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        chunk, sibling, other = bytes(changed[:1]), bytes(changed[1:33]), bytes(changed[33:])
        assert not verify(other, 1025, ChunkOpening(1, chunk, (sibling,)))


@verifiers
def test_another_length_of_other_shape_is_refused(verify: Verify) -> None:
    data = fill(2049)
    opening = blake3_tree.compute_chunk_opening(data, 2)
    for length in (-1, 0, 1, 1024, 2048, 2050, 3072, 3073, 2**63, 2**64 + 2049):
        assert not verify(blake3(data).digest(), length, opening)


@pytest.mark.parametrize("index", [-1, 3, 2**63, 2**64])
def test_no_opening_of_a_chunk_that_is_not_there(index: int) -> None:
    data = fill(2049)
    with pytest.raises(EncodingError):
        blake3_tree.compute_chunk_opening(data, index)
    with pytest.raises(EncodingError):
        openings.compute_chunk_opening(as_tensor(data), index)


def test_a_chunk_is_not_a_parent() -> None:
    # A parent's block of two chaining values, offered as a chunk of 64 bytes, has other flags.
    data = fill(2048)
    left, right = (blake3_tree.compute_chunk_opening(data, index).path[0] for index in (1, 0))
    root = blake3(data).digest()
    assert not blake3_tree.verify_chunk_opening(root, 64, ChunkOpening(0, left + right, ()))
    assert not openings.verify_chunk_opening(root, 64, ChunkOpening(0, left + right, ()))


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", "<i4", "<i8"])
def test_tensor_digest_is_of_the_little_endian_bytes(dtype: str, threads: int) -> None:
    tensor = (np.arange(200_003) * 7919).astype(dtype).reshape(1, -1)
    expected = blake3(tensor.tobytes()).digest()
    assert digest.compute_tensor_digest(tensor, threads) == expected
    tensor.setflags(write=False)
    many = [tensor, tensor[:0], tensor[0, 1:], tensor[0, 5:6].reshape(())]
    assert digest.compute_tensor_digests(many, threads) == [
        blake3(t.tobytes()).digest() for t in many
    ]


@pytest.mark.parametrize(
    "tensor",
    [
        np.zeros(3, np.float32),
        np.zeros(3, np.uint16),
        np.zeros(3, bool),
        np.zeros(3, ">i4"),
        np.zeros((4, 4), np.int32)[:, 1],
        np.zeros((4, 4), np.int32).T[1:],
        np.zeros((4, 4), np.int32)[::-1],
        np.asfortranarray(np.zeros((4, 3), np.int32)),
    ],
)
def test_what_has_no_digest_is_refused(tensor: digest.Tensor) -> None:
    with pytest.raises(EncodingError):
        digest.compute_tensor_digest(tensor)
    with pytest.raises(EncodingError):
        digest.compute_tensor_digests([tensor])
