"""The agent as an extension of Talos: built twice, read by others, and started with nothing of this computer."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attestation_agent.exits import Exit
from attestation_cli.talos_extension import build, documents
from attestation_testing import CertificateAuthority, SoftwareTPM
from attestation_testing.talos.machined import FakeMachined, Stage
from tests.fixtures.service import Operator, ServiceProcess, operator, service, start_service
from tests.fixtures.talos_extension import Inputs, inputs

__all__ = ["operator", "service", "start_service"]

pytestmark = [pytest.mark.slow, pytest.mark.swtpm]

PERMITTED = ("rootfs/usr/local/etc/containers/", "rootfs/usr/local/lib/containers/")
"""Of the roots that Talos lets an extension have, ours."""
BUILD_SECONDS = 60  # the bar of the builder; it takes a tenth of it
RUN_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An extension, and what the program said of it."""

    layout: Path
    said: dict[str, Any]
    inputs: Inputs

    def layer(self) -> tarfile.TarFile:
        """Open the one layer."""
        blobs = self.layout / "blobs" / "sha256"
        digest = json.loads((self.layout / "index.json").read_text())["manifests"][0]["digest"]
        manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
        (described,) = manifest["layers"]
        data = gzip.decompress((blobs / described["digest"].removeprefix("sha256:")).read_bytes())
        return tarfile.open(fileobj=io.BytesIO(data))


def built(given: Inputs, to: Path, **environment: str) -> Built:
    """Build it by the command line, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from attestation_cli.main import main; main()", "dev", "talos-extension", "-o", "json",
         "--wheels", given.wheels, "--lock", given.lock, "--python", given.python, "--to", to],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Built(layout=to, said=json.loads(done.stdout), inputs=given)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """What it is built of."""
    return inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def extension(given: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The extension."""
    return built(given, tmp_path_factory.mktemp("extension") / "layout")


@pytest.fixture(scope="module")
def container(extension: Built) -> Iterator[Path]:
    """The root of its container, unpacked by umoci; short, so that a socket may stand in it."""
    if missing := [
        name for name in ("umoci", "chroot") if shutil.which(name, path="/usr/bin:/usr/sbin") is None
    ]:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install --no-install-recommends umoci coreutils")
    if os.geteuid() != 0:
        pytest.skip("only root may enter another root; CI does")
    with tempfile.TemporaryDirectory(prefix="itl-x.") as folder:
        bundle = Path(folder) / "bundle"
        version = extension.said["version"]
        subprocess.run(
            ["umoci", "unpack", "--image", f"{extension.layout}:{version}", bundle],
            check=True, capture_output=True, timeout=RUN_SECONDS,
        )  # fmt: skip
        root = Path(folder) / "r"
        (bundle / "rootfs" / build.CONTAINER).rename(root)
        yield root


def inside(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with *root* as its root, and no variable but those that are named."""
    return subprocess.run(
        ["/usr/sbin/chroot", root, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_the_same_inputs_give_the_same_bytes(extension: Built, tmp_path: Path) -> None:
    """Whenever, wherever and in whatever language it is built: every file of the layout is the same."""
    moved = Inputs(
        wheels=shutil.copytree(extension.inputs.wheels, tmp_path / "elsewhere", copy_function=shutil.copy),
        lock=extension.inputs.lock,
        python=extension.inputs.python,
    )
    again = built(
        moved, tmp_path / "again", LC_ALL="C", TZ="Asia/Tokyo", PYTHONHASHSEED="7", HOME=str(tmp_path)
    )
    assert again.said["digest"] == extension.said["digest"]
    for file in extension.layout.rglob("*"):
        if file.is_file():
            assert (again.layout / file.relative_to(extension.layout)).read_bytes() == file.read_bytes(), file


def test_what_stands_in_the_layer(extension: Built) -> None:
    """Only what Talos permits; nobody's files but root's, from no time; no path of this computer; as large as told."""
    places = [str(extension.inputs.wheels), str(extension.layout), str(Path(sys.prefix)), str(Path.cwd())]
    size = 0
    names = []
    with extension.layer() as layer:
        for member in layer:
            names.append(member.name)
            assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
            assert member.isdir() or member.isfile(), member.name
            assert not member.mode & 0o022, member.name
            if member.isfile():
                assert member.name == "manifest.yaml" or member.name.startswith(PERMITTED), member.name
                file = layer.extractfile(member)
                assert file is not None
                data = file.read()
                size += len(data)
                assert not [place for place in places if place.encode() in data], member.name
                assert b"PRIVATE KEY-----\nM" not in data, member.name
    assert size == extension.said["size_bytes"] <= build.MAX_BYTES
    unwanted = (
        "grpc",
        "tkinter",
        "idlelib",
        "ensurepip",
        "/pip/",
        "sqlalchemy",
        "pycparser",
        "__pycache__",
        "/test/",
    )
    assert not [name for name in names if any(word in name for word in unwanted)]


def test_talos_reads_what_it_needs(extension: Built) -> None:
    """The manifest and the service have the members of Talos' own types, and names that belong together."""
    with extension.layer() as layer:
        documents_of = {
            name: YAML(typ="safe").load(layer.extractfile(name)) for name in ("manifest.yaml", build.SERVICE)
        }
        programs = {member.name for member in layer if member.isfile() and member.mode == 0o755}
    manifest, service = documents_of["manifest.yaml"], documents_of[build.SERVICE]
    assert manifest["version"] == "v1alpha1"
    assert set(manifest["metadata"]) == {"name", "version", "author", "description", "compatibility"}
    assert manifest["metadata"]["name"] == service["name"] == documents.NAME
    assert manifest["metadata"]["version"] == extension.said["version"]
    assert set(service) == {"name", "container", "depends", "restart", "logToConsole"}
    assert all(len(each) == 1 for each in service["depends"])
    assert build.CONTAINER + service["container"]["entrypoint"] in programs


def test_skopeo_copies_it(extension: Built, tmp_path: Path) -> None:
    """To Debian's skopeo it is an image for this architecture, whole, and of the same digest elsewhere."""
    if shutil.which("skopeo") is None:
        pytest.skip("no skopeo here: apt-get install --no-install-recommends skopeo")
    version, copy = extension.said["version"], tmp_path / "copy"

    def skopeo(*words: str) -> str:
        done = subprocess.run(
            ["skopeo", *words], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    skopeo("copy", "--insecure-policy", f"oci:{extension.layout}", f"oci:{copy}:{version}")
    said = json.loads(skopeo("inspect", f"oci:{copy}:{version}"))
    assert said["Digest"] == extension.said["digest"]
    assert (said["Architecture"], said["Os"]) == (extension.said["architecture"], "linux")


def test_the_agent_runs_with_nothing_of_this_computer(container: Path, tpm_ca: CertificateAuthority) -> None:
    """In its own root it says its version, looks at a TPM, finds names, and each of its modules can be imported."""
    assert inside(container, "/usr/bin/attestation-agent", "--version").stdout.startswith(
        "attestation-agent "
    )
    tpm = SoftwareTPM(container / "run" / "itl-tpm" / "t")
    with tpm:
        tpm.manufacture(tpm_ca)
        uri = tpm.uri.replace(str(container.resolve()), "")
        done = inside(container, "/usr/bin/attestation-agent", "identify", "--json", ITL_TPM=uri)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ek_fingerprint"]) == 96
    everything = (
        "import importlib, pkgutil, sys\n"
        f"sys.path.append('/{build.PACKAGES}')\n"
        "import attestation_agent\n"
        "for found in pkgutil.walk_packages(attestation_agent.__path__, 'attestation_agent.'):\n"
        "    importlib.import_module(found.name)\n"
        "import socket, ssl; ssl.create_default_context()\n"
        "print(socket.gethostbyname('attest.example'))\n"
    )
    # Talos puts the machine's own list there.
    (container / "etc" / "hosts").write_text("192.0.2.7 attest.example\n")
    done = inside(container, "/usr/bin/python3", "-ISB", "-c", everything)
    assert (done.returncode, done.stdout) == (0, "192.0.2.7\n"), done.stderr


def test_from_maintenance_to_applied_and_to_wiped(
    container: Path,
    extension: Built,
    service: ServiceProcess,
    operator: Operator,
    tpm_ca: CertificateAuthority,
) -> None:
    """As Talos would start it: it registers, is approved, attests, and machined gets what was sealed to this TPM.

    First as a dry run, then in earnest; nothing of it is in a file. Each start begins without state, as after a boot.
    """
    (container / documents.MACHINED.lstrip("/")).mkdir(parents=True, exist_ok=True)
    with (
        SoftwareTPM(container / "tmp" / "t") as tpm,
        FakeMachined(container / documents.SOCKET.lstrip("/")) as machined,
    ):
        tpm.manufacture(tpm_ca)
        with extension.layer() as layer:
            said = YAML(typ="safe").load(layer.extractfile(build.SERVICE))["container"]
        # What Talos adds of an ExtensionServiceConfig, and where the TPM and the facts of this machine are not.
        configured = {
            "ITL_REG_URL": service.url,
            "ITL_ROLE": "worker-app",
            "ITL_TPM": tpm.uri.replace(str(container.resolve()), ""),
            "ITL_SYSFS": "/none",
        }
        environment = dict(line.split("=", 1) for line in said["environment"]) | configured

        def boot() -> int:
            shutil.rmtree(container / documents.STATE.lstrip("/"))
            (container / documents.STATE.lstrip("/")).mkdir()
            done = inside(container, said["entrypoint"], *said["args"], "--once", **environment)
            assert service.canary not in done.stdout + done.stderr
            for path in container.glob("run/**/*"):
                assert not path.is_file() or service.canary.encode() not in path.read_bytes(), path
            return done.returncode

        assert boot() == Exit.PENDING_APPROVAL
        [machine] = operator.machines()
        assert (machine["status"], machine["desired_role"]) == ("pending_approval", "worker-app")
        assert machined.calls == []
        operator.approve(machine["machine_id"], "worker-app", hostname="w-7")
        assert boot() == Exit.OK
        modes = [
            (call.method, call.members.get("dry_run"), call.members.get("mode")) for call in machined.calls
        ]
        assert modes == [
            ("Version", None, None),
            ("ApplyConfiguration", True, "AUTO"),
            ("ApplyConfiguration", False, "AUTO"),
        ]
        assert machined.stage is Stage.CONFIGURED
        assert service.canary.encode() in (machined.config or b"")
        assert b"w-7" in (machined.config or b"")
        assert [each["detail"] for each in operator.audit(action="directive_ack")] == ["done"]

        assert boot() == Exit.OK
        assert len(machined.applied) == 1, "it is the same machine, and owes nothing"
        operator.act(machine["machine_id"], "revoke", wipe=True, reason="retired")
        assert boot() == Exit.REVOKED
        assert (machined.partitions["STATE"], machined.partitions["EPHEMERAL"]) == (False, False)
        assert operator.machine(machine["machine_id"])["wiped_at"] is not None


def test_without_an_address_it_says_what_is_missing(container: Path) -> None:
    """The service's program reads the settings of the agent and nothing else."""
    done = inside(container, "/usr/bin/itl-tpm-register", PYTHONPATH="/nowhere", ITL_STATE_DIR="/run/itl-tpm")
    assert done.returncode == 64
    assert "ITL_REG_URL" in done.stderr
