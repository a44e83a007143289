"""Encoding dataclasses by their annotations: every check, its message and its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest

from vtrain.errors import EncodingError
from vtrain.wire import cbor, structs
from vtrain.wire.structs import AtMost, Between, Digest, LeftOut, Length


@dataclass(frozen=True)
class Part:
    number: Annotated[int, Between(-1, 9)]


@dataclass(frozen=True)
class Whole:
    digest: Digest
    kind: Literal["one", "two"]
    name: Annotated[str, AtMost(4)]
    pair: tuple[int, bytes]
    part: Part
    parts: Annotated[tuple[Part, ...], AtMost(2)]
    perhaps: Part | None
    words: Annotated[tuple[str, ...], Length(2)]


WHOLE = Whole(bytes(32), "two", "name", (7, b"x"), Part(-1), (Part(0), Part(9)), None, ("a", "b"))


def make_map() -> dict[str, Any]:
    value = structs.to_value(WHOLE)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("perhaps", [None, Part(3)])
def test_round_trip(perhaps: Part | None) -> None:
    whole = replace(WHOLE, perhaps=perhaps)
    assert structs.decode(Whole, structs.encode(whole), "whole") == whole


@dataclass(frozen=True)
class Grown:
    number: int
    more: Annotated[bytes, AtMost(2), LeftOut(b"")] = b""


def test_a_field_that_is_left_out_with_one_value() -> None:
    assert structs.encode(Grown(1)) == cbor.encode({"number": 1})
    assert structs.encode(Grown(1, b"x")) == cbor.encode({"more": b"x", "number": 1})
    for grown in (Grown(1), Grown(1, b"x")):
        assert structs.decode(Grown, structs.encode(grown), "grown") == grown
    for value, message in ((b"", "is left out with this value"), (b"abc", "more than 2")):
        with pytest.raises(EncodingError, match=message) as caught:
            structs.decode(Grown, cbor.encode({"more": value, "number": 1}), "grown")
        assert caught.value.where == "grown.more"


def test_the_form_by_hand() -> None:
    assert make_map() == {
        "digest": bytes(32),
        "kind": "two",
        "name": "name",
        "pair": [7, b"x"],
        "part": {"number": -1},
        "parts": [{"number": 0}, {"number": 9}],
        "perhaps": [],
        "words": ["a", "b"],
    }


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "short digest": (lambda m: m.update(digest=bytes(31)), "whole.digest", "expected 32, found 31"),
    "digest of text": (lambda m: m.update(digest="a" * 32), "whole.digest", "expected bytes"),
    "unknown choice": (lambda m: m.update(kind="three"), "whole.kind", "must be one of"),
    "choice of a list": (lambda m: m.update(kind=[]), "whole.kind", "must be one of"),
    "long text": (lambda m: m.update(name="names"), "whole.name", "more than 4"),
    "bytes for text": (lambda m: m.update(name=b"name"), "whole.name", "expected str"),
    "short tuple": (lambda m: m.update(pair=[7]), "whole.pair", "expected 2 items, found 1"),
    "item of a tuple": (lambda m: m.update(pair=[7, 8]), "whole.pair[1]", "expected bytes"),
    "tuple of text": (lambda m: m.update(pair="ab"), "whole.pair", "expected a list"),
    "too great": (lambda m: m["part"].update(number=10), "whole.part.number", "10 is not in"),
    "too small": (lambda m: m["part"].update(number=-2), "whole.part.number", "-2 is not in"),
    "no number": (lambda m: m["part"].update(number=b""), "whole.part.number", "expected int"),
    "no map": (lambda m: m.update(part=[]), "whole.part", "expected a map"),
    "in a list": (lambda m: m["parts"][1].clear(), "whole.parts[1].number", "is missing"),
    "too many": (lambda m: m.update(parts=[{"number": 0}] * 3), "whole.parts", "more than 2"),
    "no list": (lambda m: m.update(parts={}), "whole.parts", "expected a list"),
    "two options": (
        lambda m: m.update(perhaps=[{"number": 0}] * 2), "whole.perhaps", "expected none or one",
    ),
    "in an option": (lambda m: m.update(perhaps=[{}]), "whole.perhaps.number", "is missing"),
    "a word too few": (lambda m: m.update(words=["a"]), "whole.words", "expected 2, found 1"),
    "a wrong word": (lambda m: m.update(words=["a", 1]), "whole.words[1]", "expected str"),
    "missing": (lambda m: m.pop("name"), "whole.name", "the field is missing"),
    "unknown": (lambda m: m.update(more=1), "whole.more", "the field is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_refusals_name_the_place(name: str) -> None:
    change, where, message = CHANGES[name]
    value = make_map()
    change(value)
    with pytest.raises(EncodingError) as caught:
        structs.decode(Whole, cbor.encode(value), "whole")
    assert caught.value.where == where
    assert message in caught.value.message


def test_the_whole_must_be_a_map() -> None:
    with pytest.raises(EncodingError, match="expected a map") as caught:
        structs.decode(Whole, cbor.encode([]), "whole")
    assert caught.value.where == "whole"


def test_what_has_no_encoding() -> None:
    with pytest.raises(EncodingError, match="has no encoding"):
        structs.to_value(1.5)


def test_annotations_that_are_not_supported() -> None:
    @dataclass(frozen=True)
    class Odd:
        number: float

    with pytest.raises(TypeError, match="has no encoding"):
        structs.decode(Odd, cbor.encode({"number": 1}), "odd")
