"""What every request passes and every answer carries: hosts, headers, forged forms, addresses of others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any

import pytest

from attestation_web.border import bodies, health
from attestation_web.login.addresses import local
from attestation_web.login.routes import PUBLIC
from tests.fixtures.web import AUDITOR, OPERATOR, URL, VIEWER, Dashboard

ELSEWHERE = (
    "https://evil.example/",
    "//evil.example/",
    "///evil.example/",
    "/\\evil.example/",
    "\\\\evil.example",
    "https:evil.example",
    "javascript:alert(1)",
    "/%0d%0aLocation:https://evil.example",
    "/\r\nLocation: https://evil.example",
    "/\tevil",
    "http:///evil.example",
    "evil.example",
    "/auth/logout",
    "/auth/again",
    "/static/app.js",
    "/no-such-page",
    "/" + "a" * 3000,
    "",
)


@pytest.mark.threat("T273")
@pytest.mark.parametrize("target", ELSEWHERE)
def test_nobody_is_sent_to_a_page_that_is_not_ours(dashboard: Dashboard, target: str) -> None:
    """After a login, and after a choice of colours: the first page instead."""
    assert local(dashboard.app, target) == "/"
    browser = dashboard.browser()
    answer = browser.get("/auth/login", query_string={"to": target})
    assert answer.headers["Location"] == "/"
    form = browser.form("/account", "/account/theme") | {"to": target, "theme": "light"}
    assert browser.post("/account/theme", data=form).headers["Location"] == "/"


def test_pages_of_ours_are_gone_back_to(dashboard: Dashboard) -> None:
    """With what their address asks for."""
    assert local(dashboard.app, "/account?tab=x") == "/account?tab=x"


@pytest.mark.threat("T270", "T276")
def test_every_page_carries_the_headers(dashboard: Dashboard) -> None:
    """Pages, errors, redirects and files alike: no framing, no guessing of types, no scripts but ours."""
    browser = dashboard.browser()
    for path in ("/", "/account", "/no-such-page", "/auth/logged-out", "/static/app.js", "/auth/login"):
        headers = browser.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Strict-Transport-Security"].startswith("max-age=31536000")
        assert headers["Cache-Control"] == "no-store", path


@pytest.mark.threat("T274")
def test_scripts_and_styles_carry_the_nonce_of_their_page(dashboard: Dashboard) -> None:
    """A new one each time; nothing inline, no handler and no style in an attribute."""
    browser = dashboard.browser()
    seen = set()
    for path in ("/", "/account", "/"):
        answer = browser.get(path)
        found = re.search(r"script-src 'nonce-([\w-]+)'", answer.headers["Content-Security-Policy"])
        assert found is not None
        seen.add(found[1])
        tags = re.findall(r"<(?:script|link rel=\"stylesheet\")[^>]*>", answer.text)
        assert len(tags) >= 6
        assert all(f'nonce="{found[1]}"' in tag for tag in tags)
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", answer.text)
    assert len(seen) == 3


def test_files_that_name_their_bytes_are_kept(dashboard: Dashboard) -> None:
    """And no page ever is."""
    browser = dashboard.browser()
    found = re.search(r'href="(/static/tokens\.css\?v=\w+)"', browser.page("/"))
    assert found is not None
    assert "immutable" in browser.get(found[1]).headers["Cache-Control"]
    assert browser.get("/static/none.css?v=1").headers["Cache-Control"] == "no-store"


@pytest.mark.threat("T273")
@pytest.mark.parametrize("host", ["evil.example", "dash.example.evil.example", "127.0.0.1"])
def test_no_other_host_is_answered(dashboard: Dashboard, host: str) -> None:
    """A page elsewhere that resolves its own name to us is not answered (DNS rebinding)."""
    answer = dashboard.stranger().get("/auth/logged-out", base_url=f"https://{host}")
    assert answer.status_code == 400


@pytest.mark.threat("T276")
def test_without_a_login_every_page_leads_to_one(dashboard: Dashboard) -> None:
    """Every address but those that are public, GET and POST; nobody has to think of it."""
    stranger = dashboard.stranger()
    looked_at = 0
    for rule in dashboard.app.url_map.iter_rules():
        if rule.endpoint in PUBLIC | {"static"}:
            continue
        path = re.sub(r"<[^>]+>", "x", re.sub(r"<int:[^>]+>", "1", rule.rule))
        for method in {"GET", "POST"} & (rule.methods or set()):
            answer = stranger.open(path, method=method, base_url=URL)
            if method == "GET":
                assert answer.status_code == 303, path
                assert answer.headers["Location"].startswith("/auth/login"), path
            else:
                assert answer.status_code == 401, path
            looked_at += 1
    assert looked_at > 3


@pytest.mark.threat("T271")
def test_a_page_that_is_left_open_keeps_nobody_logged_in(dashboard: Dashboard) -> None:
    """What it asks by itself is answered, and prolongs nothing; then it is loaded anew, and leads to a login."""
    alice, clock = dashboard.browser(), dashboard.service.clock
    polls = {"HX-Request": "true"}
    for _ in range(3):
        clock.pass_(minutes=9)
        assert alice.get("/", headers=polls).status_code == 200
    clock.pass_(minutes=4)
    answer = alice.get("/", headers=polls)
    assert (answer.status_code, answer.headers["HX-Refresh"]) == (401, "true")
    assert alice.get("/").headers["Location"].startswith("/auth/login")


@pytest.mark.threat("T270")
def test_a_form_that_we_did_not_give_does_nothing(dashboard: Dashboard) -> None:
    """Without its signature, with that of another address, another person, or from another site."""
    alice, bob = dashboard.browser("alice"), dashboard.browser("bob")
    good = alice.form("/account", "/account/theme") | {"theme": "light"}
    forged: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"theme": "light"}, {}),
        (good | {"_form": ""}, {}),
        (good | {"_form": alice.form("/account", "/auth/logout")["_form"]}, {}),
        (bob.form("/account", "/account/theme") | {"theme": "light"}, {}),
        (good, {"Origin": "https://evil.example"}),
        (good, {"Origin": "null"}),
        (good, {"Sec-Fetch-Site": "cross-site"}),
        (good, {"Sec-Fetch-Site": "same-site"}),
    ]
    for data, headers in forged:
        answer = alice.post("/account/theme", data=data, headers=headers)
        assert answer.status_code == 400, (data, headers)
        assert "Set-Cookie" not in answer.headers
    accepted = alice.post(
        "/account/theme", data=good, headers={"Origin": URL, "Sec-Fetch-Site": "same-origin"}
    )
    assert accepted.status_code == 303


@pytest.mark.threat("T270")
def test_every_form_of_a_page_is_signed(dashboard: Dashboard) -> None:
    """Each that changes something, on each page that takes no argument."""
    browser = dashboard.browser()
    for rule in dashboard.app.url_map.iter_rules():
        if "GET" not in (rule.methods or ()) or "<" in rule.rule or rule.endpoint.startswith("login."):
            continue
        text = browser.get(rule.rule).text
        forms = re.findall(r'<form method="post".*?</form>', text, re.DOTALL)
        assert all('name="_form"' in form for form in forms), rule.rule


@pytest.mark.parametrize("rights", [OPERATOR, VIEWER, AUDITOR])
def test_what_the_navigation_names_can_be_opened(dashboard: Dashboard, rights: tuple[str, ...]) -> None:
    """By who is shown it."""
    browser = dashboard.browser(rights=rights)
    links = re.findall(
        r'<a href="([^"]+)"', browser.page("/").partition('<nav class="side"')[2].partition("</nav>")[0]
    )
    assert "/" in links
    for link in links:
        assert browser.get(link).status_code == 200, link


def test_a_probe_is_answered_whatever_host_it_asks_for() -> None:
    """Without the application, which a kubelet's address would be a stranger to; nothing else is answered so."""
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def none() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read")

    answers: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    for method, path in (("GET", "/healthz"), ("POST", "/healthz"), ("GET", "/healthz/"), ("GET", "/")):
        asyncio.run(health.Health(app)({"type": "http", "method": method, "path": path}, none, send))
    assert reached == ["/healthz", "/healthz/", "/"]
    assert [answer.get("status", answer.get("body")) for answer in answers] == [200, b"ok\n"]


def _sent(*messages: dict[str, Any]) -> tuple[list[MutableMapping[str, Any]], list[bytes]]:
    """Send *messages* through `Bodies` and return what was answered, and what the application behind it read."""
    answers: list[MutableMapping[str, Any]] = []
    read: list[bytes] = []
    waiting = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        if not waiting:
            await asyncio.sleep(3600)
        return waiting.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})

    asyncio.run(bodies.Bodies(app)({"type": "http"}, receive, send))
    assert waiting == []
    return answers, read


@pytest.mark.threat("T277")
def test_a_body_is_read_whole_before_it_takes_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece; one that is too long, or does not come, reaches nothing."""
    more = {"type": "http.request", "more_body": True}
    answers, read = _sent(more | {"body": b"a=1"}, {"type": "http.request", "body": b"&b=2"})
    assert read == [b"a=1&b=2"]
    assert answers[0]["status"] == 204
    end: dict[str, Any] = {"type": "http.request", "body": b""}
    answers, read = _sent(*[more | {"body": b"x" * (1 << 20)}] * 4, end)
    assert (read, answers[0]["status"]) == ([], 413)
    # It is read to its end, or a browser that still sends would be cut off, and say nothing of why.
    assert b"at most 2 MiB" in answers[1]["body"]
    # However many send long ones, they have a size together; a form of ordinary length is read all the same.
    monkeypatch.setattr(bodies, "MOST_LARGE_BYTES", 1 << 20)
    answers, read = _sent(*[more | {"body": b"x" * (1 << 20)}] * 2, end)
    assert (read, answers[0]["status"]) == ([], 503)
    answers, read = _sent(more | {"body": b"x" * (1 << 20)}, {"type": "http.request", "body": b""})
    assert answers[0]["status"] == 204
    monkeypatch.setattr(bodies, "MOST_LARGE_BYTES", 0)
    answers, read = _sent({"type": "http.request", "body": b"x" * bodies.SMALL_BYTES})
    assert answers[0]["status"] == 204
    # Who leaves in the middle sent half a form, which does nothing.
    assert _sent(more | {"body": b"a=1"}, {"type": "http.disconnect"})[1] == []
    monkeypatch.setattr(bodies, "SECONDS", 0.05)
    answers, read = _sent(more | {"body": b"a=1"})
    assert (read, answers[0]["status"]) == ([], 408)
