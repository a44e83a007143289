"""The database: append-only events, from which the state of every game is folded.

SQLite (write-ahead log, every commit synced to disk) or PostgreSQL.  Every transaction that writes
first locks the one row of ``service``: writers of any number of processes take turns, so that times
and event numbers only grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from vtrain.dispute.service import require_postgres
from vtrain.errors import StorageError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
CONNECT_SECONDS: Final = 10
_NAMES: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=_NAMES)
# SQLite numbers rows by itself only in a column of its type INTEGER, which has 64 bits too.
_Number = BigInteger().with_variant(Integer, "sqlite")

service = Table(
    "service",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("clock", BigInteger, nullable=False),
    Column("key", LargeBinary(32), nullable=False),
)
"""One row: the persisted time (see ``clock``) and the public key of the receipts."""

documents = Table(
    "documents",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""Tasks and graphs, which games share, by BLAKE3."""

games = Table(
    "games",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", LargeBinary(32), nullable=False, unique=True),
    Column("genesis", LargeBinary, nullable=False),
    Column("task", LargeBinary(32), ForeignKey("documents.digest"), nullable=False),
    Column("graph", LargeBinary(32), ForeignKey("documents.digest"), nullable=False),
    Column("request", String(64), unique=True),
    Column("base", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("bonds", BigInteger, nullable=False),
    Column("due", BigInteger, index=True),
    Column("settle", Integer, nullable=False, index=True),
)
"""``request``: hash of the idempotency key; ``base``: the service's time less the game's;
``sequence``: of its last event; ``bonds``: how many it has; ``due``: the service's time when
something runs out, none when the game is over; ``settle``: is a settlement owed?"""

events = Table(
    "events",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("game", LargeBinary(32), ForeignKey("games.id"), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("receipt", LargeBinary, nullable=False),
    UniqueConstraint("game", "sequence"),
    UniqueConstraint("game", "digest"),
)
"""Never changed and never deleted."""

hooks = Table(
    "hooks",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("url", String(2048), nullable=False),
    Column("secret", LargeBinary(32), nullable=False),
    Column("game", LargeBinary(32)),
    Column("cursor", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("trouble", String(512), nullable=False),
    Index(None, "due"),
)
"""The queue of a hook is the events after its ``cursor``; ``due`` is in milliseconds of Unix time,
-1 once it has been given up; ``trouble`` is the last failure."""


class Store:
    """A migrated database; StorageError for whatever fails in it.

    A PostgreSQL that does not answer within the URL's ``connect_timeout``, by default
    CONNECT_SECONDS, cannot be had.
    """

    def __init__(self, url: str) -> None:
        self._engine = _make_engine(url)
        with storing(_describe(self._engine.url)):
            _upgrade(self._engine)
        self._writer = self._engine.execution_options(vtrain_writes=True)

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

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


@contextmanager
def storing(where: str = "database") -> Iterator[None]:
    """Failures of the database as StorageError; clients are told no more of where it is."""
    try:
        yield
    except SQLAlchemyError as error:
        # The statement and its parameters, which SQLAlchemy appends, are nobody else's business.
        message = str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0]
        raise StorageError(message, where=where) from error


def _describe(url: URL) -> str:
    """Which database, without user and password."""
    if url.get_backend_name() == "sqlite":
        return f"database {url.database}"
    port = "" if url.port is None else f":{url.port}"
    return f"database {url.database or ''} at {url.host or 'its local socket'}{port}"


def _make_engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StorageError("is no database URL", where="db") from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        require_postgres()
        if "connect_timeout" not in parsed.query:
            parsed = parsed.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"), pool_size=32, pool_pre_ping=True
        )
    if kind != "sqlite":
        raise StorageError(f"{kind} is not supported; sqlite and postgresql are", where="db")
    if not parsed.database or parsed.database == ":memory:":
        raise StorageError("needs a file: sqlite:///PATH", where="db")
    try:
        engine = create_engine(parsed, pool_size=32, connect_args={"timeout": 30})
    except (ArgumentError, NoSuchModuleError, TypeError) as error:
        raise StorageError("is no database URL", where="db") from error
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin as _begin_sqlite says
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads before it writes must have the lock from the start.
    writes = connection.get_execution_options().get("vtrain_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with engine.execution_options(vtrain_writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            # Two services that start at once: the second waits, and finds nothing to do.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7669260)")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
