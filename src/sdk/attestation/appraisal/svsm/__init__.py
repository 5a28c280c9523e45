"""The kind `svsm`: a vTPM that a Secure VM Service Module runs inside an SEV-SNP guest (CONFIDENTIAL.md §11).

The module runs at VMPL 0, the operating system above it. It asks the processor for a report over SHA-512(nonce ‖
manifest), the manifest is the TPMT_PUBLIC of the EK of its vTPM, and the nonce are the 64 bytes of `report_data`, which
Linux passes on. So a fresh report says which vTPM is in the guest; that it is the machine's is for us to compare. That
a module made it, and no operating system that started at VMPL 0, is said by the measurement alone.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from attestation.appraisal.confidential import Expected, Hardware, judge_identity, members
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp import SEV_SNP, Found, judge_claims
from attestation.appraisal.sev_snp.judge import IDENTITY
from attestation.appraisal.sev_snp.kind import regressed, state_of
from attestation.endorsements.amd.cert_table import MAX_TABLE_BYTES
from attestation.endorsements.amd.vek import MAX_VEK_BYTES
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence import sev_snp
from attestation.evidence.sev_snp import REPORT_BYTES, SevSnpClaims, UnverifiedSevSnp
from attestation.reference import Policy
from attestation.results import Check, Code, Failed, Outcome, Subject, TrustClaim
from attestation.tpm import Public, parse_public, parse_tpmt_public

MEDIA_TYPE: Final = "application/vnd.itl.svsm-vtpm"
MAX_MANIFEST_BYTES: Final = 2048
_LIMITS: Final = {
    "report": REPORT_BYTES,
    "manifest": MAX_MANIFEST_BYTES,
    "cert_table": MAX_TABLE_BYTES,
    "vek": MAX_VEK_BYTES,
}
_NEEDED: Final = frozenset({"report", "manifest"})
REPORT: Final = Check(name="svsm-report", claim=TrustClaim.HARDWARE, if_passed=2)
KEY: Final = Check(
    name="svsm-endorsement-key",
    claim=TrustClaim.INSTANCE_IDENTITY,
    if_failed=99,
    code=Code.BINDING_MISMATCH,
)
LEVEL: Final = Check(
    name="svsm-vmpl", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH
)
CHECKS: Final = (REPORT, KEY, LEVEL)


class UnverifiedSVSM(NamedTuple):
    """What a module says, unverified.

    Attributes:
        carried: The report of the processor.
        manifest: TPMT_PUBLIC of the vTPM's EK, as it came.
        ek: The same, read.
    """

    carried: UnverifiedSevSnp
    manifest: bytes
    ek: Public

    @property
    def kind(self) -> str:
        """The kind of what is carried."""
        return SEV_SNP.name


class _SVSM(Kind[UnverifiedSVSM, Expected, SevSnpClaims]):
    """A vTPM of a module, as an appraisal sees it."""

    name: Final = "svsm"
    check: Final = REPORT
    held: Final = REPORT.passed()
    expects: Final = "a fresh report over the machine's endorsement key"
    checks: Final = CHECKS

    def parse(self, item: object) -> UnverifiedSVSM:
        """Parse the members `report`, `manifest`, `cert_table` and `vek` of an item.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        sent = members(item, _LIMITS, required=_NEEDED)
        manifest = sent.pop("manifest")
        ek = parse_tpmt_public(manifest)
        ek.key()
        return UnverifiedSVSM(sev_snp.parse(sent), manifest, ek)

    def verify(self, evidence: UnverifiedSVSM, expected: Expected) -> SevSnpClaims:
        """Return what the report proves.

        Raises:
            HardwareEvidenceRejected: It is not authentic, not over our challenge, or of another vTPM.
            EndorsementMissing: The certificate of the key that signed is not at hand.
        """
        failed = _binding(evidence, expected)
        told = hashlib.sha512(expected.report_data + evidence.manifest).digest()
        try:
            claims = sev_snp.verify(
                evidence.carried, endorsements=expected.endorsements, report_data=told, at=expected.at
            )
        except HardwareEvidenceRejected as e:
            raise HardwareEvidenceRejected([*e.failed, *failed]) from e
        if failed:
            raise HardwareEvidenceRejected(failed)
        return claims

    def follow(
        self, claims: SevSnpClaims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """Compare the processor with the one that was approved, and its firmware with the last."""
        identity = judge_identity(IDENTITY, self.hardware(claims), expected.approved, policy)
        return [identity, *regressed(claims, expected.before)], Found(state_of(claims))

    def judge(
        self,
        claims: SevSnpClaims,
        evidence: UnverifiedSVSM,  # noqa: ARG002 -- all that counts of it is in the claims
        expected: Expected,  # noqa: ARG002 -- compared in `verify` and `follow`
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare all else with the block `sev_snp`."""
        return judge_claims(claims, policy)

    def answers(self, claims: SevSnpClaims | None) -> frozenset[str]:  # noqa: ARG002 -- it carries nothing else
        """Return `sev_snp`: the report is judged by that block."""
        return frozenset((SEV_SNP.name,))

    def hardware(self, claims: SevSnpClaims) -> Hardware:
        """Return processor and guest."""
        return SEV_SNP.hardware(claims)

    def alike(self, found: Found, policy: Policy) -> str:
        """Return processor, launch and firmware."""
        return SEV_SNP.alike(found, policy)


def _binding(evidence: UnverifiedSVSM, expected: Expected) -> list[Failed]:
    """Return what does not bind the vTPM to this machine: its key, and who asked for the report."""
    failed = []
    known = parse_public(expected.ek_public) if expected.ek_public is not None else None
    if known is None or not hmac.compare_digest(known.spki_der(), evidence.ek.spki_der()):
        failed.append(KEY.failed("the machine's endorsement key", f"the key {evidence.ek.fingerprint()}"))
    if evidence.carried.report.vmpl != 0:
        failed.append(LEVEL.failed("a report of VMPL 0", f"one of VMPL {evidence.carried.report.vmpl}"))
    return failed


SVSM: Final = _SVSM()
