"""The approver of the controller manager, which reads no evidence: the real one, with the binding of every guide."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fixtures.cluster import (
    BINDINGS,
    CSRS,
    approved,
    bind,
    conditions,
    csr_object,
    node_request,
)
from tools.kubernetes import STOCK_APPROVER, Cluster

pytestmark = pytest.mark.kubeapi

BOOTSTRAPPERS = "itl-test:bootstrappers"
STOCK = "itl-test:approve-bootstrappers"


@pytest.fixture(autouse=True)
def bootstrappers(cluster: Cluster) -> Iterator[None]:
    """Let bootstrap tokens create requests, and no more; remove what a test has made."""
    bind(cluster, BOOTSTRAPPERS, "system:node-bootstrapper", "system:bootstrappers")
    yield
    for collection in (CSRS, BINDINGS):
        for each in cluster.ask(collection)["items"]:
            name = each["metadata"]["name"]
            if name.startswith("itl-test"):
                cluster.ask(f"{collection}/{name}", method="DELETE")


def test_with_the_stock_binding_a_copied_token_becomes_a_node(cluster: Cluster) -> None:
    """The race that no approver beside it can win: approved and signed by the controller manager, evidence unread."""
    bind(
        cluster,
        STOCK,
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        "system:bootstrappers",
    )
    with cluster.controllers(STOCK_APPROVER):
        cluster.ask(CSRS, csr_object("itl-test-stranger", node_request("worker-1")), user="bootstrap")
        done = cluster.wait_for(CSRS, "itl-test-stranger", lambda csr: "certificate" in csr["status"])
    assert conditions(done) == {"Approved": "AutoApproved"}


def test_without_the_binding_it_approves_nothing(cluster: Cluster) -> None:
    """The controller may stay: what is removed is the binding. An administrator's request, made later, it approves."""
    with cluster.controllers(STOCK_APPROVER):
        cluster.ask(CSRS, csr_object("itl-test-stranger", node_request("worker-1")), user="bootstrap")
        cluster.ask(CSRS, csr_object("itl-test-later", node_request("worker-2")))
        later = cluster.wait_for(CSRS, "itl-test-later", lambda csr: "certificate" in csr["status"])
        assert conditions(later) == {"Approved": "AutoApproved"}
        assert conditions(cluster.ask(f"{CSRS}/itl-test-stranger")) == {}


def test_what_is_approved_is_signed_by_the_controller_manager(cluster: Cluster, tmp_path: Path) -> None:
    """`csrsigning` may stay: it signs what an approver of ours has approved, and nothing before. It is a node then."""
    key = ec.generate_private_key(ec.SECP256R1())
    cluster.ask(CSRS, csr_object("itl-test-one", node_request("worker-1")), user="bootstrap")
    cluster.ask(CSRS, csr_object("itl-test-two", node_request("worker-2", key)), user="bootstrap")
    two = cluster.ask(f"{CSRS}/itl-test-two")
    cluster.ask(f"{CSRS}/itl-test-two/approval", approved(two, "TpmAttested"), method="PUT")
    done = cluster.wait_for(CSRS, "itl-test-two", lambda csr: "certificate" in csr["status"])
    assert conditions(done) == {"Approved": "TpmAttested"}
    assert cluster.ask(f"{CSRS}/itl-test-one")["status"] == {}
    files = tmp_path / "node.pem", tmp_path / "node.key"
    files[0].write_bytes(base64.b64decode(done["status"]["certificate"]))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    who = cluster.who_is(files)
    assert who.name == "system:node:worker-2"
    assert set(who.groups) == {"system:nodes", "system:authenticated"}
