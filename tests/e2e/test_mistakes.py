"""Each mistake of a beginner ends with what happened, why, and what to do, as docs/operate/troubleshooting.md says.

The page is the table that is held: what stands there between backquotes must be said, with that exit code, by the real
programs. They run in this process, against a real service that ends TLS itself and a real identity provider.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sqlite3
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

import attestation_agent.main
import attestation_service.main
from attestation.store import StoreSettings, migrate
from attestation_cli import login_screen
from attestation_cli.login import current
from attestation_cli.login.cache import Login, LoginCache
from attestation_cli.main import cli
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.openid.provider import OPERATOR, Provider
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import ServiceProcess
from tools.ports import free_port

PAGE = Path(__file__).parents[2] / "docs/operate/troubleshooting.md"
HEADING = "| mistake | ends with | it says | and what to do |"
HOUR = timedelta(hours=1)


class Row(NamedTuple):
    """A line of the page."""

    code: int
    words: tuple[str, ...]


def rows() -> dict[str, Row]:
    """Return the lines of the table of mistakes, by the words that begin them."""
    lines = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].splitlines()[2:]
    found = {}
    for line in lines[: lines.index("")]:
        name, code, said, advised = (part.strip() for part in line.strip("|").split(" | "))
        assert re.fullmatch(r"(`[^`]+`(, | … )?)+", said), line
        assert re.search(r"`[^`]+`", advised), line
        # A backquote in a text is written as code in code.
        found[name] = Row(int(code), tuple(re.findall(r"`([^`]+)`", f"{said} {advised}")))
    return found


@dataclass(frozen=True)
class Told:
    """How a program ended, and all that it printed."""

    code: int
    text: str


@dataclass
class Desk:
    """Somebody who makes mistakes: a home, the address of a service, and its programs."""

    home: Path
    service: ServiceProcess
    provider: Provider
    machines: list[Machine]
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    servers: OperatorCA
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def trust(self) -> str:
        """PEM file with the CA of the service."""
        return str(self.service.trust)

    @property
    def id(self) -> str:
        """Id of a machine that waits for approval."""
        return self.machines[0].machine_id

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file; return its path."""
        path = self.home / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def cli(self, *args: str, url: str | None = None, ca: str | None = "", token: str | None = "") -> Told:
        """Run `attestation`; as break-glass, unless *token* is another or None."""
        given = {
            "ITL_API_URL": url or self.service.url,
            "ITL_CA_FILE": self.trust if ca == "" else ca,
            "ITL_ADMIN_TOKEN": self.service.admin_token if token == "" else token,
            "HOME": str(self.home),
        }
        done = CliRunner().invoke(cli, list(args), env=given, catch_exceptions=False)
        return Told(done.exit_code, done.output)

    def agent(self, *args: str, **environment: str) -> Told:
        """Run `attestation-agent`."""
        return self._run(attestation_agent.main.main, args, environment)

    def start(self, *args: str, **environment: str) -> Told:
        """Start `attestation-service`; it must not come so far that it serves."""
        self.patch.chdir(self.home)
        self.patch.setattr(attestation_service.main, "serve", _started)
        usual = {
            "ITL_DB_URL": f"sqlite:///{self.home / 'machines.db'}",
            "ITL_ENROLLMENT_CA_DIR": str(self.home / "ca"),
            "ITL_CONFIG_CACHE_DIR": str(self.home),
            "ITL_SERVICE_URL": "https://attest.example",
        }
        arguments = ("--host", "127.0.0.1", *(args or ("--port", str(free_port()))))
        return self._run(attestation_service.main.main, arguments, usual | environment)

    def _run(
        self, main: Callable[[tuple[str, ...]], int], args: tuple[str, ...], environment: dict[str, str]
    ) -> Told:
        self.capsys.readouterr()
        for name, value in environment.items():
            self.patch.setenv(name, value)
        try:
            code = main(args)
        except SystemExit as e:
            code = int(e.code or 0)
        told = self.capsys.readouterr()
        return Told(code, told.out + told.err)

    def log_in(self, name: str, **changes: Any) -> LoginCache:
        """Keep a login of *name* as `auth login` would."""
        now = datetime.now(UTC)
        given = self.provider.grant(name)
        cache = LoginCache(self.home / ".itl/attestation-cache")
        known = {
            "issuer": self.provider.issuer,
            "client_id": "attestation-cli",
            "subject": self.provider.users[name].sub,
            "username": name,
            "access_token": given["access_token"],
            "refresh_token": given["refresh_token"],
            "expires_at": now + timedelta(minutes=5),
            "obtained_at": now,
            "api_url": self.service.url,
        }
        cache.save(Login(**(known | changes)))
        return cache


def _started(*_: object, **__: object) -> None:
    raise AssertionError("the service started")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A service, a provider and two machines that wait, for all mistakes."""
    directory = tmp_path_factory.mktemp("site")
    now = datetime.now(UTC).replace(microsecond=0)
    servers = OperatorCA(now, "Servers")
    (directory / "servers.pem").write_bytes(servers.pem)
    certificate, key = servers.server("localhost").files(directory, "tls")
    with Provider() as provider:
        provider.add_user("anna", [OPERATOR])
        provider.add_user("vera", ["attestation-viewer"])
        environment = {
            "ITL_OIDC_ISSUER": provider.issuer,
            "ITL_TLS_CERT_FILE": str(certificate),
            "ITL_TLS_KEY_FILE": str(key),
        }
        service = ServiceProcess(
            directory=directory / "service", trust=directory / "servers.pem", environment=environment
        )
        service.start()
        trust = ssl.create_default_context(cafile=service.trust)
        try:
            with httpx.Client(base_url=service.url, verify=trust, timeout=60) as http:
                machines = [Machine(SoftwareNode(number), http) for number in (1, 2)]
                for machine in machines:
                    machine.enrol()
                yield Desk(directory, service, provider, machines, None, None, servers)  # type: ignore[arg-type]  # each test gives its own
        finally:
            service.kill()


@pytest.fixture
def desk(
    site: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """The site, with a home of its own."""
    tmp_path.chmod(0o700)
    for name in ("HOME", "KEYCLOAK_URL"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("KEYCLOAK_URL")
    with contextlib.ExitStack() as closing:
        yield Desk(
            tmp_path, site.service, site.provider, site.machines, monkeypatch, capsys, site.servers, closing
        )


# The mistakes


def ambiguous(desk: Desk) -> Told:
    """One machine is called as another's id begins."""
    first, second = desk.machines
    name = first.machine_id[: len("7f3ad3ac-0f0e")]  # digits alone would be no name
    desk.cli("machine", "approve", second.machine_id, "--role", "worker-app", "--hostname", name)
    return desk.cli("machine", "get", name)


def ended_certificate(desk: Desk) -> Told:
    """To a clock that is 90 days fast, the certificate of the service has ended; so one that has ended answers."""
    issued = desk.servers.server(ends=datetime.now(UTC) - HOUR)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued.files(desk.home, "ended"))
    listening = desk.closing.enter_context(socket.create_server(("127.0.0.1", 0)))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

    threading.Thread(target=serve, daemon=True).start()
    return desk.cli("machine", "list", url=f"https://127.0.0.1:{listening.getsockname()[1]}")


def wrong_clock(desk: Desk, shift: timedelta) -> Told:
    """The clock of the laptop is wrong when a login has to be renewed, and right again afterwards."""
    cache = desk.log_in("anna", expires_at=datetime.now(UTC) + shift)
    spent = cache.logins()[0].refresh_token

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # of datetime, not of a subclass
            return datetime.now(tz) + shift

    with desk.patch.context() as shifted:
        for module in (current, login_screen):
            shifted.setattr(module, "datetime", Shifted)
        told = desk.cli("auth", "refresh", token=None)
    kept = cache.logins()[0]
    assert kept.refresh_token not in (None, spent)
    # Nothing is lost when the clock is right again.
    assert desk.cli("machine", "list", token=None).code == 0
    return told


def provider_down(desk: Desk) -> Told:
    """The provider is away while a token has to be renewed."""
    desk.log_in("anna", expires_at=datetime.now(UTC) - HOUR)
    desk.provider.stop()
    desk.closing.callback(desk.provider.start)
    return desk.cli("machine", "list", token=None)


def other_issuer(desk: Desk) -> Told:
    """A slash too many: the provider calls itself otherwise."""
    return desk.cli("auth", "login", "--no-browser", "--issuer", f"{desk.provider.issuer}/", token=None)


def absent_tpm(desk: Desk) -> Told:
    """No device."""
    return desk.agent("identify", "--tpm", f"device:{desk.home / 'tpmrm0'}")


def forbidden_tpm(desk: Desk) -> Told:
    """The system says no; root, who runs tests too, is never told so."""

    def no(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    desk.patch.setattr(os, "open", no)
    return desk.agent("identify")


def locked_out_tpm(desk: Desk) -> Told:
    """A TPM that answers TPM_RC_LOCKOUT to everything."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            while connection.recv(4096):
                connection.sendall(bytes.fromhex("8001 0000000a 00000921"))

    listening = desk.closing.enter_context(socket.create_server(("127.0.0.1", 0)))
    threading.Thread(target=serve, daemon=True).start()
    return desk.agent("identify", "--tpm", f"tcp:127.0.0.1:{listening.getsockname()[1]}")


def port_in_use(desk: Desk) -> Told:
    """Somebody else listens."""
    listening = desk.closing.enter_context(socket.create_server(("127.0.0.1", 0)))
    return desk.start("--port", str(listening.getsockname()[1]))


def other_key(desk: Desk) -> Told:
    """The key of another certificate."""
    one, two = (desk.servers.server(name).files(desk.home, name) for name in ("one", "two"))
    return desk.start(ITL_TLS_CERT_FILE=str(one[0]), ITL_TLS_KEY_FILE=str(two[1]))


def encrypted_key(desk: Desk) -> Told:
    """A key with a passphrase."""
    issued = desk.servers.server("localhost")
    certificate, key = issued.files(desk.home, "tls")
    locked = BestAvailableEncryption(b"passphrase")
    key.write_bytes(issued.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    return desk.start(ITL_TLS_CERT_FILE=str(certificate), ITL_TLS_KEY_FILE=str(key))


def key_for_all(desk: Desk) -> Told:
    """A key of the service that others may read."""
    folder = desk.home / "ca"
    folder.mkdir()
    (folder / "service-key.pem").write_text("a key")
    (folder / "service-key.pem").chmod(0o644)
    return desk.start()


def with_database(desk: Desk, prepare: Callable[[Path], object]) -> Told:
    """Start with a database that somebody has done something to."""
    path = desk.home / "there.db"
    prepare(path)
    return desk.start(ITL_DB_URL=f"sqlite:///{path}")


def newer(path: Path) -> None:
    """As a later version would leave it."""
    migrate(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("DELETE FROM schema_support")
        connection.commit()


def foreign(path: Path) -> None:
    """Of another program."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")
        connection.commit()


def read_only(path: Path) -> None:
    """SQLite may only read it, by the version for writers in its header: root too, whom no mode of a file binds."""
    migrate(f"sqlite:///{path}")
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\3")


def full_disk(desk: Desk) -> Told:
    """SQLite gets no further page for the file, as on a disk that is full."""
    module = sys.modules[migrate.__module__]
    connect = module.connect

    def without_room(*args: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **more)
        connection.execute("PRAGMA max_page_count=1")
        return connection

    desk.patch.setattr(module, "connect", without_room)
    return desk.start()


def locked_database(desk: Desk) -> Told:
    """Another program writes, and does not end."""
    patience = StoreSettings(busy_timeout_seconds=0.1)
    desk.patch.setattr(sys.modules[migrate.__module__], "StoreSettings", lambda **_: patience)

    def lock(path: Path) -> None:
        connection = desk.closing.enter_context(contextlib.closing(sqlite3.connect(path)))
        connection.execute("BEGIN EXCLUSIVE")

    return with_database(desk, lock)


CSV = "ek_fingerprint,role,hostname\n"
MISTAKES: dict[str, Callable[[Desk], Told]] = {
    "wrong port": lambda d: d.cli("machine", "list", url="https://127.0.0.1:1"),
    "`http://` to a port that speaks TLS": lambda d: d.cli(
        "machine", "list", url=d.service.url.replace("https", "http")
    ),
    "`https://` to a port that does not": lambda d: d.cli(
        "machine", "list", url=d.provider.origin.replace("http", "https")
    ),
    "an address with `/api/v1`": lambda d: d.cli("machine", "list", url=f"{d.service.url}/api/v1"),
    "an address with a path that is none of the service's": lambda d: d.cli(
        "machine", "list", url=f"{d.service.url}/dashboard"
    ),
    "the CA of somebody else": lambda d: d.cli(
        "machine", "list", ca=d.file("other.pem", OperatorCA(datetime.now(UTC)).pem)
    ),
    "a file that is no CA": lambda d: d.cli("machine", "list", ca=d.file("ca.pem", "nothing")),
    "not logged in": lambda d: d.cli("machine", "list", token=None),
    "a mistyped command": lambda d: d.cli("mashine", "list"),
    "a mistyped subcommand": lambda d: d.cli("machine", "lsit"),
    "a mistyped option": lambda d: d.cli("machine", "list", "--statsu", "locked"),
    "a role that there is not": lambda d: d.cli("machine", "approve", d.id, "--role", "workr-app"),
    "an id that several have": ambiguous,
    "no permission": lambda d: d.cli(
        "machine", "approve", d.id, "--role", "worker-app", token=d.provider.token("vera")
    ),
    "the fingerprint of another machine": lambda d: d.cli(
        "machine", "approve", d.id, "--role", "worker-app", "--fingerprint", "0" * 16
    ),
    "a policy without its version": lambda d: d.cli("policy", "activate", "workers", "--fleet"),
    "a CSV with a wrong fingerprint": lambda d: d.cli(
        "allow-list", "import", d.file("list.csv", f"{CSV}3010ed,worker-app,\n")
    ),
    "a name that is no host name": lambda d: d.cli(
        "allow-list", "import", d.file("list.csv", f"{CSV}{'a' * 96},worker-app,web_1\n")
    ),
    "broken YAML": lambda d: d.cli("policy", "create", d.file("workers.yaml", "name: [workers\nversion: 1")),
    "a file that is no certificate": lambda d: d.cli(
        *("trust", "add", d.file("root.der", "-- nothing --"), "--vendor", "IFX", "--role", "anchor"),
        *("--reason", "why", "--yes"),
    ),
    "the identity provider is down": provider_down,
    "an identity provider that calls itself otherwise": other_issuer,
    "a clock one hour ahead": lambda d: wrong_clock(d, HOUR),
    "a clock one hour behind": lambda d: wrong_clock(d, -HOUR),
    "a clock 90 days ahead": ended_certificate,
    "no TPM": absent_tpm,
    "a TPM that one may not open": forbidden_tpm,
    "a TPM that is locked out": locked_out_tpm,
    "a variable that the agent does not know": lambda d: d.agent("identify", ITL_TPN="device:/dev/tpm0"),
    "a variable that the service does not know": lambda d: d.start(ITL_DB_ULR="sqlite:////var/x.db"),
    "a value that is not allowed": lambda d: d.start(ITL_TPM_VERIFY_CA="perhaps"),
    "a port that is taken": port_in_use,
    "a database whose folder is missing": lambda d: d.start(ITL_DB_URL=f"sqlite:///{d.home}/no/such.db"),
    "a file that is no database": lambda d: with_database(d, lambda path: path.write_text("hello" * 99)),
    "the database of another program": lambda d: with_database(d, foreign),
    "the database of a newer version": lambda d: with_database(d, newer),
    "a database that is locked": locked_database,
    "a database that may only be read": lambda d: with_database(d, read_only),
    "a database on a full disk": full_disk,
    "a file without a CA of operators": lambda d: d.start(ITL_OPERATOR_CA=d.file("operators.pem", "nothing")),
    "the key of another certificate": other_key,
    "a TLS key with a passphrase": encrypted_key,
    "a key that others may read": key_for_all,
}


def test_the_page_has_these_mistakes() -> None:
    """In this order, each once: a line that nobody makes would be held by nothing."""
    assert list(rows()) == list(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_says_what_why_and_what_to_do(mistake: str, desk: Desk) -> None:
    """Everything that the page promises is said, and nothing that is for programmers."""
    told, row = MISTAKES[mistake](desk), rows()[mistake]
    # Backquotes of the programs' own cannot stand in a page's code.
    text = " ".join(told.text.replace('\\"', '"').replace("`", "").split())
    assert told.code == row.code, told.text
    for words in row.words:
        assert words in text, told.text
    assert not re.search(
        r"Traceback|should match|\[0-9a-f\]|0x[0-9a-f]{2}, |\b(?!ITL_)[A-Z]{3,}_[A-Z_]+\b|\.py\b", text
    )
