"""What a machine says to the service and what it gets back (PROTOCOL §§1-6, 8)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from attestation.api.base import (
    Base64,
    ChallengeId,
    ClusterId,
    Fingerprint,
    HardwareText,
    MachineId,
    NodeNonce,
    Wire,
)
from attestation.errors import MalformedEvidence
from attestation.machines import DEFAULT_CLUSTER, Role, Status

__all__ = [
    "AKCertificate",
    "AKStatement",
    "AckRequest",
    "AckResponse",
    "ActivateRequest",
    "ActivateResponse",
    "ActivationChallenge",
    "AlternativeCredential",
    "AttestRequest",
    "AttestResponse",
    "ConfigEnvelope",
    "EKAlternative",
    "EKChallenge",
    "EvidenceItem",
    "HardwareChallenge",
    "IntroduceRequest",
    "IntroduceResponse",
    "QuoteChallenge",
    "RegisterRequest",
    "Sealed",
    "TEEActivateRequest",
]

NEXT_KEYS = "Compact JWS `itl-keys+jwt`: the key set to pin from now on, signed by a key that is pinned now"

PCRValues = dict[
    Annotated[str, Field(pattern=r"^[a-z0-9_]{1,16}$")],
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,2}$")], Annotated[str, Field(max_length=128)]],
]


class Hardware(Wire):
    """What the firmware tables say; never identity."""

    hw_uuid: HardwareText = "unknown"
    hw_mac: HardwareText = "unknown"
    hw_serial: HardwareText = "unknown"
    hw_product: HardwareText = "unknown"


class EKAlternative(Wire):
    """Another EK of the same chip."""

    ek_public: Base64 = Field(description="TPM2B_PUBLIC of that EK, base64")
    ek_cert_pem: Base64 | None = Field(default=None, description="Base64 of its certificate, PEM or DER")


class IntroduceRequest(Hardware):
    """`POST /api/v1/self-register` (PROTOCOL §1)."""

    ek_public: Base64 | None = Field(default=None, description="TPM2B_PUBLIC of the EK, base64")
    ek_source: Literal["cert", "pub"] = "cert"
    ek_cert_pem: Base64 | None = Field(
        default=None, description="Base64 of the EK certificate, PEM or DER; required with ek_source=cert"
    )
    ek_chain: list[Base64] = Field(
        default_factory=list, max_length=16, description="Intermediates read from NV, DER"
    )
    ek_alternatives: list[EKAlternative] = Field(
        default_factory=list, max_length=3, description="Other EKs of the same chip"
    )
    ek_fingerprint: Fingerprint | None = None
    ak_public: Base64 | None = Field(default=None, description="TPM2B_PUBLIC of the AK, base64")
    tee: Literal["sev-snp", "tdx"] | None = Field(
        default=None, description="Its hardware, where it has no TPM; in place of ek_* and ak_public (§9)"
    )
    subject_key: Base64 | None = Field(
        default=None, description="SubjectPublicKeyInfo, DER, of a P-384 key that the guest made and keeps"
    )
    desired_role: Role | None = Field(default=None, description="A wish; recorded, never obeyed")
    cluster_id: ClusterId = Field(default=DEFAULT_CLUSTER, description="A wish; recorded, never obeyed")

    @model_validator(mode="after")
    def _by_one_of_both(self) -> Self:
        """A machine is known by its TPM or by its hardware: what belongs to the other one means another machine."""
        tpm = (self.ek_public, self.ek_fingerprint, self.ak_public)
        tee = (self.tee, self.subject_key)
        if tee == (None, None):
            if None in tpm:
                raise ValueError("ek_public, ek_fingerprint and ak_public are needed, or tee and subject_key")
        elif None in tee or any((*tpm, self.ek_cert_pem, self.ek_chain, self.ek_alternatives)):
            raise ValueError("tee and subject_key stand in place of everything of a TPM")
        return self


class RegisterRequest(IntroduceRequest):
    """`POST /api/v1/register` (PROTOCOL §1)."""

    registration_token: str | None = Field(default=None, min_length=1, max_length=256)


class AlternativeCredential(Wire):
    """A credential for another EK of the same chip, and the same AK."""

    ek_fingerprint: str
    credential_blob: Base64 = Field(description="TPM2B_ID_OBJECT")
    encrypted_secret: Base64 = Field(description="TPM2B_ENCRYPTED_SECRET")


class ActivationChallenge(Wire):
    """A credential only the introduced TPM can activate, and only for the introduced AK."""

    challenge_id: ChallengeId
    credential_blob: Base64 = Field(description="TPM2B_ID_OBJECT")
    encrypted_secret: Base64 = Field(description="TPM2B_ENCRYPTED_SECRET")
    expires_at: datetime
    alternatives: list[AlternativeCredential] = Field(
        default_factory=list, description="One for each of `ek_alternatives`, in their order; else absent"
    )


class HardwareChallenge(Wire):
    """What the hardware of a machine without a TPM is to sign: its report data is over this nonce."""

    challenge_id: ChallengeId
    nonce: Base64 = Field(description="32 random bytes")
    expires_at: datetime


class IntroduceResponse(Wire):
    """Answer to an introduction. Nothing has been stored but the challenge."""

    machine_id: MachineId
    status: Status
    role: Role | None
    message: str
    activation: ActivationChallenge | None = Field(default=None, description="With a TPM")
    challenge: HardwareChallenge | None = Field(default=None, description="Without one")

    def credential(self) -> ActivationChallenge:
        """Return what is for a TPM.

        Raises:
            MalformedEvidence: The answer is not for a machine with one.
        """
        if self.activation is None:
            raise MalformedEvidence("the answer to the introduction carries no credential for a TPM")
        return self.activation


Proof = Annotated[str, Field(max_length=64, description="HMAC-SHA256 over the context, base64")]


class AKStatement(Wire):
    """What a certified attestation key says of the AK: TPM2_Certify over this activation."""

    key_public: Base64 = Field(description="TPM2B_PUBLIC of the certified key, base64")
    certify_info: Base64 = Field(description="TPMS_ATTEST, exactly the signed bytes")
    signature: Base64 = Field(description="TPMT_SIGNATURE")


class AKCertificate(Wire):
    """The certificate of an attestation key, and what its key says of the AK."""

    certificate: Base64 = Field(description="Base64 of the certificate, PEM or DER, padding of NV included")
    chain: list[Base64] = Field(
        default_factory=list, max_length=16, description="Intermediates read from NV, DER"
    )
    statement: AKStatement | None = Field(
        default=None, description="Absent where the certificate is that of the AK itself"
    )


class ActivateRequest(Wire):
    """`POST /api/v1/machines/{machine_id}/ak-activate` (PROTOCOL §2)."""

    challenge_id: ChallengeId
    proof: Proof
    alternative_proofs: list[Proof] = Field(
        default_factory=list, max_length=3, description="One for each alternative credential, or none"
    )
    node_nonce: NodeNonce | None = None
    ak_certificate: AKCertificate | None = Field(
        default=None, description="Somebody vouches for the AK; counts where no maker vouches for the EK"
    )


class EvidenceItem(Wire):
    """Further evidence of any kind, named by its media type."""

    media_type: Annotated[str, Field(max_length=128)]
    value: Base64 | Annotated[dict[Annotated[str, Field(max_length=64)], Base64], Field(max_length=8)] = (
        Field(description="Base64, or an object of base64 members, as the kind has it")
    )


class TEEActivateRequest(Wire):
    """`POST /api/v1/machines/{machine_id}/tee-activate` (PROTOCOL §9)."""

    challenge_id: ChallengeId
    evidence: list[EvidenceItem] = Field(min_length=1, max_length=1, description="Of the processor, fresh")
    node_nonce: NodeNonce | None = None


class ActivateResponse(Wire):
    """The AK is accepted. Only `welcome` says so to the machine; it pins `service_keys` where it pinned none."""

    machine_id: MachineId
    status: Status
    role: Role | None
    ak_accepted: Literal[True] = True
    message: str
    service_keys: dict[str, Any] = Field(description="JWK set (RFC 7517) that signs statements and results")
    welcome: str | None = Field(
        default=None, description="Compact JWS `itl-welcome+jwt`, for this TPM and this request"
    )
    next_keys: str | None = Field(default=None, description=NEXT_KEYS)
    iso_url: str | None = None
    config_token: str | None = None
    config_url: str | None = None


class EKChallenge(Wire):
    """A key sealed to the EK, for TPM2_Import: the second protocol (TPM.md §3.3)."""

    object_public: Base64 = Field(description="TPM2B_PUBLIC")
    duplicate: Base64 = Field(description="TPM2B_PRIVATE")
    in_sym_seed: Base64 = Field(description="TPM2B_ENCRYPTED_SECRET")


class QuoteChallenge(Wire):
    """`GET /api/v1/attest/challenge` (PROTOCOL §3)."""

    nonce_id: ChallengeId
    nonce: Base64 = Field(description="32 random bytes: the qualifyingData of TPM2_Quote")
    expires_at: datetime
    pcr_selection: dict[str, list[int]]
    event_log: Literal["required", "accepted"]
    evidence: list[str]
    ek_challenge: EKChallenge | None = Field(
        default=None, description="There where evidence lists tpm-ek-certify; a node may pass it over"
    )


class AttestRequest(Hardware):
    """`POST /api/v1/attest` (PROTOCOL §4)."""

    machine_id: MachineId
    ek_fingerprint: Fingerprint
    nonce_id: ChallengeId
    pcr_quote: Base64 | None = Field(
        default=None, description="TPMS_ATTEST, exactly the signed bytes; absent without a TPM"
    )
    pcr_signature: Base64 | None = Field(default=None, description="TPMT_SIGNATURE; likewise")
    pcr_values: Annotated[PCRValues, Field(max_length=4)] | None = Field(
        default=None, description="bank -> PCR -> hex: exactly the requested selection; likewise"
    )
    event_log: Annotated[str, Field(max_length=1_400_000)] | None = None
    evidence: list[EvidenceItem] = Field(default_factory=list, max_length=16)
    want_result: bool = False
    node_nonce: NodeNonce | None = None


Action = Literal["none", "apply-config", "lock", "unlock", "wipe"]


class AttestResponse(Wire):
    """Status, what to do, and the next challenge."""

    machine_id: MachineId
    status: Status
    hostname: str | None = None
    role: Role | None = None
    message: str
    action: Action
    config_token: str | None = None
    config_url: str | None = None
    directive: str | None = Field(
        default=None, description="Compact JWS `itl-directive+jwt`: the action, for this TPM and this request"
    )
    next_keys: str | None = Field(default=None, description=NEXT_KEYS)
    attestation_result: str | None = Field(default=None, description="EAR as a JWT")
    reattest_after_seconds: int
    next_challenge: QuoteChallenge


def _absent(member: str | None) -> bool:
    return member is None


class ConfigEnvelope(Wire):
    """The configuration sealed to one TPM and one AK (PROTOCOL §5), or to one subject key (§9)."""

    format: Literal["ek-aes256gcm-v2", "tee-p384-aes256gcm-v1"]
    machine_id: MachineId
    token_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    credential_blob: Base64 | None = Field(
        default=None, exclude_if=_absent, description="TPM2B_ID_OBJECT; with a TPM"
    )
    encrypted_secret: Base64 | None = Field(
        default=None, exclude_if=_absent, description="TPM2B_ENCRYPTED_SECRET; with a TPM"
    )
    epk: Base64 | None = Field(
        default=None, exclude_if=_absent, description="SPKI of an ephemeral P-384 key; without a TPM"
    )
    iv: Base64
    ciphertext: Base64
    config_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Sealed(Wire):
    """An answer that one machine can open, and that it knows to be ours (PROTOCOL §5)."""

    envelope: ConfigEnvelope
    signature: str = Field(
        description="Compact JWS `itl-sealed+jwt`: what, token_id, config_sha256, for this TPM and request"
    )


class AckRequest(Wire):
    """`POST /api/v1/machines/{machine_id}/ack` (PROTOCOL §6)."""

    nonce_id: ChallengeId
    directive_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    outcome: Literal["done", "failed"]
    detail: Annotated[str, Field(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    pcr_quote: Base64 | None = Field(default=None, description="Absent without a TPM")
    pcr_signature: Base64 | None = Field(default=None, description="Likewise")
    evidence: list[EvidenceItem] = Field(
        default_factory=list, max_length=1, description="In place of a quote, without a TPM"
    )


class AckResponse(Wire):
    """The acknowledgement was recorded."""

    machine_id: MachineId
    status: Status
    message: str
