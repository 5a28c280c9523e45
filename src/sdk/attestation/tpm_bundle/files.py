"""Reading a bundle: a folder, an archive or the data of this package; every file is held against its pin.

Two forms (TPM.md §2.6):

    manifest.json                                 the layout: what it does not name may not be there
    manifest.json.sig                             optional, `signature.py`
    {anchors,intermediates}/<VENDOR>/<first 16 hex of SHA-256>.der

    [{anchors,intermediates}/]<VENDOR>/<any name>.{der,cer,crt,pem}  the seed form: no manifest, one certificate a file

In the seed form a certificate without a role in its path is an anchor if it is self-issued, else an intermediate.
"""

# Algorithms for: trust-bundle
from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from attestation.endorsements.bundle import (
    MAX_ENTRIES,
    MAX_MANIFEST_BYTES,
    VENDORS,
    BundleEntry,
    Manifest,
    Role,
    entry_of,
    parse_manifest,
    tag_of,
)
from attestation.endorsements.certificate import MAX_CERTIFICATE_BYTES
from attestation.errors import BundleInvalid
from attestation.tpm_bundle.pem import certificates

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.json.sig"
MAX_SIGNATURE_BYTES: Final = 65_536
MAX_PEM_BYTES: Final = 4 * MAX_CERTIFICATE_BYTES
SUFFIXES: Final = frozenset({".der", ".cer", ".crt", ".pem"})

_ROLES: Final = {f"{role}s": role for role in Role}
_REMARKS: Final = ("README", "NOTICE", "LICEN")
"""Beginnings of names of files that may lie beside certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A bundle as it was read: every file is the one that is pinned.

    Args:
        where: Where it was read, for messages.
        manifest: What was said of it; for the seed form made from the files.
        certificates: Entries with their DER.
        document: The bytes of `manifest.json`; None in the seed form.
        signature: The bytes of `manifest.json.sig`; None where there is none. Nobody has verified them.
    """

    where: str
    manifest: Manifest
    certificates: tuple[tuple[BundleEntry, bytes], ...]
    document: bytes | None
    signature: bytes | None


def open_path(path: Path) -> Traversable:
    """Return the root of a bundle: a folder, or a zip archive (a wheel of the SDK too) that holds exactly one.

    Raises:
        BundleInvalid: Neither, or it cannot be read.
    """
    try:
        if path.is_dir():
            return path
        if not zipfile.is_zipfile(path):
            raise BundleInvalid(f"{path}: neither a folder nor a zip archive")
        with zipfile.ZipFile(path) as archive:
            found = [name for name in archive.namelist() if name.rpartition("/")[2] == MANIFEST]
    except (OSError, zipfile.BadZipFile) as e:
        raise BundleInvalid(f"{path}: {_reason(e)}") from e
    if len(found) != 1:
        raise BundleInvalid(f"{path}: holds {len(found)} files {MANIFEST}, exactly one expected")
    return zipfile.Path(path, found[0].removesuffix(MANIFEST))


def read(root: Traversable, where: str) -> Contents:
    """Read the bundle at *root*, in either form.

    Args:
        root: The folder.
        where: What to call it in messages.

    Raises:
        BundleInvalid: With the file and the rule that it breaks.
    """
    try:
        if _is_file(root, MANIFEST):
            return _layout(root, where)
        return _seed(root, where)
    except (OSError, zipfile.BadZipFile) as e:
        raise BundleInvalid(f"{where}: {_reason(e)}") from e


def _layout(root: Traversable, where: str) -> Contents:
    document = _bytes(root / MANIFEST, MAX_MANIFEST_BYTES, f"{where}/{MANIFEST}")
    try:
        manifest = parse_manifest(document)
    except BundleInvalid as e:
        raise BundleInvalid(f"{where}/{MANIFEST}: {e}") from e
    files = {f"{role}/{vendor}/{file.name}": file for role, vendor, file in _walk_roles(root, where)}
    found = []
    for entry in manifest.entries:
        what = f"{where}/{entry.path}"
        file = files.pop(entry.path, None)
        if file is None:
            raise BundleInvalid(f"{what}: is missing, but the manifest names it")
        der = _bytes(file, MAX_CERTIFICATE_BYTES, what)
        digest = hashlib.sha256(der).hexdigest()
        if digest != entry.sha256:
            raise BundleInvalid(f"{what}: its SHA-256 is {digest}, the manifest pins {entry.sha256}")
        found.append((entry, der))
    if files:
        raise BundleInvalid(f"{where}/{min(files)}: the manifest does not name it")
    signature = None
    if _is_file(root, SIGNATURE):
        signature = _bytes(root / SIGNATURE, MAX_SIGNATURE_BYTES, f"{where}/{SIGNATURE}")
    return Contents(
        where=where,
        manifest=manifest,
        certificates=tuple(found),
        document=document,
        signature=signature,
    )


def _seed(root: Traversable, where: str) -> Contents:
    found: dict[str, tuple[BundleEntry, bytes]] = {}
    for role, vendor, file in [*_walk_roles(root, where), *_walk_vendors(root, "", where)]:
        what = "/".join(part for part in (where, role, vendor, file.name) if part)
        tag = tag_of(vendor)
        if tag not in VENDORS:
            raise BundleInvalid(f"{what}: {vendor[:20]!r} is not in the TCG vendor registry")
        ders = certificates(_bytes(file, MAX_PEM_BYTES, what), what)
        if len(ders) != 1:
            raise BundleInvalid(f"{what}: holds {len(ders)} certificates, one a file expected")
        try:
            entry = entry_of(
                ders[0],
                role=_ROLES.get(role),
                vendor=tag,
                retrieved=_day(file),
                evidence="put into the folder by an operator",
            )
        except BundleInvalid as e:
            raise BundleInvalid(f"{what}: {e}") from e
        if entry.sha256 in found:
            raise BundleInvalid(f"{what}: the same certificate as another file")
        found[entry.sha256] = (entry, ders[0])
        if len(found) > MAX_ENTRIES:
            raise BundleInvalid(f"{where}: more than {MAX_ENTRIES} certificates")
    manifest = Manifest(
        version=1,
        created=datetime(1970, 1, 1, tzinfo=UTC),
        entries=tuple(entry for entry, _ in found.values()),
    )
    return Contents(
        where=where, manifest=manifest, certificates=tuple(found.values()), document=None, signature=None
    )


def _walk_roles(root: Traversable, where: str) -> Iterator[tuple[str, str, Traversable]]:
    for role in _ROLES:
        if (root / role).is_dir():
            yield from _walk_vendors(root / role, role, where)


def _walk_vendors(folder: Traversable, role: str, where: str) -> Iterator[tuple[str, str, Traversable]]:
    """Yield role, vendor and file of every certificate two levels below; never deeper, whatever links there are."""
    for vendor in sorted(folder.iterdir(), key=lambda f: f.name):
        if _passed_over(vendor.name) or (not role and (vendor.name in _ROLES or vendor.name == MANIFEST)):
            continue
        if not vendor.is_dir():
            place = "/".join(part for part in (where, role, vendor.name) if part)
            raise BundleInvalid(f"{place}: a certificate stands in a folder named by its manufacturer")
        for file in sorted(vendor.iterdir(), key=lambda f: f.name):
            if _passed_over(file.name):
                continue
            if not file.is_file() or Path(file.name).suffix.lower() not in SUFFIXES:
                place = "/".join(part for part in (where, role, vendor.name, file.name) if part)
                raise BundleInvalid(f"{place}: not a file {', '.join(sorted(SUFFIXES))}")
            yield role, vendor.name, file


def _passed_over(name: str) -> bool:
    return name.startswith((".", "__")) or name.upper().startswith(_REMARKS)


def _is_file(root: Traversable, name: str) -> bool:
    return (root / name).is_file()


def _bytes(file: Traversable, limit: int, what: str) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise BundleInvalid(f"{what}: longer than {limit} bytes")
    return data


def _day(file: Traversable) -> date:
    """Return the day on which *file* was last written; that of the epoch where nobody knows."""
    seconds = file.stat().st_mtime if isinstance(file, Path) else 0
    return datetime.fromtimestamp(seconds, tz=UTC).date()


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
