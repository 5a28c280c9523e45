"""A machine introduces itself, then proves that its AK lives in its TPM (PROTOCOL §§1-2).

Nothing unauthenticated creates, changes or deletes a machine: an introduction stores a challenge, only the
answer to it, made inside the TPM, creates the row.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from attestation.api import (
    ActivateRequest,
    ActivateResponse,
    ActivationChallenge,
    AlternativeCredential,
    IntroduceRequest,
    IntroduceResponse,
    RegisterRequest,
    TEEActivateRequest,
)
from attestation.audit import AuditEvent
from attestation.errors import (
    ActivationFailed,
    AKConflict,
    AttestationError,
    ChallengeUnknown,
    EndorsementMissing,
    EphemeralForbidden,
    EvidenceRejected,
    MalformedEvidence,
    RegistrationForbidden,
    Unavailable,
)
from attestation.evidence import ak_activation
from attestation.evidence.ak_activation import SECRET_BYTES, Offer
from attestation.keys import WELCOME_TYP
from attestation.machines import (
    Machine,
    SeenHardware,
    Status,
)
from attestation.store import AKBinding, Challenge, Tx
from attestation.wire import b64decode, b64encode
from attestation_service.border import limits
from attestation_service.border.networks import is_inside
from attestation_service.context.request import From, Origin
from attestation_service.entitlements import alarms, config_tokens, events, pending
from attestation_service.entitlements.config_tokens import IssuedToken
from attestation_service.keys import crypto_policy, statements
from attestation_service.registration import confidential, elsewhere, vouching
from attestation_service.registration.admission import admit, confirm, create, endorsed_by
from attestation_service.registration.binding import (
    ELSEWHERE,
    bound_elsewhere,
    displace,
    gives_way,
    is_vouched,
    kinship_shown,
    sound_stolen,
)
from attestation_service.registration.introduction import Alternative, Introduction, judge
from attestation_service.registration.vouching import NOBODY
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Id

MESSAGES = {
    Status.PENDING_APPROVAL: "waits for an operator's approval",
    Status.REGISTERED: "registered; attest to get a configuration",
    Status.ATTESTED: "attested",
    Status.REJECTED: "an operator rejected this machine",
    Status.LOCKED: "locked by an operator",
    Status.REVOKED: "revoked by an operator",
}


async def introduce(
    request: IntroduceRequest | RegisterRequest, *, res: Resources, origin: Origin
) -> IntroduceResponse:
    """Answer an introduction with a credential that only the introduced TPM can open.

    Raises:
        AKConflict: Another AK is activated for this EK.
        PendingQuotaExceeded: Too many machines await approval.
        RegistrationTokenInvalid: The token presented admits nobody.
        RegistrationForbidden: Not from a network that may introduce machines.
        RateLimited: Too often from this address or for this EK, or too much is not answered yet.
        MalformedEvidence, NotAuthentic, RequestInvalid: See `introduction.judge`.
    """
    at = res.clock.now()
    networks = res.settings.registration_nets
    if networks and not is_inside(origin.address, networks):
        refused = RegistrationForbidden("machines may not be introduced from this network")
        await limits.count(res, origin)
        await res.store.write(
            lambda tx: limits.audit_denied(tx, limits.denial("introduce", refused, origin), at)
        )
        raise refused
    token = request.registration_token if isinstance(request, RegisterRequest) else None
    token_sha256 = config_tokens.sha256(token) if token is not None else None

    alarming: list[tuple[Introduction, AKBinding]] = []
    doubled: list[tuple[Introduction, Machine]] = []

    def prepare(tx: Tx) -> tuple[Challenge, IntroduceResponse, str | None]:
        # 1. Not too often: parsing and sealing cost more than asking.
        limits.check(tx, limits.of_client(res.settings, origin.address), at)
        if request.tee is not None:
            told = confidential.prepare(
                tx,
                request,
                MESSAGES,
                registration_token_sha256=token_sha256,
                source=origin.address,
                res=res,
                at=at,
            )
            return *told, None
        # 2. Everything that can be checked without the TPM.
        introduction, keys, others = judge(
            request,
            registration_token_sha256=token_sha256,
            source=origin.address,
            at=at,
            allow_simulator=res.settings.tpm_allow_simulator,
        )
        for each in (keys, *others):
            crypto_policy.demand_tpm_keys(crypto_policy.of(res.settings), each.ek, each.ak)
        limits.check(tx, limits.of_client(res.settings, origin.address, introduction.ek_fingerprint), at)
        validation = endorsed_by(tx, introduction, res, at)
        vouched = is_vouched(tx, introduction, validation) and pending.has_room(
            tx, res.settings, introduction.ek_fingerprint, at
        )
        introduction = replace(introduction, vouched=vouched)
        pending.check_room(tx, res.settings, origin.address, ek=introduction.vouched_ek, at=at)
        # 3. An AK belongs to one EK for ever. Otherwise a revoked machine would come back under another EK of its TPM.
        stolen = bound_elsewhere(tx, introduction)
        if stolen is not None and not gives_way(tx, stolen, introduction, validation):
            alarming[:] = [(introduction, stolen)]  # once, however often the unit is run
            raise AKConflict(ELSEWHERE)
        # 4. Known already? Then with this AK, or with none since an operator reset it.
        machine = tx.machines.by_ek(introduction.ek_fingerprint)
        if machine is not None and elsewhere.others_shown(machine, introduction):
            doubled[:] = [(introduction, machine)]
        if machine is None or machine.expected:
            waits = kinship_shown(tx, "", introduction, ()).waits
            admit(tx, introduction, validation, res, at, waits=waits, expected=machine is not None)
        elif machine.key_name not in (None, introduction.ak_name):
            raise AKConflict("another attestation key is activated for this EK; an operator resets it")
        # 5. A secret for this TPM and AK only, and one for each further EK; we keep what the right answers hash to.
        machine_id = machine.machine_id if machine else str(uuid.uuid4())
        challenge_id = secrets.token_hex(16)
        offer, *offers = (
            ak_activation.offer(
                each,
                secret=secrets.token_bytes(SECRET_BYTES),
                machine_id=machine_id,
                challenge_id=challenge_id,
                primary=None if each is keys else introduction.ek_fingerprint,
            )
            for each in (keys, *others)
        )
        introduction = introduction.expecting([each.expected_sha256 for each in offers])
        expires_at = at + timedelta(seconds=res.settings.challenge_ttl_seconds)
        challenge = Challenge(
            challenge_id=challenge_id,
            purpose="activate",
            machine_id=machine_id,
            ek_fingerprint=introduction.ek_fingerprint,
            proof_sha256=offer.expected_sha256,
            payload=introduction.to_json(),
            issued_at=at,
            expires_at=expires_at,
        )
        status = machine.status if machine else Status.PENDING_APPROVAL
        answer = IntroduceResponse(
            machine_id=machine_id,
            status=status,
            # What an operator granted is told to whoever proved to be that machine, at the activation.
            role=None,
            message=MESSAGES[status] if machine else "prove the TPM: activate the credential",
            activation=ActivationChallenge(
                challenge_id=challenge_id,
                credential_blob=b64encode(offer.credential.credential_blob),
                encrypted_secret=b64encode(offer.credential.encrypted_secret),
                expires_at=expires_at,
                **({"alternatives": _credentials(introduction, offers)} if offers else {}),
            ),
        )
        return challenge, answer, introduction.vouched_ek

    try:
        async with limits.CountRefusals(
            res.store,
            limits.of_client(res.settings, origin.address),
            at,
            lambda e: limits.denial("introduce", e, origin),
        ):
            challenge, answer, vouched_ek = await res.store.read(prepare)
    except AKConflict:
        for each, bound in alarming:
            await res.store.write(partial(sound_stolen, introduction=each, bound=bound, at=at))
        for each, known in doubled:
            await res.store.write(partial(elsewhere.sound_unproven, machine=known, introduction=each, at=at))
        raise

    def keep(tx: Tx) -> None:
        limits.take(tx, limits.of_client(res.settings, origin.address, challenge.ek_fingerprint), at)
        size_bytes = len(challenge.payload or "")
        pending.take_room(tx, res.settings, origin.address, size_bytes, ek=vouched_ek, at=at)
        tx.challenges.issue(challenge)

    await res.store.write(keep)
    return answer


def _credentials(introduction: Introduction, offers: Sequence[Offer]) -> list[AlternativeCredential]:
    return [
        AlternativeCredential(
            ek_fingerprint=each.ek_fingerprint,
            credential_blob=b64encode(offer.credential.credential_blob),
            encrypted_secret=b64encode(offer.credential.encrypted_secret),
        )
        for each, offer in zip(introduction.alternatives, offers, strict=True)
    ]


async def activate(machine_id: Id, request: ActivateRequest, *, res: Res, origin: From) -> ActivateResponse:
    """Prove that the attestation key lives in the introduced TPM.

    Spend the challenge; create the machine or confirm its attestation key.

    Raises:
        ChallengeUnknown, ChallengeUsed, ChallengeExpired: The challenge cannot be answered.
        MalformedEvidence, ActivationFailed: The proof is wrong; the challenge is spent.
        AKConflict: Another AK was activated for this EK meanwhile; the challenge is spent.
        RegistrationTokenInvalid, PendingQuotaExceeded: What admitted it at introduction is gone.
        RateLimited: Too often.
    """
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)
    await res.store.read(lambda tx: limits.check(tx, counted, at))

    def conclude(tx: Tx) -> _Concluded:
        limits.take(tx, counted, at)
        # 1. Single use: the second of two racers fails here. Spent whatever follows, and what it held is erased.
        challenge, introduction = _redeemed(tx, request.challenge_id, machine_id, res, at)
        if challenge.proof_sha256 is None:
            return ChallengeUnknown("this challenge is for confidential hardware")
        # 2. Only the TPM that holds EK and AK knows the secret. A wrong proof changes nothing else.
        try:
            ak_activation.verify(
                ak_activation.parse(b64decode(request.proof, "proof")),
                expected_sha256=challenge.proof_sha256,
                ak_name=introduction.ak_name,
                ek_fingerprint=introduction.ek_fingerprint,
            )
            proven = _proven(introduction, request.alternative_proofs)
        except (MalformedEvidence, ActivationFailed) as e:
            limits.audit_denied(tx, _denied(machine_id, e, origin), at)
            return e
        # 3. Who vouches for the AK: for this very activation. Nobody is no reason to refuse it.
        return _admitted(
            tx,
            machine_id,
            introduction,
            proven,
            lambda: vouching.judge(
                tx, shown, introduction, machine_id=machine_id, request=request, anchors=res.anchors.ak, at=at
            ),
            None,
            res,
            origin,
            at,
        )

    async with limits.CountRefusals(res.store, counted, at):
        # What cannot be read spends nothing: the machine may come again without it.
        shown = vouching.parse(request.ak_certificate)
        concluded = await res.store.write(conclude)
    return await _answered(concluded, request, res, origin, at)


async def tee_activate(
    machine_id: Id, request: TEEActivateRequest, *, res: Res, origin: From
) -> ActivateResponse:
    """Prove that confidential hardware vouches for the introduced key.

    Spend the challenge; create the machine or confirm its key.

    Raises:
        ChallengeUnknown, ChallengeUsed, ChallengeExpired: The challenge cannot be answered.
        MalformedEvidence, EvidenceRejected: The evidence proves nothing; the challenge is spent.
        EphemeralForbidden: Nothing names the guest beyond this boot, and no rule lets such machines in.
        Unavailable: What vouches for the hardware is not at hand; the challenge is spent.
        AKConflict: Another key was activated for this hardware; the challenge is spent.
        RegistrationTokenInvalid, PendingQuotaExceeded: What admitted it at introduction is gone.
        RateLimited: Too often.
    """
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)

    def judge(tx: Tx) -> confidential.Proven | AttestationError:
        limits.check(tx, counted, at)
        try:
            return confidential.verify(tx, machine_id, request, res=res, at=at)
        except (MalformedEvidence, EvidenceRejected, EphemeralForbidden, Unavailable) as refusal:
            return refusal

    def conclude(tx: Tx) -> _Concluded:
        limits.take(tx, counted, at)
        _redeemed(tx, request.challenge_id, machine_id, res, at)
        if isinstance(judged, AttestationError):
            limits.audit_denied(tx, _denied(machine_id, judged, origin, "tee-activate"), at)
            return judged
        return _admitted(
            tx, machine_id, judged.introduction, (), lambda: NOBODY, judged.seen, res, origin, at
        )

    async with limits.CountRefusals(res.store, counted, at):
        judged = await res.store.read(judge)
        if isinstance(judged, EndorsementMissing) and await res.collateral.fetch(judged.names):
            judged = await res.store.read(judge)
        concluded = await res.store.write(conclude)
    return await _answered(concluded, request, res, origin, at)


_Concluded = tuple[Machine, IssuedToken | None] | AttestationError


def _redeemed(
    tx: Tx, challenge_id: str, machine_id: str, res: Resources, at: datetime
) -> tuple[Challenge, Introduction]:
    """Spend a challenge, and give back the room that it took."""
    challenge = tx.challenges.get(challenge_id)
    tx.challenges.redeem(challenge_id, "activate", machine_id, at)
    assert challenge is not None
    assert challenge.payload is not None
    introduction = Introduction.from_json(challenge.payload)
    pending.give_room(
        tx, res.settings, introduction.source, len(challenge.payload), ek=introduction.vouched_ek
    )
    return challenge, introduction


def _admitted(
    tx: Tx,
    machine_id: str,
    introduction: Introduction,
    proven: Sequence[Alternative],
    vouch: Callable[[], vouching.Vouching],
    seen: SeenHardware | None,
    res: Resources,
    origin: Origin,
    at: datetime,
) -> _Concluded:
    """Return the machine that proved what it is, written down, and its config token where it was admitted already."""
    # 1. Asked again, like all that follows: another machine may have been faster.
    stolen = bound_elsewhere(tx, introduction)
    what = "ak-activate" if seen is None else "tee-activate"
    if stolen is not None and not gives_way(
        tx, stolen, introduction, endorsed_by(tx, introduction, res, at), proven
    ):
        conflict = AKConflict(ELSEWHERE)
        sound_stolen(tx, introduction, stolen, at, proven)
        limits.audit_denied(tx, _denied(machine_id, conflict, origin, what), at)
        return conflict
    # 2. New, or known with this key.
    machine = tx.machines.by_ek(introduction.ek_fingerprint)
    if machine is not None and machine.key_name not in (None, introduction.ak_name):
        conflict = AKConflict("another attestation key is activated for this EK; an operator resets it")
        limits.audit_denied(tx, _denied(machine.machine_id, conflict, origin, what), at)
        return conflict
    displaced = displace(tx, stolen, introduction, at) if stolen is not None else None
    vouched = vouch()
    if machine is None or (machine.expected and machine.status is Status.PENDING_APPROVAL):
        machine = create(tx, machine_id, introduction, proven, vouched, res, at, seen=seen, expected=machine)
    else:
        machine = confirm(tx, machine, introduction, proven, vouched, res, at, seen=seen)
    if displaced is not None:
        alarms.sound(
            tx, displaced, at, subject=machine.fingerprint, machine=machine, source=introduction.source
        )
    # 3. A token only where an operator admitted it already; delivery still needs an attestation.
    token = None
    if machine.status is Status.REGISTERED:
        token = config_tokens.issue(tx, machine, res.settings, at)
        events.image_given(tx, machine, res.settings.iso_url, at)
    return machine, token


def _proven(introduction: Introduction, proofs: Sequence[str]) -> tuple[Alternative, ...]:
    """Return the alternatives, each of them proven; none where no proofs came.

    Raises:
        MalformedEvidence, ActivationFailed: Some are wrong or missing.
    """
    if not proofs:
        return ()
    if len(proofs) != len(introduction.alternatives):
        raise ActivationFailed(
            f"{len(proofs)} alternative proofs for {len(introduction.alternatives)} credentials"
        )
    for proof, each in zip(proofs, introduction.alternatives, strict=True):
        ak_activation.verify(
            ak_activation.parse(b64decode(proof, "alternative_proofs")),
            expected_sha256=bytes.fromhex(each.expected_sha256),
            ak_name=introduction.ak_name,
            ek_fingerprint=each.ek_fingerprint,
        )
    return introduction.alternatives


def _denied(
    machine_id: str, error: AttestationError, origin: Origin, what: str = "ak-activate"
) -> AuditEvent:
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=machine_id,
        detail=f"{what}: {error.code}",
        source_ip=origin.address,
    )


async def _answered(
    concluded: _Concluded,
    request: ActivateRequest | TEEActivateRequest,
    res: Resources,
    origin: Origin,
    at: datetime,
) -> ActivateResponse:
    if isinstance(concluded, AttestationError):
        raise concluded
    if concluded[0].anchor.ek_chain_ok or concluded[0].anchor.ek_allow_listed:
        res.room.prove(origin.address)
    return await _activated(*concluded, request, res, at)


async def _activated(
    machine: Machine,
    token: IssuedToken | None,
    request: ActivateRequest | TEEActivateRequest,
    res: Resources,
    at: datetime,
) -> ActivateResponse:
    """Answer, with a welcome where the machine can tell whether it is meant: only that changes who it is."""
    offers: dict[str, str] = {}
    if request.node_nonce is not None:
        named = {"role": machine.role, "hostname": machine.hostname}
        claims = statements.claims(
            machine,
            request.node_nonce,
            at,
            challenge_id=request.challenge_id,
            status=machine.status,
            **{name: value for name, value in named.items() if value is not None},
        )
        offers["welcome"] = await asyncio.to_thread(res.signer.sign_jwt, claims, typ=WELCOME_TYP)
        if res.signer.unknown_to(machine, request.node_nonce):
            offers["next_keys"] = await asyncio.to_thread(
                res.signer.statement, machine, request.node_nonce, at
            )
    if token is not None:
        offers |= {"config_token": token.token, "config_url": token.url}
        if res.settings.iso_url:
            offers["iso_url"] = res.settings.iso_url
    return ActivateResponse(
        machine_id=machine.machine_id,
        status=machine.status,
        role=machine.role,
        ak_accepted=True,
        message=MESSAGES[machine.status],
        service_keys=res.signer.jwks(),
        **offers,
    )
