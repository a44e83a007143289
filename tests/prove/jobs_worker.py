"""A worker for tests, in a process of its own: ``URL NAME MODE``.

``MODE`` "work" does jobs until all are settled and prints the number of each that it did; "hold"
takes one, on the test's clock, says so, and holds it until it is killed.
"""

from __future__ import annotations

import sys
import threading

from vtrain.prove.backend.srs import Progress
from vtrain.prove.jobs import Job, JobQueue, Pace, work


def prove(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
    """Stands for a proof."""
    return b"proof of " + str(job.statement).encode()


def say(words: str) -> None:
    """A line to the test."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def main(url: str, name: str, mode: str) -> None:
    if mode == "hold":
        assert JobQueue(url, now=lambda: 1000).take(name) is not None
        say("taken")
        sys.stdin.read()
        return

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        say(str(job.number))
        return prove(job, progress, cancelled)

    with JobQueue(url) as queue:
        say("ready")
        sys.stdin.readline()
        work(queue, handler, worker=name, once=True, pace=Pace(poll=0.01))


if __name__ == "__main__":
    main(*sys.argv[1:])
