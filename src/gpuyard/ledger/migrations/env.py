"""Alembic's entry: runs the revisions on the connection that `migrate` opened."""

from alembic import context

from gpuyard.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
