"""How a machine gets a value: it proves itself in the request, is allowed it, and alone can open what it gets."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import NoReturn

from attestation.errors import KeyUnusable, NotAuthentic, Unavailable, UnwrapFailed
from attestation.extension import AttestedMachine, MachineRequest, Sealed, Tx
from attestation_extensions.secret_vault import sealing
from attestation_extensions.secret_vault.desk import SecretUnknown
from attestation_extensions.secret_vault.keys import Vault
from attestation_extensions.secret_vault.records import SHARED, Secret, Secrets, Version
from attestation_extensions.secret_vault.rules import refusal

ACCESSED = "secret.accessed"
REFUSED = "secret.refused"


class SecretForbidden(NotAuthentic):
    """This machine may not have this secret now. It learns no more; the audit log has the reason."""

    code = "secret-forbidden"


class Release:
    """The handlers of the vault's routes for machines."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def read(
        self,
        machine_id: str,
        name: str,
        request: MachineRequest,  # noqa: ARG002 -- the body of the route; the service has judged it before this runs
        machine: AttestedMachine,
    ) -> Sealed:
        """Give a machine a secret of its own, sealed to it, for a fresh quote."""
        return await self._own(machine_id, name, machine)

    async def fetch(self, machine_id: str, name: str, machine: AttestedMachine) -> Sealed:
        """Give a machine a secret of its own, sealed to it, for a certificate of a key that its TPM certified."""
        return await self._own(machine_id, name, machine)

    async def read_shared(
        self,
        name: str,
        request: MachineRequest,  # noqa: ARG002 -- the body of the route; the service has judged it before this runs
        machine: AttestedMachine,
    ) -> Sealed:
        """Give a machine a shared secret, sealed to it, for a fresh quote."""
        return await self._given(SHARED, name, machine)

    async def fetch_shared(self, name: str, machine: AttestedMachine) -> Sealed:
        """Give a machine a shared secret, sealed to it, for a certificate of a key that its TPM certified."""
        return await self._given(SHARED, name, machine)

    async def _own(self, machine_id: str, name: str, machine: AttestedMachine) -> Sealed:
        if machine_id != machine.machine_id:
            raise SecretForbidden("not a secret of this machine")
        return await self._given(machine_id, name, machine)

    async def _given(self, owner: str, name: str, machine: AttestedMachine) -> Sealed:
        context, keys = self._vault.context, self._vault.keys
        at = context.clock.now()

        def load(tx: Tx) -> tuple[Secret, Version | None, str | None]:
            secret = tx.of(Secrets).by_name(owner, name)
            if secret is None:
                raise SecretUnknown("no such secret")
            version = tx.of(Secrets).version(secret.secret_id, secret.newest)
            return secret, version, refusal(tx, keys, secret, machine, at)

        secret, version, why = await context.store.read(load)
        if why is not None or version is None:
            await self._refuse(secret, machine, at, why or "its value is not kept")
        try:
            kek = keys.of(version.kept.kek_id)
        except KeyUnusable as e:
            raise Unavailable(str(e)) from e
        # 1. Opened for this place alone: what was moved from another secret, machine or version opens nothing.
        try:
            value = await asyncio.to_thread(sealing.unseal, version.kept, secret.place(version.version), kek)
        except UnwrapFailed:
            await self._refuse(secret, machine, at, "what is kept was not sealed for this secret")
        # 2. Sealed to its TPM, signed for this request.
        kind = "shared" if owner == SHARED else "machine"
        sealed = await machine.seal(value, token_id=version.kept.key_id.hex(), what=f"{kind}/{name}")

        def work(tx: Tx) -> None:
            # 3. All of it still holds where it is written down that it went out, or it does not go out.
            machine.still(tx)
            secrets = tx.of(Secrets)
            now = secrets.by_id(secret.secret_id)
            if now is None or refusal(tx, keys, now, machine, at) is not None:
                raise SecretForbidden("this machine may not have this secret")
            if not secrets.accessed(secret, at):
                raise SecretForbidden("the value was exchanged at this moment: ask again")
            if owner == SHARED:
                secrets.grant_used(secret.secret_id, machine.machine_id, at)
            detail = f"{name} ({secret.secret_id}), version {version.version}"
            tx.audit.append(machine.event("secret_accessed", detail=detail), at)
            context.emit(
                tx,
                ACCESSED,
                at,
                machine_id=machine.machine_id,
                meta={"secret_id": secret.secret_id, "name": name, "version": version.version},
            )

        await context.store.write(work)
        return sealed

    async def _refuse(self, secret: Secret, machine: AttestedMachine, at: datetime, why: str) -> NoReturn:
        context = self._vault.context

        def work(tx: Tx) -> None:
            detail = f"{secret.name} ({secret.secret_id}): {why}"
            tx.audit.append(machine.event("secret_refused", detail=detail), at)
            context.emit(
                tx,
                REFUSED,
                at,
                machine_id=machine.machine_id,
                meta={"secret_id": secret.secret_id, "name": secret.name},
            )

        await context.store.write(work)
        raise SecretForbidden("this machine may not have this secret")
