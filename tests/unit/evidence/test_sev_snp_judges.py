"""Others judge the same reports: omne-attest, sev-snp-measure, and a second reader written from the table alone."""

from __future__ import annotations

import hashlib
import uuid
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import omne_attest
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from sevsnpmeasure.guest import snp_calc_launch_digest

from attestation import tee_bundle
from attestation.appraisal.sev_snp.judge import judge_claims
from attestation.endorsements.amd import Endorsements
from attestation.endorsements.amd.products import Product
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence import sev_snp
from attestation.reference import IDENTITY_ONLY
from attestation.reference.confidential import SevSnpRules
from attestation.reference.rules import Demand
from attestation.results import Subject
from attestation.wire import pem_block
from attestation_testing.tee.amd import Pki, Processor
from tests.unit.evidence.test_sev_snp_vectors import members
from tests.vectors.confidential import needs_vectors, vector

AT = datetime(2026, 11, 23, tzinfo=UTC)
LINES = tee_bundle.load().amd


def ours(sent: dict[str, bytes], lines: Endorsements) -> bool:
    """Say whether we call it authentic, over its own report data."""
    evidence = sev_snp.parse(sent)
    try:
        sev_snp.verify(evidence, endorsements=lines, report_data=evidence.report.report_data, at=AT)
    except HardwareEvidenceRejected:
        return False
    return True


def theirs(sent: dict[str, bytes], product: Product) -> bool:
    """Say whether omne-attest does, under the same pinned certificates."""
    line = LINES[product]
    policy = omne_attest.Policy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the serial number 0, which this judge minds
            omne_attest.verify(
                sent["report"],
                sent["vek"],
                line.ask.der,
                line.ark.der,
                hashlib.sha256(line.ark.der).digest(),
                policy,
            )
    except omne_attest.Fail:
        return False
    return True


@needs_vectors
@pytest.mark.parametrize(
    ("name", "product"), [("snp-milan-v2", Product.MILAN), ("snp-genoa-v5", Product.GENOA)]
)
def test_another_verifier_agrees(name: str, product: Product) -> None:
    """On a genuine report, and on the same with a flipped bit in each of its parts."""
    sent = members(vector(name))
    known = Endorsements(lines=LINES)
    assert ours(sent, known) is theirs(sent, product) is True
    for place in (0x050, 0x090, 0x1A0, 0x2A0, 0x2E8):
        changed = bytearray(sent["report"])
        changed[place] ^= 1
        wrong = {**sent, "report": bytes(changed)}
        assert ours(wrong, known) is theirs(wrong, product) is False


def second_reader(report: bytes, vek: bytes) -> dict[str, object]:
    """Read a Turin report from the table of CONFIDENTIAL.md §8.1, apart from the reader that it judges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the serial number 0
        key = x509.load_der_x509_certificate(vek).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    r = int.from_bytes(report[0x2A0:0x2E8], "little")
    s = int.from_bytes(report[0x2E8:0x330], "little")
    key.verify(encode_dss_signature(r, s), report[:0x2A0], ec.ECDSA(hashes.SHA384()))
    fmc, bootloader, tee, snp = report[0x180:0x184]
    return {
        "version": int.from_bytes(report[0:4], "little"),
        "chip_id": report[0x1A0:0x1A8].hex(),
        "reported_tcb": {
            "fmc": fmc,
            "bootloader": bootloader,
            "tee": tee,
            "snp": snp,
            "microcode": report[0x187],
        },
        "measurement": report[0x090:0x0C0].hex(),
        "host_data": report[0x0C0:0x0E0].hex(),
        "policy": int.from_bytes(report[0x008:0x010], "little"),
        "platform_info": int.from_bytes(report[0x040:0x048], "little"),
        "guest_svn": int.from_bytes(report[0x004:0x008], "little"),
    }


@needs_vectors
def test_a_second_reader_agrees_on_a_genuine_turin() -> None:
    """Which most verifiers do not know yet: FMC in the TCB, a chip id of 8 bytes."""
    sent = members(vector("snp-turin-v5"))
    vek = pem_block(sent["vek"], "VEK", "CERTIFICATE")
    evidence = sev_snp.parse(sent)
    claims = sev_snp.verify(
        evidence, endorsements=Endorsements(lines=LINES), report_data=evidence.report.report_data, at=AT
    )
    from attestation.appraisal.sev_snp.kind import state_of

    told = second_reader(sent["report"], vek)
    state = state_of(claims)
    assert {name: state[name] for name in told} == told


def test_a_second_reader_agrees_on_turins_of_the_kit() -> None:
    """Of each version; by VLEK too, which no genuine Turin of ours has."""
    for version in (3, 4, 5):
        made = Processor(pki=Pki(Product.TURIN), csp_id="cc-eu.example" if version == 4 else None)
        report = made.report(bytes(range(64)), version=version)
        found = second_reader(report, made.vek)
        assert found["version"] == version
        evidence = sev_snp.parse({"report": report, "vek": made.vek})
        claims = sev_snp.verify(
            evidence, endorsements=made.endorsements(), report_data=bytes(range(64)), at=AT
        )
        assert claims.reported.components() == found["reported_tcb"]


def firmware(path: Path) -> Path:
    """Write the smallest image that the tool takes for OVMF: a table at its end with the reset block alone."""

    def entry(guid: str, data: bytes) -> bytes:
        return data + (len(data) + 18).to_bytes(2, "little") + uuid.UUID(guid).bytes_le

    table = entry("00f771de-1a7e-4fcb-890e-68c77e2fb44e", (0x80B004).to_bytes(4, "little"))
    footer = (len(table) + 18).to_bytes(2, "little")
    footer += uuid.UUID("96b582de-1fb2-45f7-baea-a366c55a082d").bytes_le
    end = table + footer + bytes(32)
    path.write_bytes(bytes(8192 - len(end)) + end)
    return path


def test_a_launch_digest_of_its_own_tool_is_a_reference_value(tmp_path: Path) -> None:
    """What `sev-snp-measure` computes of an image is what a policy names, in the same order of bytes."""
    image = str(firmware(tmp_path / "ovmf.fd"))
    digest = snp_calc_launch_digest(1, 0x800F12, image, "", "", "", 0x1, "")
    other = snp_calc_launch_digest(2, 0x800F12, image, "", "", "", 0x1, "")
    assert len(digest) == 48
    assert digest != other
    made = Processor(pki=Pki())
    rules = SevSnpRules(measurement=Demand(frozenset({digest}), report=False))
    policy = replace(IDENTITY_ONLY, blocks={"sev_snp": rules})
    for launched, subjects in ((digest, (Subject.LAUNCH,)), (other, ())):
        evidence = sev_snp.parse({"report": made.report(bytes(64), measurement=launched), "vek": made.vek})
        claims = sev_snp.verify(evidence, endorsements=made.endorsements(), report_data=bytes(64), at=AT)
        assert judge_claims(claims, policy)[1] == subjects
