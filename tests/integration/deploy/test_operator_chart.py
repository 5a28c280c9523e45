"""deploy/helm/attestation-operator: what Helm makes of it, judged by Helm, the schemas of Kubernetes and our settings.

The rights of the controllers are compared with the table of docs/kubernetes/controllers.md, right by right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from attestation_operator.crds.v1alpha1 import NodeAttestationSpec
from attestation_operator.settings import PREFIX, Settings
from attestation_service.kubernetes_clusters import read_clusters
from tests.docs.pages import text
from tests.fixtures.operator_chart import (
    CHART,
    Document,
    Documents,
    Run,
    documented,
    documents,
    granted,
    of,
    rights,
    run,
)
from tools import stage_kubernetes

__all__ = ["documents", "run"]

PAGE = Path("docs/kubernetes/controllers.md")
CONTROLLERS = ("approver", "signer", "nodes")
"""Those that run where nobody says anything; test_runs_chart.py has the others."""
OLDEST, NEWEST = "1.30.0", "1.36.0"
ELSEWHERE = {
    "token_file", "kubeconfig", "namespace", "identity", "listen_host", "listen_port",
    "service_ca_file", "node_ca_file",
}  # fmt: skip
"""Settings that are no values: a pod knows them, or a ConfigMap has the file."""

SMALL: dict[str, Any] = {
    "settings": {"service_url": "https://attest.example"},
    "configMaps": {"nodeCA": "node-ca"},
}
LARGE: dict[str, Any] = {
    **SMALL,
    "replicaCount": 3,
    "configMaps": {"nodeCA": "node-ca", "serviceCA": "service-ca"},
    "rbac": {"deleteStaleNodes": True},
    "nodeAttestation": {"inTreeApprover": "warn", "onTrustLapse": {"taint": True}},
    "networkPolicy": {
        "enabled": True,
        "from": [{"namespaceSelector": {}}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}],
    },
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": [{"name": "pull"}]},
    "podLabels": {"x": "y"},
    "podAnnotations": {"x": "y"},
    "nodeSelector": {"x": "y"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}


def test_what_it_says_after_an_installation_is_what_the_service_takes(
    run: Run,
) -> None:
    """The lines can be copied into ITL_KUBERNETES_CLUSTERS; what is told to look at exists."""
    for values, look in (
        (SMALL, "logs deployment/release-attestation-operator-approver"),
        (LARGE, "get nodeattestation cluster"),
    ):
        done = run("install", values, "--dry-run=client")
        assert done.returncode == 0, done.stderr
        _, _, notes = done.stdout.partition("\nNOTES:\n")
        assert look in notes
        accounts = dict(re.findall(r'^  "([\w-]+)": (\[".*"\])$', notes, flags=re.MULTILINE))
        cluster = {
            "cluster_id": "default",
            "issuer": "https://kubernetes.default.svc",
            "jwks_file": "/jwks.json",
            "service_accounts": {duty: json.loads(names) for duty, names in accounts.items()},
        }
        (rule,) = read_clusters(json.dumps([cluster]))
        assert {name for names in rule.service_accounts.values() for name in names} == {
            f"itl:release-attestation-operator-{name}" for name in CONTROLLERS
        }


@pytest.mark.parametrize("values", [SMALL, LARGE], ids=["small", "large"])
def test_helm_and_kubernetes_accept_it(
    values: Document,
    run: Run,
    documents: Documents,
) -> None:
    """Strictly: no warning of the linter, and no member that the schemas of the oldest or a new Kubernetes lack."""
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    found = documents(values)
    assert len(of(found, "Deployment")) == len(CONTROLLERS)
    for document in found:
        if document["kind"] == "NodeAttestation":
            NodeAttestationSpec.model_validate(document["spec"])
            continue
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_the_definitions_come_with_it(run: Run) -> None:
    """Helm installs what stands under `crds` before all else."""
    done = run("template", SMALL, "--include-crds")
    assert "name: nodeattestations.attestation.itl.io\n" in done.stdout


def test_each_setting_has_its_place(documents: Documents) -> None:
    """A value, or what a pod knows of itself; and what the chart says the program understands."""
    values = YAML(typ="safe").load(CHART / "values.yaml")
    assert values["settings"].keys() | ELSEWHERE == Settings.model_fields.keys()
    assert not values["settings"].keys() & ELSEWHERE
    for name, pod in _pods(documents(LARGE)).items():
        [container] = pod["containers"]
        told = {each["name"]: each.get("value", "pod-1") for each in container["env"]}
        assert len(told) == len(container["env"]), "a variable stands twice"
        read = Settings.load(told)
        assert read.service_url == "https://attest.example"
        assert read.listen_host == "0.0.0.0"
        assert read.identity == "pod-1"
        assert (read.node_ca_file is not None) == (name == "signer")
        assert container["args"] == [name]
        mounted = [each["mountPath"] for each in container["volumeMounts"]]
        for file in (read.token_file, read.service_ca_file, read.node_ca_file):
            assert file is None or str(file.parent) in mounted


def _pods(found: list[Document]) -> dict[str, Document]:
    return {
        name.removeprefix("release-attestation-operator-"): each["spec"]["template"]["spec"]
        for name, each in of(found, "Deployment").items()
    }


def test_a_pod_may_do_nothing_but_its_work(documents: Documents) -> None:
    """What the `restricted` standard of Kubernetes demands, a read-only root, an identity of its own."""
    user = re.search(r"^USER (\d+):(\d+)$", text("deploy/containers/operator.Dockerfile"), re.MULTILINE)
    assert user is not None
    pods = _pods(documents(LARGE))
    for pod in pods.values():
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user[1]),
            "runAsGroup": int(user[2]),
            "fsGroup": int(user[2]),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"].endswith(f"@sha256:{'0' * 64}")
        assert pod["enableServiceLinks"] is False
        [port] = container["ports"]
        assert f"EXPOSE {port['containerPort']}\n" in text("deploy/containers/operator.Dockerfile")
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert len({pod["serviceAccountName"] for pod in pods.values()}) == len(pods)


def test_the_token_for_the_service_is_for_it_alone(
    documents: Documents,
) -> None:
    """Bound to the pod, short, and of an audience that the API server does not accept."""
    for pod in _pods(documents(LARGE)).values():
        [token] = [each for each in pod["volumes"] if each["name"] == "token"]
        [source] = token["projected"]["sources"]
        assert source == {
            "serviceAccountToken": {
                "audience": "itl-attestation",
                "expirationSeconds": 3600,
                "path": "token",
            }
        }


def test_the_rights_are_those_of_the_page_and_no_more(
    documents: Documents,
) -> None:
    """HSM-AND-KUBERNETES §22: each ServiceAccount has the rights of its duty; `*` stands nowhere."""
    found = documents(SMALL)
    told = documented(PAGE, "Rights", CONTROLLERS)
    for name in CONTROLLERS:
        may = granted(found, name)
        assert may == told[name], may ^ told[name]
        assert not [right for right in may if "*" in (right[0], right[1], right[3])]
        assert not [right for right in may if right[1] == "secrets"]
    assert len(of(found, "ServiceAccount")) == len(CONTROLLERS)


def test_deleting_nodes_is_chosen(documents: Documents) -> None:
    """One right more, for the approver alone, where somebody set it."""
    plain, chosen = documents(SMALL), documents(LARGE)
    assert granted(chosen, "approver") - granted(plain, "approver") == {("", "nodes", "*", "delete")}
    for name in ("signer", "nodes"):
        assert granted(chosen, name) == granted(plain, name)


def test_nobody_both_approves_and_signs(documents: Documents) -> None:
    """One stolen token is not enough for a certificate."""
    found = documents(LARGE)
    verbs = {name: {right[3] for right in granted(found, name)} for name in CONTROLLERS}
    assert [name for name, may in verbs.items() if "approve" in may] == ["approver"]
    assert [name for name, may in verbs.items() if "sign" in may] == ["signer"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "settings.service_url: say under which address"),
        ({"settings": SMALL["settings"]}, "configMaps.nodeCA: name the ConfigMap"),
        (SMALL | {"controllers": {"approver": False, "signer": False, "nodes": False}}, "none is to run"),
        (SMALL | {"replicacount": 2}, "replicacount"),
        (SMALL | {"settings": {"service_url": "http://attest.example"}}, "service_url"),
        (SMALL | {"settings": {"service_url": "https://attest.example", "workers": 0}}, "workers"),
        (SMALL | {"tokenSeconds": 60}, "tokenSeconds"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_what_cannot_work_is_refused_before_anything_changes(run: Run, values: Document, words: str) -> None:
    """A mistyped name, a value out of bounds, an address over which the token could be read."""
    done = run("template", values)
    assert done.returncode != 0
    assert words in done.stderr
    assert not done.stdout


def test_the_prefix_is_that_of_the_settings() -> None:
    """The template writes it out."""
    assert f"{PREFIX}LISTEN_HOST" in Path(CHART / "templates/deployment.yaml").read_text()


def test_the_demo_gives_each_controller_the_same(documents: Documents) -> None:
    """So what works in `./dev run --kubernetes` and its tests on a real API works with these rights."""
    found = documents(SMALL)
    for name, rules in stage_kubernetes.DUTIES.items():
        full = f"release-attestation-operator-{name}"
        roles = of(found, "Role")
        for told, given in (
            (of(found, "ClusterRole")[f"itl-{full}"], rules),
            (roles[full], stage_kubernetes.lease_rules(name)),
            (roles[f"itl-{full}-events"], stage_kubernetes.EVENTS),
        ):
            assert rights(told) == rights({"rules": given})
