"""One attestation is loaded and judged: pure of writes, so it may run twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from attestation.api import AttestRequest
from attestation.appraisal import Appraisal, Case
from attestation.appraisal.confidential import collateral_rules
from attestation.errors import (
    AKNotActivated,
    AttestationError,
    EKFingerprintMismatch,
    EphemeralForbidden,
    EvidenceRejected,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
)
from attestation.evidence.ek_key_attestation import KeyCertificationClaims
from attestation.machines import Machine, SeenHardware
from attestation.reference import Policy
from attestation.results import Verdict
from attestation.store import Challenge, Tx
from attestation_service.attest import hardware, tpm
from attestation_service.attest.asked import Asked
from attestation_service.attest.decision import Decision, decide
from attestation_service.attest.kinds import SIDES, expected_of
from attestation_service.border import limits
from attestation_service.context.request import Origin
from attestation_service.entitlements import ephemeral
from attestation_service.resources import Resources
from attestation_service.verifier import challenges, measurements, policy

REFUSALS: Final = (
    MalformedEvidence,
    EvidenceRejected,
    EKFingerprintMismatch,
    AKNotActivated,
    EphemeralForbidden,
    MachineRejected,
)
"""What ends an appraisal but still spends the challenge."""


class Appraised(NamedTuple):
    """A case with its appraisal, ready to be written: `refusal` is set where it proves nothing.

    What it rests on is compared where it is written: the machine's version and the `revision` of what applies.
    `wanted` names collateral that was missing and may be asked for.
    """

    machine: Machine
    identities: Mapping[str, object]
    policy: Policy
    revision: int
    challenge: Challenge
    appraisal: Appraisal | None = None
    decision: Decision | None = None
    remembered: measurements.Remembered | None = None
    certified: KeyCertificationClaims | None = None
    wanted: tuple[str, ...] = ()
    refusal: AttestationError | None = None
    seen: SeenHardware | None = None

    @property
    def event_log_known(self) -> bool:
        """True if the machine need not send its event log again."""
        return self.remembered is not None and self.remembered.event_log_sha256 is not None


def judge(
    tx: Tx,
    request: AttestRequest,
    counted: limits.Limits,
    res: Resources,
    origin: Origin,
    at: datetime,
) -> Appraised:
    """Load the case and appraise it; a refusal is a value, because it still spends the challenge."""
    address_key, machine_key = limits.keys_of_client(origin.address, request.machine_id)
    loaded = tx.attestations.load(
        request.machine_id, request.nonce_id, address_key=address_key, machine_key=machine_key
    )
    if loaded is None:
        limits.check(tx, counted, at)
        raise MachineUnknown("no such machine")
    limits.check_loaded(counted, (loaded.address_tat_us, loaded.machine_tat_us), at)
    limits.check(tx, counted[2:], at)
    # 1. The machine and an unspent challenge of its own. Without these there is nothing to judge or to spend.
    machine = loaded.machine
    challenge = challenges.still_open(loaded.challenge, request.machine_id, at)
    in_force = policy.effective(tx, loaded.policies, machine.role, res.settings)
    found = Appraised(
        machine=machine,
        identities=loaded.identities,
        policy=in_force,
        revision=loaded.revision,
        challenge=challenge,
    )
    try:
        # 2. What came of each kind that is expected: it means this machine, which has keys that could have signed.
        assert challenge.policy_ref is not None
        ephemeral.demand_allowed(machine, machine.role, res.settings)
        asked = Asked(tx, request, machine, in_force, challenge, res, at)
        kinds = expected_of(asked, loaded.identities).items()
        gathered = {name: SIDES[name].gather(identity, asked) for name, identity in kinds}
        evidence = {name: each[0] for name, each in gathered.items()}
        expected = {name: each[1] for name, each in gathered.items()}
        case = Case(
            expected=expected,
            requested_policy=challenge.policy_ref,
            policy=in_force,
            assurance=machine.assurance,
            role=machine.role,
            cluster=machine.cluster_id or "",
        )
        # 3. Authentic? Then as expected? Then what the table says.
        appraisal = res.appraise(evidence, case, at)
        if appraisal.error is not None:
            raise appraisal.error
        hardware.demand_own(machine, loaded.identities, appraisal)
        if appraisal.result.verdict is not Verdict.VERIFIED and collateral_rules(in_force).allow_fetch:
            missing = (res.collateral.missing(tx, kind, each, at) for kind, each in evidence.items())
            found = found._replace(wanted=tuple(name for names in missing for name in names))
        # In protocol 1 an unlock was no order: such an agent believes the status.
        told = machine if request.node_nonce is not None else replace(machine, unlock_pending=False)
        decision = decide(told, appraisal, in_force)
        seen = hardware.seen_in(asked, appraisal, expected)
        if machine.tee is not None:
            return found._replace(
                appraisal=appraisal, decision=decision, remembered=measurements.Remembered(None), seen=seen
            )
        besides = tpm.besides_of(gathered)
        remembered = tpm.remembered(asked, besides, appraisal, at, changed=decision.changed)
    except REFUSALS as refusal:
        return found._replace(refusal=refusal)
    return found._replace(
        appraisal=appraisal, decision=decision, remembered=remembered, certified=besides.certified, seen=seen
    )
