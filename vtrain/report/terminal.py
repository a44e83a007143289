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
    "conditional": "[bold yellow]CONDITIONAL[/]",
}


def print_report(report: Report, console: Console) -> None:
    """Write ``report`` to ``console``; the verdict is the last line.

    On a terminal checks are a table that wraps; anywhere else each thing is one line, whole.
    """
    _print_table(console, tuple(_identity(report)))
    console.print()
    _print_table(console, tuple(_rows(report.checks)))
    _print_list(console, "Checked", report.strength.checked)
    _print_list(console, "Not checked", report.strength.unchecked)
    if report.sampled is not None:
        lines = report.sampled.describe_nodes()
        _print_list(console, "Of values of the steps looked at", lines)
    if report.detections and report.verdict != "fraud":
        _print_list(console, "Chance that this draw hits a cheat", tuple(_chances(report)))
    if report.traced is not None:
        steps = ", ".join(map(str, report.traced.steps)) or "none"
        source = _show(report.traced.randomness.source)
        console.print(f"\nSteps traced: {steps}; drawn with {source}:", soft_wrap=True)
        console.print(f"  {report.traced.randomness.value.hex()}", soft_wrap=True)
    if report.randomness is not None:
        what = "Drawn" if report.traced is None else "Of the traces drawn"
        console.print(f"\n{what} with {_show(report.randomness.source)}:", soft_wrap=True)
        console.print(f"  {report.randomness.value.hex()}", soft_wrap=True)
    _print_list(console, "Assumed", tuple(_assumptions(report)))
    console.print()
    print_verdict(report, console)


def print_verdict(report: Report, console: Console) -> None:
    """Write why ``report`` has its verdict, and the verdict, as the last line."""
    if because := _because(report):
        console.print(f"Because {because}", soft_wrap=True)
    # By itself, so that no text of a stranger's stands on the last line.
    console.print(f"Verdict: {_VERDICTS[report.verdict]}")


def _identity(report: Report) -> Iterator[tuple[str, str]]:
    for label, value in (
        ("task", report.task_id.hex()),
        ("run", report.run_id.hex()),
        ("solver", report.solver.hex()),
        ("claim", report.claim.hex()),
        ("steps", str(report.steps)),
        ("root", report.root.hex()),
    ):
        yield label, value or "unknown"


def _rows(checks: tuple[Check, ...]) -> Iterator[tuple[str, str, str]]:
    for check in checks:
        yield _MARKS[check.status], _show(check.name), _show(_sentence(check))


def _print_table(console: Console, rows: tuple[tuple[str, ...], ...]) -> None:
    """Rows of markup: on a terminal in columns, the last of which wraps; else a line each."""
    if not console.is_terminal:
        for row in rows:
            console.print("  ".join(row), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in rows[0][:-1] if rows else ():
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _show(text: str) -> str:
    """Any text as markup that shows it: a report may be a stranger's, each word of it."""
    return escape(make_printable(text))


def _sentence(check: Check) -> str:
    return f"{check.where}: {check.detail}" if check.where else check.detail


def _print_list(console: Console, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            text = _show(f"- {line}")
            if console.is_terminal:
                console.print(Padding(text, (0, 0, 0, 2)))
            else:
                console.print(f"  {text}", soft_wrap=True)


def _chances(report: Report) -> Iterator[str]:
    for detection in report.detections:
        percent = format_percent(detection.probability)
        if detection.probability and not percent.strip("0."):
            percent = "less than 0.01"
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


def _assumptions(report: Report) -> Iterator[str]:
    for item in report.assumptions:
        yield f"{item.detail} ({item.code}, {'accepted' if item.accepted else 'not accepted'})"


def _because(report: Report) -> str:
    if report.verdict == "conditional":
        return f"it holds only if {'; and if '.join(_show(i.detail) for i in report.unaccepted)}"
    reason = report.reason
    return "" if reason is None else f"of {_show(reason.name)}: {_show(_sentence(reason))}"
