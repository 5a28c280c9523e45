"""Writing a bundle: a folder in the layout of `files`, there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attestation.endorsements.bundle import Manifest, format_manifest
from attestation.errors import BundleInvalid
from attestation.tpm_bundle.files import MANIFEST, SIGNATURE, read


def write_directory(
    target: Path,
    manifest: Manifest,
    ders: Mapping[str, bytes],
    *,
    document: bytes | None = None,
    signature: bytes | None = None,
) -> None:
    """Write a bundle beside *target*, read it again as a service would, and put it in the place of *target*.

    Where *target* exists it is moved aside and removed afterwards: between the two moves there is no *target* for a
    moment, never half a one. A crash in between leaves the former one as `.<name>.former`.

    Args:
        target: The folder.
        manifest: What it holds.
        ders: SHA-256 (hex) to DER, of every entry.
        document: The bytes of `manifest.json` where they were signed; written anew if None.
        signature: The bytes of `manifest.json.sig`, if it has one.

    Raises:
        BundleInvalid: It cannot be written, or what was written is no bundle.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as e:
        raise BundleInvalid(f"{target}: {e.strerror or e}") from e
    try:
        # mkdtemp makes it for its owner only; whoever runs the service must be able to read what is public.
        new.chmod(0o755)
        for entry in manifest.entries:
            _write(new / entry.path, ders[entry.sha256])
        _write(new / MANIFEST, format_manifest(manifest) if document is None else document)
        if signature is not None:
            _write(new / SIGNATURE, signature)
        read(new, str(target))
        former = target.with_name(f".{target.name}.former")
        if target.exists():
            shutil.rmtree(former, ignore_errors=True)
            target.rename(former)
        new.rename(target)
        shutil.rmtree(former, ignore_errors=True)
    except OSError as e:
        raise BundleInvalid(f"{target}: {e.strerror or e}") from e
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(new)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
