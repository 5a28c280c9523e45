"""`--check`: everything that a start needs is looked at, nothing is touched, and each fault ends with what to do."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk

from attestation.audit import AuditEvent
from attestation.machines import Role, Status
from attestation.store import open_store
from attestation_service.inspection import storage
from attestation_service.inspection.finding import Finding, Level, as_text
from attestation_service.inspection.outside import names
from attestation_service.inspection.table import BEYOND, PARTS
from attestation_service.main import main
from tests.contract.store_samples import a_machine
from tests.contract.test_store_configurations import sealed
from tests.docs.pages import text
from tests.fixtures.operator_pki import OperatorCA

NOW = datetime.now(UTC)
Check = Callable[..., dict[str, list[dict[str, str]]]]

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for locks as long as a test can."""
    monkeypatch.setattr(storage, "LOCKED_SECONDS", 0.05)


@pytest.fixture(scope="module")
def started_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first start leaves, with a CA whose keys are encrypted."""
    place = tmp_path_factory.mktemp("installation")
    with pytest.MonkeyPatch.context() as patched:
        configure(patched, place)
        assert main(["--prepare"]) == 0
    return place


def configure(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Let the environment name an installation in *place*."""
    (place / "configs").mkdir(exist_ok=True)
    (place / "passphrase").write_text("correct horse\n")
    (place / "passphrase").chmod(0o600)
    monkeypatch.chdir(place)
    for name in [name for name in os.environ if name.startswith("ITL_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "SERVICE_URL": "https://attest.example",
        "DB_URL": f"sqlite:///{place}/m.db",
        "ENROLLMENT_CA_DIR": f"{place}/ca",
        "ENROLLMENT_CA_PASSPHRASE_FILE": f"{place}/passphrase",
        "ENROLLMENT_CA_ORGANIZATION": "Sample",
        "ENROLLMENT_CA_COUNTRY": "FR",
        "CONFIG_CACHE_DIR": f"{place}/configs",
        "ADMIN_TOKEN": "t" * 40,
    }.items():
        monkeypatch.setenv(f"ITL_{name}", value)


@pytest.fixture
def place(tmp_path: Path, started_once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that was started once, and stopped."""
    shutil.copytree(started_once, tmp_path / "service")
    configure(monkeypatch, tmp_path / "service")
    return tmp_path / "service"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return what asks, with settings changed, and gives what is not well, by part."""

    def ask(expected: int, *arguments: str, **changed: str) -> dict[str, list[dict[str, str]]]:
        with monkeypatch.context() as patched:
            for name, value in changed.items():
                patched.setenv(f"ITL_{name.upper()}", value)
            capsys.readouterr()
            status = main(["--check", "-o", "json", "--host", "127.0.0.1", "--port", "0", *arguments])
        told = json.loads(capsys.readouterr().out)
        assert status == expected, told
        assert told["ok"] is (expected == 0)
        found: dict[str, list[dict[str, str]]] = {}
        for each in told["findings"]:
            if each["level"] != "ok":
                found.setdefault(each["part"], []).append(each)
        return found

    return ask


def tree(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Return for every file and folder: mode, instant of the last change, size, digest."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.stat().st_size,
            sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [folder, *folder.rglob("*")]
    }


# Nothing is touched


@pytest.mark.threat("T175")
def test_an_empty_installation_stays_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    """A start would make everything; who only asks makes nothing, not even a lock."""
    configure(monkeypatch, tmp_path)
    before = tree(tmp_path)
    assert check(0) == {}
    assert tree(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["configs", "passphrase"]


@pytest.mark.threat("T175")
def test_an_installation_stays_as_it_was(place: Path, check: Check) -> None:
    """Also where something is wrong, and where it would be migrated: that is said, and not done."""
    before = tree(place)
    assert check(0) == {}
    assert tree(place) == before
    with closing(sqlite3.connect(place / "m.db")) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '0018'")
    before = tree(place)
    found = check(0)
    assert "would be migrated from revision 0018 to 0" in found["database"][0]["what"]
    assert "backup" in found["database"][0]["todo"]
    assert "not looked at" in found["CA"][0]["what"]
    check(1, oidc_issuer="https://127.0.0.1:1/realm", service_key=f"file:{place}/configs")
    assert tree(place) == before


# The database


def at(db: sqlite3.Connection, revision: str, *, serves: bool) -> None:
    """Let it say that it is at *revision*, and whether that serves any version."""
    db.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    if not serves:
        db.execute("DELETE FROM schema_support")


def test_a_newer_database_that_serves_this_version(place: Path, check: Check) -> None:
    """A start would serve; that the upgrade is not finished is a warning. Everything else is looked at."""
    with closing(sqlite3.connect(place / "m.db")) as db, db:
        at(db, "9999", serves=True)
    found = check(0)
    assert "to revision 9999; this one, 00" in found["database"][0]["what"]
    assert found.keys() == {"database"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda db: at(db, "9999", serves=False), "9999, which this version"),
        (lambda db: at(db, "0008", serves=False), "upgrades from 0009 on"),
        (lambda db: db.execute(f"UPDATE database_identity SET database_id = '{'f' * 32}'"), "this is another database"),
        (lambda db: db.execute("UPDATE database_identity SET bound_at = NULL"), None),
    ],
    ids=["newer", "older", "another", "bound by the next start"],
)  # fmt: skip
def test_a_database_of_others(place: Path, check: Check, spoil: Any, words: str | None) -> None:
    """What a start would refuse is refused here, in the same words."""
    with closing(sqlite3.connect(place / "m.db")) as db, db:
        spoil(db)
    found = check(0 if words is None else 1)
    assert (words in found["database"][0]["what"]) if words else (found == {})


def test_a_database_that_is_none_or_not_there(place: Path, check: Check, tmp_path: Path) -> None:
    """Foreign, no database, a folder that is missing, a URL that is none; missing where keys know one."""
    with closing(sqlite3.connect(tmp_path / "grafana.db")) as db:
        db.execute("CREATE TABLE dashboards (id)")
    (tmp_path / "text.db").write_text("no database\n" * 100)
    for url, words in (
        (f"sqlite:///{tmp_path}/grafana.db", "of another program (tables dashboards)"),
        (f"sqlite:///{tmp_path}/text.db", "is no SQLite database"),
        ("sqlite:////nowhere/at/all/m.db", "does not exist. Correct ITL_DB_URL"),
        ("/var/x.db", "for this file sqlite:////var/x.db"),
        (f"sqlite:///{tmp_path}/m.db", "is missing or empty. The keys in"),
    ):
        assert words in check(1, db_url=url)["database"][0]["what"]
    assert not (tmp_path / "m.db").exists()


def test_a_copy_without_its_index_is_not_taken_for_an_older_one(place: Path, check: Check) -> None:
    """A start reads what only the -wal file has; who looked without it would advise to accept a restored database."""
    memory = place / "ca" / "audit-memory.json"
    remembered = json.loads(memory.read_text())
    origin, _, rest = remembered["last"].split("\n", 2)
    remembered["last"] = f"{origin}\n99\n{rest}"
    memory.write_text(json.dumps(remembered))
    assert "older copy" in check(1)["database"][0]["what"]
    (place / "m.db-wal").write_bytes(b"x")
    (told,) = check(0)["database"]
    assert (told["level"], "a start reads what is only there" in told["what"]) == ("warning", True)


def test_a_lock_that_is_held_is_told_with_its_holder(place: Path, check: Check) -> None:
    """By this process, which asks the kernel: locks of one's own are none, so a child holds it."""
    held, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        db = sqlite3.connect(place / "m.db", isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        os.write(held[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    try:
        os.read(held[0], 1)
        (told,) = check(1)["database"]
        assert f"process {child} has kept {place}/m.db locked" in told["what"]
    finally:
        os.write(end[1], b"x")
        os.waitpid(child, 0)
    assert "database" not in check(0)


def test_what_may_not_be_written(place: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """No right, a read-only file system, a full disk: as the system says them, whoever runs the test."""
    access, statvfs = os.access, os.statvfs

    def forbidden(path: Any, mode: int, **more: Any) -> bool:
        return False if mode & os.W_OK else access(path, mode, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "access", forbidden)
        found = check(1)
        assert "may not write to the database" in found["database"][0]["what"]
        assert "chown -R" in found["folders"][0]["todo"]
        found = check(1, enrollment_ca_dir=f"{place}/none")
        assert any("may not make it" in each["what"] for each in found["folders"])

    # One file of another user's is enough: who else had the database open, or started the service once as root.
    for name, part, words in (
        ("m.db-shm", "database", "may not write to the database"),
        ("m.db.migrate-lock", "database", "may not write to the database"),
        ("ca/.audit-memory.json.lock", "folders", "may not lock"),
    ):
        made = not (place / name).exists()
        (place / name).touch()
        with monkeypatch.context() as patched:
            patched.setattr(
                os,
                "access",
                lambda path, mode, name=name, **more: (
                    not str(path).endswith(name) and access(path, mode, **more)
                ),
            )
            (told,) = check(1)[part]
            assert words in told["what"]
            assert name in told["what"]
            assert "chown -R" in told["what"] + told["todo"]
        if made:
            (place / name).unlink()

    class Like:
        def __init__(self, real: os.statvfs_result, **other: int) -> None:
            self.__dict__ = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")} | other

    for other, level, part, words in (
        ({"f_flag": os.ST_RDONLY}, 1, "database", "read-only"),
        ({"f_bavail": 1}, 1, "disk", "nothing can be written"),
        ({"f_favail": 0, "f_files": 9}, 1, "disk", "nothing can be written"),
        ({"f_bavail": (100 << 20) // statvfs(place).f_frsize}, 0, "disk", "grows with each machine"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(os, "statvfs", lambda path, other=other: Like(statvfs(path), **other))
            assert words in check(level)[part][0]["what"]


def test_modes_and_owners(place: Path, check: Check) -> None:
    """What everybody may read is warned of; a start would serve."""
    (place / "ca").chmod(0o755)
    (place / "m.db").chmod(0o644)
    (place / "passphrase").chmod(0o644)
    (place / ".env").write_text("ITL_RESULT_HISTORY=5\n")
    (place / ".env").chmod(0o644)
    found = check(0)
    assert f"chmod 0600 {place}/m.db" == found["database"][0]["todo"]
    assert f"chmod 0700 {place}/ca" == found["folders"][0]["todo"]
    assert [each["todo"] for each in found["secrets"]] == [f"chmod o= {place}/passphrase", "chmod o= .env"]
    if os.geteuid() == 0:
        shutil.chown(place / "ca", 4711)
        assert any("--reuid 4711" in each["todo"] for each in check(0)["folders"])
    (place / "file").touch()
    assert "is no folder" in check(1, enrollment_ca_dir=f"{place}/file")["folders"][0]["what"]


# The keys


def test_keys_that_are_gone_or_others(
    place: Path, check: Check, started_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three; nothing is made in their place, and what to do is told."""
    ca = place / "ca"
    (key,) = ca.glob("itl-enrollment-ca-*.pem")
    # Where the database says that the key was made it is no more, as after a restore elsewhere.
    monkeypatch.setattr(
        Path, "exists", lambda path, e=Path.exists: started_once not in path.parents and e(path)
    )
    for path, part, words in (
        (ca / "service-key.pem", "service key", "no other is made in its place"),
        (ca / "audit-ed25519.pem", "audit keys", "was signed up to entry 2"),
        (key, "CA", "cannot be read: No such file"),
    ):
        if part == "audit keys":
            sign_once(place)
        kept = path.rename(place / "kept")
        (told,) = check(1)[part]
        assert words in told["what"]
        assert told["todo"]
        assert not path.exists()
        kept.rename(path)
    (place / "passphrase").write_text("another\n")
    assert "passphrase does not decrypt" in check(1)["CA"][0]["what"]
    (place / "passphrase").unlink()
    assert "passphrase" in check(1)["CA"][0]["what"]
    fresh = {"db_url": f"sqlite:///{place}/new.db", "enrollment_ca_dir": f"{place}/fresh"}
    assert "passphrase" in check(1, **fresh)["CA"][0]["what"]
    assert "0600" in check(1, service_key=f"file:{mode(key, 0o644)}")["service key"][0]["what"]


def mode(path: Path, bits: int) -> Path:
    """Change the mode of *path*; return it."""
    path.chmod(bits)
    return path


def sign_once(place: Path) -> None:
    """Let the log be signed, as a service does a minute after its start."""
    import asyncio

    from attestation.clock import SystemClock
    from attestation_service.settings import Settings
    from attestation_service.transparency import Log, load_log_signer

    settings = Settings.load()
    store = open_store(settings.db_url)

    async def sign() -> None:
        await store.write(lambda tx: tx.audit.append(AuditEvent(operator_cn="x", action="x"), NOW))
        await Log(settings, SystemClock(), store, load_log_signer(settings)).advance(force=True)

    with closing(sqlite3.connect(place / "m.db")) as db:
        assert db.execute("SELECT count(*) FROM audit_log").fetchone() == (1,)  # the CA was made
    asyncio.run(sign())
    store.close()


def test_a_token_that_does_not_answer(place: Path, check: Check) -> None:
    """A first start would fail, because it makes the key; later ones go without it and say so."""
    where = {"enrollment_ca_key": "pkcs11:token=T?module-name=none", "db_url": f"sqlite:///{place}/new.db"}
    fresh = {**where, "enrollment_ca_dir": f"{place}/fresh"}
    assert check(1, **fresh)["CA"]


# What others see and say


def test_certificate_and_key_of_tls(place: Path, check: Check) -> None:
    """They fit; they are for this host, and valid now and for a while."""
    ca = OperatorCA(NOW)
    for wanted, expected, words in (
        (("attest.example",), 0, ""),
        (("*.example",), 0, ""),
        (("other.example",), 0, "is not for attest.example"),
    ):
        certificate, key = ca.server(*wanted, ends=NOW + timedelta(days=60)).files(place, "tls")
        found = check(expected, tls_cert_file=str(certificate), tls_key_file=str(key)).get("TLS")
        assert (words in found[0]["what"]) if words and found else (found is None and not words)
    soon = ca.server("attest.example", ends=NOW + timedelta(days=5)).files(place, "tls")
    assert "ends on" in check(0, tls_cert_file=str(soon[0]), tls_key_file=str(soon[1]))["TLS"][0]["what"]
    other = ca.server("attest.example").files(place, "other")
    mixed = check(1, tls_cert_file=str(other[0]), tls_key_file=str(soon[1]))["TLS"][0]["what"]
    assert "ITL_TLS_KEY_FILE" in mixed
    bare = OperatorCA(NOW)
    assert not names(bare.certificate, "attest.example")


class Issuer(BaseHTTPRequestHandler):
    """An identity provider that says what it is told to."""

    documents: dict[str, Any]
    date: str

    def do_GET(self) -> None:
        """Answer."""
        body = json.dumps(self.documents.get(self.path)).encode()
        self.send_response_only(200 if self.path in self.documents else 404)
        self.send_header("Date", self.date)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def provider(issuer_says: str | None = None, date: str | None = None) -> Iterator[str]:
    """Run one; yield its issuer."""
    key = jwk.ECKey.generate_key("P-256", {"alg": "ES256", "use": "sig", "kid": "1"}, private=True)
    server = HTTPServer(("127.0.0.1", 0), Issuer)
    issuer = f"http://127.0.0.1:{server.server_port}/realm"
    metadata = {"issuer": issuer_says or issuer, "jwks_uri": f"{issuer}/keys"}
    Issuer.documents = {
        "/realm/.well-known/openid-configuration": metadata,
        "/realm/keys": {"keys": [key.as_dict(private=False)]},
    }
    Issuer.date = date or format_datetime(datetime.now(UTC), usegmt=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_identity_provider_is_asked(place: Path, check: Check) -> None:
    """Away, somebody else, or with another clock: nobody could log in."""
    with provider() as issuer:
        assert {*check(0, oidc_issuer=issuer)} == {"settings"}  # http:// is warned of
    with provider("https://somebody.else") as issuer:
        (told,) = check(1, oidc_issuer=issuer)["operators"]
        assert f"expected {issuer}" in told["what"]
    with provider(date=format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)) as issuer:
        assert "differs by 3" in check(1, oidc_issuer=issuer)["clock"][0]["what"]
    with provider(date="yesterday") as issuer:
        assert "clock" not in check(0, oidc_issuer=issuer)
    (told,) = check(1, oidc_issuer="https://127.0.0.1:1/realm")["operators"]
    assert "ConnectError" in told["what"]
    assert "ITL_OIDC_CA_FILE" in told["todo"]


def test_operators_with_certificates_and_witnesses(place: Path, check: Check, tmp_path: Path) -> None:
    """A bundle that is none, a list that is missing, a witness that cannot be asked."""
    bundle = tmp_path / "operators.pem"
    bundle.write_bytes(OperatorCA(NOW).pem)
    (told,) = check(1, operator_ca=str(bundle), operator_crl=str(tmp_path / "none"))["operators"]
    assert "no operator is let in by certificate" in told["what"]
    bundle.write_text("none")
    assert "ITL_OPERATOR_CA" in check(1, operator_ca=str(bundle))["operators"][0]["what"]
    assert "a vkey, a space and a URL" in check(1, audit_witnesses="somebody")["operators"][0]["what"]
    assert "ITL_FIRMWARE" in check(1, firmware_blocklist_file=str(bundle))["trust"][0]["what"]


def shown() -> str:
    """Return the pattern of what docs/operate/check.md shows, line breaks apart; findings between may be left out."""
    screen = text("docs/operate/check.md").split("```")[3].strip()
    findings = (" ".join(each.split()) for each in re.split(r"\n(?=\w)", screen))
    return ".*".join(re.escape(each).replace("…", ".*") for each in findings)


def test_configurations_of_what_is_in_use(
    place: Path, check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder, and a file that can be read for each cluster and role that machines have."""
    store = open_store(f"sqlite:///{place}/m.db")
    for number, (role, status) in enumerate(
        [(Role.WORKER_APP, Status.ATTESTED), (Role.LINUX, Status.REGISTERED), (Role.WINDOWS, Status.REVOKED)]
    ):
        machine = a_machine(number + 1, role=role, status=status, cluster_id="prod" if number else "default")
        store.write_sync(lambda tx, m=machine: tx.machines.add(m))  # type: ignore[misc]  # a default has no type
    store.close()
    (place / "configs" / "worker-app-final.yaml").write_text("version: v1alpha1\nmachine: {}\n")
    (told,) = check(0)["configurations"]
    assert "role linux in cluster prod" in told["what"]
    assert told["todo"].endswith("configs/prod/linux-final.yaml")
    capsys.readouterr()
    monkeypatch.setenv("ITL_OIDC_ISSUER", "https://127.0.0.1:1/realms/itl")
    assert main(["--check", "--port", "0"]) == 1
    printed = capsys.readouterr().out.replace("127.0.0.1:1", "id.example")
    printed = printed.replace(f"{place}/m.db", "/var/lib/itl-reg/db/machines.db")
    printed = " ".join(printed.replace(str(place), "/var/lib/itl-reg").split())
    assert re.search(shown(), printed), printed
    monkeypatch.delenv("ITL_OIDC_ISSUER")
    (place / "configs" / "worker-app-final.yaml").write_text("version: [\n")
    assert len(check(0)["configurations"]) == 2
    (told,) = check(1, config_cache_dir=f"{place}/none")["configurations"]
    assert "does not exist" in told["what"]
    assert "install -d" in told["todo"]


def test_configurations_in_the_database(place: Path, check: Check) -> None:
    """The key is opened; what is in use is looked for there alone; a key that is absent, or another, is told of."""
    kek = place / "config.kek"
    kek.write_text("ab" * 32)
    kek.chmod(0o600)
    keyed = {"config_kek": f"file:{kek}"}
    store = open_store(f"sqlite:///{place}/m.db")
    machine = a_machine(1, role=Role.WORKER_APP, status=Status.ATTESTED, cluster_id="default")
    store.write_sync(lambda tx: tx.machines.add(machine))
    (told,) = check(0, **keyed)["configurations"]
    assert "no base configuration is active for role worker-app in cluster default" in told["what"]
    assert told["todo"] == "attestation config import default/worker-app FILE, then config activate"
    store.write_sync(lambda tx: tx.configurations.add(sealed(1, kek_id="another")))
    store.close()
    told, _ = check(1, **keyed)["configurations"]
    assert told["what"] == "ITL_CONFIG_KEK: versions lie under keys that are not set: another"
    kek.unlink()
    told, _ = check(1, **keyed)["configurations"]
    assert f"{kek} cannot be read" in told["what"]


def test_the_clock(place: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the newest audit entry, or before any that can be right."""
    from attestation import clock

    for at, words in (
        (NOW - timedelta(hours=1), "the newest audit entry is of"),
        (datetime(1970, 1, 2, tzinfo=UTC), "1970"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(clock.SystemClock, "now", lambda _self, at=at: at)
            assert words in check(1)["clock"][0]["what"]


def test_the_port_and_the_socket(place: Path, check: Check) -> None:
    """Free, taken by a stranger, by a service like this one; a folder for the socket."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "another program listens there" in check(1, "--port", port)["port"][0]["what"]
    server = HTTPServer(("127.0.0.1", 0), Issuer)
    Issuer.documents = {"/readyz": {"checks": {"database": "ok", "service_key": "ok"}}}
    Issuer.date = "now"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        (told,) = check(0, "--port", str(server.server_port))["port"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert told["todo"].startswith("nothing, if this is what you are about to restart")
    assert "port" not in check(0, "--uds", f"{place}/s")
    assert "no socket can be made" in check(1, "--uds", "/nowhere/s")["port"][0]["what"]
    assert "is no socket" in check(1, "--uds", f"{place}/ca")["port"][0]["what"]
    assert "at most 107 bytes" in check(1, "--uds", f"/tmp/{'s' * 103}")["port"][0]["what"]


# What is told


def test_it_is_told_in_lines_that_fit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has its level and part, what goes on is indented, and the end says what it comes to."""
    assert main(["--check", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 100 or len(line.split()[-1]) > 40 for line in out.splitlines())
    assert out.splitlines()[0].startswith("ok       database        ")
    assert out.endswith("A start would serve. Warnings: 0. Nothing was changed.\n")
    found = [Finding("x", Level.FAILED, "broken", "mend it"), Finding("y", Level.WARNING, "old")]
    told = as_text(found, 80, "good", "bad")
    assert "To do: mend it" in told
    assert "bad: 1 FAILED. Warnings: 1." in told


def test_it_is_told_on_every_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an encoding has no character for becomes a question mark, and no traceback."""
    out = io.BytesIO()
    monkeypatch.setenv("ITL_CONFIG_CACHE_DIR", f"{place}/caché")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii", write_through=True))
    assert main(["--check", "--port", "0"]) == 1
    assert b"/cach?" in out.getvalue()
    shutil.copy(place / "m.db", place / "é.db")
    assert main(["db", "check", "--url", f"sqlite:///{place}/é.db"]) == 0
    assert b"/?.db is whole" in out.getvalue()


def test_settings_that_cannot_be_read_are_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """Without them there is nothing to look at: exit code 2, as a start has."""
    monkeypatch.setenv("ITL_SERVICE_URL", "")
    assert main(["--check"]) == 2
    assert "ITL_SERVICE_URL is not set" in capsys.readouterr().err


def test_each_part_is_explained() -> None:
    """The page has a row for every part, in the order in which they are told, and for no other."""
    page = (Path(__file__).parents[3] / "docs" / "operate" / "check.md").read_text(encoding="utf-8")
    beyond = [part for part in BEYOND if part not in PARTS]
    assert re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE) == ["database", *PARTS, *beyond]
