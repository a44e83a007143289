"""What can be computed from evaluations and commitments of columns that nothing hides.

An evaluation is one equation in the field, f(x) = sum v_i L_i(x), with everything known but the
values: 254 bits of what stands in the column.  Values of few bits are the shortest vector of a
lattice (:func:`solve`); few unknown values of few possibilities are found by meeting in the middle,
in the field (:func:`meet`) or, from a commitment alone, on the curve (:func:`meet_points`).  Each
attack takes what is public and gives values that satisfy all of it, or None.

Hiding elements, h uniform ones in known rows, stand against all of these.  Openings at h + 1 points
are h + 1 equations, from which :func:`eliminate` removes them; with h openings a guess of all
values gives the hiding elements, which the commitment then confirms (:func:`fits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from flint import fmpz_mat, fmpz_mod_ctx, fmpz_mod_mat

from tests.attacks.transcript import Domain, Opening, dot
from vtrain.prove.backend.kzg import CommitKey
from vtrain.spec.commitment import compute_batch_digest, compute_tensor_digest
from vtrain.spec.field import SCALAR_FIELD

Bounds = tuple[int, int]
"""The least and the greatest value."""
Row = list[int]


@dataclass(frozen=True)
class Seen:
    """What is public of a column: where it was opened, and what is known of its values."""

    domain: Domain
    openings: tuple[Opening, ...]
    known: Mapping[int, int]
    """Values by row: of another's guess, of public data, or zeros."""
    fill: int = 1
    """What stands in the unusable rows: 1 in committed columns, 0 in m."""

    def rest(self, opening: Opening) -> int:
        """The evaluation without the part of the known values."""
        filling = dict.fromkeys(range(self.domain.usable, self.domain.rows), self.fill)
        values = {row: value for row, value in {**self.known, **filling}.items() if value}
        weights = self.domain.weigh(values, opening.point)
        return (opening.value - dot(values.values(), weights)) % SCALAR_FIELD

    def equations(self, rows: Sequence[int]) -> tuple[list[Row], Row]:
        """For each opening, what unknown values in ``rows`` count for, and their sum."""
        weights = [self.domain.weigh(rows, opening.point) for opening in self.openings]
        return weights, [self.rest(opening) for opening in self.openings]

    def minus(self, other: Seen) -> Seen:
        """The difference of two columns that were opened at the same points, as in one proof."""
        pairs = list(zip(self.openings, other.openings, strict=True))
        assert all(ours.point == theirs.point for ours, theirs in pairs)
        openings = tuple(
            Opening(ours.point, (ours.value - theirs.value) % SCALAR_FIELD)
            for ours, theirs in pairs
        )
        return Seen(self.domain, openings, {}, fill=self.fill - other.fill)


# --- Few bits: lattices.


def solve(
    weights: Sequence[Sequence[int]], totals: Sequence[int], bounds: Sequence[Bounds]
) -> list[int] | None:
    """Integers within ``bounds`` whose sum with each row of ``weights`` is its total in the field.

    A short vector of Kannan's lattice: a row for each unknown, one for the totals and one for the
    field of each equation; the columns of the equations weigh so much that they end up zero.
    """
    size, count = len(bounds), len(totals)
    middles = [(low + high) // 2 for low, high in bounds]
    widths = [max(1, high - middle) for (_, high), middle in zip(bounds, middles, strict=True)]
    widest = max(widths)
    scales = [max(1, widest // width) for width in widths]
    heavy = widest * (size + 1) << (size // 2 + 20)
    basis = [[0] * (size + 1 + count) for _ in range(size + 1 + count)]
    for i, scale in enumerate(scales):
        basis[i][i] = scale
    basis[size][size] = max(1, widest // 2)
    for j, (row, total) in enumerate(zip(weights, totals, strict=True)):
        for i, weight in enumerate(row):
            basis[i][size + 1 + j] = heavy * weight
        rest = (total - dot(row, middles)) % SCALAR_FIELD
        basis[size][size + 1 + j] = -heavy * rest
        basis[size + 1 + j][size + 1 + j] = heavy * SCALAR_FIELD
    for reduced in fmpz_mat(basis).lll().tolist():
        short = [int(entry) for entry in reduced]
        if any(short[size + 1 :]) or abs(short[size]) != basis[size][size]:
            continue
        sign = 1 if short[size] > 0 else -1
        found = [
            middle + sign * entry // scale
            for middle, entry, scale in zip(middles, short[:size], scales, strict=True)
        ]
        if _holds(weights, totals, found) and all(
            low <= value <= high for value, (low, high) in zip(found, bounds, strict=True)
        ):
            return found
    return None


def _holds(weights: Sequence[Sequence[int]], totals: Sequence[int], values: Sequence[int]) -> bool:
    return all(
        dot(row, values) == total % SCALAR_FIELD for row, total in zip(weights, totals, strict=True)
    )


def find_values(seen: Seen, unknown: Mapping[int, Bounds]) -> list[int] | None:
    """The values in the unknown rows, by row order, from all openings of a column together."""
    return solve(*seen.equations(list(unknown)), list(unknown.values()))


# --- Few possibilities: meeting in the middle.


def meet(choices: Sequence[Mapping[int, Sequence[int]]], totals: Sequence[int]) -> list[int] | None:
    """One of each of ``choices``, {value: what it counts for in each equation}, with these totals.

    The first equation finds, all of them confirm.
    """
    found = [next(iter(choice)) for choice in choices]
    several = [at for at, choice in enumerate(choices) if len(choice) > 1]
    half = len(several) // 2
    settled = sum(choice[min(choice)][0] for choice in choices if len(choice) == 1)
    left = _add_up([choices[at] for at in several[:half]])
    for values, first in _add_up([choices[at] for at in several[half:]]).values():
        before = left.get((totals[0] - settled - first) % SCALAR_FIELD)
        if before is None:
            continue
        for at, value in zip(several, (*before[0], *values), strict=True):
            found[at] = value
        sums = (
            sum(choice[value][j] for choice, value in zip(choices, found, strict=True))
            for j in range(len(totals))
        )
        if all(
            (ours - total) % SCALAR_FIELD == 0 for ours, total in zip(sums, totals, strict=True)
        ):
            return found
    return None


def _add_up(
    choices: Sequence[Mapping[int, Sequence[int]]],
) -> dict[int, tuple[tuple[int, ...], int]]:
    sums: dict[int, tuple[tuple[int, ...], int]] = {0: ((), 0)}
    for choice in choices:
        sums = {
            (total := (before + parts[0]) % SCALAR_FIELD): ((*values, value), total)
            for values, before in sums.values()
            for value, parts in choice.items()
        }
    return sums


def guess_values(seen: Seen, unknown: Mapping[int, Iterable[int]]) -> list[int] | None:
    """As :func:`find_values`, where each unknown value is one of few."""
    weights, totals = seen.equations(list(unknown))
    choices = [
        {value: [value * row[i] for row in weights] for value in values}
        for i, values in enumerate(unknown.values())
    ]
    return meet(choices, totals)


def meet_points(
    key: CommitKey, commitment: bytes, known: Sequence[int], unknown: Mapping[int, Sequence[int]]
) -> list[int] | None:
    """The unknown values of a column from its commitment alone."""
    half = len(unknown) // 2
    rows = list(unknown)

    def commit(base: Sequence[int], places: Sequence[int], values: Sequence[int]) -> bytes:
        column = [*base, *[0] * (max([*rows, -1]) + 1 - len(base))]
        for row, value in zip(places, values, strict=True):
            column[row] = value
        return commit_values(key, column)

    left = {
        commit((), rows[:half], values): values
        for values in product(*(unknown[row] for row in rows[:half]))
    }
    for values in product(*(unknown[row] for row in rows[half:])):
        rest = commit(known, rows[half:], values)
        before = left.get(key.combine([(1, commitment), (-1, rest)]))
        if before is not None:
            return [*before, *values]
    return None


def guess_labels(
    digest: bytes, x: npt.NDArray[Any], y: npt.NDArray[Any], labels: Sequence[int]
) -> list[int] | None:
    """The labels of a batch of known images from its digest in the run log, by trying them all.

    ``y`` has their shape and dtype.
    """
    images = compute_tensor_digest(x)
    for guess in product(labels, repeat=y.size):
        found = np.asarray(guess, y.dtype).reshape(y.shape)
        if compute_batch_digest(images, compute_tensor_digest(found)) == digest:
            return list(guess)
    return None


def commit_values(key: CommitKey, values: Iterable[int]) -> bytes:
    scalars = b"".join((value % SCALAR_FIELD).to_bytes(32, "little") for value in values)
    return key.commit_scalars(scalars)


# --- What a look-up argument says.


@dataclass(frozen=True)
class Table:
    """The look-up table of limbs: values 1 to ``span`` in as many rows, each with the answer 1.

    Rows without a look-up look 1 up.  ezkl fills the usable rows up with the first entry, and halo2
    counts an entry where it stands last.
    """

    domain: Domain
    span: int

    def row(self, value: int) -> int:
        return value - 1 if value > 1 else self.domain.usable - 1

    def count(self, limbs: Iterable[int]) -> dict[int, int]:
        """m by row, of an inner column with these limbs (as stored: a limb plus one)."""
        limbs = list(limbs)
        counts = {self.row(1): self.domain.usable - len(limbs)}
        for limb in limbs:
            counts[self.row(limb)] = counts.get(self.row(limb), 0) + 1
        return counts


def find_limbs(table: Table, m: Opening, known: Sequence[int], unknown: int) -> list[int] | None:
    """Which limbs an inner column has besides those that are known, in ascending order."""
    base = {row: count for row, count in table.count(known).items() if row != table.row(1)}
    base[table.row(1)] = table.domain.usable - len(known) - unknown + known.count(1)
    seen = Seen(table.domain, (m,), base, fill=0)
    values = range(1, table.span + 1)
    [weights], totals = seen.equations([table.row(value) for value in values])
    choice = {value: [weight] for value, weight in zip(values, weights, strict=True)}
    found = meet([choice] * unknown, totals)
    return None if found is None else sorted(found)


def count_limbs(table: Table, m: Opening, values: Sequence[int]) -> list[int] | None:
    """How often each of ``values`` occurs among an inner column's limbs, if no others do."""
    rows = [table.row(value) for value in [*values, 1]]
    most = table.domain.usable
    found = find_values(
        Seen(table.domain, (m,), {}, fill=0), dict.fromkeys(dict.fromkeys(rows), (0, most))
    )
    if found is None or sum(found) != most:
        return None
    return found[: len(values)]


def place_limbs(
    table: Table,
    challenges: Mapping[str, int],
    phis: tuple[Sequence[Opening], Sequence[Opening]],
    places: tuple[Mapping[int, Sequence[int]], Mapping[int, Sequence[int]]],
) -> tuple[list[int], list[int]] | None:
    """Which limb stands in which row of two inner columns, from the phis of one proof.

    halo2 blinds all phis of a proof by the same elements, so their difference is of limbs alone:
    phi is the running sum of 1 / (beta + input) - m / (beta + entry), and a limb v in row t counts
    for (T(t) - T(row of v)) / (beta + theta v + 1), with T(t) the weights of the rows behind t.
    ``places``: for each row with a limb, its possible values.
    """
    beta, theta = challenges["beta"], challenges["theta"]
    domain = table.domain
    points = [opening.point for opening in phis[0]]
    behind: list[Row] = []
    for x in points:
        weights = domain.weigh(range(domain.usable + 1), x)
        sums = [0]
        for weight in reversed(weights):
            sums.append((sums[-1] + weight) % SCALAR_FIELD)
        behind.append(sums[-2::-1])

    def weigh(row: int, value: int) -> Row:
        def part(value: int) -> Row:
            inverse = pow(beta + theta * value + 1, -1, SCALAR_FIELD)
            return [(sums[row] - sums[table.row(value)]) * inverse for sums in behind]

        return [
            (one - other) % SCALAR_FIELD for one, other in zip(part(value), part(1), strict=True)
        ]

    choices = [
        {value: [sign * part % SCALAR_FIELD for part in weigh(row, value)] for value in values}
        for sign, rows in zip((1, -1), places, strict=True)
        for row, values in rows.items()
    ]
    totals = [(one.value - other.value) % SCALAR_FIELD for one, other in zip(*phis, strict=True)]
    found = meet(choices, totals)
    return None if found is None else (found[: len(places[0])], found[len(places[0]) :])


# --- Hiding elements.


def eliminate(weights: Sequence[Sequence[int]]) -> list[Row]:
    """A basis of the combinations of equations in which no hiding element is left.

    ``weights``: for each equation, what each hiding element counts for.
    """
    count, hidden = len(weights), len(weights[0])
    if not hidden:
        return [[int(i == j) for j in range(count)] for i in range(count)]
    entries = [
        entry
        for i, row in enumerate(weights)
        for entry in (*row, *(int(i == j) for j in range(count)))
    ]
    reduced, rank = fmpz_mod_mat(count, hidden + count, entries, fmpz_mod_ctx(SCALAR_FIELD)).rref()
    rows = [[int(entry) for entry in row] for row in reduced.tolist()[:rank]]
    return [row[hidden:] for row in rows if not any(row[:hidden])]


def combine(
    combinations: Sequence[Sequence[int]], weights: Sequence[Sequence[int]], totals: Sequence[int]
) -> tuple[list[Row], Row]:
    """Equations, combined."""
    columns = list(zip(*weights, strict=True))
    return (
        [[dot(row, column) for column in columns] for row in combinations],
        [dot(row, totals) for row in combinations],
    )


def find_hidden(
    seen: Seen, unknown: Mapping[int, Bounds], hidden: Sequence[int]
) -> list[int] | None:
    """As :func:`find_values` where the rows ``hidden`` hold uniform elements."""
    combinations = eliminate(seen.equations(hidden)[0])
    if not combinations:
        return None
    return solve(*combine(combinations, *seen.equations(list(unknown))), list(unknown.values()))


def fits(key: CommitKey, commitment: bytes, seen: Seen, hidden: Sequence[int]) -> bool | None:
    """Whether ``known`` are all the values of a column; None where openings do not tell.

    As many openings as hiding elements determine these from the values, and the commitment says
    whether both are right.
    """
    weights, totals = seen.equations(hidden)
    if len(weights) < len(hidden):
        return None
    column = [0] * (max([*seen.known, *hidden]) + 1)
    for row, value in seen.known.items():
        column[row] = value
    if hidden:
        count, ctx = len(hidden), fmpz_mod_ctx(SCALAR_FIELD)
        entries = [entry for row in weights[:count] for entry in row]
        solved = fmpz_mod_mat(count, count, entries, ctx).solve(
            fmpz_mod_mat(count, 1, totals[:count], ctx)
        )
        for row, [element] in zip(hidden, solved.tolist(), strict=True):
            column[row] = int(element)
    return commit_values(key, column) == commitment
