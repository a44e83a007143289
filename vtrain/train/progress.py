"""A bar on stderr while something is done, for whoever calls from Python on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""


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
