"""What somebody filled in, and the page that they wanted, survive a fault: of the login, the service, the provider."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attestation.client import ServiceUnreachable
from attestation.client.openid.errors import ProviderUnreachable
from attestation_web.login.openid import OpenID
from attestation_web.login.routes import _ticket_cookie
from tests.fixtures.over_httpx import OverHTTPX
from tests.fixtures.web import URL, Browser, Dashboard

OURS = {"Origin": URL}
ROLE = {"role": "worker-app", "cluster_id": "default"}
WORDS = "ordered in <March>"


def _form(dashboard: Dashboard) -> tuple[Browser, str, dict[str, str]]:
    made, alice = dashboard.machine(1), dashboard.browser()
    path = f"/inbox/{made.machine_id}/approve"
    return alice, path, alice.form(path) | ROLE | {"reason": WORDS}


def _link(page: str, words: str) -> str:
    found = re.search(rf'href="([^"]+)"[^>]*>{words}<', page)
    assert found is not None, page
    return found[1].replace("%3F", "?").replace("%3D", "=")


@pytest.mark.threat("T270", "T274")
def test_a_session_that_is_over_loses_no_words(dashboard: Dashboard) -> None:
    """They stand on the page, as text, and the login leads back to the form; nothing of another site stands there."""
    alice, path, form = _form(dashboard)
    dashboard.web.sessions.close_of(subject="sub-alice", sid=None)
    answer = alice.post(path, data=form, headers=OURS)
    assert answer.status_code == 401
    assert "ordered in &lt;March&gt;</textarea>" in answer.text
    assert form["_form"] not in answer.text
    assert form["_key"] not in answer.text
    assert form["seen"] not in answer.text
    assert _link(answer.text, "Log in") == f"/auth/login?to={path}"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
        assert "March" not in alice.post(path, data=form, headers=headers).text


def test_a_service_that_is_away_loses_no_words(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the act: they are kept, and the page leads back to them. During it: the form stays as it is."""
    alice, path, form = _form(dashboard)

    def away(*_: Any) -> Any:
        raise ServiceUnreachable("cannot connect", sent=False)

    with monkeypatch.context() as patch:
        patch.setattr(OverHTTPX, "send", away)
        answer = alice.post(path, data=form, headers=OURS)
    assert answer.status_code == 503
    assert "Nothing was done." in answer.text
    back = alice.page(_link(answer.text, "Back to the form"))
    assert 'value="ordered in &lt;March&gt;"' in back
    assert "Nothing was done yet" in back
    send = OverHTTPX.send
    with monkeypatch.context() as patch:
        patch.setattr(OverHTTPX, "send", lambda s, m, *more: send(s, m, *more) if m == "GET" else away())
        answer = alice.post(path, data=form, headers=OURS)
    assert answer.status_code == 503
    assert "This was not done.</strong> cannot connect." in answer.text
    assert 'value="ordered in &lt;March&gt;"' in answer.text
    assert alice.post(path, data=form, headers=OURS).status_code == 303


def test_a_login_in_another_tab_loses_no_words(dashboard: Dashboard) -> None:
    """The form is of the old session and does nothing; what stood in it is kept for the new one."""
    alice, path, form = _form(dashboard)
    alice.session.key = b"another key"
    answer = alice.post(path, data=form, headers=OURS)
    assert answer.status_code == 400
    assert 'value="ordered in &lt;March&gt;"' in alice.page(_link(answer.text, "Back to the form"))
    answer = alice.post(path, data=form)
    assert "Back to the form" not in answer.text


@pytest.mark.threat("T273")
def test_a_login_that_fails_leads_to_where_it_was_going(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart meanwhile, too, whose cookies prove nothing any more: to a page of ours, and no other."""
    wanted = "/machines?status=locked"
    for to, link in (
        (wanted, "/machines%3Fstatus%3Dlocked"),
        ("https://evil.example", "/"),
        ("/auth/callback", "/"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("attestation_web.login.openid.secrets.token_bytes", lambda size: b"before" * size)
            before = OpenID(dashboard.web.settings, dashboard.web.openid._provider, dashboard.web.now)
        ticket = before._tickets.dumps({"to": to, "state": "s"})
        browser = dashboard.stranger()
        with dashboard.app.test_request_context(base_url=URL):
            cookie = _ticket_cookie("s")
        browser.set_cookie(cookie, str(ticket), domain="dash.example", secure=True)
        answer = browser.get("/auth/callback?state=s&code=c", base_url=URL)
        assert answer.status_code == 400
        assert f'href="/auth/login?to={link}"' in answer.text

    def away(*_: Any, **__: Any) -> Any:
        raise ProviderUnreachable("refused")

    monkeypatch.setattr(OpenID, "begin", away)
    answer = dashboard.stranger().get("/auth/login", query_string={"to": wanted}, base_url=URL)
    assert answer.status_code == 503
    assert 'href="/auth/login?to=/machines%3Fstatus%3Dlocked"' in answer.text
