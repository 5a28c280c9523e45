"""Where a factory serves the images of a schematic (DELIVERY-AND-OPERATORS §6). No part of an address is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from attestation.errors import RequestInvalid

ImageKind = Literal["iso", "raw", "kernel", "initramfs", "cmdline", "uki", "installer", "pxe"]
Architecture = Literal["amd64", "arm64"]

# Of each kind: its path, and whether there is one for SecureBoot.
_PATHS: Final[Mapping[ImageKind, tuple[str, bool]]] = {
    "iso": ("image/{id}/{version}/metal-{arch}{secureboot}.iso", True),
    "raw": ("image/{id}/{version}/metal-{arch}{secureboot}.raw.xz", True),
    "kernel": ("image/{id}/{version}/kernel-{arch}", False),
    "initramfs": ("image/{id}/{version}/initramfs-{arch}.xz", False),
    "cmdline": ("image/{id}/{version}/cmdline-metal-{arch}{secureboot}", True),
    "uki": ("image/{id}/{version}/metal-{arch}-secureboot-uki.efi", True),
    "installer": ("image/{id}/{version}/installer-{arch}.tar", False),
    "pxe": ("pxe/{id}/{version}/metal-{arch}{secureboot}", True),
}
_COMPLETE: Final = re.compile(r"v1\.\d{1,3}\.\d{1,3}(?:-[0-9A-Za-z.-]{1,32})?")


def image_url(
    factory_url: str,
    schematic_id: str,
    version: str,
    kind: ImageKind = "iso",
    architecture: Architecture = "amd64",
    *,
    secureboot: bool = False,
) -> str:
    """Return where the factory serves an image.

    Raises:
        RequestInvalid: There is no such image, or the version does not name one release.
    """
    path, knows_secureboot = _PATHS[kind]
    if secureboot and not knows_secureboot:
        raise RequestInvalid(f"there is no {kind} of its own for SecureBoot")
    filled = path.format(
        id=schematic_id,
        version=_release(version),
        arch=architecture,
        secureboot="-secureboot" if secureboot else "",
    )
    return f"{factory_url}/{filled}"


def installer_image(factory_url: str, schematic_id: str, version: str, *, secureboot: bool = False) -> str:
    """Return the reference of the installer, for `machine.install.image`.

    Raises:
        RequestInvalid: The version does not name one release.
    """
    name = "metal-installer-secureboot" if secureboot else "metal-installer"
    return f"{urlsplit(factory_url).netloc}/{name}/{schematic_id}:{_release(version)}"


def _release(version: str) -> str:
    if not _COMPLETE.fullmatch(version):
        raise RequestInvalid(f"an image is one of a release, such as v1.13.9, not of {version[:32]}")
    return version
