"""The canonical encoding against its vectors, and that every strictness can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain.errors import EncodingError
from vtrain.wire import cbor

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "cbor.json").read_text())

values: st.SearchStrategy[cbor.Value] = st.recursive(
    st.integers(cbor.INT_MIN, cbor.INT_MAX) | st.binary(max_size=40) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


def untagged(tagged: Any) -> cbor.Value:
    (kind, content), *_ = tagged.items()
    match kind:
        case "int":
            return int(content)
        case "bytes":
            return bytes.fromhex(content)
        case "text":
            return str(content)
        case "list":
            return [untagged(item) for item in content]
        case _:
            return {key: untagged(item) for key, item in content.items()}


def assert_refused(data: bytes, expected: Any) -> None:
    with pytest.raises(EncodingError) as caught:
        cbor.decode(data)
    assert caught.value.where == f"byte {expected['offset']}"
    assert caught.value.message == expected["reason"]


@pytest.mark.parametrize("case", VECTORS["accept"], ids=lambda case: case["name"])
def test_accepts(case: Any) -> None:
    data, value = bytes.fromhex(case["hex"]), untagged(case["value"])
    assert cbor.encode(value) == data
    assert cbor.decode(data) == value


@pytest.mark.parametrize("case", VECTORS["reject"], ids=lambda case: case["name"])
def test_rejects_with_offset(case: Any) -> None:
    assert_refused(bytes.fromhex(case["hex"]), case)


def test_every_bit_flip_is_refused_or_another_canonical_value() -> None:
    base = bytes.fromhex(VECTORS["flips"]["hex"])
    original = cbor.decode(base)
    assert len(VECTORS["flips"]["verdicts"]) == 8 * len(base)
    for bit, expected in enumerate(VECTORS["flips"]["verdicts"]):
        changed = bytearray(base)
        changed[bit // 8] ^= 1 << bit % 8
        if expected is None:
            assert cbor.decode(bytes(changed)) != original
        else:
            assert_refused(bytes(changed), expected)


def test_every_truncation_and_extension_is_refused() -> None:
    base = bytes.fromhex(VECTORS["flips"]["hex"])
    for length in range(len(base)):
        with pytest.raises(EncodingError):
            cbor.decode(base[:length])
    assert_refused(base + b"\x00", {"offset": len(base), "reason": "trailing bytes"})


def test_rfc_8949_examples() -> None:
    # RFC 8949, appendix A: those of its examples that lie in the subset.
    examples: dict[str, cbor.Value] = {
        "1903e8": 1000,
        "1b000000e8d4a51000": 1000000000000,
        "3903e7": -1000,
        "4401020304": b"\x01\x02\x03\x04",
        "6449455446": "IETF",
        "64f0908591": "\U00010151",
        "8301820203820405": [1, [2, 3], [4, 5]],
        "a26161016162820203": {"a": 1, "b": [2, 3]},
    }
    for data, value in examples.items():
        assert cbor.encode(value).hex() == data
        assert cbor.decode(bytes.fromhex(data)) == value


@given(values)
def test_round_trip(value: cbor.Value) -> None:
    assert cbor.decode(cbor.encode(value)) == value


@given(values)
def test_the_encoding_does_not_depend_on_the_order_of_insertion(value: cbor.Value) -> None:
    def reversed_maps(item: cbor.Value) -> cbor.Value:
        match item:
            case list():
                return [reversed_maps(inner) for inner in item]
            case dict():
                return {key: reversed_maps(item[key]) for key in reversed(item)}
            case _:
                return item

    assert cbor.encode(reversed_maps(value)) == cbor.encode(value)


@pytest.mark.parametrize(
    ("value", "where", "reason"),
    [
        (True, "$", "a bool has no canonical encoding"),
        (None, "$", "a NoneType has no canonical encoding"),
        (1.5, "$", "a float has no canonical encoding"),
        ([0, {"a": (1,)}], "$[1].a", "a tuple has no canonical encoding"),
        (np.int64(1), "$", "a int64 has no canonical encoding"),
        (bytearray(b"a"), "$", "a bytearray has no canonical encoding"),
        (2**64, "$", "integer 18446744073709551616 has more than 64 bits"),
        (-(2**63) - 1, "$", "integer -9223372036854775809 has more than 64 bits"),
        ({1: 2}, "$", "map key is not text"),
        ("\ud800", "$", "text has no UTF-8 encoding"),
        ({"\ud800": 0}, "$", "text has no UTF-8 encoding"),
    ],
)
def test_what_has_no_encoding_is_refused(value: Any, where: str, reason: str) -> None:
    with pytest.raises(EncodingError) as caught:
        cbor.encode(value)
    assert (caught.value.where, caught.value.message) == (where, reason)


def test_encode_nests_as_deep_as_decode_and_no_deeper() -> None:
    value: cbor.Value = []
    for _ in range(cbor.LIMITS.depth - 1):
        value = [value]
    assert cbor.decode(cbor.encode(value)) == value
    with pytest.raises(EncodingError, match="nested too deeply"):
        cbor.encode([value])


def test_limits() -> None:
    limits = cbor.Limits(depth=1, size=3, items=9)
    assert cbor.decode(b"\x82\x00\x00", limits) == [0, 0]
    with pytest.raises(EncodingError, match="nested too deeply"):
        cbor.decode(b"\x82\x80\x00", limits)
    with pytest.raises(EncodingError, match="over the size limit"):
        cbor.decode(b"\x83\x00\x00\x00", limits)


def test_limit_of_items_counts_values_and_keys() -> None:
    data = cbor.encode([0, {"a": [1]}])
    assert cbor.decode(data, cbor.Limits(items=6)) == [0, {"a": [1]}]
    for items in range(6):
        with pytest.raises(EncodingError, match="more items than the limit") as caught:
            cbor.decode(data, cbor.Limits(items=items))
        assert caught.value.where == f"byte {[0, 1, 2, 3, 5, 6][items]}"
    count = cbor.LIMITS.items
    with pytest.raises(EncodingError) as caught:
        cbor.decode(b"\x9a" + count.to_bytes(4) + bytes(count))
    assert caught.value.where == f"byte {5 + count - 1}"
