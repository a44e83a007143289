"""Showing a stranger's text: on one line, nothing in it that a terminal obeys, not too long."""

from __future__ import annotations

from vtrain.limits import LIMITS


def cut(text: str, most: int = LIMITS.text_characters) -> str:
    """``text``, or its beginning and how long it was, in at most ``most`` characters (from 40)."""
    if len(text) <= most:
        return text
    end = f"... ({len(text)} characters)"
    return text[: most - len(end)] + end


def make_printable(text: str, most: int = LIMITS.text_characters) -> str:
    """``text`` on one line of at most ``most`` characters, with control and direction characters
    written out.

    Names in a run are the solver's: none of them may draw a verdict on the auditor's screen, nor
    fill it.
    """
    if text.isascii() and text.isprintable() and len(text) <= most:
        return text
    written = (
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in cut(text, most)
    )
    return cut("".join(written), most)
