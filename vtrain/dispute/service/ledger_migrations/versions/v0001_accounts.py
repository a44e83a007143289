"""Accounts, what moved them, and what is locked in games."""

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
        "accounts",
        sa.Column("party", digest, primary_key=True),
        sa.Column("free", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("number", number, primary_key=True),
        sa.Column("party", digest, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("reference", sa.String(300), nullable=False),
        sa.UniqueConstraint("reference"),
    )
    op.create_table(
        "locks",
        sa.Column("key", digest, primary_key=True),
        sa.Column("game", digest, nullable=False),
        sa.Column("party", digest, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
    )
    op.create_index("ix_locks_game", "locks", ["game"])
    op.create_index("ix_locks_party", "locks", ["party"])
    op.create_table("settled", sa.Column("game", digest, primary_key=True))


def downgrade() -> None:
    """Drop the tables."""
    for name in ("settled", "locks", "entries", "accounts"):
        op.drop_table(name)
