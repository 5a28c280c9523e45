"""Secrets for machines: kept under a key-encryption key, released for a fresh quote, sealed to the TPM that made it.

A secret belongs to one machine, or is shared and granted to several. Operators write values and never read them; a
machine reads by proving itself in the request. See docs/operate/secrets.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from pydantic import Field, SecretStr, field_validator
from sqlalchemy.orm import DeclarativeBase

from attestation.errors import Conflict, MachineUnknown, PolicyInvalid, RequestInvalid
from attestation.extension import (
    AttestationExtension,
    Confirm,
    Context,
    Event,
    Handler,
    KeyURI,
    KeyURIs,
    Migrations,
    NodeEvent,
    NoSettings,
    OutboxEvent,
    QueryTable,
    Router,
    Tx,
)
from attestation_extensions.secret_vault import desk, release
from attestation_extensions.secret_vault.desk import Desk, SecretExists, SecretUnknown
from attestation_extensions.secret_vault.keys import Keys, open_keys
from attestation_extensions.secret_vault.records import (
    SECRETS,
    GrantRow,
    KeyRow,
    SecretRow,
    Secrets,
    VersionRow,
)
from attestation_extensions.secret_vault.release import Release, SecretForbidden

OWN: Final = "/api/v1/secrets"
SHARED: Final = "/api/v1/shared-secrets"
SHORTEST_PASSPHRASE: Final = 20


class VaultSettings(NoSettings):
    """`ITL_EXT_SECRET_VAULT_…`, and `ITL_SHARED_SECRET_MASTER_KEY`."""

    kek: KeyURI | None = None
    """URI of the key-encryption key: `file:`, `pkcs11:` or `tpm2:`."""
    previous_keks: KeyURIs = ()
    """URIs of those before it, separated by blanks: what lies under them still opens."""
    master_key: SecretStr | None = Field(default=None)
    """64 hexadecimal digits, or a passphrase; beside `kek` it opens what is there, and nothing new lies under it."""

    @field_validator("master_key")
    @classmethod
    def _long_enough(cls, given: SecretStr) -> SecretStr:
        if len(given.get_secret_value()) < SHORTEST_PASSPHRASE:
            raise ValueError(
                f"64 hexadecimal digits, or a passphrase of {SHORTEST_PASSPHRASE} characters or more"
            )
        return given


class SecretVault(AttestationExtension):
    """The extension."""

    contract = 1
    name = "secret_vault"
    version = "2.0.0"
    description = "Secrets for machines, released for a fresh quote and sealed to the TPM that made it."
    migrations = Migrations(scripts="attestation_extensions.secret_vault:revisions", head="0001")
    prefixes = (OWN, SHARED)
    tables = (
        "extension_secrets",
        "extension_secret_versions",
        "extension_shared_secret_access",
        "extension_secret_keys",
    )
    variables: ClassVar[Mapping[str, str]] = {"ITL_SHARED_SECRET_MASTER_KEY": "master_key"}
    cli_groups = ("secret", "shared-secret")
    events = (desk.CREATED, desk.ROTATED, desk.DELETED, release.ACCESSED, release.REFUSED)
    Settings = VaultSettings

    settings: VaultSettings
    keys: Keys

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the tables."""
        return (SecretRow, VersionRow, GrantRow, KeyRow)

    def get_query_tables(self) -> Sequence[QueryTable]:
        """Let operators look up which secrets there are."""
        about = {
            "secret_id": "Its id",
            "machine_id": "Whose it is; empty for a shared one",
            "name": "How it is asked for",
            "version": "The newest",
            "created_at": "When it was made",
            "created_by": "Who made it",
            "rotated_at": "When it got its newest value",
            "expires_at": "From when on it is not released",
            "deleted_at": "When it was deleted",
            "accessed_at": "When it was released last",
            "access_count": "How often it was released",
        }
        what = "Which secrets there are; never their values"
        return (QueryTable(name="Secrets", statement=SECRETS, description=what, columns=about),)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Forget the secrets of a machine that is no more."""
        return {NodeEvent.DECOMMISSIONED: self.forget}

    async def on_startup(self, context: Context) -> None:
        """Open the keys; without one, the service does not start."""
        await super().on_startup(context)
        settings = self.settings
        self.keys = await open_keys(
            context.store,
            context.key_options,
            uris=[*([settings.kek] if settings.kek else ()), *settings.previous_keks],
            master_key=settings.master_key.get_secret_value() if settings.master_key else None,
        )

    async def on_shutdown(self) -> None:
        """Let go of the keys."""
        if hasattr(self, "keys"):
            await asyncio.to_thread(self.keys.close)

    async def forget(self, event: OutboxEvent) -> Confirm | None:
        """Erase the values of a machine that was decommissioned, and take back what it was granted."""
        machine_id = event.machine_id
        if machine_id is None:
            return None

        def confirm(tx: Tx) -> None:
            secrets = tx.of(Secrets)
            while found := secrets.of_owner(machine_id):
                for secret in found:
                    secrets.delete(secret, event.created_at)
            secrets.revoke_of(machine_id)

        return confirm

    def get_router(self) -> Router:
        """Return the routes."""
        ops, out, router = Desk(self), Release(self), Router()
        of_machine = f"{OWN}/machines/{{machine_id}}/secrets"
        add = router.add
        given = (SecretExists, PolicyInvalid, RequestInvalid)
        add(f"POST {of_machine}", "act", ops.create, MachineUnknown, Conflict, *given, done=201)
        add(f"GET {of_machine}", "read", ops.of_machine)
        add(f"POST {of_machine}/{{name}}/read", "machine", out.read, SecretUnknown, SecretForbidden)
        add(f"GET {of_machine}/{{name}}", "machine", out.fetch, SecretUnknown, SecretForbidden)
        add(f"POST {OWN}/rewrap", "act", ops.rewrap)
        for path, show, change, delete in (
            (OWN, ops.show, ops.change, ops.delete),
            (SHARED, ops.show_shared, ops.change_shared, ops.delete_shared),
        ):
            one = f"{path}/{{secret_id}}"
            add(f"GET {one}", "read", show, SecretUnknown)
            add(f"PUT {one}", "act", change, SecretUnknown, Conflict, PolicyInvalid, RequestInvalid)
            add(f"DELETE {one}", "act", delete, SecretUnknown)
        one = f"{OWN}/{{secret_id}}"
        add(f"GET {one}/versions", "read", ops.versions, SecretUnknown)
        add(f"POST {one}/restore", "act", ops.restore, SecretUnknown, Conflict, RequestInvalid)
        add(f"GET {one}/preview", "read", ops.preview, SecretUnknown, PolicyInvalid)
        add(f"POST {SHARED}/", "act", ops.create_shared, *given, done=201)
        add(f"GET {SHARED}/", "read", ops.all_shared)
        one = f"{SHARED}/{{secret_id}}/access"
        add(f"POST {one}", "act", ops.grant, SecretUnknown, MachineUnknown, done=201)
        add(f"DELETE {one}", "act", ops.revoke, SecretUnknown)
        add(f"GET {one}", "read", ops.grants, SecretUnknown)
        named = f"{SHARED}/by-name/{{name}}"
        add(f"POST {named}/read", "machine", out.read_shared, SecretUnknown, SecretForbidden)
        add(f"GET {named}/value", "machine", out.fetch_shared, SecretUnknown, SecretForbidden)
        return router
