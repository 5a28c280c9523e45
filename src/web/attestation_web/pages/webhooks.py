"""Webhooks: who is told of events by HTTPS, and what became of each message (extension `webhooks`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from flask import request

from attestation.errors import Unknown
from attestation_web.extensions import usable
from attestation_web.extensions.webhooks import NAME, CreateWebhook, UpdateWebhook, Webhooks
from attestation_web.page import Act, Badge, Column, Field, Page, api, may, needs, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.client import OperatorClient
    from attestation_web.extensions.webhooks import DeliveryResponse, WebhookResponse
    from attestation_web.page import Values

ALL: Final = "*"
EVENT: Final = "event:"
SHOWN: Final = 100
STATES: Final = ("waiting", "delivered", "dead")

page: Final = Page(__name__, title="Webhooks", under="extensions")

ENDPOINTS: Final = (
    Column(name="url", title="Endpoint", sort=lambda w: w.url),
    Column(name="state", title="State", sort=lambda w: not w.enabled),
    Column(name="events", title="Told of"),
    Column(name="attempts", title="Attempts", sort=lambda w: w.trigger_count, numeric=True),
    Column(name="failed", title="Failed", sort=lambda w: w.failure_count, numeric=True),
    Column(name="last", title="Last", sort=lambda w: w.last_triggered_at),
)
DELIVERIES: Final = (
    Column(name="event", title="Event", sort=lambda d: d.event_type),
    Column(name="state", title="State", sort=lambda d: d.status),
    Column(name="created", title="When", sort=lambda d: d.created_at),
    Column(name="attempts", title="Attempts", sort=lambda d: d.attempts, numeric=True),
    Column(name="answer", title="Answer", sort=lambda d: d.response_status),
    Column(name="next", title="Next attempt", sort=lambda d: d.next_attempt_at),
    Column(name="do", title="Again"),
)


class NotEnabled(Unknown):
    """The service has no webhooks."""

    code = "extension-not-enabled"


@page.get("")
def show() -> Response:
    """List the endpoints, or say how the extension is enabled."""
    client = api()
    if not usable(client, NAME):
        return render("extensions/absent.html", title="Webhooks", name=NAME, docs="webhooks")
    found = client.ask(Webhooks.all).webhooks
    return render(
        "webhooks/page.html",
        endpoints=table(ENDPOINTS, found, by="url"),
        shown_url=shown_url,
        state_of=state_of,
    )


def shown_url(url: str) -> str:
    """Return *url* for who asks: what stands behind `?` may be a password, which only operators see."""
    bare, mark, _ = url.partition("?")
    return url if may("act") or not mark else f"{bare}?…"


def state_of(webhook: WebhookResponse) -> Badge:
    """Return whether anything is sent there."""
    if webhook.enabled:
        return Badge(look=Look.GOOD, text="enabled")
    return Badge(look=Look.BAD, text="disabled", title=webhook.disabled_why or "")


def state_of_delivery(delivery: DeliveryResponse) -> Badge:
    """Return what became of *delivery*."""
    looks = {"waiting": Look.WAITS, "delivered": Look.GOOD, "dead": Look.BAD}
    words = {"dead": "given up"}
    return Badge(look=looks[delivery.status], text=words.get(delivery.status, delivery.status))


@page.get("/<webhook_id>")
def one(webhook_id: str) -> Response:
    """Show an endpoint and its newest deliveries."""
    client = _client()
    webhook = client.ask(Webhooks.show, webhook_id)
    asked = request.args.get("status", "")
    status: Any = asked if asked in STATES else None
    found = client.ask(Webhooks.deliveries, webhook_id, status=status, limit=SHOWN)
    return render(
        "webhooks/one.html",
        webhook=webhook,
        url=shown_url(webhook.url),
        state=state_of(webhook),
        deliveries=table(DELIVERIES, found.deliveries, by="-created", total=found.total),
        chosen=status or "",
        states=[("All", ""), ("Waiting", "waiting"), ("Delivered", "delivered"), ("Given up", "dead")],
        state_of=state_of_delivery,
        everything=ALL,
    )


@page.get("/<webhook_id>/deliveries/<delivery_id>")
@needs("audit")
def delivery(webhook_id: str, delivery_id: str) -> Response:
    """Show what was sent, and the beginning of what came back: for auditors, as the service has it."""
    found = _client().ask(Webhooks.delivery, webhook_id, delivery_id)
    return render(
        "webhooks/delivery.html",
        webhook_id=webhook_id,
        delivery=found.delivery,
        state=state_of_delivery(found.delivery),
        payload=_pretty(found.payload),
        answer=found.response_body,
    )


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


@page.act("/add")
def add() -> Act:
    """Add an endpoint."""
    names = _client().ask(Webhooks.events).events
    return Act(
        title="Add an endpoint",
        button="Add it",
        will=[
            "The service sends it a signed message by HTTPS for each chosen event, and tries again for a while.",
            "Its secret, by which the receiver verifies messages, is shown once, on the next page.",
        ],
        fields=[
            Field(name="url", label="Address", needed=True, help="https, and not in a private network."),
            *_events(names, ()),
        ],
        do=lambda client, filled: client.ask(
            Webhooks.create, CreateWebhook(url=filled["url"], events=_chosen(filled))
        ),
        did=lambda made: (
            f"{_host(made.webhook)} is told of events from now on. Its secret is shown this once:"
        ),
        shown_once=lambda made: str(made.secret),
        back="/webhooks",
    )


@page.act("/<webhook_id>/change")
def change(webhook_id: str) -> Act:
    """Change address and events of an endpoint."""
    client = _client()
    webhook = client.ask(Webhooks.show, webhook_id)
    return Act(
        title=f"Change {_host(webhook)}",
        button="Change it",
        will=["What waits for it goes to the new address.", "Its secret stays."],
        fields=[
            Field(name="url", label="Address", needed=True, value=webhook.url),
            *_events(client.ask(Webhooks.events).events, webhook.events),
        ],
        do=lambda client, filled: client.ask(
            Webhooks.update, webhook_id, UpdateWebhook(url=filled["url"], events=_chosen(filled))
        ),
        did=lambda changed: f"{_host(changed)} is changed.",
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/disable")
def disable(webhook_id: str) -> Act:
    """Send an endpoint nothing more."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Disable {name}",
        button="Disable it",
        will=["Nothing is sent to it until it is enabled again.", "Events of meanwhile are not sent later."],
        do=lambda client, _: client.ask(Webhooks.update, webhook_id, UpdateWebhook(enabled=False)),
        did=lambda _: f"{name} is disabled.",
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/enable")
def enable(webhook_id: str) -> Act:
    """Send an endpoint events again."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Enable {name}",
        button="Enable it",
        will=["It is told of events from now on."],
        do=lambda client, _: client.ask(Webhooks.update, webhook_id, UpdateWebhook(enabled=True)),
        did=lambda _: f"{name} is enabled.",
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/rotate")
def rotate(webhook_id: str) -> Act:
    """Exchange the secret of an endpoint."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Exchange the secret of {name}",
        button="Exchange it",
        will=[
            "The new secret is shown once, on the next page.",
            "For a day both sign each message, so that the receiver can change over.",
        ],
        do=lambda client, _: client.ask(Webhooks.rotate, webhook_id),
        did=lambda _: f"{name} has a new secret, which is shown this once:",
        shown_once=lambda made: str(made.secret),
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/test")
def test(webhook_id: str) -> Act:
    """Send an endpoint a message that is about nothing."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Test {name}",
        button="Send a test",
        will=[
            "It gets webhook.test once, also where it is disabled.",
            "Below its deliveries you see the answer.",
        ],
        do=lambda client, _: client.ask(Webhooks.test, webhook_id),
        did=lambda _: "A test is on its way; load this page again in a moment.",
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/delete")
def delete(webhook_id: str) -> Act:
    """Remove an endpoint."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Delete {name}",
        button="Delete it",
        will=[
            "It is told of nothing any more.",
            "Its deliveries are deleted too, those that were given up as well.",
        ],
        typed=name,
        dangerous=True,
        do=lambda client, _: client.ask(Webhooks.delete, webhook_id),
        did=lambda _: f"{name} is deleted.",
        back="/webhooks",
    )


@page.act("/<webhook_id>/replay")
def replay_dead(webhook_id: str) -> Act:
    """Send again all that was given up."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Send {name} again what was given up",
        button="Send again",
        will=["Every delivery that was given up is tried again, under its id, as if for the first time."],
        do=lambda client, _: client.ask(Webhooks.replay_dead, webhook_id),
        did=lambda done: f"Deliveries on their way again: {done.deliveries}.",
        back=f"/webhooks/{webhook_id}",
    )


@page.act("/<webhook_id>/deliveries/<delivery_id>/replay")
def replay(webhook_id: str, delivery_id: str) -> Act:
    """Send one delivery again."""
    name = _host(_client().ask(Webhooks.show, webhook_id))
    return Act(
        title=f"Send a delivery to {name} again",
        button="Send again",
        will=["It is sent again under its id, as if for the first time; a receiver knows it by that id."],
        facts=[("Delivery", delivery_id)],
        do=lambda client, _: client.ask(Webhooks.replay, webhook_id, delivery_id),
        did=lambda _: "The delivery is on its way again.",
        back=f"/webhooks/{webhook_id}",
    )


def _client() -> OperatorClient:
    """Return the API, where the service has webhooks.

    Raises:
        NotEnabled: It has none.
    """
    client = api()
    if not usable(client, NAME):
        raise NotEnabled("the extension webhooks is not enabled in this service")
    return client


def _host(webhook: WebhookResponse) -> str:
    return urlsplit(webhook.url).hostname or webhook.webhook_id


def _events(names: Sequence[str], chosen: Sequence[str]) -> list[Field]:
    every = Field(
        name=f"{EVENT}{ALL}",
        label="Everything, also what comes with later versions",
        kind="check",
        value="yes" if ALL in chosen else "",
    )
    return [
        every,
        *(
            Field(name=f"{EVENT}{name}", label=name, kind="check", value="yes" if name in chosen else "")
            for name in names
            if name != ALL
        ),
    ]


def _chosen(filled: Values) -> list[str]:
    return [name.removeprefix(EVENT) for name in filled if name.startswith(EVENT)]
