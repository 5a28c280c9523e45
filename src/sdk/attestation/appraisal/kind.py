"""What a kind of evidence is to an appraisal.

A kind is one object, found in the table `attestation.appraisal.kinds.KINDS`; whoever appraises knows no kind by name.
docs/extend/adding-an-evidence-kind.md tells how one is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from attestation.appraisal.confidential import Hardware
from attestation.appraisal.shown import KINDS_SHOWN, judge_shown
from attestation.errors import EvidenceRejected
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.results import Assurance, AttestationResult, Check, Outcome, Passed, Subject

Unverified = TypeVar("Unverified")
Expected = TypeVar("Expected", contravariant=True)
Claims = TypeVar("Claims")


class Findings(Protocol):
    """What authentic evidence of a kind tells: its claims, and the state to be stored with a Verified result."""

    @property
    def digest(self) -> str | None:
        """One digest over all that was measured, hex; None where the kind has none."""
        ...

    @property
    def events(self) -> Sequence[NodeEvent]:
        """What others are told of, where the result differs from the one before."""
        ...

    @property
    def state(self) -> Mapping[str, Any] | None:
        """What the machine's `Identity` keeps of it; None for what is kept elsewhere."""
        ...


class Appraisal(NamedTuple):
    """The judgement.

    Args:
        result: Verdict and every check.
        error: Set where the evidence is not authentic: it proves nothing, the sender is refused.
        found: Name of each kind -> what its evidence tells; empty where anything is not authentic.
        hardware: Name of each kind of confidential hardware -> what of it was seen; empty likewise.
        assurance: How well the machine is vouched for, this evidence counted.
    """

    result: AttestationResult
    error: EvidenceRejected | None
    found: Mapping[str, Findings]
    hardware: Mapping[str, Hardware]
    assurance: Assurance


class Kind(Protocol[Unverified, Expected, Claims]):
    """One kind of evidence; a pure function of its arguments, like all that it calls."""

    @property
    def name(self) -> str:
        """What it is called in a policy and in a `Case`."""
        ...

    @property
    def check(self) -> Check:
        """The check that its evidence is authentic."""
        ...

    @property
    def held(self) -> Passed:
        """The outcome where it is, made once."""
        ...

    @property
    def expects(self) -> str:
        """What that check expects, in words."""
        ...

    @property
    def checks(self) -> Sequence[Check]:
        """Every check that it makes."""
        ...

    def parse(self, item: object) -> Unverified:
        """Parse what came, as JSON has it; nothing in it may be believed yet.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        ...

    def verify(self, evidence: Unverified, expected: Expected) -> Claims:
        """Return what the evidence proves of this machine, for this challenge.

        Raises:
            EvidenceRejected: It proves nothing.
            EndorsementMissing: What would vouch for it is not at hand: it stays undecided.
        """
        ...

    def follow(
        self, claims: Claims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Findings]:
        """Compare with what was known of the machine, also where no policy applies; return outcomes and findings."""
        ...

    def judge(
        self, claims: Claims, evidence: Unverified, expected: Expected, policy: Policy
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare with what the policy expects; return outcomes, and what of a boot is as expected.

        Args:
            claims: What is proven.
            evidence: What came with it: believed only as far as the claims cover it.
            expected: As of `verify`.
            policy: The policy in force, which the challenge asked for.
        """
        ...

    def answers(self, claims: Claims | None) -> frozenset[str]:  # noqa: ARG002 -- a kind that carries others uses it
        """Return the blocks of policies that these claims were judged by; without claims, those that they might be."""
        return frozenset((self.name,))

    def hardware(self, claims: Claims) -> Hardware | None:  # noqa: ARG002 -- a kind of confidential hardware uses it
        """Return what of confidential hardware these claims show; None for a kind that has none."""
        return None

    def shown(self, found: Any) -> Mapping[str, object]:
        """Return what rules of policies may read of these findings, as JSON has it."""
        return found.state or {}

    def alike(self, found: Any, policy: Policy) -> str:  # noqa: ARG002 -- a kind that leaves something out uses it
        """Return what makes two results of such evidence alike: only another one is written down."""
        return str(found.digest)

    def again(self, kept: Any, policy: Policy) -> Iterable[Outcome]:
        """Judge what is stored of such evidence under a policy that was not in force when it came."""
        if self.name in KINDS_SHOWN and isinstance(kept, Mapping):
            return tuple(judge_shown(self.name, kept, policy))
        return (self.check.undecided("no such evidence is stored"),)

    def looks_away(self, policy: Policy) -> tuple[str, ...]:  # noqa: ARG002 -- a kind with rules uses it
        """Return in words what such evidence tells and the policy does not compare."""
        return ()
