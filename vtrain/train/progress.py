"""What people see on a terminal, or in a notebook, while something is done from Python or the
command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vtrain.printable import format_seconds, make_html_table
from vtrain.train.watch import Callback, Start

if TYPE_CHECKING:
    from rich.console import Console

    from vtrain.train.history import Entry

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""

_KEPT: Final = 0.9
"""Of the mean step time, when a step is added to it."""
_REDRAWN: Final = 0.5
"""Seconds between two pictures of a notebook."""


@contextmanager
def show_progress(given: Progress | None) -> Iterator[Progress]:
    """``given``, or else a bar on stderr; nothing where that is no terminal."""
    if given is not None or not sys.stderr.isatty():
        yield given or (lambda what, done, total: None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        yield show


class _Shown(Callback):
    """Puts a run's numbers into words: loss, step time, speed, saturation."""

    def __init__(self) -> None:
        self._target = self._begun = 0
        self._seconds = 0.0
        self._clamped = ""

    def begin(self, start: Start) -> None:
        self._begun, self._target = start.begun, start.target

    def _describe(self, entry: Entry) -> dict[str, str]:
        seconds = entry.seconds or 0.0
        first = entry.step == self._begun + 1
        kept = 0.0 if first else _KEPT
        self._seconds = kept * self._seconds + (1 - kept) * seconds
        speed, what = entry.samples_per_second or 0.0, "samples/s"
        if entry.tokens_per_second is not None:
            speed, what = entry.tokens_per_second, "tokens/s"
        if self._seconds > 0:  # a mean is steadier than the last step's
            speed *= seconds / self._seconds
        if entry.saturation is not None:
            self._clamped = f"{entry.saturation:.3g} ppm" if entry.saturation else ""
        return {
            "loss": f"{entry.loss:.4f}",
            "step": format_seconds(self._seconds),
            what: f"{speed:,.0f}",
            "clamped": self._clamped,
        }

    def _estimate_left(self, entry: Entry) -> float:
        return self._seconds * (self._target - entry.step)


class Bar(_Shown):
    """A bar on stderr, or on a ``console``; ``clock`` has the seconds by which time is left."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
        )
        shown = console or Console(stderr=True)
        self._bars = Bars(*columns, console=shown, transient=True, get_time=clock)
        self._bar: Any = None

    def begin(self, start: Start) -> None:
        super().begin(start)
        self._bars.start()
        self._bar = self._bars.add_task("", total=start.target, completed=start.begun)

    def step(self, entry: Entry) -> None:
        words = self._describe(entry)
        text = "  ".join(f"{label} {value}" for label, value in words.items() if value)
        self._bars.update(self._bar, completed=entry.step, description=text)

    def end(self) -> None:
        self._bars.stop()


class Picture(_Shown):
    """A table in a notebook, drawn anew twice a second at most."""

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__()
        self._display = display
        self._handle: Any = None
        self._drawn = 0.0
        self._last: tuple[Entry, dict[str, str]] | None = None

    def step(self, entry: Entry) -> None:
        self._last = (entry, self._describe(entry))
        now = time.monotonic()
        if now - self._drawn >= _REDRAWN or self._handle is None:
            self._drawn = now
            self._draw(*self._last)

    def end(self) -> None:
        if self._last is not None:
            self._draw(*self._last)

    def _draw(self, entry: Entry, words: dict[str, str]) -> None:
        left = {"time left": format_seconds(self._estimate_left(entry))}
        rows = {"steps": f"{entry.step:,} of {self._target:,}", **words, **left}
        data = {
            "text/plain": f"step {entry.step} of {self._target}",
            "text/html": make_html_table("", rows.items()),
        }
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def choose_display() -> Callback | None:
    """What shows a run: a bar on stderr where that is a terminal, a table in a notebook, None
    elsewhere."""
    if sys.stderr.isatty():
        return Bar()
    if _is_in_notebook():
        from IPython.display import display

        return Picture(display)
    return None


def _is_in_notebook() -> bool:
    """Whether cells run in this process: other programs import what notebooks are made with."""
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
