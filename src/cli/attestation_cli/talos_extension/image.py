"""One layer and what describes it, as an OCI image layout: no times, no owners, one order."""

# Algorithms for: digest
from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attestation_cli.talos_extension.tree import Tree

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that stands in memory.

    Args:
        digest: `sha256:…` of its manifest: what it is called by.
        blobs: Each by the hex of its SHA-256.
        index: What `index.json` says.
    """

    digest: str
    blobs: Mapping[str, bytes]
    index: bytes


def layer(tree: Tree) -> bytes:
    """Return *tree* as a tar archive: sorted, of root, from the beginning of time; programs 0755, files 0644."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in tree.folders():
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for place, file in sorted(tree.files.items()):
            info = tarfile.TarInfo(place)
            info.size, info.mode = len(file.data), 0o755 if file.executable else 0o644
            archive.addfile(info, io.BytesIO(file.data))
    return out.getvalue()


def image(tree: Tree, *, machine: str, annotations: Mapping[str, str]) -> Image:
    """Return an image of one layer that holds *tree*."""
    tar = layer(tree)
    zipped = io.BytesIO()
    # Neither the name of a file nor a time: both would stand in the header (RFC 1952). Level 4: higher ones take
    # twice as long for three hundredths.
    with gzip.GzipFile(filename="", mode="wb", fileobj=zipped, compresslevel=4, mtime=0) as out:
        out.write(tar)
    blobs: dict[str, bytes] = {}

    def blob(media_type: str, data: bytes) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        blobs[name] = data
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}

    config = {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]},
        "history": [{"created_by": "attestation dev talos-extension"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(CONFIG, _json(config)),
        "layers": [blob(LAYER, zipped.getvalue())],
        "annotations": dict(annotations),
    }
    described = blob(MANIFEST, _json(manifest))
    described["platform"] = {"architecture": ARCHITECTURES[machine], "os": "linux"}
    described["annotations"] = {
        "org.opencontainers.image.ref.name": annotations["org.opencontainers.image.version"]
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
    return Image(digest=described["digest"], blobs=blobs, index=_json(index))


def write(made: Image, folder: Path) -> None:
    """Write an image layout (OCI image specification 1.1, image-layout.md); the index last, which makes it one."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for name, data in made.blobs.items():
        (blobs / name).write_bytes(data)
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(made.index)


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
