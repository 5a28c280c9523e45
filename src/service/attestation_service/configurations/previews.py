"""What machines would be given: one of them now, and those of a cluster before and after an upgrade of Talos."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import Query

from attestation.api import RenderedConfiguration, UpgradedRole, UpgradePreview
from attestation.api.configurations import TalosVersion
from attestation.errors import BaseConfigInvalid, BaseConfigMissing, ClusterUnknown
from attestation.machines import Machine, Role
from attestation.store import Tx
from attestation.talos.versions import Generation, generation_of
from attestation_service.configs.sources import Sources
from attestation_service.configurations.handlers import Cluster
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Id

# What needs YAML is imported where it is needed, on a thread: few workers ever do.

ROLES: Final = (Role.CONTROLPLANE, Role.WORKER_APP, Role.WORKER_INFRA)


async def preview_machine(machine_id: Id, *, res: Res) -> RenderedConfiguration:
    """Return what a machine would be given now, without its secrets.

    With what its version of Talos says of it. Nothing is delivered.

    Raises:
        MachineUnknown: No such machine.
        BaseConfigMissing: There is nothing for its role in its cluster.
        BaseConfigInvalid: What there is cannot be used.
        ConfigurationUnreadable: It cannot be opened, or was not activated here.
        SignerUnavailable: The device of the key does not answer.
    """

    def work(tx: Tx) -> tuple[Machine, Sources]:
        machine = tx.machines.require(machine_id)
        return machine, Sources.of_machine(tx, machine, res.settings)

    machine, sources = await res.store.read(work)
    role = machine.role
    if role is None:
        raise BaseConfigMissing("the machine has no role")

    def look() -> RenderedConfiguration:
        from attestation.talos.redaction import preview
        from attestation.talos.rendering import render
        from attestation_service.configs.rendering import own_of, texts_for
        from attestation_service.configurations.judging import told

        texts = texts_for(machine, sources, res.configurations, res.settings)
        generation = generation_of(texts.talos_version)
        rendered = render(texts.base, texts.patch, own_of(machine, res.settings), role, generation)
        return RenderedConfiguration(
            machine_id=machine_id,
            role=role,
            cluster_id=machine.cluster_id,
            talos_version=texts.talos_version,
            base=sources.base and sources.base[1].version,
            patch=sources.patch and sources.patch[1].version,
            preview=preview(rendered.text, generation),
            findings=told(rendered.findings),
        )

    return await res.configurations.beside.for_people(look)


async def preview_upgrade(
    cluster_id: Cluster, talos: Annotated[TalosVersion, Query()], *, res: Res
) -> UpgradePreview:
    """Return what would be delivered before and after an upgrade of Talos.

    For each role that has a base configuration, as it is made for a sample machine with a name and an address.
    Nothing changes.

    Raises:
        RequestInvalid: No version of Talos.
        ClusterUnknown: Nobody declared it, no machine is in it, and no role has a base configuration there.
        ConfigurationUnreadable: What is kept cannot be opened, or was not activated here.
        SignerUnavailable: The device of the key does not answer.
    """
    generation_of(talos)

    def work(tx: Tx) -> tuple[dict[Role, Sources], bool]:
        sources = {role: Sources.of(tx, role, cluster_id, None, res.settings) for role in ROLES}
        return sources, tx.clusters.is_there(cluster_id)

    found, is_there = await res.store.read(work)
    before = next(iter(found.values())).talos_version
    roles = await res.configurations.beside.for_people(
        partial(_upgraded, found, cluster_id, before, talos, res)
    )
    if not roles and not is_there:  # "nothing stands in the way" would be said of a slip of the pen
        raise ClusterUnknown(f"no operator declared a cluster {cluster_id}, and no machine is in it")
    return UpgradePreview(cluster_id=cluster_id, before=before, after=talos, roles=roles)


def _upgraded(
    found: dict[Role, Sources], cluster_id: str, before: str, after: str, res: Resources
) -> list[UpgradedRole]:
    from attestation.talos.rendering import render
    from attestation_service.configs.rendering import SAMPLE, texts_of
    from attestation_service.configurations.judging import changes, told

    told_of = []
    for role, sources in found.items():
        try:
            texts = texts_of(sources, role, cluster_id, res.configurations, res.settings)
        except BaseConfigMissing:
            continue
        made: UpgradedRole
        base = sources.base and sources.base[1].version
        try:
            old = render(texts.base, None, SAMPLE, role, generation_of(before))
            new = render(texts.base, None, SAMPLE, role, generation_of(after))
            newest = max(before, after, key=lambda each: list(Generation).index(generation_of(each)))
            made = UpgradedRole(
                role=role,
                base=base,
                changes=changes(old.text, new.text, newest),
                findings=told(new.findings),
                error=None,
            )
        except BaseConfigInvalid as e:
            made = UpgradedRole(role=role, base=base, changes=[], findings=[], error=str(e))
        told_of.append(made)
    return told_of
