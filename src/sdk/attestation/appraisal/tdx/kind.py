"""The kind `tdx`: a quote of the TD in which a machine runs, beside a TPM or without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from attestation.appraisal.confidential import Expected, Hardware, judge_identity, members
from attestation.appraisal.dcap import changed, judge_vouched, tcb_state
from attestation.appraisal.kind import Kind
from attestation.appraisal.tdx.judge import CHECKS, MIGRATABLE, NAMES, SEPT_VE_DISABLE, judge_claims, td_of
from attestation.endorsements.intel import Collateral, parse_collateral
from attestation.evidence import dcap
from attestation.evidence.dcap import MAX_QUOTE_BYTES, QuoteClaims, UnverifiedQuote
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.results import Outcome, Subject

TEE: Final = "tdx"
"""As report data names it."""
_LIMITS: Final = {"quote": MAX_QUOTE_BYTES, "ccel_table": 262144, "ccel": 262144, "collateral": 262144}
_NEEDED: Final = frozenset({"quote"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedTDX:
    """A quote, and what came with it.

    Args:
        quote: The quote.
        collateral: What the machine brought; None where it brought none.
        ccel_table: The ACPI table CCEL; None where it did not come.
        ccel: The event log; None where it did not come.
    """

    quote: UnverifiedQuote
    collateral: Collateral | None
    ccel_table: bytes | None
    ccel: bytes | None


class Found(NamedTuple):
    """What a quote tells, and what the identity of the machine keeps of it."""

    state: Mapping[str, Any]
    digest: str | None = None
    events: tuple[NodeEvent, ...] = ()


def state_of(claims: QuoteClaims) -> dict[str, Any]:
    """Return what is kept of a quote: what operators look at, policies are learned from, and rules may read."""
    report = td_of(claims)
    return tcb_state(claims) | {
        "version": claims.quote.version,
        "mrtd": report.mr_td.hex(),
        "rtmr": [each.hex() for each in report.rtmrs],
        "mrseam": report.mr_seam.hex(),
        "mrsignerseam": report.mr_signer_seam.hex(),
        "mrconfigid": report.mr_config_id.hex(),
        "mrowner": report.mr_owner.hex(),
        "mrownerconfig": report.mr_owner_config.hex(),
        "xfam": report.xfam.hex(),
        "td_attributes": report.td_attributes.hex(),
        "debug": report.debug,
        "sept_ve_disable": report.has(SEPT_VE_DISABLE),
        "migratable": report.has(MIGRATABLE),
        "service_td": any(report.mr_service_td or b""),
        "tee_tcb_svn": report.tee_tcb_svn.hex(),
    }


class _TDX(Kind[UnverifiedTDX, Expected, QuoteClaims]):
    """TDX, as an appraisal sees it."""

    name: Final = "tdx"
    check: Final = NAMES.authentic.quote
    held: Final = NAMES.authentic.quote.passed()
    expects: Final = "a fresh quote of the machine's TD"
    checks: Final = CHECKS

    def parse(self, item: object) -> UnverifiedTDX:
        """Parse the members `quote`, `ccel_table`, `ccel` and `collateral` of an item.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        sent = members(item, _LIMITS, required=_NEEDED)
        return UnverifiedTDX(
            quote=dcap.parse_quote(sent["quote"]),
            collateral=parse_collateral(sent["collateral"]) if "collateral" in sent else None,
            ccel_table=sent.get("ccel_table"),
            ccel=sent.get("ccel"),
        )

    def verify(self, evidence: UnverifiedTDX, expected: Expected) -> QuoteClaims:
        """Return what the quote proves.

        Raises:
            HardwareEvidenceRejected: It is not authentic, or not over our report data.
        """
        return dcap.verify(
            evidence.quote,
            sent=evidence.collateral,
            endorsements=expected.endorsements,
            report_data=expected.report_data,
            at=expected.at,
            names=NAMES.authentic,
        )

    def follow(
        self, claims: QuoteClaims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """Judge what vouches for the platform, and compare it with the one that was approved."""
        identity = judge_identity(NAMES.identity, self.hardware(claims), expected.approved, policy)
        vouched = judge_vouched(claims, expected.at, policy, NAMES)
        return [identity, *vouched, *changed(claims, expected.before, NAMES)], Found(state_of(claims))

    def judge(
        self,
        claims: QuoteClaims,
        evidence: UnverifiedTDX,
        expected: Expected,
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare all else with the blocks `tdx` and `tcb`."""
        return judge_claims(claims, expected.at, policy, ccel=evidence.ccel, ccel_table=evidence.ccel_table)

    def hardware(self, claims: QuoteClaims) -> Hardware:
        """Return platform and guest."""
        return Hardware(tee=TEE, chip=claims.platform.ppid, guest=td_of(claims).mr_config_id)

    def alike(self, found: Found, policy: Policy) -> str:  # noqa: ARG002 -- under every policy the same
        """Return platform, launch and TCB."""
        return repr(sorted(found.state.items()))


TDX: Final = _TDX()
