"""What an exec plugin is asked and answers, by the rules of client-go (plugin/pkg/client/auth/exec)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation_agent.kubelet.exec_credential import ExecInfoRejected, answer, parse

CA = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
CLUSTER = {
    "server": "https://10.0.0.1:6443",
    "certificate-authority-data": base64.b64encode(CA).decode(),
    "config": {"anything": ["goes"]},
    "disable-compression": True,
}


def info(spec: Any = None, **top: Any) -> str:
    asked = {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "spec": {"interactive": False} if spec is None else spec,
        **top,
    }
    return json.dumps(asked)


def test_without_cluster() -> None:
    """`provideClusterInfo: false`, the default."""
    found = parse(info())
    assert (found.interactive, found.cluster) == (False, None)


def test_with_cluster() -> None:
    """`provideClusterInfo: true`."""
    found = parse(info({"interactive": True, "cluster": CLUSTER}))
    assert found.cluster is not None
    assert (found.interactive, found.cluster.server, found.cluster.ca_pem) == (True, CLUSTER["server"], CA)


def test_a_newer_client_may_say_more() -> None:
    """As client-go itself reads answers."""
    assert parse(info({"interactive": False, "new": 1}, status={}, new=1)).cluster is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("[]", "ExecCredential"),
        ('{"kind": "ExecCredential", "kind": "ExecCredential"}', "JSON"),
        ("[" * 100_000, "JSON"),
        ("x" * ((1 << 20) + 1), "longer"),
        (info(kind="Pod"), "ExecCredential"),
        (info(apiVersion="client.authentication.k8s.io/v1beta1"), "apiVersion"),
        (info([]), "interactive"),
        (info({}), "interactive"),
        (info({"interactive": "no"}), "interactive"),
        (info({"interactive": False, "cluster": []}), "spec.cluster"),
        (info({"interactive": False, "cluster": {**CLUSTER, "insecure-skip-tls-verify": True}}), "insecure"),
        (info({"interactive": False, "cluster": {**CLUSTER, "certificate-authority-data": "*"}}), "base64"),
        (
            info({"interactive": False, "cluster": {**CLUSTER, "certificate-authority-data": None}}),
            "authority",
        ),
        (info({"interactive": False, "cluster": {**CLUSTER, "server": "http://a"}}), "server"),
    ],
)
def test_what_cannot_be_answered(text: str, said: str) -> None:
    """Each in the one way, with the name of the variable."""
    with pytest.raises(ExecInfoRejected, match=said) as e:
        parse(text)
    assert "KUBERNETES_EXEC_INFO" in str(e.value)


def test_the_answer_is_what_client_go_takes() -> None:
    """ApiVersion as asked, kind, a status with certificate and key both, RFC 3339 without fraction; one line."""
    text = answer(b"cert\n", b"key\n", datetime(2026, 11, 21, 4, 5, 6, 7, tzinfo=UTC))
    assert "\n" not in text
    assert json.loads(text) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "expirationTimestamp": "2026-11-21T04:05:06Z",
            "clientCertificateData": "cert\n",
            "clientKeyData": "key\n",
        },
    }
