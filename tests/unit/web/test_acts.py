"""Acts: told before, confirmed, done once, told afterwards with their audit entry; some after a login of lately."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import request

from attestation.api import RegistrationTokenRequest
from attestation.errors import AuthenticationTooOld
from attestation.machines import Role
from attestation_web import navigation
from attestation_web.page import Act, Field, Page, Values
from tests.fixtures.in_process import InProcessService, local
from tests.fixtures.web import AUDITOR, VIEWER, Dashboard

__all__ = ["local"]

AREA = "toy"
calls: list[Values] = []
state: dict[str, str] = {}


def _issue(client: Any, filled: Values) -> Any:
    calls.append(filled)
    if filled.get("reason") == "too old":
        raise AuthenticationTooOld("you logged in long ago")
    return client.create_registration_token(
        RegistrationTokenRequest(role=Role(filled["role"]), expires_in_seconds=int(filled["seconds"]))
    )


def _act(**more: Any) -> Act:
    given: dict[str, Any] = {
        "title": "Issue a token",
        "button": "Issue",
        "will": ["A machine that brings it is admitted."],
        "fields": [
            Field(name="role", label="Role", value="worker-app"),
            Field(name="seconds", label="Seconds", value="600", needed=True),
            Field(name="reason", label="Reason"),
        ],
        "do": _issue,
        "did": lambda answer: f"Token {answer.token_id} was issued.",
        "back": "/account",
    }
    return Act(**(given | more))


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> None:
    """An area with four acts."""
    page = Page(f"pages.{AREA}", title="Toy", right=None)

    @page.act("/plain")
    def plain() -> Act:
        return _act()

    @page.act("/fresh", fresh=True)
    def fresh() -> Act:
        return _act()

    @page.act("/typed")
    def typed() -> Act:
        return _act(typed="cp-1", dangerous=True)

    @page.act("/machine")
    def machine() -> Act:
        named = request.form.get("machine", "w-1")
        return _act(
            facts=[("Machine", named), ("Status", state["status"])],
            fields=[
                Field(name="machine", label="", kind="hidden", value=named),
                Field(name="role", label="", kind="hidden", value="worker-app"),
                Field(name="seconds", label="", kind="hidden", value="600"),
            ],
        )

    found = list(navigation.areas())
    monkeypatch.setattr(navigation, "areas", lambda: [*found, page])
    calls.clear()
    state["status"] = "attested"


@pytest.fixture
def dashboard(area: None, local: InProcessService) -> Dashboard:
    """A dashboard with that area."""
    return Dashboard(local)


def _asked(service: InProcessService, path: str) -> list[dict[str, Any]]:
    answer = service.client().get(
        f"/api/v1{path}", headers={"Authorization": f"Bearer {service.admin_token}"}
    )
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def _tokens(service: InProcessService) -> int:
    return len(_asked(service, "/registration-tokens"))


def test_it_is_told_before_and_afterwards(dashboard: Dashboard) -> None:
    """What it will do and its fields; then what it did, once, with the number of the entry that says so."""
    alice = dashboard.browser()
    page = alice.page("/toy/plain")
    assert "A machine that brings it is admitted." in page
    assert calls == []
    answer = alice.act("/toy/plain", role="worker-app", seconds="600")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/account")
    # A page that is open elsewhere asks for a part of itself; it takes nothing from the one that somebody looks at.
    assert "was issued" not in alice.get("/account", headers={"HX-Request": "true"}).text
    shown = alice.page("/account")
    found = re.search(r"Token \w+ was issued\. .*Audit entry (?:<[^>]+>)?(\d+)", shown)
    assert found is not None
    entries = _asked(dashboard.service, "/audit")
    assert {e["id"]: e["action"] for e in entries}[int(found[1])] == "token_issued"
    assert "was issued" not in alice.page("/account")


@pytest.mark.threat("T275")
def test_a_button_that_is_pressed_twice_does_it_once(dashboard: Dashboard) -> None:
    """The form has a key; who presses twice at once is told what it did, and later that it did it once."""
    alice = dashboard.browser()
    form = alice.form("/toy/plain") | {"role": "worker-app", "seconds": "600"}
    assert alice.post("/toy/plain", data=form).status_code == 303
    assert alice.post("/toy/plain", data=form).status_code == 303
    page = alice.page("/account")
    assert page.count("was issued.") == 1
    assert "Pressed twice" not in page
    assert alice.post("/toy/plain", data=form).status_code == 303
    assert re.search(r"Pressed twice, done once: Token \w+ was issued", alice.page("/account"))
    assert len(calls) == 1
    # Whose session does not know it any more is told by the service, which knows it again.
    alice.session.pressed.clear()
    assert alice.post("/toy/plain", data=form).status_code == 303
    assert "Pressed twice, done once" in alice.page("/account")
    assert len(calls) == 2
    assert _tokens(dashboard.service) == 1


def test_what_was_filled_in_wrongly_is_said_beside_it(dashboard: Dashboard) -> None:
    """And stays; nothing is done. Also what the service refuses."""
    alice = dashboard.browser()
    answer = alice.act("/toy/plain", role="worker-app", reason="kept")
    assert answer.status_code == 422
    assert "This is needed." in answer.text
    assert 'value="kept"' in answer.text
    answer = alice.act("/toy/plain", role="worker-app", seconds="7")
    assert answer.status_code == 422
    assert "expires_in_seconds: must be" in answer.text
    for odd in ({"role": "no-such-role", "seconds": "600"}, {"role": "worker-app", "seconds": "many"}):
        answer = alice.act("/toy/plain", **odd)
        assert answer.status_code == 422
        assert "cannot be used" in answer.text
    assert _tokens(dashboard.service) == 0


@pytest.mark.threat("T275")
@pytest.mark.parametrize("typed", [{}, {"_typed": ""}, {"_typed": "cp-2"}, {"_typed": "CP-1"}])
def test_what_must_be_typed_is_checked_here(dashboard: Dashboard, typed: dict[str, str]) -> None:
    """Whoever sends the form need not have a page that asks for it."""
    alice = dashboard.browser()
    answer = alice.act("/toy/typed", role="worker-app", seconds="600", **typed)
    assert answer.status_code == 422
    assert calls == []
    assert alice.act("/toy/typed", role="worker-app", seconds="600", _typed=" cp-1 ").status_code == 303


@pytest.mark.threat("T275")
def test_who_logged_in_long_ago_logs_in_again_and_comes_back(dashboard: Dashboard) -> None:
    """Nothing is done before; what was filled in is there afterwards, and waits for the button."""
    alice = dashboard.browser()
    dashboard.service.clock.pass_(seconds=301)
    assert "asked to log in again" in alice.page("/toy/fresh")
    answer = alice.act("/toy/fresh", role="worker-app", seconds="777", reason="by night")
    assert answer.status_code == 403
    assert calls == []
    found = re.search(r'href="/auth/again\?to=(/toy/fresh%3Fresume%3D[\w-]+)"', answer.text)
    assert found is not None
    alice.session.authenticated_at = dashboard.service.clock.now()
    resumed = alice.page(found[1].replace("%3F", "?").replace("%3D", "="))
    assert 'value="777"' in resumed
    assert 'value="by night"' in resumed
    assert "Nothing was done yet" in resumed
    assert calls == []
    assert alice.act("/toy/fresh", role="worker-app", seconds="777").status_code == 303


@pytest.mark.threat("T275")
@pytest.mark.parametrize(("acr", "status"), [("gold", 303), ("silver", 303), ("0", 403), (None, 403)])
def test_a_new_login_that_is_too_weak_decides_nothing(
    area: None, local: InProcessService, acr: str | None, status: int
) -> None:
    """A first login needs no level; where one is demanded it is no way round it."""
    dashboard = Dashboard(local, oidc_acr_values="gold silver")
    alice = dashboard.browser()
    alice.session.acr = acr
    assert ("asked to log in again" in alice.page("/toy/fresh")) is (status == 403)
    answer = alice.act("/toy/fresh", role="worker-app", seconds="600")
    assert answer.status_code == status
    assert ("/auth/again?to=/toy/fresh" in answer.text) is (status == 403)
    assert len(calls) == (status == 303)
    assert alice.act("/toy/plain", role="worker-app", seconds="600").status_code == 303


def test_a_login_that_the_service_calls_too_old_is_made_anew(dashboard: Dashboard) -> None:
    """It demands what it demands, whatever is set here."""
    alice = dashboard.browser()
    answer = alice.act("/toy/plain", role="worker-app", seconds="600", reason="too old")
    assert answer.status_code == 403
    assert "/auth/again?to=/toy/plain%3Fresume%3D" in answer.text
    assert _tokens(dashboard.service) == 0


@pytest.mark.threat("T276")
@pytest.mark.parametrize("rights", [VIEWER, AUDITOR])
def test_who_may_not_is_refused_by_the_page_too(dashboard: Dashboard, rights: tuple[str, ...]) -> None:
    """Before anything is asked of the service."""
    other, alice = dashboard.browser("vera", rights=rights), dashboard.browser()
    assert other.get("/toy/plain").status_code == 403
    form = alice.form("/toy/plain")
    assert other.post("/toy/plain", data=form).status_code in (400, 403)
    assert calls == []


@pytest.mark.threat("T274")
def test_what_was_filled_in_comes_back_as_text(dashboard: Dashboard) -> None:
    """And never becomes markup."""
    page = dashboard.browser().act("/toy/plain", role='"><script>alert(1)</script>').text
    assert "<script>alert" not in page
    assert "&#34;&gt;&lt;script&gt;alert(1)" in page


@pytest.mark.threat("T279")
def test_an_address_fills_nothing_in(dashboard: Dashboard) -> None:
    """Whoever sends a link chooses nothing for who opens it: what is to be typed, or goes with the form unseen."""
    alice = dashboard.browser()
    assert alice.form("/toy/machine?machine=w-2&_shown=x&_key=" + "0" * 32)["machine"] == "w-1"
    assert 'value="by a link"' not in alice.page("/toy/plain?reason=by+a+link")


@pytest.mark.threat("T279")
def test_what_a_page_said_is_what_is_done(dashboard: Dashboard) -> None:
    """Nothing is done where it says something else by now, or where a form names another thing: it is shown anew."""
    alice = dashboard.browser()
    form = alice.form("/toy/machine")
    other = alice.post("/toy/machine", data=form | {"machine": "w-2"})
    assert (other.status_code, calls) == (409, [])
    assert "Machine</dt><dd>w-2" in other.text
    form = alice.form("/toy/machine")
    state["status"] = "locked"
    changed = alice.post("/toy/machine", data=form)
    assert (changed.status_code, calls) == (409, [])
    assert "has changed since you saw it" in changed.text
    assert "locked" in changed.text
    assert alice.post("/toy/machine", data=form | {"_shown": ""}).status_code == 409
    assert alice.act("/toy/machine").status_code == 303


@pytest.mark.threat("T275")
def test_a_button_that_is_pressed_twice_does_it_once_whatever_it_changed(dashboard: Dashboard) -> None:
    """The second press is told that it is done, not that the page is old."""
    alice = dashboard.browser()
    form = alice.form("/toy/machine")
    assert alice.post("/toy/machine", data=form).status_code == 303
    assert "was issued" in alice.page("/account")
    state["status"] = "done"
    assert alice.post("/toy/machine", data=form).status_code == 303
    assert "Pressed twice, done once" in alice.page("/account")
    assert _tokens(dashboard.service) == 1


def test_a_wrong_key_is_replaced(dashboard: Dashboard) -> None:
    """It becomes a header: nothing of ours but 32 hex digits does."""
    alice = dashboard.browser()
    answer = alice.act("/toy/plain", role="worker-app", seconds="600", _key='x"\r\nX-Evil: 1')
    assert answer.status_code == 303
