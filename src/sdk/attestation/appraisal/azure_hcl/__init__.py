"""The kind `azure_hcl`: a vTPM that Azure's paravisor runs inside confidential hardware (CONFIDENTIAL.md §11).

It carries a report of SEV-SNP, or a quote of a TD, which is verified and judged as such; its own checks bind the vTPM's
attestation key to it. The report is as old as the boot: what is fresh is a quote of that key over our challenge.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from attestation.appraisal import sev_snp as snp_appraisal
from attestation.appraisal import tdx as tdx_appraisal
from attestation.appraisal.confidential import Expected, Hardware, judge_identity, members
from attestation.appraisal.dcap import judge_vouched
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp.judge import IDENTITY as SNP_IDENTITY
from attestation.appraisal.sev_snp.kind import state_of as snp_state
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence, SignatureInvalid
from attestation.evidence import azure_hcl, dcap, sev_snp, tpm_quote
from attestation.evidence.azure_hcl import UnverifiedHCL
from attestation.evidence.dcap import MAX_QUOTE_BYTES, QuoteClaims
from attestation.evidence.sev_snp import SevSnpClaims
from attestation.reference import Policy
from attestation.results import Check, Code, Failed, Outcome, Subject, TrustClaim
from attestation.tpm import TPM_GENERATED, AttestType, VerificationKey, parse_public

_LIMITS: Final = {
    "hcl_report": azure_hcl.MAX_REPORT_BYTES,
    "quote": MAX_QUOTE_BYTES,
    "vek": 4096,
    "tpm_quote": 4096,
}
_NEEDED: Final = frozenset({"hcl_report", "tpm_quote"})
_IDENTITY: Final = TrustClaim.INSTANCE_IDENTITY
REPORT: Final = Check(
    name="hcl-report", claim=TrustClaim.HARDWARE, if_failed=99, if_passed=2, code=Code.REPORT_INVALID
)
RUNTIME: Final = Check(name="hcl-runtime-data", claim=_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH)
KEY: Final = Check(name="hcl-attestation-key", claim=_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH)
SIGNATURE: Final = Check(name="hcl-signature", claim=_IDENTITY, if_failed=99, code=Code.SIGNATURE_INVALID)
FRESH: Final = Check(name="hcl-challenge", claim=_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH)
LEVEL: Final = Check(name="hcl-vmpl", claim=_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH)
CHECKS: Final = (REPORT, RUNTIME, KEY, SIGNATURE, FRESH, LEVEL)


class UnverifiedAzureHCL(NamedTuple):
    """What the paravisor and its vTPM say.

    Attributes:
        hcl: The report, with the runtime data.
        carried: The report or quote of the hardware; None where no quote came for a TDREPORT.
        quote: A quote of the vTPM.
    """

    hcl: UnverifiedHCL
    carried: Any
    quote: tpm_quote.UnverifiedQuote

    @property
    def kind(self) -> str:
        """Name of the kind that is carried."""
        return "sev_snp" if self.hcl.hardware is azure_hcl.Hardware.SNP else "tdx"


class Claims(NamedTuple):
    """What is proven: what the hardware says of itself and of the guest."""

    carried: SevSnpClaims | QuoteClaims


class _AzureHCL(Kind[UnverifiedAzureHCL, Expected, Claims]):
    """A vTPM on Azure, as an appraisal sees it."""

    name: Final = "azure_hcl"
    check: Final = REPORT
    held: Final = REPORT.passed()
    expects: Final = "a report of the paravisor over the machine's attestation key"
    checks: Final = CHECKS

    def parse(self, item: object) -> UnverifiedAzureHCL:
        """Parse the members `hcl_report`, `quote` or `vek`, and `tpm_quote`: TPM2B_ATTEST ‖ TPMT_SIGNATURE.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        sent = members(item, _LIMITS, required=_NEEDED)
        hcl = azure_hcl.parse(sent["hcl_report"])
        carried: Any = None
        if hcl.hardware is azure_hcl.Hardware.SNP:
            if "quote" in sent:
                raise MalformedEvidence("HCL report of SEV-SNP: a quote is of TDX")
            vek = {"vek": sent["vek"]} if "vek" in sent else {}
            carried = sev_snp.parse({"report": hcl.report, **vek})
        else:
            if "vek" in sent:
                raise MalformedEvidence("HCL report of TDX: a VEK is of SEV-SNP")
            quote = dcap.parse_quote(sent["quote"]) if "quote" in sent else None
            if quote is not None:
                carried = tdx_appraisal.UnverifiedTDX(
                    quote=quote, collateral=None, ccel_table=None, ccel=None
                )
        data = sent["tpm_quote"]
        size = int.from_bytes(data[:2])
        return UnverifiedAzureHCL(hcl, carried, tpm_quote.parse(data[2 : 2 + size], data[2 + size :]))

    def verify(self, evidence: UnverifiedAzureHCL, expected: Expected) -> Claims:
        """Return what the hardware proves, and that the vTPM in it is this machine's.

        Raises:
            HardwareEvidenceRejected: It is not authentic, of another vTPM, or not fresh.
            EndorsementMissing: The certificate of the key that signed is not at hand.
        """
        failed = _binding(evidence, expected)
        try:
            carried = _carried(evidence, expected)
        except HardwareEvidenceRejected as refused:
            raise HardwareEvidenceRejected([*failed, *refused.failed]) from refused
        if failed:
            raise HardwareEvidenceRejected(failed)
        return Claims(carried)

    def follow(
        self, claims: Claims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Any]:
        """Compare the hardware with the one that was approved, as of the evidence that is carried."""
        seen, carried = self.hardware(claims), claims.carried
        if isinstance(carried, SevSnpClaims):
            identity = judge_identity(SNP_IDENTITY, seen, expected.approved, policy)
            return [identity], snp_appraisal.Found(snp_state(carried))
        names = tdx_appraisal.NAMES
        identity = judge_identity(names.identity, seen, expected.approved, policy)
        vouched = judge_vouched(carried, expected.at, policy, names)
        return [identity, *vouched], tdx_appraisal.Found(tdx_appraisal.state_of(carried))

    def judge(
        self,
        claims: Claims,
        evidence: UnverifiedAzureHCL,  # noqa: ARG002 -- all that counts of it is in the claims
        expected: Expected,
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare with the block of what is carried, `sev_snp` or `tdx`."""
        if isinstance(claims.carried, SevSnpClaims):
            return snp_appraisal.judge_claims(claims.carried, policy)
        return tdx_appraisal.judge_claims(claims.carried, expected.at, policy)

    def answers(self, claims: Claims | None) -> frozenset[str]:
        """Return `sev_snp` or `tdx`; before anything is known, both."""
        if claims is None:
            return frozenset(("sev_snp", "tdx"))
        return frozenset(("sev_snp" if isinstance(claims.carried, SevSnpClaims) else "tdx",))

    def hardware(self, claims: Claims) -> Hardware:
        """Return what the carried evidence shows."""
        carried = claims.carried
        if isinstance(carried, SevSnpClaims):
            return snp_appraisal.SEV_SNP.hardware(carried)
        return tdx_appraisal.TDX.hardware(carried)


def _carried(evidence: UnverifiedAzureHCL, expected: Expected) -> SevSnpClaims | QuoteClaims:
    told = evidence.hcl.report_data
    if evidence.hcl.hardware is azure_hcl.Hardware.SNP:
        return sev_snp.verify(
            evidence.carried, endorsements=expected.endorsements, report_data=told, at=expected.at
        )
    if evidence.carried is None:
        raise HardwareEvidenceRejected(
            [REPORT.failed("a quote of the TD", "a TDREPORT alone, which proves nothing")]
        )
    return dcap.verify(
        evidence.carried.quote,
        sent=None,
        endorsements=expected.endorsements,
        report_data=told,
        at=expected.at,
        names=tdx_appraisal.NAMES.authentic,
    )


def _binding(evidence: UnverifiedAzureHCL, expected: Expected) -> list[Failed]:
    """Return what does not bind the vTPM to the hardware, to this machine, and to this challenge."""
    failed, hcl, quote = [], evidence.hcl, evidence.quote
    if hcl.hardware is azure_hcl.Hardware.TDX and not hmac.compare_digest(hcl.told, hcl.report_data):
        failed.append(RUNTIME.failed("report data over the runtime data", hcl.told.hex()))
    if hcl.hardware is azure_hcl.Hardware.SNP and evidence.carried.report.vmpl != 0:
        # Whoever runs above the paravisor can name any key.
        failed.append(LEVEL.failed("a report of VMPL 0", f"one of VMPL {evidence.carried.report.vmpl}"))
    public = parse_public(expected.ak_public) if expected.ak_public is not None else None
    if public is None or not hmac.compare_digest(public.spki_der(), hcl.ak_spki):
        failed.append(KEY.failed("the machine's attestation key", "a key of another vTPM"))
        return failed
    try:
        VerificationKey(public).verify(quote.signature, quote.signed)
    except SignatureInvalid as e:
        return [*failed, SIGNATURE.failed("a quote of the machine's attestation key", str(e))]
    if quote.attest.magic != TPM_GENERATED or quote.attest.type != AttestType.QUOTE:
        failed.append(SIGNATURE.failed("a quote that the vTPM made", f"magic 0x{quote.attest.magic:08x}"))
    if not hmac.compare_digest(quote.attest.extra_data, expected.nonce):
        failed.append(FRESH.failed("a quote over this challenge", quote.attest.extra_data.hex()))
    return failed


AZURE_HCL: Final = _AzureHCL()
