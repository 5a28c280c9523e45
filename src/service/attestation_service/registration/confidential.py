"""A confidential machine without a TPM introduces itself, and its hardware vouches for its subject key (PROTOCOL §9).

Who it is, is known from authentic evidence only: an introduction says which kind of hardware will speak, and for
which key.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from attestation.api import HardwareChallenge, IntroduceRequest, IntroduceResponse, TEEActivateRequest
from attestation.envelope import subject_key, subject_name
from attestation.errors import ChallengeUnknown, EphemeralForbidden
from attestation.machines import EPHEMERAL, NAMED_GUEST, SeenHardware, Status
from attestation.report_data import hardware_fingerprint
from attestation.store import Challenge, Tx
from attestation.wire import b64decode, b64encode
from attestation_service.border import limits
from attestation_service.entitlements import hardware, pending
from attestation_service.registration.admission import admit
from attestation_service.registration.introduction import Introduction
from attestation_service.resources import Resources
from attestation_service.verifier import challenges

MAX_SUBJECT_KEY_BYTES = 256
NONCE_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Who a machine is, by evidence that is authentic for this challenge.

    Args:
        introduction: What it said, and its fingerprint.
        seen: What the evidence shows of its hardware.
    """

    introduction: Introduction
    seen: SeenHardware


def prepare(
    tx: Tx,
    request: IntroduceRequest,
    messages: Mapping[Status, str],
    *,
    registration_token_sha256: bytes | None,
    source: str,
    res: Resources,
    at: datetime,
) -> tuple[Challenge, IntroduceResponse]:
    """Return a challenge for the hardware of a machine, and what it is told.

    Raises:
        MalformedEvidence: It is no P-384 key.
        RegistrationTokenInvalid, PendingQuotaExceeded: As for a machine with a TPM.
        RateLimited: Too often for this key, or too much is not answered yet.
    """
    assert request.tee is not None
    assert request.subject_key is not None
    spki = b64decode(request.subject_key, "subject_key", max_bytes=MAX_SUBJECT_KEY_BYTES)
    subject_key(spki)
    name = subject_name(spki)
    limits.check(tx, limits.of_client(res.settings, source, name.hex()), at)
    pending.check_room(tx, res.settings, source, ek=None, at=at)
    introduction = Introduction(
        ek_public=b"",
        ek_fingerprint="",
        ek_source=request.tee,
        ek_template="",
        certificate=None,
        certificate_der=None,
        chip_serial=None,
        chain=(),
        alternatives=(),
        ak_public=spki,
        ak_name=name,
        hw={
            "hw_uuid": request.hw_uuid,
            "hw_mac": request.hw_mac,
            "hw_serial": request.hw_serial,
            "hw_product": request.hw_product,
        },
        desired_role=request.desired_role,
        cluster_id=request.cluster_id,
        registration_token_sha256=registration_token_sha256,
        source=source,
    )
    # Which machine has this key, if one has. That it is this one, only its hardware says.
    bound = tx.ak_bindings.get(name)
    machine = tx.machines.by_ek(bound.ek_fingerprint) if bound is not None else None
    if machine is None:
        admit(tx, introduction, None, res, at, waits=False)
    machine_id = machine.machine_id if machine is not None else str(uuid.uuid4())
    status = machine.status if machine is not None else Status.PENDING_APPROVAL
    nonce, expires_at = (
        secrets.token_bytes(NONCE_BYTES),
        at + timedelta(seconds=res.settings.challenge_ttl_seconds),
    )
    challenge = Challenge(
        challenge_id=secrets.token_hex(16),
        purpose="activate",
        machine_id=machine_id,
        ek_fingerprint=name.hex(),
        nonce=nonce,
        payload=introduction.to_json(),
        issued_at=at,
        expires_at=expires_at,
    )
    answer = IntroduceResponse(
        machine_id=machine_id,
        status=status,
        role=None,
        message=messages[status] if machine is not None else "prove the hardware: send its evidence",
        challenge=HardwareChallenge(
            challenge_id=challenge.challenge_id, nonce=b64encode(nonce), expires_at=expires_at
        ),
    )
    return challenge, answer


def verify(tx: Tx, machine_id: str, request: TEEActivateRequest, *, res: Resources, at: datetime) -> Proven:
    """Return who the machine is.

    Raises:
        ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        MalformedEvidence, EvidenceRejected, EphemeralForbidden, Unavailable: It proves nothing, or not enough.
    """
    challenge = challenges.still_open(tx.challenges.get(request.challenge_id), machine_id, at, "activate")
    if challenge.nonce is None or challenge.payload is None:
        raise ChallengeUnknown("this challenge is for a TPM")
    said = Introduction.from_json(challenge.payload)
    found = hardware.statement(
        tx,
        said.ek_source,
        request.evidence,
        nonce=challenge.nonce,
        machine_id=machine_id,
        spki=said.ak_public,
        res=res,
        at=at,
    )
    named = found.names_the_guest
    if not named and not res.settings.tee_ephemeral_roles:
        raise EphemeralForbidden(
            "chip or guest has no name that outlasts this boot: name the guest in HOST_DATA or MRCONFIGID, or let such "
            "machines in by ITL_TEE_EPHEMERAL_ROLES"
        )
    fingerprint = hardware_fingerprint(
        said.ek_source, found.chip, found.guest, None if named else said.ak_public
    )
    introduction = replace(
        said, ek_fingerprint=fingerprint.hex(), ek_template=NAMED_GUEST if named else EPHEMERAL
    )
    return Proven(
        introduction=introduction, seen=hardware.as_seen(hardware.TEE_KINDS[said.ek_source].kind, found)
    )
