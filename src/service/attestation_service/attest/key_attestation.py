"""The second protocol in the service: when it is offered, and what its answer proves (TPM.md §3.3).

The key of an offer lives in the challenge: for its lifetime at most, erased in the statement that redeems it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from attestation.api import AttestRequest, EKChallenge
from attestation.appraisal import Appraisal
from attestation.appraisal.tpm import found_in
from attestation.errors import MalformedEvidence
from attestation.evidence import ek_key_attestation
from attestation.evidence.ek_key_attestation import MEDIA_TYPE, KeyCertificationClaims
from attestation.machines import Machine
from attestation.reference import Policy
from attestation.results import Verdict
from attestation.results.tpm_checks import FIRMWARE_BLOCKLIST
from attestation.store import Challenge
from attestation.tpm import parse_public
from attestation.wire import b64decode, b64encode

MAX_PART_BYTES: Final = 4096
_MEMBERS: Final = {"certify_info", "signature"}


@dataclass(frozen=True, slots=True)
class Offered:
    """A challenge to be stored, with what the node is shown besides."""

    challenge: Challenge
    ek_challenge: EKChallenge | None


def offer_first(challenge: Challenge, machine: Machine) -> Offered:
    """Offer it with a challenge that a node came for: at its start, after a boot, after an enrolment.

    It is offered where the firmware that the machine ran last was never proven, also where no policy asks: the
    answer costs the node two commands, and operators then know the firmware from the TPM's maker's own key.
    """
    if machine.tee is not None:
        return Offered(challenge, None)
    now = machine.clock.firmware_version if machine.clock is not None else None
    unproven = machine.firmware_attested is None or machine.firmware_attested != now
    return _offer(challenge, machine) if unproven else Offered(challenge, None)


def offer_next(
    challenge: Challenge,
    machine: Machine,
    policy: Policy,
    appraisal: Appraisal | None,
    certified: KeyCertificationClaims | None,
) -> Offered:
    """Offer it with the challenge of an answer: only where the policy needs it for the firmware just quoted.

    Not to everybody: sealing a key costs more than all the rest of an answer, and most machines never need it.
    """
    if policy.tpm.ek_key_attestation is None or appraisal is None or machine.tee is not None:
        return Offered(challenge, None)
    known = machine.firmware_attested if certified is None else certified.firmware_version
    if known == found_in(appraisal).clock.firmware_version:
        return Offered(challenge, None)
    return _offer(challenge, machine)


def _offer(challenge: Challenge, machine: Machine) -> Offered:
    secret = secrets.token_bytes(ek_key_attestation.OFFER_SECRET_BYTES)
    sealed = ek_key_attestation.offer(parse_public(machine.tpm.ek_public), secret)
    kinds = [*json.loads(challenge.evidence or "[]"), ek_key_attestation.KIND]
    return Offered(
        replace(challenge, evidence=json.dumps(kinds), ek_challenge=secret),
        EKChallenge(
            object_public=b64encode(sealed.object_public),
            duplicate=b64encode(sealed.duplicate),
            in_sym_seed=b64encode(sealed.in_sym_seed),
        ),
    )


def requested(challenge: Challenge) -> bool:
    """Say whether *challenge* carried an offer."""
    return challenge.ek_challenge is not None


def verified(request: AttestRequest, challenge: Challenge, machine: Machine) -> KeyCertificationClaims | None:
    """Return what the EK vouched for in *request*; None where it says nothing of that. The machine has an AK.

    Raises:
        MalformedEvidence: Sent twice, unasked, or not of the form.
        EvidenceRejected: It does not verify; then nothing else in the request is believed either.
    """
    items = [item for item in request.evidence if item.media_type == MEDIA_TYPE]
    if not items:
        return None
    if len(items) > 1:
        raise MalformedEvidence("the key certification is there more than once")
    if challenge.ek_challenge is None:
        raise MalformedEvidence("a key certification answers a challenge that offered no key")
    assert challenge.nonce is not None
    assert machine.tpm.ak_public is not None
    value = items[0].value
    if not isinstance(value, Mapping) or set(value) != _MEMBERS:
        raise MalformedEvidence("a key certification has two members: certify_info and signature")
    parts = {name: b64decode(text, name, max_bytes=MAX_PART_BYTES) for name, text in value.items()}
    return ek_key_attestation.verify(
        ek_key_attestation.parse(parts["certify_info"], parts["signature"]),
        secret=challenge.ek_challenge,
        challenge=challenge.nonce,
        ek=parse_public(machine.tpm.ek_public),
        ak=parse_public(machine.tpm.ak_public),
    )


def learned(
    machine: Machine, appraisal: Appraisal, certified: KeyCertificationClaims | None
) -> dict[str, Any]:
    """Return what changes in what is known of the firmware; empty where nothing does, which is nearly always.

    The firmware that the EK vouched for is kept with a Verified result only, like all that is proven. What
    forbids it is kept with any result that was decided.
    """
    changes: dict[str, Any] = {}
    result = appraisal.result
    if certified is not None and result.verdict is Verdict.VERIFIED:
        changes["firmware_attested"] = certified.firmware_version
    # "absent" names no advisory: a policy wants a verdict, and nobody vouches for maker or version.
    blocked = [f.found for f in result.failed if f.check == FIRMWARE_BLOCKLIST.name and f.found != "absent"]
    changes["firmware_blocked"] = blocked[0] if blocked else None
    return {name: value for name, value in changes.items() if getattr(machine, name) != value}
