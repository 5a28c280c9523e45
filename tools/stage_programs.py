"""Programs of ours beside a real Kubernetes API: each a process that has the token and the rights of a pod.

The pods are objects that never run: tokens are bound to them, as the kubelet would have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.kubernetes import Cluster
from tools.stage import Process, environment, wait_for
from tools.stage_kubernetes import AUDIENCE, TOKEN_SECONDS, bind, lease_rules

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A ServiceAccount of a program, and what it may do.

    Args:
        namespace: Where.
        name: Of it, and of its roles.
        rules: Of its ClusterRole.
        own_rules: Of its Role in *namespace*; none: it has none.
    """

    namespace: str
    name: str
    rules: Sequence[Mapping[str, Any]]
    own_rules: Sequence[Mapping[str, Any]] = ()

    @property
    def subject(self) -> dict[str, str]:
        """It as the subject of a binding."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


def own_lease_rules(name: str) -> tuple[dict[str, Any], ...]:
    """Return what a controller that is told probes apart from metrics may do to its Lease."""
    return tuple(
        {**rule, "verbs": [*rule["verbs"], "patch"]} if "resourceNames" in rule else rule
        for rule in lease_rules(name)
    )


@dataclass
class Programs:
    """The programs, as processes.

    Args:
        directory: Their tokens and logs.
        cluster: Where they work.
        service_url: Of the service that they ask.
        free_port: Finds ports.
    """

    directory: Path
    cluster: Cluster
    service_url: str
    free_port: Callable[[], int]
    _processes: dict[str, Process] = field(default_factory=dict)

    def add_account(self, account: Account) -> None:
        """Make a namespace, and in it a ServiceAccount with its rights."""
        ask, namespace, name = self.cluster.ask, account.namespace, account.name
        ask("/api/v1/namespaces", {"metadata": {"name": namespace}})
        ask(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        ask(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": account.rules})
        bind(self.cluster, name, name, account.subject)
        if account.own_rules:
            role = {"metadata": {"name": name}, "rules": account.own_rules}
            ask(f"{RBAC}/namespaces/{namespace}/roles", role)
            bind(self.cluster, name, name, account.subject, namespace)

    def log(self, name: str) -> Path:
        """Return what a program logs."""
        return self.directory / f"{name}.log"

    @property
    def ended(self) -> str | None:
        """The name of one that has ended, None while all of them run."""
        return next((name for name, process in self._processes.items() if not process.running), None)

    def stop(self) -> None:
        """Stop all of them."""
        for process in self._processes.values():
            process.ask_to_stop()
        for process in self._processes.values():
            process.stop()
        self._processes.clear()

    def pod(
        self,
        account: Account,
        *,
        node: str | None = None,
        service_token: Callable[[str], str] = lambda token: token,
    ) -> dict[str, str]:
        """Make a pod that will never run, so that tokens are bound to one; return the settings of its container.

        Args:
            account: Whose.
            node: The node that it is on.
            service_token: Makes what it shows the service, of what Kubernetes gave it.
        """
        pods = f"/api/v1/namespaces/{account.namespace}/pods"
        spec: dict[str, Any] = {
            "serviceAccountName": account.name,
            "containers": [{"name": "program", "image": "none"}],
        }
        if node is not None:
            spec["nodeName"] = node
        named = {"generateName": f"{account.name}-"}
        pod = self.cluster.ask(pods, {"metadata": named, "spec": spec})["metadata"]
        bound = {"name": pod["name"], "uid": pod["uid"]}
        for_api, for_service = (
            self.cluster.service_account_token(
                account.namespace, account.name, audience, pod=bound, seconds=TOKEN_SECONDS
            )
            for audience in (self.cluster.issuer, AUDIENCE)
        )
        token = self.directory / f"{pod['name']}.token"
        token.touch(mode=0o600)
        token.write_text(service_token(for_service), encoding="ascii")
        return {
            "POD": pod["name"],
            "SERVICE_URL": self.service_url,
            "TOKEN_FILE": str(token),
            "KUBECONFIG": str(self.cluster.kubeconfig_of(pod["name"], {"token": for_api})),
            "LOG_FORMAT": "json",
        }

    def start(self, name: str, command: Sequence[str], settings: Mapping[str, str], **more: str) -> None:
        """Start a program, and wait until it answers.

        Args:
            name: Of its log.
            command: What is run.
            settings: By their names without the prefix.
            more: Other variables of its environment.
        """
        at = f"127.0.0.1:{self.free_port()}"
        variables = {f"ITL_OPERATOR_{key}": value for key, value in settings.items()}
        variables |= {
            "ITL_OPERATOR_HEALTH_PROBE_BIND_ADDRESS": at,
            "ITL_OPERATOR_METRICS_BIND_ADDRESS": at,
        }
        process = Process(list(command), self.log(name), environment(**variables, **more), Path.cwd())
        self._processes[name] = process
        process.start()
        wait_for(f"http://{at}/healthz", process, f"the program {name}")
