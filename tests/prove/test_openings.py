"""Openings of commitments are counted before a proof is made, durably, and 63 are all there are."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from vtrain.prove.jobs import JobQueue
from vtrain.prove.openings import MOST, OpeningsError
from vtrain.wire.proof import COMMITMENT_LENGTH, HIDING

A, B, C = (bytes([i]) * COMMITMENT_LENGTH for i in range(3))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def queue(url: str) -> Iterator[JobQueue]:
    with JobQueue(url) as queue:
        yield queue


def read_counts(url: str) -> dict[bytes, int]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT commitment, count FROM proof_openings"))
        found = {bytes(commitment): int(count) for commitment, count in rows}
    engine.dispose()
    return found


def test_one_opening_less_than_there_are_elements() -> None:
    assert HIDING - 1 == MOST == 63


def test_the_sixty_fourth_opening_is_refused(queue: JobQueue, url: str) -> None:
    """And nothing of that proof is counted: of its other columns another proof may be made."""
    for _ in range(MOST):
        queue.count_openings([A, B])
    assert read_counts(url) == {A: MOST, B: MOST}
    for commitments in ([A], [C, B], [A, B, C]):
        with pytest.raises(OpeningsError, match=f"was opened by {MOST} proofs") as caught:
            queue.count_openings(commitments)
        assert caught.value.where.startswith("commitment ")
        assert caught.value.fault == "user"
    assert read_counts(url) == {A: MOST, B: MOST}
    queue.count_openings([C])
    assert read_counts(url)[C] == 1


def test_a_proof_opens_a_column_once(queue: JobQueue, url: str) -> None:
    """However often its statement names it."""
    queue.count_openings([A, A, B])
    queue.count_openings([])
    assert read_counts(url) == {A: 1, B: 1}


def test_two_queues_on_one_database_count_together(queue: JobQueue, url: str) -> None:
    with JobQueue(url) as other:
        for i in range(MOST):
            (queue if i % 2 else other).count_openings([A])
        for each in (queue, other):
            with pytest.raises(OpeningsError):
                each.count_openings([A])
    with JobQueue(url) as later, pytest.raises(OpeningsError):
        later.count_openings([A])
    assert read_counts(url) == {A: MOST}


def test_threads_never_count_one_too_many(url: str) -> None:
    """Two workers, each with a queue of its own, prove until nothing is left."""

    def prove(_: int) -> Counter[str]:
        outcomes = Counter[str]()
        with JobQueue(url) as queue:
            for i in range(MOST):
                try:
                    queue.count_openings([A, B] if i % 2 else [B, A])
                except OpeningsError:
                    outcomes["refused"] += 1
                else:
                    outcomes["counted"] += 1
        return outcomes

    JobQueue(url).close()
    with ThreadPoolExecutor(2) as pool:
        total = sum(pool.map(prove, range(2)), Counter[str]())
    assert total == {"counted": MOST, "refused": MOST}
    assert read_counts(url) == {A: MOST, B: MOST}


def test_what_was_counted_stays_counted_when_the_process_dies(url: str) -> None:
    """Between the count and the proof: a proof may have been handed out all the same."""
    script = (
        "import os, signal, sys\n"
        "from vtrain.prove.jobs import JobQueue\n"
        "queue = JobQueue(sys.argv[1])\n"
        "queue.count_openings([bytes(64)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for count in (1, 2):
        done = subprocess.run([sys.executable, "-c", script, url], check=False)
        assert done.returncode == -signal.SIGKILL
        assert read_counts(url) == {A: count}
