"""Base configurations of roles and patches of machines, on the wire: never their text, which holds secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.api.base import ClusterId, MachineId, Reason, Wire
from attestation.machines import Role

__all__ = [
    "ConfigurationActivate",
    "ConfigurationChange",
    "ConfigurationDetail",
    "ConfigurationDiff",
    "ConfigurationFinding",
    "ConfigurationImport",
    "ConfigurationInfo",
    "ConfigurationList",
    "ConfigurationRollback",
    "ConfigurationsRewrapped",
    "RenderedConfiguration",
    "UpgradePreview",
    "UpgradedRole",
]

MAX_DOCUMENT_CHARACTERS = 1 << 20

TalosVersion = Annotated[
    str,
    Field(
        max_length=48,
        pattern=r"^v?1\.[0-9]{1,3}(\.[0-9]{1,3})?(-[0-9A-Za-z.-]{1,32})?$",
        examples=["v1.13.9"],
    ),
]
ConfigurationVersion = Annotated[int, Field(ge=1, le=999_999_999)]


class ConfigurationImport(Wire):
    """A new version: judged, kept, and not delivered until it is activated."""

    document: str = Field(
        min_length=1,
        max_length=MAX_DOCUMENT_CHARACTERS,
        repr=False,
        description="YAML, a stream of documents. No answer holds it",
    )
    talos_version: TalosVersion | None = Field(
        default=None, description="By which it is judged; by default that of the machines which get it"
    )
    note: Reason | None = None


class ConfigurationFinding(Wire):
    """Something that a version of Talos would refuse, or warn of; never a value."""

    document: int = Field(description="Which document of the stream, from 1")
    kind: str = Field(description="Of that document; empty for v1alpha1")
    path: str
    level: Literal["error", "deprecated", "unproven"]
    words: str


class ConfigurationInfo(Wire):
    """One version, without its text."""

    cluster_id: ClusterId | None = Field(description="Of a base configuration; null for a patch")
    role: Role | None = Field(description="Of a base configuration; null for a patch")
    machine_id: MachineId | None = Field(description="Of a patch; null for a base configuration")
    version: ConfigurationVersion
    sha256: str = Field(description="Of its text, 64 lower-case hex")
    size_bytes: int
    talos_version: str = Field(description="By which it was judged when it was imported")
    note: str | None
    created_at: datetime
    created_by: str
    encryption_key_id: str = Field(description="Name of the key-encryption key that it lies under")
    active: bool = Field(description="It is delivered")
    activated_at: datetime | None = Field(description="Since when; null where it is not active")
    activated_by: str | None
    agreed: bool = Field(description="Several operators agreed that it is delivered (dual control)")
    previous: int | None = Field(
        description="The version that was delivered before it; what a rollback activates"
    )


class ConfigurationDetail(ConfigurationInfo):
    """One version, as people may see it.

    `preview` is its YAML without secrets: values are shown only where the schema knows them as no secret.
    """

    preview: str
    findings: list[ConfigurationFinding]


class ConfigurationList(Wire):
    """Versions, by place and number."""

    configurations: list[ConfigurationInfo]


class ConfigurationActivate(Wire):
    """Which version is to be delivered from now on."""

    version: ConfigurationVersion
    reason: Reason | None = None


class ConfigurationRollback(Wire):
    """Why the version before is to be delivered again."""

    reason: Reason | None = None


class ConfigurationChange(Wire):
    """One difference; hidden values are told to differ, and never shown."""

    document: str
    path: str
    before: str | None
    after: str | None


class ConfigurationDiff(Wire):
    """What differs between two versions."""

    before: ConfigurationVersion
    after: ConfigurationVersion
    changes: list[ConfigurationChange]


class RenderedConfiguration(Wire):
    """What one machine would be given now, as people may see it."""

    machine_id: MachineId
    role: Role
    cluster_id: ClusterId
    talos_version: str
    base: int | None = Field(description="Version of the base configuration; null where it is a file")
    patch: int | None = Field(description="Version of the machine's patch; null where it has none")
    preview: str
    findings: list[ConfigurationFinding]


class UpgradedRole(Wire):
    """What an upgrade of Talos changes for the machines of one role.

    Where it could not be found out, `error` says why.
    """

    role: Role
    base: int | None = Field(description="Version of the base configuration; null where it is a file")
    changes: list[ConfigurationChange]
    findings: list[ConfigurationFinding] = Field(description="What the version after says of the result")
    error: str | None


class UpgradePreview(Wire):
    """What would be delivered before and after an upgrade of Talos, for each role that has a base configuration."""

    cluster_id: ClusterId
    before: str
    after: str
    roles: list[UpgradedRole]


class ConfigurationsRewrapped(Wire):
    """How many versions lie under the newest key-encryption key now, and how many could not be brought there."""

    rewrapped: int
    unreachable: int
