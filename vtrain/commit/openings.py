"""Roots, proofs and chunk openings in Rust: fast twins of the functions of the same names in
``vtrain.spec.merkle`` and ``vtrain.spec.blake3_tree``, which define what they compute.

Every ``verify_*`` takes hostile input and answers False for whatever does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vtrain import _core
from vtrain.commit.digest import Tensor, as_buffer
from vtrain.errors import EncodingError
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.threads import check_threads
from vtrain.wire.opening import MAX_INDEX, ChunkOpening, ConsistencyProof, InclusionProof


def compute_root(domain: str, leaves: Iterable[bytes]) -> bytes:
    """Root (32 bytes) of the RFC 9162 tree over the data of ``leaves``."""
    tree = _build(domain, leaves)
    return tree.root(tree.size)


def compute_root_fixed(domain: str, rows: Tensor, threads: int = 0) -> bytes:
    """:func:`compute_root` over the rows of a C-contiguous uint8[n, leaf length], in parallel."""
    tree = _core.MerkleTree(domain)
    if rows.size:
        check_threads(threads)
        tree.extend_fixed(rows, rows.shape[1], threads)
    return tree.root(tree.size)


def compute_inclusion_proof(domain: str, leaves: Sequence[bytes], index: int) -> InclusionProof:
    """Proof that leaf ``index`` is in the tree; EncodingError when there is no such leaf."""
    _check_index(index)
    tree = _build(domain, leaves)
    return InclusionProof(index, tree.size, tuple(tree.inclusion_path(index, tree.size)))


def compute_chunk_opening(tensor: Tensor, index: int) -> ChunkOpening:
    """Chunk ``index`` of the tensor's bytes; EncodingError when there is no such chunk."""
    _check_index(index)
    chunk, path = _core.chunk_opening(as_buffer(tensor), index)
    return ChunkOpening(index, chunk, tuple(path))


def verify_chunk_opening(digest: bytes, length: int, opening: ChunkOpening) -> bool:
    """Whether the opening shows a chunk of the ``length`` bytes that ``digest`` is of.

    ``length`` follows from the agreed shape (``StateLeaf.byte_length``), not from the opener.
    """
    if not 0 <= length <= MAX_INDEX or not 0 <= opening.index < compute_chunk_count(length):
        return False
    return _core.verify_chunk_opening(
        digest, length, opening.index, opening.chunk, list(opening.path)
    )


def verify_inclusion(domain: str, root: bytes, leaf: bytes, proof: InclusionProof) -> bool:
    """Whether ``leaf`` is leaf number ``proof.index`` of the ``proof.size`` under ``root``."""
    if not 0 <= proof.index < proof.size <= MAX_INDEX:
        return False
    return _core.verify_inclusion(domain, root, leaf, proof.index, proof.size, list(proof.path))


def verify_consistency(
    domain: str, old_root: bytes, new_root: bytes, proof: ConsistencyProof
) -> bool:
    """Whether the tree under ``old_root`` is a prefix of the one under ``new_root``."""
    if not 0 <= proof.old_size <= proof.new_size <= MAX_INDEX:
        return False
    return _core.verify_consistency(
        domain, old_root, new_root, proof.old_size, proof.new_size, list(proof.path)
    )


def _build(domain: str, leaves: Iterable[bytes]) -> _core.MerkleTree:
    tree = _core.MerkleTree(domain)
    for leaf in leaves:
        tree.append(leaf)
    return tree


def _check_index(index: int) -> None:
    if not 0 <= index <= MAX_INDEX:
        raise EncodingError(f"{index} is no index", where="opening")
