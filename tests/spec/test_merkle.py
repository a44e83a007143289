"""The RFC 9162 trees: vectors, the Rust twin, and that every check can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vtrain import _core
from vtrain.commit import openings
from vtrain.errors import EncodingError
from vtrain.spec import merkle
from vtrain.spec.domains import SAMPLES, STATE_TREE, TREE_DOMAINS, compute_domain_hash
from vtrain.wire.opening import ConsistencyProof, InclusionProof

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "merkle.json").read_text())
DOMAIN = VECTORS["domain"]
LEAVES = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]
ROOTS = [bytes.fromhex(root) for root in VECTORS["roots"]]

VerifyInclusion = Callable[[str, bytes, bytes, InclusionProof], bool]
VerifyConsistency = Callable[[str, bytes, bytes, ConsistencyProof], bool]
inclusion_verifiers = pytest.mark.parametrize(
    "verify", [merkle.verify_inclusion, openings.verify_inclusion], ids=["spec", "rust"]
)
consistency_verifiers = pytest.mark.parametrize(
    "verify", [merkle.verify_consistency, openings.verify_consistency], ids=["spec", "rust"]
)


def path_of(case: dict[str, list[str]]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(item) for item in case["path"])


def grown(size: int) -> _core.MerkleTree:
    tree = _core.MerkleTree(DOMAIN)
    for leaf in LEAVES[:size]:
        tree.append(leaf)
    return tree


def test_roots() -> None:
    tree = grown(len(LEAVES))
    for size, root in enumerate(ROOTS):
        assert merkle.compute_root(DOMAIN, LEAVES[:size]) == root
        assert openings.compute_root(DOMAIN, LEAVES[:size]) == root
        assert tree.root(size) == root, "the root of an earlier size"
        hashes = [merkle.compute_leaf_hash(DOMAIN, leaf) for leaf in LEAVES[:size]]
        assert merkle.compute_root_of_hashes(DOMAIN, hashes) == root


def test_the_definition_by_hand() -> None:
    def leaf(i: int) -> bytes:
        return compute_domain_hash(DOMAIN, b"\x00" + LEAVES[i])

    def node(left: bytes, right: bytes) -> bytes:
        return compute_domain_hash(DOMAIN, b"\x01" + left + right)

    assert ROOTS[0] == compute_domain_hash(DOMAIN, b"")
    assert ROOTS[1] == leaf(0)
    assert ROOTS[3] == node(node(leaf(0), leaf(1)), leaf(2))
    assert ROOTS[5] == node(node(node(leaf(0), leaf(1)), node(leaf(2), leaf(3))), leaf(4))


def test_roots_differ_by_domain() -> None:
    for domain in TREE_DOMAINS:
        expected = bytes.fromhex(VECTORS["roots_of_five_by_domain"][domain])
        assert merkle.compute_root(domain, LEAVES[:5]) == expected
        assert openings.compute_root(domain, LEAVES[:5]) == expected
    assert len(set(VECTORS["roots_of_five_by_domain"].values())) == len(TREE_DOMAINS)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_root_of_fixed_rows(threads: int) -> None:
    fixed = VECTORS["fixed"]
    count, length = fixed["rows"], fixed["row_length"]
    rows = np.array([i % 251 for i in range(count * length)], np.uint8).reshape(count, length)
    root = openings.compute_root_fixed(fixed["domain"], rows, threads)
    assert root == bytes.fromhex(fixed["root"])
    rows[69, 12] ^= 1
    assert openings.compute_root_fixed(fixed["domain"], rows, threads) != root
    empty = openings.compute_root_fixed(SAMPLES, rows[:0], threads)
    assert empty == merkle.compute_root(SAMPLES, [])


def test_rows_must_be_whole() -> None:
    tree = _core.MerkleTree(SAMPLES)
    for length in (0, 4):
        with pytest.raises(EncodingError, match="whole number of leaves"):
            tree.extend_fixed(np.zeros(9, np.uint8), length)
    with pytest.raises(TypeError, match="C-contiguous"):
        tree.extend_fixed(np.zeros((9, 2), np.uint8)[:, 0], 3)


def test_unknown_domains_are_refused_by_the_core() -> None:
    with pytest.raises(EncodingError, match="unknown hash domain"):
        _core.MerkleTree("vtrain 2026 other v1")


def test_proof_vectors() -> None:
    tree = grown(len(LEAVES))
    for case in VECTORS["inclusion"]:
        size, index = case["size"], case["index"]
        proof = InclusionProof(index, size, path_of(case))
        assert merkle.compute_inclusion_proof(DOMAIN, LEAVES[:size], index) == proof
        assert openings.compute_inclusion_proof(DOMAIN, LEAVES[:size], index) == proof
        assert tuple(tree.inclusion_path(index, size)) == proof.path
    for case in VECTORS["consistency"]:
        old, new = case["old_size"], case["new_size"]
        prefix = ConsistencyProof(old, new, path_of(case))
        assert merkle.compute_consistency_proof(DOMAIN, LEAVES[:new], old) == prefix
        assert tuple(tree.consistency_path(old, new)) == prefix.path


@inclusion_verifiers
def test_inclusion_holds_for_that_leaf_alone(verify: VerifyInclusion) -> None:
    for case in VECTORS["inclusion"]:
        size, index = case["size"], case["index"]
        proof, root, leaf = InclusionProof(index, size, path_of(case)), ROOTS[size], LEAVES[index]
        assert verify(DOMAIN, root, leaf, proof)
        assert not verify(STATE_TREE, root, leaf, proof), "another domain"
        assert not verify(DOMAIN, root, leaf + b"\x00", proof), "another leaf"
        for other in range(size):
            if other != index:
                assert not verify(DOMAIN, root, leaf, replace(proof, index=other))
        for index_out in (-1, size, 2**63, 2**64, 2**64 + index):
            assert not verify(DOMAIN, root, leaf, replace(proof, index=index_out))
        for changed in tampered(proof.path):
            assert not verify(DOMAIN, root, leaf, replace(proof, path=changed))
        for byte in range(32):
            assert not verify(DOMAIN, flip(root, byte), leaf, proof)
        assert not verify(DOMAIN, root[:31], leaf, proof)


@inclusion_verifiers
def test_inclusion_in_another_size_of_other_shape_fails(verify: VerifyInclusion) -> None:
    leaf, root = LEAVES[6], ROOTS[7]
    proof = merkle.compute_inclusion_proof(DOMAIN, LEAVES[:7], 6)
    for size in (-1, 0, 6, 8, 9, 2**62, 2**63, 2**64, 2**200):
        assert not verify(DOMAIN, root, leaf, replace(proof, size=size))


@inclusion_verifiers
def test_a_node_is_not_a_leaf(verify: VerifyInclusion) -> None:
    first, second = (merkle.compute_leaf_hash(DOMAIN, leaf) for leaf in LEAVES[:2])
    # Without the prefix bytes, the tree of two leaves would also be one of this single leaf.
    assert not verify(DOMAIN, ROOTS[2], first + second, InclusionProof(0, 1, ()))
    assert not verify(DOMAIN, ROOTS[2], b"\x01" + first + second, InclusionProof(0, 1, ()))


@consistency_verifiers
def test_consistency_holds_for_these_roots_alone(verify: VerifyConsistency) -> None:
    for case in VECTORS["consistency"]:
        old, new = case["old_size"], case["new_size"]
        proof, old_root, new_root = (
            ConsistencyProof(old, new, path_of(case)),
            ROOTS[old],
            ROOTS[new],
        )
        assert verify(DOMAIN, old_root, new_root, proof)
        assert not verify(DOMAIN, bytes(32), new_root, proof)
        assert not verify(DOMAIN, old_root[:31], new_root, proof)
        assert not verify(DOMAIN, old_root, new_root[:31], proof)
        for byte in range(32):
            assert not verify(DOMAIN, flip(old_root, byte), new_root, proof)
            # Every tree has the empty one as a prefix: then nothing binds the new root.
            assert old == 0 or not verify(DOMAIN, old_root, flip(new_root, byte), proof)
        if 0 < old < new:
            assert not verify(STATE_TREE, old_root, new_root, proof)
            assert not verify(DOMAIN, new_root, old_root, proof)
        for changed in tampered(proof.path):
            assert not verify(DOMAIN, old_root, new_root, replace(proof, path=changed))


@consistency_verifiers
def test_consistency_of_a_rewritten_past_fails(verify: VerifyConsistency) -> None:
    for new in range(2, 12):
        for old in range(1, new):
            for rewritten in range(old):
                forged = LEAVES[:new]
                forged[rewritten] = b"another"
                forged_root = merkle.compute_root(DOMAIN, forged)
                proof = merkle.compute_consistency_proof(DOMAIN, forged, old)
                assert not verify(DOMAIN, ROOTS[old], forged_root, proof)


@consistency_verifiers
def test_consistency_of_sizes_that_cannot_be_fails(verify: VerifyConsistency) -> None:
    proof = merkle.compute_consistency_proof(DOMAIN, LEAVES[:7], 3)
    sizes = [(7, 3), (-1, 7), (3, -7), (0, 7), (7, 7), (3, 9), (3, 16), (3, 2**63), (4, 7), (2, 7)]
    for old, new in sizes:
        changed = replace(proof, old_size=old, new_size=new)
        assert not verify(DOMAIN, ROOTS[3], ROOTS[7], changed), (old, new)


def tampered(path: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
    out: list[tuple[bytes, ...]] = [(*path, bytes(32)), (bytes(32), *path)]
    for level, item in enumerate(path):
        before, after = path[:level], path[level + 1 :]
        out += [(*before, flip(item, byte), *after) for byte in range(32)]
        out += [(*before, *after), (*before, item[:31], *after), (*before, item + b"\x00", *after)]
        if after:
            out.append((*before, after[0], item, *after[1:]))
    return out


def flip(data: bytes, byte: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << byte % 8]) + data[byte + 1 :]


def test_no_proof_of_what_is_not_there() -> None:
    tree = grown(3)
    for index in (-1, 3, 2**63, 2**64):
        with pytest.raises(EncodingError):
            merkle.compute_inclusion_proof(DOMAIN, LEAVES[:3], index)
        with pytest.raises(EncodingError):
            openings.compute_inclusion_proof(DOMAIN, LEAVES[:3], index)
    for old in (-1, 4):
        with pytest.raises(EncodingError):
            merkle.compute_consistency_proof(DOMAIN, LEAVES[:3], old)
    for ask in (
        lambda: tree.root(4),
        lambda: tree.inclusion_path(3, 3),
        lambda: tree.inclusion_path(0, 4),
        lambda: tree.consistency_path(3, 2),
        lambda: tree.consistency_path(1, 4),
    ):
        with pytest.raises(EncodingError, match="a tree of"):
            ask()


def test_sides_are_those_of_the_split() -> None:
    assert merkle.compute_sides(1, 0) == []
    assert merkle.compute_sides(5, 4) == [False]
    assert merkle.compute_sides(5, 2) == [True, False, True]
    assert [merkle.compute_split(n) for n in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 4, 4, 8]
