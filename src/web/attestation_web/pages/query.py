"""The query language: ask the fleet anything; the query stands in the address, so that it can be handed on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import urlencode

from flask import make_response, redirect, request

from attestation.api import MAX_QUERY_BYTES, MAX_QUERY_ROWS, SavedKind
from attestation.client.csv_line import csv_line
from attestation.client.text import clean
from attestation.errors import (
    AttestationError,
    QueryInvalid,
    QueryUnknown,
    RateLimited,
    RequestInvalid,
    Unavailable,
)
from attestation_web.page import Act, Field, Page, api, now, render
from attestation_web.page.area import asked_here
from attestation_web.page.plots import plot_of

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import (
        QueryColumn,
        QueryError,
        QueryResult,
        QuerySchema,
        QueryValidation,
        SavedQueryDetail,
    )
    from attestation.client import OperatorClient

ROWS: Final = (100, 500, 1000)
"""Of a page; a CSV has as many as the service gives."""
NAME_PATTERN_HELP: Final = "Letters, digits, dot, underscore and hyphen; at most 63."

page: Final = Page(__name__, title="Query", place=80, right="query")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A query to begin with.

    Args:
        title: The question.
        table: Who may ask this table is shown it.
        query: The text.
    """

    title: str
    table: str
    query: str


SAMPLES: Final = (
    Sample(
        title="How does the fleet stand?",
        table="Machines",
        query="Machines\n| summarize machines = count() by role, trust\n| sort by machines desc",
    ),
    Sample(
        title="Which machines have not attested for a day?",
        table="Machines",
        query=(
            "Machines\n| where status == 'attested' and (isnull(last_attested_at) or last_attested_at < ago(1d))\n"
            "| project machine_id, hostname, last_attested_at, last_failed\n| sort by last_attested_at asc"
        ),
    ),
    Sample(
        title="Attestations by hour and verdict",
        table="Attestations",
        query=(
            "Attestations\n| where ts > ago(2d)\n| summarize results = count() by bin(ts, 1h), verdict\n"
            "| render timechart"
        ),
    ),
    Sample(
        title="Which makers' TPMs fail, and at which check?",
        table="Attestations",
        query=(
            "Attestations\n| where ts > ago(7d) and verdict == 'Failed'\n"
            "| join kind=inner (Machines | project machine_id, tpm_vendor) on machine_id\n"
            "| summarize failures = count() by tpm_vendor, failed\n| render barchart"
        ),
    ),
    Sample(
        title="Certificates that end within a month",
        table="Certificates",
        query="Certificates\n| where not_after between (now() .. now() + 30d)\n| sort by not_after asc",
    ),
    Sample(
        title="Who decided what this week?",
        table="AuditLog",
        query=(
            "AuditLog\n| where ts > ago(7d) and action in ('approve', 'reject', 'lock', 'revoke')\n"
            "| project ts, actor, action, machine_id, result\n| sort by ts desc"
        ),
    ),
    Sample(
        title="What was refused, by hour?",
        table="AuditLog",
        query=(
            "AuditLog\n| where ts > ago(2d) and action in ('denied', 'attest_failed')\n"
            "| summarize refusals = count() by bin(ts, 1h), action\n| render timechart"
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What is wrong with a query, and where, as text for people.

    Args:
        message: What is wrong.
        line, column: Where.
        shown: The line, and below it marks under the place; None where it is wrong as a whole.
        suggestion: What was meant, perhaps.
    """

    message: str
    line: int
    column: int
    shown: str | None
    suggestion: str | None


@page.get("")
def show() -> Response:
    """Show the editor, what may be asked, and what the query of the address answers."""
    client, text = api(), _text()
    found: QueryResult | None = None
    checked: QueryValidation | None = None
    wrong: Wrong | None = None
    refused = ""
    asks = asked_here()
    if text and "check" in request.args:
        checked = client.validate_query(text)
        wrong = _wrong(text, checked.error)
    elif text and asks:
        found, wrong, refused = _run(client, text, _rows())
    schema = client.query_schema()
    plot = None if found is None else plot_of(found)
    return render(
        "query/page.html",
        text=text,
        rows=_rows(),
        choices=ROWS,
        schema=schema,
        samples=_samples(schema),
        saved=client.saved_queries().queries,
        found=found,
        checked=checked,
        wrong=wrong,
        refused=refused,
        waits=bool(text) and not asks,
        plot=plot,
        wants_chart=found is not None and found.render is not None,
        cells=cells,
        link=lambda query: "/query?" + urlencode({"q": query}),
        longest=MAX_QUERY_BYTES,
    )


@page.get("/results.csv")
def results() -> Response:
    """Give the rows that the query of the address answers, as many as the service gives at once."""
    text = _text()
    # A link on another site opens the editor and asks nothing: a query is written into the audit under one's name.
    if not text or not asked_here():
        return redirect("/query?" + urlencode({"q": text}), 303)
    found = api().query(text, rows=MAX_QUERY_ROWS)
    lines = [csv_line(each.name for each in found.columns)]
    lines += [csv_line(_exact(value) for value in row) for row in found.rows]
    response = make_response("".join(lines))
    response.headers["Content-Type"] = "text/csv; charset=utf-8"
    cut = "-first-10000" if found.truncated else ""
    response.headers["Content-Disposition"] = f'attachment; filename="query-{now():%Y%m%dT%H%M%SZ}{cut}.csv"'
    return response


@page.get("/check")
def check() -> Response:
    """Answer the editor: whether this is a query, what is wrong and where, and what fits at the cursor."""
    offset = request.args.get("offset", type=int)
    text = _text()
    try:
        found = api().validate_query(
            text, offset=None if offset is None else max(0, min(offset, MAX_QUERY_BYTES))
        )
    except (RateLimited, RequestInvalid, Unavailable) as e:
        return make_response({"problem": clean(str(e))})
    return make_response(found.model_dump(mode="json"))


@page.act("/save", right="query")
def save() -> Act:
    """Keep a query under a name."""
    text = request.values.get("q", "").replace("\r\n", "\n").strip()
    return Act(
        title="Save a query",
        button="Save",
        will=[
            "It is kept under this name, in place of what you kept there before.",
            "Shared, everybody who may ask queries sees it; who runs it sees what they may see, not what you may.",
        ],
        fields=[
            Field(name="name", label="Name", needed=True, help=NAME_PATTERN_HELP),
            Field(name="description", label="What it answers"),
            Field(name="shared", label="Share it with everybody who may ask", kind="check"),
            Field(name="q", label="Query", kind="area", value=text, needed=True),
        ],
        do=lambda client, filled: client.save_query(
            filled["name"],
            filled["q"].replace("\r\n", "\n"),
            description=filled.get("description"),
            shared="shared" in filled,
        ),
        did=lambda saved: f"{saved.name} is kept{', and shared' if saved.shared else ''}.",
        back="/query?" + urlencode({"q": text, "check": "yes"}) if text else "/query",
    )


@page.act("/saved/<name>/delete", right="query")
def delete(name: str) -> Act:
    """Forget a query of one's own."""
    return Act(
        title=f"Forget {name}",
        button="Forget it",
        will=[f"Your query {name} is kept no more; who it was shared with does not see it any more either."],
        do=lambda client, _: client.delete_query(name),
        did=lambda _: f"{name} is forgotten.",
        back="/query",
        dangerous=True,
    )


@page.act("/shared/<int:saved_id>/take-over")
def take_over(saved_id: int) -> Act:
    """Make one's own what somebody shares who has left, for example."""
    found = _shared(saved_id)
    return Act(
        title=f"Take over {found.name}",
        button="Take it over",
        will=[
            f"The {found.kind} {found.name} of {found.owner} becomes yours: you change it and forget it, they do not.",
            "It stays shared.",
        ],
        facts=[("Owner", found.owner), (found.kind.capitalize(), found.query)],
        do=lambda client, _: client.take_over_query(saved_id),
        did=lambda saved: f"{saved.name} is yours.",
        back=_back_of(found),
    )


@page.act("/shared/<int:saved_id>/delete")
def delete_shared(saved_id: int) -> Act:
    """Forget what somebody shares."""
    found = _shared(saved_id)
    return Act(
        title=f"Forget {found.name} of {found.owner}",
        button="Forget it",
        will=[f"The {found.kind} {found.name} is kept no more, also not for {found.owner}."],
        facts=[("Owner", found.owner), (found.kind.capitalize(), found.query)],
        do=lambda client, _: client.delete_shared_query(saved_id),
        did=lambda _: f"{found.name} of {found.owner} is forgotten.",
        back=_back_of(found),
        dangerous=True,
    )


def _shared(saved_id: int) -> SavedQueryDetail:
    """Return what is shared under this number, of either kind.

    Raises:
        QueryUnknown: Nothing.
    """
    for kind in get_args(SavedKind):
        for each in api().saved_queries(kind).queries:
            if each.id == saved_id and each.shared:
                return each
    raise QueryUnknown("nobody shares this any more")


def _back_of(saved: SavedQueryDetail) -> str:
    return "/query" if saved.kind == "query" else "/machines/views"


def _text() -> str:
    return request.args.get("q", "").replace("\r\n", "\n").strip()


def _rows() -> int:
    asked = request.args.get("rows", type=int)
    return asked if asked in ROWS else ROWS[0]


def _run(client: OperatorClient, text: str, rows: int) -> tuple[QueryResult | None, Wrong | None, str]:
    """Return what *text* answers, or what is wrong with it, or why it was not answered."""
    try:
        return client.query(text, rows=rows), None, ""
    except QueryInvalid as e:
        error = client.validate_query(text).error
        return None, _wrong(text, error), clean(str(e)) if error is None else ""
    except (RequestInvalid, RateLimited, Unavailable) as e:
        return None, None, _in_words(e)


def _in_words(error: AttestationError) -> str:
    return clean(str(error))


def _wrong(text: str, error: QueryError | None) -> Wrong | None:
    if error is None:
        return None
    lines = text.split("\n")
    shown = None
    if error.line <= len(lines):
        line = clean(lines[error.line - 1].replace("\t", " "))
        shown = f"{line}\n{' ' * (error.column - 1)}{'^' * max(1, min(error.length, 80))}"
    return Wrong(
        message=clean(error.message),
        line=error.line,
        column=error.column,
        shown=shown,
        suggestion=None if error.suggestion is None else clean(error.suggestion),
    )


def _samples(schema: QuerySchema) -> list[Sample]:
    known = {table.name for table in schema.tables}
    return [each for each in SAMPLES if each.table in known]


def cells(columns: Sequence[QueryColumn], row: Sequence[Any]) -> list[tuple[QueryColumn, Any, str]]:
    """Return column, value and text of each cell of *row*."""
    return [(column, value, _exact(value)) for column, value in zip(columns, row, strict=False)]


def _exact(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)
