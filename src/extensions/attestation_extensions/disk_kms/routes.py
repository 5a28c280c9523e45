"""What operators do: hold machines, release them, give them new keys, retire old ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from attestation.errors import MachineUnknown, RequestInvalid
from attestation.extension import Caller, Context, PendingApproval, Router, Tx, Voter
from attestation_extensions.disk_kms.tables import DiskKeys, Hold, Key, Waiting
from attestation_extensions.disk_kms.wire import (
    KMSHold,
    KMSHoldRequest,
    KMSHolds,
    KMSKey,
    KMSKeys,
    KMSReleaseRequest,
    KMSRewrapped,
    KMSWaiting,
)


class KMS(Protocol):
    """The extension, once it began."""

    context: Context
    settings: Any

    async def new_key(self, machine_id: str, at: datetime) -> Key:
        """Return a fresh key of a machine, which is not kept yet."""
        ...

    async def rewrap(self) -> tuple[int, int]:
        """Bring what lies under a previous KEK under the newest; return how many it was, and how many it could not."""
        ...


class Desk:
    """The handlers."""

    def __init__(self, extension: KMS) -> None:
        self._extension = extension

    async def holds(self) -> KMSHolds:
        """List what is held, and which machines wait for an operator."""
        return await self._extension.context.store.scan(_holds)

    async def hold(self, request: KMSHoldRequest, who: Caller) -> KMSHolds:
        """Hold a machine, or all machines of a cluster: no disk key without an operator's release."""
        context = self._extension.context
        at = context.clock.now()

        def work(tx: Tx) -> KMSHolds:
            if request.scope == "machine":
                tx.machines.require(request.subject)
            placed = Hold(scope=request.scope, subject=request.subject, placed_at=at, placed_by=who.cn)
            tx.of(DiskKeys).hold(placed)
            named = {"machine_id": request.subject} if request.scope == "machine" else {}
            tx.audit.append(who.event("kms_hold", detail=f"{request.scope} {request.subject}", **named), at)
            return _holds(tx)

        return await context.store.write(work)

    async def unhold(
        self, scope: Literal["machine", "cluster"], subject: str, who: Voter
    ) -> KMSHolds | PendingApproval:
        """End a hold.

        Several operators agree where the role of the machine asks for it; of a cluster, where any role does.
        """
        context = self._extension.context
        at = context.clock.now()

        def work(tx: Tx) -> KMSHolds | PendingApproval:
            machine_id = subject if scope == "machine" else None
            missing = who.agree(
                tx, "unhold", at, terms={"scope": scope, "subject": subject}, machine_id=machine_id
            )
            if missing is not None:
                return missing
            if tx.of(DiskKeys).unhold(scope, subject):
                tx.audit.append(
                    who.event("kms_unhold", detail=f"{scope} {subject}", machine_id=machine_id), at
                )
            return _holds(tx)

        return await context.store.write(work)

    async def release(
        self, machine_id: str, request: KMSReleaseRequest, who: Voter
    ) -> KMSWaiting | PendingApproval:
        """Let a machine that waits have its disk key once, or as often as is said, and soon.

        Everything else that is asked of it is asked of it still. Several operators agree where its role asks for it.
        """
        context = self._extension.context
        at = context.clock.now()
        until = at + timedelta(seconds=self._extension.settings.release_seconds)

        def work(tx: Tx) -> KMSWaiting | PendingApproval:
            keys = tx.of(DiskKeys)
            waiting = keys.waiting_of(machine_id)
            if waiting is None:
                raise MachineUnknown("no machine of this id waits for a disk key")
            missing = who.agree(
                tx,
                "release",
                at,
                # Who agrees has seen from where it asks.
                terms={"uses": request.uses, "source_ip": waiting.source_ip},
                machine_id=machine_id,
            )
            if missing is not None:
                return missing
            keys.release(machine_id, uses=request.uses, until=until, by=who.cn)
            seconds = self._extension.settings.release_seconds
            told = f"{request.uses} disk keys to {waiting.source_ip} within {seconds} s"
            tx.audit.append(who.event("kms_release", machine_id=machine_id, detail=told), at)
            found = keys.waiting_of(machine_id)
            assert found is not None
            return _waiting(found)

        return await context.store.write(work)

    async def keys(self, machine_id: str) -> KMSKeys:
        """List the keys of a machine, without what they are."""
        found = await self._extension.context.store.scan(lambda tx: tx.of(DiskKeys).of_machine(machine_id))
        return _keys(machine_id, found)

    async def rotate(self, machine_id: str, who: Caller) -> KMSKeys:
        """Let a new key seal what this machine has sealed from now on; what was sealed before still opens."""
        context = self._extension.context
        at = context.clock.now()
        made = await self._extension.new_key(machine_id, at)

        def work(tx: Tx) -> KMSKeys:
            tx.machines.require(machine_id)
            tx.of(DiskKeys).add(made)
            tx.audit.append(
                who.event("kms_rotate", machine_id=machine_id, detail=f"key {made.key_id.hex()}"), at
            )
            return _keys(machine_id, tx.of(DiskKeys).of_machine(machine_id))

        return await context.store.write(work)

    async def retire(self, machine_id: str, key_id: str, who: Caller) -> KMSKeys:
        """Let a key of a machine open nothing any more: disks that were sealed under it need another slot."""
        context = self._extension.context
        at = context.clock.now()
        try:
            named = bytes.fromhex(key_id)
        except ValueError:
            raise RequestInvalid("a key is named by 16 hexadecimal digits") from None

        def work(tx: Tx) -> KMSKeys:
            tx.machines.require(machine_id)
            if not tx.of(DiskKeys).retire(named, machine_id, at):
                raise RequestInvalid("this machine has no such key, or it is retired")
            tx.audit.append(who.event("kms_retire", machine_id=machine_id, detail=f"key {named.hex()}"), at)
            return _keys(machine_id, tx.of(DiskKeys).of_machine(machine_id))

        return await context.store.write(work)

    async def rewrap(self, who: Caller) -> KMSRewrapped:
        """Bring what lies under a previous key-encryption key under the newest, which each start does too."""
        context = self._extension.context
        done, unreachable = await self._extension.rewrap()
        told = f"{done} keys, {unreachable} not"
        await context.store.write(
            lambda tx: tx.audit.append(who.event("kms_rewrap", detail=told), context.clock.now())
        )
        return KMSRewrapped(rewrapped=done, unreachable=unreachable)


def router(extension: KMS) -> Router:
    """Return the routes."""
    desk, found = Desk(extension), Router()
    found.add("GET /holds", "read", desk.holds)
    found.add("POST /holds", "act", desk.hold, MachineUnknown)
    found.add("POST /holds/{scope}/{subject}/end", "act", desk.unhold, MachineUnknown)
    found.add("POST /machines/{machine_id}/release", "act", desk.release, MachineUnknown)
    found.add("POST /rewrap", "act", desk.rewrap)
    found.add("GET /machines/{machine_id}/keys", "read", desk.keys)
    found.add("POST /machines/{machine_id}/rotate", "act", desk.rotate, MachineUnknown)
    found.add(
        "POST /machines/{machine_id}/keys/{key_id}/retire", "act", desk.retire, MachineUnknown, RequestInvalid
    )
    return found


def _holds(tx: Tx) -> KMSHolds:
    keys = tx.of(DiskKeys)
    return KMSHolds(
        holds=[KMSHold.model_validate(each, from_attributes=True) for each in keys.holds()],
        waiting=[_waiting(each) for each in keys.waiting()],
    )


def _waiting(found: Waiting) -> KMSWaiting:
    return KMSWaiting.model_validate(found, from_attributes=True)


def _keys(machine_id: str, found: Sequence[Key]) -> KMSKeys:
    return KMSKeys(
        machine_id=machine_id,
        keys=[
            KMSKey(key_id=each.key_id.hex(), created_at=each.created_at, retired_at=each.retired_at)
            for each in found
        ],
    )
