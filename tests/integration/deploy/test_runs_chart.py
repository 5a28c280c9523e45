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

from attestation_operator.main import COMMANDS, _named
from attestation_operator.runs import admission, webhook
from attestation_operator.runs.admission import KINDS
from attestation_operator.runs.agent_settings import AgentSettings
from attestation_operator.runs.webhook_settings import WebhookSettings
from tests.fixtures.operator_chart import (
    FULL,
    NAMESPACE,
    Document,
    Documents,
    Right,
    Run,
    documented,
    documents,
    granted,
    of,
    rights,
    run,
)
from tools import stage_kubernetes, stage_runs
from tools.admission import schemas
from tools.stage_kubernetes import lease_rules

__all__ = ["documents", "run"]

PAGE = Path("docs/kubernetes/installing-runs.md")
AGENTS = "ugallu-system-privileged"
OLDEST, NEWEST = "1.32.0", "1.36.0"
ROLES = {
    "requester": "run-requester",
    "policy-author": "policy-author",
    "event-responder": "event-responder",
    "viewer": "run-viewer",
}

NO_NODES: dict[str, Any] = {"approver": False, "signer": False, "nodes": False}
SMALL: dict[str, Any] = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {**NO_NODES, "runs": True},
    "runs": {"clusterID": "default"},
    "agent": {"enabled": True},
}
HOOK: dict[str, Any] = {**SMALL, "admission": {"webhook": {"enabled": True}}}
LARGE: dict[str, Any] = {
    **SMALL,
    "admission": {
        "policies": "always",
        "webhook": {
            "enabled": True,
            "certificateSecret": "hook-tls",
            "caBundle": "-----BEGIN CERTIFICATE-----\n",
            "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
        },
    },
    "configMaps": {"serviceCA": "service-ca"},
    "runs": {
        "clusterID": "default",
        "clusterName": "Production",
        "resultTTL": "24h",
        "seedEventMapping": True,
        "nodeAction": "taint",
        "nodeActionNamespaces": ["attestation", "platform"],
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


def _pod(found: list[Document], kind: str, program: str = "runs") -> Document:
    name = "agent" if kind == "DaemonSet" else program
    pod: Document = of(found, kind)[f"{FULL}-{name}"]["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("values", [SMALL, HOOK, LARGE], ids=["small", "hook", "large"])
def test_helm_and_kubernetes_accept_it(values: Document, run: Run, documents: Documents) -> None:
    """Strictly, by the schemas of the oldest Kubernetes that runs need and a new one."""
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    for document in documents(values):
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_the_definitions_come_with_it(run: Run) -> None:
    """Each kind of attestation runs, before all else."""
    done = run("template", SMALL, "--include-crds")
    for kind in KINDS:
        assert f"name: {kind.plural}.{kind.group}\n" in done.stdout


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


@pytest.mark.parametrize("program", ["runs", "webhook"])
def test_the_controller_is_nobody_in_its_pod(program: str, documents: Documents) -> None:
    """CONFIDENTIAL §4: uid 65532, no capabilities, a root that is read-only; two replicas."""
    found = documents(LARGE)
    assert of(found, "Deployment")[f"{FULL}-{program}"]["spec"]["replicas"] == 2
    pod = _pod(found, "Deployment", program)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [container] = pod["containers"]
    assert container["args"] == [program]
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


@pytest.mark.parametrize(
    ("chosen", "mounted", "asked"),
    [
        ({}, "/sys/kernel/config/tsm", "/host/tsm/report"),
        ({"configfs": "all"}, "/sys/kernel/config", "/host/config/tsm/report"),
    ],
    ids=["tsm", "all"],
)
def test_where_tsm_is_missing_is_said_or_answered(
    chosen: Document, mounted: str, asked: str, documents: Documents
) -> None:
    """Its directory alone: the kubelet says that there is none. All of configfs: the pod starts, and says so."""
    pod = _pod(documents(_agent(LARGE, backends={"tdx": True}, **chosen)), "DaemonSet")
    volumes = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
    assert volumes["tsm"] == {"path": mounted, "type": "Directory"}
    [container] = pod["containers"]
    [path] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "tsm"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["ITL_OPERATOR_TSM_PATH"] == asked
    assert asked.removeprefix(path) == "/sys/kernel/config/tsm/report".removeprefix(mounted)


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


@pytest.mark.parametrize("on", ["tpm", "sevSnp", "tdx", None])
def test_a_backend_that_is_off_is_not_looked_for(on: str | None, documents: Documents) -> None:
    """Also where the container sees every device of its node."""
    values = _agent(LARGE, deviceAccess="privileged", backends={on: True} if on else {})
    read = AgentSettings.load(_variables(_pod(documents(values), "DaemonSet")))
    nowhere = Path("/nonexistent")
    assert (read.tpm_device == str(nowhere)) == (on != "tpm")
    assert (read.sev_snp_device == nowhere) == (on != "sevSnp")
    assert (read.tdx_device == str(nowhere)) == (on != "tdx")
    assert (read.tsm_path == nowhere) == (on not in ("sevSnp", "tdx"))


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
    return documented(PAGE, "Rights", ("runs", "agent", "webhook", "schedule-author", *ROLES))


def test_the_rights_are_those_of_the_page_and_no_more(documents: Documents) -> None:
    """CONFIDENTIAL §4, one by one; `*` stands nowhere, and nobody reads a Secret but the webhook its own."""
    found, told = documents(HOOK), _table()
    may = {
        "runs": granted(found, "runs"),
        "webhook": granted(found, "webhook"),
        "agent": granted(found, "agent", AGENTS),
        **{
            who: rights(of(found, "ClusterRole")[f"{NAMESPACE}-{FULL}-{role}"])
            for who, role in {**ROLES, "schedule-author": "schedule-author"}.items()
        },
    }
    for who, rights_ in may.items():
        assert rights_ == told[who], rights_ ^ told[who]
        assert not [right for right in rights_ if "*" in (right[0], right[1], right[3])]
        assert [right for right in rights_ if right[1] == "secrets" and right[2] == "*"] == []
        assert who == "webhook" or not [right for right in rights_ if right[1] == "secrets"]
    assert len(of(found, "ClusterRole")) == len(may), "a role that the table does not have"
    assert len(of(found, "Role")) == 2, "more than that of the Lease, and of the webhook's Secret"


def test_patching_nodes_is_chosen(documents: Documents) -> None:
    """One right more, where a run is to do something to its Node."""
    assert granted(documents(LARGE), "runs") - granted(documents(SMALL), "runs") == {
        ("", "nodes", "*", "patch")
    }


def test_the_demo_gives_both_the_same(documents: Documents) -> None:
    """So what works in `./dev run --kubernetes --confidential` on a real API works with these rights."""
    found = documents(LARGE)
    for name, rules in (("runs", stage_runs.CONTROLLER_RULES), ("agent", stage_runs.AGENT_RULES)):
        role = of(found, "ClusterRole")[f"{NAMESPACE}-{FULL}-{name}"]
        assert rights(role) == rights({"rules": rules})
    assert rights(of(found, "Role")[f"{FULL}-runs"]) >= rights({"rules": lease_rules("runs")})


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
        "event-responder": [],
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
        ({**SMALL, "runs": {"clusterID": "a", "nodeAction": "label"}}, "nodeActionNamespaces"),
        (_agent(SMALL, deviceAccess="hostPath"), "deviceAccess"),
        (_agent(SMALL, backends={"tpm": True}), "a TPM is a character device"),
        (_agent(SMALL, deviceAccess="plugin", backends={"tdx": True}), "agent.pluginResources.tdx"),
        (_agent(SMALL, backends={"sev-snp": True}), "sev-snp"),
        ({**SMALL, "controllers": NO_NODES, "agent": {}}, "none is to run"),
        (
            {**SMALL, "admission": {"webhook": {"enabled": True, "certificateSecret": "a"}}},
            "certificateSecret and caBundle belong together",
        ),
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


def _variables(pod: Document) -> dict[str, str]:
    [container] = pod["containers"]
    told = {each["name"]: each.get("value", "pod-1") for each in container["env"]}
    assert len(told) == len(container["env"]), "a variable stands twice"
    return told


@pytest.mark.parametrize("values", [HOOK, LARGE], ids=["hook", "large"])
@pytest.mark.parametrize("program", ["runs", "agent", "webhook"])
def test_each_variable_is_a_setting_of_its_program(
    values: Document, program: str, documents: Documents
) -> None:
    """An unknown one would stop the start; files and ports that it names are in the pod."""
    kind = "DaemonSet" if program == "agent" else "Deployment"
    pod = _pod(documents(values), kind, program)
    read = _named(COMMANDS[program].settings).load(_variables(pod))
    [container] = pod["containers"]
    mounted = {each["mountPath"] for each in container.get("volumeMounts", ())}
    for name in ("token_file", "service_ca_file"):
        file = getattr(read, name, None)
        assert file is None or str(file.parent) in mounted
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (read.probes_at.port, read.metrics_at.port) == (ports["http"], ports["metrics"])
    assert {read.probes_at.host, read.metrics_at.host} == {""}


def test_the_webhook_is_found_under_the_name_of_its_certificate(documents: Documents) -> None:
    """Configuration, Service, Secret and settings speak of the same."""
    found = documents(HOOK)
    [configuration] = of(found, "ValidatingWebhookConfiguration").values()
    [service] = of(found, "Service").values()
    [secret] = of(found, "Secret").values()
    [hook] = configuration["webhooks"]
    read = WebhookSettings.load(_variables(_pod(found, "Deployment", "webhook")))
    assert read.own is not None
    kept, told, name = read.own
    assert (kept.namespace, kept.name) == (secret["metadata"]["namespace"], secret["metadata"]["name"])
    assert told.name == configuration["metadata"]["name"]
    reference = hook["clientConfig"]["service"]
    assert name == f"{reference['name']}.{reference['namespace']}.svc"
    assert (reference["name"], reference["path"], reference["port"]) == (
        service["metadata"]["name"],
        webhook.PATH,
        service["spec"]["ports"][0]["port"],
    )
    assert hook["failurePolicy"] == "Fail"
    assert "caBundle" not in hook["clientConfig"]
    assert f"system:serviceaccount:{NAMESPACE}:{FULL}-runs" == read.controller_user
    [rule] = hook["rules"]
    plurals = {kind.plural for kind in KINDS}
    assert set(rule["resources"]) == plurals | {f"{plural}/status" for plural in plurals}
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}


def test_a_certificate_of_elsewhere_takes_away_every_right(documents: Documents) -> None:
    """It reads a file, and speaks to no API server."""
    found = documents(LARGE)
    assert granted(found, "webhook") == set()
    pod = _pod(found, "Deployment", "webhook")
    assert pod["automountServiceAccountToken"] is False
    [volume] = pod["volumes"]
    assert volume["secret"]["secretName"] == "hook-tls"
    [configuration] = of(found, "ValidatingWebhookConfiguration").values()
    assert configuration["webhooks"][0]["clientConfig"]["caBundle"]
    assert not of(found, "Secret")


def test_policies_of_admission_are_those_of_the_models(documents: Documents) -> None:
    """With the names of the release, about its controller; where the cluster has none, none."""
    found = documents(SMALL)
    expected = admission.policies(
        f"system:serviceaccount:{NAMESPACE}:{FULL}-runs", schemas(), prefix=f"{NAMESPACE}-{FULL}"
    )
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        assert of(found, kind) == of(expected, kind)
    kinds = ["--api-versions", "admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration"]
    policies = ["--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"]
    always = {**SMALL, "admission": {"policies": "always"}}
    for values, more, there in (
        (SMALL, kinds, False),
        (SMALL, [*kinds, *policies], True),
        (always, kinds, True),
        ({**SMALL, "admission": {"policies": "never"}}, policies, False),
    ):
        assert bool(of(documents(values, *more), "ValidatingAdmissionPolicy")) == there
    assert not of(documents({**SMALL, "controllers": NO_NODES}), "ValidatingAdmissionPolicy")


def test_policies_of_the_network_hold_for_controller_and_agents(documents: Documents) -> None:
    """One in each namespace: nobody speaks to them but for metrics, they to service, API server and names."""
    found = [each for each in documents(LARGE) if each["kind"] == "NetworkPolicy"]
    [hook] = [each for each in found if each["metadata"]["name"].endswith("-webhook")]
    [asked] = hook["spec"]["ingress"]
    assert asked == {
        "ports": [{"port": "https", "protocol": "TCP"}],
        "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
    }
    policies = [each for each in found if each is not hook]
    assert {each["metadata"]["namespace"] for each in policies} == {NAMESPACE, AGENTS}
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        [ingress] = policy["spec"]["ingress"]
        assert {each["port"] for each in ingress["ports"]} == {"http", "metrics"}


def test_the_demo_gives_both_programs_the_same(documents: Documents) -> None:
    """So what works in `./dev run --kubernetes --confidential` on a real API works with these rights."""
    labels = {**SMALL["runs"], "nodeAction": "label", "nodeActionNamespaces": [stage_kubernetes.NAMESPACE]}
    found = documents({**SMALL, "runs": labels})
    for name, rules in (("runs", stage_runs.CONTROLLER_RULES), ("agent", stage_runs.AGENT_RULES)):
        assert rights(of(found, "ClusterRole")[f"{NAMESPACE}-{FULL}-{name}"]) == rights({"rules": rules})
    leases = stage_runs.LEASE_RULES
    assert rights(of(found, "Role")[f"{FULL}-runs"]) == rights({"rules": leases})
    assert stage_runs.AGENTS == AGENTS
