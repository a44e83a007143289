"""The fields of BN254, the curve of commitments; circuits compute modulo its groups' order."""

from __future__ import annotations

from typing import Final

SCALAR_FIELD: Final = 21888242871839275222246405745257275088548364400416034343698204186575808495617
"""The order of BN254's groups (EIP-196), a prime."""
BASE_FIELD: Final = 21888242871839275222246405745257275088696311157297823662689037894645226208583
"""The prime of its points' coordinates, y^2 = x^3 + 3 (EIP-196)."""
DRAWN: Final = 48
"""Bytes of a hash's stream for one scalar: modulo the order, within 2^-130 of uniform."""
