"""A report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere.

Its pictures are SVG in it: the losses of the log, which steps were looked at, how much of the run
each rung covers, and the sites that clamped.  Every text that a stranger chose is escaped, and a
policy in the page forbids whatever a mistake in that could load or run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from vtrain.printable import make_printable
from vtrain.report.document import Document, explain
from vtrain.report.json import format_percent
from vtrain.wire.report import Check, LossPoint, Pictures, Randomness, Report

WIDTH, HEIGHT = 800, 220
"""Of a picture, before it is stretched."""
_COLUMNS: Final = 1000
"""Stretches of steps that a strip tells apart."""
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --ink: #1f6feb; --band: #1f6feb33; --good: #1a7f37;
  --bad: #cf222e; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #58a6ff; --band: #58a6ff44; --good: #3fb950;
  --bad: #f85149; --warn: #d29922; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); }
th, .chances td:nth-child(2) { white-space: nowrap; }
code { font: 0.85em ui-monospace, monospace; overflow-wrap: anywhere; }
.verdict { font-size: 1.3rem; font-weight: 700; padding: .6rem 1rem; border: 2px solid; }
.verified, .passed { color: var(--good); } .fraud, .failed { color: var(--bad); }
.conditional, .inconclusive, .not_done { color: var(--warn); }
svg { display: block; width: 100%; }
.bar { height: 1.1rem; margin-top: .2rem; } .strip { height: 2rem; } .plot { height: 14rem; }
.bars th { width: 30%; font-weight: 400; white-space: normal; overflow-wrap: anywhere; }
.bars td:last-child { width: 25%; }
.ends { display: flex; justify-content: space-between; }
.loss { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: .2rem .5rem; }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.scale span:only-child { margin: auto 0; }
"""
_MARKS: Final = {"passed": "ok", "failed": "FAILED", "not_done": "not done"}


def render_html(document: Document, signers: Sequence[str] = ()) -> str:
    """The page of a report; ``signers`` says who signed it, a line each, empty where nobody did."""
    report = document.report
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Audit of a training run: {report.verdict}</title>",
            f"<style>{_STYLE}</style></head><body>",
            "<h1>Audit of a training run</h1>",
            *_render_head(document, signers),
            *_render_pictures(report),
            *_render_checks(report.checks),
            *_render_list("Checked", report.strength.checked),
            *_render_list("Not checked", report.strength.unchecked),
            *_render_list("Assumed", [_describe(item) for item in _list_assumed(report)]),
            *_render_list("Of values of the steps looked at", _list_rows(report)),
            *_render_chances(report),
            *_render_randomness(report),
            "</body></html>\n",
        )
    )


def _list_assumed(report: Report) -> Iterator[tuple[str, str, bool]]:
    for item in report.assumptions:
        yield item.detail, item.code, item.accepted


def _describe(item: tuple[str, str, bool]) -> str:
    detail, code, accepted = item
    return f"{detail} ({code}, {'accepted' if accepted else 'not accepted'})"


def _text(text: object) -> str:
    return escape(make_printable(str(text)))


def _render_head(document: Document, signers: Sequence[str]) -> Iterator[str]:
    report = document.report
    yield f'<p class="verdict {report.verdict}">{report.verdict.upper()}</p>'
    yield from (f"<p>{_text(line)}</p>" for line in explain(report))
    rows = [
        ("date", document.date),
        ("made by", f"{document.tool} {document.version}, {report.engine} engine"),
        ("law", document.law),
        ("task", report.task_id.hex()),
        ("run", report.run_id.hex()),
        ("solver", report.solver.hex()),
        ("claim", report.claim.hex()),
        ("steps", report.steps),
        ("final root", report.root.hex()),
        *(("signed by", line) for line in signers),
    ]
    if not signers:
        rows.append(("signed by", "nobody: this page shows what a file says"))
    if report.reason is not None:
        place = f"{report.reason.where}: " if report.reason.where else ""
        rows.append(("because of", f"{report.reason.name}: {place}{report.reason.detail}"))
    yield from _render_table(rows)


def _render_table(rows: Iterable[tuple[object, object]]) -> Iterator[str]:
    yield "<table>"
    for label, value in rows:
        yield f"<tr><th>{_text(label)}</th><td><code>{_text(value) or 'unknown'}</code></td></tr>"
    yield "</table>"


def _render_checks(checks: Sequence[Check]) -> Iterator[str]:
    yield "<h2>Checks</h2><table>"
    for check in checks:
        place = f"<code>{_text(check.where)}</code>: " if check.where else ""
        yield (
            f'<tr><td class="{check.status}">{_MARKS[check.status]}</td>'
            f"<td>{_text(check.name)}</td><td>{place}{_text(check.detail)}</td></tr>"
        )
    yield "</table>"


def _render_list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{_text(line)}</li>" for line in lines)
        yield "</ul>"


def _list_rows(report: Report) -> Sequence[str]:
    return () if report.sampled is None else report.sampled.describe_nodes()


def _render_chances(report: Report) -> Iterator[str]:
    if not report.detections or report.verdict == "fraud":
        return
    yield '<h2>Chance that this draw hits a cheat</h2><table class="chances">'
    for item in report.detections:
        among = f" of the {item.segments} that can be proven" * (item.unit == "step")
        share = f"a single false step{among}"
        if item.fraction is not None:
            what = among or " of the steps"
            share = f"{format_percent(item.fraction)} %{what} false ({item.bad_steps})"
        yield (
            f"<tr><td>{_text(share)}</td><td>{format_percent(item.probability)} %</td>"
            f"<td><code>{_text(item.formula)}</code></td></tr>"
        )
    yield "</table>"


def _render_randomness(report: Report) -> Iterator[str]:
    if report.randomness is None:
        return
    title = "Randomness"
    if report.traced is not None:
        yield "<h2>Randomness of the steps</h2>"
        yield from _render_draw(report.traced.randomness)
        title = "Randomness of what was looked at of them"
    yield f"<h2>{title}</h2>"
    yield from _render_draw(report.randomness)


def _render_draw(randomness: Randomness) -> Iterator[str]:
    rows: list[tuple[object, object]] = [
        ("value", randomness.value.hex()),
        ("from", randomness.source),
    ]
    if randomness.beacon is not None:
        beacon = randomness.beacon
        rows += [
            ("drand chain", beacon.chain.hex()),
            ("round", beacon.round),
            ("its signature", beacon.signature.hex()),
        ]
    yield from _render_table(rows)


# --- pictures


def _render_pictures(report: Report) -> Iterator[str]:
    if report.coverage:
        yield "<h2>How much each rung covers</h2>"
        yield from _draw_coverage(report)
    if report.segments and report.steps:
        yield "<h2>Steps that were looked at</h2>"
        yield from _draw_steps(report)
    if report.pictures is not None:
        if report.pictures.losses:
            yield "<h2>Loss, summed over each batch, as the solver logged it</h2>"
            yield from _draw_losses(report.pictures)
        yield "<h2>Saturation, as the solver counted it</h2>"
        yield from _draw_clamped(report.pictures)


def _draw(title: str, kind: str, height: int, parts: Iterable[str]) -> str:
    """A picture ``WIDTH`` wide that is stretched to its place: words stand beside it, in a size
    that can be read."""
    return "".join(
        (
            f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" '
            f'role="img" aria-label="{_text(title)}"><title>{_text(title)}</title>',
            *parts,
            "</svg>",
        )
    )


def _fill(start: float, end: float, paint: str) -> str:
    """A bar of height 1, whose edge is seen however thin the bar is."""
    color = f"var(--{paint})"
    edge = f' stroke="{color}" vector-effect="non-scaling-stroke"' if paint == "ink" else ""
    size = f'x="{start:.2f}" y="0" width="{end - start:.2f}" height="1"'
    return f'<rect {size} fill="{color}"{edge}/>'


def _render_bars(bars: Iterable[tuple[str, float, str]]) -> Iterator[str]:
    """Rows of a name, a bar over a share of its place, and a text."""
    yield '<table class="bars">'
    for name, share, text in bars:
        parts = [_fill(0, WIDTH, "line")]
        if share > 0:
            parts.append(_fill(0, WIDTH * min(share, 1.0), "ink"))
        bar = _draw(f"{name}: {text}", "bar", 1, parts)
        yield f"<tr><th>{_text(name)}</th><td>{bar}</td><td>{_text(text)}</td></tr>"
    yield "</table>"


def _render_ends(last: int) -> str:
    end = f"<span>step {last}</span>" if last > 1 else ""
    return f'<div class="ends"><span>step 1</span>{end}</div>'


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _draw_coverage(report: Report) -> Iterator[str]:
    bars = []
    for item in report.coverage:
        what = "checks" if item.rung == "structure" else "steps"
        share = item.done / item.total if item.total else 0.0
        bars.append((item.rung, share, f"{item.done} of {item.total} {what}"))
    yield from _render_bars(bars)


def _draw_steps(report: Report) -> Iterator[str]:
    """A strip from the first step to the last; stretches closer than a column are drawn as one."""
    parts = [_fill(0, WIDTH, "line")]
    for first, last in join_columns(report.segments, report.steps):
        parts.append(_fill(WIDTH * first / _COLUMNS, WIDTH * last / _COLUMNS, "ink"))
    yield _draw("steps that were looked at", "strip", 1, parts)
    yield _render_ends(report.steps)


def join_columns(segments: Sequence[tuple[int, int]], steps: int) -> list[tuple[int, int]]:
    """The stretches of ``_COLUMNS`` columns (from, to) in which segments of so many steps lie."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(segments):
        start = (first - 1) * _COLUMNS // steps
        end = min(max(-(-last * _COLUMNS // steps), start + 1), _COLUMNS)
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _draw_losses(pictures: Pictures) -> Iterator[str]:
    points = pictures.losses
    least = min(point.least for point in points)
    most = max(point.most for point in points)
    last, span = points[-1].last, most - least

    def place(step: float, value: int) -> str:
        x = WIDTH * (step - 1) / max(last - 1, 1)
        y = HEIGHT * (most - value) / span if span else HEIGHT / 2
        return f"{x:.1f},{y:.1f}"

    # From the first step to the last, so that a single stretch is a line too.
    drawn: list[tuple[float, LossPoint]] = [(points[0].first, points[0])]
    drawn += [((point.first + point.last) / 2, point) for point in points]
    drawn.append((last if last > 1 else 2, points[-1]))
    upper = [place(step, point.most) for step, point in drawn]
    lower = [place(step, point.least) for step, point in drawn]
    line = [place(step, point.mean) for step, point in drawn]
    parts = (
        f'<polygon points="{" ".join((*upper, *reversed(lower)))}" fill="var(--band)"/>',
        f'<polyline points="{" ".join(line)}" fill="none" stroke="var(--ink)" '
        'stroke-width="1.5" vector-effect="non-scaling-stroke"/>',
    )
    title = "loss against step: mean, least and greatest of each stretch"
    scale = 2**pictures.loss_exponent
    marks = (most, least) if span else (most,)
    labels = "".join(f"<span>{value / scale:.4g}</span>" for value in marks)
    plot = _draw(title, "plot", HEIGHT, parts)
    yield f'<div class="loss"><div class="scale">{labels}</div>{plot}<i></i>'
    yield f"{_render_ends(last)}</div>"


def _draw_clamped(pictures: Pictures) -> Iterator[str]:
    if pictures.counted is None and not pictures.clamped:
        yield (
            "<p>Not known: this report has no count of the solver's. A run in a store comes "
            "without one, and in a folder it may be missing.</p>"
        )
        return
    if pictures.impossible:
        yield (
            f"<p>What the solver says of {_count(pictures.impossible, 'site')} cannot be right, "
            "and is left out: the graph has no such node, or more was clamped than it put out.</p>"
        )
    if not pictures.clamped and pictures.impossible:
        return
    if pictures.counted is not None:
        what = "The sites that clamped most" if pictures.clamped else "No element was clamped"
        yield f"<p>{what}, in {_count(pictures.counted, 'step')} that it counted.</p>"
    if not pictures.clamped:
        return
    rates = [item.count / item.elements * 1e6 for item in pictures.clamped]
    yield from _render_bars(
        (item.site, rate / max(rates), f"{_show_rate(rate)} of a million ({item.count})")
        for item, rate in zip(pictures.clamped, rates, strict=True)
    )


def _show_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
