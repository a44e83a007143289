"""Processes of their own, at once: forked from one that has only imported what they need.

The process of the tests is no such one: it may have engines' threads, which a fork would not take
along, and much memory.  A fresh interpreter would take a second to import all of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "tests.attacks.campaign.__main__",  # the first: it sets variables that numpy reads
        "tests.train.worker",
        "pytest",
    ]
)


def start(work: Callable[..., object], *arguments: object) -> ForkServerProcess:
    """A process that does ``work``, a function of a module, and ends."""
    process = _PROCESSES.Process(target=work, args=arguments)
    process.start()
    return process


def run(work: Callable[..., object], *arguments: object, seconds: float = 300) -> int:
    """The exit code of such a process, which is to end within so many seconds."""
    process = start(work, *arguments)
    process.join(seconds)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode
