"""The kiosk from a blank machine to a written disk: real TPM, real service, real FAT, a disk that is a file."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from attestation.client import ServiceUnreachable
from attestation_agent.commands import Outcome
from attestation_agent.exits import Exit
from attestation_agent.kiosk import flow
from attestation_agent.kiosk import main as kiosk
from attestation_agent.kiosk.exits import KioskExit, NotAdmitted
from attestation_agent.kiosk.fat import FAT
from attestation_agent.kiosk.flow import World
from attestation_agent.rhythm import Rhythm
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.in_process import BASE_URL, InProcess, InProcessService
from tests.fixtures.over_httpx import OverHTTPX, Reply, answering
from tests.integration.agent.rig import Rig as AgentRig
from tests.unit.agent.kiosk.bench import ESP_AT, MIB, Bench, console, make_fat, make_image, signed, vkey

IMAGE_URL = "https://images.example/talos/os.raw.xz"


class Network:
    """The service and a server of images, told apart by their names."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._service = OverHTTPX(InProcess(rig.service.app, rig.service.run, "192.0.2.7"))
        self._images = answering(self._image)

    def _image(self, request: httpx.Request) -> httpx.Response:
        if self._rig.busy:
            self._rig.busy -= 1
            return httpx.Response(503)
        return httpx.Response(200, content=self._rig.files[request.url.path.rpartition("/")[2]])

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send to whom it is for."""
        if self._rig.down:
            raise ServiceUnreachable("away")
        to = self._service if url.startswith(BASE_URL) else self._images
        return to.send(method, url, headers, body)

    def close(self) -> None:
        """Nothing is held."""


class Rig:
    """One machine with its disk."""

    def __init__(self, service: InProcessService, tpm: SoftwareTPM, tmp_path: Path) -> None:
        self.service, self.tpm = service, tpm
        self.bench = Bench(tmp_path / "machine")
        self.disk = self.bench.disk("vda")
        self.image = make_image(tmp_path)
        packed = lzma.compress(self.image)
        self.files = {
            "os.raw.xz": packed,
            "images.note": signed({"os.raw.xz": hashlib.sha256(packed).digest()}),
        }
        self.commands: list[tuple[str, ...]] = []
        self.shown = io.StringIO()
        self.down = False
        self.busy = 0
        self.on_wait: Callable[[], object] = lambda: None

    def run(self, *answers: str, **settings: str) -> int:
        """Start the kiosk; return how it ends."""
        variables = {
            "ITL_REG_URL": BASE_URL,
            "ITL_IMAGE_URL": IMAGE_URL,
            "ITL_IMAGE_KEYS": vkey(),
            "ITL_SPLAY_SECONDS": "0",
            "ITL_OFFLINE": "no",
            "ITL_TPM": self.tpm.uri,
            **settings,
        }

        def wait(seconds: float) -> bool:
            self.service.clock.pass_(seconds=seconds)
            self.on_wait()
            return False

        def run(command: tuple[str, ...]) -> Outcome:
            self.commands.append(command)
            return Outcome(ok=True, text="exit status 0")

        screen, self.shown = console(*answers)
        world = World(
            screen=screen,
            clock=self.service.clock,
            wait=wait,
            open_tpm=kiosk._open,
            run=run,
            rhythm=Rhythm(),
            carrier=Network(self),
            devices=False,
        )
        return kiosk.install(
            {**self.bench.variables, **variables}, conf=self.bench.root / "conf", world=world
        )

    def token(self) -> dict[str, str]:
        """Have a registration token made."""
        body = {"role": "worker-app", "expires_in_seconds": 3600, "minimum_assurance": "tofu"}
        made: dict[str, str] = self.service.operator().call("POST", "/registration-tokens", json=body)
        return made

    def left(self, name: str) -> dict[str, object]:
        """Return what is left on the ESP of the disk."""
        data = FAT(path=self.disk, start_bytes=ESP_AT).read(f"EFI/itl/{name}", max_bytes=65_536)
        assert data is not None
        found: dict[str, object] = json.loads(data)
        return found


@pytest.fixture
def rig(local: InProcessService, blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, tmp_path: Path) -> Rig:
    """A machine whose TPM has an EK certificate."""
    blank_tpm.manufacture(tpm_ca, at=local.clock.now())
    return Rig(local, blank_tpm, tmp_path)


@pytest.mark.threat("T330", "T332")
@pytest.mark.swtpm
def test_a_blank_machine_with_a_token_is_written_unattended(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered by the token, the image of the signed list on the disk, a receipt, and no secret left anywhere."""
    made = rig.token()
    token = tmp_path / "token"
    token.write_text(f"{made['token']} {made['jwks_sha256']}\n")
    rig.busy = 2
    monkeypatch.setattr(flow, "PROBE_SECONDS", 600.0)  # a computer with much to do
    settings = {"ITL_OFFLINE": "auto", "ITL_AUTO_CONFIRM": "yes", "ITL_REGISTRATION_TOKEN_FILE": str(token)}
    assert rig.run(**settings) == 0, rig.shown.getvalue()
    data = rig.disk.read_bytes()
    assert data[:ESP_AT] == rig.image[:ESP_AT]
    assert rig.commands == [("reboot",)]
    assert "image.again" in rig.shown.getvalue()
    (machine,) = rig.service.operator().machines()
    assert machine["status"] == "registered"
    written = rig.left("tpm-receipt.json")
    assert {
        name: written[name] for name in ("machine_id", "ek_fingerprint", "install_mode", "ek_source")
    } == {
        "machine_id": machine["machine_id"],
        "ek_fingerprint": machine["ek_fingerprint"],
        "install_mode": "online",
        "ek_source": "cert",
    }
    assert rig.left("registration.json")["reg_url"] == BASE_URL
    assert made["token"].encode() not in data
    assert made["token"] not in rig.shown.getvalue()
    assert "erased_unconfirmed" in rig.shown.getvalue()


@pytest.mark.threat("T331")
@pytest.mark.swtpm
def test_without_a_token_an_operator_is_waited_for_and_the_disk_is_typed(rig: Rig) -> None:
    """Also while the service is away. Nothing is attested; who is refused, or not approved, keeps the disk."""
    operator, before = rig.service.operator(), rig.disk.read_bytes()
    with pytest.raises(NotAdmitted, match="in time") as late:
        rig.run(ITL_WAIT_SECONDS="60")
    assert late.value.exit_code == KioskExit.PENDING_APPROVAL
    waits = 0

    def on_wait() -> None:
        nonlocal waits
        waits += 1
        rig.down = waits < 8
        if waits == 8:
            operator.approve(operator.machines()[0]["machine_id"])

    rig.on_wait = on_wait
    assert rig.run("", "", "vda") == KioskExit.WRITTEN, rig.shown.getvalue()
    (machine,) = operator.machines()
    assert machine["ek_fingerprint"][:4] in rig.shown.getvalue()
    assert machine["status"] == "registered"
    assert operator.audit(action="attest") == []
    operator.act(machine["machine_id"], "revoke", reason="stolen")
    rig.disk.write_bytes(before)
    rig.down = False
    with pytest.raises(NotAdmitted, match="revoked"):
        rig.run("", "", "vda")
    assert rig.disk.read_bytes() == before


@pytest.mark.threat("T332")
@pytest.mark.swtpm
def test_a_token_that_was_typed_is_kept_no_longer_than_it_is_needed(rig: Rig) -> None:
    """Of a service that is away for a moment, and names the image; another run needs the token no more."""
    made = rig.token()
    resources = rig.service.app.state.resources
    settings = resources.settings.model_copy(update={"iso_url": IMAGE_URL})
    rig.service.app.state.resources = replace(resources, settings=settings)
    rig.down, rig.on_wait = True, lambda: setattr(rig, "down", False)
    assert rig.run("worker-app", made["token"], "vda", ITL_IMAGE_URL="") == 0, rig.shown.getvalue()
    assert "service.again" in rig.shown.getvalue()
    kept = [path for path in rig.bench.root.rglob("*") if path.is_file() and path != rig.disk]
    assert not any(made["token"].encode() in path.read_bytes() for path in kept)
    assert rig.run("worker-app", made["token"], "vda") == KioskExit.WRITTEN, rig.shown.getvalue()
    (machine,) = rig.service.operator().machines()
    assert machine["status"] == "registered"


@pytest.mark.swtpm
def test_a_machine_that_was_installed_offline_is_expected_and_comes(rig: Rig, tmp_path: Path) -> None:
    """Its receipt is imported from the stick; the installed agent, on the same TPM, is the machine that it names."""
    stick = rig.bench.disk("sda", 16 * MIB, removable=1)
    fat = make_fat(stick, 0, 16 * MIB, label="ITL_BUNDLE")
    for name, data in rig.files.items():
        fat.write(f"itl/{name}", data)
    rig.down = True
    assert rig.run("worker-infra", "vda", ITL_IMAGE_URL="", ITL_OFFLINE="auto") == 0, rig.shown.getvalue()
    receipt = fat.read(
        f"itl/receipts/{str(rig.left('tpm-receipt.json')['ek_fingerprint'])[:16]}.json", max_bytes=9999
    )
    assert receipt is not None
    operator = rig.service.operator()
    expected = operator.call("POST", "/machines/import", json=json.loads(receipt))
    node = AgentRig(rig.service, tmp_path, open_tpm=rig.tpm.node)
    assert node.once() is Exit.PENDING_APPROVAL
    assert (
        [each["machine_id"] for each in operator.machines()] == [expected["machine_id"]] == [node.machine_id]
    )
