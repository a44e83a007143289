"""What an audit found: the verdict, what it rests on, and what it does not cover.

A report is data; ``vtrain.audit`` makes it, ``vtrain.report`` shows it.  Fraud found is a verdict
in a report, never an exception.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

Verdict = Literal["verified", "fraud", "inconclusive"]
Status = Literal["passed", "failed", "not_done"]
Blame = Literal["", "solver", "task", "nobody"]

EXIT_CODES: Final[dict[Verdict, int]] = {"verified": 0, "fraud": 1, "inconclusive": 3}
"""What a command that ends in a verdict exits with; 2 is bad input or usage."""


@dataclass(frozen=True)
class Check:
    """One check: its stable name, how it went, and where.

    ``fault`` of a failed check says what it proves.  "solver": the solver's own signature stands
    under something false, which is fraud.  "task": the task itself is not legal.  "nobody": bytes
    are missing or are not those signed for, which may have happened on the way.  It is empty when
    the check passed or was not done (``detail`` then says why).
    """

    name: str
    status: Status
    detail: str
    where: str = ""
    fault: Blame = ""


@dataclass(frozen=True)
class Randomness:
    """What a sample was drawn with.  ``predictable``: the solver could have known it."""

    value: bytes
    source: str
    predictable: bool


@dataclass(frozen=True)
class Detection:
    """The chance that ``drawn`` of ``segments`` segments, evenly drawn, hit a bad one.

    ``bad_segments`` is into how few segments ``bad_steps`` false steps fit: the packing that hides
    them best.  ``fraction`` is the share of the steps asked about, None for a single bad step.
    ``unit`` is what a segment is: in an audit by proofs a single step, of those that can be proven.
    """

    fraction: Fraction | None
    bad_steps: int
    bad_segments: int
    segments: int
    drawn: int
    unit: Literal["segment", "step"] = "segment"

    @property
    def formula(self) -> str:
        """The exact probability as binomial coefficients."""
        good = self.segments - self.bad_segments
        return f"1 - C({good},{self.drawn})/C({self.segments},{self.drawn})"

    @property
    def probability(self) -> Fraction:
        """The exact (hypergeometric) probability."""
        missed = math.comb(self.segments - self.bad_segments, self.drawn)
        return 1 - Fraction(missed, math.comb(self.segments, self.drawn))


@dataclass(frozen=True)
class Strength:
    """What the verdict rests on: sentences on what was checked, and on what was not."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


@dataclass(frozen=True)
class Traced:
    """The first draw of an audit of tiles: the ``steps`` that the solver had to trace, and what
    they were drawn with.  The report's ``randomness`` is then that of the second."""

    steps: tuple[int, ...]
    randomness: Randomness


@dataclass(frozen=True)
class Report:
    """The outcome of one audit of one run.

    Digests are 32 bytes, or empty where the run did not yield them.  ``root`` is the state root
    after the last step, ``steps`` the number of steps claimed.  ``segments`` are the replayed
    (first step, last step), steps counted from 1.
    """

    verdict: Verdict
    checks: tuple[Check, ...]
    strength: Strength
    randomness: Randomness | None
    detections: tuple[Detection, ...]
    segments: tuple[tuple[int, int], ...]
    engine: str
    task_id: bytes
    run_id: bytes
    solver: bytes
    steps: int
    root: bytes
    log_root: bytes
    traced: Traced | None = None

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0 verified, 1 fraud, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def reason(self) -> Check | None:
        """The check that the verdict rests on, None when all passed."""
        for blame in ("solver", "task", "nobody"):
            for check in self.checks:
                if check.status == "failed" and check.fault == blame:
                    return check
        return next((check for check in self.checks if check.status != "passed"), None)


def compute_verdict(checks: tuple[Check, ...]) -> Verdict:
    """Fraud when a check proves it, verified when every check passed, inconclusive otherwise."""
    if any(check.status == "failed" and check.fault == "solver" for check in checks):
        return "fraud"
    if checks and all(check.status == "passed" for check in checks):
        return "verified"
    return "inconclusive"
