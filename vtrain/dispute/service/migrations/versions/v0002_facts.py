"""Games of facts: whose turn it is to write, and no count of bonds, which the game has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from vtrain.errors import StorageError

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    """Alter the tables; StorageError where there are games, which other rules were for."""
    games = sa.table("games", sa.column("number"))
    if op.get_bind().execute(sa.select(games.c.number).limit(1)).first() is not None:
        raise StorageError("has games of earlier rules: take a new database", where="db")
    with op.batch_alter_table("games") as table:
        table.drop_column("bonds")
    with op.batch_alter_table("service") as table:
        table.add_column(
            sa.Column("writer", sa.LargeBinary(16), nullable=False, server_default=sa.text("''"))
        )
        table.add_column(
            sa.Column("turn", sa.BigInteger, nullable=False, server_default=sa.text("0"))
        )
    with op.batch_alter_table("service") as table:
        table.alter_column("writer", server_default=None)
        table.alter_column("turn", server_default=None)


def downgrade() -> None:
    """Undo it."""
    with op.batch_alter_table("service") as table:
        table.drop_column("turn")
        table.drop_column("writer")
    with op.batch_alter_table("games") as table:
        table.add_column(
            sa.Column("bonds", sa.BigInteger, nullable=False, server_default=sa.text("0"))
        )
