"""What a solver may alter in a witness, one thing at a time, and whether a circuit notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vtrain.prove.circuit import Circuit, Ints, Values
from vtrain.prove.ezkl_adapter import SCALAR_FIELD

_THIRD = pow(3, -1, SCALAR_FIELD)

CHANGES: Final[Mapping[str, Callable[[int], int]]] = {
    "one more": lambda value: value + 1,
    "one less": lambda value: value - 1,
    "zero": lambda value: 0,
    "negated": lambda value: -value,
    "far above": lambda value: value + (1 << 40),
    "half the field away": lambda value: value + SCALAR_FIELD // 2,
    "a third more": lambda value: value + _THIRD,
}
"""What is made of a value: in the field, so that the last two are no small integers."""

PRIVATE = ("limbs", "hints", "late")


@dataclass(frozen=True)
class Tampering:
    """A witness with one value altered; ``name`` says which and how.

    ``group`` is a given vector's name or the group; all that depends on the challenge was computed
    anew.
    """

    name: str
    group: str
    vectors: Mapping[str, Ints]


def places(
    circuit: Circuit, groups: tuple[str, ...] = PRIVATE
) -> Iterator[tuple[str, str, int, int]]:
    """(vector, part, start, stop) of everything private, of circuits whose groups are not cut."""
    for name in circuit.given:
        yield name, name, 0, circuit.length(name)
    for group in groups:
        if group in circuit.inputs:
            for part, start, stop in circuit.parts(group):
                yield group, part, start, stop


def tamperings(
    circuit: Circuit,
    vectors: Mapping[str, Ints],
    parameters: Mapping[str, Ints],
    *,
    seed: int = 0,
    changes: tuple[str, ...] = tuple(CHANGES),
    spots: int = 3,
    whole: bool = True,
    late: bool = True,
) -> Iterator[Tampering]:
    """Every kind of change to the first, the last (padding, in a tile) and random elements of every
    part, ``spots`` in all, and with ``whole`` to all of a part at once.

    Without ``late``, what depends on the challenge stays as it was: faster, and easier to notice.
    """
    rng = np.random.default_rng(seed)
    for vector, part, start, stop in places(circuit):
        chosen = {start, stop - 1, *rng.integers(start, stop, max(spots - 2, 0)).tolist()}
        for change in changes:
            values = vectors[vector]
            for at in (*sorted(chosen)[:spots], *([None] if whole else [])):
                altered = values.copy()
                where = slice(start, stop) if at is None else slice(at, at + 1)
                altered[where] = [
                    CHANGES[change](int(item)) % SCALAR_FIELD for item in values[where]
                ]
                if np.array_equal(altered % SCALAR_FIELD, values % SCALAR_FIELD):
                    continue
                found = {**vectors, vector: altered}
                if late and vector != "late":
                    computed = compute_late(circuit, found, parameters)
                    if computed is None:
                        continue
                    found |= computed
                place = "all" if at is None else at - start
                yield Tampering(f"{vector}/{part}[{place}]: {change}", vector, found)


def compute_late(
    circuit: Circuit, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]
) -> dict[str, Ints] | None:
    """``late`` as a solver would compute it for these vectors; None where there is none, because
    something that must have an inverse has none."""
    if "late" not in circuit.inputs:
        return {}
    builder = circuit._b
    values = Values(builder, parameters)
    for name, tensor in builder._given.items():
        values.put(tensor, vectors[name])
    for group, parts in builder._parts.items():
        for part in parts:
            if group != "late":
                stop = part.start + part.tensor.size
                values.put(part.tensor, vectors[group][part.start : stop])
    late = np.zeros(circuit.length("late"), dtype=object)
    for part in builder._parts["late"]:
        if part.compute is None:
            continue
        try:
            computed = part.compute(values)
        except ValueError:  # pow has no inverse of 0
            return None
        stop = part.start + part.tensor.size
        late[part.start : stop] = computed.reshape(-1)
        values.put(part.tensor, late[part.start : stop])
    return {"late": late}


def find_uncaught(
    circuit: Circuit, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints], **options: object
) -> tuple[int, list[str]]:
    """How many changes were tried, and the names of those that no condition notices."""
    tried, uncaught = 0, []
    for tampering in tamperings(circuit, vectors, parameters, **options):  # type: ignore[arg-type]
        tried += 1
        if not circuit.find_broken(tampering.vectors):
            uncaught.append(tampering.name)
    return tried, uncaught
