"""Extensions, webhooks and secrets in the dashboard, before a real service that has them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from attestation.api import DeadLetter, DeadLetterDetail, DeadLetterList, ExtensionDetail
from attestation.client import OperatorClient
from attestation.keys import create_kek
from attestation_extensions.webhooks.delivering import Deliverer
from attestation_web.login.current import EXTENSION
from attestation_web.page.badges import Look
from attestation_web.pages.extensions import state_of
from tests.fixtures.in_process import in_process_service
from tests.fixtures.web import AUDITOR, OPERATOR, VIEWER, Browser, Dashboard

URL = "https://hooks.example/in?token=of-the-receiver"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")


@pytest.fixture
def extended(tmp_path: Path) -> Iterator[Dashboard]:
    """A dashboard before a service with webhooks and the vault, and one extension that is skipped."""
    create_kek(f"file:{tmp_path}/kek").close()
    settings: dict[str, Any] = {
        "extensions": ("webhooks", "secret_vault"),
        "extension_values": {
            "ITL_EXT_WEBHOOKS_KEK": f"file:{tmp_path}/kek",
            "ITL_EXT_SECRET_VAULT_KEK": f"file:{tmp_path}/kek",
        },
    }
    # Nothing is sent: a test that nobody answers is given up at once, sooner or later than the next page is asked for.
    idle = mock.patch.object(Deliverer, "once", return_value=False)
    with idle, in_process_service(tmp_path / "service", **settings) as service:
        yield Dashboard(service)


def _added(alice: Browser) -> tuple[str, str]:
    """Add an endpoint; return its id and the secret that was shown."""
    answer = alice.act("/webhooks/add", url=URL, **{"event:machine.locked": "yes"})
    assert answer.status_code == 303, answer.text
    page = alice.page("/webhooks")
    found = SECRET.search(html.unescape(page))
    assert found
    made = re.search(r'href="/webhooks/([0-9a-f-]{36})"', page)
    assert made
    return made[1], found[0]


def test_what_is_enabled_is_listed(extended: Dashboard) -> None:
    """With its state, and a way to its own pages."""
    page = extended.browser().page("/extensions")
    assert 'href="/webhooks">webhooks</a>' in page
    assert 'href="/secrets">secret_vault</a>' in page
    assert "It gave up nothing." in extended.browser().page("/extensions/webhooks/dead-letters")
    assert extended.browser().get("/extensions/none/dead-letters").status_code == 404
    assert extended.browser().get("/extensions/webhooks/dead-letters/x").status_code == 404


def _letter() -> DeadLetter:
    return DeadLetter(
        event_id="5e0c1a5c-3c5e-4a52-9a0d-0b8c7f1d2e3f",
        event="node.locked",
        machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        attempts=5,
        error="ConnectionError",
        payload={"hostname": "<script>alert(1)</script>"},
    )


def test_dead_letters_are_shown_and_tried_again(extended: Dashboard) -> None:
    """The list and one letter are of a double, whose shape is the API's; trying again is the service's."""
    alice, viewer = extended.browser(), extended.browser("vera", rights=VIEWER)
    letter = _letter()
    one = f"/extensions/webhooks/dead-letters/{letter.event_id}"
    short = DeadLetterDetail.model_validate(letter.model_dump(exclude={"payload"}))
    with (
        mock.patch.object(OperatorClient, "dead_letters", return_value=DeadLetterList(items=[short])),
        mock.patch.object(OperatorClient, "dead_letter", return_value=letter),
    ):
        assert f'href="{one}/retry">Try again' in alice.page("/extensions/webhooks/dead-letters")
        assert "retry" not in viewer.page("/extensions/webhooks/dead-letters")
        page = viewer.page(one)
        assert "ConnectionError" in page
        assert "&lt;script&gt;alert(1)" in page
        assert "retry" not in page
        assert f"{one}/retry" in alice.page(one)
    assert alice.act("/extensions/webhooks/retry").status_code == 303
    assert "0 events are on their way to webhooks again." in alice.page("/extensions")
    assert alice.act(f"{one}/retry").status_code == 404


def test_what_is_skipped_says_why() -> None:
    """It looks different from what works, and so does what gave something up."""
    told = {"name": "x", "version": None, "description": None, "pending": 0}
    looks = [
        state_of(ExtensionDetail.model_validate(told | more)).look
        for more in (
            {"dead_letters": 0},
            {"dead_letters": 1},
            {"dead_letters": 0, "skipped": "ImportError: no module"},
        )
    ]
    assert looks == [Look.GOOD, Look.WARNS, Look.BAD]


def test_a_service_without_them_says_how_they_are_enabled(dashboard: Dashboard) -> None:
    """An area that is not there looks different from one that is empty."""
    alice = dashboard.browser()
    assert "No extension is enabled." in alice.page("/extensions")
    for path, name in (("/webhooks", "webhooks"), ("/secrets", "secret_vault")):
        assert f"<code>ITL_EXTENSIONS={name}</code>" in alice.page(path)
    assert alice.get("/webhooks/add").status_code == 404
    assert alice.get("/secrets/shared/x").status_code == 404


@pytest.mark.threat("T274")
def test_the_secret_of_an_endpoint_is_shown_once(extended: Dashboard) -> None:
    """On the page after the act, and on none after that; the act is told with its audit entry."""
    alice = extended.browser()
    webhook, secret = _added(alice)
    for path in ("/webhooks", f"/webhooks/{webhook}", "/extensions"):
        assert secret not in html.unescape(alice.page(path))
    assert alice.act(f"/webhooks/{webhook}/rotate").status_code == 303
    page = html.unescape(alice.page(f"/webhooks/{webhook}"))
    again = SECRET.search(page)
    assert again
    assert again[0] != secret
    assert "Audit entry" in page
    assert "two sign" in page
    assert not SECRET.search(alice.page(f"/webhooks/{webhook}"))
    assert again[0] not in repr(extended.app.extensions[EXTENSION].sessions)


def test_an_endpoint_is_changed_tested_and_ended(extended: Dashboard) -> None:
    """Each act says what it did; the last one asks for the name."""
    alice = extended.browser()
    webhook, _ = _added(alice)
    at = f"/webhooks/{webhook}"
    assert 'name="event:machine.locked" value="yes" checked' in alice.page(f"{at}/change")
    assert alice.act(f"{at}/change", url="https://hooks.example/two", **{"event:*": "yes"}).status_code == 303
    assert "<dd>everything</dd>" in alice.page(at)
    assert alice.act(f"{at}/disable").status_code == 303
    assert "Nothing is sent there. by " in alice.page(at)
    assert alice.act(f"{at}/enable").status_code == 303
    assert alice.act(f"{at}/test").status_code == 303
    page = alice.page(at)
    assert "webhook.test" in page
    delivery = re.search(rf'href="{at}/deliveries/([^"/]+)/replay"', page)
    assert delivery
    assert alice.act(f"{at}/deliveries/{html.unescape(delivery[1])}/replay").status_code == 303
    assert "webhook.test" not in alice.page(f"{at}?status=dead")
    assert alice.act(f"{at}/replay").status_code == 303
    assert "Deliveries on their way again: 0." in alice.page(at)
    assert alice.act(f"{at}/delete", _typed="hooks").status_code == 422
    assert alice.act(f"{at}/delete", _typed="hooks.example").status_code == 303
    assert "No endpoint is told of events." in alice.page("/webhooks")
    assert alice.get(at).status_code == 404


def test_what_cannot_be_added_is_said_beside_the_form(extended: Dashboard) -> None:
    """The service refuses an address or an empty list; what was filled in stays."""
    alice = extended.browser()
    for filled in ({"url": "http://hooks.example", "event:*": "yes"}, {"url": URL}):
        answer = alice.act("/webhooks/add", **filled)
        assert answer.status_code in (400, 422)
        assert "This was not done." in answer.text
        assert html.escape(filled["url"]) in answer.text


@pytest.mark.threat("T274", "T276")
def test_a_viewer_sees_no_act_and_no_password_of_a_receiver(extended: Dashboard) -> None:
    """Acts are not offered and refused; what stands behind `?` in an address is for operators."""
    webhook, _ = _added(extended.browser(rights=OPERATOR))
    viewer = extended.browser("vera", rights=VIEWER)
    for path in ("/webhooks", f"/webhooks/{webhook}"):
        page = viewer.page(path)
        assert "of-the-receiver" not in page
        assert f"/webhooks/{webhook}/" not in page
        assert "/webhooks/add" not in page
    for act in ("change", "disable", "enable", "rotate", "test", "delete", "replay"):
        assert viewer.get(f"/webhooks/{webhook}/{act}").status_code == 403, act
    assert viewer.get(f"/webhooks/{webhook}/deliveries/x").status_code == 403
    assert viewer.get("/extensions/webhooks/retry").status_code == 403
    assert extended.browser("ada", rights=AUDITOR).get("/webhooks").status_code == 403


def test_what_was_sent_is_shown_to_who_also_audits(extended: Dashboard) -> None:
    """As the service has it: the body of a message takes the right to audit."""
    webhook, _ = _added(extended.browser())
    extended.browser().act(f"/webhooks/{webhook}/test")
    page = extended.browser().page(f"/webhooks/{webhook}")
    delivery = re.search(r'/deliveries/([^"/]+)/replay"', page)
    assert delivery
    both = extended.browser("olga", rights=OPERATOR)
    token, who = both.session.whoami  # type: ignore[misc]  # the test knows that it was asked
    both.session.whoami = (token, who.model_copy(update={"rights": ["read", "audit"]}))
    shown = both.page(f"/webhooks/{webhook}/deliveries/{html.unescape(delivery[1])}")
    assert "webhook.test" in shown
    assert "No body came back." in shown


@pytest.mark.threat("T274")
def test_secrets_are_names_and_grants(extended: Dashboard) -> None:
    """No value is anywhere; a grant leads to its machine."""
    operator = extended.service.operator()
    machine = extended.machine(1)
    machine.admitted(operator)
    value = "canary-swordfish"
    made = operator.call("POST", "/shared-secrets/", json={"name": "db", "value": value})
    secret = made["shared_secret_id"]
    operator.call("POST", f"/shared-secrets/{secret}/access", json={"machine_ids": [machine.machine_id]})
    own = {"name": "own", "value": value}
    operator.call("POST", f"/secrets/machines/{machine.machine_id}/secrets", json=own)
    alice = extended.browser()
    pages = [
        alice.page("/secrets"),
        alice.page(f"/secrets/shared/{secret}"),
        alice.page(f"/secrets?machine={machine.machine_id}"),
    ]
    assert "db</a>" in pages[0]
    assert f'href="/machines/{machine.machine_id}"' in pages[1]
    assert "own" in pages[2]
    assert not [page for page in pages if value in page]
    assert "36 characters" in alice.page("/secrets?machine=x")
