"""What a circuit takes of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.errors import CircuitError
from vtrain.prove.backend.settings import count_blocks
from vtrain.prove.circuit.circuit import Circuit


@dataclass(frozen=True)
class Estimate:
    """What a circuit takes: ``memory`` and ``proving_key`` in bytes, ``columns`` committed to.

    ``memory`` is the resident memory of setup and of proving, whichever is more.
    """

    cells: int
    rows: int
    columns: int
    memory: int
    proving_key: int

    def __str__(self) -> str:
        return (
            f"{self.cells} cells in {self.rows} rows, {self.columns} committed columns: "
            f"about {self.memory / 2**30:.1f} GiB of memory, "
            f"{self.proving_key / 2**30:.1f} GiB of proving key"
        )


_MEMORY_FIXED: Final = 64 << 20
_MEMORY_PER_KEY: Final = 2.5


def estimate(circuit: Circuit, k: int) -> Estimate:
    """What setting up and proving at 2^k rows takes, by a formula fitted to measurements.

    Whole steps take the blocks of columns that it finds least for: another formula may mean other
    circuits, with other digests.

    halo2 keeps each fixed and each permuted column three times: values, coefficients, and values on
    a domain as many times as large as the gates' degree asks for, which is 2 more than there are
    inner columns.  So 3 inner columns are the cheapest for each cell, and 4 take twice 3: rather
    take several blocks of up to 3.
    """
    columns, inner = len(circuit.columns), circuit.inner_columns
    extension = max(4, 1 << inner.bit_length())
    kept = columns + count_blocks(circuit, k) * (4 * inner + 5) + 6
    key = ((2 + extension) * kept + 3 * extension) * (32 << k)
    return Estimate(
        circuit.cells,
        -(-circuit.cells // inner),
        columns,
        _MEMORY_FIXED + int(_MEMORY_PER_KEY * key),
        key,
    )


def require_fits(estimated: Estimate, memory: int) -> None:
    """CircuitError with the estimate unless it fits ``memory`` bytes."""
    if estimated.memory > memory:
        raise CircuitError(
            f"{estimated}; {memory / 2**30:.1f} GiB are allowed (--memory)", where="memory"
        )
