"""`/machines`: filtered, sorted and paged by the service; several locked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from flask import request

from attestation.api import PendingApproval
from attestation.api.operations import MachineSort, OperatorAPI
from attestation.client.errors import OutcomeUnknown, ServiceUnreachable
from attestation.client.text import clean
from attestation.errors import AnswerNotKept, AttestationError, RequestInvalid
from attestation.machines import Role, Status, Trust
from attestation_web.page import Act, Column, Field, Values, api, may, one_of_several, render, table
from attestation_web.page.area import asked_here
from attestation_web.page.names import called
from attestation_web.page.several import FIELD, all_of, chosen, those
from attestation_web.page.table import Table, address
from attestation_web.pages.machines.area import page

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import MachineDetail
    from attestation.client import OperatorClient

PAGE_ROWS: Final = 50
MOST_FOUND: Final = 1000
"""Machines that an expression may find: one page shows some of them, and asks for those."""

COLUMNS: Final = (
    Column(name="machine", title="Machine", sort=called),
    Column(name="status", title="Status", sort=lambda m: m.status),
    Column(name="trust", title="Trust", sort=lambda m: m.trust_expires_at),
    Column(name="assurance", title="Assurance"),
    Column(name="role", title="Role", sort=lambda m: m.role),
    Column(name="cluster", title="Cluster", sort=lambda m: m.cluster_id),
    Column(name="seen", title="Last result", sort=lambda m: m.last_result),
    Column(name="attested", title="Attested since", sort=lambda m: m.attested_at, shown=False),
    Column(name="registered", title="Registered", sort=lambda m: m.registered_at, shown=False),
    Column(name="hardware", title="Hardware", shown=False),
    Column(name="address", title="Address", shown=False),
    Column(name="policy", title="Policy", shown=False),
    Column(name="labels", title="Labels", shown=False),
    Column(name="ek", title="EK fingerprint", shown=False),
)
SORTS: Final[Mapping[str, str]] = {
    "machine": "hostname",
    "status": "status",
    "trust": "trust_expires_at",
    "role": "role",
    "cluster": "cluster_id",
    "seen": "last_result_at",
    "attested": "attested_at",
    "registered": "registered_at",
}
"""Column -> what the service calls the order; of trust, when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an address asks for; what cannot be right counts as not asked, and is said."""

    status: Status | None
    trust: Trust | None
    role: Role | None
    cluster: str | None
    labels: str | None
    q: str | None
    where: str | None
    wrong: Sequence[str]

    def filters(self) -> dict[str, Any]:
        """Return it as the service takes it."""
        return {
            "status": self.status,
            "trust": self.trust,
            "role": self.role,
            "cluster_id": self.cluster,
            "labels": self.labels,
            "q": self.q,
        }


def asked_for() -> Asked:
    """Return what the address of this request asks for."""
    wrong: list[str] = []

    def word(name: str, kind: Any) -> Any:
        text = request.args.get(name, "")
        try:
            return kind(text) if text else None
        except ValueError:
            wrong.append(
                f"There is no {name} called {text[:64]}; in an address it is one of {', '.join(kind)}."
            )
            return None

    def text(name: str) -> str | None:
        return request.args.get(name, "").strip() or None

    return Asked(
        status=word("status", Status),
        trust=word("trust", Trust),
        role=word("role", Role),
        cluster=text("cluster"),
        labels=text("labels"),
        q=text("q"),
        where=text("where"),
        wrong=wrong,
    )


def _order() -> tuple[Column, bool] | None:
    text = request.args.get("sort", "")
    name, down = text.removeprefix("-"), text.startswith("-")
    return next(((c, down) for c in COLUMNS if c.name == name and name in SORTS), None)


def sort_of() -> MachineSort | None:
    """Return the order that the address of this request asks for, as the service calls it."""
    order = _order()
    return None if order is None else cast("MachineSort", f"{'-' if order[1] else ''}{SORTS[order[0].name]}")


@page.get("")
def show() -> Response:
    """List machines."""
    asked, fault = asked_for(), None
    wrong = list(asked.wrong)
    rows: Table
    waits = asked.where is not None and may("query") and not asked_here()
    known = True
    if asked.where is not None and not may("query"):
        # Without the expression other machines would stand here than the address says.
        wrong.append("An expression is a query, and to ask queries takes another role than yours.")
        rows, known = table(COLUMNS, ()), False
    elif waits:
        rows, known = table(COLUMNS, ()), False
    elif asked.where is not None:
        rows, fault = _found(asked.where)
    else:
        try:
            found, cursor = api().one_page(
                OperatorAPI.machines,
                request.args.get("after"),
                page_size=PAGE_ROWS,
                sort=sort_of(),
                **asked.filters(),
            )
        except RequestInvalid as e:
            # A label that is none, a cursor of another order: the form stays, and says so.
            found, cursor, known = [], None, False
            wrong.append(f"The service does not take this: {e}")
        rows = table(COLUMNS, found, cursor=cursor, paged=True)
        rows = replace(
            rows,
            columns=[next(c for c in COLUMNS if c.name == shown.name) for shown in rows.columns],
            sorted_by=None if (order := _order()) is None else (order[0].name, order[1]),
        )
        rows = replace(
            rows, columns=[replace(c, sort=c.sort if c.name in SORTS else None) for c in rows.columns]
        )
    counts = api().stats()
    query = request.args.to_dict(flat=False)
    return render(
        "machines/list.html",
        machines=rows,
        asked=asked,
        # What somebody typed is one line: the second of the query that we make of it.
        fault=None if fault is None else clean(str(fault)).removeprefix("line 2, "),
        wrong=wrong,
        known=known and fault is None,
        waits=waits,
        views=api().saved_queries("view").queries if may("query") else [],
        view=request.args.get("view", ""),
        keep=address("/machines/views/save", query, after=None, page=None, view=None),
        counts=counts,
        statuses=list(Status),
        trusts=list(Trust),
        roles=list(Role),
        tabs=[
            (status, address("/machines", query, status=status, after=None, page=None, where=None))
            for status in (None, *Status)
        ],
        export=address("/machines/export.csv", query, after=None, page=None, column=None),
        filtered=any(asked.filters().values()) or asked.where is not None,
    )


def where_of(client: OperatorClient, expression: str) -> str:
    """Return the query for the machines for which *expression* holds.

    Raises:
        RequestInvalid: It is more than one condition.
    """
    # On a line of its own: a comment at the end of what somebody typed takes nothing of ours away.
    query = f"Machines | where (\n{expression}\n)"
    # Inside of a call no stage begins: what ends our parenthesis to add one is no query there.
    called = f"Machines | where iff((\n{expression}\n), true, false)"
    if client.validate_query(called).error is not None and client.validate_query(query).error is None:
        raise RequestInvalid("this is more than one condition: the page Query takes a whole query")
    return query


def _found(where: str) -> tuple[Table, RequestInvalid | None]:
    """Return the machines for which a `where` expression of the query language holds, or what is wrong with it."""
    ids, fault = [], None
    try:
        client = api()
        answer = client.query(f"{where_of(client, where)} | project machine_id", rows=MOST_FOUND)
        ids = [str(row[0]) for row in answer.rows]
    except RequestInvalid as e:
        fault = e
    whole = table((Column(name="id", title=""),), ids, total=len(ids), page_rows=PAGE_ROWS)
    columns = set(request.args.getlist("column")) & {column.name for column in COLUMNS}
    shown = [replace(c, sort=None) for c in COLUMNS if (c.name in columns if columns else c.shown)]
    return replace(whole, columns=shown, every=COLUMNS, rows=those(api(), whole.rows)), fault


def _several(verb: str, wanted: Status) -> list[MachineDetail]:
    """Return the machines that the form names.

    Raises:
        RequestInvalid: None, too many, or one that is not in the status that the act needs.
    """
    found = all_of(api(), chosen(verb))
    fit = [m for m in found if m.status is wanted]
    if request.method == "GET" and len(fit) < len(found):
        other = ", ".join(called(m) for m in found if m.status is not wanted)
        raise RequestInvalid(f"only machines in the status {wanted.value.replace('_', ' ')}: {other}")
    return found


def _each(
    machines: Sequence[MachineDetail], do: Callable[[OperatorClient, MachineDetail, Values], Any]
) -> Callable[[OperatorClient, Values], list[str]]:
    """Return what does *do* to each, also after one is refused, and says of each what became of it.

    What it returns raises `AttestationError` where all were refused: why the last one was.
    """

    def done(client: OperatorClient, filled: Values) -> list[str]:
        said: list[str] = []
        last: AttestationError | None = None
        any_done = away = False
        for machine in machines:
            if away:
                said.append(f"{called(machine)}: not done, not asked for after that")
                continue
            try:
                answer = one_of_several(called(machine), partial(do, client, machine, filled))
            except OutcomeUnknown:
                # Of this one nobody knows: the form is sent again, under the same keys, also for those before it.
                raise
            except AnswerNotKept:
                any_done = True
                said.append(f"{called(machine)}: done")
            except AttestationError as e:
                last, away = e, isinstance(e, ServiceUnreachable)
                said.append(f"{called(machine)}: not done, {e}")
            else:
                any_done = True
                waits = isinstance(answer, PendingApproval)
                said.append(f"{called(machine)}: {'waits for another vote' if waits else 'done'}")
        if last is not None and not any_done:
            raise last
        return said

    return done


@page.act("/lock")
def lock_several() -> Act:
    """Lock the chosen machines."""
    machines = _several("lock", Status.ATTESTED)
    return Act(
        title=f"Lock {len(machines)} machines",
        button="Lock them",
        will=[
            "Each of them gets nothing while it is locked: no configuration, secret or certificate.",
            "Each is an act of its own, with its own audit entry; one that is refused stops no other.",
        ],
        facts=[(called(m), m.machine_id) for m in machines],
        fields=[
            Field(name=FIELD, label="", kind="hidden", value=" ".join(m.machine_id for m in machines)),
            Field(name="reason", label="Reason"),
        ],
        do=_each(machines, lambda client, m, filled: client.lock(m.machine_id, filled.get("reason"))),
        did="; ".join,
        back="/machines?status=locked",
        dangerous=True,
    )
