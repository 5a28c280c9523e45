"""CA keys on tokens, for operators: which there are, what they issued, what evidence proved; and revocation."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Query

from attestation.api import (
    HSMCertificateDetail,
    HSMCertificatePage,
    HSMIssuerDetail,
    HSMIssuerPage,
    HSMRevokeRequest,
    QuoteAttestationDetail,
    QuoteAttestationPage,
    QuoteVerdict,
)
from attestation.errors import CertificateUnknown, IssuerUnknown, TransitionForbidden
from attestation.hsm import CertificateState
from attestation.store import HSMCertificate, HSMIssuer, HSMQuote, Page, Tx
from attestation.wire import b64encode
from attestation_service.auth import OperatorDep
from attestation_service.hsm.issuers import pointers
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, IssuerId, Limit, Serial

State = Annotated[CertificateState | None, Query(description="Only those in this state")]


async def issuers(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> HSMIssuerPage:
    """List CA keys in hardware, newest first.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """

    def load(tx: Tx) -> HSMIssuerPage:
        page = tx.hsm.issuers(cursor, limit)
        return HSMIssuerPage(
            items=[_issuer(tx, each, res) for each in page.items], next_cursor=page.next_cursor
        )

    return await res.store.scan(load)


async def certificates(
    issuer_id: IssuerId, state: State = None, cursor: Cursor = None, limit: Limit = 50, *, res: Res
) -> HSMCertificatePage:
    """List the certificates of a CA key in hardware, newest first.

    Raises:
        IssuerUnknown: No such key.
        RequestInvalid: A cursor that cannot be.
    """

    def load(tx: Tx) -> Page[HSMCertificate]:
        if tx.hsm.issuer(issuer_id) is None:
            raise IssuerUnknown("there is no such CA key in hardware")
        return tx.hsm.certificates(issuer_id, state, cursor, limit)

    page = await res.store.scan(load)
    return HSMCertificatePage(items=list(map(_certificate, page.items)), next_cursor=page.next_cursor)


async def revoke(
    serial: Serial, request: HSMRevokeRequest, *, res: Res, operator: OperatorDep
) -> HSMCertificateDetail:
    """Revoke one certificate of a CA key in hardware for good.

    OCSP tells it at once; the list follows as soon as the key's controller has signed it.

    Raises:
        CertificateUnknown: No certificate of this key has this serial number.
        TransitionForbidden: It is revoked or void already.
    """
    at = res.clock.now()

    def work(tx: Tx) -> HSMCertificateDetail:
        before = tx.hsm.certificate(serial)
        if before is None or before.issuer_id != request.issuer_id:
            raise CertificateUnknown("no certificate of this CA key has this serial number")
        why = request.note or "revoked by an operator"
        if not (tx.hsm.revoke(before, request.reason, why, at) or tx.hsm.void(before, why, at)):
            raise TransitionForbidden(f"the certificate is {before.state} already")
        after = tx.hsm.certificate(serial)
        assert after is not None
        detail = f"serial {serial} of CA {before.issuer_id}, {before.subject}: {request.reason}"
        event = operator.event(
            "hsm_certificate_revoked",
            prev_state=before.state,
            new_state=after.state,
            detail=f"{detail}: {request.note}" if request.note else detail,
        )
        tx.audit.append(event, at)
        return _certificate(after)

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def quote_attestations(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> QuoteAttestationPage:
    """List QuoteAttestations, newest first.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    page = await res.store.scan(lambda tx: tx.hsm_quotes.page(cursor, limit))
    return QuoteAttestationPage(items=list(map(_quote, page.items)), next_cursor=page.next_cursor)


def _issuer(tx: Tx, row: HSMIssuer, res: Resources) -> HSMIssuerDetail:
    kept = tx.hsm.crl_state(row.issuer_id)
    delegate = tx.hsm.delegate(row.issuer_id, "active")
    return HSMIssuerDetail(
        issuer_id=row.issuer_id,
        uid=row.uid,
        **pointers(row.issuer_id, res.settings),
        revision=row.revision,
        crl_number=kept[0] if kept is not None else 0,
        cluster_id=row.cluster_id,
        kind=row.kind,
        namespace=row.namespace,
        name=row.name,
        subject=row.subject,
        spki_sha256=row.spki_sha256,
        certificate=b64encode(row.certificate),
        key_origin=row.key_origin,
        module=row.module,
        token_label=row.token_label,
        not_before=row.not_before,
        not_after=row.not_after,
        registered_at=row.registered_at,
        superseded_at=row.superseded_at,
        crl_next_update=kept[3] if kept is not None else None,
        ocsp_until=delegate.not_after if delegate is not None else None,
    )


def _certificate(row: HSMCertificate) -> HSMCertificateDetail:
    return HSMCertificateDetail(
        serial=row.serial,
        issuer_id=row.issuer_id,
        state=row.state,
        request_uid=row.request_uid,
        kind=row.kind,
        namespace=row.namespace,
        name=row.name,
        subject=row.subject,
        names=json.loads(row.names),
        is_ca=row.is_ca,
        requester=row.requester,
        spki_sha256=row.spki_sha256,
        not_before=row.not_before,
        not_after=row.not_after,
        reserved_at=row.reserved_at,
        issued_at=row.issued_at,
        ended_at=row.ended_at,
        reason=row.reason,
        note=row.note,
    )


def _quote(row: HSMQuote) -> QuoteAttestationDetail:
    return QuoteAttestationDetail(
        **QuoteVerdict.model_validate_json(row.result).model_dump(),
        cluster_id=row.cluster_id,
        uid=row.uid,
        namespace=row.namespace,
        name=row.name,
        purpose=row.purpose,
        signer_uid=row.signer_uid,
        evidence_type=row.evidence_type,
        received_at=row.received_at,
        expires_at=row.expires_at,
        last_step=row.last_step,
    )
