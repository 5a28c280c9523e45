"""deploy/helm/attestation-web: what Helm makes of it, judged by Helm, the schemas of Kubernetes and our settings."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from attestation_web.settings import Settings
from tests.docs.pages import ROOT, text
from tests.fixtures import helm

CHART = ROOT / "deploy/helm/attestation-web"
OLDEST, NEWEST = "1.30.0", "1.36.0"
ELSEWHERE = {
    "listen_host", "listen_port", "service_ca_file", "oidc_ca_file", "oidc_client_secret", "oidc_client_secret_file",
    "tls_cert_file", "tls_key_file",
}  # fmt: skip
"""Settings that are no values: a pod has them fixed, a Secret or a ConfigMap has the file, TLS ends at the ingress."""

SMALL: dict[str, Any] = {
    "settings": {
        "url": "https://dash.example",
        "service_url": "https://attest.example",
        "oidc_issuer": "https://id.example/realms/itl",
    },
    "clientSecret": "web-client",
}
LARGE: dict[str, Any] = {
    **SMALL,
    "configMaps": {"serviceCA": "service-ca", "oidcCA": "oidc-ca"},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"x": "y"}},
    "networkPolicy": {
        "enabled": True,
        "from": [{"namespaceSelector": {}}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}],
    },
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": [{"name": "pull"}]},
    "service": {"annotations": {"x": "y"}},
    "podLabels": {"x": "y"},
    "podAnnotations": {"x": "y"},
    "nodeSelector": {"x": "y"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}

Document = dict[str, Any]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Helm on the chart with values."""
    try:
        program = helm.helm()
    except helm.NotThere as e:
        pytest.skip(str(e))
    home = tmp_path_factory.mktemp("helm")

    def run(command: str, values: Document, *more: str) -> subprocess.CompletedProcess[str]:
        file = home / "values.json"
        file.write_text(json.dumps(values))
        name = ["release", "--namespace", "itl"] if command in ("template", "install") else []
        return subprocess.run(
            [str(program), command, *name, str(CHART), "--values", str(file), *more],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def _documents(run: Run, values: Document) -> dict[str, Document]:
    done = run("template", values)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in YAML(typ="safe").load_all(done.stdout) if each}


@pytest.mark.parametrize("values", [SMALL, LARGE], ids=["small", "large"])
def test_helm_and_kubernetes_accept_it(values: Document, run: Run) -> None:
    """Strictly: no warning of the linter, and no member that the schemas of the oldest or a new Kubernetes lack."""
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    found = _documents(run, values)
    assert found.keys() >= {"Deployment", "Service"}
    for document in found.values():
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_each_setting_has_its_place(run: Run) -> None:
    """A value, or what a pod has fixed; and what the chart says the program understands."""
    values = YAML(typ="safe").load(CHART / "values.yaml")
    assert values["settings"].keys() | ELSEWHERE == Settings.model_fields.keys()
    assert not values["settings"].keys() & ELSEWHERE
    defaults = {n: f.default for n, f in Settings.model_fields.items() if not f.is_required()}
    said = {
        n: v
        for n, v in values["settings"].items()
        if n in defaults and n not in ("log_format", "trusted_proxies")
    }
    assert said == {name: defaults[name] for name in said}
    [container] = _documents(run, LARGE)["Deployment"]["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each["value"] for each in container["env"]}
    assert len(told) == len(container["env"]), "a variable stands twice"
    read = Settings.load(told)
    assert (read.url, read.listen_host) == ("https://dash.example", "0.0.0.0")
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    for file in (read.oidc_client_secret_file, read.service_ca_file, read.oidc_ca_file):
        assert file is not None
        assert str(file.parent) in mounted


def test_a_pod_may_do_nothing_but_its_work(run: Run) -> None:
    """What the `restricted` standard demands, a read-only root, no token of the cluster; one pod, for its sessions."""
    user = re.search(r"^USER (\d+):(\d+)$", text("deploy/containers/web.Dockerfile"), re.MULTILINE)
    assert user is not None
    spec = _documents(run, LARGE)["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
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
    [port] = container["ports"]
    assert f"EXPOSE {port['containerPort']}\n" in text("deploy/containers/web.Dockerfile")
    assert Settings.model_fields["listen_port"].default == port["containerPort"]


def test_browsers_come_to_the_host_of_the_address(run: Run) -> None:
    """The dashboard answers no other."""
    ingress = _documents(run, LARGE)["Ingress"]["spec"]
    assert [rule["host"] for rule in ingress["rules"]] == ["dash.example"]
    assert ingress["tls"] == [{"hosts": ["dash.example"], "secretName": "tls"}]


@pytest.mark.parametrize("missing", ["url", "service_url", "oidc_issuer", "clientSecret"])
def test_what_cannot_work_is_refused(run: Run, missing: str) -> None:
    """Before anything is changed."""
    values = {**SMALL, "settings": {k: v for k, v in SMALL["settings"].items() if k != missing}}
    done = run("template", {k: v for k, v in values.items() if k != missing})
    assert done.returncode != 0
    assert f"{missing}: " in done.stderr
    assert run("template", SMALL | {"replicaCount": 2}).returncode != 0
