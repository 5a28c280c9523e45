"""The CAs in the hands of operators: shown, tried, rotated step by step; certificates listed and revoked.

A step of a rotation changes whom every relying party believes, so it is an act of several operators where dual control
is on. Revoking one certificate needs one and works at once.
"""

# Algorithms for: digest
from __future__ import annotations

import functools
import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography import x509
from fastapi import Query

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import (
    CACheck,
    CADetail,
    CertificateDetail,
    CertificatePage,
    CertificateRevokeRequest,
    IssuerCheck,
    IssuerDetail,
    PendingApproval,
    RefusedKeyDetail,
    RefusedKeyPage,
    RefusedKeyRequest,
    RotationRequest,
)
from attestation.api.base import Instant, MachineId
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import (
    AlreadyExists,
    CANotConfigured,
    CertificateUnknown,
    RequestInvalid,
    RotationForbidden,
    TransitionForbidden,
)
from attestation.keys.uri import FileRef, KeyRef, parse_key_uri
from attestation.machines.dual_control import of_ca_revocation, of_ca_rotation
from attestation.pki.lint import MAX_CERTIFICATE_BYTES
from attestation.pki.profiles import NO_REV_AVAIL, ProfileName
from attestation.store import (
    PUBLISHED,
    Issuance,
    IssuanceFilter,
    IssuanceState,
    Issuer,
    IssuerAlgorithm,
    RefusedKey,
    Tx,
)
from attestation.wire import b64encode
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.authority import Authority, creation, rotation
from attestation_service.authority.keyring import validity_problem
from attestation_service.authority.places import algorithms, current_uri
from attestation_service.operators import dual_control, votes
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit, Serial
from attestation_service.settings import Settings

SERIALS_PER_AUDIT: Final = 20
OF_CAS: Final = frozenset({ProfileName.CA.value, ProfileName.CA_CROSS.value})
ENCRYPTED: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


def authority_of(res: Resources) -> Authority:
    """Return the CAs of the service.

    Raises:
        CANotConfigured: It has none.
    """
    if res.authority is None:
        raise CANotConfigured("this service has no CA; set ITL_ENROLLMENT_CA_PASSPHRASE_FILE or _KEY")
    return res.authority


async def show(*, res: Res) -> CADetail:
    """Show every key of the CAs.

    Oldest first, with their certificates, states and instants; where a key is, never a secret.

    Raises:
        CANotConfigured: The service has no CA.
    """
    authority_of(res)
    return await res.store.read(lambda tx: _shown(tx, res))


async def check(*, res: Res) -> CACheck:
    """Let the CAs' keys prove themselves.

    Each key in use signs a test value, which its certificate must verify; and what a backup of it needs.

    Raises:
        CANotConfigured: The service has no CA.
        SignerBusy: Too many signatures wait.
    """
    authority = authority_of(res)
    problems = await authority.self_test()
    issuers = await res.store.read(lambda tx: tx.issuers.all())
    used = [issuer for issuer in issuers if issuer.state in PUBLISHED]
    at = res.clock.now()
    checked = await authority.in_thread(
        lambda: [_checked(issuer, problems.get(issuer.issuer_id), res, at) for issuer in used]
    )
    return CACheck(ok=not problems, issuers=checked)


async def rotate(request: RotationRequest, *, res: Res, operator: VoterDep) -> CADetail | PendingApproval:
    """Take one step of a rotation.

    Several operators must agree under dual control. `force` does not wait for relying parties to follow.

    Raises:
        CANotConfigured: The service has no CA.
        RequestInvalid: It has two keys, and the request names none.
        AlgorithmForbidden: ITL_CRYPTO_POLICY forbids the algorithm.
        RotationForbidden: The keys are not in a state that allows this step, or not yet.
        BreakGlassCannotVote: Several people must agree to it.
        KeyUnusable: The key that is to sign cannot; nothing was changed.
    """
    authority = authority_of(res)
    algorithm = _algorithm(request, res)
    # What the policy forbids never begins to sign; that it stops is always allowed.
    if request.step != "retire":
        demand(CryptoPolicy(res.settings.crypto_policy), Use.CA, algorithm)
    proven = await _prove(request, algorithm, authority, res)
    at = res.clock.now()

    def work(tx: Tx) -> PendingApproval | None:
        keys = rotation.keys_of(tx, request.purpose, algorithm, res.settings)
        if (signer := keys.will_sign(request.step)) is not None and signer.issuer_id != proven:
            raise RotationForbidden("the keys were changed while one of them was tried; ask again")
        rotation.check(tx, keys, request.step, force=request.force, settings=res.settings, at=at)
        other = keys.other(request.step)
        proposal = of_ca_rotation(
            step=request.step,
            purpose=request.purpose,
            algorithm=algorithm,
            active=keys.active.issuer_id,
            other=other.issuer_id if other is not None else None,
            force=request.force,
        )
        agreed = dual_control.gate(tx, proposal, operator, res, at, reason=request.reason)
        if isinstance(agreed, PendingApproval):
            return agreed
        done = rotation.take(tx, authority.maker, keys, request.step, at)
        forced = " (forced)" if request.force else ""
        told = f"{request.step}{forced}, {request.purpose} CA, {algorithm}: {done}: {request.reason}"
        tx.audit.append(operator.event("ca_rotate", detail=agreed.told(told)), at)
        return None

    pending = await dual_control.write(work, res=res, operator=operator, at=at)
    if pending is not None:
        return pending
    if request.step == "prepare":
        await authority.in_thread(functools.partial(_make_next, authority, request, algorithm))
    return await show(res=res)


async def _prove(
    request: RotationRequest, algorithm: IssuerAlgorithm, authority: Authority, res: Resources
) -> str | None:
    """Let the key that is to sign prove itself first: after the switch it would be too late. Return its id, if any."""
    keys = await res.store.read(lambda tx: rotation.keys_of(tx, request.purpose, algorithm, res.settings))
    if (signer := keys.will_sign(request.step)) is not None:
        await authority.in_thread(functools.partial(authority.prove, signer))
        return signer.issuer_id
    return None


def _make_next(authority: Authority, request: RotationRequest, algorithm: IssuerAlgorithm) -> None:
    """Make what was agreed on; if this dies, maintenance of any worker goes on with it."""
    creation.ensure_kind(authority.maker, request.purpose, algorithm)


def _algorithm(request: RotationRequest, res: Resources) -> IssuerAlgorithm:
    if request.algorithm is not None:
        return request.algorithm
    chosen = algorithms(res.settings)
    if len(chosen) > 1:
        raise RequestInvalid(f"the CA has two keys; name one of {', '.join(chosen)}")
    return chosen[0]


async def certificates(
    machine_id: Annotated[MachineId | None, Query()] = None,
    state: Annotated[IssuanceState | None, Query()] = None,
    profile: Annotated[ProfileName | None, Query()] = None,
    ends_from: Annotated[Instant | None, Query(description="Not over before this instant")] = None,
    ends_before: Annotated[Instant | None, Query(description="Over before this instant")] = None,
    sort: Annotated[
        Literal["not_after"] | None,
        Query(description="Those that end first before others; newest first without"),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
) -> CertificatePage:
    """List the issuance log.

    Newest first, or in the order of their ends; every serial number that was ever reserved, until long after its end.

    Raises:
        CANotConfigured: The service has no CA.
        RequestInvalid: A cursor that is none.
    """
    authority_of(res)
    wanted = IssuanceFilter(
        machine_id=machine_id,
        state=state,
        profile=profile.value if profile is not None else None,
        ends_from=ends_from,
        ends_before=ends_before,
    )
    page = await res.store.scan(lambda tx: tx.issuances.page(wanted, cursor, limit, by_end=sort is not None))
    return CertificatePage(
        items=[certificate_detail(each, whole=False) for each in page.items], next_cursor=page.next_cursor
    )


async def certificate(serial: Serial, *, res: Res) -> CertificateDetail:
    """Show one certificate.

    What became of a serial number, and the certificate itself.

    Raises:
        CANotConfigured: The service has no CA.
        CertificateUnknown: We never reserved this serial.
    """
    authority_of(res)
    return certificate_detail(await res.store.read(lambda tx: _found(tx, serial)))


async def revoke(
    serial: Serial, request: CertificateRevokeRequest, *, res: Res, operator: VoterDep
) -> CertificateDetail | PendingApproval:
    """Revoke one certificate.

    For good and at once: the next list and every answer say so. That of a CA is an act of several operators.

    Raises:
        CANotConfigured: The service has no CA.
        CertificateUnknown: We never reserved this serial.
        TransitionForbidden: It is revoked or void already.
        BreakGlassCannotVote: Several people must agree to it.
    """
    authority_of(res)
    at = res.clock.now()

    def work(tx: Tx) -> CertificateDetail | PendingApproval:
        before = _found(tx, serial)
        if before.profile in OF_CAS:
            # One step of a rotation needs several; taking back what it made decides as much.
            proposal = of_ca_revocation(
                serial=serial, profile=before.profile, subject=before.subject, reason=request.reason
            )
            found = dual_control.gate(tx, proposal, operator, res, at, reason=request.note)
            if isinstance(found, PendingApproval):
                return found
            agreed = found
        else:
            agreed = dual_control.alone(operator)
        why = request.note or "revoked by an operator"
        if not tx.issuances.revoke_serial(serial, request.reason, why, at):
            raise TransitionForbidden(f"certificate {serial} is {before.state} already")
        votes.end(tx, f"spki-sha256:{before.spki_sha256}", "the certificate of its voter was revoked", at)
        after = _found(tx, serial)
        detail = (
            f"serial {serial} of CA {before.issuer_id}, {before.profile}, {before.subject}: {request.reason}"
        )
        detail = f"{detail}: {request.note}" if request.note else detail
        event = operator.event(
            "cert_revoked",
            machine_id=before.machine_id,
            prev_state=before.state,
            new_state=after.state,
            detail=agreed.told(detail),
        )
        tx.audit.append(event, at)
        return certificate_detail(after)

    answer = await dual_control.write(work, res=res, operator=operator, at=at)
    if res.revocation is not None and not isinstance(answer, PendingApproval):
        res.revocation.changed()
    return answer


async def refuse_key(request: RefusedKeyRequest, *, res: Res, operator: OperatorDep) -> RefusedKeyDetail:
    """Let a key never get a certificate again.

    For good; the certificates that it has are revoked.

    Raises:
        CANotConfigured: The service has no CA.
        AlreadyExists: It is refused already.
        TransitionForbidden: It is a CA's.
    """
    authority_of(res)
    at = res.clock.now()
    key = RefusedKey(spki_sha256=request.spki_sha256, why=request.reason, added_at=at, added_by=operator.cn)

    def work(tx: Tx) -> RefusedKeyDetail:
        # By refusing it, one operator would revoke what needs several.
        if any(issuer.spki_sha256 == key.spki_sha256 for issuer in tx.issuers.all()):
            raise TransitionForbidden("this is the key of a CA: rotate it, or revoke its certificate")
        if not tx.refused_keys.put(key):
            raise AlreadyExists("this key is refused already")
        revoked = [
            serial
            for serial in tx.issuances.with_key(key.spki_sha256)
            if tx.issuances.revoke_serial(serial, "keyCompromise", request.reason, at)
        ]
        votes.end(tx, f"spki-sha256:{key.spki_sha256}", "the key of its voter was refused", at)
        detail = f"SPKI SHA-256 {key.spki_sha256}: {key.why}"
        tx.audit.append(operator.event("key_refused", detail=detail), at)
        for first in range(0, len(revoked), SERIALS_PER_AUDIT):
            named = ", ".join(revoked[first : first + SERIALS_PER_AUDIT])
            tx.audit.append(operator.event("cert_revoked", detail=f"keyCompromise, key refused: {named}"), at)
        return refused_key_detail(key)

    answer = await res.store.write(work)
    if res.revocation is not None:
        res.revocation.changed()
    return answer


async def refused_keys(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> RefusedKeyPage:
    """List the keys that never get a certificate again.

    Of revocations with the reason keyCompromise, and of operators.

    Raises:
        CANotConfigured: The service has no CA.
    """
    authority_of(res)
    page = await res.store.read(lambda tx: tx.refused_keys.page(cursor, limit))
    return RefusedKeyPage(items=[refused_key_detail(key) for key in page.items], next_cursor=page.next_cursor)


def refused_key_detail(key: RefusedKey) -> RefusedKeyDetail:
    """Return a refused key as operators see it."""
    return RefusedKeyDetail(
        spki_sha256=key.spki_sha256, why=key.why, added_at=key.added_at, added_by=key.added_by
    )


def _found(tx: Tx, serial: str) -> Issuance:
    found = tx.issuances.get(serial)
    if found is None:
        raise CertificateUnknown(f"no certificate {serial}")
    return found


def certificate_detail(row: Issuance, *, whole: bool = True) -> CertificateDetail:
    """Return a row of the issuance log as operators see it; its DER only where *whole*."""
    return CertificateDetail(
        serial=row.serial,
        issuer_id=row.issuer_id,
        profile=row.profile,
        state=row.state,
        machine_id=row.machine_id,
        subject=row.subject,
        spki_sha256=row.spki_sha256,
        requester=row.requester,
        key_tier=row.key_tier,
        assurance=row.assurance,
        renews=row.renews,
        not_before=row.not_before,
        not_after=row.not_after,
        reserved_at=row.reserved_at,
        issued_at=row.issued_at,
        ended_at=row.ended_at,
        reason=row.reason,
        note=row.note,
        certificate=b64encode(row.certificate) if whole and row.certificate is not None else None,
        no_rev_avail=_says_no_rev_avail(row.certificate) if whole and row.certificate is not None else None,
    )


def _says_no_rev_avail(certificate: bytes) -> bool:
    return NO_REV_AVAIL in parse_certificate(certificate, max_bytes=MAX_CERTIFICATE_BYTES).extensions


def _shown(tx: Tx, res: Resources) -> CADetail:
    return CADetail(issuers=[_detail(tx, issuer, res) for issuer in tx.issuers.all()])


def _detail(tx: Tx, issuer: Issuer, res: Resources) -> IssuerDetail:
    der = issuer.path[0] if issuer.path else None
    own = x509.load_der_x509_certificate(der) if der is not None else None
    return IssuerDetail(
        issuer_id=issuer.issuer_id,
        purpose=issuer.purpose,
        algorithm=issuer.algorithm,
        state=issuer.state,
        subject=own.subject.rfc4514_string() if own is not None else None,
        key_uri=_ref(issuer, res.settings).shown,
        key_origin=issuer.key_origin,
        spki_sha256=issuer.spki_sha256,
        certificate_sha256=hashlib.sha256(der).hexdigest() if der is not None else None,
        certificate=b64encode(der) if der is not None else None,
        parents=[b64encode(each) for each in issuer.path[1:]],
        cross_certificates=[b64encode(der) for der in issuer.cross_certificates],
        not_before=own.not_valid_before_utc if own is not None else None,
        not_after=own.not_valid_after_utc if own is not None else None,
        crl_number=issuer.crl_number,
        reserved_at=issuer.reserved_at,
        created_at=issuer.created_at,
        activated_at=issuer.activated_at,
        retiring_at=issuer.retiring_at,
        retired_at=issuer.retired_at,
        activate_from=rotation.activate_from(issuer, res.settings),
        retire_from=rotation.retire_from(tx, issuer, res.settings),
    )


def _ref(issuer: Issuer, settings: Settings) -> KeyRef:
    """Return where the key of *issuer* is now."""
    return parse_key_uri(current_uri(settings, issuer.key_uri))


def _checked(issuer: Issuer, problem: str | None, res: Resources, at: datetime) -> IssuerCheck:
    ref = _ref(issuer, res.settings)
    encrypted = _is_encrypted(ref.path) if isinstance(ref, FileRef) else None
    warnings = [validity_problem(authority_of(res).certificate(issuer), at)]
    if encrypted is False:
        warnings.append("the key lies on disk in plaintext")
    if issuer.key_origin == "provisioned":
        warnings.append("the key was brought into its token: a copy may exist outside")
    assert issuer.state in ("next", "active", "retiring")  # the caller chose these
    return IssuerCheck(
        issuer_id=issuer.issuer_id,
        purpose=issuer.purpose,
        algorithm=issuer.algorithm,
        state=issuer.state,
        key_uri=ref.shown,
        key_origin=issuer.key_origin,
        signs=problem is None,
        problem=problem,
        exportable=isinstance(ref, FileRef),
        encrypted=encrypted,
        warnings=[warning for warning in warnings if warning is not None],
    )


def _is_encrypted(path: Path) -> bool | None:
    try:
        with path.open("rb") as file:
            return ENCRYPTED in file.read(4096)
    except OSError:
        return None
