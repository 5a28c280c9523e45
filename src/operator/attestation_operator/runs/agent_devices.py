"""What the hardware of this node says of a challenge, by backend, through `attestation.device`.

Synchronous: each device has a thread of its own, and answers one challenge at a time.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attestation.api.node import EvidenceItem
from attestation.api.runs import RunChallenge
from attestation.device import TEE, AKType, NodeTPM, Quote
from attestation.device.guest_ioctl import GuestDevice, first_that_answers
from attestation.device.tsm import TsmReport
from attestation.errors import DeviceError, MalformedEvidence, TEEDeviceError
from attestation.report_data import report_data
from attestation.runs import Backend
from attestation.tpm import PCRSelection
from attestation.wire import b64decode, b64encode, canonical_json

DEVICES: Final[dict[Backend, str]] = {"tpm": "tpm", "sev-snp": "tee", "tdx": "tee"}
"""Which device answers for which backend; one has one queue."""

TPM_QUOTE: Final = "application/vnd.itl.tpm-quote"
NONCE_BYTES: Final = 32
_SPREAD: Final = random.SystemRandom()
MAX_LOG_BYTES: Final = 1 << 20
"""What the service reads of a boot event log at most."""
TPM_TRIES: Final = 5
"""How often a TPM that is busy is asked: another program of this node may use it for a moment."""
_URIS: Final = ("device:", "unix:", "tcp:")
_PROVIDERS: Final[dict[str, Backend]] = {"sev_guest": "sev-snp", "tdx_guest": "tdx"}


class ChallengeRefused(MalformedEvidence):
    """A challenge that this node does not sign: it asks for nothing, or for a statement of another protocol."""

    code = "challenge-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the devices are.

    Args:
        tpms: Paths, or URIs as `open_transport` has them; the first that is there is the node's.
        ak: Kind of attestation key; that of `attestation-agent` on this node.
        event_log: Boot event log of the firmware.
        sev_guest: Device of SEV-SNP.
        tdx_guests: Devices of TDX, the first that is there.
        tsm: Folder of configfs-tsm, which is tried before the devices.
        ccel: The ACPI table CCEL; its log is `data/CCEL` beside it.
    """

    tpms: tuple[str, ...]
    ak: AKType
    event_log: Path
    sev_guest: Path
    tdx_guests: tuple[Path, ...]
    tsm: Path
    ccel: Path


def tpm_uri(named: str) -> str:
    """Return the URI of a TPM that is named by its path, or by its URI."""
    return named if named.startswith(_URIS) else f"device:{named}"


class Devices:
    """The devices of this node.

    Args:
        places: Where they are.
        tsm, guest: What asks for reports; those of *places* unless a test brings others.
        warn: Logs an event with fields.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        places: Places,
        *,
        warn: Callable[..., object],
        tsm: TsmReport | None = None,
        guest: GuestDevice | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._places = places
        self._warn = warn
        self._pause = pause
        self._held: NodeTPM | None = None
        self._tsm = tsm or TsmReport(places.tsm)
        self._guest = guest or GuestDevice(places.sev_guest, places.tdx_guests)
        self._tee = TEE(
            first_that_answers(self._tsm.quote, self._guest.quote),
            ccel_table=places.ccel,
            ccel=places.ccel.parent / "data" / places.ccel.name,
        )

    def found(self) -> frozenset[Backend]:
        """Return the backends whose device is there; whether it answers is seen when it is asked."""
        there: set[Backend] = {"tpm"} if any(map(_is_there, self._places.tpms)) else set()
        for way in (self._tsm.provider, self._guest.provider):
            with contextlib.suppress(TEEDeviceError):
                named = _PROVIDERS.get(way())
                there |= {named} if named is not None else set()
        return frozenset(there)

    def collect(self, challenge: RunChallenge, node_uid: str) -> tuple[EvidenceItem, ...]:
        """Return what the hardware signs for *challenge*.

        Args:
            challenge: As the service told it; that its nonce is that of a run has been checked.
            node_uid: Of the Node, which a report of confidential hardware names.

        Raises:
            DeviceError: There is no evidence; its fault says why.
            ChallengeRefused: The challenge asks for nothing that can be signed.
        """
        nonce = nonce_of(challenge)
        if challenge.backend == "tpm":
            return (self._quote(challenge, nonce),)
        return (self._report(challenge.backend, report_data(challenge.backend, nonce, node_uid)),)

    # Confidential hardware

    def _report(self, backend: Backend, data: bytes) -> EvidenceItem:
        shown = self._tee.show(data)
        if shown.tee != backend:
            raise TEEDeviceError("absent", f"this is {shown.tee} and not {backend}")
        value = {name: b64encode(found) for name, found in shown.members.items()}
        return EvidenceItem(media_type=shown.media_type, value=value)

    # The TPM

    def _quote(self, challenge: RunChallenge, nonce: bytes) -> EvidenceItem:
        quote = self._quoted(nonce, _selection(challenge))
        value = {
            "pcr_quote": b64encode(quote.attest),
            "pcr_signature": b64encode(quote.signature),
            "pcr_values": b64encode(canonical_json(quote.values_on_wire())),
        }
        if challenge.event_log and (log := self._event_log()):
            value["event_log"] = b64encode(log)
        return EvidenceItem(media_type=TPM_QUOTE, value=value)

    def _quoted(self, nonce: bytes, selection: PCRSelection) -> Quote:
        """Quote, with the key that is loaded where the kernel shares the TPM; a TPM that is not shared is let go."""
        held, self._held = self._held, None
        if held is not None:
            try:
                quote = held.quote(nonce, selection)
            except DeviceError:
                # The TPM was reset, or cleared, since: its key is gone.
                _let_go(held)
            else:
                self._held = held
                return quote
        named, tpm = self._opened()
        try:
            quote = tpm.quote(nonce, selection)
        except BaseException:
            _let_go(tpm)
            raise
        if _is_shared(named):
            self._held = tpm
        else:
            _let_go(tpm)
        return quote

    def _opened(self) -> tuple[str, NodeTPM]:
        """Open the first TPM that is there; return its name too."""
        absent: DeviceError | None = None
        for named in self._places.tpms:
            for attempt in range(1, TPM_TRIES + 1):
                try:
                    return named, NodeTPM.open(tpm_uri(named), ak=self._places.ak)
                except DeviceError as e:
                    if e.fault == "busy" and attempt < TPM_TRIES:
                        self._pause(_SPREAD.uniform(0.1, 0.4) * attempt)
                        continue
                    if e.fault not in ("absent", "no-provider"):
                        raise
                    absent = absent or e
                    break
        raise absent or DeviceError("no TPM is named", fault="absent")

    def _event_log(self) -> bytes:
        """Return the boot event log; nothing where it cannot be read: the service judges that it is missing."""
        path = self._places.event_log
        try:
            with path.open("rb") as file:
                log = file.read(MAX_LOG_BYTES + 1)
        except OSError as e:
            self._warn("event_log.unreadable", path=str(path), reason=e.strerror)
            return b""
        if len(log) > MAX_LOG_BYTES:
            self._warn("event_log.too_long", path=str(path))
            return b""
        return log


def nonce_of(challenge: RunChallenge) -> bytes:
    """Return the 32 bytes that are signed.

    Raises:
        ChallengeRefused: They are none.
    """
    try:
        nonce = b64decode(challenge.nonce, "nonce")
    except MalformedEvidence as e:
        raise ChallengeRefused(str(e)) from e
    if len(nonce) != NONCE_BYTES:
        raise ChallengeRefused(f"a nonce of {len(nonce)} bytes")
    return nonce


def _selection(challenge: RunChallenge) -> PCRSelection:
    if challenge.pcr_bank is None:
        raise ChallengeRefused("a challenge for a quote that names no bank")
    try:
        return PCRSelection.from_names({challenge.pcr_bank: list(challenge.pcrs)})
    except (ValueError, MalformedEvidence) as e:
        raise ChallengeRefused(f"PCRs that no quote has: {e}") from e


def _is_shared(named: str) -> bool:
    """True of the kernel's resource manager, which lets others use the TPM while we hold it open."""
    scheme, _, place = tpm_uri(named).partition(":")
    return scheme == "device" and Path(place).name.startswith("tpmrm")


def _let_go(tpm: NodeTPM) -> None:
    with contextlib.suppress(DeviceError):
        tpm.close()


def _is_there(named: str) -> bool:
    scheme, _, place = tpm_uri(named).partition(":")
    return scheme == "tcp" or Path(place).exists()
