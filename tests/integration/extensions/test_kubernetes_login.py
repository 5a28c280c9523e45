"""Identity tokens at a consumer: a real Kubernetes API by its options `--oidc-…`."""

from __future__ import annotations

import base64
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.cluster import PEOPLE
from tests.fixtures.machine import Machine
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import Operator, ServiceProcess
from tools.kubernetes import Cluster, KubernetesMissing
from tools.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.kubeapi, pytest.mark.timeout(180)]

AUDIENCE = "https://kubernetes.prod"
PAGE = Path(__file__).parents[3] / "docs/operate/identity/kubernetes.md"


def asked(cluster: Cluster, token: str) -> tuple[int, str]:
    """Return what the API says to the bearer of *token* who wants to see the nodes."""
    tls = ssl.create_default_context(cafile=cluster.ca_file)
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(
        f"{cluster.url}/api/v1/nodes", headers=headers, verify=tls, trust_env=False, timeout=30
    )
    return answer.status_code, answer.json()["message"]


def test_a_machine_speaks_to_kubernetes_by_its_token(tmp_path: Path) -> None:
    """As docs/operate/identity/kubernetes.md has it: a user and a group; not for another audience, nor when changed."""
    ca = OperatorCA(datetime.now(UTC).replace(microsecond=0), "Servers")
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    certificate, key = ca.server("localhost").files(tmp_path, "tls")
    port = free_port()
    issuer = f"https://localhost:{port}/api/v1/identity"
    service = ServiceProcess(
        directory=tmp_path / "service",
        port=port,
        trust=tmp_path / "ca.pem",
        environment={
            "ITL_TLS_CERT_FILE": str(certificate),
            "ITL_TLS_KEY_FILE": str(key),
            "ITL_EXTENSIONS": "machine_identity",
            "ITL_EXT_MACHINE_IDENTITY_KEY": f"file:{tmp_path}/identity.pem",
            "ITL_EXT_MACHINE_IDENTITY_AUDIENCES": f"{AUDIENCE}; other",
            "ITL_EXT_MACHINE_IDENTITY_ISSUER": issuer,
        },
    )
    service.directory.mkdir()
    here = {
        "https://attest.example/api/v1/identity": issuer,
        "cluster=prod": "cluster=default",
        "/etc/kubernetes/attestation-ca.pem": str(tmp_path / "ca.pem"),
    }
    options = [
        f"{name}={here.get(value, value)}"
        for name, _, value in (line.partition("=") for line in PAGE.read_text().splitlines())
        if name.startswith("--oidc-")
    ]
    assert len(options) == 9
    service.start()
    try:
        cluster = Cluster(tmp_path / "cluster", free_port, users=PEOPLE, options=options)
        with cluster:
            _try(service, cluster)
    except KubernetesMissing as e:
        pytest.skip(str(e))
    finally:
        service.stop()


def _try(service: ServiceProcess, cluster: Cluster) -> None:
    tls = ssl.create_default_context(cafile=service.trust)
    operator = Operator(httpx.Client(base_url=service.url, verify=tls, timeout=60), service.admin_token)
    with operator.http as http:
        machine = Machine(SoftwareNode(1), http)
        machine.admitted(operator)

        def token(audience: str) -> str:
            body: dict[str, Any] = {**machine.evidence(machine.challenge()), "audience": audience}
            answer = machine.post("/identity/token", body)
            assert answer.is_success, answer.text
            return str(answer.json()["token"])

        good = token(AUDIENCE)
        # It fetches discovery and keys in the background, and says 401 until then.
        Cluster.eventually(lambda: asked(cluster, good)[0] != 401)
        status, message = asked(cluster, good)
        assert status == 403
        assert f'User "machine:{machine.machine_id}" cannot list resource "nodes"' in message
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
        cluster.ask(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                **role,
                "metadata": {"name": "machines"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "view-nodes",
                },
                "subjects": [
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "machines:worker-app"}
                ],
            },
        )
        cluster.ask(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            {
                **role,
                "kind": "ClusterRole",
                "metadata": {"name": "view-nodes"},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
            },
        )
        tls = ssl.create_default_context(cafile=cluster.ca_file)
        nodes = httpx.Client(base_url=cluster.url, verify=tls, trust_env=False, timeout=30)
        with nodes:
            headers = {"Authorization": f"Bearer {good}"}
            Cluster.eventually(lambda: nodes.get("/api/v1/nodes", headers=headers).status_code == 200)
        assert asked(cluster, token("other"))[0] == 401
        head, body, signature = good.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        forged = base64.urlsafe_b64encode(json.dumps(claims | {"sub": "machine:x"}).encode()).rstrip(b"=")
        assert asked(cluster, f"{head}.{forged.decode()}.{signature}")[0] == 401
