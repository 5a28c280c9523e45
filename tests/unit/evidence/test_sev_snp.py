"""Whether a report is authentic: each check of CONFIDENTIAL.md §8.3 fails alone, and no flipped bit is accepted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from attestation.endorsements.amd import Endorsements, Product
from attestation.errors import EndorsementMissing, HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence import sev_snp
from attestation.evidence.sev_snp import SevSnpClaims, wanted
from attestation.results import Undecided
from attestation_testing.tee import x509
from attestation_testing.tee.amd import Pki, Processor
from tests.vectors.confidential import checks_by_name

LONG = os.environ.get("TESTS_LONG") == "1"
AT = datetime(2026, 11, 23, tzinfo=UTC)
DATA = bytes(range(64))
MILAN, GENOA, TURIN = (Processor(pki=Pki(product)) for product in Product)
VLEK = Processor(pki=Pki(Product.GENOA), csp_id="cc-eu.example")


def verify(
    report: bytes,
    processor: Processor = GENOA,
    *,
    data: bytes = DATA,
    endorsements: Endorsements | None = None,
    **members: bytes,
) -> SevSnpClaims:
    """Verify a report with the VEK of *processor*, or with other members."""
    sent = {"report": report, **(members or {"vek": processor.vek})}
    known = endorsements or processor.endorsements()
    return sev_snp.verify(sev_snp.parse(sent), endorsements=known, report_data=data, at=AT)


def codes(call: Callable[[], Any]) -> list[str]:
    """Return the codes with which *call* is refused, each once."""
    with pytest.raises(HardwareEvidenceRejected) as refused:
        call()
    known = checks_by_name()
    return sorted({str(known[each.check].code) for each in refused.value.failed})


@pytest.mark.parametrize(
    ("processor", "version"),
    [
        (processor, version)
        for processor in (MILAN, GENOA, TURIN, VLEK)
        for version in (2, 3, 4, 5)
        if (processor, version) != (TURIN, 2)  # which does not exist
    ],
)
def test_a_good_report(processor: Processor, version: int) -> None:
    """Of each line and version, by VCEK and VLEK, with the VEK sent, in the host's table, or kept."""
    vectors = {"launch_mit_vector": 3} if version == 5 else {}
    report = processor.report(DATA, version=version, **vectors)
    for claims in (
        verify(report, processor),
        verify(report, processor, cert_table=processor.cert_table()),
        verify(report, processor, cert_table=b"", endorsements=processor.endorsements(with_vek=True)),
    ):
        assert claims.product is processor.pki.product
        assert claims.chip == (b"" if processor is VLEK else processor.chip_id)
        assert claims.reported == claims.committed == claims.current == claims.launch == claims.vek.tcb
        assert claims.test_only
        assert claims.report.launch_mit_vector == (3 if version == 5 else 0)


REPORT = ["report-invalid"]
FORM: dict[str, dict[str, Any]] = {
    "version 1": {"version": 1},
    "version 6": {"version": 6},
    "another algorithm": {"signature_algo": 2},
    "VMPL 4": {"vmpl": 4},
    "bit 17 of POLICY clear": {"policy": 0x10000},
    "a reserved bit of POLICY": {"policy": 0x30000 | 1 << 26},
    "a reserved bit of 0x048": {"flags": 1 << 5},
    "no signing key": {"signing_key": 7},
    "0x04C": {"patch": {0x04C: b"\x01"}},
    "0x18B": {"patch": {0x18B: b"\x01"}},
    "0x19F": {"patch": {0x19F: b"\x01"}},
    "0x1EB": {"patch": {0x1EB: b"\x01"}},
    "0x1EF": {"patch": {0x1EF: b"\x01"}},
    "0x208": {"patch": {0x208: b"\x01"}},
    "0x29F": {"patch": {0x29F: b"\x01"}},
    "a mitigation vector before version 5": {"version": 4, "launch_mit_vector": 1},
    "another before version 5": {"version": 4, "current_mit_vector": 1},
    "CPUID in version 2": {"version": 2, "patch": {0x189: b"\x11"}},
    "what is no component of a TCB": {"launch_tcb": bytes([10, 1, 1, 0, 0, 0, 27, 217])},
}


@pytest.mark.threat("T190")
@pytest.mark.parametrize("wrong", FORM)
def test_a_report_of_another_form(wrong: str) -> None:
    """Signed by the right key, and still refused: nobody knows what it would mean."""
    found = codes(lambda: verify(GENOA.report(DATA, **FORM[wrong])))
    # Version 1 has no CPUID, and another signing key needs another certificate: that is told beside it.
    assert set(found) - {"chain-invalid", "platform-unsupported"} == set(REPORT)


@pytest.mark.threat("T190")
def test_padding_that_is_not_signed_is_zero() -> None:
    """Behind R, behind S, and to the end."""
    report = GENOA.report(DATA)
    for at in (0x2A0 + 48, 0x2A0 + 71, 0x2E8 + 48, 0x2E8 + 71, 0x330, 1183):
        changed = bytearray(report)
        changed[at] = 1
        assert codes(partial(verify, bytes(changed))) == (
            REPORT if at >= 0x330 else [*REPORT, "signature-invalid"]
        )


def test_a_processor_that_was_told_not_to_sign() -> None:
    """MASK_CHIP_KEY and no signature: there is nothing to believe. With one it is told, and counts."""
    unsigned = GENOA.report(DATA, flags=2)[:0x2A0] + bytes(512)
    assert codes(lambda: verify(unsigned)) == [*REPORT, "signature-invalid"]
    assert verify(GENOA.report(DATA, flags=2)).report.mask_chip_key


@pytest.mark.threat("T190")
def test_lines_that_do_not_fit() -> None:
    """Unknown by CPUID, that of another VEK, or not pinned."""
    unsupported = ["platform-unsupported"]
    assert codes(lambda: verify(GENOA.report(DATA, cpuid=(0x1A, 0x50, 0)))) == unsupported
    assert codes(lambda: verify(GENOA.report(DATA, cpuid=(0x19, 0x01, 0)))) == unsupported
    assert codes(lambda: verify(GENOA.report(DATA), endorsements=MILAN.endorsements())) == unsupported


CHAIN = ["chain-invalid"]


@pytest.mark.threat("T190")
def test_a_vek_that_nobody_vouches_for() -> None:
    """Malformed, by another issuer, of a VLEK, of another chip, for another TCB; by another key also the signature."""
    report = GENOA.report(DATA)
    newer = replace(GENOA, tcb=GENOA.tcb | {"snp": 28})
    other = replace(GENOA, seed="other")
    assert codes(lambda: verify(report, vek=b"\x30\x00")) == CHAIN
    assert codes(lambda: verify(report, vek=GENOA.certificate(issuer=GENOA.pki.names("x")))) == CHAIN
    for_another_tcb = newer.certificate(key=GENOA.key)
    assert codes(lambda: verify(report, vek=for_another_tcb)) == CHAIN
    of_another_chip = other.certificate(key=GENOA.key)
    assert codes(lambda: verify(report, vek=of_another_chip)) == CHAIN
    assert codes(lambda: verify(report, vek=other.vek)) == [*CHAIN, "signature-invalid"]
    assert codes(lambda: verify(report, vek=VLEK.certificate(key=GENOA.key))) == [*CHAIN, *REPORT]
    of_a_vlek = VLEK.report(DATA)
    assert codes(lambda: verify(of_a_vlek, vek=GENOA.certificate(key=VLEK.key))) == CHAIN


def test_a_chip_id_beside_a_vlek_or_longer_than_the_line_has_it() -> None:
    """Nothing hides there."""
    assert codes(lambda: verify(VLEK.report(DATA, chip_id=GENOA.chip_id), VLEK)) == REPORT
    longer = TURIN.chip_id + bytes(55) + b"\x01"
    assert codes(lambda: verify(TURIN.report(DATA, chip_id=longer), TURIN)) == REPORT


def test_a_masked_chip_is_told() -> None:
    """The VCEK still proves an AMD processor; which one it is is nobody's word."""
    assert verify(GENOA.report(DATA, chip_id=bytes(64))).chip == b""


def test_signatures_that_are_none() -> None:
    """Numbers that are no signature, another key, a key of another kind."""
    report = GENOA.report(DATA)
    order = int("f" * 48 + "c7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
    for r, s in ((0, 1), (1, 0), (order, 1), (1, order), (1, 1)):
        signature = r.to_bytes(72, "little") + s.to_bytes(72, "little")
        sent = report[:0x2A0] + signature + bytes(368)
        assert codes(partial(verify, sent)) == ["signature-invalid"]
    rsa = GENOA.certificate(key=x509.rsa_key(1))
    assert codes(lambda: verify(report, vek=rsa)) == [*CHAIN, "signature-invalid"]


def test_report_data_of_somebody_else() -> None:
    """A relayed or replayed report."""
    assert codes(lambda: verify(GENOA.report(DATA), data=bytes(64))) == ["binding-mismatch"]


def test_everything_that_is_wrong_is_told() -> None:
    """Form, chain, signature and binding together."""
    report = replace(GENOA, seed="other").report(DATA, vmpl=9)
    assert codes(lambda: verify(report, data=bytes(64))) == [
        "binding-mismatch",
        "chain-invalid",
        "report-invalid",
        "signature-invalid",
    ]


@pytest.mark.threat("T209")
def test_without_a_vek_nothing_can_be_said() -> None:
    """Undecided, and the item is named; what is wrong by itself is refused all the same."""
    for processor, words in (
        (GENOA, f"Genoa {GENOA.chip_id.hex()[:16]}"),
        (VLEK, "came neither"),
    ):
        with pytest.raises(EndorsementMissing) as missing:
            verify(processor.report(DATA), processor, cert_table=bytes(24))
        (outcome,) = missing.value.undecided
        assert isinstance(outcome, Undecided)
        assert words in outcome.reason
    assert codes(lambda: verify(GENOA.report(DATA, vmpl=4), cert_table=bytes(24))) == REPORT


def test_what_a_cache_is_asked_for() -> None:
    """The VCEK of chip and reported TCB; nothing where it came, of a VLEK, of a masked chip, or of an unknown line."""
    for processor in (GENOA, TURIN):
        key = wanted(sev_snp.parse({"report": processor.report(DATA)}))
        assert key is not None
        assert key.product is processor.pki.product
        assert key.hwid == processor.chip_id.hex()
    sent = {"report": GENOA.report(DATA), "vek": GENOA.vek}
    assert wanted(sev_snp.parse(sent)) is None
    for report in (
        VLEK.report(DATA),
        GENOA.report(DATA, chip_id=bytes(64)),
        GENOA.report(DATA, version=2),
    ):
        assert wanted(sev_snp.parse({"report": report})) is None


@pytest.mark.parametrize("size", [0, 1183, 1185])
def test_only_the_length_is_malformed(size: int) -> None:
    """All else of a report is judged."""
    with pytest.raises(MalformedEvidence):
        sev_snp.parse({"report": bytes(size)})
    sev_snp.parse({"report": bytes(1184)})


@pytest.mark.threat("T190")
@pytest.mark.parametrize("processor", [GENOA, TURIN], ids=["genoa", "turin"])
def test_no_flipped_bit_is_accepted(processor: Processor) -> None:
    """Of what is signed, the signature, and what is not signed and must be zero; the code says where."""
    report = processor.report(DATA, version=5)
    # One bit of each byte; every bit where there is time.
    for place in range(len(report) * 8) if LONG else range(0, len(report) * 8, 9):
        data = bytearray(report)
        data[place // 8] ^= 1 << place % 8
        found = codes(partial(verify, bytes(data), processor))
        if place // 8 < 0x2A0:
            assert "signature-invalid" in found
            assert ("binding-mismatch" in found) is (0x50 <= place // 8 < 0x90)
        else:
            assert found == REPORT if place // 8 >= 0x330 else "signature-invalid" in found
