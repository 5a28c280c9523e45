"""The kind `sgx`: a quote of an enclave that runs on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from attestation.appraisal.confidential import Expected, Hardware, judge_identity, members
from attestation.appraisal.dcap import changed, judge_vouched, tcb_state
from attestation.appraisal.kind import Kind
from attestation.appraisal.sgx.judge import CHECKS, NAMES, enclave_of, judge_claims
from attestation.endorsements.intel import Collateral, parse_collateral
from attestation.evidence import dcap
from attestation.evidence.dcap import MAX_QUOTE_BYTES, QuoteClaims, UnverifiedQuote
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.results import Outcome, Subject

TEE: Final = "sgx"
"""As report data names it."""
_LIMITS: Final = {"quote": MAX_QUOTE_BYTES, "collateral": 262144}
_NEEDED: Final = frozenset({"quote"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedSGX:
    """A quote, and what came with it.

    Args:
        quote: The quote.
        collateral: What the machine brought; None where it brought none.
    """

    quote: UnverifiedQuote
    collateral: Collateral | None


class Found(NamedTuple):
    """What a quote tells, and what the identity of the machine keeps of it."""

    state: Mapping[str, Any]
    digest: str | None = None
    events: tuple[NodeEvent, ...] = ()


def state_of(claims: QuoteClaims) -> dict[str, Any]:
    """Return what is kept of a quote: what operators look at, policies are learned from, and rules may read."""
    report = enclave_of(claims)
    return tcb_state(claims) | {
        "version": claims.quote.version,
        "mrenclave": report.mr_enclave.hex(),
        "mrsigner": report.mr_signer.hex(),
        "isv_prod_id": report.isv_prod_id,
        "isv_svn": report.isv_svn,
        "debug": report.debug,
    }


class _SGX(Kind[UnverifiedSGX, Expected, QuoteClaims]):
    """SGX, as an appraisal sees it."""

    name: Final = "sgx"
    check: Final = NAMES.authentic.quote
    held: Final = NAMES.authentic.quote.passed()
    expects: Final = "a fresh quote of the machine's enclave"
    checks: Final = CHECKS

    def parse(self, item: object) -> UnverifiedSGX:
        """Parse the members `quote` and `collateral` of an item.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        sent = members(item, _LIMITS, required=_NEEDED)
        return UnverifiedSGX(
            quote=dcap.parse_quote(sent["quote"]),
            collateral=parse_collateral(sent["collateral"]) if "collateral" in sent else None,
        )

    def verify(self, evidence: UnverifiedSGX, expected: Expected) -> QuoteClaims:
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
        evidence: UnverifiedSGX,  # noqa: ARG002 -- all that counts of it is in the claims
        expected: Expected,
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare all else with the blocks `sgx` and `tcb`."""
        return judge_claims(claims, expected.at, policy)

    def hardware(self, claims: QuoteClaims) -> Hardware:
        """Return the platform; an enclave names no guest."""
        return Hardware(tee=TEE, chip=claims.platform.ppid, guest=b"")

    def alike(self, found: Found, policy: Policy) -> str:  # noqa: ARG002 -- under every policy the same
        """Return platform, launch and TCB."""
        return repr(sorted(found.state.items()))


SGX: Final = _SGX()
