"""Parts of a tree between its root and its leaves: what one round of a dispute reveals.

Both the RFC 9162 tree and BLAKE3's own tree of chunks split a range of n > 1 leaves at the largest
power of two below n.  The *frontier* of a range at some depth is what that many splits leave of it,
left to right: ranges that are single leaves are not split again.  From the hashes of a frontier the
hash of the whole range follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vtrain.errors import EncodingError
from vtrain.spec.blake3_tree import compute_chunk_value, compute_parent_value
from vtrain.spec.merkle import compute_node_hash, compute_split

Range = tuple[int, int]
"""First leaf and the leaf after the last."""


def compute_ranges(start: int, end: int, depth: int) -> tuple[Range, ...]:
    """The frontier of leaves [start, end) at ``depth``: at most 2^depth ranges, left to right."""
    size = end - start
    if size == 1 or depth == 0:
        return ((start, end),)
    middle = start + compute_split(size)
    return (
        *compute_ranges(start, middle, depth - 1),
        *compute_ranges(middle, end, depth - 1),
    )


def fold_frontier(domain: str, start: int, end: int, depth: int, items: Sequence[bytes]) -> bytes:
    """Hash of the range [start, end) of an RFC 9162 tree from the hashes of its frontier.

    EncodingError when there are not as many as the frontier has ranges.
    """
    hashes = _take(start, end, depth, items)

    def fold(first: int, last: int, left: int) -> bytes:
        if last - first == 1 or left == 0:
            return next(hashes)
        middle = first + compute_split(last - first)
        return compute_node_hash(
            domain, fold(first, middle, left - 1), fold(middle, last, left - 1)
        )

    return fold(start, end, depth)


def fold_chunk_frontier(
    start: int, end: int, depth: int, items: Sequence[bytes], is_root: bool
) -> bytes:
    """The same for chunks of a tensor: chaining values, or the digest when the range ``is_root``.

    The item of a range that is itself one chunk is that chunk's bytes.
    """
    if end - start == 1:
        (chunk,) = _take(start, end, depth, items)
        return compute_chunk_value(chunk, start, is_root)
    values = _take(start, end, depth, items)

    def fold(first: int, last: int, left: int, top: bool) -> bytes:
        if last - first == 1 or left == 0:
            return next(values)
        middle = first + compute_split(last - first)
        return compute_parent_value(
            fold(first, middle, left - 1, False), fold(middle, last, left - 1, False), top
        )

    return fold(start, end, depth, is_root)


def _take(start: int, end: int, depth: int, items: Sequence[bytes]) -> Iterator[bytes]:
    expected = len(compute_ranges(start, end, depth))
    if len(items) != expected:
        raise EncodingError(f"has {len(items)} items instead of {expected}", where="frontier")
    return iter(items)
