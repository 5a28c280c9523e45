"""One way from a request that may be signed to its certificate: judged by the issuer's policy, logged, signed once.

Requests of cert-manager and of Kubernetes itself go it alike; what is said of the outcome is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import AttestationError, HSMDiffers
from attestation.hsm import RequestKind
from attestation.pki.leaf import LeafAsked, demand_permitted, judge_leaf
from attestation_operator.errors import IssuerNotOpen
from attestation_operator.hsm.authority import Authority, pem_of
from attestation_operator.hsm.issuance import Issuance, Order
from attestation_operator.hsm.requests import Issued
from attestation_operator.objects import Target


async def certified(
    authority: Authority | None,
    issuance: Issuance,
    *,
    target: Target,
    kind: RequestKind,
    requester: str,
    asked: Callable[[], LeafAsked],
    at: datetime,
) -> Issued | AttestationError:
    """Return the certificate of a request, or what hindered it; the same certificate each time.

    Args:
        authority: The CA that it asks; None where this process has not opened its key yet.
        issuance: Issues.
        target: The request. It was approved, and that is for the caller to know.
        kind: Of the request.
        requester: Who made it, as the API server stamped it.
        asked: Returns what it asks for, or raises RequestRefused.
        at: Now.
    """
    if authority is None:
        return IssuerNotOpen("this replica has not opened the issuer's key yet")
    try:
        content = judge_leaf(asked(), authority.policy, ca=authority.ca, at=at)
        # Before a serial number is taken: one that is never finished stands on each list until its time is over.
        demand_permitted(content, ca=authority.ca, above=authority.chain)
        order = Order(
            uid=target.uid,
            kind=kind,
            namespace=target.namespace,
            name=target.name,
            requester=requester,
            content=content,
        )
        made = await issuance.issue(authority, order)
    except AttestationError as e:
        return e
    # What the log had for this request is handed out, too: for the key of the request, or not at all.
    if _spki(made) != content.spki:
        return HSMDiffers("the log has a certificate for another key under this request")
    chain = "".join(map(pem_of, (made, *authority.chain)))
    return Issued(certificate=chain, ca="".join(map(pem_of, (authority.ca.certificate, *authority.trusted))))


def _spki(certificate: bytes) -> bytes:
    key = x509.load_der_x509_certificate(certificate).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
