"""Bad auditors, to show that the judge catches each of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tests.attacks.campaign.watch import Auditor


def _say(verdict: str, code: int) -> None:
    report = {"verdict": verdict, "exit_code": code, "checks": [], "replayed": []}
    sys.stdout.write(json.dumps(report) + "\n")
    raise SystemExit(code)


def always_verified(_: Sequence[str]) -> None:
    _say("verified", 0)


def always_fraud(_: Sequence[str]) -> None:
    _say("fraud", 10)


def always_inconclusive(_: Sequence[str]) -> None:
    _say("inconclusive", 3)


def never_ends(_: Sequence[str]) -> None:
    time.sleep(3600)


def traceback(_: Sequence[str]) -> None:
    raise ZeroDivisionError


def code_one(_: Sequence[str]) -> None:
    raise SystemExit(1)


def code_zero_for_fraud(_: Sequence[str]) -> None:
    _say("fraud", 0)


def no_json(_: Sequence[str]) -> None:
    raise SystemExit(3)


def escapes(_: Sequence[str]) -> None:
    sys.stderr.write("\x1b[2Jall is well\n")
    _say("inconclusive", 3)


def floods(_: Sequence[str]) -> None:
    sys.stderr.write("x" * (2 << 20))
    _say("inconclusive", 3)


def crashes(_: Sequence[str]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def bloats(_: Sequence[str]) -> None:
    block = bytearray(5 << 28)
    for at in range(0, len(block), 4096):
        block[at] = 1
    _say("inconclusive", 3)


FAKES: Final[Mapping[str, Auditor]] = {
    fake.__name__: fake
    for fake in (
        always_verified,
        always_fraud,
        always_inconclusive,
        never_ends,
        traceback,
        code_one,
        code_zero_for_fraud,
        no_json,
        escapes,
        floods,
        crashes,
        bloats,
    )
}
