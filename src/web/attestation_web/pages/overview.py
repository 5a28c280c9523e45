"""The first page: what needs somebody now. How the fleet stands comes behind it, when its charts are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

from attestation.api.operations import OperatorAPI
from attestation.endorsements.vendors import maker
from attestation.errors import AttestationError, Unauthenticated
from attestation.machines import Status, Trust
from attestation_web.page import Badge, Page, api, bar, donut, may, needs, now, render
from attestation_web.page.badges import Look, badge

if TYPE_CHECKING:
    from datetime import datetime

    from werkzeug.wrappers import Response

    from attestation.api import Attention, AuditEntryDetail, Stats
    from attestation.client import OperatorClient
    from attestation_web.page.charts import Chart

T = TypeVar("T")

MOST_SHOWN: Final = 8
UNSIGNED: Final = timedelta(minutes=10)
"""So long entries of the audit log may be unsigned before it looks stale: the service signs within a minute or so."""
CA_SOON: Final = timedelta(days=90)

HERE: Final = "status !in ('rejected', 'revoked')"
TROUBLES: Final = {
    "failed": "last_verdict == 'Failed' and last_attested_at >= ago(24h)",
    "alarm": "isnotempty(alarm)",
    "undelivered": "isnotnull(config_owed_since)",
}
"""Which machines a tile counts, as an expression of the query language; a test compares list and count."""

page: Final = Page(__name__, title="Overview", place=10, right=None, prefix="")


@page.get("/")
def show() -> Response:
    """Show what waits. How the fleet stands, with its charts, is a part that comes afterwards: `fleet`."""
    client = api()
    recent = _recent(client) if may("audit") else None
    if not may("read"):
        return render("overview/other_right.html", recent=recent)
    attention = client.attention()
    proposals, more = client.one_page(OperatorAPI.proposals, None, page_size=MOST_SHOWN)
    waiting, _ = client.one_page(
        OperatorAPI.machines, None, status=Status.PENDING_APPROVAL, page_size=MOST_SHOWN
    )
    newest = () if may("audit") else client.one_page(OperatorAPI.machines, None, page_size=MOST_SHOWN)[0]
    extensions = _known(client.extensions)
    pending = attention.pending
    return render(
        "overview/page.html",
        attention=attention,
        lists={name: machines_where(where) for name, where in TROUBLES.items()},
        pending=pending.hour + pending.day + pending.week + pending.longer,
        proposals=proposals,
        proposals_count=f"{len(proposals)}{'+' if more else ''}" if proposals else 0,
        waiting=waiting,
        newest=newest,
        recent=recent,
        dead_letters=None if extensions is None else sum(e.dead_letters for e in extensions.extensions),
        skipped=[] if extensions is None else [e.name for e in extensions.extensions if e.skipped],
        ages=_ages(attention),
        signed=_signed(attention, now()),
        ca=_ca(attention, now()),
    )


@page.get("/fleet")
@needs("read")
def fleet() -> Response:
    """Show how the fleet stands: counts over all machines, and their charts."""
    client = api()
    stats, attention = client.stats(), client.attention()
    return render(
        "overview/fleet.html",
        stats=stats,
        attention=attention,
        statuses=bar(
            "Machines by status",
            [
                (badge(s).text, n, badge(s).look, f"/machines?status={s.value}")
                for s, n in stats.by_status.items()
            ],
        ),
        roles=_roles(stats),
        trusts=donut(
            "What the last results are worth",
            [
                # Those that wait are among them: good evidence alone makes no machine a trusted one.
                (
                    "good" if t is Trust.VERIFIED else badge(t).text,
                    n,
                    badge(t).look,
                    f"/machines?trust={t.value}",
                )
                for t, n in stats.by_trust.items()
            ],
        ),
        vendors=_vendors(attention),
    )


def _known(ask: Callable[[], T]) -> T | None:
    """Return what *ask* answers; None where it is not known now, which the page then says.

    Raises:
        Unauthenticated: The login is over: that is the whole page's.
    """
    try:
        return ask()
    except Unauthenticated:
        raise
    except AttestationError:
        return None


def machines_where(expression: str) -> str:
    """Return where the machines are for which *expression* holds; the whole list for who may not ask."""
    if not may("query"):
        return "/machines"
    return "/machines?" + urlencode({"where": f"{expression} and {HERE}"})


def _recent(client: OperatorClient) -> Sequence[AuditEntryDetail] | None:
    found = _known(lambda: client.one_page(OperatorAPI.audit, None, page_size=MOST_SHOWN))
    return None if found is None else found[0]


def _ages(attention: Attention) -> Chart:
    pending = attention.pending
    return bar(
        "How long they wait",
        [
            ("up to an hour", pending.hour, Look.WAITS),
            ("up to a day", pending.day, Look.PLAIN),
            ("up to a week", pending.week, Look.WARNS),
            ("longer", pending.longer, Look.BAD),
        ],
    )


def _roles(stats: Stats) -> Sequence[tuple[str, int, str | None]]:
    rows: list[tuple[str, int, str | None]] = [
        (role.value, count, f"/machines?role={role.value}") for role, count in stats.by_role.items() if count
    ]
    rows.sort(key=lambda row: -row[1])
    return [*rows, *([("no role yet", stats.without_role, None)] if stats.without_role else [])]


def _vendors(attention: Attention) -> Sequence[tuple[str, int, str | None]]:
    rows: list[tuple[str, int, str | None]] = [
        (maker(name), count, None)
        for name, count in sorted(attention.tpm_vendors.items(), key=lambda each: (-each[1], each[0]))
    ]
    if attention.tpm_vendors_more:
        rows.append(("others", attention.tpm_vendors_more, None))
    if attention.tpm_without_certificate:
        rows.append(("no certificate", attention.tpm_without_certificate, None))
    return rows


def _signed(attention: Attention, at: datetime) -> Badge:
    """Return how far the audit log is signed."""
    unsigned = attention.audit_entries - attention.checkpoint_entries
    if attention.checkpoint_at is None:
        return Badge(look=Look.UNKNOWN, text="never signed", title="There is no checkpoint yet")
    if unsigned <= 0:
        return Badge(look=Look.GOOD, text="signed", title="The newest checkpoint covers every entry")
    if attention.unsigned_since is not None and at - attention.unsigned_since > UNSIGNED:
        return Badge(look=Look.STALE, text=f"{unsigned} unsigned", title="Entries are not signed in time")
    return Badge(look=Look.WAITS, text=f"{unsigned} unsigned", title="They are signed in a moment")


def _ca(attention: Attention, at: datetime) -> Badge:
    """Return whether a CA that signs is about to end."""
    if attention.ca_ends_at is None:
        return Badge(look=Look.PLAIN, text="none", title="No CA signs")
    if attention.ca_ends_at <= at:
        return Badge(look=Look.BAD, text="ended")
    if attention.ca_ends_at - at < CA_SOON:
        return Badge(look=Look.WARNS, text="soon")
    return Badge(look=Look.GOOD, text="good")
