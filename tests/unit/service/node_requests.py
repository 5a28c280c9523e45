"""Certificate requests of Kubernetes nodes whose TPM is Python, and the controllers that ask about them."""

from __future__ import annotations

import json
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.evidence import node_csr
from attestation.evidence.key_certification import csr_binding
from attestation.wire import b64decode, b64encode
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import NodeKey, certify, ecc_key
from tests.unit.service.test_service_accounts import claims, cluster, token

NODE_CLIENT = "attestation.itl.io/node-client"
KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING = "kubernetes.io/kubelet-serving"
ACCOUNTS = {"appraise": "itl:approver", "sign": "itl:signer", "trust": "itl:nodes"}
APPROVED = "TpmAttested"


async def serving(start: Starter, clock: HeldClock | None = None, **changed: Any) -> Service:
    """Start a service with a CA for nodes of one cluster; `rule` changes the cluster's."""
    rule = cluster(**changed.pop("rule", {}))
    chosen = {"enrollment_ca_unencrypted": True, "rate_limits": False} | changed
    return await start(clock, kubernetes_clusters=json.dumps([rule]), **chosen)


def bearer(service: Service, account: str) -> dict[str, str]:
    """Return the credential of a ServiceAccount."""
    return {"Authorization": f"Bearer {token(claims(service.clock, account))}"}


def pkcs10(key: NodeKey, hostname: str, *, names: list[x509.GeneralName] | None = None) -> bytes:
    """Return a request as a kubelet makes it, DER."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{hostname}", _validate=False),
            ]
        )
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key.private, hashes.SHA256()).public_bytes(Encoding.DER)


async def challenged(service: Service, node: SoftwareNode) -> dict[str, Any]:
    """Fetch a challenge for a request."""
    answer = await service.get(
        f"/api/v1/machines/{node.machine_id}/challenge", params={"purpose": "node-csr"}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def container(
    node: SoftwareNode,
    challenge: dict[str, Any],
    *,
    hostname: str = "w-1",
    key: NodeKey | None = None,
    quote: bool = True,
    machine_id: str | None = None,
) -> bytes:
    """Return what an honest node puts into `spec.request`."""
    key = key or ecc_key()
    nonce = b64decode(challenge["nonce"], "nonce")
    csr = pkcs10(key, hostname)
    info = x509.load_der_x509_csr(csr).tbs_certrequest_bytes
    said = {k: b64decode(v, k) for k, v in certify(node, key, csr_binding(nonce, info)).items()}
    more: dict[str, Any] = {}
    if quote:
        selection = challenge["pcr_selection"]
        quoted = node.quote(selection, nonce)
        more = {
            "quote": b64decode(quoted["pcr_quote"], "q"),
            "quote_signature": b64decode(quoted["pcr_signature"], "s"),
            "pcr_values": {"sha256": {i: node.pcrs[i] for i in selection["sha256"]}},
        }
    return node_csr.build(
        csr,
        machine_id=machine_id or node.machine_id,
        nonce_id=challenge["nonce_id"],
        public=said["key_public"],
        attest=said["certify_info"],
        signature=said["certify_signature"],
        **more,
    )


def body(data: bytes, **changes: Any) -> dict[str, Any]:
    """Return what an approver sends of a request."""
    csr: dict[str, Any] = {
        "name": "node-csr-1",
        "uid": "7d1e0c6a-0000-4000-8000-000000000001",
        "signer_name": NODE_CLIENT,
        "username": "system:bootstrap:abc",
        "groups": ["system:bootstrappers", "system:authenticated"],
        "usages": ["digital signature", "client auth"],
        "created_at": "2026-11-21T12:00:00Z",
        "request": b64encode(data),
    }
    node = changes.pop("node", None)
    return {"csr": {k: v for k, v in (csr | changes).items() if v is not None}, "node": node}


async def ask(service: Service, what: str, content: dict[str, Any], **headers: Any) -> httpx.Response:
    """Ask as the controller whose route it is."""
    return await service.post(
        f"/api/v1/node-csr/{what}", content, headers=headers or bearer(service, ACCOUNTS[what])
    )


async def decision(service: Service, content: dict[str, Any]) -> dict[str, Any]:
    """Have a request decided."""
    answer = await ask(service, "appraise", content)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def admitted(service: Service, hostname: str = "w-1") -> SoftwareNode:
    """Return a machine that attested."""
    node = SoftwareNode()
    await service.admitted(node, hostname=hostname)
    return node
