"""A queue of proofs to make, in a table of a database, and the loop of a worker on it.

Several processes, and with PostgreSQL several machines, take jobs from one queue.  Whoever takes a
job holds it on a lease, which heartbeats extend; the job of a worker that is not heard of is taken
by another once the lease has run out.  A worker that lost its job can no longer finish it: every
change of a taken job demands the lease's own random name.  So each job ends once, though its proof
may be made twice.

The queue decides nothing about proofs: what is in it, from a database that anyone may have written
to, is the verifier's to judge.

Needs SQLAlchemy: ``require_extra("sqlalchemy")`` says so before this module is imported.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    RowMapping,
    String,
    Table,
    UniqueConstraint,
    and_,
    extract,
    func,
    insert,
    inspect,
    make_url,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError

from vtrain.commit.database import Database, DatabaseAwayError, make_metadata
from vtrain.errors import EncodingError, MissingExtraError, StorageError, VtrainError
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import CallFailedError, TimeLimitError
from vtrain.prove.backend.srs import Progress
from vtrain.prove.openings import require_unopened
from vtrain.prove.proof_files import (
    Item,
    decode_item,
    encode_item,
    proof_path,
    write_proof_file,
)
from vtrain.wire.bundle import KINDS, Kind
from vtrain.wire.proof import COMMITMENT_LENGTH

T = TypeVar("T")
State = Literal["waiting", "taken", "done", "failed", "cancelled"]
STATES: Final[tuple[State, ...]] = ("waiting", "taken", "done", "failed", "cancelled")
Standing = Literal["held", "cancelled", "lost"]

MAX_ATTEMPTS: Final = 3
LEASE_SECONDS: Final = 60.0
MAX_WORKER: Final = 255
MAX_STAGE: Final = 64
MAX_ERROR: Final = 2000
"""Characters of a worker's name, of a stage and of an error; longer ones are cut."""
_MAX_COUNT: Final = 2**62
_PAGE: Final = 500

metadata = make_metadata()

jobs = Table(
    "proof_jobs",
    metadata,
    # SQLite numbers rows by itself only in a column of its type INTEGER, which has 64 bits too.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run_id", LargeBinary(32), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("statement", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("most", Integer, nullable=False),
    Column("worker", String(MAX_WORKER), nullable=False),
    Column("lease", LargeBinary(16), nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("stage", String(MAX_STAGE), nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("error", String(MAX_ERROR), nullable=False),
    Column("result", LargeBinary),
    Column("created", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    UniqueConstraint("run_id", "statement"),
    Index(None, "state", "run_id"),
)
"""``most`` attempts are made; ``worker`` is the last that took the job, ``lease`` the random name
of its lease, which runs out at ``due``; times are in milliseconds of Unix time."""

openings = Table(
    "proof_openings",
    metadata,
    Column("commitment", LargeBinary(COMMITMENT_LENGTH), primary_key=True),
    Column("count", Integer, nullable=False),
)
"""How many proofs open the column behind each commitment, whatever became of them."""

_VIEW: Final = [column for column in jobs.c if column.name != "result"]


@dataclass(frozen=True)
class Job:
    """A job that a worker took: the ``attempt``-th attempt of at most ``most``, on the lease of the
    random name ``lease``, good for ``lease_ms`` from each heartbeat."""

    number: int
    run_id: bytes
    statement: Item
    attempt: int
    most: int
    lease: bytes
    lease_ms: int


@dataclass(frozen=True)
class JobProgress:
    """The ``stage`` a job is in, and ``done`` of ``total`` parts."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class JobView:
    """A job as it stands in the table; ``due``, when its lease runs out, and ``updated``, when it
    was last heard of, in milliseconds of Unix time by the queue's clock."""

    number: int
    run_id: bytes
    statement: Item
    state: State
    attempts: int
    most: int
    worker: str
    progress: JobProgress
    error: str
    due: int
    updated: int


@dataclass(frozen=True)
class RunStatus:
    """How many jobs of a run are in each state; those taken; and those that have failed, or wait
    for another attempt after an error.  ``now`` is what the queue's clock showed."""

    counts: Mapping[State, int]
    taken: tuple[JobView, ...]
    troubled: tuple[JobView, ...]
    now: int


class JobQueue:
    """The queue in the database at ``url``: ``sqlite:///PATH`` or ``postgresql://...``.

    ``now`` tells milliseconds of Unix time.  By default it is the clock of the database's server,
    since machines disagree; for SQLite, whose file is on one machine, that of the machine.
    A queue that is not there is made, unless ``make`` is false: then it is a StorageError.
    StorageError for whatever fails in the database, DatabaseAwayError where that may pass.
    """

    def __init__(
        self, url: str, *, now: Callable[[], int] | None = None, make: bool = True
    ) -> None:
        self._clock = now
        if not make:
            _require_file(url)
        self._db = Database(url, _make_tables if make else _require_tables)

    def close(self) -> None:
        """Close all connections."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- of those who want proofs

    def add(
        self, run_id: bytes, statements: Iterable[Item], *, max_attempts: int = MAX_ATTEMPTS
    ) -> list[int]:
        """Numbers of the jobs that prove ``statements`` of a run, made where there are none yet.

        A job that is there stays as it is, in whatever state.  EncodingError for a statement, or a
        run's id, that is none.
        """
        if len(run_id) != 32:
            raise EncodingError(f"has {len(run_id)} bytes, not 32", where="run_id")
        encoded = [(statement.kind, encode_item(statement)) for statement in statements]
        numbers: dict[bytes, int] = {}
        with self._db.write() as connection:
            # Two that add the same in another order would wait for each other.
            self._db.lock(connection)
            now = self._now(connection)
            common = {
                "run_id": run_id,
                "state": "waiting",
                "attempts": 0,
                "most": max(max_attempts, 1),
                "worker": "",
                "lease": b"",
                "due": 0,
                "stage": "",
                "done": 0,
                "total": 0,
                "error": "",
                "created": now,
                "updated": now,
            }
            insert_new = postgresql.insert if self._db.is_postgres else sqlite.insert
            for page in _pages(encoded):
                rows = [common | {"kind": kind, "statement": data} for kind, data in page]
                connection.execute(insert_new(jobs).on_conflict_do_nothing(), rows)
                found = connection.execute(
                    select(jobs.c.number, jobs.c.statement).where(
                        jobs.c.run_id == run_id, jobs.c.statement.in_([data for _, data in page])
                    )
                )
                numbers.update({row.statement: row.number for row in found})
        return [numbers[data] for _, data in encoded]

    def cancel(self, which: bytes | Collection[int]) -> int:
        """Cancel the jobs of a run, or of these numbers, that are not yet settled; how many.

        Whoever works on one hears of it at the next heartbeat.
        """
        return self._change(which, ("waiting", "taken"), {"state": "cancelled"})

    def retry(self, which: bytes | Collection[int]) -> int:
        """Have failed and cancelled jobs done anew, with all their attempts; how many."""
        return self._change(
            which, ("failed", "cancelled"), {"state": "waiting", "attempts": 0, "error": ""}
        )

    def status(self, run_id: bytes) -> RunStatus:
        """How the jobs of a run stand; EncodingError names a job that holds what none can."""
        of_run = jobs.c.run_id == run_id
        troubled = or_(
            jobs.c.state == "failed", and_(jobs.c.state == "waiting", jobs.c.error != "")
        )
        with self._db.read() as connection:
            tally = connection.execute(
                select(jobs.c.state, func.count()).where(of_run).group_by(jobs.c.state)
            ).all()
            notable = and_(of_run, or_(jobs.c.state == "taken", troubled))
            views = _read_views(connection, notable, None)
            now = self._now(connection)
        counts: dict[State, int] = dict.fromkeys(STATES, 0)
        for state, count in tally:
            if state not in STATES:
                raise EncodingError(f"{state!r} is no state", where="proof_jobs.state")
            counts[state] = count
        return RunStatus(
            MappingProxyType(counts),
            tuple(view for view in views if view.state == "taken"),
            tuple(view for view in views if view.state != "taken"),
            now,
        )

    def find_waiting(self, run_id: bytes) -> set[int]:
        """Numbers of the jobs of a run that wait."""
        waiting = and_(jobs.c.run_id == run_id, jobs.c.state == "waiting")
        with self._db.read() as connection:
            return set(connection.execute(select(jobs.c.number).where(waiting)).scalars())

    def is_settled(
        self,
        run_id: bytes | None = None,
        kinds: Collection[Kind] = KINDS,
        only: Collection[int] | None = None,
    ) -> bool:
        """No job is waiting or taken, of a run, of kinds and of numbers where they are named."""
        pending = jobs.c.state.in_(("waiting", "taken"))
        with self._db.read() as connection:
            return all(
                connection.execute(select(jobs.c.number).where(pending, some).limit(1)).first()
                is None
                for some in _choose(run_id, kinds, only)
            )

    def results(
        self, run_id: bytes, wanted: Callable[[Item], bool] = lambda statement: True
    ) -> Iterator[tuple[Item, bytes]]:
        """Statements of a run that are proven, with their bundles, in order of adding.

        Bundles are read one by one, and only those of ``wanted`` statements.  EncodingError names a
        job that holds what none can.
        """
        last = 0
        while True:
            finished = and_(jobs.c.run_id == run_id, jobs.c.state == "done", jobs.c.number > last)
            with self._db.read() as connection:
                views = _read_views(connection, finished, _PAGE)
            for view in views:
                last = view.number
                if wanted(view.statement):
                    yield view.statement, self._read_result(last)
            if len(views) < _PAGE:
                return

    def count_openings(self, commitments: Collection[bytes]) -> None:
        """Count that a proof is about to open these columns (``vtrain.prove.openings``).

        OpeningsError where one has been opened as often as it may: then nothing is counted.
        """
        with self._db.write() as connection:
            self._db.lock(connection)
            for commitment in sorted(set(commitments)):
                is_it = openings.c.commitment == commitment
                count = connection.execute(select(openings.c.count).where(is_it)).scalar()
                require_unopened(commitment, count or 0)
                if count is None:
                    row = {"commitment": commitment, "count": 1}
                    connection.execute(insert(openings).values(row))
                else:
                    connection.execute(update(openings).where(is_it).values(count=count + 1))

    # --- of workers

    def take(
        self,
        worker: str,
        lease_seconds: float = LEASE_SECONDS,
        *,
        run_id: bytes | None = None,
        kinds: Collection[Kind] = KINDS,
        only: Collection[int] | None = None,
    ) -> Job | None:
        """The next job, of a run, of kinds and of numbers where they are named, if there is one.

        Those with the fewest attempts come first.  One whose lease ran out is taken anew, or has
        failed if that was its last attempt.  A job that holds what none can fails, too.
        """
        lease, lease_ms = secrets.token_bytes(16), round(lease_seconds * 1000)
        with self._db.write() as connection:
            now = self._now(connection)
            overdue = and_(jobs.c.state == "taken", jobs.c.due <= now)
            free = or_(jobs.c.state == "waiting", overdue)
            connection.execute(
                update(jobs)
                .where(free, jobs.c.attempts >= jobs.c.most)
                .values(state="failed", error="its worker was not heard of again", updated=now)
            )
            taken = {
                "state": "taken",
                "attempts": jobs.c.attempts + 1,
                "worker": _clean(worker, MAX_WORKER),
                "lease": lease,
                "due": now + lease_ms,
                "stage": "",
                "done": 0,
                "total": 0,
                "updated": now,
            }
            for some in _choose(run_id, kinds, only):
                view = _take_one(connection, and_(free, some), taken)
                if view is not None:
                    return Job(
                        number=view.number,
                        run_id=view.run_id,
                        statement=view.statement,
                        attempt=view.attempts,
                        most=view.most,
                        lease=lease,
                        lease_ms=lease_ms,
                    )
        return None

    def heartbeat(self, job: Job, progress: JobProgress) -> Standing:
        """Extend the lease and say how far the job is; whether it is still held, and if not, why.

        A lease that ran out is extended too, as long as nobody else took the job.
        """
        with self._db.write() as connection:
            now = self._now(connection)
            beating = update(jobs).values(
                due=now + job.lease_ms,
                stage=_clean(progress.stage, MAX_STAGE),
                done=_clip(progress.done),
                total=_clip(progress.total),
                updated=now,
            )
            if connection.execute(beating.where(_is_held(job))).rowcount == 1:
                return "held"
            state = connection.execute(select(jobs.c.state).where(_has_lease(job))).scalar()
        return "cancelled" if state == "cancelled" else "lost"

    def finish(self, job: Job, result: bytes) -> bool:
        """Store the bundle; False, and nothing is stored, unless the job is still held.

        Repeated, it answers the same.  EncodingError for a bundle that is too long.
        """
        if len(result) > LIMITS.bundle_bytes:
            raise EncodingError(
                f"has {len(result)} bytes, more than {LIMITS.bundle_bytes}", where="result"
            )
        return self._settle(job, {"state": "done", "result": result, "error": ""})

    def fail(self, job: Job, error: str, retry: bool) -> bool:
        """Say why an attempt failed; with ``retry``, another follows unless it was the last.

        False, and nothing is changed, unless the job is still held.
        """
        state: State = "waiting" if retry and job.attempt < job.most else "failed"
        return self._settle(job, {"state": state, "error": _clean(error, MAX_ERROR)})

    def give_back(self, job: Job) -> bool:
        """Let go of a job, as if it had not been taken; False unless it is still held."""
        return self._settle(job, {"state": "waiting", "attempts": jobs.c.attempts - 1})

    def _now(self, connection: Connection) -> int:
        if self._clock is not None:
            return self._clock()
        if not self._db.is_postgres:
            return time.time_ns() // 1_000_000
        seconds = extract("epoch", func.clock_timestamp())
        return int(connection.execute(select(seconds * 1000)).scalar_one())

    def _settle(self, job: Job, values: Mapping[str, Any]) -> bool:
        with self._db.write() as connection:
            changed = connection.execute(
                update(jobs)
                .where(_is_held(job))
                .values(**values, stage="", done=0, total=0, updated=self._now(connection))
            )
            if changed.rowcount == 1:
                return True
            # An earlier call may have been stored, and its answer lost.
            state = connection.execute(select(jobs.c.state).where(_has_lease(job))).scalar()
        return state is not None and state == values["state"]

    def _change(
        self, which: bytes | Collection[int], states: Sequence[State], values: Mapping[str, Any]
    ) -> int:
        chosen: list[ColumnElement[bool]]
        if isinstance(which, bytes):
            chosen = [jobs.c.run_id == which]
        else:
            chosen = [jobs.c.number.in_(page) for page in _pages(sorted(which))]
        with self._db.write() as connection:
            now = self._now(connection)
            return sum(
                connection.execute(
                    update(jobs).where(some, jobs.c.state.in_(states)).values(**values, updated=now)
                ).rowcount
                for some in chosen
            )

    def _read_result(self, number: int) -> bytes:
        size = func.length(jobs.c.result)
        with self._db.read() as connection:
            row = connection.execute(
                select(jobs.c.result).where(jobs.c.number == number, size <= LIMITS.bundle_bytes)
            ).first()
        if row is None or not isinstance(row[0], bytes):
            raise EncodingError("is no bundle", where=f"job {number}.result")
        return row[0]


def collect(queue: JobQueue, run_id: bytes, run: Path) -> int:
    """Put the bundles of a run into its directory ``run``, where it has none; how many were put."""
    missing = queue.results(run_id, lambda statement: not proof_path(run, statement).exists())
    return sum(write_proof_file(run, statement, bundle) for statement, bundle in missing)


Handler = Callable[[Job, Progress, threading.Event], bytes]
"""Makes the bundle of a job.  Tells how far it is; should end, by an error, once the event is set:
the job was cancelled or lost, and nobody waits for the bundle."""


@dataclass(frozen=True)
class Pace:
    """How long a worker waits, in seconds, and how: ``wait`` returns early once its event is set.

    ``poll``: before it asks again for a job.  ``first`` and ``longest``: when the database is away,
    doubled from the one to the other, until it has waited for ``patience`` in all.
    """

    poll: float = 2.0
    first: float = 0.5
    longest: float = 30.0
    patience: float = 600.0
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


PACE: Final = Pace()


def name_worker() -> str:
    """Of this machine and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def work(
    queue: JobQueue,
    handler: Handler,
    *,
    worker: str = "",
    run_id: bytes | None = None,
    kinds: Collection[Kind] = KINDS,
    only: Collection[int] | None = None,
    stop: threading.Event | None = None,
    once: bool = False,
    idle: Callable[[], None] = lambda: None,
    lease_seconds: float = LEASE_SECONDS,
    pace: Pace = PACE,
) -> int:
    """Take jobs and have ``handler`` do them, one at a time, in this thread; how many it finished.

    Of a run, of kinds and of numbers (``only``) where they are named.  Ends when ``stop`` is set,
    after the job at hand.  With ``once``, ends when no such job is waiting or taken any more: those
    that others hold are waited for, since they may come free.  ``idle`` is called before each wait
    for a job.

    An error of ``handler`` fails the job, for good where another attempt would end as this one did:
    when ezkl refused a call or took longer than it was allowed, or the fault is in what was to be
    proven (``VtrainError.fault``).  Where the process died or ran out of memory, or the system
    refused something, other attempts follow, perhaps elsewhere.  A MissingExtraError is about this
    machine, so it is raised and the job given back, as it is when the worker is interrupted
    (KeyboardInterrupt, SystemExit).  Any other exception is a defect: it counts as an attempt, and
    is raised.

    A database that is away is waited for, as ``pace`` says; then DatabaseAwayError is raised.
    """
    stop = threading.Event() if stop is None else stop
    name = worker or name_worker()
    finished = 0

    def take() -> Job | None:
        return queue.take(name, lease_seconds, run_id=run_id, kinds=kinds, only=only)

    while not stop.is_set():
        job = _persist(take, pace, stop)
        if job is not None:
            finished += _do(queue, job, handler, pace)
        elif once and _persist(lambda: queue.is_settled(run_id, kinds, only), pace, stop):
            break
        else:
            idle()
            pace.wait(stop, pace.poll)
    return finished


def _do(queue: JobQueue, job: Job, handler: Handler, pace: Pace) -> bool:
    """Do one job; whether it was finished."""
    try:
        with _Beating(queue, job, pace) as beating:
            result = handler(job, beating.report, beating.cancelled)
            return bool(_persist(lambda: queue.finish(job, result), pace))
    except DatabaseAwayError:
        raise  # the lease runs out
    except (KeyboardInterrupt, SystemExit, MissingExtraError):
        with suppress(StorageError):
            queue.give_back(job)
        raise
    except VtrainError as error:
        message, retry = str(error), _may_pass(error)
        _persist(lambda: queue.fail(job, message, retry), pace)
        return False
    except BaseException as error:
        with suppress(StorageError):
            queue.fail(job, f"a defect: {type(error).__name__}: {error}", True)
        raise


def _may_pass(error: VtrainError) -> bool:
    return error.fault == "nobody" and not isinstance(error, CallFailedError | TimeLimitError)


class _Beating:
    """Heartbeats of a job, from a thread of its own, until the job is done or no longer ours."""

    def __init__(self, queue: JobQueue, job: Job, pace: Pace) -> None:
        self.cancelled = threading.Event()
        self._queue, self._job, self._pace = queue, job, pace
        self._progress = JobProgress("", 0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="vtrain-heartbeat", daemon=True)

    def report(self, stage: str, done: int, total: int) -> None:
        """What the next heartbeat tells."""
        self._progress = JobProgress(stage, done, total)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _loop(self) -> None:
        seconds = self._job.lease_ms / 1000 / _BEATS
        while True:
            self._pace.wait(self._over, seconds)
            if self._over.is_set():
                return
            # A beat that fails is missed: whether the lease outlives it, a later one will tell.
            with suppress(StorageError):
                if self._queue.heartbeat(self._job, self._progress) != "held":
                    self.cancelled.set()
                    return


_BEATS: Final = 6
"""Heartbeats in the time of a lease."""


def _persist(call: Callable[[], T], pace: Pace, stop: threading.Event | None = None) -> T | None:
    """What ``call`` returns, once the database is there; None when ``stop`` is set before."""
    event = threading.Event() if stop is None else stop
    waited, seconds = 0.0, pace.first
    while True:
        try:
            return call()
        except DatabaseAwayError:
            if waited >= pace.patience:
                raise
        pace.wait(event, seconds)
        if event.is_set():
            return None
        waited, seconds = waited + seconds, min(2 * seconds, pace.longest)


def _make_tables(connection: Connection) -> None:
    metadata.create_all(connection)
    # A view of that name may be anything, such as one without end.
    is_table = jobs.name in inspect(connection).get_table_names()
    found = {column["name"] for column in inspect(connection).get_columns(jobs.name)}
    if not is_table or found != set(jobs.c.keys()):
        raise StorageError(f"the table {jobs.name} is of another version of vtrain", where="db")


def _require_file(url: str) -> None:
    """StorageError where a queue of SQLite has no file yet: to open it would make it."""
    with suppress(ArgumentError):  # Database says more of what is no URL
        parsed = make_url(url)
        file = parsed.database
        if parsed.get_backend_name() == "sqlite" and file and not Path(file).exists():
            raise StorageError(_NO_QUEUE, where=f"database {file}")


def _require_tables(connection: Connection) -> None:
    if jobs.name not in inspect(connection).get_table_names():
        raise StorageError(_NO_QUEUE, where="db")
    _make_tables(connection)


_NO_QUEUE: Final = "there is no queue: vtrain prove RUN makes one, with what is to be proven"


def _choose(
    run_id: bytes | None, kinds: Collection[Kind], only: Collection[int] | None
) -> Iterator[ColumnElement[bool]]:
    """Conditions, one or another of which the jobs meet that somebody may take: databases bound
    how many numbers one condition may name."""
    chosen: ColumnElement[bool] = jobs.c.kind.in_(kinds)
    if run_id is not None:
        chosen = and_(chosen, jobs.c.run_id == run_id)
    if only is None:
        yield chosen
        return
    for page in _pages(sorted(only)):
        yield and_(chosen, jobs.c.number.in_(page))


def _take_one(
    connection: Connection, free: ColumnElement[bool], taken: Mapping[str, Any]
) -> JobView | None:
    """The first of the ``free`` jobs, now ``taken``; those that hold what none can have failed."""
    # SQLite has one writer at a time; in PostgreSQL each skips what another is taking.
    chosen = (
        select(jobs.c.number)
        .where(free)
        .order_by(jobs.c.attempts, jobs.c.number)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    taking = update(jobs).where(jobs.c.number == chosen).values(taken).returning(*_VIEW)
    while (row := connection.execute(taking).mappings().first()) is not None:
        try:
            return _view(row)
        except EncodingError as error:
            failed = {"state": "failed", "error": _clean(str(error), MAX_ERROR)}
            connection.execute(update(jobs).where(jobs.c.number == row["number"]).values(failed))
    return None


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _PAGE):
        yield items[start : start + _PAGE]


def _has_lease(job: Job) -> ColumnElement[bool]:
    return and_(jobs.c.number == job.number, jobs.c.lease == job.lease)


def _is_held(job: Job) -> ColumnElement[bool]:
    return and_(_has_lease(job), jobs.c.state == "taken")


def _clean(text: str, most: int) -> str:
    """Text that any database stores: printable, and not too long."""
    return "".join(c if c.isprintable() else " " for c in text[:most])


def _clip(count: int) -> int:
    return min(max(count, 0), _MAX_COUNT)


def _read_views(
    connection: Connection, condition: ColumnElement[bool], limit: int | None
) -> list[JobView]:
    query = select(*_VIEW).where(condition).order_by(jobs.c.number).limit(limit)
    return [_view(row) for row in connection.execute(query).mappings()]


def _view(row: RowMapping) -> JobView:
    """A row of the table, which may hold anything; EncodingError names the job and the column."""
    reader = _RowReader(row)
    state = reader.text("state", 16)
    if state not in STATES:
        raise reader.refuse("state", f"{state!r} is none")
    try:
        statement = decode_item(reader.octets("statement"))
    except EncodingError as error:
        raise reader.refuse("statement", f"{error.where}: {error.message}") from None
    if reader.text("kind", 8) != statement.kind:
        raise reader.refuse("kind", "is not that of the statement")
    run_id = reader.octets("run_id")
    if len(run_id) != 32:
        raise reader.refuse("run_id", f"has {len(run_id)} bytes, not 32")
    return JobView(
        number=row["number"],
        run_id=run_id,
        statement=statement,
        state=state,
        attempts=reader.count("attempts"),
        most=reader.count("most"),
        worker=reader.text("worker", MAX_WORKER),
        progress=JobProgress(
            reader.text("stage", MAX_STAGE), reader.count("done"), reader.count("total")
        ),
        error=reader.text("error", MAX_ERROR),
        due=reader.count("due"),
        updated=reader.count("updated"),
    )


class _RowReader:
    """Checks the type and the bounds of columns; EncodingError names the job and the column."""

    def __init__(self, row: RowMapping) -> None:
        self._row = row

    def refuse(self, name: str, message: str) -> EncodingError:
        return EncodingError(message, where=f"job {self._row['number']}.{name}")

    def octets(self, name: str) -> bytes:
        value = self._row[name]
        if not isinstance(value, bytes):
            raise self.refuse(name, f"is {type(value).__name__}, not bytes")
        return value

    def text(self, name: str, most: int) -> str:
        value = self._row[name]
        if not isinstance(value, str) or len(value) > most:
            raise self.refuse(name, f"is no text of at most {most} characters")
        return value

    def count(self, name: str) -> int:
        value = self._row[name]
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise self.refuse(name, "is no count")
        return value
