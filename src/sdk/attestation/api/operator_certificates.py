"""Operators' client certificates: asked for, agreed to, listed, taken back (DELIVERY-AND-OPERATORS §10, FAULTS R16)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import Reason, Wire
from attestation.api.ca import IssuerId, Serial, Sha256
from attestation.api.operator import Cursor

__all__ = [
    "OperatorCertificate",
    "OperatorCertificateDetail",
    "OperatorCertificatePage",
    "OperatorCertificateRequest",
]

DutyWord = Literal["operator", "viewer", "auditor", "metrics"]
OperatorName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        pattern=r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$",
        description="CN of the certificate, and the name in the audit",
        examples=["ada@example.org"],
    ),
]


class OperatorCertificateRequest(Wire):
    """A client certificate for a person. Of the request only the key counts."""

    csr_pem: Annotated[str, Field(max_length=16_384, description="PKCS#10, PEM; P-256, P-384, P-521 or RSA")]
    name: OperatorName
    duty: DutyWord = Field(description="OU of the certificate")
    days: Annotated[int, Field(ge=1, le=398)] | None = Field(
        default=None, description="At most, and the default: `ITL_OPERATOR_CERT_DAYS`"
    )
    reason: Reason | None = None


class OperatorCertificateDetail(Wire):
    """A client certificate of a person, as the issuance log has it."""

    serial: Serial
    issuer_id: IssuerId
    name: str
    duty: DutyWord
    state: Literal["reserved", "issued", "held", "revoked", "void"]
    spki_sha256: Sha256 = Field(description="Of the key: what stays the same person for dual control")
    requester: str
    not_before: datetime
    not_after: datetime
    issued_at: datetime | None
    ended_at: datetime | None
    reason: str | None = Field(description="Word of RFC 5280 §5.3.1")
    note: str | None


class OperatorCertificate(OperatorCertificateDetail):
    """A new one. `chain_pem` is not empty around a rotation only; the holder sends it after the certificate."""

    certificate_pem: str
    chain_pem: str
    ca_pem: str


class OperatorCertificatePage(Wire):
    """Operators' certificates, newest first."""

    items: list[OperatorCertificateDetail]
    next_cursor: Cursor
