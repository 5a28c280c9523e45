"""Clusters: where machines are, and what was decided of the certificate requests of their Kubernetes nodes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.api.operations import OperatorAPI
from attestation_web.page import Badge, Column, Page, api, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

page: Final = Page(__name__, title="Clusters", place=100)

PAGE_ROWS: Final = 50
CLUSTERS: Final = (
    Column(name="cluster", title="Cluster", sort=lambda row: row.cluster_id),
    Column(name="machines", title="Machines", sort=lambda row: row.machines, numeric=True),
    Column(name="talos", title="Talos", sort=lambda row: row.talos_version),
    Column(name="declared", title="Declared"),
    Column(name="description", title="What it is"),
)
MOST_CLUSTERS: Final = 1000
MACHINES: Final = (
    Column(name="machine", title="Machine"),
    Column(name="role", title="Role"),
    Column(name="status", title="State"),
    Column(name="trust", title="Trust"),
    Column(name="attested", title="Attested"),
)
DECISIONS: Final = (
    Column(name="at", title="When"),
    Column(name="node", title="Node"),
    Column(name="decision", title="Decision"),
    Column(name="reason", title="Why"),
    Column(name="tier", title="Its key lives"),
    Column(name="request", title="Request"),
    Column(name="serial", title="Certificate"),
)
DECIDED: Final = {
    "approve": Badge(look=Look.GOOD, text="approved"),
    "deny": Badge(look=Look.BAD, text="denied"),
    "not-recognised": Badge(
        look=Look.UNKNOWN, text="not ours", title="No request of ours, or without evidence"
    ),
}


@page.get("")
def show() -> Response:
    """List clusters, and the newest decisions in any of them."""
    client = api()
    clusters = list(islice(client.clusters(), MOST_CLUSTERS))
    rows, cursor = client.one_page(
        OperatorAPI.node_csr_decisions, request.args.get("after"), page_size=PAGE_ROWS
    )
    return render(
        "clusters/list.html",
        clusters=table(CLUSTERS, clusters, by="cluster"),
        decisions=table(DECISIONS, rows, cursor=cursor, paged=True),
    )


@page.get("/<cluster_id>")
def one(cluster_id: str) -> Response:
    """Show one cluster: what is declared of it, and its machines."""
    client = api()
    found = client.cluster(cluster_id)
    rows, cursor = client.one_page(
        OperatorAPI.machines, request.args.get("after"), cluster_id=cluster_id, page_size=PAGE_ROWS
    )
    return render("clusters/one.html", cluster=found, shown=table(MACHINES, rows, cursor=cursor, paged=True))


page.add_app_template_filter(lambda word: DECIDED.get(word), "decided")
