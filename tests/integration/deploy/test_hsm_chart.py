"""deploy/helm/attestation-operator with CA keys in hardware: the controller, what it may, what it is told of tokens.

The rights are compared with the table of docs/kubernetes/hsm.md, right by right (HSM-AND-KUBERNETES §22).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from attestation_operator.crds.hsm import HardwareSecurityModuleSpec, IssuerSpec
from attestation_operator.hsm.settings import HsmSettings
from attestation_service.kubernetes_clusters import read_clusters
from tests.docs.pages import ROOT, text
from tests.fixtures.operator_chart import (
    FULL,
    NAMESPACE,
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
from tools import stage_hsm
from tools.softhsm import MODULE, configure, library

__all__ = ["documents", "run"]

PAGE = Path("docs/kubernetes/hsm.md")
EXAMPLE = ROOT / "deploy/helm/examples/softhsm"
OLDEST, NEWEST = "1.30.0", "1.36.0"
SECRETS = [{"namespace": "payments", "names": ["ca-cacert"]}]

SMALL: dict[str, Any] = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {"approver": False, "signer": False, "nodes": False, "hsm": True},
    "hsm": {"modules": [{"name": "yubihsm", "path": "/opt/yubihsm/lib/yubihsm_pkcs11.so"}]},
}
LARGE: dict[str, Any] = {
    **SMALL,
    "configMaps": {"serviceCA": "service-ca"},
    "hsm": {
        "replicaCount": 3,
        "modules": [
            {
                "name": "yubihsm",
                "path": "/opt/yubihsm/lib/yubihsm_pkcs11.so",
                "mounts": [{"name": "yubihsm", "mountPath": "/opt/yubihsm", "readOnly": True}],
            },
            {"name": "luna", "path": "/opt/luna/lib/libCryptoki2_64.so"},
        ],
        "tpms": [{"name": "tpm0", "device": "device:/dev/tpmrm0"}],
        "tpmKeys": {"persistentVolumeClaim": {"claimName": "tpm-keys"}},
        "evidencePrograms": [{"name": "enclave", "path": "/opt/enclave/bin/quote"}],
        "pinSecrets": ["yubihsm-pin", "luna-pin"],
        "env": [{"name": "YUBIHSM_PKCS11_CONF", "value": "/opt/yubihsm/yubihsm_pkcs11.conf"}],
        "volumes": [{"name": "yubihsm", "hostPath": {"path": "/opt/yubihsm", "type": "Directory"}}],
        "initContainers": [{"name": "fill", "image": "vendor.example/yubihsm:1"}],
        "supplementalGroups": [59],
        "secrets": SECRETS,
        "certManagerApprover": {"enabled": True},
        "workers": 16,
        "maxRetrySeconds": 30,
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"hsm": "usb"},
    },
    "networkPolicy": {"enabled": True, "ports": [443, 6443], "extraEgress": [{"ports": [{"port": 1792}]}]},
    "image": {"digest": f"sha256:{'0' * 64}"},
}


def _pod(found: list[Document]) -> Document:
    pod: Document = of(found, "Deployment")[f"{FULL}-hsm"]["spec"]["template"]["spec"]
    return pod


def _told(found: list[Document]) -> dict[str, str]:
    [container] = _pod(found)["containers"]
    told = {each["name"]: each.get("value", "pod-1") for each in container["env"]}
    assert len(told) == len(container["env"]), "a variable stands twice"
    return told


def _example() -> Document:
    values: Document = YAML(typ="safe").load(EXAMPLE / "values.yaml")
    return values


@pytest.mark.parametrize("values", [SMALL, LARGE, _example()], ids=["small", "large", "example"])
def test_helm_and_kubernetes_accept_it(values: Document, run: Run, documents: Documents) -> None:
    """Strictly, by the schemas of the oldest Kubernetes of the chart and a new one."""
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    for document in documents(values):
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_nothing_of_it_is_there_before_somebody_wants_it(documents: Documents) -> None:
    """Off by default, and where it is on nothing approves by itself and no Secret is read."""
    plain = documents({"settings": SMALL["settings"], "configMaps": {"nodeCA": "node-ca"}})
    assert not [each for each in plain if "hsm" in each["metadata"]["name"]]
    small = documents(SMALL)
    assert list(of(small, "ClusterRole")) == [f"{NAMESPACE}-{FULL}-hsm"]
    assert list(of(small, "Role")) == [f"{FULL}-hsm"]
    assert not [right for right in granted(small, "hsm") if right[1] == "secrets"]


def test_the_rights_are_those_of_the_page_and_no_more(documents: Documents) -> None:
    """§22: own kinds, requests and their status, Events, a Lease; it neither approves nor reads a PIN's Secret."""
    found = documents(SMALL)
    [told] = documented(PAGE, "Rights", ("hsm",)).values()
    may = granted(found, "hsm")
    assert may == told, may ^ told
    assert not [right for right in may if "*" in (right[0], right[1], right[3]) or right[3] == "approve"]


def test_secrets_are_those_that_somebody_names(documents: Documents) -> None:
    """K7: in a Role of their namespace, by name, read and deleted; beyond what is there without, nothing else."""
    found = documents(LARGE)
    assert granted(found, "hsm") - granted(documents(SMALL), "hsm") == {
        ("", "secrets", "ca-cacert", "get"),
        ("", "secrets", "ca-cacert", "delete"),
    }
    [role] = [each for name, each in of(found, "Role").items() if name.endswith("-secrets")]
    assert role["metadata"]["namespace"] == "payments"


def test_leaf_certificates_have_a_role_where_they_are(documents: Documents) -> None:
    """K7: requests of cert-manager in that namespace, and Secrets by name; none is listed, and none deleted."""
    values = {"certificates": [{"namespace": "shop", "secrets": ["pay-tls"]}]}
    found = documents({**SMALL, "hsm": {**SMALL["hsm"], **values}})
    assert granted(found, "hsm") - granted(documents(SMALL), "hsm") == {
        *(("cert-manager.io", "certificaterequests", "*", verb) for verb in ("create", "delete")),
        ("", "secrets", "*", "create"),
        *(("", "secrets", "pay-tls", verb) for verb in ("get", "update")),
    }
    [role] = [each for name, each in of(found, "Role").items() if name.endswith("-certificates")]
    assert role["metadata"]["namespace"] == "shop"


def test_it_signs_for_cluster_issuers_alone_and_for_those_that_somebody_names(documents: Documents) -> None:
    """§22: `sign` for its own domain; with no name it signs nothing, and may not write a request's status either."""
    name = "hsmclusterissuers.attestation.itl.io/payments"

    def may(names: list[str]) -> set[tuple[str, str, str]]:
        found = granted(documents({**SMALL, "hsm": {**SMALL["hsm"], "signerNames": names}}), "hsm")
        return {right[1:] for right in found if right[0] == "certificates.k8s.io"}

    seen = {("certificatesigningrequests", "*", verb) for verb in ("get", "list", "watch")}
    assert may([]) == seen
    assert may([name]) == seen | {
        ("certificatesigningrequests/status", "*", "patch"),
        ("signers", name, "sign"),
    }


def test_cert_managers_approver_is_let_approve_where_somebody_says_so(documents: Documents) -> None:
    """§16: these signers alone, and nobody else."""
    found = documents(LARGE)
    [binding] = [each for name, each in of(found, "ClusterRoleBinding").items() if "approver" in name]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "cert-manager", "namespace": "cert-manager"}
    ]
    assert rights(of(found, "ClusterRole")[binding["roleRef"]["name"]]) == {
        ("cert-manager.io", "signers", f"{kind}.attestation.itl.io/*", "approve")
        for kind in ("hsmissuers", "hsmclusterissuers")
    }


def test_the_controller_is_told_what_the_chart_lists(documents: Documents) -> None:
    """Modules, TPMs and PINs by the names that objects say; every setting of its own has its place."""
    found = documents(LARGE)
    told = _told(found)
    read = HsmSettings.load({name: each for name, each in told.items() if name.startswith("ITL_")})
    assert {name: str(path) for name, path in read.modules.items()} == {
        "yubihsm": "/opt/yubihsm/lib/yubihsm_pkcs11.so",
        "luna": "/opt/luna/lib/libCryptoki2_64.so",
    }
    assert {name: str(path) for name, path in read.programs.items()} == {"enclave": "/opt/enclave/bin/quote"}
    assert read.tpm_places == {"tpm0": "device:/dev/tpmrm0"}
    assert (read.workers, read.max_retry_seconds) == (16, 30)
    assert {f"ITL_OPERATOR_{name.upper()}" for name in HsmSettings.__annotations__} <= told.keys()
    assert told["YUBIHSM_PKCS11_CONF"] == "/opt/yubihsm/yubihsm_pkcs11.conf"
    mounts = {each["mountPath"]: each for each in _pod(found)["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in _pod(found)["volumes"]}
    for secret in ("yubihsm-pin", "luna-pin"):
        mount = mounts[str(read.pin_dir / secret)]
        assert mount["readOnly"] is True
        assert volumes[mount["name"]]["secret"]["secretName"] == secret
    assert volumes[mounts[str(read.tpm_keys_dir)]["name"]]["persistentVolumeClaim"] == {
        "claimName": "tpm-keys"
    }
    assert volumes[mounts["/opt/yubihsm"]["name"]]["hostPath"]["path"] == "/opt/yubihsm"


def test_the_controller_is_nobody_in_its_pod(documents: Documents) -> None:
    """No capabilities, a root that is read-only, an identity of its own; no device but by a plugin."""
    found = documents(LARGE)
    pod = _pod(found)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["supplementalGroups"] == [59]
    [container] = pod["containers"]
    assert container["args"] == ["hsm"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert pod["nodeSelector"] == {"hsm": "usb"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": 8081, "metrics": 9090}
    assert not [each for each in _pod(documents(SMALL))["volumes"] if "hostPath" in each]


def test_a_token_that_one_pod_can_have_has_one_pod(documents: Documents) -> None:
    """A new pod is started after the old one has ended; with several, a budget keeps one of them."""
    one = documents({**SMALL, "hsm": {**SMALL["hsm"], "replicaCount": 1}})
    spec = of(one, "Deployment")[f"{FULL}-hsm"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert not of(one, "PodDisruptionBudget")
    many = documents(LARGE)
    spec = of(many, "Deployment")[f"{FULL}-hsm"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (3, "RollingUpdate")
    assert list(of(many, "PodDisruptionBudget")) == [f"{FULL}-hsm"]


def test_the_network_of_the_token_is_named(documents: Documents) -> None:
    """A policy of the network holds for it: an HSM on the network is reached by what somebody adds."""
    [policy] = of(documents(LARGE), "NetworkPolicy").values()
    assert {"ports": [{"port": 1792}]} in policy["spec"]["egress"]
    [ingress] = policy["spec"]["ingress"]
    assert {each["port"] for each in ingress["ports"]} == {"http", "metrics"}


@pytest.mark.parametrize(
    ("hsm", "words"),
    [
        ({}, "say where a token is"),
        ({"modules": [{"name": "a", "path": "lib.so"}]}, "path"),
        ({"modules": [{"name": "a", "path": "/a.so,b=/b.so"}]}, "path"),
        ({"tpms": LARGE["hsm"]["tpms"]}, "hsm.tpmKeys: say which volume"),
        ({**SMALL["hsm"], "env": [{"name": "ITL_OPERATOR_PIN_DIR"}]}, "ITL_OPERATOR_PIN_DIR"),
        ({**SMALL["hsm"], "pin": "1234"}, "pin"),
        ({**SMALL["hsm"], "signerNames": ["kubernetes.io/kube-apiserver-client"]}, "signerNames"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_changes(hsm: Document, words: str, run: Run) -> None:
    """No token, a path that is none, a second module in a path, a PIN among the values."""
    done = run("template", {**SMALL, "hsm": hsm})
    assert done.returncode != 0
    assert words in done.stderr


def test_the_example_has_the_token_that_it_makes(documents: Documents) -> None:
    """SoftHSM for trying out: the PIN of the Secret, on a volume that outlives the pod, in the image that it builds."""
    values = _example()
    found = documents(values)
    read = HsmSettings.load({n: v for n, v in _told(found).items() if n.startswith("ITL_")})
    [(name, path)] = read.modules.items()
    assert str(path).rpartition("/")[2] == "libsofthsm2.so"
    objects = {each["kind"]: each for each in YAML(typ="safe").load_all(EXAMPLE / "objects.yaml") if each}
    token = objects["HardwareSecurityModule"]["spec"]
    HardwareSecurityModuleSpec.model_validate(token)
    IssuerSpec.model_validate(objects["HsmClusterIssuer"]["spec"])
    assert token["module"] == name
    assert token["pinSecretRef"]["name"] in values["hsm"]["pinSecrets"]
    assert objects["PersistentVolumeClaim"]["metadata"]["name"] in str(values["hsm"]["volumes"])
    assert (
        objects["HsmClusterIssuer"]["spec"]["hsmRef"]["name"]
        == (objects["HardwareSecurityModule"]["metadata"]["name"])
    )
    assert values["hsm"]["replicaCount"] == 1
    assert re.search(r"^FROM ", (EXAMPLE / "Dockerfile").read_text("utf-8"), re.MULTILINE)


def test_the_demo_gives_the_controller_the_same(documents: Documents) -> None:
    """So what works in `./dev run --kubernetes --hsm` on a real API works with these rights."""
    found = documents(SMALL)
    assert rights(of(found, "ClusterRole")[f"{NAMESPACE}-{FULL}-hsm"]) == rights(
        {"rules": stage_hsm.CONTROLLER_RULES}
    )
    assert rights(of(found, "Role")[f"{FULL}-hsm"]) == rights({"rules": stage_hsm.LEASE_RULES})


def test_the_page_names_every_value(run: Run) -> None:
    """What can be set is found."""
    values = YAML(typ="safe").load(ROOT / "deploy/helm/attestation-operator/values.yaml")
    rows = set(re.findall(r"`(hsm\.\w+)`", text(str(PAGE))))
    assert {f"hsm.{name}" for name in values["hsm"]} <= rows


def test_what_it_says_after_an_installation_is_what_the_service_takes(run: Run) -> None:
    """The line can be copied into ITL_KUBERNETES_CLUSTERS."""
    _, _, notes = run("install", SMALL, "--dry-run=client").stdout.partition("\nNOTES:\n")
    accounts = dict(re.findall(r'^  "([\w-]+)": (\[".*"\])$', notes, flags=re.MULTILINE))
    assert accounts == {"attestation-hsm": f'["{NAMESPACE}:{FULL}-hsm"]'}
    cluster = {
        "cluster_id": "default",
        "issuer": "https://kubernetes.default.svc",
        "jwks_file": "/jwks.json",
        "service_accounts": {duty: json.loads(names) for duty, names in accounts.items()},
    }
    read_clusters(json.dumps([cluster]))


@pytest.mark.softhsm
def test_the_example_makes_its_token_once(tmp_path: Path) -> None:
    """What runs before the start, twice: one token, which the PIN of the Secret opens."""
    [container] = _example()["hsm"]["initContainers"]
    tokens, pins = tmp_path / "volume/tokens", tmp_path / "pins"
    pins.mkdir()
    (pins / "pin").write_text("example-pin")
    (pins / "so-pin").write_text("example-so-pin")
    configure(tmp_path / "softhsm2.conf", tokens)
    variables = {
        "PATH": os.environ["PATH"],
        "SOFTHSM2_CONF": str(tmp_path / "softhsm2.conf"),
        "TOKENS": str(tokens),
        "PINS": str(pins),
    }
    assert {each["name"] for each in container["env"]} == {"TOKENS", "PINS"}
    for _ in range(2):
        subprocess.run(container["command"], env=variables, check=True, capture_output=True, timeout=60)
    assert len(list(tokens.iterdir())) == 1
    opened = subprocess.run(
        [
            *("pkcs11-tool", "--module", str(library(MODULE)), "--token-label", "cluster"),
            *("--login", "--pin", "env:PIN", "--list-objects"),
        ],
        env=variables | {"PIN": "example-pin"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert opened.returncode == 0, opened.stdout + opened.stderr
