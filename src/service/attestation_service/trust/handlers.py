"""The trust bundle in the hands of operators: shown, extended, restricted; and what it says of one machine.

Adding an anchor lets strangers vouch for machines, so it is an act of several operators where dual control is on.
Distrusting needs one and works at once. Each change is an audit entry with the digests of the bundle before and after.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Path

from attestation.api import (
    AdvisoryDetail,
    AdvisoryList,
    EndorsementDetail,
    PathCertificateDetail,
    PendingApproval,
    TrustBundleDetail,
    TrustCertificateDetail,
    TrustCertificateRequest,
    TrustReasonRequest,
    TrustVerdict,
    TrustVerifyRequest,
    UnknownIssuerDetail,
    UnknownIssuerPage,
)
from attestation.endorsements import PathValidation, vendors
from attestation.endorsements.bundle import VENDORS, TrustBundle
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.firmware import shipped_blocklist
from attestation.endorsements.missing import missing_role
from attestation.endorsements.path import NO_ISSUER, PathFailure
from attestation.endorsements.path import Path as FoundPath
from attestation.errors import (
    AlreadyExists,
    BundleInvalid,
    MalformedEvidence,
    TransitionForbidden,
    TrustCertificateUnknown,
)
from attestation.evidence import ek_certificate
from attestation.machines.dual_control import of_trust_certificate
from attestation.store import StoredEKCertificate, TrustCertificate, Tx
from attestation.wire import b64decode, b64encode
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Id, Limit
from attestation_service.verifier.endorsements import entry_of

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the DER")]

MAX_CERTIFICATE_BYTES: Final = 16_384
"""PEM of the longest certificate that is accepted."""


async def show_bundle(*, res: Res) -> TrustBundleDetail:
    """Show the trust bundle in force.

    Shipped certificates, those of the folder, and what operators added or distrusted.
    """
    return await res.store.read(lambda tx: _bundle_detail(tx, res))


async def list_advisories(*, res: Res) -> AdvisoryList:
    """List the advisories about firmware of TPMs.

    By vendor; those that are shipped before those of the operators' own file.
    """
    shipped = shipped_blocklist().by_vendor
    return AdvisoryList(
        sha256=res.advisories.sha256,
        advisories=[
            AdvisoryDetail(
                advisory=each.advisory,
                vendor=vendor,
                versions=[str(versions) for versions in each.match],
                affects=each.affects.value,
                severity=each.severity.value,
                action=each.action.value,
                fixed=each.fixed,
                origin="shipped" if each in shipped.get(vendor, ()) else "file",
            )
            for vendor, found in res.advisories.by_vendor.items()
            for each in found
        ],
    )


async def show_certificate(sha256: Sha256, *, res: Res) -> TrustCertificateDetail:
    """Show one certificate of the trust bundle.

    Where it comes from, and whether it is trusted.

    Raises:
        TrustCertificateUnknown: The bundle has none with this SHA-256.
    """
    return await res.store.read(lambda tx: _found(tx, sha256, res))


async def add(
    request: TrustCertificateRequest, *, res: Res, operator: VoterDep
) -> TrustCertificateDetail | PendingApproval:
    """Trust a vendor's certificate.

    An anchor needs several operators under dual control; an intermediate must chain to one.

    Raises:
        BundleInvalid: It cannot be read, is no CA's, or no active anchor of the vendor leads to it.
        AlreadyExists: It is in the bundle and active.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    der, certificate = _parsed(request, at)

    def work(tx: Tx) -> TrustCertificateDetail | PendingApproval:
        before = res.anchors.bundle(tx)
        stored = tx.trust.get(certificate.sha256)
        if before.get(certificate.sha256) is not None and before.distrust_of(certificate.sha256) is None:
            raise AlreadyExists(f"certificate {certificate.sha256} is trusted already")
        added = TrustCertificate(
            sha256=certificate.sha256,
            certificate=der,
            role=request.role,
            vendor=request.vendor,
            status="active",
            reason=request.reason,
            added_at=at,
            added_by=operator.cn,
            changed_at=at,
            changed_by=operator.cn,
        )
        if request.role == "intermediate":
            _chains(
                before.with_overlay([(entry_of(added), der)]).chain(certificate.sha256, at=at),
                before,
                request.vendor,
            )
            agreed = dual_control.alone(operator)
        else:
            proposal = of_trust_certificate(
                sha256=certificate.sha256, role=request.role, vendor=request.vendor
            )
            found = dual_control.gate(
                tx, proposal, operator, res, at, reason=request.reason, document=b64encode(der)
            )
            if isinstance(found, PendingApproval):
                return found
            agreed = found
        if stored is None:
            tx.trust.add(added)
        else:
            if (stored.role, stored.vendor) != (request.role, request.vendor):
                raise AlreadyExists(
                    f"certificate {stored.sha256} is known as {stored.role} of {stored.vendor}; trust it as that"
                )
            tx.trust.set_status(stored.sha256, "active", request.reason, operator.cn, at)
        told = f"{request.role} of {request.vendor} {certificate.sha256}, {certificate.subject[:200]}: {request.reason}"
        told = _with_digests(agreed.told(told) or told, before, res.anchors.bundle(tx))
        tx.audit.append(operator.event("trust_add", detail=told), at)
        return _found(tx, certificate.sha256, res)

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def distrust(
    sha256: Sha256, request: TrustReasonRequest, *, res: Res, operator: OperatorDep
) -> TrustCertificateDetail:
    """Distrust a certificate at once.

    Machines that it vouched for fall in the same moment.

    Raises:
        TrustCertificateUnknown: The bundle has none with this SHA-256.
        TransitionForbidden: It is distrusted already.
    """
    at = res.clock.now()

    def work(tx: Tx) -> TrustCertificateDetail:
        before = res.anchors.bundle(tx)
        held = before.get(sha256)
        if held is None:
            raise TrustCertificateUnknown(f"no certificate {sha256} in the trust bundle")
        if before.distrust_of(sha256) is not None:
            raise TransitionForbidden(f"certificate {sha256} is distrusted already")
        if tx.trust.get(sha256) is None:
            tx.trust.add(
                TrustCertificate(
                    sha256=sha256,
                    certificate=held.certificate.der,
                    role=held.entry.role.value,
                    vendor=held.entry.vendor,
                    status="distrusted",
                    reason=request.reason,
                    added_at=at,
                    added_by=operator.cn,
                    changed_at=at,
                    changed_by=operator.cn,
                )
            )
        else:
            tx.trust.set_status(sha256, "distrusted", request.reason, operator.cn, at)
        # Not in the background: until the next judgement nobody shall be believed on its word.
        fallen = tx.ek_certificates.lower(sha256)
        told = f"{held.entry.role} of {held.entry.vendor} {sha256}: {request.reason}; machines that fall: {fallen}"
        told = _with_digests(told, before, res.anchors.bundle(tx))
        tx.audit.append(operator.event("trust_distrust", detail=told), at)
        return _found(tx, sha256, res)

    return await res.store.write(work)


async def restore(
    sha256: Sha256, request: TrustReasonRequest, *, res: Res, operator: VoterDep
) -> TrustCertificateDetail | PendingApproval:
    """Trust a distrusted certificate again.

    As hard as adding an anchor.

    Raises:
        TrustCertificateUnknown: No operator distrusted one with this SHA-256.
        TransitionForbidden: It is trusted.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()

    def work(tx: Tx) -> TrustCertificateDetail | PendingApproval:
        before, stored = res.anchors.bundle(tx), tx.trust.get(sha256)
        if stored is None:
            raise TrustCertificateUnknown(f"no operator distrusted a certificate {sha256}")
        if stored.status == "active":
            raise TransitionForbidden(f"certificate {sha256} is trusted")
        proposal = of_trust_certificate(sha256=sha256, role=stored.role, vendor=stored.vendor)
        agreed = dual_control.gate(tx, proposal, operator, res, at, reason=request.reason)
        if isinstance(agreed, PendingApproval):
            return agreed
        tx.trust.set_status(sha256, "active", request.reason, operator.cn, at)
        told = f"{stored.role} of {stored.vendor} {sha256}: {request.reason}"
        told = _with_digests(agreed.told(told) or told, before, res.anchors.bundle(tx))
        tx.audit.append(operator.event("trust_restore", detail=told), at)
        return _found(tx, sha256, res)

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def verify(request: TrustVerifyRequest, *, res: Res) -> TrustVerdict:
    """Ask what the bundle says of an EK certificate.

    Nothing is stored.

    Raises:
        MalformedEvidence: It cannot be read.
    """
    at = res.clock.now()
    parsed = ek_certificate.parse(
        b64decode(request.certificate, "certificate", max_bytes=MAX_CERTIFICATE_BYTES)
    )
    chain = tuple(
        b64decode(der, "chain", max_bytes=ek_certificate.MAX_CERTIFICATE_BYTES) for der in request.chain
    )
    validation = await res.store.read(lambda tx: res.anchors.bundle(tx).verify(parsed.der, chain, at=at))
    return TrustVerdict(**_validation(validation))


async def endorsement(machine_id: Id, *, res: Res) -> EndorsementDetail:
    """Show who vouches for the TPM of a machine.

    Every certificate of the path with its verdict, and where the path ended.

    Raises:
        MachineUnknown: No such machine.
        TrustCertificateUnknown: It has no EK certificate.
    """

    def work(tx: Tx) -> EndorsementDetail:
        machine = tx.machines.require(machine_id)
        stored = tx.ek_certificates.get(machine_id)
        if stored is None:
            raise TrustCertificateUnknown("this machine came without an EK certificate")
        return EndorsementDetail(
            **_validation(stored.validation),
            machine_id=machine_id,
            assurance=machine.assurance,
            ek_allow_listed=machine.anchor.ek_allow_listed,
            judged_at=stored.judged_at,
            certificate=b64encode(stored.certificate),
            claimed_vendor=machine.anchor.ek_certificate.manufacturer
            if machine.anchor.ek_certificate
            else "",
            unknown_issuer=_unknown_issuer(stored),
        )

    return await res.store.read(work)


async def list_unknown_issuers(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> UnknownIssuerPage:
    """List issuers that the bundle does not hold, as machines that wait name them.

    Newest machine first. A page looks at `limit` machines whose EK certificate nobody vouches for; where the path
    ended for another reason they are counted and not listed.

    Raises:
        RequestInvalid: A cursor that is none.
    """

    def work(tx: Tx) -> UnknownIssuerPage:
        anchored = {held.entry.vendor for held in res.anchors.bundle(tx).anchors}
        page = tx.ek_certificates.unvouched(cursor, limit)
        found = []
        for each in page.items:
            issuer, path = _unknown_issuer(each.stored), each.stored.validation.path
            if issuer is None:
                continue
            vendor = each.manufacturer or ""
            role = missing_role(
                issuer, below=path[-1].subject if path else "", vendor=vendor, anchored=anchored
            )
            found.append(
                UnknownIssuerDetail(
                    machine_id=each.stored.machine_id,
                    hw_serial=each.hw_serial,
                    issuer=issuer,
                    claimed_vendor=vendor,
                    role=role.value,
                )
            )
        return UnknownIssuerPage(items=found, looked_at=len(page.items), next_cursor=page.next_cursor)

    return await res.store.scan(work)


def _parsed(request: TrustCertificateRequest, at: datetime) -> tuple[bytes, Certificate]:
    """Read the certificate and check what can be checked of it alone."""
    if request.vendor not in VENDORS - {vendors.SIMULATOR}:
        raise BundleInvalid(f"vendor {request.vendor} is not in the TCG vendor registry")
    try:
        der = ek_certificate.parse(
            b64decode(request.certificate, "certificate", max_bytes=MAX_CERTIFICATE_BYTES)
        ).der
        certificate = parse_certificate(der)
    except MalformedEvidence as e:
        raise BundleInvalid(str(e)) from e
    if not certificate.is_ca:
        raise BundleInvalid("this is not the certificate of a CA; accept one EK with approve --accept-ek")
    if not certificate.not_before <= at <= certificate.not_after:
        raise BundleInvalid(
            f"valid from {certificate.not_before:%Y-%m-%d} to {certificate.not_after:%Y-%m-%d}, not now"
        )
    return der, certificate


def _chains(path: FoundPath | PathFailure | None, bundle: TrustBundle, vendor: str) -> None:
    """Refuse an intermediate that no active anchor of its vendor leads to: it would be an anchor by another name."""
    if not isinstance(path, FoundPath):
        raise BundleInvalid(
            f"an intermediate must chain to an active anchor: {path.reason if path is not None else 'it is none'}"
        )
    anchor = bundle.get(path.anchor.sha256)
    assert anchor is not None  # it is what the path ended at
    if anchor.entry.vendor != vendor:
        raise BundleInvalid(f"it chains to an anchor of {anchor.entry.vendor}, not of {vendor}")


def _with_digests(told: str, before: TrustBundle, after: TrustBundle) -> str:
    return f"{told}; bundle {before.sha256} to {after.sha256}"


def _bundle_detail(tx: Tx, res: Resources) -> TrustBundleDetail:
    bundle = res.anchors.bundle(tx)
    stored = {each.sha256: each for each in tx.trust.all()}
    return TrustBundleDetail(
        sha256=bundle.sha256,
        verifying=res.anchors.verifying,
        certificates=[
            _detail(sha256, stored.get(sha256), tx, res)
            for sha256 in (held.entry.sha256 for held in bundle.held)
        ],
    )


def _found(tx: Tx, sha256: str, res: Resources) -> TrustCertificateDetail:
    if res.anchors.bundle(tx).get(sha256) is None:
        raise TrustCertificateUnknown(f"no certificate {sha256} in the trust bundle")
    return _detail(sha256, tx.trust.get(sha256), tx, res)


def _detail(sha256: str, stored: TrustCertificate | None, tx: Tx, res: Resources) -> TrustCertificateDetail:
    bundle = res.anchors.bundle(tx)
    held = bundle.get(sha256)
    assert held is not None  # the caller looked
    entry = held.entry
    return TrustCertificateDetail(
        sha256=entry.sha256,
        spki_sha256=entry.spki_sha256,
        role=entry.role.value,
        vendor=entry.vendor,
        subject=entry.subject,
        not_before=entry.not_before,
        not_after=entry.not_after,
        status="active" if bundle.distrust_of(sha256) is None else "distrusted",
        origin=res.anchors.where(sha256),
        reason=stored.reason if stored is not None else entry.reason,
        changed_at=stored.changed_at if stored is not None else None,
        changed_by=stored.changed_by if stored is not None else None,
    )


def _validation(validation: PathValidation) -> dict[str, Any]:
    return {
        "ok": validation.ok,
        "reason": validation.reason,
        "vendor": validation.vendor,
        "anchor_sha256": validation.anchor_sha256,
        "revocation": validation.revocation,
        "bundle_sha256": validation.bundle_sha256,
        "path": [
            PathCertificateDetail(
                sha256=each.sha256, subject=each.subject, role=each.role, ok=each.ok, reason=each.reason
            )
            for each in validation.path
        ],
    }


def _unknown_issuer(stored: StoredEKCertificate) -> str | None:
    """Return who signed the last certificate that was found, where nobody of that name is held.

    What was refused for another reason has no unknown issuer: whoever is told of one is asked to trust it.
    """
    path = stored.validation.path
    if stored.validation.ok or (path and not path[-1].reason.startswith(NO_ISSUER)):
        return None
    ders = {each.sha256: each for each in map(_read, (stored.certificate, *stored.chain)) if each is not None}
    for step in reversed(path):
        if step.sha256 in ders:
            return ders[step.sha256].issuer
    first = _read(stored.certificate)
    return first.issuer if first is not None else None


def _read(der: bytes) -> Certificate | None:
    try:
        return parse_certificate(der)
    except MalformedEvidence:
        return None  # a hint of the machine that cannot be read leads nowhere
