"""Nodes that join a cluster with their TPM: a real API server, the real service, controllers and agents, software TPMs.

Who brings a bootstrap token has no right but to create requests. What is approved is proven by the certificate: the
API takes its holder for that node. What is denied says why.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing import CertificateAuthority
from tests.fixtures.cluster import (
    BINDINGS,
    KUBELET_SIGNER,
    bind,
    csr_object,
    node_request,
    require_kubernetes,
)
from tests.fixtures.resource_manager import ResourceManager
from tests.fixtures.service import Operator, ServiceProcess
from tests.integration.agent.test_kubelet_proxy import Nginx
from tools.kubernetes import CSRS, Cluster
from tools.ports import free_port
from tools.stage import Machine
from tools.stage_kubernetes import (
    OWN_SIGNER,
    Controllers,
    Kubelet,
    clusters_setting,
    prepare_cluster,
    verdict,
)

pytestmark = [pytest.mark.kubeapi, pytest.mark.swtpm, pytest.mark.slow]

OK = 0
SIGNERS = pytest.mark.parametrize("signer", [KUBELET_SIGNER, OWN_SIGNER], ids=["in-tree", "own"])


@dataclass(kw_only=True)
class Site:
    """A cluster, the service that judges for it, its controllers and its machines."""

    directory: Path
    cluster: Cluster
    service: ServiceProcess
    operator: Operator
    controllers: Controllers
    vendor: CertificateAuthority
    client_cas: Path
    machines: list[Machine] = field(default_factory=list)

    def machine(self, name: str) -> Machine:
        """Return a machine that was admitted under this name, and attested."""
        machine = Machine(
            name=name,
            directory=self.directory / name,
            server_url=self.service.url,
            role="worker-app",
            number=len(self.machines) + 1,
        )
        machine.make(self.vendor)
        self.machines.append(machine)
        self.round(machine)
        self.operator.approve(self.id_of(machine), hostname=name)
        self.round(machine)
        assert self.operator.machine(self.id_of(machine))["status"] == "attested"
        return machine

    def round(self, machine: Machine) -> None:
        """Have the agent of a machine do one round."""
        machine.start_agent(once=True)
        machine.wait_for_agent()

    def id_of(self, machine: Machine) -> str:
        """Return the machine's id, as its agent keeps it."""
        kept = json.loads((machine.directory / "state/machine.json").read_text())
        return str(kept["machine_id"])

    def kubelet(self, machine: Machine, signer: str = KUBELET_SIGNER) -> Kubelet:
        """Return what gets a certificate for the machine's kubelet."""
        return Kubelet(machine, self.cluster, self.service.url, self.client_cas, signer)

    @property
    def bootstrap(self) -> Path:
        """The kubeconfig that every machine is given, and anybody can copy."""
        return self.cluster.kubeconfig("bootstrap")

    def requests(self) -> dict[str, Any]:
        """Return all requests by name."""
        return {each["metadata"]["name"]: each for each in self.cluster.ask(CSRS)["items"]}

    def result_of(self, message: str) -> str:
        """Return the id of the result that a message names."""
        found = re.search(r"[0-9a-f]{32}", message)
        assert found is not None, message
        return found[0]

    def decided(self, name: str) -> tuple[str, str, str]:
        """Wait until a request is decided; return condition, reason and message."""
        return verdict(self.cluster.wait_for(CSRS, name, lambda csr: verdict(csr)[0] != ""))


def node_authority(service: ServiceProcess) -> bytes:
    """Return the CA certificates by which the service signs for nodes, PEM."""
    answer = httpx.get(f"{service.url}/pki/bundle", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.content


def pin_pcrs(site: Site, machine: Machine) -> None:
    """Expect of the machine the boot loader that it measured (tools/stage.py), and have it attest to that."""
    loader = hashlib.sha256(bytes(32) + hashlib.sha256(b"demo boot loader 1.0").digest())
    policy = {
        "format": "itl-policy/2",
        "name": f"pinned-{machine.name}",
        "version": 1,
        "tpm": {"bank": "sha256", "pcrs": {"4": {"any_of": [loader.hexdigest()]}}},
    }
    site.operator.call("POST", "/policies", json=policy)
    site.operator.call(
        "PUT", f"/policies/assignments/machine/{site.id_of(machine)}", json={"policy": f"{policy['name']}@1"}
    )
    site.round(machine)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start all of it, in the order of docs/kubernetes: the service first, whose CA the API server is to know."""
    require_kubernetes()
    directory = tmp_path_factory.mktemp("site")
    cluster = Cluster(directory / "cluster", free_port)
    service = ServiceProcess(
        directory=directory / "service",
        environment={
            "ITL_KUBERNETES_CLUSTERS": clusters_setting(cluster),
            "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
        },
    )
    machines: list[Machine] = []
    controllers = None
    try:
        service.start()
        operator = service.operator()
        own = node_authority(service)
        cluster.accept_clients_of(own)
        client_cas = directory / "client-cas.pem"
        client_cas.write_bytes(cluster.ca_file.read_bytes() + own)
        cluster.start()
        prepare_cluster(cluster)
        service_ca = directory / "service-ca.pem"
        service_ca.write_bytes(own)
        controllers = Controllers(directory / "controllers", cluster, service.url, service_ca, free_port)
        controllers.install()
        controllers.start()
        yield Site(
            directory=directory,
            cluster=cluster,
            service=service,
            operator=operator,
            controllers=controllers,
            vendor=CertificateAuthority("Site TPM Manufacturer"),
            client_cas=client_cas,
            machines=machines,
        )
        operator.http.close()
    finally:
        for machine in machines:
            machine.stop()
        if controllers is not None:
            controllers.stop()
        cluster.stop()
        service.kill()


@SIGNERS
def test_a_machine_becomes_the_node_that_it_is(site: Site, signer: str) -> None:
    """A bootstrap token and a TPM: Approved, signed by either signer, and the API takes it for that node."""
    machine = site.machine(f"external-{len(site.machines)}")
    kubelet = site.kubelet(machine, signer)
    before = site.requests()
    assert kubelet.run("bootstrap", site.bootstrap) == OK, kubelet.log.read_text()
    (name,) = site.requests().keys() - before.keys()
    condition, reason, message = site.decided(name)
    assert (condition, reason) == ("Approved", "TpmAttested")
    assert 1 <= len(message) <= 1024
    bundle = kubelet.directory / "node.pem"
    who = site.cluster.who_is((bundle, bundle))
    assert who.name == f"system:node:{machine.name}"
    assert "system:nodes" in who.groups


@pytest.mark.nginx
def test_the_key_of_a_node_stays_in_its_tpm(site: Site, tmp_path: Path) -> None:
    """The way of hosts with nginx: a resident key, which the tier tells; through nginx the API sees that node."""
    machine = site.machine(f"resident-{len(site.machines)}")
    kubelet = site.kubelet(machine)
    before = site.requests()
    port = free_port()
    assert kubelet.run("proxy", site.bootstrap, "--listen", f"127.0.0.1:{port}") == OK, (
        kubelet.log.read_text()
    )
    (name,) = site.requests().keys() - before.keys()
    condition, reason, message = site.decided(name)
    assert (condition, reason) == ("Approved", "TpmAttested")
    assert "tier resident+quote" in message
    bundle = (kubelet.directory / "node.pem").read_bytes()
    assert b"PRIVATE KEY" not in bundle.replace(b"TSS2 PRIVATE KEY", b"")
    with ResourceManager(machine.tpm.uri, tmp_path / "rm") as manager:
        nginx = Nginx(kubelet.directory, manager, port)
        try:
            local = kubelet.directory / "local.pem"
            who = site.cluster.through(f"https://127.0.0.1:{port}", local).who_is((local, local))
        finally:
            nginx.stop()
    assert who.name == f"system:node:{machine.name}"
    assert "system:nodes" in who.groups


def asks(site: Site, name: str, request: bytes, signer: str = OWN_SIGNER) -> tuple[str, str, str]:
    """Have somebody with a copied bootstrap token make a request, and return what becomes of it."""
    site.cluster.ask(CSRS, csr_object(name, request, signer), user="bootstrap")
    return site.decided(name)


def waiting_request(site: Site, machine: Machine, *, name: str = "", signer: str = KUBELET_SIGNER) -> str:
    """Have a machine make a request that nobody decides yet; return its name. The approver is to be started again."""
    site.controllers.stop_one("approver")
    before = site.requests()
    kubelet = site.kubelet(machine, signer)
    assert kubelet.run("bootstrap", site.bootstrap, "--wait-seconds", "0", name=name) != OK
    (made,) = site.requests().keys() - before.keys()
    assert verdict(site.requests()[made]) == ("", "", "")
    return made


def test_a_copied_token_is_not_enough(site: Site) -> None:
    """A stranger with the token and no TPM of ours is denied, by name of what is missing; an Event tells of it."""
    condition, reason, message = asks(site, "stranger-plain", node_request("external-0"))
    assert (condition, reason) == ("Denied", "EvidenceMissing")
    assert 1 <= len(message) <= 1024

    def told() -> bool:
        events = site.cluster.ask("/apis/events.k8s.io/v1/events")["items"]
        return ("stranger-plain", "EvidenceMissing") in {
            (each["regarding"].get("name"), each["reason"]) for each in events
        }

    site.cluster.eventually(told)


def test_what_was_seen_on_the_api_is_of_no_use(site: Site) -> None:
    """Whoever holds the token reads the requests of others: sent again, they are stale; with another key, too."""
    machine = site.machine(f"copied-{len(site.machines)}")
    before = site.requests()
    assert site.kubelet(machine, OWN_SIGNER).run("bootstrap", site.bootstrap) == OK
    (name,) = site.requests().keys() - before.keys()
    seen = base64.b64decode(site.requests()[name]["spec"]["request"])
    assert asks(site, "stranger-replay", seen)[:2] == ("Denied", "EvidenceStale")
    evidence = seen.partition(b"-----END CERTIFICATE REQUEST-----\n")[2]
    grafted = node_request(machine.name) + evidence
    assert asks(site, "stranger-graft", grafted)[:2] == ("Denied", "EvidenceStale")


def test_a_machine_is_no_other_node(site: Site) -> None:
    """The name is the operator's to give: a request for another one is denied, with evidence that is good."""
    machine = site.machine(f"liar-{len(site.machines)}")
    before = site.requests()
    kubelet = site.kubelet(machine)
    assert kubelet.run("bootstrap", site.bootstrap, name="external-0") != OK
    (name,) = site.requests().keys() - before.keys()
    assert site.decided(name)[:2] == ("Denied", "SubjectInvalid")
    assert "SubjectInvalid" in kubelet.log.read_text()


def test_a_machine_that_is_revoked_while_it_waits_is_no_node(site: Site) -> None:
    """What counts is what the machine is when it is decided."""
    machine = site.machine(f"revoked-{len(site.machines)}")
    name = waiting_request(site, machine)
    site.operator.act(site.id_of(machine), "revoke", reason="lost")
    site.controllers.start("approver")
    assert site.decided(name)[:2] == ("Denied", "MachineNotAdmitted")


def test_a_machine_that_booted_something_else_is_no_node(site: Site) -> None:
    """PCRs that the machine's policy fixes are compared in the quote of the request."""
    machine = site.machine(f"changed-{len(site.machines)}")
    pin_pcrs(site, machine)
    machine.tpm.measure(4, b"another boot loader")
    before = site.requests()
    assert site.kubelet(machine).run("bootstrap", site.bootstrap) != OK
    (name,) = site.requests().keys() - before.keys()
    condition, reason, message = site.decided(name)
    assert (condition, reason) == ("Denied", "PolicyFailed")
    assert "4" not in message.replace(site.result_of(message), "")


def test_trust_is_a_label_that_goes(site: Site) -> None:
    """A Node of a machine that is trusted has the label; a lock takes it, within seconds, and its certificate stays.

    kube-apiserver reads no revocation list: what the holder can do until the certificate ends is what it can do.
    """
    machine = site.machine(f"labelled-{len(site.machines)}")
    kubelet = site.kubelet(machine)
    assert kubelet.run("bootstrap", site.bootstrap) == OK
    bundle = kubelet.directory / "node.pem"
    node = {"metadata": {"name": machine.name}}
    site.cluster.ask("/api/v1/nodes", node, certificate=(bundle, bundle))
    label = "node-restriction.kubernetes.io/itl-attested"

    def labelled(value: str) -> Callable[[Any], bool]:
        return lambda seen: seen["metadata"].get("labels", {}).get(label) == value

    site.cluster.wait_for("/api/v1/nodes", machine.name, labelled("true"))
    site.operator.act(site.id_of(machine), "lock", reason="a test")
    site.cluster.wait_for("/api/v1/nodes", machine.name, labelled("false"))
    assert site.cluster.who_is((bundle, bundle)).name == f"system:node:{machine.name}"


def readiness(site: Site, name: str) -> tuple[int, dict[str, Any]]:
    """Return what a controller says of whether it is ready."""
    answer = httpx.get(f"{site.controllers.url(name)}/readyz", timeout=60)
    return answer.status_code, answer.json()["facts"]


def test_what_would_approve_without_evidence_keeps_the_approver_unready(site: Site) -> None:
    """The binding of every guide to kubeadm: found at the start, told, and gone the approver is ready."""
    kind = "/apis/attestation.itl.io/v1alpha1/nodeattestations"
    site.cluster.ask(
        kind,
        {
            "apiVersion": "attestation.itl.io/v1alpha1",
            "kind": "NodeAttestation",
            "metadata": {"name": "cluster"},
            "spec": {},
        },
    )
    role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    site.controllers.stop_one("approver")
    bind(site.cluster, "kubeadm:node-autoapprove-bootstrap", role, "system:bootstrappers")
    try:
        site.controllers.start("approver")
        site.cluster.eventually(lambda: "in-tree-approver" in readiness(site, "approver")[1])
        status, facts = readiness(site, "approver")
        assert status == 503
        assert "kubeadm:node-autoapprove-bootstrap" in facts["in-tree-approver"]["said"]
        told = site.cluster.wait_for(kind, "cluster", lambda seen: active(seen) == "True")
        assert told["status"]["conditions"]
    finally:
        site.cluster.ask(f"{BINDINGS}/kubeadm:node-autoapprove-bootstrap", method="DELETE")
        site.controllers.stop_one("approver")
        site.controllers.start("approver")
    site.cluster.eventually(lambda: readiness(site, "approver")[0] == 200)
    site.cluster.wait_for(kind, "cluster", lambda seen: active(seen) == "False")
    site.cluster.ask(f"{kind}/cluster", method="DELETE")


def active(node_attestation: Any) -> str:
    """Return the condition that tells of the in-tree approver."""
    conditions = node_attestation.get("status", {}).get("conditions") or []
    return next((each["status"] for each in conditions if each["type"] == "InTreeApproverActive"), "")


def test_without_the_service_nothing_is_decided(site: Site) -> None:
    """Neither approved nor denied, and nobody is unready for it; once the service is back it decides."""
    site.service.stop()
    try:
        site.cluster.ask(
            CSRS, csr_object("stranger-early", node_request("external-0"), OWN_SIGNER), user="bootstrap"
        )
        site.cluster.eventually(
            lambda: "stranger-early" in site.controllers.log("approver").read_text(encoding="utf-8")
        )
        assert readiness(site, "approver")[0] == 200
        assert verdict(site.requests()["stranger-early"]) == ("", "", "")
    finally:
        site.service.start()
    assert site.decided("stranger-early")[:2] == ("Denied", "EvidenceMissing")
