"""Base configurations: what machines of a role are given in a cluster, version by version, and which is delivered.

None is brought in here: its text holds the cluster's secrets, which no page takes (`attestation config import`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flask import abort

from attestation.machines import Role
from attestation_web.page import Act, Column, Page, api, render, table
from attestation_web.page.versions import (
    Place,
    activating,
    active_of,
    listed,
    look,
    of_role,
    versions_of_role,
)

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import ConfigurationInfo

page: Final = Page(__name__, title="Configurations", place=45)

PLACES: Final = (
    Column(name="place", title="Cluster and role", sort=lambda row: (row.cluster_id, row.role)),
    Column(name="active", title="Delivered"),
    Column(name="since", title="Since"),
    Column(name="by", title="By"),
    Column(name="newest", title="Newest", sort=lambda row: row.versions[-1].created_at),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A role of a cluster, and its versions, the oldest first."""

    cluster_id: str
    role: Role
    versions: Sequence[ConfigurationInfo]

    @property
    def active(self) -> ConfigurationInfo | None:
        """The version that is delivered."""
        return active_of(self.versions)


@page.get("")
def show() -> Response:
    """List places, and what is delivered at each."""
    places: dict[tuple[str, Role], list[ConfigurationInfo]] = {}
    for each in api().configurations().configurations:
        if each.cluster_id is not None and each.role is not None:
            places.setdefault((each.cluster_id, each.role), []).append(each)
    rows = [Row(cluster_id=at[0], role=at[1], versions=found) for at, found in places.items()]
    return render("configurations/list.html", places=table(PLACES, rows, by="place"))


@page.get("/<cluster_id>/<role>")
def one(cluster_id: str, role: str) -> Response:
    """List the versions of one place."""
    place, versions = _place(cluster_id, role)
    return render(
        "configurations/place.html",
        place=place,
        cluster_id=cluster_id,
        active=active_of(versions),
        versions=listed(versions),
    )


@page.get("/<cluster_id>/<role>/<int:version>")
def show_version(cluster_id: str, role: str, version: int) -> Response:
    """Show one version without its secrets, and what differs from another."""
    place, versions = _place(cluster_id, role)
    crumbs = [("Configurations", "/configurations"), (place.name, place.href)]
    return render("configurations/version.html", crumbs=crumbs, **look(place, versions, version))


@page.act("/<cluster_id>/<role>/<int:version>/activate", fresh=True)
def activate(cluster_id: str, role: str, version: int) -> Act:
    """Let a version be delivered from now on."""
    place, versions = _place(cluster_id, role)
    return activating(place, versions, version)


def _place(cluster_id: str, word: str) -> tuple[Place, list[ConfigurationInfo]]:
    try:
        role = Role(word)
    except ValueError:
        abort(404)
    return of_role(cluster_id, role), versions_of_role(api(), cluster_id, role)
