"""What is wrong with how a command ended, whatever was done to it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from tests.attacks.campaign.watch import LIMIT_MEMORY, LIMIT_SECONDS, Outcome

EXIT_CODES: Final = {"verified": 0, "fraud": 10, "inconclusive": 3, "conditional": 4}
INTERRUPTED: Final = (130, 143)
KNOWN_CODES: Final = frozenset({0, 2, 3, 4, 10})
MAX_SAID: Final = 1 << 20
"""Bytes of a report that nobody reads: more is a flood."""
_STEERS: Final = re.compile("[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
"""C0 but for tab and line feed, C1, and what turns the direction of text."""

VERIFIED: Final = frozenset({"verified"})
FRAUD: Final = frozenset({"fraud"})
NOT_VERIFIED: Final = frozenset({"fraud", "inconclusive"})
NOBODY: Final = frozenset({"inconclusive"})
NOT_FRAUD: Final = frozenset({"verified", "inconclusive", "conditional"})
ANY: Final = NOT_FRAUD | FRAUD


@dataclass(frozen=True)
class Fault:
    """One thing that must not be: ``kind`` is counted, ``detail`` is for who repeats it."""

    kind: str
    detail: str = ""


@dataclass
class Result:
    """What came of one attempt."""

    name: str
    verdict: str = ""
    faults: list[Fault] = field(default_factory=list)
    audits: int = 0
    last: tuple[list[str], Outcome] | None = None

    def add(self, outcome: Outcome, faults: Collection[Fault]) -> None:
        self.audits += 1
        self.verdict = outcome.verdict if outcome.verdict != "none" else name_end(outcome)
        self.faults += faults


def name_end(outcome: Outcome) -> str:
    """How it ended, for the table, where no JSON says so."""
    if outcome.hung:
        return "hung"
    if outcome.code < 0:
        return f"signal {-outcome.code}"
    return f"exit {outcome.code}" if outcome.started else "python did not start"


def find_controls(data: bytes) -> str:
    """The first character that could steer a terminal, as an escape; "" where there is none."""
    found = _STEERS.search(data.decode("utf-8", "replace"))
    return ascii(found[0]) if found else ""


def judge(
    outcome: Outcome,
    *,
    as_json: bool = True,
    starved: bool = False,
    signalled: bool = False,
    seconds: float = LIMIT_SECONDS,
) -> list[Fault]:
    """Faults of any command: hang, memory, crash, traceback, codes, JSON, escape sequences.

    ``starved``: the allocator of a library may end the process (a signal, no verdict).
    ``signalled``: it was sent a signal.
    """
    tail = outcome.err.decode("utf-8", "replace").strip()[-500:]
    faults = _judge_cost(outcome, seconds)
    if not outcome.started:
        said = outcome.code in (0, 10)
        wrong = Fault("a verdict of a Python that did not start", str(outcome.code))
        return [*faults, wrong] if said else faults
    if outcome.hung or outcome.bloated:
        return faults
    faults += _judge_output(outcome, tail)
    if outcome.code < 0:
        killed = Fault("killed by a signal", f"{-outcome.code}; {tail}")
        return faults if starved or signalled else [*faults, killed]
    if (signalled and outcome.code in INTERRUPTED) or (starved and ended_by_a_library(outcome)):
        return faults
    if outcome.code == 1 and outcome.verdict not in EXIT_CODES:
        faults.append(Fault("exit code 1", f"{outcome.verdict}; {tail}"))
    elif outcome.code not in {*KNOWN_CODES, 1}:
        faults.append(Fault("unknown exit code", f"{outcome.code}; {tail}"))
    return faults + _judge_json(outcome, tail) if as_json else faults


def _judge_cost(outcome: Outcome, seconds: float) -> list[Fault]:
    faults = []
    if outcome.hung or outcome.seconds > seconds:
        faults.append(Fault("hang", f"{outcome.seconds:.1f} s"))
    if outcome.bloated or outcome.memory > LIMIT_MEMORY:
        faults.append(Fault("memory", f"{outcome.memory >> 20} MiB"))
    return faults


def _judge_output(outcome: Outcome, tail: str) -> list[Fault]:
    faults = []
    if b"Traceback (most recent call last)" in outcome.err:
        faults.append(Fault("traceback", tail))
    if len(outcome.out) > MAX_SAID or len(outcome.err) > MAX_SAID:
        sizes = f"{len(outcome.out)} bytes of output, {len(outcome.err)} of errors"
        faults.append(Fault("flood", sizes))
    for name, data in (("stdout", outcome.out), ("stderr", outcome.err)):
        found = find_controls(data)
        if found:
            faults.append(Fault("control character", f"{found} in {name}"))
    return faults


def ended_by_a_library(outcome: Outcome) -> bool:
    """OpenBLAS calls exit(1) where it finds no memory: Python is not asked."""
    said = b"OpenBLAS error" in outcome.err and b"Traceback" not in outcome.err
    return outcome.code == 1 and not outcome.out and said


def _judge_json(outcome: Outcome, tail: str) -> list[Fault]:
    report = outcome.report
    if report is None:
        return [Fault("no JSON", f"exit {outcome.code}: {outcome.out[:100]!r}; {tail}")]
    if outcome.verdict in EXIT_CODES:
        claimed = report.get("exit_code")
        if not claimed == outcome.code == EXIT_CODES[outcome.verdict]:
            what = f"{outcome.verdict}: exit code {outcome.code}, in the report {claimed}"
            return [Fault("code and verdict differ", what)]
    elif outcome.verdict == "error":
        error: Any = report["error"]
        if not isinstance(error, dict) or not {"code", "message", "where", "fault"} <= set(error):
            return [Fault("an error without its fields", str(error))]
        if outcome.code in (0, 4, 10):
            return [Fault("an error with the code of a verdict", str(outcome.code))]
    return []


def judge_verdict(outcome: Outcome, allowed: Collection[str]) -> list[Fault]:
    """A verdict that is not among those allowed; no verdict where there must be one."""
    verdict = outcome.verdict
    if verdict not in EXIT_CODES:
        if outcome.hung or outcome.bloated or outcome.code in (1, *INTERRUPTED) or outcome.code < 0:
            return []  # a fault already, or no verdict by right
        if "error" in allowed:
            return []
        error = (outcome.report or {}).get("error")
        return [Fault("no verdict", f"exit {outcome.code}: {error or outcome.err[-300:]!r}")]
    if verdict in allowed:
        return []
    if verdict == "verified":
        kind = "WRONG: verified"
    elif verdict == "fraud":
        kind = "WRONG: fraud"
    elif "fraud" in allowed:
        kind = f"signed falsehood, yet {verdict}"
    else:
        kind = f"harmless, yet {verdict}"
    return [Fault(kind, describe(outcome))]


def describe(outcome: Outcome) -> str:
    """The checks that did not pass."""
    checks = (outcome.report or {}).get("checks", [])
    bad = [check for check in checks if check.get("status") != "passed"]
    return "; ".join(
        f"{check.get('name')} {check.get('status')} at {check.get('where')!r}: "
        f"{check.get('detail')} ({check.get('fault') or 'no fault'})"
        for check in bad[:4]
    )
