"""Signers by URI: of the JWS that we make, and of the notes of the audit log.

`file:/path` is a PEM key on disk. `pkcs11:` and `tpm2:` are reserved and refused until they are built.
"""

from attestation.keys.ear import verify_ear
from attestation.keys.jws import (
    CONFIG_SIGNATURE_HEADER,
    CONFIG_TYP,
    DIRECTIVE_TYP,
    JWSRejected,
    verify_jwt,
)
from attestation.keys.notes import NoteKey, load_ed25519, load_mldsa44
from attestation.keys.signer import FileSigner, Signer, load_signer

__all__ = [
    "CONFIG_SIGNATURE_HEADER",
    "CONFIG_TYP",
    "DIRECTIVE_TYP",
    "FileSigner",
    "JWSRejected",
    "NoteKey",
    "Signer",
    "load_ed25519",
    "load_mldsa44",
    "load_signer",
    "verify_ear",
    "verify_jwt",
]
