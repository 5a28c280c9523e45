"""A certificate for a key of the TPM: asked for, judged, issued; a renewal is the same again (ITL-REFERENCE §16).

The order of judgement: challenge (spent whatever follows) → parse → signature, binding and residency under the
activated AK → the key of the request → algorithms → status, lease and quota. One read judges. What was judged is
compared again in the unit that redeems the challenge and reserves the serial number, and the certificate is handed
out only where the unit that writes it down still finds it reserved: a lock in between leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final, Literal

import structlog
from fastapi import Query

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import (
    CertificateChallenge,
    CertificateDetail,
    CertificatePage,
    CertRequest,
    CertResponse,
)
from attestation.audit import AuditEvent
from attestation.clock import rfc3339
from attestation.errors import (
    AKNotActivated,
    AlgorithmForbidden,
    AttestationError,
    ChallengeUsed,
    ClusterNotConfigured,
    CSRInvalid,
    EvidenceRejected,
    KeyNotResident,
    MachineChanged,
    MachineNotAdmitted,
    MachineRejected,
    MalformedEvidence,
    NameInUse,
    RateLimited,
    RequestInvalid,
    TPMRequired,
)
from attestation.evidence import key_certification
from attestation.evidence.key_certification import CertifiedKey, KeyMode, UnverifiedKeyCertification
from attestation.machines import Machine, NodeEvent
from attestation.pki.request import MAX_CSR_BYTES, parse_csr
from attestation.store import Challenge, Issuance, IssuanceFilter, NodeChallenge, Tx
from attestation.tpm import parse_public
from attestation.wire import b64decode
from attestation_service.authority.issuance import Issued, Wanted
from attestation_service.border import limits
from attestation_service.context.request import From, Origin
from attestation_service.entitlements import certificates
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.entitlements.certificates import Subject
from attestation_service.entitlements.events import emit
from attestation_service.keys import server_keys
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Id, Limit
from attestation_service.settings import Settings
from attestation_service.verifier import challenges, measurements, policy

log = structlog.get_logger("attestation_service.enrollment")

MAX_PART_BYTES: Final = 4096
REFUSALS: Final = (
    MalformedEvidence,
    EvidenceRejected,
    CSRInvalid,
    AlgorithmForbidden,
    AKNotActivated,
    MachineRejected,
    MachineNotAdmitted,
    NameInUse,
    RequestInvalid,
    TPMRequired,
    RateLimited,
)
"""What is refused after the challenge is known: it is spent all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRequest:
    """A request after its judgement: `refusal` is set where there will be no certificate.

    Args:
        machine: As it was read.
        challenge: What it answers.
        subject: What the certificate may say; None with a refusal.
        spki: The key to certify; None where we are to make it.
        wrap_to: SPKI of the TPM's decryption key that a made key is wrapped to, or None.
        key_tier: What is known of the key, or None.
        renews: Serial number that it follows.
        refusal: Why not.
    """

    machine: Machine
    challenge: Challenge
    subject: Subject | None = None
    spki: bytes | None = None
    wrap_to: bytes | None = None
    key_tier: int | None = None
    renews: str | None = None
    refusal: AttestationError | None = None


async def challenge(
    machine_id: Id,
    purpose: Annotated[
        Literal["certify", "enroll", "node-csr"],
        Query(
            description="To be given a certificate, to present one, or to ask a Kubernetes cluster for one"
        ),
    ],
    *,
    res: Res,
    origin: From,
) -> CertificateChallenge:
    """Get a fresh challenge for a certificate.

    Single use, bound to the machine, its EK and the purpose.

    Raises:
        CANotConfigured: There are no certificates of ours; a Kubernetes cluster may have a CA of its own.
        ClusterNotConfigured: No rule says how requests of nodes of the machine's cluster are judged.
        MachineUnknown: No such machine.
        TPMRequired: It has no TPM.
        RateLimited: Too often from this address or for this machine.
    """
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)
    if purpose == "node-csr":
        return await _node_challenge(machine_id, counted, res, at)
    certificates.authority_of(res)

    def prepare(tx: Tx) -> Challenge:
        limits.check(tx, counted, at)
        return challenges.make_for_certificate(_with_tpm(tx, machine_id), purpose, res.settings, at)

    async with limits.CountRefusals(res.store, counted[:1], at):
        fresh = await res.store.read(prepare)

    def keep(tx: Tx) -> None:
        limits.take(tx, counted, at)
        tx.challenges.issue(fresh)

    await res.store.write(keep)
    return challenges.show_for_certificate(fresh)


def _with_tpm(tx: Tx, machine_id: str) -> Machine:
    """Return a machine whose keys a TPM can certify; for another one no challenge is any good.

    Raises:
        MachineUnknown, TPMRequired: There is none.
    """
    machine = tx.machines.require(machine_id)
    if machine.tee is not None:
        raise TPMRequired("this machine has no TPM that could certify a key")
    return machine


async def _node_challenge(
    machine_id: str, counted: limits.Limits, res: Resources, at: datetime
) -> CertificateChallenge:
    def prepare(tx: Tx) -> tuple[NodeChallenge, str]:
        limits.check(tx, counted, at)
        machine = _with_tpm(tx, machine_id)
        rule = res.settings.cluster(machine.cluster_id)
        if rule is None:
            raise ClusterNotConfigured(
                "requests of nodes of this machine's cluster are not judged here; see ITL_KUBERNETES_CLUSTERS"
            )
        in_force = policy.in_force(tx, machine, res.settings)
        known = measurements.kept(tx, machine, in_force.tpm.bank, res.replays) is not None
        made = challenges.make_for_node(machine, in_force, rule, res.settings, at, event_log_known=known)
        return made, rule.cluster_id

    async with limits.CountRefusals(res.store, counted[:1], at):
        fresh, cluster_id = await res.store.read(prepare)

    def keep(tx: Tx) -> None:
        limits.take(tx, counted, at)
        tx.node_csrs.issue(fresh)

    await res.store.write(keep)
    return challenges.show_for_node(fresh, cluster_id)


async def request_cert(machine_id: Id, request: CertRequest, *, res: Res, origin: From) -> CertResponse:
    """Get or renew a certificate for a key of the TPM.

    Only for an attested machine within its lease; role, host name and address are those of its record.

    Raises:
        CANotConfigured: This service issues none.
        MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        MalformedEvidence, EvidenceRejected, CSRInvalid, AKNotActivated: It proves nothing; the challenge is spent.
        AlgorithmForbidden: The key is of a kind that ITL_CRYPTO_POLICY forbids.
        MachineRejected, MachineNotAdmitted: The machine may have none now.
        NameInUse: Another machine has its host name or address too.
        RequestInvalid: A server without name, or a key is to be made here and that is off.
        MachineChanged: Operators changed the machine faster than it could be judged.
        RateLimited: Too often, or too many live certificates.
        Unavailable: The CA cannot sign now.
    """
    return await until_unchanged(lambda: _request_cert(machine_id, request, res, origin))


async def _request_cert(
    machine_id: str, request: CertRequest, res: Resources, origin: Origin
) -> CertResponse:
    authority = certificates.authority_of(res)
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)
    async with limits.CountRefusals(res.store, counted, at):
        judged = await res.store.read(lambda tx: judge(tx, machine_id, request, counted, res, at))
    if judged.refusal is not None:
        raise await _refuse(judged, judged.refusal, counted, res, origin, at)
    made = None if judged.spki is not None else await asyncio.to_thread(server_keys.make)
    spki = judged.spki if made is None else made.spki
    assert spki is not None
    plan = certificates.wanted(
        judged.machine,
        request.profile,
        spki,
        res.settings,
        key_tier=judged.key_tier,
        renews=judged.renews,
    )

    def admit(tx: Tx) -> None:
        # Single use: the second of two racers fails here, and nothing of its unit remains.
        limits.take(tx, counted, at)
        tx.challenges.redeem(judged.challenge.challenge_id, "certify", machine_id, at)
        # The certificate will say what was judged, so that must be true in this very unit.
        now = tx.machines.require(machine_id)
        if certificates.admitted(tx, now, res.settings, at) != judged.subject:
            raise MachineChanged("the machine was changed while its certificate was made")
        certificates.live(tx, machine_id, request.profile, res.settings, at)

    def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
        # Signing took a while. What a lock or a revocation takes back is void already; a new role, host name or AK,
        # or a failed attestation takes it back here.
        now = tx.machines.require(machine_id)
        if certificates.admitted(tx, now, res.settings, at) != judged.subject:
            raise MachineNotAdmitted("the machine was changed while its certificate was made")
        _record(tx, now, plan, issued, origin, at, compat=made is not None)

    refusal: AttestationError | None = None
    issued: tuple[Issued, ...] = ()
    async with limits.CountRefusals(res.store, counted, at):
        try:
            issued = await authority.issue(plan, at=at, admit=admit, conclude=conclude)
        except REFUSALS as e:
            refusal = e
    if refusal is not None:
        raise await _refuse(judged, refusal, counted, res, origin, at, issuing=True)
    log.info(
        "cert.issued",
        machine_id=machine_id,
        profile=request.profile,
        serials=[each.serial for each in issued],
        renews=plan.renews,
        compat=made is not None,
    )
    answer = _answer(judged, plan, issued)
    if made is None:
        return answer
    assert judged.wrap_to is not None
    # It was made here, so it is labelled, wrapped to the TPM that asked, and forgotten. A failure is an error: the
    # certificate is then one whose key nobody has.
    return await asyncio.to_thread(server_keys.add_to, answer, made, judged.wrap_to)


def judge(
    tx: Tx, machine_id: str, request: CertRequest, counted: limits.Limits, res: Resources, at: datetime
) -> JudgedRequest:
    """Judge a request; a refusal is a value, because it still spends the challenge."""
    limits.check(tx, counted, at)
    # 1. The machine and an unspent challenge of its own, for this purpose. Without these there is nothing to judge
    #    or to spend.
    machine = tx.machines.require(machine_id)
    challenge = challenges.open_challenge(tx, request.nonce_id, machine_id, at, "certify")
    found = JudgedRequest(machine=machine, challenge=challenge)
    try:
        # 2. Its own activated AK will say whose key it is. Without one nobody can.
        if machine.tpm.ak_public is None:
            raise AKNotActivated("this machine has no activated attestation key")
        # 3. The form of what was sent.
        parsed = _parse(request)
        # 4. A key of this TPM, for this challenge and request, vouched for by this AK.
        certified = (
            server_keys.verify(parsed, challenge, machine, res.settings)
            if request.csr_pem is None
            else _verify(parsed, request.csr_pem, challenge, machine, res.settings)
        )
        # 5. Only now the machine hears how it stands: attested, within its lease, with room for one more. Strangers
        #    end above, so they learn nothing of a machine.
        subject = certificates.admitted(tx, machine, res.settings, at)
        certificates.demand_names(machine, request.profile, res.settings)
        live = certificates.live(tx, machine_id, request.profile, res.settings, at)
        return replace(
            found,
            subject=subject,
            spki=None if request.csr_pem is None else certified.spki,
            wrap_to=certified.spki if request.csr_pem is None else None,
            key_tier=None if request.csr_pem is None else key_tier(machine, parsed),
            renews=certificates.renewed(live),
        )
    except REFUSALS as refusal:
        return replace(found, refusal=refusal)


def _parse(request: CertRequest) -> UnverifiedKeyCertification:
    return key_certification.parse(
        b64decode(request.key_public, "key_public", max_bytes=MAX_PART_BYTES),
        b64decode(request.certify_info, "certify_info", max_bytes=MAX_PART_BYTES),
        b64decode(request.certify_signature, "certify_signature", max_bytes=MAX_PART_BYTES),
    )


def _verify(
    parsed: UnverifiedKeyCertification, csr: str, challenge: Challenge, machine: Machine, settings: Settings
) -> CertifiedKey:
    """Verify the certification of a request's key, which must be resident."""
    assert challenge.nonce is not None
    assert machine.tpm.ak_public is not None
    # a. Signed by the key in it: whoever asks has that key, and from the request nothing else is used.
    requested = parse_csr(
        csr.encode("utf-8") if csr.startswith("-----") else b64decode(csr, "csr_pem", max_bytes=MAX_CSR_BYTES)
    )
    # b. By this AK, for this challenge and these very bytes; the key of the request; made in its TPM, fixed to it.
    certified = key_certification.verify(
        parsed,
        ak=parse_public(machine.tpm.ak_public),
        ek=parse_public(machine.tpm.ek_public),
        binding=key_certification.csr_binding(challenge.nonce, requested.request_info),
        spki=requested.spki,
        modes=frozenset({KeyMode.RESIDENT}),
    )
    # c. Of a kind that is allowed here.
    demand(CryptoPolicy(settings.crypto_policy), Use.LEAF, requested.algorithm)
    return certified


def key_tier(machine: Machine, verified: UnverifiedKeyCertification) -> int:
    """Return what is known of a resident key (TPM.md §6), from its *verified* certification.

    Tier 4, resident + quote: the last Verified quote of this AK and this certification, made just now for a fresh
    challenge, are of one boot, so what the quote says of the machine is true of the one that holds the key. Where
    it was reset or resumed in between, within its lease, the quote speaks of another boot, and the tier is 3.
    """
    clock, attest = machine.clock, verified.attest
    now = (attest.reset_count, attest.restart_count)
    if clock is not None and now == (clock.reset_count, clock.restart_count):
        return certificates.RESIDENT_AND_QUOTED
    return certificates.RESIDENT


async def _refuse(
    judged: JudgedRequest,
    refusal: AttestationError,
    counted: limits.Limits,
    res: Resources,
    origin: Origin,
    at: datetime,
    *,
    issuing: bool = False,
) -> AttestationError:
    """Spend the challenge, record the refusal under its own name, and return what to raise."""
    label = refusal.computed if isinstance(refusal, KeyNotResident) else None
    detail = f"{refusal.code} ({label})" if label else refusal.code
    event = AuditEvent(
        operator_cn="unknown",
        action="cert_refused",
        machine_id=judged.machine.machine_id,
        detail=detail,
        source_ip=origin.address,
    )

    def work(tx: Tx) -> None:
        limits.take(tx, counted, at)
        # What was refused while it was being issued has spent its challenge already.
        with contextlib.suppress(ChallengeUsed) if issuing else contextlib.nullcontext():
            tx.challenges.redeem(judged.challenge.challenge_id, "certify", judged.machine.machine_id, at)
        limits.audit_denied(tx, event, at)

    async with limits.CountRefusals(res.store, counted, at):
        await res.store.write(work)
    log.warning(
        "cert.refused",
        machine_id=judged.machine.machine_id,
        client=origin.address,
        code=refusal.code,
        label=label,
        reason=str(refusal),
    )
    return refusal


def _record(
    tx: Tx,
    machine: Machine,
    plan: Wanted,
    issued: tuple[Issued, ...],
    origin: Origin,
    at: datetime,
    *,
    compat: bool,
) -> None:
    detail = certificates.told(issued, plan)
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="cert_issued",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=machine.status,
            detail=f"{detail}; compat: key made by the service" if compat else detail,
            source_ip=origin.address,
        ),
        at,
    )
    if plan.renews is not None:
        emit(
            tx,
            NodeEvent.CERT_RENEWED,
            machine,
            at,
            node={"serial": issued[0].serial, "not_after": rfc3339(issued[0].not_after)},
            meta={"profile": plan.profile, "renews": plan.renews},
        )


def _answer(judged: JudgedRequest, plan: Wanted, issued: tuple[Issued, ...]) -> CertResponse:
    first = issued[0]
    lifetime = first.not_after - first.not_before
    assert judged.machine.role is not None
    return CertResponse(
        machine_id=judged.machine.machine_id,
        role=judged.machine.role,
        profile=plan.profile.value,  # type: ignore[arg-type]  # one of the two that a request can name
        enrollment_cert_pem=certificates.pem(first.certificate),
        enrollment_ca_pem=certificates.pem(first.ca),
        valid_days=(first.not_after - first.not_before).days,
        message="renewed" if plan.renews is not None else "issued",
        serial=first.serial,
        not_before=first.not_before,
        not_after=first.not_after,
        renew_after=first.not_before + lifetime * 2 / 3,
        key_tier=judged.key_tier,
        assurance=judged.machine.assurance,
        certificates=[certificates.shown(each) for each in issued],
    )


async def listed(machine_id: Id, cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> CertificatePage:
    """List the certificates of a machine, newest first.

    Also those of a machine that was deleted.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    wanted = IssuanceFilter(machine_id=machine_id)
    page = await res.store.scan(lambda tx: tx.issuances.page(wanted, cursor, limit))
    return CertificatePage(items=list(map(_detail, page.items)), next_cursor=page.next_cursor)


def _detail(row: Issuance) -> CertificateDetail:
    of_the_der = {"certificate", "no_rev_avail"}  # no list reads the certificates themselves
    members = {name: getattr(row, name) for name in CertificateDetail.model_fields if name not in of_the_der}
    return CertificateDetail(**members, certificate=None)
