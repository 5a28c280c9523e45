"""What a machine's configuration is made of, as it is kept; read in the unit that decides about its delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from attestation.machines import Machine, Role
from attestation.store import Delivered, Place, Tx
from attestation_service.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a machine's configuration is made of, as it is kept.

    Args:
        talos_version: That the machine runs.
        base: Of its role in its cluster; None where none is active, and where files are asked.
        patch: Of the machine; None where none is active.
    """

    talos_version: str
    base: Delivered | None = None
    patch: Delivered | None = None

    @property
    def told(self) -> str:
        """Which versions it is made of, for the audit; nothing where they are files."""
        return "".join(
            f", {what} {found[0].about.ref}"
            for what, found in (("base", self.base), ("patch", self.patch))
            if found is not None
        )

    @classmethod
    def of(cls, tx: Tx, role: Role, cluster_id: str, machine_id: str | None, settings: Settings) -> Self:
        """Read them, as they are now."""
        version = tx.clusters.talos_version(cluster_id) or settings.talos_version
        if not settings.keeps_configurations:
            return cls(talos_version=version)
        place = Place(cluster_id=cluster_id, role=role.value)
        return cls(
            talos_version=version,
            base=tx.configurations.delivered(place),
            patch=None if machine_id is None else tx.configurations.delivered(Place(machine_id=machine_id)),
        )

    @classmethod
    def of_machine(cls, tx: Tx, machine: Machine, settings: Settings) -> Self:
        """Read those of a machine, as they are now; of one without a role there are none."""
        if machine.role is None:
            return cls(talos_version=settings.talos_version)
        return cls.of(tx, machine.role, machine.cluster_id, machine.machine_id, settings)
