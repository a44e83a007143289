"""JSON of strangers, read without harm to the process that reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from vtrain.errors import EncodingError

MAX_DEPTH: Final = 64
"""Arrays and objects in each other; what is read here has no more than ten."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def decode_json(
    data: bytes,
    where: str,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text; ``pairs`` makes objects, as in ``json.loads``.

    EncodingError, at ``where``, for what is no JSON in UTF-8, or is nested deeper than
    :data:`MAX_DEPTH`.  Python's own reader recurses in C as deep as the process's recursion limit
    allows; libraries raise that limit to where the stack ends first, and the process with it.
    """
    depth = 0
    for token in _TOKEN.finditer(data):
        if token[0] in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise EncodingError(f"is nested deeper than {MAX_DEPTH}", where=where)
        elif token[0] in b"]}":
            depth -= 1
    try:
        return json.loads(data.decode(), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"is not JSON: {error}", where=where) from None
