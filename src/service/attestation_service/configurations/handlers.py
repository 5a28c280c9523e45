"""Versions of base configurations and of machines' patches: judged when they come, immutable, delivered once activated.

No answer, entry or log line holds a text: people see what `attestation.talos.redaction` shows, and digests.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path, Query

from attestation.api import (
    ConfigurationActivate,
    ConfigurationDetail,
    ConfigurationDiff,
    ConfigurationImport,
    ConfigurationList,
    ConfigurationRollback,
    ConfigurationsRewrapped,
    PendingApproval,
)
from attestation.api.base import ClusterId
from attestation.errors import ConfigurationUnreadable, SignerUnavailable
from attestation.machines import Role
from attestation.store import Configuration, Place, Tx, WrappedConfiguration
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.configurations import versions
from attestation_service.resources import Res
from attestation_service.routing.parameters import Id

REWRAPPED_AT_ONCE = 50

Cluster = Annotated[ClusterId, Path()]
RolePath = Annotated[Role, Path()]
Version = Annotated[int, Path(ge=1, le=999_999_999)]
Wanted = Annotated[int, Query(ge=1, le=999_999_999)]


# ---------------------------------------------------------------- base configurations


async def list_bases(*, res: Res) -> ConfigurationList:
    """List every version of every base configuration.

    Without texts: what they hold is shown one by one, without secrets.
    """

    def work(tx: Tx) -> ConfigurationList:
        active = {each.place: each for each in tx.configurations.active_bases()}
        return ConfigurationList(
            configurations=[versions.info(each, active.get(each.place)) for each in tx.configurations.bases()]
        )

    return await res.store.read(work)


async def import_base(
    cluster_id: Cluster, role: RolePath, request: ConfigurationImport, *, res: Res, operator: OperatorDep
) -> ConfigurationDetail:
    """Store a new version of a role's base configuration.

    It is judged first, and is not delivered until it is activated.

    Raises:
        ClusterUnknown: A cluster that nobody declared.
        ConfigurationInvalid: Nobody could read it, or Talos would refuse it.
        RequestInvalid: No version of Talos.
        AlreadyExists: Others stored versions at the same moment, again and again.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: The key cannot be used.
        SignerUnavailable: Its device does not answer.
    """
    return await versions.store(Place(cluster_id=cluster_id, role=role.value), request, res, operator)


async def get_base(cluster_id: Cluster, role: RolePath, version: Version, *, res: Res) -> ConfigurationDetail:
    """Return one version of a base configuration, without its secrets.

    With what its version of Talos says of it now.

    Raises:
        ConfigurationUnknown: There is none.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
    """
    return await versions.show(Place(cluster_id=cluster_id, role=role.value), version, res)


async def diff_bases(
    cluster_id: Cluster, role: RolePath, before: Wanted, after: Wanted, *, res: Res
) -> ConfigurationDiff:
    """Return what differs between two versions.

    That a secret does is told, never the secret.

    Raises:
        ConfigurationUnknown: One of them does not exist.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: One of them cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
    """
    return await versions.diff(Place(cluster_id=cluster_id, role=role.value), before, after, res)


async def activate_base(
    cluster_id: Cluster, role: RolePath, request: ConfigurationActivate, *, res: Res, operator: VoterDep
) -> ConfigurationDetail | PendingApproval:
    """Let a version be delivered to the machines of a role from now on.

    What is active already changes nothing. Machines get it with their next delivery.

    Raises:
        ConfigurationUnknown: There is no such version.
        ConfigurationInvalid: The Talos that the machines run now would refuse it.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
        BreakGlassCannotVote: Several people must agree to it.
    """
    place = Place(cluster_id=cluster_id, role=role.value)
    return await versions.activate(place, request.version, request.reason, res, operator)


async def roll_back_base(
    cluster_id: Cluster, role: RolePath, request: ConfigurationRollback, *, res: Res, operator: VoterDep
) -> ConfigurationDetail | PendingApproval:
    """Let the version that was delivered before be delivered again.

    The same act as activating that version by its number: votes for the one count for the other.

    Raises:
        ConfigurationUnknown: None was delivered before.
        ConfigurationInvalid: The Talos that the machines run now would refuse it.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
        BreakGlassCannotVote: Several people must agree to it.
    """
    place = Place(cluster_id=cluster_id, role=role.value)
    return await versions.activate(place, None, request.reason, res, operator)


# ---------------------------------------------------------------- patches of machines


async def list_patches(machine_id: Id, *, res: Res) -> ConfigurationList:
    """List every version of a machine's patch, without texts.

    Raises:
        MachineUnknown: No such machine.
    """
    place = Place(machine_id=machine_id)

    def work(tx: Tx) -> ConfigurationList:
        tx.machines.require(machine_id)
        active = tx.configurations.active(place)
        return ConfigurationList(
            configurations=[versions.info(each, active) for each in tx.configurations.of_place(place)]
        )

    return await res.store.read(work)


async def import_patch(
    machine_id: Id, request: ConfigurationImport, *, res: Res, operator: OperatorDep
) -> ConfigurationDetail:
    """Store a new version of a machine's patch.

    It is judged with the base configuration that the machine gets now, and is not delivered until it is activated.

    Raises:
        MachineUnknown: No such machine.
        ConfigurationInvalid: Nobody could read it, or Talos would refuse the result.
        RequestInvalid: No version of Talos.
        AlreadyExists: Others stored versions at the same moment, again and again.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: The key cannot be used.
        SignerUnavailable: Its device does not answer.
    """
    return await versions.store(Place(machine_id=machine_id), request, res, operator)


async def get_patch(machine_id: Id, version: Version, *, res: Res) -> ConfigurationDetail:
    """Return one version of a machine's patch, without its secrets.

    With what Talos says of it now, together with the base configuration.

    Raises:
        MachineUnknown: No such machine.
        ConfigurationUnknown: There is none.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
    """
    return await versions.show(Place(machine_id=machine_id), version, res)


async def diff_patches(machine_id: Id, before: Wanted, after: Wanted, *, res: Res) -> ConfigurationDiff:
    """Return what differs between two versions of a patch.

    Raises:
        MachineUnknown: No such machine.
        ConfigurationUnknown: One of them does not exist.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: One of them cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
    """
    return await versions.diff(Place(machine_id=machine_id), before, after, res)


async def activate_patch(
    machine_id: Id, request: ConfigurationActivate, *, res: Res, operator: VoterDep
) -> ConfigurationDetail | PendingApproval:
    """Let a version of a machine's patch be delivered from now on.

    An empty one, `{}`, ends what the one before did.

    Raises:
        MachineUnknown: No such machine.
        ConfigurationUnknown: There is no such version.
        ConfigurationInvalid: The Talos that the machine runs now would refuse the result.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
        BreakGlassCannotVote: Several people must agree to it.
    """
    return await versions.activate(
        Place(machine_id=machine_id), request.version, request.reason, res, operator
    )


async def roll_back_patch(
    machine_id: Id, request: ConfigurationRollback, *, res: Res, operator: VoterDep
) -> ConfigurationDetail | PendingApproval:
    """Let the version of a machine's patch that was delivered before be delivered again.

    Raises:
        MachineUnknown: No such machine.
        ConfigurationUnknown: None was delivered before.
        ConfigurationInvalid: The Talos that the machine runs now would refuse the result.
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: It cannot be opened, or somebody changed it.
        SignerUnavailable: The device of the key does not answer.
        BreakGlassCannotVote: Several people must agree to it.
    """
    return await versions.activate(Place(machine_id=machine_id), None, request.reason, res, operator)


# ---------------------------------------------------------------- the key-encryption key


async def rewrap(*, res: Res, operator: OperatorDep) -> ConfigurationsRewrapped:
    """Bring every version under the newest key-encryption key.

    No text is opened for it. What cannot be brought there stays where it is, and is counted.

    Raises:
        ConfigurationsNotKept: No key-encryption key is set.
        ConfigurationUnreadable: The key cannot be used.
        SignerUnavailable: Its device does not answer.
    """
    kept, at = res.configurations, res.clock.now()
    newest = await kept.beside.for_people(kept.newest)
    done = unreachable = 0
    last: Configuration | None = None
    while found := await res.store.read(partial(_under_others, kek_id=newest, after=last)):
        for each in found:
            last = each.about
            try:
                wrapped = await kept.beside.for_people(partial(kept.rewrapped, each))
            except (ConfigurationUnreadable, SignerUnavailable):  # it keeps no other back
                unreachable += 1
                continue
            done += await res.store.write(partial(_rewrap, found=each, kek_id=newest, wrapped=wrapped))
    detail = f"{done} versions under {newest}, {unreachable} out of reach"
    event = operator.event("configuration_rewrap", detail=detail)
    await res.store.write(lambda tx: tx.audit.append(event, at))
    return ConfigurationsRewrapped(rewrapped=done, unreachable=unreachable)


def _under_others(tx: Tx, *, kek_id: str, after: Configuration | None) -> tuple[WrappedConfiguration, ...]:
    return tx.configurations.under_other_keks(kek_id, REWRAPPED_AT_ONCE, after)


def _rewrap(tx: Tx, *, found: WrappedConfiguration, kek_id: str, wrapped: bytes) -> bool:
    return tx.configurations.rewrap(found, kek_id=kek_id, wrapped=wrapped)
