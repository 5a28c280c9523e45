"""deploy/helm/attestation: what Helm makes of it, judged by Helm, by the schemas of Kubernetes and by our settings.

No cluster is here: what a controller does with these documents is not tried.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from attestation_service.settings import Settings
from tests.docs.pages import text
from tests.fixtures import helm
from tools import chart

URL = {"service_url": "https://attest.example"}
POSTGRES = "postgresql+psycopg://attestation@db.example:6432/attestation?sslmode=verify-full"
SECRETS = {
    name: f"s-{name.lower()}"
    for name in {*chart.files().values(), "configs", "dbCA", "archiveCredentials", "archiveCA"}
}

SMALL: dict[str, Any] = {"settings": URL, "secrets": {"adminToken": "admin", "caPassphrase": "ca"}}
LARGE: dict[str, Any] = {
    "replicaCount": 3,
    "settings": URL
    | {
        "db_url": POSTGRES,
        "runs_archive": "s3://bundles",
        "oidc_issuer": "https://id.example/realms/itl",
        "trusted_proxies": ["10.0.0.0/8", "fd00::/8"],
    },
    "secrets": SECRETS | {"tls": ""},
    "persistence": {"keys": {"accessMode": "ReadWriteMany", "storageClass": "nfs"}},
    "migrations": {"dbUrl": POSTGRES.replace("attestation@", "owner@"), "dbPassword": "owner"},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "ingress-tls", "annotations": {"a": "b"}},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
        "databasePeers": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
        "httpsPeers": [{"ipBlock": {"cidr": "10.2.0.0/16"}}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}],
    },
    "autoscaling": {"enabled": True},
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": [{"name": "pull"}]},
    "extensionSettings": {"ITL_EXT_METRICS_PORT": "9000"},
    "podLabels": {"x": "y"},
    "podAnnotations": {"x": "y"},
    "nodeSelector": {"x": "y"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
    "serviceAccountName": "attestation",
    "service": {"type": "NodePort", "nodePort": 30808, "annotations": {"x": "y"}},
}
BUCKET = "s3://bundles?endpoint=https://s3.example&region=eu-west-1"
BUNDLES: dict[str, Any] = {"settings": URL, "persistence": {"bundles": {"enabled": True, "size": "1Gi"}}}
IN_A_BUCKET: dict[str, Any] = {
    "settings": URL | {"runs_archive": BUCKET},
    "secrets": {"archiveCredentials": "bucket", "archiveCA": "bucket-ca"},
}
OWN_TLS: dict[str, Any] = {
    "replicaCount": 2,
    "settings": URL | {"db_url": POSTGRES.replace(":6432", "")},
    "secrets": {"tls": "tls"},
    "persistence": {"keys": {"existingClaim": "keys"}},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "migrations": {"enabled": False},
    "preStopSeconds": 0,
}
KINDS = {
    "small": (
        SMALL,
        ["Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PersistentVolumeClaim", "Service"],
    ),
    "large": (
        LARGE,
        [
            *(
                "Deployment",
                "HorizontalPodAutoscaler",
                "Ingress",
                "Job",
                "NetworkPolicy",
                "PersistentVolumeClaim",
            ),
            *("PodDisruptionBudget", "Service"),
        ],
    ),
    "bundles": (
        BUNDLES,
        ["Deployment", "NetworkPolicy", *["PersistentVolumeClaim"] * 3, "Service"],
    ),
    "bucket": (
        IN_A_BUCKET,
        ["Deployment", "NetworkPolicy", *["PersistentVolumeClaim"] * 2, "Service"],
    ),
    "own TLS": (OWN_TLS, ["Deployment", "Service"]),
}
OLDEST, NEWEST = "1.30.0", "1.36.0"

Document = dict[str, Any]
RunHelm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """Helm; where it cannot be had, the reason is said."""
    try:
        return helm.helm()
    except helm.NotThere as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def run(program: Path, tmp_path_factory: pytest.TempPathFactory) -> RunHelm:
    """Run Helm on the chart with values; the same is run once."""
    home = tmp_path_factory.mktemp("helm")
    known: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def run(command: str, values: Document, *more: str) -> subprocess.CompletedProcess[str]:
        asked = (command, json.dumps(values), *more)
        if asked not in known:
            file = home / "values.json"
            file.write_text(asked[1])
            name = ["release"] if command == "template" else []
            known[asked] = subprocess.run(
                [str(program), command, *name, str(chart.CHART), "--values", str(file), *more],
                env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
            )  # fmt: skip
        return known[asked]

    return run


@pytest.fixture
def documents(run: RunHelm) -> Callable[[Document], list[Document]]:
    """Return what Helm would send to a cluster."""

    def documents(values: Document) -> list[Document]:
        done = run("template", values)
        assert done.returncode == 0, done.stderr
        return [each for each in YAML(typ="safe").load_all(done.stdout) if each]

    return documents


def _one(found: list[Document], kind: str) -> Document:
    [one] = [each for each in found if each["kind"] == kind]
    return one


def _pod(document: Document) -> Document:
    pod: Document = document["spec"]["template"]
    return pod


def _environment(pod: Document) -> dict[str, str]:
    [container] = pod["spec"]["containers"]
    told = {each["name"]: each["value"] for each in container["env"]}
    assert len(told) == len(container["env"]), "a variable stands twice"
    return told


def test_what_is_derived_of_the_settings_is_current() -> None:
    """Run `python -m tools.chart` after a setting was added or changed."""
    for path, content in chart.written().items():
        assert path.read_text(encoding="utf-8") == content, path


def test_every_setting_has_a_value() -> None:
    """One place each: under `settings`, or the name of a Secret or a claim (FAULTS R34)."""
    values = YAML(typ="safe").load(chart.VALUES)
    elsewhere = chart.PLACES | {k: f"secrets.{v}" for k, v in chart.files().items()}
    assert values["settings"].keys() | elsewhere.keys() == Settings.model_fields.keys()
    assert not values["settings"].keys() & elsewhere.keys()
    for place in elsewhere.values():
        group, name = place.split(".")
        assert name in values[group], place


@pytest.mark.parametrize("name", KINDS)
def test_helm_and_kubernetes_accept_it(
    name: str, run: RunHelm, documents: Callable[[Document], list[Document]]
) -> None:
    """Strictly: no warning of the linter, and no member that the schemas of the oldest or a new Kubernetes lack."""
    values, kinds = KINDS[name]
    done = run("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    found = documents(values)
    assert sorted(each["kind"] for each in found) == kinds
    for document in found:
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_what_the_chart_says_the_service_understands(documents: Callable[[Document], list[Document]]) -> None:
    """The defaults of the chart are those of the service; lists, large numbers, switches arrive as meant."""
    told = _environment(_pod(_one(documents({"settings": URL}), "Deployment")))
    assert Settings.load(told, None) == Settings(service_url=URL["service_url"])
    changed = {
        "pending_limit": 12_345_678,
        "maintenance_seconds": 0.25,
        "rate_limits": False,
        "registration_nets": ["10.0.0.0/8", "fd00::/8"],
        "dual_control_roles": ["controlplane"],
        "enrollment_cert_days": 7,
        "break_glass_expires_at": "2027-01-01T00:00:00Z",
        "audit_origin": "a.example/log",
    }
    told = _environment(_pod(_one(documents({"settings": URL | changed}), "Deployment")))
    read = Settings.load(told, None)
    assert {name: getattr(read, name) for name in changed} == {
        name: getattr(Settings.model_validate(URL | changed), name) for name in changed
    }


def test_each_secret_is_a_file_and_nothing_is_made_up(
    documents: Callable[[Document], list[Document]],
) -> None:
    """The setting names the path at which its Secret is mounted; the chart makes no Secret and knows no password."""
    found = documents(LARGE | {"secrets": SECRETS, "ingress": {"enabled": False}})
    assert not {each["kind"] for each in found} & {"Secret", "ConfigMap"}
    pod = _pod(_one(found, "Deployment"))
    told = _environment(pod)
    mounts = {each["name"]: each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    by_secret = {secret: mounts[name] for name, secret in volumes.items() if secret}
    assert by_secret.keys() == set(SECRETS.values())
    for setting, secret in chart.files().items():
        assert told[f"ITL_{setting.upper()}"].startswith(by_secret[SECRETS[secret]]), setting
    assert mounts["keys"] == str(Settings().enrollment_ca_dir)
    assert mounts["configs"] == str(Settings().config_cache_dir)


def test_sealed_bundles_are_kept_where_the_service_may_write(
    documents: Callable[[Document], list[Document]],
) -> None:
    """On a volume where the service looks unasked; in a bucket by files of which the client for S3 is told."""
    found = documents(BUNDLES)
    pod = _pod(_one(found, "Deployment"))
    [mount] = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == "bundles"]
    assert f"file://{mount['mountPath']}" == Settings.load(_environment(pod), None).archive_url
    assert not mount.get("readOnly")
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "bundles"]
    claims = [each["metadata"]["name"] for each in found if each["kind"] == "PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] in claims
    assert "bundles" not in str(_pod(_one(documents(SMALL), "Deployment"))["spec"]["volumes"])

    found = documents(IN_A_BUCKET)
    pod = _pod(_one(found, "Deployment"))
    told = _environment(pod)
    assert Settings.load(told, None).archive_url == BUCKET
    mounts = {each["mountPath"]: each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    secrets = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["spec"]["volumes"]}
    for variable, file, secret in (
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", "bucket"),
        ("AWS_CA_BUNDLE", "ca.crt", "bucket-ca"),
    ):
        folder, _, name = told[variable].rpartition("/")
        assert (name, secrets[mounts[folder]]) == (file, secret)
    assert {"port": 443, "protocol": "TCP"} in [
        port for rule in _one(found, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]
    ]


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_pod_may_do_nothing_but_its_work(
    kind: str, documents: Callable[[Document], list[Document]]
) -> None:
    """What the `restricted` standard of Kubernetes demands; and a read-only root, and no token of the cluster."""
    spec = _pod(_one(documents(LARGE), kind))["spec"]
    user = re.search(r"^USER (\d+):(\d+)$", text("deploy/containers/service.Dockerfile"), re.MULTILINE)
    assert user is not None
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user[1]),
        "runAsGroup": int(user[2]),
        "fsGroup": int(user[2]),
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"].endswith(f"@sha256:{'0' * 64}")


def test_the_service_is_watched_and_ends_in_time(documents: Callable[[Document], list[Document]]) -> None:
    """Probes of ITL-REFERENCE §22; the kubelet waits longer than the service takes; its own TLS is asked by TLS."""
    spec = _pod(_one(documents(LARGE), "Deployment"))["spec"]
    [container] = spec["containers"]
    live, ready = container["livenessProbe"], container["readinessProbe"]
    assert (live["httpGet"]["path"], live["initialDelaySeconds"], live["periodSeconds"]) == (
        "/healthz",
        15,
        30,
    )
    assert (ready["httpGet"]["path"], ready["initialDelaySeconds"], ready["periodSeconds"]) == (
        "/readyz",
        5,
        10,
    )
    assert container["startupProbe"]["httpGet"] == live["httpGet"]
    assert live["httpGet"]["scheme"] == "HTTP"
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > waits + Settings().shutdown_seconds
    [port] = container["ports"]
    assert f"EXPOSE {port['containerPort']}\n" in text("deploy/containers/service.Dockerfile")
    [own] = _pod(_one(documents(OWN_TLS), "Deployment"))["spec"]["containers"]
    assert own["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_replicas_are_replaced_one_by_one_and_a_file_by_one_alone(
    documents: Callable[[Document], list[Document]],
) -> None:
    """A rollout takes none away before its successor is ready; on a volume of one node there is never a second."""
    rolling = _one(documents(LARGE | {"autoscaling": {}}), "Deployment")["spec"]
    assert rolling["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    assert rolling["replicas"] == 3
    assert "replicas" not in _one(documents(LARGE), "Deployment")["spec"]
    assert _one(documents(SMALL), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_the_schema_is_changed_before_and_by_its_owner(
    documents: Callable[[Document], list[Document]],
) -> None:
    """The Job has the owner's name and password, the service has not; no request is sent to the pod of the Job."""
    found = documents(LARGE)
    job, service = _one(found, "Job"), _one(found, "Deployment")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [container] = _pod(job)["spec"]["containers"]
    assert container["args"] == ["db", "upgrade", "--grant-to", "attestation"]
    alone = _pod(_one(documents(LARGE | {"migrations": {}}), "Job"))["spec"]["containers"][0]
    assert alone["args"] == ["db", "upgrade"]
    assert _environment(_pod(job))["ITL_DB_URL"] == LARGE["migrations"]["dbUrl"]
    assert _environment(_pod(service))["ITL_DB_URL"] == POSTGRES
    secrets = [
        {each["secret"]["secretName"] for each in _pod(pod)["spec"]["volumes"] if "secret" in each}
        for pod in (job, service)
    ]
    assert "owner" in secrets[0] - secrets[1]
    assert SECRETS["dbPassword"] in secrets[1] - secrets[0]
    for selector in (
        _one(found, "Service")["spec"]["selector"],
        _one(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= _pod(service)["metadata"]["labels"].items()
        assert not selector.items() <= _pod(job)["metadata"]["labels"].items()


def test_the_network_lets_through_what_is_needed(documents: Callable[[Document], list[Document]]) -> None:
    """Each way out is there because a setting needs it; the port of the database is the one in its URL."""
    small = _one(documents(SMALL), "NetworkPolicy")["spec"]
    large = _one(documents(LARGE), "NetworkPolicy")["spec"]
    assert small["policyTypes"] == ["Ingress", "Egress"]
    assert [[each["port"] for each in rule["ports"]] for rule in small["egress"]] == [[53, 53]]
    database, https, extra = large["egress"][1:]
    assert (database["ports"], database["to"]) == (
        [{"port": 6432, "protocol": "TCP"}],
        LARGE["networkPolicy"]["databasePeers"],
    )
    assert (https["ports"][0]["port"], https["to"]) == (443, LARGE["networkPolicy"]["httpsPeers"])
    assert extra == LARGE["networkPolicy"]["extraEgress"][0]
    assert large["ingress"][0]["from"] == LARGE["networkPolicy"]["from"]


def test_the_page_can_be_copied(program: Path, tmp_path: Path) -> None:
    """Its first values, its lines of Helm, and what it adds for several replicas."""
    page = text("docs/operate/helm.md")
    first, several = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [lines] = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "values-mine.yaml").write_text(first)
    (tmp_path / "several.yaml").write_text(several)
    (tmp_path / "deploy").symlink_to(chart.ROOT / "deploy")
    printed = ""
    added = lines.replace("values-mine.yaml", "values-mine.yaml --values several.yaml")
    for script in (lines, added):
        done = subprocess.run(
            ["sh", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"HOME": str(tmp_path), "PATH": f"{program.parent}:/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        printed = done.stdout
    assert "kind: Job" in printed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "settings.service_url: say under which address"),
        (SMALL | {"replicaCount": 2}, "more than one replica needs PostgreSQL"),
        (SMALL | {"autoscaling": {"enabled": True}}, "more than one replica needs PostgreSQL"),
        (LARGE | {"persistence": {}}, "keys that all of them can write"),
        (
            LARGE
            | {"settings": URL | {"db_url": POSTGRES}, "secrets": {}}
            | {"persistence": {"keys": {"existingClaim": "keys"}, "bundles": {"enabled": True}}},
            "and bundles where they are on a volume",
        ),
        (
            BUNDLES | {"settings": URL | {"runs_archive": BUCKET}},
            "are on a volume (persistence.bundles), or where",
        ),
        (SMALL | {"secrets": {"archiveCredentials": "bucket"}}, "are for a bucket"),
        (
            SMALL | {"secrets": {"tls": "tls"}, "ingress": {"enabled": True}},
            "the Ingress ends TLS, or the service",
        ),
        (SMALL | {"replicacount": 2}, "replicacount"),
        ({"settings": URL | {"reatest_seconds": 30}}, "reatest_seconds"),
        ({"settings": URL | {"reattest_seconds": 0}}, "reattest_seconds"),
        ({"settings": URL | {"tls_min_version": "TLSv1.1"}}, "tls_min_version"),
        ({"settings": URL | {"admin_token": "x"}}, "admin_token"),
        ({"settings": URL | {"db_url": POSTGRES.replace("@", ":secret@")}}, "db_url"),
        ({"settings": URL | {"db_url": f"{POSTGRES}?password=secret"}}, "db_url"),
        (SMALL | {"migrations": {"dbUrl": "mysql://x"}}, "dbUrl"),
        (SMALL | {"secrets": {"admintoken": "x"}}, "admintoken"),
        (SMALL | {"extensionSettings": {"ITL_DB_URL": "x"}}, "ITL_DB_URL"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_what_cannot_work_is_refused_before_anything_changes(
    run: RunHelm, values: Document, words: str
) -> None:
    """A mistyped name, a value out of bounds, a password in plain sight, replicas without what they share."""
    done = run("template", values)
    assert done.returncode != 0
    assert words in done.stderr
    assert not done.stdout
