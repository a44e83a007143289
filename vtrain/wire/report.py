"""What an audit found: the verdict, what it rests on, and what it does not cover.

A report is data; ``vtrain.audit`` makes it, ``vtrain.report`` shows it.  Fraud found is a verdict
in a report, never an exception.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal

from vtrain.errors import ConditionalError, FraudError, InconclusiveError
from vtrain.printable import make_html_table

Verdict = Literal["verified", "fraud", "inconclusive", "conditional"]
Status = Literal["passed", "failed", "not_done"]
Blame = Literal["", "solver", "task", "nobody"]

EXIT_CODES: Final[dict[Verdict, int]] = {
    "verified": 0,
    "inconclusive": 3,
    "conditional": 4,
    "fraud": 10,
}
"""What a command that ends in a verdict exits with; 2 is bad input or usage.  1 is left to the
unexpected: whatever kills a process may leave that behind, so it must not be a verdict."""


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
class Assumption:
    """What must hold for passed checks to show anything, beyond what every verdict assumes.

    ``code`` is stable: "attested", whoever signed a run in floats did its steps as it says, which
    nobody can do again; "insecure-srs", whoever made the SRS does not forge proofs with it;
    "predictable-sample", the solver could not foresee the sample while it could still change what
    was sampled; "chosen-claim", it had no other claim from before the draw, to show in place of
    this one.  ``accepted``: the auditor has said that it takes this on trust.
    """

    code: Literal["attested", "chosen-claim", "insecure-srs", "predictable-sample"]
    detail: str
    accepted: bool = False


@dataclass(frozen=True)
class BeaconUse:
    """The round of a drand chain that a sample was drawn with, and how it stands to the claim.

    ``chain`` is the chain's hash, ``signature`` the round's, ``previous`` that of the round before
    where the chain signs it too.  ``at`` is the time of the round, ``claimed`` the time by which
    the claim is proven to have existed, both in seconds since 1970 (``claimed`` rounded up), None
    where that is not known; ``authority`` is whose word that is, and ``delay`` the least time
    between the two.
    """

    chain: bytes
    round: int
    signature: bytes
    previous: bytes
    at: int
    delay: int
    claimed: int | None = None
    authority: str = ""


@dataclass(frozen=True)
class Randomness:
    """What a sample was drawn with.  ``predictable``: the solver could have known it while it could
    still change what was sampled."""

    value: bytes
    source: str
    predictable: bool
    fresh: bool = False
    """Drawn by the audit itself, of what it held already."""
    chosen: bool = False
    """The solver could have made several claims before it existed, and show the one that suits."""
    beacon: BeaconUse | None = None


@dataclass(frozen=True)
class Detection:
    """The chance that ``drawn`` of ``segments`` segments, evenly drawn, hit a bad one.

    ``bad_segments`` is into how few segments ``bad_steps`` false steps fit: the packing that hides
    them best.  ``fraction`` is the share of the steps asked about, None for a single bad step.
    ``unit`` is what a segment is: in an audit by proofs a single step, of those that can be proven.
    ``caught`` is the least chance that a bad segment which is drawn shows itself: below 1 where
    only rows of its values are looked at.
    """

    fraction: Fraction | None
    bad_steps: int
    bad_segments: int
    segments: int
    drawn: int
    unit: Literal["segment", "step"] = "segment"
    caught: Fraction = Fraction(1)

    @property
    def formula(self) -> str:
        """The exact probability as binomial coefficients."""
        good = self.segments - self.bad_segments
        hit = f"1 - C({good},{self.drawn})/C({self.segments},{self.drawn})"
        return hit if self.caught == 1 else f"{self.caught} * ({hit})"

    @cached_property
    def probability(self) -> Fraction:
        """The exact (hypergeometric) probability; where rows are looked at, a lower bound."""
        # C(n - b, s) / C(n, s) = C(n - s, b) / C(n, b): the smaller of the two takes less time.
        few, many = sorted((self.bad_segments, self.drawn))
        missed = math.comb(self.segments - many, few)
        return self.caught * (1 - Fraction(missed, math.comb(self.segments, few)))


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
class SampledNode:
    """A node of the graph of which ``drawn`` of the ``units`` of the output were looked at, in each
    step: rows of a product, or chunks of 1 KiB."""

    node: int
    name: str
    op: str
    unit: Literal["row", "chunk"]
    drawn: int
    units: int

    @property
    def missed(self) -> Fraction:
        """The chance that a single false unit of it is not drawn."""
        return 1 - Fraction(self.drawn, self.units)


@dataclass(frozen=True)
class SampledRows:
    """What of steps was looked at by rows: ``rows`` were asked for of each node with a tensor of
    more than ``above`` bytes.  ``whole`` are such nodes that were looked at whole."""

    rows: int
    above: int
    nodes: tuple[SampledNode, ...]
    whole: tuple[str, ...]

    @property
    def worst(self) -> SampledNode:
        """The node of which a false row is most likely missed."""
        return max(self.nodes, key=lambda node: node.missed)

    def bound_missed(self, false: int) -> Fraction:
        """The most likely that so many ``false`` rows of a step, of whichever nodes, are missed."""
        return self.worst.missed**false

    def describe_nodes(self) -> tuple[str, ...]:
        """A sentence for the nodes of which as much was looked at each, worst first."""
        alike: dict[tuple[Fraction, str], list[str]] = {}
        for node in self.nodes:
            unit = "rows" if node.unit == "row" else "chunks of 1 KiB"
            text = f"{node.drawn} of {node.units} {unit}"
            alike.setdefault((node.missed, text), []).append(node.name)
        lines = [
            f"{text}, one false one missed with {format_percent_up(missed)} %: {', '.join(names)}"
            for (missed, text), names in sorted(alike.items(), reverse=True)
        ]
        if self.whole:
            lines.append(f"whole, since rows take most of what they read: {', '.join(self.whole)}")
        return tuple(lines)


def format_percent_up(probability: Fraction) -> str:
    """Two decimals, rounded up: of a chance to miss something."""
    hundredths = -(-probability.numerator * 10_000 // probability.denominator)
    return f"{hundredths // 100}.{hundredths % 100:02d}"


Rung = Literal["structure", "replay", "algebraic", "rows", "proof"]


@dataclass(frozen=True)
class Coverage:
    """How much of a run one rung of the ladder has looked at: ``done`` of ``total`` things, which
    are checks of the structure, and steps on the rungs above it."""

    rung: Rung
    done: int
    total: int


@dataclass(frozen=True)
class LossPoint:
    """The losses of the steps ``first`` to ``last``: least, mean (rounded down) and greatest."""

    first: int
    last: int
    least: int
    mean: int
    most: int


@dataclass(frozen=True)
class Clamped:
    """How many of the ``elements`` that a site put out were clamped, as the solver counted."""

    site: str
    count: int
    elements: int


@dataclass(frozen=True)
class Pictures:
    """What a report draws of a run: losses of the signed log, in ``loss_exponent`` fraction bits,
    and the sites that clamped most, by the solver's own count, which nothing checks.

    ``counted`` is over how many steps it counted, those done again included, and None where its
    counts are not known: then nothing in ``clamped`` does not mean that nothing was clamped.
    ``impossible``: how many sites are left out, since their counts cannot be right.
    """

    losses: tuple[LossPoint, ...]
    loss_exponent: int
    clamped: tuple[Clamped, ...]
    counted: int | None = None
    impossible: int = 0


MOST_POINTS: Final = 400
"""Stretches of losses that a report has: what a screen shows."""
MOST_SITES: Final = 20
"""Sites that a report has of those that clamped."""


def compute_loss_points(losses: Sequence[int]) -> tuple[LossPoint, ...]:
    """The losses of steps 1, 2, ... in at most :data:`MOST_POINTS` stretches of equal length (the
    last may be shorter)."""
    width = max(1, -(-len(losses) // MOST_POINTS))
    points = []
    for start in range(0, len(losses), width):
        part = losses[start : start + width]
        mean = sum(part) // len(part)
        points.append(LossPoint(start + 1, start + len(part), min(part), mean, max(part)))
    return tuple(points)


@dataclass(frozen=True, repr=False)
class Report:
    """The outcome of one audit of one run.

    Digests are 32 bytes, or empty where the run did not yield them.  ``root`` is the state root
    after the last step, ``steps`` the number of steps claimed, ``claim`` the digest of the claim's
    body, by which an auditor pins it.  ``segments`` are the replayed (first step, last step), steps
    counted from 1.
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
    claim: bytes
    traced: Traced | None = None
    assumptions: tuple[Assumption, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    pictures: Pictures | None = None
    sampled: SampledRows | None = None

    def __repr__(self) -> str:
        return f"<report {self.verdict.upper()}: {self._describe_coverage()}, {self.steps:,} steps>"

    def _repr_html_(self) -> str:
        reason = self.reason
        rows: dict[str, object] = {
            "checked": self._describe_coverage(),
            "because": "" if reason is None else f"{reason.name}: {reason.detail}",
            "assumed": "; ".join(item.detail for item in self.assumptions),
            "task": self.task_id.hex(),
            "solver": self.solver.hex(),
            "steps": f"{self.steps:,}",
            "root": self.root.hex(),
            **{f"{check.status}: {check.name}": check.detail for check in self.checks},
        }
        return make_html_table(f"verdict: {self.verdict.upper()}", rows.items())

    def _describe_coverage(self) -> str:
        done = (f"{item.done:,} of {item.total:,} by {item.rung}" for item in self.coverage)
        return ", ".join(done) or "nothing could be looked at"

    def __bool__(self) -> bool:
        """True only for a run that is verified: ``assert verify(run)`` holds for no other."""
        return self.verdict == "verified"

    def raise_for_verdict(self) -> None:
        """Return for a run that is verified; FraudError, InconclusiveError or ConditionalError for
        any other, each with this report."""
        if self.verdict == "verified":
            return
        kinds = {
            "fraud": FraudError,
            "inconclusive": InconclusiveError,
            "conditional": ConditionalError,
        }
        reason = self.reason
        if reason is not None:
            message, where = f"{reason.name}: {reason.detail}", reason.where
        else:
            message, where = "; ".join(item.detail for item in self.unaccepted), ""
        raise kinds[self.verdict](message, report=self, where=where)

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0 verified, 10 fraud, 3 inconclusive, 4 conditional."""
        return EXIT_CODES[self.verdict]

    @property
    def unaccepted(self) -> tuple[Assumption, ...]:
        """The assumptions that the auditor did not accept."""
        return tuple(item for item in self.assumptions if not item.accepted)

    @property
    def reason(self) -> Check | None:
        """The check that the verdict rests on, None when all passed."""
        for blame in ("solver", "task", "nobody"):
            for check in self.checks:
                if check.status == "failed" and check.fault == blame:
                    return check
        return next((check for check in self.checks if check.status != "passed"), None)


def compute_verdict(checks: tuple[Check, ...], assumptions: tuple[Assumption, ...] = ()) -> Verdict:
    """Fraud when a check proves it; inconclusive unless every check passed; then conditional where
    an assumption is not accepted, else verified."""
    if any(check.status == "failed" and check.fault == "solver" for check in checks):
        return "fraud"
    if not checks or any(check.status != "passed" for check in checks):
        return "inconclusive"
    return "verified" if all(item.accepted for item in assumptions) else "conditional"
