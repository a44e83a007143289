"""BLAKE3 as a tree of 1 KiB chunks, in readable Python, with openings of single chunks.

Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020).
The tensor digest is this hash of the tensor's little-endian row-major bytes, as ``b3sum`` prints.
Because the hash is itself a Merkle tree, a chunk and the chaining values beside its way to the root
prove the chunk; bao does the same.  ``vtrain._core`` has the fast twin.

An opening proves a chunk's bytes and place among ``length`` bytes.  The length is not taken from
the solver: it follows from the agreed shape, and the empty tensor is one empty chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vtrain.errors import EncodingError
from vtrain.spec.merkle import compute_sides, compute_split
from vtrain.wire.opening import CHUNK_LENGTH, ChunkOpening

BLOCK_LENGTH = 64
DIGEST_LENGTH = 32

CHUNK_START = 1 << 0
CHUNK_END = 1 << 1
PARENT = 1 << 2
ROOT = 1 << 3
DERIVE_KEY_CONTEXT = 1 << 5
DERIVE_KEY_MATERIAL = 1 << 6

Words = tuple[int, ...]

IV: Words = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MASK = 0xFFFFFFFF
# Where the eight quarter-rounds of a round act: the columns, then the diagonals, of a 4 x 4 state.
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)


@dataclass(frozen=True)
class _Node:
    """One compression not yet done: it still has to learn whether it is the root."""

    key: Words
    block: Words
    counter: int
    block_length: int
    flags: int

    def chaining_value(self) -> Words:
        """Eight words for the parent node."""
        return self._compress(self.flags, self.counter)[:8]

    def root_bytes(self, length: int) -> bytes:
        """Output of the node as the root of the tree, extended to ``length`` bytes."""
        out = b""
        counter = 0
        while len(out) < length:
            out += _to_bytes(self._compress(self.flags | ROOT, counter))
            counter += 1
        return out[:length]

    def _compress(self, flags: int, counter: int) -> Words:
        """The compression function: sixteen words."""
        counter_words = (counter & _MASK, counter >> 32)
        state = [*self.key, *IV[:4], *counter_words, self.block_length, flags]
        message = self.block
        for _ in range(7):
            for i, quarter in enumerate(_QUARTERS):
                _mix(state, quarter, message[2 * i], message[2 * i + 1])
            message = tuple(message[i] for i in _PERMUTATION)
        low = [state[i] ^ state[i + 8] for i in range(8)]
        return (*low, *(state[i + 8] ^ self.key[i] for i in range(8)))


def _mix(state: list[int], quarter: tuple[int, int, int, int], x: int, y: int) -> None:
    a, b, c, d = quarter
    state[a] = (state[a] + state[b] + x) & _MASK
    state[d] = _rotate_right(state[d] ^ state[a], 16)
    state[c] = (state[c] + state[d]) & _MASK
    state[b] = _rotate_right(state[b] ^ state[c], 12)
    state[a] = (state[a] + state[b] + y) & _MASK
    state[d] = _rotate_right(state[d] ^ state[a], 8)
    state[c] = (state[c] + state[d]) & _MASK
    state[b] = _rotate_right(state[b] ^ state[c], 7)


def _rotate_right(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & _MASK


def _to_words(data: bytes) -> Words:
    return tuple(int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4))


def _to_bytes(words: Words) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def _chunk_node(key: Words, chunk: bytes, counter: int, flags: int) -> _Node:
    blocks = [chunk[i : i + BLOCK_LENGTH] for i in range(0, len(chunk), BLOCK_LENGTH)] or [b""]
    value = key
    for i, block in enumerate(blocks):
        node = _Node(
            key=value,
            block=_to_words(block.ljust(BLOCK_LENGTH, b"\x00")),
            counter=counter,
            block_length=len(block),
            flags=flags
            | (CHUNK_START if i == 0 else 0)
            | (CHUNK_END if i == len(blocks) - 1 else 0),
        )
        value = node.chaining_value()
    return node


def _parent_node(key: Words, left: Words, right: Words, flags: int) -> _Node:
    return _Node(key, (*left, *right), 0, BLOCK_LENGTH, flags | PARENT)


def _tree_node(key: Words, data: bytes, first_chunk: int, flags: int) -> _Node:
    """Top node of the subtree over ``data``, whose first chunk is number ``first_chunk``."""
    chunks = compute_chunk_count(len(data))
    if chunks == 1:
        return _chunk_node(key, data, first_chunk, flags)
    split = compute_split(chunks)
    left = _tree_node(key, data[: split * CHUNK_LENGTH], first_chunk, flags)
    right = _tree_node(key, data[split * CHUNK_LENGTH :], first_chunk + split, flags)
    return _parent_node(key, left.chaining_value(), right.chaining_value(), flags)


def compute_hash(data: bytes, length: int = DIGEST_LENGTH) -> bytes:
    """BLAKE3 of ``data``, extended to ``length`` bytes: the plain hash mode."""
    return _tree_node(IV, data, 0, 0).root_bytes(length)


def compute_derived_key(context: str, data: bytes, length: int = DIGEST_LENGTH) -> bytes:
    """BLAKE3 derive_key mode: ``data`` hashed under the key that ``context`` gives."""
    key = _tree_node(IV, context.encode(), 0, DERIVE_KEY_CONTEXT).root_bytes(DIGEST_LENGTH)
    return _tree_node(_to_words(key), data, 0, DERIVE_KEY_MATERIAL).root_bytes(length)


def compute_chunk_count(length: int) -> int:
    """Chunks of a tensor of ``length`` bytes; an empty tensor is one empty chunk."""
    return max(1, -(-length // CHUNK_LENGTH))


def compute_chunk_length(length: int, index: int) -> int:
    """Bytes in chunk ``index`` of a tensor of ``length`` bytes."""
    return min(CHUNK_LENGTH, length - index * CHUNK_LENGTH)


def compute_chunk_value(chunk: bytes, index: int, is_root: bool = False) -> bytes:
    """Chaining value (32 bytes) of chunk ``index``, or the digest of data that is but one chunk."""
    return _value(_chunk_node(IV, chunk, index, 0), is_root)


def compute_parent_value(left: bytes, right: bytes, is_root: bool = False) -> bytes:
    """Chaining value over two subtrees, or the digest when that is the whole tree."""
    return _value(_parent_node(IV, _to_words(left), _to_words(right), 0), is_root)


def compute_part_value(data: bytes, first: int, is_root: bool = False) -> bytes:
    """Chaining value of the part of a tensor that is ``data`` and begins with chunk ``first``, or
    the digest of data that is all of it.

    EncodingError where no tensor has such a subtree: an empty part that is not the whole, a whole
    that does not begin at 0, and a part whose chunks are more than the largest power of two that
    divides ``first``.
    """
    fits = not first or compute_chunk_count(len(data)) <= first & -first
    if first if is_root else not (data and fits):
        raise EncodingError(f"no part of a tensor at chunk {first}", where="part")
    return _value(_tree_node(IV, data, first, 0), is_root)


def join_values(values: Sequence[bytes], is_root: bool = False) -> bytes:
    """Value over parts that lie side by side, each of which but the last has the same power of two
    of chunks, and the last no more; EncodingError for fewer than two."""
    if len(values) < 2:
        raise EncodingError("not two values of 32 bytes or more", where="part")
    split = compute_split(len(values))
    left, right = (
        part[0] if len(part) == 1 else join_values(part)
        for part in (values[:split], values[split:])
    )
    return compute_parent_value(left, right, is_root)


def _value(node: _Node, is_root: bool) -> bytes:
    return node.root_bytes(DIGEST_LENGTH) if is_root else _to_bytes(node.chaining_value())


def compute_chunk_opening(data: bytes, index: int) -> ChunkOpening:
    """Chunk ``index`` of ``data`` and its path: sibling chaining values from the chunk upwards.

    EncodingError when there is no such chunk.
    """
    chunks = compute_chunk_count(len(data))
    if not 0 <= index < chunks:
        raise EncodingError(f"no chunk {index} among {chunks}", where="chunk opening")
    path: list[bytes] = []
    rest, first = data, 0
    while chunks > 1:
        split = compute_split(chunks)
        left, right = rest[: split * CHUNK_LENGTH], rest[split * CHUNK_LENGTH :]
        if index - first < split:
            sibling = _tree_node(IV, right, first + split, 0)
            rest, chunks = left, split
        else:
            sibling = _tree_node(IV, left, first, 0)
            rest, first, chunks = right, first + split, chunks - split
        path.append(_to_bytes(sibling.chaining_value()))
    return ChunkOpening(index, rest, tuple(reversed(path)))


def verify_chunk_opening(digest: bytes, length: int, opening: ChunkOpening) -> bool:
    """Whether the opening shows a chunk of the ``length`` bytes that ``digest`` is of.

    Takes hostile input: a wrong index, chunk length or path length is False.
    """
    chunks = compute_chunk_count(length)
    if length < 0 or not 0 <= opening.index < chunks:
        return False
    if len(opening.chunk) != compute_chunk_length(length, opening.index):
        return False
    sides = compute_sides(chunks, opening.index)
    if [len(item) for item in opening.path] != [DIGEST_LENGTH] * len(sides):
        return False
    node = _chunk_node(IV, opening.chunk, opening.index, 0)
    for is_left, item in zip(sides, opening.path, strict=True):
        own, sibling = node.chaining_value(), _to_words(item)
        left, right = (own, sibling) if is_left else (sibling, own)
        node = _parent_node(IV, left, right, 0)
    return node.root_bytes(DIGEST_LENGTH) == digest
