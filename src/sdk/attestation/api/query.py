"""Queries over logical tables: what is asked, what comes back, and what is kept under a name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from attestation.api.base import Wire

__all__ = [
    "MAX_QUERY_BYTES",
    "MAX_QUERY_ROWS",
    "QueryColumn",
    "QueryCompletion",
    "QueryError",
    "QueryPlan",
    "QueryRender",
    "QueryRequest",
    "QueryResult",
    "QuerySchema",
    "QueryTableColumn",
    "QueryTableDetail",
    "QueryValidateRequest",
    "QueryValidation",
    "QueryWord",
    "SavedKind",
    "SavedQueryDetail",
    "SavedQueryList",
    "SavedQueryRequest",
]

MAX_QUERY_BYTES: Final = 8192
MAX_QUERY_ROWS: Final = 10_000

QueryText = Annotated[
    str,
    Field(
        max_length=MAX_QUERY_BYTES,
        description="At most 8 KiB of UTF-8",
        examples=["Machines | where trust != 'verified' | project hostname, status, last_attested_at"],
    ),
]
Kind = Literal["bool", "int", "long", "real", "string", "datetime", "timespan", "dynamic"]


class QueryRequest(Wire):
    """What is asked."""

    query: QueryText
    rows: int = Field(
        default=1000, ge=1, le=MAX_QUERY_ROWS, strict=True, description="Most rows to answer with"
    )
    explain: bool = Field(
        default=False,
        strict=True,
        description="For auditors: say how the database would run it, and do not run it",
    )


class QueryColumn(Wire):
    """A column of the answer."""

    name: str
    kind: Kind


class QueryRender(Wire):
    """How the writer of the query would like to see the rows: a hint."""

    chart: str
    properties: dict[str, str] = Field(default={})


class QueryPlan(Wire):
    """How the database would run a query."""

    sql: str = Field(description="What the query is compiled to; its values are bound, and not in it")
    steps: list[str]


class QueryResult(Wire):
    """What was found."""

    columns: list[QueryColumn]
    rows: list[list[Any]] = Field(
        description="Values in the order of the columns; `datetime` is RFC 3339, `timespan` `d.hh:mm:ss.fffffff`"
    )
    truncated: bool = Field(description="There is more: ask for more rows, or for less")
    render: QueryRender | None = None
    elapsed_ms: int = Field(ge=0)
    explanation: QueryPlan | None = None


class QueryValidateRequest(Wire):
    """A query as far as it is typed."""

    query: QueryText
    offset: int | None = Field(
        default=None,
        ge=0,
        le=MAX_QUERY_BYTES,
        strict=True,
        description="Where the cursor stands, in characters: asks what fits there",
    )


class QueryError(Wire):
    """What is wrong with a query, and where."""

    message: str
    line: int = Field(ge=1)
    column: int = Field(ge=1, description="In characters")
    length: int = Field(ge=0)
    suggestion: str | None = Field(default=None, description="What was meant, perhaps")


class QueryCompletion(Wire):
    """A word that fits where the cursor stands."""

    text: str
    kind: str
    detail: str


class QueryValidation(Wire):
    """Whether it is a query that the caller may ask, and what it would answer with."""

    valid: bool
    error: QueryError | None = None
    columns: list[QueryColumn] = Field(default=[], description="What it would answer with")
    tables: list[str] = Field(default=[], description="Those that it asks")
    completions: list[QueryCompletion] = Field(default=[], description="What fits where the cursor stands")


class QueryTableColumn(Wire):
    """A column of a table."""

    name: str
    kind: Kind
    description: str


class QueryTableDetail(Wire):
    """A table that the caller may ask, with the columns that they may see."""

    name: str
    description: str
    columns: list[QueryTableColumn]


class QueryWord(Wire):
    """A function, an aggregate or an operator of the language."""

    name: str
    written: str = Field(description="How it is written, with what it takes")
    description: str
    aliases: list[str] = Field(default=[], description="What it is called too")


class QuerySchema(Wire):
    """What the caller may ask."""

    tables: list[QueryTableDetail]
    functions: list[QueryWord] = Field(description="Functions, and operators of values")
    aggregates: list[QueryWord] = Field(
        default=[], description="What `summarize` makes of the rows of a group"
    )
    operators: list[QueryWord] = Field(description="What a pipeline consists of")


SavedKind = Literal["query", "view"]
"""What is kept under a name: a query, or a view of the list of machines."""


class SavedQueryRequest(Wire):
    """A query or a view to keep under a name."""

    kind: SavedKind = "query"
    query: Annotated[
        str,
        Field(
            max_length=MAX_QUERY_BYTES,
            description="The query; of a view what its address says: parameters of `GET /machines`, `where` (an "
            "expression of the query language) and each `column`, form-encoded. At most 8 KiB of UTF-8",
        ),
    ]
    description: str | None = Field(default=None, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")
    shared: bool = Field(default=False, strict=True, description="Everybody who may ask sees it")


class SavedQueryDetail(Wire):
    """A query or a view that somebody keeps."""

    id: int = Field(description="By which operators take a shared one over, or end it")
    kind: SavedKind
    name: str
    owner: str = Field(description="Whose it is, by the name that the audit shows")
    mine: bool
    query: str
    description: str | None
    shared: bool
    created_at: datetime
    updated_at: datetime


class SavedQueryList(Wire):
    """What the caller keeps of one kind, and what others share, by name."""

    queries: list[SavedQueryDetail]
