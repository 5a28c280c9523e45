"""Errors as pages: what happened, whether anything was done, what to do; in time, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import pytest

from attestation.client import ServiceUnreachable, TLSFailed
from attestation_web.app import create_app
from attestation_web.border import in_time
from attestation_web.settings import Settings
from tests.fixtures.in_process import HeldClock
from tests.fixtures.over_httpx import answering
from tests.fixtures.web import SETTINGS, Browser, Dashboard
from tests.unit.client.test_client import problem

EVIL = "<script>alert(1)</script>"


class _Broken:
    """A carrier that fails, and counts how often it is asked."""

    def __init__(self, error: Exception) -> None:
        self.error, self.asked = error, 0

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Any:
        self.asked += 1
        raise self.error

    def close(self) -> None:
        """Nothing is held."""


def _browser(carrier: Any) -> Browser:
    """Return an operator's browser before a service that answers through *carrier*."""
    service = mock.Mock(clock=HeldClock(), admin_token="token")
    with mock.patch("tests.fixtures.web.create_app"):
        dashboard = Dashboard(service)
    dashboard.app = create_app(Settings.model_validate(SETTINGS), service=carrier, now=service.clock.now)
    return dashboard.browser()


@pytest.mark.parametrize(
    ("answer", "status", "title"),
    [
        (problem(403, "forbidden"), 403, "You may not do this"),
        (problem(404, "machine-unknown"), 404, "There is no such thing"),
        (problem(409, "transition-forbidden"), 409, "That does not go now"),
        (problem(429, "rate-limited", {"Retry-After": "7"}), 429, "Too many requests"),
        (problem(503, "store-busy"), 503, "The attestation service cannot answer now"),
        (problem(403, "authentication-too-old"), 403, "Log in again first"),
        (problem(500, "internal"), 502, "The attestation service failed"),
        (httpx.Response(200, content=b"no JSON"), 502, "What answered is not understood"),
    ],
)
def test_what_the_service_refuses_is_told_in_words(answer: httpx.Response, status: int, title: str) -> None:
    """By a title of ours, with what the service said and its name for the request."""
    found = _browser(answering(lambda _: answer)).get("/")
    assert (found.status_code, f"<h1>{title}</h1>" in found.text) == (status, True), found.text
    if status == 429:
        assert found.headers["Retry-After"] == "7"
        assert "Try again in 7 s." in found.text
    if answer.content != b"no JSON":
        assert "what happened" in found.text
        assert "req-1" in found.text


@pytest.mark.parametrize(
    ("error", "title"),
    [
        (ServiceUnreachable("no answer"), "The attestation service does not answer"),
        (TLSFailed("who is that"), "The attestation service could not prove who it is"),
    ],
)
def test_a_service_that_is_away_is_asked_once(error: Exception, title: str) -> None:
    """Nobody waits for three attempts, and no thread with them; nothing looks like an empty fleet."""
    carrier = _Broken(error)
    found = _browser(carrier).get("/")
    assert (found.status_code, carrier.asked) == (503, 1)
    assert title in found.text
    assert "No machine waits" not in found.text
    assert found.headers["Cache-Control"] == "no-store"


def test_a_service_that_is_slow_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one page it is asked until its time is over; the page says so."""
    asked: list[str] = []

    def empty(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"items": [], "next_cursor": None})

    monkeypatch.setattr(in_time, "SECONDS", 0.0)
    monkeypatch.setattr(in_time, "time", SimpleNamespace(monotonic=count(1.0).__next__))
    found = _browser(answering(empty)).get("/approvals")
    assert (found.status_code, len(asked)) == (200, 1)
    found = _browser(answering(empty)).get("/inbox")
    assert (found.status_code, len(asked)) == (503, 2)
    assert "it is slow" in found.text


def test_a_token_that_the_service_does_not_take_any_more_leads_to_a_login() -> None:
    """And the session is over; a poll loads its page anew."""
    browser = _browser(answering(lambda _: problem(401, "unauthenticated")))
    assert browser.get("/", headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    browser = _browser(answering(lambda _: problem(401, "unauthenticated")))
    assert browser.get("/").headers["Location"] == "/auth/login?to=/"
    assert browser.get("/account").headers["Location"].startswith("/auth/login")


def test_what_the_service_says_is_text() -> None:
    """A machine may have written a part of it."""
    found = _browser(answering(lambda _: problem(404, "machine-unknown", detail=EVIL))).get("/")
    assert EVIL not in found.text
    assert "&lt;script&gt;alert(1)" in found.text


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Browser:
    """A page that has a fault of ours."""

    def fault() -> None:
        raise KeyError("a secret detail")

    monkeypatch.setattr("attestation_web.pages.overview.api", fault)
    return _browser(_Broken(ServiceUnreachable("no")))


def test_a_fault_of_ours_is_told_without_detail(broken: Browser) -> None:
    """The log has it."""
    found = broken.get("/")
    assert found.status_code == 500
    assert "Something went wrong here" in found.text
    assert "secret detail" not in found.text


def test_an_address_that_is_none_is_a_page_of_ours() -> None:
    """With the navigation, and without repeating what was asked for."""
    browser = _browser(_Broken(ServiceUnreachable("no")))
    found = browser.get(f"/{EVIL}")
    assert found.status_code == 404
    assert EVIL not in found.text
    assert 'aria-label="Areas"' in found.text
