"""Machines that boot in Python: event logs as firmware, shim, GRUB and systemd-stub write them, honest and not.

`boot_log(BootOptions(...))` is what a machine measures; `boot(machine, log)` has a `SoftwareNode` or `SoftwareTPM`
measure it, so that its quote and the log agree. The shape is that of real boots (tests/vectors/eventlog/ovmf).

Three kinds of trouble, which must not be confused:

- a `LogQuirk` is what honest machines do;
- a `LogDefect` is what a machine really measured and must not be trusted for (the log replays);
- a `Tampering` is a lie about what was measured (the log no longer tells the quoted PCRs, or says something else).

Layout: TCG PC Client Platform Firmware Profile 1.06, clauses 10.2-10.4; all integers little-endian. Nothing here is
shared with the parser: what both agree on was written twice.
"""

# Longer than 500 lines: a table of boots, event by event.
from __future__ import annotations

import hashlib
import random
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Final

from attestation.tpm import commands
from attestation.tpm.hashes import bank_alg, digest_size
from attestation.tpm.sessions import Password
from attestation_testing.certificates import CertificateAuthority
from attestation_testing.software_keys import SoftwareNode
from attestation_testing.software_tpm import SoftwareTPM

PCRS: Final = 24
_DRTM_PCRS: Final = range(17, 23)


class EventType(IntEnum):
    """EV_… ([PFP] 10.4.1), those that the builder uses."""

    PREBOOT_CERT = 0x0
    POST_CODE = 0x1
    NO_ACTION = 0x3
    SEPARATOR = 0x4
    ACTION = 0x5
    EVENT_TAG = 0x6
    S_CRTM_CONTENTS = 0x7
    S_CRTM_VERSION = 0x8
    CPU_MICROCODE = 0x9
    PLATFORM_CONFIG_FLAGS = 0xA
    TABLE_OF_DEVICES = 0xB
    COMPACT_HASH = 0xC
    IPL = 0xD
    IPL_PARTITION_DATA = 0xE
    OMIT_BOOT_DEVICE_EVENTS = 0x12
    EFI_VARIABLE_DRIVER_CONFIG = 0x80000001
    EFI_VARIABLE_BOOT = 0x80000002
    EFI_BOOT_SERVICES_APPLICATION = 0x80000003
    EFI_BOOT_SERVICES_DRIVER = 0x80000004
    EFI_RUNTIME_SERVICES_DRIVER = 0x80000005
    EFI_GPT_EVENT = 0x80000006
    EFI_ACTION = 0x80000007
    EFI_PLATFORM_FIRMWARE_BLOB = 0x80000008
    EFI_HANDOFF_TABLES = 0x80000009
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000000A
    EFI_HANDOFF_TABLES2 = 0x8000000B
    EFI_VARIABLE_BOOT2 = 0x8000000C
    EFI_HCRTM_EVENT = 0x80000010
    EFI_VARIABLE_AUTHORITY = 0x800000E0
    EFI_SPDM_FIRMWARE_BLOB = 0x800000E1


GLOBAL: Final = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
DATABASE: Final = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
SHIM: Final = uuid.UUID("605dab50-e046-4300-abb6-3dd810dd8b23")
_X509: Final = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
_SHA256: Final = uuid.UUID("c1c41626-504c-4092-aca9-41f936934328")
_OWNER: Final = uuid.UUID("77fa9abd-0359-4d32-bd60-28f4e78f784b")
_DISK: Final = uuid.UUID("6e6f6465-0000-4000-8000-000000000001")


class LogQuirk(StrEnum):
    """What honest machines do, too."""

    NO_EXIT_BOOT_SERVICES = "no-exit-boot-services"
    """The log ends before both actions, which were measured: firmware that leaves them out."""
    EXIT_FAILS_ONCE = "exit-fails-once"
    """`… with Failure`, then Invocation and Success."""
    SHORT_NO_ACTION = "short-no-action"
    """A NO_ACTION event with a few bytes that nobody knows."""
    SP800_155 = "sp800-155"
    """A NO_ACTION event that names the platform's reference manifest."""
    NO_ACTION_OUTSIDE = "no-action-outside"
    """A NO_ACTION event for PCR 0xFFFFFFFF, as Windows writes."""
    HCRTM = "hcrtm"
    """An H-CRTM event begins PCR 0 at 00…04."""
    OPTION_ROM = "option-rom"
    """A driver of a card, in PCR 2."""
    AUTHORITY_BEFORE_SEPARATOR = "authority-before-separator"
    """A signed driver was verified before the firmware handed over."""
    SPDM = "spdm"
    """Firmware of a device measured by SPDM, in PCR 2."""
    SHIM_LAST_BYTE = "shim-last-byte"
    """shim's authority events have one byte more than was measured."""
    DMA_PROTECTION_DISABLED = "dma-protection-disabled"
    """An action in PCR 7 that says so."""
    SECURE_BOOT_EMPTY = "secure-boot-empty"
    """The variable SecureBoot was measured with length 0; with `secure_boot=False`."""
    VENDOR_INFO = "vendor-info"
    """The first event carries bytes of the vendor."""
    NEWER_TYPES = "newer-types"
    """VARIABLE_BOOT2, FIRMWARE_BLOB2, HANDOFF_TABLES2."""
    BOOT_DEVICES_OMITTED = "boot-devices-omitted"
    """EV_OMIT_BOOT_DEVICE_EVENTS in PCR 4: the firmware tells no boot attempts."""
    ACTION_IN_PCR_2 = "action-in-pcr-2"
    """EV_ACTION of an option ROM, in PCR 2."""
    IPL_IN_PCR_4 = "ipl-in-pcr-4"
    """EV_IPL in PCR 4, of which the log does not show what was hashed."""
    PADDED_ZEROS = "padded-zeros"
    """Zeros after the last event."""
    PADDED_ONES = "padded-ones"
    """0xFF bytes after the last event."""


class LogDefect(StrEnum):
    """What a machine measured indeed, and must not be trusted for; the log replays (N90-N93, N96)."""

    TWO_SEPARATORS = "two-separators"
    SEPARATOR_MISSING = "separator-missing"
    SEPARATOR_ERROR = "separator-error"
    """Data 00000001: the firmware had an error."""
    SEPARATOR_OTHER = "separator-other"
    """Data that is neither."""
    VARIABLE_AFTER_SEPARATOR = "variable-after-separator"
    VARIABLE_TWICE = "variable-twice"
    SECURE_BOOT_TWO_BYTES = "secure-boot-two-bytes"
    SECURE_BOOT_OTHER = "secure-boot-other"
    """The value is 2."""
    NO_AUTHORITY = "no-authority"
    NO_DB = "no-db"
    NO_PK = "no-pk"
    NO_KEK = "no-kek"
    DEBUG_MODE = "debug-mode"
    LIST_TOO_LONG = "list-too-long"
    """dbx: a signature list that says more bytes than there are."""
    LIST_TOO_SHORT = "list-too-short"
    """dbx: a signature list shorter than its own header."""
    LIST_HEADER_TOO_LONG = "list-header-too-long"
    """dbx: SignatureHeaderSize goes beyond the list."""
    SIGNATURE_SIZE_ZERO = "signature-size-zero"
    """db: SignatureSize 0, which a careless reader divides by or loops on."""
    SIGNATURE_SIZE_HUGE = "signature-size-huge"
    """db: SignatureSize 0xFFFFFFFF."""
    VARIABLE_NAME_HUGE = "variable-name-huge"
    """dbx: nameLength 2^63."""
    VARIABLE_DATA_HUGE = "variable-data-huge"
    """dbx: dataLength 2^63."""
    STRANGE_IN_PCR_7 = "strange-in-pcr-7"
    """An event of another type in PCR 7."""


class Tampering(StrEnum):
    """A lie about what was measured (N82-N89, N94-N95)."""

    NO_SPEC_ID = "no-spec-id"
    DIGEST_COUNT_HUGE = "digest-count-huge"
    EVENT_SIZE_HUGE = "event-size-huge"
    DIGEST_SIZE_HUGE = "digest-size-huge"
    """In the first event."""
    ALGORITHM_MISSING = "algorithm-missing"
    """In one event."""
    ALGORITHM_TWICE = "algorithm-twice"
    """In one event."""
    LOCALITY_TWICE = "locality-twice"
    LOCALITY_LATE = "locality-late"
    LOCALITY_IN_PCR_1 = "locality-in-pcr-1"
    LOCALITY_ADDED = "locality-added"
    """The machine started at locality 0."""
    DATA_CHANGED = "data-changed"
    """SecureBoot says 1 where it was measured as 0, or the other way round; digest kept."""
    DBX_SHORTENED = "dbx-shortened"
    """The last hash is gone from dbx; digest kept."""
    RETYPED = "retyped"
    """A separator is called NO_ACTION."""
    AUTHORITY_INVENTED = "authority-invented"
    """An authority more than verified anything."""
    REMOVED = "removed"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    PCR_MOVED = "pcr-moved"
    """An event of PCR 4 is said to be one of PCR 3."""
    SHA1_ONLY_TRUE = "sha1-only-true"
    """The digests of the SHA-1 bank are true, all others are invented."""
    TRUNCATED = "truncated"
    """In the middle of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a log.

    Args:
        pcr: Index.
        type: EV_….
        data: What the log says.
        measured: What was hashed, if not the data.
        digests: Bank -> digest, if it is no hash of anything that we have.
    """

    pcr: int
    type: int
    data: bytes
    measured: bytes | None = None
    digests: Mapping[str, bytes] | None = None

    def digest(self, bank: str) -> bytes:
        """Return what was extended in *bank*; zeros where nothing is."""
        if self.digests is not None:
            return self.digests[bank]
        if self.type == EventType.NO_ACTION:
            return bytes(digest_size(bank_alg(bank)))
        return hashlib.new(bank, self.data if self.measured is None else self.measured).digest()

    def serialise(self, banks: Iterable[str]) -> bytes:
        """Return the TCG_PCR_EVENT2."""
        pairs = [(int(bank_alg(bank)), self.digest(bank)) for bank in banks]
        return (
            struct.pack("<III", self.pcr, self.type, len(pairs))
            + b"".join(struct.pack("<H", alg) + digest for alg, digest in pairs)
            + struct.pack("<I", len(self.data))
            + self.data
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLog:
    """What a machine measured, and what its log says of it.

    Args:
        events: All, without the first event (Spec ID), which `serialise` writes.
        banks: Names, in the order of the log.
        unlogged: Measured after `events`, but not in the log.
        start: Value that PCR 0 starts at, last byte; StartupLocality or H-CRTM.
        vendor_info: In the first event.
        padding: After the last event.
    """

    events: tuple[Event, ...]
    banks: tuple[str, ...] = ("sha256",)
    unlogged: tuple[Event, ...] = ()
    start: int = 0
    vendor_info: bytes = b""
    padding: bytes = b""

    def serialise(self) -> bytes:
        """Return the log as the kernel shows it (binary_bios_measurements)."""
        events = b"".join(event.serialise(self.banks) for event in self.events)
        return first_event(self.banks, self.vendor_info) + events + self.padding

    def pcrs(self, bank: str = "sha256") -> dict[int, bytes]:
        """Return all 24 PCRs of *bank* after the boot."""
        size = digest_size(bank_alg(bank))
        values = {i: (b"\xff" if i in _DRTM_PCRS else b"\0") * size for i in range(PCRS)}
        values[0] = bytes(size - 1) + bytes([self.start])
        for event in (*self.events, *self.unlogged):
            if event.type != EventType.NO_ACTION:
                values[event.pcr] = hashlib.new(bank, values[event.pcr] + event.digest(bank)).digest()
        return values

    def where(self, *, pcr: int | None = None, event_type: int | None = None) -> list[int]:
        """Return the positions of the events of that PCR and type."""
        return [
            i
            for i, event in enumerate(self.events)
            if pcr in (None, event.pcr) and event_type in (None, event.type)
        ]

    # Other logs

    def with_events(self, events: Iterable[Event]) -> BootLog:
        """Return a log of other events."""
        return replace(self, events=tuple(events))

    def dropped(self, at: int) -> BootLog:
        """Return it without one event."""
        return self.with_events(self.events[:at] + self.events[at + 1 :])

    def inserted(self, at: int, event: Event) -> BootLog:
        """Return it with one event more, before the position *at*."""
        return self.with_events((*self.events[:at], event, *self.events[at:]))

    def duplicated(self, at: int) -> BootLog:
        """Return it with one event twice."""
        return self.inserted(at, self.events[at])

    def swapped(self, one: int, other: int) -> BootLog:
        """Return it with two events in each other's place."""
        events = list(self.events)
        events[one], events[other] = events[other], events[one]
        return self.with_events(events)

    def retold(
        self,
        at: int,
        *,
        pcr: int | None = None,
        event_type: int | None = None,
        data: bytes | None = None,
    ) -> BootLog:
        """Return it with one event told differently: its digests stay what they were."""
        was = self.events[at]
        told = Event(
            pcr=was.pcr if pcr is None else pcr,
            type=was.type if event_type is None else event_type,
            data=was.data if data is None else data,
            digests={bank: was.digest(bank) for bank in self.banks},
        )
        return self.with_events((*self.events[:at], told, *self.events[at + 1 :]))


def first_event(banks: Iterable[str], vendor_info: bytes = b"") -> bytes:
    """Return the TCG_PCR_EVENT with TCG_EfiSpecIDEvent ([PFP] 10.4.5.1)."""
    algorithms = [(int(bank_alg(bank)), digest_size(bank_alg(bank))) for bank in banks]
    body = (
        b"Spec ID Event03\0"
        + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(algorithms))
        + b"".join(struct.pack("<HH", *algorithm) for algorithm in algorithms)
        + struct.pack("<B", len(vendor_info))
        + vendor_info
    )
    return struct.pack("<II20xI", 0, EventType.NO_ACTION, len(body)) + body


# Data of events


def variable(vendor: uuid.UUID, name: str, data: bytes) -> bytes:
    """Return UEFI_VARIABLE_DATA ([PFP] 10.4.2)."""
    return vendor.bytes_le + struct.pack("<QQ", len(name), len(data)) + name.encode("utf-16-le") + data


def signature_list(kind: uuid.UUID, entries: Iterable[bytes], *, header: bytes = b"") -> bytes:
    """Return an EFI_SIGNATURE_LIST of entries of equal length (UEFI 32.4.1); nothing for no entries."""
    datas = [_OWNER.bytes_le + entry for entry in entries]
    if not datas:
        return b""
    size = len(datas[0])
    return (
        kind.bytes_le
        + struct.pack("<III", 28 + len(header) + size * len(datas), len(header), size)
        + header
        + b"".join(datas)
    )


def certificate_lists(certificates: Iterable[bytes]) -> bytes:
    """Return one signature list for each certificate (DER): their lengths differ."""
    return b"".join(signature_list(_X509, [certificate]) for certificate in certificates)


def hash_list(digests: Iterable[bytes]) -> bytes:
    """Return the signature list of SHA-256 hashes."""
    return signature_list(_SHA256, digests)


def image(
    pcr: int, path: str, content: bytes, *, event_type: int = EventType.EFI_BOOT_SERVICES_APPLICATION
) -> Event:
    """Return the event of an EFI image: UEFI_IMAGE_LOAD_EVENT; the digest is that of a DOS header and *content*."""
    name = (path + "\0").encode("utf-16-le")
    # Media device path, file path; end of the path. No path, as of a kernel that GRUB starts, is 0 bytes long.
    device_path = b"" if not path else struct.pack("<BBH", 4, 4, 4 + len(name)) + name + b"\x7f\xff\x04\x00"
    data = struct.pack("<QQQQ", 0x1C000000, len(content), 0, len(device_path)) + device_path
    return Event(pcr=pcr, type=event_type, data=data, measured=b"MZ".ljust(64, b"\0") + content)


def ipl(pcr: int, text: str, measured: bytes) -> Event:
    """Return an EV_IPL event of GRUB or shim: NUL-terminated text."""
    return Event(pcr=pcr, type=EventType.IPL, data=text.encode() + b"\0", measured=measured)


def stub(pcr: int, text: str, measured: bytes) -> Event:
    """Return an EV_IPL event of systemd-stub: UTF-16 text."""
    return Event(pcr=pcr, type=EventType.IPL, data=(text + "\0").encode("utf-16-le"), measured=measured)


def action(pcr: int, text: str) -> Event:
    """Return an EV_EFI_ACTION event."""
    return Event(pcr=pcr, type=EventType.EFI_ACTION, data=text.encode())


def separator(pcr: int, data: bytes = bytes(4)) -> Event:
    """Return an EV_SEPARATOR event."""
    return Event(pcr=pcr, type=EventType.SEPARATOR, data=data)


def startup_locality(locality: int, *, pcr: int = 0) -> Event:
    """Return the NO_ACTION event that says at which locality TPM2_Startup came."""
    return Event(pcr=pcr, type=EventType.NO_ACTION, data=b"StartupLocality\0" + bytes([locality]))


@lru_cache(maxsize=256)
def secure_boot_certificate(name: str) -> bytes:
    """Return the certificate (DER) of a Secure Boot key; the same for the same name."""
    return CertificateAuthority(name, seed=7).certificate


def revoked_hash(number: int) -> bytes:
    """Return the *number*-th hash that vendors have put into dbx."""
    return hashlib.sha256(f"revoked image {number}".encode()).digest()


# Machines


@dataclass(frozen=True, slots=True, kw_only=True)
class BootOptions:
    """A machine and what it boots. Contents are named, not given: other name, other digest.

    Args:
        seed: Serial numbers, disk, boot options: what differs between machines of one kind.
        firmware: Version.
        secure_boot: Enabled; if not, PK, KEK and db are empty.
        platform_key: Subject of the PK.
        key_exchange_keys: Subjects of KEK.
        databases: Subjects of the certificates in db.
        revoked: How many hashes dbx has.
        authority: Which of db signed what the firmware starts.
        sbat: SBAT level of shim.
        uki: One unified kernel image instead of shim, GRUB and a kernel.
        loader: Name and version of the boot loader (shim and GRUB).
        kernel: Version.
        initrd: Version.
        command_line: Of the kernel.
        phases: What the system extends into PCR 11 once the log has ended, e.g. `enter-initrd` (Talos, systemd).
        banks: Names of the PCR banks.
        locality: StartupLocality in PCR 0; None for no such event.
        size_bytes: Fill the log with boot options until it is that long.
        quirks: Some of `LogQuirk`.
        defect: One of `LogDefect`.
    """

    seed: int = 0
    firmware: str = "1.0"
    secure_boot: bool = True
    platform_key: str = "Platform Key"
    key_exchange_keys: tuple[str, ...] = ("Key Exchange Key",)
    databases: tuple[str, ...] = ("Third Party UEFI CA", "Operating System CA")
    revoked: int = 3
    authority: str = "Third Party UEFI CA"
    sbat: str = "sbat,1,2025021800\nshim,4\ngrub,5\n"
    uki: bool = False
    loader: str = "shim 16.1, grub 2.06"
    kernel: str = "6.1.0-56"
    initrd: str = "initrd 1"
    command_line: str = "root=/dev/sda2 ro quiet"
    phases: tuple[str, ...] = ()
    banks: tuple[str, ...] = ("sha256",)
    locality: int | None = None
    size_bytes: int = 0
    quirks: frozenset[LogQuirk] = frozenset()
    defect: LogDefect | None = None


def boot_log(options: BootOptions | None = None) -> BootLog:
    """Return what the machine of *options* measures; the same for the same options."""
    options = options or BootOptions()
    quirks = options.quirks
    events = [
        *_crtm(options),
        *_secure_boot(options),
        *_platform(options),
        *(separator(pcr) for pcr in range(7)),
        *_authority(options),
        *_disk(options),
        *(_uki(options) if options.uki else _grub(options)),
    ]
    leave = [
        action(5, "Exit Boot Services Invocation"),
        action(5, "Exit Boot Services Returned with Success"),
    ]
    if LogQuirk.EXIT_FAILS_ONCE in quirks:
        leave.insert(0, action(5, "Exit Boot Services Returned with Failure"))
    unlogged: list[Event] = []
    if LogQuirk.NO_EXIT_BOOT_SERVICES in quirks:
        leave, unlogged = [], leave
    events += leave
    unlogged += [stub(11, phase, phase.encode()) for phase in options.phases]
    if LogQuirk.NO_ACTION_OUTSIDE in quirks:
        events.append(Event(pcr=0xFFFFFFFF, type=EventType.NO_ACTION, data=b"WBCL"))
    padding = b""
    if LogQuirk.PADDED_ZEROS in quirks:
        padding = bytes(512)
    if LogQuirk.PADDED_ONES in quirks:
        padding = b"\xff" * 512
    log = BootLog(
        events=tuple(events),
        banks=options.banks,
        unlogged=tuple(unlogged),
        start=4 if LogQuirk.HCRTM in quirks else options.locality or 0,
        vendor_info=b"vendor" if LogQuirk.VENDOR_INFO in quirks else b"",
        padding=padding,
    )
    return _filled(log, options)


def _crtm(options: BootOptions) -> list[Event]:
    """Return the beginning of PCR 0."""
    quirks = options.quirks
    events = []
    if LogQuirk.SP800_155 in quirks:
        data = b"SP800-155 Event\0" + struct.pack("<I", 343) + _OWNER.bytes_le
        events.append(Event(pcr=0, type=EventType.NO_ACTION, data=data))
    if LogQuirk.SHORT_NO_ACTION in quirks:
        events.append(Event(pcr=0, type=EventType.NO_ACTION, data=b"\x01\0\0"))
    if LogQuirk.HCRTM in quirks:
        events.append(
            Event(
                pcr=0,
                type=EventType.EFI_HCRTM_EVENT,
                data=b"HCRTM",
                measured=b"H-CRTM " + options.firmware.encode(),
            )
        )
    elif options.locality is not None:
        events.append(startup_locality(options.locality))
    newer = LogQuirk.NEWER_TYPES in quirks
    blob = struct.pack("<QQ", 0x820000, 0xE0000)
    if newer:
        blob = b"\x05DXE v" + blob
    kind = EventType.EFI_PLATFORM_FIRMWARE_BLOB2 if newer else EventType.EFI_PLATFORM_FIRMWARE_BLOB
    return [
        *events,
        Event(pcr=0, type=EventType.S_CRTM_VERSION, data=(options.firmware + "\0").encode("utf-16-le")),
        Event(pcr=0, type=kind, data=blob, measured=b"firmware volume " + options.firmware.encode()),
    ]


def _secure_boot(options: BootOptions) -> list[Event]:
    """Return PCR 7 up to its separator."""
    defect, quirks = options.defect, options.quirks
    config = EventType.EFI_VARIABLE_DRIVER_CONFIG
    on = options.secure_boot
    state = b"\1" if on else b"\0"
    if LogQuirk.SECURE_BOOT_EMPTY in quirks:
        state = b""
    if defect is LogDefect.SECURE_BOOT_TWO_BYTES:
        state += b"\0"
    if defect is LogDefect.SECURE_BOOT_OTHER:
        state = b"\2"
    databases = [secure_boot_certificate(name) for name in options.databases]
    values = {
        "PK": certificate_lists([secure_boot_certificate(options.platform_key)]),
        "KEK": certificate_lists(map(secure_boot_certificate, options.key_exchange_keys)),
        "db": certificate_lists(databases),
        "dbx": hash_list(revoked_hash(i) for i in range(options.revoked)),
    }
    if not on:
        values |= {"PK": b"", "KEK": b"", "db": b""}
    missing = {LogDefect.NO_PK: "PK", LogDefect.NO_KEK: "KEK", LogDefect.NO_DB: "db"}
    if defect in missing:
        values[missing[defect]] = b""
    broken = {
        LogDefect.LIST_TOO_LONG: ("dbx", struct.pack("<III", 0xFFFFFFF0, 0, 48)),
        LogDefect.LIST_TOO_SHORT: ("dbx", struct.pack("<III", 27, 0, 48)),
        LogDefect.LIST_HEADER_TOO_LONG: ("dbx", struct.pack("<III", 28 + 48, 0xFFFFFFFF, 48)),
        LogDefect.SIGNATURE_SIZE_ZERO: ("db", struct.pack("<III", 28 + 48, 0, 0)),
        LogDefect.SIGNATURE_SIZE_HUGE: ("db", struct.pack("<III", 28 + 48, 0, 0xFFFFFFFF)),
    }
    if defect in broken:
        name, sizes = broken[defect]
        values[name] = _SHA256.bytes_le + sizes + bytes(48)
    vendors = {"PK": GLOBAL, "KEK": GLOBAL, "db": DATABASE, "dbx": DATABASE}
    datas = [variable(GLOBAL, "SecureBoot", state)]
    datas += [variable(vendors[name], name, value) for name, value in values.items()]
    huge = {LogDefect.VARIABLE_NAME_HUGE: (1 << 63, 4), LogDefect.VARIABLE_DATA_HUGE: (3, 1 << 63)}
    if defect in huge:
        datas[-1] = DATABASE.bytes_le + struct.pack("<QQ", *huge[defect]) + "dbx".encode("utf-16-le")
    if defect is LogDefect.VARIABLE_TWICE:
        datas.append(variable(DATABASE, "dbx", b""))
    events = [Event(pcr=7, type=config, data=data) for data in datas]
    if defect is LogDefect.DEBUG_MODE:
        events.insert(0, action(7, "UEFI Debug Mode"))
    if LogQuirk.DMA_PROTECTION_DISABLED in quirks:
        events.insert(0, action(7, "DMA Protection Disabled"))
    if defect is LogDefect.STRANGE_IN_PCR_7:
        events.append(Event(pcr=7, type=EventType.EVENT_TAG, data=b"strange", measured=b"whatever"))
    if LogQuirk.AUTHORITY_BEFORE_SEPARATOR in quirks:
        events.append(_signed_by(options.authority))
    separators = {
        LogDefect.TWO_SEPARATORS: [bytes(4), bytes(4)],
        LogDefect.SEPARATOR_MISSING: [],
        LogDefect.SEPARATOR_ERROR: [b"\1\0\0\0"],
        LogDefect.SEPARATOR_OTHER: [b"WBCL"],
    }
    chosen = [bytes(4)] if defect is None else separators.get(defect, [bytes(4)])
    events += [separator(7, data) for data in chosen]
    if defect is LogDefect.VARIABLE_AFTER_SEPARATOR:
        events.append(Event(pcr=7, type=config, data=variable(DATABASE, "dbx", b"")))
    return events


def _signed_by(name: str) -> Event:
    """Return the event of the db entry that verified an image: EFI_SIGNATURE_DATA in a variable."""
    data = variable(DATABASE, "db", _OWNER.bytes_le + secure_boot_certificate(name))
    return Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=data)


def _authority(options: BootOptions) -> list[Event]:
    if not options.secure_boot or options.defect is LogDefect.NO_AUTHORITY:
        return []
    return [_signed_by(options.authority)]


def _shim_authority(options: BootOptions, name: str, data: bytes) -> Event:
    told = variable(SHIM, name, data)
    if LogQuirk.SHIM_LAST_BYTE in options.quirks:
        return Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=told + b"\0", measured=told)
    return Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=told)


def _platform(options: BootOptions) -> list[Event]:
    """Return PCR 1 and 2, and the first of PCR 4: what depends on the machine."""
    newer = LogQuirk.NEWER_TYPES in options.quirks
    tables = struct.pack("<Q", 1) + GLOBAL.bytes_le + struct.pack("<Q", 0x7F000000)
    kind = EventType.EFI_HANDOFF_TABLES2 if newer else EventType.EFI_HANDOFF_TABLES
    if newer:
        tables = b"\x06SMBIOS" + tables
    events = [
        Event(pcr=1, type=kind, data=tables, measured=f"SMBIOS, serial {options.seed:08d}".encode()),
        _boot_variable(options, "BootOrder", b"\0\0\1\0"),
        _boot_variable(options, "Boot0000", _boot_option("disk", options.seed)),
        _boot_variable(options, "Boot0001", _boot_option("network", options.seed)),
    ]
    if LogQuirk.OPTION_ROM in options.quirks:
        events.append(
            image(2, "OptionRom", b"driver of a card", event_type=EventType.EFI_BOOT_SERVICES_DRIVER)
        )
    if LogQuirk.SPDM in options.quirks:
        data = b"SPDM Device Sec\0" + struct.pack("<HBBI", 1, 0, 0, 1)
        events.append(
            Event(pcr=2, type=EventType.EFI_SPDM_FIRMWARE_BLOB, data=data, measured=b"firmware of a disk")
        )
    if LogQuirk.ACTION_IN_PCR_2 in options.quirks:
        events.append(Event(pcr=2, type=EventType.ACTION, data=b"Executing UEFI option ROM"))
    if LogQuirk.IPL_IN_PCR_4 in options.quirks:
        events.append(Event(pcr=4, type=EventType.IPL, data=b"boot block", measured=b"bytes of a boot block"))
    if LogQuirk.BOOT_DEVICES_OMITTED in options.quirks:
        events.append(Event(pcr=4, type=EventType.OMIT_BOOT_DEVICE_EVENTS, data=b"BOOT ATTEMPTS OMITTED"))
    return [*events, action(4, "Calling EFI Application from Boot Option")]


def _boot_variable(options: BootOptions, name: str, data: bytes) -> Event:
    """Return a boot option: older firmware measured the value alone, BOOT2 the whole structure."""
    told = variable(GLOBAL, name, data)
    if LogQuirk.NEWER_TYPES in options.quirks:
        return Event(pcr=1, type=EventType.EFI_VARIABLE_BOOT2, data=told)
    return Event(pcr=1, type=EventType.EFI_VARIABLE_BOOT, data=told, measured=data)


def _boot_option(name: str, seed: int) -> bytes:
    """Return an EFI_LOAD_OPTION with a description and a path of random bytes (UEFI 3.1.3)."""
    path = b"\x01\x04\x2c\0" + random.Random(f"{name} {seed}").randbytes(40) + b"\x7f\xff\x04\0"
    return struct.pack("<IH", 1, len(path)) + (name + "\0").encode("utf-16-le") + path


def _disk(options: BootOptions) -> list[Event]:
    """Return the GPT of the boot disk, in PCR 5: UEFI_GPT_DATA with one partition."""
    identity = random.Random(f"disk {options.seed}").randbytes(16)
    header = struct.pack(
        "<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, 1, 0, 34, 999, identity, 2, 128, 128, 0
    )
    partition = (
        _DISK.bytes_le
        + identity
        + struct.pack("<QQQ", 2048, 4096, 0)
        + "ESP".encode("utf-16-le").ljust(72, b"\0")
    )
    return [Event(pcr=5, type=EventType.EFI_GPT_EVENT, data=header + struct.pack("<Q", 1) + partition)]


def _grub(options: BootOptions) -> list[Event]:
    """Return what shim, GRUB and the kernel's stub measure (PCR 4, 7, 8, 9, 14)."""
    kernel = f"kernel {options.kernel}".encode()
    command_line = f"/vmlinuz {options.command_line}"
    commands_ = ["set timeout=0", f"linux {command_line}", "initrd /initrd.img"]
    config = "\n".join(commands_).encode()
    events = [
        image(4, "\\EFI\\BOOT\\BOOTX64.EFI", f"shim of {options.loader}".encode()),
        ipl(14, "MokList", b"the vendor's certificate"),
        ipl(14, "MokListX", b"the vendor's revocations"),
    ]
    if options.secure_boot and options.defect is not LogDefect.NO_AUTHORITY:
        vendor = SHIM.bytes_le + secure_boot_certificate("Distribution Secure Boot CA")
        events += [
            _shim_authority(options, "SbatLevel", options.sbat.encode()),
            _shim_authority(options, "MokListRT", vendor),
        ]
    events += [
        ipl(14, "MokListTrusted", b"\1"),
        image(4, "\\EFI\\BOOT\\grubx64.efi", f"grub of {options.loader}".encode()),
        ipl(9, "(hd0,gpt1)/EFI/debian/grub.cfg", config),
        *(ipl(8, f"grub_cmd: {text}", text.encode()) for text in commands_[:2]),
        ipl(9, "/vmlinuz", b"file of " + kernel),
        image(4, "", kernel),
        ipl(8, f"kernel_cmdline: {command_line}", command_line.encode()),
        ipl(8, f"grub_cmd: {commands_[2]}", commands_[2].encode()),
        ipl(9, "/initrd.img", f"file of {options.initrd}".encode()),
    ]
    return events


def _uki(options: BootOptions) -> list[Event]:
    """Return what firmware and systemd-stub measure of a unified kernel image (PCR 4, 9, 11)."""
    sections = {
        ".linux": f"file of kernel {options.kernel}".encode(),
        ".osrel": b"ID=test\n",
        ".cmdline": options.command_line.encode(),
        ".initrd": f"file of {options.initrd}".encode(),
    }
    content = b"".join(name.encode() + value for name, value in sections.items())
    events = [image(4, "\\EFI\\BOOT\\BOOTX64.EFI", f"stub of {options.loader}".encode() + content)]
    for name, value in sections.items():
        events += [stub(11, name, name.encode() + b"\0"), stub(11, name, value)]
    tag = struct.pack("<II", 0x8F3B22EC, 13) + b"Linux initrd\0"
    return [*events, Event(pcr=9, type=EventType.EVENT_TAG, data=tag, measured=sections[".initrd"])]


def _filled(log: BootLog, options: BootOptions) -> BootLog:
    """Return *log* with boot options after the last of PCR 1, until it has the size asked for."""
    size = len(log.serialise())
    at = max(log.where(pcr=1, event_type=log.events[log.where(pcr=1)[1]].type)) + 1
    more: list[Event] = []
    while size < options.size_bytes:
        number = len(more) + 2
        more.append(
            _boot_variable(options, f"Boot{number:04X}", _boot_option(f"option {number}", options.seed))
        )
        size += len(more[-1].serialise(log.banks))
    return log.with_events((*log.events[:at], *more, *log.events[at:]))


# Lies


def tampered(log: BootLog, how: Tampering) -> bytes:
    """Return the bytes of a log that lies about what *log* says was measured.

    Raises:
        ValueError: *log* has nothing to lie about in this way.
    """
    match how:
        case Tampering.NO_SPEC_ID:
            return b"".join(event.serialise(log.banks) for event in log.events)
        case Tampering.DIGEST_COUNT_HUGE:
            return _patched(log, len(first_event(log.banks, log.vendor_info)) + 8, b"\xff\xff\xff\xff")
        case Tampering.EVENT_SIZE_HUGE:
            event = log.events[0]
            sizes = len(event.serialise(log.banks)) - len(event.data) - 4
            return _patched(log, len(first_event(log.banks, log.vendor_info)) + sizes, b"\xff\xff\xff\xff")
        case Tampering.DIGEST_SIZE_HUGE:
            # 32 bytes of header, 28 of Spec ID up to the first algorithm, its id.
            return _patched(log, 32 + 28 + 2, b"\xff\xff")
        case Tampering.ALGORITHM_MISSING | Tampering.ALGORITHM_TWICE:
            bank = log.banks[-1]
            banks = log.banks[:-1] if how is Tampering.ALGORITHM_MISSING else (*log.banks, bank)
            parts = [event.serialise(log.banks) for event in log.events]
            parts[len(parts) // 2] = log.events[len(parts) // 2].serialise(banks)
            return first_event(log.banks, log.vendor_info) + b"".join(parts) + log.padding
        case Tampering.TRUNCATED:
            whole = replace(log, padding=b"").serialise()
            return whole[: -len(log.events[-1].serialise(log.banks)) // 2]
        case Tampering.SHA1_ONLY_TRUE:
            return _sha1_only_true(log).serialise()
        case _:
            return _retold(log, how).serialise()


def _patched(log: BootLog, at: int, data: bytes) -> bytes:
    raw = bytearray(log.serialise())
    raw[at : at + len(data)] = data
    return bytes(raw)


def _sha1_only_true(log: BootLog) -> BootLog:
    if "sha1" not in log.banks:
        raise ValueError("no SHA-1 bank")

    def invented(event: Event) -> Event:
        if event.type == EventType.NO_ACTION:
            return event
        digests = {bank: hashlib.new(bank, b"invented" + event.digest(bank)).digest() for bank in log.banks}
        return replace(event, digests=digests | {"sha1": event.digest("sha1")})

    return log.with_events(map(invented, log.events))


def _retold(log: BootLog, how: Tampering) -> BootLog:
    config = log.where(pcr=7, event_type=EventType.EFI_VARIABLE_DRIVER_CONFIG)
    images = log.where(pcr=4, event_type=EventType.EFI_BOOT_SERVICES_APPLICATION)
    match how:
        case Tampering.LOCALITY_TWICE:
            return log.inserted(0, startup_locality(3)).inserted(0, startup_locality(3))
        case Tampering.LOCALITY_LATE:
            return log.inserted(log.where(pcr=0)[-1] + 1, startup_locality(3))
        case Tampering.LOCALITY_IN_PCR_1:
            return log.inserted(0, startup_locality(3, pcr=1))
        case Tampering.LOCALITY_ADDED:
            return log.inserted(0, startup_locality(3))
        case Tampering.DATA_CHANGED:
            data = log.events[config[0]].data
            return log.retold(config[0], data=data[:-1] + bytes([data[-1] ^ 1]))
        case Tampering.DBX_SHORTENED:
            # One hash less: 48 bytes off the list, and off both its lengths.
            data = log.events[config[-1]].data
            value = data[38:-48]
            value = value[:16] + struct.pack("<I", len(value)) + value[20:]
            return log.retold(config[-1], data=variable(DATABASE, "dbx", value))
        case Tampering.RETYPED:
            return log.retold(
                log.where(pcr=7, event_type=EventType.SEPARATOR)[0], event_type=EventType.NO_ACTION
            )
        case Tampering.AUTHORITY_INVENTED:
            return log.inserted(log.where(pcr=7)[-1] + 1, _signed_by("Operating System CA"))
        case Tampering.REMOVED:
            return log.dropped(images[-1])
        case Tampering.DUPLICATED:
            return log.duplicated(images[-1])
        case Tampering.REORDERED:
            return log.swapped(config[1], config[2])
        case Tampering.PCR_MOVED:
            return log.retold(images[-1], pcr=3)
        case _:  # pragma: no cover -- `tampered` has seen to the others
            raise AssertionError(how)


# Booting


def boot(
    machine: SoftwareNode | SoftwareTPM,
    log: BootLog,
    *,
    after: Iterable[tuple[int, Mapping[str, bytes]]] = (),
) -> None:
    """Reset *machine* and have it measure *log*; its quotes then agree with it.

    Args:
        machine: Its banks are extended as far as the log has them.
        log: From `boot_log`.
        after: More to extend after the boot: PCR, bank -> digest; what the kernel measures (`IMALog.measurements`).

    Raises:
        ValueError: A swtpm cannot start PCR 0 anywhere but at zero.
    """
    measured: list[tuple[int, Mapping[str, bytes]]] = [
        (event.pcr, {bank: event.digest(bank) for bank in log.banks})
        for event in (*log.events, *log.unlogged)
        if event.type != EventType.NO_ACTION
    ]
    measured += after
    machine.reboot()
    if isinstance(machine, SoftwareNode):
        for pcrs in machine.pcrs.values():
            pcrs[0] = pcrs[0][:-1] + bytes([log.start])
        for pcr, digests in measured:
            for bank in machine.pcrs.keys() & digests:
                machine.extend_pcr(pcr, digests[bank], bank=bank)
        return
    if log.start:
        raise ValueError("a software TPM starts PCR 0 at zero")
    with machine.client() as tpm:
        for pcr, digests in measured:
            by_alg = {int(bank_alg(bank)): digest for bank, digest in digests.items()}
            tpm.execute(commands.pcr_extend(pcr, by_alg), Password())
