"""Which labels of its Node a kubelet may write: what our labels rest on, told by the real API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.cluster import CSRS, as_node
from tools.kubernetes import Cluster, Refused

pytestmark = pytest.mark.kubeapi

NODE = "itl-test-labels"
NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"


@pytest.fixture
def kubelet(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return what a kubelet has: its certificate and key; its Node exists."""
    files = as_node(cluster, NODE, tmp_path)
    cluster.ask(NODES, {"metadata": {"name": NODE}}, certificate=files)
    yield files
    cluster.ask(f"{NODES}/{NODE}", method="DELETE")
    cluster.ask(f"{CSRS}/{NODE}", method="DELETE")


@pytest.mark.parametrize("label", ["itl-attested", "itl-machine-id"])
def test_no_kubelet_says_of_itself_that_it_is_attested(
    cluster: Cluster, kubelet: tuple[Path, Path], label: str
) -> None:
    """Labels under `node-restriction.kubernetes.io` are others' to write; a node gives no other node any."""
    restricted = {"metadata": {"labels": {f"node-restriction.kubernetes.io/{label}": "true"}}}
    with pytest.raises(Refused) as refused:
        cluster.ask(f"{NODES}/{NODE}", restricted, certificate=kubelet, method="PATCH", media_type=MERGE)
    assert refused.value.code == 403
    assert "is not allowed to modify labels" in refused.value.message
    done = cluster.ask(f"{NODES}/{NODE}", restricted, method="PATCH", media_type=MERGE)
    assert done["metadata"]["labels"][f"node-restriction.kubernetes.io/{label}"] == "true"


def test_a_kubelet_may_write_any_other_label(cluster: Cluster, kubelet: tuple[Path, Path]) -> None:
    """So `itl.io/machine-id` says only what the kubelet says: it is never proof."""
    own = {"metadata": {"labels": {"itl.io/machine-id": "0"}}}
    done = cluster.ask(f"{NODES}/{NODE}", own, certificate=kubelet, method="PATCH", media_type=MERGE)
    assert done["metadata"]["labels"]["itl.io/machine-id"] == "0"


def test_a_kubelet_registers_no_other_node(cluster: Cluster, kubelet: tuple[Path, Path]) -> None:
    """Its certificate is for one name, and that is all that it may write."""
    with pytest.raises(Refused) as refused:
        cluster.ask(NODES, {"metadata": {"name": "itl-test-other"}}, certificate=kubelet)
    assert refused.value.code == 403


def test_a_kubelet_takes_away_no_taint_but_may_uncordon(cluster: Cluster, kubelet: tuple[Path, Path]) -> None:
    """So who is not trusted is tainted: a cordon is a word that its kubelet can take back."""
    path = f"{NODES}/{NODE}"
    kept_out = {"spec": {"taints": [{"key": "itl-test", "effect": "NoExecute"}], "unschedulable": True}}
    cluster.ask(path, kept_out, method="PATCH", media_type=MERGE)
    with pytest.raises(Refused) as refused:
        cluster.ask(path, {"spec": {"taints": None}}, certificate=kubelet, method="PATCH", media_type=MERGE)
    assert refused.value.code == 403
    assert "is not allowed to modify taints" in refused.value.message
    uncordoned = {"spec": {"unschedulable": None}}
    done = cluster.ask(path, uncordoned, certificate=kubelet, method="PATCH", media_type=MERGE)
    assert "unschedulable" not in done["spec"]
    with pytest.raises(Refused):
        cluster.ask(path, method="DELETE", certificate=kubelet)
