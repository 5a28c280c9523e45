"""The commands `kubelet …` against a Kubernetes API, ours and the real one: requests, certificates, the exec plugin.

Who decides stands in `kubelet_rig`. Here nothing is attested: what the evidence is, `tests/unit/agent/kubelet` says
with a software machine and `tests/integration/agent/test_kubelet_tpm.py` with a TPM.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from attestation.clock import parse_rfc3339
from attestation_agent.exits import Exit, NoNodeCertificate
from attestation_agent.kubelet import kubeconfig
from attestation_agent.kubelet.api import KubernetesAPI, KubernetesRefused
from attestation_agent.kubelet.commands import Node
from attestation_agent.kubelet.keys import subject_of
from attestation_agent.kubelet.settings import load
from tests.fixtures.kube import KubeAPI, kube, rest
from tests.integration.agent.kubelet_rig import (
    CSRS,
    ClientCA,
    Decider,
    cluster_ca,
    eventually,
    may_request,
)
from tests.unit.agent.world import Events

__all__ = ["kube"]

AGENT = Path(sys.executable).with_name("attestation-agent")
SECONDS = 120
_NUMBERS = itertools.count()


@dataclass(kw_only=True)
class Rig:
    """A node and its cluster."""

    kube: KubeAPI
    admin: httpx.Client
    decider: Decider
    ca: ClientCA
    directory: Path
    signer: str
    events: Events

    def flags(self, **more: str) -> dict[str, str]:
        """Settings, without attestation."""
        return {
            "attestation": "none",
            "bootstrap_kubeconfig": str(self.kube.kubeconfig("bootstrap")),
            "kubelet_dir": str(self.directory / "node"),
            "state_dir": str(self.directory / "state"),
            "node_name": "w-1",
            "signer_name": self.signer,
            "client_ca_file": str(self.directory / "ca.pem"),
            **more,
        }

    def node(self, command: str, *, waits: Any = None, **more: str) -> Node:
        """Return the node, as a command sees it."""

        def wait(seconds: float) -> bool:
            import time

            time.sleep(min(seconds, 0.05))
            return False

        chosen = load(command, self.flags(**more), {})
        return Node(chosen, log=self.events, wait=waits or wait)

    def environment(self, **more: str) -> dict[str, str]:
        """The same for a process."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        names = {
            "attestation": "ATTESTATION",
            "bootstrap_kubeconfig": "BOOTSTRAP_KUBECONFIG",
            "kubelet_dir": "DIR",
            "node_name": "NODE_NAME",
            "signer_name": "SIGNER_NAME",
            "client_ca_file": "CLIENT_CA_FILE",
        }
        ours = {f"ITL_KUBELET_{names[k]}": v for k, v in self.flags().items() if k in names}
        return outside | ours | {"ITL_STATE_DIR": str(self.directory / "state"), **more}


@pytest.fixture
def rig(kube: KubeAPI, tmp_path: Path) -> Iterator[Rig]:
    """A node whose requests are approved and signed."""
    ca = ClientCA()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    signer = f"attestation.itl.io/test-{os.getpid()}-{next(_NUMBERS)}"
    with rest(kube) as admin:
        may_request(admin, "test-kubelet-bootstrap", "system:bootstrappers")
        decider = Decider(admin, signer, ca)
        try:
            with decider.deciding():
                yield Rig(
                    kube=kube,
                    admin=admin,
                    decider=decider,
                    ca=ca,
                    directory=tmp_path,
                    signer=signer,
                    events=Events(),
                )
        finally:
            decider.remove()


def test_a_request_becomes_a_certificate(rig: Rig) -> None:
    """What the API server stamped and kept is what was asked for; files are there, a kubeconfig names them."""
    assert rig.node("bootstrap").bootstrap(stay=False) == Exit.OK
    (csr,) = rig.decider.seen.values()
    assert csr["spec"]["username"] == "system:bootstrap:abcdef"
    assert csr["spec"]["usages"] == ["digital signature", "key encipherment", "client auth"]
    pem = (rig.directory / "node" / "node.pem").read_bytes()
    leaf = x509.load_pem_x509_certificate(pem)
    assert leaf.subject == subject_of("w-1")
    found = kubeconfig.load(rig.directory / "node" / "kubelet.conf")
    bootstrap = kubeconfig.load(rig.kube.kubeconfig("bootstrap"))
    assert found.cluster == bootstrap.cluster
    assert found.user.certificate_pem == found.user.key_pem == pem
    assert "kubelet.without_evidence" in str(rig.events.entries)
    # Again: nothing is asked for.
    assert rig.node("bootstrap").bootstrap(stay=False) == Exit.OK
    assert len(rig.decider.seen) == 1


def test_a_denial_is_told(rig: Rig) -> None:
    """With the reason of the condition."""
    rig.decider.verdict = "Denied"
    with pytest.raises(NoNodeCertificate, match="denied: Tried: as the test says"):
        rig.node("bootstrap").bootstrap(stay=False)


def test_who_may_not_create_requests(rig: Rig) -> None:
    """403, in the words of the API server; nothing waits."""
    stranger = str(rig.kube.kubeconfig("stranger"))
    with pytest.raises(KubernetesRefused, match="403"):
        rig.node("bootstrap", bootstrap_kubeconfig=stranger).bootstrap(stay=False)


def test_who_is_not_known(rig: Rig) -> None:
    """401."""
    config = json.loads(json.dumps(_yaml(rig.kube.kubeconfig("bootstrap"))))
    config["users"][0]["user"] = {"token": "nobody"}
    (rig.directory / "nobody.conf").write_text(json.dumps(config))
    with pytest.raises(KubernetesRefused, match="401"):
        rig.node("bootstrap", bootstrap_kubeconfig=str(rig.directory / "nobody.conf")).bootstrap(stay=False)


def test_another_api_server_gets_no_token(rig: Rig) -> None:
    """Its certificate is from a CA that the kubeconfig does not name, or for another name: nothing is sent."""
    config = _yaml(rig.kube.kubeconfig("bootstrap"))
    for member, value in (
        ("certificate-authority-data", base64.b64encode(rig.ca.pem).decode()),
        ("tls-server-name", "elsewhere.example"),
    ):
        wrong = json.loads(json.dumps(config))
        wrong["clusters"][0]["cluster"].pop("certificate-authority", None)
        assert rig.kube.ca_file is not None
        ca = base64.b64encode(rig.kube.ca_file.read_bytes()).decode()
        wrong["clusters"][0]["cluster"] |= {"certificate-authority-data": ca, member: value}
        path = rig.directory / "wrong.conf"
        path.write_text(json.dumps(wrong))
        with pytest.raises(Exception, match=r"(?i)certificate"):
            rig.node("bootstrap", bootstrap_kubeconfig=str(path)).bootstrap(stay=False)
    assert rig.decider.seen == {}


def test_a_name_that_is_taken(rig: Rig) -> None:
    """By our own lost request: found again. By another one: refused, and not taken for ours."""
    found = kubeconfig.load(rig.kube.kubeconfig("bootstrap"))
    api = KubernetesAPI(found.cluster, found.user)
    name = f"node-csr-{os.urandom(20).hex()}"
    from tests.contract.test_kubernetes_csr import pkcs10

    spec = {
        "request": base64.b64encode(pkcs10()).decode(),
        "signerName": f"{rig.signer}-undecided",
        "usages": ["client auth"],
    }
    try:
        first = api.create(name, spec)
        again = api.create(name, spec)
        assert (again.request, again.verdict) == (first.request, None)
        other = {**spec, "request": base64.b64encode(pkcs10("system:node:other")).decode()}
        with pytest.raises(KubernetesRefused, match="409"):
            api.create(name, other)
        assert api.look(name) == first
        assert api.look(f"{name}0") is None
        with pytest.raises(KubernetesRefused, match="422"):
            api.create(f"{name}1", {**spec, "signerName": "nothing"})
    finally:
        api.close()
        rig.admin.delete(f"{CSRS}/{name}")


def test_the_exec_plugin_as_a_process(rig: Rig) -> None:
    """Only the ExecCredential on the standard output; the same certificate again; errors on the other, code not 0."""
    command = [str(AGENT), "kubelet", "credential"]
    info = json.dumps(
        {
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1",
            "spec": {"interactive": False},
        }
    )

    def ask(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=rig.environment(**environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    first, second = (ask(KUBERNETES_EXEC_INFO=info) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    status = json.loads(first.stdout)["status"]
    assert json.loads(second.stdout)["status"]["clientCertificateData"] == status["clientCertificateData"]
    leaf = x509.load_pem_x509_certificate(status["clientCertificateData"].encode())
    assert leaf.subject == subject_of("w-1")
    left = parse_rfc3339(status["expirationTimestamp"]) - rig.ca.now
    assert timedelta(minutes=55) < left <= timedelta(minutes=65)
    for environment in (
        {},
        {"KUBERNETES_EXEC_INFO": "{}"},
        {"KUBERNETES_EXEC_INFO": info, "ITL_KUBELET_DIR": "/proc/x"},
    ):
        failed = ask(**environment)
        assert failed.returncode != 0
        assert failed.stdout == ""
        assert failed.stderr.startswith("attestation-agent: ")
        assert len(failed.stderr.splitlines()) == 1


def test_kubectl_takes_what_the_plugin_gives(rig: Rig) -> None:
    """kubectl, which is client-go: it starts the plugin, and the API server knows the node by the certificate."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl here (Debian 13: kubernetes-client)")
    ca = cluster_ca(rig.kube)
    (rig.directory / "ca.pem").write_bytes(ca.pem)
    rig.decider.sign = lambda csr: ca.issue(csr.subject, csr.public_key())
    config = _yaml(rig.kube.kubeconfig("bootstrap"))
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(AGENT),
        "args": ["kubelet", "credential"],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    config["users"][0]["user"] = {"exec": exec_}
    path = rig.directory / "exec.conf"

    def get(what: str) -> subprocess.CompletedProcess[str]:
        path.write_text(json.dumps(config))
        return subprocess.run(
            [program, "--kubeconfig", str(path), "get", "--raw", what],
            env=rig.environment(HOME=str(rig.directory)), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    # A node may look at itself, which is not there yet, and at no Secret of others.
    assert "NotFound" in (done := get("/api/v1/nodes/w-1")).stderr, done.stderr
    refused = get("/api/v1/namespaces/kube-system/secrets/x").stderr
    assert "Forbidden" in refused
    assert "system:node:w-1" in refused
    assert len(rig.decider.seen) == 1
    server = config["clusters"][0]["cluster"]["server"]
    config["clusters"][0]["cluster"] = {"server": server, "insecure-skip-tls-verify": True}
    assert "insecure-skip-tls-verify" in (done := get("/api/v1/nodes/w-1")).stderr, done.stderr


def test_staying_renews_and_stops(rig: Rig) -> None:
    """With certificates of a few minutes each look is a renewal; a signal ends it with 0."""
    rig.decider.sign = lambda csr: rig.ca.issue(csr.subject, csr.public_key(), lifetime=timedelta(minutes=4))
    process = subprocess.Popen(
        [str(AGENT), "kubelet", "bootstrap", "--stay"],
        env=rig.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        eventually(lambda: (rig.directory / "node" / "kubelet.conf").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        process.stderr.close()


def _yaml(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(path.read_text())
