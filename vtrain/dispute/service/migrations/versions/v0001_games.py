"""Games, their events, and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Make the tables."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    digest = sa.LargeBinary(32)
    op.create_table(
        "service",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("clock", sa.BigInteger, nullable=False),
        sa.Column("key", digest, nullable=False),
    )
    op.create_table(
        "documents",
        sa.Column("digest", digest, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "games",
        sa.Column("number", number, primary_key=True),
        sa.Column("id", digest, nullable=False),
        sa.Column("genesis", sa.LargeBinary, nullable=False),
        sa.Column("task", digest, sa.ForeignKey("documents.digest"), nullable=False),
        sa.Column("graph", digest, sa.ForeignKey("documents.digest"), nullable=False),
        sa.Column("request", sa.String(64)),
        sa.Column("base", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("bonds", sa.BigInteger, nullable=False),
        sa.Column("due", sa.BigInteger),
        sa.Column("settle", sa.Integer, nullable=False),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("request"),
    )
    op.create_index("ix_games_due", "games", ["due"])
    op.create_index("ix_games_settle", "games", ["settle"])
    op.create_table(
        "events",
        sa.Column("number", number, primary_key=True),
        sa.Column("game", digest, sa.ForeignKey("games.id"), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("digest", digest, nullable=False),
        sa.Column("receipt", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("game", "sequence"),
        sa.UniqueConstraint("game", "digest"),
    )
    op.create_table(
        "hooks",
        sa.Column("number", number, primary_key=True),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("secret", digest, nullable=False),
        sa.Column("game", digest),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due", sa.BigInteger, nullable=False),
        sa.Column("trouble", sa.String(512), nullable=False),
    )
    op.create_index("ix_hooks_due", "hooks", ["due"])


def downgrade() -> None:
    """Drop the tables."""
    for name in ("hooks", "events", "games", "documents", "service"):
        op.drop_table(name)
