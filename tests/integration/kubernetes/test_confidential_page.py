"""docs/kubernetes/confidential.md: what it tells to copy does what it says."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml import YAML

from tests.contract.kubernetes import done
from tests.docs.pages import text
from tests.fixtures.kube import FakeKube, fake, rest

__all__ = ["fake"]

LABEL = "node-restriction.kubernetes.io/itl-attested"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def _pod(**spec: Any) -> dict[str, Any]:
    containers = [{"name": "one", "image": "none"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": containers, **spec},
    }


def test_pods_of_a_namespace_go_to_attested_nodes(fake: FakeKube) -> None:
    """The policy of the page refuses a pod without the selector, with another value, and with a node of its choice."""
    page = text("docs/kubernetes/confidential.md")
    [block] = [
        each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "ValidatingAdmission" in each
    ]
    policy, binding = YAML(typ="safe").load_all(block)
    [selector] = re.findall(r"^nodeSelector:\n  (\S+): (\w+)$", page, re.MULTILINE)
    assert selector[0] == LABEL
    with rest(fake) as admin:
        for name, labels in (("guarded", {"confidential": "true"}), ("others", {})):
            done(admin.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": labels}}), 201)
        done(admin.post(f"{ADMISSION}/validatingadmissionpolicies", json=policy), 201)
        done(admin.post(f"{ADMISSION}/validatingadmissionpolicybindings", json=binding), 201)
        pods = "/api/v1/namespaces/guarded/pods"
        refused: tuple[dict[str, Any], ...] = (
            {},
            {"nodeSelector": {}},
            {"nodeSelector": {LABEL: "failed"}},
            {"nodeSelector": {LABEL: "verified"}, "nodeName": "worker-1"},
        )
        for spec in refused:
            assert admin.post(pods, json=_pod(**spec)).status_code == 422, spec
        done(admin.post(pods, json=_pod(nodeSelector=dict([selector]))), 201)
        done(admin.post("/api/v1/namespaces/others/pods", json=_pod()), 201)
