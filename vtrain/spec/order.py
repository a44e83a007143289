"""The order of samples: a permutation of each epoch, computable for a single index.

Step t (from 0) takes the positions t*batch .. t*batch + batch - 1 of the endless sequence of
epochs.  Position p is entry i = p mod n of epoch p // n, so a batch may straddle two epochs and is
always full.  Each epoch is permuted by a balanced Feistel network on 2h bits whose round function
is Philox; values outside [0, n) are sent through it again until they fall inside (cycle walking,
Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).  The domain has at most
4n values, so that takes four passes or fewer on average, and it ends: the network is a bijection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtrain.errors import TaskError
from vtrain.spec.philox import compute_philox, compute_philox_array

ROUNDS = 8
MAX_SAMPLES = 2**48
MAX_BATCH = 2**24
MAX_POSITION = 2**63
_WORD = 0xFFFFFFFF


def compute_half_bits(n: int) -> int:
    """Bits h of each half: the least h >= 1 such that 2h bits hold n - 1."""
    return max(1, ((n - 1).bit_length() + 1) // 2)


def compute_permuted_index(seed: int, epoch: int, n: int, i: int) -> int:
    """Image of ``i`` under the permutation of [0, n) that belongs to ``seed`` and ``epoch``.

    ``seed`` and ``epoch`` are in [0, 2^64), n in [1, 2^48]; TaskError otherwise.
    """
    _check(seed, n)
    if not 0 <= i < n or not 0 <= epoch < 2**64:
        raise TaskError(f"no entry {i} in epoch {epoch} of {n} samples", where="order")
    half = compute_half_bits(n)
    mask = (1 << half) - 1
    value = i
    while True:
        left, right = value >> half, value & mask
        for r in range(ROUNDS):
            counter = (right, r, epoch & _WORD, epoch >> 32)
            word = compute_philox(counter, (seed & _WORD, seed >> 32))[0]
            left, right = right, left ^ (word & mask)
        value = left << half | right
        if value < n:
            return value


def compute_sample_index(seed: int, n: int, position: int) -> int:
    """Sample at ``position`` (from 0, in [0, 2^63)) of the endless sequence of epochs."""
    _check(seed, n)
    _check_positions(position, position + 1)
    return compute_permuted_index(seed, position // n, n, position % n)


def compute_batch_indices(seed: int, n: int, batch: int, step: int) -> npt.NDArray[np.int64]:
    """Samples of the batch of ``step`` (from 0): int64[batch], each in [0, n).

    ``seed`` is in [0, 2^64), n in [1, 2^48], batch in [1, 2^24]; TaskError otherwise.
    """
    _check(seed, n)
    if not 1 <= batch <= MAX_BATCH:
        raise TaskError(f"a batch has 1 to 2^24 samples, not {batch}", where="order")
    _check_positions(step * batch, (step + 1) * batch)
    positions = np.arange(step * batch, (step + 1) * batch, dtype=np.uint64)
    epochs, values = positions // np.uint64(n), positions % np.uint64(n)
    walking = np.arange(batch)
    while walking.size:
        values[walking] = _permute_once(seed, epochs[walking], n, values[walking])
        walking = walking[values[walking] >= np.uint64(n)]
    return values.astype(np.int64)


def _permute_once(
    seed: int, epochs: npt.NDArray[np.uint64], n: int, values: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    half = np.uint64(compute_half_bits(n))
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    counters = np.empty((*values.shape, 4), np.uint32)
    counters[:, 2] = epochs & np.uint64(_WORD)
    counters[:, 3] = epochs >> np.uint64(32)
    for r in range(ROUNDS):
        counters[:, 0], counters[:, 1] = right, r
        words = compute_philox_array(counters, (seed & _WORD, seed >> 32))[:, 0]
        left, right = right, left ^ (words.astype(np.uint64) & mask)
    return left << half | right


def _check(seed: int, n: int) -> None:
    if not 0 <= seed < 2**64:
        raise TaskError("the seed is not in [0, 2^64)", where="order")
    if not 1 <= n <= MAX_SAMPLES:
        raise TaskError(f"cannot order {n} samples: not in [1, 2^48]", where="order")


def _check_positions(first: int, end: int) -> None:
    if not 0 <= first < end <= MAX_POSITION:
        raise TaskError("position is not in [0, 2^63)", where="order")
