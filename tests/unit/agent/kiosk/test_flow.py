"""The kiosk on a machine of files, without a service: offline, confirmed or not, once more; what a server answers."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from attestation.api import OfflineBundle, ReceiptImport
from attestation.client import ServiceUnreachable
from attestation.clock import rfc3339
from attestation.errors import AttestationError
from attestation.tpm import parse_public
from attestation_agent.commands import Outcome
from attestation_agent.exits import UsageError
from attestation_agent.kiosk import main as kiosk
from attestation_agent.kiosk import receipt as receipts
from attestation_agent.kiosk.exits import (
    ImageRejected,
    KioskExit,
    NoDisk,
    NoImage,
    NotAdmitted,
    NotConfirmed,
    WriteFailed,
    kiosk_exit_of,
)
from attestation_agent.kiosk.fat import FAT, Folder
from attestation_agent.kiosk.flow import World
from attestation_agent.kiosk.image import MAX_LIST_BYTES, Carried, served
from attestation_agent.kiosk.ui import COLUMNS
from attestation_agent.rhythm import Rhythm
from tests.fixtures.over_httpx import answering
from tests.unit.agent.kiosk.bench import (
    ESP_AT,
    IMAGE_BYTES,
    MIB,
    Bench,
    console,
    make_fat,
    make_image,
    signed,
    vkey,
)
from tests.unit.agent.world import MACHINE_ID, Clock, Machine

BUNDLE_BYTES = 20 * MIB


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An image that boots."""
    return make_image(tmp_path_factory.mktemp("image"))


class Rig:
    """A machine with an empty disk, and a stick with a bundle."""

    def __init__(self, tmp_path: Path, image: bytes) -> None:
        self.bench = Bench(tmp_path / "machine")
        self.image = image
        self.disk = self.bench.disk("sda")
        self.stick = self.bench.disk("sdb", BUNDLE_BYTES, removable=1)
        self.fat = make_fat(self.stick, 0, BUNDLE_BYTES, label="ITL_BUNDLE")
        self.fat.write("itl/os.raw", image)
        self.fat.write("itl/images.note", signed({"os.raw": hashlib.sha256(image).digest()}))
        self.tpm = Machine()
        self.clock = Clock()
        self.commands: list[tuple[str, ...]] = []
        self.outcome = Outcome(ok=True, text="exit status 0")
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda request: httpx.Response(503)
        self.waits: list[float] = []
        self.shown = io.StringIO()
        self.attended = False

    def run(self, *answers: str, **settings: str) -> int:
        """Start the kiosk."""
        variables = {
            **self.bench.variables,
            "ITL_OFFLINE": "yes",
            "ITL_IMAGE_KEYS": vkey(),
            "ITL_SPLAY_SECONDS": "0",
            **settings,
        }
        screen, self.shown = console(*answers, attended=self.attended)

        def wait(seconds: float) -> bool:
            self.waits.append(seconds)
            return False

        def run(command: tuple[str, ...]) -> Outcome:
            self.commands.append(command)
            return self.outcome

        world = World(
            screen=screen,
            clock=self.clock,
            wait=wait,
            open_tpm=lambda chosen: self.tpm,
            run=run,
            rhythm=Rhythm(),
            carrier=answering(lambda request: self.answer(request)),
            devices=False,
        )
        return kiosk.install(variables, conf=self.bench.root / "conf", world=world)

    def untouched(self) -> bool:
        """Return True if nothing was written to the disk."""
        return not any(self.disk.read_bytes())


@pytest.fixture
def rig(tmp_path: Path, image: bytes) -> Rig:
    """The machine."""
    return Rig(tmp_path, image)


def test_a_machine_is_installed_from_a_bundle(rig: Rig) -> None:
    """The disk holds the image, disk and stick the receipt; nobody was asked but who typed the disk's name."""
    assert rig.run("", "sda") == KioskExit.WRITTEN, rig.shown.getvalue()
    data = rig.disk.read_bytes()
    assert data[:ESP_AT] == rig.image[:ESP_AT]
    assert data[3 * MIB : IMAGE_BYTES] == rig.image[3 * MIB :]
    esp = FAT(path=rig.disk, start_bytes=ESP_AT)
    left = esp.read("EFI/itl/tpm-receipt.json", max_bytes=9999)
    assert left is not None
    members = json.loads(left)
    fingerprint = members["ek_fingerprint"]
    assert members == {
        "install_mode": "offline",
        "role": "worker-app",
        "hw_uuid": "unknown",
        "hw_mac": "unknown",
        "hw_serial": "unknown",
        "hw_product": "unknown",
        "ek_fingerprint": fingerprint,
        "ek_source": rig.tpm.identify().ek_source,
        "installed_at": rfc3339(rig.clock.at),
    }
    ReceiptImport.model_validate_json(left)
    assert rig.fat.read(f"itl/receipts/{fingerprint[:16]}.json", max_bytes=9999) == left
    registration = json.loads(esp.read("EFI/itl/registration.json", max_bytes=9999) or b"")
    assert registration["image"] == "os.raw"
    assert registration["image_sha256"] == hashlib.sha256(rig.image).hexdigest()
    assert rig.commands == [("reboot",)]
    assert rig.tpm.ended == ["close"]
    # Whoever types ends the line of the question.
    lines = rig.shown.getvalue().replace("\r", "\n").replace("> ", "\n").split("\n")
    assert max(map(len, lines)) <= COLUMNS
    assert any(line.startswith("Code " + fingerprint[:4]) for line in lines)


@pytest.mark.threat("T331")
def test_nothing_is_written_that_nobody_confirmed(rig: Rig) -> None:
    """Another word, no word, nobody there."""
    cases = (("yes", True), ("sdb", True), (None, True), (None, False))
    for answer, rig.attended in cases:
        with pytest.raises(NotConfirmed):
            rig.run(*(["", answer] if answer else []))
        assert rig.untouched()
    assert rig.commands == []


@pytest.mark.threat("T331")
def test_who_is_not_asked_is_warned_and_a_stick_that_stays_is_no_loop(rig: Rig) -> None:
    """Unattended, a disk that was written for this TPM is left; for another, or where it is wanted, it is written."""
    assert rig.run(ITL_AUTO_CONFIRM="yes") == 0
    assert "WARNING: disk.erased_unconfirmed" in rig.shown.getvalue()
    rig.bench.partition("sda", 1, MIB, 2 * MIB)
    again = {"ITL_AUTO_CONFIRM": "yes", "ITL_REBOOT_COMMAND": "again"}
    assert rig.run(**again) == 0
    assert rig.commands == [("reboot",)]
    assert rig.run("", "sda", ITL_REBOOT_COMMAND="typed") == 0
    assert rig.run(**again, ITL_REINSTALL="yes") == 0
    rig.tpm = Machine(2)
    assert rig.run(**again) == 0
    assert rig.commands == [("reboot",), ("typed",), ("again",), ("again",)]


def test_what_an_old_disk_holds_stops_nobody(rig: Rig) -> None:
    """A list, or a receipt on the disk to be erased, that is longer than one can be is none."""
    old = rig.bench.disk("hda", 2 * MIB)
    make_fat(old, 0, 2 * MIB, label="ITL_BUNDLE").write("itl/images.note", bytes(MAX_LIST_BYTES + 1))
    make_fat(rig.disk, MIB, 2 * MIB).write("EFI/itl/tpm-receipt.json", bytes(receipts.MAX_BYTES + 1))
    rig.bench.partition("sda", 1, MIB, 2 * MIB)
    assert rig.run(ITL_AUTO_CONFIRM="yes") == KioskExit.WRITTEN
    assert "Offline: bundle on sdb" in rig.shown.getvalue()


@pytest.mark.parametrize(
    ("change", "settings", "error", "words"),
    [
        (lambda rig: rig.fat.write("itl/os.raw", rig.image + b"x"), {}, ImageRejected, "signed list says"),
        (lambda rig: rig.fat.write("itl/images.note", b"x"), {}, ImageRejected, "no signed note"),
        (lambda rig: None, {"ITL_IMAGE_URL": "http://a/other.raw"}, ImageRejected, "names no image"),
        (lambda rig: None, {"ITL_IMAGE_KEYS": ""}, UsageError, "no key for images is pinned"),
        (lambda rig: None, {"ITL_IMAGE_KEYS": "/none"}, UsageError, "cannot be read"),
        (lambda rig: make_fat(rig.stick, 0, BUNDLE_BYTES), {}, NoImage, "no medium beside sda"),
        (lambda rig: rig.stick.write_bytes(bytes(BUNDLE_BYTES)), {}, NoImage, "no medium beside sda"),
        (lambda rig: None, {"ITL_TARGET_DISK": "sdb"}, NoImage, "no medium beside sdb"),
        (lambda rig: rig.disk.unlink(), {}, NoDisk, "No such file"),
        (
            lambda rig: rig.fat.write("itl/images.note", signed({"a.raw": bytes(32), "b.raw": bytes(32)})),
            {},
            NoImage,
            "lists 2 images",
        ),
        (
            lambda rig: rig.fat.write("itl/images.note", signed({"a.raw": bytes(32)})),
            {},
            NoImage,
            r"a\.raw cannot be read",
        ),
    ],
)
def test_a_bundle_that_is_not_right_installs_nothing(
    rig: Rig,
    change: Callable[[Rig], object],
    settings: dict[str, str],
    error: type[AttestationError],
    words: str,
) -> None:
    """Each of these alone; and the disk boots nothing."""
    change(rig)
    with pytest.raises(error, match=words):
        rig.run(**{"ITL_AUTO_CONFIRM": "yes", **settings})
    assert not rig.disk.exists() or rig.disk.read_bytes()[510:512] != b"\x55\xaa"
    # What can be seen before is seen before anything is erased; here the disk was empty.
    erased = "boots now" in rig.shown.getvalue()
    assert erased == (words == "signed list says")
    assert rig.commands == []


def test_a_stick_that_takes_no_receipt_is_no_reason_to_begin_again(rig: Rig) -> None:
    """Mounted, or read-only: the disk has it. What cannot restart is told."""
    rig.bench.put("proc/self/mountinfo", "22 1 8:32 / /mnt rw - vfat /dev/sdb rw\n")
    rig.outcome = Outcome(ok=False, text="exit status 1")
    before = rig.stick.read_bytes()
    assert rig.run("", "sda") == 0
    assert rig.stick.read_bytes() == before
    assert "WARNING: receipt.not_carried" in rig.shown.getvalue()
    assert "Restart this machine by hand" in rig.shown.getvalue()


def sealed_bundle(ek_fingerprint: str) -> bytes:
    """Return what `attestation machine offline-bundle` writes, sealed to nobody."""
    envelope = {
        "format": "ek-aes256gcm-v2",
        "machine_id": MACHINE_ID,
        "token_id": "0" * 16,
        "credential_blob": "AA==",
        "encrypted_secret": "AA==",
        "iv": "AA==",
        "ciphertext": "AA==",
        "config_sha256": "0" * 64,
    }
    members = {
        "machine_id": MACHINE_ID,
        "role": "worker-app",
        "status": "registered",
        "ek_fingerprint": ek_fingerprint,
        "hostname": None,
        "assigned_ip": None,
        "iso_url": None,
        "config_url": "",
        "config_token": "",
        "machineconfig": envelope,
        "machineconfig_signature": "",
        "enrollment_cert_pem": "",
        "enrollment_ca_pem": "",
        "enrollment_key_pem": envelope,
        "enrollment_key_signature": "",
        "serial": "0" * 40,
        "not_after": "2027-01-01T00:00:00Z",
        "built_at": "2026-01-01T00:00:00Z",
    }
    return OfflineBundle.model_validate_json(json.dumps(members)).model_dump_json().encode()


def test_a_sealed_bundle_is_taken_along_where_it_is_ours(rig: Rig) -> None:
    """Anything else is left on the stick, and told."""
    ours, theirs = (
        sealed_bundle(parse_public(Machine(seed).identify().ek_public).fingerprint()) for seed in (1, 2)
    )
    cases = ((b"{}", "bundle.unreadable"), (theirs, "bundle.for_another_machine"), (ours, "Receipt"))
    for data, words in cases:
        rig.fat.write("itl/reg-bundle.json", data)
        assert rig.run("", "sda") == 0
        assert words in rig.shown.getvalue()
        esp = FAT(path=rig.disk, start_bytes=ESP_AT)
        found = esp.read("EFI/itl/reg-bundle.json", max_bytes=9999)
        assert found == (ours if data == ours else None)


def test_a_bundle_may_be_a_directory(rig: Rig, tmp_path: Path) -> None:
    """One that somebody mounted; it gets the receipt as well. Keys may stand in a file."""
    folder, keys = tmp_path / "bundle", tmp_path / "image.keys"
    folder.mkdir()
    keys.write_text(f"# who signs\n{vkey()}\n")
    (folder / "os.raw").write_bytes(rig.image)
    (folder / "images.note").write_bytes(signed({"os.raw": hashlib.sha256(rig.image).digest()}))
    assert rig.run("", "sda", ITL_USB_BUNDLE_DIR=str(folder)) == 0
    assert len(list((folder / "receipts").iterdir())) == 1
    (folder / "receipts").rename(folder / "old")
    (folder / "receipts").write_text("in the way")
    assert rig.run("", "sda", ITL_USB_BUNDLE_DIR=str(folder), ITL_IMAGE_KEYS=str(keys)) == 0
    assert "receipt.not_carried" in rig.shown.getvalue()


def test_without_a_service_auto_looks_for_a_bundle_and_asks_for_an_address(rig: Rig) -> None:
    """It asks until it can use the answer; an answer of the service that is not 200 is none."""
    assert rig.run("a.example", "https://a.example", "boss", "worker-infra", "sda", ITL_OFFLINE="auto") == 0
    assert rig.shown.getvalue().count("That is none") == 2
    esp = FAT(path=rig.disk, start_bytes=ESP_AT)
    receipt = json.loads(esp.read("EFI/itl/tpm-receipt.json", max_bytes=9999) or b"")
    assert receipt["role"] == "worker-infra"
    assert "Address of the service" in rig.shown.getvalue()
    assert "Offline: bundle on sdb" in rig.shown.getvalue()
    with pytest.raises(UsageError, match="address of the service is missing"):
        rig.run(ITL_OFFLINE="no", ITL_AUTO_CONFIRM="yes")
    (rig.stick).write_bytes(bytes(BUNDLE_BYTES))
    with pytest.raises(NoImage, match="and the service does not answer"):
        rig.run(ITL_OFFLINE="auto", ITL_REG_URL="https://a.example", ITL_AUTO_CONFIRM="yes")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(404), NoImage),
        (httpx.Response(302, headers={"location": "https://b.example/"}), NoImage),
        (httpx.Response(503), ServiceUnreachable),
        (httpx.Response(200, headers={"content-encoding": "gzip"}), NoImage),
        (httpx.Response(206, content=b"x"), NoImage),
    ],
)
def test_a_server_that_does_not_give_the_image_is_told_apart(
    answer: httpx.Response, error: type[AttestationError]
) -> None:
    """What may pass, and what does not; no address is followed."""
    source = served("https://a.example/os.raw", None, None, answering(lambda request: answer))
    with pytest.raises(error):
        b"".join(source.chunks(0))
    with pytest.raises(error):
        source.listing()


@pytest.mark.threat("T330")
@pytest.mark.parametrize("said", ["bytes 4-9/10", "bytes 6-9/10", "", "bytes 5-", "bytes x-9/10"])
def test_a_server_goes_on_where_it_was_or_not_at_all(said: str) -> None:
    """Another piece would be hashed as if it were the next one; that the hash refuses it comes too late."""
    headers = {"content-range": said} if said else {}
    carrier = answering(lambda request: httpx.Response(206, headers=headers, content=b"56789"))
    with pytest.raises(NoImage, match="does not go on"):
        b"".join(served("https://a.example/os.raw", None, None, carrier).chunks(5))
    good = answering(
        lambda request: httpx.Response(206, headers={"content-range": "bytes 5-9/10"}, content=b"56789")
    )
    assert b"".join(served("https://a.example/os.raw", None, None, good).chunks(5)) == b"56789"


def test_a_server_that_drips_has_broken_off() -> None:
    """Byte by byte it would keep a machine for days; one that is slow and gives enough is waited for."""
    seconds = iter(range(0, 10**9, 31))

    def drips(size_bytes: int) -> Callable[[], bytes]:
        pieces = (bytes(size_bytes) for _ in range(20))
        carrier = answering(lambda request: httpx.Response(200, content=pieces))
        source = served("https://a.example/os.raw", None, None, carrier)
        return lambda: b"".join(replace(source, monotonic=lambda: float(next(seconds))).chunks(0))

    with pytest.raises(ServiceUnreachable, match="less than 65536 bytes in 60 s"):
        drips(100)()
    assert len(drips(65_536)()) == 20 * 65_536


def test_where_a_list_is(tmp_path: Path) -> None:
    """Beside the image where nobody says; bounded; from a medium, too."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=bytes(200_000))

    for sums in (None, "https://b.example/list"):
        with pytest.raises(ImageRejected, match="more than"):
            served("https://a.example/x/os.raw.xz", sums, None, answering(answer)).listing()
    assert asked == ["https://a.example/x/images.note", "https://b.example/list"]
    for url in (
        "ftp://a/os.raw",
        "https://u:p@a/os.raw",
        "https://a/os.zst",
        "https://a/os raw.raw",
        "/os.raw",
    ):
        with pytest.raises(UsageError, match="image"):
            served(url, None, None)
    (tmp_path / "os.raw").write_bytes(bytes(range(10)))
    carried = Carried(medium=Folder(path=tmp_path), folder="", name="os.raw")
    assert b"".join(carried.chunks(7)) == bytes([7, 8, 9])
    with pytest.raises(NoImage, match="holds no"):
        carried.listing()
    with pytest.raises(NoImage, match="no name of a file"):
        Folder(path=tmp_path).read("../x", max_bytes=1)


def test_a_fat_that_is_full_or_none_is_told(tmp_path: Path) -> None:
    """A write that does not fit; a boot sector of another file system."""
    path = tmp_path / "fat"
    path.write_bytes(bytes(2 * MIB))
    fat = make_fat(path, label="A")
    assert fat.label() == "A"
    with pytest.raises(WriteFailed, match="cannot be written"):
        fat.write("big", bytes(3 * MIB))
    path.write_bytes(b"\xeb\x52\x90NTFS    ".ljust(510, b"\0") + b"\x55\xaa")
    assert fat.label() is None
    assert FAT(path=tmp_path / "none").label() is None


def test_each_end_has_its_code() -> None:
    """Those of the agent stay what they are."""
    assert kiosk_exit_of(NotAdmitted("x", KioskExit.REVOKED)) == 12
    assert [
        kiosk_exit_of(kind("x")) for kind in (NoImage, ImageRejected, NoDisk, NotConfirmed, WriteFailed)
    ] == [
        30,
        31,
        32,
        33,
        34,
    ]
    assert kiosk_exit_of(ServiceUnreachable("x")) == 21
    assert kiosk_exit_of(UsageError("x")) == 64


def test_the_screen_obeys_nobody_and_shows_how_far_it_is() -> None:
    """A stranger's text begins no line of its own; on a terminal, progress stays on one line."""
    screen, shown = console(attended=True)
    screen.warning("x", reason="a\nCode 1234\x1b[2J")
    assert "\nCode" not in shown.getvalue()
    assert "\x1b" not in shown.getvalue()
    screen.progress("verify", 5, 10)
    screen.progress("verify", 6, 10)
    screen.progress("verify", 10, 10)
    screen.say("done")
    bars = shown.getvalue().split("\n")[-3].split("\r")
    assert [bar.strip() for bar in bars[:2]] == [
        "verify   [###############...............]  50 %  0 MB",
        "verify   [##############################] 100 %  0 MB",
    ]
    assert shown.getvalue().endswith("\ndone\n")


def test_a_mistake_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard output, because that is the console; also of who gives up."""
    monkeypatch.setenv("ITL_OFFLINE", "perhaps")
    assert kiosk.main([]) == 64
    assert capsys.readouterr().out == "attestation-kiosk: ITL_OFFLINE: must be one of yes, no, auto\n"

    def stop(environ: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(kiosk, "install", stop)
    assert kiosk.main(["install"]) == KioskExit.STOPPED
