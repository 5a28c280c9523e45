"""The images of deploy/containers, built by the lines of docs/operate/containers.md, looked at and started."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from attestation_testing import CertificateAuthority
from tests.docs.pages import ROOT, text
from tests.fixtures.images import Images, demand, get, place
from tests.fixtures.service import GENEROUS_LIMITS, Operator
from tests.fixtures.tpm import MakeTPM
from tools.ports import free_port

# The images are built before the first test; no measure of a machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SERVICE, AGENT, OPERATOR = "itl-attestation-service", "itl-attestation-agent", "itl-attestation-operator"
WEB = "itl-attestation-web"
UID = {SERVICE: 10001, AGENT: 10002, OPERATOR: 10003, WEB: 10004}
LINES = re.findall(r"^buildah build .*$", text("docs/operate/containers.md"), re.MULTILINE)
START_SECONDS = 120
STOP_SECONDS = 60
UNCHECKED = b"\x01\0\0\0"  # PEP 552
PENDING_APPROVAL, NO_CONFIGURATION = 10, 15


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """The images, built by what the page tells to copy."""
    directory = place()
    try:
        made = demand(directory)
        made.make_base()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda line: made.run("sh", "-c", line), LINES))
        yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module", params=[SERVICE, AGENT, OPERATOR, WEB])
def image(request: pytest.FixtureRequest) -> str:
    """One of them."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def trees(images: Images) -> Callable[[str], Path]:
    """The root file system of each, unpacked once."""
    known: dict[str, Path] = {}

    def tree(image: str) -> Path:
        if image not in known:
            known[image] = images.unpacked(image)
        return known[image]

    return tree


def test_an_image_says_what_it_is(images: Images, image: str) -> None:
    """Its user is a number, so Kubernetes can see that it is not root; its program gets the signals itself."""
    configuration = images.configuration(image)
    said = configuration["config"]
    uid = UID[image]
    assert said["User"] == f"{uid}:{uid}"
    program = {
        SERVICE: "attestation-service",
        AGENT: "itl-tpm-register",
        OPERATOR: "attestation-operator",
        WEB: "attestation-web",
    }
    arguments = {SERVICE: ["--workers", "2"], AGENT: [], OPERATOR: ["--help"], WEB: ["serve"]}
    assert said["Entrypoint"] == [program[image]]
    assert (said.get("Cmd") or []) == arguments[image]
    assert said["StopSignal"] == "SIGTERM"
    if image in (SERVICE, AGENT):  # the others a kubelet or a proxy asks
        assert said["Healthcheck"]["Test"][0] == "CMD"
    ports: dict[str, object] = {
        SERVICE: {"8080/tcp": {}},
        AGENT: {},
        OPERATOR: {"8081/tcp": {}, "9090/tcp": {}, "9443/tcp": {}},
        WEB: {"7788/tcp": {}},
    }
    assert said.get("ExposedPorts", {}) == ports[image]
    volumes: dict[str, set[str]] = {
        SERVICE: {"/var/lib/itl-reg"},
        AGENT: {"/var/lib/itl-tpm", "/run/itl-tpm"},
        OPERATOR: set(),
        WEB: set(),
    }
    assert set(said.get("Volumes") or ()) == volumes[image]
    labels = {
        k.rpartition(".")[2]: v for k, v in said["Labels"].items() if k.startswith("org.opencontainers.")
    }
    about = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert labels["title"] == image
    assert labels["licenses"] == "Apache-2.0"
    assert f'\nversion = "{labels["version"]}"\n' in about


def test_nothing_in_an_image_helps_an_intruder(trees: Callable[[str], Path], image: str) -> None:
    """No compiler, no pip, nothing setuid, nothing that its user may write but what is a volume or is emptied."""
    root, uid = trees(image), UID[image]
    volumes = ("var/lib/itl-reg", "var/lib/itl-tpm", "run/itl-tpm")
    for directory, _, files in os.walk(root):
        for name in [*files, "."]:
            path = Path(directory, name)
            about, where = path.lstat(), str(path.relative_to(root))
            if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
                continue
            assert stat.S_ISDIR(about.st_mode) or not about.st_mode & (stat.S_ISUID | stat.S_ISGID), where
            if where.startswith(volumes) or where in ("tmp", "var/tmp", "run/lock"):
                continue
            assert about.st_uid != uid, where
            assert not about.st_mode & stat.S_IWOTH, where
    programs = {path.name for path in root.glob("**/bin/*")}
    assert "python3" in programs
    assert not programs & {"pip", "pip3", "gcc", "cc", "ld", "make", "uv", "curl", "wget"}
    packages = {path.name for path in root.glob("opt/itl-attestation/lib/python3*/site-packages/*")}
    assert not packages & {"pip", "setuptools", "pytest", "hatchling", "attestation_testing"}
    assert not list(root.glob("usr/lib/python3*/ensurepip/__init__.py"))


def test_an_image_holds_its_modules_compiled(trees: Callable[[str], Path], image: str) -> None:
    """By content: where nothing can be written, what does not fit its source is compiled at each start."""
    counted = 0
    for source in trees(image).glob("opt/itl-attestation/lib/python3*/site-packages/attestation*/**/*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        head = compiled.read_bytes()[:16]
        assert head[4:] == UNCHECKED + importlib.util.source_hash(source.read_bytes()), source
        counted += 1
    assert counted > 100


@pytest.mark.parametrize(
    ("command", "uid", "missing"),
    [("runs", 65532, "CLUSTER_ID"), ("agent", 0, "NODE_NAME"), ("webhook", 65532, "CONTROLLER_USER")],
)
def test_programs_of_attestation_runs_start_in_the_image(
    images: Images, command: str, uid: int, missing: str
) -> None:
    """As the users that the chart gives them; what they import is there, and what rules of policies need."""
    run = ["buildah", "run", f"--user={uid}:{uid}", images.container(OPERATOR), "--"]
    python = "/opt/itl-attestation/bin/python"
    parts = ", ".join(
        f"attestation_operator.runs.{part}" for part in ("commands", "agent_program", "webhook")
    )
    images.run(*run, python, "-c", f"import cel, attestation.device, {parts}")
    done = subprocess.run(
        [*run, "attestation-operator", command],
        env=images.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"ITL_OPERATOR_{missing}: is missing" in done.stderr


def _data(directory: Path) -> Path:
    """Make the volume of a service."""
    for folder in ("", "db", "ca", "configs"):
        (directory / folder).mkdir(mode=0o700)
        os.chown(directory / folder, UID[SERVICE], UID[SERVICE])
    return directory


def _settings(url: str, token: str) -> dict[str, str]:
    return GENEROUS_LIMITS | {
        "ITL_SERVICE_URL": url,
        "ITL_ADMIN_TOKEN": token,
        "ITL_TPM_ALLOW_SIMULATOR": "true",
        "ITL_BREAK_GLASS_PER_MINUTE": "1000000",
    }


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while get(f"{url}/readyz") != httpx.codes.OK:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the service did not become ready:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)


@pytest.mark.swtpm
def test_a_machine_is_admitted_from_image_to_image(
    images: Images, make_tpm: MakeTPM, tpm_ca: CertificateAuthority, tmp_path: Path
) -> None:
    """`buildah run` starts both as their users; the health check is green; SIGTERM ends the service."""
    port, token = free_port(), secrets.token_urlsafe(32)
    url, log = f"http://127.0.0.1:{port}", tmp_path / "service.log"
    container = images.container(SERVICE)
    run = ("buildah", "run", "--user", f"{UID[SERVICE]}:{UID[SERVICE]}")
    arguments = [f"--env={k}={v}" for k, v in _settings(url, token).items()]
    process = images.popen(
        *run, *arguments, f"--volume={_data(tmp_path / 'data')}:/var/lib/itl-reg", container, "--",
        *("attestation-service", "--host", "127.0.0.1", "--port", str(port), "--workers", "2"), log=log,
    )  # fmt: skip
    try:
        _wait_until_ready(url, process, log)
        healthy = images.configuration(SERVICE)["config"]["Healthcheck"]["Test"][1:]
        images.run(*run, f"--env=HEALTH_PORT={port}", container, "--", *healthy)
        with pytest.raises(AssertionError, match="no answer from"):
            images.run(*run, f"--env=HEALTH_PORT={free_port()}", container, "--", *healthy)

        tpm = make_tpm()
        tpm.manufacture(tpm_ca)
        socket = Path(tpm.uri.removeprefix("unix:"))
        socket.chmod(0o666)
        state = tmp_path / "state"
        state.mkdir(mode=0o700)
        os.chown(state, UID[AGENT], UID[AGENT])
        agent = images.container(AGENT)
        attest = [
            "buildah", "run", f"--user={UID[AGENT]}:{UID[AGENT]}", f"--volume={socket}:/run/tpm.sock",
            f"--volume={state}:/var/lib/itl-tpm", f"--env=ITL_REG_URL={url}", "--env=ITL_TPM=unix:/run/tpm.sock",
            agent, "--", "itl-tpm-register", "--once",
        ]  # fmt: skip
        first = subprocess.run(attest, env=images.environment, capture_output=True, text=True, check=False)
        assert first.returncode == PENDING_APPROVAL, first.stderr[-4000:]
        operator = Operator(httpx.Client(base_url=url, timeout=60), token)
        [machine] = operator.machines()
        operator.approve(machine["machine_id"])
        second = subprocess.run(attest, env=images.environment, capture_output=True, text=True, check=False)
        assert second.returncode == NO_CONFIGURATION, second.stderr[-4000:]
        assert operator.machine(machine["machine_id"])["status"] == "attested"
        assert operator.audit_is_valid()
        operator.http.close()
    finally:
        _end(process, port)


def _end(process: subprocess.Popen[bytes], port: int) -> None:
    """Send SIGTERM to the service, the one of its processes that has no such parent: buildah hands none on."""
    ours: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if b"python" in command[0] and str(port).encode() in command:
                ours[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    for pid, parent in ours.items():
        if parent not in ours:
            os.kill(pid, signal.SIGTERM)
    try:
        assert process.wait(STOP_SECONDS) == 0
    finally:
        process.kill()


def test_a_service_runs_where_it_may_write_only_its_volume(
    trees: Callable[[str], Path], tmp_path: Path
) -> None:
    """A root that is read-only, no capability, no way to more rights: what clusters are told to enforce."""
    port, token = free_port(), secrets.token_urlsafe(32)
    url, log = f"http://127.0.0.1:{port}", tmp_path / "service.log"
    root, data = trees(SERVICE), _data(tmp_path / "data")
    uid = UID[SERVICE]
    entered = f"""
        mount --bind {root} {root} && mount -o remount,bind,ro {root}
        mount -t proc proc {root}/proc && mount -t tmpfs tmpfs {root}/tmp && mount --bind {data} {root}/var/lib/itl-reg
        mount -t tmpfs tmpfs {root}/dev
        for node in null:3 zero:5 random:8 urandom:9; do mknod -m 666 {root}/dev/${{node%:*}} c 1 ${{node#*:}}; done
        exec chroot {root} setpriv --reuid {uid} --regid {uid} --clear-groups --no-new-privs --bounding-set=-all \
            sh -c 'cd; if touch /opt/itl-attestation/x 2>/dev/null; then exit 3; fi
                exec attestation-service --host 127.0.0.1 --port {port} --workers 2'
    """
    path = "/opt/itl-attestation/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", entered],
            env=_settings(url, token)
            | {"PATH": path, "HOME": "/var/lib/itl-reg", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        _wait_until_ready(url, process, log)
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Uid"].split() == [str(uid)] * 4
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()


def test_the_page_builds_what_is_here() -> None:
    """One line for each file."""
    built = {re.search(r"--file (\S+)", line)[1] for line in LINES}  # type: ignore[index]
    assert {ROOT / name for name in built} == set((ROOT / "deploy/containers").glob("*.Dockerfile"))
