"""What operators do with secrets."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from attestation.errors import AttestationError, Conflict, RequestInvalid, Unknown, UnwrapFailed
from attestation.extension import AuditEvent, Caller, Context, Status, Trust, Tx, rfc3339
from attestation_extensions.secret_vault import sealing, wire
from attestation_extensions.secret_vault.keys import Keys, Vault
from attestation_extensions.secret_vault.records import (
    MOST_LISTED,
    SHARED,
    Secret,
    Secrets,
    Version,
    terms_of_grant,
)
from attestation_extensions.secret_vault.rules import refusal, rule_of

CREATED = "secret.created"
ROTATED = "secret.rotated"
DELETED = "secret.deleted"
REWRAPPED_AT_ONCE = 50
CHANGED = "the secret was changed at this moment: look at it again"


class SecretUnknown(Unknown):
    """No such secret."""

    code = "secret-unknown"


class SecretExists(Conflict):
    """There is a secret of this name."""

    code = "secret-exists"


class Desk:
    """The handlers of the vault's routes for operators."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    @property
    def _context(self) -> Context:
        return self._vault.context

    @property
    def _keys(self) -> Keys:
        return self._vault.keys

    # Secrets of one machine

    async def create(self, machine_id: str, request: wire.CreateSecret, who: Caller) -> wire.SecretResponse:
        """Keep a secret of one machine: only that machine gets its value, when it proves itself."""
        made = await self._create(machine_id, request, who)
        return _response(made, self._keys.newest.key_id)

    async def of_machine(self, machine_id: str, after: str = "") -> wire.SecretList:
        """List the secrets of a machine, by name, without their values."""

        def work(tx: Tx) -> wire.SecretList:
            found = tx.of(Secrets).of_owner(machine_id, after)
            return wire.SecretList(
                secrets=[_response(each, _kek_of(tx, each)) for each in found],
                total=tx.of(Secrets).count(machine_id),
            )

        return await self._context.store.scan(work)

    async def show(self, secret_id: str) -> wire.SecretResponse:
        """Show a secret of a machine, without its value."""
        return await self._context.store.read(lambda tx: _shown(tx, secret_id))

    async def change(self, secret_id: str, request: wire.ChangeSecret, who: Caller) -> wire.SecretResponse:
        """Exchange the value of a secret, or change its description, rule or end."""
        await self._change(secret_id, request, who, shared=False)
        return await self.show(secret_id)

    async def delete(self, secret_id: str, who: Caller) -> None:
        """Delete a secret: its values are erased."""
        await self._delete(secret_id, who, shared=False)

    # Shared secrets

    async def create_shared(self, request: wire.CreateSharedSecret, who: Caller) -> wire.SharedSecretResponse:
        """Keep a secret that machines get whom it is granted to."""
        made = await self._create(SHARED, request, who)
        return _shared_response(made, self._keys.newest.key_id, 0)

    async def all_shared(self, after: str = "") -> wire.SharedSecretList:
        """List the shared secrets, by name, without their values."""

        def work(tx: Tx) -> wire.SharedSecretList:
            secrets = tx.of(Secrets)
            found = [
                _shared_response(each, _kek_of(tx, each), secrets.count_grants(each.secret_id))
                for each in secrets.of_owner(SHARED, after)
            ]
            return wire.SharedSecretList(secrets=found, total=secrets.count(SHARED))

        return await self._context.store.scan(work)

    async def show_shared(self, secret_id: str) -> wire.SharedSecretResponse:
        """Show a shared secret, without its value."""
        return await self._context.store.read(lambda tx: _shown_shared(tx, secret_id))

    async def change_shared(
        self, secret_id: str, request: wire.ChangeSecret, who: Caller
    ) -> wire.SharedSecretResponse:
        """Exchange the value of a shared secret, or change its description, rule or end."""
        await self._change(secret_id, request, who, shared=True)
        return await self.show_shared(secret_id)

    async def delete_shared(self, secret_id: str, who: Caller) -> None:
        """Delete a shared secret and its grants: its values are erased."""
        await self._delete(secret_id, who, shared=True)

    # Grants

    async def grant(self, secret_id: str, request: wire.Machines, who: Caller) -> wire.Granted:
        """Let machines have a shared secret; who may have it already is left out."""
        at = self._context.clock.now()

        def work(tx: Tx) -> wire.Granted:
            secret, secrets = _of(tx, secret_id, shared=True), tx.of(Secrets)
            granted = []
            for machine_id in dict.fromkeys(request.machine_ids):
                tx.machines.require(machine_id)
                mark = self._keys.mark(terms_of_grant(secret_id, machine_id))
                if secrets.grant(secret_id, machine_id, at, who.cn, mark):
                    granted.append(machine_id)
                    detail = f"{secret.name} ({secret_id})"
                    tx.audit.append(who.event("secret_granted", machine_id=machine_id, detail=detail), at)
            return wire.Granted(granted=len(granted), machine_ids=granted)

        return await self._context.store.write(work)

    async def revoke(self, secret_id: str, request: wire.Machines, who: Caller) -> wire.Revoked:
        """Let machines have a shared secret no more. What they got they may have kept: exchange the value."""
        at = self._context.clock.now()

        def work(tx: Tx) -> wire.Revoked:
            secret, secrets = _of(tx, secret_id, shared=True), tx.of(Secrets)
            revoked = []
            for machine_id in dict.fromkeys(request.machine_ids):
                if secrets.revoke(secret_id, machine_id):
                    revoked.append(machine_id)
                    detail = f"{secret.name} ({secret_id})"
                    tx.audit.append(who.event("secret_revoked", machine_id=machine_id, detail=detail), at)
            return wire.Revoked(revoked=len(revoked), machine_ids=revoked)

        return await self._context.store.write(work)

    async def grants(self, secret_id: str, after: str = "") -> wire.AccessGrants:
        """List who may have a shared secret, by id."""

        def work(tx: Tx) -> wire.AccessGrants:
            _of(tx, secret_id, shared=True)
            found = tx.of(Secrets).grants(secret_id, after)
            listed = [
                wire.AccessGrant(
                    shared_secret_id=secret_id,
                    machine_id=each.machine_id,
                    granted_at=each.granted_at,
                    granted_by=each.granted_by,
                    last_accessed_at=each.accessed_at,
                    access_count=each.access_count,
                )
                for each in found
            ]
            return wire.AccessGrants(access_grants=listed, total=tx.of(Secrets).count_grants(secret_id))

        return await self._context.store.scan(work)

    # Both

    async def versions(self, secret_id: str) -> wire.SecretVersions:
        """List the values of a secret that are kept, without what they are."""

        def work(tx: Tx) -> list[Version]:
            _of(tx, secret_id)
            return tx.of(Secrets).versions(secret_id)

        found = await self._context.store.read(work)
        return wire.SecretVersions(
            secret_id=secret_id,
            versions=[
                wire.SecretVersion(
                    version=each.version,
                    token_id=each.kept.key_id.hex(),
                    encryption_key_id=each.kept.kek_id,
                    created_at=each.created_at,
                    created_by=each.created_by,
                )
                for each in found
            ],
        )

    async def restore(self, secret_id: str, request: wire.RestoreSecret, who: Caller) -> wire.SecretVersions:
        """Make a value that is kept the newest again, as a new version."""

        def work(tx: Tx) -> tuple[Secret, Version | None]:
            return _of(tx, secret_id), tx.of(Secrets).version(secret_id, request.version)

        secret, found = await self._context.store.read(work)
        if found is None:
            raise RequestInvalid(f"version {request.version} is not kept")
        self._demand_ours(secret)
        kek = self._keys.of(found.kept.kek_id)
        try:
            value = await asyncio.to_thread(sealing.unseal, found.kept, secret.place(found.version), kek)
        except UnwrapFailed:
            raise Conflict(f"version {request.version} was not sealed for this secret") from None
        await self._exchange(secret, secret, value, who, f"set back to version {request.version}")
        return await self.versions(secret_id)

    async def preview(self, secret_id: str, rule: str | None = None) -> wire.Preview:
        """Try a release rule, or that of the secret, on the fleet: who would get the value with its last evidence."""
        at = self._context.clock.now()
        tried = None if rule is None else rule_of(rule)

        def work(tx: Tx) -> wire.Preview:
            secret = _of(tx, secret_id)
            shown: list[wire.Reached] = []
            released = total = 0
            only = None if secret.owner == SHARED else secret.owner
            for machine in self._context.fleet(tx, only):
                why = refusal(tx, self._keys, secret, machine, at, tried=tried)
                if machine.status is not Status.ATTESTED or machine.trust is not Trust.VERIFIED:
                    why = f"{machine.status.value}, {machine.trust.value}"
                released, total = released + (why is None), total + 1
                if total <= MOST_LISTED:
                    named = {"machine_id": machine.machine_id, "hostname": machine.hostname}
                    shown.append(wire.Reached.model_validate({**named, "released": why is None, "why": why}))
            return wire.Preview(machines=shown, released=released, refused=total - released)

        return await self._context.store.scan(work)

    async def rewrap(self, who: Caller) -> wire.Rewrapped:
        """Bring the data keys of all values under the newest key-encryption key; no value is opened for it."""
        newest, at, store = self._keys.newest, self._context.clock.now(), self._context.store
        done = unreachable = 0
        after = ("", 0)
        while found := await store.scan(partial(_under_others, kek_id=newest.key_id, after=after)):
            after = (found[-1][1].secret_id, found[-1][1].version)
            for secret, each in found:
                place = secret.place(each.version)
                try:
                    old = self._keys.of(each.kept.kek_id)
                    wrapped = await asyncio.to_thread(sealing.rewrapped, each.kept, place, old, newest)
                except AttestationError:  # not set, away, or the row was changed: it keeps no other back
                    unreachable += 1
                    continue
                done += await store.write(partial(_rewrap, found=each, kek_id=newest.key_id, wrapped=wrapped))
        detail = f"{done} data keys under {newest.key_id}, {unreachable} out of reach"
        await store.write(lambda tx: tx.audit.append(who.event("secrets_rewrapped", detail=detail), at))
        return wire.Rewrapped(rewrapped=done, unreachable=unreachable)

    async def _create(
        self, owner: str, request: wire.CreateSecret | wire.CreateSharedSecret, who: Caller
    ) -> Secret:
        at = self._context.clock.now()
        _demand_rule(request.rule)
        _demand_end(request.expires_at, at)
        secret = Secret(
            secret_id=str(uuid.uuid4()),
            owner=owner,
            name=request.name,
            description=request.description,
            rule=request.rule,
            newest=1,
            created_at=at,
            created_by=who.cn,
            rotated_at=None,
            expires_at=request.expires_at,
            accessed_at=None,
            access_count=0,
        )
        secret = replace(secret, mark=self._keys.mark(secret.terms))
        value = request.content()
        assert value is not None
        version = await self._sealed(secret, value, who, at)

        def work(tx: Tx) -> None:
            # It would never be erased: the event of the revocation, which erases, comes once.
            if owner != SHARED and tx.machines.require(owner).status is Status.REVOKED:
                raise Conflict("the machine is revoked")
            secrets = tx.of(Secrets)
            if not secrets.add(secret):
                raise SecretExists(f"there is a secret {secret.name}")
            secrets.add_version(version)
            self._note(tx, secret, "secret_created", CREATED, who, at)

        await self._context.store.write(work)
        return secret

    async def _sealed(self, secret: Secret, value: bytes, who: Caller, at: datetime) -> Version:
        kept = await asyncio.to_thread(sealing.seal, value, secret.place(secret.newest), self._keys.newest)
        return Version(
            secret_id=secret.secret_id, version=secret.newest, kept=kept, created_at=at, created_by=who.cn
        )

    async def _change(self, secret_id: str, request: wire.ChangeSecret, who: Caller, *, shared: bool) -> None:
        at = self._context.clock.now()
        given = request.model_fields_set & {"description", "rule", "expires_at"}
        _demand_rule(request.rule)
        if "expires_at" in given:
            _demand_end(request.expires_at, at)
        secret = await self._context.store.read(lambda tx: _of(tx, secret_id, shared=shared))
        changed = replace(secret, **{name: getattr(request, name) for name in given})
        told = ", ".join(sorted(given))
        await self._exchange(secret, changed, request.content(), who, told)

    async def _exchange(
        self, before: Secret, after: Secret, value: bytes | None, who: Caller, told: str
    ) -> None:
        at = self._context.clock.now()
        version: Version | None = None
        if value is not None:
            after = replace(after, newest=before.newest + 1, rotated_at=at)
            version = await self._sealed(after, value, who, at)
        after = replace(after, mark=self._keys.mark(after.terms))

        def work(tx: Tx) -> None:
            secrets = tx.of(Secrets)
            now = secrets.by_id(before.secret_id)
            # That a machine read it meanwhile changes nothing of what the operator saw.
            if now is None or now.said != before.said:
                raise Conflict(CHANGED)
            self._demand_ours(now)
            if not secrets.change(before, after):
                raise Conflict(CHANGED)
            if version is not None:
                secrets.add_version(version)
                self._note(tx, after, "secret_rotated", ROTATED, who, at, told)
            else:
                tx.audit.append(_event(after, "secret_changed", who, told), at)

        await self._context.store.write(work)

    def _demand_ours(self, secret: Secret) -> None:
        """Refuse to change what the vault did not write: the new mark would vouch for all of it."""
        if not self._keys.vouches(secret.mark, secret.terms):
            raise Conflict("its terms were not written by the vault: delete the secret, and make it anew")

    async def _delete(self, secret_id: str, who: Caller, *, shared: bool) -> None:
        at = self._context.clock.now()

        def work(tx: Tx) -> None:
            secret = _of(tx, secret_id, shared=shared)
            tx.of(Secrets).delete(secret, at)
            self._note(tx, secret, "secret_deleted", DELETED, who, at)

        await self._context.store.write(work)

    def _note(
        self, tx: Tx, secret: Secret, action: str, event: str, who: Caller, at: datetime, told: str = ""
    ) -> None:
        tx.audit.append(_event(secret, action, who, told), at)
        self._context.emit(
            tx,
            event,
            at,
            machine_id=secret.owner or None,
            meta={"secret_id": secret.secret_id, "name": secret.name, "version": secret.newest},
        )


def _under_others(tx: Tx, *, kek_id: str, after: tuple[str, int]) -> list[tuple[Secret, Version]]:
    secrets = tx.of(Secrets)
    found = secrets.under_others(kek_id, after, REWRAPPED_AT_ONCE)
    return [(secret, each) for each in found if (secret := secrets.by_id(each.secret_id)) is not None]


def _rewrap(tx: Tx, *, found: Version, kek_id: str, wrapped: bytes) -> bool:
    return tx.of(Secrets).rewrap(found, kek_id=kek_id, wrapped=wrapped)


def _event(secret: Secret, action: str, who: Caller, told: str) -> AuditEvent:
    detail = f"{secret.name} ({secret.secret_id}), version {secret.newest}" + (f": {told}" if told else "")
    return who.event(action, machine_id=secret.owner or None, detail=detail)


def _demand_rule(rule: str | None) -> None:
    if rule is not None:
        rule_of(rule)


def _demand_end(expires_at: datetime | None, at: datetime) -> None:
    if expires_at is None:
        return
    if expires_at.tzinfo is None:
        raise RequestInvalid("expires_at names no time zone")
    try:
        expires_at.astimezone(UTC)
    except OverflowError:  # kept, it could not be read: neither by who lists secrets nor by what erases them
        raise RequestInvalid("expires_at is before the year 1 or after the year 9999 in UTC") from None
    if expires_at <= at:
        raise RequestInvalid(f"expires_at is {rfc3339(expires_at)}, and it is {rfc3339(at)} now")


def _of(tx: Tx, secret_id: str, *, shared: bool | None = None) -> Secret:
    found = tx.of(Secrets).by_id(secret_id)
    if found is None or (shared is not None and (found.owner == SHARED) != shared):
        raise SecretUnknown("no such secret")
    return found


def _kek_of(tx: Tx, secret: Secret) -> str | None:
    version = tx.of(Secrets).version(secret.secret_id, secret.newest)
    return None if version is None else version.kept.kek_id


def _shown(tx: Tx, secret_id: str) -> wire.SecretResponse:
    secret = _of(tx, secret_id, shared=False)
    return _response(secret, _kek_of(tx, secret))


def _shown_shared(tx: Tx, secret_id: str) -> wire.SharedSecretResponse:
    secret = _of(tx, secret_id, shared=True)
    return _shared_response(secret, _kek_of(tx, secret), tx.of(Secrets).count_grants(secret_id))


def _members(secret: Secret, kek_id: str | None) -> dict[str, object]:
    return {
        "name": secret.name,
        "version": secret.newest,
        "description": secret.description,
        "rule": secret.rule,
        "encryption_key_id": kek_id,
        "created_at": secret.created_at,
        "created_by": secret.created_by,
        "last_rotated_at": secret.rotated_at,
        "expires_at": secret.expires_at,
        "last_accessed_at": secret.accessed_at,
        "access_count": secret.access_count,
    }


def _response(secret: Secret, kek_id: str | None) -> wire.SecretResponse:
    return wire.SecretResponse.model_validate(
        {"secret_id": secret.secret_id, "machine_id": secret.owner, **_members(secret, kek_id)}
    )


def _shared_response(secret: Secret, kek_id: str | None, machines: int) -> wire.SharedSecretResponse:
    named = {"shared_secret_id": secret.secret_id, "authorized_machine_count": machines}
    return wire.SharedSecretResponse.model_validate({**named, **_members(secret, kek_id)})
