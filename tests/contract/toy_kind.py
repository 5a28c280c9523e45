"""A kind of evidence in one file: the level of a chip, under a key that we share with it.

It shows what a kind needs, and that nothing else is touched: one object, and one line in the table.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from attestation.errors import ChallengeMismatch, MalformedEvidence, SignatureInvalid
from attestation.reference import Policy
from attestation.results import Check, Outcome, Subject, TrustClaim
from attestation.wire import Reader, b64decode

LEVEL: Final = Check(name="toy-level", claim=TrustClaim.HARDWARE)


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


class Found(NamedTuple):
    """What it proves, and what is to be stored."""

    level: int
    digest: str | None = None


class ToyKind:
    """The kind `toy`."""

    name: Final = "toy"
    media_types: Final = frozenset({"application/vnd.example.toy"})
    check: Final = Check(name="toy-statement", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99, if_passed=2)
    held: Final = check.passed()
    expects: Final = "a fresh statement of the chip"
    checks: Final = (check, LEVEL)

    def parse(self, item: object) -> Unverified:
        """Parse `statement` and `tag`, base64."""
        if not isinstance(item, Mapping) or item.keys() != {"statement", "tag"}:
            raise MalformedEvidence("two members: statement and tag")
        if not all(isinstance(text, str) for text in item.values()):
            raise MalformedEvidence("statement and tag are texts")
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
        # 1. The chip said exactly this.
        if not hmac.compare_digest(tag_of(evidence.statement, expected.key), evidence.tag):
            raise SignatureInvalid("not by this chip")
        # 2. For this challenge.
        if not hmac.compare_digest(evidence.challenge, expected.challenge):
            raise ChallengeMismatch("for another challenge")
        return evidence.level

    def follow(
        self, claims: int, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """A level never goes back."""
        if claims < expected.before:
            return [LEVEL.failed(f"at least {expected.before}", str(claims))], Found(claims)
        return [LEVEL.passed()], Found(claims)

    def judge(
        self, claims: int, evidence: Unverified, expected: Expected, policy: Policy
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Nothing is expected yet."""
        return [], ()


def tag_of(statement: bytes, key: bytes) -> bytes:
    """Return what the chip adds to *statement*."""
    return hmac.digest(key, statement, hashlib.sha256)


TOY: Final = ToyKind()
