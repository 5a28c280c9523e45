"""What `attestation dev new-extension` writes, built as a wheel, installed beside the service, served, and removed."""

from __future__ import annotations

import ensurepip
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.extension import install
from tests.fixtures.machine import Machine, code
from tests.fixtures.postgres import Server
from tests.fixtures.service import Operator, ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAMS = {"attestation-service": "attestation_service.main", "attestation": "attestation_cli.main"}
PATIENCE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment with the project in it, as an installer leaves one."""

    folder: Path

    @property
    def site(self) -> Path:
        """Where packages lie."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, program: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end."""
        return subprocess.run(
            [self.folder / "bin" / program, *map(str, words)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "COLUMNS": "200", **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def installer(self, *words: object) -> None:
        """Install or remove with the pip that Python brings, which runs as the wheel that it is; without network."""
        yes = ("--yes",) if words[0] == "uninstall" else ("--no-index", "--no-deps")
        done = subprocess.run(
            [
                self.folder / "bin/python",
                f"{pip_wheel()}/pip",
                "--disable-pip-version-check",
                *map(str, words),
                *yes,
            ],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "PIP_CONFIG_FILE": os.devnull},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def pip_wheel() -> Path:
    """Return pip as it came with Python: in `ensurepip`, or where Debian keeps it."""
    places = (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels"))
    found = sorted(wheel for place in places for wheel in place.glob("pip-*.whl"))
    if not found:
        pytest.skip("Python came without pip (Debian: python3-venv)")
    return found[-1]


def make_environment(folder: Path) -> Environment:
    """Make one; the project's own packages are reached as they are, not copied."""
    venv.create(folder, with_pip=False, symlinks=True)
    made = Environment(folder=folder)
    ours = sysconfig.get_paths()["purelib"]
    (made.site / "project.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    for program, module in PROGRAMS.items():
        script = folder / "bin" / program
        script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes, built without network."""
    made = make_environment(tmp_path_factory.mktemp("author"))
    written = made.run("attestation", "dev", "new-extension", "arrivals")
    assert written.returncode == 0, written.stderr
    folder = made.folder / "attestation-arrivals"
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Environment:
    """An environment into which it is installed."""
    made = make_environment(tmp_path / "venv")
    made.installer("install", wheel)
    return made


@pytest.fixture(params=["sqlite", "postgresql"])
def service(
    request: pytest.FixtureRequest, installed: Environment, tmp_path: Path
) -> Iterator[ServiceProcess]:
    """A service of that environment, not started yet."""
    running: Server | None = None
    if request.param == "postgresql":
        running = request.getfixturevalue("postgres_server")
        assert running is not None
        url = running.create("arrivals", template="empty").replace("postgresql:", "postgresql+psycopg:", 1)
    else:
        url = ""
    found = ServiceProcess(
        directory=tmp_path,
        environment={"ITL_EXTENSIONS": "arrivals", "ITL_MAINTENANCE_SECONDS": "0.1"},
        server_url=url,
        program=installed.folder / "bin/attestation-service",
    )
    yield found
    found.kill()
    print(found.log())
    if running is not None:
        running.drop("arrivals")


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def _at(service: ServiceProcess) -> dict[str, str]:
    return {"ATTESTATION_API_URL": service.url, "ITL_ADMIN_TOKEN": service.admin_token}


def _tell_mine(machine: Machine) -> httpx.Response:
    return machine.post("/arrivals/mine", machine.evidence(machine.challenge()))


@pytest.mark.threat("T213")
def test_it_serves_and_leaves_its_table_when_it_goes(installed: Environment, service: ServiceProcess) -> None:
    """Routes of operators and machines, table, handler, commands; removed, the service is as before."""
    service.start()
    with service.operator().http as http:
        operator = Operator(http, service.admin_token)
        machine = Machine(SoftwareNode(1), http)
        machine.admitted(operator)
        path = f"/arrivals/machines/{machine.machine_id}"
        _until(lambda: operator.call("GET", path)["times"] == 1, "the event to be counted")
        assert _tell_mine(machine).json() == {"machine_id": machine.machine_id, "times": 1}
        assert http.get(f"/api/v1{path}").status_code == 401
        operator.act(machine.machine_id, "lock", reason="x")
        assert code(_tell_mine(machine)) == "machine-not-admitted"
    shown = installed.run("attestation", "arrivals", "show", machine.machine_id, **_at(service))
    assert (shown.stdout, shown.stderr) == (f"{machine.machine_id}: 1\n", ""), shown
    cleared = installed.run(
        "attestation", "arrivals", "clear", machine.machine_id, "-o", "json", **_at(service)
    )
    assert json.loads(cleared.stdout) == {"machine_id": machine.machine_id, "times": 0}, cleared
    service.stop()

    installed.installer("uninstall", "attestation-arrivals")
    service.environment = {}
    service.start()
    with service.operator().http as http:
        assert Operator(http, service.admin_token).machine(machine.machine_id)["status"] == "locked"
        assert http.get(f"/api/v1{path}").status_code == 404
    gone = installed.run("attestation", "arrivals", "show", machine.machine_id, **_at(service))
    assert "No such command" in gone.stderr
    assert service.rows("select times from extension_arrivals_machines") == [{"times": 0}]


def test_its_own_tests_pass(installed: Environment, wheel: Path) -> None:
    """The suite, and the one that comes with it, as its author runs them."""
    done = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", wheel.parents[1] / "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed, 1 skipped" in done.stdout  # no PostgreSQL: it is told of none


HEAD = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from attestation.extension import AttestationExtension, Migrations, NodeEvent, Router

class Base(DeclarativeBase): ...

class Extension(AttestationExtension):
    contract, name, version, description = 1, {name!r}, "1.0.0", "Breaks in one way only."
"""
BROKEN = {
    "at_import": ("    raise ValueError('no')", "cannot be imported: ValueError: no"),
    "at_start": (
        """
    async def on_startup(self, context):
        raise ValueError("canary")
    def get_subscriptions(self):
        return {NodeEvent.ONLINE: self.came}
    async def came(self, event):
        print("canary: handled by what never began")
""",
        "cannot begin: ValueError",
    ),
    "foreign_prefix": (
        "    prefixes = ('/api/v1/machines/x',)",
        "has the name of routes of the service: /api/v1/machines/x",
    ),
    "foreign_table": (
        """
    migrations = Migrations(scripts="foreign_table_extension:revisions", head="0001")
    class Machines(Base):
        __tablename__ = "machines_of_mine"
        number: Mapped[int] = mapped_column(primary_key=True)
    def get_models(self):
        return [self.Machines]
""",
        "has a table machines_of_mine; its are called extension_foreign_table_…, or are declared",
    ),
    "foreign_revision": (
        """
    migrations = Migrations(scripts="foreign_revision_extension:revisions", head="0001")
""",
        "has tables that cannot be migrated",
    ),
    "no_right": (
        """
    def get_router(self):
        router = Router()
        router.add("GET /x", None, self.show)
        return router
    async def show(self) -> None:
        "Show."
""",
        "has routes that cannot be served: ValueError: GET /x: the right is one of public, read",
    ),
    "other_path": (
        """
    def get_router(self):
        router = Router()
        router.add("GET machines", "read", self.show)
        return router
    async def show(self) -> None:
        "Show."
""",
        "has routes that cannot be served: ValueError: machines: a path begins with /",
    ),
}
"""What a stranger may do wrong, and what operators are told."""
FOREIGN_REVISION = """
from alembic import op
revision, down_revision = "0001", None
def upgrade():
    op.execute("create table machines_of_mine (number integer)")
    op.execute("delete from machines")
"""
IN_A_HOOK = """
    def get_subscriptions(self):
        return {NodeEvent.ONLINE: self.came}
    async def came(self, event):
        raise ValueError("canary")
"""


@pytest.mark.threat("T215", "T216")
def test_what_a_stranger_breaks_is_left_out_and_shown(installed: Environment, tmp_path: Path) -> None:
    """The service serves, machines attest, the good one counts; operators read which is left out, and why."""
    for name, (more, _) in BROKEN.items():
        files = {"revisions/0001_first.py": FOREIGN_REVISION} if name == "foreign_revision" else None
        install(installed.site, name, HEAD.format(name=name) + more, files=files)
    install(installed.site, "in_a_hook", HEAD.format(name="in_a_hook") + IN_A_HOOK)
    (installed.site / "in_a_hook_extension-1.0.dist-info/RECORD").touch()
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,  # the tables are made in a process of its own: what is learned there must reach them
        environment={
            "ITL_EXTENSIONS": ",".join((*BROKEN, "in_a_hook", "arrivals")),
            "ITL_MAINTENANCE_SECONDS": "0.1",
        },
        program=installed.folder / "bin/attestation-service",
    )
    try:
        service.start()
        with service.operator().http as http:
            operator = Operator(http, service.admin_token)
            machine = Machine(SoftwareNode(1), http)
            machine.admitted(operator)
            path = f"/arrivals/machines/{machine.machine_id}"
            _until(lambda: operator.call("GET", path)["times"] == 1, "the event to be counted")
            listed = {each["name"]: each for each in operator.call("GET", "/extensions")["extensions"]}
            assert {name for name, each in listed.items() if each["skipped"] is None} == {
                "in_a_hook",
                "arrivals",
            }
            for name, (_, why) in BROKEN.items():
                assert why in listed[name]["skipped"]
            # Tried once and failed, it waits for its next attempt, and what never began is not tried; others are done.
            waiting = {name: each["pending"] for name, each in listed.items() if each["pending"]}
            assert waiting == {"in_a_hook": 1, "at_start": 1}
        shown = installed.run("attestation", "extension", "list", "-o", "csv", **_at(service))
        told = installed.run("attestation-service", "doctor", **service.settings())
        for name, (_, why) in BROKEN.items():
            assert why in shown.stdout
            if name not in ("at_start", "foreign_revision"):  # `doctor` changes nothing
                assert f"{name} is skipped: it {why}" in " ".join(told.stdout.split())
        assert not service.rows("select name from sqlite_master where name = 'machines_of_mine'")
        assert "canary" not in service.log() + shown.stdout + told.stdout
    finally:
        service.kill()
        print(service.log())
