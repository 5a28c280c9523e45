"""The CAs of the service, as operators see and rotate them (HSM-AND-KUBERNETES §§6-8)."""

# Algorithms for: ca-key
from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, IPvAnyNetwork

from attestation.api.base import Base64, Reason, Wire
from attestation.api.operator import Cursor
from attestation.hsm import OAEPHash
from attestation.pki.parent import MAX_PATH_LENGTH

__all__ = [
    "CACSR",
    "CAChainImport",
    "CACheck",
    "CADetail",
    "CAImportKey",
    "CAKeyImport",
    "CALimits",
    "CertificateDetail",
    "CertificatePage",
    "CertificateRevokeRequest",
    "IssuerCheck",
    "IssuerDetail",
    "RefusedKeyDetail",
    "RefusedKeyPage",
    "RefusedKeyRequest",
    "RotationRequest",
]

CAPurpose = Literal["machine", "operator"]
CAAlgorithm = Literal["ecdsa-p384", "rsa-4096", "ml-dsa-87"]
IssuerId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", description="8 random bytes, hex")]
Serial = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="20 bytes, 40 lower-case hex")]
Domain = Annotated[
    str,
    Field(
        max_length=253,
        pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    ),
]
Oid = Annotated[str, Field(max_length=128, pattern=r"^[0-2](\.(0|[1-9]\d{0,8}))+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class IssuerDetail(Wire):
    """One key of a CA, with its certificate.

    `reserved` is being made, `next` is published and signs nothing yet, `active` signs, `retiring` signs revocation
    lists and OCSP answers only, `retired` nothing; `abandoned` never signed for anybody.
    """

    issuer_id: IssuerId
    purpose: CAPurpose
    algorithm: CAAlgorithm
    state: Literal["reserved", "next", "active", "retiring", "retired", "abandoned"]
    subject: str | None = Field(description="Distinguished name, RFC 4514; null while reserved")
    key_uri: str = Field(description="Where the key is; carries no secret")
    key_origin: str | None = Field(description="`file`, `generated`, `provisioned` or `tpm`")
    spki_sha256: str | None
    certificate_sha256: str | None
    certificate: Base64 | None = Field(description="By its parent, or by itself; DER")
    parents: list[Base64] = Field(
        default_factory=list,
        description="DER: who certified it, who certified that, and on, the root last; empty where it is its own root",
    )
    cross_certificates: list[Base64] = Field(
        description="DER: this key under the same name, certified by others"
    )
    not_before: datetime | None
    not_after: datetime | None
    crl_number: int
    reserved_at: datetime
    created_at: datetime | None
    activated_at: datetime | None
    retiring_at: datetime | None
    retired_at: datetime | None
    activate_from: datetime | None = Field(
        description="Of a next key: before, relying parties may not know it, and `activate` needs `force`"
    )
    retire_from: datetime | None = Field(
        description="Of a retiring key: before, certificates of it may be in use, and `retire` needs `force`"
    )


class CADetail(Wire):
    """Every key of the CAs, oldest first."""

    issuers: list[IssuerDetail]


class RotationRequest(Wire):
    """One step of a rotation.

    `prepare` makes the next key and publishes it, `activate` lets it sign, `rollback` undoes whichever of the two came
    last, `retire` ends the key that signed before.
    """

    step: Literal["prepare", "activate", "rollback", "retire"]
    purpose: CAPurpose = "machine"
    algorithm: CAAlgorithm | None = Field(
        default=None, description="Which key, where the CA has two (hybrid)"
    )
    reason: Reason
    force: bool = Field(
        default=False,
        strict=True,
        description="Do not wait for relying parties to follow; recorded in the audit",
    )


class CALimits(Wire):
    """What a parent is asked to limit in the certificate of a CA key of ours."""

    path_length: Annotated[int, Field(ge=0, le=MAX_PATH_LENGTH)] | None = Field(
        default=None, description="CAs below ours; null asks for no limit"
    )
    dns: Annotated[list[Domain], Field(max_length=64)] = Field(
        default_factory=list, description="Only host names of these domains"
    )
    ip: Annotated[list[IPvAnyNetwork], Field(max_length=64)] = Field(
        default_factory=list, description="Only addresses of these networks"
    )
    policies: Annotated[list[Oid], Field(max_length=16)] = Field(
        default_factory=list, description="OIDs of certificate policies"
    )


class CACSR(Wire):
    """A request to a parent for a certificate of a CA key of ours (PKCS #10)."""

    issuer_id: IssuerId
    subject: str
    spki_sha256: Sha256
    csr_pem: str


class CAChainImport(Wire):
    """What a parent made of the request."""

    chain_pem: Annotated[str, Field(max_length=262_144)] = Field(
        description="Certificates: ours, who certified it, and on; the self-signed root last"
    )
    reason: Reason
    force: bool = Field(
        default=False,
        strict=True,
        description="Also for a key that signs already, which relying parties without the root stop believing",
    )


class CAImportKey(Wire):
    """The key under which an existing CA's key is wrapped for this service."""

    public_key_pem: str = Field(description="RSA-3072; its private half never leaves where the CA's keys are")
    spki_sha256: Sha256 = Field(
        description="Of its SubjectPublicKeyInfo: compare it before wrapping anything"
    )


class CAKeyImport(Wire):
    """The key of an existing CA, wrapped, and its certificates."""

    purpose: CAPurpose
    wrapped_key: Annotated[str, Field(max_length=22_000)] = Field(
        description="Base64: RSA-OAEP of an AES-256 key, then AES-KWP of the PKCS#8 key"
    )
    oaep_hash: OAEPHash = Field(
        default="sha256", description="As it was wrapped; sha1 where the token knows no other"
    )
    chain_pem: Annotated[str, Field(max_length=262_144)] = Field(
        description="Certificates: the CA's, who certified it, and on; the self-signed root last, or alone"
    )
    reason: Reason


class CertificateDetail(Wire):
    """One serial number of the issuance log.

    `reserved` is being signed, `issued` is good, `held` suspended, `revoked` ended for good, `void` reached nobody.
    """

    serial: Serial
    issuer_id: IssuerId
    profile: str
    state: Literal["reserved", "issued", "held", "revoked", "void"]
    machine_id: str | None
    subject: str
    spki_sha256: Sha256
    requester: str
    key_tier: int | None
    assurance: str | None
    renews: str | None = Field(description="Serial of the certificate that it follows")
    not_before: datetime
    not_after: datetime
    reserved_at: datetime
    issued_at: datetime | None
    ended_at: datetime | None = Field(description="When it was held, revoked or given up")
    reason: str | None = Field(description="Word of RFC 5280 §5.3.1")
    note: str | None
    certificate: Base64 | None = Field(description="DER; null in lists, and where nothing was issued")
    no_rev_avail: bool | None = Field(
        default=None,
        description="It says that nobody can ask whether it is revoked (RFC 9608): relying parties believe it until "
        "its end; null where the certificate is",
    )


class CertificatePage(Wire):
    """Certificates, newest first."""

    items: list[CertificateDetail]
    next_cursor: Cursor


class CertificateRevokeRequest(Wire):
    """Why a certificate ends."""

    reason: Literal[
        "unspecified",
        "keyCompromise",
        "affiliationChanged",
        "superseded",
        "cessationOfOperation",
        "privilegeWithdrawn",
    ] = "unspecified"
    note: Reason | None = Field(default=None, description="In words for people")


class RefusedKeyRequest(Wire):
    """A public key that shall never get a certificate again."""

    spki_sha256: Sha256 = Field(description="SHA-256 of its SubjectPublicKeyInfo, DER")
    reason: Reason


class RefusedKeyDetail(Wire):
    """A public key that never gets a certificate again."""

    spki_sha256: Sha256
    why: str
    added_at: datetime
    added_by: str


class RefusedKeyPage(Wire):
    """Refused keys in the order of their digests."""

    items: list[RefusedKeyDetail]
    next_cursor: Cursor


class IssuerCheck(Wire):
    """Whether a key signs for its certificate, and what a backup of it needs."""

    issuer_id: IssuerId
    purpose: CAPurpose
    algorithm: CAAlgorithm
    state: Literal["next", "active", "retiring"]
    key_uri: str
    key_origin: str | None
    signs: bool = Field(description="It signed a test value just now, and the certificate verifies it")
    problem: str | None = Field(description="Why it does not: code of the error")
    exportable: bool = Field(description="The key is a file, and a copy of the file is a backup of it")
    encrypted: bool | None = Field(description="The file needs its passphrase; null where there is no file")
    warnings: list[str]


class CACheck(Wire):
    """Every key in use, tried by the worker that answers."""

    ok: bool
    issuers: list[IssuerCheck]
