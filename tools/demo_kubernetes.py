"""`./dev run --kubernetes`: two machines become nodes of a real cluster, and a stranger with their token does not.

The API server and the controller manager are Kubernetes' own (tools/kubernetes.py), our controllers are the processes
that are shipped, each with a ServiceAccount and rights of its own. No kubelet runs: what it would use is made, and
the API is asked whom it takes the holder for.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.client import OperatorClient
from tools.kubernetes import CSRS, Cluster
from tools.stage import Failed, IdentityProvider, Machine, Service
from tools.stage_kubernetes import (
    KUBELET_SIGNER,
    OWN_SIGNER,
    Controllers,
    Kubelet,
    prepare_cluster,
    verdict,
)

NODES: Final = ("node-1", "node-2")
LABEL: Final = "node-restriction.kubernetes.io/itl-attested"
STRANGERS: Final = "node-3"


class Tells(Protocol):
    """The narrator of tools/demo.py."""

    def say(self, text: str = "") -> None:
        """Print a line as it is."""

    def step(self, title: str, why: str) -> None:
        """Open a step."""

    def fact(self, who: str, what: str, *, good: bool = True) -> None:
        """Print what happened to somebody."""

    def warn(self, text: str) -> None:
        """Print a warning."""


class Nodes:
    """The machines on their way into the cluster.

    Args:
        out: Tells what happens.
        service: Judges.
        cluster: Real.
        directory: Of the demo.
        free_port: Finds ports.
    """

    def __init__(
        self,
        out: Tells,
        service: Service,
        cluster: Cluster,
        directory: Path,
        free_port: Callable[[], int],
    ) -> None:
        self._out, self._service, self.cluster = out, service, cluster
        self._directory = directory
        self.client_cas = directory / "client-cas.pem"
        self._service_ca = directory / "node-ca.pem"
        self.controllers = Controllers(
            directory / "controllers", cluster, service.url, self._service_ca, free_port
        )

    def start_cluster(self) -> None:
        """Start the API, which is to believe two CAs of clients: the cluster's own and the service's."""
        self._out.step(
            "A Kubernetes API server and its controller manager are started",
            "The real programs. The API believes certificates of the cluster's own CA and of the attestation service. "
            "Machines get one bootstrap token, which anybody can copy: it may create certificate requests, no more. "
            "The approver that Kubernetes brings is off: it would approve whoever holds the token.",
        )
        own = httpx.get(f"{self._service.url}/pki/bundle", timeout=30, trust_env=False)
        own.raise_for_status()
        self._service_ca.write_bytes(own.content)
        self.client_cas.write_bytes(self.cluster.ca_file.read_bytes() + own.content)
        self.cluster.accept_clients_of(own.content)
        self.cluster.start()
        prepare_cluster(self.cluster)
        version = self.cluster.ask("/version")["gitVersion"]
        self._out.fact("API", f"Kubernetes {version} at {self.cluster.url}")

    def start_controllers(self) -> None:
        """Start ours, each with its own ServiceAccount."""
        self._out.step(
            "Three controllers of ours watch it, each with the rights of one duty",
            "The approver lets the service judge each request and approves or denies it. The signer puts "
            "certificates of the service's CA into approved ones. The third labels Nodes by what their machines are "
            "worth now. Each asks the service with a token of its ServiceAccount, which opens one route.",
        )
        self.controllers.install()
        # A demo decides for both signers; by default a request without evidence to Kubernetes' own is left alone.
        self.cluster.ask(
            "/apis/attestation.itl.io/v1alpha1/nodeattestations",
            {
                "apiVersion": "attestation.itl.io/v1alpha1",
                "kind": "NodeAttestation",
                "metadata": {"name": "cluster"},
                "spec": {
                    "signers": [
                        {"name": name, "onMissingEvidence": "deny"} for name in (KUBELET_SIGNER, OWN_SIGNER)
                    ]
                },
            },
        )
        self.controllers.start()
        for name in ("approver", "signer", "nodes"):
            self._out.fact(name, f"answers probes at {self.controllers.url(name)}")

    def join(self, resident: Machine, external: Machine) -> None:
        """Let both machines get their kubelet's certificate, each in one of the two ways."""
        self._out.step(
            "Two machines ask for a kubelet's certificate, and prove whose request it is",
            "Each makes a key, has its TPM certify it over the service's challenge and the request, quotes its boot "
            "state, and puts all of it behind the PKCS#10 request. The service compares; the approver says so.",
        )
        self._join(
            resident, "proxy", KUBELET_SIGNER, "key in the TPM; signed by Kubernetes' controller manager"
        )
        self._join(external, "bootstrap", OWN_SIGNER, "key in a file, certified by the TPM; signed by our CA")

    def _join(self, machine: Machine, way: str, signer: str, what: str) -> None:
        kubelet = self.kubelet(machine, signer)
        name = self._asked(kubelet, way, machine.name)
        condition, reason, message = self._decided(name)
        if condition != "Approved" or not (kubelet.directory / "node.pem").exists():
            raise Failed(
                f"{machine.name} was to become a node: {condition} {reason} {message}; see {kubelet.log}"
            )
        self._out.fact(machine.name, what)
        self._out.fact(machine.name, f"{name[:20]}… {condition}: {reason}. {message}")
        self._tell_certificate(machine, kubelet)

    def _tell_certificate(self, machine: Machine, kubelet: Kubelet) -> None:
        bundle = kubelet.directory / "node.pem"
        pem = bundle.read_bytes()
        certificate = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
        issuer = certificate.issuer.rfc4514_string()
        self._out.fact(
            machine.name,
            f"certificate by {issuer}, until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
        )
        if b"BEGIN TSS2 PRIVATE KEY" in pem:
            return
        who = self.cluster.who_is((bundle, bundle))
        self._out.fact(machine.name, f"the API takes its holder for {who.name}, in {', '.join(who.groups)}")
        self.cluster.ask("/api/v1/nodes", {"metadata": {"name": machine.name}}, certificate=(bundle, bundle))

    def strangers(self, honest: Machine) -> None:
        """Show what the token is worth without a TPM."""
        self._out.step(
            "A stranger has copied the bootstrap token",
            "It reads like any other: the API takes the stranger for one of the machines. It may also read what "
            "others have sent, so the evidence of an honest machine can be sent again.",
        )
        self._stranger("stranger", "plain request", self._request(STRANGERS))
        seen = next(
            base64.b64decode(csr["spec"]["request"])
            for csr in self.cluster.ask(CSRS, user="bootstrap")["items"]
            if csr["metadata"]["name"].startswith("node-csr-")
        )
        self._stranger("stranger", f"the request of {honest.name}, sent again", seen)
        evidence = seen.partition(b"-----END CERTIFICATE REQUEST-----\n")[2]
        self._stranger(
            "stranger", "its evidence behind the stranger's own key", self._request(honest.name) + evidence
        )

    def liar(self, machine: Machine, victim: Machine) -> None:
        """Show that a machine is the node that its operator said, and no other."""
        self._out.step(
            f"{machine.name} wants to be {victim.name}",
            "Its TPM is good and its evidence fresh. But who a machine is, its operator decided.",
        )
        name = self._asked(self.kubelet(machine, KUBELET_SIGNER, "liar"), "bootstrap", victim.name)
        self._tell_denied(machine.name, f"asks as {victim.name}", name)

    def lock(self, machine: Machine, alice: OperatorClient, machine_id: str) -> None:
        """Show what a lock does in the cluster, and what it does not."""
        self._out.step(
            f"{machine.name} is locked",
            "kube-apiserver reads no revocation list: a certificate is good until it ends, so it ends after a day "
            "at most. Within seconds the label goes that workloads are placed by, and no new certificate is given.",
        )
        bundle = self.kubelet(machine, OWN_SIGNER).directory / "node.pem"
        self._wait_for_label(machine, "true")
        self._out.fact(machine.name, f"its Node is labelled {LABEL}=true")
        alice.lock(machine_id, "demo")
        self._wait_for_label(machine, "false")
        self._out.fact(machine.name, f"locked by alice; its Node is labelled {LABEL}=false", good=False)
        who = self.cluster.who_is((bundle, bundle))
        self._out.warn(f"until its certificate ends, the API still takes its holder for {who.name}")

    def kubelet(self, machine: Machine, signer: str, directory: str = "kubelet") -> Kubelet:
        """Return what gets a certificate for a machine."""
        return Kubelet(machine, self.cluster, self._service.url, self.client_cas, signer, folder=directory)

    # ------------------------------------------------------------ parts

    def _asked(self, kubelet: Kubelet, way: str, name: str) -> str:
        """Run the agent once; return the name of the request that it made."""
        before = self._names()
        kubelet.run(way, self.cluster.kubeconfig("bootstrap"), name=name)
        made = self._names() - before
        if len(made) != 1:
            raise Failed(f"{kubelet.machine.name} made no request; see {kubelet.log}")
        return made.pop()

    def _names(self) -> set[str]:
        return {csr["metadata"]["name"] for csr in self.cluster.ask(CSRS)["items"]}

    def _decided(self, name: str) -> tuple[str, str, str]:
        return verdict(self.cluster.wait_for(CSRS, name, lambda csr: verdict(csr)[0] != ""))

    def _tell_denied(self, who: str, what: str, name: str) -> None:
        condition, reason, message = self._decided(name)
        if condition != "Denied":
            raise Failed(f"{who}, {what}: {condition} {reason}")
        self._out.fact(who, f"{what}: {condition}: {reason}. {message}", good=False)

    def _stranger(self, who: str, what: str, request: bytes) -> None:
        made = self.cluster.ask(
            CSRS,
            {
                "apiVersion": "certificates.k8s.io/v1",
                "kind": "CertificateSigningRequest",
                "metadata": {"generateName": "stranger-"},
                "spec": {
                    "request": base64.b64encode(request).decode("ascii"),
                    "signerName": KUBELET_SIGNER,
                    "usages": ["digital signature", "key encipherment", "client auth"],
                },
            },
            user="bootstrap",
        )
        self._tell_denied(who, what, made["metadata"]["name"])

    @staticmethod
    def _request(node: str) -> bytes:
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
            ]
        )
        made = x509.CertificateSigningRequestBuilder().subject_name(subject)
        signed = made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        return signed.public_bytes(Encoding.PEM)

    def _wait_for_label(self, machine: Machine, value: str) -> None:
        def is_labelled(node: Mapping[str, Any]) -> bool:
            return bool(node["metadata"].get("labels", {}).get(LABEL) == value)

        self.cluster.wait_for("/api/v1/nodes", machine.name, is_labelled)


def next_steps(
    out: Tells,
    service: Service,
    identity: IdentityProvider,
    nodes: Nodes,
    machines: Sequence[Machine],
    data: Path,
) -> None:
    """Say where everything is and what can be tried."""
    admin = shlex.quote(str(nodes.cluster.kubeconfig("admin")))
    bootstrap = shlex.quote(str(nodes.cluster.kubeconfig("bootstrap")))
    kubelet = shlex.quote(str(nodes.kubelet(machines[-1], OWN_SIGNER).directory / "kubelet.conf"))
    out.say()
    out.say(f"   Kubernetes     {nodes.cluster.url} (1.20: kubectl newer than 1.21 needs --validate=false)")
    out.say(f"   Service        {service.url}")
    out.say(f"   Operators      {identity.issuer}")
    out.say(f"   Files          {data}")
    out.say()
    out.say("   In another terminal, with a kubectl:")
    out.say()
    out.say(f"     kubectl --kubeconfig {admin} get csr")
    out.say(f"     kubectl --kubeconfig {admin} get events      # who was approved, who denied, and why")
    out.say(f"     kubectl --kubeconfig {admin} describe nodes")
    out.say(f"     kubectl --kubeconfig {bootstrap} auth can-i --list      # what a copied token is worth")
    out.say(f"     kubectl --kubeconfig {kubelet} get nodes      # as {machines[-1].name}")
    out.say(f"     tail -f {shlex.quote(str(nodes.controllers.log('approver')))}")
    out.say()
