"""docs/kubernetes/README.md: what is to be copied from it is what our programs take."""

from __future__ import annotations

import json
import re

from attestation_service.kubernetes_clusters import ControllerDuty, read_clusters
from tests.docs.pages import text

PAGE = text("docs/kubernetes/README.md")


def test_the_service_takes_the_cluster_of_the_page() -> None:
    """One object, every duty, and the ServiceAccounts that the chart makes under the names of the page beside it."""
    (block,) = re.findall(r"^```json\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (rule,) = read_clusters(json.dumps(json.loads(block)))
    installed = re.search(r"helm install (\S+) \S+ --namespace (\S+)", text("docs/kubernetes/controllers.md"))
    assert installed is not None
    release, namespace = installed.groups()
    programs = {"approver": "approver", "signer": "signer", "controller": "nodes"}
    assert rule.service_accounts == {
        ControllerDuty(f"attestation-{duty}"): (f"{namespace}:{release}-{program}",)
        for duty, program in programs.items()
    }
