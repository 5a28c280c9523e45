"""Files of an administrator: private keys that nobody else may read, and what is written once.

A key is read when it is needed and not before. Python cannot wipe memory: the process ends soon after.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attestation.errors import RequestInvalid
from attestation_cli.plugin import clean

if TYPE_CHECKING:
    from attestation.keys import KeyOptions, OpenKey


def private_key(path: Path, passphrase: Path | None) -> Any:
    """Return the private key in a PEM file.

    Raises:
        KeyUnusable: Others may read the file, or its passphrase is missing; as `attestation.keys.file`.
        KeyUnsupported: Nothing in it is a private key.
    """
    from attestation.keys.file import load_private_key
    from attestation.keys.uri import FileRef

    return load_private_key(FileRef(path=path.absolute()), _options(passphrase, {}))


@contextmanager
def signing_key(named: str, passphrase: Path | None, modules: Iterable[str]) -> Iterator[OpenKey]:
    """Open the key that an administrator signs with: a PEM file, or a key URI (`file:`, `pkcs11:`, `tpm2:`).

    Raises:
        KeyUnusable: As `attestation.keys.open`.
        RequestInvalid: *modules* are not `name=/path`.
    """
    from attestation.keys import open_key
    from attestation.keys.uri import FileRef

    listed: dict[str, Path] = {}
    for each in modules:
        name, equals, path = each.partition("=")
        if not name or not equals or not path.startswith("/"):
            raise RequestInvalid(
                f"{clean(each)}: a module is named like softhsm=/usr/lib/softhsm/libsofthsm2.so"
            )
        listed[name] = Path(path)
    uri = (
        named
        if named.partition(":")[0] in ("file", "pkcs11", "tpm2")
        else str(FileRef(path=Path(named).absolute()))
    )
    key = open_key(uri, _options(passphrase, listed))
    try:
        yield key
    finally:
        key.close()


def _options(passphrase: Path | None, modules: dict[str, Path]) -> KeyOptions:
    from attestation.keys import KeyOptions
    from attestation.keys.secrets import from_file

    return KeyOptions(
        passphrase=None if passphrase is None else lambda: from_file(passphrase),
        # Whether it is encrypted is the administrator's own affair; who may read it is checked.
        allow_unencrypted=True,
        modules=modules,
    )


def certificates(path: Path) -> tuple[bytes, ...]:
    """Return the certificates of a PEM file, DER.

    Raises:
        RequestInvalid: It has none.
    """
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return tuple(
            each.public_bytes(Encoding.DER) for each in load_pem_x509_certificates(path.read_bytes())
        )
    except ValueError as e:
        raise RequestInvalid(f"{clean(str(path))}: no certificates in PEM") from e


def write_new(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file that only its owner reads; one that is there stays, unless *force*: then it is replaced whole.

    Raises:
        RequestInvalid: It is there, or cannot be written.
    """
    where = path.with_name(f".{path.name}.new") if force else path
    try:
        if force:
            where.unlink(missing_ok=True)
        descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            # Half a file looks like one, and would be in the way of the next try.
            where.unlink(missing_ok=True)
            raise
        if force:
            where.rename(path)
    except FileExistsError as e:
        raise RequestInvalid(f"{clean(str(path))} is there already; --force replaces it") from e
    except OSError as e:
        raise RequestInvalid(f"{clean(str(path))}: {e.strerror}") from e


def beside(bundle: Path) -> Path:
    """Return where the signatures of a bundle stand: its name with .jws.

    Raises:
        RequestInvalid: That would be the bundle itself.
    """
    found = bundle.with_suffix(".jws")
    if found == bundle:
        raise RequestInvalid("a bundle is not called .jws: that is what its signatures are called")
    return found
