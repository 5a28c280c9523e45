"""Certificates of nodes by our own CA, for requests that this service judged good (HSM-AND-KUBERNETES §§7, 22).

The signer of a cluster asks for a request that somebody approved. Who approved it is not asked: what this service did
not judge good is not signed. From the request only its key is used; the name is that of the machine's record.
"""

# Algorithms for: ca-key
from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography.x509 import Name

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import NodeCertificate, NodeCSRRequest
from attestation.api.node_csr import NODE_CLIENT
from attestation.errors import (
    AKNotActivated,
    CANotConfigured,
    CertificateNotConformant,
    MachineChanged,
    MachineNotAdmitted,
    MachineRejected,
    NodeRequestDenied,
    Unavailable,
)
from attestation.evidence.node_csr import parse
from attestation.machines import Machine, Status, Trust
from attestation.pki.names import node_subject
from attestation.pki.profiles import ProfileName
from attestation.pki.request import CertificateRequest, parse_csr
from attestation.store import Issuance, Issuer, IssuerAlgorithm, NodeCSR, Tx
from attestation_service.auth import Controller, ControllerDep
from attestation_service.authority.issuance import Issued, Wanted
from attestation_service.authority.places import algorithms
from attestation_service.entitlements import certificates
from attestation_service.node_csr import judging
from attestation_service.node_csr.handlers import decide
from attestation_service.resources import Res, Resources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.node_csr")

PROFILE: Final = ProfileName.KUBERNETES_NODE
KNOWN_TO_KUBERNETES: Final[tuple[IssuerAlgorithm, ...]] = ("ecdsa-p384", "rsa-4096")
"""What the TLS of an API server verifies."""


async def sign(request: NodeCSRRequest, *, res: Res, who: ControllerDep) -> NodeCertificate:
    """Issue a certificate for an approved request of a node.

    Only where this service judged it good, now or before, and its machine may still have one. The same request gets
    the same certificate again.

    Raises:
        CANotConfigured: There is no CA of ours that an API server could believe.
        CertificateNotConformant: That of the CA has ended.
        NodeRequestDenied: It was judged not good, or is for another signer, or its machine may have none any more, or
            has a name that is too long for a certificate.
        NodeRequestDiffers: Another request was decided under this UID.
        RateLimited: Too many live certificates.
        Unavailable: It could not be decided, or the machine has not attested lately; ask again.
    """
    authority = certificates.authority_of(res)
    if request.csr.signer_name != NODE_CLIENT:
        raise NodeRequestDenied(f"the request is not for {NODE_CLIENT}")
    decided = await decide(request, who, res)
    if decided.decision != "approve":
        raise NodeRequestDenied(decided.message)
    at = res.clock.now()
    issued = await res.store.read(lambda tx: _issued(tx, decided, at))
    if issued is not None:
        return issued
    key = await asyncio.to_thread(_key_of, request, res.settings)
    plan = await res.store.read(lambda tx: _plan(tx, decided, request, key, who, res, at))

    def admit(tx: Tx) -> None:
        _demand_admitted(tx, decided, res.settings, at)
        certificates.live(tx, _machine_of(decided), PROFILE, res.settings, at)

    def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
        _demand_admitted(tx, decided, res.settings, at)
        if not tx.node_csrs.signed(decided.result_id, issued[0].serial):
            # Another signer was faster: what this one signed nobody gets.
            raise MachineChanged("another certificate was issued for this request")
        told = f"{decided.csr_name} ({decided.csr_uid}), result {decided.result_id}: "
        tx.audit.append(
            who.event(
                "cert_issued",
                machine_id=decided.machine_id,
                detail=told + certificates.told(issued, plan),
            ),
            at,
        )

    try:
        (made,) = await authority.issue(plan, at=at, admit=admit, conclude=conclude)
    except MachineChanged:
        found = await res.store.read(lambda tx: _issued(tx, decided, at))
        if found is None:
            raise Unavailable("the request was signed by another signer just now; ask again") from None
        return found
    except MachineNotAdmitted as e:
        # Locked or revoked while it was being signed.
        raise NodeRequestDenied(str(e)) from e
    log.info(
        "node_csr.signed",
        cluster_id=decided.cluster_id,
        csr=decided.csr_name,
        serial=made.serial,
        machine_id=decided.machine_id,
        service_account=who.service_account,
    )
    return _answer(decided, made.certificate, made.chain, made.ca, made.serial, made.not_after)


def _machine_of(decided: NodeCSR) -> str:
    assert decided.machine_id is not None
    return decided.machine_id


def _issued(tx: Tx, decided: NodeCSR, at: datetime) -> NodeCertificate | None:
    """Return the certificate that was issued for a request; None where there is none yet.

    Raises:
        NodeRequestDenied: It is good no more.
    """
    row = tx.node_csrs.get(decided.cluster_id, decided.csr_uid)
    if row is None or row.serial is None:
        return None
    found: Issuance | None = tx.issuances.get(row.serial)
    issuer = tx.issuers.get(found.issuer_id) if found is not None else None
    if (
        found is None
        or found.state != "issued"
        or found.certificate is None
        or found.not_after <= at
        or issuer is None
        or not issuer.path
    ):
        raise NodeRequestDenied("the certificate of this request has ended")
    return _answer(
        decided,
        found.certificate,
        issuer.sent,
        issuer.path[-1],
        found.serial,
        found.not_after,
    )


def _key_of(request: NodeCSRRequest, settings: Settings) -> CertificateRequest:
    """Return the key of a request that was judged good, read anew."""
    found = parse_csr(parse(judging.evidence_in(request)).csr_der)
    demand(CryptoPolicy(settings.crypto_policy), Use.LEAF, found.algorithm)
    return found


def _plan(
    tx: Tx,
    decided: NodeCSR,
    request: NodeCSRRequest,
    key: CertificateRequest,
    who: Controller,
    res: Resources,
    at: datetime,
) -> Wanted:
    machine = _demand_admitted(tx, decided, res.settings, at)
    longest = who.cluster.max_lifetime_seconds
    seconds = min(request.csr.expiration_seconds or longest, longest)
    live = certificates.live(tx, machine.machine_id, PROFILE, res.settings, at)
    assert decided.node_name is not None
    return Wanted(
        profile=PROFILE,
        subject=_subject(decided.node_name),
        spki=key.spki,
        requester=machine.machine_id,
        machine_id=machine.machine_id,
        key_tier=decided.tier,
        assurance=machine.assurance,
        lifetime=timedelta(seconds=seconds),
        renews=certificates.renewed(live),
        issuer_id=_issuer(tx, res.settings).issuer_id,
    )


def _subject(hostname: str) -> Name:
    """Return the subject of a node.

    Raises:
        NodeRequestDenied: No certificate can say this name: asked again, this request has the same one.
    """
    try:
        return node_subject(hostname)
    except CertificateNotConformant as e:
        raise NodeRequestDenied(f"the host name of the machine fits into no certificate: {e}") from e


def _issuer(tx: Tx, settings: Settings) -> Issuer:
    """Return the key that signs: of two, the one that an API server understands.

    Raises:
        CANotConfigured: None does.
    """
    for algorithm in algorithms(settings):
        found = tx.issuers.active("machine", algorithm) if algorithm in KNOWN_TO_KUBERNETES else None
        if found is not None:
            return found
    raise CANotConfigured(
        "no key of the CA signs with what an API server verifies: ecdsa-p384, rsa-4096 or hybrid"
    )


def _demand_admitted(tx: Tx, decided: NodeCSR, settings: Settings, at: datetime) -> Machine:
    """Return the machine of a request, which may have a certificate now and is still what was judged.

    Raises:
        NodeRequestDenied: It may have none, for this request, any more.
        Unavailable: It may have one as soon as it has attested.
    """
    machine = tx.machines.by_id(_machine_of(decided))
    if machine is None:
        raise NodeRequestDenied("the machine of this request is gone")
    same = (machine.hostname, machine.cluster_id, machine.key_name)
    if same != (decided.node_name, decided.cluster_id, decided.ak_name):
        raise NodeRequestDenied("the machine was changed since this request was approved")
    try:
        certificates.admitted(tx, machine, settings, at)
    except (MachineRejected, MachineNotAdmitted, AKNotActivated) as e:
        waits = machine.status in (Status.REGISTERED, Status.ATTESTED)
        if waits and machine.trust(at) is not Trust.FAILED:
            # It attests every minute: what it lacks now it may have soon.
            raise Unavailable(f"{e}") from e
        raise NodeRequestDenied(str(e)) from e
    return machine


def _answer(
    decided: NodeCSR,
    certificate: bytes,
    chain: tuple[bytes, ...],
    ca: bytes,
    serial: str,
    not_after: datetime,
) -> NodeCertificate:
    return NodeCertificate(
        result_id=decided.result_id,
        certificate_pem="".join(map(certificates.pem, (certificate, *chain))),
        ca_pem=certificates.pem(ca),
        serial=serial,
        not_after=not_after,
    )


__all__ = ["CertificateNotConformant", "sign"]
