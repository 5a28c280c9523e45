"""Queries: understood first, written into the audit, then run apart from everything else."""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from attestation.api import (
    QueryColumn,
    QueryCompletion,
    QueryError,
    QueryPlan,
    QueryRender,
    QueryRequest,
    QueryResult,
    QuerySchema,
    QueryTableColumn,
    QueryTableDetail,
    QueryValidateRequest,
    QueryValidation,
    QueryWord,
)
from attestation.errors import Forbidden, QueryInvalid
from attestation.store import Found, LookUp, RateLimit, Tx
from attestation_service import kql
from attestation_service.auth import Operator, OperatorDep, Right
from attestation_service.border import limits
from attestation_service.query import catalog
from attestation_service.query.columns import BUILT_IN
from attestation_service.resources import Res, Resources

SECONDS: Final = 5.0
"""Longest that the database works on one."""

ANSWER_BYTES: Final = 4 << 20
"""Longest answer, as the database holds it."""

OF_OPERATOR: Final = RateLimit(requests=60, per_seconds=60)
"""Queries of one operator: each is an entry of the audit log, which nobody shortens."""

TOLD_CHARACTERS: Final = 1024
"""Of a query, so much stands in its entry of the audit log."""


def lasting(operator: Operator) -> str:
    """Return what tells an operator from all others, whatever they are called."""
    return operator.sub or operator.cn


def seen_by(operator: Operator, res: Resources, at: datetime) -> kql.Catalog:
    """Return what *operator* may ask."""
    return catalog.catalog(operator.rights, at, res.query_tables, dialect=res.store.dialect)


async def run(request: QueryRequest, *, res: Res, operator: OperatorDep) -> QueryResult:
    """Ask for rows, in the query language.

    What a caller may not see does not exist for them. Read only, five seconds, at most 10,000 rows and 4 MiB; each is
    an entry of the audit log.

    Raises:
        QueryInvalid: It is no query, or names what does not exist; with line and column.
        QueryTimeout: It was not done in time.
        QueryFailed: The database does not compute it.
        QueriesBusy: As many as may run at once do, or too many of the caller's wait.
        RateLimited: The caller asks too often.
        Forbidden: Who is no auditor wants it explained.
    """
    at, began = res.clock.now(), time.perf_counter()
    if request.explain and Right.AUDIT not in operator.rights:
        raise Forbidden("how a query is run is explained to auditors")
    seen = seen_by(operator, res, at)

    def understood() -> tuple[kql.Plan, kql.Statement]:
        plan = kql.analyse(request.query, seen, at=at)
        return plan, kql.compiled(plan, res.store.dialect, rows=request.rows + 1)

    plan, statement = await res.understanding.of(lasting(operator), understood)
    # Before it runs: what cannot be written down is not looked up.
    await res.store.write(lambda tx: _record(tx, request.query, operator, at))
    wanted = LookUp(
        sql=statement.sql,
        parameters=statement.parameters,
        columns=len(plan.columns),
        # Of its own parts too SQLite asks, where rows are only counted.
        reads=catalog.reads(seen, plan.tables) | {(part, "") for part in statement.parts},
        functions=BUILT_IN,
        rows=request.rows,
        size_bytes=ANSWER_BYTES,
        seconds=SECONDS,
        explain=request.explain,
    )
    found = await res.understanding.in_turn(lasting(operator), lambda: res.store.look_up(wanted))
    explanation = None
    if request.explain:
        steps = [" ".join(str(value) for value in row) for row in found.rows]
        explanation, found = QueryPlan(sql=statement.sql, steps=steps), Found(rows=(), is_cut=False)
    rows = await asyncio.to_thread(_shown, found, [each.kind for each in plan.columns])
    return QueryResult(
        columns=_columns(plan),
        rows=rows,
        truncated=found.is_cut,
        render=None
        if plan.render is None
        else QueryRender(chart=plan.render.chart, properties=dict(plan.render.properties)),
        elapsed_ms=round((time.perf_counter() - began) * 1000),
        explanation=explanation,
    )


def _record(tx: Tx, query: str, operator: Operator, at: datetime) -> None:
    counted = (limits.Counted(f"query:{lasting(operator)}", OF_OPERATOR, "queries of yours"),)
    limits.check(tx, counted, at)
    limits.take(tx, counted, at)
    tx.audit.append(operator.event("query", detail=_told(query)), at)


def _told(query: str) -> str:
    """Return what the audit says of *query*: all of it, or how it begins and its digest."""
    if len(query) <= TOLD_CHARACTERS:
        return query
    digest = hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{query[:TOLD_CHARACTERS]}… ({len(query):,} characters, SHA-256 {digest})"


def _shown(found: Found, kinds: list[kql.Kind]) -> list[list[Any]]:
    return [
        [kql.to_python(kind, value) for kind, value in zip(kinds, row, strict=True)] for row in found.rows
    ]


def _columns(plan: kql.Plan) -> list[QueryColumn]:
    return [QueryColumn(name=each.name, kind=each.kind.value) for each in plan.columns]


async def validate(request: QueryValidateRequest, *, res: Res, operator: OperatorDep) -> QueryValidation:
    """Say whether a text is a query that the caller may ask, and what fits where their cursor stands.

    Nothing is looked up.

    Raises:
        QueriesBusy: Too many wait to be read.
    """
    at = res.clock.now()
    seen = seen_by(operator, res, at)

    def judge() -> QueryValidation:
        fits = [] if request.offset is None else _fitting(request.query, request.offset, seen)
        try:
            plan = kql.analyse(request.query, seen, at=at)
        except QueryInvalid as e:
            error = QueryError(
                message=e.message, line=e.line, column=e.column, length=e.length, suggestion=e.suggestion
            )
            return QueryValidation(valid=False, error=error, completions=fits)
        return QueryValidation(
            valid=True, columns=_columns(plan), tables=sorted(plan.tables), completions=fits
        )

    return await res.understanding.of(lasting(operator), judge)


async def schema(*, res: Res, operator: OperatorDep) -> QuerySchema:
    """List the tables that the caller may ask, and the words of the language."""
    seen = seen_by(operator, res, res.clock.now())
    return QuerySchema(
        tables=[
            QueryTableDetail(
                name=table.name,
                description=table.description,
                columns=[
                    QueryTableColumn(name=each.name, kind=each.kind.value, description=each.description)
                    for each in table.columns
                ],
            )
            for table in (seen[name] for name in seen)
        ],
        functions=_words(kql.functions()),
        aggregates=_words(kql.aggregates()),
        operators=_words(kql.operators()),
    )


def _words(described: Iterable[kql.Described]) -> list[QueryWord]:
    return [
        QueryWord(
            name=each.name, written=each.written, description=each.description, aliases=list(each.aliases)
        )
        for each in described
    ]


def _fitting(text: str, offset: int, seen: kql.Catalog) -> list[QueryCompletion]:
    return [
        QueryCompletion(text=each.text, kind=each.kind.value, detail=each.detail)
        for each in kql.complete(text, offset, seen)
    ]
