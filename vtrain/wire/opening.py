"""Openings: what shows that a part belongs to a digest or root, without the rest.

Their form is here, their meaning in ``vtrain.spec.blake3_tree`` and ``vtrain.spec.merkle``, and
the checks of an auditor in ``vtrain.commit.openings``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.wire import cbor
from vtrain.wire.fields import Fields
from vtrain.wire.graph import DTYPES

CHUNK_LENGTH: Final = 1024
MAX_PATH: Final = 64
"""Hashes in a path: no tree here has 2^64 leaves."""
MAX_INDEX: Final = 2**63 - 1
MAX_RANK: Final = 16
MAX_EXTENT: Final = 2**48
MAX_EXPONENT: Final = 512


@dataclass(frozen=True)
class StateLeaf:
    """One tensor of the state: a leaf of the state tree.  ``name`` is unique in the state.

    ``digest`` is the tensor digest (32 bytes); value = mantissa * 2^-exponent.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    exponent: int
    digest: bytes

    @property
    def byte_length(self) -> int:
        """Bytes of the tensor that ``digest`` is of, as shape and dtype have it."""
        length = int(self.dtype[1:]) // 8
        for extent in self.shape:
            length *= extent
        return length


@dataclass(frozen=True)
class InclusionProof:
    """RFC 9162 section 2.1.3: leaf ``index`` (from 0) is in the tree of ``size`` leaves."""

    index: int
    size: int
    path: tuple[bytes, ...]


@dataclass(frozen=True)
class ConsistencyProof:
    """RFC 9162 section 2.1.4: a tree of ``old_size`` leaves is a prefix of one of ``new_size``."""

    old_size: int
    new_size: int
    path: tuple[bytes, ...]


@dataclass(frozen=True)
class ChunkOpening:
    """Chunk ``index`` (1 KiB, the last one shorter) of a tensor, with its path in BLAKE3's tree.

    ``path`` holds the sibling chaining values from the chunk upwards.
    """

    index: int
    chunk: bytes
    path: tuple[bytes, ...]


@dataclass(frozen=True)
class StateOpening:
    """A tensor's leaf with its place in a state tree."""

    leaf: StateLeaf
    proof: InclusionProof


def encode_state_leaf(leaf: StateLeaf) -> bytes:
    """Canonical encoding of a leaf: the leaf data of the state tree."""
    return cbor.encode(_leaf_to_map(leaf))


def encode_inclusion(proof: InclusionProof) -> bytes:
    """Canonical encoding of an inclusion proof."""
    return cbor.encode(_inclusion_to_map(proof))


def decode_inclusion(data: bytes) -> InclusionProof:
    """Inverse of :func:`encode_inclusion`; EncodingError names the byte or field at fault."""
    return _inclusion_from_fields(Fields(cbor.decode(data), "inclusion"))


def encode_consistency(proof: ConsistencyProof) -> bytes:
    """Canonical encoding of a consistency proof."""
    return cbor.encode(
        {"new_size": proof.new_size, "old_size": proof.old_size, "path": list(proof.path)}
    )


def decode_consistency(data: bytes) -> ConsistencyProof:
    """Inverse of :func:`encode_consistency`; EncodingError names the byte or field at fault."""
    fields = Fields(cbor.decode(data), "consistency")
    proof = ConsistencyProof(
        old_size=fields.int("old_size", 0, MAX_INDEX),
        new_size=fields.int("new_size", 0, MAX_INDEX),
        path=fields.digests("path", 2 * MAX_PATH),
    )
    fields.done()
    return proof


def encode_chunk_opening(opening: ChunkOpening) -> bytes:
    """Canonical encoding of a chunk opening."""
    return cbor.encode({"chunk": opening.chunk, "index": opening.index, "path": list(opening.path)})


def decode_chunk_opening(data: bytes) -> ChunkOpening:
    """Inverse of :func:`encode_chunk_opening`; EncodingError names the byte or field at fault."""
    fields = Fields(cbor.decode(data), "chunk_opening")
    opening = ChunkOpening(
        index=fields.int("index", 0, MAX_INDEX),
        chunk=fields.blob("chunk", CHUNK_LENGTH),
        path=fields.digests("path", MAX_PATH),
    )
    fields.done()
    return opening


def encode_state_opening(opening: StateOpening) -> bytes:
    """Canonical encoding of a state opening."""
    return cbor.encode(
        {"leaf": _leaf_to_map(opening.leaf), "proof": _inclusion_to_map(opening.proof)}
    )


def decode_state_opening(data: bytes) -> StateOpening:
    """Inverse of :func:`encode_state_opening`; EncodingError names the byte or field at fault."""
    outer = Fields(cbor.decode(data), "state_opening")
    fields = outer.map("leaf")
    proof = _inclusion_from_fields(outer.map("proof"))
    outer.done()
    leaf = StateLeaf(
        name=fields.text("name"),
        dtype=fields.choice("dtype", DTYPES),
        shape=fields.ints("shape", 0, MAX_EXTENT, MAX_RANK),
        exponent=fields.int("exponent", -MAX_EXPONENT, MAX_EXPONENT),
        digest=fields.bytes("digest"),
    )
    fields.done()
    return StateOpening(leaf, proof)


def _leaf_to_map(leaf: StateLeaf) -> dict[str, cbor.Value]:
    return {
        "digest": leaf.digest,
        "dtype": leaf.dtype,
        "exponent": leaf.exponent,
        "name": leaf.name,
        "shape": list(leaf.shape),
    }


def _inclusion_to_map(proof: InclusionProof) -> dict[str, cbor.Value]:
    return {"index": proof.index, "path": list(proof.path), "size": proof.size}


def _inclusion_from_fields(fields: Fields) -> InclusionProof:
    proof = InclusionProof(
        index=fields.int("index", 0, MAX_INDEX),
        size=fields.int("size", 0, MAX_INDEX),
        path=fields.digests("path", MAX_PATH),
    )
    fields.done()
    return proof
