"""From the text of a query to a plan, and from a plan to a statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from attestation_service.kql import times, tree
from attestation_service.kql.binder import Binder
from attestation_service.kql.compiler import Compiler
from attestation_service.kql.kinds import Catalog, Column, Kind, Limits, Place, Render
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.operators.view import RenderStage
from attestation_service.kql.pipelines import parse
from attestation_service.kql.postgresql import PostgreSQL
from attestation_service.kql.source import Source
from attestation_service.kql.sqlite import SQLite
from attestation_service.kql.sqlite_functions import parse_json_value

DialectName = Literal["sqlite", "postgresql"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a query means: what it gives, and of which tables."""

    columns: tuple[Column, ...]
    tables: frozenset[str]
    render: Render | None
    rows: tree.Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A query for one database.

    Args:
        sql: With `:name` (SQLite) or `%(name)s` (psycopg) where a parameter stands; nothing of the query's text.
        parameters: What is bound to them.
        parts: Names of its common table expressions: SQLite's authorizer is asked about one of which no column is read.
    """

    sql: str
    parameters: Mapping[str, Any]
    columns: tuple[Column, ...]
    parts: frozenset[str]


def analyse(text: str, catalog: Catalog, *, at: datetime, limits: Limits = Limits()) -> Plan:  # noqa: B008  # frozen
    """Say what a query means.

    Args:
        text: The query.
        catalog: The tables and columns that exist for its reader.
        at: What `now()` is.
        limits: What it may ask for.

    Raises:
        QueryInvalid: It is none, or names what does not exist; with the place.
    """
    source = Source(text=text)
    size = len(text.encode(errors="surrogatepass"))
    if size > limits.text_bytes:
        raise source.invalid(
            Place(offset=0, length=1), f"a query has at most {limits.text_bytes} bytes, this one {size}"
        )
    query = parse(source, limits)
    binder = Binder(source, catalog, at=times.to_microseconds(at), operators=OPERATORS, most=limits.meaning)
    for let in query.lets:
        binder.let(let)
    bound = binder.pipeline(query.pipeline)
    last = query.pipeline.stages[-1:]
    return Plan(
        columns=bound.columns,
        tables=frozenset(binder.tables),
        render=last[0].render if last and isinstance(last[0], RenderStage) else None,
        rows=bound.rows,
    )


def compiled(plan: Plan, dialect: DialectName, *, rows: int | None = None) -> Statement:
    """Write a plan for a database; at most so many rows, where a number is given."""
    ours = SQLite() if dialect == "sqlite" else PostgreSQL()
    # The dialects of SQLAlchemy have no types on their constructors.
    theirs = SQLiteDialect_pysqlite(paramstyle="named") if dialect == "sqlite" else PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy types no dialect
    compiler = Compiler(ours)
    written = compiler.statement(plan.rows, rows).compile(dialect=theirs)
    return Statement(sql=str(written), parameters=written.params, columns=plan.columns, parts=compiler.parts)


def to_python(kind: Kind, value: Any) -> Any:
    """Return what a database gave as JSON has it: datetimes as RFC 3339, timespans as Kusto prints them."""
    if value is None:
        return "" if kind is Kind.STRING else None
    match kind:
        case Kind.BOOL:
            return bool(value)
        case Kind.INT | Kind.LONG:
            return int(value)
        case Kind.REAL:
            return float(value)
        case Kind.DATETIME:
            return times.print_datetime(int(value), digits=6)
        case Kind.TIMESPAN:
            return times.print_timespan(int(value))
        case Kind.DYNAMIC:
            return parse_json_value(value)
        case _:
            return str(value)
