"""Two hosts whose folders of keys are empty start at the same moment on one empty database (docs/adr/0109)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.postgres import Server
from tests.fixtures.service import ServiceProcess
from tests.integration.replicas.conftest import until

pytestmark = pytest.mark.slow


def test_one_is_the_service_and_the_other_does_not_start(tmp_path: Path, postgres_server: Server) -> None:
    """Not today and not at its next start: it is told whose the database is, and what of its folder has to go."""
    url = postgres_server.create("first").replace("postgresql:", "postgresql+psycopg:", 1)
    both = [
        ServiceProcess(
            directory=tmp_path / name,
            environment={
                "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
                "ITL_SERVICE_URL": "https://attest.example",
            },
            server_url=url,
        )
        for name in ("one", "other")
    ]
    try:
        for each in both:
            each.directory.mkdir()
            each.start(ready=False)
        until(lambda: any(each.is_ready() for each in both), "one that serves")
        (serves,) = [each for each in both if each.is_ready()]
        (refused,) = [each for each in both if each is not serves]
        told = ended(refused)
        made = sorted(each.name for each in (refused.directory / "ca").glob("*.pem"))
        assert "remove what this start made there" in told or not made, (made, told)
        # What it made opens no door later either, and nothing of it is a CA.
        assert "ca-" not in " ".join(made)
        refused.start(ready=False)
        ended(refused)
        created = "SELECT count(*) AS n FROM audit_log WHERE action = 'ca_created'"
        assert serves.rows(created) == [{"n": 1}]
        assert serves.is_ready()
        operator = serves.operator()
        assert operator.audit_is_valid()
        operator.http.close()
    finally:
        for each in both:
            each.kill()
        postgres_server.drop("first")


def ended(service: ServiceProcess) -> str:
    """Return what a process said that refused to serve."""
    process = service._process
    assert process is not None
    assert process.wait(240) != 0
    told = service.log()
    assert "service.unusable" in told
    assert (
        "Replicas share their keys: copy " in told or "A replica of a service that runs gets a copy" in told
    )
    return told
