"""The only code that talks to a TPM: transports, the client over them, and what a node does with its TPM."""

from attestation.device.client import TPM, LiveSession
from attestation.device.node import AKType, Identity, KeyCertification, NodeTPM, Quote
from attestation.device.transport import Transport, open_transport

__all__ = [
    "TPM",
    "AKType",
    "Identity",
    "KeyCertification",
    "LiveSession",
    "NodeTPM",
    "Quote",
    "Transport",
    "open_transport",
]
