"""`attestation.itl.io/v1alpha1`: QuoteAttestation, as a model (HSM-AND-KUBERNETES §11)."""

# Algorithms for: wrapped-key
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.hsm import EvidenceType, OAEPHash, Purpose, QuoteVerdict
from attestation_operator.crds.hsm import Conditions, Kept, Namespace
from attestation_operator.crds.parts import UID, Bytes, Instant, Name, NamedRef, Part, Text, listed, ruled
from attestation_operator.objects import GROUP

MAX_EVIDENCE = 1_398_104
"""Characters of 1 MiB in base64."""
MAX_CERTIFICATE = 21_848
"""Characters of 16 KiB in base64."""
EnvelopeType = Literal[EvidenceType, "tcs-kmra-v1"]
"""`tcs-kmra-v1` is read where somebody else made it; no issuer asks for it."""


class QAEvidence(Part):
    """What the hardware says."""

    type: EnvelopeType = Field(description="Kind of evidence")
    format: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="How `data` is written: `sgx-dcap-v3`"
    )
    data: Annotated[Bytes, Field(max_length=MAX_EVIDENCE)] = Field(description="As the hardware made it")
    cert_chain: Annotated[
        tuple[Annotated[Bytes, Field(max_length=MAX_CERTIFICATE)], ...], Field(max_length=8)
    ] = Field(default=(), description="Of its key, DER, the leaf first")
    collateral_ref: NamedRef | None = Field(
        default=None,
        description="A ConfigMap of the same namespace with what the vendor says; not read here",
    )


class QABinding(Part):
    """How the evidence is bound to the key and to this question."""

    scheme: Literal["itl-qa-v1", "tcs-kmra-v1"] = Field(
        default="itl-qa-v1", description="How the bound value is computed"
    )
    hash: Literal["sha512", "sha256"] = Field(description="SHA-512 for report data, SHA-256 for a TPM")
    nonce: Annotated[Bytes, Field(min_length=44, max_length=44)] = Field(
        description="32 bytes of the attestation service, good for one bundle"
    )


class SignerRef(Part):
    """The issuer that asks."""

    group: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        default=GROUP, description="Of its kind"
    )
    kind: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description="HsmIssuer or HsmClusterIssuer"
    )
    namespace: Namespace | None = Field(default=None, description="Its namespace")
    name: Name = Field(description="Its name")
    uid: UID = Field(description="Its UID: an issuer of the same name is another one")


class RequestRef(Part):
    """The request whose key is attested."""

    group: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Of its kind")
    kind: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Its kind")
    name: Name = Field(description="Its name, in the same namespace")
    uid: UID = Field(description="Its UID")


class Wrap(Part):
    """How the CA key is to be wrapped."""

    kek_alg: Literal["rsa-3072"] = Field(default="rsa-3072", description="Of the key that wraps")
    oaep_hash: OAEPHash = Field(description="Of RSA-OAEP")
    key_wrap: Literal["aes-kwp"] = Field(default="aes-kwp", description="RFC 5649")


class QuoteAttestationSpec(Part):
    """The envelope: one for REST, the command line and the cluster. It cannot be changed."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            ("self == oldSelf", "spec cannot be changed"),
            (
                "self.purpose != 'KeyProvisioning' || has(self.wrap) && has(self.secretRef)",
                "KeyProvisioning needs wrap and secretRef",
            ),
        )
    )

    purpose: Purpose = Field(description="What is asked for")
    evidence: QAEvidence = Field(description="What the hardware says")
    binding: QABinding = Field(description="How it is bound to the key and to this question")
    public_key: Annotated[Bytes, Field(max_length=MAX_CERTIFICATE)] = Field(
        description="SubjectPublicKeyInfo of the bound key, DER"
    )
    signer_ref: SignerRef = Field(description="The issuer that asks")
    request_ref: RequestRef | None = Field(
        default=None, description="The request whose key is attested; not read here"
    )
    policy_ref: NamedRef | None = Field(
        default=None, description="The AttestationPolicy by which it is judged"
    )
    wrap: Wrap | None = Field(default=None, description="How the CA key is to be wrapped")
    secret_ref: NamedRef | None = Field(
        default=None, description="Where the bundle is put, in the same namespace"
    )
    expires_at: Instant = Field(description="After it nothing is accepted")

    @model_validator(mode="after")
    def _of_purpose(self) -> QuoteAttestationSpec:
        if self.purpose == "KeyProvisioning" and (self.wrap is None or self.secret_ref is None):
            raise ValueError("KeyProvisioning needs wrap and secretRef")
        return self


class QAVerifier(Part):
    """Who judged."""

    name: Annotated[str, Field(max_length=64)] = Field(description="The program")
    version: Annotated[str, Field(max_length=64)] = Field(description="Of the program")
    at: Instant = Field(description="When")


class QuoteAttestationStatus(Kept):
    """How it was judged, and how far the key is."""

    verdict: QuoteVerdict | None = Field(default=None, description="As the service judged")
    verifier: QAVerifier | None = Field(default=None, description="Who judged")
    claims: Annotated[dict[str, Text], Field(max_length=64)] | None = Field(
        default=None, description="What the evidence proves"
    )
    evidence_digest: Annotated[str, Field(max_length=96)] | None = Field(
        default=None, description="Of the evidence, hex"
    )
    bound_key_fingerprint: Annotated[str, Field(max_length=96)] | None = Field(
        default=None, description="SHA-384 of the bound key's SubjectPublicKeyInfo, hex"
    )
    audit_entry_hash: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="The row of the service's audit log"
    )
    conditions: Conditions = Field(
        default=(),
        description="Accepted, Verified, KeyDelivered, KeyLoaded, Ready; each with the generation it is about",
        json_schema_extra=listed("type"),
    )


class QuoteAttestation(Part):
    """Evidence that a key is in hardware, its verdict, and the way of a CA key to it."""

    spec: QuoteAttestationSpec
    status: QuoteAttestationStatus | None = None
