"""Canonical encoding of frozen dataclasses, derived from their annotations.

For documents of many small types, as a dispute has them; its files of one map each are read by
``vtrain.wire.fields``.  A field may be an ``int``, ``bytes``, ``str``, ``Literal``, a dataclass, a
tuple of such, or ``X | None`` (encoded as an array of none or one).  ``Annotated`` bounds it:
``Between`` for integers, ``OneOf`` for texts, ``Length`` for exact and ``AtMost`` for greatest
lengths of bytes, texts and tuples, ``LengthOrNone`` for bytes that may be empty.  ``LeftOut`` names
a value with which a field is not in the map at all, so that a type can get a field and what was
encoded before stays as it is; where that is None, the field is encoded as an X.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from vtrain.errors import EncodingError
from vtrain.wire import cbor

T = TypeVar("T")
_Reader = Callable[[cbor.Value, str], Any]


@dataclass(frozen=True)
class Between:
    """Least and greatest value of an integer."""

    lo: int
    hi: int


@dataclass(frozen=True)
class OneOf:
    """What a text may be."""

    choices: tuple[str, ...]


@dataclass(frozen=True)
class Length:
    """The exact number of bytes or items."""

    count: int


@dataclass(frozen=True)
class AtMost:
    """The greatest number of bytes (of a text, of its UTF-8) or items."""

    count: int


@dataclass(frozen=True)
class LengthOrNone:
    """The exact number of bytes where there are any."""

    count: int


@dataclass(frozen=True)
class LeftOut:
    """A field with this value is left out of the map; its default must be the same."""

    value: object


Digest = Annotated[bytes, Length(32)]
"""A hash or a public key: 32 bytes."""
Count = Annotated[int, Between(0, 2**62)]
"""A number of things, an index, or milliseconds."""


def to_value(item: object) -> cbor.Value:
    """The value whose encoding is that of ``item``, a dataclass or what one may hold."""
    if item is None:
        return []
    if isinstance(item, int | bytes | str):
        return item
    if isinstance(item, tuple):
        return [to_value(part) for part in item]
    if is_dataclass(item) and not isinstance(item, type):
        absent = _left_out(type(item))
        return {
            name: _optional(getattr(item, name)) if optional else to_value(getattr(item, name))
            for name, optional in _optionals(type(item)).items()
            if name not in absent or getattr(item, name) != absent[name]
        }
    raise EncodingError(f"{type(item).__name__} has no encoding", where=type(item).__name__)


def from_value(cls: type[T], value: cbor.Value, where: str) -> T:
    """The dataclass ``cls`` from its map; EncodingError names the field at fault."""
    read: Callable[[cbor.Value, str], T] = _struct_reader(cls)  # type: ignore[arg-type]
    return read(value, where)


def encode(item: object) -> bytes:
    """Canonical encoding of a dataclass."""
    return cbor.encode(to_value(item))


def decode(cls: type[T], data: bytes, where: str) -> T:
    """Inverse of :func:`encode` for the dataclass ``cls``."""
    return from_value(cls, cbor.decode(data), where)


def _optional(item: object) -> cbor.Value:
    return [] if item is None else [to_value(item)]


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _optionals(cls: type) -> dict[str, bool]:
    """May a field be None?"""
    return {name: _is_optional(hint) for name, hint in _hints(cls).items()}


@cache
def _left_out(cls: type) -> dict[str, object]:
    return {
        name: bound.value
        for name, hint in _hints(cls).items()
        if get_origin(hint) is Annotated
        for bound in get_args(hint)[1:]
        if isinstance(bound, LeftOut)
    }


@cache
def _struct_reader(cls: type) -> _Reader:
    readers: dict[str, _Reader] = {}

    def read(value: cbor.Value, where: str) -> Any:
        if not readers:
            # Filled on first use: types may hold themselves.
            readers.update({name: _reader(hint) for name, hint in _hints(cls).items()})
        if not isinstance(value, dict):
            raise EncodingError(f"expected a map, found {cbor.kind_of(value)}", where=where)
        absent = _left_out(cls)
        missing = readers.keys() - value.keys() - absent.keys()
        unknown = value.keys() - readers.keys()
        if missing or unknown:
            name = min(missing or unknown)
            message = "the field is missing" if missing else "the field is unknown"
            raise EncodingError(message, where=f"{where}.{name}")
        read = {
            name: reader(value[name], f"{where}.{name}")
            for name, reader in readers.items()
            if name in value
        }
        for name in absent.keys() & read.keys():
            if read[name] == absent[name]:
                raise EncodingError("is left out with this value", where=f"{where}.{name}")
        return cls(**read)

    return read


def _reader(hint: Any) -> _Reader:
    if get_origin(hint) is Annotated:
        base, *bounds = get_args(hint)
        if LeftOut(None) in bounds:
            (base,) = (part for part in get_args(base) if part is not type(None))
        return _bounded(_reader(base), bounds)
    if get_origin(hint) is Literal:
        return _choice_reader(get_args(hint))
    if _is_optional(hint):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return _optional_reader(_reader(inner))
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if len(parts) == 2 and parts[1] is Ellipsis:
            return _list_reader(_reader(parts[0]))
        return _tuple_reader([_reader(part) for part in parts])
    if is_dataclass(hint) and isinstance(hint, type):
        return _struct_reader(hint)
    if hint in (int, bytes, str):
        return _plain_reader(hint)
    raise TypeError(f"{hint} has no encoding")


def _plain_reader(cls: type) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        if type(value) is not cls:
            raise EncodingError(
                f"expected {cls.__name__}, found {cbor.kind_of(value)}", where=where
            )
        return value

    return read


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        if value not in choices:
            raise EncodingError(f"must be one of {list(choices)}", where=where)
        return value

    return read


def _items(value: cbor.Value, where: str) -> list[cbor.Value]:
    if not isinstance(value, list):
        raise EncodingError(f"expected a list, found {cbor.kind_of(value)}", where=where)
    return value


def _list_reader(inner: _Reader) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        return tuple(inner(item, f"{where}[{i}]") for i, item in enumerate(_items(value, where)))

    return read


def _tuple_reader(inner: list[_Reader]) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        items = _items(value, where)
        if len(items) != len(inner):
            raise EncodingError(f"expected {len(inner)} items, found {len(items)}", where=where)
        return tuple(
            reader(item, f"{where}[{i}]")
            for i, (reader, item) in enumerate(zip(inner, items, strict=True))
        )

    return read


def _optional_reader(inner: _Reader) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        items = _items(value, where)
        if len(items) > 1:
            raise EncodingError("expected none or one", where=where)
        return inner(items[0], where) if items else None

    return read


def _bounded(inner: _Reader, bounds: list[Any]) -> _Reader:
    def read(value: cbor.Value, where: str) -> Any:
        for bound in bounds:
            _check(bound, value, where)
        return inner(value, where)

    return read


def _check(bound: object, value: cbor.Value, where: str) -> None:
    match bound, value:
        case Between(lo, hi), int(number) if not lo <= number <= hi:
            raise EncodingError(f"{number} is not in [{lo}, {hi}]", where=where)
        case OneOf(choices), str() if value not in choices:
            raise EncodingError(f"must be one of {list(choices)}", where=where)
        case Length(count), bytes() | str() | list() if len(value) != count:
            raise EncodingError(f"expected {count}, found {len(value)}", where=where)
        case LengthOrNone(count), bytes() if len(value) not in (0, count):
            raise EncodingError(f"expected {count} or none, found {len(value)}", where=where)
        case AtMost(count), str() if len(value.encode()) > count:
            raise EncodingError(f"more than {count} bytes", where=where)
        case AtMost(count), bytes() | list() if len(value) > count:
            raise EncodingError(f"more than {count}", where=where)
