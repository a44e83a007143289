"""BLAKE3 of several tensors at once, and the root of a state: which launches it takes.

The kernels of ``reference_kernels/tensor_digest.cu`` find what to do in tables: the shapes of the
tensors and of their trees are known when a step is planned; where tensors lie is written down
later, in a table of places.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vtrain.engines.cuda.launch import Arg, Constant, Launch, Operand, Output, Scratch
from vtrain.ops.base import attr_int, attr_ints, attr_text
from vtrain.spec import domains
from vtrain.wire import cbor
from vtrain.wire.graph import Node
from vtrain.wire.opening import CHUNK_LENGTH, StateLeaf, encode_state_leaf

FILE: Final = "tensor_digest.cu"
PLACE_BYTES: Final = 16
"""Bytes of a tensor's entry in the table of places."""
THREADS: Final = 128
GROUP: Final = 1024
"""Values that a block of ``digest_trees`` joins to one."""
DIGEST_BYTES: Final = 32
_LEAF_MARK: Final = b"\x00"


def encode_places(places: Sequence[tuple[int, int]]) -> bytes:
    """The table of places: (address of the bytes, aligned to 16; address of the digest) each."""
    return b"".join(struct.pack("<QQ", data, digest) for data, digest in places)


def plan_digests(lengths: Sequence[int], places: Arg) -> tuple[Launch, ...]:
    """Launches that put the digest of each tensor, of ``lengths`` bytes, where it belongs.

    ``places`` points to what :func:`encode_places` gives.  Tensors of any size, empty ones too,
    share the launches: one for the chunks, and one for every ten levels of the largest tree.
    """
    if not lengths:
        return ()
    sizes = [max(1, -(-length // CHUNK_LENGTH)) for length in lengths]
    firsts, chunks = _starts(sizes)
    rows = [_Level(0, *tree, 0) for tree in zip(range(len(sizes)), firsts, sizes, strict=True)]
    levels: list[tuple[list[_Level], int]] = []
    total = chunks
    while rows := [row for row in rows if row.size > 1]:
        counts = [-(-row.size // GROUP) for row in rows]
        blocks, block_count = _starts(counts)
        # A block leaves one value.
        rows = [
            row._replace(first_block=block, target=total + block)
            for row, block in zip(rows, blocks, strict=True)
        ]
        levels.append((rows, block_count))
        rows = [
            row._replace(source=row.target, size=size)
            for row, size in zip(rows, counts, strict=True)
        ]
        total += block_count
    values = Scratch(total * DIGEST_BYTES, "digest values")
    shapes = Constant(_encode(list(zip(firsts, lengths, strict=True))))
    grid, block_shape = (-(-chunks // THREADS), 1, 1), (THREADS, 1, 1)
    args = (chunks, len(lengths), shapes, places, values)
    launches = [Launch(FILE, "digest_chunks", grid, block_shape, args)]
    for rows, block_count in levels:
        level_args = (len(rows), Constant(_encode(rows)), places, values)
        grid = (block_count, 1, 1)
        launches.append(Launch(FILE, "digest_trees", grid, block_shape, level_args))
    return tuple(launches)


def plan_place() -> tuple[Launch, Scratch]:
    """The table of places of one node by itself, its operand and its output: the launch that
    writes it, and where it is."""
    place = Scratch(PLACE_BYTES, "place")
    args = (1, Operand(0), Output(), place)
    return Launch(FILE, "digest_place", (1, 1, 1), (1, 1, 1), args), place


def plan_tensor_digest(length: int) -> tuple[Launch, ...]:
    """Launches of one ``tensor_digest`` node by itself, of an operand of ``length`` bytes."""
    write, place = plan_place()
    return (write, *plan_digests([length], place))


def split_state_leaf(node: Node) -> tuple[bytes, bytes]:
    """What is hashed of a state leaf before its tensor's digest, and after it."""
    leaf = StateLeaf(
        name=attr_text(node.attrs, "name"),
        dtype=attr_text(node.attrs, "dtype"),
        shape=attr_ints(node.attrs, "shape"),
        exponent=attr_int(node.attrs, "exponent"),
        digest=bytes(DIGEST_BYTES),
    )
    # Keys come in the order of their encodings, so only the exponent stands after the digest.
    after = cbor.encode("exponent") + cbor.encode(leaf.exponent)
    encoded = encode_state_leaf(leaf)
    return _LEAF_MARK + encoded[: -len(after) - DIGEST_BYTES], after


def plan_leaves(nodes: Sequence[Node], places: Arg, leaves: Arg) -> Launch:
    """The launch that does all of ``nodes``, which are ``state_leaf`` nodes: hashes one after the
    other at ``leaves``, of the digests whose addresses come first in the pairs of ``places``."""
    texts, rows = b"", []
    for node in nodes:
        before, after = split_state_leaf(node)
        start, middle = len(texts), len(texts) + len(before)
        texts += before + after
        rows.append((start, middle, len(texts)))
    context = domains.STATE_TREE.encode()
    tables = (Constant(_encode(rows)), Constant(texts), places, leaves)
    args = (len(nodes), Constant(context), len(context), *tables)
    # A block each: hashing has too many branches for threads to go side by side.
    return Launch("state_leaf.cu", "state_leaves", (len(nodes), 1, 1), (1, 1, 1), args)


def plan_root(size: int, leaves: Arg) -> Launch:
    """The launch that puts out the root over ``size`` hashes at ``leaves``, which it overwrites."""
    context = domains.STATE_TREE.encode()
    args = (size, Constant(context), len(context), leaves, Output())
    return Launch("state_root.cu", "state_root_levels", (1, 1, 1), (THREADS, 1, 1), args)


def plan_state_root(nodes: Sequence[Node], places: Arg) -> tuple[Launch, ...]:
    """Launches that put out the root of a state from the digests of its tensors: what ``nodes``,
    the ``state_leaf`` nodes in their order, and the ``state_root`` node over them give.  The
    addresses of the digests come first in the pairs of ``places``."""
    leaves = Scratch(max(1, len(nodes)) * DIGEST_BYTES, "leaves")
    root = plan_root(len(nodes), leaves)
    return (plan_leaves(nodes, places, leaves), root) if nodes else (root,)


class _Level(NamedTuple):
    """``DigestLevel`` of the kernels: what one launch of ``digest_trees`` does to a tensor."""

    first_block: int
    tensor: int
    source: int
    size: int
    target: int


def _starts(counts: Sequence[int]) -> tuple[list[int], int]:
    """Where each begins if all stand one after the other, and where the last ends."""
    starts = list(itertools.accumulate(counts, initial=0))
    return starts[:-1], starts[-1]


def _encode(rows: Sequence[tuple[int, ...]]) -> bytes:
    return b"".join(struct.pack(f"<{len(row)}q", *row) for row in rows)
