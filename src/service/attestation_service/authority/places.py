"""Where the keys of the CAs are: settings become options of the key back-ends, and a URI for each new key.

Each key has a place of its own, which no earlier key had: what is left of a lost database, or of a key that was
given up, is never taken for the key of another certificate.
"""

# Algorithms for: ca-key
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from attestation.errors import KeyURIInvalid
from attestation.keys.open import KeyOptions
from attestation.keys.pkcs11 import parse_modules
from attestation.keys.secrets import SecretSource, secret_source
from attestation.keys.uri import (
    NV_INDICES,
    PERSISTENT_HANDLES,
    FileRef,
    KeyRef,
    PKCS11Ref,
    TPM2Ref,
    parse_key_uri,
)
from attestation.store import Issuer, IssuerAlgorithm, IssuerPurpose
from attestation_service.settings import Settings

LABELS: Final = {"machine": "itl-enrollment-ca", "operator": "itl-operator-ca"}
"""Beginning of a key's name; the issuer id follows."""


def kinds(settings: Settings) -> tuple[tuple[IssuerPurpose, IssuerAlgorithm], ...]:
    """Return which CAs there shall be, each with one key that signs."""
    purposes: tuple[IssuerPurpose, ...] = (
        ("machine", "operator") if settings.operator_certificates else ("machine",)
    )
    return tuple((purpose, algorithm) for purpose in purposes for algorithm in algorithms(settings))


def algorithms(settings: Settings) -> tuple[IssuerAlgorithm, ...]:
    """Return with which algorithms a certificate is issued: one, or both of hybrid."""
    chosen = settings.enrollment_ca_algorithm
    return ("ecdsa-p384", "ml-dsa-87") if chosen == "hybrid" else (chosen,)


def key_options(settings: Settings) -> KeyOptions:
    """Return what the back-ends need to open and make keys.

    Raises:
        KeyURIInvalid: ITL_PKCS11_MODULES has an entry that is not `name=/path`.
    """
    file = settings.enrollment_ca_passphrase_file
    passphrase: SecretSource | None = secret_source(f"file:{file.absolute()}") if file is not None else None
    return KeyOptions(
        passphrase=passphrase,
        allow_unencrypted=settings.enrollment_ca_unencrypted,
        modules=parse_modules(settings.pkcs11_modules),
        test_key=settings.pkcs11_test_key or None,
    )


def new_key_uri(settings: Settings, purpose: IssuerPurpose, issuer_id: str, known: tuple[Issuer, ...]) -> str:
    """Return the URI of a key that is still to be made.

    Args:
        settings: `ITL_ENROLLMENT_CA_KEY` names the folder, the token, or the first handle or NV index of the TPM.
        purpose: What it shall sign.
        issuer_id: Its name, 16 hex.
        known: Every key that was ever planned.

    Raises:
        KeyURIInvalid: The setting breaks the rules of its scheme.
    """
    name = f"{LABELS[purpose]}-{issuer_id}"
    base = base_of(settings)
    if isinstance(base, FileRef):
        return str(replace(base, path=base.path / f"{name}.pem"))
    if isinstance(base, PKCS11Ref):
        return str(base.with_object(name, None))
    if base.path is not None:
        return str(replace(base, path=base.path / f"{name}.tss2"))
    refs = [r for r in (parse_key_uri(issuer.key_uri) for issuer in known) if isinstance(r, TPM2Ref)]
    if base.nv is not None:
        return str(replace(base, nv=_free(base.nv, {r.nv for r in refs}, NV_INDICES)))
    assert base.handle is not None  # one of the three
    return str(replace(base, handle=_free(base.handle, {r.handle for r in refs}, PERSISTENT_HANDLES)))


def base_of(settings: Settings) -> KeyRef:
    """Return what `ITL_ENROLLMENT_CA_KEY` names: a folder, a token, or a TPM.

    Raises:
        KeyURIInvalid: It breaks the rules of its scheme, or names one object, of which there must be several.
    """
    where = settings.enrollment_ca_key
    if not where:
        return FileRef(path=settings.enrollment_ca_dir.absolute())
    place, question, query = where.partition("?")
    if not place.startswith("pkcs11:"):
        return parse_key_uri(where)
    # A token alone is no key yet; a name stands in until each key has its own.
    base = parse_key_uri(f"{place};object=any{question}{query}")
    assert isinstance(base, PKCS11Ref)
    if base.id is not None:
        raise KeyURIInvalid("ITL_ENROLLMENT_CA_KEY names a token; each key in it gets its own name")
    return base


def current_uri(settings: Settings, key_uri: str) -> str:
    """Return *key_uri* with the folder, PIN source, module and transport that the settings name now.

    What was planned years ago stays findable where the file with the PIN has moved since, or the whole folder: a
    database that was restored on another host names the folder of the old one.

    Raises:
        KeyURIInvalid: One of the two breaks the rules of its scheme.
    """
    ref, base = parse_key_uri(key_uri), base_of(settings)
    match ref, base:
        case FileRef(), FileRef():
            moved = _in_folder(ref.path, base.path)
            return (
                str(replace(ref, path=moved, passphrase_source=base.passphrase_source)) if moved else key_uri
            )
        case FileRef(), _:
            moved = _in_folder(ref.path, settings.enrollment_ca_dir.absolute())
            return str(replace(ref, path=moved)) if moved else key_uri
        case PKCS11Ref(), PKCS11Ref() if (ref.token, ref.serial) == (base.token, base.serial):
            return str(replace(ref, module_name=base.module_name, pin_source=base.pin_source))
        case TPM2Ref(), TPM2Ref():
            moved = _in_folder(ref.path, base.path) if ref.path and base.path else None
            return str(
                replace(
                    ref,
                    path=moved or ref.path,
                    tcti=base.tcti,
                    auth_source=base.auth_source,
                    owner_auth_source=base.owner_auth_source,
                )
            )
    return key_uri


def _in_folder(planned: Path, folder: Path) -> Path | None:
    """Return the file of that name in *folder*; None where only the planned place has it.

    Each key has a name of its own, so what has its name there is the key, or a copy; which of both it is, its
    certificate says. Where neither is there, the missing file is named in the folder that settings name.
    """
    here = folder / planned.name
    return None if planned.exists() and not here.exists() else here


def _free(first: int, taken: set[int | None], allowed: range) -> int:
    """Return the lowest handle or NV index of *allowed*, from *first* on, that was never planned.

    Raises:
        KeyURIInvalid: There is none.
    """
    for number in range(first, allowed.stop):
        if number not in taken:
            return number
    raise KeyURIInvalid("every handle from that of ITL_ENROLLMENT_CA_KEY on was used")
