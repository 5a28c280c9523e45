"""Private keys by URI, whatever holds them: of the CA, of the JWS that we make, of the notes of the audit log."""

from attestation.keys.ear import verify_ear
from attestation.keys.jws import (
    TRUST_BUNDLE_HEADER,
    TRUST_BUNDLE_TYP,
    JWSRejected,
    verify_jwt,
)
from attestation.keys.kek import KEK, LocalKEK, create_kek, open_kek, open_keks
from attestation.keys.notes import NoteKey, load_ed25519, load_mldsa44
from attestation.keys.open import KeyOptions, OpenKey, create_key, open_key
from attestation.keys.signer import FileSigner, KeySigner, Signer, load_signer
from attestation.keys.statements import (
    CONFIG_SIGNATURE_HEADER,
    CONFIG_TYP,
    DIRECTIVE_TYP,
    KEYS_TYP,
    NODE_NONCE_BYTES,
    NODE_NONCE_HEADER,
    OFFLINE_TYP,
    SEALED_TYP,
    WELCOME_TYP,
    Binding,
    acknowledgement,
    certificates_sha256,
    key_set_sha256,
    thumbprints,
    verify_kept,
    verify_statement,
)
from attestation.keys.uri import parse_key_uri

__all__ = [
    "CONFIG_SIGNATURE_HEADER",
    "CONFIG_TYP",
    "DIRECTIVE_TYP",
    "KEK",
    "KEYS_TYP",
    "NODE_NONCE_BYTES",
    "NODE_NONCE_HEADER",
    "OFFLINE_TYP",
    "SEALED_TYP",
    "TRUST_BUNDLE_HEADER",
    "TRUST_BUNDLE_TYP",
    "WELCOME_TYP",
    "Binding",
    "FileSigner",
    "JWSRejected",
    "KeyOptions",
    "KeySigner",
    "LocalKEK",
    "NoteKey",
    "OpenKey",
    "Signer",
    "acknowledgement",
    "certificates_sha256",
    "create_kek",
    "create_key",
    "key_set_sha256",
    "load_ed25519",
    "load_mldsa44",
    "load_signer",
    "open_kek",
    "open_keks",
    "open_key",
    "parse_key_uri",
    "thumbprints",
    "verify_ear",
    "verify_jwt",
    "verify_kept",
    "verify_statement",
]
