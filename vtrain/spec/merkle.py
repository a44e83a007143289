"""The Merkle tree of every list: RFC 9162 section 2.1, over domain-separated BLAKE3.

leaf = H_D(0x00 || data), node = H_D(0x01 || left || right), the root of no leaves = H_D("").  A
tree of n > 1 leaves splits at the largest power of two below n.  ``vtrain._core`` has the fast
twin.

The ``verify_*`` functions take hostile input: whatever does not hold, sizes and lengths of paths
included, is False.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtrain.errors import EncodingError
from vtrain.spec.domains import compute_domain_hash
from vtrain.wire.opening import ConsistencyProof, InclusionProof

HASH_LENGTH = 32


def compute_leaf_hash(domain: str, data: bytes) -> bytes:
    """Hash of one leaf."""
    return compute_domain_hash(domain, b"\x00" + data)


def compute_node_hash(domain: str, left: bytes, right: bytes) -> bytes:
    """Hash of an inner node from the hashes of its two subtrees."""
    return compute_domain_hash(domain, b"\x01" + left + right)


def compute_split(size: int) -> int:
    """Leaves in the left subtree of a tree of ``size`` > 1: the largest power of two below it."""
    return 1 << (size - 1).bit_length() - 1


def compute_root(domain: str, leaves: Sequence[bytes]) -> bytes:
    """Root of the tree over ``leaves`` (their data, not their hashes)."""
    return compute_root_of_hashes(domain, [compute_leaf_hash(domain, leaf) for leaf in leaves])


def compute_root_of_hashes(domain: str, hashes: Sequence[bytes]) -> bytes:
    """Root of the tree over leaves given by their leaf hashes."""
    if not hashes:
        return compute_domain_hash(domain, b"")
    if len(hashes) == 1:
        return hashes[0]
    split = compute_split(len(hashes))
    left = compute_root_of_hashes(domain, hashes[:split])
    return compute_node_hash(domain, left, compute_root_of_hashes(domain, hashes[split:]))


def compute_inclusion_proof(domain: str, leaves: Sequence[bytes], index: int) -> InclusionProof:
    """PATH(index, leaves) of RFC 9162 section 2.1.3.1: sibling hashes from the leaf upwards.

    EncodingError when there is no such leaf.
    """
    size = len(leaves)
    if not 0 <= index < size:
        raise EncodingError(f"no leaf {index} in a tree of {size}", where="inclusion proof")
    hashes = [compute_leaf_hash(domain, leaf) for leaf in leaves]
    return InclusionProof(index, size, tuple(_path(domain, hashes, index)))


def _path(domain: str, hashes: Sequence[bytes], index: int) -> list[bytes]:
    if len(hashes) == 1:
        return []
    split = compute_split(len(hashes))
    left, right = hashes[:split], hashes[split:]
    if index < split:
        return [*_path(domain, left, index), compute_root_of_hashes(domain, right)]
    return [*_path(domain, right, index - split), compute_root_of_hashes(domain, left)]


def compute_consistency_proof(
    domain: str, leaves: Sequence[bytes], old_size: int
) -> ConsistencyProof:
    """PROOF(old_size, leaves) of RFC 9162 section 2.1.4.1; an empty path for old_size 0 or all.

    EncodingError when the tree has fewer leaves than ``old_size``.
    """
    size = len(leaves)
    if not 0 <= old_size <= size:
        raise EncodingError(
            f"no prefix of {old_size} leaves in a tree of {size}", where="consistency proof"
        )
    hashes = [compute_leaf_hash(domain, leaf) for leaf in leaves]
    path = _subproof(domain, hashes, old_size, True) if old_size else []
    return ConsistencyProof(old_size, size, tuple(path))


def _subproof(domain: str, hashes: Sequence[bytes], old_size: int, whole: bool) -> list[bytes]:
    # ``whole``: the old tree is this very subtree, whose root the verifier already has.
    if old_size == len(hashes):
        return [] if whole else [compute_root_of_hashes(domain, hashes)]
    split = compute_split(len(hashes))
    left, right = hashes[:split], hashes[split:]
    if old_size <= split:
        return [*_subproof(domain, left, old_size, whole), compute_root_of_hashes(domain, right)]
    left_root = compute_root_of_hashes(domain, left)
    return [*_subproof(domain, right, old_size - split, False), left_root]


def verify_inclusion(domain: str, root: bytes, leaf: bytes, proof: InclusionProof) -> bool:
    """Whether ``leaf`` is leaf number ``proof.index`` of the ``proof.size`` under ``root``.

    RFC 9162 section 2.1.3.2, with the way derived from the shape, which alone says how long the
    path must be.
    """
    if not 0 <= proof.index < proof.size or not _are_hashes(proof.path):
        return False
    sides = compute_sides(proof.size, proof.index)
    if len(proof.path) != len(sides):
        return False
    value = compute_leaf_hash(domain, leaf)
    for is_left, sibling in zip(sides, proof.path, strict=True):
        left, right = (value, sibling) if is_left else (sibling, value)
        value = compute_node_hash(domain, left, right)
    return value == root


def compute_sides(size: int, index: int) -> list[bool]:
    """For each level from leaf ``index`` up: is the way's own subtree the left one?

    The shape of both the RFC 9162 tree of ``size`` leaves and BLAKE3's tree of ``size`` chunks.
    """
    sides: list[bool] = []
    while size > 1:
        split = compute_split(size)
        sides.append(index < split)
        if index < split:
            size = split
        else:
            size, index = size - split, index - split
    sides.reverse()
    return sides


def verify_consistency(
    domain: str, old_root: bytes, new_root: bytes, proof: ConsistencyProof
) -> bool:
    """Whether the tree under ``old_root`` is a prefix of the one under ``new_root``.

    RFC 9162 section 2.1.4.2; a tree of no leaves is a prefix of every tree, its root being known.
    A root does not bind how many leaves it is of: sizes come signed together with their roots.
    """
    hashes = (old_root, new_root, *proof.path)
    if not 0 <= proof.old_size <= proof.new_size or not _are_hashes(hashes):
        return False
    if proof.old_size == proof.new_size and old_root != new_root:
        return False
    if proof.old_size == 0:
        return not proof.path and old_root == compute_domain_hash(domain, b"")
    if proof.old_size == proof.new_size:
        return not proof.path
    # When the old tree is itself a complete subtree of the new one, its root is left out.
    is_complete = proof.old_size & (proof.old_size - 1) == 0
    steps = [old_root, *proof.path] if is_complete else list(proof.path)
    if not steps:
        return False
    node, last = proof.old_size - 1, proof.new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = steps[0]
    for sibling in steps[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old = compute_node_hash(domain, sibling, old)
            new = compute_node_hash(domain, sibling, new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new = compute_node_hash(domain, new, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _are_hashes(path: Sequence[bytes]) -> bool:
    return all(len(item) == HASH_LENGTH for item in path)
