"""Frontiers: the spec, the Rust twin and the trees themselves say the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain import _core
from vtrain.errors import EncodingError
from vtrain.spec import frontier, merkle
from vtrain.spec.domains import TRACE

sizes = st.integers(1, 70)


@given(sizes, st.integers(0, 8), st.integers(0, 100))
def test_ranges_cut_what_they_are_of(size: int, depth: int, start: int) -> None:
    ranges = frontier.compute_ranges(start, start + size, depth)
    assert (ranges[0][0], ranges[-1][1]) == (start, start + size)
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    assert len(ranges) <= 2**depth
    if size <= 2**depth:
        assert all(end - begin == 1 for begin, end in ranges)


@given(sizes, st.integers(0, 7), st.data())
def test_every_range_of_a_tree(size: int, depth: int, data: st.DataObject) -> None:
    """At each range on the way down, the frontier folds to the hash that the frontier above has."""
    leaves = [bytes([index]) * (index % 5) for index in range(size)]
    tree = _core.MerkleTree(TRACE)
    for leaf in leaves:
        tree.append(leaf)
    start, end, expected = 0, size, tree.root(size)
    while True:
        items = tree.frontier(start, end, depth)
        ranges = frontier.compute_ranges(start, end, depth)
        hashes = [merkle.compute_leaf_hash(TRACE, leaf) for leaf in leaves]
        assert items == [merkle.compute_root_of_hashes(TRACE, hashes[a:b]) for a, b in ranges]
        assert frontier.fold_frontier(TRACE, start, end, depth, items) == expected
        assert _core.fold_frontier(TRACE, start, end, depth, items) == expected
        if end - start == 1 or depth == 0:
            return
        at = data.draw(st.integers(0, len(ranges) - 1))
        (start, end), expected = ranges[at], items[at]


@given(st.integers(0, 20_000), st.integers(1, 6), st.data())
def test_every_range_of_a_tensor(length: int, depth: int, data: st.DataObject) -> None:
    content = np.arange(length, dtype=np.uint8) * 7
    tree = _core.ChunkTree(content)
    assert tree.digest == _core.tensor_digest(content)
    start, end, expected = 0, tree.chunks, tree.digest
    while True:
        items = tree.frontier(start, end, depth)
        whole = (start, end) == (0, tree.chunks)
        assert frontier.fold_chunk_frontier(start, end, depth, items, whole) == expected
        folded = _core.fold_chunk_frontier(tree.chunks, start, end, depth, items, whole)
        assert folded == expected
        if end - start == 1:
            assert items == [content[start * 1024 : end * 1024].tobytes()]
            assert items == [tree.opening(start)[0]]
            return
        ranges = frontier.compute_ranges(start, end, depth)
        at = data.draw(st.integers(0, len(ranges) - 1))
        (start, end), expected = ranges[at], items[at]


@given(sizes, st.integers(1, 6), st.data())
def test_a_changed_item_folds_to_something_else(size: int, depth: int, data: st.DataObject) -> None:
    count = len(frontier.compute_ranges(0, size, depth))
    items = [bytes([index]) * 32 for index in range(count)]
    at = data.draw(st.integers(0, count - 1))
    other = [*items[:at], b"?" * 32, *items[at + 1 :]]
    fold = frontier.fold_frontier
    assert fold(TRACE, 0, size, depth, items) != fold(TRACE, 0, size, depth, other)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_the_number_of_items_must_be_right(count: int) -> None:
    items = [bytes(32)] * count
    for fold in (frontier.fold_frontier, _core.fold_frontier):
        with pytest.raises(EncodingError):
            fold(TRACE, 0, 7, 2, items)
    with pytest.raises(EncodingError):
        frontier.fold_chunk_frontier(0, 7, 2, items, True)
    with pytest.raises(EncodingError):
        _core.fold_chunk_frontier(7, 0, 7, 2, items, True)


def test_rust_refuses_what_is_no_part_of_the_tree() -> None:
    items = [bytes(32)] * 2
    for arguments in (
        (4, 3, 5, 1, items, False),
        (4, 0, 4, 1, items, False),
        (4, 0, 2, 1, items, True),
    ):
        with pytest.raises(EncodingError):
            _core.fold_chunk_frontier(*arguments)
    with pytest.raises(EncodingError):
        _core.fold_frontier(TRACE, 0, 2, 1, [bytes(31), bytes(32)])
    tree = _core.MerkleTree(TRACE)
    tree.append(b"")
    for start, end in ((0, 2), (1, 1), (1, 0)):
        with pytest.raises(EncodingError):
            tree.frontier(start, end, 1)
