"""Who vouches for TPMs, as operators see and change it (TPM.md §2.6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import Base64, Reason, Wire
from attestation.results import Assurance

__all__ = [
    "AdvisoryDetail",
    "AdvisoryList",
    "EndorsementDetail",
    "PathCertificateDetail",
    "TrustBundleDetail",
    "TrustCertificateDetail",
    "TrustCertificateRequest",
    "TrustReasonRequest",
    "TrustVerdict",
    "TrustVerifyRequest",
    "UnknownIssuerDetail",
    "UnknownIssuerPage",
]

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the DER, 64 lower-case hex")]
VendorName = Annotated[
    str, Field(pattern=r"^[A-Z]{2,4}$", description="Name in the TCG Vendor ID Registry", examples=["IFX"])
]


class TrustCertificateDetail(Wire):
    """One certificate of the trust bundle.

    `origin` says where it comes from: `shipped` with this version, `directory` on the server, or `operator`.
    """

    sha256: Sha256
    spki_sha256: str
    role: Literal["anchor", "intermediate"]
    vendor: str
    subject: str
    not_before: datetime
    not_after: datetime
    status: Literal["active", "distrusted"]
    origin: Literal["shipped", "directory", "operator"]
    reason: str | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None


class TrustBundleDetail(Wire):
    """The trust bundle in force. `sha256` names it in every attestation result."""

    sha256: str
    verifying: bool = Field(description="False where ITL_TPM_VERIFY_CA is off: nobody's word is asked for")
    certificates: list[TrustCertificateDetail]


class AdvisoryDetail(Wire):
    """What was published about firmware of TPMs of one vendor."""

    advisory: str = Field(description="Its name, such as `CVE-2017-15361`")
    vendor: VendorName
    versions: list[str] = Field(description="Those that it applies to: `7.61` is every 7.61.x.y")
    affects: Literal["rsa-keys", "ecdsa", "memory", "physical"]
    severity: Literal["low", "medium", "high", "critical"]
    action: Literal["fail", "warn", "flag"] = Field(
        description="What follows for a machine that it applies to"
    )
    fixed: str | None = Field(description="The first version without the fault")
    origin: Literal["shipped", "file"] = Field(
        description="With this version, or ITL_FIRMWARE_BLOCKLIST_FILE"
    )


class AdvisoryList(Wire):
    """The advisories about firmware of TPMs that are in force. `sha256` names the list."""

    sha256: str
    advisories: list[AdvisoryDetail]


class UnknownIssuerDetail(Wire):
    """An issuer that nobody of the bundle is, as a machine that waits named it: a hint, and no proof."""

    machine_id: str
    hw_serial: str | None
    issuer: str = Field(description="At whom the path of its EK certificate ended")
    claimed_vendor: str = Field(description="What the certificate says of its maker")
    role: Literal["anchor", "intermediate"] = Field(description="What the issuer would have to become")


class UnknownIssuerPage(Wire):
    """Newest machine first; `looked_at` counts those of the page, also where their path ended for another reason."""

    items: list[UnknownIssuerDetail]
    looked_at: int
    next_cursor: str | None


class TrustCertificateRequest(Wire):
    """Trust a certificate of a TPM vendor from now on."""

    certificate: Base64 = Field(description="Base64 of the certificate, DER or PEM")
    role: Literal["anchor", "intermediate"]
    vendor: VendorName
    reason: Reason


class TrustReasonRequest(Wire):
    """Why a certificate is distrusted, or trusted again."""

    reason: Reason


class TrustVerifyRequest(Wire):
    """Ask what the bundle says of an EK certificate; nothing is stored."""

    certificate: Base64 = Field(description="Base64 of the EK certificate, DER or PEM, padding allowed")
    chain: list[Base64] = Field(default_factory=list, max_length=16, description="Intermediates, DER")


class PathCertificateDetail(Wire):
    """One certificate of a path, as it was judged."""

    sha256: str
    subject: str
    role: str
    ok: bool
    reason: str


class TrustVerdict(Wire):
    """What the walk from an EK certificate towards an anchor found; leaf first."""

    ok: bool
    reason: str
    vendor: str | None
    anchor_sha256: str | None
    revocation: str
    bundle_sha256: str | None
    path: list[PathCertificateDetail]


class EndorsementDetail(TrustVerdict):
    """Who vouches for one machine's TPM, and what the operator may do about it."""

    machine_id: str
    assurance: Assurance
    ek_allow_listed: bool
    judged_at: datetime
    certificate: Base64 = Field(description="The EK certificate, DER")
    claimed_vendor: str = Field(
        description="What the certificate says of its maker; not proven without a path"
    )
    unknown_issuer: str | None = Field(
        default=None, description="Issuer at which the path ended, where none of the bundle is"
    )
