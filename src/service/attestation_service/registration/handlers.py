"""A machine introduces itself, then proves that its AK lives in its TPM (PROTOCOL §§1-2).

Nothing unauthenticated creates, changes or deletes a machine: an introduction stores a challenge, only the
answer to it, made inside the TPM, creates the row.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
)
from attestation.audit import AuditEvent
from attestation.endorsements import PathValidation, judge_ek_trust
from attestation.errors import (
    ActivationFailed,
    AKConflict,
    AttestationError,
    MalformedEvidence,
    NameInUse,
    RegistrationForbidden,
    RegistrationTokenInvalid,
)
from attestation.evidence import ak_activation
from attestation.evidence.ak_activation import SECRET_BYTES, Offer
from attestation.keys import WELCOME_TYP
from attestation.machines import (
    DEFAULT_CLUSTER,
    Machine,
    NodeEvent,
    Operation,
    Role,
    Status,
    next_status,
)
from attestation.machines.chips import ENDED, Kinship, Mark, MarkKind
from attestation.machines.chips import judge as kinship_of
from attestation.store import AKBinding, Challenge, RegistrationToken, Tx
from attestation.wire import b64decode, b64encode
from attestation_service import (
    alarms,
    config_tokens,
    crypto_policy,
    endorsements,
    limits,
    names,
    pending,
    policy,
    statements,
)
from attestation_service.config_tokens import IssuedToken
from attestation_service.context import Origin
from attestation_service.events import emit, hardware
from attestation_service.networks import is_inside
from attestation_service.registration.introduction import Alternative, Introduction, judge
from attestation_service.resources import Resources
from attestation_service.settings import Settings

MOST_MARKS = 16
"""So many marks of a chip are kept of one machine."""

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

    def prepare(tx: Tx) -> tuple[Challenge, IntroduceResponse, str | None]:
        # 1. Not too often: parsing and sealing cost more than asking.
        limits.check(tx, limits.of_client(res.settings, origin.address), at)
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
        validation = _endorsed(tx, introduction, res, at)
        vouched = _is_vouched(tx, introduction, validation) and pending.has_room(
            tx, res.settings, introduction.ek_fingerprint, at
        )
        introduction = replace(introduction, vouched=vouched)
        pending.check_room(tx, res.settings, origin.address, ek=introduction.vouched_ek, at=at)
        # 3. An AK belongs to one EK for ever. Otherwise a revoked machine would come back under another EK of its TPM.
        stolen = _bound_elsewhere(tx, introduction)
        if stolen is not None and not _gives_way(tx, stolen, introduction, validation):
            alarming.append((introduction, stolen))
            raise AKConflict(ELSEWHERE)
        # 4. Known already? Then with this AK, or with none since an operator reset it.
        machine = tx.machines.by_ek(introduction.ek_fingerprint)
        if machine is None:
            waits = _kinship(tx, "", introduction, ()).waits
            _admission(tx, introduction, validation, res, at, waits=waits)
        elif machine.ak_name not in (None, introduction.ak_name):
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
            await res.store.write(partial(_sound_stolen, introduction=each, bound=bound, at=at))
        raise

    def keep(tx: Tx) -> None:
        limits.take(tx, limits.of_client(res.settings, origin.address, challenge.ek_fingerprint), at)
        size_bytes = len(challenge.payload or "")
        pending.take_room(tx, res.settings, origin.address, size_bytes, ek=vouched_ek, at=at)
        tx.challenges.issue(challenge)

    await res.store.write(keep)
    return answer


ELSEWHERE = "this attestation key belongs to another EK"


def _bound_elsewhere(tx: Tx, introduction: Introduction) -> AKBinding | None:
    """Return whose the AK is, where it belongs to another EK."""
    bound = tx.ak_bindings.get(introduction.ak_name)
    return bound if bound is not None and bound.ek_fingerprint != introduction.ek_fingerprint else None


def _gives_way(
    tx: Tx,
    bound: AKBinding,
    introduction: Introduction,
    validation: PathValidation | None,
    proven: Sequence[Alternative] = (),
) -> bool:
    """Return True if a binding yields to the EK of *introduction*, once that EK answered its credential.

    To activate an AK takes no more than an EK: whoever saw its public part binds it to an EK of software before its own
    machine does. So the word of a vendor's chain or of the allow-list is worth more than having been first, as long as
    nobody decided anything about the other EK, and nobody turned away the chip that claims it: what vouches for an EK
    outlives that. Between two that nobody vouches for, the first keeps it.
    """
    return (
        _is_answered_for(tx, introduction, validation)
        and not _was_turned_away(tx, introduction, proven)
        and _is_undecided(tx, bound)
    )


def _was_turned_away(tx: Tx, introduction: Introduction, proven: Sequence[Alternative]) -> bool:
    """Return True where a machine of this chip is rejected, locked or revoked, or was when it was deleted."""
    machine = tx.machines.by_ek(introduction.ek_fingerprint)
    if machine is not None and machine.status in ENDED:
        return True
    marks = set(introduction.marks(proven))
    if machine is not None:
        marks.update(tx.chip_marks.of(machine.machine_id))
    known = tx.chip_marks.relatives("", marks)
    return any(each.is_same_chip and each.status in ENDED for each in known)


def _is_undecided(tx: Tx, bound: AKBinding) -> bool:
    """Return True where nobody vouches for the EK that has an AK, and nobody ever decided about its machine."""
    # 1. Its machine waits, or went while it waited. Whoever was admitted, rejected, locked or revoked keeps the key.
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    if holder is None and tx.chip_marks.of(bound.machine_id):
        return False
    if holder is not None and holder.status is not Status.PENDING_APPROVAL:
        return False
    # 2. Nobody vouches for it.
    if holder is not None and (holder.ek_chain_ok or holder.ek_allow_listed):
        return False
    if tx.allow_list.get(bound.ek_fingerprint) is not None:
        return False
    # 3. Nor was it decided about before: a machine that is deleted, or that showed this EK beside its own.
    known = tx.chip_marks.relatives("", [Mark(MarkKind.EK, bound.ek_fingerprint)])
    return all(each.status is Status.PENDING_APPROVAL for each in known)


def _displace(tx: Tx, bound: AKBinding, introduction: Introduction, at: datetime) -> str:
    """Take an AK from an EK that nobody vouches for, and its machine away; return what operators hear of it."""
    tx.ak_bindings.release(introduction.ak_name)
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    if holder is not None:
        why = f"its attestation key is that of EK {introduction.ek_fingerprint}, which is vouched for"
        pending.drop(tx, holder, at, action="pending_displaced", why=why)
    return (
        f"machine {_holder_id(bound, holder)} had claimed the attestation key of this machine under EK "
        f"{bound.ek_fingerprint}, for which nobody vouches, and is gone: somebody is between machines and this service"
    )


def _holder_id(bound: AKBinding, holder: Machine | None) -> str:
    """Return who has an AK: a machine that was purged and came back has another id than when it was bound."""
    return bound.machine_id if holder is None else holder.machine_id


CHECK = "compare the EK fingerprint that `attestation-agent identify` prints on the machine's own console with both"


def _sound_stolen(
    tx: Tx,
    introduction: Introduction,
    bound: AKBinding,
    at: datetime,
    proven: Sequence[Alternative] | None = None,
) -> None:
    """Tell that an AK came with another EK; *proven* is None where that EK answered nothing yet.

    To list an EK is advised only of one that answered its credential, and never without the check: whoever is listed
    so takes the key, and may be the stranger.
    """
    holder = tx.machines.by_ek(bound.ek_fingerprint)
    words = (
        f"the attestation key of machine {_holder_id(bound, holder)} was introduced with another EK, "
        f"{introduction.ek_fingerprint}; "
    )
    if proven is None:
        words += f"nothing was proven, anybody who saw the key can do that: {CHECK}, before you decide about either"
    else:
        words += f"{CHECK}, before you decide about either"
        if _is_undecided(tx, bound) and not _was_turned_away(tx, introduction, proven):
            # A rejection would leave the key with whoever is rejected.
            words += (
                "; nobody decided about that machine yet: where the fingerprint is the other one, put its EK on the "
                "allow-list before anything else: then it takes the key over"
            )
    alarms.sound(tx, words, at, subject=bound.ek_fingerprint, machine=holder, source=introduction.source)


def _kinship(tx: Tx, machine_id: str, introduction: Introduction, proven: Sequence[Alternative]) -> Kinship:
    """Say whether an EK that nobody knows is one of a chip that was known, or was itself known before."""
    relatives = tx.chip_marks.relatives(machine_id, introduction.marks(proven))
    found = kinship_of(relatives)
    # Known, never decided about and purged: nothing to tell, but an operator decides this time too.
    return replace(found, waits=found.waits or bool(tx.ak_bindings.machines_of(introduction.ek_fingerprint)))


def _is_vouched(tx: Tx, introduction: Introduction, validation: PathValidation | None) -> bool:
    """Return True where strangers cannot take this machine's place: it is known, on the list, or a vendor's."""
    machine = tx.machines.by_ek(introduction.ek_fingerprint)
    if machine is not None and machine.status is not Status.PENDING_APPROVAL:
        return True
    return _is_answered_for(tx, introduction, validation)


def _is_answered_for(tx: Tx, introduction: Introduction, validation: PathValidation | None) -> bool:
    """Return True where a vendor's chain or the allow-list vouches for the EK."""
    listed = tx.allow_list.get(introduction.ek_fingerprint) is not None
    return listed or (validation is not None and validation.ok)


def _credentials(introduction: Introduction, offers: Sequence[Offer]) -> list[AlternativeCredential]:
    return [
        AlternativeCredential(
            ek_fingerprint=each.ek_fingerprint,
            credential_blob=b64encode(offer.credential.credential_blob),
            encrypted_secret=b64encode(offer.credential.encrypted_secret),
        )
        for each, offer in zip(introduction.alternatives, offers, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Admission:
    """How a machine nobody knows may come in: what an operator decided in advance, or nothing."""

    status: Status
    role: Role | None = None
    hostname: str | None = None
    assigned_ip: str | None = None
    cluster_id: str | None = None
    allow_listed: bool = False
    alarm: str | None = None


def _endorsed(tx: Tx, introduction: Introduction, res: Resources, at: datetime) -> PathValidation | None:
    """Ask the bundle in force who vouches for the EK; None where it has no certificate."""
    if introduction.certificate_der is None or introduction.certificate is None:
        return None
    return res.anchors.judge(
        tx,
        introduction.certificate_der,
        introduction.chain,
        vendor=introduction.certificate.manufacturer,
        at=at,
        enrolling=True,
    )


def _waits(tx: Tx, token: RegistrationToken, validation: PathValidation | None, res: Resources) -> bool:
    """Return True where a machine is vouched for less than its token, or the role of the token, demands."""
    trust = judge_ek_trust(allow_listed=False, chain=validation)
    cluster_id = token.cluster_id or DEFAULT_CLUSTER
    needed = policy.of_role(tx, token.role, cluster_id, res.settings).assurance_minimum(token.role)
    return trust.assurance.level < max(needed.level, token.minimum_assurance.level)


def _admission(
    tx: Tx,
    introduction: Introduction,
    validation: PathValidation | None,
    res: Resources,
    at: datetime,
    *,
    waits: bool,
    spend: bool = False,
) -> _Admission:
    """Decide what a new machine becomes; `spend` takes a use of its registration token, `waits` passes all words over.

    A token admits a machine that is vouched for well enough for its role. Another one waits for an operator, and
    the token keeps its use; so does a machine that would be called like another one, whatever admits it.

    Raises:
        RegistrationTokenInvalid: A token was presented that admits nobody.
        PendingQuotaExceeded: It would wait for approval, and too many do.
    """
    taken: str | None = None
    entry = tx.allow_list.get(introduction.ek_fingerprint)
    if entry is not None and not waits:
        admission = _Admission(
            Status.REGISTERED,
            entry.role,
            entry.hostname,
            entry.assigned_ip,
            entry.cluster_id,
            allow_listed=True,
        )
        taken = _taken(tx, admission, res.settings)
        if taken is None:
            return admission
    digest = introduction.registration_token_sha256
    if digest is not None and not waits:
        token = tx.registration_tokens.get_by_hash(digest)
        if token is None or token.uses_left < 1 or token.revoked_at is not None or at >= token.expires_at:
            raise RegistrationTokenInvalid("the registration token is not valid here")
        admission = _Admission(
            Status.REGISTERED, token.role, token.hostname, token.assigned_ip, token.cluster_id
        )
        if not _waits(tx, token, validation, res):
            taken = _taken(tx, admission, res.settings)
            if taken is None and spend:
                tx.registration_tokens.use(digest, at)
            if taken is None:
                return admission
    vouched = entry is not None or (validation is not None and validation.ok)
    pending.check_quota(tx, res.settings, introduction.source, vouched=vouched, at=at, take=spend)
    return _Admission(
        Status.PENDING_APPROVAL, allow_listed=entry is not None and taken is not None, alarm=taken
    )


def _taken(tx: Tx, admission: _Admission, settings: Settings) -> str | None:
    """Return in words who else is called as *admission* says: then the machine waits, whatever admits it."""
    cluster_id = admission.cluster_id or DEFAULT_CLUSTER
    try:
        names.demand_free(tx, settings, "", cluster_id, admission.hostname, admission.assigned_ip)
    except NameInUse as e:
        return f"it was admitted in advance, but waits for approval: {e}"
    return None


async def activate(
    machine_id: str, request: ActivateRequest, *, res: Resources, origin: Origin
) -> ActivateResponse:
    """Check the proof of possession; create the machine or confirm its AK.

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

    def conclude(tx: Tx) -> tuple[Machine, IssuedToken | None] | AttestationError:
        limits.take(tx, counted, at)
        # 1. Single use: the second of two racers fails here. Spent whatever follows, and what it held is erased.
        challenge = tx.challenges.get(request.challenge_id)
        tx.challenges.redeem(request.challenge_id, "activate", machine_id, at)
        assert challenge is not None
        assert challenge.proof_sha256 is not None
        assert challenge.payload is not None
        introduction = Introduction.from_json(challenge.payload)
        pending.give_room(
            tx, res.settings, introduction.source, len(challenge.payload), ek=introduction.vouched_ek
        )
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
        # 3. Asked again, like all that follows: another machine may have been faster.
        stolen = _bound_elsewhere(tx, introduction)
        if stolen is not None and not _gives_way(
            tx, stolen, introduction, _endorsed(tx, introduction, res, at), proven
        ):
            conflict = AKConflict(ELSEWHERE)
            _sound_stolen(tx, introduction, stolen, at, proven)
            limits.audit_denied(tx, _denied(machine_id, conflict, origin), at)
            return conflict
        # 4. New, or known with this AK.
        machine = tx.machines.by_ek(introduction.ek_fingerprint)
        if machine is not None and machine.ak_name not in (None, introduction.ak_name):
            conflict = AKConflict("another attestation key is activated for this EK; an operator resets it")
            limits.audit_denied(tx, _denied(machine.machine_id, conflict, origin), at)
            return conflict
        displaced = _displace(tx, stolen, introduction, at) if stolen is not None else None
        if machine is None:
            machine = _create(tx, machine_id, introduction, proven, res, at)
        else:
            machine = _confirm(tx, machine, introduction, proven, res, at)
        if displaced is not None:
            alarms.sound(
                tx,
                displaced,
                at,
                subject=machine.ek_fingerprint,
                machine=machine,
                source=introduction.source,
            )
        # 5. A token only where an operator admitted it already; delivery still needs an attestation.
        token = None
        if machine.status is Status.REGISTERED:
            token = config_tokens.issue(tx, machine, res.settings, at)
        return machine, token

    async with limits.CountRefusals(res.store, counted, at):
        concluded = await res.store.write(conclude)
    if isinstance(concluded, AttestationError):
        raise concluded
    if concluded[0].ek_chain_ok or concluded[0].ek_allow_listed:
        res.room.prove(origin.address)
    return await _activated(*concluded, request, res, at)


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


def _denied(machine_id: str, error: AttestationError, origin: Origin) -> AuditEvent:
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=machine_id,
        detail=f"ak-activate: {error.code}",
        source_ip=origin.address,
    )


def _create(
    tx: Tx,
    machine_id: str,
    introduction: Introduction,
    proven: Sequence[Alternative],
    res: Resources,
    at: datetime,
) -> Machine:
    # Asked again: what was trusted at the introduction may be distrusted since.
    validation = _endorsed(tx, introduction, res, at)
    kinship = _kinship(tx, machine_id, introduction, proven)
    admission = _admission(tx, introduction, validation, res, at, waits=kinship.waits, spend=True)
    trust = judge_ek_trust(allow_listed=admission.allow_listed, chain=validation)
    machine = Machine(
        machine_id=machine_id,
        version=1,
        status=admission.status,
        role=admission.role,
        cluster_id=admission.cluster_id or DEFAULT_CLUSTER,
        ek_fingerprint=introduction.ek_fingerprint,
        ek_public=introduction.ek_public,
        ek_source=introduction.ek_source,
        ek_template=introduction.ek_template,
        ek_certificate=introduction.certificate,
        assurance=trust.assurance,
        ek_chain_ok=trust.chain_ok,
        ek_allow_listed=trust.allow_listed,
        hw_uuid=introduction.hw["hw_uuid"],
        hw_mac=introduction.hw["hw_mac"],
        hw_serial=introduction.hw["hw_serial"],
        hw_product=introduction.hw["hw_product"],
        desired_role=introduction.desired_role,
        desired_cluster_id=introduction.cluster_id,
        hostname=admission.hostname,
        assigned_ip=admission.assigned_ip,
        registered_from=introduction.source,
        registered_at=at,
        attested_at=None,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        ak_public=introduction.ak_public,
        ak_name=introduction.ak_name,
        ak_activated_at=at,
        clock=None,
        last_verdict=None,
        last_result_at=None,
        last_policy=None,
        last_failed=None,
        last_result_key=None,
        trust_expires_at=None,
        directive_sha256=None,
        alarm=kinship.alarm or admission.alarm,
        kept_bytes=introduction.kept_bytes,
    )
    tx.machines.add(machine)
    tx.chip_marks.put(machine_id, introduction.marks(proven))
    if kinship.alarm is not None:
        _sound_kinship(tx, machine, kinship, introduction.source, at)
    if admission.alarm is not None:
        subject = machine.ek_fingerprint
        alarms.sound(tx, admission.alarm, at, subject=subject, machine=machine, source=introduction.source)
    machine = _kept(tx, machine, introduction, validation, at)
    _bind(tx, machine, introduction, at)
    _registered(
        tx,
        machine,
        introduction,
        at,
        prev_state=None,
        detail=f"assurance {machine.assurance}: {trust.reason}",
    )
    return machine


def _sound_kinship(tx: Tx, machine: Machine, kinship: Kinship, source: str, at: datetime) -> None:
    assert kinship.alarm is not None
    assert kinship.about is not None
    words = f"machine {machine.machine_id} ({machine.status}): {kinship.alarm}"
    alarms.sound(tx, words, at, subject=kinship.about, machine=machine, source=source)


def _kept(
    tx: Tx, machine: Machine, introduction: Introduction, validation: PathValidation | None, at: datetime
) -> Machine:
    """Store the EK certificate with its judgement, where there is one."""
    if validation is None or introduction.certificate_der is None:
        return machine
    return endorsements.keep(tx, machine, introduction.certificate_der, introduction.chain, validation, at)


def _confirm(
    tx: Tx,
    machine: Machine,
    introduction: Introduction,
    proven: Sequence[Alternative],
    res: Resources,
    at: datetime,
) -> Machine:
    """Take the AK where an operator reset it; hardware hints are compared, never overwritten.

    A certificate of the EK that came this time is judged and kept: chips get theirs by firmware updates, too.
    """
    status = next_status(machine.status, Operation.ACTIVATE)
    detail, replaced = "AK confirmed", machine.ak_name is None
    if replaced:
        machine = tx.machines.update(
            machine, ak_public=introduction.ak_public, ak_name=introduction.ak_name, ak_activated_at=at
        )
        detail = "AK replaced after a reset"
    validation = _endorsed(tx, introduction, res, at)
    # What a vendor said of this EK stays true, whatever is shown later: nothing worse takes its place.
    if validation is not None and (validation.ok or not machine.ek_chain_ok):
        known, shown = machine.ek_certificate, introduction.certificate
        assert shown is not None  # it was judged
        if known is None or known.sha256 != shown.sha256:
            machine = tx.machines.update(machine, ek_certificate=shown, ek_source=introduction.ek_source)
            detail += (
                f"; EK certificate {shown.sha256[:16]} instead of {known.sha256[:16] if known else 'none'}"
            )
        machine = _kept(tx, machine, introduction, validation, at)
        if machine.kept_bytes != introduction.kept_bytes:
            machine = tx.machines.update(machine, kept_bytes=introduction.kept_bytes)
    changed = [name for name, found in introduction.hw.items() if getattr(machine, name) != found]
    if changed:
        detail += f"; differs from the first introduction: {', '.join(changed)}"
    _noted(tx, machine, introduction, proven, at)
    _bind(tx, machine, introduction, at)
    if replaced or limits.may_record(tx, machine, at):
        _registered(tx, machine, introduction, at, prev_state=status, detail=detail)
    return machine


def _bind(tx: Tx, machine: Machine, introduction: Introduction, at: datetime) -> None:
    """Bind the AK to its EK for ever, so that the entry of this unit tells of it. That it is free was asked in it."""
    tx.ak_bindings.bind(
        AKBinding(
            ak_name=introduction.ak_name,
            ek_fingerprint=introduction.ek_fingerprint,
            machine_id=machine.machine_id,
            bound_at=at,
        )
    )


def _noted(
    tx: Tx, machine: Machine, introduction: Introduction, proven: Sequence[Alternative], at: datetime
) -> None:
    """Note what proves more about the chip of a known machine than was known, and say if that makes it another's."""
    known = tx.chip_marks.of(machine.machine_id)
    new = [
        mark
        for mark in introduction.marks(proven)
        if mark not in known and mark.kind in (MarkKind.EK, MarkKind.EK_SERIAL)
    ]
    kinship = kinship_of(tx.chip_marks.relatives(machine.machine_id, new))
    # Anybody can make EKs in software, and show another one each time.
    tx.chip_marks.put(machine.machine_id, new[: max(0, MOST_MARKS - len(known))])
    if kinship.alarm is not None:
        _sound_kinship(tx, machine, kinship, introduction.source, at)


def _registered(
    tx: Tx,
    machine: Machine,
    introduction: Introduction,
    at: datetime,
    *,
    prev_state: Status | None,
    detail: str,
) -> None:
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="register",
            machine_id=machine.machine_id,
            prev_state=prev_state,
            new_state=machine.status,
            detail=detail,
            source_ip=introduction.source,
        ),
        at,
    )
    node = {"status": machine.status, "config_url": None, "iso_url": None, **hardware(machine)}
    emit(tx, NodeEvent.REGISTERED, machine, at, node=node, meta={"source_ip": introduction.source})


async def _activated(
    machine: Machine, token: IssuedToken | None, request: ActivateRequest, res: Resources, at: datetime
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
