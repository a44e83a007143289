"""Typed reads of a TOML table, and exact numbers from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from vtrain.errors import TaskError
from vtrain.limits import LIMITS
from vtrain.train.names import refuse_choice, refuse_unknown_keys

_DIGEST = re.compile("[0-9a-fA-F]{64}")
_HUGE_EXPONENT = re.compile(r"[eE][+-]?\d{4}")

S = TypeVar("S", bound=str)


class Table:
    """One TOML table: typed reads; TaskError for a key that is not ``known``."""

    def __init__(self, values: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        refuse_unknown_keys(values, known, where)
        self._values = values
        self.where = where

    def has(self, key: str) -> bool:
        return key in self._values

    def _take(self, key: str, default: Any = None) -> Any:
        if key not in self._values:
            if default is None:
                raise TaskError("is missing", where=self.place(key))
            return default
        return self._values[key]

    def place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def table(self, key: str, *known: str) -> Table:
        return Table(self.mapping(key), known, self.place(key))

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise TaskError("must be a table", where=self.place(key))
        return value

    def integer(self, key: str, lo: int, hi: int, default: int | None = None) -> int:
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not lo <= value <= hi:
            raise TaskError(f"must be an integer in [{lo}, {hi}]", where=self.place(key))
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise TaskError("must be true or false", where=self.place(key))
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or value == "" or "\0" in value:
            raise TaskError("must be text", where=self.place(key))
        return value

    def choice(self, key: str, options: Sequence[S], default: S | None = None) -> S:
        value = self.text(key, default)
        found = next((option for option in options if option == value), None)
        if found is None:
            refuse_choice(value, options, self.place(key))
        return found

    def digest(self, key: str) -> bytes:
        value = self.text(key)
        if not _DIGEST.fullmatch(value):
            raise TaskError("must be 64 hexadecimal digits", where=self.place(key))
        return bytes.fromhex(value)

    def number(self, key: str, default: Fraction | None = None) -> Fraction:
        return parse_number(self._take(key, default), self.place(key))

    def value(self, key: str) -> Any:
        return self._take(key)


def parse_number(value: object, where: str) -> Fraction:
    """An exact number: an integer, a decimal, or text like "1/255"."""
    if isinstance(value, int | Decimal | str | Fraction) and not isinstance(value, bool):
        # "1e999999999" is short to write, and its digits fill the memory.
        text = str(value).replace("_", "")
        if len(text) <= LIMITS.number_characters and not _HUGE_EXPONENT.search(text):
            try:
                return Fraction(value)
            except (ValueError, ZeroDivisionError, OverflowError):
                pass
    raise TaskError('must be a number, or text like "1/255"', where=where)
