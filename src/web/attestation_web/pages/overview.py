"""The first page: what needs somebody now, then how the fleet stands."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from attestation.machines import Status, Trust
from attestation_web.page import Page, api, bar, donut, may, now, render
from attestation_web.page.badges import badge

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

MOST_SHOWN: Final = 10

page: Final = Page(__name__, title="Overview", place=10, right=None, prefix="")


@page.get("/")
def show() -> Response:
    """Show what waits, and counts."""
    if not may("read"):
        return render("overview/other_right.html")
    client = api()
    stats = client.stats()
    pending = stats.by_status[Status.PENDING_APPROVAL]
    return render(
        "overview/page.html",
        at=now(),
        stats=stats,
        proposals=list(islice(client.proposals(page_size=MOST_SHOWN), MOST_SHOWN)),
        waiting=list(
            islice(client.machines(status=Status.PENDING_APPROVAL, page_size=MOST_SHOWN), MOST_SHOWN)
        )
        if pending
        else [],
        statuses=bar(
            "Machines by status",
            [
                (badge(s).text, n, badge(s).look, f"/machines?status={s.value}")
                for s, n in stats.by_status.items()
            ],
        ),
        trusts=donut(
            "Trust in attested machines",
            [
                (badge(t).text, n, badge(t).look, f"/machines?trust={t.value}")
                for t, n in stats.by_trust.items()
            ],
        ),
        failed=stats.by_trust[Trust.FAILED],
        stale=stats.by_trust[Trust.STALE],
        most=MOST_SHOWN,
    )
