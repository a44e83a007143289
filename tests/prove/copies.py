"""Which cells of a circuit are bound to be equal, read from its proving key.

halo2 keeps the copy constraints as a permutation of the cells, cycle by cycle: in column c and row
r stands delta^c' omega^r' for the next cell (c', r') of the cycle, 32 bytes in Montgomery form;
each column comes after its length, 4 bytes, big-endian.
"""

from __future__ import annotations

from pathlib import Path

from vtrain.spec.field import SCALAR_FIELD as R

Cell = tuple[int, int]

_GENERATOR, _TWO_ADICITY, _MOST_COLUMNS = 7, 28, 32


def read_cycles(proving_key: Path, k: int) -> list[frozenset[Cell]]:
    """The sets of two or more cells (column, row) that the circuit holds equal."""
    n, montgomery = 1 << k, pow(2, 256, R)
    omega = pow(_GENERATOR, (R - 1) >> k, R)
    delta = pow(_GENERATOR, 1 << _TWO_ADICITY, R)
    cells = {}
    for column in range(_MOST_COLUMNS):
        value = pow(delta, column, R) * montgomery % R
        for row in range(n):
            cells[value.to_bytes(32, "little")] = (column, row)
            value = value * omega % R
    raw, length, at = proving_key.read_bytes(), n.to_bytes(4), 0
    following: dict[Cell, Cell] = {}
    columns = 0
    while (at := raw.find(length, at)) >= 0:
        items = [raw[i : i + 32] for i in range(at + 4, at + 4 + 32 * n, 32)]
        if all(item in cells for item in items):
            following |= {(columns, row): cells[item] for row, item in enumerate(items)}
            columns, at = columns + 1, at + 32 * n
        at += 1
    assert columns, "no permutation in the key: its format has changed"
    found, seen = [], set[Cell]()
    for start in following:
        if start in seen:
            continue
        cycle, cell = {start}, following[start]
        while cell != start:
            cycle.add(cell)
            cell = following[cell]
        seen |= cycle
        if len(cycle) > 1:
            found.append(frozenset(cycle))
    return found
