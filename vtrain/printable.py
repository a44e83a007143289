"""Showing a stranger's text: on one line, nothing in it that a terminal obeys, not too long."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

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


def make_html_table(title: str, rows: Iterable[tuple[str, object]], *, below: str = "") -> str:
    """What a notebook shows of something: a title, labels with their values, and what stands
    ``below`` them, which is HTML already.  All else is text, of anyone's."""
    cells = "".join(
        f'<tr><th style="text-align:left">{_escape(label)}</th>'
        f'<td style="text-align:left">{_escape(value)}</td></tr>'
        for label, value in rows
        if value not in ("", None)
    )
    head = f"<strong>{_escape(title)}</strong>" if title else ""
    return f"<div>{head}<table>{cells}</table>{below}</div>"


def _escape(value: object) -> str:
    return escape(make_printable(str(value)))


def format_seconds(seconds: float) -> str:
    """0.00123 -> "1.23 ms", 75 -> "1:15"."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
