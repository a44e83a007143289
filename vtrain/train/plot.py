"""Histories of several runs, side by side, as a picture (extra plot)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vtrain.commit.files import write_atomic
from vtrain.errors import MissingExtraError, RunError
from vtrain.printable import make_printable
from vtrain.train.history import Entry, read_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")
_Points = tuple[list[int], list[float]]
_LONGEST_LABEL: Final = 60
_MOST_ROWS: Final = 2000
"""Steps that a line is drawn of: more are joined, each by the mean of its stretch."""


def draw_runs(runs: Sequence[Path]) -> Figure:
    """Loss, learning rate, saturation and time of a step of each run, as a figure of matplotlib.

    A panel of which no run knows anything says so.  MissingExtraError without matplotlib, RunError
    for no run at all; else as of :func:`vtrain.train.history.read_history`.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError('needs matplotlib: pip install "vtrain[plot]"', where="plot")
    if not runs:
        raise RunError("names no run", where="plot")
    from matplotlib.figure import Figure

    histories = dict(zip(_name(runs), map(read_history, runs), strict=True))
    figure = Figure(figsize=(10, 7), layout="constrained")
    (loss, rate), (clamped, time) = figure.subplots(2, 2, sharex=True)
    _draw(loss, "loss", histories, lambda entry: entry.loss)
    _draw(loss, "loss", histories, lambda entry: entry.test_loss, style="o--", of="test")
    _draw(rate, "learning rate", histories, lambda entry: entry.learning_rate)
    title = "clamped, of a million elements of the worst site"
    _draw(clamped, title, histories, lambda entry: entry.saturation, style="o-")
    _draw(time, "milliseconds a step", histories, _measure_milliseconds)
    for panel in (loss, rate, clamped, time):
        panel.grid(alpha=0.3)
        if not panel.lines:
            panel.text(0.5, 0.5, "not known", ha="center", transform=panel.transAxes)
    for panel in (rate, clamped, time):
        panel.set_ylim(bottom=0)
    for panel in (clamped, time):
        panel.set_xlabel("step")
    handles, labels = loss.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
    return figure


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure as PNG or SVG, as the name says: the same bytes of the same histories.

    RunError for a name that says neither.
    """
    check_format(out)
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "vtrain"}):
        kind = out.suffix.lower()[1:]
        dated: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=100, metadata=dated)
    write_atomic(out, [buffer.getvalue()], durable=False)


def check_format(out: Path) -> None:
    """RunError unless the name of a picture says what it is."""
    if out.suffix.lower() not in FORMATS:
        raise RunError("is no .png and no .svg: name one of these", where=str(out))


def _measure_milliseconds(entry: Entry) -> float | None:
    return None if entry.seconds is None else 1000 * entry.seconds


def _name(runs: Sequence[Path]) -> list[str]:
    """A label for each run: the last parts of its path that tell it from the others."""
    paths = [run.resolve() for run in runs]
    for count in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    shown = [make_printable(name, _LONGEST_LABEL) for name in names]
    # Matplotlib leaves out of a legend what begins so, and reads what is between dollars.
    shown = [name.replace("$", r"\$").removeprefix("_") for name in shown]
    return [f"{name} ({i + 1})" if shown.count(name) > 1 else name for i, name in enumerate(shown)]


def _draw(
    panel: Axes,
    title: str,
    histories: Mapping[str, Sequence[Entry]],
    measure: Callable[[Entry], float | None],
    *,
    style: str = "-",
    of: str = "",
) -> None:
    panel.set_title(title, fontsize="medium")
    for i, (name, entries) in enumerate(histories.items()):
        known = [(entry.step, value) for entry in entries if (value := measure(entry)) is not None]
        if not known:
            continue
        steps, values = _thin(known)
        label = f"{name}, {of}" if of else name
        panel.plot(steps, values, style, color=f"C{i}", label=label, linewidth=1.2, markersize=3)


def _thin(known: Sequence[tuple[int, float]]) -> _Points:
    width = -(-len(known) // _MOST_ROWS)
    parts = [known[start : start + width] for start in range(0, len(known), width)]
    steps = [part[-1][0] for part in parts]
    return steps, [sum(value for _, value in part) / len(part) for part in parts]
