"""Replaying a log in one bank, and comparing the outcome with what a TPM quoted (TPM.md §4.4, checks 22-27).

`replay` is a pure function of the log and the bank: who has verified the bytes' SHA-256 may keep its outcome.
`verify` compares it with quoted PCRs, each time.
"""

# Algorithms for: event-log
from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from attestation.errors import EventLogRejected, MalformedEvidence
from attestation.evidence.event_log import boot_chain, secure_boot
from attestation.evidence.event_log.boot_chain import BootChain, Image, Measured, Section, Step
from attestation.evidence.event_log.event_types import (
    DIGEST_OF_DATA,
    EXPECTED,
    Covers,
    EventType,
    is_unexpected,
    type_name,
)
from attestation.evidence.event_log.findings import Finding
from attestation.evidence.event_log.format import MAX_PCR, UnverifiedEventLog
from attestation.evidence.event_log.secure_boot import Measured7, SecureBootState
from attestation.evidence.event_log.words import event_text
from attestation.tpm import Alg, bank_name, digest_size
from attestation.tpm.hashes import hash_function

if TYPE_CHECKING:
    from hashlib import _Hash as HashObject

    _Hash = Callable[[bytes], HashObject]

_LOCALITY: Final = b"StartupLocality\0"
_LOCALITIES: Final = frozenset({0, 3, 4})
_DRTM: Final = range(17, 23)
_INVOCATION: Final = b"Exit Boot Services Invocation"
_SUCCESS: Final = b"Exit Boot Services Returned with Success"
_FAILURE: Final = b"Exit Boot Services Returned with Failure"
_EXITS: Final = ((_INVOCATION, _SUCCESS), (_INVOCATION, _FAILURE), (_INVOCATION, _FAILURE, _SUCCESS))
"""What firmware extends into PCR 5 at ExitBootServices and some leave out of the log (TPM.md §4.4)."""
_PHASES_PCR: Final = 11
_PHASES: Final = (
    (b"enter-initrd", b"leave-initrd", b"enter-machined", b"start-the-world"),
    (b"enter-initrd", b"leave-initrd", b"sysinit", b"ready"),
)
"""What Talos and systemd-pcrphase extend into PCR 11 after the firmware's log ended, in this order."""
_OS_SEPARATOR: Final = b"os-separator"
_OS_SEPARATOR_PCRS: Final = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14})
"""What systemd 261 and later extends from the initrd into these PCRs, to close what firmware measured."""
IMA_PCR: Final = 10
_NO_ACTION: Final = int(EventType.NO_ACTION)
_SEPARATOR: Final = int(EventType.SEPARATOR)
_VARIABLE_BOOT: Final = int(EventType.EFI_VARIABLE_BOOT)
_IPL: Final = int(EventType.IPL)
_OMITTED: Final = int(EventType.OMIT_BOOT_DEVICE_EVENTS)
_TEXT_PCRS: Final = frozenset({8, 11, 12})
"""Where boot loaders measure texts that their events show."""
_BOOT_CHAIN: Final = frozenset({2, 4, 8, 9, 11, 12})


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event, as replayed.

    Args:
        index: In the log, from 0 (the Spec ID event).
        pcr: Which PCR it extended; an EV_NO_ACTION extends none.
        event_type: u32; not measured.
        digest: In the bank of the replay.
        covers: How much of *data* the digest was seen to cover.
        data: As in the log.
    """

    index: int
    pcr: int
    event_type: int
    digest: bytes
    covers: Covers
    data: bytes

    @property
    def type_name(self) -> str:
        """E.g. `EV_SEPARATOR`."""
        return type_name(self.event_type)

    @property
    def data_checked(self) -> bool:
        """True if the digest is that of the data (but for the one byte that old shims wrote too many)."""
        return self.covers in (Covers.DATA, Covers.DATA_BUT_LAST_BYTE)

    @property
    def text(self) -> str:
        """What it says, in words, for people; `(unchecked)` where nothing was checked."""
        return event_text(self.pcr, self.event_type, self.data, self.covers)


class Entry(NamedTuple):
    """An event without its data: what a replay keeps."""

    pcr: int
    event_type: int
    digest: bytes
    covers: Covers
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLog:
    """A log and where it leads in one bank. Believe it only as far as `verify` says.

    It refers to the log's bytes and copies no more than certificates, names and command lines; immutable, made
    to be kept.

    Args:
        sha256: Of the log, hex.
        bank: TPM_ALG_ID.
        crypto_agile: False for the SHA-1 format.
        values: PCR 0-23 -> value after the log; its start value where the log extends it never.
        extended: PCRs that the log extends.
        startup_locality: As logged, 4 where H-CRTM was first; None where nothing is said.
        findings: What is odd, and what is a fault.
        secure_boot: What PCR 7 tells.
        boot: What PCR 2, 4, 8, 9, 11 and 12 tell.
        data: The log.
        entries: Every event.
    """

    sha256: str
    bank: int
    crypto_agile: bool
    values: Mapping[int, bytes]
    extended: frozenset[int]
    startup_locality: int | None
    findings: tuple[Finding, ...]
    secure_boot: SecureBootState
    boot: BootChain
    data: bytes = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)

    @property
    def events(self) -> tuple[LogEvent, ...]:
        """Every event with its data, made anew at each call."""
        return tuple(self.events_of(None))

    def events_of(self, pcr: int | None) -> Iterator[LogEvent]:
        """Make the events of one PCR, EV_NO_ACTION left out; of None: all."""
        for index, (at, event_type, digest, covers, start, stop) in enumerate(self.entries):
            if pcr is None or (at == pcr and event_type != _NO_ACTION):
                yield LogEvent(index, at, event_type, digest, covers, self.data[start:stop])


def replay(log: UnverifiedEventLog, bank: int) -> ReplayedLog:
    """Replay *log* in *bank*: PCR = H(PCR ‖ digest), from the start values on.

    Args:
        log: Result of `parse`.
        bank: TPM_ALG_ID of the quoted bank.

    Raises:
        MalformedEvidence: The log has no digests of this bank, or we do not compute its hash.
    """
    if bank not in log.banks:
        raise MalformedEvidence(f"event log: no digests of bank {bank_name(bank)}")
    column = log.banks.index(bank)
    new = hash_function(bank)
    findings: list[Finding] = []
    locality = _startup_locality(log, findings)
    zero, ones = bytes(digest_size(bank)), b"\xff" * digest_size(bank)
    values = {pcr: ones if pcr in _DRTM else zero for pcr in range(MAX_PCR + 1)}
    if locality:
        values[0] = zero[:-1] + bytes([locality])
    data = log.data
    nothing = Covers.NOTHING
    entries: list[Entry] = []
    extended: set[int] = set()
    sevens: list[Measured7] = []
    steps: list[Step] = []
    for index, (pcr, event_type, digests, start, stop) in enumerate(log.records):
        if event_type == _NO_ACTION:
            if pcr > MAX_PCR:
                findings.append(
                    Finding("no-action-pcr-ffffffff", None, index, f"EV_NO_ACTION of PCR 0x{pcr:08x}")
                )
            entries.append(
                Entry(pcr, event_type, digests[column if index else 0], Covers.NOTHING, start, stop)
            )
            continue
        digest = digests[column]
        if not digest:
            raise MalformedEvidence(f"event log: event {index} has no digest of bank {bank_name(bank)}")
        if b"" in digests:
            text = "not every event has a digest of each announced bank"
            findings.append(Finding("digest-missing", None, index, text, fault=True))
        values[pcr] = new(values[pcr] + digest).digest()
        extended.add(pcr)
        covers = nothing
        of_data = event_type in DIGEST_OF_DATA
        if of_data:
            covers = _covers_data(new, event_type, digest, data[start:stop])
            if covers is nothing:
                findings.append(_other_digest(index, pcr, event_type))
            elif covers is Covers.DATA_BUT_LAST_BYTE:
                text = "the digest leaves out the last byte of the data (older shim)"
                findings.append(Finding("digest-leaves-out-last-byte", pcr, index, text))
        elif event_type == _OMITTED:
            covers = Covers.DATA if new(data[start:stop]).digest() == digest else nothing
        elif event_type == _VARIABLE_BOOT:
            covers = _covers_variable(new, digest, data[start:stop])
        elif event_type == _IPL and pcr in _TEXT_PCRS:
            covers = _covers_text(new, pcr, digest, data[start:stop])
        entries.append(Entry(pcr, event_type, digest, covers, start, stop))
        unexpected = is_unexpected(pcr, event_type)
        if unexpected:
            text = f"{type_name(event_type)} has no place in PCR {pcr}"
            findings.append(Finding("unexpected-type", pcr, index, text, fault=pcr == secure_boot.PCR))
        if pcr == secure_boot.PCR:
            if not unexpected and (covers is not nothing or not of_data):
                end = stop - 1 if covers is Covers.DATA_BUT_LAST_BYTE else stop
                sevens.append(Measured7(index, event_type, covers, start, end))
        elif pcr in _BOOT_CHAIN:
            steps.append(Step(index, pcr, event_type, digest, covers, data[start:stop]))
    state, found = secure_boot.judge(data, sevens)
    findings += found
    findings += _of_whole(log, entries)
    return ReplayedLog(
        sha256=log.sha256,
        bank=bank,
        crypto_agile=log.spec_id is not None,
        values=MappingProxyType(values),
        extended=frozenset(extended),
        startup_locality=locality,
        findings=tuple(findings),
        secure_boot=state,
        boot=boot_chain.read(steps),
        data=data,
        entries=tuple(entries),
    )


def _other_digest(index: int, pcr: int, event_type: int) -> Finding:
    """Return the finding for a digest that is not that of the data; in PCR 2, 4 and 7 it is a fault."""
    text = f"the digest of {type_name(event_type)} in PCR {pcr} is not that of its data"
    return Finding("digest-not-of-event-data", pcr, index, text, fault=pcr in EXPECTED)


def _startup_locality(log: UnverifiedEventLog, findings: list[Finding]) -> int | None:
    """Return with which value PCR 0 starts (PFP, 10.4.5.3): once, in PCR 0, before it is extended.

    An H-CRTM event that is the first in PCR 0 means 4, whether it is said or not.
    """
    said: int | None = None
    extended = False
    hcrtm = False
    for index, (pcr, event_type, _, start, stop) in enumerate(log.records):
        if event_type == _NO_ACTION:
            if stop - start != 17 or not log.data.startswith(_LOCALITY, start):
                continue
            locality = log.data[start + 16]
            if pcr != 0 or extended or said is not None or locality not in _LOCALITIES:
                text = f"StartupLocality {locality} in PCR {pcr}, again, late or of no meaning"
                findings.append(Finding("startup-locality", 0, index, text, fault=True))
                continue
            said = locality
        elif pcr == 0:
            if event_type == EventType.EFI_HCRTM_EVENT:
                if extended and not hcrtm:
                    text = "EV_EFI_HCRTM_EVENT after PCR 0 was extended"
                    findings.append(Finding("hcrtm-late", 0, index, text, fault=True))
                hcrtm = hcrtm or not extended
            extended = True
    if hcrtm and said not in (None, 4):
        text = f"StartupLocality {said}, but H-CRTM means 4"
        findings.append(Finding("startup-locality", 0, None, text, fault=True))
    return 4 if hcrtm else said


def _covers_data(new: _Hash, event_type: int, digest: bytes, data: bytes) -> Covers:
    """Tell whether *digest* is that of *data*, as it should be; old shims leave out the last byte."""
    if new(data).digest() == digest:
        return Covers.DATA
    if event_type == EventType.EFI_VARIABLE_AUTHORITY and new(data[:-1]).digest() == digest:
        return Covers.DATA_BUT_LAST_BYTE
    return Covers.NOTHING


def _covers_variable(new: _Hash, digest: bytes, data: bytes) -> Covers:
    """Firmware hashes the value of a boot variable, or the whole structure."""
    if len(data) >= 32:
        value = data[32 + 2 * int.from_bytes(data[16:24], "little") :]
        if len(value) == int.from_bytes(data[24:32], "little") and new(value).digest() == digest:
            return Covers.VALUE
    return Covers.DATA if new(data).digest() == digest else Covers.NOTHING


def _covers_text(new: _Hash, pcr: int, digest: bytes, data: bytes) -> Covers:
    """GRUB hashes the text behind a label, with or without NUL; systemd UTF-16 with or without NULs, names in ASCII."""
    if pcr == _PHASES_PCR:
        name = data.decode("utf-16-le", errors="replace").encode("ascii", errors="replace")
        return Covers.NAME if new(name).digest() == digest else Covers.NOTHING
    if boot_chain.is_utf16(data):
        covered = any(new(data + suffix).digest() == digest for suffix in (b"", b"\0", b"\0\0"))
        return Covers.DATA if covered else Covers.NOTHING
    text, _ = boot_chain.split_label(data)
    covered = any(new(candidate).digest() == digest for candidate in (text, text + b"\0"))
    return Covers.TEXT if covered else Covers.NOTHING


def _of_whole(log: UnverifiedEventLog, entries: list[Entry]) -> Iterator[Finding]:
    """Make the findings that concern no single event."""
    separated: dict[int, bytes] = {}
    exits: list[bytes] = []
    for pcr, event_type, _, _, start, stop in entries:
        if event_type == _SEPARATOR:
            separated[pcr] = log.data[start:stop]
        elif pcr == 5 and event_type == EventType.EFI_ACTION:
            exits.append(log.data[start:stop])
    missing = [pcr for pcr in range(8) if pcr not in separated]
    if missing:
        text = f"no separator in PCR {', '.join(map(str, missing))}"
        yield Finding("separators-missing", None, None, text)
    windows = [pcr for pcr, separator in separated.items() if separator == b"WBCL"]
    if windows:
        text = f"separators of the Windows boot manager in PCR {', '.join(map(str, windows))}"
        yield Finding("separator-data-WBCL", None, None, text)
    if _INVOCATION not in exits:
        text = "the log has no ExitBootServices events"
        yield Finding("exit-boot-services-missing", 5, None, text)
    elif _FAILURE in exits[: exits.index(_INVOCATION)]:
        text = "ExitBootServices failed before it was called"
        yield Finding("exit-boot-services-failure-first", 5, None, text)
    if log.spec_id is None:
        yield Finding("sha1-only", None, None, "a log of the SHA-1 format")
    if log.padding_bytes:
        yield Finding("log-padding", None, None, f"{log.padding_bytes} bytes of padding behind the log")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogClaims:
    """What a log proves, now that it led to quoted PCRs; only `verify` builds one.

    Nothing is claimed of a PCR that was not quoted.

    Args:
        replayed: The log.
        pcrs: The PCRs that were quoted and to which it led.
        repairs: What followed the log, or was left out of it, and had to be assumed; in words.
        phases: What the system extended into PCR 11 after the log had ended, in order.
    """

    replayed: ReplayedLog
    pcrs: frozenset[int]
    repairs: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the log, hex."""
        return self.replayed.sha256

    @property
    def bank(self) -> int:
        """TPM_ALG_ID of the bank."""
        return self.replayed.bank

    @property
    def events(self) -> tuple[LogEvent, ...]:
        """The events of the quoted PCRs, in order."""
        return tuple(
            e
            for e in self.replayed.events_of(None)
            if e.pcr in self.pcrs and e.event_type != EventType.NO_ACTION
        )

    @property
    def secure_boot(self) -> SecureBootState:
        """Secure Boot, as far as PCR 7 was quoted."""
        return self.replayed.secure_boot if secure_boot.PCR in self.pcrs else secure_boot.NOT_QUOTED

    @property
    def images(self) -> tuple[Image, ...]:
        """Drivers, boot loaders and kernels of PCR 2 and 4."""
        return tuple(i for i in self.replayed.boot.images if i.pcr in self.pcrs)

    @property
    def command_lines(self) -> tuple[Measured, ...]:
        """Command lines of PCR 8 and 12; one without text could be any."""
        return tuple(m for m in self.replayed.boot.command_lines if m.pcr in self.pcrs)

    @property
    def kernels(self) -> tuple[Measured, ...]:
        """Files of PCR 9 that a checked command loads as the kernel; see `boot_chain`."""
        return self.replayed.boot.kernels if 9 in self.pcrs else ()

    @property
    def initrds(self) -> tuple[Measured, ...]:
        """Files of PCR 9 that are loaded as initrd; see `boot_chain`."""
        return self.replayed.boot.initrds if 9 in self.pcrs else ()

    @property
    def files(self) -> tuple[Measured, ...]:
        """Everything that was measured into PCR 9."""
        return self.replayed.boot.files if 9 in self.pcrs else ()

    @property
    def uki_sections(self) -> tuple[Section, ...]:
        """Sections of a unified kernel image in PCR 11."""
        return self.replayed.boot.uki_sections if 11 in self.pcrs else ()

    @property
    def flags(self) -> tuple[str, ...]:
        """What operators should see and what decides nothing."""
        told = [f.text for f in self.replayed.findings if f.pcr is None or f.pcr in self.pcrs]
        return (*dict.fromkeys(told), *self.secure_boot.flags)


def verify(replayed: ReplayedLog, *, quoted: Mapping[int, bytes]) -> EventLogClaims:
    """Verify that *replayed* leads to the *quoted* PCRs, and that it describes them as firmware does.

    PCR 10 is IMA's and stands in no firmware log: it is neither compared nor claimed.

    Args:
        replayed: Result of `replay`, in the quoted bank.
        quoted: PCR -> value, from a verified quote. Every one is compared; leave out what later software
            extends and nobody reads through the log.

    Raises:
        EventLogRejected: Naming the PCRs to which it does not lead, or which it describes in a way in which no
            firmware does.
    """
    # 22. Only a format that names the banks: SHA-1 has collisions, and a log without Spec ID has nothing else.
    if not replayed.crypto_agile or replayed.bank == Alg.SHA1:
        raise EventLogRejected(
            "event log: SHA-1 proves nothing; a crypto-agile log and a stronger bank are needed"
        )
    pcrs = frozenset(quoted) - {IMA_PCR}
    if not pcrs:
        raise EventLogRejected("event log: no PCR was quoted that it could explain")
    # 24. Each quoted PCR is where the log leads. One without events must hold its start value: otherwise
    #     something was extended that the log does not tell.
    differing = [pcr for pcr in sorted(pcrs) if not _equal(replayed, pcr, quoted[pcr])]
    # 27. Unless it is one of few things that are known to follow a log: nothing else is assumed, all is told.
    repairs: list[str] = []
    phases: tuple[str, ...] = ()
    for pcr in tuple(differing):
        later = _later(replayed, pcr, quoted[pcr])
        if later:
            differing.remove(pcr)
        if pcr == _PHASES_PCR:
            phases = later
        else:
            repairs += (f"PCR {pcr}: {text} is not in the log" for text in later)
    if differing:
        raise EventLogRejected(
            f"event log: does not lead to the quoted PCR {', '.join(map(str, differing))}",
            pcrs=tuple(differing),
        )
    # 25, 26. It replays and yet is no log of firmware there: events retyped, or extended by somebody else.
    faults = [f for f in replayed.findings if f.fault and (f.pcr is None or f.pcr in pcrs)]
    if faults:
        told = "; ".join(f.text for f in faults[:3])
        raise EventLogRejected(
            f"event log: {told}", pcrs=tuple(sorted({f.pcr for f in faults if f.pcr is not None}))
        )
    return EventLogClaims(replayed=replayed, pcrs=pcrs, repairs=tuple(repairs), phases=phases)


def _equal(replayed: ReplayedLog, pcr: int, value: bytes) -> bool:
    return hmac.compare_digest(replayed.values.get(pcr, b""), value)


def _later(replayed: ReplayedLog, pcr: int, value: bytes) -> tuple[str, ...]:
    """Return what was extended into *pcr* after the log, and leads it to *value*; empty where nothing known does."""
    for texts in _LATER.get(pcr, ()):
        if _extend(replayed.bank, replayed.values[pcr], texts) == value:
            return tuple(text.decode("ascii") for text in texts)
    return ()


_LATER: Final[Mapping[int, tuple[tuple[bytes, ...], ...]]] = MappingProxyType(
    {
        **dict.fromkeys(_OS_SEPARATOR_PCRS, ((_OS_SEPARATOR,),)),
        5: ((_OS_SEPARATOR,), *_EXITS, *((*exits, _OS_SEPARATOR) for exits in _EXITS)),
        _PHASES_PCR: tuple(phases[:count] for phases in _PHASES for count in range(1, len(phases) + 1)),
    }
)
"""PCR -> what may follow a log there: sequences of texts, each extended by its hash."""


def _extend(bank: int, value: bytes, texts: tuple[bytes, ...]) -> bytes:
    new = hash_function(bank)
    for text in texts:
        value = new(value + new(text).digest()).digest()
    return value
