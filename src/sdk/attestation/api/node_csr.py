"""Kubernetes certificate requests of nodes: what controllers in a cluster ask (HSM-AND-KUBERNETES §§19-22).

Who asks is a program with a bound ServiceAccount token. It sends what its API server told it, the request itself
and the stamped facts beside it, and gets a decision. Nothing that it sends is believed where the service knows better.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field

from attestation.api.base import MachineId, Wire
from attestation.api.ca import Serial
from attestation.machines import Status

__all__ = [
    "KubernetesCSR",
    "NodeCSRDecision",
    "NodeCSRDecisionDetail",
    "NodeCSRDecisionPage",
    "NodeCSRRequest",
    "NodeCertificate",
    "NodeTrust",
    "NodeTrustPage",
    "SeenNode",
]

NODE_CLIENT: Final = "attestation.itl.io/node-client"
"""The signer of this project: the service's CA."""
KUBELET_CLIENT: Final = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"

MAX_REQUEST_CHARACTERS = 3 << 20
"""Longest `spec.request` in base64. An API server stores less; so each request that there is gets a decision."""

CSRName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
ObjectUID = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]
Stamped = Annotated[str, Field(max_length=1024)]
ResultId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="16 random bytes, hex")]
Decision = Literal["approve", "deny", "not-recognised"]


class KubernetesCSR(Wire):
    """A CertificateSigningRequest (certificates.k8s.io/v1), as the API server shows it."""

    name: CSRName
    uid: ObjectUID = Field(description="`metadata.uid`; what was decided stays decided for this UID")
    signer_name: Annotated[str, Field(min_length=3, max_length=571, pattern=r"^[!-~]+$")]
    username: Stamped = Field(description="Of the requester, stamped by the API server")
    groups: Annotated[list[Stamped], Field(max_length=256)] = Field(description="Likewise")
    usages: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32)]
    expiration_seconds: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = None
    created_at: AwareDatetime = Field(description="`metadata.creationTimestamp`")
    request: Annotated[
        str,
        Field(
            max_length=MAX_REQUEST_CHARACTERS,
            description="`spec.request`: standard base64 of PEM, the PKCS#10 and what proves it behind it",
        ),
    ]


class SeenNode(Wire):
    """The Node object that has the name which the request asks for."""

    name: ObjectName
    uid: ObjectUID
    machine_id: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="Its label `itl.io/machine-id`; null where it has none"
    )


class NodeCSRRequest(Wire):
    """`POST /api/v1/node-csr/appraise` and `…/sign`."""

    csr: KubernetesCSR
    node: SeenNode | None = Field(description="null where there is no Node of that name")


class NodeCSRDecision(Wire):
    """What is to be done with a request. The same request gets the same answer again."""

    result_id: ResultId
    decision: Decision = Field(
        description="`not-recognised`: no request of ours, or without evidence; what follows is the cluster's rule"
    )
    reason: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="`TpmAttested`, or why not: the reason of the condition"
    )
    message: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="The message of the condition: the check and the result's id, nothing that was measured"
    )
    tier: Annotated[int, Field(ge=1, le=4)] | None = Field(
        default=None,
        description="What is known of where the key lives, 4 is most; null where nothing was approved",
    )
    tier_name: str | None = Field(default=None, description="`tier` in words")
    machine_id: MachineId | None = Field(
        default=None, description="Whose request it is, where that was proved"
    )
    node_name: str | None = Field(default=None, description="Name of the Node that the certificate is for")
    assurance: str | None = Field(default=None, description="Of the machine")


class NodeCertificate(Wire):
    """A certificate of ours for a request that this service judged good."""

    result_id: ResultId
    certificate_pem: str = Field(description="The leaf first, then what its holder sends after it")
    ca_pem: str = Field(description="Self-signed certificates of the CA, to check it under")
    serial: Serial
    not_after: datetime


class NodeTrust(Wire):
    """What a machine of the caller's cluster is worth now."""

    machine_id: MachineId
    hostname: str | None
    status: Status
    trusted: bool = Field(description="Attested, verified, and within its lease at `at`")
    reason: str = Field(description="`Trusted`, or why not: the status, or what the last result is worth")
    trust_expires_at: datetime | None = Field(description="Until when the last result may be relied on")
    node_certificate_at: datetime | None = Field(
        description="When the first of its requests was approved, of those that are kept; null where none was"
    )


class NodeTrustPage(Wire):
    """`GET /api/v1/node-csr/trust`: the machines of the caller's cluster, in the order of their ids."""

    items: list[NodeTrust]
    next_cursor: str | None = None
    at: datetime = Field(description="When it was so")


class NodeCSRDecisionDetail(NodeCSRDecision):
    """A stored decision, as operators see it."""

    cluster_id: str
    csr_name: str
    csr_uid: str
    signer_name: str
    at: datetime
    serial: Serial | None = Field(default=None, description="Of the certificate that our CA issued for it")


class NodeCSRDecisionPage(Wire):
    """One page of decisions about Kubernetes requests, newest first."""

    items: list[NodeCSRDecisionDetail]
    next_cursor: str | None = None
