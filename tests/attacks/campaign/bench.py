"""The bench on which every attempt is made: bases, the auditor under attack, what it offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tests.attacks.campaign.bases import Base, list_bases
from tests.attacks.campaign.judge import Result
from tests.attacks.campaign.watch import (
    Auditor,
    Child,
    Outcome,
    call_command_line,
    make_environment,
)

Say = Callable[[str], None]


@dataclass
class Bench:
    """Where attempts are made: bases in ``folder``, the auditor, what counts as a hang."""

    folder: Path
    seed: int
    fake: Auditor | None = None
    seconds: float = 10.0
    kept: bool = True
    roots: dict[str, str] = field(default_factory=dict)

    @cached_property
    def bases(self) -> dict[str, Base]:
        return list_bases(self.folder)

    @cached_property
    def environment(self) -> dict[str, str]:
        return make_environment(self.folder / "environment")

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
    import vtrain.prove.backend.kzg
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
