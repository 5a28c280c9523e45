"""What an attestation brings of a TPM, and what is kept of it besides its clock: quoted values and logs."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from attestation.appraisal import Appraisal
from attestation.appraisal.tpm import TPM, Expected, UnverifiedEvidence, found_in
from attestation.errors import AKNotActivated, EKFingerprintMismatch, RequestInvalid
from attestation.evidence.ek_key_attestation import KeyCertificationClaims
from attestation.machines import Anchor, Machine
from attestation.reference import Policy
from attestation.store import Challenge, StoredEvidence, Tx
from attestation.tpm.hashes import bank_name
from attestation_service.attest import key_attestation
from attestation_service.attest.asked import Asked, Gathered
from attestation_service.border import limits
from attestation_service.keys import crypto_policy
from attestation_service.verifier import challenges, measurements
from attestation_service.verifier.firmware import vendor_of

__all__ = ["Besides", "besides_of", "found_in", "gather", "remembered", "stored"]


class Besides(NamedTuple):
    """What came beside the quote: its logs, and what the EK vouched for."""

    logs: measurements.Measurements
    certified: KeyCertificationClaims | None


def gather(identity: Anchor, asked: Asked) -> Gathered:
    """Return the quote of a request with the logs that explain it, and what is expected of the TPM.

    Raises:
        EKFingerprintMismatch: It names another TPM.
        AKNotActivated: The machine has no key that could have signed.
        MalformedEvidence, EvidenceRejected: It proves nothing.
    """
    tx, request, machine, policy, challenge, res, _ = asked
    _same_ek(request.ek_fingerprint, identity)
    if identity.ak_public is None:
        raise AKNotActivated("this machine has no activated attestation key")
    crypto_policy.demand_keys_of(crypto_policy.of(res.settings), identity.ek_public, identity.ak_public)
    assert challenge.nonce is not None
    if request.pcr_quote is None or request.pcr_signature is None or request.pcr_values is None:
        raise RequestInvalid("pcr_quote, pcr_signature and pcr_values are what this machine is known by")
    quoted = TPM.parse(
        {
            "pcr_quote": request.pcr_quote,
            "pcr_signature": request.pcr_signature,
            "pcr_values": request.pcr_values,
        }
    )
    expected = Expected(
        ak_public=identity.ak_public,
        ek_public=identity.ek_public,
        challenge=challenge.nonce,
        selection=challenges.selection(challenge),
        clock=machine.clock,
        ek_vendor=vendor_of(machine),
        event_log_requested=challenges.requires_event_log(challenge),
        ek_certification_requested=key_attestation.requested(challenge),
        firmware_attested=machine.firmware_attested,
        firmware=res.advisories.judge,
    )
    certified = key_attestation.verified(request, challenge, machine)
    logs = measurements.gather(
        tx,
        request,
        machine,
        policy,
        quoted.pcr_values.get(policy.tpm.bank, {}),
        res.replays,
        lambda: TPM.verify(quoted, expected),
    )
    evidence = UnverifiedEvidence(quoted.quote, quoted.pcr_values, logs.event_log, logs.ima_log, certified)
    return evidence, expected, Besides(logs, certified)


def besides_of(gathered: Mapping[str, Gathered]) -> Besides:
    """Return what came beside the quote: every machine has a TPM."""
    besides = gathered[TPM.name][2]
    assert isinstance(besides, Besides)
    return besides


def remembered(
    asked: Asked, besides: Besides, appraisal: Appraisal, at: datetime, *, changed: bool
) -> measurements.Remembered:
    """Return what is to be known of the logs, without those that may not be kept.

    Where a policy needs these, the machine is asked again.
    """
    tx, machine, policy = asked.tx, asked.machine, asked.policy
    values = found_in(appraisal).claims.pcrs.get(policy.tpm.bank, {})
    found = measurements.remember(
        tx, besides.logs, machine, policy, values, asked.res.replays, changed=changed
    )
    if not found.logs or limits.may_keep_logs(tx, machine, found.logs, at):
        return found
    known = found.event_log_sha256 == machine.event_log_sha256
    return measurements.Remembered(event_log_sha256=machine.event_log_sha256 if known else None)


def stored(
    tx: Tx,
    machine: Machine,
    policy: Policy,
    challenge: Challenge,
    appraisal: Appraisal,
    logs: measurements.Remembered,
    certified: KeyCertificationClaims | None,
) -> StoredEvidence:
    """Return what a result was judged from."""
    if machine.tee is not None:
        return StoredEvidence(
            policy_sha256=policy.sha256, assurance=appraisal.assurance, nonce=challenge.nonce
        )
    vouched = tx.ek_certificates.get(machine.machine_id)
    claims, bank = found_in(appraisal).claims, policy.tpm.bank
    return StoredEvidence(
        pcr_bank=bank_name(bank),
        pcr_values=claims.pcrs.get(bank, {}),
        event_log_sha256=logs.event_log_sha256 or logs.astray_sha256,
        ima_log_sha256=logs.ima_log_sha256,
        policy_sha256=policy.sha256,
        assurance=appraisal.assurance,
        bundle_sha256=vouched.validation.bundle_sha256 if vouched is not None else None,
        nonce=challenge.nonce,
        ek_key_attested=certified is not None,
    )


def _same_ek(sent: str, identity: Anchor) -> None:
    """Check whom the request names; the older form is SHA-384 over the public area as sent (PROTOCOL §0)."""
    named = sent.lower().encode("ascii")
    if hmac.compare_digest(named, identity.ek_fingerprint.encode("ascii")):
        return
    older = hashlib.sha384(identity.ek_public).hexdigest()
    if not hmac.compare_digest(named, older.encode("ascii")):
        raise EKFingerprintMismatch("ek_fingerprint is not that of this machine")
