"""A CA key of ours below one that a company has: the request for it, and the chain that came of it (docs/adr/0188).

Whose root it is decides what every relying party believes, so the import is an act of several operators where dual
control is on. The key itself stays where it is, and what it signed before stays good.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import CACSR, CAChainImport, CADetail, CALimits, PendingApproval
from attestation.clock import rfc3339
from attestation.errors import IssuerUnknown, RequestInvalid, RotationForbidden
from attestation.machines.dual_control import of_ca_chain
from attestation.pki.parent import Limits, check_chain, ends, key_id, make_request
from attestation.store import Issuer, IssuerState, Tx
from attestation.wire import pem
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.authority.keyring import spki
from attestation_service.ca.handlers import authority_of, show
from attestation_service.operators import dual_control
from attestation_service.resources import Res
from attestation_service.routing.parameters import IssuerId

_MAY_HAVE: Final[frozenset[IssuerState]] = frozenset({"next", "active"})


async def ask(issuer_id: IssuerId, request: CALimits, *, res: Res, operator: OperatorDep) -> CACSR:
    """Make a request to a parent.

    The name and key of a CA key that is to come or signs, with the limits that its certificate should have.

    Raises:
        CANotConfigured: The service has no CA.
        IssuerUnknown: No such key, or one that no parent is asked for.
        CertificateNotConformant: No request can say this.
        KeyUnusable: The key cannot be opened.
        SignerUnavailable: Its token or TPM does not answer.
    """
    authority = authority_of(res)
    issuer = await res.store.read(lambda tx: _found(tx, issuer_id))
    demand(CryptoPolicy(res.settings.crypto_policy), Use.CA, issuer.algorithm)
    wanted = Limits(
        path_length=request.path_length,
        dns=tuple(request.dns),
        ip=tuple(request.ip),
        policies=tuple(request.policies),
    )
    ca = authority.certificate(issuer)

    def make() -> bytes:
        key = authority.signing_key(issuer_id).private_key
        return make_request(ca.subject, spki(ca.public_key), key, wanted)

    csr = await authority.in_thread(make)
    at = res.clock.now()
    told = f"{issuer.purpose} CA {issuer_id}: request to a parent, SHA-256 {hashlib.sha256(csr).hexdigest()}"
    await res.store.write(lambda tx: tx.audit.append(operator.event("ca_csr", detail=told), at))
    return CACSR(
        issuer_id=issuer_id,
        subject=ca.subject.rfc4514_string(),
        spki_sha256=hashlib.sha256(spki(ca.public_key)).hexdigest(),
        csr_pem=pem("CERTIFICATE REQUEST", csr),
    )


async def import_chain(
    issuer_id: IssuerId, request: CAChainImport, *, res: Res, operator: VoterDep
) -> CADetail | PendingApproval:
    """Let a parent vouch for a CA key.

    The chain must certify our key under our name up to a self-signed root. Several operators must agree under dual
    control. A key that signs already needs `force`: relying parties that do not know the root stop believing it.

    Raises:
        CANotConfigured: The service has no CA.
        IssuerUnknown: No such key, or one that no parent is asked for.
        RequestInvalid: What was sent are no certificates.
        CAChainInvalid: The chain does not lead from our key to a root.
        RotationForbidden: The key signs already, and `force` was not said.
        BreakGlassCannotVote: Several people must agree to it.
    """
    authority_of(res)
    chain = read_chain(request.chain_pem)
    at = res.clock.now()

    def work(tx: Tx) -> PendingApproval | None:
        issuer = _found(tx, issuer_id)
        assert issuer.certificate is not None  # those that may have a parent have one
        check_chain(chain, issuer.certificate, at)
        if issuer.path == chain:
            return None
        if issuer.state == "active" and not request.force:
            raise RotationForbidden(
                f"key {issuer_id} signs already: prepare a next key and import its certificate before it does, or "
                "force it"
            )
        if issuer.state == "active" and key_id(chain[0]) != key_id(issuer.path[0]):
            # What it issued names it by the identifier of before; many programs find no issuer then.
            raise RotationForbidden(
                f"the parent names key {issuer_id} by another SubjectKeyIdentifier than what it issued: ask it to keep "
                "ours, or prepare a next key and import its certificate before it signs"
            )
        root = x509.load_der_x509_certificate(chain[-1])
        proposal = of_ca_chain(
            issuer=issuer_id,
            root=root.subject.rfc4514_string(),
            root_sha256=hashlib.sha256(chain[-1]).hexdigest(),
            chain_sha256=hashlib.sha256(b"".join(chain)).hexdigest(),
            until=rfc3339(ends(chain)),
            replaces=hashlib.sha256(issuer.path[0]).hexdigest(),
            force=request.force,
        )
        document = "".join(pem("CERTIFICATE", der) for der in chain)
        agreed = dual_control.gate(tx, proposal, operator, res, at, reason=request.reason, document=document)
        if isinstance(agreed, PendingApproval):
            return agreed
        tx.issuers.put_chain(issuer_id, chain, at)
        # Lists and answers name their issuer by what its certificate says now.
        tx.issuers.bump([issuer_id], held_by_somebody=False)
        tx.issuers.drop_delegate(issuer_id)
        forced = " (forced)" if request.force else ""
        told = (
            f"{issuer.purpose} CA {issuer_id}{forced}: certified by a parent, root {proposal.terms['root']}, "
            f"SHA-256 {proposal.terms['root_sha256']}: {request.reason}"
        )
        tx.audit.append(operator.event("ca_chain", detail=agreed.told(told)), at)
        return None

    pending = await dual_control.write(work, res=res, operator=operator, at=at)
    if pending is not None:
        return pending
    if res.revocation is not None:
        res.revocation.changed()
    return await show(res=res)


def _found(tx: Tx, issuer_id: str) -> Issuer:
    issuer = tx.issuers.get(issuer_id)
    if issuer is None or issuer.state not in _MAY_HAVE:
        raise IssuerUnknown("no CA key of this id is next or active")
    return issuer


def read_chain(text: str) -> tuple[bytes, ...]:
    """Return the certificates in *text*, DER.

    Raises:
        RequestInvalid: There is something else in it.
    """
    try:
        found = x509.load_pem_x509_certificates(text.encode("ascii"))
    except (ValueError, UnicodeEncodeError) as e:
        raise RequestInvalid("chain_pem holds something else than certificates in PEM") from e
    return tuple(each.public_bytes(Encoding.DER) for each in found)
