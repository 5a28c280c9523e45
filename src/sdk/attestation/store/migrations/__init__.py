"""The history of the schema, as Alembic revisions that ship with the package."""
