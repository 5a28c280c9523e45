"""Who vouches for an AK: a certified attestation key of the same TPM, at each activation.

What does not vouch changes nothing: the activation stands, and the audit says which check failed.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.api import ActivateRequest, AKCertificate
from attestation.endorsements.ak_certificate import AKAnchors
from attestation.endorsements.certificate import MAX_CERTIFICATE_BYTES
from attestation.errors import AKCertificateRejected
from attestation.evidence import ak_certificate
from attestation.evidence.ak_certificate import UnverifiedVouching, VouchedAK
from attestation.store import StoredAKCertificate, Tx
from attestation.tpm import parse_public
from attestation.wire import b64decode
from attestation_service.registration.introduction import Introduction, leading

TAKEN: Final = "ak-cert-taken"
"""The check that one certified key vouches for one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a machine showed, as far as it could be read.

    Args:
        unverified: The certificate, and what its key says.
        chain: DER of the intermediates that may lead upwards from it; untrusted.
    """

    unverified: UnverifiedVouching
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouching:
    """What was found about an AK in this activation.

    Args:
        vouched: None where nobody vouches for it.
        chain: What came along with its certificate.
        told: What the audit says of it: nothing where nothing was shown.
    """

    vouched: VouchedAK | None
    chain: tuple[bytes, ...]
    told: str

    def keep(self, tx: Tx, machine_id: str, at: datetime) -> None:
        """Store the certificate with its judgement, where it vouches."""
        if self.vouched is None:
            return
        claims = self.vouched.certificate
        tx.ak_certificates.put(
            StoredAKCertificate(
                machine_id=machine_id,
                ak_name=self.vouched.ak_name,
                spki_sha256=hashlib.sha256(claims.spki).hexdigest(),
                certificate=claims.certificate.der,
                chain=self.chain,
                validation=claims.validation,
                judged_at=at,
            )
        )


NOBODY: Final = Vouching(vouched=None, chain=(), told="")


def parse(sent: AKCertificate | None) -> Shown | None:
    """Read what a machine sent; None where it sent nothing.

    Raises:
        MalformedEvidence: It cannot be read.
    """
    if sent is None:
        return None
    statement = None
    if sent.statement is not None:
        statement = (
            b64decode(sent.statement.key_public, "key_public"),
            b64decode(sent.statement.certify_info, "certify_info"),
            b64decode(sent.statement.signature, "signature"),
        )
    unverified = ak_certificate.parse(b64decode(sent.certificate, "certificate"), statement)
    chain = [b64decode(der, "chain", max_bytes=MAX_CERTIFICATE_BYTES) for der in sent.chain]
    return Shown(unverified=unverified, chain=leading(unverified.certificate.certificate, chain))


def judge(
    tx: Tx,
    shown: Shown | None,
    introduction: Introduction,
    *,
    machine_id: str,
    request: ActivateRequest,
    anchors: AKAnchors,
    at: datetime,
) -> Vouching:
    """Say whether somebody vouches for the AK that this very activation proved.

    Args:
        tx: The unit of the activation.
        shown: Result of `parse`.
        introduction: Whose AK it is.
        machine_id: As it was answered at the introduction.
        request: The activation; its proof was found right.
        anchors: Whom operators believe about attestation keys.
        at: Now.
    """
    if shown is None:
        return NOBODY
    binding = ak_certificate.binding(
        machine_id=machine_id,
        challenge_id=request.challenge_id,
        proof=b64decode(request.proof, "proof"),
    )
    try:
        found = ak_certificate.verify(
            shown.unverified,
            ak=parse_public(introduction.ak_public),
            binding=binding,
            anchors=anchors,
            chain=shown.chain,
            at=at,
        )
        _demand_free(tx, found, introduction)
    except AKCertificateRejected as e:
        return Vouching(vouched=None, chain=(), told=f"; nobody vouches for its AK: {e.check}")
    read = found.certificate.certificate
    told = f"; certificate {read.sha256[:16]} of {read.issuer[:200]} vouches for its AK"
    return Vouching(vouched=found, chain=shown.chain, told=told)


def _demand_free(tx: Tx, found: VouchedAK, introduction: Introduction) -> None:
    """Check that the certified key vouches for no other machine.

    Otherwise one good TPM would vouch for any number of EKs in software.
    """
    holder = tx.ak_certificates.holder(hashlib.sha256(found.certificate.spki).hexdigest())
    ours = tx.machines.by_ek(introduction.ek_fingerprint)
    if holder is not None and (ours is None or ours.machine_id != holder):
        raise AKCertificateRejected("the certified key vouches for another machine", check=TAKEN)
