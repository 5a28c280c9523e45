"""The tests that every extension of the service passes, ours and anybody's, for pytest.

    from attestation_testing.extension_suite import ExtensionSuite

    class TestConformance(ExtensionSuite):
        name = "visits"

The extension must be installed, and the service beside it, which runs as a process of its own with a database in a
file. Where `ATTESTATION_TEST_POSTGRESQL` is the URL of an empty database its tables are made there too.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from attestation.extension import (
    CONTRACT,
    GROUP,
    SEMANTIC_VERSION,
    AttestationExtension,
    Context,
    OutboxEvent,
    event_named,
)
from attestation.keys import KeyOptions
from attestation.store import Branch, migrate, migrate_branch, open_store
from attestation.store.migrate import connection_to
from attestation.tpm import PCRSelection, parse_public
from attestation_testing.software_keys import SoftwareNode

POSTGRESQL: Final = "ATTESTATION_TEST_POSTGRESQL"
START_SECONDS: Final = 120
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PROGRAM: Final = "import sys; from attestation_service.main import main; sys.exit(main())"
_SERVICE_ALONE: Final = ("attestation_service", "fastapi", "sqlalchemy", "alembic", "uvicorn")
"""What a computer of an operator need not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return it, read."""
        return json.loads(self.body)


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket in place of a port."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(kw_only=True)
class RunningService:
    """A service with the extension: a process, a database in a file, a Unix socket.

    Args:
        folder: What it keeps; a short path, for a socket has one of at most 107 bytes.
        environment: Settings beside those that it needs.
        python: The interpreter whose packages it uses.
    """

    folder: Path
    environment: Mapping[str, str]
    python: str = sys.executable
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _process: subprocess.Popen[bytes] | None = None

    def settings(self) -> dict[str, str]:
        """Return its environment."""
        return {name: value for name, value in os.environ.items() if not name.startswith("ITL_")} | {
            "ITL_DB_URL": f"sqlite:///{self.folder}/machines.db",
            "ITL_SERVICE_URL": "http://localhost",
            "ITL_ENROLLMENT_CA_ORGANIZATION": "Tests",
            "ITL_ENROLLMENT_CA_COUNTRY": "NL",
            "ITL_ENROLLMENT_CA_DIR": f"{self.folder}/ca",
            "ITL_CONFIG_CACHE_DIR": f"{self.folder}/configs",
            "ITL_ADMIN_TOKEN": self.token,
            **self.environment,
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its program for a moment, `db upgrade`, and return what it said."""
        command = [self.python, "-c", _PROGRAM, *words]
        return subprocess.run(
            command, env=self.settings(), capture_output=True, text=True, timeout=START_SECONDS, check=False
        )

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            AssertionError: It does not; with its log.
        """
        (self.folder / "configs").mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.python, "-c", _PROGRAM, "--uds", str(self.folder / "s")],
                env=self.settings(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the service does not serve:\n{self.log()}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            return self.anybody("GET", "/healthz").status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(60)
            self._process = None

    def log(self) -> str:
        """Return what it wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def anybody(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask for the whole path *path* without saying who asks."""
        connection = _OverSocket(self.folder / "s")
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return Answer(status=answer.status, body=answer.read())
        finally:
            connection.close()

    def operator(self, method: str, path: str, body: Any = None) -> Answer:
        """Ask as an operator who may do everything."""
        return self.anybody(method, path, body, Authorization=f"Bearer {self.token}")


class ExtensionSuite:
    """What holds of every extension. A subclass whose name begins with `Test` names the one, and adds its own tests."""

    name: ClassVar[str]
    pages: ClassVar[Sequence[Path]] = ()
    """Where settings are described that have no `description`."""

    def environment(self, folder: Path) -> Mapping[str, str]:  # noqa: ARG002 -- for subclasses
        """Return the settings that it cannot do without, as variables; *folder* is there for files of theirs."""
        return {}

    @pytest.fixture
    def postgresql_url(self) -> str | None:
        """Return the URL of an empty database on a server, or None."""
        return os.environ.get(POSTGRESQL)

    def point(self) -> EntryPoint:
        """Return how it is found."""
        points = list(entry_points(group=GROUP, name=self.name))
        assert len(points) == 1, f"{self.name} is installed {len(points)} times in the group {GROUP}"
        return points[0]

    def made(self, folder: Path) -> AttestationExtension:
        """Return it, as the service makes it."""
        kind: type[AttestationExtension] = self.point().load()
        given = {}
        for variable, value in self.environment(folder).items():
            short = variable.removeprefix(f"ITL_EXT_{self.name.upper()}_").lower()
            given[kind.variables.get(variable, short)] = value
        return kind(kind.Settings(**given))

    @pytest.fixture(scope="class")
    @classmethod
    def service(cls) -> Iterator[RunningService]:
        """One that runs for all tests of the class."""
        with tempfile.TemporaryDirectory(prefix="itl") as made:
            folder = Path(made)
            found = RunningService(
                folder=folder, environment={"ITL_EXTENSIONS": cls.name, **cls().environment(folder)}
            )
            try:
                found.start()
                yield found
            finally:
                found.stop()

    # ---------------------------------------------------------------- what it says of itself

    def test_it_is_found_and_says_what_it_is(self, tmp_path: Path) -> None:
        """One entry point, called as it is; a version and a sentence."""
        made = self.made(tmp_path)
        assert _NAME.fullmatch(self.name), f"{self.name} is no name"
        assert made.name == self.name, f"it calls itself {made.name}"
        assert made.contract == CONTRACT, f"it was written for contract {made.contract}"
        assert SEMANTIC_VERSION.fullmatch(made.version), f"{made.version} is no semantic version"
        assert len(made.description.split()) > 2, "its description is no sentence"

    def test_it_takes_its_own_names_alone(self, tmp_path: Path) -> None:
        """Tables, events: below its name, or declared."""
        made = self.made(tmp_path)
        for model in made.get_models():
            table = model.__tablename__
            assert table.startswith(f"extension_{self.name}_") or table in made.tables, table
            assert len(table) <= 63, f"{table}: PostgreSQL cuts it"
        for told in (*made.events, *made.get_subscriptions()):
            assert event_named(told)
        for prefix in made.prefixes:
            assert re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix), prefix
        for asked in made.get_query_tables():
            assert re.fullmatch("[A-Z][A-Za-z0-9]*", asked.name), asked.name

    def test_each_setting_is_described(self) -> None:
        """By the field, or on a page under the variable's name."""
        kind: type[AttestationExtension] = self.point().load()
        said = "".join(page.read_text(encoding="utf-8") for page in self.pages)
        spelled = {each: variable for variable, each in kind.variables.items()}
        for name, about in kind.Settings.model_fields.items():
            written = (f"ITL_EXT_{self.name.upper()}_{name.upper()}", f"`{name.upper()}`", spelled.get(name))
            assert about.description or any(each and each in said for each in written), (
                f"{name} is not described"
            )

    # ---------------------------------------------------------------- tables

    def test_its_revisions_make_its_tables(self, tmp_path: Path) -> None:
        """On SQLite: no difference to its models, and a second start finds nothing to do."""
        self._migrate(f"sqlite:///{tmp_path}/machines.db", tmp_path)

    def test_its_revisions_make_its_tables_on_postgresql(
        self, postgresql_url: str | None, tmp_path: Path
    ) -> None:
        """The same."""
        if postgresql_url is None:
            pytest.skip(f"{POSTGRESQL} names no database")
        self._migrate(postgresql_url, tmp_path)

    def _migrate(self, url: str, folder: Path) -> AttestationExtension:
        made = self.made(folder)
        migrate(url)
        if made.migrations is None:
            assert not made.get_models(), "nothing makes its tables"
            return made
        names = frozenset(model.__tablename__ for model in made.get_models())
        branch = Branch(
            name=self.name,
            scripts=made.migrations.scripts,
            head=made.migrations.head,
            tables=names,
            besides=frozenset(made.tables),
        )
        for _ in range(2):
            migrate_branch(url, branch)
        own = {"include_name": lambda name, kind, _: kind != "table" or name in names}
        with connection_to(url) as connection:
            for metadata in {model.metadata for model in made.get_models()}:
                assert compare_metadata(MigrationContext.configure(connection, opts=own), metadata) == []
        return made

    # ---------------------------------------------------------------- the service with it

    def test_the_service_takes_it(self, service: RunningService) -> None:
        """It is listed, and not among those that are skipped."""
        listed = service.operator("GET", "/api/v1/extensions").json()["extensions"]
        found = {each["name"]: each for each in listed}[self.name]
        assert found["skipped"] is None, found["skipped"]

    def test_no_route_is_open_by_mistake(self, service: RunningService, tmp_path: Path) -> None:
        """Each says who may ask; who says nothing of themselves is turned away from all but the public ones."""
        prefixes = tuple(self.made(tmp_path).prefixes) or (f"/api/v1/{self.name}",)
        for path, method, operation in self._operations(service, tmp_path):
            assert any(path == each or path.startswith(f"{each}/") for each in prefixes)
            access = operation["x-access"]
            assert operation["summary"]
            if access not in ("public", "machine"):
                answer = service.anybody(method, path, {} if method != "GET" else None)
                assert answer.status == 401, f"{method} {path} ({access}): {answer.status}"

    def test_who_has_no_fresh_quote_is_no_machine(self, service: RunningService, tmp_path: Path) -> None:
        """Without evidence, or with a quote over a challenge that was never given, a route of machines says no."""
        for path, method, operation in self._operations(service, tmp_path):
            if operation["x-access"] != "machine":
                continue
            sent = [None] if method == "GET" else [{}, {**_stale_quote(), **self.body_of_machine(path)}]
            for body in sent:
                answer = service.anybody(method, path, body)
                assert answer.status in (400, 401, 403, 404, 409, 422), f"{method} {path}: {answer.status}"

    def body_of_machine(self, path: str) -> Mapping[str, Any]:  # noqa: ARG002 -- for subclasses
        """Return the members that a machine sends to *path* beside its evidence."""
        return {}

    def _operations(
        self, service: RunningService, folder: Path
    ) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        tag = f"extension: {self.made(folder).name}"
        paths = service.operator("GET", "/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    yield re.sub(r"\{\w+(:path)?\}", "x", path), method.upper(), operation

    # ---------------------------------------------------------------- hooks

    def test_it_begins_and_ends_more_than_once(self, tmp_path: Path) -> None:
        """As workers do."""
        self._told(tmp_path, times=0)

    def test_an_event_that_comes_again_is_handled_once(self, tmp_path: Path) -> None:
        """Told twice with the same id, confirmed once: its tables are as if it had been told once."""
        once, twice = (self._told(tmp_path / str(times), times=times) for times in (1, 2))
        assert once == twice

    def _told(self, folder: Path, *, times: int) -> Mapping[str, int]:
        """Tell it of one event of each kind *times* times, and return how many rows its tables have then."""
        folder.mkdir(exist_ok=True)
        url = f"sqlite:///{folder}/machines.db"
        made = self._migrate(url, folder)
        asyncio.run(_tell(made, url, times))
        with connection_to(url) as connection:
            return {
                table: connection.execute(text(f'select count(*) from "{table}"')).scalar_one()
                for table in (model.__tablename__ for model in made.get_models())
            }

    # ---------------------------------------------------------------- the command line

    def test_its_commands_need_no_service(self, tmp_path: Path) -> None:
        """A group under each name that it takes, imported without anything of the service."""
        made = self.made(tmp_path)
        groups = set(made.cli_groups or (self.name.replace("_", "-"),))
        dist = self.point().dist
        assert dist is not None
        for point in dist.entry_points.select(group="attestation_cli_plugins"):
            if point.name not in groups:
                continue  # of another extension in the same distribution
            code = (
                "import sys, click, importlib.metadata as m\n"
                f"(point,) = m.entry_points(group='attestation_cli_plugins', name={point.name!r})\n"
                "assert isinstance(point.load(), click.Command), 'no command'\n"
                "from attestation_cli.groups import GROUPS\n"
                "assert point.name not in GROUPS, f'attestation {point.name} is a command of ours'\n"
                f"print(*sorted(set({_SERVICE_ALONE!r}) & set(sys.modules)))"
            )
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            assert not done.stdout.split(), f"attestation {point.name} imports {done.stdout}"


async def _tell(made: AttestationExtension, url: str, times: int) -> None:
    store = open_store(url)
    context = Context(
        store=store,
        clock=store.clock,
        service_url="http://localhost",
        key_options=KeyOptions(allow_unencrypted=True),
        fleet=lambda *_, **__: iter(()),
        emit=lambda *_, **__: None,
        observe=lambda *_, **__: None,
        high_assurance=False,
        provider_keys_stale=lambda: False,
    )
    try:
        for _ in range(2):
            await made.on_startup(context)
            await made.on_shutdown()
        await made.on_startup(context)
        for number, (event, handler) in enumerate(made.get_subscriptions().items() if times else ()):
            told = OutboxEvent(
                sequence=number,
                id=str(uuid.UUID(int=number)),
                event=event_named(event),
                machine_id=str(uuid.UUID(int=2**64 + number)),
                payload={"ek_fingerprint": "0" * 96, "timestamp": "", "node": {}, "meta": {}},
                created_at=datetime.now(UTC),
                attempts=1,
            )
            confirm = None
            for _ in range(times):
                confirm = await handler(told)
            if confirm is not None:
                await store.write(confirm)
        await made.on_shutdown()
    finally:
        await store.aclose()


def _stale_quote() -> dict[str, Any]:
    """Return the evidence of a machine with a TPM over a challenge that the service never gave."""

    def b64(data: bytes) -> str:
        return base64.b64encode(data).decode()

    node = SoftwareNode(seed=1)
    quote = node.quote(secrets.token_bytes(32), PCRSelection.from_names({"sha256": (0, 7)}))
    return {
        "machine_id": str(uuid.uuid4()),
        "ek_fingerprint": parse_public(node.identify().ek_public).fingerprint(),
        "nonce_id": secrets.token_hex(16),
        "pcr_quote": b64(quote.attest),
        "pcr_signature": b64(quote.signature),
        "pcr_values": {
            bank: {str(index): value.hex() for index, value in values.items()}
            for bank, values in quote.pcr_values.items()
        },
        "node_nonce": b64(secrets.token_bytes(32)),
    }
