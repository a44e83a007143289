"""What a player needs to know of a run: the trees it claims, and the openings of a leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from vtrain import _core
from vtrain.commit.digest import as_buffer
from vtrain.errors import VtrainError
from vtrain.spec.frontier import compute_ranges
from vtrain.wire.dispute import Chunk, Member, Row


class ClaimTree(Protocol):
    """One tree of a claim, of RFC 9162's shape or BLAKE3's."""

    @property
    def size(self) -> int:
        """Leaves."""
        ...

    @property
    def root(self) -> bytes:
        """The root, or the digest of a tensor."""
        ...

    def frontier(self, start: int, end: int, depth: int) -> tuple[bytes, ...]:
        """What a ``Reveal`` of leaves [start, end) says: see ``vtrain.wire.dispute.Reveal``."""
        ...

    def leaf(self, index: int) -> bytes:
        """Data of a leaf."""
        ...

    def path(self, index: int) -> tuple[bytes, ...]:
        """Sibling hashes of a leaf, upwards."""
        ...


@dataclass(frozen=True)
class LeafOpening:
    """What the referee needs to recompute a block: chunks by input, sample rows, for a ``state``
    node in the first step of a trace its leaf in the state before, and where samples are windows of
    tokens chunks of these instead of rows."""

    chunks: tuple[tuple[Chunk, ...], ...]
    rows: tuple[Row, ...]
    state_leaf: Member | None
    tokens: tuple[Chunk, ...] = ()


class PendingError(VtrainError):
    """What was asked for is being computed: ask again later, and for other things meanwhile."""


class TraceProvider(Protocol):
    """A claim about a run, at any position of it.  Steps count from 1.

    Trees are computed when asked for, and asking again is cheap.
    """

    def log(self) -> ClaimTree:
        """Step records."""
        ...

    def trace(self, step: int) -> ClaimTree:
        """Digests of every node's output in the steps after the last state before ``step`` and up
        to ``step``."""
        ...

    def chunks(self, step: int, node: int) -> ClaimTree:
        """Chunks of the output of ``node`` in ``step``."""
        ...

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        """States of the fold of an element, after each of its blocks."""
        ...

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        """Say what will be asked for: traces of steps, tensors of (step, node), in this order.

        Nothing need be done about it; what is traced together costs less.
        """
        ...

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        """Openings for one block; ``first``: is ``step`` the first one of the trace?"""
        ...


class MerkleTree:
    """A ``ClaimTree`` over leaves in memory, in the shape of RFC 9162."""

    def __init__(self, domain: str, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves
        self._tree = _core.MerkleTree(domain)
        for leaf in leaves:
            self._tree.append(leaf)

    @property
    def size(self) -> int:
        return len(self._leaves)

    @property
    def root(self) -> bytes:
        return self._tree.root(self.size)

    def frontier(self, start: int, end: int, depth: int) -> tuple[bytes, ...]:
        hashes = self._tree.frontier(start, end, depth)
        ranges = compute_ranges(start, end, depth)
        return tuple(
            self._leaves[first] if last - first == 1 else item
            for item, (first, last) in zip(hashes, ranges, strict=True)
        )

    def leaf(self, index: int) -> bytes:
        return self._leaves[index]

    def path(self, index: int) -> tuple[bytes, ...]:
        return tuple(self._tree.inclusion_path(index, self.size))


class ChunkTree:
    """A ``ClaimTree`` over the 1 KiB chunks of a tensor in memory."""

    def __init__(self, tensor: npt.NDArray[Any], threads: int = 0) -> None:
        self._tree = _core.ChunkTree(as_buffer(tensor), threads)

    @property
    def size(self) -> int:
        return self._tree.chunks

    @property
    def root(self) -> bytes:
        return self._tree.digest

    def frontier(self, start: int, end: int, depth: int) -> tuple[bytes, ...]:
        return tuple(self._tree.frontier(start, end, depth))

    def leaf(self, index: int) -> bytes:
        return self._tree.opening(index)[0]

    def path(self, index: int) -> tuple[bytes, ...]:
        return tuple(self._tree.opening(index)[1])

    def open(self, index: int) -> Chunk:
        """The chunk with its path."""
        chunk, path = self._tree.opening(index)
        return Chunk(index, chunk, tuple(path))
