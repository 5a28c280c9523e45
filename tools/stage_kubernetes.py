"""The parts of a cluster whose nodes prove themselves: our controllers as processes, and what they may do there.

The API is the real one (tools/kubernetes.py), the service and the agents are those of tools/stage.py. Each controller
runs as a ServiceAccount of its own, with the rights that the chart gives it and no more, as it would in a pod.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.kubernetes import Cluster, User
from tools.stage import BIN, Failed, Machine, Process, environment, wait_for

NAMESPACE: Final = "attestation"
AUDIENCE: Final = "itl-attestation"
TOKEN_SECONDS: Final = 12 * 3600
KUBELET_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
OWN_SIGNER: Final = "attestation.itl.io/node-client"
SIGNERS: Final = (KUBELET_SIGNER, OWN_SIGNER)
AGENT_SECONDS: Final = 120.0

CERTIFICATES: Final = "certificates.k8s.io"
KIND: Final = "attestation.itl.io"


def role_rule(group: str, resources: Sequence[str], verbs: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a rule of a role; *verbs* with spaces between."""
    found = {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}
    return {**found, "resourceNames": list(names)} if names else found


_KINDS: Final = role_rule(KIND, ["nodeattestations"], "get list watch")
_STATUS: Final = role_rule(KIND, ["nodeattestations/status"], "patch")
_REQUESTS: Final = role_rule(CERTIFICATES, ["certificatesigningrequests"], "get list watch")
_NODES: Final = role_rule("", ["nodes"], "get list watch")
DUTIES: Final[Mapping[str, Sequence[dict[str, Any]]]] = {
    "approver": (
        *(_KINDS, _STATUS, _REQUESTS, _NODES),
        role_rule(CERTIFICATES, ["certificatesigningrequests/approval"], "update"),
        role_rule(CERTIFICATES, ["signers"], "approve", SIGNERS),
        role_rule("rbac.authorization.k8s.io", ["clusterrolebindings"], "list"),
        role_rule("authorization.k8s.io", ["subjectaccessreviews"], "create"),
    ),
    "signer": (
        *(_KINDS, _REQUESTS, _NODES),
        role_rule(CERTIFICATES, ["certificatesigningrequests/status"], "patch"),
        role_rule(CERTIFICATES, ["signers"], "sign", [OWN_SIGNER]),
    ),
    "nodes": (_KINDS, _NODES, role_rule("", ["nodes"], "patch")),
}
"""What each controller may do in the cluster (HSM-AND-KUBERNETES §22); a test compares it with the chart."""

EVENTS: Final = (role_rule("events.k8s.io", ["events"], "create"),)
"""And in the namespace `default`, where Events about objects without a namespace are."""


def lease_rules(name: str) -> tuple[dict[str, Any], ...]:
    """Return what a controller may do in its own namespace: nobody can be let create a Lease of a certain name."""
    leases = "coordination.k8s.io", ["leases"]
    return role_rule(*leases, "create"), role_rule(*leases, "get update", [f"attestation-operator-{name}"])


SERVICE_DUTIES: Final = {
    "approver": "attestation-approver",
    "signer": "attestation-signer",
    "nodes": "attestation-controller",
}
"""What each is to the service."""


def clusters_setting(cluster: Cluster, **more: object) -> str:
    """Return ITL_KUBERNETES_CLUSTERS for *cluster*, with *more* of its rule."""
    rule = {
        "cluster_id": "default",
        "issuer": cluster.issuer,
        "jwks_url": f"{cluster.url}/openid/v1/jwks",
        "ca_file": str(cluster.ca_file),
        "service_accounts": {
            duty: [f"{NAMESPACE}:attestation-{name}"] for name, duty in SERVICE_DUTIES.items()
        },
        "key_modes": ["tpm-resident", "certified-external"],
        **more,
    }
    return json.dumps([rule])


def bind(cluster: Cluster, name: str, role: str, subject: Mapping[str, str], namespace: str = "") -> None:
    """Give *subject* a role: a Role of *namespace* there, else a ClusterRole everywhere."""
    scope = f"namespaces/{namespace}/rolebindings" if namespace else "clusterrolebindings"
    cluster.ask(
        f"/apis/rbac.authorization.k8s.io/v1/{scope}",
        {
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role" if namespace else "ClusterRole",
                "name": role,
            },
            "subjects": [dict(subject)],
        },
    )


def group(name: str) -> dict[str, str]:
    """Return a group as the subject of a binding."""
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}


def prepare_cluster(cluster: Cluster) -> None:
    """Give bootstrap tokens the right to create requests, and anybody the keys that sign tokens; nothing more."""
    bind(cluster, "bootstrappers", "system:node-bootstrapper", group("system:bootstrappers"))
    publish_token_keys(cluster)


def publish_token_keys(cluster: Cluster) -> None:
    """Let anybody read the keys that sign tokens: the service does, over TLS, as whoever checks such a token."""
    bind(cluster, "token-keys", "system:service-account-issuer-discovery", group("system:unauthenticated"))


@dataclass
class Controllers:
    """The controllers, as processes.

    Args:
        directory: Their tokens and logs.
        cluster: Where they work.
        service_url: Of the service that judges.
        service_ca: File with the CA of certificates for nodes.
        free_port: Finds ports.
    """

    directory: Path
    cluster: Cluster
    service_url: str
    service_ca: Path
    free_port: Callable[[], int]
    _processes: dict[str, Process] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    def install(self) -> None:
        """Make the namespace, the kinds, and for each controller a ServiceAccount with its rights."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ask = self.cluster.ask
        ask("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        install_kinds(self.cluster)
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        ask(f"{rbac}/namespaces/default/roles", {"metadata": {"name": "attestation-events"}, "rules": EVENTS})
        for name, rules in DUTIES.items():
            account = f"attestation-{name}"
            subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
            ask(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": account}})
            ask(f"{rbac}/clusterroles", {"metadata": {"name": account}, "rules": rules})
            roles = f"{rbac}/namespaces/{NAMESPACE}/roles"
            ask(roles, {"metadata": {"name": account}, "rules": lease_rules(name)})
            bind(self.cluster, account, account, subject)
            bind(self.cluster, account, account, subject, NAMESPACE)
            bind(self.cluster, account, "attestation-events", subject, "default")

    def start(self, *names: str) -> None:
        """Start controllers, all of them where none is named, and wait until they answer.

        Raises:
            Failed: One ended, or does not answer in time.
        """
        for name in names or tuple(DUTIES):
            self._processes[name] = self._process(name)
            self._processes[name].start()
        for name in names or tuple(DUTIES):
            wait_for(f"{self.url(name)}/healthz", self._processes[name], f"the {name}")

    def url(self, name: str) -> str:
        """Return where a controller answers probes."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def log(self, name: str) -> Path:
        """Return what a controller logs."""
        return self.directory / f"{name}.log"

    @property
    def ended(self) -> str | None:
        """The name of one that has ended, None while all of them run."""
        return next((name for name, process in self._processes.items() if not process.running), None)

    def stop_one(self, name: str) -> None:
        """Stop one of them."""
        self._processes.pop(name).stop()

    def stop(self) -> None:
        """Stop all of them."""
        for process in self._processes.values():
            process.ask_to_stop()
        for process in self._processes.values():
            process.stop()
        self._processes.clear()

    def _process(self, name: str) -> Process:
        """Make a pod that will never run, so that its tokens are bound to one; be its container."""
        account = f"attestation-{name}"
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pod = self.cluster.ask(
            pods,
            {
                "metadata": {"generateName": f"{account}-"},
                "spec": {
                    "serviceAccountName": account,
                    "containers": [{"name": "controller", "image": "none"}],
                },
            },
        )["metadata"]
        bound = {"name": pod["name"], "uid": pod["uid"]}
        for_api, for_service = (
            self.cluster.service_account_token(NAMESPACE, account, audience, pod=bound, seconds=TOKEN_SECONDS)
            for audience in (self.cluster.issuer, AUDIENCE)
        )
        token = self.directory / f"{name}.token"
        token.touch(mode=0o600)
        token.write_text(for_service, encoding="ascii")
        self._ports[name] = self.free_port()
        settings = {
            "SERVICE_URL": self.service_url,
            "TOKEN_FILE": str(token),
            "KUBECONFIG": str(self.cluster.kubeconfig_of(account, {"token": for_api})),
            "NAMESPACE": NAMESPACE,
            "IDENTITY": pod["name"],
            "LISTEN_PORT": str(self._ports[name]),
            "LOG_FORMAT": "json",
            **({"NODE_CA_FILE": str(self.service_ca)} if name == "signer" else {}),
        }
        variables = {f"ITL_OPERATOR_{key}": value for key, value in settings.items()}
        command = [str(BIN / "attestation-operator"), name]
        return Process(command, self.log(name), environment(**variables), self.directory)


def install_kinds(cluster: Cluster) -> None:
    """Install the kinds of objects that `attestation-operator crds` prints."""
    from ruamel.yaml import YAML

    said = subprocess.run(
        [BIN / "attestation-operator", "crds"], check=True, capture_output=True, timeout=60
    ).stdout
    for kind in YAML(typ="safe").load_all(said):
        install_kind(cluster, kind)


def install_kind(cluster: Cluster, definition: Mapping[str, Any]) -> None:
    """Install a kind of objects, and wait until it is served."""
    collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.ask(collection, definition)
    cluster.wait_for(collection, definition["metadata"]["name"], _is_served)


def _is_served(kind: Mapping[str, Any]) -> bool:
    conditions = kind.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@dataclass
class Kubelet:
    """What gets a certificate for the kubelet of a machine, and where it is then.

    Args:
        machine: Whose.
        cluster: Where it shall be a node.
        service_url: Of the service that gives challenges.
        client_cas: File with the CAs that sign certificates of nodes.
        signer: Who shall sign.
        folder: Where its files are, in that of the machine.
    """

    machine: Machine
    cluster: Cluster
    service_url: str
    client_cas: Path
    signer: str = KUBELET_SIGNER
    folder: str = "kubelet"

    @property
    def directory(self) -> Path:
        """Its files."""
        return self.machine.directory / self.folder

    @property
    def log(self) -> Path:
        """What it logged."""
        return self.machine.directory / "kubelet.log"

    def run(self, way: str, bootstrap: Path, *arguments: str, name: str = "") -> int:
        """Run `attestation-agent kubelet WAY` once, with a bootstrap kubeconfig, and return its exit code."""
        process = Process(
            [
                *(str(BIN / "attestation-agent"), "kubelet", way),
                *("--bootstrap-kubeconfig", str(bootstrap), "--kubelet-dir", str(self.directory)),
                *("--node-name", name or self.machine.name, "--signer-name", self.signer),
                *("--client-ca-file", str(self.client_cas), "--server-url", self.service_url),
                *("--tpm", self.machine.tpm.uri, "--state-dir", str(self.machine.directory / "state")),
                *("--event-log", str(self.machine.directory / "none"), *arguments),
            ],
            self.log,
            environment(),
            self.machine.directory,
        )
        process.start()
        try:
            return process.wait(AGENT_SECONDS)
        except subprocess.TimeoutExpired:
            process.stop()
            raise Failed(f"{self.machine.name} waits for a certificate in vain; see {self.log}") from None


def verdict(csr: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return type, reason and message of the condition that decided a request; empty where none did."""
    for condition in csr["status"].get("conditions", []):
        return condition["type"], condition["reason"], condition.get("message", "")
    return "", "", ""


STRANGER: Final = {"stranger": User(name="system:bootstrap:abcdef", groups=("system:bootstrappers",))}
"""Whoever has copied the token of the machines: the API takes him for one of them."""
