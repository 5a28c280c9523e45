"""Logins, sessions and logouts: the dashboard, the service and a provider, each a process of its own."""

from __future__ import annotations

import html
import re
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from attestation_web.login.tokens import LOGOUT_EVENT
from tests.fixtures.openid.provider import AUDITOR, OPERATOR, VIEWER, Provider, new_key, sign
from tests.fixtures.service import ServiceProcess
from tests.integration.web.conftest import People, Person


def _cookies(answer: httpx.Response) -> dict[str, str]:
    return {c.partition("=")[0]: c for c in answer.headers.get_list("set-cookie")}


def _form(page: str, action: str) -> dict[str, str]:
    found = re.search(rf'<form method="post" action="{re.escape(action)}".*?</form>', page, re.DOTALL)
    assert found is not None, page
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', found[0])
    return {name: html.unescape(value) for name, value in fields}


def _is_out(person: Person) -> bool:
    answer = person.browser.get("/account")
    return answer.is_redirect and answer.headers["location"].startswith("/auth/login")


def test_somebody_logs_in_and_is_where_they_wanted_to_be(alice: Person) -> None:
    """PKCE, state and nonce are asked for; the page is the one that was opened; the service says who it is."""
    began = alice.browser.get("/auth/login", params={"to": "/account?tab=x"})
    question = parse_qs(urlsplit(began.headers["location"]).query)
    assert question["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= question.keys()
    page = alice.get("/account?tab=x")
    assert (page.status_code, page.request.url.query) == (200, b"tab=x")
    assert "alice" in page.text
    assert "operator" in page.text
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.threat("T276")
def test_the_cookie_is_an_id_and_nothing_else(alice: Person) -> None:
    """No script reads it, no other site sends it with a form; no token is in any cookie or page."""
    answer = alice.browser.get("/auth/login")
    back = alice._provider.sign_in(answer.headers["location"], "alice", browser=alice.browser)
    answer = alice.browser.get(back)
    set_cookie = _cookies(answer)[f"itl-web-{alice.web.port}"]
    assert "HttpOnly" in set_cookie
    assert "SameSite=Lax" in set_cookie
    assert "Domain" not in set_cookie
    assert len(alice.cookie) == 43
    page = alice.get("/account").text
    assert not re.search(r"\beyJ[\w-]{20,}", page + str(alice.browser.cookies))
    assert not re.search(r"\beyJ[\w-]{20,}", alice.web.log)


@pytest.mark.threat("T271")
def test_an_id_from_before_the_login_is_worth_nothing(alice: Person) -> None:
    """Whoever planted one does not share the session (fixation); each login has a new one, the old is over."""
    planted = "x" * 43
    alice.browser.cookies.set(f"itl-web-{alice.web.port}", planted, domain="127.0.0.1")
    alice.get("/account")
    first = alice.cookie
    assert first != planted
    alice.follow(alice.browser.get("/auth/again", params={"to": "/account"}))
    assert alice.cookie not in (first, planted)
    for old in (planted, first):
        with httpx.Client(base_url=alice.web.url, trust_env=False, timeout=60) as other:
            other.cookies.set(f"itl-web-{alice.web.port}", old, domain="127.0.0.1")
            assert other.get("/account").is_redirect


@pytest.mark.threat("T272")
def test_an_answer_that_is_not_this_browser_s_is_refused(alice: Person) -> None:
    """Another browser's (login CSRF), another state, another issuer, twice: nobody is logged in by it."""
    answer = alice.browser.get("/auth/login")
    back = alice._provider.sign_in(answer.headers["location"], "alice", browser=alice.browser)
    with httpx.Client(base_url=alice.web.url, trust_env=False, timeout=60) as other:
        refused = other.get(back)
        assert refused.status_code == 400
        assert "not begun in this browser" in refused.text
    for wrong in (
        re.sub(r"state=[\w-]+", "state=" + "a" * 43, back),
        back.replace("iss=", "iss=x"),
        back + "&code=another",
        re.sub(r"code=[\w-]+", "code=none", back),
    ):
        assert alice.browser.get(wrong).status_code == 400, wrong
        assert _is_out(alice)


def test_a_code_is_good_once(alice: Person) -> None:
    """What stands in a log of a proxy logs nobody in."""
    answer = alice.browser.get("/auth/login")
    back = alice._provider.sign_in(answer.headers["location"], "alice", browser=alice.browser)
    kept = alice.cookies
    assert alice.browser.get(back).status_code == 303
    with httpx.Client(base_url=alice.web.url, trust_env=False, cookies=kept, timeout=60) as thief:
        assert thief.get(back).status_code == 400


def test_who_refuses_is_told_so(alice: Person) -> None:
    """The provider's words are shown as text."""
    answer = alice.browser.get("/auth/login")
    back = alice._provider.sign_in(answer.headers["location"], "alice", browser=alice.browser, deny=True)
    refused = alice.browser.get(back)
    assert refused.status_code == 400
    assert "refused" in refused.text


@pytest.mark.parametrize(
    ("role", "words"), [(VIEWER, "viewer"), (AUDITOR, "auditor"), (OPERATOR, "operator")]
)
def test_roles_are_those_of_the_service(people: People, role: str, words: str) -> None:
    """What `GET /whoami` says, nothing that a token says of itself."""
    page = people("vera", role).get("/account").text
    assert f"<dt>Roles</dt><dd>{words}</dd>" in page


def test_who_has_no_role_is_told_why(people: People) -> None:
    """A page with the service's sentence, and no circle of redirects."""
    page = people("nobody").get("/account")
    assert page.status_code == 403
    assert "the role" in page.text


def test_tokens_are_renewed_once_however_many_ask(alice: Person) -> None:
    """A refresh token is good once: two that renew at the same time would end the login."""
    alice._provider.configure(access_token_seconds=31, rotate_refresh_tokens=True)
    alice.get("/account")
    time.sleep(1.5)
    cookies = alice.cookies

    def ask(_: int) -> int:
        with httpx.Client(base_url=alice.web.url, cookies=cookies, trust_env=False, timeout=60) as tab:
            return tab.get("/account").status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(16))) == {200}


def test_a_login_that_is_not_renewed_ends(alice: Person) -> None:
    """Whoever lost the right to log in is out when their token ends; the page leads to a login."""
    alice._provider.configure(access_token_seconds=31, refresh_token_seconds=1)
    alice.get("/account")
    time.sleep(2.5)
    assert _is_out(alice)


def test_a_token_is_used_to_its_end_while_the_provider_is_away(alice: Person) -> None:
    """New logins are told that it is; it comes back by itself."""
    alice._provider.configure(access_token_seconds=33)
    alice.get("/account")
    time.sleep(3.5)
    alice._provider.stop()
    try:
        assert alice.browser.get("/account").status_code == 200
        with httpx.Client(base_url=alice.web.url, trust_env=False, timeout=60) as other:
            away = other.get("/auth/login")
        # What the provider says of itself is known already: the browser is sent there.
        assert away.status_code in (303, 503)
    finally:
        alice._provider.start()
    assert alice.browser.get("/account").status_code == 200


@pytest.mark.threat("T271")
def test_logging_out_ends_both(alice: Person) -> None:
    """The session here, whoever kept its id, and the login at the provider."""
    page = alice.get("/account").text
    kept = alice.cookies
    answer = alice.browser.post("/auth/logout", data=_form(page, "/auth/logout"))
    assert answer.status_code == 303
    target = answer.headers["location"]
    assert target.startswith(f"{alice._provider.issuer}/protocol/openid-connect/logout?")
    assert "id_token_hint=" in target
    assert alice.browser.get("/account").is_redirect
    with httpx.Client(base_url=alice.web.url, cookies=kept, trust_env=False, timeout=60) as thief:
        assert thief.get("/account").is_redirect
    back = alice._provider.sign_in(target, "alice", browser=alice.browser)
    assert back == f"{alice.web.url}/auth/logged-out"


def test_a_logout_by_a_link_does_nothing(alice: Person) -> None:
    """Neither GET nor a form of another site."""
    alice.get("/account")
    assert alice.browser.get("/auth/logout").status_code == 405
    assert alice.browser.post("/auth/logout").status_code == 400
    assert alice.browser.get("/account").status_code == 200


def test_a_logout_at_the_provider_ends_the_session(alice: Person) -> None:
    """It tells us (back-channel); nobody presses anything here."""
    alice.get("/account")
    assert not _is_out(alice)
    ended = f"{alice._provider.issuer}/protocol/openid-connect/logout"
    page = alice.browser.get(ended)
    action = re.search(r'action="([^"]+)"', page.text)
    xsrf = re.search(r'name="xsrf" value="([^"]+)"', page.text)
    assert action is not None
    assert xsrf is not None
    alice.browser.post(html.unescape(action[1]), data={"xsrf": xsrf[1], "logout": "yes"})
    deadline = time.monotonic() + 30
    while not _is_out(alice):
        assert time.monotonic() < deadline, alice.web.log
        time.sleep(0.1)


def test_who_logs_in_again_has_a_new_login(alice: Person) -> None:
    """The provider asks although it knows them; they come back to the page; another person gets nothing of it."""
    alice.get("/account")
    answer = alice.browser.get("/auth/again", params={"to": "/account?tab=y"})
    question = parse_qs(urlsplit(answer.headers["location"]).query)
    assert question["prompt"] == ["login"]
    assert question["max_age"] == ["0"]
    assert alice.follow(answer).request.url.query == b"tab=y"
    alice._provider.add_user("bob", realm_roles=[OPERATOR])
    answer = alice.browser.get("/auth/again", params={"to": "/account?tab=y"})
    alice.name = "bob"
    alice.browser.cookies.delete("_session", domain="127.0.0.1", path="/")
    after = alice.follow(answer)
    assert after.request.url.path == "/"
    assert ">bob<" in after.text


def _logout(provider: Provider, **other: object) -> dict[str, object]:
    now = int(time.time())
    written = {
        "iss": provider.issuer,
        "aud": "attestation-web",
        "iat": now,
        "exp": now + 120,
        "jti": f"jti-{time.monotonic_ns()}",
        "sub": provider.users["alice"].sub,
        "events": {LOGOUT_EVENT: {}},
    }
    return {name: value for name, value in (written | other).items() if value is not None}


@pytest.mark.threat("T272")
def test_only_the_provider_ends_sessions(alice: Person) -> None:
    """Not an ID token, not another key, issuer, client or time, none twice; then a good one does."""
    alice.get("/account")
    provider, to = alice._provider, f"{alice.web.url}/auth/backchannel-logout"
    forged = [
        "",
        "a.b.c",
        sign(new_key("RS256"), _logout(provider)),
        provider.sign(_logout(provider, iss="https://evil.example")),
        provider.sign(_logout(provider, aud="attestation-cli")),
        provider.sign(_logout(provider, events=None)),
        provider.sign(_logout(provider, events={"other": {}})),
        provider.sign(_logout(provider, nonce="n")),
        provider.sign(_logout(provider, jti=None)),
        provider.sign(_logout(provider, sub=None)),
        provider.sign(_logout(provider, iat=int(time.time()) - 3600)),
        provider.sign(_logout(provider, exp=int(time.time()) - 3600)),
    ]
    for token in forged:
        answer = httpx.post(to, data={"logout_token": token}, trust_env=False, timeout=60)
        assert answer.status_code == 400, token
        assert answer.headers["cache-control"] == "no-store"
        assert not _is_out(alice), token
    good = provider.sign(_logout(provider))
    assert httpx.post(to, data={"logout_token": good}, trust_env=False, timeout=60).status_code == 200
    assert _is_out(alice)
    alice.get("/account")
    assert httpx.post(to, data={"logout_token": good}, trust_env=False, timeout=60).status_code == 400
    assert not _is_out(alice)


def test_a_service_that_is_away_is_told_in_words(alice: Person, service: ServiceProcess) -> None:
    """A page with 503, nothing that looks like an empty fleet; afterwards it goes on, without a new login."""
    alice.get("/account")
    service.stop()
    try:
        page = alice.browser.get("/")
        assert page.status_code == 503
        assert "The attestation service does not answer" in page.text
        assert "wait for approval" not in page.text
    finally:
        service.start()
    assert alice.browser.get("/").status_code == 200
