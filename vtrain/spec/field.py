"""The order of the groups that commitments are in: circuits compute modulo it."""

from __future__ import annotations

from typing import Final

SCALAR_FIELD: Final = 21888242871839275222246405745257275088548364400416034343698204186575808495617
"""The order of BN254's groups (EIP-196), a prime."""
