"""What an attestation tells of confidential hardware besides its verdict: what was seen, and how well that vouches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attestation.appraisal import KINDS, Appraisal
from attestation.errors import AttestationError, EKFingerprintMismatch
from attestation.machines import Machine, SeenHardware
from attestation.report_data import hardware_fingerprint
from attestation.results import Assurance, Verdict
from attestation.store import Tx
from attestation_service.attest.asked import Asked
from attestation_service.attest.kinds import SIDES, approved_of, sent_of, subject_of
from attestation_service.entitlements.hardware import as_seen, is_own


def seen_in(asked: Asked, appraisal: Appraisal, expected: Mapping[str, Any]) -> SeenHardware | None:
    """Return what authentic evidence showed of the processor; None where none came, or it was not believed.

    Evidence that nobody expects is looked at for this alone: it changes no verdict.
    """
    for kind, hardware in appraisal.hardware.items():
        return as_seen(kind, hardware)
    for kind in sent_of(asked):
        if kind in expected or not SIDES[kind].one:
            continue
        try:
            evidence, wanted, _ = SIDES[kind].gather(None, asked)
            found = KINDS[kind].hardware(KINDS[kind].verify(evidence, wanted))
        except AttestationError:
            return None
        return as_seen(kind, found) if found is not None else None
    return None


def demand_own(machine: Machine, identities: Mapping[str, Any], appraisal: Appraisal) -> None:
    """Check that before an approval the hardware of a machine without a TPM is the one that it is known by.

    After it another one is a finding: the processor may have been replaced, and operators approve what was seen.

    Raises:
        EKFingerprintMismatch: It is another machine's.
    """
    if machine.tee is None:
        return
    for kind, found in appraisal.hardware.items():
        identity = identities.get(kind)
        if approved_of(identity) is None and not is_own(machine, identity, found):
            raise EKFingerprintMismatch("the evidence is of other hardware than that of this machine")


def learned(machine: Machine, appraisal: Appraisal, seen: SeenHardware | None) -> dict[str, Any]:
    """Return what changes in what is known of the hardware; empty in the steady state."""
    changes: dict[str, Any] = {}
    if seen is not None and seen != machine.hardware:
        changes["hardware"] = seen
    vouched = appraisal.assurance is Assurance.TEE and appraisal.result.verdict is Verdict.VERIFIED
    if vouched != machine.vouched_by_hardware and appraisal.result.verdict is not Verdict.INDETERMINATE:
        changes["vouched_by_hardware"] = vouched
    return changes


def keep_identity(tx: Tx, machine: Machine, seen: SeenHardware | None) -> Machine:
    """Give a machine with a TPM an identity for hardware that was seen the first time; return it after that.

    Its AK is part of the value: two guests of one processor are two machines. Nobody approved anything thereby.
    """
    if seen is None or machine.tee is not None or seen.kind in tx.identities.of(machine.machine_id):
        return machine
    value = hardware_fingerprint(seen.kind, seen.chip, seen.guest, subject_of(machine))
    return tx.identities.add(machine, seen.kind, value)
