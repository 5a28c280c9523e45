"""The trust bundle that is shipped, and those of operators (TPM.md §2.6; docs/operate/trust-bundle.md).

Beside this file lie the data: `manifest.json`, `anchors/` and `intermediates/`, one DER a file. NOTICE says whose
they are.
"""

# Algorithms for: trust-bundle
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING

from attestation.endorsements.bundle import FORMAT, TrustBundle
from attestation.tpm_bundle.files import Contents, open_path, read
from attestation.wire import canonical_json

if TYPE_CHECKING:
    from attestation.audit.note import VerifierKey

__all__ = ["bundle_of", "load", "load_directory", "load_shipped", "read_directory", "read_shipped"]


def read_shipped() -> Contents:
    """Read the bundle of this distribution; every file is held against its pin.

    Raises:
        BundleInvalid: The installation is damaged, with the file and the rule.
    """
    return read(resources(__name__), "tpm_bundle")


@lru_cache(maxsize=1)
def load_shipped() -> TrustBundle:
    """Return the bundle of this distribution, read once.

    Raises:
        BundleInvalid: The installation is damaged, with the file and the rule.
    """
    return bundle_of(read_shipped())


def read_directory(path: Path, keys: Sequence[VerifierKey] = ()) -> Contents:
    """Read the bundle in a folder or zip archive; every file is held against its pin.

    Args:
        path: A folder in either form (`files`), or an archive of the layout; a wheel of the SDK is one.
        keys: Keys of which one must have signed the manifest; without any, a signature is not looked at.

    Raises:
        BundleInvalid: With the file and the rule.
    """
    contents = read(open_path(path), str(path))
    if keys:
        # Imported here: who verifies no signature needs no notes.
        from attestation.tpm_bundle.signature import verify_manifest

        verify_manifest(contents, keys)
    return contents


def load_directory(path: Path, keys: Sequence[VerifierKey] = ()) -> TrustBundle:
    """Return the bundle in a folder or archive, alone; `load` puts one over what is shipped.

    Raises:
        BundleInvalid: With the file and the rule.
    """
    return bundle_of(read_directory(path, keys))


def load(directory: Path | None, keys: Sequence[VerifierKey] = ()) -> TrustBundle:
    """Return what is shipped, with the bundle in *directory* (`ITL_TPM_CA_BUNDLE_DIR`) over it.

    Raises:
        BundleInvalid: With the file and the rule.
    """
    shipped = load_shipped()
    if directory is None:
        return shipped
    overlay = read_directory(directory, keys)
    return shipped.with_overlay(overlay.certificates, sha1_allowed=overlay.manifest.sha1_allowed)


def bundle_of(contents: Contents) -> TrustBundle:
    """Return the index over what was read.

    Its digest is the SHA-256 of `manifest.json`; in the seed form that of what decides, in canonical JSON.

    Raises:
        BundleInvalid: A certificate is not what its entry says.
    """
    document = contents.document
    if document is None:
        decides = sorted([e.sha256, e.role.value, e.vendor] for e in contents.manifest.entries)
        document = canonical_json({"format": FORMAT, "entries": decides})
    return TrustBundle(
        contents.certificates,
        hashlib.sha256(document).hexdigest(),
        sha1_allowed=contents.manifest.sha1_allowed,
    )
