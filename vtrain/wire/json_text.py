"""JSON of strangers, read without harm to the process that reads it."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from vtrain.errors import EncodingError

MAX_DEPTH: Final = 64
"""Arrays and objects in each other; what is read here has no more than ten."""
MAX_DIGITS: Final = 4300
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A text, a bracket.  A text that does not end goes on to the end of all: were it none, a search
would begin again at each quotation mark in it, and take time with the square of its length."""


def decode_json(data: bytes, where: str) -> Any:
    """The value of a JSON text.

    EncodingError, at ``where``, for what is no JSON (RFC 8259) in UTF-8, so for NaN and infinities
    too, is nested deeper than :data:`MAX_DEPTH`, or has an object that names a field twice: of two
    values one reader takes the first, another the last.  An integer of more than
    :data:`MAX_DIGITS` digits, which Python would refuse, is read as a float, as one with an
    exponent is: no field that is looked at has one.  Python's own reader recurses in C as deep as
    the process's recursion limit allows; libraries raise that limit to where the stack ends first,
    and the process with it.
    """

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise EncodingError("names a field twice", where=where)
        return fields

    def read_integer(text: str) -> int | float:
        return int(text) if len(text.lstrip("-")) <= MAX_DIGITS else float(text)

    def refuse(text: str) -> NoReturn:
        raise EncodingError(f"is not JSON: {text} is no number", where=where)

    depth = 0
    for token in _TOKEN.finditer(data):
        if token[0] in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise EncodingError(f"is nested deeper than {MAX_DEPTH}", where=where)
        elif token[0] in b"]}":
            depth -= 1
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=make_object,
            parse_int=read_integer,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"is not JSON: {error}", where=where) from None
