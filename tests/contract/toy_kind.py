"""A kind of evidence in one file: the level of a chip, under a key that we share with it.

What a kind needs, and nothing else: an object, the table of its block in policies, and a line in each table.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from attestation.appraisal.kind import Kind
from attestation.errors import ChallengeMismatch, MalformedEvidence, SignatureInvalid
from attestation.machines import Identity, NodeEvent
from attestation.reference import Demand, Policy
from attestation.reference.members import Member, Table, number
from attestation.results import Check, Outcome, Subject, TrustClaim
from attestation.wire import Reader, b64decode

LEVEL: Final = Check(name="toy-level", claim=TrustClaim.HARDWARE)
MINIMUM: Final = Check(name="toy-minimum", claim=TrustClaim.HARDWARE)


class Unverified(NamedTuple):
    """A statement of 36 bytes, challenge ‖ u32 level, and its HMAC-SHA-256."""

    statement: bytes
    challenge: bytes
    level: int
    tag: bytes


class Expected(NamedTuple):
    """What we know: the key, what we asked, and the level at the last verified evidence."""

    key: bytes
    challenge: bytes
    before: int


def expect(identity: Identity, challenge: bytes) -> Expected:
    """Return what is expected of a chip: its identity is the key."""
    return Expected(identity.value, challenge, (identity.state or {"level": 0})["level"])


class Found(NamedTuple):
    """What it proves, and what is to be stored."""

    state: Mapping[str, int]
    digest: str | None = None
    events: tuple[NodeEvent, ...] = ()


class ToyKind(Kind[Unverified, Expected, int]):
    """The kind `toy`."""

    name: Final = "toy"
    check: Final = Check(name="toy-statement", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99, if_passed=2)
    held: Final = check.passed()
    expects: Final = "a fresh statement of the chip"
    checks: Final = (check, LEVEL, MINIMUM)
    form: Final = {"statement": str, "tag": str}

    def parse(self, item: object) -> Unverified:
        """Parse `statement` and `tag`, base64."""
        if not isinstance(item, Mapping) or {n: type(v) for n, v in item.items()} != self.form:
            raise MalformedEvidence("two texts: statement and tag")
        statement = b64decode(item["statement"], "statement", max_bytes=36)
        tag = b64decode(item["tag"], "tag", max_bytes=32)
        if len(tag) != 32:
            raise MalformedEvidence(f"tag of {len(tag)} bytes")
        reader = Reader(statement, "statement")
        challenge, level = reader.take(32), reader.u32()
        reader.end()
        return Unverified(statement, challenge, level, tag)

    def verify(self, evidence: Unverified, expected: Expected) -> int:
        """Return the level."""
        if not hmac.compare_digest(hmac.digest(expected.key, evidence.statement, "sha256"), evidence.tag):
            raise SignatureInvalid("not by this chip")
        if not hmac.compare_digest(evidence.challenge, expected.challenge):
            raise ChallengeMismatch("for another challenge")
        return evidence.level

    def follow(
        self, claims: int, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """A level never goes back."""
        failed = LEVEL.failed(f"at least {expected.before}", str(claims))
        return [failed if claims < expected.before else LEVEL.passed()], Found({"level": claims})

    def judge(
        self, claims: int, evidence: Unverified, expected: Expected, policy: Policy
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """The level is at least what the policy demands."""
        demand = policy.blocks.get(self.name, ToyRules()).minimum
        if demand is None or claims >= demand.value:
            return [] if demand is None else [MINIMUM.passed()], ()
        return [MINIMUM.told(f"at least {demand.value}", str(claims), report=demand.report)], ()


@dataclass(frozen=True)
class ToyRules:
    """What a policy says of the kind."""

    minimum: Demand[int] | None = None


TOY = ToyKind()
TOY_BLOCK = Table(
    name=TOY.name,
    rules=ToyRules,
    members={"minimum": Member(about="Lowest value", type=number(0, 0xFFFF_FFFF))},
)
