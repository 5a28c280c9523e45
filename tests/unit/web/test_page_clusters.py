"""Clusters: those that machines are in, as the service counts them, and their machines."""

from __future__ import annotations

import re

from tests.fixtures.web import Dashboard


def test_clusters_are_listed_with_their_machines(dashboard: Dashboard) -> None:
    """Each with its count; one shows its own machines and no others; none is shown where there is none."""
    alice, operator = dashboard.browser(), dashboard.service.operator()
    assert "No machine is in a cluster yet." in alice.page("/clusters")
    assert "No controller has asked" in alice.page("/clusters")
    for seed, cluster in ((1, "east"), (2, "east"), (3, "west")):
        dashboard.machine(seed).admitted(operator, hostname=f"w-{seed}", cluster_id=cluster)
    page = alice.page("/clusters")
    assert re.search(r'href="/clusters/east">east</a>.*?>2<', page, re.DOTALL)
    east = alice.page("/clusters/east")
    assert ("w-1" in east, "w-2" in east, "w-3" in east) == (True, True, False)
    assert "No machine is in this cluster." in alice.page("/clusters/nowhere")
