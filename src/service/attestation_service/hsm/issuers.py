"""CA keys on tokens of a cluster: which there are. What is registered is checked, and never believed for ourselves."""

# Algorithms for: ca-key, digest
from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Final

import structlog
from cryptography import x509
from fastapi import Path

from attestation.api import HSMIssuer as Shown
from attestation.api import HSMIssuerPut
from attestation.api.node_csr import ObjectUID
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.errors import (
    CSRInvalid,
    IssuerUnknown,
    RequestInvalid,
    SignatureInvalid,
)
from attestation.pki.external import unknown_critical
from attestation.pki.signature import PublicKey, load_spki, verify_signature
from attestation.store import HSMIssuer, Tx
from attestation.wire import b64decode
from attestation_service.auth import Controller, ControllerDep
from attestation_service.hsm import bounds
from attestation_service.resources import Res, Resources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.hsm")

IssuerUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the issuer")]

ID_BYTES: Final = 8
MAX_CERTIFICATE_BYTES: Final = 16 << 10
CHANGES: Final = (
    "uid",
    "kind",
    "namespace",
    "name",
    "certificate",
    "chain",
    "key_origin",
    "module",
    "token_label",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CACertificate:
    """The certificate of a CA key, after `read_ca`.

    Args:
        parsed: Itself.
        key: Its key.
        algorithm: Of its key, like `ecdsa-p384`.
        subject: RFC 4514.
    """

    parsed: Certificate
    key: PublicKey
    algorithm: str
    subject: str


async def put(uid: IssuerUID, request: HSMIssuerPut, *, res: Res, who: ControllerDep) -> Shown:
    """Register the CA certificate of an issuer whose key is in hardware.

    Another key under the same UID follows the one before, whose revocation lists and answers go on. The same key keeps
    its `issuer_id`, whatever else is said of it.

    Raises:
        MalformedEvidence: No certificate.
        RequestInvalid: Not the certificate of a CA, its chain does not hold, or it is valid for too long.
        RateLimited: The cluster has too many keys, or changes too often which.
    """
    at = res.clock.now()
    said = await asyncio.to_thread(_issuer, uid, request, who, res.settings, at)
    known = await res.store.read(lambda tx: tx.hsm.issuer_by_key(who.cluster.cluster_id, said.spki_sha256))
    if known is None or _changes(known, said):

        def register(tx: Tx) -> HSMIssuer:
            return _register(tx, said, who, res, at)

        known = await res.store.write(register)
    name = known.issuer_id
    served = await res.store.read(lambda tx: tx.hsm.crl_state(name))
    return shown(known, res.settings, crl_number=served[0] if served is not None else 0)


def demand(tx: Tx, who: Controller, issuer_id: str) -> HSMIssuer:
    """Return a key of the caller's cluster.

    Raises:
        IssuerUnknown: There is none.
    """
    found = tx.hsm.issuer(issuer_id)
    if found is None or found.cluster_id != who.cluster.cluster_id:
        raise IssuerUnknown("no such CA key of this cluster is registered")
    return found


def shown(issuer: HSMIssuer, settings: Settings, *, crl_number: int) -> Shown:
    """Return a key as its controller sees it; *crl_number* is that of the list that is served."""
    return Shown(
        issuer_id=issuer.issuer_id,
        uid=issuer.uid,
        **pointers(issuer.issuer_id, settings),
        revision=issuer.revision,
        crl_number=crl_number,
    )


def pointers(issuer_id: str, settings: Settings) -> dict[str, str | None]:
    """Return the addresses that certificates of a key carry; null where the service has no public address."""
    base = f"{settings.revocation_url}/pki" if settings.revocation_url else None
    return {
        "crl_url": f"{base}/hsm/{issuer_id}.crl" if base else None,
        "ocsp_url": f"{base}/ocsp" if base else None,
        "ca_url": f"{base}/hsm/{issuer_id}.crt" if base else None,
    }


def read_ca(certificate: bytes) -> CACertificate:
    """Read the certificate of a CA.

    Raises:
        MalformedEvidence: No certificate.
        RequestInvalid: Not of a CA that signs certificates and lists, or of a key that is not one for that.
    """
    read = parsed(certificate)
    try:
        key, algorithm = load_spki(read.spki)
    except CSRInvalid as e:
        raise RequestInvalid(f"the CA: {e}") from None
    usage = read.key_usage or frozenset()
    if not read.is_ca or not {"key_cert_sign", "crl_sign"} <= usage:
        raise RequestInvalid("not the certificate of a CA: CA:TRUE, keyCertSign and cRLSign are needed")
    if read.ski is None:
        raise RequestInvalid("the CA has no SubjectKeyIdentifier")
    if unknown_critical(read) is not None or read.repeated_extension is not None:
        raise RequestInvalid("the CA: an extension is critical and unknown, or stands twice")
    subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    if not subject:
        raise RequestInvalid("the CA has no name")
    return CACertificate(parsed=read, key=key, algorithm=algorithm, subject=subject)


def demand_signed(certificate: Certificate, issuer: CACertificate) -> None:
    """Check that *issuer* signed *certificate*.

    Raises:
        RequestInvalid: It did not.
    """
    if certificate.issuer_name != issuer.parsed.subject_name:
        raise RequestInvalid("the certificate names another issuer")
    if certificate.algorithm != certificate.inner_algorithm:
        raise RequestInvalid("the certificate names two signature algorithms")
    try:
        verify_signature(
            issuer.key,
            algorithm=certificate.algorithm,
            signature=certificate.signature,
            signed=certificate.tbs,
        )
    except SignatureInvalid as e:
        raise RequestInvalid(f"the certificate: {e}") from None


def parsed(data: bytes) -> Certificate:
    """Read a certificate; one of ML-DSA is long.

    Raises:
        MalformedEvidence: It is none.
    """
    return parse_certificate(data, max_bytes=MAX_CERTIFICATE_BYTES)


def decoded(text: str, what: str, max_bytes: int = MAX_CERTIFICATE_BYTES) -> bytes:
    """Return the bytes of base64, at most *max_bytes*.

    Raises:
        MalformedEvidence: It is none.
    """
    return b64decode(text, what, max_bytes=max_bytes)


def _issuer(uid: str, request: HSMIssuerPut, who: Controller, settings: Settings, at: datetime) -> HSMIssuer:
    """Return the key that *request* describes, checked; it is kept only if none is known like it."""
    if (request.namespace is None) != (request.kind == "HsmClusterIssuer"):
        raise RequestInvalid("namespace: an HsmIssuer has one, an HsmClusterIssuer none")
    certificate = decoded(request.certificate, "certificate")
    chain = tuple(decoded(each, "chain") for each in request.chain)
    ca = read_ca(certificate)
    above = [ca, *map(read_ca, chain)]
    for lower, upper in pairwise(above):
        demand_signed(lower.parsed, upper)
    if not chain:
        demand_signed(ca.parsed, ca)
    if not ca.parsed.not_before <= at < ca.parsed.not_after:
        raise RequestInvalid("the certificate of the CA is not valid now")
    # What is issued under it is kept, listed and answered for until it ends: that is work for us.
    if ca.parsed.not_after > at + timedelta(days=settings.hsm_ca_days):
        raise RequestInvalid(f"the CA is valid for more than {settings.hsm_ca_days} days (ITL_HSM_CA_DAYS)")
    return HSMIssuer(
        issuer_id=secrets.token_bytes(ID_BYTES).hex(),
        cluster_id=who.cluster.cluster_id,
        uid=uid,
        kind=request.kind,
        namespace=request.namespace,
        name=request.name,
        certificate=certificate,
        chain=chain,
        key_origin=request.key_origin,
        module=request.module,
        token_label=request.token_label,
        subject=ca.subject,
        spki_sha256=hashlib.sha256(ca.parsed.spki).hexdigest(),
        not_before=ca.parsed.not_before,
        not_after=ca.parsed.not_after,
        registered_at=at,
    )


def _changes(known: HSMIssuer, said: HSMIssuer) -> bool:
    return known.superseded_at is not None or any(
        getattr(known, each) != getattr(said, each) for each in CHANGES
    )


def _register(tx: Tx, said: HSMIssuer, who: Controller, res: Resources, at: datetime) -> HSMIssuer:
    known = tx.hsm.issuer_by_key(said.cluster_id, said.spki_sha256)
    if known is not None and not _changes(known, said):
        return known
    counted = f"hsm-issuers:{said.cluster_id}"
    bounds.take(tx, counted, bounds.KEYS_REGISTERED, "issuers", res.settings, at)
    if known is None:
        bounds.demand_room_for_key(tx, said.cluster_id)
        tx.hsm.register(said)
    else:
        if known.subject != said.subject:
            # Lists and answers that are out there name the old one.
            raise RequestInvalid("the subject of a CA key does not change")
        if said.kind == "HsmIssuer" and known.uid != said.uid:
            # The key of an issuer in a namespace is its own: whoever names another one's would answer in its place.
            raise RequestInvalid("this CA key is another issuer's")
        said = replace(said, issuer_id=known.issuer_id)
        tx.hsm.rename(said)
    followed = tx.hsm.supersede(said.cluster_id, said.uid, said.issuer_id, at)
    where = f"{said.namespace}/{said.name}" if said.namespace else said.name
    tx.audit.append(
        who.event(
            "hsm_issuer_registered",
            detail=f"{said.kind} {where} ({said.uid}): CA {said.issuer_id}, {said.subject}, key {said.spki_sha256} "
            f"({said.key_origin}) on {said.module}/{said.token_label}, "
            f"certificate {hashlib.sha256(said.certificate).hexdigest()}"
            + (f"; follows {followed} other" if followed else ""),
        ),
        at,
    )
    log.info("hsm.issuer_registered", issuer_id=said.issuer_id, cluster_id=said.cluster_id, issuer=where)
    found = tx.hsm.issuer(said.issuer_id)
    assert found is not None
    return found
