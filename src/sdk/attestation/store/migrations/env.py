"""Runs the revisions on the connection that `attestation.store.migrate` hands over."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"],
    version_table=given.get("version_table", "alembic_version"),
)
with context.begin_transaction():
    context.run_migrations()
