"""The service on PostgreSQL: started, recognised, looked at, refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from attestation.store import grant
from tests.fixtures.extension import install_example
from tests.fixtures.postgres import Server
from tests.fixtures.service import Operator, ServiceProcess, StartService, operator, start_service

__all__ = ["operator", "start_service"]


def _run(service: ServiceProcess, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the settings of *service*."""
    return subprocess.run(
        [Path(sys.executable).with_name("attestation-service"), "--port", "0", *arguments],
        env=service.settings() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def url(postgres_server: Server) -> Iterator[str]:
    """An empty database, which nobody migrated."""
    yield postgres_server.create("service").replace("postgresql:", "postgresql+psycopg:", 1)
    postgres_server.drop("service")


@pytest.fixture(scope="module")
def service(start_service: StartService, url: str) -> ServiceProcess:
    """Two workers on it."""
    return start_service(workers=2, ITL_DB_URL=url, ITL_ENROLLMENT_CA_UNENCRYPTED="true")


def test_the_service_migrates_and_knows_its_database_again(
    service: ServiceProcess, operator: Operator
) -> None:
    before = operator.audit()
    assert service.stop() == 0
    looked = _run(service, "--check")
    told = " ".join(looked.stdout.split())
    assert "it is the one that the keys know" in told
    assert "the role itl may change the tables themselves" in told
    service.start()
    assert operator.audit()[-len(before) :] == before
    assert sum(e["action"] == "ca_created" for e in before) == 1
    assert operator.audit_is_valid()


@pytest.mark.threat("T120")
def test_an_empty_database_is_no_other_for_keys_that_remember_one(
    service: ServiceProcess, postgres_server: Server
) -> None:
    other = postgres_server.create("emptied")
    for arguments in (("--check",), ()):
        refused = _run(service, *arguments, ITL_DB_URL=other)
        assert refused.returncode == 1
        assert "is missing or empty. The keys in" in " ".join(refused.stdout.split())
    postgres_server.admin("DROP DATABASE emptied")


@pytest.mark.threat("T120")
def test_a_database_that_was_put_in_its_place_is_refused(
    service: ServiceProcess, postgres_server: Server
) -> None:
    other = postgres_server.create("exchanged", template="empty")
    refused = _run(service, ITL_DB_URL=other)
    assert refused.returncode == 1
    assert "this is another database" in refused.stdout
    postgres_server.drop("exchanged")


def _as(url: str, role: str) -> str:
    return url.replace("://itl@", f"://{role}@", 1)


def _database(looked: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """Return what --check found of the database."""
    return [each for each in json.loads(looked.stdout)["findings"] if each["part"] == "database"]


def _granted(server: Server, database: str, role: str) -> None:
    """Let *role* read and write what is in *database*, and make nothing."""
    with psycopg.connect(server.url(database), autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
    grant(server.url(database), role)


UPGRADE = "run `attestation-service db upgrade --grant-to ROLE`, with that role, as the owner of the tables"


@pytest.mark.threat("T184")
def test_a_role_that_may_make_nothing_serves(
    postgres_server: Server, start_service: StartService, tmp_path: Path
) -> None:
    """A schema that is current is left alone; one that is behind ends the start with the way out."""
    url = postgres_server.create("granted", template="empty")
    _granted(postgres_server, "granted", "serving")
    found = _database(
        _run(ServiceProcess(directory=tmp_path), "--check", "-o", "json", ITL_DB_URL=_as(url, "serving"))
    )
    assert [each["level"] for each in found] == ["ok", "ok"]
    assert re.fullmatch(r"PostgreSQL \d+\S*( \(.*\))?, no TLS, role serving", found[1]["what"])
    service = start_service(ITL_DB_URL=_as(url, "serving"), ITL_ENROLLMENT_CA_UNENCRYPTED="true")
    with closing(service.operator().http) as http:
        assert Operator(http, service.admin_token).audit_is_valid()
    assert _run(service, "backup", "--to", str(tmp_path / "backup")).returncode == 0
    service.stop()
    other = postgres_server.create("restored")  # by its owner; ITL_DB_URL names the service's role
    restored = _run(service, "restore", "--from", str(tmp_path / "backup"), "--url", other)
    assert "The keys know it" in restored.stdout, restored.stderr
    postgres_server.drop("restored")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("UPDATE alembic_version SET version_num = '0027'")
    behind = _run(service)
    assert behind.returncode == 1
    assert UPGRADE in behind.stdout
    first, _ = _database(_run(service, "--check", "-o", "json"))
    assert first["level"] == "FAILED"
    assert "may not migrate it" in first["what"]
    assert first["todo"].endswith("db upgrade --grant-to serving")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON chip_marks FROM serving")
    [first] = _database(_run(service, "--check", "-o", "json"))
    assert (first["level"], "may not read and write chip_marks" in first["what"]) == ("FAILED", True)
    assert first["todo"].endswith("db upgrade --grant-to serving")  # never more rights than that gives


def test_a_role_that_may_make_nothing_is_told_so_of_an_empty_database(
    postgres_server: Server, tmp_path: Path
) -> None:
    url = _as(postgres_server.create("bare"), "stranger")
    postgres_server.admin("CREATE ROLE stranger LOGIN")
    first, _ = _database(_run(ServiceProcess(directory=tmp_path), "--check", "-o", "json", ITL_DB_URL=url))
    assert (first["level"], "may make nothing in it" in first["what"]) == ("FAILED", True)
    assert first["todo"].endswith("db upgrade --grant-to stranger")
    refused = _run(ServiceProcess(directory=tmp_path), ITL_DB_URL=url)
    assert refused.returncode == 1
    assert UPGRADE in refused.stdout
    postgres_server.drop("bare")
    postgres_server.admin("DROP ROLE stranger")


def test_an_extension_whose_tables_only_the_owner_may_make(postgres_server: Server, tmp_path: Path) -> None:
    """Its migrations need the owner as ours do; a stranger's that cannot be run is left out, in words."""
    url = postgres_server.create("extended", template="empty")
    _granted(postgres_server, "extended", "extending")
    install_example(tmp_path)
    refused = _run(
        ServiceProcess(
            directory=tmp_path, environment={"ITL_EXTENSIONS": "visits", "PYTHONPATH": str(tmp_path)}
        ),
        "--prepare",
        ITL_DB_URL=_as(url, "extending"),
    )
    assert refused.returncode == 0
    assert "extension.skipped" in refused.stdout
    assert UPGRADE in refused.stdout
    postgres_server.drop("extended")
    postgres_server.admin("DROP ROLE extending")


def test_a_database_of_another_encoding_is_refused(postgres_server: Server, tmp_path: Path) -> None:
    postgres_server.admin("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'")
    service = ServiceProcess(directory=tmp_path)
    for arguments in ((), ("--check",)):
        refused = _run(service, *arguments, ITL_DB_URL=postgres_server.url("latin"))
        assert refused.returncode == 1
        assert "the database has the encoding LATIN1" in refused.stdout
    postgres_server.drop("latin")


def test_the_password_is_read_at_each_connection(postgres_server: Server, tmp_path: Path) -> None:
    """A new one counts for whoever connects next; a wrong one and a missing file end the start in words."""
    url = postgres_server.create("secret", template="empty")
    postgres_server.admin("CREATE ROLE secretive LOGIN SUPERUSER PASSWORD 'first'")
    access = postgres_server.folder / "data/pg_hba.conf"
    access.write_text("local all secretive scram-sha-256\n" + access.read_text())
    postgres_server.admin("SELECT pg_reload_conf()")
    file = tmp_path / "password"
    service = ServiceProcess(
        directory=tmp_path,
        environment={"ITL_DB_URL": _as(url, "secretive"), "ITL_DB_PASSWORD_FILE": str(file)},
    )
    missing = _run(service, "--check")
    assert f"cannot be read from {file}: FileNotFoundError" in " ".join(missing.stdout.split())
    file.write_text("other\n")
    wrong = _run(service)
    assert wrong.returncode == 1
    assert "password" in wrong.stdout
    assert "other" not in wrong.stdout
    file.write_text("first\n")
    service.start()
    postgres_server.admin("ALTER ROLE secretive PASSWORD 'second'")
    file.write_text("second\n")
    with psycopg.connect(postgres_server.url("postgres")) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'secretive'")
    with closing(service.operator().http) as http:
        assert Operator(http, service.admin_token).audit_is_valid()
    service.stop()
    assert "first" not in service.log()
    postgres_server.drop("secret")
