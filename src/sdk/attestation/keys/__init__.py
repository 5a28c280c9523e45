"""Signers by URI, and the JWS we sign with them.

`file:/path` is a PEM key on disk. `pkcs11:` and `tpm2:` are reserved and refused until they are built.
"""

from attestation.keys.jws import (
    CONFIG_SIGNATURE_HEADER,
    CONFIG_TYP,
    DIRECTIVE_TYP,
    JWSRejected,
    verify_jwt,
)
from attestation.keys.signer import FileSigner, Signer, load_signer

__all__ = [
    "CONFIG_SIGNATURE_HEADER",
    "CONFIG_TYP",
    "DIRECTIVE_TYP",
    "FileSigner",
    "JWSRejected",
    "Signer",
    "load_signer",
    "verify_jwt",
]
