"""TCG event logs: what firmware and boot loaders say they measured, believed as far as it leads to quoted PCRs.

Four steps: `parse` bytes, `replay` them in the quoted bank (a pure function, worth remembering), `verify` the
outcome against the quote; only then there are claims. Who writes the log may write anything: types, device
paths, file names and labels are not measured, and no claim rests on them.
"""

from attestation.evidence.event_log.boot_chain import BootChain, Image, Measured, Section
from attestation.evidence.event_log.event_types import Covers, EventType, type_name
from attestation.evidence.event_log.findings import Finding
from attestation.evidence.event_log.format import (
    MAX_EVENTS,
    MAX_LOG_BYTES,
    SpecID,
    UnverifiedEventLog,
    parse,
)
from attestation.evidence.event_log.replay import (
    IMA_PCR,
    EventLogClaims,
    LogEvent,
    ReplayedLog,
    replay,
    verify,
)
from attestation.evidence.event_log.secure_boot import Authority, SecureBootState
from attestation.evidence.event_log.uefi import SignatureDatabase, certificate_subject, printable

MEDIA_TYPE = "application/vnd.itl.tcg-event-log"

__all__ = [
    "IMA_PCR",
    "MAX_EVENTS",
    "MAX_LOG_BYTES",
    "MEDIA_TYPE",
    "Authority",
    "BootChain",
    "Covers",
    "EventLogClaims",
    "EventType",
    "Finding",
    "Image",
    "LogEvent",
    "Measured",
    "ReplayedLog",
    "Section",
    "SecureBootState",
    "SignatureDatabase",
    "SpecID",
    "UnverifiedEventLog",
    "certificate_subject",
    "parse",
    "printable",
    "replay",
    "type_name",
    "verify",
]
