"""Clusters: what operators declare of them, and what is in them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from attestation.api.base import ClusterId, Wire, spelled
from attestation.api.operator import Cursor
from attestation.api.policies import EffectivePart
from attestation.machines import Role, Status
from attestation.talos.versions import generation_of

__all__ = [
    "ClusterChange",
    "ClusterConfiguration",
    "ClusterCreate",
    "ClusterDetail",
    "ClusterPage",
    "ClusterSummary",
]

Count = Annotated[int, Field(ge=0)]


def _canonical_version(text: str) -> str:
    generation_of(text)
    return f"v{text.removeprefix('v')}"


TalosVersion = Annotated[
    str,
    Field(
        max_length=48,
        description="Which version of Talos its machines run: by it their configuration is written and judged",
        examples=["v1.13.9"],
    ),
    AfterValidator(lambda text: spelled(_canonical_version, text)),
]
Description = Annotated[
    str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$", description="What it is, for people")
]
SERVICE_VERSION: Final = "default"
"""Stands where a version of Talos could: that of `ITL_TALOS_VERSION`."""


class ClusterCreate(Wire):
    """Declare a cluster; machines may be in it already."""

    cluster_id: ClusterId
    description: Description | None = None
    talos_version: TalosVersion | None = Field(default=None, description="Null is `ITL_TALOS_VERSION`")


class ClusterChange(Wire):
    """Change what is declared of a cluster; what is left out stays as it is."""

    description: Description | None = Field(default=None, description="An empty one ends what was said")
    talos_version: Literal["default"] | TalosVersion | None = Field(
        default=None, description="`default` is `ITL_TALOS_VERSION`"
    )


class ClusterSummary(Wire):
    """A cluster in a list."""

    cluster_id: str
    declared: bool = Field(description="False where no operator declared it, and machines are in it")
    description: str | None
    talos_version: str = Field(description="By which configurations of its machines are written and judged")
    talos_version_declared: bool = Field(description="False where it is `ITL_TALOS_VERSION`")
    machines: Count
    created_at: datetime | None
    created_by: str | None


class ClusterPage(Wire):
    """Clusters in the order of their ids."""

    items: list[ClusterSummary]
    next_cursor: Cursor


class ClusterConfiguration(Wire):
    """What the machines of a role are given in a cluster."""

    role: Role
    source: Literal["version", "file", "none"] = Field(
        description="A version in the database, a file of the service, or nothing: then they get no configuration"
    )
    version: int | None = Field(description="Which version; null of a file")


class ClusterDetail(ClusterSummary):
    """One cluster; every machine of it is counted once in each of the two tables."""

    by_status: dict[Status, Count] = Field(description="Every status, also where nobody is in it")
    by_role: dict[Role, Count] = Field(description="Every role; those without one are in `without_role`")
    without_role: Count
    policies: list[EffectivePart] = Field(
        description="What is assigned to the fleet, to it, and to the roles of its machines; the widest first"
    )
    configurations: list[ClusterConfiguration] = Field(
        default=[],
        description="Base configurations, of the roles that its machines have or that have a version",
    )
    changed_at: datetime | None
    changed_by: str | None
