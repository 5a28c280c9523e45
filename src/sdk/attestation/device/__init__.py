"""The only code that talks to a TPM: transports, the client over them, and what a node does with its TPM."""

from attestation.device.client import TPM, LiveSession
from attestation.device.keys import KeyType
from attestation.device.node import AKType, Identity, KeyCertification, NodeTPM, Quote
from attestation.device.transport import Transport, open_transport
from attestation.tpm.key_file import TPMKey

__all__ = [
    "TPM",
    "AKType",
    "Identity",
    "KeyCertification",
    "KeyType",
    "LiveSession",
    "NodeTPM",
    "Quote",
    "TPMKey",
    "Transport",
    "open_transport",
]
