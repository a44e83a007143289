"""Reading maps into dataclasses: every check, its message and its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.fields import Fields

MAP: dict[str, cbor.Value] = {
    "bytes": b"\x00" * 32,
    "empty": b"",
    "int": 7,
    "ints": [1, 2, 3],
    "text": "name",
    "texts": ["a", "b"],
    "digests": [b"\x01" * 32, b"\x02" * 32],
    "map": {"inner": 1},
}


def test_reads_what_is_there() -> None:
    fields = Fields(dict(MAP), "thing")
    assert fields.bytes("bytes") == b"\x00" * 32
    assert fields.optional_bytes("empty") == b""
    assert fields.int("int", 7, 7) == 7
    assert fields.ints("ints", 1, 3) == (1, 2, 3)
    assert fields.choice("text", ("name", "other")) == "name"
    assert fields.texts("texts") == ("a", "b")
    assert fields.digests("digests", 2) == (b"\x01" * 32, b"\x02" * 32)
    inner = fields.map("map")
    assert inner.int("inner", 0, 1) == 1
    inner.done()
    fields.done()


@pytest.mark.parametrize(
    ("read", "where", "message"),
    [
        (lambda f: f.int("none", 0, 1), "none", "the field is missing"),
        (lambda f: f.int("int", 0, 6), "int", "7 is not in [0, 6]"),
        (lambda f: f.int("int", 8, 9), "int", "7 is not in [8, 9]"),
        (lambda f: f.int("text", 0, 1), "text", "expected an integer, found text"),
        (lambda f: f.ints("ints", 1, 2), "ints[2]", "3 is not in [1, 2]"),
        (lambda f: f.ints("ints", 1, 3, 2), "ints", "more than 2 items"),
        (lambda f: f.ints("texts", 1, 3), "texts[0]", "expected an integer, found text"),
        (lambda f: f.text("int"), "int", "expected text, found int"),
        (lambda f: f.text("text", 3), "text", "text is longer than 3 bytes"),
        (lambda f: f.texts("ints"), "ints[0]", "expected text, found int"),
        (lambda f: f.choice("text", ("x", "y")), "text", "'name' is none of x, y"),
        (lambda f: f.bytes("bytes", 31), "bytes", "expected 31 bytes, found 32"),
        (lambda f: f.bytes("empty"), "empty", "expected 32 bytes, found 0"),
        (lambda f: f.bytes("text"), "text", "expected bytes, found text"),
        (lambda f: f.optional_bytes("bytes", 31), "bytes", "expected 31 bytes, found 32"),
        (lambda f: f.optional_bytes("int"), "int", "expected bytes, found int"),
        (lambda f: f.blob("bytes", 31), "bytes", "longer than 31 bytes"),
        (lambda f: f.blob("int", 31), "int", "expected bytes, found int"),
        (lambda f: f.digests("digests", 1), "digests", "more than 1 items"),
        (lambda f: f.digests("ints", 9), "ints[0]", "expected bytes, found int"),
        (lambda f: f.list("map"), "map", "expected a list, found map"),
        (lambda f: f.map("int"), "int", "expected a map, found int"),
        (lambda f: f.map("map").done(), "map.inner", "unknown field"),
        (lambda f: f.done(), "bytes", "unknown field"),
    ],
)
def test_refuses_by_name(read: Callable[[Fields], object], where: str, message: str) -> None:
    with pytest.raises(EncodingError) as caught:
        read(Fields(dict(MAP), "thing"))
    assert (caught.value.where, caught.value.message) == (f"thing.{where}", message)


def test_refuses_what_is_no_map() -> None:
    with pytest.raises(EncodingError) as caught:
        Fields([], "thing")
    assert (caught.value.where, caught.value.message) == ("thing", "expected a map, found list")


def test_a_field_is_taken_once() -> None:
    fields = Fields({"a": 1}, "thing")
    fields.int("a", 0, 1)
    with pytest.raises(EncodingError, match="missing"):
        fields.int("a", 0, 1)


def test_the_callers_map_is_left_alone() -> None:
    source = dict(MAP)
    Fields(source, "thing").int("int", 0, 9)
    assert source == MAP
