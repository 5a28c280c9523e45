"""Real event logs: what they must parse to, where they must lead, and what must be said of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from attestation.errors import EventLogRejected, MalformedEvidence
from attestation.evidence import event_log
from attestation.evidence.event_log import ReplayedLog, UnverifiedEventLog
from attestation.tpm import Alg, bank_alg, bank_name
from tests.vectors import SHARED, needs_shared

FOLDER = SHARED / "eventlog"
pytestmark = needs_shared


def _logs() -> list[dict[str, Any]]:
    path = FOLDER / "expected.json"
    logs = json.loads(path.read_text())["logs"] if path.exists() else []
    return [log for log in logs if log.get("format") != "ima"]


LOGS = _logs()
GOOD = [log for log in LOGS if log["result"] == "parses"]
QUOTED = [log for log in GOOD if log["group"] == "ovmf"]


def ids(log: dict[str, Any]) -> str:
    return str(log["id"])


def parsed(expected: dict[str, Any]) -> UnverifiedEventLog:
    return event_log.parse((FOLDER / expected["file"]).read_bytes())


def replayed(expected: dict[str, Any], bank: str) -> ReplayedLog:
    return event_log.replay(parsed(expected), bank_alg(bank))


def banks(expected: dict[str, Any]) -> list[str]:
    """The banks in which every event has a digest, and whose hash we compute."""
    log = parsed(expected)
    return [
        bank_name(bank)
        for column, bank in enumerate(log.banks)
        if bank != Alg.SM3_256 and all(r.digests[column] for r in log.records if len(r.digests) > column)
    ]


def test_there_are_logs() -> None:
    """All 39 logs are looked at, four of them lists of IMA."""
    assert len(LOGS) == 35


@pytest.mark.parametrize("expected", [log for log in LOGS if log["result"] != "parses"], ids=ids)
def test_what_is_malformed_is_refused_with_the_typed_error(expected: dict[str, Any]) -> None:
    """A log that cannot be read gives MalformedEvidence."""
    with pytest.raises(MalformedEvidence):
        parsed(expected)


@pytest.mark.parametrize("expected", GOOD, ids=ids)
def test_every_event_is_read(expected: dict[str, Any]) -> None:
    """Number, PCR, type, digests and data of every event are as listed by another reader."""
    log = parsed(expected)
    names = [bank_name(bank) for bank in log.banks]
    assert (names, len(log.records)) == (expected["banks"], expected["events"])
    spec_id = expected.get("spec_id")
    assert (log.spec_id is None) == (spec_id is None)
    if log.spec_id is not None and spec_id is not None:
        assert log.spec_id.platform_class == spec_id["platform_class"]
        assert ".".join(map(str, log.spec_id.version)) == spec_id["version"]
        assert (log.spec_id.errata, log.spec_id.uintn_size) == (spec_id["errata"], spec_id["uintn_size"])
        assert log.spec_id.vendor_info.hex() == spec_id["vendor_info"]
    listing = hashlib.sha256()
    for i, record in enumerate(log.records):
        data = log.data[record.start : record.stop]
        of = ["sha1"] if i == 0 else names
        digests = sorted(f"{n}:{d.hex()}" for n, d in zip(of, record.digests, strict=True) if d)
        line = f"{i} {record.pcr} 0x{record.event_type:08x} {','.join(digests)} {len(data)}"
        listing.update(f"{line} {hashlib.sha256(data).hexdigest()}\n".encode())
    assert listing.hexdigest() == expected["listing_sha256"]


@pytest.mark.parametrize("expected", GOOD, ids=ids)
def test_every_bank_leads_to_the_expected_pcrs(expected: dict[str, Any]) -> None:
    """The PCRs after the log, in each bank that it can be replayed in; all others at their start value."""
    for bank in banks(expected):
        replay = replayed(expected, bank)
        found = {str(pcr): replay.values[pcr].hex() for pcr in sorted(replay.extended)}
        assert found == expected["pcrs"][bank]
        for pcr in set(range(24)) - replay.extended - {0}:
            assert set(replay.values[pcr]) == ({255} if 17 <= pcr <= 22 else {0})
        locality = expected["startup_locality"]
        hcrtm = expected["hcrtm_event"] is not None
        assert replay.startup_locality == (4 if hcrtm else locality["locality"] if locality else None)


@pytest.mark.parametrize("expected", GOOD, ids=ids)
def test_secure_boot_is_as_expected(expected: dict[str, Any]) -> None:
    """State, variables with their lengths, authorities, setup mode."""
    for bank in banks(expected):
        state = replayed(expected, bank).secure_boot
        want = expected["secure_boot"]
        assert state.measured == want["state"]
        assert dict(state.variables) == want["variables"]
        assert list(state.authority_names) == want["authority_events"]
        assert state.setup_mode == want.get("setup_mode", False)
        assert (state.enabled is False) == (want["state"] == "off")
        for name in ("PK", "KEK", "db", "dbx"):
            assert bool(state.database(name).entries) == bool(want["variables"].get(name))


@pytest.mark.parametrize("expected", GOOD, ids=ids)
def test_anomalies_are_found(expected: dict[str, Any]) -> None:
    """Exactly the anomalies that another reader found, no fault but in the fragments.

    Two differences: a fragment lacks separators and more, which is said once there; and ACPI tables under
    EV_PLATFORM_CONFIG_FLAGS or EV_TABLE_OF_DEVICES, whose digest should be of the data, are found here.
    """
    want = {a["code"] for a in expected["anomalies"]}
    fragment = "fragment" in want
    for bank in banks(expected):
        findings = [
            f
            for f in replayed(expected, bank).findings
            if not (f.code == "digest-not-of-event-data" and f.pcr == 1)
        ]
        found = {f.code for f in findings}
        if fragment:
            found -= {"separators-missing", "exit-boot-services-missing", "digest-missing"}
        assert found == want - {"fragment"}
        assert fragment or not any(f.fault for f in findings)


@pytest.mark.parametrize("expected", QUOTED, ids=ids)
def test_own_boots_lead_to_the_quoted_pcrs(expected: dict[str, Any]) -> None:
    """Every boot of real firmware leads to all the PCRs that its TPM held, without repairs."""
    for bank in set(expected["banks"]) - {"sha1"}:
        quoted = {int(i): bytes.fromhex(v) for i, v in expected["recorded_pcrs"][bank].items()}
        claims = event_log.verify(replayed(expected, bank), quoted=quoted)
        assert claims.pcrs == frozenset(quoted) - {10}
        assert (claims.repairs, claims.phases) == ((), ())


@pytest.mark.parametrize("expected", [log for log in GOOD if log["group"] != "ovmf"], ids=ids)
def test_sha1_is_never_evidence(expected: dict[str, Any]) -> None:
    """A log in the SHA-1 format, or replayed in the SHA-1 bank, is refused although it leads there."""
    if "sha1" in expected["banks"]:
        replay = replayed(expected, "sha1")
        with pytest.raises(EventLogRejected, match="SHA-1"):
            event_log.verify(replay, quoted=dict(replay.values))
