"""The kind `sev_snp`: a report of the processor in which a machine runs, beside a TPM or without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from attestation.appraisal.confidential import Expected, Hardware, judge_identity, members
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp.judge import CHECKS, IDENTITY, REGRESSED, judge_claims
from attestation.endorsements.amd.cert_table import MAX_TABLE_BYTES
from attestation.endorsements.amd.vek import MAX_VEK_BYTES
from attestation.evidence import sev_snp
from attestation.evidence.sev_snp import REPORT, REPORT_BYTES, SevSnpClaims, SigningKey, UnverifiedSevSnp
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.results import Outcome, Subject

TEE: Final = "sev-snp"
"""As report data and media types name it."""
_LIMITS: Final = {"report": REPORT_BYTES, "cert_table": MAX_TABLE_BYTES, "vek": MAX_VEK_BYTES}
_NEEDED: Final = frozenset({"report"})


class Found(NamedTuple):
    """What a report tells, and what the identity of the machine keeps of it."""

    state: Mapping[str, Any]
    digest: str | None = None
    events: tuple[NodeEvent, ...] = ()


def state_of(claims: SevSnpClaims) -> dict[str, Any]:
    """Return what is kept of a report: what operators look at, and policies are learned from."""
    report = claims.report
    return {
        "product": claims.product.value,
        "version": report.version,
        "chip_id": claims.chip.hex(),
        "csp_id": claims.vek.csp_id,
        "measurement": report.measurement.hex(),
        "host_data": report.host_data.hex(),
        "id_key_digest": report.id_key_digest.hex(),
        "author_key_digest": report.author_key_digest.hex() if report.author_key_en else "",
        "policy": report.policy,
        "debug": report.allows(19),
        "migration_agent": report.allows(18),
        "smt": report.allows(16),
        "single_socket": report.allows(20),
        "signing_key": "vlek" if report.signing_key == SigningKey.VLEK else "vcek",
        "guest_svn": report.guest_svn,
        "vmpl": report.vmpl,
        "platform_info": report.platform_info,
        "reported_tcb": claims.reported.components(),
        "committed_tcb": claims.committed.components(),
        "current_tcb": claims.current.components(),
        "launch_tcb": claims.launch.components(),
    }


def regressed(claims: SevSnpClaims, before: Mapping[str, Any] | None) -> list[Outcome]:
    """Return that firmware is older than at the last verified evidence: the host may do that, operators should know."""
    if before is None or before.get("chip_id") != claims.chip.hex():
        return []
    known = before["reported_tcb"]
    lower = [
        f"{name} {value}, was {known[name]}"
        for name, value in claims.reported.components().items()
        if value < known.get(name, 0)
    ]
    return [REGRESSED.flagged(f"firmware went back: {', '.join(lower)}")] if lower else []


class _SevSnp(Kind[UnverifiedSevSnp, Expected, SevSnpClaims]):
    """SEV-SNP, as an appraisal sees it."""

    name: Final = "sev_snp"
    check: Final = REPORT
    held: Final = REPORT.passed()
    expects: Final = "a fresh report of the machine's processor"
    checks: Final = CHECKS

    def parse(self, item: object) -> UnverifiedSevSnp:
        """Parse the members `report`, `cert_table` and `vek` of an item.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        return sev_snp.parse(members(item, _LIMITS, required=_NEEDED))

    def verify(self, evidence: UnverifiedSevSnp, expected: Expected) -> SevSnpClaims:
        """Return what the report proves.

        Raises:
            HardwareEvidenceRejected: It is not authentic, or not over our report data.
            EndorsementMissing: The certificate of the key that signed is not at hand.
        """
        return sev_snp.verify(
            evidence, endorsements=expected.endorsements, report_data=expected.report_data, at=expected.at
        )

    def follow(
        self, claims: SevSnpClaims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """Compare the processor with the one that was approved, and its firmware with the last."""
        seen = self.hardware(claims)
        identity = judge_identity(IDENTITY, seen, expected.approved, policy)
        return [identity, *regressed(claims, expected.before)], Found(state_of(claims))

    def judge(
        self,
        claims: SevSnpClaims,
        evidence: UnverifiedSevSnp,  # noqa: ARG002 -- all that counts of it is in the claims
        expected: Expected,  # noqa: ARG002 -- compared in `verify` and `follow`
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare all else with the block `sev_snp`."""
        return judge_claims(claims, policy)

    def hardware(self, claims: SevSnpClaims) -> Hardware:
        """Return processor and guest."""
        return Hardware(tee=TEE, chip=claims.chip, guest=claims.report.host_data, csp_id=claims.vek.csp_id)

    def alike(self, found: Found, policy: Policy) -> str:  # noqa: ARG002 -- under every policy the same
        """Return processor, launch and firmware."""
        return repr(sorted(found.state.items()))


SEV_SNP: Final = _SevSnp()
