"""The measurement logs of one attestation: where they come from, what they replay to, and which are kept.

A boot event log does not change until the next boot, so a machine sends it once and the service remembers which
one led to the quoted PCRs. Nothing is believed because it is remembered: every time, the log is compared with
the PCRs that were quoted this time (docs/adr/0029). An IMA list grows, so it comes with every attestation that
is judged by it.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from attestation.api import AttestRequest
from attestation.errors import EventLogRejected, IMALogRejected, MalformedEvidence, StoreUnavailable
from attestation.evidence import event_log, ima_log
from attestation.evidence.event_log import ReplayedLog
from attestation.evidence.ima_log import UnverifiedIMALog
from attestation.machines import Machine
from attestation.reference import Policy
from attestation.store import PackedLog, Tx, pack
from attestation.wire import b64decode

BOOT_PCRS: Final = range(8)
"""What firmware extends. Behind them, software that came later may have extended what no boot log tells."""
IMA_LOG_BYTES: Final = 1 << 20

Authenticate = Callable[[], object]
"""Raises `EvidenceRejected` unless the quote of this request is authentic."""


class Replays:
    """What event logs replay to, remembered by the SHA-256 over all their bytes and by the bank.

    A replay is a pure function of both, so what is remembered is right whoever sent the bytes first; and it
    proves nothing until `event_log.verify` compares it with a quote. Safe to use from several threads.

    Args:
        max_bytes: Length of all remembered logs together; the one that was used longest ago makes room.

    Attributes:
        parsed: How many logs were parsed.
    """

    def __init__(self, max_bytes: int) -> None:
        self.parsed = 0
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._found: OrderedDict[tuple[str, int], ReplayedLog] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, sha256: str, bank: int) -> ReplayedLog | None:
        """Return what the log of this SHA-256 (hex) replays to in *bank*, where that is remembered."""
        with self._lock:
            found = self._found.get((sha256, bank))
            if found is not None:
                self._found.move_to_end((sha256, bank))
            return found

    def replay(self, log: bytes, bank: int) -> ReplayedLog:
        """Parse and replay *log* in *bank*, and remember the outcome.

        Raises:
            MalformedEvidence: It is no event log, or has no digests of this bank.
        """
        with self._lock:
            self.parsed += 1
        found = event_log.replay(event_log.parse(log, log_padding=True), bank)
        with self._lock:
            if (found.sha256, bank) not in self._found:
                self._found[found.sha256, bank] = found
                self._size_bytes += len(log)
            while self._size_bytes > self._max_bytes:
                _, oldest = self._found.popitem(last=False)
                self._size_bytes -= len(oldest.data)
        return found


class Measurements(NamedTuple):
    """The logs of one attestation, before anything was compared with a verified quote.

    Args:
        event_log: Replayed; None where there is none to judge by.
        sent: Its bytes, where it came with this request.
        ima_log: Parsed; None where none was sent or no rule reads it.
        ima_sent: Its bytes.
    """

    event_log: ReplayedLog | None = None
    sent: bytes | None = None
    ima_log: UnverifiedIMALog | None = None
    ima_sent: bytes | None = None


def gather(
    tx: Tx,
    request: AttestRequest,
    machine: Machine,
    policy: Policy,
    values: Mapping[int, bytes],
    replays: Replays,
    authenticate: Authenticate,
) -> Measurements:
    """Return the logs that this attestation is judged by.

    Args:
        tx: Where kept logs are.
        request: The attestation.
        machine: Who sent it.
        policy: What it is judged by.
        values: The PCR values of its bank that came with the quote, not yet believed.
        replays: What is remembered.
        authenticate: Called before the first byte of a log is parsed: who holds no activated key cannot have
            us parse anything.

    Raises:
        EvidenceRejected: The quote is not authentic.
        MalformedEvidence: A log cannot be parsed.
    """
    ima_sent = _ima_sent(request) if policy.tpm.ima is not None else None
    parsed = None
    if ima_sent is not None:
        authenticate()
        parsed = ima_log.parse(ima_sent)
    if request.event_log is not None:
        sent = b64decode(request.event_log, "event_log", max_bytes=event_log.MAX_LOG_BYTES)
        found = replays.known(hashlib.sha256(sent).hexdigest(), policy.tpm.bank)
        if found is None:
            authenticate()
            found = replays.replay(sent, policy.tpm.bank)
        return Measurements(event_log=found, sent=sent, ima_log=parsed, ima_sent=ima_sent)
    found = kept(tx, machine, policy.tpm.bank, replays) if policy.tpm.event_log_required else None
    if found is not None and not leads_to(found, policy, values):
        # Of an earlier boot. To judge by it would fail a machine that nobody asked for its log.
        found = None
    return Measurements(event_log=found, ima_log=parsed, ima_sent=ima_sent)


def kept(tx: Tx, machine: Machine, bank: int, replays: Replays) -> ReplayedLog | None:
    """Return the log that led to the PCRs of *machine* last; None where none is kept, or it says nothing of *bank*."""
    if machine.event_log_sha256 is None:
        return None
    found = replays.known(machine.event_log_sha256, bank)
    if found is not None:
        return found
    try:
        log = tx.logs.get(machine.event_log_sha256)
        return None if log is None else replays.replay(log, bank)
    except (StoreUnavailable, MalformedEvidence):
        # What we kept is not what we wrote, or has nothing about this bank: the machine is asked again.
        return None


def leads_to(replayed: ReplayedLog, policy: Policy, values: Mapping[int, bytes]) -> bool:
    """Say whether a log leads to *values*, in the PCRs that *policy* reads through it, or in those of firmware."""
    quoted = _of_the_log(policy, values)
    if not quoted:
        return False
    try:
        event_log.verify(replayed, quoted=quoted)
    except EventLogRejected:
        # It may tell the truth about a boot that must not be trusted; then it explains why.
        return all(replayed.values[pcr] == value for pcr, value in quoted.items())
    return True


def _of_the_log(policy: Policy, values: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return those of *values* that a log has to lead to."""
    return {pcr: values[pcr] for pcr in policy.tpm.log_pcrs or BOOT_PCRS if pcr in values}


class Remembered(NamedTuple):
    """What is to be known of a machine's logs after this attestation.

    Args:
        event_log_sha256: The log that led to the PCRs quoted now, hex; None where none is known.
        ima_log_sha256: The IMA list that did, hex.
        logs: What is to be kept for them, if it may be.
        first: The first log of this boot: worth a line in the history although nothing else changed.
        astray_sha256: The log that was sent and leads elsewhere, hex: of another boot, or changed. It is kept with the
            result, as what the machine said; nothing is judged by it later.
    """

    event_log_sha256: str | None
    astray_sha256: str | None = None
    ima_log_sha256: str | None = None
    logs: tuple[PackedLog, ...] = ()
    first: bool = False


def remember(
    tx: Tx,
    found: Measurements,
    machine: Machine,
    policy: Policy,
    quoted: Mapping[int, bytes],
    replays: Replays,
    *,
    changed: bool,
) -> Remembered:
    """Return what an authentic attestation tells of the machine's logs.

    Args:
        tx: Where kept logs are.
        found: The logs it was judged by.
        machine: Who sent it.
        policy: What it was judged by.
        quoted: Verified PCR values of the bank of *policy*.
        replays: What is remembered.
        changed: The result differs from the one before and becomes history.
    """
    before = machine.event_log_sha256
    sha256, boot = _remember_boot(tx, found, machine, policy, quoted, replays, changed=changed)
    ima = (
        pack("ima", found.ima_sent) if changed and found.ima_sent and _is_of(found, policy, quoted) else None
    )
    leads_elsewhere = changed and found.sent is not None and sha256 is None and _of_the_log(policy, quoted)
    astray = pack("tcg", found.sent) if leads_elsewhere and found.sent is not None else None
    return Remembered(
        event_log_sha256=sha256,
        astray_sha256=None if astray is None else astray.sha256,
        ima_log_sha256=None if ima is None else ima.sha256,
        logs=tuple(log for log in (boot, astray, ima) if log is not None),
        first=before is None and sha256 is not None,
    )


def _remember_boot(
    tx: Tx,
    found: Measurements,
    machine: Machine,
    policy: Policy,
    quoted: Mapping[int, bytes],
    replays: Replays,
    *,
    changed: bool,
) -> tuple[str | None, PackedLog | None]:
    """Return the digest of the event log to remember, and the log where it is to be kept."""
    before = machine.event_log_sha256
    if found.sent is None:
        if found.event_log is not None or (not changed and not policy.tpm.event_log_required):
            return before, None
        # Not judged by now, and yet the newest result shall name it: only if it leads to what was quoted now.
        stored = None if policy.tpm.event_log_required else kept(tx, machine, policy.tpm.bank, replays)
        return (before if stored is not None and leads_to(stored, policy, quoted) else None), None
    assert found.event_log is not None
    if not leads_to(found.event_log, policy, quoted):
        return (None if changed else before), None
    if not changed and before is not None:
        # Two logs of one boot; that which is kept leads there, too, because nothing changed.
        return before, None
    sha256 = found.event_log.sha256
    return sha256, None if sha256 == before else pack("tcg", found.sent)


def _is_of(found: Measurements, policy: Policy, quoted: Mapping[int, bytes]) -> bool:
    """Say whether the IMA list leads to the quoted PCR 10."""
    assert found.ima_log is not None
    try:
        ima_log.verify(
            found.ima_log, bank=policy.tpm.bank, quoted_pcr10=quoted.get(ima_log.PCR, b""), quoted=quoted
        )
    except IMALogRejected:
        return False
    return True


def _ima_sent(request: AttestRequest) -> bytes | None:
    items = [item for item in request.evidence if item.media_type == ima_log.MEDIA_TYPE]
    if len(items) > 1:
        raise MalformedEvidence("evidence: more than one IMA list")
    if not items:
        return None
    value = items[0].value
    if not isinstance(value, str):
        raise MalformedEvidence("evidence: the IMA list is one base64 text")
    return b64decode(value, "evidence: IMA list", max_bytes=IMA_LOG_BYTES)
