"""Every page that can be reached by links, as each role, with machines that say hostile things of themselves."""

from __future__ import annotations

import html
import re
from collections import deque
from urllib.parse import urljoin, urlsplit

import pytest

from attestation_web import navigation
from tests.fixtures.web import AUDITOR, OPERATOR, VIEWER, Browser, Dashboard

HOSTILE = {
    "hw_serial": '"><script>alert(1)</script>',
    "hw_product": "<img src=x onerror=alert(1)>{{ 7*7 }}",
    "hw_mac": "'-alert(1)-'",
    "hw_uuid": "</title></textarea><svg onload=alert(1)>",
}
MOST_PAGES = 150
NOT_FOLLOWED = ("/auth/", "/static/")


def _links(page: str, base: str) -> set[str]:
    """Return the paths of ours that a page leads to, with their queries."""
    found = set()
    for link in re.findall(r'\b(?:href|hx-get)="([^"]*)"', page):
        parts = urlsplit(urljoin(base, html.unescape(link)))
        if not parts.scheme and parts.path.startswith("/") and not parts.path.startswith(NOT_FOLLOWED):
            found.add(f"{parts.path}?{parts.query}" if parts.query else parts.path)
    return found


def _crawl(browser: Browser) -> dict[str, str]:
    """Return every page that can be reached, by its address; an area that is not there yet is no page."""
    there = {area.url_prefix or "/" for area in navigation.areas()}
    seen: dict[str, str] = {}
    waiting = deque(["/"])
    known = {"/"}
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.popleft()
        if f"/{path[1:].partition('/')[0].partition('?')[0]}" not in there:
            continue
        answer = browser.get(path)
        if not (answer.content_type or "").startswith("text/html"):
            continue
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        seen[path] = answer.text
        for link in sorted(_links(answer.text, path) - known):
            known.add(link)
            waiting.append(link)
    return seen


def _fleet(dashboard: Dashboard) -> None:
    dashboard.machine(1, **HOSTILE)
    dashboard.machine(2, hw_serial="good").admitted(dashboard.service.operator())


@pytest.mark.threat("T274", "T276")
@pytest.mark.parametrize("rights", [OPERATOR, VIEWER, AUDITOR], ids=["operator", "viewer", "auditor"])
def test_every_page_that_is_linked_is_there_and_holds_nothing_hostile(
    dashboard: Dashboard, rights: tuple[str, ...]
) -> None:
    """What a machine says is text; no handler, no style, no secret; one heading; forms only for who may act."""
    _fleet(dashboard)
    pages = _crawl(dashboard.browser(rights=rights))
    assert len(pages) > 1
    for path, page in pages.items():
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
        assert "<svg onload" not in page, path
        assert "{{ 7*7 }}" in page or "49" not in re.findall(r"onerror=alert\(1\)&gt;(\d+)", page), path
        # Outside of quotes: what stands in a quoted value, escaped, is a value.
        assert not re.search(r'<\w[^>"]*(?:"[^"]*"[^>"]*)*\s(?:on\w+|style)=', page), path
        assert len(re.findall(r"<h1\b", page)) == 1, path
        assert dashboard.service.canary not in page, path
        assert dashboard.service.admin_token not in page, path
        if "act" not in rights:
            acts = re.findall(r'<form method="post" action="([^"]+)"', page)
            # A view is somebody's own, as a query is; what is compared is read here and kept nowhere.
            ours = {"/account/theme", "/auth/logout", "/machines/views/save", "/audit/compare"}
            assert set(acts) <= ours, path
