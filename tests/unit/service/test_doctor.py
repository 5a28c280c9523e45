"""`doctor`: what `--check` looks at and more; each finding is made to appear, with what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from attestation import clock
from attestation.clock import rfc3339
from attestation_service.inspection import beyond, outside
from attestation_service.inspection.case import NOTHING, Case, Listen
from attestation_service.inspection.finding import Level
from attestation_service.inspection.table import BEYOND, PARTS
from attestation_service.main import main
from attestation_service.settings import Settings
from tests.docs.pages import text
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.postgres import Server
from tests.unit.service.test_inspection import place, quick, started_once

__all__ = ["place", "quick", "started_once"]

LISTEN = Listen(host="127.0.0.1", port=0, uds=None)

Doctor = Callable[..., dict[str, list[dict[str, str]]]]

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return what asks, with settings changed, and gives all findings, by part."""

    def ask(expected: int, **changed: str) -> dict[str, list[dict[str, str]]]:
        with monkeypatch.context() as patched:
            for name, value in changed.items():
                patched.setenv(f"ITL_{name.upper()}", value)
            capsys.readouterr()
            status = main(["doctor", "-o", "json"])
        told = json.loads(capsys.readouterr().out)
        assert status == expected, told
        found: dict[str, list[dict[str, str]]] = {}
        for each in told["findings"]:
            found.setdefault(each["part"], []).append(each)
        return found

    return ask


def test_it_looks_at_all_that_a_check_looks_at(place: Path, doctor: Doctor) -> None:
    """But for the port, at which the service may well answer; the page has a row for each part."""
    before = {each: each.stat().st_mtime_ns for each in place.rglob("*")}
    found = doctor(0)
    assert found.keys() >= PARTS.keys() - {"port", "extensions", "configurations", "database clock"}
    assert BEYOND.keys() >= PARTS.keys() - {"port"}
    assert {each: each.stat().st_mtime_ns for each in place.rglob("*")} == before
    rows = text("docs/operate/check.md")
    assert [part for part in ("database", *BEYOND) if f"| `{part}` |" not in rows] == []


def test_a_backup_that_is_old_or_missing_is_told(
    place: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its age is what the audit says."""
    assert "none was ever made" in doctor(0)["backups"][0]["what"]
    assert main(["backup", "--to", str(place / "b")]) == 0
    assert doctor(0)["backups"][0]["level"] == "ok"
    later = datetime.now(UTC) + timedelta(days=3)
    with monkeypatch.context() as patched:
        patched.setattr(clock.SystemClock, "now", lambda _: later)
        (told,) = doctor(0)["backups"]
    assert (told["level"], "days old: machines that were locked" in told["what"]) == ("warning", True)
    assert told["todo"].startswith("attestation-service backup --to")


def test_a_clock_that_is_not_the_databases_is_told(
    place: Path, doctor: Doctor, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's counts; an empty one, which the keys do not know, has a clock too."""
    url = postgres_server.create("doctor")
    try:
        assert any("agrees with the database's" in each["what"] for each in doctor(1, db_url=url)["clock"])
        off = datetime.now(UTC) + timedelta(minutes=5)
        monkeypatch.setattr(clock.SystemClock, "now", lambda _: off)
        (told,) = [each for each in doctor(1, db_url=url)["clock"] if each["level"] == "warning"]
        assert "from the database's, which counts" in told["what"]
        # Ahead, as the log is by this clock: the database's is an hour behind it. Behind: it would be, and is not.
        settings = Settings(service_url="https://attest.example", db_url=url)
        for newest, minutes, level in ((-1, -5, Level.OK), (55, 60, Level.FAILED), (-1, 60, Level.OK)):
            host = datetime.now(UTC) + timedelta(minutes=minutes)
            monkeypatch.setattr(clock.SystemClock, "now", lambda _, host=host: host)
            entry = rfc3339(datetime.now(UTC) + timedelta(minutes=newest))
            facts = replace(NOTHING, newest=entry)
            (found,) = outside.clock(Case(settings=settings, listen=LISTEN, at=host, facts=facts))
            assert found.level == level, found
    finally:
        postgres_server.drop("doctor")


@contextmanager
def answering(answer: bytes, files: tuple[Path, Path] | None) -> Iterator[int]:
    """Answer one SSLRequest at a port as a server of PostgreSQL does, then with TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(8) == b"\0\0\0\x08\x04\xd2\x16\x2f"
                connection.sendall(answer)
                if files is not None:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(*files)
                    with (
                        contextlib.suppress(OSError),
                        context.wrap_socket(connection, server_side=True) as tls,
                    ):
                        tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(30)


def test_the_certificate_of_the_database_is_looked_at(place: Path) -> None:
    """Whether there is one, for whom, of whose CA, and until when."""
    now = datetime.now(UTC)
    ca, other = OperatorCA(now), OperatorCA(now)
    (place / "ca.pem").write_bytes(ca.pem)
    good = ca.server("localhost", ends=now + timedelta(days=29)).files(place, "good")
    for answer, files, level, words in (
        (b"S", good, Level.OK, "localhost until"),
        (
            b"S",
            ca.server("localhost", ends=now + timedelta(days=3)).files(place, "soon"),
            Level.WARNING,
            "ends on",
        ),
        (b"S", ca.server("db.example").files(place, "name"), Level.FAILED, "CERTIFICATE_VERIFY_FAILED"),
        (b"S", other.server("localhost").files(place, "other"), Level.FAILED, "CERTIFICATE_VERIFY_FAILED"),
        (b"N", None, Level.WARNING, "speaks no TLS"),
    ):
        with answering(answer, files) as port:
            url = f"postgresql+psycopg://u@localhost:{port}/d?sslmode=verify-full&sslrootcert={place}/ca.pem"
            settings = Settings(db_url=url)
            case = Case(settings=settings, listen=Listen(host="", port=0, uds=None), at=now)
            (told,) = beyond.database_tls(case)
        assert (told.level, words in told.what) == (level, True), told


def test_each_of_several_servers_shows_its_certificate(place: Path) -> None:
    """As our own words name them for a standby: separated by commas, with a port for each."""
    now = datetime.now(UTC)
    ca = OperatorCA(now)
    (place / "ca.pem").write_bytes(ca.pem)
    good = ca.server("localhost", ends=now + timedelta(days=29)).files(place, "good")
    with answering(b"S", good) as first, answering(b"N", None) as second:
        where = f"host=localhost,localhost&port={first},{second}"
        url = f"postgresql+psycopg://u@/d?{where}&sslmode=verify-full&sslrootcert={place}/ca.pem"
        case = Case(settings=Settings(db_url=url), listen=Listen(host="", port=0, uds=None), at=now)
        assert [told.level for told in beyond.database_tls(case)] == [Level.OK, Level.WARNING]
