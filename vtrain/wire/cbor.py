"""The canonical encoding: a strict subset of CBOR with exactly one encoding per value.

RFC 8949 section 4.2.1 (core deterministic encoding), restricted to integers, byte strings, text,
arrays and maps with text keys.  No floats, simple values, tags or indefinite lengths.  Map keys are
sorted by their encoded bytes.  ``decode`` accepts nothing that ``encode`` would not have written,
so two different byte strings never mean the same thing.

Every refusal names a byte offset: that of the first byte (head) of the item at fault, of the first
trailing byte, or the length of the data where an item is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from vtrain.errors import EncodingError

Value: TypeAlias = "int | bytes | str | list[Value] | dict[str, Value]"

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1

_UINT, _NINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_KIND = {int: "int", bytes: "bytes", str: "text", list: "list", dict: "map"}


@dataclass(frozen=True)
class Limits:
    """What a decoder will take on, so that hostile bytes cost no more than honest ones."""

    depth: int = 32
    """Arrays and maps inside one another; the step graph needs 5."""
    size: int = 64 << 20
    """Bytes of one document, most of them in few byte strings."""
    items: int = 1 << 21
    """Values and map keys of one document, each of which may take 100 times its one byte of memory
    once decoded.  A node of a step graph has about 40."""


LIMITS: Final = Limits()


def kind_of(value: object) -> str:
    """Name of the type of ``value`` for messages to people: int, bytes, text, list or map."""
    return _KIND.get(type(value), type(value).__name__)


def encode(value: Value) -> bytes:
    """Encode ``value``; EncodingError (``where`` is the path to it) for what has no encoding.

    Integers lie in [-2^63, 2^64 - 1] and are of type int itself: a bool or a numpy integer is
    refused.
    """
    out = bytearray()
    _encode_into(out, value, "$", LIMITS.depth)
    return bytes(out)


def _encode_into(out: bytearray, value: Value, where: str, depth: int) -> None:
    if type(value) is int:
        _encode_int(out, value, where)
    elif isinstance(value, bytes):
        _append_head(out, _BYTES, len(value))
        out += value
    elif isinstance(value, str):
        out += _encode_text(value, where)
    elif not isinstance(value, list | dict):
        raise EncodingError(f"a {type(value).__name__} has no canonical encoding", where=where)
    elif depth == 0:
        raise EncodingError("nested too deeply", where=where)
    elif isinstance(value, list):
        _append_head(out, _ARRAY, len(value))
        for i, item in enumerate(value):
            _encode_into(out, item, f"{where}[{i}]", depth - 1)
    else:
        keys = sorted((_encode_text(key, where), key) for key in value)
        _append_head(out, _MAP, len(keys))
        for encoded, key in keys:
            out += encoded
            _encode_into(out, value[key], f"{where}.{key}", depth - 1)


def _encode_int(out: bytearray, value: int, where: str) -> None:
    if not INT_MIN <= value <= INT_MAX:
        raise EncodingError(f"integer {value} has more than 64 bits", where=where)
    if value >= 0:
        _append_head(out, _UINT, value)
    else:
        _append_head(out, _NINT, -1 - value)


def _encode_text(text: object, where: str) -> bytes:
    if not isinstance(text, str):
        raise EncodingError("map key is not text", where=where)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError("text has no UTF-8 encoding", where=where) from error
    out = bytearray()
    _append_head(out, _TEXT, len(data))
    return bytes(out) + data


def _append_head(out: bytearray, major: int, argument: int) -> None:
    if argument < 24:
        out.append(major << 5 | argument)
    elif argument < 1 << 8:
        out += bytes((major << 5 | 24, argument))
    elif argument < 1 << 16:
        out.append(major << 5 | 25)
        out += argument.to_bytes(2)
    elif argument < 1 << 32:
        out.append(major << 5 | 26)
        out += argument.to_bytes(4)
    else:
        out.append(major << 5 | 27)
        out += argument.to_bytes(8)


def decode(data: bytes, limits: Limits = LIMITS) -> Value:
    """Decode one value that fills ``data``; EncodingError (``where`` = "byte N") otherwise.

    Lengths are checked against the bytes that remain before anything is allocated.
    """
    if len(data) > limits.size:
        _refuse("document is over the size limit", limits.size)
    decoder = _Decoder(data, limits.items)
    value = decoder.read_value(limits.depth)
    if decoder.position != len(data):
        _refuse("trailing bytes", decoder.position)
    return value


def split_array(data: bytes, limits: Limits = LIMITS) -> list[bytes]:
    """The encodings of the items of the array that ``data`` is, none of which is decoded: what is
    hashed item by item can be compared before anything is made of it.

    EncodingError (``where`` = "byte N") where ``data`` is no such array by its heads; whether each
    item is the canonical encoding of anything is for :func:`decode`.
    """
    if len(data) > limits.size:
        _refuse("document is over the size limit", limits.size)
    decoder = _Decoder(data, limits.items)
    major, count = decoder.read_head()
    if major != _ARRAY:
        _refuse("is not an array", 0)
    items = []
    for _ in range(count):
        start = decoder.position
        decoder.skip_value()
        items.append(data[start : decoder.position])
    if decoder.position != len(data):
        _refuse("trailing bytes", decoder.position)
    return items


def _refuse(reason: str, offset: int) -> NoReturn:
    raise EncodingError(reason, where=f"byte {offset}")


class _Decoder:
    def __init__(self, data: bytes, items: int) -> None:
        self.data = data
        self.position = 0
        self.items_left = items

    def read_value(self, depth: int) -> Value:
        start = self.position
        major, argument = self.read_head()
        if major == _UINT:
            return argument
        if major == _NINT:
            if argument >= 1 << 63:
                _refuse("integer is under -2^63", start)
            return -1 - argument
        if major == _BYTES:
            return self.read_span(argument, start)
        if major == _TEXT:
            return self.read_text(argument, start)
        # Each item takes at least one byte, each map entry two.
        least = argument if major == _ARRAY else 2 * argument
        if least > len(self.data) - self.position:
            _refuse("length is over the bytes that remain", start)
        if depth == 0:
            _refuse("nested too deeply", start)
        if major == _ARRAY:
            return [self.read_value(depth - 1) for _ in range(argument)]
        return self.read_map(argument, depth)

    def skip_value(self) -> None:
        """Go past one value, by heads alone."""
        left = 1
        while left:
            left -= 1
            start = self.position
            major, argument = self.read_head()
            if major in (_BYTES, _TEXT):
                self.read_span(argument, start)
            elif major in (_ARRAY, _MAP):
                left += argument if major == _ARRAY else 2 * argument
            if left > len(self.data) - self.position:
                _refuse("length is over the bytes that remain", start)

    def read_map(self, entries: int, depth: int) -> dict[str, Value]:
        out: dict[str, Value] = {}
        previous = b""
        for _ in range(entries):
            start = self.position
            major, argument = self.read_head()
            if major != _TEXT:
                _refuse("map key is not text", start)
            key = self.read_text(argument, start)
            encoded = self.data[start : self.position]
            if encoded <= previous:
                _refuse(
                    "duplicate map key" if encoded == previous else "map keys out of order", start
                )
            previous = encoded
            out[key] = self.read_value(depth - 1)
        return out

    def read_head(self) -> tuple[int, int]:
        data, start = self.data, self.position
        if start >= len(data):
            _refuse("an item is missing", start)
        if self.items_left == 0:
            _refuse("more items than the limit", start)
        self.items_left -= 1
        major, info = data[start] >> 5, data[start] & 31
        if major == _TAG:
            _refuse("tags are not allowed", start)
        if major == _SIMPLE:
            _refuse("floats and simple values are not allowed", start)
        if info < 24:
            self.position = start + 1
            return major, info
        if info == 31:
            _refuse("indefinite lengths are not allowed", start)
        if info > 27:
            _refuse("reserved additional information", start)
        width = 1 << (info - 24)
        end = start + 1 + width
        if end > len(data):
            _refuse("item head is cut off", start)
        argument = int.from_bytes(data[start + 1 : end])
        if argument < (24 if width == 1 else 1 << (4 * width)):
            _refuse("not the shortest form", start)
        self.position = end
        return major, argument

    def read_span(self, length: int, start: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            _refuse("length is over the bytes that remain", start)
        span = self.data[self.position : end]
        self.position = end
        return span

    def read_text(self, length: int, start: int) -> str:
        span = self.read_span(length, start)
        try:
            return span.decode()
        except UnicodeDecodeError:
            _refuse("text is not UTF-8", start)
