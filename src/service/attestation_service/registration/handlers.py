"""A machine introduces itself, then proves that its AK lives in its TPM (PROTOCOL §§1-2).

Nothing unauthenticated creates, changes or deletes a machine: an introduction stores a challenge, only the
answer to it, made inside the TPM, creates the row.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from attestation.api import (
    ActivateRequest,
    ActivateResponse,
    ActivationChallenge,
    IntroduceRequest,
    IntroduceResponse,
    RegisterRequest,
)
from attestation.audit import AuditEvent
from attestation.endorsements import ChainVerdict, judge_ek_trust
from attestation.errors import (
    ActivationFailed,
    AKConflict,
    AttestationError,
    MalformedEvidence,
    PendingQuotaExceeded,
    RegistrationTokenInvalid,
)
from attestation.evidence import ak_activation
from attestation.evidence.ak_activation import SECRET_BYTES
from attestation.machines import (
    DEFAULT_CLUSTER,
    Machine,
    NodeEvent,
    Operation,
    Role,
    Status,
    next_status,
)
from attestation.store import Challenge, RegistrationToken, Tx
from attestation.wire import b64decode, b64encode
from attestation_service import config_tokens, crypto_policy, endorsements, limits, policy
from attestation_service.config_tokens import IssuedToken
from attestation_service.context import Origin, Resources
from attestation_service.events import emit, hardware
from attestation_service.registration.introduction import Introduction, judge

PENDING_RETRY_SECONDS = 300

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
        RateLimited: Too often from this address or for this EK.
        MalformedEvidence, NotAuthentic, RequestInvalid: See `introduction.judge`.
    """
    at = res.clock.now()
    token = request.registration_token if isinstance(request, RegisterRequest) else None
    token_sha256 = config_tokens.sha256(token) if token is not None else None

    def prepare(tx: Tx) -> tuple[Challenge, IntroduceResponse]:
        # 1. Not too often: parsing and sealing cost more than asking.
        limits.check(tx, limits.of_client(res.settings, origin.address), at)
        # 2. Everything that can be checked without the TPM.
        introduction, keys = judge(
            request,
            registration_token_sha256=token_sha256,
            source=origin.address,
            at=at,
            allow_simulator=res.settings.tpm_allow_simulator,
        )
        crypto_policy.demand_tpm_keys(crypto_policy.of(res.settings), keys.ek, keys.ak)
        limits.check(tx, limits.of_client(res.settings, origin.address, introduction.ek_fingerprint), at)
        # 3. Known already? Then with this AK, or with none since an operator reset it.
        machine = tx.machines.by_ek(introduction.ek_fingerprint)
        if machine is None:
            _admission(tx, introduction, _endorsed(tx, introduction, res, at), res, at)
        elif machine.ak_name not in (None, introduction.ak_name):
            raise AKConflict("another attestation key is activated for this EK; an operator resets it")
        # 4. A secret for this TPM and this AK only; we keep what the right answer hashes to.
        machine_id = machine.machine_id if machine else str(uuid.uuid4())
        challenge_id = secrets.token_hex(16)
        offer = ak_activation.offer(
            keys, secret=secrets.token_bytes(SECRET_BYTES), machine_id=machine_id, challenge_id=challenge_id
        )
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
        return challenge, IntroduceResponse(
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
            ),
        )

    async with limits.CountRefusals(
        res.store,
        limits.of_client(res.settings, origin.address),
        at,
        lambda e: limits.denial("introduce", e, origin),
    ):
        challenge, answer = await res.store.read(prepare)

    def keep(tx: Tx) -> None:
        limits.take(tx, limits.of_client(res.settings, origin.address, challenge.ek_fingerprint), at)
        tx.challenges.issue(challenge)

    await res.store.write(keep)
    return answer


@dataclass(frozen=True, slots=True)
class _Admission:
    """How a machine nobody knows may come in: what an operator decided in advance, or nothing."""

    status: Status
    role: Role | None = None
    hostname: str | None = None
    assigned_ip: str | None = None
    cluster_id: str | None = None
    allow_listed: bool = False


def _endorsed(tx: Tx, introduction: Introduction, res: Resources, at: datetime) -> ChainVerdict | None:
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


def _waits(tx: Tx, token: RegistrationToken, verdict: ChainVerdict | None) -> bool:
    """Return True where a machine is vouched for less than its token, or the role of the token, demands."""
    trust = judge_ek_trust(allow_listed=False, chain=verdict)
    needed = policy.of_role(tx, token.role, token.cluster_id or DEFAULT_CLUSTER).assurance_minimum(token.role)
    return trust.assurance.level < max(needed.level, token.minimum_assurance.level)


def _admission(
    tx: Tx,
    introduction: Introduction,
    verdict: ChainVerdict | None,
    res: Resources,
    at: datetime,
    *,
    spend: bool = False,
) -> _Admission:
    """Decide what a new machine becomes; `spend` takes a use of its registration token.

    A token admits a machine that is vouched for well enough for its role. Another one waits for an operator, and
    the token keeps its use.

    Raises:
        RegistrationTokenInvalid: A token was presented that admits nobody.
        PendingQuotaExceeded: It would wait for approval, and too many do.
    """
    entry = tx.allow_list.get(introduction.ek_fingerprint)
    if entry is not None:
        return _Admission(
            Status.REGISTERED,
            entry.role,
            entry.hostname,
            entry.assigned_ip,
            entry.cluster_id,
            allow_listed=True,
        )
    digest = introduction.registration_token_sha256
    if digest is not None:
        token = tx.registration_tokens.get_by_hash(digest)
        if token is None or token.uses_left < 1 or token.revoked_at is not None or at >= token.expires_at:
            raise RegistrationTokenInvalid("the registration token is not valid here")
        if not _waits(tx, token, verdict):
            if spend:
                token = tx.registration_tokens.use(digest, at)
            return _Admission(
                Status.REGISTERED, token.role, token.hostname, token.assigned_ip, token.cluster_id
            )
    settings = res.settings
    if (
        tx.machines.count_pending(introduction.source) >= settings.pending_limit_per_address
        or tx.machines.count_pending() >= settings.pending_limit
    ):
        raise PendingQuotaExceeded(
            "too many machines await approval", retry_after_seconds=PENDING_RETRY_SECONDS
        )
    return _Admission(Status.PENDING_APPROVAL)


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

    def conclude(tx: Tx) -> ActivateResponse | AttestationError:
        limits.take(tx, counted, at)
        # 1. Single use: the second of two racers fails here. Spent whatever follows.
        tx.challenges.redeem(request.challenge_id, "activate", machine_id, at)
        challenge = tx.challenges.get(request.challenge_id)
        assert challenge is not None
        assert challenge.proof_sha256 is not None
        assert challenge.payload is not None
        introduction = Introduction.from_json(challenge.payload)
        # 2. Only the TPM that holds EK and AK knows the secret. A wrong proof changes nothing else.
        try:
            ak_activation.verify(
                ak_activation.parse(b64decode(request.proof, "proof")),
                expected_sha256=challenge.proof_sha256,
                ak_name=introduction.ak_name,
                ek_fingerprint=introduction.ek_fingerprint,
            )
        except (MalformedEvidence, ActivationFailed) as e:
            limits.audit_denied(tx, _denied(machine_id, e, origin), at)
            return e
        # 3. New, or known with this AK.
        machine = tx.machines.by_ek(introduction.ek_fingerprint)
        if machine is None:
            machine = _create(tx, machine_id, introduction, res, at)
        elif machine.ak_name not in (None, introduction.ak_name):
            conflict = AKConflict("another attestation key is activated for this EK; an operator resets it")
            limits.audit_denied(tx, _denied(machine.machine_id, conflict, origin), at)
            return conflict
        else:
            machine = _confirm(tx, machine, introduction, res, at)
        # 4. A token only where an operator admitted it already; delivery still needs an attestation.
        token = None
        if machine.status is Status.REGISTERED:
            token = config_tokens.issue(tx, machine, res.settings, at)
        return _activated(machine, token, res)

    async with limits.CountRefusals(res.store, counted, at):
        answer = await res.store.write(conclude)
    if isinstance(answer, AttestationError):
        raise answer
    return answer


def _denied(machine_id: str, error: AttestationError, origin: Origin) -> AuditEvent:
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=machine_id,
        detail=f"ak-activate: {error.code}",
        source_ip=origin.address,
    )


def _create(tx: Tx, machine_id: str, introduction: Introduction, res: Resources, at: datetime) -> Machine:
    # Asked again: what was trusted at the introduction may be distrusted since.
    verdict = _endorsed(tx, introduction, res, at)
    admission = _admission(tx, introduction, verdict, res, at, spend=True)
    trust = judge_ek_trust(allow_listed=admission.allow_listed, chain=verdict)
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
        redeliver=False,
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
    )
    tx.machines.add(machine)
    machine = _kept(tx, machine, introduction, verdict, at)
    _registered(
        tx,
        machine,
        introduction,
        at,
        prev_state=None,
        detail=f"assurance {machine.assurance}: {trust.reason}",
    )
    return machine


def _kept(
    tx: Tx, machine: Machine, introduction: Introduction, verdict: ChainVerdict | None, at: datetime
) -> Machine:
    """Store the EK certificate with its judgement, where there is one."""
    if verdict is None or introduction.certificate_der is None:
        return machine
    return endorsements.keep(tx, machine, introduction.certificate_der, introduction.chain, verdict, at)


def _confirm(tx: Tx, machine: Machine, introduction: Introduction, res: Resources, at: datetime) -> Machine:
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
    verdict = _endorsed(tx, introduction, res, at)
    # What a vendor said of this EK stays true, whatever is shown later: nothing worse takes its place.
    if verdict is not None and (verdict.ok or not machine.ek_chain_ok):
        known, shown = machine.ek_certificate, introduction.certificate
        assert shown is not None  # it was judged
        if known is None or known.sha256 != shown.sha256:
            machine = tx.machines.update(machine, ek_certificate=shown, ek_source=introduction.ek_source)
            detail += (
                f"; EK certificate {shown.sha256[:16]} instead of {known.sha256[:16] if known else 'none'}"
            )
        machine = _kept(tx, machine, introduction, verdict, at)
    changed = [name for name, found in introduction.hw.items() if getattr(machine, name) != found]
    if changed:
        detail += f"; differs from the first introduction: {', '.join(changed)}"
    if replaced or limits.may_record(tx, machine, at):
        _registered(tx, machine, introduction, at, prev_state=status, detail=detail)
    return machine


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


def _activated(machine: Machine, token: IssuedToken | None, res: Resources) -> ActivateResponse:
    offers: dict[str, str] = {}
    if token is not None:
        offers = {"config_token": token.token, "config_url": token.url}
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
