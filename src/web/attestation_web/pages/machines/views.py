"""`/machines/views`: filters, order and columns of the list that somebody keeps under a name.

The service keeps a view in its own words (`cluster_id`, `last_result_at`), so that it is not the dashboard's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from flask import redirect, request

from attestation.errors import RequestInvalid
from attestation_web.page import Act, Column, Field, api, needs, render, table
from attestation_web.pages.machines.area import page
from attestation_web.pages.machines.listing import SORTS

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import SavedQueryDetail

KEPT: Final = ("status", "trust", "role", "cluster", "labels", "q", "where", "sort", "column")
"""What of an address a view keeps: not the page, which is another one tomorrow."""
COLUMNS: Final = (
    Column(name="name", title="Name", sort=lambda v: v.name),
    Column(name="whose", title="Whose", sort=lambda v: v.owner),
    Column(name="shows", title="What it asks"),
    Column(name="saved", title="Saved", sort=lambda v: v.updated_at),
    Column(name="acts", title="Act"),
)


def as_kept(pairs: Iterable[tuple[str, str]]) -> str:
    """Return what an address says in the service's words; what is empty is left out."""

    def parts() -> Iterator[tuple[str, str]]:
        for name, value in pairs:
            if name not in KEPT or not value.strip():
                continue
            if name == "sort":
                sign = "-" if value.startswith("-") else ""
                if (order := SORTS.get(value.removeprefix("-"))) is not None:
                    yield name, f"{sign}{order}"
            else:
                yield "cluster_id" if name == "cluster" else name, value.strip()

    return urlencode(list(parts()))


def address_of(view: SavedQueryDetail) -> str:
    """Return where the list is that *view* shows, with its number, by which the page names it."""
    names = {order: name for name, order in SORTS.items()}
    found = []
    for name, value in parse_qsl(view.query):
        if name == "sort":
            sign = "-" if value.startswith("-") else ""
            found.append((name, sign + names.get(value.removeprefix("-"), "")))
        else:
            found.append(("cluster" if name == "cluster_id" else name, value))
    return "/machines?" + urlencode([*found, ("view", str(view.id))])


@page.get("/views")
@needs("query")
def views() -> Response:
    """List one's own views and those that others share."""
    kept = api().saved_queries("view").queries
    rows = table(COLUMNS, kept, by="name")
    return render("machines/views.html", views=rows, address_of=address_of, asked=asked_by)


@page.get("/views/open")
@needs("query")
def open_view() -> Response:
    """Lead to the list that the chosen view shows; to the whole list where none is chosen."""
    chosen = request.args.get("view", "")
    if not chosen:
        return redirect("/machines", 303)
    found = next((v for v in api().saved_queries("view").queries if str(v.id) == chosen), None)
    if found is None:
        raise RequestInvalid("this view is not there any more, or not shared any more")
    return redirect(address_of(found), 303)


@page.act("/views/save", right="query")
def save_view() -> Act:
    """Keep a view under a name."""
    # After the button was pressed what is kept stands in the form, before that in the address of the list.
    text = request.form.get("kept") or as_kept(request.args.items(multi=True))
    return Act(
        title="Save this view",
        button="Save",
        will=[
            "Filters, order and columns of the list are kept under this name, in place of the view of yours there.",
            "Who opens it sees the machines that fit then.",
            "Shared, everybody who may ask sees the name and the filters, and opens it with their own rights.",
        ],
        facts=[(name.capitalize(), value) for name, value in asked_by(text)] or [("Shows", "every machine")],
        fields=[
            Field(
                name="name",
                label="Name",
                needed=True,
                help="Letters, digits, dot, underscore and hyphen; at most 63.",
            ),
            Field(name="description", label="What it is for"),
            Field(name="shared", label="Share it with everybody who may ask", kind="check"),
            Field(name="kept", label="", kind="hidden", value=text),
        ],
        do=lambda client, filled: client.save_query(
            filled["name"],
            filled.get("kept", ""),
            description=filled.get("description"),
            shared="shared" in filled,
            kind="view",
        ),
        did=lambda saved: f"The view {saved.name} is kept{', and shared' if saved.shared else ''}.",
        back="/machines/views",
    )


@page.act("/views/<name>/delete", right="query")
def delete_view(name: str) -> Act:
    """Forget a view of one's own."""
    return Act(
        title=f"Forget the view {name}",
        button="Forget it",
        will=[f"Your view {name} is kept no more; who it was shared with does not see it any more either."],
        do=lambda client, _: client.delete_query(name),
        did=lambda _: f"The view {name} is forgotten.",
        back="/machines/views",
        dangerous=True,
    )


def asked_by(kept: str) -> list[tuple[str, str]]:
    """Return what a view asks, name and value each; columns in one."""
    pairs = parse_qsl(kept)
    told = [(name.replace("_id", ""), value) for name, value in pairs if name != "column"]
    columns = [value for name, value in pairs if name == "column"]
    return told + ([("columns", ", ".join(columns))] if columns else [])
