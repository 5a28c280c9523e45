"""What the holder of a node's certificate can do until it ends, as docs/kubernetes/nodes.md tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.cluster import CSRS, as_node
from tools.kubernetes import Cluster, Refused

pytestmark = pytest.mark.kubeapi

NODE = "itl-test-rights"
SPACE = "/api/v1/namespaces/itl-test-rights"
POD = {
    "metadata": {"name": "pod"},
    "spec": {
        "nodeName": NODE,
        "serviceAccountName": "worker",
        "containers": [{"name": "one", "image": "none", "envFrom": [{"secretRef": {"name": "used"}}]}],
    },
}


@pytest.fixture
def kubelet(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return certificate and key of a node to which a Pod with a Secret is bound."""
    files = as_node(cluster, NODE, tmp_path)
    cluster.ask("/api/v1/nodes", {"metadata": {"name": NODE}}, certificate=files)
    cluster.ask("/api/v1/namespaces", {"metadata": {"name": NODE}})
    for name in ("used", "other"):
        cluster.ask(f"{SPACE}/secrets", {"metadata": {"name": name}, "stringData": {"a": "b"}})
    for name in ("worker", "others"):
        cluster.ask(f"{SPACE}/serviceaccounts", {"metadata": {"name": name}})
    cluster.ask(f"{SPACE}/pods", POD)
    yield files
    cluster.ask(SPACE, method="DELETE")
    cluster.ask(f"/api/v1/nodes/{NODE}", method="DELETE")
    cluster.ask(f"{CSRS}/{NODE}", method="DELETE")


def may(cluster: Cluster, files: tuple[Path, Path], path: str, body: object = None) -> bool:
    """Try it."""
    try:
        cluster.ask(path, body, certificate=files)
    except Refused as e:
        if e.code != 403:
            raise
        return False
    return True


def token_request(cluster: Cluster, account: str) -> dict[str, object]:
    pod = cluster.ask(f"{SPACE}/pods/pod")["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "pod", "uid": pod["uid"]}
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"name": account},
        "spec": {"audiences": [cluster.issuer], "boundObjectRef": bound},
    }


def test_a_node_has_what_is_bound_to_it_until_that_is_gone(
    cluster: Cluster, kubelet: tuple[Path, Path]
) -> None:
    """Secrets and tokens of its own Pods, no others; without its Pods none. Its Node it can make again."""
    accounts = f"{SPACE}/serviceaccounts"
    worker, others = (token_request(cluster, name) for name in ("worker", "others"))
    # The authorizer follows the objects with a delay.
    cluster.eventually(lambda: may(cluster, kubelet, f"{SPACE}/secrets/used"))
    assert not may(cluster, kubelet, f"{SPACE}/secrets/other")
    assert may(cluster, kubelet, f"{accounts}/worker/token", worker)
    assert not may(cluster, kubelet, f"{accounts}/others/token", others)
    cluster.ask(f"{SPACE}/pods/pod?gracePeriodSeconds=0", method="DELETE")
    cluster.eventually(lambda: not may(cluster, kubelet, f"{SPACE}/secrets/used"))
    assert not may(cluster, kubelet, f"{accounts}/worker/token", worker)
    cluster.ask(f"/api/v1/nodes/{NODE}", method="DELETE")
    assert may(cluster, kubelet, "/api/v1/nodes", {"metadata": {"name": NODE}})
