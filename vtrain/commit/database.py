"""Databases: a file of SQLite's (write-ahead log, every commit synced to disk) or PostgreSQL.

Needs SQLAlchemy, which the extras ``zk`` and ``server`` bring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from vtrain.commit.files import require_file
from vtrain.errors import MissingExtraError, StorageError

CONNECT_SECONDS: Final = 10
LOCK_SECONDS: Final = 10
"""For which a transaction on PostgreSQL waits for another's lock."""
IDLE_SECONDS: Final = 30
"""For which one may stand still: that of a process that hangs is undone."""
_NAMES: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class DatabaseAwayError(StorageError):
    """The database does not answer, or is busy: the same may work later."""


class Database:
    """Connections to the database at ``url``; StorageError for whatever fails in it.

    ``prepare`` makes or upgrades the tables, in one transaction, one process at a time.  A
    PostgreSQL that does not answer within the URL's ``connect_timeout``, by default
    CONNECT_SECONDS, is a DatabaseAwayError, as is all that the system or the server refuses now and
    may grant later.
    """

    def __init__(self, url: str, prepare: Callable[[Connection], None]) -> None:
        self._engine = make_engine(url)
        self._writer = self._engine.execution_options(vtrain_writes=True)
        with storing(_describe(self._engine.url)), self._writer.begin() as connection:
            self.lock(connection)  # two that start at once: the second finds nothing to do
            prepare(connection)

    @property
    def is_postgres(self) -> bool:
        """PostgreSQL, not SQLite."""
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads."""
        with storing(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write, committed at the end unless something is raised."""
        with storing(), self._writer.begin() as connection:
            yield connection

    def connect(self) -> Connection:
        """A connection for one transaction that writes after another, which its owner closes.

        It saves what taking one from the pool costs each time; ``storing`` is the owner's, too.
        """
        return self._writer.connect()

    def lock(self, connection: Connection) -> None:
        """Wait until no other transaction that called this is under way.

        In SQLite that holds of every transaction that writes.
        """
        if self.is_postgres:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7669260)")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def make_metadata() -> MetaData:
    """Of a set of tables whose constraints have names, as migrations need them."""
    return MetaData(naming_convention=_NAMES)


@contextmanager
def storing(where: str = "database") -> Iterator[None]:
    """Failures of the database as StorageError; clients are told no more of where it is."""
    try:
        yield
    except SQLAlchemyError as error:
        # The statement and its parameters, which SQLAlchemy appends, are nobody else's business.
        message = str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0]
        away = isinstance(error, OperationalError | InterfaceError)
        raise (DatabaseAwayError if away else StorageError)(message, where=where) from error


def require_postgres() -> None:
    """MissingExtraError, with the command that installs it, unless PostgreSQL's driver is there."""
    if find_spec("psycopg") is None:
        raise MissingExtraError(
            f"psycopg missing: {sys.executable} -m pip install 'vtrain[postgres]'",
            where="[postgres]",
        )


def make_engine(url: str) -> Engine:
    """For a URL ``sqlite:///PATH`` or ``postgresql://...``; nothing is opened yet."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StorageError("is no database URL, such as sqlite:///PATH", where="db") from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        require_postgres()
        if "connect_timeout" not in parsed.query:
            parsed = parsed.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})
        engine = create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=32,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # whatever the server's default is
            hide_parameters=True,
        )
        event.listen(engine, "connect", _set_up_postgres)
        return engine
    if kind != "sqlite":
        raise StorageError(f"{kind} is not supported; sqlite and postgresql are", where="db")
    if not parsed.database or parsed.database == ":memory:":
        raise StorageError("needs a file: sqlite:///PATH", where="db")
    file = Path(parsed.database)
    if file.exists():
        require_file(file, error=StorageError)  # SQLite would wait for whoever writes into a pipe
    try:
        engine = create_engine(
            parsed, pool_size=32, connect_args={"timeout": 30}, hide_parameters=True
        )
    except (ArgumentError, NoSuchModuleError, TypeError) as error:
        raise StorageError("is no database URL, such as sqlite:///PATH", where="db") from error
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _describe(url: URL) -> str:
    """Which database, without user and password."""
    if url.get_backend_name() == "sqlite":
        return f"database {url.database}"
    port = "" if url.port is None else f":{url.port}"
    return f"database {url.database or ''} at {url.host or 'its local socket'}{port}"


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin as _begin_sqlite says
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")


def _set_up_postgres(connection: Any, _record: object) -> None:
    # A process that stops in mid-transaction keeps its locks: it loses them, and nobody waits for
    # them for ever.  A commit that was answered is on disk, whatever the server's default is.
    settings = {
        "lock_timeout": f"{LOCK_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
        "synchronous_commit": "on",
    }
    with connection.cursor() as cursor:
        for name, value in settings.items():
            cursor.execute(f"SET {name} = '{value}'")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads before it writes must have the lock from the start.
    writes = connection.get_execution_options().get("vtrain_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
