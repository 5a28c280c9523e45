"""Secure Boot as PCR 7 tells it (TCG PFP, 3.3.4.8; TPM.md §4.5).

Everything here comes from events whose digest covers their data, in an order that is measured: variables, one
separator, authorities. What breaks that grammar is a fault; what is well-formed and not good is a problem.
"""

# Algorithms for: event-log
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence
from attestation.evidence.event_log import uefi
from attestation.evidence.event_log.event_types import Covers, EventType, type_name
from attestation.evidence.event_log.findings import Finding
from attestation.evidence.event_log.uefi import SignatureDatabase

PCR: Final = 7
_DEBUG: Final = b"UEFI Debug Mode"
_NO_DMA_PROTECTION: Final = b"DMA Protection Disabled"
_DATABASES: Final = {
    (uefi.GLOBAL, "PK"): "PK",
    (uefi.GLOBAL, "KEK"): "KEK",
    (uefi.SECURITY, "db"): "db",
    (uefi.SECURITY, "dbx"): "dbx",
}
_NO_AUTHORITY: Final = frozenset({(uefi.GLOBAL, "SecureBoot"), *_DATABASES} - {(uefi.SECURITY, "db")})
"""Variables that verify nothing; told as an authority they would vanish from where they are looked for."""
_SHIM_STATE: Final = frozenset({"SbatLevel", "MokListTrusted"})
"""Variables of shim that say how it decides; they are no key or hash by which something was accepted."""
_NOTHING: Final = uefi.parse_signature_lists(b"")


class Authority(NamedTuple):
    """By what an image, or a list of keys, was accepted (EV_EFI_VARIABLE_AUTHORITY).

    Args:
        name: Of the variable that holds it: db, Shim, MokListRT, …
        sha256: Hex: of the certificate; the hash itself where a hash was matched; else of the variable's data.
        certificate: DER; empty where it is none.
        after_separator: It was used after the firmware handed over.
    """

    name: str
    sha256: str
    certificate: bytes
    after_separator: bool

    @property
    def subject(self) -> str:
        """The certificate's subject in words, for people; empty where it is none."""
        return uefi.certificate_subject(self.certificate) if self.certificate else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureBootState:
    """What PCR 7 says of Secure Boot.

    Args:
        enabled: True: on, with PK, KEK, db and at least one authority, no problem found. False: off. None: not known.
        measured: The variable as measured: `on`, `off`, `undetermined` (empty) or `not measured`.
        problems: Why `enabled` is not True although the variable says so, in words.
        flags: Observations that decide nothing, in words.
        debug: The firmware started a debugger ("UEFI Debug Mode").
        dma_protection_disabled: The firmware says so.
        setup_mode: PK is empty: whoever gets there first owns the keys.
        variables: Name and length in bytes of every variable measured, in order.
        authorities: By what something was accepted, in order; each once per event.
        authority_names: Names of all authority events, in order, shim's SbatLevel and MokListTrusted included.
        sbat: Text of SbatLevel; None where there is none.
        log: The log, of which the databases are slices.
        spans: Database -> start and stop of its contents in `log`.
    """

    enabled: bool | None
    measured: str
    problems: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    debug: bool = False
    dma_protection_disabled: bool = False
    setup_mode: bool = False
    variables: tuple[tuple[str, int], ...] = ()
    authorities: tuple[Authority, ...] = ()
    authority_names: tuple[str, ...] = ()
    sbat: str | None = None
    log: bytes = field(default=b"", repr=False)
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    def database(self, name: str) -> SignatureDatabase:
        """Return PK, KEK, db or dbx as measured; an empty one where it was not. Decoded on demand."""
        start, stop = self.spans.get(name, (0, 0))
        return uefi.parse_signature_lists(self.log[start:stop]) if stop > start else _NOTHING

    @property
    def db_sha256(self) -> frozenset[str]:
        """Hashes in db and SHA-256 of its certificates, hex."""
        return self.database("db").sha256

    @property
    def dbx_sha256(self) -> frozenset[str]:
        """Hashes in dbx and SHA-256 of its certificates, hex."""
        return self.database("dbx").sha256


NOT_QUOTED: Final = SecureBootState(enabled=None, measured="not measured", problems=("PCR 7 was not quoted",))


class Measured7(NamedTuple):
    """An event of PCR 7.

    Args:
        event: Its index in the log.
        event_type: u32.
        covers: What its digest covers of its data.
        start: Offset of the data.
        stop: Offset behind the data that the digest covers.
    """

    event: int
    event_type: int
    covers: Covers
    start: int
    stop: int


def judge(log: bytes, events: Sequence[Measured7]) -> tuple[SecureBootState, list[Finding]]:
    """Return the state that *events* of PCR 7 tell, and what was found on the way.

    Args:
        log: The log.
        events: The events of PCR 7 in order, of expected types only, each with a digest that covers its data.
    """
    reader = _Reader(log)
    for event in events:
        reader.read(event)
    return reader.conclude(), reader.findings


class _Reader:
    """Reads PCR 7 event by event; `conclude` says what it saw."""

    def __init__(self, log: bytes) -> None:
        self.log = log
        self.findings: list[Finding] = []
        self.problems: list[str] = []
        self.flags: list[str] = []
        self.separated = False
        self.debug = False
        self.dma_protection_disabled = False
        self.seen: set[tuple[bytes, str]] = set()
        self.variables: list[tuple[str, int]] = []
        self.spans: dict[str, tuple[int, int]] = {}
        self.secure_boot: bytes | None = None
        self.authorities: list[Authority] = []
        self.authority_names: list[str] = []
        self.sbat: str | None = None

    def fault(self, event: Measured7, code: str, text: str) -> None:
        """Keep what no firmware does."""
        self.findings.append(Finding(code, PCR, event.event, text, fault=True))

    def read(self, event: Measured7) -> None:
        """Read one event."""
        kind = event.event_type
        data = self.log[event.start : event.stop]
        if kind == EventType.SEPARATOR:
            self._separator(event, data)
        elif kind == EventType.EFI_ACTION:
            self._action(event, data)
        elif kind in (EventType.EFI_VARIABLE_DRIVER_CONFIG, EventType.EFI_VARIABLE_AUTHORITY):
            try:
                old_shim = event.covers is Covers.DATA_BUT_LAST_BYTE
                variable = uefi.parse_variable(data, slack_bytes=uefi.SHIM_SLACK if old_shim else 0)
                if kind == EventType.EFI_VARIABLE_AUTHORITY:
                    self._authority(event, variable)
                else:
                    self._variable(event, variable)
            except MalformedEvidence as e:
                self.fault(event, "secure-boot-variable-malformed", str(e))
        else:
            # Not read, so it could be anything measured there, told as another type: an authority, even dbx.
            self.problems.append(f"{type_name(kind)} in PCR 7 is not interpreted")

    def _separator(self, event: Measured7, data: bytes) -> None:
        """Exactly one, of 00000000; 00000001 says that the firmware failed."""
        if self.separated:
            self.fault(event, "second-separator", "a second separator in PCR 7")
        elif data == b"\x01\0\0\0":
            self.problems.append("the firmware reported an error (separator 00000001)")
        elif data != bytes(4):
            self.fault(event, "separator-data", f"separator of PCR 7 with data {data[:8].hex()}")
        self.separated = True

    def _action(self, event: Measured7, data: bytes) -> None:
        """Two texts are known; another could mean anything."""
        text = data.rstrip(b"\0")
        if text == _DEBUG:
            self.debug = True
            self.problems.append("a debugger was attached to the firmware (UEFI Debug Mode)")
        elif text == _NO_DMA_PROTECTION:
            self.dma_protection_disabled = True
            self.flags.append("DMA protection is disabled")
        else:
            self.fault(event, "unknown-action", f"action {uefi.ascii_text(data[:64])!r} in PCR 7")

    def _variable(self, event: Measured7, variable: uefi.Variable) -> None:
        """Variables come before the separator, each once."""
        key = variable.guid, variable.name
        if self.separated:
            self.fault(event, "variable-after-separator", f"variable {_name(variable)} after the separator")
        if key in self.seen:
            self.fault(event, "variable-twice", f"variable {_name(variable)} measured twice")
        self.seen.add(key)
        self.variables.append((uefi.printable(variable.name), len(variable.value)))
        database = _DATABASES.get(key)
        if key == (uefi.GLOBAL, "SecureBoot"):
            self.secure_boot = variable.value
        elif database is not None:
            uefi.check_signature_lists(variable.value)
            self.spans[database] = (event.stop - len(variable.value), event.stop)
        elif variable.name in ("SecureBoot", "PK", "KEK", "db", "dbx"):
            self.fault(event, "variable-of-stranger", f"variable {_name(variable)} of another vendor's GUID")

    def _authority(self, event: Measured7, variable: uefi.Variable) -> None:
        if event.covers is Covers.DATA_BUT_LAST_BYTE:
            self.flags.append(f"the authority event of {_name(variable)} has one byte too many (older shim)")
        key = variable.guid, variable.name
        if key in _NO_AUTHORITY or (variable.guid != uefi.SHIM and uefi.is_signature_lists(variable.value)):
            self.fault(
                event, "variable-told-as-authority", f"variable {_name(variable)} told as an authority"
            )
        self.authority_names.append(uefi.printable(variable.name))
        if variable.guid == uefi.SHIM and variable.name in _SHIM_STATE:
            if variable.name == "SbatLevel":
                self.sbat = variable.value.rstrip(b"\0").decode("ascii", errors="replace")
            return
        certificate = uefi.certificate_in(variable.value)
        if certificate is not None:
            sha256 = hashlib.sha256(certificate).hexdigest()
        elif len(variable.value) == 48:  # EFI_SIGNATURE_DATA: owner, and the SHA-256 that was matched
            sha256 = variable.value[16:].hex()
        else:
            sha256 = hashlib.sha256(variable.value).hexdigest()
        self.authorities.append(
            Authority(uefi.printable(variable.name), sha256, certificate or b"", self.separated)
        )

    def conclude(self) -> SecureBootState:
        """Return the state. It is on only if everything that Secure Boot needs was seen and nothing is wrong."""
        measured, enabled = "not measured", None
        if self.secure_boot == b"\x01":
            measured = "on"
            absent = [name for name in ("PK", "KEK", "db") if not self._filled(name)]
            if absent:
                self.problems.append(f"SecureBoot is 1, but there is no {', '.join(absent)}")
            if not self.authorities:
                self.problems.append("SecureBoot is 1, but nothing was accepted by any authority")
            if not self.separated:
                self.problems.append("PCR 7 has no separator")
            enabled = None if self.problems or any(f.fault for f in self.findings) else True
        elif self.secure_boot == b"\0":
            measured, enabled = "off", False
        elif self.secure_boot == b"":
            measured = "undetermined"
            self.problems.append("the SecureBoot variable was measured with length 0: neither on nor off")
            self.findings.append(
                Finding("secure-boot-variable-empty", PCR, None, "the SecureBoot variable is empty")
            )
        elif self.secure_boot is None:
            self.problems.append("the SecureBoot variable was not measured")
        else:
            measured = "undetermined"
            self.problems.append("the SecureBoot variable is neither 0 nor 1")
        return SecureBootState(
            enabled=enabled,
            measured=measured,
            problems=tuple(dict.fromkeys(self.problems)),
            flags=tuple(dict.fromkeys(self.flags)),
            debug=self.debug,
            dma_protection_disabled=self.dma_protection_disabled,
            setup_mode=(uefi.GLOBAL, "PK") in self.seen and not self._filled("PK"),
            variables=tuple(self.variables),
            authorities=tuple(self.authorities),
            authority_names=tuple(self.authority_names),
            sbat=self.sbat,
            log=self.log,
            spans=self.spans,
        )

    def _filled(self, name: str) -> bool:
        start, stop = self.spans.get(name, (0, 0))
        return stop > start


def _name(variable: uefi.Variable) -> str:
    return uefi.printable(variable.name[:64])
