"""Confidential hardware that is a key shared with its judge, and guests of it: what PROTOCOL §9 needs, without an AMD.

The kind answers to the name `sev_snp`, so that a service takes its items for those of SEV-SNP. What a real report
proves is tested with the kinds themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.appraisal.confidential import Expected, Hardware, members
from attestation.appraisal.kind import Kind
from attestation.envelope import SubjectEnvelope, open_with_subject
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.keys import acknowledgement
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.report_data import hardware_fingerprint, report_data
from attestation.results import Check, Outcome, Subject, TrustClaim
from attestation.results.codes import Code
from attestation.wire import b64decode, b64encode
from tests.unit.service.node import SoftwareNode, node_nonce

MEDIA_TYPE: Final = "application/vnd.itl.sev-snp"
KEY: Final = bytes(range(32))
CHIP, GUEST, LAUNCH = bytes([7] * 64), bytes([1] * 32), bytes([9] * 48)


class Report(NamedTuple):
    """What a chip states."""

    chip: bytes
    guest: bytes
    csp_id: str | None
    launch: bytes
    data: bytes
    tag: bytes
    text: bytes


class Found(NamedTuple):
    """What it tells."""

    digest: str
    state: Mapping[str, Any]
    events: tuple[NodeEvent, ...] = ()


class FakeTEE(Kind[Report, Expected, Report]):
    """The kind; what operators approved is compared as `registered` wants it."""

    name: Final = "sev_snp"
    check: Final = Check(name="snp-signature", claim=TrustClaim.HARDWARE, if_failed=99, if_passed=2)
    binding: Final = Check(name="snp-report-data", if_failed=99, code=Code.BINDING_MISMATCH)
    identity: Final = Check(
        name="snp-chip", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97, code=Code.MACHINE_NOT_ALLOWED
    )
    measured: Final = Check(name="snp-measurement", claim=TrustClaim.EXECUTABLES, if_failed=33)
    held: Final = check.passed()
    expects: Final = "a report of this machine"
    checks: Final = (check, binding, identity, measured)

    launches: frozenset[bytes] = frozenset()
    """Reference values, as if a policy enforced them; the test sets them."""

    def parse(self, item: object) -> Report:
        """Parse a report: JSON and its HMAC."""
        sent = members(item, {"report": 1184, "vek": 4096}, required={"report", "vek"})
        try:
            told = json.loads(sent["report"])
            return Report(
                bytes.fromhex(told["chip"]),
                bytes.fromhex(told["guest"]),
                told["csp_id"],
                bytes.fromhex(told["launch"]),
                bytes.fromhex(told["data"]),
                sent["vek"],
                sent["report"],
            )
        except (ValueError, KeyError, TypeError) as e:
            raise MalformedEvidence("no report") from e

    def verify(self, evidence: Report, expected: Expected) -> Report:
        """By the hardware, and for this challenge, machine and key."""
        if not hmac.compare_digest(hmac.digest(KEY, evidence.text, "sha256"), evidence.tag):
            raise HardwareEvidenceRejected([self.check.failed("by AMD", "not")])
        if not hmac.compare_digest(evidence.data, expected.report_data):
            raise HardwareEvidenceRejected([self.binding.failed("for us", "not")])
        return evidence

    def hardware(self, claims: Report) -> Hardware:
        """Return chip and guest."""
        return Hardware(tee="sev-snp", chip=claims.chip, guest=claims.guest, csp_id=claims.csp_id)

    def follow(
        self, claims: Report, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """The chip is the one that operators approved."""
        told = Found(claims.launch.hex(), {"launch": claims.launch.hex()})
        if expected.approved is None:
            return [self.identity.undecided("no hardware is approved")], told
        if (claims.chip, claims.csp_id) != (expected.approved.chip, expected.approved.csp_id):
            return [self.identity.failed("the approved chip", "another one")], told
        return [self.identity.passed()], told

    def judge(
        self, claims: Report, evidence: Report, expected: Expected, policy: Policy
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """What was launched is one of `launches`."""
        if not self.launches:
            return [], ()
        if claims.launch in self.launches:
            return [self.measured.passed()], (Subject.LAUNCH,)
        return [self.measured.failed("one of these", claims.launch.hex())], ()


FAKE = FakeTEE()


class Guest(SoftwareNode):
    """A guest of a confidential machine, with its subject key; like a `SoftwareNode` to a `Service`."""

    def __init__(self, *, chip: bytes = CHIP, guest: bytes = GUEST) -> None:
        self.chip, self.guest = chip, guest
        self.csp_id: str | None = None
        self.launch = LAUNCH
        self.key = ec.generate_private_key(ec.SECP384R1())
        self.machine_id = ""

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    @property
    def fingerprint(self) -> str:
        """As PROTOCOL §9 makes it."""
        named = any(self.chip) and any(self.guest)
        return hardware_fingerprint("sev-snp", self.chip, self.guest, None if named else self.spki).hex()

    def introduction(self, **more: Any) -> dict[str, Any]:
        """Return the body of an introduction."""
        return {"tee": "sev-snp", "subject_key": b64encode(self.spki), "hw_serial": "S-1", **more}

    def item(self, nonce: bytes, **changes: bytes) -> dict[str, Any]:
        """Return what the hardware states over *nonce*."""
        data = changes.pop("data", report_data("sev-snp", nonce, self.machine_id, self.spki))
        text = json.dumps(
            {
                "chip": self.chip.hex(),
                "guest": self.guest.hex(),
                "csp_id": self.csp_id,
                "launch": self.launch.hex(),
                "data": data.hex(),
            }
        ).encode()
        tag = changes.pop("tag", hmac.digest(KEY, text, "sha256"))
        return {"media_type": MEDIA_TYPE, "value": {"report": b64encode(text), "vek": b64encode(tag)}}

    def activation(
        self, answer: Mapping[str, Any], primary: str | None = None, **changes: bytes
    ) -> dict[str, Any]:
        """Return the body that answers an introduction."""
        self.machine_id = answer["machine_id"]
        challenge = answer["challenge"]
        return {
            "challenge_id": challenge["challenge_id"],
            "evidence": [self.item(b64decode(challenge["nonce"], "nonce"), **changes)],
            "node_nonce": node_nonce(),
        }

    def attestation(self, challenge: Mapping[str, Any], **members: Any) -> dict[str, Any]:
        """Return the body of an attestation."""
        return {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.fingerprint,
            "nonce_id": challenge["nonce_id"],
            "evidence": [self.item(b64decode(challenge["nonce"], "nonce"))],
            "node_nonce": node_nonce(),
            **members,
        }

    def acknowledgement(
        self,
        challenge: Mapping[str, Any],
        directive: str,
        outcome: str = "done",
        digest: bytes | None = None,
        **members: Any,
    ) -> dict[str, Any]:
        """Return the body of an acknowledgement."""
        digest = digest or hashlib.sha256(directive.encode("ascii")).digest()
        said = acknowledgement(b64decode(challenge["nonce"], "nonce"), digest, outcome)
        return {
            "nonce_id": challenge["nonce_id"],
            "directive_sha256": digest.hex(),
            "outcome": outcome,
            "evidence": [self.item(said)],
            **members,
        }

    def open(self, envelope: Mapping[str, Any]) -> bytes:
        """Open a sealed configuration."""
        sealed = SubjectEnvelope(
            machine_id=envelope["machine_id"],
            token_id=envelope["token_id"],
            epk=b64decode(envelope["epk"], "epk"),
            iv=b64decode(envelope["iv"], "iv"),
            ciphertext=b64decode(envelope["ciphertext"], "ciphertext"),
            config_sha256=envelope["config_sha256"],
        )
        return open_with_subject(sealed, self.key, machine_id=self.machine_id)
