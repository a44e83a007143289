"""The parts of the campaign, and the bench on which each attempt is made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from tests.attacks.campaign.bases import Base, list_bases, make_rng
from tests.attacks.campaign.judge import Fault, Result, judge, judge_verdict
from tests.attacks.campaign.mutate import make_mutant
from tests.attacks.campaign.watch import (
    Auditor,
    Child,
    Outcome,
    call_command_line,
    make_environment,
)

Say = Callable[[str], None]
_PLACE = re.compile(r"steps? (\d+)(?: to (\d+))?")


@dataclass
class Bench:
    """Where attempts are made: bases in ``folder``, the auditor, what counts as a hang."""

    folder: Path
    seed: int
    fake: Auditor | None = None
    seconds: float = 10.0
    kept: bool = True

    @cached_property
    def bases(self) -> dict[str, Base]:
        return list_bases(self.folder)

    @cached_property
    def environment(self) -> dict[str, str]:
        return make_environment(self.folder / "environment")

    @cached_property
    def options(self) -> frozenset[str]:
        """Options of ``vtrain verify`` as it is today, and the names of the commands."""
        from vtrain.cli import cli
        from vtrain.cli.verify import command

        import_all()
        names = {name for parameter in command.params for name in parameter.opts}
        return frozenset(names | set(cli.list_commands(None)))  # type: ignore[arg-type]

    def lacks(self, arguments: Sequence[str], *wanted: str) -> str:
        """The first option or command that is not there yet; "" when all are."""
        options = [*wanted, *(each for each in arguments if each.startswith("--"))]
        missing = [each for each in options if each not in self.options]
        return f"needs {missing[0]}" if missing else ""

    def call(self, arguments: Sequence[str]) -> Outcome:
        """A command, in a fork."""
        import_all()
        auditor = self.fake or call_command_line
        child = Child(arguments, auditor=auditor, environment=self.environment)
        return child.wait(self.seconds)

    def start(self, arguments: Sequence[str], **options: Any) -> Child:
        """A command, in an interpreter of its own (or the fake one, in a fork)."""
        environment = {**self.environment, **options.pop("environment", {})}
        return Child(arguments, auditor=self.fake, environment=environment, **options)


def import_all() -> None:
    """What an audit imports, once and before the forks."""
    import vtrain.audit.verify
    import vtrain.cli.verify
    import vtrain.prove.kzg
    import vtrain.report.json  # noqa: F401


class Part(Protocol):
    """So many attempts of one kind."""

    def count(self, asked: int) -> int:
        """How many attempts are made where ``asked`` are asked for."""
        ...

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result: ...


def show(say: Say, arguments: Sequence[str], outcome: Outcome) -> None:
    say(f"vtrain {' '.join(map(ascii, arguments))}")
    say(f"-> {outcome.code} {outcome.verdict}, {outcome.seconds:.2f} s, {outcome.memory >> 20} MiB")
    say(ascii(outcome.out.decode("utf-8", "replace")[-6000:]).replace("\\n", "\n"))
    say(ascii(outcome.err.decode("utf-8", "replace")[-6000:]).replace("\\n", "\n"))


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


PARTS: Final[dict[str, tuple[Part, int]]] = {"mutants": (Mutants(), 1000)}
