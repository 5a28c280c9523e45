"""Client certificates for people: who asks, who must agree, and who may take them back.

What this gives is the right to act, so it is an act on machines of every role: where dual control is on, several must
agree to exactly this name, duty, key and time. Break-glass may never ask: one secret that several hold could make
people out of nothing, and then outvote those who exist. Taking a certificate back needs one operator, or break-glass.
"""

# Algorithms for: certified-key
from __future__ import annotations

import unicodedata
from datetime import timedelta
from typing import Annotated, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from fastapi import Query

from attestation.algorithms import Use, demand
from attestation.api import (
    CertificateRevokeRequest,
    OperatorCertificate,
    OperatorCertificateDetail,
    OperatorCertificatePage,
    OperatorCertificateRequest,
    PendingApproval,
)
from attestation.clock import rfc3339
from attestation.errors import (
    BreakGlassCannotVote,
    CANotConfigured,
    CertificateUnknown,
    CSRInvalid,
    RequestInvalid,
    TransitionForbidden,
)
from attestation.machines.dual_control import of_operator_certificate
from attestation.pki.names import operator_subject
from attestation.pki.profiles import ProfileName
from attestation.pki.request import CertificateRequest, parse_csr
from attestation.store import Issuance, IssuanceFilter, IssuanceState, Issuer, Page, Tx
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.auth.client_certificate import clean_name
from attestation_service.authority import Authority, Issued, Wanted
from attestation_service.authority.places import algorithms
from attestation_service.context.identity import RESERVED_NAMES
from attestation_service.entitlements.certificates import pem
from attestation_service.keys import crypto_policy
from attestation_service.operators import dual_control, votes
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit, Serial

PROFILE: Final = ProfileName.OPERATOR


class _Agreed(Exception):
    """Enough agree: the votes are counted again, and used up, in the unit that reserves the serial number."""


async def request_certificate(
    request: OperatorCertificateRequest, *, res: Res, operator: VoterDep
) -> OperatorCertificate | PendingApproval:
    """Issue a client certificate for a person.

    Several must agree where dual control is on; break-glass may not ask.

    Raises:
        CANotConfigured: There is no CA for operators.
        MalformedEvidence: The request cannot be read.
        CSRInvalid: It is not signed by its key, or the key is none that TLS and we know.
        RequestInvalid: A name that is nobody's, or cannot be told from another.
        BreakGlassCannotVote: Break-glass asks.
        AlgorithmForbidden: The policy in force forbids the key.
    """
    authority = _authority(res)
    if not operator.is_human:
        raise BreakGlassCannotVote(
            f"{operator.cn} is no person, and may not make people: log in, or use a certificate of ITL_OPERATOR_CA"
        )
    name = _checked(request.name)
    csr = _key_of(request.csr_pem, res)
    days = min(request.days or res.settings.operator_cert_days, res.settings.operator_cert_days)
    proposal = of_operator_certificate(name=name, duty=request.duty, spki_sha256=csr.spki_sha256, days=days)
    at = res.clock.now()

    def gate(tx: Tx) -> PendingApproval | dual_control.Agreed:
        return dual_control.gate(
            tx, proposal, operator, res, at, reason=request.reason, document=request.csr_pem
        )

    def vote(tx: Tx) -> PendingApproval:
        agreed = gate(tx)
        if isinstance(agreed, PendingApproval):
            return agreed
        raise _Agreed

    try:
        return await dual_control.write(vote, res=res, operator=operator, at=at)
    except _Agreed:
        pass
    issuer = await res.store.read(lambda tx: _issuer(tx, res))
    agreed = dual_control.Agreed()

    def admit(tx: Tx) -> None:
        nonlocal agreed
        found = gate(tx)
        if isinstance(found, PendingApproval):
            raise TransitionForbidden("votes were withdrawn or have expired meanwhile; ask again")
        agreed = found

    def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
        for each in issued:
            told = (
                f"serial {each.serial} of CA {each.issuer_id}: {request.duty} {name}, key {csr.spki_sha256}, "
                f"until {rfc3339(each.not_after)}"
            )
            told = f"{told}; {request.reason}" if request.reason else told
            tx.audit.append(operator.event("cert_issued", detail=agreed.told(told)), at)

    (issued,) = await authority.issue(
        Wanted(
            profile=PROFILE,
            subject=operator_subject(
                country=res.settings.ca_country,
                organization=res.settings.ca_organization,
                name=name,
                duty=request.duty,
            ),
            spki=csr.spki,
            requester=operator.cn,
            lifetime=timedelta(days=days),
            issuer_id=issuer.issuer_id,
        ),
        at=at,
        admit=admit,
        conclude=conclude,
    )
    row = await res.store.read(lambda tx: tx.issuances.get(issued.serial))
    assert row is not None  # the unit before wrote it
    return OperatorCertificate(
        **_detail(row).model_dump(),
        certificate_pem=pem(issued.certificate),
        chain_pem="".join(map(pem, issued.chain)),
        ca_pem=pem(issued.ca),
    )


async def list_certificates(
    state: Annotated[IssuanceState | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
) -> OperatorCertificatePage:
    """List operators' certificates.

    Newest first; those that ended long ago are in the audit log only.
    """
    wanted = IssuanceFilter(profile=PROFILE.value, state=state)

    def work(tx: Tx) -> Page[Issuance]:
        return tx.issuances.page(wanted, cursor, limit)

    page = await res.store.scan(work)
    return OperatorCertificatePage(items=[_detail(row) for row in page.items], next_cursor=page.next_cursor)


async def revoke(
    serial: Serial, request: CertificateRevokeRequest, *, res: Res, operator: OperatorDep
) -> OperatorCertificateDetail:
    """Take an operator's certificate back.

    One operator is enough, and it holds from the next request on.

    Raises:
        CertificateUnknown: No operator's certificate has this serial number.
        TransitionForbidden: It is revoked or void already.
    """
    at = res.clock.now()

    def work(tx: Tx) -> OperatorCertificateDetail:
        before = tx.issuances.get(serial)
        if before is None or before.profile != PROFILE:
            raise CertificateUnknown("no operator's certificate has this serial number")
        why = request.note or "revoked by an operator"
        if not tx.issuances.revoke_serial(serial, request.reason, why, at):
            raise TransitionForbidden(f"the certificate is {before.state} already")
        votes.end(tx, f"spki-sha256:{before.spki_sha256}", "the certificate of its voter was revoked", at)
        after = tx.issuances.get(serial)
        assert after is not None
        detail = f"serial {serial} of CA {before.issuer_id}, {before.subject}: {request.reason}"
        event = operator.event(
            "cert_revoked",
            prev_state=before.state,
            new_state=after.state,
            detail=f"{detail}: {request.note}" if request.note else detail,
        )
        tx.audit.append(event, at)
        return _detail(after)

    answer = await dual_control.write(work, res=res, operator=operator, at=at)
    if res.revocation is not None:
        res.revocation.changed()
    return answer


def _authority(res: Resources) -> Authority:
    if res.authority is None or not res.settings.issues_to_operators:
        raise CANotConfigured("this service has no CA for operators (ITL_OPERATOR_CERTIFICATES)")
    return res.authority


def _issuer(tx: Tx, res: Resources) -> Issuer:
    """Return the key that signs for operators: of a hybrid CA the classical one, because no TLS knows the other."""
    found = tx.issuers.active("operator", algorithms(res.settings)[0])
    if found is None:
        raise CANotConfigured("there is no CA for operators yet")
    return found


def _checked(name: str) -> str:
    """Return *name*, if it is one that a person may have.

    Raises:
        RequestInvalid: Reserved, or another name than what a reader would see.
    """
    if clean_name(name) != name or unicodedata.normalize("NFKC", name) != name:
        raise RequestInvalid(
            "the name has characters that cannot be seen, or that can be written in two ways"
        )
    if name.casefold() in RESERVED_NAMES:
        raise RequestInvalid("the name is reserved")
    return name


def _key_of(csr_pem: str, res: Resources) -> CertificateRequest:
    csr = parse_csr(csr_pem.encode())
    if not isinstance(csr.public_key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise CSRInvalid(f"a key of {csr.algorithm}; TLS clients and our verifier know ECC and RSA")
    demand(crypto_policy.of(res.settings), Use.OPERATOR_CERTIFICATE, csr.algorithm)
    return csr


def _detail(row: Issuance) -> OperatorCertificateDetail:
    subject = x509.Name.from_rfc4514_string(row.subject)
    name, duty = (
        str(subject.get_attributes_for_oid(oid)[0].value)
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
    )
    return OperatorCertificateDetail(
        serial=row.serial,
        issuer_id=row.issuer_id,
        name=name,
        duty=duty,  # type: ignore[arg-type]  # the profile allows no other
        state=row.state,
        spki_sha256=row.spki_sha256,
        requester=row.requester,
        not_before=row.not_before,
        not_after=row.not_after,
        issued_at=row.issued_at,
        ended_at=row.ended_at,
        reason=row.reason,
        note=row.note,
    )
