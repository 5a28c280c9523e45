"""Chromium before a dashboard in this process: what takes a script, what goes without one, what a drawn chart says."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import ConsoleMessage, Dialog, Page
from werkzeug.serving import WSGIRequestHandler, make_server

from attestation_web.pages.policies import trying
from tests.fixtures import browser as programs
from tests.fixtures.estate import Estate, estate
from tests.fixtures.web import EVERYTHING
from tools.ports import free_port

pytestmark = pytest.mark.slow

HOSTILE: Final = "<img src=x onerror=alert(1)>"
MACHINES: Final = 3
TIMEOUT_MS: Final = 30_000


class Quiet(WSGIRequestHandler):
    """Says nothing of each request."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 -- its name in werkzeug
        """Say nothing."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Three machines that attest, one of them of a hostile serial number, and a policy that nobody keeps to."""
    try:
        programs.program()
    except programs.NotThere as e:
        pytest.skip(str(e))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with estate(tmp_path_factory.mktemp("estate"), web={"url": url}) as made:
        for seed in range(1, MACHINES + 1):
            made.attested(seed, f"w-{seed}", hw_serial=HOSTILE)
        policy = {"format": "itl-tpm-policy/1", "name": "strict", "version": 1, "bank": "sha256"}
        made.service.operator().call(
            "POST", "/policies", json=policy | {"pcrs": {"7": {"any_of": ["ab" * 32]}}}
        )
        server = make_server("127.0.0.1", port, made.app, threaded=True, request_handler=Quiet)
        serving = threading.Thread(target=server.serve_forever, name="dashboard", daemon=True)
        serving.start()
        try:
            yield made
        finally:
            server.shutdown()
            serving.join()
            server.server_close()


@pytest.fixture(scope="module")
def chromium(there: Estate) -> Iterator[Chromium]:
    """The browser."""
    with programs.chromium() as running:
        yield running


Opens = Callable[..., Page]


@pytest.fixture
def opens(there: Estate, chromium: Chromium) -> Iterator[Opens]:
    """A function that opens a window in which alice is logged in; none may say anything in its console."""
    said: list[str] = []
    contexts = []

    def tells(message: ConsoleMessage) -> None:
        if message.type == "error":
            said.append(message.text)

    def asks(dialog: Dialog) -> None:
        said.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def open_(*, script: bool) -> Page:
        url = there.web.settings.url
        context = chromium.new_context(base_url=url, java_script_enabled=script)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        session = there.browser("alice", rights=EVERYTHING).session
        context.add_cookies(
            [{"name": there.web.cookie, "value": there.web.sessions.open(session), "url": url}]
        )
        page = context.new_page()
        page.on("console", tells)
        page.on("dialog", asks)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def _begins(page: Page) -> None:
    page.goto("/policies/try?policy=strict@1")
    with page.expect_navigation():
        page.get_by_role("button", name="Try it").click()


def test_a_dry_run_goes_on_by_itself(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a script each page is judged after the other, and the sum stands there in the end."""
    monkeypatch.setattr(trying, "AT_ONCE", 1)
    page = opens(script=True)
    _begins(page)
    page.get_by_text(f"{MACHINES} machines would newly fail.").wait_for()
    assert page.locator("#trial tbody tr .badge.bad").count() == MACHINES
    assert page.get_by_role("link", name="Activate").count() == 1


def test_a_dry_run_goes_on_by_hand(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one a link judges the next page, and the same numbers stand there in the end."""
    monkeypatch.setattr(trying, "AT_ONCE", 1)
    page = opens(script=False)
    _begins(page)
    steps = 1
    while page.get_by_role("link", name="Judge the next ones").count():
        assert f"{steps} of {MACHINES} machines looked at" in page.locator("#trial").inner_text()
        with page.expect_navigation():
            page.get_by_role("link", name="Judge the next ones").click()
        steps += 1
    assert steps >= MACHINES
    assert f"{MACHINES} machines would newly fail." in page.locator("#trial").inner_text()


def test_a_drawn_chart_says_what_machines_say_as_text(opens: Opens) -> None:
    """The script that draws makes no element of a category, and neither does the list that completes."""
    page = opens(script=True)
    asked = "Machines\n| summarize n = count() by bin(registered_at, 1h), hw_serial\n| render timechart"
    page.goto(f"/query?q={quote(asked)}")
    page.locator(".uplot").wait_for()
    assert HOSTILE in page.locator(".uplot").inner_text()
    assert page.locator("main img").count() == 0
    page.goto("/machines")
    assert page.locator("main img").count() == 0
    assert re.search("w-1", page.locator("main").inner_text())
