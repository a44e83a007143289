"""Plots as SVG, which papers and browsers take, a panel for each unit: of a sweep a line for each
figure, both axes logarithmic; of one size a bar for each.  A thin bar is a confidence interval."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vtrain.bench.figures import TITLES, Row, Unit, describe, describe_row

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT = 420, 300, 90, 40, 270
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
"""Told apart by those who do not see all colours."""
_DASHES: Final = ("none", "6 3", "2 3")
_LINE, _BAR = 20, 12


@dataclass(frozen=True)
class _Axis:
    """Logarithms from ``low`` to ``high`` over ``length`` of the picture."""

    low: float
    high: float
    length: float

    @staticmethod
    def around(values: Sequence[float], length: float) -> _Axis:
        low, high = min(values), max(values)
        if low == high:
            low, high = low / 2, high * 2
        return _Axis(math.log10(low), math.log10(high), length)

    def place(self, value: float) -> float:
        return (math.log10(value) - self.low) / (self.high - self.low) * self.length

    def list_ticks(self) -> list[float]:
        """Powers of ten, or the ends where there are not two of them."""
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        ticks = [10.0**power for power in range(first, last + 1)]
        return ticks if len(ticks) > 1 else [10**self.low, 10**self.high]


def draw(rows: Sequence[Row], unit: Unit) -> str | None:
    """The panel of a unit against what is swept; None where there are not two sizes of anything."""
    series: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.unit == unit and row.mean > 0:
            series.setdefault((row.stage, row.what), []).append(row)
    series = {key: found for key, found in series.items() if len(found) > 1}
    if not series:
        return None
    shown = [row for found in series.values() for row in found]
    across = _Axis.around([row.factor for row in shown], _WIDTH)
    ends = [value for row in shown for value in (row.mean, row.low, row.high)]
    up = _Axis.around([value for value in ends if value is not None and value > 0], _HEIGHT)
    size = (_WIDTH + _LEFT + _RIGHT, max(_HEIGHT + _TOP + 50, _TOP + 18 * len(series) + 20))
    title = f"{TITLES[unit]} by {shown[0].sweep}"
    if any(row.seeds == 1 for row in shown):
        title += " (without bars: one seed)"
    parts = [
        *_begin(size, _LEFT, title),
        *_draw_axes(shown, across, up, unit),
    ]
    for number, ((stage, what), found) in enumerate(series.items()):
        parts += _draw_series(f"{stage}: {what}", sorted(found, key=_factor), across, up, number)
    return "\n".join([*parts, "</g></svg>\n"])


def draw_bars(rows: Sequence[Row], unit: Unit) -> str | None:
    """The panel of a unit at one size; None where there is nothing of it."""
    shown = [row for row in rows if row.unit == unit and row.mean > 0]
    if not shown:
        return None
    ends = [value for row in shown for value in (row.mean, row.low, row.high)]
    known = [value for value in ends if value is not None and value > 0]
    # The least of them has a bar, too.
    across = _Axis.around([min(known) / 2, *known], _WIDTH)
    height = _LINE * len(shown)
    size = (_RIGHT + _WIDTH + 2 * _LEFT, _TOP + height + 30)
    title = TITLES[unit]
    if any(row.seeds == 1 for row in shown):
        title += " (without intervals: one seed)"
    return "\n".join(
        [
            *_begin(size, _RIGHT, title),
            *_draw_ticks(across, height, unit),
            *(part for number, row in enumerate(shown) for part in _draw_bar(row, number, across)),
            "</g></svg>\n",
        ]
    )


def _draw_ticks(across: _Axis, height: float, unit: Unit) -> Iterator[str]:
    for value in across.list_ticks():
        x = across.place(value)
        text = html.escape(describe(value, unit))
        yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{height + 18}" text-anchor="middle">{text}</text>'


def _draw_bar(row: Row, number: int, across: _Axis) -> Iterator[str]:
    """A figure's name, its bar with its interval, and the number."""
    colour, y, end = _COLOURS[0], _LINE * number + _LINE // 2, across.place(row.mean)
    name = html.escape(f"{row.stage}: {row.what}")
    yield f'<text x="-8" y="{y + 4}" text-anchor="end">{name}</text>'
    yield (
        f'<rect x="0" y="{y - _BAR // 2}" width="{end:.1f}" height="{_BAR}" fill="{colour}" '
        'fill-opacity="0.5"/>'
    )
    if row.low is not None and row.high is not None:
        low = across.place(row.low) if row.low > 0 else 0.0
        high = end = across.place(row.high)
        yield f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="black"/>'
    yield f'<text x="{end + 6:.1f}" y="{y + 4}">{html.escape(describe_row(row))}</text>'


def _begin(size: tuple[int, int], left: int, title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<g transform="translate({left},{_TOP})">'
    )
    yield f'<text y="-16" font-weight="bold">{html.escape(title)}</text>'


def _factor(row: Row) -> float:
    return row.factor


def _draw_axes(shown: Sequence[Row], across: _Axis, up: _Axis, unit: Unit) -> Iterator[str]:
    for factor in sorted({row.factor for row in shown}):
        x = across.place(factor)
        yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_HEIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{_HEIGHT + 18}" text-anchor="middle">x {factor:g}</text>'
    for value in up.list_ticks():
        y = _HEIGHT - up.place(value)
        yield f'<line x1="0" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>'
        text = html.escape(describe(value, unit))
        yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _draw_series(
    name: str, rows: Sequence[Row], across: _Axis, up: _Axis, number: int
) -> Iterator[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    points = [(across.place(row.factor), _HEIGHT - up.place(row.mean)) for row in rows]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = f'fill="none" stroke="{colour}" stroke-dasharray="{dash}" stroke-width="1.5"'
    yield f'<polyline points="{path}" {line}/>'
    for row, (x, y) in zip(rows, points, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
        if row.low is not None and row.high is not None and row.low > 0:
            low, high = (_HEIGHT - up.place(value) for value in (row.low, row.high))
            bar = f'x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"'
            yield f'<line {bar} stroke="{colour}"/>'
    y = 18 * number + 6
    yield (
        f'<line x1="{_WIDTH + 14}" x2="{_WIDTH + 38}" y1="{y}" y2="{y}" stroke="{colour}" '
        f'stroke-dasharray="{dash}" stroke-width="1.5"/>'
        f'<text x="{_WIDTH + 44}" y="{y + 4}">{html.escape(name)}</text>'
    )
