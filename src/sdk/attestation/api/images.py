"""Images of Talos that machines boot (DELIVERY-AND-OPERATORS §6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import ClusterId, Wire
from attestation.machines import DEFAULT_CLUSTER, Role

__all__ = ["ImageDetail", "ImageRequest"]


class ImageRequest(Wire):
    """`POST /api/v1/images`: one image for every machine of a role and a cluster."""

    role: Role
    cluster_id: ClusterId = DEFAULT_CLUSTER
    kind: Literal["iso", "raw", "kernel", "initramfs", "cmdline", "uki", "installer", "pxe"] = "iso"
    architecture: Literal["amd64", "arm64"] = "amd64"
    secureboot: bool = False
    talos_version: Annotated[
        str | None,
        Field(max_length=64, description="Release, such as `v1.13.9`; null: the cluster's"),
    ] = None
    extensions: list[Annotated[str, Field(max_length=192, examples=["siderolabs/gvisor"])]] = Field(
        default=[], max_length=32, description="What this role needs beside `ITL_FACTORY_EXTENSIONS`"
    )


class ImageDetail(Wire):
    """An image; nothing in it, in its schematic or in its address is a secret."""

    role: Role
    cluster_id: str
    source: Literal["own", "factory"] = Field(
        description="`own`: that of `ITL_ISO_URL`, whatever was asked for"
    )
    url: str
    schematic_id: str | None = Field(description="SHA-256 of `schematic`, hex; null for an image of your own")
    schematic: str | None = Field(description="The canonical YAML that the factory was sent")
    installer_image: str | None = Field(
        description="For `machine.install.image`: the same schematic, installed"
    )
    talos_version: str | None
