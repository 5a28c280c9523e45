"""TPM 2.0 structures and the cryptography around them: pure, exact, shared by attester and verifier."""

from attestation.tpm.attest import (
    Attest,
    CertifyInfo,
    CreationData,
    CreationInfo,
    QuoteInfo,
    parse_attest,
    parse_creation_data,
)
from attestation.tpm.constants import TPM_GENERATED, Alg, AttestType, Attr, Curve, Hierarchy
from attestation.tpm.credential import Credential, encapsulate, make_credential
from attestation.tpm.hashes import bank_alg, bank_name, crypto_hash, digest_size, hash_new
from attestation.tpm.kdf import kdfa, kdfe
from attestation.tpm.names import (
    AKParent,
    ak_qualified_names,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.tpm.pcr import PCRSelection
from attestation.tpm.public import Public, Scheme, Symmetric, external_p256, parse_public, parse_tpmt_public
from attestation.tpm.signature import Signature, VerificationKey, parse_signature
from attestation.tpm.templates import EK_TEMPLATES, EKTemplate, match_ek_template

__all__ = [
    "EK_TEMPLATES",
    "TPM_GENERATED",
    "AKParent",
    "Alg",
    "Attest",
    "AttestType",
    "Attr",
    "CertifyInfo",
    "CreationData",
    "CreationInfo",
    "Credential",
    "Curve",
    "EKTemplate",
    "Hierarchy",
    "PCRSelection",
    "Public",
    "QuoteInfo",
    "Scheme",
    "Signature",
    "Symmetric",
    "VerificationKey",
    "ak_qualified_names",
    "bank_alg",
    "bank_name",
    "crypto_hash",
    "digest_size",
    "encapsulate",
    "external_p256",
    "hash_new",
    "kdfa",
    "kdfe",
    "make_credential",
    "match_ek_template",
    "parse_attest",
    "parse_creation_data",
    "parse_public",
    "parse_signature",
    "parse_tpmt_public",
    "qualified_name_of_child",
    "qualified_name_of_primary",
]
