"""What the service finds of itself, and its settings without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import request

from attestation.client.text import clean
from attestation.errors import Unavailable
from attestation_web.page import Badge, Column, Page, api, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

page: Final = Page(__name__, title="Settings and health", place=110)

LEVELS: Final = {
    "failed": Badge(
        look=Look.BAD, text="failed", title="Something does not work, or would not after a start"
    ),
    "warning": Badge(look=Look.WARNS, text="warning", title="It works, and somebody should look at it"),
    "ok": Badge(look=Look.GOOD, text="good"),
}
COLUMNS: Final = (
    Column(name="name", title="Setting", sort=lambda s: s.name),
    Column(name="value", title="Value", sort=lambda s: s.value),
    Column(name="default", title="By default", sort=lambda s: s.is_default),
)
PAGE_ROWS: Final = 500


@page.get("")
def show() -> Response:
    """Show findings, the worst first, then the settings that were changed, or all of them."""
    client = api()
    found, why = None, ""
    try:
        found = client.health_findings()
    except Unavailable as e:
        why = clean(str(e))
    every = "all" in request.args
    settings = [each for each in client.settings().settings if every or not each.is_default]
    return render(
        "settings/page.html",
        found=found,
        why=why,
        findings=sorted(found.findings, key=lambda f: list(LEVELS).index(f.level)) if found else (),
        levels=LEVELS,
        settings=table(COLUMNS if every else COLUMNS[:2], settings, by="name", page_rows=PAGE_ROWS),
        every=every,
    )
