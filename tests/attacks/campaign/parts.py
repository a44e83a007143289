"""The parts of the campaign."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.attacks.campaign.bases import make_rng
from tests.attacks.campaign.bench import Bench, Part, Say, show
from tests.attacks.campaign.grind import Grinding
from tests.attacks.campaign.hostile import Hostile
from tests.attacks.campaign.judge import Fault, Result, judge, judge_verdict
from tests.attacks.campaign.mutate import make_mutant
from tests.attacks.campaign.starve import Starved
from tests.attacks.campaign.watch import Child, Outcome

_PLACE = re.compile(r"steps? (\d+)(?: to (\d+))?")


class Mutants:
    """Mutated runs, audited whole."""

    def count(self, asked: int) -> int:
        return asked

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result:
        rng = make_rng(bench.seed, "mutants", number)
        run, note = work / "run", work / "truth.json"

        def make(_: Sequence[str]) -> None:
            name, truth = make_mutant(bench.bases, number, rng, run)
            allowed, options = sorted(truth.allowed), truth.options
            note.write_text(json.dumps([name, allowed, options, truth.step, truth.note]))

        made = Child([], auditor=make, environment=bench.environment).wait(60)
        if made.code:
            raise RuntimeError(made.err.decode("utf-8", "replace")[-500:])
        name, allowed, options, step, remark = json.loads(note.read_text())
        result = Result(f"{name} ({remark})" if remark else name)
        engine = "numpy" if number % 5 == 4 else "cpu"
        arguments = ["verify", str(run), "--all", "--json", "--threads", "1", "--engine", engine]
        arguments += options
        result.skipped = bench.lacks(arguments)
        if result.skipped:
            return result
        say(f"{name}: {remark}; allowed: {', '.join(allowed)}")
        outcome = bench.call(arguments)
        show(say, arguments, outcome)
        faults = judge(outcome, seconds=bench.seconds) + judge_verdict(outcome, allowed)
        if step is not None and "--srs" not in options:
            faults += judge_place(outcome, step)
        result.add(outcome, faults)
        return result


def judge_place(outcome: Outcome, step: int) -> list[Fault]:
    """A fraud that is located anywhere but at the false step."""
    reason: Mapping[str, Any] = (outcome.report or {}).get("reason") or {}
    found = _PLACE.match(str(reason.get("where")))
    if outcome.verdict != "fraud" or not found:
        return []
    first, last = int(found[1]), int(found[2] or found[1])
    if first <= step <= last:
        return []
    return [Fault("fraud at the wrong place", f"{reason.get('where')}, false is step {step}")]


PARTS: Final[dict[str, tuple[Part, int]]] = {
    "mutants": (Mutants(), 1000),
    "hostile": (Hostile(), 300),
    "starved": (Starved(), 200),
    "grind": (Grinding(), 50),
}
