"""Certificates of machines: asked for with a key of the TPM, renewed, presented (ITL-REFERENCE §§3, 14, 16)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import Base64, ChallengeId, MachineId, Wire
from attestation.api.ca import IssuerId, Serial
from attestation.api.node import Action, ConfigEnvelope
from attestation.machines import Role, Status

__all__ = [
    "CertRequest",
    "CertResponse",
    "CertificateChallenge",
    "EnrollRequest",
    "EnrollResponse",
    "IssuedCertificate",
    "OfflineBundle",
]

NodeProfile = Literal["node-client", "node-server"]
TPMPart = Annotated[str, Field(min_length=1, max_length=8192, description="Standard base64 with padding")]


class CertificateChallenge(Wire):
    """`GET /api/v1/machines/{machine_id}/challenge`: single use, for one machine and one purpose."""

    nonce_id: ChallengeId
    nonce: Base64 = Field(description="32 random bytes")
    expires_at: datetime
    pcr_selection: dict[str, list[int]] | None = Field(
        default=None,
        description="PCRs that the quote is to cover; for purpose `node-csr` only, as the next two",
    )
    event_log: Literal["required", "accepted"] | None = Field(
        default=None, description="Whether the request must carry the boot event log beside the quote"
    )
    quote: Literal["required", "accepted"] | None = Field(
        default=None, description="Whether the cluster wants a quote in the request"
    )
    cluster_id: str | None = Field(default=None, description="Whose API server the request goes to")


class CertRequest(Wire):
    """`POST /api/v1/machines/{machine_id}/request-cert`: a key that its TPM holds, certified by the activated AK."""

    nonce_id: ChallengeId = Field(description="Of a challenge with purpose `certify`")
    csr_pem: Annotated[str, Field(min_length=1, max_length=24_576)] | None = Field(
        default=None,
        description="PKCS#10 in PEM, or the base64 of its DER, at most 16 KiB; only its key is used. Left out where "
        "the service is to make the key (compatibility, ITL_COMPAT_SERVER_KEYS)",
    )
    key_public: TPMPart = Field(
        description="TPM2B_PUBLIC of the certified key: that of the CSR, or without one the RSA key that the made "
        "key is wrapped to"
    )
    certify_info: TPMPart = Field(description="TPMS_ATTEST of TPM2_Certify, exactly the signed bytes")
    certify_signature: TPMPart = Field(description="TPMT_SIGNATURE by the AK")
    profile: NodeProfile = "node-client"


class IssuedCertificate(Wire):
    """One of the certificates for the same key, each from a CA of another algorithm."""

    serial: Serial
    issuer_id: IssuerId
    algorithm: str = Field(description="What the CA signed with")
    cert_pem: str
    chain_pem: str = Field(
        description="What the holder sends after it; empty except around a rotation of the CA"
    )
    ca_pem: str = Field(description="Self-signed certificate of the CA key that signed it")
    not_before: datetime
    not_after: datetime


class CertResponse(Wire):
    """What was issued. The members of `enrollment_cert_pem` are those of `certificates[0]`."""

    machine_id: MachineId
    role: Role
    profile: NodeProfile
    enrollment_cert_pem: str
    enrollment_ca_pem: str = Field(description="Certificate of the CA that signed `enrollment_cert_pem`")
    valid_days: int = Field(description="Whole days; 0 where it is less than one")
    message: str
    serial: Serial
    not_before: datetime
    not_after: datetime
    renew_after: datetime = Field(description="Two thirds of the lifetime")
    key_tier: int | None = Field(
        default=None,
        description="3: resident in the TPM; 4: and the machine quoted since it booted; null: no key of a TPM",
    )
    assurance: str
    certificates: list[IssuedCertificate]
    compat: Literal["server-key"] | None = Field(
        default=None, description="Set where the key is no key of a TPM"
    )
    enrollment_key_format: Literal["itl-server-key-v1"] | None = None
    enrollment_key_wrapped_b64: Base64 | None = Field(
        default=None, description="RSA-OAEP (SHA-256, no label) of the AES-256 key"
    )
    enrollment_key_iv_b64: Base64 | None = Field(default=None, description="12 bytes")
    enrollment_key_encrypted_b64: Base64 | None = Field(
        default=None, description="AES-256-GCM of the PKCS#8 DER, the 16-byte tag appended"
    )


class EnrollRequest(Wire):
    """`POST /api/v1/machines/enroll`: a certificate of ours, and a server challenge signed by its key."""

    cert_pem: Annotated[str, Field(min_length=1, max_length=24_576)]
    nonce_id: ChallengeId = Field(description="Of a challenge with purpose `enroll`")
    nonce: Annotated[str, Field(min_length=32, max_length=128, pattern=r"^[A-Za-z0-9+/=]+$")] = Field(
        description="The nonce as it came, in base64: its text is what is signed"
    )
    nonce_signature: Annotated[str, Field(min_length=1, max_length=2048)] = Field(
        description="Base64. ECDSA with SHA-384 in DER, or RSA PKCS#1 v1.5 with SHA-256, over the UTF-8 text `nonce`"
    )


class EnrollResponse(Wire):
    """The certificate is good and its key is there. Nothing was changed."""

    machine_id: MachineId
    status: Status
    hostname: str | None = None
    role: Role | None = None
    message: str
    action: Action = "none"
    serial: Serial
    not_after: datetime


class OfflineBundle(Wire):
    """`POST /api/v1/machines/{machine_id}/offline-bundle`: a compatibility path; nothing in it is plaintext."""

    SHOWN_ONCE = True

    machine_id: MachineId
    role: Role
    status: Status
    ek_fingerprint: str
    hostname: str | None
    assigned_ip: str | None
    iso_url: str | None
    config_url: str
    config_token: str
    machineconfig: ConfigEnvelope = Field(description="The MachineConfig, sealed to the EK and AK")
    machineconfig_signature: str = Field(
        description="Compact JWS `itl-offline+jwt`: for this TPM, `machineconfig`"
    )
    enrollment_cert_pem: str
    enrollment_ca_pem: str
    enrollment_key_pem: ConfigEnvelope = Field(
        description="PKCS#8 in PEM, sealed alike; `token_id` is the beginning of the serial number"
    )
    enrollment_key_signature: str = Field(
        description="Compact JWS `itl-offline+jwt`: for this TPM, `enrollment-key`, naming certificates and `bundle`"
    )
    serial: Serial
    not_after: datetime
    install_mode: Literal["offline"] = "offline"
    compat: Literal["offline-bundle"] = "offline-bundle"
    built_at: datetime
