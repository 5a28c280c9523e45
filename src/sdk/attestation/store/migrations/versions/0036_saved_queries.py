"""Queries that operators keep under a name, and share; and what PostgreSQL lacks to run one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"

KQL_FUNCTIONS = """\
CREATE FUNCTION kql_json(value text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN value::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
  RETURN to_jsonb(value);
END $$;
CREATE FUNCTION kql_json_text(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(value)
    WHEN 'object' THEN '{' || coalesce((
      SELECT string_agg(to_json(m.key)::text || ':' || kql_json_text(m.value), ',' ORDER BY m.place)
      FROM jsonb_each(value) WITH ORDINALITY AS m(key, value, place)), '') || '}'
    WHEN 'array' THEN '[' || coalesce((
      SELECT string_agg(kql_json_text(m.value), ',' ORDER BY m.place)
      FROM jsonb_array_elements(value) WITH ORDINALITY AS m(value, place)), '') || ']'
    ELSE value::text END
$$;
"""
"""JSON that may be none, and one text for each value of it (`attestation_service.kql.postgresql`)."""


def upgrade() -> None:
    """Add the table and, on PostgreSQL, the functions."""
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "saved_queries",
        sa.Column("id", serial, autoincrement=True, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_cn", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saved_queries")),
        sa.UniqueConstraint("owner", "name", name=op.f("uq_saved_queries_owner_name")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_saved_queries_shared_id", "saved_queries", ["shared", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(KQL_FUNCTIONS)
