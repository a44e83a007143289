"""Reading a decoded map into a dataclass: every wire type takes its fields through here.

``Fields`` checks type and bounds of each field as it is taken and, in :meth:`Fields.done`, that no
field was left over: a map with a missing, unknown or ill-typed field is refused by name.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import NoReturn, TypeVar

from vtrain.errors import EncodingError
from vtrain.wire import cbor

S = TypeVar("S", bound=str)

DIGEST_LENGTH = 32
MAX_TEXT = 4096
"""Bytes of UTF-8 in a name or label."""
MAX_ITEMS = 1 << 20
"""Items of a list."""


def check_names(names: Iterable[str], where: str) -> None:
    """EncodingError unless each of ``names`` (the keys of a map, for one) has at most
    :data:`MAX_TEXT` bytes of UTF-8."""
    for name in names:
        # No character has more than four bytes: most names need no encoding.
        if 4 * len(name) > MAX_TEXT and len(name.encode(errors="surrogatepass")) > MAX_TEXT:
            message = f"the name {name[:20]!r}... has more than {MAX_TEXT} bytes"
            raise EncodingError(message, where=where)


class Fields:
    """Takes the fields of one decoded map; every method raises EncodingError naming the field."""

    def __init__(self, value: cbor.Value, where: str) -> None:
        if not isinstance(value, dict):
            raise EncodingError(f"expected a map, found {cbor.kind_of(value)}", where=where)
        check_names(value, where)
        self._left = dict(value)
        self._where = where

    def has(self, name: str) -> bool:
        """Whether the field ``name`` is there and was not taken yet."""
        return name in self._left

    def names(self) -> tuple[str, ...]:
        """The fields that were not taken yet, for a map whose keys are data."""
        return tuple(self._left)

    def take(self, name: str) -> cbor.Value:
        """The field ``name``, of any type."""
        if name not in self._left:
            self.refuse(name, "the field is missing")
        return self._left.pop(name)

    def refuse(self, name: str, message: str) -> NoReturn:
        """Raise an EncodingError about the field ``name``."""
        raise EncodingError(message, where=f"{self._where}.{name}")

    def int(self, name: str, lo: builtins.int, hi: builtins.int) -> builtins.int:
        """An integer in [lo, hi]."""
        return self._int(name, self.take(name), lo, hi)

    def _int(
        self, name: str, value: cbor.Value, lo: builtins.int, hi: builtins.int
    ) -> builtins.int:
        if not isinstance(value, int):
            self.refuse(name, f"expected an integer, found {cbor.kind_of(value)}")
        if not lo <= value <= hi:
            self.refuse(name, f"{value} is not in [{lo}, {hi}]")
        return value

    def ints(
        self, name: str, lo: builtins.int, hi: builtins.int, max_items: builtins.int = MAX_ITEMS
    ) -> tuple[builtins.int, ...]:
        """A list of integers, each in [lo, hi]."""
        return tuple(
            self._int(f"{name}[{i}]", item, lo, hi)
            for i, item in enumerate(self.list(name, max_items))
        )

    def text(self, name: str, max_bytes: builtins.int = MAX_TEXT) -> str:
        """A text of at most ``max_bytes`` bytes of UTF-8."""
        return self._text(name, self.take(name), max_bytes)

    def _text(self, name: str, value: cbor.Value, max_bytes: builtins.int) -> str:
        if not isinstance(value, str):
            self.refuse(name, f"expected text, found {cbor.kind_of(value)}")
        if len(value.encode()) > max_bytes:
            self.refuse(name, f"text is longer than {max_bytes} bytes")
        return value

    def choice(self, name: str, choices: tuple[S, ...]) -> S:
        """A text that is one of ``choices``."""
        value = self.text(name)
        found = next((choice for choice in choices if choice == value), None)
        if found is None:
            self.refuse(name, f"{value!r} is none of {', '.join(choices)}")
        return found

    def bytes(self, name: str, length: builtins.int = DIGEST_LENGTH) -> builtins.bytes:
        """A byte string of exactly ``length`` bytes; a digest unless told otherwise."""
        return self._bytes(name, self.take(name), length)

    def _bytes(self, name: str, value: cbor.Value, length: builtins.int) -> builtins.bytes:
        if not isinstance(value, bytes):
            self.refuse(name, f"expected bytes, found {cbor.kind_of(value)}")
        if len(value) != length:
            self.refuse(name, f"expected {length} bytes, found {len(value)}")
        return value

    def optional_bytes(self, name: str, length: builtins.int = DIGEST_LENGTH) -> builtins.bytes:
        """A byte string of ``length`` bytes, or the empty one where there is nothing to name."""
        value = self.take(name)
        return b"" if value == b"" else self._bytes(name, value, length)

    def blob(self, name: str, max_bytes: builtins.int) -> builtins.bytes:
        """A byte string of at most ``max_bytes`` bytes."""
        value = self.take(name)
        if not isinstance(value, bytes):
            self.refuse(name, f"expected bytes, found {cbor.kind_of(value)}")
        if len(value) > max_bytes:
            self.refuse(name, f"longer than {max_bytes} bytes")
        return value

    def digests(self, name: str, max_items: builtins.int) -> tuple[builtins.bytes, ...]:
        """A list of at most ``max_items`` digests of 32 bytes."""
        return self.byte_strings(name, DIGEST_LENGTH, max_items)

    def byte_strings(
        self, name: str, length: builtins.int, max_items: builtins.int
    ) -> tuple[builtins.bytes, ...]:
        """A list of at most ``max_items`` byte strings of exactly ``length`` bytes."""
        return tuple(
            self._bytes(f"{name}[{i}]", item, length)
            for i, item in enumerate(self.list(name, max_items))
        )

    def list(self, name: str, max_items: builtins.int = MAX_ITEMS) -> builtins.list[cbor.Value]:
        """A list of at most ``max_items`` values of any type."""
        value = self.take(name)
        if not isinstance(value, list):
            self.refuse(name, f"expected a list, found {cbor.kind_of(value)}")
        if len(value) > max_items:
            self.refuse(name, f"more than {max_items} items")
        return value

    def texts(
        self, name: str, max_items: builtins.int = MAX_ITEMS, max_bytes: builtins.int = MAX_TEXT
    ) -> tuple[str, ...]:
        """A list of texts, each of at most ``max_bytes`` bytes of UTF-8."""
        return tuple(
            self._text(f"{name}[{i}]", item, max_bytes)
            for i, item in enumerate(self.list(name, max_items))
        )

    def map(self, name: str) -> Fields:
        """The fields of a nested map."""
        return Fields(self.take(name), f"{self._where}.{name}")

    def done(self) -> None:
        """Refuse the map when it has a field that was not taken."""
        if self._left:
            self.refuse(min(self._left), "unknown field")
