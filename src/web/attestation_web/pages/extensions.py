"""Extensions of the service: what is enabled, what was skipped and why, and events that they could not handle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from attestation.api import RetryRequest
from attestation_web.page import Act, Badge, Column, Page, api, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import ExtensionDetail

page: Final = Page(__name__, title="Extensions", place=90)

PAGES: Final = {"webhooks": "/webhooks", "secret_vault": "/secrets"}
"""Extensions that have pages of their own here."""

COLUMNS: Final = (
    Column(name="event", title="Event", sort=lambda e: e.event),
    Column(name="created", title="When", sort=lambda e: e.created_at),
    Column(name="machine", title="Machine", sort=lambda e: e.machine_id),
    Column(name="attempts", title="Attempts", sort=lambda e: e.attempts, numeric=True),
    Column(name="error", title="Last failure", sort=lambda e: e.error),
    Column(name="do", title="Again"),
)


@page.get("")
def show() -> Response:
    """List what is enabled."""
    return render(
        "extensions/page.html", extensions=api().extensions().extensions, pages=PAGES, state_of=state_of
    )


def state_of(extension: ExtensionDetail) -> Badge:
    """Return how *extension* stands: what it left undone looks different from what works."""
    if extension.skipped is not None:
        return Badge(look=Look.BAD, text="skipped", title="The service runs without it")
    if extension.dead_letters:
        return Badge(look=Look.WARNS, text="gave events up", title="Its dead letters can be tried again")
    return Badge(look=Look.GOOD, text="enabled")


@page.get("/<name>/dead-letters")
def dead_letters(name: str) -> Response:
    """List the newest hundred events that an extension could not handle."""
    letters = api().dead_letters(name).items
    return render(
        "extensions/dead_letters.html", name=name, letters=table(COLUMNS, letters, by="-created"), any=letters
    )


@page.get("/<name>/dead-letters/<event_id>")
def dead_letter(name: str, event_id: str) -> Response:
    """Show one of them, with what the event says."""
    letter = api().dead_letter(name, event_id)
    return render(
        "extensions/dead_letter.html",
        name=name,
        letter=letter,
        payload=json.dumps(letter.payload, indent=2, sort_keys=True, ensure_ascii=False),
    )


@page.act("/<name>/retry")
def retry(name: str) -> Act:
    """Have an extension handle all that it gave up again."""
    return Act(
        title=f"Try the dead letters of {name} again",
        button="Try again",
        will=[
            f"{name} gets every event again that it gave up, in no certain order.",
            "What it did for them before it failed, it may do twice: an extension is built for that.",
        ],
        do=lambda client, _: client.retry_dead_letters(name),
        did=lambda done: f"{done.events} events are on their way to {name} again.",
        back="/extensions",
    )


@page.act("/<name>/dead-letters/<event_id>/retry")
def retry_one(name: str, event_id: str) -> Act:
    """Have an extension handle one event again."""
    return Act(
        title=f"Try an event again with {name}",
        button="Try again",
        will=[f"{name} gets this event again.", "What it did for it before it failed, it may do twice."],
        facts=[("Event id", event_id)],
        do=lambda client, _: client.retry_dead_letters(name, RetryRequest(event_ids=[event_id])),
        did=lambda _: f"The event is on its way to {name} again.",
        back="/extensions",
    )
