"""`attestation.itl.io/v1alpha1`: CA keys in attested hardware, as models (HSM-AND-KUBERNETES §§10, 11)."""

# Algorithms for: ca-key, wrapped-key, certified-key
from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.hsm import EvidenceType, KeyOrigin, KeyType, OAEPHash
from attestation_operator.crds.leaf_policy import SHORTEST_LIFETIME, LeafPolicySpec
from attestation_operator.crds.parts import (
    Condition,
    Digest,
    Duration,
    Instant,
    Name,
    NamedRef,
    Part,
    between,
    listed,
    ruled,
    unique,
    within,
)

SHORTEST_CA = "24h"
LONGEST_CA = "262800h"
"""Thirty years."""
SHORTEST_CHECK = "5s"
LONGEST_CHECK = "10m"
SHORTEST_PUBLISHED = "0s"
LONGEST_PUBLISHED = "720h"
SHORTEST_OFFER = "10m"
LONGEST_OFFER = "168h"
"""Of how long an evidence is good for: a week at most."""
MAX_PEM = 65_536


ListName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name of one of the deployment's lists, never a path."""
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
NamePart = Annotated[str, Field(min_length=1, max_length=64)]
NameParts = Annotated[tuple[NamePart, ...], Field(max_length=8)]
DNSName = Annotated[str, Field(min_length=1, max_length=253)]
Address = Annotated[str, Field(min_length=2, max_length=64)]
Mail = Annotated[str, Field(min_length=3, max_length=254)]
Conditions = Annotated[tuple[Condition, ...], Field(max_length=16)]
ObservedGeneration = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class Kept(Part):
    """What any status of these kinds has."""

    observed_generation: ObservedGeneration | None = Field(
        default=None, description="Which edition of `spec` this is about"
    )
    kopf: dict[str, Any] = Field(
        default_factory=dict,
        description="What the framework of the controllers keeps, were it to keep anything",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class PINRef(Part):
    """A PIN as the deployment mounts it: key of a Secret; the controller reads the file, never the Secret."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")] = (
        Field(description="Of the Secret, which the chart mounts into the controller")
    )
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        default="pin", description="Member of the Secret"
    )


class HealthCheck(Part):
    """How it is found out whether the token signs."""

    interval: Annotated[Duration, within(SHORTEST_CHECK, LONGEST_CHECK)] = Field(
        default="15s",
        description="Between two test signatures",
        json_schema_extra=between(SHORTEST_CHECK, LONGEST_CHECK),
    )
    test_key: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None,
        description="Label of a key on the token that makes the test signatures; the CA keys themselves without",
    )


class KEKSpec(Part):
    """The key under which CA keys come to the token."""

    alg: Literal["rsa-3072"] = Field(default="rsa-3072", description="Its algorithm")


class HardwareSecurityModuleSpec(Part):
    """Which token, how to log in, and whose it is."""

    module: ListName = Field(
        description="A name of the controller's lists of PKCS#11 modules and TPMs, which the deployment makes"
    )
    token_label: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None, description="Of the PKCS#11 token, without the blanks that fill it up; a TPM has none"
    )
    serial: Annotated[str, Field(min_length=1, max_length=16)] | None = Field(
        default=None, description="Of the PKCS#11 token, where several have the label"
    )
    pin_secret_ref: PINRef | None = Field(
        default=None, description="The PIN of the token, or the authorization value of the TPM's keys"
    )
    health_check: HealthCheck = Field(
        default=HealthCheck(), description="How it is found out whether the token signs"
    )
    kek: KEKSpec = Field(default=KEKSpec(), description="The key under which CA keys come to the token")
    allowed_namespaces: Annotated[tuple[Namespace, ...], Field(max_length=64)] = Field(
        default=(),
        description="Namespaces whose HsmIssuers may have keys on it; every HsmClusterIssuer may",
        json_schema_extra=listed(),
    )
    max_issuers_per_namespace: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=16,
        description="How many HsmIssuers of one namespace, the oldest, may have keys on it",
    )

    @model_validator(mode="after")
    def _once(self) -> HardwareSecurityModuleSpec:
        unique("allowedNamespaces", self.allowed_namespaces)
        return self


class TokenInfo(Part):
    """What the token says of itself."""

    label: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="Its label")
    serial: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="Its serial")
    manufacturer: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="Who made it")
    model: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="Its model")
    firmware_version: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, description="Of its firmware"
    )


class HardwareSecurityModuleStatus(Kept):
    """What the controller found; it never tells a PIN."""

    token_info: TokenInfo | None = Field(default=None, description="What the token says of itself")
    mechanisms: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=256)] | None = (
        Field(default=None, description="What it can do, as PKCS#11 names it", json_schema_extra=listed())
    )
    last_sign_time: Instant | None = Field(
        default=None, description="When a test signature last was good; told at most once a minute"
    )
    conditions: Conditions = Field(
        default=(),
        description="Connected: the token is there; LoggedIn: the PIN is right; Healthy: it signs; Ready: all of it",
        json_schema_extra=listed("type"),
    )


class HardwareSecurityModule(Part):
    """A token that the controller's pod has: by PKCS#11, or a TPM 2.0."""

    spec: HardwareSecurityModuleSpec
    status: HardwareSecurityModuleStatus | None = None


class Subject(Part):
    """The distinguished name of a certificate (members as cert-manager's X509Subject)."""

    common_name: NamePart | None = Field(default=None, description="CN")
    countries: Annotated[
        tuple[Annotated[str, Field(min_length=2, max_length=2)], ...], Field(max_length=8)
    ] = Field(default=(), description="C, two letters each")
    organizations: NameParts = Field(default=(), description="O")
    organizational_units: NameParts = Field(default=(), description="OU")
    localities: NameParts = Field(default=(), description="L")
    provinces: NameParts = Field(default=(), description="ST")
    street_addresses: NameParts = Field(default=(), description="STREET")
    postal_codes: NameParts = Field(default=(), description="postalCode")
    serial_number: NamePart | None = Field(default=None, description="serialNumber")


class CASubject(Subject):
    """The distinguished name of a CA."""

    common_name: NamePart = Field(description="CN")


class KeyRef(Part):
    """A key that is on the token already, by label, by id, or both; more than one match is ambiguous."""

    model_config = ConfigDict(
        json_schema_extra=ruled(("has(self.label) || has(self.id)", "a key is named by label or id"))
    )

    label: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None, description="CKA_LABEL"
    )
    id: Annotated[str, Field(pattern="^([0-9a-f]{2}){1,255}$", max_length=510)] | None = Field(
        default=None, description="CKA_ID, lower-case hex"
    )

    @model_validator(mode="after")
    def _named(self) -> KeyRef:
        if self.label is None and self.id is None:
            raise ValueError("a key is named by label or id")
        return self


class CRLSpec(Part):
    """What certificates say of where they are revoked; the attestation service serves both."""

    distribution_point: bool = Field(default=True, description="Certificates name the list of the revoked")
    ocsp: bool = Field(default=True, description="Certificates name the OCSP responder")


class EvidenceSpec(Part):
    """How the hardware proves itself before a CA key is handed to it."""

    type: EvidenceType = Field(
        description="Kind of evidence; no controller collects `null`, which proves nothing"
    )
    collector: ListName | None = Field(
        default=None,
        description="A name of the controller's list of programs, where the type needs one",
    )


class ProvisioningSpec(Part):
    """Who may hand a CA key to this issuer, and against which evidence."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            ("self.requiredSignatures <= size(self.signers)", "fewer signers than required signatures")
        )
    )

    signers: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=16)] = Field(
        description="SHA-256 of the SubjectPublicKeyInfo of each key that may sign a bundle, hex",
        json_schema_extra=listed(),
    )
    required_signatures: Annotated[int, Field(ge=1, le=2)] = Field(
        default=1, description="By how many of them; 2: dual control"
    )
    ca_cert_sha256: Digest | None = Field(
        default=None,
        alias="caCertSHA256",
        description="SHA-256 of the only certificate that is accepted, hex",
    )
    oaep_hash: OAEPHash = Field(
        default="sha256",
        description="Of RSA-OAEP; a bundle that says another is refused. SoftHSM has sha1 alone",
    )
    evidence: EvidenceSpec = Field(description="How the hardware proves itself")
    evidence_policy_ref: NamedRef | None = Field(
        default=None,
        description="A policy of the attestation service, by its name: what is expected of the hardware",
    )
    secret_ref: NamedRef | None = Field(
        default=None, description="Where the bundle is put; `<issuer>-cacert` without"
    )
    valid_for: Annotated[Duration, within(SHORTEST_OFFER, LONGEST_OFFER)] = Field(
        default="24h",
        description="How long an evidence waits for its bundle",
        json_schema_extra=between(SHORTEST_OFFER, LONGEST_OFFER),
    )

    @model_validator(mode="after")
    def _enough(self) -> ProvisioningSpec:
        unique("signers", self.signers)
        if self.required_signatures > len(self.signers):
            raise ValueError("fewer signers than required signatures")
        return self


class RotationSpec(Part):
    """One key after another."""

    key: Annotated[int, Field(ge=1, le=999)] = Field(
        default=1,
        description="Number of the key that signs. One more: a new key is made, published, and signs after "
        "`publishedFor`. The one before again, as long as it is retiring: back to it",
    )
    published_for: Annotated[Duration, within(SHORTEST_PUBLISHED, LONGEST_PUBLISHED)] = Field(
        default="24h",
        description="How long relying parties have to learn of a new key before it signs",
        json_schema_extra=between(SHORTEST_PUBLISHED, LONGEST_PUBLISHED),
    )
    renew_before: Annotated[Duration, within(SHORTEST_LIFETIME, LONGEST_CA)] | None = Field(
        default=None,
        description="How long before its end the CA's certificate is made anew under the same key; "
        "`policy.maxDuration` and 720h without, and half of its life at most",
        json_schema_extra=between(SHORTEST_LIFETIME, LONGEST_CA),
    )


ALLOW_CA = "allowCA needs a pathLen of 1 or more"
P256 = "ecdsa-p256 is for keys made in a TPM"
OWN_KEYS = "rotation.key is for keys that are made here, and keyRef names one"
PROVISIONED = "provisioning is for the mode Provisioned"
SUBJECT = "the mode SelfSigned needs a subject"
ROTATION = "rotation.key is for the mode SelfSigned"

_ISSUER_RULES = (
    ("(self.mode == 'Provisioned') == has(self.provisioning)", PROVISIONED),
    ("self.mode != 'SelfSigned' || has(self.subject)", SUBJECT),
    ("self.mode == 'SelfSigned' || self.rotation.key == 1", ROTATION),
    ("!self.policy.allowCA || self.pathLen > 0", ALLOW_CA),
    ("self.keyType != 'ecdsa-p256' || self.mode == 'SelfSigned'", P256),
    ("self.hsmRef == oldSelf.hsmRef", "hsmRef cannot be changed"),
    ("self.mode == oldSelf.mode", "mode cannot be changed"),
)


class IssuerSpec(Part):
    """Where the CA key is, how it comes there, and what it certifies."""

    model_config = ConfigDict(json_schema_extra=ruled(*_ISSUER_RULES))

    hsm_ref: NamedRef = Field(description="The HardwareSecurityModule")
    mode: Literal["SelfSigned", "Provisioned"] = Field(
        default="SelfSigned",
        description="SelfSigned: made on the token. Provisioned: handed to it after it has proven itself",
    )
    key_type: KeyType = Field(
        default="ecdsa-p384", description="Algorithm of the CA key; ecdsa-p256 in a TPM alone"
    )
    subject: CASubject | None = Field(default=None, description="Name of the CA, for the mode SelfSigned")
    ca_duration: Annotated[Duration, within(SHORTEST_CA, LONGEST_CA)] = Field(
        default="87600h",
        description="Lifetime of the CA's certificate, for the mode SelfSigned",
        json_schema_extra=between(SHORTEST_CA, LONGEST_CA),
    )
    path_len: Annotated[int, Field(ge=0, le=8)] = Field(
        default=0, description="How many CAs may stand below this one in a chain"
    )
    policy: LeafPolicySpec = Field(default=LeafPolicySpec(), description="What it certifies")
    crl: CRLSpec = Field(default=CRLSpec(), description="What certificates say of where they are revoked")
    provisioning: ProvisioningSpec | None = Field(
        default=None, description="Who may hand the CA key over, and against which evidence"
    )
    rotation: RotationSpec = Field(default=RotationSpec(), description="One key after another")
    deletion_policy: Literal["Retain", "Destroy"] = Field(
        default="Retain",
        description="What becomes of the CA key when the issuer is deleted, or another one followed it for good",
    )

    @model_validator(mode="after")
    def _of_mode(self) -> IssuerSpec:
        if (self.mode == "Provisioned") != (self.provisioning is not None):
            raise ValueError(PROVISIONED)
        if self.mode == "SelfSigned" and self.subject is None:
            raise ValueError(SUBJECT)
        if self.policy.allow_ca and self.path_len == 0:
            raise ValueError(ALLOW_CA)
        if self.key_type == "ecdsa-p256" and self.mode != "SelfSigned":
            raise ValueError(P256)
        if self.mode != "SelfSigned" and self.rotation.key != 1:
            raise ValueError(ROTATION)
        return self


class ClusterIssuerSpec(IssuerSpec):
    """Likewise; its key may be there already.

    Not so an issuer's in a namespace: who may use a token may not use the keys of others on it.
    """

    model_config = ConfigDict(
        json_schema_extra=ruled(*_ISSUER_RULES, ("!has(self.keyRef) || self.rotation.key == 1", OWN_KEYS))
    )

    key_ref: KeyRef | None = Field(
        default=None, description="A key that is on the token already; one under the issuer's UID without"
    )

    @model_validator(mode="after")
    def _own_keys(self) -> ClusterIssuerSpec:
        if self.key_ref is not None and self.rotation.key != 1:
            raise ValueError(OWN_KEYS)
        return self


class Reason(StrEnum):
    """Why an issuer is ready or not; those of mode Provisioned are said of its QuoteAttestation first."""

    INITIALIZING = "Initializing"
    CHECKED = "Checked"
    PENDING = "Pending"
    FAILED = "Failed"
    AWAITING_KEY = "AwaitingKey"
    KEY_UNAVAILABLE = "KeyUnavailable"
    KEY_AMBIGUOUS = "KeyAmbiguous"
    KEY_UNSUPPORTED = "KeyUnsupported"
    EVIDENCE_UNAVAILABLE = "EvidenceUnavailable"
    EVIDENCE_FAILED = "EvidenceFailed"
    CERTIFICATE_MISMATCH = "CertificateMismatch"
    BUNDLE_REJECTED = "BundleRejected"
    UNWRAP_FAILED = "UnwrapFailed"
    EXPIRED = "Expired"
    CA_INVALID = "CAInvalid"
    QUOTA_EXCEEDED = "QuotaExceeded"


class QARef(Part):
    """The QuoteAttestation by which the key comes."""

    namespace: Namespace = Field(description="Its namespace")
    name: Name = Field(description="Its name")


class KeyState(StrEnum):
    """What a key of an issuer does."""

    NEXT = "Next"
    ACTIVE = "Active"
    RETIRING = "Retiring"
    RETIRED = "Retired"


class IssuerKey(Part):
    """One of an issuer's keys."""

    number: Annotated[int, Field(ge=1)] = Field(description="From 1, and none twice")
    state: KeyState = Field(
        description="Next: to be trusted, signs `publishedFor` after `since`. Active: signs. Retiring: signs lists and "
        "responders alone. Retired: signs nothing"
    )
    since: Instant = Field(description="Since when")
    ca_certificate: Annotated[str, Field(max_length=MAX_PEM)] | None = Field(
        default=None, alias="caCertificate", description="Of the CA, PEM"
    )
    cross_certificate: Annotated[str, Field(max_length=MAX_PEM)] | None = Field(
        default=None, description="Of the same key, by the one before, PEM; none where pathLen is 0"
    )
    key_fingerprint: Digest | None = Field(default=None, description="As of the issuer")
    key_origin: KeyOrigin | None = Field(default=None, description="As of the issuer")
    issuer_id: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, alias="issuerID", description="As of the issuer"
    )
    crl_number: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = Field(
        default=None, description="As of the issuer, when it ceased to sign"
    )


class IssuerStatus(Kept):
    """What the controller made."""

    ca_certificate: Annotated[str, Field(max_length=MAX_PEM)] | None = Field(
        default=None, alias="caCertificate", description="Of the CA, PEM"
    )
    key_fingerprint: Digest | None = Field(
        default=None, description="SHA-256 of the CA key's SubjectPublicKeyInfo, hex"
    )
    key_origin: KeyOrigin | None = Field(
        default=None,
        description="generated: made inside the token and never outside; provisioned: brought into it; tpm",
    )
    issuer_id: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, description="How the attestation service calls the CA key"
    )
    crl_number: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = Field(
        default=None, description="Of the newest list of the revoked that was published"
    )
    qa_ref: QARef | None = Field(default=None, description="The QuoteAttestation by which the key comes")
    keys: Annotated[tuple[IssuerKey, ...], Field(max_length=32)] = Field(
        default=(),
        description="Every key, where there is or was more than one: relying parties trust Next, Active and Retiring",
        json_schema_extra=listed("number"),
    )
    conditions: Conditions = Field(
        default=(),
        description="CAExpires: its CA certificate ends within 30 days. KeyCurrent: the key that `rotation.key` names "
        f"signs. Ready: it signs. Reasons: {', '.join(Reason)}",
        json_schema_extra=listed("type"),
    )


class HsmIssuer(Part):
    """A CA whose key is on a token; for CertificateRequests of its namespace."""

    spec: IssuerSpec
    status: IssuerStatus | None = None


class HsmClusterIssuer(Part):
    """A CA whose key is on a token; for CertificateRequests of every namespace, and for Kubernetes' own requests."""

    spec: ClusterIssuerSpec
    status: IssuerStatus | None = None
