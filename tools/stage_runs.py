"""The parts of a cluster whose nodes are asked for evidence: the controller of runs, and an agent on each node.

Each is the program that is shipped, with the rights that the chart gives it. Kubernetes 1.20 writes into no token which
node its pod is on (it does from 1.32 on): here that is added, and signed by the key of this cluster.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tools.kubernetes import Cluster
from tools.stage import BIN, Failed
from tools.stage_kubernetes import NAMESPACE, install_kinds, publish_token_keys, role_rule
from tools.stage_programs import Account, Programs, own_lease_rules

GROUP: Final = "security.ugallu.io"
AGENTS: Final = "ugallu-system-privileged"
"""The namespace of the agents, which run as root."""
CONTROLLER: Final = "attestation-runs"
AGENT: Final = "attestation-agent"
RUNS: Final = "confidentialattestationruns"
RESULTS: Final = "confidentialattestationresults"
RUN_SECONDS: Final = 180
"""A run lasts 2 minutes at most where it says nothing else; then it is sealed."""
ENDED: Final = ("Succeeded", "Failed")

CONTROLLER_RULES: Final = (
    role_rule(GROUP, [RUNS], "get list watch create delete"),
    role_rule(GROUP, [f"{RUNS}/status"], "get update patch"),
    role_rule(GROUP, [RESULTS, f"{RESULTS}/status"], "get list watch create update patch delete"),
    role_rule(GROUP, ["attestationpolicies", "attestationschedules"], "get list watch"),
    role_rule(GROUP, ["attestationpolicies/status", "attestationschedules/status"], "update patch"),
    role_rule(GROUP, ["securityevents", "attestationbundles"], "get list watch create"),
    role_rule(GROUP, ["securityevents/status", "attestationbundles/status"], "update patch"),
    role_rule("", ["nodes"], "get list watch patch"),
    role_rule("events.k8s.io", ["events"], "create"),
)
"""What the controller may do in the cluster, where runs act on Nodes (CONFIDENTIAL §4)."""
AGENT_RULES: Final = (role_rule(GROUP, [RUNS], "get list watch"),)
LEASE_RULES: Final = own_lease_rules("runs")
"""What it may do to its Lease."""
CONTROLLER_ACCOUNT: Final = Account(
    namespace=NAMESPACE, name=CONTROLLER, rules=CONTROLLER_RULES, own_rules=LEASE_RULES
)
AGENT_ACCOUNT: Final = Account(namespace=AGENTS, name=AGENT, rules=AGENT_RULES)
SERVICE_ACCOUNTS: Final = {
    "attestation-runs": [f"{NAMESPACE}:{CONTROLLER}"],
    "attestation-run-agent": [f"{AGENTS}:{AGENT}"],
}
"""What each is to the service."""


def with_node(cluster: Cluster, token: str, node: Mapping[str, str]) -> str:
    """Return *token* of a ServiceAccount with the node of its pod, {name, uid}, as Kubernetes 1.32 writes it."""
    head, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    claims["kubernetes.io"]["node"] = dict(node)
    key = load_pem_private_key((cluster.folder / "sa.key").read_bytes(), None)
    assert isinstance(key, RSAPrivateKey)
    signed = f"{head}.{_base64url(json.dumps(claims).encode())}"
    signature = key.sign(signed.encode("ascii"), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


class Runs(Programs):
    """The controller and the agents, as processes."""

    def install(self) -> None:
        """Make the namespaces, the kinds, and for both programs a ServiceAccount with its rights."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        install_kinds(self.cluster)
        publish_token_keys(self.cluster)
        for account in (CONTROLLER_ACCOUNT, AGENT_ACCOUNT):
            self.add_account(account)

    def add_node(self, name: str) -> dict[str, str]:
        """Make a Node, whose kubelet never runs; return its name and UID."""
        made = self.cluster.ask("/api/v1/nodes", {"metadata": {"name": name}})["metadata"]
        return {"name": made["name"], "uid": made["uid"]}

    def start_controller(self, *flags: str) -> None:
        """Start the controller, and wait until it answers."""
        settings = self.pod(CONTROLLER_ACCOUNT)
        settings |= {"CLUSTER_ID": "default", "NAMESPACE": NAMESPACE, "IDENTITY": settings.pop("POD")}
        self.start("runs", [str(BIN / "attestation-operator"), "runs", *flags], settings)

    def start_agent(self, node: Mapping[str, str], *flags: str, command: Sequence[str] = ()) -> None:
        """Start the agent of a node, or what *command* makes of it, and wait until it answers."""
        settings = self.pod(
            AGENT_ACCOUNT,
            node=node["name"],
            service_token=lambda token: with_node(self.cluster, token, node),
        )
        settings |= {"NODE_NAME": node["name"]}
        settings.pop("POD")
        program = command or (str(BIN / "attestation-operator"), "agent")
        self.start(f"agent-{node['name']}", [*program, *flags], settings)

    # ------------------------------------------------------------ objects

    def create(self, kind: str, plural: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object of ours in the namespace of the controller."""
        body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        made: dict[str, Any] = self.cluster.ask(self.place(plural), body)
        return made

    @staticmethod
    def place(plural: str) -> str:
        """Return the path of a kind of ours."""
        return f"/apis/{GROUP}/v1alpha1/namespaces/{NAMESPACE}/{plural}"

    def ended_run(self, name: str) -> dict[str, Any]:
        """Return a run as soon as it has ended, and all of it is written.

        Raises:
            Failed: It did not in time.
        """

        def told(run: Mapping[str, Any]) -> bool:
            status = run.get("status") or {}
            written = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
            return status.get("phase") in ENDED and {"EventsEmitted", "Sealed"} <= written

        try:
            return dict(self.cluster.wait_for(self.place(RUNS), name, told, seconds=RUN_SECONDS))
        except TimeoutError as e:
            raise Failed(f"run {name}: {e}; see {self.log('runs')}") from e

    def result(self, name: str) -> dict[str, Any]:
        """Return the Result of a run."""
        return dict(self.cluster.ask(f"{self.place(RESULTS)}/{name}-result"))

    def cluster_wide(self, plural: str) -> list[dict[str, Any]]:
        """Return all objects of a kind of ours that is in no namespace."""
        return list(self.cluster.ask(f"/apis/{GROUP}/v1alpha1/{plural}")["items"])


def short(digest: str) -> str:
    """Return the beginning of a digest, for people."""
    return f"{digest[:24]}…" if len(digest) > 24 else digest
