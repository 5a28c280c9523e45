"""Machines: the list and its filters, one machine part by part, a result, and what is done to them.

Against the real service in this process, with machines whose TPM is software.
"""

from __future__ import annotations

import csv
import html
import inspect
import io
import re
import uuid
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import quote

import pytest

from attestation.client import OperatorClient, tee_words, words
from attestation.errors import Unavailable
from attestation.keys import create_kek
from attestation.machines import Status
from attestation.store import SavedQuery, Tx
from attestation_web.border import in_time
from attestation_web.page import several
from attestation_web.pages.machines import export, listing, ways
from tests.fixtures.in_process import in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.web import AUDITOR, OPERATOR, VIEWER, Browser, Dashboard, requests_to_the_service

ACTS = ("unlock", "lock", "role", "redeliver", "labels", "revoke", "delete", "replace")
DECIDED = ("approve", "reject")
PCR_POLICY = {
    "format": "itl-tpm-policy/1",
    "name": "strict",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"4": {"any_of": ["11" * 32]}},
    "max_age_seconds": 120,
}


def _names(page: str) -> list[str]:
    return re.findall(r'<a href="/machines/[0-9a-f-]{36}">([^<]+)</a>', page)


def _attested(dashboard: Dashboard, seed: int, **more: str) -> Machine:
    made = dashboard.machine(seed, hw_serial=f"SN-{seed}")
    made.admitted(dashboard.service.operator(), **more)
    return made


def _browser(dashboard: Dashboard, *rights: str) -> Browser:
    """Return a browser of somebody with exactly *rights*."""
    browser = dashboard.browser(rights=OPERATOR)
    assert browser.session.whoami is not None
    token, who = browser.session.whoami
    browser.session.whoami = token, who.model_copy(update={"rights": list(rights)})
    return browser


def test_the_list_is_filtered_and_sorted_by_the_service(dashboard: Dashboard) -> None:
    """By status, trust, text and labels; the order stands in the address; what is no word is said."""
    first, second = _attested(dashboard, 1, hostname="b-1"), _attested(dashboard, 2, hostname="a-2")
    dashboard.machine(3, hw_serial="SN-3")
    alice = dashboard.browser()
    assert set(_names(alice.page("/machines"))) == {"b-1", "a-2", "SN-3"}
    assert _names(alice.page("/machines?status=pending_approval")) == ["SN-3"]
    assert _names(alice.page("/machines?trust=verified&sort=machine")) == ["a-2", "b-1"]
    assert _names(alice.page("/machines?trust=verified&sort=-machine")) == ["b-1", "a-2"]
    assert _names(alice.page("/machines?q=sn-3")) == ["SN-3"]
    assert alice.act(f"/machines/{first.machine_id}/labels", labels="rack=4").status_code == 303
    assert _names(alice.page("/machines?labels=rack%3D4")) == ["b-1"]
    assert _names(alice.page(f"/machines?q={second.machine_id[:8]}")) == ["a-2"]
    assert "There is no status called odd" in alice.page("/machines?status=odd")
    said = "There is no trust called trusted; in an address it is one of verified, failed, stale, unknown."
    assert said in alice.page("/machines?trust=trusted")
    assert "The service does not take this" in alice.page("/machines?labels=%3D%3D")


def test_the_overview_of_a_machine_asks_again_states_and_words_together(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Badges, acts and sentences are one part, of few requests; what is read or filled in elsewhere is left alone."""
    path = f"/machines/{_attested(dashboard, 1, hostname='a-1').machine_id}"
    alice = dashboard.browser()
    asked = requests_to_the_service(monkeypatch)
    page = alice.page(path)
    assert len(asked) <= 6, asked
    begins = page.index('<div id="live-machine"')
    assert f'hx-get="{path}"' in page[begins : page.index(">", begins)]
    for told in ('<p class="states">', "What can be done", "Why it is trusted, or not", "Security anchors"):
        assert page.index(told) > begins, told
    for tab in ("identity", "evidence", "configuration", "certificates", "votes"):
        assert "data-live" not in alice.page(f"{path}?tab={tab}"), tab


def test_pages_follow_each_other_in_order(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link to the next page keeps order and filter; each machine is on one page."""
    monkeypatch.setattr(listing, "PAGE_ROWS", 2)
    for seed in (1, 2, 3):
        _attested(dashboard, seed, hostname=f"m-{seed}")
    alice = dashboard.browser()
    page = alice.page("/machines?sort=machine&status=attested")
    later = re.search(r'<a href="([^"]+)" rel="next"', page)
    assert later is not None
    assert _names(page) + _names(alice.page(later[1].replace("&amp;", "&"))) == ["m-1", "m-2", "m-3"]


def test_an_expression_finds_machines_and_reaches_no_further(dashboard: Dashboard) -> None:
    """What is typed is one condition; a fault is told where; who may not ask is not offered it."""
    _attested(dashboard, 1, hostname="a-1")
    dashboard.machine(2, hw_serial="SN-2")
    alice = _browser(dashboard, "read", "act", "query")
    assert _names(alice.page("/machines?where=status+%3D%3D+%27attested%27")) == ["a-1"]
    assert _names(alice.page("/machines?where=status+%3D%3D+%27attested%27+%2F%2F+mine")) == ["a-1"]
    fault = alice.page("/machines?where=statu+%3D%3D+1")
    assert 'id="where-fault"' in fault
    for beyond in (
        "true) | take 1 | where (true",
        "true)\n| take 1\n| where (true",
        "1 == 1) or (1 == 1) | where (",
    ):
        path = quote(beyond)
        page = alice.page(f"/machines?where={path}")
        assert 'id="where-fault"' in page, beyond
        assert _names(page) == [], beyond
        assert alice.get(f"/machines/export.csv?where={path}").status_code in (400, 422), beyond
    assert "more than one condition" in alice.page("/machines?where=" + quote("true) | take 1 | where (true"))
    both = "(status == 'attested') and (hostname == 'a-1') or ((false))"
    assert _names(alice.page("/machines?where=" + quote(both))) == ["a-1"]
    # Who may not ask is not offered it, nor shown other machines than the address says.
    assert 'name="where"' not in _browser(dashboard, "read").page("/machines")
    refused = _browser(dashboard, "read").page("/machines?where=false")
    assert "takes another role than yours" in refused
    assert "Not known." in refused
    assert _names(refused) == []


def test_an_expression_of_another_site_is_read_before_it_is_asked(dashboard: Dashboard) -> None:
    """A link elsewhere writes no query into the audit under the name of who follows it; ours, and a bookmark, do."""
    _attested(dashboard, 1, hostname="a-1")
    alice, auditor = dashboard.browser(), dashboard.browser("vera", rights=AUDITOR)
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    page = alice.get("/machines?where=true", headers=elsewhere).text
    assert "came by a link from elsewhere" in page
    assert 'value="true"' in page
    assert _names(page) == []
    answer = alice.get("/machines/export.csv?where=true", headers=elsewhere)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/machines?where=true")
    assert "No entry fits." in auditor.page("/audit?action=query")
    assert _names(alice.get("/machines?where=true", headers={"Sec-Fetch-Site": "none"}).text) == ["a-1"]
    assert "No entry fits." not in auditor.page("/audit?action=query")


def test_operators_end_views_of_others(dashboard: Dashboard) -> None:
    """A shared one: by the page of queries, which leads back. Who may not act is not offered it."""
    at = dashboard.service.clock.now()
    kept = SavedQuery(
        owner="issuer#anna",
        owner_cn="anna",
        name="mornings",
        query="status=attested&sort=-last_result_at",
        description="first of all",
        shared=True,
        created_at=at,
        updated_at=at,
        kind="view",
    )
    dashboard.service.app.state.resources.store.write_sync(lambda tx: tx.saved_queries.put(kept))
    alice, vera = dashboard.browser(), dashboard.browser("vera", rights=VIEWER)
    page = alice.page("/machines/views")
    assert "mornings" in vera.page("/machines/views")
    assert "/query/shared/" not in vera.page("/machines/views")
    assert "mornings" not in alice.page("/query")
    take = re.search(r'href="(/query/shared/\d+/take-over)"', page)
    assert take is not None
    answer = alice.act(take[1])
    assert answer.headers["Location"] == "/machines/views"
    assert "mornings is yours." in alice.page("/machines/views")
    assert "/query/shared/" not in alice.page("/machines/views")


def test_a_view_is_kept_and_opened_without_a_script(dashboard: Dashboard) -> None:
    """Filters, order and columns come back as they were; the list names the view; its owner forgets it."""
    _attested(dashboard, 1, hostname="a-1")
    dashboard.machine(2, hw_serial="SN-2")
    alice, vera = dashboard.browser(), dashboard.browser("vera", rights=VIEWER)
    asked = "status=attested&cluster=default&sort=-seen&column=machine&column=ek&where="
    keep = re.search(r'href="(/machines/views/save[^"]*)"', alice.page(f"/machines?{asked}&after="))
    assert keep is not None
    form = html.unescape(keep[1])
    assert "<dd>-last_result_at</dd>" in alice.page(form)
    kept = re.search(r'name="kept" value="([^"]*)"', alice.page(form))
    assert kept is not None
    saved = alice.act(form, name="mine", shared="yes", kept=html.unescape(kept[1]))
    assert saved.status_code == 303
    page = alice.page("/machines/views")
    assert "The view mine is kept, and shared." in page
    number = re.search(r'<option value="([0-9]+)">mine', alice.page("/machines"))
    assert number is not None
    opened = vera.get(f"/machines/views/open?view={number[1]}")
    place = opened.headers["Location"]
    assert place == (
        f"/machines?status=attested&cluster=default&sort=-seen&column=machine&column=ek&view={number[1]}"
    )
    shown = vera.page(place)
    assert f'<option value="{number[1]}" selected>mine<' in shown
    assert _names(shown) == ["a-1"]
    assert vera.get("/machines/views/open?view=").headers["Location"] == "/machines"
    assert vera.get("/machines/views/open?view=99").status_code == 422
    assert alice.act("/machines/views/mine/delete").status_code == 303
    assert ">mine<" not in vera.page("/machines")


def test_the_file_has_every_machine_and_no_secret(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page, however long that takes, filtered as the list is; what a machine says of itself is no formula."""
    monkeypatch.setattr(export, "EXPORT_ROWS", 1)
    monkeypatch.setattr(in_time, "SECONDS", 0.0)
    monkeypatch.setattr(in_time, "time", SimpleNamespace(monotonic=count(1.0).__next__))
    _attested(dashboard, 1, hostname="a-1")
    dashboard.machine(2, hw_serial="=1+1")
    alice = dashboard.browser()
    answer = alice.get("/machines/export.csv")
    assert answer.headers["Content-Disposition"].startswith("attachment; ")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["hostname"] for row in rows} == {"a-1", ""}
    assert "'=1+1" in {row["hw_serial"] for row in rows}
    assert not {"config_token", "ek_cert_pem", "ek_certificate", "ak_pub", "ak_name"} & rows[0].keys()
    assert len(alice.get("/machines/export.csv?status=attested").text.splitlines()) == 2


def test_the_file_of_an_expression_has_the_same_machines_and_cells(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one answer does not have all of them; a fault is a page, and no file that breaks off."""
    made = [_attested(dashboard, seed, hostname=f"m-{seed}") for seed in (1, 2, 3)]
    dashboard.machine(4, hw_serial="=1+1")
    alice = dashboard.browser()
    assert alice.act(f"/machines/{made[0].machine_id}/labels", labels="rack=4").status_code == 303

    def rows(query: str) -> list[dict[str, str]]:
        answer = alice.get(f"/machines/export.csv{query}")
        assert answer.headers["Content-Type"].startswith("text/csv")
        return [row | {"firmware_version": ""} for row in csv.DictReader(io.StringIO(answer.text))]

    every = rows("")
    assert len(every) == 4
    assert rows("?where=true") == every
    # By two: the next begins at the instant where the last ended, and names nobody twice.
    monkeypatch.setattr(export, "QUERY_ROWS", 2)
    assert rows("?where=true") == every
    assert rows("?where=status+%3D%3D+%27attested%27+%2F%2F+mine") == every[1:]
    assert rows("?where=false") == []
    fault = alice.get("/machines/export.csv?where=statu+%3D%3D+1")
    assert (fault.status_code, fault.content_type.partition(";")[0]) == (422, "text/html")
    assert "export.csv?where=true" in alice.page("/machines?where=true")


@pytest.mark.threat("T279")
def test_several_are_locked_after_one_question(dashboard: Dashboard) -> None:
    """It names them before, does it to each, and says of each what became of it."""
    made = [_attested(dashboard, seed, hostname=f"m-{seed}") for seed in (1, 2)]
    alice = dashboard.browser()
    path = "/machines/lock?" + "&".join(f"machine={m.machine_id}" for m in made)
    page = alice.page(path)
    assert all(m.machine_id in page for m in made)
    later = alice.form(path)
    assert alice.act(path).status_code == 303
    told = alice.page("/machines?status=locked")
    assert "m-1: done; m-2: done" in told
    assert set(_names(told)) == {"m-1", "m-2"}
    auditor = dashboard.browser("vera", rights=AUDITOR)
    for machine, name in zip(made, ("m-1", "m-2"), strict=True):
        entry = re.search(rf"Audit entries:.*{name} (\d+)", told)
        assert entry is not None
        page = auditor.page(f"/audit/{entry[1]}")
        assert machine.machine_id in page
        assert ">lock<" in page
    # Neither a link nor a form that names others than the page did locks those.
    third = _attested(dashboard, 3, hostname="m-3")
    form = alice.form(f"/machines/lock?machine={third.machine_id}&machines={made[0].machine_id}")
    assert form["machines"] == third.machine_id
    fourth = _attested(dashboard, 4, hostname="m-4")
    assert alice.post("/machines/lock", data=form | {"machines": fourth.machine_id}).status_code == 409
    assert set(_names(alice.page("/machines?status=locked"))) == {"m-1", "m-2"}
    # They are locked already: nothing is done, and nothing says that it was.
    answer = alice.post("/machines/lock", data=later)
    assert answer.status_code == 409
    assert "This was not done." in answer.text
    # The question is not asked either.
    assert alice.get(path).status_code == 422
    assert alice.get("/machines/lock").status_code == 422
    many = "&".join(f"machine={n}" for n in range(several.MOST_AT_ONCE + 1))
    assert alice.get(f"/machines/lock?{many}").status_code == 422


def test_as_many_as_there_may_be_are_decided_by_few_requests(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms: all machines are read at once, and each act is a request of its own; 25 at most for a page."""
    made = [dashboard.machine(seed).machine_id for seed in range(1, several.MOST_AT_ONCE + 1)]
    alice = dashboard.browser()
    chosen = "&".join(f"machine={each}" for each in made)
    asked = requests_to_the_service(monkeypatch)

    def lists_them() -> None:
        assert len([url for url in asked if "/machines?ids=" in url]) == 1
        asked.clear()

    form = alice.form(f"/inbox/approve-several?{chosen}")
    assert len(asked) <= 2, asked
    lists_them()
    filled = form | {"role": "worker-app", "cluster_id": "default"}
    assert alice.post("/inbox/approve-several", data=filled).status_code == 303
    assert len([url for url in asked if url.endswith("/approve")]) == len(made)
    assert len(asked) <= 25, asked
    lists_them()

    def attested(tx: Tx) -> None:
        for each in made:
            tx.machines.update(tx.machines.require(each), status=Status.ATTESTED)

    dashboard.service.app.state.resources.store.write_sync(attested)
    form = alice.form(f"/machines/lock?{chosen}")
    lists_them()
    assert alice.post("/machines/lock", data=form).status_code == 303
    assert len([url for url in asked if url.endswith("/lock")]) == len(made)
    assert len(asked) <= 25, asked
    lists_them()
    told = alice.page("/machines?status=locked")
    assert told.count(": done") == len(made)
    # What is not there any more is named, and nothing is done to the others.
    gone = "00000000-0000-4000-8000-000000000000"
    answer = alice.get(f"/inbox/approve-several?machine={made[0]}&machine={gone}")
    assert (answer.status_code, "no such machine: 00000000" in answer.text) == (404, True)


def test_who_waits_is_decided_in_one_place(dashboard: Dashboard) -> None:
    """The list and the machine lead to the inbox, whose form asks what the machine shows; there is no second one."""
    made = dashboard.machine(1)
    alice = dashboard.browser()
    assert 'formaction="/inbox/approve-several"' in alice.page("/machines")
    for path in (
        f"/machines/{made.machine_id}/approve",
        f"/machines/{made.machine_id}/reject",
    ):
        assert alice.get(path).status_code == 404, path


def test_one_machine_is_told_part_by_part(dashboard: Dashboard) -> None:
    """Each part has its own page, asks few requests, and says what is not known."""
    made = _attested(dashboard, 1, hostname="a-1")
    alice = _browser(dashboard, "read", "act", "audit")
    here = f"/machines/{made.machine_id}"
    overview = alice.page(here)
    assert "attested and trusted" in overview
    assert "Trust vector (AR4SI)" in overview
    assert made.ek_fingerprint in overview
    assert "It came without an EK certificate" in alice.page(f"{here}?tab=identity")
    assert f"{here}/results/" in alice.page(f"{here}?tab=evidence")
    assert "a file of the service" in alice.page(f"{here}?tab=configuration")
    assert "Its certificates" in alice.page(f"{here}?tab=certificates")
    assert "Nobody voted about it." in alice.page(f"{here}?tab=votes")
    assert "machine_attested" in alice.page(f"{here}?tab=audit") or "attested" in alice.page(
        f"{here}?tab=audit"
    )
    # Extensions that are not enabled have no part.
    assert "tab=secrets" not in overview
    assert "tab=disk-keys" not in overview
    assert alice.get("/machines/00000000-0000-0000-0000-000000000000").status_code == 404


def test_a_refused_result_is_explained(dashboard: Dashboard) -> None:
    """What was expected and what was found stand beside each other; the machine says that it failed."""
    made = _attested(dashboard, 1, hostname="a-1")
    operator = dashboard.service.operator()
    operator.call("POST", "/policies", json=PCR_POLICY)
    operator.call("PUT", "/policies/assignments/fleet/*", json={"policy": "strict@1"})
    made.next_challenge = None  # it was given out under the policy before
    made.attest()
    alice = dashboard.browser()
    here = f"/machines/{made.machine_id}"
    told = alice.page(here)
    assert "not trusted now" in told
    assert f'<a href="{here}/lock" title="attestation machine lock {made.machine_id[:8]}">Lock</a>' in told
    # Who may only read is told the command, and led to no page that refuses them.
    assert f"<code>attestation machine lock {made.machine_id[:8]}</code>" in _browser(dashboard, "read").page(
        here
    )
    newest = re.search(r'href="(/machines/[^"]+/results/\d+)"', alice.page(f"{here}?tab=evidence"))
    assert newest is not None
    page = alice.page(newest[1])
    row = re.search(r'<tr class="failed">.*?</tr>', page, re.DOTALL)
    assert row is not None
    assert "11" * 32 in row[0]
    assert "00" * 32 in row[0]
    assert "No event log of result" in alice.page(f"{newest[1]}/events")


@pytest.mark.parametrize("module", [words, tee_words])
def test_a_command_that_is_advised_is_a_page_here(module: ModuleType, dashboard: Dashboard) -> None:
    """Who reads the advice in a browser is led on in it."""
    named = {
        " ".join(each.split()[:2]) for each in re.findall(r"`attestation ([^`]+)`", inspect.getsource(module))
    }
    assert named
    assert named <= set(ways.WAYS)
    pages = dashboard.app.url_map.bind("")
    for each in ways.WAYS.values():
        pages.match(each.href.format(id=uuid.uuid4()).partition("?")[0])


def test_only_what_the_status_allows_is_offered(dashboard: Dashboard) -> None:
    """To a machine that waits: approve and reject; to one that attests: not. To a viewer and an auditor nothing."""
    waits, attests = dashboard.machine(1), _attested(dashboard, 2)

    def offered(browser: Browser, machine: Machine) -> set[str]:
        page = browser.page(f"/machines/{machine.machine_id}")
        areas = {**dict.fromkeys(ACTS, "machines"), **dict.fromkeys(DECIDED, "inbox")}
        return {a for a, area in areas.items() if f"/{area}/{machine.machine_id}/{a}" in page}

    alice, vera = dashboard.browser(), dashboard.browser("vera", rights=VIEWER)
    assert offered(alice, waits) == {"approve", "reject", "labels"}
    assert offered(alice, attests) == {"lock", "role", "redeliver", "labels", "revoke", "replace"}
    assert offered(vera, waits) == offered(vera, attests) == set()
    for act in ACTS:
        assert vera.get(f"/machines/{waits.machine_id}/{act}").status_code == 403
    assert "Approve…" not in vera.page("/machines")
    for path in ("/machines", f"/machines/{waits.machine_id}", "/machines/export.csv"):
        assert dashboard.browser("otto", rights=AUDITOR).get(path).status_code == 403


def test_a_machine_goes_through_its_life(dashboard: Dashboard) -> None:
    """Approved, locked, unlocked, given another role, revoked by its name typed: each told with its entry."""
    made = dashboard.machine(1, hw_serial="SN-1")
    alice, here = dashboard.browser(), f"/machines/{made.machine_id}"

    def done(act: str, **filled: str) -> str:
        assert alice.act(f"{here}/{act}", **filled).status_code == 303, act
        page = alice.page(here)
        assert re.search(r"Audit entry (?:<[^>]+>)?\d+", page), act
        return page

    admitted = {
        "role": "worker-app",
        "hostname": "a-1",
        "cluster_id": "default",
        "fingerprint": made.ek_fingerprint,
    }
    assert alice.act(f"/inbox/{made.machine_id}/approve", **admitted).status_code == 303
    made.attest()
    assert "a-1 is locked." in done("lock", reason="look")
    assert "is unlocked" in done("unlock")
    assert "a-1 is generic in default now." in done("role", role="generic", reason="moved")
    assert alice.act(f"{here}/revoke", _typed="a-2").status_code == 422
    assert "ordered to wipe itself" in done("revoke", _typed="a-1", wipe="yes")
    assert f"{here}/revoke" not in alice.page(here)


def test_the_parts_of_extensions_are_there_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets by name; holds, with their end: only where the extension is enabled, or nobody knows whether it is."""
    create_kek(f"file:{tmp_path / 'vault.kek'}").close()
    named = {"ITL_EXT_SECRET_VAULT_KEK": f"file:{tmp_path / 'vault.kek'}"}
    with in_process_service(
        tmp_path / "service", extensions=("secret_vault",), extension_values=named
    ) as service:
        dashboard = Dashboard(service)
        made = _attested(dashboard, 1, hostname="a-1")
        path = f"/secrets/machines/{made.machine_id}/secrets"
        service.operator().call("POST", path, json={"name": "db-password", "value": "hush-hush"})
        page = dashboard.browser().page(f"/machines/{made.machine_id}?tab=secrets")
        assert "db-password" in page
        assert "hush-hush" not in page
        assert "tab=disk-keys" not in page

        def away(_: OperatorClient) -> None:
            raise Unavailable("the service does not answer")

        monkeypatch.setattr(OperatorClient, "extensions", away)
        page = dashboard.browser().page(f"/machines/{made.machine_id}")
        assert "tab=secrets" in page
        assert "tab=disk-keys" in page
