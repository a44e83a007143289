"""The encodings of openings and proofs: round trips, and each field's checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vtrain.errors import EncodingError
from vtrain.wire import cbor, opening
from vtrain.wire.opening import (
    ChunkOpening,
    ConsistencyProof,
    InclusionProof,
    StateLeaf,
    StateOpening,
)

PATH = (bytes(range(32)), bytes(32))
LEAF = StateLeaf("fc1.weight", "i32", (128, 784), 24, bytes(range(32)))
INCLUSION = InclusionProof(3, 7, PATH)
Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any], Any]
CODECS: dict[str, Codec] = {
    "inclusion": (opening.encode_inclusion, opening.decode_inclusion, INCLUSION),
    "consistency": (
        opening.encode_consistency,
        opening.decode_consistency,
        ConsistencyProof(3, 7, PATH),
    ),
    "chunk_opening": (
        opening.encode_chunk_opening,
        opening.decode_chunk_opening,
        ChunkOpening(5, b"\x01\x02", PATH),
    ),
    "state_opening": (
        opening.encode_state_opening,
        opening.decode_state_opening,
        StateOpening(LEAF, INCLUSION),
    ),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_round_trip_and_every_bit_flip(codec: Codec) -> None:
    encode, decode, value = codec
    data = encode(value)
    assert decode(data) == value
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            other = decode(bytes(changed))
        except EncodingError:
            continue
        assert other != value
        assert encode(other) == bytes(changed)
    for length in range(len(data)):
        with pytest.raises(EncodingError):
            decode(data[:length])


@pytest.mark.parametrize(
    ("name", "changes", "where"),
    [
        ("inclusion", {"index": -1}, "inclusion.index"),
        ("inclusion", {"size": 2**63}, "inclusion.size"),
        ("inclusion", {"path": [bytes(31)]}, "inclusion.path[0]"),
        ("inclusion", {"path": [bytes(32)] * 65}, "inclusion.path"),
        ("inclusion", {"more": 0}, "inclusion.more"),
        ("consistency", {"old_size": -1}, "consistency.old_size"),
        ("consistency", {"new_size": 2**63}, "consistency.new_size"),
        ("consistency", {"path": [bytes(32)] * 129}, "consistency.path"),
        ("consistency", {"more": 0}, "consistency.more"),
        ("chunk_opening", {"chunk": bytes(1025)}, "chunk_opening.chunk"),
        ("chunk_opening", {"index": "0"}, "chunk_opening.index"),
        ("chunk_opening", {"path": [bytes(32)] * 65}, "chunk_opening.path"),
        ("chunk_opening", {"more": 0}, "chunk_opening.more"),
        ("state_opening", {"more": 0}, "state_opening.more"),
        ("state_opening", {"proof": []}, "state_opening.proof"),
        ("state_opening", {"leaf": {"name": 1}}, "state_opening.leaf.name"),
        ("state_opening", {"leaf": {"name": "a" * 4097}}, "state_opening.leaf.name"),
        ("state_opening", {"leaf": {"dtype": "f32"}}, "state_opening.leaf.dtype"),
        ("state_opening", {"leaf": {"shape": [-1]}}, "state_opening.leaf.shape[0]"),
        ("state_opening", {"leaf": {"shape": [1] * 17}}, "state_opening.leaf.shape"),
        ("state_opening", {"leaf": {"exponent": 513}}, "state_opening.leaf.exponent"),
        ("state_opening", {"leaf": {"digest": b""}}, "state_opening.leaf.digest"),
        ("state_opening", {"leaf": {"more": b""}}, "state_opening.leaf.more"),
    ],
)
def test_each_field_is_checked(name: str, changes: dict[str, Any], where: str) -> None:
    encode, decode, value = CODECS[name]
    content = cbor.decode(encode(value))
    assert isinstance(content, dict)
    for key, change in changes.items():
        inner = content.get(key)
        content[key] = {**inner, **change} if isinstance(inner, dict) and change else change
    with pytest.raises(EncodingError) as caught:
        decode(cbor.encode(content))
    assert caught.value.where == where


def test_byte_length_follows_from_shape_and_dtype() -> None:
    assert LEAF.byte_length == 128 * 784 * 4
    assert StateLeaf("", "u8", (), 0, b"").byte_length == 1
    assert StateLeaf("", "i64", (2, 0), 0, b"").byte_length == 0
