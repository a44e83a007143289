"""How often the columns behind commitments were opened by proofs, which what hides them limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from vtrain.errors import VtrainError
from vtrain.wire.proof import HIDING

MOST: Final = HIDING - 1
"""Proofs that may open one column: each gives one value of its polynomial, and the commitment
another.  So many values together are uniform, whatever the column holds; one more is not."""

Openings = Callable[[Collection[bytes]], None]
"""Counts, durably, that a proof is about to open the columns behind these commitments, before it is
made; OpeningsError, and nothing is counted, where one of them was opened ``MOST`` times already.
``vtrain.prove.jobs.JobQueue.count_openings`` is one."""


class OpeningsError(VtrainError):
    """One proof more would tell something of what it is about."""

    code = "openings"
    fault = "user"


def require_unopened(commitment: bytes, count: int) -> None:
    """OpeningsError where a column was opened so often that it may not be once more."""
    if count >= MOST:
        raise OpeningsError(
            f"was opened by {count} proofs, and {MOST} are all that hide it: prove other steps",
            where=f"commitment {commitment.hex()[:16]}...",
        )
