"""What the kiosk does, in its order: identify, be admitted, look at the image, have the disk confirmed, write it.

Nothing is destroyed before everything that can be known is known: who we are, that we are admitted, which image a
pinned key signed, which disk it is for, and that somebody wants it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from attestation.api import OfflineBundle
from attestation.client import NodeClient, ServiceUnreachable, is_loopback
from attestation.client.carrier import Carrier
from attestation.client.connection import HTTPSender, checked_url
from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.machines import Role
from attestation.tpm import parse_public
from attestation_agent.commands import Outcome
from attestation_agent.edge import TPM, Edge
from attestation_agent.exits import StateNotKept, UsageError
from attestation_agent.files import write_atomically
from attestation_agent.hardware import read_hardware
from attestation_agent.kiosk import disks, listing, media, receipt
from attestation_agent.kiosk.disks import Disk
from attestation_agent.kiosk.exits import KioskExit, NoImage, NotConfirmed, WriteFailed
from attestation_agent.kiosk.fat import FAT, Folder, read_strange
from attestation_agent.kiosk.image import Carried, Source, served
from attestation_agent.kiosk.media import Bundle
from attestation_agent.kiosk.receipt import Installed
from attestation_agent.kiosk.registering import Admitted, Identified, Registering
from attestation_agent.kiosk.settings import Chosen, load
from attestation_agent.kiosk.ui import Screen
from attestation_agent.kiosk.writing import Plan, Target, install
from attestation_agent.rhythm import Rhythm
from attestation_agent.state import State

PROBE_SECONDS: Final = 5.0
DEFAULT_ROLE: Final = Role.WORKER_APP


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything by which the kiosk touches the world; tests hold it still.

    Args:
        screen: The console.
        clock: Tells the time.
        wait: Pauses so many seconds; True where the kiosk shall stop.
        open_tpm: Opens the TPM that settings name.
        run: Runs a command.
        rhythm: When to come again.
        carrier: What carries requests instead of the network: for tests.
        devices: Disks are block devices; files in tests.
    """

    screen: Screen
    clock: Clock
    wait: Callable[[float], bool]
    open_tpm: Callable[[Chosen], TPM]
    run: Callable[[tuple[str, ...]], Outcome]
    rhythm: Rhythm
    carrier: Carrier | None = None
    devices: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that we run on.

    Args:
        disks: All of them.
        booted: Which carries us, and where its partition begins; None where nobody says.
    """

    disks: tuple[Disk, ...]
    booted: tuple[Disk, int] | None

    @property
    def boot_disk(self) -> str | None:
        """Name of the disk that carries us."""
        return self.booted[0].name if self.booted is not None else None


class Kiosk:
    """One installation.

    Args:
        variables: The settings, as they were found.
        machine: The machine.
        world: The world.

    Raises:
        UsageError: A setting cannot be read.
    """

    def __init__(self, variables: Mapping[str, str], machine: Machine, world: World) -> None:
        self._variables = dict(variables)
        self._machine = machine
        self._world = world
        self._say = world.screen.say
        self._chosen = load(variables)
        self._state = State(self._chosen.agent.state_dir)

    def run(self) -> KioskExit:
        """Install this machine.

        Raises:
            AttestationError: It is not installed; its disk is as it was, or boots nothing.
        """
        with self._state.alone():
            return self._run()

    def _run(self) -> KioskExit:
        if self._machine.booted is None and self._chosen.kiosk.medium_dir is None:
            self._world.screen.warning("medium.unknown", settings="of /etc and the kernel's arguments alone")
        who = self._identify()
        disk = self._target()
        if self._is_done(disk, who):
            self._say(f"{disk.words} was written for this machine already. Take the medium out and restart.")
            return KioskExit.WRITTEN
        bundle = self._bundle(disk)
        if self._chosen.agent.desired_role is None and not self._chosen.kiosk.auto_confirm:
            self._ask_for("ITL_ROLE", f"Role to wish for (Enter: none; {', '.join(Role)}):", Role)
        admitted = self._admitted() if bundle is None else None
        source = self._source(admitted, bundle)
        keys = listing.parse_keys(self._keys())
        # What is destroyed for nothing is destroyed all the same: the list is judged, and the image is there, before
        # anybody is asked.
        images = listing.verify(self._again(source.listing), keys=keys, at=self._world.clock.now())
        digest = images.digest_of(source.name)
        self._again(lambda: _begins(source))
        self._say(f"Image {source.name}, signed by {images.signed_by}, SHA-256 {digest.hex()}")
        self._confirm(disk)
        installed = self._installed(who, admitted, source.name, digest)
        files = {
            receipt.REGISTRATION: receipt.registration(installed),
            receipt.RECEIPT: receipt.receipt(installed),
        }
        if bundle is not None:
            files |= self._offline_bundle(bundle, who)
        number = disk.number if self._world.devices else None
        with Target(disk.path, number=number, sequence=disk.sequence) as target:
            plan = Plan(
                source=source,
                sha256=digest,
                files=files,
                sector_bytes=disk.sector_bytes,
                retry=self._retry,
                progress=self._world.screen.progress,
            )
            try:
                install(target, plan)
            except AttestationError:
                self._say(
                    f"{disk.words} holds nothing that boots now. The installation can be started again."
                )
                raise
        self._say(f"{disk.words} holds {source.name}.")
        if bundle is not None:
            self._carry_back(bundle, who, files[receipt.RECEIPT])
        self._say("Restarting.")
        outcome = self._world.run(self._chosen.kiosk.reboot_command)
        if not outcome.ok:
            self._say(f"The command to restart: {outcome.text}. Restart this machine by hand.")
        return KioskExit.WRITTEN

    # Who we are

    def _identify(self) -> Identified:
        tpm = self._world.open_tpm(self._chosen)
        try:
            identity = tpm.identify()
        finally:
            tpm.close()
        fingerprint = parse_public(identity.ek_public).fingerprint()
        who = Identified(ek_fingerprint=fingerprint, ek_source=identity.ek_source)
        hardware = read_hardware(self._chosen.agent.sysfs)
        self._say(f"TPM  {identity.manufacturer} {identity.vendor}, EK {identity.template}, {who.ek_source}")
        # Two lines of the same length, so that somebody can read it out.
        self._say(f"EK   {who.ek_fingerprint[:48]} {who.ek_fingerprint[48:]}", indent="     ")
        self._say(f"Code {who.short_code}  (compare it with what the operator sees)")
        words = ", ".join(f"{name[3:]} {value}" for name, value in hardware.items())
        self._say(f"     {words}", indent="     ")
        return who

    # Whom we ask

    def _bundle(self, disk: Disk) -> Bundle | None:
        """Return the bundle to install from; None where the service is there to ask.

        Raises:
            NoImage: None is there, and no service. What is on the disk to be erased is none.
        """
        kiosk = self._chosen.kiosk
        if kiosk.offline != "yes" and not self._chosen.agent.server_url:
            self._ask_for("ITL_REG_URL", "Address of the service (https://…):", checked_url)
        if kiosk.offline == "no" or (kiosk.offline == "auto" and self._is_reachable()):
            return None
        found = self._find_bundle(disk)
        if found is None:
            raise NoImage(
                f"no medium beside {disk.name} holds a bundle (images.note in /itl of a FAT partition)"
                + ("" if kiosk.offline == "yes" else ", and the service does not answer")
            )
        self._say(f"Offline: bundle on {found.name}")
        return found

    def _find_bundle(self, target: Disk) -> Bundle | None:
        directory = self._chosen.kiosk.usb_bundle_dir
        if directory is not None:
            return Bundle(medium=Folder(path=directory), folder="", name=str(directory), disk=None)
        return next(media.bundles([each for each in self._machine.disks if each.name != target.name]), None)

    def _ask_for(self, variable: str, question: str, check: Callable[[str], object]) -> None:
        """Ask for a setting, where somebody is there to answer, until *check* takes the answer; Enter leaves it out."""
        while answer := self._world.screen.ask(question):
            try:
                check(answer)
            except (AttestationError, ValueError) as e:
                self._say(f"That is none: {e}")
            else:
                self._variables[variable] = answer
                self._chosen = load(self._variables)
                return

    def _ask_for_token(self) -> None:
        token = self._world.screen.ask("Registration token (Enter: none, an operator approves):")
        if token:
            path = self._chosen.agent.state_dir / "registration.token"
            self._keep(path, f"{token}\n".encode())
            self._variables["ITL_REGISTRATION_TOKEN_FILE"] = str(path)
            self._chosen = load(self._variables)

    def _is_reachable(self) -> bool:
        """Ask `/healthz` for five seconds at most, whatever takes longer: name, connection or answer."""
        url = self._chosen.agent.server_url
        if not url:
            return False
        answers: list[int] = []

        def probe() -> None:
            try:
                with HTTPSender(
                    url, ca_file=self._chosen.agent.ca_file, carrier=self._world.carrier
                ) as sender:
                    answers.append(sender.probe("/healthz").status)
            except AttestationError as e:
                self._world.screen.warning("service.unreachable", reason=str(e))

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        thread.join(PROBE_SECONDS)
        return answers == [200]

    def _admitted(self) -> Admitted:
        if not self._chosen.agent.server_url:
            raise UsageError("the address of the service is missing: itl.reg_url or ITL_REG_URL")
        if self._chosen.agent.registration_token_file is None and not self._chosen.kiosk.auto_confirm:
            self._ask_for_token()
        agent = self._chosen.agent
        if agent.server_url.lower().startswith("http:") and not is_loopback(agent.server_url):
            self._world.screen.warning("server.not_encrypted", url=agent.server_url)
        edge = Edge(
            clock=self._world.clock,
            wait=self._world.wait,
            open_tpm=lambda: self._world.open_tpm(self._chosen),
            run=self._world.run,
            rhythm=self._world.rhythm,
            log=self._world.screen,
        )
        with NodeClient(agent.server_url, ca_file=agent.ca_file, carrier=self._world.carrier) as client:
            node = Registering(agent, state=self._state, client=client, edge=edge)
            try:
                admitted = node.admitted(wait_seconds=self._chosen.kiosk.wait_seconds)
            finally:
                node.let_go()
        # A copy of ours has done its work; the file on the medium is the operator's.
        token = agent.registration_token_file
        if token is not None and token.is_relative_to(agent.state_dir):
            token.unlink(missing_ok=True)
        return admitted

    # What is installed

    def _source(self, admitted: Admitted | None, bundle: Bundle | None) -> Source:
        kiosk = self._chosen.kiosk
        if bundle is not None:
            return Carried(medium=bundle.medium, folder=bundle.folder, name=self._carried(bundle))
        url = kiosk.image_url or (admitted.image_url if admitted else None)
        if not url:
            raise NoImage("nobody says where the image is: itl.image_url or ITL_IMAGE_URL")
        return served(url, kiosk.image_sums, self._chosen.agent.ca_file, self._world.carrier)

    def _carried(self, bundle: Bundle) -> str:
        """Return which image of a bundle it is: the one that is named, else the only one of its list."""
        if self._chosen.kiosk.image_url:
            return self._chosen.kiosk.image_url.rpartition("/")[2]
        source = Carried(medium=bundle.medium, folder=bundle.folder, name="")
        keys = listing.parse_keys(self._keys())
        names = list(listing.verify(source.listing(), keys=keys, at=self._world.clock.now()).sha256)
        if len(names) != 1:
            raise NoImage(f"the bundle lists {len(names)} images: name one in ITL_IMAGE_URL")
        return names[0]

    def _keys(self) -> str:
        said = self._chosen.kiosk.image_keys
        if not said:
            raise UsageError(
                "no key for images is pinned: image.keys on the medium, itl.image_keys or ITL_IMAGE_KEYS"
            )
        if not said.startswith("/"):
            return said
        try:
            with Path(said).open(encoding="ascii") as file:
                return file.read(media.MAX_FILE_BYTES)
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"image keys {said}: cannot be read as text") from e

    def _again(self, ask: Callable[[], bytes]) -> bytes:
        failures = 0
        while True:
            try:
                return ask()
            except ServiceUnreachable as e:
                failures += 1
                if not self._retry(e, failures):
                    raise NoImage(str(e)) from e

    def _retry(self, error: ServiceUnreachable, failures: int) -> bool:
        if failures >= self._chosen.agent.attempts:
            return False
        self._world.screen.warning("image.again", reason=str(error))
        return not self._world.wait(self._world.rhythm.after_failure(failures, None))

    # Where it goes

    def _target(self) -> Disk:
        return disks.choose(
            self._machine.disks,
            self._chosen.kiosk.target_disk,
            boot=self._machine.boot_disk,
            devfs=self._chosen.kiosk.devfs,
        )

    def _is_done(self, disk: Disk, who: Identified) -> bool:
        """Return True where nobody asks, and the disk was written for this machine: no loop of a stick that stays."""
        kiosk = self._chosen.kiosk
        if not kiosk.auto_confirm or kiosk.reinstall:
            return False
        for each in disk.partitions:
            fat = FAT(path=disk.path, start_bytes=each.start_bytes)
            if fat.label() is not None:
                found = read_strange(fat, receipt.RECEIPT, max_bytes=receipt.MAX_BYTES)
                if found is not None and receipt.is_of(found, who.ek_fingerprint):
                    return True
        return False

    def _confirm(self, disk: Disk) -> None:
        """Have the name of the disk typed.

        Raises:
            NotConfirmed: It was not.
        """
        if self._chosen.kiosk.auto_confirm:
            self._world.screen.warning(
                "disk.erased_unconfirmed", disk=disk.words, because="ITL_AUTO_CONFIRM=yes"
            )
            return
        self._say(f"EVERYTHING ON THIS DISK WILL BE LOST: {disk.words}")
        for each in disk.partitions:
            self._say(f"  {each.name}, {disks.size_words(each.size_bytes)}")
        answer = self._world.screen.ask(f"Type {disk.name} to erase it, anything else to stop:")
        if answer is None:
            raise NotConfirmed(
                f"nobody is there to confirm that {disk.words} is erased (ITL_AUTO_CONFIRM=yes does without)"
            )
        if answer != disk.name:
            raise NotConfirmed(f"{disk.words} was not confirmed; nothing was written")

    # What is left behind

    def _installed(self, who: Identified, admitted: Admitted | None, image: str, digest: bytes) -> Installed:
        agent = self._chosen.agent
        return Installed(
            mode="online" if admitted else "offline",
            machine_id=admitted.machine_id if admitted else None,
            role=agent.desired_role or DEFAULT_ROLE,
            cluster_id=agent.cluster_id,
            hardware=read_hardware(agent.sysfs),
            ek_fingerprint=who.ek_fingerprint,
            ek_source=who.ek_source,
            reg_url=agent.server_url or None,
            service_keys=admitted.service_keys if admitted else None,
            image=image,
            image_sha256=digest.hex(),
            at=self._world.clock.now(),
        )

    def _carry_back(self, bundle: Bundle, who: Identified, data: bytes) -> None:
        """Leave the receipt on the bundle, too; a medium that takes none leaves it on the disk alone."""
        name = f"{bundle.folder}receipts/{who.ek_fingerprint[:16]}.json"
        # Beneath a file system that the kernel has mounted nothing is written.
        reason = next((each.in_use for each in self._machine.disks if each.name == bundle.disk), None)
        if reason is None:
            try:
                bundle.medium.write(name, data)
            except WriteFailed as e:
                reason = str(e)
        if reason is not None:
            self._world.screen.warning("receipt.not_carried", reason=reason)
            return
        self._say(f"Receipt, to be imported by an operator: {name} on {bundle.name}")

    def _offline_bundle(self, bundle: Bundle, who: Identified) -> dict[str, bytes]:
        """Return the sealed configuration that a bundle carries for this very TPM, for `attestation-agent offline`."""
        data = bundle.medium.read(bundle.folder + media.OFFLINE_BUNDLE, max_bytes=media.MAX_BUNDLE_BYTES)
        if data is None:
            return {}
        try:
            found = OfflineBundle.model_validate_json(data)
        except ValidationError:
            self._world.screen.warning("bundle.unreadable", file=media.OFFLINE_BUNDLE)
            return {}
        if found.ek_fingerprint != who.ek_fingerprint:
            self._world.screen.warning("bundle.for_another_machine", machine_id=found.machine_id)
            return {}
        return {receipt.BUNDLE: data}

    def _keep(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data)
        except OSError as e:
            raise StateNotKept(f"{path}: {e.strerror}") from e


def _begins(source: Source) -> bytes:
    """Return the first piece of an image.

    Raises:
        NoImage: There is none.
        ServiceUnreachable: It may be there a moment later.
    """
    with closing(source.chunks(0)) as chunks:
        return next(chunks, b"")
