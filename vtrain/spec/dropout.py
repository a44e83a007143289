"""Draws of dropout: 16 random bits for each element of a tensor, from its number alone.

The draw of element e at site s of step t is the half number e mod 8, from the lower half of the
first word on, of the Philox block under the key of the task's seed whose counter is

    (b mod 2^32, 2^31 + s, t mod 2^32, floor(t / 2^32) + 2^16 floor(b / 2^32)),  b = floor(e / 8).

The second word of every counter that the order of samples uses is below 8, so no block serves both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtrain.errors import TaskError
from vtrain.spec.philox import compute_philox, compute_philox_array

DRAW_BITS = 16
MAX_SITES = 2**31
MAX_STEP = 2**48 - 1
MAX_ELEMENT = 2**51 - 1
PER_BLOCK = 8
DOMAIN = 2**31
_WORD = 0xFFFFFFFF


def compute_draw(seed: int, step: int, site: int, element: int) -> int:
    """The draw of one element, in [0, 2^16).

    ``seed`` is in [0, 2^64), ``step`` in [0, 2^48), ``site`` in [0, 2^31), ``element`` in
    [0, 2^51); TaskError otherwise.
    """
    _check(seed, step, site, element, element)
    block, half = divmod(element, PER_BLOCK)
    counter = (block & _WORD, DOMAIN | site, step & _WORD, step >> 32 | block >> 32 << 16)
    word = compute_philox(counter, (seed & _WORD, seed >> 32))[half // 2]
    return word >> DRAW_BITS * (half % 2) & 0xFFFF


def compute_draws(
    seed: int, step: int, site: int, first: int, count: int
) -> npt.NDArray[np.uint16]:
    """:func:`compute_draw` of elements ``first`` to ``first + count - 1``: uint16[count]."""
    if count == 0:
        return np.zeros(0, np.uint16)
    _check(seed, step, site, first, first + count - 1)
    begin, end = first // PER_BLOCK, -(-(first + count) // PER_BLOCK)
    blocks = np.arange(begin, end, dtype=np.uint64)
    counters = np.empty((len(blocks), 4), np.uint32)
    counters[:, 0] = blocks & np.uint64(_WORD)
    counters[:, 1] = DOMAIN | site
    counters[:, 2] = step & _WORD
    counters[:, 3] = np.uint64(step >> 32) | blocks >> np.uint64(32) << np.uint64(16)
    words = compute_philox_array(counters, (seed & _WORD, seed >> 32))
    halves = words.astype("<u4").view("<u2").reshape(-1).astype(np.uint16)
    skipped = first - begin * PER_BLOCK
    return halves[skipped : skipped + count]


def _check(seed: int, step: int, site: int, first: int, last: int) -> None:
    if not 0 <= seed < 2**64:
        raise TaskError("the seed is not in [0, 2^64)", where="dropout")
    if not 0 <= step <= MAX_STEP:
        raise TaskError("the step is not in [0, 2^48)", where="dropout")
    if not 0 <= site < MAX_SITES:
        raise TaskError("the site is not in [0, 2^31)", where="dropout")
    if not 0 <= first <= last <= MAX_ELEMENT:
        raise TaskError("the element is not in [0, 2^51)", where="dropout")
