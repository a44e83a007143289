"""DER (ITU-T X.690), as docs/format.md ("Time") holds time-stamp responses to it.

All of a document is read before anything of it is believed, so that every auditor refuses the same
bytes: what is inside a constructed element is walked, looked at or not.  What is in a string of
octets or bits is bytes until it is read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from vtrain.errors import EncodingError

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, NULL, OID = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
UTF8_STRING, UTC_TIME, GENERALIZED_TIME = 0x0C, 0x17, 0x18
SEQUENCE, SET = 0x30, 0x31
_ENUMERATED: Final = 0x0A
MAX_DEPTH: Final = 32
"""Elements in each other, the outermost counted; a certificate has some ten."""


@dataclass(frozen=True)
class Element:
    """One element: its ``raw`` bytes, those of its ``body``, and, where it is constructed, the
    ``items`` in it."""

    tag: int
    raw: bytes
    body: bytes
    items: tuple[Element, ...] = ()


def read_der(data: bytes) -> Element:
    """The one element that ``data`` is; EncodingError, with an offset, for anything else."""
    return _read(data, 0, len(data), 1, alone=True)[0]


def _read(
    data: bytes, start: int, end: int, depth: int, *, alone: bool = False
) -> tuple[Element, ...]:
    """The elements from ``start`` to before ``end``, just one where it is ``alone``."""
    if depth > MAX_DEPTH:
        raise EncodingError(f"is nested deeper than {MAX_DEPTH}", where=f"byte {start}")
    found, at = list[Element](), start
    while at < end or (alone and not found):
        body, stop = _read_head(data, at, end)
        tag = data[at]
        items = _read(data, body, stop, depth + 1) if tag & 0x20 else ()
        element = Element(tag, data[at:stop], data[body:stop], items)
        _check(element, at)
        found.append(element)
        at = stop
        if alone and at < end:
            raise EncodingError("goes on after its last element", where=f"byte {at}")
    return tuple(found)


def _read_head(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the body of the element at ``at`` begins and ends: a tag and a length as short as they
    can be."""
    where = f"byte {at}"
    if end - at < 2:
        raise EncodingError("ends too early", where=where)
    if data[at] & 0x1F == 0x1F:
        raise EncodingError("has a tag of several bytes", where=where)
    length, body = data[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        body += count
        length = int.from_bytes(data[at + 2 : body])
        if count == 0 or body > end or data[at + 2] == 0 or length < 0x80:
            raise EncodingError("has a length that is not as short as it can be", where=where)
    if body + length > end:
        raise EncodingError("ends too early", where=where)
    return body, body + length


def _check(element: Element, at: int) -> None:
    """EncodingError for a value that DER writes otherwise."""
    tag, body = element.tag, element.body
    reason = ""
    if tag < 0x40 and (tag & 0x20 != 0) != (tag & 0x1F in (0x10, 0x11)):
        reason = "is in parts, or ought to be"
    elif tag in (INTEGER, _ENUMERATED):
        reason = "" if is_short(body) else "is not as short as it can be"
    elif tag == BOOLEAN and body not in (b"\x00", b"\xff"):
        reason = "is no truth value"
    elif tag == NULL and body:
        reason = "has a value"
    elif tag == OID and not _is_identifier(body):
        reason = "is no object identifier"
    elif tag == SET and not is_in_order(element.items):
        reason = "is a set that is not in order"
    if reason:
        raise EncodingError(reason, where=f"byte {at}")


def write_der(tag: int, *parts: bytes) -> bytes:
    """The bytes of an element that has these parts."""
    body = b"".join(parts)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def is_short(body: bytes) -> bool:
    """Whether the bytes of an INTEGER are as few as they can be."""
    spare = len(body) > 1 and (body[0], body[1] >> 7) in ((0x00, 0), (0xFF, 1))
    return bool(body) and not spare


def _is_identifier(body: bytes) -> bool:
    """Whether the bytes of an OBJECT IDENTIFIER are numbers, each as short as it can be."""
    if not body or body[-1] >= 0x80:
        return False
    # A number begins after each byte below 80, and at the front.
    return not any(last < 0x80 and byte == 0x80 for last, byte in pairwise(b"\0" + body))


def is_in_order(items: Sequence[Element]) -> bool:
    """Whether they stand in the order of a SET OF."""
    raws = [item.raw for item in items]
    return raws == sorted(raws)


class Fields:
    """The fields of a constructed element, taken in their order."""

    def __init__(self, element: Element, name: str) -> None:
        self._left, self._name = list(element.items), name

    def maybe(self, tag: int) -> Element | None:
        """The next field, where it has this tag."""
        if self._left and self._left[0].tag == tag:
            return self._left.pop(0)
        return None

    def take(self, tag: int, name: str) -> Element:
        """The next field; EncodingError unless it has this tag."""
        found = self.maybe(tag)
        if found is None:
            raise EncodingError("is missing, or of another type", where=f"{self._name}: {name}")
        return found

    def take_explicit(self, number: int, tag: int, name: str) -> Element:
        """The one element, with this tag, in the field of that number; EncodingError."""
        inner = Fields(self.take(0xA0 | number, name), f"{self._name}: {name}")
        found = inner.take(tag, "value")
        inner.end()
        return found

    def end(self) -> None:
        """EncodingError for a field that is left."""
        if self._left:
            tag = self._left[0].tag
            raise EncodingError(
                f"has a field of the tag {tag:#04x} that it cannot", where=self._name
            )


def take_one(element: Element, tag: int, name: str) -> Element:
    """The one element, with this tag, in a constructed one; EncodingError."""
    fields = Fields(element, name)
    found = fields.take(tag, "its one element")
    fields.end()
    return found


def read_integer(element: Element) -> int:
    """The value of an INTEGER."""
    return int.from_bytes(element.body, signed=True)


def read_oid(element: Element) -> str:
    """The value of an OBJECT IDENTIFIER, in decimal digits and points."""
    numbers, value = list[int](), 0
    for byte in element.body:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    head = min(numbers[0] // 40, 2)
    return ".".join(map(str, (head, numbers[0] - 40 * head, *numbers[1:])))


def read_bits(element: Element, name: str) -> frozenset[int]:
    """The numbers of the bits of a BIT STRING that are set; EncodingError."""
    unused, data = element.body[:1], element.body[1:]
    spare = unused[0] if unused else 8
    if spare > 7 or (spare and (not data or data[-1] & ((1 << spare) - 1))):
        raise EncodingError("is no string of bits", where=name)
    return frozenset(
        8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> (7 - bit) & 1
    )
