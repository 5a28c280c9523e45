"""`attestation.itl.io/v1alpha1`: HsmCertificate, as a model: leaf keys that never leave a token."""

# Algorithms for: certified-key
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.hsm import KeyType
from attestation_operator.crds.hsm import Address, Conditions, DNSName, Kept, Mail, Subject
from attestation_operator.crds.leaf_policy import LONGEST_LEAF, SHORTEST_LIFETIME, URIName, Usage
from attestation_operator.crds.parts import (
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
from attestation_operator.objects import GROUP

Count = Annotated[int, Field(ge=0)]


class IssuerRef(Part):
    """An issuer of any group, as cert-manager refers to it."""

    name: Name = Field(description="Its name")
    kind: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        default="HsmIssuer", description="Its kind"
    )
    group: Annotated[str, Field(min_length=1, max_length=253)] = Field(default=GROUP, description="Its group")


class HsmCertificateSpec(Part):
    """Which certificate, for a key that is made on a token."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            ("self.hsmRef == oldSelf.hsmRef", "hsmRef cannot be changed"),
            ("self.secretName == oldSelf.secretName", "secretName cannot be changed"),
        )
    )

    issuer_ref: IssuerRef = Field(description="Who certifies, by way of a CertificateRequest")
    hsm_ref: NamedRef = Field(description="The HardwareSecurityModule that the key is made on")
    subject: Subject = Field(default=Subject(), description="Distinguished name")
    dns_names: Annotated[tuple[DNSName, ...], Field(max_length=100)] = Field(
        default=(), description="DNS names"
    )
    ip_addresses: Annotated[tuple[Address, ...], Field(max_length=100)] = Field(
        default=(), description="IP addresses"
    )
    uri_sans: Annotated[tuple[URIName, ...], Field(max_length=100)] = Field(
        default=(), alias="uriSANs", description="URIs"
    )
    email_addresses: Annotated[tuple[Mail, ...], Field(max_length=100)] = Field(
        default=(), description="Addresses of e-mail"
    )
    usages: Annotated[tuple[Usage, ...], Field(min_length=1, max_length=23)] = Field(
        default=("digital signature", "key encipherment"),
        description="What it is for, as cert-manager names it",
        json_schema_extra=listed(),
    )
    duration: Annotated[Duration, within(SHORTEST_LIFETIME, LONGEST_LEAF)] = Field(
        default="2160h",
        description="Lifetime that is asked for",
        json_schema_extra=between(SHORTEST_LIFETIME, LONGEST_LEAF),
    )
    renew_before: Annotated[Duration, within("1m", LONGEST_LEAF)] | None = Field(
        default=None,
        description="So long before the end another is asked for; a third of the lifetime without",
        json_schema_extra=between("1m", LONGEST_LEAF),
    )
    key_type: KeyType = Field(default="ecdsa-p256", description="Algorithm of the key")
    key_rotation: Literal["Always", "Never"] = Field(
        default="Always", description="Whether each renewal has a key of its own"
    )
    secret_name: Name = Field(
        description="Secret with the certificate and the key's URI, never a key, in the same namespace"
    )
    deletion_policy: Literal["Retain", "Destroy"] = Field(
        default="Destroy", description="What becomes of the key when this is deleted"
    )

    @model_validator(mode="after")
    def _once(self) -> HsmCertificateSpec:
        unique("usages", self.usages)
        return self


class HsmCertificateStatus(Kept):
    """How far it is."""

    revision: Count | None = Field(default=None, description="Number of the request whose certificate it is")
    request_number: Count | None = Field(default=None, description="Of the newest request")
    request_name: Name | None = Field(default=None, description="Of the newest CertificateRequest")
    failures: Count | None = Field(default=None, description="Requests in a row that brought no certificate")
    last_failure_time: Instant | None = Field(
        default=None, description="When the newest request failed; where it did not, absent"
    )
    key_revision: Count | None = Field(
        default=None,
        description="Of the newest key; its label is the UID of this object, `-`, and this number",
    )
    key_uri: Annotated[str, Field(max_length=2048)] | None = Field(
        default=None, alias="keyURI", description="Of the certificate's key, without a PIN (RFC 7512)"
    )
    key_fingerprint: Digest | None = Field(
        default=None, description="SHA-256 of the certificate's SubjectPublicKeyInfo, hex"
    )
    serial_number: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Of the certificate, hex"
    )
    issued_by: Annotated[str, Field(max_length=640)] | None = Field(
        default=None, description="Who was asked for the certificate: group, kind and name"
    )
    not_before: Instant | None = Field(default=None, description="Of the certificate")
    not_after: Instant | None = Field(default=None, description="Of the certificate")
    renewal_time: Instant | None = Field(default=None, description="When another is asked for")
    conditions: Conditions = Field(
        default=(),
        description="Ready: the Secret holds a certificate that is valid; Issuing: another is on its way",
        json_schema_extra=listed("type"),
    )


class HsmCertificate(Part):
    """A certificate for a key that never leaves a token; renewed by itself."""

    spec: HsmCertificateSpec
    status: HsmCertificateStatus | None = None
