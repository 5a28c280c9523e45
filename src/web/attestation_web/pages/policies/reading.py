"""The list, one version, what applied where and when, and how two versions differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flask import abort, request

from attestation.api.operations import OperatorAPI
from attestation.client.yaml_text import yaml_text
from attestation.errors import PolicyInvalid
from attestation.reference import IDENTITY_ONLY, parse_policy
from attestation.reference.diff import diff
from attestation_web.page import Column, api, lines_of, render, table
from attestation_web.pages.policies.area import newest_first, page, place_of, places, ref

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import PolicyDetail
    from attestation.reference import Policy

TABS: Final = (("Policies", "policies"), ("Where they apply", "places"), ("History", "history"))
PAGE_ROWS: Final = 50
LONGEST_SHOWN: Final = 24

POLICIES: Final = (
    Column(name="policy", title="Policy", sort=lambda row: (row[0].name, -row[0].version)),
    Column(name="applies", title="Applies to", sort=lambda row: -len(row[1])),
    Column(name="created", title="Stored", sort=lambda row: row[0].created_at),
    Column(name="by", title="By", sort=lambda row: row[0].created_by),
    Column(name="sha256", title="SHA-256", shown=False),
)
PLACES: Final = (
    Column(name="place", title="Place"),
    Column(name="policy", title="Policy"),
    Column(name="since", title="Since"),
    Column(name="by", title="By"),
    Column(name="act", title="Change"),
)
HISTORY: Final = (
    Column(name="at", title="When"),
    Column(name="place", title="Place"),
    Column(name="policy", title="From then on"),
    Column(name="by", title="By"),
)


@page.get("")
def show() -> Response:
    """List policies, where they apply, or what applied before."""
    tab = request.args.get("tab", "policies")
    if tab == "history":
        return _history()
    listed = api().policies()
    if tab == "places":
        order = ("fleet", "cluster", "role", "machine")
        rows: list[Any] = sorted(listed.assignments, key=lambda a: (order.index(a.scope), a.subject))
        shown = table(PLACES, rows)
    else:
        tab = "policies"
        wanted = request.args.get("q", "").strip().lower()
        rows = [(p, places(listed, ref(p))) for p in newest_first(listed) if wanted in ref(p)]
        shown = table(POLICIES, rows)
    return render(
        "policies/list.html",
        tabs=TABS,
        tab=tab,
        shown=shown,
        fleet=any(a.scope == "fleet" for a in listed.assignments),
    )


def _history() -> Response:
    scope, subject = request.args.get("scope"), request.args.get("subject", "")
    chosen = None if scope is None else place_of(scope, subject)
    rows, cursor = api().one_page(
        OperatorAPI.policy_history,
        request.args.get("after"),
        scope=chosen[0] if chosen else None,
        subject=chosen[1] if chosen else None,
        page_size=PAGE_ROWS,
    )
    shown = table(HISTORY, rows, cursor=cursor, paged=True)
    return render("policies/list.html", tabs=TABS, tab="history", shown=shown, fleet=True, chosen=chosen)


@page.get("/<name>/<int:version>")
def one(name: str, version: int) -> Response:
    """Show one version, and the others of its name."""
    listed = api().policies()
    found = _find(listed.policies, name, version)
    versions = [p for p in newest_first(listed) if p.name == name]
    older = next((p for p in versions if p.version < version), None)
    return render(
        "policies/one.html",
        policy=found,
        versions=versions,
        older=older,
        places=places(listed, ref(found)),
        listed=listed,
        text=yaml_text(found.document),
    )


@page.get("/diff")
def difference() -> Response:
    """Show how two versions differ: in sentences, and line by line."""
    listed = api().policies()
    refs = [ref(p) for p in newest_first(listed)]
    one_ref, other_ref = request.args.get("one", ""), request.args.get("other", "")
    if not one_ref or not other_ref:
        return render("policies/diff.html", refs=refs, one=one_ref, other=other_ref, lines=None, changes=[])
    before, after = (_find(listed.policies, *_split(each)) for each in (one_ref, other_ref))
    return render(
        "policies/diff.html",
        refs=refs,
        one=one_ref,
        other=other_ref,
        lines=lines_of(yaml_text(before.document), yaml_text(after.document)),
        changes=changes(before.document, after.document),
    )


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return in sentences what *after* demands otherwise; nothing where this version cannot read one of them."""
    try:
        found = diff(_read(before), _read(after))
    except PolicyInvalid:
        return []
    return [change.text for change in found.changes]


def _read(document: dict[str, Any]) -> Policy:
    return IDENTITY_ONLY if document.get("name") == IDENTITY_ONLY.name else parse_policy(document)


def _split(reference: str) -> tuple[str, int]:
    name, _, version = reference.partition("@")
    return name, int(version) if version.isdecimal() and len(version) < LONGEST_SHOWN else 0


def _find(policies: list[PolicyDetail], name: str, version: int) -> PolicyDetail:
    found = next((p for p in policies if (p.name, p.version) == (name, version)), None)
    return found if found is not None else abort(404)
