"""Whether bonds may cost nothing, which all who serve the games must agree on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    """Add the column; whoever serves the games next fills it in."""
    op.add_column("service", sa.Column("free", sa.Integer))


def downgrade() -> None:
    """Undo it."""
    with op.batch_alter_table("service") as table:
        table.drop_column("free")
