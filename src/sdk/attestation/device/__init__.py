"""The only code that talks to a TPM or to confidential hardware: transports, the client, and what a node does."""

from attestation.device.certified_aks import CertifiedAK
from attestation.device.client import TPM, LiveSession
from attestation.device.keys import KeyType
from attestation.device.node import (
    AK_WORDS,
    EK_PREFERENCE,
    EK_STRONG,
    AKType,
    ExternalKey,
    FurtherEK,
    Identity,
    KeyCertification,
    NodeTPM,
    Quote,
)
from attestation.device.tee import TEE, Shown
from attestation.device.transport import Transport, open_transport
from attestation.tpm.key_file import TPMKey

__all__ = [
    "AK_WORDS",
    "EK_PREFERENCE",
    "EK_STRONG",
    "TEE",
    "TPM",
    "AKType",
    "CertifiedAK",
    "ExternalKey",
    "FurtherEK",
    "Identity",
    "KeyCertification",
    "KeyType",
    "LiveSession",
    "NodeTPM",
    "Quote",
    "Shown",
    "TPMKey",
    "Transport",
    "open_transport",
]
