"""deploy/helm/attestation-operator with attestation runs: controller and agents, what they may, what they can reach.

The rights are compared with the table of docs/kubernetes/installing-runs.md, right by right (CONFIDENTIAL §4).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.fixtures.operator_chart import (
    FULL,
    NAMESPACE,
    Document,
    Documents,
    Right,
    Run,
    documented,
    granted,
    of,
    rights,
)

PAGE = Path("docs/kubernetes/installing-runs.md")
AGENTS = "ugallu-system-privileged"
OLDEST, NEWEST = "1.32.0", "1.36.0"
ROLES = {"requester": "run-requester", "policy-author": "policy-author", "viewer": "run-viewer"}

NO_NODES: dict[str, Any] = {"approver": False, "signer": False, "nodes": False}
SMALL: dict[str, Any] = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {**NO_NODES, "runs": True},
    "runs": {"clusterID": "default"},
    "agent": {"enabled": True},
}
LARGE: dict[str, Any] = {
    **SMALL,
    "configMaps": {"serviceCA": "service-ca"},
    "runs": {
        "clusterID": "default",
        "clusterName": "Production",
        "resultTTL": "24h",
        "seedEventMapping": True,
        "nodeAction": "taint",
    },
    "agent": {
        "enabled": True,
        "backends": {"tpm": True, "sevSnp": True, "tdx": True},
        "deviceAccess": "plugin",
        "pluginResources": {
            "tpm": "devices.example/tpm",
            "sevSnp": "devices.example/sev-guest",
            "tdx": "devices.example/tdx-guest",
        },
        "supplementalGroups": [59],
        "nodeSelector": {"x": "y"},
        "affinity": {"nodeAffinity": {}},
    },
    "networkPolicy": {"enabled": True},
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": [{"name": "pull"}]},
    "podLabels": {"x": "y"},
    "podAnnotations": {"x": "y"},
}


def _agent(values: Document, **agent: Any) -> Document:
    return {**values, "agent": {**values["agent"], **agent}}


def _pod(found: list[Document], kind: str) -> Document:
    [workload] = of(found, kind).values()
    pod: Document = workload["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("values", [SMALL, LARGE], ids=["small", "large"])
def test_helm_and_kubernetes_accept_it(values: Document, run: Run, documents: Documents) -> None:
    """Strictly, by the schemas of the oldest Kubernetes that runs need and a new one."""
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    for document in documents(values):
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_nothing_of_it_is_there_before_somebody_wants_it(documents: Documents) -> None:
    """Controller, agent, and each backend of an agent, are off by default."""
    plain = documents(
        {"settings": SMALL["settings"], "configMaps": {"nodeCA": "node-ca"}},
    )
    assert not [each for each in plain if "runs" in each["metadata"]["name"] or each["kind"] == "DaemonSet"]
    assert "ugallu" not in json.dumps(plain)
    [volume] = _pod(documents(SMALL), "DaemonSet")["volumes"]
    assert volume["name"] == "token"


def test_the_agents_have_a_namespace_of_their_own(documents: Documents) -> None:
    """Pods there may mount directories of the node, so nothing else runs there; it may be there already."""
    found = documents(LARGE)
    [namespace] = of(found, "Namespace").values()
    assert namespace["metadata"]["name"] == AGENTS
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    there = {
        (each["kind"], each["metadata"]["name"])
        for each in found
        if each["metadata"].get("namespace") == AGENTS
    }
    assert there == {
        ("DaemonSet", f"{FULL}-agent"),
        ("ServiceAccount", f"{FULL}-agent"),
        ("NetworkPolicy", FULL),
    }
    assert not of(documents(_agent(LARGE, createNamespace=False)), "Namespace")


def test_the_controller_is_nobody_in_its_pod(documents: Documents) -> None:
    """CONFIDENTIAL §4: uid 65532, no capabilities, a root that is read-only; two replicas."""
    found = documents(LARGE)
    [deployment] = of(found, "Deployment").values()
    assert deployment["spec"]["replicas"] == 2
    pod = _pod(found, "Deployment")
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [container] = pod["containers"]
    assert container["args"] == ["runs"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not [each for each in pod["volumes"] if "hostPath" in each]


@pytest.mark.parametrize("access", ["configfs", "plugin"])
def test_an_agent_is_root_by_name_alone(access: str, documents: Documents) -> None:
    """CONFIDENTIAL §4: uid 0 without capabilities, read-only root, RuntimeDefault, no namespace of the node."""
    pod = _pod(
        documents(_agent(LARGE, deviceAccess=access, backends={"sevSnp": True, "tdx": True})), "DaemonSet"
    )
    assert pod["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "supplementalGroups": [59],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [container] = pod["containers"]
    assert container["args"] == ["agent"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["hostNetwork"]
    assert not pod["hostPID"]
    assert not pod["hostIPC"]


def test_an_agent_is_on_every_node_before_others(documents: Documents) -> None:
    """Also on one that is tainted because it is not attested: it could never be again."""
    pod = _pod(documents(SMALL), "DaemonSet")
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_an_agent_sees_of_its_node_what_its_backends_need(documents: Documents) -> None:
    """Only configfs is writable. Nothing is mounted where a runtime hides or forbids it (/sys/firmware, sysfs)."""
    pod = _pod(documents(LARGE), "DaemonSet")
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert {paths[name]: not mounts[name].get("readOnly", False) for name in paths} == {
        "/sys/kernel/config/tsm": True,
        "/sys/firmware/acpi/tables": False,
        "/sys/kernel/security": False,
    }
    assert not [
        each
        for each in mounts.values()
        if each["mountPath"].startswith(("/sys/firmware", "/sys/kernel/config"))
    ]
    tpm = _pod(documents(_agent(LARGE, backends={"tpm": True})), "DaemonSet")
    assert [each["hostPath"]["path"] for each in tpm["volumes"] if "hostPath" in each] == [
        "/sys/kernel/security"
    ]


def test_how_devices_are_reached_is_chosen(documents: Documents) -> None:
    """By configfs none, by a plugin those of the backends that are on, privileged all."""
    plugin = _pod(documents(LARGE), "DaemonSet")["containers"][0]
    assert plugin["resources"]["limits"] == {
        "memory": "256Mi",
        "devices.example/tpm": 1,
        "devices.example/sev-guest": 1,
        "devices.example/tdx-guest": 1,
    }
    one = _pod(documents(_agent(LARGE, backends={"tdx": True})), "DaemonSet")["containers"][0]
    assert one["resources"]["limits"] == {"memory": "256Mi", "devices.example/tdx-guest": 1}
    configfs = documents(_agent(LARGE, deviceAccess="configfs", backends={"tdx": True}))
    assert _pod(configfs, "DaemonSet")["containers"][0]["resources"]["limits"] == {"memory": "256Mi"}
    privileged = _pod(documents(_agent(LARGE, deviceAccess="privileged")), "DaemonSet")["containers"][0]
    assert privileged["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert privileged["resources"]["limits"] == {"memory": "256Mi"}


def test_tokens_are_bound_and_for_the_service_alone(documents: Documents) -> None:
    """Of an audience that the API server does not accept; the kubelet writes which node it is."""
    found = documents(LARGE)
    for kind in ("Deployment", "DaemonSet"):
        [token] = [each for each in _pod(found, kind)["volumes"] if each["name"] == "token"]
        assert token["projected"]["sources"] == [
            {
                "serviceAccountToken": {
                    "audience": "itl-attestation",
                    "expirationSeconds": 3600,
                    "path": "token",
                }
            }
        ]


def _table() -> dict[str, set[Right]]:
    return documented(PAGE, "Rights", ("runs", "agent", "schedule-author", *ROLES))


def test_the_rights_are_those_of_the_page_and_no_more(documents: Documents) -> None:
    """CONFIDENTIAL §4, one by one; `*` stands nowhere, and nobody reads a Secret."""
    found, told = documents(SMALL), _table()
    may = {
        "runs": granted(found, "runs"),
        "agent": granted(found, "agent", AGENTS),
        **{
            who: rights(of(found, "ClusterRole")[f"{NAMESPACE}-{FULL}-{role}"])
            for who, role in {**ROLES, "schedule-author": "schedule-author"}.items()
        },
    }
    for who, rights_ in may.items():
        assert rights_ == told[who], rights_ ^ told[who]
        assert not [right for right in rights_ if "*" in (right[0], right[1], right[3])]
        assert not [right for right in rights_ if right[1] == "secrets"]
    assert len(of(found, "ClusterRole")) == len(may), "a role that the table does not have"
    assert len(of(found, "Role")) == 1, "more than that of the Lease"


def test_patching_nodes_is_chosen(documents: Documents) -> None:
    """One right more, where a run is to do something to its Node."""
    assert granted(documents(LARGE), "runs") - granted(documents(SMALL), "runs") == {
        ("", "nodes", "*", "patch")
    }


def test_an_agent_may_read_runs_and_do_nothing_else(documents: Documents) -> None:
    """CONFIDENTIAL §1: no credential on a node can write a verdict."""
    may = granted(documents(LARGE), "agent", AGENTS)
    assert {right[:3] for right in may} == {("security.ugallu.io", "confidentialattestationruns", "*")}
    assert {right[3] for right in may} == {"get", "list", "watch"}


def test_roles_of_people_are_part_of_edit_and_view(documents: Documents) -> None:
    """Who may edit in a namespace may ask there; policies and schedules are given by hand."""

    def aggregated(values: Document) -> dict[str, list[str]]:
        return {
            name.removeprefix(f"{NAMESPACE}-{FULL}-"): sorted(
                label.rpartition("-")[2]
                for label, value in role["metadata"]["labels"].items()
                if "aggregate-to-" in label and value == "true"
            )
            for name, role in of(documents(values), "ClusterRole").items()
        }

    assert aggregated(SMALL) == {
        "runs": [],
        "agent": [],
        "run-requester": ["edit"],
        "policy-author": [],
        "schedule-author": [],
        "run-viewer": ["view"],
    }
    assert not any(aggregated({**SMALL, "rbac": {"aggregate": False}}).values())


def test_what_it_says_after_an_installation_is_what_the_service_takes(run: Run) -> None:
    """The duties of CONFIDENTIAL §3, as lines for ITL_KUBERNETES_CLUSTERS."""
    done = run("install", SMALL, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    _, _, notes = done.stdout.partition("\nNOTES:\n")
    accounts = dict(re.findall(r'^  "([\w-]+)": (\[".*"\])$', notes, flags=re.MULTILINE))
    assert {duty: json.loads(names) for duty, names in accounts.items()} == {
        "attestation-runs": [f"{NAMESPACE}:{FULL}-runs"],
        "attestation-run-agent": [f"{AGENTS}:{FULL}-agent"],
    }
    assert "No backend is on" in notes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**SMALL, "runs": {}}, "runs.clusterID: say what"),
        ({**SMALL, "runs": {"clusterID": "a", "nodeAction": "drain"}}, "nodeAction"),
        (_agent(SMALL, deviceAccess="hostPath"), "deviceAccess"),
        (_agent(SMALL, backends={"tpm": True}), "a TPM is a character device"),
        (_agent(SMALL, deviceAccess="plugin", backends={"tdx": True}), "agent.pluginResources.tdx"),
        (_agent(SMALL, backends={"sev-snp": True}), "sev-snp"),
        ({**SMALL, "controllers": NO_NODES, "agent": {}}, "none is to run"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_what_cannot_work_is_refused_before_anything_changes(run: Run, values: Document, words: str) -> None:
    """A backend without a way to its device, a mistyped one, a cluster without a name."""
    done = run("template", values)
    assert done.returncode != 0
    assert words in done.stderr
    assert not done.stdout


def test_a_cluster_whose_tokens_do_not_name_the_node_is_refused(run: Run) -> None:
    """CONFIDENTIAL §2: Kubernetes 1.32; the other controllers need less."""
    assert "need Kubernetes 1.32" in run("template", SMALL, "--kube-version", "1.31.9").stderr
    assert run("template", SMALL, "--kube-version", "1.32.0").returncode == 0
    others = {"settings": SMALL["settings"], "configMaps": {"nodeCA": "node-ca"}}
    assert run("template", others, "--kube-version", "1.30.0").returncode == 0


def test_policies_of_the_network_hold_for_controller_and_agents(documents: Documents) -> None:
    """One in each namespace: nobody speaks to them but for metrics, they to service, API server and names."""
    policies = [each for each in documents(LARGE) if each["kind"] == "NetworkPolicy"]
    assert {each["metadata"]["namespace"] for each in policies} == {NAMESPACE, AGENTS}
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        [ingress] = policy["spec"]["ingress"]
        assert {each["port"] for each in ingress["ports"]} == {"http", "metrics"}
