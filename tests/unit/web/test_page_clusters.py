"""Clusters: those that machines are in, as the service counts them, and their machines."""

from __future__ import annotations

import re

from tests.fixtures.web import Dashboard


def test_clusters_are_listed_with_their_machines(dashboard: Dashboard) -> None:
    """Each with its count; one shows its own machines and no others; none is shown where there is none."""
    alice, operator = dashboard.browser(), dashboard.service.operator()
    assert "No machine is in a cluster yet, and none is declared." in alice.page("/clusters")
    assert "No controller has asked" in alice.page("/clusters")
    for seed, cluster in ((1, "east"), (2, "east"), (3, "west")):
        dashboard.machine(seed).admitted(operator, hostname=f"w-{seed}", cluster_id=cluster)
    page = alice.page("/clusters")
    assert re.search(r'href="/clusters/east">east</a>\s*</td>\s*<td[^>]*>\s*2\s*</td>', page, re.DOTALL)
    east = alice.page("/clusters/east")
    assert ("w-1" in east, "w-2" in east, "w-3" in east) == (True, True, False)
    assert "no: it is there because machines are in it" in east
    wanted = {"cluster_id": "empty", "description": "Rack 9", "talos_version": "v1.13.9"}
    operator.call("POST", "/clusters", json=wanted)
    empty = alice.page("/clusters/empty")
    for told in ("No machine is in this cluster.", "Rack 9", "v1.13.9"):
        assert told in empty
    assert "Rack 9" in alice.page("/clusters")
    assert alice.get("/clusters/nowhere").status_code == 404
