"""How many threads may be asked for: the same bound for every command and every call."""

from __future__ import annotations

from vtrain.errors import RunError
from vtrain.limits import most_threads


def check_threads(threads: int) -> None:
    """RunError unless ``threads`` is in [0, :func:`vtrain.limits.most_threads`]; 0 stands for every
    core."""
    most = most_threads()
    if not 0 <= threads <= most:
        raise RunError(
            f"cannot be had on this machine: name 1 to {most}, or 0 for one a core",
            where=f"threads {threads}",
        )
