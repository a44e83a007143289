"""Cases that repeat what another case of the same test shows, and mutants beyond a fifth of a kind:
``make test-all`` has them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def spare(values: Iterable[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """The values of a parameter, those that ``make test`` leaves out marked ``exhaustive``.

    Only for what differs in its size, seed or architecture, or is in another test too; never for
    another check of a product.
    """
    found = list(values)
    assert any(map(keep, found)), "some of them belong to every run"
    mark = pytest.mark.exhaustive
    return [
        value
        if keep(value)
        else pytest.param(*value if isinstance(value, tuple) else (value,), marks=mark)
        for value in found
    ]


def draw(few: int, many: int) -> pytest.MarkDecorator:
    """A parameter ``examples`` of a property: ``few`` drawn cases show what ``many`` do."""
    return pytest.mark.parametrize("examples", spare([few, many], few.__eq__))


def spare_mutants(mutants: Iterable[Any]) -> list[Any]:
    """Four of five mutants marked ``exhaustive``: they show that tests of kernels can fail."""
    listed = list(mutants)
    kept = {id(mutant) for mutant in listed[::5]}
    return spare(listed, lambda mutant: id(mutant) in kept)
