"""The audit log in the dashboard, before a real service in this process."""

from __future__ import annotations

import html
import io
import json
import re
from datetime import timedelta

import pytest

from attestation.audit.export import LogVerifier, Pinned
from attestation.audit.note import parse_vkey
from attestation.audit.proof import read_proof
from attestation.client import OperatorClient
from attestation.wire import b64encode
from tests.fixtures.web import AUDITOR, OPERATOR, Dashboard
from tests.unit.audit.log_kit import LOG_VKEYS

OTHER_KEY = str(LOG_VKEYS[0])
"""Of another log, whose keys are those of the tests."""


def _api(dashboard: Dashboard) -> OperatorClient:
    return dashboard.web.service.speaking_for(dashboard.service.admin_token)


def _pinned(dashboard: Dashboard) -> Pinned:
    keys = _api(dashboard).audit_keys()
    return Pinned(log_keys=tuple(map(parse_vkey, keys.vkeys)), witnesses=(), quorum=0)


def test_entries_are_listed_and_found(dashboard: Dashboard) -> None:
    """Newest first; by machine, action and person; what cannot be asked for is said beside the form."""
    machine = dashboard.machine(1)
    machine.admitted(dashboard.service.operator())
    auditor = dashboard.browser("vera", rights=AUDITOR)
    page = auditor.page("/audit")
    numbers = [int(n) for n in re.findall(r'<a href="/audit/(\d+)">', page)]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) > 2
    approved = auditor.page("/audit?action=approve")
    assert len(re.findall(r'<a href="/audit/(\d+)">', approved)) == 1
    # Of the machine itself an auditor may see nothing: its id is no link there.
    assert machine.machine_id in approved
    assert f'href="/machines/{machine.machine_id}"' not in approved
    assert "No entry fits" in auditor.page("/audit?operator=nobody")
    assert machine.machine_id in auditor.page(f"/audit?machine={machine.machine_id}&action=approve")
    assert "is 36 characters" in auditor.page("/audit?machine=x")
    assert "one word in lower case" in auditor.page("/audit?action=Approve it")
    assert "no name of a person" in auditor.page("/audit?operator=%07")
    assert 'role="alert"' in auditor.page("/audit?after=%2A")


def test_entries_of_a_time_and_with_a_text_are_found(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first minute, before the second, UTC; a search that stopped says where, and leads on."""
    for seed in (1, 2):
        dashboard.machine(seed).admitted(dashboard.service.operator())
        dashboard.service.clock.pass_(hours=1)
    auditor = dashboard.browser("vera", rights=AUDITOR)

    def approved(query: str) -> int:
        return auditor.page(f"/audit?action=approve&{query}").count('class="clip"')

    start = dashboard.service.clock.now() - timedelta(hours=2)
    first, second = (f"{start + timedelta(minutes=n):%Y-%m-%dT%H:%M}" for n in (0, 50))
    assert [approved(""), approved(f"since={first}"), approved(f"since={second}")] == [2, 2, 1]
    assert [approved(f"until={second}"), approved(f"until={first}&text=role")] == [1, 0]
    assert [approved("text=ROLE+worker"), approved("text=%25")] == [2, 0]
    assert "is a day and a time in UTC" in auditor.page("/audit?since=yesterday")
    monkeypatch.setattr("attestation.store.audit.WINDOW", 2)
    page = auditor.page("/audit?text=nobody+says+this")
    assert "No entry fits among those that were looked at." in page
    onward = re.search(r'looked down to entry \d+, [^<]*<a href="([^"]+)"', page)
    assert onward is not None
    assert "text=nobody+says+this&after=" in html.unescape(onward[1])
    assert auditor.get(html.unescape(onward[1])).status_code == 200


@pytest.mark.threat("T49")
def test_an_entry_has_its_place_and_its_proof_verifies_without_the_service(dashboard: Dashboard) -> None:
    """The page shows what was hashed; the file that it gives verifies under the log's keys alone."""
    dashboard.machine(1).admitted(dashboard.service.operator())
    auditor = dashboard.browser("vera", rights=AUDITOR)
    entry = next(_api(dashboard).audit(action="approve"))
    _api(dashboard).audit_checkpoint()
    page = auditor.page(f"/audit/{entry.id}")
    assert f"follows entry {entry.id - 1}" in page
    assert "in the signed log" in page
    assert entry.entry_hash in page
    assert entry.prev_hash in page
    answer = auditor.get(f"/audit/{entry.id}/proof.json")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="audit-{entry.id}.proof.json"'
    proven = read_proof(answer.data, _pinned(dashboard))
    assert (proven.entry_id, proven.entry["action"]) == (entry.id, "approve")
    assert proven.head.signers
    assert "the first" in auditor.page("/audit/1")
    assert auditor.get("/audit/99999").status_code == 404
    assert auditor.get("/audit/0").status_code == 404
    assert auditor.get("/audit/0/proof.json").status_code == 404
    assert auditor.get("/audit/99999/proof.json").status_code == 422


def test_the_service_walks_its_log_only_where_somebody_asks(dashboard: Dashboard) -> None:
    """The page says how to do without its word; a walk is asked for by a button."""
    dashboard.machine(1)
    auditor = dashboard.browser("vera", rights=AUDITOR)
    assert "The log is whole" not in auditor.page("/audit/verify")
    page = auditor.page("/audit/verify?now=yes")
    assert "The log is whole." in page
    assert "attestation audit verify audit.jsonl --vkeys-file log.vkeys" in page


@pytest.mark.threat("T49")
def test_what_is_downloaded_verifies(dashboard: Dashboard) -> None:
    """Checkpoint, keys and export are what the service gives, byte for byte."""
    dashboard.machine(1)
    auditor = dashboard.browser("vera", rights=AUDITOR)
    page = auditor.page("/audit/log")
    assert page.count("verifies") >= 2
    assert "No witness is asked." in page
    note = auditor.get("/audit/checkpoint")
    assert re.fullmatch(r'attachment; filename="audit-\d+\.checkpoint"', note.headers["Content-Disposition"])
    keys = auditor.get("/audit/keys").text.split()
    assert keys == list(_api(dashboard).audit_keys().vkeys)
    export = auditor.get("/audit/export")
    assert export.headers["Content-Disposition"] == 'attachment; filename="audit.jsonl"'
    verifier = LogVerifier(pinned=_pinned(dashboard), earlier=())
    verifier.feed(export.data)
    assert verifier.finish().entries == json.loads(export.data.splitlines()[-1])["id"]


@pytest.mark.threat("T49")
def test_two_checkpoints_are_compared_here(dashboard: Dashboard) -> None:
    """A kept one is the beginning of the newest; one of another history, another signer or another order is not."""
    dashboard.machine(1)
    auditor = dashboard.browser("vera", rights=AUDITOR)
    kept = auditor.get("/audit/checkpoint").text
    dashboard.machine(2)
    dashboard.service.clock.pass_(minutes=10)
    newer = auditor.get("/audit/checkpoint").text
    assert newer != kept
    form = auditor.form("/audit/compare")

    def compared(old: str, new: str = "", **more: str) -> tuple[int, str]:
        answer = auditor.post("/audit/compare", data=form | {"old": old, "new": new, **more})
        return answer.status_code, answer.text

    status, page = compared(kept.replace("\n", "\r\n"))
    assert (status, "The log only grew." in page) == (200, True)
    assert "the keys that the service names" in page
    assert compared(kept, newer)[0] == compared(kept, kept)[0] == 200
    upload = form | {"old_file": (io.BytesIO(kept.encode()), "kept.checkpoint")}
    assert auditor.post("/audit/compare", data=upload).status_code == 200
    pinned = auditor.get("/audit/keys").text
    status, page = compared(kept, newer, keys=pinned)
    assert (status, "under the keys that you gave" in page) == (200, True)
    status, page = compared(newer, kept)
    assert (status, "its end is missing" in page) == (422, True)
    origin, size, _, *rest = kept.split("\n")
    forged = "\n".join([origin, size, b64encode(bytes(32)), *rest])
    for old, more in ((forged, {}), ("", {}), ("no checkpoint", {}), (kept, {"keys": OTHER_KEY})):
        status, page = compared(old, **more)
        assert (status, "This is not proven." in page) == (422, True), old


@pytest.mark.threat("T49")
def test_a_signed_checkpoint_of_another_history_is_found_out(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every signature verifies: the hashes of the service must lead from one root to the other."""
    dashboard.machine(1)
    auditor = dashboard.browser("vera", rights=AUDITOR)
    kept = auditor.get("/audit/checkpoint").text
    dashboard.service.clock.pass_(minutes=10)
    dashboard.machine(2)
    origin, size, _, *rest = kept.split("\n")
    forged = "\n".join([origin, size, b64encode(bytes(32)), *rest])
    monkeypatch.setattr("attestation_web.pages.audit._verify_signed", lambda *_: None)
    form = auditor.form("/audit/compare")
    assert auditor.post("/audit/compare", data=form | {"old": kept}).status_code == 200
    assert "This is not proven." in auditor.post("/audit/compare", data=form | {"old": forged}).text


def test_who_is_no_auditor_sees_nothing_of_it(dashboard: Dashboard) -> None:
    """Entries hold names: the area takes the right to audit, each of its addresses."""
    dashboard.machine(1)
    alice = dashboard.browser(rights=OPERATOR)
    for path in ("", "/1", "/1/proof.json", "/verify", "/log", "/compare", "/checkpoint", "/keys", "/export"):
        assert alice.get(f"/audit{path}").status_code == 403, path
