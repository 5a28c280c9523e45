"""Event logs: one of 50 KiB parsed and replayed, and one that is known already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from attestation.evidence import event_log
from attestation.tpm import Alg
from attestation_testing import BootOptions, boot_log
from tests.bench.report import Measurement, best_seconds

_SIZE_BYTES = 50 * 1024


def measure() -> Iterator[Measurement]:
    """Measure a log of SHA-256 alone, which has the most events in 50 KiB, with a dbx as vendors ship it."""
    log = boot_log(BootOptions(size_bytes=_SIZE_BYTES, revoked=200))
    data = log.serialise()
    quoted = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
    replayed = event_log.replay(event_log.parse(data), Alg.SHA256)
    known = {(replayed.sha256, Alg.SHA256): replayed}
    events = len(replayed.entries)

    def floor() -> None:
        """Hash every event's data and extend its PCR: what no replay can leave out."""
        value = bytes(32)
        for entry in replayed.entries:
            digest = hashlib.sha256(data[entry.start : entry.stop]).digest()
            value = hashlib.sha256(value + digest).digest()

    def cached() -> None:
        found = known[hashlib.sha256(data).hexdigest(), Alg.SHA256]
        event_log.verify(found, quoted=quoted)

    least = best_seconds(floor, number=40) * 1e3
    whole = best_seconds(lambda: event_log.replay(event_log.parse(data), Alg.SHA256), number=40) * 1e3
    yield Measurement(
        name="event-log-50k",
        value=whole,
        unit="ms",
        floor=least,
        ratio=whole / least,
        bar="<= 3 ms",
        ok=whole <= 3,
        note=f"{len(data)} bytes, {events} events, parsed and replayed; floor: hashing their data and extending",
    )
    digest = best_seconds(lambda: hashlib.sha256(data).hexdigest()) * 1e3
    again = best_seconds(cached) * 1e3
    yield Measurement(
        name="event-log-cached",
        value=again,
        unit="ms",
        floor=digest,
        ratio=again / digest,
        bar="<= 0.1 ms",
        ok=again <= 0.1,
        note="the same log with the next quote: its SHA-256, and 15 PCRs compared; floor: its SHA-256",
    )
