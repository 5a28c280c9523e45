"""From an empty machine to what was promised: the kiosk's image, built by its recipe, on real firmware."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.openid.provider import Provider
from tests.fixtures.service import Operator, ServiceProcess
from tests.fixtures.vm import HOST, IDENTITY, VirtualMachine
from tools.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
RECIPE: Final = ROOT / "deploy" / "kiosk"
DUTY: Final = "attestation-operator"
IMAGE_MIB: Final = 64
DISK_BYTES: Final = 1 << 30
MAX_IMAGE_BYTES: Final = 400 << 20
BUILD_SECONDS: Final = 1500
BOOT_SECONDS: Final = 900
WRITE_SECONDS: Final = 900
SECTOR: Final = 512

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4200)]

INIT: Final = """\
#!/bin/sh
mount -t devtmpfs dev /dev
echo "THE WRITTEN DISK SAYS {word}" > /dev/console
poweroff -f
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the parts of the medium, and of the medium, `kiosk.img`, as the recipe builds them."""
    given = os.environ.get("TESTS_VM_PARTS")
    at = Path(given) if given else tmp_path_factory.mktemp("parts")
    if not (at / "kiosk.img").exists():
        wheels = tmp_path_factory.mktemp("wheels")
        run(sys.executable, str(ROOT / "tools/build.py"), str(wheels))
        run(str(RECIPE / "build.sh"), "--keep", str(at), str(wheels), str(at / "kiosk.img"))
    assert (at / "kiosk.img").stat().st_size <= MAX_IMAGE_BYTES
    return at


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a name that is short enough for sockets."""
    at = Path(tempfile.mkdtemp(prefix="itl-vm."))
    try:
        yield at
    finally:
        kept = os.environ.get("TESTS_VM_KEEP")
        if kept:
            shutil.copytree(at, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock*", "*.img"))
        shutil.rmtree(at, ignore_errors=True)


@pytest.fixture
def tpm(place: Path, tpm_ca: CertificateAuthority) -> tuple[Path, str]:
    """State of a TPM with a certificate, and its EK's fingerprint. One bank: firmware hashes all it starts for each."""
    state = place / "tpm"
    state.mkdir()
    run("swtpm_setup", "--tpm2", "--tpmstate", str(state), "--pcr-banks", "sha256")
    with SoftwareTPM(state) as made:
        made.manufacture(tpm_ca)
        return state, made.ek_public().fingerprint()


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Where Anna and Bernd log in."""
    with Provider() as found:
        for name in ("anna", "bernd"):
            found.add_user(name, [DUTY])
        yield found


@pytest.fixture
def served(place: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which the machine gets what is in it."""
    at = place / "served"
    at.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(at)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield at, f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@pytest.fixture
def service(place: Path, provider: Provider, served: tuple[Path, str]) -> Iterator[ServiceProcess]:
    """A service with TLS of its own, which lets nobody alone admit a worker."""
    directory = place / "service"
    directory.mkdir()
    trust, key = certificate(directory)
    port = free_port()
    found = ServiceProcess(
        directory=directory,
        port=port,
        trust=trust,
        environment={
            "ITL_SERVICE_URL": f"https://{HOST}:{port}",
            "ITL_OIDC_ISSUER": provider.issuer,
            "ITL_DUAL_CONTROL_ROLES": "worker-app",
            "ITL_DUAL_CONTROL_WINDOW_SECONDS": "3600",
            "ITL_ISO_URL": f"{served[1]}/node.raw.xz",
            "ITL_TLS_CERT_FILE": str(trust),
            "ITL_TLS_KEY_FILE": str(key),
        },
    )
    found.start()
    try:
        yield found
    finally:
        found.kill()


def test_an_empty_machine_becomes_what_two_people_approved(
    parts: Path,
    place: Path,
    tpm: tuple[Path, str],
    provider: Provider,
    served: tuple[Path, str],
    service: ServiceProcess,
) -> None:
    """It boots the stick, waits for both, writes the signed image, leaves its receipt and starts what it wrote."""
    state, fingerprint = tpm
    word = secrets.token_hex(8)
    image = image_that_says(word, parts, place)
    keys = sign(image, served[0], place)
    stick, disk = place / "stick.img", place / "disk.img"
    shutil.copy(parts / "kiosk.img", stick)
    settings = {
        "itl-reg.conf": f"ITL_REG_URL=https://{HOST}:{service.port}\r\nITL_ROLE=worker-app\r\n",
        "image.keys": keys,
        "ca.pem": service.trust.read_text() if service.trust else "",
    }
    for name, text in settings.items():
        (place / name).write_text(text)
        on_esp(stick, "mcopy", str(place / name), f"::/EFI/itl/{name}")
    with disk.open("xb") as file:
        file.truncate(DISK_BYTES)

    with VirtualMachine(place, tpm=state, disk=disk, stick=stick) as machine:
        # 1. It boots, says who it is, and asks what its medium does not tell.
        machine.wait_for(r"Code ([0-9a-f ]{19})", BOOT_SECONDS)
        machine.wait_for("Registration token", 120)
        machine.type("")
        machine.wait_for("Waits for an operator", 300)
        machine.screen(place / "waits.png")

        # 2. One person is not enough; two are.
        with httpx.Client(
            base_url=service.url, verify=ssl.create_default_context(cafile=service.trust), timeout=60
        ) as http:
            anna, bernd = (Operator(http, provider.token(name)) for name in ("anna", "bernd"))
            (waiting,) = anna.machines(status="pending_approval")
            assert waiting["ek_fingerprint"] == fingerprint
            approval = f"/machines/{waiting['machine_id']}/approve"
            body = {"role": "worker-app"}
            assert anna.request("POST", approval, json=body).status_code == 202
            assert anna.machine(waiting["machine_id"])["status"] == "pending_approval"
            assert bernd.request("POST", approval, json=body).status_code == 200

            # 3. Admitted, it shows the disk, and erases it for a name that is typed.
            machine.wait_for("Type vda to erase it", 300)
            machine.screen(place / "confirms.png")
            assert not any(image_head(disk)), "nothing is written before that"
            machine.type("vda")
            machine.wait_for("Restarting", WRITE_SECONDS)
            machine.screen(place / "written.png")
            registered = bernd.machine(waiting["machine_id"])

        # 4. Without a hand on it, it starts what it wrote.
        machine.wait_for(f"THE WRITTEN DISK SAYS {word}", BOOT_SECONDS)
        machine.wait_until(lambda: not machine.is_on, 120)

    # The disk holds what was promised, and beside it only who was installed.
    assert registered["status"] == "registered"
    begin, end = partition(image)
    promised = image.read_bytes()
    with disk.open("rb") as file:
        found = file.read(len(promised))
    assert found[: begin * SECTOR] == promised[: begin * SECTOR]
    assert found[end * SECTOR :] == promised[end * SECTOR :]
    assert file_on(disk, "EFI/BOOT/BOOTX64.EFI") == file_on(image, "EFI/BOOT/BOOTX64.EFI")
    receipt: dict[str, Any] = json.loads(file_on(disk, "EFI/itl/tpm-receipt.json"))
    assert receipt["ek_fingerprint"] == fingerprint
    assert (receipt["install_mode"], receipt["ek_source"]) == ("online", "cert")
    assert (receipt["machine_id"], receipt["hw_uuid"]) == (waiting["machine_id"], IDENTITY)
    registration: dict[str, Any] = json.loads(file_on(disk, "EFI/itl/registration.json"))
    assert registration["image_sha256"] == sha256(served[0] / "node.raw.xz")
    assert set(names_on(disk)) - set(names_on(image)) == {"registration.json", "tpm-receipt.json"}


def test_the_medium_is_the_same_another_time_and_tells_nothing_of_who_built_it(
    parts: Path, tmp_path: Path
) -> None:
    """No time of day is in the program that firmware measures; no secret, no path, no password in its root."""
    line = "console=tty0 console=ttyS0,115200n8 quiet loglevel=3 systemd.show_status=false panic=60"
    made = [str(parts / name) for name in ("linuxx64.efi.stub", "vmlinuz", "initrd")]
    run(str(RECIPE / "uki.sh"), str(tmp_path / "uki.efi"), *made, line)
    assert sha256(tmp_path / "uki.efi") == sha256(parts / "uki.efi")
    with tarfile.open(parts / "root.tar") as root:
        names = {member.name.removeprefix("./"): member for member in root}
        secrets_of_people = [
            name for name, member in names.items()
            if member.isfile() and ("private" in name or name.endswith(("direct_url.json", "pip.conf", "_key", ".key")))
        ]  # fmt: skip
        assert secrets_of_people == []
        assert [name for name, member in names.items() if member.isfile() and member.mode & 0o6000] == []
        assert names["etc/machine-id"].size == 0
        for file, place in (("etc/passwd", 1), ("etc/shadow", 1)):
            held = root.extractfile(names[file])
            assert held is not None
            words = {line.split(":")[place] for line in held.read().decode().splitlines()}
            assert words <= {"x", "*", "!*", "!"}, file


def run(*command: str, seconds: float = BUILD_SECONDS) -> str:
    """Run a program and return what it printed.

    Raises:
        AssertionError: It failed; with the end of what it said.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ITL_")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=seconds, check=False,
    )  # fmt: skip
    text = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, f"{' '.join(command)}: {text[-4000:]}"
    return text


def image_that_says(word: str, parts: Path, place: Path) -> Path:
    """Return a disk of one partition that boots the kernel of the kiosk, says *word* and switches off."""
    root = place / "initrd.d"
    for folder in ("bin", "dev"):
        (root / folder).mkdir(parents=True)
    shutil.copy(parts / "initrd.d/bin/busybox", root / "bin/busybox")
    for name in ("sh", "mount", "echo", "poweroff"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "init").write_text(INIT.format(word=word))
    (root / "init").chmod(0o755)
    run("sh", "-c", f"cd {root} && find . | cpio --quiet -o -H newc > {place}/node.initrd")
    made = [str(parts / "linuxx64.efi.stub"), str(parts / "vmlinuz"), str(place / "node.initrd")]
    run(str(RECIPE / "uki.sh"), str(place / "node.efi"), *made, "console=ttyS0 quiet")
    run(str(RECIPE / "disk.sh"), str(place / "node.raw"), str(IMAGE_MIB), str(place / "node.efi"), "NODE")
    return place / "node.raw"


def sign(image: Path, to: Path, place: Path) -> str:
    """Serve *image*, packed, and a signed list that names it; return the key that signs."""
    run("sh", "-c", f"xz -0 -k -c {image} > {to}/node.raw.xz")
    program = Path(sys.executable).with_name("attestation-kiosk")
    key = (f"file:{place / 'images.pem'}", "--name", "images.example", "--to", str(to / "images.note"))
    return run(str(program), "sign", "--key", *key, str(to / "node.raw.xz"))


def certificate(at: Path) -> tuple[Path, Path]:
    """Return files of a certificate, signed by itself, for both addresses of the service, and of its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", HOST)]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (at / "tls.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (at / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (at / "tls.key").chmod(0o600)
    return at / "tls.pem", at / "tls.key"


def on_esp(disk: Path, program: str, *arguments: str) -> bytes:
    """Run a program of mtools on the partition of *disk*."""
    done = subprocess.run(
        [program, "-i", f"{disk}@@1M", *arguments], check=False, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


def file_on(disk: Path, name: str) -> bytes:
    """Return a file of the partition of *disk*."""
    return on_esp(disk, "mtype", f"::/{name}")


def names_on(disk: Path) -> list[str]:
    """Return the names of all files on the partition of *disk*."""
    found = on_esp(disk, "mdir", "-/", "-b", "::/").decode()
    return [line.rpartition("/")[2] for line in found.split("\n") if line and not line.endswith("/")]


def partition(disk: Path) -> tuple[int, int]:
    """Return the first sector of the one partition of *disk*, and that behind its last."""
    table = json.loads(run("/usr/sbin/sfdisk", "--json", str(disk)))["partitiontable"]["partitions"]
    (only,) = table
    return only["start"], only["start"] + only["size"]


def image_head(disk: Path) -> bytes:
    """Return the first MiB of *disk*."""
    with disk.open("rb") as file:
        return file.read(1 << 20)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hex."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(path.read_bytes())
    return digest.finalize().hex()
