"""Runs migrations on the connection that it is given."""

from __future__ import annotations

from alembic import context

from vtrain.dispute.service.ledger import VERSIONS, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSIONS,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
