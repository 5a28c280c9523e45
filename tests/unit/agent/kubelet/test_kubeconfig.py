"""The kubeconfig of a joining node: what is read, and what is refused by name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from attestation_agent.kubelet.kubeconfig import Cluster, KubeconfigRejected, load, parse, written

CA = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
CA_DATA = base64.b64encode(CA).decode("ascii")


def nobody(name: str) -> bytes:
    raise AssertionError(f"asked for {name}")


def config(**changed: Any) -> dict[str, Any]:
    """Return what kubeadm writes; *changed* are members of the cluster (c_), user (u_) or the top."""
    cluster: dict[str, Any] = {"server": "https://10.0.0.1:6443", "certificate-authority-data": CA_DATA}
    user: dict[str, Any] = {"token": "abcdef.0123456789abcdef"}
    top = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": cluster}],
        "contexts": [{"name": "boot", "context": {"cluster": "kubernetes", "user": "tls-bootstrap"}}],
        "current-context": "boot",
        "preferences": {},
        "users": [{"name": "tls-bootstrap", "user": user}],
    }
    for name, value in changed.items():
        where, _, member = name.partition("_")
        into = {"c": cluster, "u": user, "t": top}[where]
        if value is None:
            into.pop(member.replace("_", "-"), None)
        else:
            into[member.replace("_", "-")] = value
    return top


def read(**changed: Any) -> Any:
    return parse(json.dumps(config(**changed)).encode(), nobody)


def test_what_kubeadm_writes() -> None:
    """In YAML, as it stands in /etc/kubernetes/bootstrap-kubelet.conf."""
    found = parse(
        f"""\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {CA_DATA}
    server: https://10.0.0.1:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: tls-bootstrap-token-user
  name: tls-bootstrap-token-user@kubernetes
current-context: tls-bootstrap-token-user@kubernetes
kind: Config
preferences: {{}}
users:
- name: tls-bootstrap-token-user
  user:
    token: abcdef.0123456789abcdef
""".encode(),
        nobody,
    )
    assert found.cluster == Cluster(server="https://10.0.0.1:6443", ca_pem=CA)
    assert found.user.token == "abcdef.0123456789abcdef"
    assert "abcdef" not in repr(found)


def test_everything_that_a_node_needs(tmp_path: Path) -> None:
    """Files beside it, a token that is renewed in its file, another name, a proxy."""
    (tmp_path / "ca.pem").write_bytes(CA)
    (tmp_path / "token").write_bytes(b"newer\n")
    (tmp_path / "client.pem").write_bytes(b"certificate")
    wrote = config(
        c_certificate_authority_data=None,
        c_certificate_authority="ca.pem",
        c_tls_server_name="kubernetes.default.svc",
        c_proxy_url="http://proxy.example:3128",
        c_insecure_skip_tls_verify=False,
        u_tokenFile=str(tmp_path / "token"),
        u_client_certificate="client.pem",
        u_client_key_data=base64.b64encode(b"key").decode(),
    )
    (tmp_path / "conf").write_text(json.dumps(wrote))
    found = load(tmp_path / "conf")
    assert found.cluster == Cluster(
        server="https://10.0.0.1:6443",
        ca_pem=CA,
        tls_server_name="kubernetes.default.svc",
        proxy_url="http://proxy.example:3128",
    )
    assert (found.user.token, found.user.certificate_pem, found.user.key_pem) == (
        "newer", b"certificate", b"key",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"c_insecure_skip_tls_verify": True}, "insecure-skip-tls-verify"),
        ({"c_insecure_skip_tls_verify": "yes"}, "insecure-skip-tls-verify"),
        ({"c_server": "http://10.0.0.1:6443"}, "server"),
        ({"c_server": "https://user@10.0.0.1:6443"}, "server"),
        ({"c_server": "https://a.example/;evil"}, "server"),
        ({"c_server": "https://a.example:0"}, "server"),
        ({"c_server": "https://a.example:x"}, "server"),
        ({"c_server": "https://-a"}, "server"),
        ({"c_server": None}, "server"),
        ({"c_server": 5}, "server"),
        ({"c_server": "https://a.example/?x"}, "server"),
        ({"c_server": "https://a.example/#x"}, "server"),
        ({"c_server": "https://a.example/\u00e4"}, "server"),
        ({"c_certificate_authority_data": None}, "certificate-authority"),
        ({"c_certificate_authority_data": "AAAA"}, "certificate-authority"),
        ({"c_certificate_authority_data": "*"}, "base64"),
        ({"c_certificate_authority_data": 1}, "base64"),
        ({"c_tls_server_name": "a b"}, "tls-server-name"),
        ({"c_tls_server_name": 5}, "tls-server-name"),
        ({"c_proxy_url": 5}, "proxy-url"),
        ({"c_proxy_url": "socks5://proxy.example"}, "proxy-url"),
        ({"c_unknown": 1}, "unknown"),
        ({"u_exec": {"command": "sh"}}, "exec"),
        ({"u_auth_provider": {}}, "auth-provider"),
        ({"u_password": "canary-password"}, "password"),
        ({"u_as": "admin"}, "as"),
        ({"u_token": "two words"}, "token"),
        ({"u_token": 5}, "token"),
        ({"u_client_certificate_data": "AAAA"}, "without key"),
        ({"u_client_key_data": "AAAA"}, "without it"),
        ({"u_tokenFile": 5}, "tokenFile"),
        ({"t_kind": "Pod"}, "kind"),
        ({"t_apiVersion": "v2"}, "apiVersion"),
        ({"t_current_context": "other"}, "contexts"),
        ({"t_current_context": ""}, "current-context"),
        ({"t_clusters": {}}, "clusters"),
        ({"t_clusters": []}, "clusters"),
        ({"t_users": [{"name": "tls-bootstrap"}]}, "the user"),
        ({"t_users": [{"name": "tls-bootstrap", "user": {}}] * 2}, "users"),
        ({"t_whatever": 1}, "whatever"),
    ],
)
def test_what_a_node_must_not_follow(changed: dict[str, Any], said: str) -> None:
    """Each is refused, and the reason names the member and never a value."""
    with pytest.raises(KubeconfigRejected, match=said) as e:
        read(**changed)
    assert "canary" not in str(e.value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"a: [", b"a: 1\na: 2\n", b"- 1", b"? {a: 1}\n: 2", b"[" * 5000, b"x" * ((1 << 20) + 1),
        b"!!python/object/apply:os.system [id]", b"a: &x 1\nb: &x 2\n", b"--- 1\n--- 2\n",
    ],
)  # fmt: skip
def test_what_is_no_kubeconfig(data: bytes) -> None:
    """Refused in one way, whatever YAML makes of it."""
    with pytest.raises(KubeconfigRejected):
        parse(data, nobody)


def test_no_line_of_the_file_is_quoted() -> None:
    """The reason of a YAML error would otherwise show the token."""
    with pytest.raises(KubeconfigRejected) as e:
        parse(b"token: canary-5f1c\n  bad: [", nobody)
    assert "canary" not in str(e.value)
    assert "line" in str(e.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Its name is told."""
    with pytest.raises(KubeconfigRejected, match="absent"):
        load(tmp_path / "absent")
    (tmp_path / "conf").write_text(json.dumps(config(u_tokenFile="nowhere")))
    with pytest.raises(KubeconfigRejected, match="nowhere"):
        load(tmp_path / "conf")
    (tmp_path / "long").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(KubeconfigRejected, match="longer"):
        load(tmp_path / "long")


def test_what_we_write_we_read() -> None:
    """And so does kubelet: JSON is YAML."""
    cluster = Cluster(
        server="https://a.example", ca_pem=CA, tls_server_name="b.example", proxy_url="http://p.example:1"
    )
    data = written(cluster, {"client-certificate": "/c", "client-key": "/k"})
    found = parse(data, lambda name: name.encode())
    assert found.cluster == cluster
    assert (found.user.certificate_pem, found.user.key_pem) == (b"/c", b"/k")
