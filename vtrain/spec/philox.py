"""Philox4x32-10, the counter-based generator of everything random in the law.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); known
answers are those of Random123.  A pure function of (counter, key): no state, any order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32Array = npt.NDArray[np.uint32]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def compute_philox(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Four random 32-bit words for one counter (four words) and key (two words)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0 = MULTIPLIERS[0] * c0
        product1 = MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            product1 >> 32 ^ c1 ^ k0,
            product1 & _MASK,
            product0 >> 32 ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0, c1, c2, c3


def compute_philox_array(counters: U32Array, key: tuple[int, int]) -> U32Array:
    """:func:`compute_philox` of each row: uint32[..., 4] -> uint32[..., 4], all under one key."""
    c0, c1, c2, c3 = (counters[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    low, shift = np.uint64(_MASK), np.uint64(32)
    for _ in range(ROUNDS):
        product0 = np.uint64(MULTIPLIERS[0]) * c0
        product1 = np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            product1 >> shift ^ c1 ^ np.uint64(k0),
            product1 & low,
            product0 >> shift ^ c3 ^ np.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)
