"""Whose a configuration is, as people type it: `CLUSTER/ROLE` or a machine, and behind it perhaps `@VERSION`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attestation.client.text import clean
from attestation.errors import ConfigurationUnknown, RequestInvalid
from attestation.machines import Role

if TYPE_CHECKING:
    from attestation import api
    from attestation.client import OperatorClient
    from attestation_cli.session import Session

_BASE = re.compile(rf"([a-z0-9][a-z0-9-]{{0,62}})/({'|'.join(Role)})(?:@([1-9][0-9]{{0,8}}))?")
_VERSION = re.compile(r"(.+)@([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base configuration of a role in a cluster, and a version of it where one was named."""

    cluster_id: str
    role: Role
    version: int | None = None

    @property
    def name(self) -> str:
        """As it is typed, without the version."""
        return f"{self.cluster_id}/{self.role.value}"

    def versions(self, client: OperatorClient) -> list[api.ConfigurationInfo]:
        """Return its versions, the oldest first."""
        listed = client.configurations().configurations
        return [each for each in listed if (each.cluster_id, each.role) == (self.cluster_id, self.role)]

    def get(self, client: OperatorClient, version: int) -> api.ConfigurationDetail:
        """Return one of them."""
        return client.configuration(self.cluster_id, self.role, version)

    def store(self, client: OperatorClient, request: api.ConfigurationImport) -> api.ConfigurationDetail:
        """Import another one."""
        return client.import_configuration(self.cluster_id, self.role, request)

    def diff(self, client: OperatorClient, before: int, after: int) -> api.ConfigurationDiff:
        """Return what differs between two."""
        return client.diff_configurations(self.cluster_id, self.role, before, after)

    def activate(
        self, client: OperatorClient, version: int, reason: str | None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let one be delivered, or vote for it."""
        return client.activate_configuration(self.cluster_id, self.role, version, reason)

    def roll_back(
        self, client: OperatorClient, reason: str | None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let the one before be delivered, or vote for it."""
        return client.roll_back_configuration(self.cluster_id, self.role, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The patch of a machine, and a version of it where one was named."""

    machine_id: str
    name: str
    version: int | None = None

    def versions(self, client: OperatorClient) -> list[api.ConfigurationInfo]:
        """Return its versions, the oldest first."""
        return client.patches(self.machine_id).configurations

    def get(self, client: OperatorClient, version: int) -> api.ConfigurationDetail:
        """Return one of them."""
        return client.patch(self.machine_id, version)

    def store(self, client: OperatorClient, request: api.ConfigurationImport) -> api.ConfigurationDetail:
        """Import another one."""
        return client.import_patch(self.machine_id, request)

    def diff(self, client: OperatorClient, before: int, after: int) -> api.ConfigurationDiff:
        """Return what differs between two."""
        return client.diff_patches(self.machine_id, before, after)

    def activate(
        self, client: OperatorClient, version: int, reason: str | None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let one be delivered, or vote for it."""
        return client.activate_patch(self.machine_id, version, reason)

    def roll_back(
        self, client: OperatorClient, reason: str | None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let the one before be delivered, or vote for it."""
        return client.roll_back_patch(self.machine_id, reason)


def is_base(text: str) -> bool:
    """Return True where *text* names a base configuration, and not a file."""
    return _BASE.fullmatch(text) is not None


def base_of(text: str) -> Base:
    """Return the base configuration that *text* names.

    Raises:
        RequestInvalid: It names none.
    """
    found = _BASE.fullmatch(text)
    if found is None:
        raise RequestInvalid(f"{clean(text)} is no CLUSTER/ROLE, as in default/worker-app")
    return Base(
        cluster_id=found[1], role=Role(found[2]), version=int(found[3]) if found[3] is not None else None
    )


def patch_of(session: Session, client: OperatorClient, text: str) -> Patch:
    """Return the patch of the machine that *text* names."""
    found = _VERSION.fullmatch(text)
    name = found[1] if found is not None else text
    version = int(found[2]) if found is not None else None
    return Patch(machine_id=session.find_id(client, name), name=name, version=version)


def version_of(place: Base | Patch, client: OperatorClient) -> int:
    """Return the version that was named; else the one that is delivered; else the newest.

    Raises:
        ConfigurationUnknown: There is none.
    """
    if place.version is not None:
        return place.version
    found = place.versions(client)
    if not found:
        raise ConfigurationUnknown(f"no version of {clean(place.name)} is kept")
    return next((each.version for each in found if each.active), found[-1].version)


def named_version(place: Base | Patch) -> int:
    """Return the version that was named.

    Raises:
        RequestInvalid: None was.
    """
    if place.version is None:
        raise RequestInvalid(f"which version? Write {clean(place.name)}@VERSION")
    return place.version
