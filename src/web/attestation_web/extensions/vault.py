"""Routes of the extension `secret_vault` that the dashboard reads: names and grants, never a value."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from datetime import datetime

from attestation.api.base import Wire
from attestation.api.operation import operation

NAME = "secret_vault"


class _Shown(Wire):
    name: str
    version: int
    description: str | None
    rule: str | None
    encryption_key_id: str | None
    created_at: datetime
    created_by: str
    last_rotated_at: datetime | None
    expires_at: datetime | None
    last_accessed_at: datetime | None
    access_count: int


class SecretResponse(_Shown):
    """A secret of one machine, without its value."""

    secret_id: str
    machine_id: str


class SecretList(Wire):
    """Secrets of one machine, by name."""

    secrets: list[SecretResponse]
    total: int


class SharedSecretResponse(_Shown):
    """A shared secret, without its value."""

    shared_secret_id: str
    authorized_machine_count: int


class SharedSecretList(Wire):
    """Shared secrets, by name."""

    secrets: list[SharedSecretResponse]
    total: int


class AccessGrant(Wire):
    """A machine that may have a shared secret."""

    shared_secret_id: str
    machine_id: str
    granted_at: datetime
    granted_by: str
    last_accessed_at: datetime | None
    access_count: int


class AccessGrants(Wire):
    """Who may have it, by id."""

    access_grants: list[AccessGrant]
    total: int


class Vault:
    """What is asked of it."""

    @operation("secret_vault_of_machine", "GET /secrets/machines/{machine_id}/secrets")
    def of_machine(self, machine_id: str, after: str = "") -> SecretList:
        """List the secrets of a machine."""

    @operation("secret_vault_all_shared", "GET /shared-secrets/")
    def all_shared(self, after: str = "") -> SharedSecretList:
        """List the shared secrets."""

    @operation("secret_vault_show_shared", "GET /shared-secrets/{secret_id}")
    def show_shared(self, secret_id: str) -> SharedSecretResponse:
        """Show a shared secret."""

    @operation("secret_vault_grants", "GET /shared-secrets/{secret_id}/access")
    def grants(self, secret_id: str, after: str = "") -> AccessGrants:
        """List who may have a shared secret."""
