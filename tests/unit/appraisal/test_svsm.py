"""vTPMs of an SVSM: the report must be over our challenge and the machine's own EK, at VMPL 0."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.appraisal.confidential import Approved, Expected
from attestation.appraisal.svsm import SVSM
from attestation.errors import EndorsementMissing, HardwareEvidenceRejected, MalformedEvidence
from attestation.reference import IDENTITY_ONLY
from attestation.reference.confidential import SevSnpRules
from attestation.reference.rules import Demand
from attestation.results import Failed, Flagged, Passed, Subject
from attestation.wire import b64encode
from attestation_testing.tee.amd import MEASUREMENT, Pki, Processor
from tests.vectors import forge

AT = datetime(2026, 11, 23, tzinfo=UTC)
DATA = bytes(range(64))
HOST = Processor(pki=Pki())
EK, OTHER = forge.ek_public("L-2"), forge.ek_public("L-1")


def expected(**changed: Any) -> Expected:
    known = Expected(
        at=AT,
        report_data=DATA,
        endorsements=HOST.endorsements(with_vek=True),
        approved=Approved(chip=HOST.chip_id),
        nonce=forge.NONCE,
        ek_public=EK,
    )
    return replace(known, **changed)


def item(ek: bytes = EK, data: bytes = DATA, **report: Any) -> dict[str, str]:
    """Return evidence of a module with a vTPM of *ek*."""
    said = HOST.report(hashlib.sha512(data + ek[2:]).digest(), **report)
    return {"report": b64encode(said), "manifest": b64encode(ek[2:])}


def refused(sent: dict[str, str], compared: Expected) -> list[str]:
    with pytest.raises(HardwareEvidenceRejected) as error:
        SVSM.verify(SVSM.parse(sent), compared)
    return [each.check for each in error.value.failed]


def test_the_vtpm_of_the_machine() -> None:
    """It is judged as the report is, by the block `sev_snp`."""
    compared, sent = expected(), SVSM.parse(item())
    assert sent.kind == "sev_snp"
    claims = SVSM.verify(sent, compared)
    followed, found = SVSM.follow(claims, compared, None)
    assert [type(each) for each in followed] == [Passed]
    assert found.state["measurement"] == MEASUREMENT.hex()
    assert SVSM.alike(found, IDENTITY_ONLY) == SVSM.alike(found, IDENTITY_ONLY)
    assert SVSM.answers(claims) == SVSM.answers(None) == {"sev_snp"}
    assert SVSM.hardware(claims).chip == HOST.chip_id
    stated = replace(
        IDENTITY_ONLY, blocks={"sev_snp": SevSnpRules(measurement=Demand(frozenset({MEASUREMENT}), False))}
    )
    outcomes, subjects = SVSM.judge(claims, sent, compared, stated)
    assert subjects == (Subject.LAUNCH,)
    assert not any(isinstance(each, Failed) for each in outcomes)
    # Any guest that starts at VMPL 0 can have such a report: without a reference value nothing is said of the module.
    outcomes, subjects = SVSM.judge(claims, sent, compared, IDENTITY_ONLY)
    assert subjects == ()
    assert "snp-launch" in [each.check for each in outcomes if isinstance(each, Flagged)]
    debug = SVSM.verify(SVSM.parse(item(policy=0xB0000)), compared)
    failed = [
        each.check for each in SVSM.judge(debug, sent, compared, IDENTITY_ONLY)[0] if isinstance(each, Failed)
    ]
    assert failed == ["snp-debug", "snp-memory"]


@pytest.mark.threat("T197")
def test_the_vtpm_of_another_machine() -> None:
    """A genuine report over another EK; or a machine of which no EK is known."""
    assert refused(item(OTHER), expected()) == ["svsm-endorsement-key"]
    assert refused(item(), expected(ek_public=OTHER)) == ["svsm-endorsement-key"]
    assert refused(item(), expected(ek_public=None)) == ["svsm-endorsement-key"]


@pytest.mark.threat("T197")
def test_a_report_over_something_else() -> None:
    """Another challenge, another manifest than was reported, one without the manifest: all that is wrong is told."""
    assert refused(item(data=bytes(64)), expected()) == ["snp-report-data"]
    swapped = item(OTHER) | {"manifest": item()["manifest"]}
    assert refused(swapped, expected()) == ["snp-report-data"]
    plain = item() | {"report": b64encode(HOST.report(DATA))}
    assert refused(plain, expected()) == ["snp-report-data"]
    assert refused(item(OTHER, bytes(64)), expected()) == ["snp-report-data", "svsm-endorsement-key"]


@pytest.mark.threat("T197")
@pytest.mark.parametrize("vmpl", [1, 2, 3])
def test_the_operating_system_speaks_for_itself(vmpl: int) -> None:
    """Above VMPL 0 whoever asked for the report is not the module, so it says nothing of a vTPM."""
    assert refused(item(vmpl=vmpl), expected()) == ["svsm-vmpl"]


def test_nobody_vouches_for_the_key_yet() -> None:
    """Undecided; unless it is of another machine, which needs no certificate to be seen."""
    compared = expected(endorsements=HOST.endorsements())
    with pytest.raises(EndorsementMissing):
        SVSM.verify(SVSM.parse(item()), compared)
    claims = SVSM.verify(SVSM.parse(item() | {"vek": b64encode(HOST.vek)}), compared)
    assert claims.chip == HOST.chip_id


@pytest.mark.parametrize(
    "manifest",
    [b"", b"\x00", EK, EK[2:] + b"\x00", EK[2:-1], bytes(2049), EK[2:-1] + bytes([EK[-1] ^ 1])],
    ids=lambda m: str(len(m)),
)
def test_what_is_no_manifest(manifest: bytes) -> None:
    """TPMT_PUBLIC of a key that is one, and nothing else."""
    with pytest.raises(MalformedEvidence):
        SVSM.parse(item() | {"manifest": b64encode(manifest)})
