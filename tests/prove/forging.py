"""Witnesses as a solver might make them: hints of its own choice, all else computed from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints, Values

Change = Callable[[Ints], Any]
"""What is made of the honest values of a hint or of limbs, in the shape of the tensor."""


def draw_for(circuit: Circuit) -> Callable[[Mapping[str, Ints]], Sequence[int]]:
    """A challenge, fixed: nothing here is chosen after it."""
    rng = np.random.default_rng(7)
    return lambda vectors: [
        int.from_bytes(rng.bytes(31)) for _ in range(circuit.length("challenge"))
    ]


def forge(
    circuit: Circuit,
    given: Mapping[str, Ints],
    parameters: Mapping[str, Ints] | None = None,
    changes: Mapping[str, Change] | None = None,
) -> dict[str, Ints]:
    """A witness in which the named hints and limbs are changed and the later ones follow from them.

    ``changes`` of limbs are of what they stand for, not of what is stored.
    """
    changes = dict(changes or {})
    parts = {part.name: part for group in ("hints", "limbs") for part in circuit._b._parts[group]}
    honest = {name: parts[name].compute for name in changes}
    stored = {name: int(parts[name] in circuit._b._parts["limbs"]) for name in changes}

    def alter(name: str) -> Callable[[Values], Ints]:
        def compute(values: Values) -> Ints:
            known = honest[name]
            assert known is not None
            shape = parts[name].tensor.shape
            value = np.asarray(known(values), dtype=object).reshape(shape) - stored[name]
            return np.asarray(changes[name](value), dtype=object) + stored[name]

        return compute

    try:
        for name in changes:
            parts[name].compute = alter(name)
        return circuit.assign(given, parameters or {}, draw_for(circuit))
    finally:
        for name, compute in honest.items():
            parts[name].compute = compute


def find_broken(
    circuit: Circuit,
    given: Mapping[str, Ints],
    parameters: Mapping[str, Ints] | None = None,
    changes: Mapping[str, Change] | None = None,
) -> list[str]:
    """Names of the conditions that a witness of :func:`forge` breaks; "no witness" where something
    that needs an inverse, or a place in a table, has none."""
    try:
        vectors = forge(circuit, given, parameters, changes)
    except (ValueError, IndexError, OverflowError, ZeroDivisionError):
        return ["no witness"]
    return sorted(set(circuit.find_broken(vectors)))


def at(index: int, value: int | Callable[[int], int]) -> Change:
    """One element, flat, set to a value or to a function of its own."""

    def change(values: Ints) -> Ints:
        altered = values.copy()
        flat = altered.reshape(-1)
        flat[index] = value(int(flat[index])) if callable(value) else value
        return altered

    return change
