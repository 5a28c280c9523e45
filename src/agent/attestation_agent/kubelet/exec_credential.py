"""What a client of Kubernetes asks an exec plugin, and what it is answered (client.authentication.k8s.io/v1).

The client puts an ExecCredential into the variable KUBERNETES_EXEC_INFO and reads another one from the standard
output. `spec.cluster` is there where the kubeconfig says `provideClusterInfo: true`: then it tells which API server
the certificate is for. Unknown members are passed over, as by client-go: a newer client may say more.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.wire import named_once
from attestation_agent.exits import UsageError
from attestation_agent.kubelet.kubeconfig import Cluster, KubeconfigRejected, cluster_of

VARIABLE: Final = "KUBERNETES_EXEC_INFO"
API_VERSION: Final = "client.authentication.k8s.io/v1"
KIND: Final = "ExecCredential"
MAX_BYTES: Final = 1 << 20


class ExecInfoRejected(UsageError):
    """What the client of Kubernetes asked cannot be answered."""

    code = "exec-info-rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecInfo:
    """What is asked.

    Args:
        interactive: A person sits at the client; we never ask one.
        cluster: The API server that the credential is for; None where the kubeconfig does not say
            `provideClusterInfo: true`.
    """

    interactive: bool
    cluster: Cluster | None


def parse(text: str) -> ExecInfo:
    """Read the value of KUBERNETES_EXEC_INFO.

    Raises:
        ExecInfoRejected: The only way to fail.
    """
    if len(text) > MAX_BYTES:
        raise ExecInfoRejected(f"{VARIABLE}: longer than {MAX_BYTES} characters")
    try:
        top = json.loads(text, object_pairs_hook=named_once)
    except (ValueError, RecursionError):
        raise ExecInfoRejected(f"{VARIABLE}: not JSON") from None
    if not isinstance(top, dict) or top.get("kind") != KIND:
        raise ExecInfoRejected(f"{VARIABLE}: not an {KIND}")
    if top.get("apiVersion") != API_VERSION:
        raise ExecInfoRejected(f"{VARIABLE}: the kubeconfig must say apiVersion: {API_VERSION}")
    spec = top.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("interactive"), bool):
        raise ExecInfoRejected(f"{VARIABLE}: without spec.interactive")
    try:
        return ExecInfo(interactive=spec["interactive"], cluster=_cluster(spec.get("cluster")))
    except KubeconfigRejected as e:
        raise ExecInfoRejected(f"{VARIABLE}: {e}") from None


def answer(certificate_pem: bytes, key_pem: bytes, expires_at: datetime) -> str:
    """Return the ExecCredential that hands over a certificate, as one line.

    Args:
        certificate_pem: The certificate, and what is sent after it.
        key_pem: Its private key.
        expires_at: When the client has to ask again.
    """
    status = {
        "expirationTimestamp": rfc3339(expires_at.replace(microsecond=0)).replace(".000000Z", "Z"),
        "clientCertificateData": certificate_pem.decode("ascii"),
        "clientKeyData": key_pem.decode("ascii"),
    }
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "status": status})


def _cluster(found: Any) -> Cluster | None:
    if found is None:
        return None
    if not isinstance(found, dict):
        raise ExecInfoRejected(f"{VARIABLE}: spec.cluster is no object")
    data = found.get("certificate-authority-data")
    try:
        ca = base64.b64decode(data if isinstance(data, str) else "", validate=True)
    except (binascii.Error, ValueError):
        raise ExecInfoRejected(f"{VARIABLE}: certificate-authority-data is not base64") from None
    return cluster_of(
        server=found.get("server"),
        ca_pem=ca,
        insecure_skip_tls_verify=found.get("insecure-skip-tls-verify"),
        tls_server_name=found.get("tls-server-name"),
        proxy_url=found.get("proxy-url"),
    )
