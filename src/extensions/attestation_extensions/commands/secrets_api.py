"""The vault's routes as the command line asks for them (`attestation_cli.plugin`).

What changes is a mapping: a client leaves out of a model what is null, and here that means to take something away.
"""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Mapping

from attestation_cli.plugin import operation
from attestation_extensions.secret_vault import wire

_OWN = "/secrets"
_SHARED = "/shared-secrets"


class Vault:
    """What an operator asks of the vault."""

    @operation("secret_vault_create", f"POST {_OWN}/machines/{{machine_id}}/secrets")
    def create(self, machine_id: str, request: wire.CreateSecret) -> wire.SecretResponse:
        """Keep a secret of one machine."""

    @operation("secret_vault_of_machine", f"GET {_OWN}/machines/{{machine_id}}/secrets")
    def of_machine(self, machine_id: str, after: str = "") -> wire.SecretList:
        """List the secrets of a machine."""

    @operation("secret_vault_show", f"GET {_OWN}/{{secret_id}}")
    def show(self, secret_id: str) -> wire.SecretResponse:
        """Show a secret of a machine."""

    @operation("secret_vault_change", f"PUT {_OWN}/{{secret_id}}")
    def change(self, secret_id: str, request: Mapping[str, str | None]) -> wire.SecretResponse:
        """Change a secret of a machine."""

    @operation("secret_vault_delete", f"DELETE {_OWN}/{{secret_id}}")
    def delete(self, secret_id: str) -> None:
        """Delete a secret of a machine."""

    @operation("secret_vault_create_shared", f"POST {_SHARED}/")
    def create_shared(self, request: wire.CreateSharedSecret) -> wire.SharedSecretResponse:
        """Keep a shared secret."""

    @operation("secret_vault_all_shared", f"GET {_SHARED}/")
    def all_shared(self, after: str = "") -> wire.SharedSecretList:
        """List the shared secrets."""

    @operation("secret_vault_show_shared", f"GET {_SHARED}/{{secret_id}}")
    def show_shared(self, secret_id: str) -> wire.SharedSecretResponse:
        """Show a shared secret."""

    @operation("secret_vault_change_shared", f"PUT {_SHARED}/{{secret_id}}")
    def change_shared(self, secret_id: str, request: Mapping[str, str | None]) -> wire.SharedSecretResponse:
        """Change a shared secret."""

    @operation("secret_vault_delete_shared", f"DELETE {_SHARED}/{{secret_id}}")
    def delete_shared(self, secret_id: str) -> None:
        """Delete a shared secret."""

    @operation("secret_vault_grant", f"POST {_SHARED}/{{secret_id}}/access")
    def grant(self, secret_id: str, request: wire.Machines) -> wire.Granted:
        """Let machines have a shared secret."""

    @operation("secret_vault_revoke", f"DELETE {_SHARED}/{{secret_id}}/access")
    def revoke(self, secret_id: str, request: wire.Machines) -> wire.Revoked:
        """Let machines have a shared secret no more."""

    @operation("secret_vault_grants", f"GET {_SHARED}/{{secret_id}}/access")
    def grants(self, secret_id: str, after: str = "") -> wire.AccessGrants:
        """List who may have a shared secret."""

    @operation("secret_vault_versions", f"GET {_OWN}/{{secret_id}}/versions")
    def versions(self, secret_id: str) -> wire.SecretVersions:
        """List the values that are kept."""

    @operation("secret_vault_restore", f"POST {_OWN}/{{secret_id}}/restore")
    def restore(self, secret_id: str, request: wire.RestoreSecret) -> wire.SecretVersions:
        """Make a value that is kept the newest again."""

    @operation("secret_vault_preview", f"GET {_OWN}/{{secret_id}}/preview")
    def preview(self, secret_id: str, rule: str | None = None) -> wire.Preview:
        """Try a release rule on the fleet."""

    @operation("secret_vault_rewrap", f"POST {_OWN}/rewrap")
    def rewrap(self) -> wire.Rewrapped:
        """Bring the data keys under the newest key-encryption key."""
