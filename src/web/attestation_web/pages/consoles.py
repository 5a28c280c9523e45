"""Codes on the consoles of machines that boot stock images: what they say of themselves, and who stood there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import request

from attestation.api.operations import OperatorAPI
from attestation_web.page import Act, Badge, Column, Page, api, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import ConsoleCodeShown

page: Final = Page(__name__, title="Consoles", under="inbox")

PAGE_ROWS: Final = 50
CODES: Final = (
    Column(name="code", title="Code"),
    Column(name="state", title="State"),
    Column(name="hardware", title="Says of itself"),
    Column(name="from", title="Asked from"),
    Column(name="asked", title="Asked"),
    Column(name="by", title="By"),
)
STATES: Final = {
    "pending": Badge(look=Look.WAITS, text="waits"),
    "approved": Badge(look=Look.GOOD, text="approved"),
    "denied": Badge(look=Look.BAD, text="denied"),
    "expired": Badge(look=Look.UNKNOWN, text="over"),
}


@page.get("")
def show() -> Response:
    """List codes, newest first."""
    rows, cursor = api().one_page(OperatorAPI.console_codes, request.args.get("after"), page_size=PAGE_ROWS)
    return render("consoles/page.html", codes=table(CODES, rows, cursor=cursor, paged=True))


@page.act("/<code>/approve", fresh=True)
def approve(code: str) -> Act:
    """Say that one stands before the machine that shows a code."""
    return Act(
        title="Approve at the console",
        button="I stand before it",
        will=[
            "It is recorded, in your name and for good, that you stood before a machine that showed this code.",
            "Nothing is released on that: it proves presence, and no TPM. The machine ends its wait.",
            "Never approve a code that somebody sent you: it may be that of a machine elsewhere.",
        ],
        facts=_facts(api().console_code(code)),
        typed=code,
        do=lambda client, _: client.approve_console_code(code),
        did=lambda _: f"{code} is approved.",
        back="/consoles",
    )


@page.act("/<code>/deny")
def deny(code: str) -> Act:
    """Refuse a code for good."""
    return Act(
        title="Deny a code",
        button="Deny it",
        will=["The machine is told no, and asks for another code half a minute later."],
        facts=_facts(api().console_code(code)),
        do=lambda client, _: client.deny_console_code(code),
        did=lambda _: f"{code} is denied.",
        back="/consoles",
    )


def _facts(shown: ConsoleCodeShown) -> list[tuple[str, str]]:
    facts = [
        ("Code", shown.code),
        ("UUID", shown.hw_uuid or "unknown"),
        ("MAC", shown.hw_mac or "unknown"),
        ("Serial", shown.hw_serial or "unknown"),
        ("Asked from", shown.source_ip),
        ("Asked at", f"{shown.asked_at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    if shown.machines:
        facts.append(("Machines that say the same", ", ".join(shown.machines)))
    if shown.other_codes:
        facts.append(("Other consoles that do", ", ".join(shown.other_codes)))
    return facts


page.add_app_template_filter(lambda word: STATES.get(word), "console_state")
