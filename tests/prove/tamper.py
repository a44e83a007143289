"""What a solver may alter in a witness, one thing at a time, and whether a circuit notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.trial import Trial
from vtrain.prove.circuit.values import MASKS_PART, Ints
from vtrain.spec.field import SCALAR_FIELD

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
    """(vector, part, start, stop) of everything private but masks, of which any will do."""
    for name in circuit.given:
        yield name, name, 0, circuit.length(name)
    for group in groups:
        if circuit.length(group):
            for part, start, stop in circuit.parts(group):
                if (group, part) != ("limbs", MASKS_PART):
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
    """The witnesses that :func:`alterations` make.

    Without ``late``, what depends on the challenge stays as it was: faster, and easier to notice.
    """
    for name, vector, start, values in alterations(
        circuit, vectors, seed=seed, changes=changes, spots=spots, whole=whole
    ):
        altered = vectors[vector].copy()
        altered[start : start + len(values)] = values
        found = {**vectors, vector: altered}
        if late and vector != "late":
            computed = compute_late(circuit, found, parameters)
            if computed is None:
                continue
            found |= computed
        yield Tampering(name, vector, found)


def alterations(
    circuit: Circuit,
    vectors: Mapping[str, Ints],
    *,
    seed: int = 0,
    changes: tuple[str, ...] = tuple(CHANGES),
    spots: int = 3,
    whole: bool = True,
) -> Iterator[tuple[str, str, int, list[int]]]:
    """(name, vector, first index, values) of every kind of change to the first, the last (padding,
    in a tile) and random elements of every part, ``spots`` in all, and with ``whole`` to all of a
    part at once."""
    rng = np.random.default_rng(seed)
    for vector, part, start, stop in places(circuit):
        chosen = {start, stop - 1, *rng.integers(start, stop, max(spots - 2, 0)).tolist()}
        for change in changes:
            values = vectors[vector]
            for at in (*sorted(chosen)[:spots], *([None] if whole else [])):
                first, end = (start, stop) if at is None else (at, at + 1)
                was = [int(item) % SCALAR_FIELD for item in values[first:end]]
                altered = [CHANGES[change](int(item)) % SCALAR_FIELD for item in values[first:end]]
                if altered != was:
                    place = "all" if at is None else at - start
                    yield f"{vector}/{part}[{place}]: {change}", vector, first, altered


def compute_late(
    circuit: Circuit, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]
) -> dict[str, Ints] | None:
    """``late`` as a solver would compute it for these vectors; None where there is none, because
    something that must have an inverse has none."""
    if not circuit.length("late"):
        return {}
    values = circuit.open(vectors, parameters)
    late = np.zeros(circuit.length("late"), dtype=object)
    for part in circuit._b._parts["late"]:
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
    circuit: Circuit,
    vectors: Mapping[str, Ints],
    parameters: Mapping[str, Ints],
    *,
    late: bool = True,
    **options: object,
) -> tuple[int, list[str]]:
    """How many changes to a witness that holds were tried, and the names of those that no
    condition notices."""
    tried, uncaught = 0, []
    trial = Trial(circuit, vectors, parameters)
    adapting = ("late",) if late else ()
    for name, vector, start, values in alterations(circuit, vectors, **options):  # type: ignore[arg-type]
        tried += 1
        if not trial.find_broken({(vector, start): values}, adapting):
            uncaught.append(name)
    return tried, uncaught
