"""Whether a report is one of a genuine processor, over our report data (CONFIDENTIAL.md §8.3, steps 1 to 9).

Numbered checks:
1. form: version, algorithm, zero ranges, bit 17 of POLICY → `report-invalid`
2. signed by VCEK or VLEK, and signed at all → `report-invalid`
3. line of the processor, by CPUID (version 2: by the VEK), equal to that of the VEK → `platform-unsupported`
4. a VEK: of the evidence, else of its table, else one that was kept; none: the kind stays undecided
5. VEK ← pinned ASK or ASVK ← pinned ARK, at the instant → `chain-invalid`
6. withdrawn intermediates: only told here, `SevSnpClaims.revocation`; a policy says what follows
7. HWID = CHIP_ID, TCB of the VEK = REPORTED_TCB → `chain-invalid`
8. ECDSA over 672 bytes → `signature-invalid`
9. REPORT_DATA → `binding-mismatch`

All that can be checked is, and what failed is told together.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.endorsements.amd import (
    TCB,
    VEK,
    CertTable,
    Endorsements,
    Product,
    VEKKey,
    parse_cert_table,
    parse_tcb,
    parse_vek,
    verify_vek,
)
from attestation.endorsements.amd.products import product_of
from attestation.endorsements.amd.tcb import reserved_bits
from attestation.endorsements.revocation import RevocationStatus
from attestation.errors import (
    EndorsementMissing,
    HardwareEvidenceRejected,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.evidence.sev_snp.report import SIGNED_BYTES, Report, SigningKey, parse_report
from attestation.results import Check, Code, Failed, TrustClaim

_HARDWARE: Final = TrustClaim.HARDWARE
REPORT: Final = Check(name="snp-report", claim=_HARDWARE, if_failed=99, if_passed=2, code=Code.REPORT_INVALID)
PLATFORM: Final = Check(name="snp-platform", claim=_HARDWARE, if_failed=97, code=Code.PLATFORM_UNSUPPORTED)
CHAIN: Final = Check(name="snp-chain", claim=_HARDWARE, if_failed=99, code=Code.CHAIN_INVALID)
SIGNATURE: Final = Check(name="snp-signature", claim=_HARDWARE, if_failed=99, code=Code.SIGNATURE_INVALID)
BINDING: Final = Check(
    name="snp-report-data", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH
)
VEK_CHECK: Final = Check(name="snp-vek", claim=_HARDWARE, if_failed=99, code=Code.COLLATERAL_UNAVAILABLE)
AUTHENTICITY: Final = (REPORT, PLATFORM, CHAIN, SIGNATURE, BINDING, VEK_CHECK)

_P384_ORDER: Final = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedSevSnp:
    """A report and what came with it, unverified.

    Args:
        raw: The report, 1184 bytes.
        report: The same, read.
        vek: A certificate of the signing key, DER, from the evidence or its table; None where none came.
    """

    raw: bytes
    report: Report
    vek: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SevSnpClaims:
    """What a report proves.

    Args:
        report: Every field.
        product: The line of the processor.
        vek: The certificate of the key that signed.
        reported, committed, current, launch: TCBs, read for the line.
        revocation: What lists say of the intermediate.
        test_only: The pinned certificates are of a test kit.
    """

    report: Report
    product: Product
    vek: VEK
    reported: TCB
    committed: TCB
    current: TCB
    launch: TCB
    revocation: RevocationStatus
    test_only: bool

    @property
    def chip(self) -> bytes:
        """CHIP_ID, 64 bytes (Turin 8); empty where it is masked or a VLEK signed."""
        chip = self.report.chip_id[: self.product.hwid_bytes]
        return chip if any(chip) else b""


def parse(members: Mapping[str, bytes]) -> UnverifiedSevSnp:
    """Read the members `report`, `cert_table` and `vek` of an item; only `report` must be there.

    A VEK that is sent by itself is used, else that of the table.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    report = parse_report(members["report"])
    table = parse_cert_table(members["cert_table"]) if "cert_table" in members else CertTable(None, None)
    of_table = table.vlek if report.signing_key == SigningKey.VLEK else table.vcek
    return UnverifiedSevSnp(raw=members["report"], report=report, vek=members.get("vek") or of_table)


def wanted(evidence: UnverifiedSevSnp) -> VEKKey | None:
    """Return what names the VCEK that a cache should be asked for; None where it came, or none can be had.

    Version 2 does not say its line: such reports are of Milan or Genoa, and their guests bring the VEK.
    """
    report = evidence.report
    product = product_of(report.cpuid_family, report.cpuid_model)
    if evidence.vek is not None or product is None or report.signing_key != SigningKey.VCEK:
        return None
    chip = report.chip_id[: product.hwid_bytes]
    return VEKKey(product, chip.hex(), parse_tcb(report.reported_tcb, product)) if any(chip) else None


def verify(
    evidence: UnverifiedSevSnp, *, endorsements: Endorsements, report_data: bytes, at: datetime
) -> SevSnpClaims:
    """Return what the report proves.

    Args:
        evidence: What came.
        endorsements: What vouches for the signing key.
        report_data: The 64 bytes that it must carry.
        at: The instant to judge at, UTC.

    Raises:
        HardwareEvidenceRejected: With every check of the list above that failed.
        EndorsementMissing: No VEK is at hand, and nothing else is wrong.
    """
    report = evidence.report
    failed = [REPORT.failed(expected, found) for expected, found in report.faults()]
    known = product_of(report.cpuid_family, report.cpuid_model)
    if report.version != 2 and known is None:
        cpuid = f"CPUID family {report.cpuid_family:#x}, model {report.cpuid_model:#x}"
        failed.append(PLATFORM.failed("a processor of Milan, Genoa or Turin", cpuid))
    if not hmac.compare_digest(report.report_data, report_data):
        failed.append(
            BINDING.failed("report data over this challenge, machine and key", report.report_data.hex())
        )
    certificate = evidence.vek or endorsements.vek
    if certificate is None:
        if failed:
            raise HardwareEvidenceRejected(failed)
        raise EndorsementMissing([VEK_CHECK.undecided(_missing(evidence))])
    try:
        vek = parse_vek(certificate)
    except MalformedEvidence as e:
        raise HardwareEvidenceRejected(
            [*failed, CHAIN.failed("the certificate of a signing key", str(e))]
        ) from e
    product = vek.product
    if report.version != 2 and known is not None and known is not product:
        failed.append(PLATFORM.failed(f"a VEK of {known}", f"one of {product}"))
    line = endorsements.lines.get(product)
    if line is None:
        failed.append(PLATFORM.failed("a line whose certificates are pinned", product.value))
        raise HardwareEvidenceRejected(failed)
    failed += _chain(report, vek, verify_vek(vek, line, at))
    failed += _signature(evidence, vek)
    tcbs = (report.reported_tcb, report.committed_tcb, report.current_tcb, report.launch_tcb)
    if any(reserved_bits(tcb, product) for tcb in tcbs):
        failed.append(REPORT.failed("zero: what is no component of a TCB", "bits that are set"))
    if failed:
        raise HardwareEvidenceRejected(failed)
    reported, committed, current, launch = (parse_tcb(tcb, product) for tcb in tcbs)
    return SevSnpClaims(
        report=report,
        product=product,
        vek=vek,
        reported=reported,
        committed=committed,
        current=current,
        launch=launch,
        revocation=endorsements.crls.status(line.asvk if vek.is_vlek else line.ask, line.ark, at),
        test_only=line.is_for_tests,
    )


def _missing(evidence: UnverifiedSevSnp) -> str:
    key = wanted(evidence)
    if key is None:
        return "the certificate of the key that signed came neither with the report nor in its table"
    return f"the VCEK of {key.product} {key.hwid[:16]}… at {key.tcb} is neither sent nor kept"


def _chain(report: Report, vek: VEK, refusal: str | None) -> list[Failed]:
    failed = []
    if refusal is not None:
        failed.append(CHAIN.failed("a VEK under the pinned certificates of AMD", refusal))
    if vek.is_vlek is not (report.signing_key == SigningKey.VLEK):
        expected = "VLEK" if report.signing_key == SigningKey.VLEK else "VCEK"
        failed.append(CHAIN.failed(f"the certificate of a {expected}", "VLEK" if vek.is_vlek else "VCEK"))
    chip = report.chip_id[: vek.product.hwid_bytes]
    if vek.hwid is not None and (vek.hwid != chip and any(report.chip_id)):
        failed.append(CHAIN.failed(f"a VCEK of the chip {chip.hex()}", vek.hwid.hex()))
    if any(report.chip_id[vek.product.hwid_bytes :]):
        failed.append(REPORT.failed("zero: behind CHIP_ID", "bits that are set"))
    if vek.is_vlek and any(report.chip_id):
        failed.append(REPORT.failed("zero: CHIP_ID beside a VLEK", chip.hex()))
    reported = parse_tcb(report.reported_tcb, vek.product)
    if reported != vek.tcb:
        failed.append(CHAIN.failed(f"a VEK for {reported}", str(vek.tcb)))
    return failed


def _signature(evidence: UnverifiedSevSnp, vek: VEK) -> list[Failed]:
    r, s = evidence.report.r, evidence.report.s
    if not 0 < r < _P384_ORDER or not 0 < s < _P384_ORDER:
        return [SIGNATURE.failed("R and S from 1 to n - 1", "another number")]
    if vek.certificate.key != "ec-secp384r1":
        return [SIGNATURE.failed("signed by a key on P-384", vek.certificate.key)]
    try:
        key = cast("ec.EllipticCurvePublicKey", vek.certificate.public_key)
        key.verify(encode_dss_signature(r, s), evidence.raw[:SIGNED_BYTES], ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, SignatureInvalid):
        return [SIGNATURE.failed("signed by the key of the VEK", "not signed by it")]
    return []
