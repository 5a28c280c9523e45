"""Does this backup hold the keys of the CA? Proved here, with nothing but the backup and the certificates.

A key that signs a fresh value which the CA's certificate verifies is the key of the CA; anything less (a file of the
right name, of the right size, with the right public half beside it) proves nothing.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import AttestationError, KeyUnsupported, KeyUnusable, RequestInvalid
from attestation.keys.open import CAPublicKey, KeyOptions, OpenKey, open_key
from attestation.keys.secrets import SecretSource
from attestation.keys.uri import FileRef, PKCS11Ref, parse_key_uri

MAX_FILES: Final = 256
MAX_FILE_BYTES: Final = 65_536
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
_SCHEMES: Final = ("file:", "pkcs11:", "tpm2:")

HARDWARE: Final[Mapping[str, str]] = {
    "pkcs11": "the token's own means (a second token of the same cluster or domain, or its wrapped backup) and the PIN",
    "tpm2": "nothing: it never leaves its TPM; keep a next key elsewhere, and rotate when the TPM is lost",
}
"""What a backup of a key needs that is no file, by the scheme of its URI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A CA key that the backup should hold.

    Args:
        name: What operators call it: the id of the issuer, or the name in its certificate.
        state: Of the issuer; empty where the service was not asked.
        certificate: Self-signed, DER.
        scheme: Of the URI under which the service has it; empty likewise.
    """

    name: str
    state: str
    certificate: bytes
    scheme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the backup said to one key.

    Args:
        wanted: Which key.
        verdict: The key is there and signs; nothing there is it; something there could not be opened and may be it; it
            is there and does not sign.
        where: File or URI that holds it; None where nothing does.
        why: Why not; None where it does.
        warning: What is wrong with the copy all the same.
    """

    wanted: Wanted
    verdict: Literal["proven", "missing", "not opened", "does not sign"]
    where: str | None = None
    why: str | None = None
    warning: str | None = None


def prove(
    wanted: Sequence[Wanted], source: str, *, passphrase: SecretSource, modules: Mapping[str, Path]
) -> list[Proof]:
    """Return for each key whether *source* holds it.

    Args:
        wanted: The keys of the CA.
        source: A folder, a file, or a key URI.
        passphrase: Of the files, or the PIN of the token; asked for when it is needed.
        modules: PKCS#11 modules by name.

    Raises:
        RequestInvalid: There is no such folder or file, or no private key in it.
        KeyURIInvalid: *source* is a key URI that breaks a rule.
    """
    options = KeyOptions(passphrase=passphrase, allow_unencrypted=True, modules=modules, copies=True)
    opened: list[OpenKey] = []
    refused: list[str] = []
    for uri in _uris(source):
        try:
            opened.append(open_key(uri, options))
        except KeyUnsupported as e:
            # A folder of a backup has other keys too; one that was named is meant.
            if uri == source:
                refused.append(str(e))
        except AttestationError as e:
            refused.append(str(e))
    try:
        return [_proof(one, opened, refused) for one in wanted]
    finally:
        for key in opened:
            key.close()


def _proof(wanted: Wanted, opened: Sequence[OpenKey], refused: Sequence[str]) -> Proof:
    public = _public(wanted)
    for key in opened:
        if _spki(key.public_key) != _spki(public):
            continue
        try:
            key.self_test(public)
        except AttestationError as e:
            return Proof(wanted=wanted, verdict="does not sign", why=str(e))
        return Proof(wanted=wanted, verdict="proven", where=_place(key), warning=_warning(key))
    if refused:
        return Proof(wanted=wanted, verdict="not opened", why=refused[0])
    why = f"none of the {len(opened)} keys of CAs there is this one"
    if wanted.scheme in HARDWARE:
        why = f"it is in hardware; its backup is {HARDWARE[wanted.scheme]}"
    return Proof(wanted=wanted, verdict="missing", why=why)


def _warning(key: OpenKey) -> str | None:
    """Say who else may read a copy; put back like that, the service refuses it."""
    if not isinstance(key.ref, FileRef) or not key.ref.path.stat().st_mode & 0o077:
        return None
    return f"others may read {key.ref.path}; where you put it back: chmod 0600"


def _public(wanted: Wanted) -> CAPublicKey:
    return cast("CAPublicKey", x509.load_der_x509_certificate(wanted.certificate).public_key())


def _spki(key: CAPublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _place(key: OpenKey) -> str:
    return str(key.ref.path) if isinstance(key.ref, FileRef) else key.uri


def _uris(source: str) -> list[str]:
    """Return the URI of every key that *source* may mean."""
    if source.startswith(_SCHEMES):
        ref = parse_key_uri(source)
        if isinstance(ref, FileRef) and ref.path.is_dir():
            return _files(ref.path)
        return [source]
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        return _files(path)
    if not path.is_file():
        raise RequestInvalid(f"{source}: no such file or folder")
    return [str(FileRef(path=path))]


def _files(folder: Path) -> list[str]:
    """Return the URIs of the files in *folder* that hold a private key in PEM."""
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file() and p.stat().st_size <= MAX_FILE_BYTES)
        found = [p for p in files[:MAX_FILES] if _PRIVATE_KEY in p.read_bytes()]
    except OSError as e:
        raise RequestInvalid(f"{folder}: {e.strerror}") from e
    if not found:
        raise RequestInvalid(f"{folder}: no file there holds a private key in PEM")
    return [str(FileRef(path=path)) for path in found]


def read_certificates(path: Path) -> list[Wanted]:
    """Return the CA keys whose own certificates stand in a file, DER or PEM; cross certificates are passed over.

    Raises:
        RequestInvalid: It cannot be read, or no certificate in it is self-issued.
    """
    try:
        data = path.read_bytes()
        loaded = (
            [x509.load_der_x509_certificate(data)]
            if data[:1] == b"\x30"
            else x509.load_pem_x509_certificates(data)
        )
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise RequestInvalid(f"{path}: no certificate in DER or PEM") from e
    found = [
        Wanted(
            name=common_name(one),
            state="",
            certificate=one.public_bytes(Encoding.DER),
            scheme="",
        )
        for one in loaded
        if one.subject == one.issuer
    ]
    if not found:
        raise RequestInvalid(
            f"{path}: no certificate of a CA by itself; `attestation ca bundle -f` writes them"
        )
    return found


def common_name(certificate: x509.Certificate) -> str:
    """Return the CN of whom *certificate* is about, or the whole name."""
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else certificate.subject.rfc4514_string()


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate, 64 lower-case hex."""
    return hashlib.sha256(der).hexdigest()


def advice(key_uri: str) -> str:
    """Return what a backup of the key under *key_uri* needs.

    Raises:
        KeyUnusable: A URI that we do not read.
    """
    ref = parse_key_uri(key_uri)
    if isinstance(ref, FileRef):
        return f"a copy of {ref.path.name}, and its passphrase kept elsewhere"
    return HARDWARE["pkcs11" if isinstance(ref, PKCS11Ref) else "tpm2"]


def modules(given: Sequence[str]) -> dict[str, Path]:
    """Return the PKCS#11 modules of `NAME=/path` texts.

    Raises:
        KeyUnusable: One is not of that form.
    """
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path.startswith("/")):
            raise KeyUnusable(f"{text}: a PKCS#11 module is NAME=/path/to/module.so")
        found[name] = Path(path)
    return found
