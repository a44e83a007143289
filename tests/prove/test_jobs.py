"""The queue of proofs: each job ends once, whoever dies, disappears or changes their mind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.dispute.service.postgres import PostgresServer, find_binaries
from tests.prove.circuits import LIMITS
from tests.prove.jobs_worker import prove
from vtrain.commit import database
from vtrain.commit.database import DatabaseAwayError
from vtrain.errors import (
    CircuitError,
    EncodingError,
    MissingExtraError,
    NotProducedError,
    ProverError,
    StorageError,
    VtrainError,
)
from vtrain.limits import LIMITS as BOUNDS
from vtrain.prove.backend.ezkl import Call, CallFailedError, TimeLimitError, run_ezkl
from vtrain.prove.backend.srs import Progress
from vtrain.prove.jobs import (
    MAX_ERROR,
    STATES,
    Handler,
    Job,
    JobProgress,
    JobQueue,
    Pace,
    State,
    collect,
    jobs,
    work,
)
from vtrain.prove.jobs import jobs as job_table
from vtrain.prove.proof_files import (
    Item,
    decode_item,
    encode_item,
    find_missing,
    proof_path,
    read_proof_file,
    write_proof_file,
)

RUN = bytes(range(32))
OTHER = bytes(32)
NO_PROGRESS = JobProgress("", 0, 0)
DEADLINE = 60.0


class Hands:
    """A clock, in milliseconds, that goes when it is told to, and a worker's waiting, which takes
    next to no time, whatever it is asked for."""

    def __init__(self) -> None:
        self.at = 1000
        self.pauses: list[float] = []

    def __call__(self) -> int:
        return self.at

    def wait(self, event: threading.Event, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.pauses.append(seconds)
        else:  # between two heartbeats
            event.wait(0.002)

    def pace(self, patience: float = 600.0) -> Pace:
        return Pace(patience=patience, wait=self.wait)


def steps(*numbers: int) -> list[Item]:
    return [Item("step", number) for number in numbers]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    found, why = find_binaries()
    if found is None:
        pytest.skip(why)
    with closing(PostgresServer(found)) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.make_database()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a queue."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(found, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS proof_jobs")
    return found


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def queue(url: str, hands: Hands) -> Iterator[JobQueue]:
    with JobQueue(url, now=hands) as found:
        yield found


def take(queue: JobQueue, worker: str = "ann", lease_seconds: float = 60.0, **of: Any) -> Job:
    job = queue.take(worker, lease_seconds, **of)
    assert job is not None
    return job


def count(queue: JobQueue, **expected: int) -> None:
    counts: dict[State, int] = dict.fromkeys(STATES, 0)
    assert queue.status(RUN).counts == counts | expected


def spoil(url: str, column: str, value: object) -> None:
    """Write into the table behind the queue's back."""
    with closing(database.Database(url, lambda connection: None)) as db, db.write() as connection:
        connection.execute(text(f"UPDATE proof_jobs SET {column} = :value"), {"value": value})  # noqa: S608


# --- adding


def test_a_statement_of_a_run_is_added_once(queue: JobQueue) -> None:
    one, two, three = queue.add(RUN, steps(1, 2, 3))
    again = queue.add(RUN, steps(3, 4, 1, 3))
    assert [again[0], *again[2:]] == [three, one, three]
    assert len({one, two, three, again[1], *queue.add(OTHER, steps(1, 2))}) == 6
    count(queue, waiting=4)
    job = take(queue)
    assert queue.finish(job, b"proof")
    assert queue.add(RUN, steps(1)) == [job.number]
    assert queue.add(RUN, []) == []
    count(queue, waiting=3, done=1)


def test_adding_at_the_same_time_makes_no_job_twice(url: str) -> None:
    statements = [Item("tile", 5, index) for index in range(600)]
    orders = [statements, statements[::-1]] * 3
    with JobQueue(url) as queue, ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(lambda order: queue.add(RUN, order), orders))
        assert numbers[1:] == [numbers[0][::-1], numbers[0]] * 2 + [numbers[0][::-1]]
        assert len(set(numbers[0])) == 600
        count(queue, waiting=600)


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        (Item("step", 0), "statement.step"),
        (Item("tile", 1, -1), "statement.index"),
        (Item("step", 1, 1), "statement.index"),
        (Item("node", 1), "statement.kind"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_statement_is_not_added(queue: JobQueue, statement: Item, where: str) -> None:
    with pytest.raises(EncodingError) as caught:
        queue.add(RUN, [*steps(1), statement])
    assert caught.value.where == where
    count(queue)
    with pytest.raises(EncodingError, match="run_id"):
        queue.add(RUN[:31], steps(1))


def test_encoding_of_statements_is_pinned() -> None:
    assert encode_item(Item("step", 7)).hex() == "a2646b696e6464737465706473746570" + "07"
    tile = Item("tile", 2**48, 300)
    assert encode_item(tile).hex() == (
        "a3646b696e646474696c6564737465701b000100000000000065696e64657819012c"
    )
    for statement in (tile, Item("step", 7), Item("tile", 1, 0)):
        assert decode_item(encode_item(statement)) == statement
    with pytest.raises(EncodingError, match="more than 64"):
        decode_item(bytes(65))


# --- taking, finishing, failing


def test_from_waiting_to_done(queue: JobQueue, hands: Hands) -> None:
    (number,) = queue.add(RUN, [Item("tile", 8, 3)])
    job = take(queue, "ann")
    assert (job.number, job.run_id, job.statement) == (number, RUN, Item("tile", 8, 3))
    assert (job.attempt, job.most) == (1, 3)
    assert queue.take("bob") is None
    assert queue.heartbeat(job, JobProgress("prove\0\n", 2, 7)) == "held"
    (view,) = queue.status(RUN).taken
    assert (view.worker, view.progress) == ("ann", JobProgress("prove  ", 2, 7))
    assert not queue.is_settled(RUN)
    assert queue.finish(job, b"\0proof")
    assert queue.finish(job, b"\0proof"), "the answer to the first call may have been lost"
    assert list(queue.results(RUN)) == [(Item("tile", 8, 3), b"\0proof")]
    assert list(queue.results(OTHER)) == []
    assert queue.take("bob") is None
    assert queue.is_settled(RUN)
    count(queue, done=1)


def test_jobs_of_one_run_and_of_some_kinds(queue: JobQueue) -> None:
    queue.add(OTHER, steps(1))
    queue.add(RUN, [*steps(1), Item("tile", 1, 0)])
    assert queue.take("ann", run_id=bytes(31) + b"\1") is None
    assert take(queue, run_id=RUN, kinds=["tile"]).statement == Item("tile", 1, 0)
    assert queue.take("ann", run_id=RUN, kinds=["tile"]) is None
    assert take(queue, run_id=RUN).run_id == RUN
    assert queue.take("ann", run_id=RUN) is None
    assert take(queue).run_id == OTHER


def test_jobs_of_some_numbers_alone(queue: JobQueue, hands: Hands) -> None:
    """More numbers, too, than a database takes in one question."""
    _, second, third = queue.add(RUN, steps(1, 2, 3))
    only = [*range(-70_000, 0), third]
    assert work(queue, prove, only=only, once=True, pace=hands.pace()) == 1
    assert [statement for statement, _ in queue.results(RUN)] == steps(3)
    assert queue.take("ann", only=only) is None
    assert queue.is_settled(only=only)
    assert not queue.is_settled(only=[second])
    assert len(queue.find_waiting(RUN)) == 2
    assert not queue.find_waiting(OTHER)
    assert take(queue, only=[second]).number == second
    assert len(queue.find_waiting(RUN)) == 1


def test_a_worker_says_when_it_has_nothing_to_do(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    theirs, told = take(queue, "bob"), []

    def idle() -> None:
        told.append(queue.status(RUN).taken[0].worker)
        queue.finish(theirs, b"proof")

    assert work(queue, prove, once=True, idle=idle, pace=hands.pace()) == 0
    assert told == ["bob"]


def test_attempts_end_and_failed_jobs_go_behind_the_others(queue: JobQueue) -> None:
    first, second = queue.add(RUN, steps(1, 2), max_attempts=2)
    job = take(queue)
    assert job.number == first
    assert queue.fail(job, "out of memory\0" + "x" * MAX_ERROR, retry=True)
    status = queue.status(RUN)
    assert (status.counts["waiting"], status.troubled[0].error[:14]) == (2, "out of memory ")
    assert take(queue).number == second
    job = take(queue)
    assert (job.number, job.attempt) == (first, 2)
    assert queue.fail(job, "again", retry=True)
    count(queue, failed=1, taken=1)
    assert queue.status(RUN).troubled[0].error == "again"
    assert queue.take("ann") is None
    assert queue.retry(RUN) == 1
    job = take(queue)
    assert (job.number, job.attempt) == (first, 1)
    assert queue.fail(job, "no circuit", retry=False)
    count(queue, failed=1, taken=1)


def test_a_bundle_that_is_too_long(queue: JobQueue) -> None:
    queue.add(RUN, steps(1))
    job = take(queue)
    with pytest.raises(EncodingError, match="more than"):
        queue.finish(job, bytes(BOUNDS.bundle_bytes + 1))
    count(queue, taken=1)


def test_results_are_read_in_pages_and_only_those_wanted(queue: JobQueue) -> None:
    queue.add(RUN, steps(*range(1, 1002)))
    spoil_all_done(queue)
    found = list(queue.results(RUN, lambda statement: statement.step % 500 < 2))
    assert found == [(Item("step", n), b"bundle") for n in (1, 500, 501, 1000, 1001)]


def spoil_all_done(queue: JobQueue) -> None:
    with queue._db.write() as connection:
        connection.execute(jobs.update().values(state="done", result=b"bundle"))


# --- leases


def test_an_expired_lease_is_taken_by_another(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    lost = take(queue, "ann", lease_seconds=60)
    hands.at += 59_999
    assert queue.take("bob") is None
    hands.at += 1
    job = take(queue, "bob")
    assert (job.number, job.attempt) == (lost.number, 2)
    assert queue.heartbeat(lost, NO_PROGRESS) == "lost"
    assert not queue.finish(lost, b"late")
    assert not queue.fail(lost, "late", retry=False)
    assert not queue.give_back(lost)
    assert queue.finish(job, b"in time")
    assert not queue.finish(lost, b"later still")
    assert list(queue.results(RUN)) == [(Item("step", 1), b"in time")]


def test_the_age_of_a_lease_is_told(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    job = take(queue)
    hands.at += 95_000
    status = queue.status(RUN)
    (view,) = status.taken
    assert (status.now - view.updated, view.due - status.now) == (95_000, -35_000)
    queue.heartbeat(job, NO_PROGRESS)
    hands.at += 1000
    status = queue.status(RUN)
    (view,) = status.taken
    assert (status.now - view.updated, view.due - status.now) == (1000, 59_000)


def test_a_heartbeat_extends_the_lease_even_one_that_ran_out(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    job = take(queue, lease_seconds=60)
    hands.at += 59_000
    assert queue.heartbeat(job, NO_PROGRESS) == "held"
    hands.at += 59_999
    assert queue.take("bob") is None
    hands.at += 100_000
    assert queue.heartbeat(job, NO_PROGRESS) == "held", "nobody else took it"
    assert queue.take("bob") is None


def test_a_worker_that_disappears_each_time(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1), max_attempts=2)
    for attempt in (1, 2):
        assert take(queue, f"worker {attempt}").attempt == attempt
        hands.at += 60_000
    assert queue.take("bob") is None
    (view,) = queue.status(RUN).troubled
    assert (view.state, view.worker) == ("failed", "worker 2")
    assert "not heard of again" in view.error


def test_a_job_given_back_has_lost_no_attempt(queue: JobQueue) -> None:
    queue.add(RUN, steps(1))
    job = take(queue)
    assert queue.give_back(job)
    again = take(queue, "bob")
    assert again.attempt == 1
    assert not queue.give_back(job), "the lease is another's by now"
    assert queue.finish(again, b"proof")


def test_cancel(queue: JobQueue) -> None:
    numbers = queue.add(RUN, steps(1, 2, 3, 4))
    done, held = take(queue), take(queue)
    assert queue.finish(done, b"proof")
    assert queue.cancel(numbers[2:3]) == 1
    count(queue, done=1, taken=1, cancelled=1, waiting=1)
    assert queue.cancel(RUN) == 2
    assert queue.heartbeat(held, NO_PROGRESS) == "cancelled"
    assert not queue.finish(held, b"proof")
    assert queue.take("bob") is None
    count(queue, done=1, cancelled=3)
    assert queue.cancel(RUN) == queue.cancel([]) == queue.cancel([2**40]) == 0
    assert queue.retry([held.number]) == 1
    assert queue.heartbeat(held, NO_PROGRESS) == "lost"
    assert take(queue, "bob").number == held.number


def test_without_a_clock_of_ours_time_is_that_of_the_database(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine whose clock is wrong has PostgreSQL's all the same.
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    with JobQueue(url) as queue:
        queue.add(RUN, steps(1))
        job = take(queue, lease_seconds=3600)
        assert queue.take("bob") is None
        assert queue.heartbeat(job, NO_PROGRESS) == "held"
        with queue._db.read() as connection:
            (created, due) = connection.execute(text("SELECT created, due FROM proof_jobs")).one()
        assert 3_600_000 <= due - created < 3_700_000
        assert created == 5 if url.startswith("sqlite") else created > 1_700_000_000_000


# --- many workers


def start(url: str, name: str, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.prove.jobs_worker", url, name, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
        text=True,
    )


def test_processes_and_threads_do_each_of_200_jobs_once(url: str) -> None:
    statements = [Item("tile", 1, index) for index in range(200)]
    done: list[int] = []

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        done.append(job.number)
        return prove(job, progress, cancelled)

    with JobQueue(url) as queue:
        numbers = queue.add(RUN, statements)
        processes = [start(url, name, "work") for name in ("ann", "bob")]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            with ThreadPoolExecutor(3) as pool:
                own = [
                    pool.submit(work, queue, handler, once=True, pace=Pace(poll=0.01))
                    for _ in range(3)
                ]
                assert sum(future.result() for future in own) == len(done)
            told = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert [process.returncode for process in processes] == [0, 0]
        theirs = [int(line) for words in told for line in words.split()]
        assert Counter(done + theirs) == Counter(numbers)
        count(queue, done=200)
        assert dict(queue.results(RUN)) == {
            statement: b"proof of " + str(statement).encode() for statement in statements
        }


def test_the_job_of_a_killed_worker_is_done_by_another(
    url: str, queue: JobQueue, hands: Hands
) -> None:
    queue.add(RUN, steps(1))
    process = start(url, "ann", "hold")
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE)
    assert queue.status(RUN).taken[0].worker == "ann"

    def wait(event: threading.Event, seconds: float) -> None:
        hands.at += round(seconds * 1000)

    # Waits for the job that the dead one holds, since it may come free.
    assert work(queue, prove, worker="bob", once=True, pace=Pace(wait=wait)) == 1
    assert hands.at >= 61_000
    count(queue, done=1)


# --- the loop of a worker


def run_once(queue: JobQueue, handler: Handler, hands: Hands) -> int:
    return work(queue, handler, once=True, pace=hands.pace())


def test_cancelled_in_flight(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1, 2))

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        if job.statement.step == 1:
            queue.cancel([job.number])
            assert cancelled.wait(DEADLINE)
            raise ProverError("cancelled", where="ezkl")
        assert not cancelled.is_set()
        return b"proof"

    assert run_once(queue, handler, hands) == 1
    count(queue, cancelled=1, done=1)
    assert queue.status(RUN).troubled == ()


def test_cancelling_ends_a_process_of_ezkl(tmp_path: Path, hands: Hands) -> None:
    made = tmp_path / "k22.srs"
    with JobQueue(f"sqlite:///{tmp_path}/jobs.db", now=hands) as queue:
        queue.add(RUN, steps(1))

        def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
            queue.cancel(RUN)
            # Takes minutes, unless it is ended.
            run_ezkl(
                [Call("gen_srs", {"srs_path": str(made), "logrows": 22})],
                replace(LIMITS, seconds=DEADLINE),
                cancelled=cancelled,
            )
            return b"made"

        assert run_once(queue, handler, hands) == 0
        count(queue, cancelled=1)
        assert not made.exists()


def test_lost_in_flight(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    beat = threading.Event()

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        hands.at += 60_000
        other = take(queue, "bob")
        assert queue.finish(other, b"of bob")
        beat.set()
        assert cancelled.wait(DEADLINE)
        return b"of ann"

    pace = Pace(wait=lambda event, seconds: beat.wait(DEADLINE))
    assert work(queue, handler, once=True, pace=pace) == 0
    assert list(queue.results(RUN)) == [(Item("step", 1), b"of bob")]


def test_progress_is_told(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    told = JobProgress("prove", 3, 7)

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        progress("prove", 3, 7)
        while not any(view.progress == told for view in queue.status(RUN).taken):
            assert not cancelled.is_set()
        return b"proof"

    assert run_once(queue, handler, hands) == 1


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (TimeLimitError("took more than 60 seconds", where="prove"), 1),
        (ProverError("the process died (SIGKILL)", where="prove"), 3),
        (StorageError("No space left on device", where="RUN"), 3),
        (CallFailedError("RuntimeError: no", where="setup"), 1),
        (CircuitError("the conditions do not hold"), 1),
        (NotProducedError("the file is missing"), 1),
    ],
)
def test_which_errors_are_tried_again(
    queue: JobQueue, hands: Hands, error: VtrainError, attempts: int
) -> None:
    queue.add(RUN, steps(1))
    made = []

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        made.append(job.attempt)
        raise error

    assert run_once(queue, handler, hands) == 0
    assert made == list(range(1, attempts + 1))
    (view,) = queue.status(RUN).troubled
    assert (view.state, view.error) == ("failed", str(error))


def test_a_bundle_too_long_for_the_queue_fails_the_job(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1))
    assert run_once(queue, lambda *_: bytes(BOUNDS.bundle_bytes + 1), hands) == 0
    count(queue, failed=1)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), MissingExtraError("needs ezkl")]
)
def test_an_interrupt_gives_the_job_back(
    queue: JobQueue, hands: Hands, error: BaseException
) -> None:
    queue.add(RUN, steps(1))

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        raise error

    with pytest.raises(type(error)):
        run_once(queue, handler, hands)
    count(queue, waiting=1)
    assert take(queue).attempt == 1


def test_a_defect_is_raised_and_counts_as_an_attempt(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1), max_attempts=2)

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        raise ZeroDivisionError("of nothing")

    for state in ("waiting", "failed"):
        with pytest.raises(ZeroDivisionError):
            run_once(queue, handler, hands)
        (view,) = queue.status(RUN).troubled
        assert (view.state, view.error) == (state, "a defect: ZeroDivisionError: of nothing")


def test_stop_ends_after_the_job_at_hand(queue: JobQueue, hands: Hands) -> None:
    queue.add(RUN, steps(1, 2))
    stop = threading.Event()

    def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
        stop.set()
        return b"proof"

    assert work(queue, handler, stop=stop, pace=hands.pace()) == 1
    count(queue, done=1, waiting=1)
    assert work(queue, handler, stop=stop, pace=hands.pace()) == 0


def test_without_once_a_worker_waits_for_more(queue: JobQueue, hands: Hands) -> None:
    stop = threading.Event()

    def wait(event: threading.Event, seconds: float) -> None:
        if event is not stop:
            return
        if hands.pauses:
            stop.set()
        hands.pauses.append(seconds)
        queue.add(RUN, steps(1))

    assert work(queue, prove, stop=stop, pace=Pace(wait=wait)) == 1
    assert hands.pauses == [2.0, 2.0]


# --- a database that is away


class FlakyQueue(JobQueue):
    """Away so many times, whatever is asked."""

    def __init__(self, url: str, now: Callable[[], int]) -> None:
        super().__init__(url, now=now)
        self.away = {"take": 0, "finish": 0}

    def _refuse(self, name: str) -> None:
        if self.away[name]:
            self.away[name] -= 1
            raise DatabaseAwayError("away", where="database")

    def take(self, *arguments: Any, **named: Any) -> Job | None:
        self._refuse("take")
        return super().take(*arguments, **named)

    def finish(self, job: Job, result: bytes) -> bool:
        self._refuse("finish")
        return super().finish(job, result)


@pytest.fixture
def flaky(tmp_path: Path, hands: Hands) -> Iterator[FlakyQueue]:
    with FlakyQueue(f"sqlite:///{tmp_path}/jobs.db", hands) as found:
        found.add(RUN, steps(1))
        yield found


@pytest.mark.parametrize("name", ["take", "finish"])
def test_a_database_that_is_away_is_waited_for(flaky: FlakyQueue, hands: Hands, name: str) -> None:
    flaky.away[name] = 9
    assert run_once(flaky, prove, hands) == 1
    assert hands.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert [bundle for _, bundle in flaky.results(RUN)] == [
        b"proof of " + str(steps(1)[0]).encode()
    ]


@pytest.mark.parametrize(("name", "left"), [("take", "waiting"), ("finish", "taken")])
def test_patience_ends(flaky: FlakyQueue, hands: Hands, name: str, left: str) -> None:
    flaky.away[name] = 1000
    with pytest.raises(DatabaseAwayError):
        work(flaky, prove, pace=hands.pace(patience=7.5))
    assert hands.pauses == [0.5, 1.0, 2.0, 4.0]
    count(flaky, **{left: 1})


def test_stop_ends_the_waiting_for_a_database(flaky: FlakyQueue) -> None:
    flaky.away["take"] = 1000
    stop = threading.Event()
    pace = Pace(wait=lambda event, seconds: stop.set())
    assert work(flaky, prove, stop=stop, pace=pace) == 0


def test_a_postgres_that_refuses_and_comes_back(postgres: PostgresServer, hands: Hands) -> None:
    url = postgres.make_database()
    name = make_url(url).database

    def admit(admitted: bool) -> None:
        with psycopg.connect(postgres._url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {admitted}".encode())
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )

    def wait(event: threading.Event, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            hands.pauses.append(seconds)
            admit(True)

    with JobQueue(url, now=hands) as found:

        def handler(job: Job, progress: Progress, cancelled: threading.Event) -> bytes:
            admit(False)
            with pytest.raises(DatabaseAwayError):
                found.status(RUN)
            return b"proof"

        found.add(RUN, steps(1))
        assert work(found, handler, once=True, pace=Pace(wait=wait)) == 1
        assert hands.pauses == [0.5]
        count(found, done=1)


# --- what else may be in the table


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("statement", b"", "statement: byte 0: an item is missing"),
        ("statement", b"\xff" * 9, "statement: byte 0"),
        ("statement", encode_item(Item("step", 1)) + b"\0", "trailing bytes"),
        ("statement", bytes.fromhex("a2646b696e6464737465706473746570") + b"\0", "statement.step"),
        ("statement", bytes(65), "more than 64"),
        ("statement", encode_item(Item("tile", 1, 1)), "kind: is not that"),
        ("run_id", bytes(31), "run_id: has 31 bytes"),
        ("most", -1, "most: is no count"),
    ],
)
def test_a_job_that_holds_what_none_can(
    url: str, queue: JobQueue, column: str, value: object, what: str
) -> None:
    (number,) = queue.add(RUN, steps(1))
    run_id = bytes(31) if column == "run_id" else RUN
    spoil(url, column, value)
    queue.add(OTHER, steps(2))
    # Its taker gets the next one; what is wrong is told.
    assert take(queue).statement == Item("step", 2)
    with pytest.raises(EncodingError, match=what) as caught:
        queue.status(run_id)
    assert caught.value.where.startswith(f"job {number}.")
    spoil(url, "state", "done")
    with pytest.raises(EncodingError, match=what):
        list(queue.results(run_id))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("statement", "text"),
        ("statement", 10**12),
        ("run_id", 5),
        ("attempts", "many"),
        ("most", 1.5),
        ("worker", b"ann"),
        ("worker", "x" * 300),
        ("done", "half"),
        ("error", b"none"),
        ("due", "tomorrow"),
        ("updated", -1),
    ],
)
def test_sqlite_may_hold_anything_in_any_column(tmp_path: Path, column: str, value: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with JobQueue(url, now=Hands()) as queue:
        queue.add(RUN, steps(1))
        spoil(url, "state", "taken")
        spoil(url, column, value)
        if column == "run_id":
            assert queue.take("ann") is None
        else:
            with pytest.raises(EncodingError, match=rf"job 1\.{column}"):
                queue.status(RUN)


@pytest.mark.parametrize("value", [None, b"x" * (BOUNDS.bundle_bytes + 1)])
def test_results_that_are_no_bundles(url: str, queue: JobQueue, value: object) -> None:
    queue.add(RUN, steps(1))
    spoil_all_done(queue)
    spoil(url, "result", value)
    with pytest.raises(EncodingError, match="is no bundle"):
        list(queue.results(RUN))


def test_a_job_of_more_attempts_than_it_has(url: str, queue: JobQueue) -> None:
    queue.add(RUN, steps(1))
    spoil(url, "attempts", 2**31 - 1)
    queue.add(RUN, steps(2))
    assert take(queue).statement == Item("step", 2)
    count(queue, failed=1, taken=1)


def test_an_unknown_state(url: str, queue: JobQueue) -> None:
    queue.add(RUN, steps(1))
    spoil(url, "state", "lurking")
    with pytest.raises(EncodingError, match="'lurking' is no state"):
        queue.status(RUN)
    assert queue.take("ann") is None


def test_what_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise " * 1000)
    with pytest.raises(StorageError, match="not a database"):
        JobQueue(f"sqlite:///{tmp_path}/noise")
    for url in ("noise", "mysql://host/jobs", "sqlite://"):
        with pytest.raises(StorageError):
            JobQueue(url)
    with pytest.raises(DatabaseAwayError, match="unable to open"):
        JobQueue(f"sqlite:///{tmp_path}/no/folder.db")


def test_a_queue_that_is_not_there_is_not_made(url: str, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(StorageError, match="there is no queue"):
            JobQueue(url, make=False)
    assert set(tmp_path.iterdir()) == before
    with pytest.raises(StorageError, match="is no database URL"):
        JobQueue("noise", make=False)
    with JobQueue(url) as queue:
        queue.add(RUN, steps(1))
    with JobQueue(url, make=False) as queue:
        count(queue, waiting=1)


def test_a_file_that_holds_other_tables_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StorageError, match="there is no queue"):
        JobQueue(f"sqlite:///{tmp_path}/empty.db", make=False)


def test_a_table_of_another_version(url: str) -> None:
    with JobQueue(url) as queue, queue._db.write() as connection:
        connection.execute(text("ALTER TABLE proof_jobs RENAME COLUMN stage TO phase"))
    with pytest.raises(StorageError, match="of another version"):
        JobQueue(url)


def test_a_view_in_place_of_the_table(tmp_path: Path) -> None:
    """One without end."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with JobQueue(url) as queue, queue._db.write() as connection:
        columns = ", ".join(f"0 AS {column}" for column in job_table.c.keys()[1:])
        connection.execute(text("DROP TABLE proof_jobs"))
        connection.execute(
            text(
                "CREATE VIEW proof_jobs AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL "  # noqa: S608
                f"SELECT i + 1 FROM r) SELECT i AS number, {columns} FROM r"
            )
        )
    with pytest.raises(StorageError, match="of another version"):
        JobQueue(url)


# --- files


def test_paths_of_proofs(tmp_path: Path) -> None:
    assert proof_path(tmp_path, Item("step", 50)) == tmp_path / "proofs/step-000000000050.cbor"
    tile = proof_path(tmp_path, Item("tile", 50, 7))
    assert tile == tmp_path / "proofs/tile-000000000050-000000000007.cbor"


def test_a_proof_is_written_once_and_never_replaced(tmp_path: Path) -> None:
    one, two = steps(1, 2)
    with pytest.raises(NotProducedError):
        read_proof_file(tmp_path, one)
    assert write_proof_file(tmp_path, one, b"first")
    assert not write_proof_file(tmp_path, one, b"second")
    assert read_proof_file(tmp_path, one) == b"first"
    assert find_missing(tmp_path, [two, one]) == [two]
    with pytest.raises(EncodingError):
        write_proof_file(tmp_path, two, bytes(BOUNDS.bundle_bytes + 1))
    with pytest.raises(StorageError):
        write_proof_file(tmp_path / "none", two, b"")
    assert find_missing(tmp_path, [two, one]) == [two]


def test_of_many_writers_one_wins(tmp_path: Path) -> None:
    (statement,) = steps(1)
    bundles = [bytes([i]) * 50_000 for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda b: write_proof_file(tmp_path, statement, b), bundles))
    assert sum(won) == 1
    assert read_proof_file(tmp_path, statement) == bundles[won.index(True)]


def test_collecting_puts_the_missing_proofs_into_the_run(
    queue: JobQueue, hands: Hands, tmp_path: Path
) -> None:
    queue.add(RUN, steps(1, 2, 3))
    write_proof_file(tmp_path, steps(2)[0], b"older")
    assert run_once(queue, prove, hands) == 3
    assert collect(queue, RUN, tmp_path) == 2
    assert collect(queue, RUN, tmp_path) == 0
    assert read_proof_file(tmp_path, steps(2)[0]) == b"older"
    assert read_proof_file(tmp_path, steps(3)[0]) == b"proof of " + str(steps(3)[0]).encode()
