"""Sealed bundles: what was measured of a node, when and by whom, provable after everything else is gone (§2.6).

A file proves itself under the keys of the audit log: the statement about event, result, policy and evidence is signed,
its digest stands in an entry of the log, the entry in a signed checkpoint, and the bytes of all of them in the file.
"""

from attestation.sealing.file import (
    MAX_FILE_BYTES,
    MEDIA_TYPE,
    SUFFIX,
    LogProof,
    UnverifiedSeal,
    parse,
    write,
)
from attestation.sealing.keys import ServiceKey, service_key, service_keys
from attestation.sealing.statement import (
    ACTION,
    PAYLOAD_TYPE,
    Attestor,
    SealedObject,
    Statement,
    Subject,
    entry_detail,
    make_statement,
    policy_subject,
)
from attestation.sealing.verification import SealedClaims, verify

__all__ = [
    "ACTION",
    "MAX_FILE_BYTES",
    "MEDIA_TYPE",
    "PAYLOAD_TYPE",
    "SUFFIX",
    "Attestor",
    "LogProof",
    "SealedClaims",
    "SealedObject",
    "ServiceKey",
    "Statement",
    "Subject",
    "UnverifiedSeal",
    "entry_detail",
    "make_statement",
    "parse",
    "policy_subject",
    "service_key",
    "service_keys",
    "verify",
    "write",
]
