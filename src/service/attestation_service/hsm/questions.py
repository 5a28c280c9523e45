"""What a QuoteAttestation is judged by: the question of its nonce, and what vouches for its hardware.

Of a TPM that is an attestation key that a machine of the same cluster activated here, and the machine itself: a key in
a machine that is locked is in the hands of those it was locked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from attestation.errors import MalformedEvidence, PolicyUnknown
from attestation.machines import Machine, Status, Trust
from attestation.quote import Envelope, Purpose, QuoteCase
from attestation.quote.appraise import HARDWARE
from attestation.quote.case import OF_A_TPM
from attestation.reference import Policy
from attestation.results import Check, Outcome
from attestation.store import HSMNonce, Tx
from attestation.tpm import parse_public
from attestation.wire import b64encode
from attestation_service.resources import Resources
from attestation_service.verifier import policy

MACHINE: Final = Check(name="quote-machine")
_ENDED: Final = frozenset({Status.LOCKED, Status.REVOKED, Status.REJECTED})


def case_of(tx: Tx, envelope: Envelope, asked: HSMNonce, res: Resources) -> QuoteCase:
    """Return the case of an envelope; the envelope itself chooses nothing of it."""
    machine = machine_of(tx, asked)
    ak = machine.tpm.ak_public if machine is not None else None
    return QuoteCase(
        evidence_type=asked.evidence_type,
        purpose=Purpose(asked.purpose),
        signer_uid=asked.signer_uid,
        # That of `asked`: it was found by its digest.
        nonce=envelope.nonce,
        policy=policy_named(tx, asked.policy_ref),
        endorsements=endorsements_of(tx, envelope, asked.evidence_type, res),
        ak=parse_public(ak) if ak is not None else None,
        ek=parse_public(machine.tpm.ek_public) if machine is not None else None,
    )


def case_of_anybody(tx: Tx, envelope: Envelope, policy_ref: str | None, res: Resources) -> QuoteCase:
    """Return the case of an envelope that answers no question of ours: the one that it names itself."""
    return QuoteCase(
        evidence_type=envelope.evidence_type,
        purpose=envelope.purpose,
        signer_uid=envelope.signer_uid,
        nonce=envelope.nonce,
        policy=policy_named(tx, policy_ref),
        endorsements=endorsements_of(tx, envelope, envelope.evidence_type, res),
    )


def machine_of(tx: Tx, asked: HSMNonce) -> Machine | None:
    """Return the machine whose attestation key was named when the nonce was given out.

    None where none was, or it is not one that a machine of the same cluster activated and still has.
    """
    if asked.ak_name is None or asked.evidence_type not in OF_A_TPM:
        return None
    bound = tx.ak_bindings.get(asked.ak_name)
    machine = tx.machines.by_ek(bound.ek_fingerprint) if bound is not None else None
    if machine is None or machine.cluster_id != asked.cluster_id or machine.tee is not None:
        return None
    if machine.tpm.ak_name != asked.ak_name or machine.tpm.ak_activated_at is None:
        return None
    return machine


def judge_machine(tx: Tx, asked: HSMNonce, at: datetime) -> list[Outcome]:
    """Return what becomes of evidence of a TPM by what its machine is at *at*; nothing of other evidence."""
    if asked.evidence_type not in OF_A_TPM:
        return []
    machine = machine_of(tx, asked)
    if machine is None:
        # Neither believed nor refused: it may be activated until the QuoteAttestation ends.
        return [MACHINE.undecided("the attestation key is of no machine of this cluster that is known here")]
    if machine.status in _ENDED:
        return [MACHINE.failed("a machine that is attested", machine.status.value)]
    trust = machine.trust(at)
    if trust is Trust.FAILED:
        return [MACHINE.failed("a machine whose last result is good", trust.value)]
    if machine.status is not Status.ATTESTED or trust is not Trust.VERIFIED:
        return [MACHINE.undecided(f"its machine is {machine.status}, and what it last proved is {trust}")]
    return [MACHINE.passed()]


def endorsements_of(tx: Tx, envelope: Envelope, evidence_type: str, res: Resources) -> Any:
    """Return what vouches for hardware, of what is kept here."""
    if evidence_type == "hsm-x509":
        return res.anchors.hsm
    if evidence_type not in HARDWARE:
        return None
    kind, member = HARDWARE[evidence_type]
    try:
        evidence = kind.parse({member: b64encode(envelope.data)})
    except MalformedEvidence:
        evidence = None  # the judge says so
    return res.collateral.endorsements(tx, kind.name, evidence)


def policy_named(tx: Tx, name: str | None) -> Policy | None:
    """Return the policy `name@version`, or the newest of a name; None where there is none: then nothing is decided."""
    if name is None:
        return None
    if "@" not in name:
        versions = [each.ref for each in tx.policies.all() if each.name == name]
        if not versions:
            return None
        name = versions[-1]
    try:
        return policy.stored(tx, name)
    except PolicyUnknown:
        return None


def policy_said(spec: Mapping[str, Any]) -> str | None:
    """Return what `policyRef` of an envelope names; None where it names nothing."""
    ref = spec.get("policyRef")
    name = ref.get("name") if isinstance(ref, Mapping) else ref
    return name if isinstance(name, str) else None
