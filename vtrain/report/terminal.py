"""A report as text for people: what was checked, what was not, the chances, the verdict last."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from vtrain.printable import make_printable
from vtrain.report.json import format_percent
from vtrain.wire.report import Check, Detection, Report, Status, Verdict

_MARKS: dict[Status, str] = {
    "passed": "[green]ok[/]",
    "failed": "[bold red]FAILED[/]",
    "not_done": "[yellow]not done[/]",
}
_VERDICTS: dict[Verdict, str] = {
    "verified": "[bold green]VERIFIED[/]",
    "fraud": "[bold red]FRAUD[/]",
    "inconclusive": "[bold yellow]INCONCLUSIVE[/]",
}
PREDICTABLE = (
    "This randomness is predictable: it was given as a seed, so the solver could have known it; "
    "the detection figures hold only if it was drawn after the claim and secret until then."
)
"""What a report says of predictable randomness."""


def print_report(report: Report, console: Console) -> None:
    """Write ``report`` to ``console``; the verdict is the last line."""
    console.print(_identity(report))
    console.print()
    console.print(_checks(report.checks))
    _print_list(console, "Checked", report.strength.checked)
    _print_list(console, "Not checked", report.strength.unchecked)
    if report.detections and report.verdict != "fraud":
        _print_list(console, "Chance that this draw hits a cheat", tuple(_chances(report)))
    if report.traced is not None:
        steps = ", ".join(map(str, report.traced.steps)) or "none"
        source = report.traced.randomness.source
        console.print(f"\nSteps traced: {steps}; drawn with {source}:", soft_wrap=True)
        console.print(f"  {report.traced.randomness.value.hex()}", soft_wrap=True)
    if report.randomness is not None:
        what = "Drawn" if report.traced is None else "Statements about their tiles drawn"
        console.print(f"\n{what} with {report.randomness.source}:")
        console.print(f"  {report.randomness.value.hex()}", soft_wrap=True)
        if report.randomness.predictable:
            console.print(f"[yellow]{PREDICTABLE}[/]")
    console.print()
    verdict = f"Verdict: {_VERDICTS[report.verdict]}{_because(report.reason)}"
    console.print(verdict, soft_wrap=True)


def _identity(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in (
        ("task", report.task_id.hex()),
        ("run", report.run_id.hex()),
        ("solver", report.solver.hex()),
        ("steps", str(report.steps)),
        ("root", report.root.hex()),
    ):
        table.add_row(label, value or "unknown")
    return table


def _checks(checks: tuple[Check, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(_MARKS[check.status], check.name, escape(_sentence(check)))
    return table


def _sentence(check: Check) -> str:
    return make_printable(f"{check.where}: {check.detail}" if check.where else check.detail)


def _print_list(console: Console, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(Padding(escape(f"- {make_printable(line)}"), (0, 0, 0, 2)))


def _chances(report: Report) -> Iterator[str]:
    for detection in report.detections:
        percent = format_percent(detection.probability)
        yield f"{_case(detection)}: {percent} % = {detection.formula}"


def _case(detection: Detection) -> str:
    if detection.fraction is None:
        return "a single false step" + (
            f" among the {detection.segments} that can be proven"
            if detection.unit == "step"
            else ""
        )
    share = format_percent(detection.fraction).removesuffix(".00")
    if detection.unit == "step":
        return (
            f"{share} % of the steps that can be proven are false "
            f"({detection.bad_steps} of {detection.segments})"
        )
    return (
        f"{share} % of the steps false ({detection.bad_steps}), "
        f"packed into {detection.bad_segments} of {detection.segments} segments"
    )


def _because(reason: Check | None) -> str:
    if reason is None:
        return ""
    return f" - {reason.name}: {escape(_sentence(reason))}"
