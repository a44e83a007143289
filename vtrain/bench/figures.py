"""Figures with their confidence intervals, and how they are written: CSV, JSON, tables, text."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Unit = Literal["s", "bytes", "count"]
STAGES: Final = ("training", "commitment", "replay", "algebraic", "dispute", "proof")
"""What is measured, in the order in which it is done."""

_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantile of Student's distribution, from 1 degree of freedom on."""
_NORMAL_95: Final = 1.960


@dataclass(frozen=True)
class Figure:
    """One number that was measured once: ``what`` of a ``stage``, in ``unit``."""

    stage: str
    what: str
    unit: Unit
    value: float


@dataclass(frozen=True)
class Row:
    """A figure over several seeds: its mean, and the interval that has the true mean with a
    confidence of 95 % (Student's, two-sided), which is None of a single value.

    ``sweep`` is what was changed, by the factor ``factor``; ``parameters`` are those of the model.
    """

    sweep: str
    factor: float
    parameters: int
    batch: int
    stage: str
    what: str
    unit: Unit
    mean: float
    low: float | None
    high: float | None
    seeds: int


def summarize(
    runs: Sequence[Sequence[Figure]], *, sweep: str, factor: float, parameters: int, batch: int
) -> list[Row]:
    """A row for each figure, in the order of the first run; ``runs`` has the figures by seed."""
    values: dict[tuple[str, str, Unit], list[float]] = {}
    for figures in runs:
        for figure in figures:
            key = (figure.stage, figure.what, figure.unit)
            values.setdefault(key, []).append(figure.value)
    return [
        Row(sweep, factor, parameters, batch, *key, *_bound(found), len(found))
        for key, found in values.items()
    ]


def _bound(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    freedom = len(values) - 1
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else _NORMAL_95
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


# --- how they are written


def write_csv(rows: Iterable[Row]) -> str:
    """A line for each row, under a head."""
    text = io.StringIO()
    names = list(Row.__dataclass_fields__)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if v is None else v for name, v in asdict(row).items()})
    return text.getvalue()


def list_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows as JSON has them."""
    return [asdict(row) for row in rows]


TITLES: Final[dict[Unit, str]] = {"s": "time", "bytes": "bytes", "count": "counts"}
"""What is measured in each unit."""
_UNITS: Final = {
    "s": ((60.0, "min", 60.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3), (0.0, "us", 1e-6)),
    "bytes": ((1e9, "GB", 1e9), (1e6, "MB", 1e6), (1e3, "kB", 1e3), (0.0, "B", 1.0)),
    "count": ((0.0, "", 1.0),),
}
"""For each unit: from what size on, which is shown, and what it is of the base."""


def describe(value: float, unit: Unit, half: float | None = None) -> str:
    """A number with its unit for people, three digits of it; ``half`` is of its interval."""
    _, name, scale = next(item for item in _UNITS[unit] if abs(value) >= item[0])
    text = _round(value / scale)
    if half is not None:
        text += f" +- {_round(half / scale)}"
    return f"{text} {name}".rstrip()


def _round(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def describe_row(row: Row) -> str:
    """The mean of a row, and half of its interval; of a single seed, that it is of one."""
    half = None if row.high is None else row.high - row.mean
    text = describe(row.mean, row.unit, half)
    return f"{text} (one seed)" if row.seeds == 1 else text


@dataclass(frozen=True)
class Table:
    """Figures down, sizes across."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def make_table(rows: Sequence[Row]) -> Table:
    """The table of a sweep: a column for each factor, a line for each figure."""
    columns = list(dict.fromkeys((row.factor, row.parameters, row.batch) for row in rows))
    sweep = rows[0].sweep if rows else ""
    cells: dict[tuple[str, str, Unit], dict[float, str]] = {}
    for row in rows:
        cells.setdefault((row.stage, row.what, row.unit), {})[row.factor] = describe_row(row)
    # A checkpoint has seconds and bytes: two figures of one name.
    units = Counter((stage, what) for stage, what, _ in cells)
    head = ["stage", "figure"]
    for factor, parameters, batch in columns:
        size = f"{parameters:,} parameters, batch {batch}"
        head.append(f"{sweep} x {factor:g}: {size}" if sweep else size)
    lines = [
        (
            stage,
            f"{what}: {TITLES[unit]}" if units[stage, what] > 1 else what,
            *(found.get(factor, "-") for factor, _, _ in columns),
        )
        for (stage, what, unit), found in cells.items()
    ]
    return Table(tuple(head), tuple(lines))


def render_markdown(table: Table) -> str:
    """The table for a page."""
    lines = [table.head, ("---",) * len(table.head), *table.lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_LATEX: Final = str.maketrans(
    {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def render_latex(table: Table, caption: str) -> str:
    """The table for a paper, with the package booktabs."""

    def line(cells: Iterable[str]) -> str:
        escaped = (cell.translate(_LATEX).replace("+-", r"$\pm$") for cell in cells)
        return " & ".join(escaped) + r" \\"

    lines = [
        r"\begin{table}",
        rf"\caption{{{caption.translate(_LATEX)}}}",
        rf"\begin{{tabular}}{{ll{'r' * (len(table.head) - 2)}}}",
        r"\toprule",
        line(table.head),
        r"\midrule",
    ]
    previous = ""
    for cells in table.lines:
        if previous and cells[0] != previous:
            lines.append(r"\midrule")
        lines.append(line((cells[0] if cells[0] != previous else "", *cells[1:])))
        previous = cells[0]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"
