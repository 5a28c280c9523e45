"""`/machines/export.csv`: every machine that the list shows, a page of the service at a time.

Filters are those of the list. An expression is asked as a query, whose rows are machines already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from flask import Response as FlaskResponse
from flask import redirect, request, stream_with_context

from attestation.api.operations import OperatorAPI
from attestation.client.csv_line import csv_line
from attestation.clock import rfc3339
from attestation.errors import Unavailable
from attestation_web.page import api, now
from attestation_web.page.area import asked_here
from attestation_web.page.table import address
from attestation_web.pages.machines.area import page
from attestation_web.pages.machines.listing import asked_for, sort_of, where_of

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import MachineDetail, QueryResult
    from attestation.api.operations import MachineSort
    from attestation.client import OperatorClient

MOST_EXPORTED: Final = 100_000
EXPORT_ROWS: Final = 200
QUERY_ROWS: Final = 2_000
"""Of one query: an answer has 4 MiB at most, and each is an entry of the audit log."""

PLAIN: Final = (
    *("machine_id", "hostname", "status", "trust", "trust_expires_at", "assurance", "role", "desired_role"),
    *("cluster_id", "assigned_ip", "hw_product", "hw_serial", "hw_uuid", "hw_mac", "ek_source"),
    *("ek_fingerprint", "ek_chain_ok", "ek_allow_listed", "registered_from", "registered_at", "attested_at"),
    *("locked_at", "revoked_at", "rejected_at", "wiped_at", "firmware_version", "firmware_blocked", "alarm"),
)
EXPORTED: Final[Mapping[str, Callable[[MachineDetail], object]]] = {
    **{name: attrgetter(name) for name in PLAIN},
    "last_result_at": lambda m: m.last_result and m.last_result.at,
    "last_verdict": lambda m: m.last_result and m.last_result.verdict,
    "last_policy": lambda m: m.last_result and m.last_result.policy,
    "last_failed": lambda m: m.last_result and m.last_result.failed,
    "labels": lambda m: _labels(m.labels),
}
"""Columns of the file, by name: no token, nonce, key or certificate is among them, nor in what the service says."""
ASKED: Final[Mapping[str, str | None]] = {
    name: {"firmware_version": None, "last_result_at": "last_attested_at"}.get(name, name)
    for name in EXPORTED
}
"""The same as the table `Machines` calls them; None: it has no such column."""


@page.get("/export.csv")
def export() -> Response:
    """Stream the machines that fit into a file."""
    asked, client = asked_for(), api()
    if asked.where is not None:
        if not asked_here():
            return redirect(address("/machines", request.args.to_dict(flat=False)), 303)
        pages = _asked_pages(client, asked.where)
    else:
        pages = _listed_pages(client, asked.filters(), sort_of())
    # The first page before the answer begins: what is wrong is a page in words then, and no file that breaks off.
    first = next(pages)

    def lines() -> Iterator[str]:
        yield csv_line(EXPORTED)
        yield first
        yield from pages

    return FlaskResponse(
        stream_with_context(lines()),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="machines-{now():%Y%m%dT%H%M%SZ}.csv"'},
    )


def _listed_pages(client: OperatorClient, filters: dict[str, Any], sort: MachineSort | None) -> Iterator[str]:
    after = None
    for _ in range(MOST_EXPORTED // EXPORT_ROWS):
        rows, after = client.one_page(
            OperatorAPI.machines, after, page_size=EXPORT_ROWS, sort=sort, **filters
        )
        yield "".join(_line(cell(m) for cell in EXPORTED.values()) for m in rows)
        if after is None:
            return


def _asked_pages(client: OperatorClient, where: str) -> Iterator[str]:
    """Yield the machines for which *where* holds, newest first.

    The next query begins at the instant at which the last ended, and leaves out who was there already.
    """
    columns = [name for name in ASKED.values() if name is not None]
    query, until, seen = where_of(client, where), "", set[str]()
    while True:
        answer = client.query(
            f"{query}{until}\n| project {', '.join(columns)}\n| sort by registered_at desc",
            rows=QUERY_ROWS,
        )
        found = [row for row in map(_named(answer), answer.rows) if row["machine_id"] not in seen]
        yield "".join(_line(_asked_cell(row, name) for name in EXPORTED) for row in found)
        if not answer.truncated:
            return
        seen |= {str(row["machine_id"]) for row in found}
        if not found:
            raise Unavailable("more machines came at one instant than one query may answer")
        if len(seen) >= MOST_EXPORTED:
            return
        until = f"\n| where registered_at <= datetime({found[-1]['registered_at']})"


def _named(answer: QueryResult) -> Callable[[list[object]], dict[str, object]]:
    names = [column.name for column in answer.columns]
    return lambda row: dict(zip(names, row, strict=True))


def _asked_cell(row: dict[str, object], name: str) -> object:
    asked = ASKED[name]
    value = None if asked is None else row[asked]
    return _labels(value) if isinstance(value, dict) else value


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _line(values: Iterable[object]) -> str:
    return csv_line(map(_cell, values))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return rfc3339(value) if isinstance(value, datetime) else str(value)
