"""The database: append-only events, from which the state of every game is folded.

SQLite (write-ahead log, every commit synced to disk) or PostgreSQL.  Every transaction that writes
first locks the one row of ``service``: writers of any number of processes take turns, so that times
and event numbers only grow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
)

from vtrain.commit.database import Database, make_metadata

MIGRATIONS: Final = Path(__file__).parent / "migrations"

metadata = make_metadata()
# SQLite numbers rows by itself only in a column of its type INTEGER, which has 64 bits too.
_Number = BigInteger().with_variant(Integer, "sqlite")

service = Table(
    "service",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("clock", BigInteger, nullable=False),
    Column("key", LargeBinary(32), nullable=False),
    Column("writer", LargeBinary(16), nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("free", Integer),
)
"""One row: the persisted time (see ``clock``), the public key of the receipts, which process wrote
last, how often that was another one than before, and whether bonds may cost nothing."""

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
    Column("due", BigInteger, index=True),
    Column("settle", Integer, nullable=False, index=True),
)
"""``request``: hash of the idempotency key; ``base``: the service's time less the game's;
``sequence``: of its last event; ``due``: the service's time when
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


class Store(Database):
    """A migrated database."""

    def __init__(self, url: str) -> None:
        super().__init__(url, partial(upgrade, MIGRATIONS))


def upgrade(migrations: Path, connection: Connection) -> None:
    """Make or alter the tables as the revisions in a folder say."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
