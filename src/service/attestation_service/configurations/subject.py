"""For whom a configuration is."""

from __future__ import annotations

from dataclasses import dataclass

from attestation.machines import Role
from attestation_service.configs.sources import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """For whom a configuration is.

    Args:
        role: Of the machines that get it; None of a machine that has none yet.
        cluster_id: Of them.
        is_patch: It is merged into the base of this role in this cluster.
        sources: What such a machine gets now.
    """

    role: Role | None
    cluster_id: str
    is_patch: bool
    sources: Sources
