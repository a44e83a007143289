"""How much code a circuit's verifier on chain will have, before a key or a proof is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.errors import CircuitError
from vtrain.prove.backend.settings import count_blocks
from vtrain.prove.chain.statement import require_drawable
from vtrain.prove.circuit.circuit import Circuit
from vtrain.wire.proof import Hash

MAX_CODE: Final = 24576
"""Bytes of a contract's code that Ethereum deploys at most (EIP-170)."""

_TOLERANCE: Final = 0.02
"""What an estimate may be off by."""


@dataclass(frozen=True)
class CodeEstimate:
    """Bytes of a verifier's code, about."""

    size: int

    def may_fit(self, most: int = MAX_CODE) -> bool:
        """Whether the code may have ``most`` bytes, as far as the estimate tells."""
        return self.size * (1 - _TOLERANCE) <= most


def estimate_code(circuit: Circuit, k: int) -> CodeEstimate:
    """The code of ``Halo2Verifier``, by a formula fitted to code that the pinned compiler made.

    Code follows the columns, not the rows: those committed to, those of cells in their blocks, one
    look-up argument for each of the latter where there are limbs, and the products by which halo2
    shows that equal cells are equal, each of so many columns as the gates' degree leaves room for.
    """
    blocks, inner = count_blocks(circuit, k), circuit.inner_columns
    committed, cells = len(circuit.columns), blocks * inner
    equal = committed + 3 * cells + circuit.pads
    lookups = cells if circuit.span else 0
    products = -(-equal // (2 if inner > 1 else 3 if lookups else 1))
    size = 4780 + 117 * committed + 668 * blocks + 770 * cells + 131 * products
    return CodeEstimate(size + 311 * lookups + (358 if lookups else 0) - 129 * circuit.pads)


def tell_contract(circuit: Circuit, k: int, hash: Hash) -> str:
    """Whether contracts verify statements of a circuit, in words."""
    try:
        require_drawable(hash, circuit)
    except CircuitError as error:
        return f"no contract: {error.where} {error.message}"
    about = estimate_code(circuit, k)
    verdict = "" if about.may_fit() else ": too large"
    return f"about {about.size} bytes of code, the most is {MAX_CODE}{verdict}"
