"""The overview: what needs somebody now comes first; what is not known is not shown as good."""

from __future__ import annotations

import html
import re

import pytest

from attestation.api import Attention
from attestation.errors import Unavailable
from attestation.machines import Status
from attestation.results import Verdict
from attestation.store import Tx
from attestation_web.pages import overview
from tests.fixtures.web import AUDITOR, EVERYTHING, VIEWER, Dashboard, requests_to_the_service


def test_the_overview_says_what_needs_somebody_now(dashboard: Dashboard) -> None:
    """What waits stands first, with the evidence that is compared; then how the fleet stands."""
    alice = dashboard.browser()
    assert "No machine waits." in alice.page("/")
    waiting = dashboard.machine(1, hw_serial="SN-4711")
    dashboard.machine(2).admitted(dashboard.service.operator())
    page = alice.page("/")
    assert re.search(r'<span class="count">1</span> <span class="label">wait for approval', page)
    assert f'href="/machines/{waiting.machine_id}">SN-4711</a>' in page
    assert waiting.ek_fingerprint in page
    assert page.index("wait for approval") < page.index("How the fleet stands")


def test_the_overview_does_not_wait_for_charts_of_the_fleet(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole without their counts, and names where they are: a script puts them in, a link leads there without."""
    dashboard.machine(1)
    dashboard.machine(2).admitted(dashboard.service.operator())
    alice = dashboard.browser(rights=EVERYTHING)
    asked = requests_to_the_service(monkeypatch)
    page = alice.page("/")
    assert not [url for url in asked if url.endswith("/stats")]
    part = re.search(r'<div id="live-fleet"[^>]*hx-get="([^"]+)" hx-trigger="load, [^>]*>(.*?)</div>', page)
    assert part is not None
    assert f'<a href="{part[1]}">' in part[2]
    charts = alice.page(part[1])
    assert '<div id="live-fleet"' in charts
    assert "Machines by status: pending approval 1, attested 1" in charts
    assert "Machines by status" not in page
    # Good evidence of a machine that waits counts too, and makes it no trusted one.
    assert "What the last results are worth: good 1" in charts
    assert "trusted" not in charts
    assert dashboard.browser(rights=AUDITOR).get(part[1]).status_code == 403


def test_a_tile_leads_to_the_machines_that_it_counts(dashboard: Dashboard) -> None:
    """Each of them, and not those that are revoked."""
    well, troubled, gone = (dashboard.machine(seed).machine_id for seed in (1, 2, 3))
    at = dashboard.service.clock.now()
    troubles = {"alarm": "it came twice", "config_owed_since": at, "last_result_at": at}

    def trouble(tx: Tx) -> None:
        for each, status in ((troubled, Status.ATTESTED), (gone, Status.REVOKED)):
            before = tx.machines.require(each)
            tx.machines.update(before, status=status, last_verdict=Verdict.FAILED, **troubles)

    dashboard.service.app.state.resources.store.write_sync(trouble)
    alice = dashboard.browser()
    page = alice.page("/")
    for label in ("failed in the last 24 h", "have an alarm", "have no configuration yet"):
        tile = re.search(rf'href="([^"]+)"><span class="count">1</span> <span class="label">{label}', page)
        assert tile is not None, label
        shown = alice.page(html.unescape(tile[1]))
        assert re.findall(r'<a href="/machines/([0-9a-f-]{36})">', shown) == [troubled], label
    assert {well, gone} <= set(re.findall(r"/machines/([0-9a-f-]{36})", alice.page("/machines")))


@pytest.mark.parametrize("rights", [VIEWER, AUDITOR, EVERYTHING], ids=["viewer", "auditor", "both"])
def test_recent_activity_is_an_auditor_s(dashboard: Dashboard, rights: tuple[str, ...]) -> None:
    """Who may read the log sees its newest entries; who may not sees the newest machines, and none of the log."""
    dashboard.machine(1, hw_serial="SN-1")
    browser = dashboard.browser(rights=rights)
    page = browser.page("/")
    assert ("Recent activity" in page) == ("audit" in rights)
    assert ("Newest machines" in page) == ("audit" not in rights)
    assert ("SN-1" in page) == ("read" in rights)


def test_what_is_not_known_is_said_to_be_unknown(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extensions that do not answer take nothing else of the page with them, and are not counted as none."""

    def away(_self: object) -> None:
        raise Unavailable("not now")

    alice = dashboard.browser()
    tile = r'<span class="count">([^\n]*)</span> <span class="label">events not delivered'
    known = re.search(tile, alice.page("/"))
    assert known is not None
    assert known[1] == "0"
    monkeypatch.setattr("attestation.client.OperatorClient.extensions", away)
    unknown = re.search(tile, alice.page("/"))
    assert unknown is not None
    assert "unknown" in unknown[1]


def test_an_empty_log_or_one_that_is_not_signed_never_looks_good(dashboard: Dashboard) -> None:
    """Never signed is unknown; unsigned for long is stale; only all of it signed is good."""
    service, at = dashboard.service, dashboard.service.clock.now()
    found = service.client().get(
        "/api/v1/stats/attention", headers={"Authorization": f"Bearer {service.admin_token}"}
    )
    base = Attention.model_validate(found.json())
    looks = [
        overview._signed(base.model_copy(update=changed), at).look.value
        for changed in (
            {"checkpoint_at": None, "checkpoint_entries": 0},
            {"checkpoint_at": at, "checkpoint_entries": 5, "audit_entries": 5, "unsigned_since": None},
            {"checkpoint_at": at, "checkpoint_entries": 4, "audit_entries": 5, "unsigned_since": at},
            {
                "checkpoint_at": at,
                "checkpoint_entries": 4,
                "audit_entries": 5,
                "unsigned_since": at - 2 * overview.UNSIGNED,
            },
        )
    ]
    assert looks == ["unknown", "good", "waits", "stale"]


def test_a_page_asks_few_things(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many machines there are: six requests for the overview, and a bounded number for the inbox."""
    for seed in range(1, 6):
        dashboard.machine(seed)
    asked = requests_to_the_service(monkeypatch)
    alice = dashboard.browser(rights=EVERYTHING)
    alice.page("/")
    assert len(asked) <= 6, asked
    asked.clear()
    alice.page("/inbox")
    assert len(asked) <= 3, asked
