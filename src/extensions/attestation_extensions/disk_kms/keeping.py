"""Seal and Unseal: who asks is judged, what is decided is written, in one unit with what it rests on.

A stranger must not learn from an answer, nor from how long it takes, whether a UUID belongs to a machine, nor how that
one stands. So every request that is well-formed does the same: the same statements, one key unwrapped, one cipher run,
one unit written, whatever is decided. Where there is no machine, or it is refused before, a decoy takes the place
of its key (docs/adr/0157).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from attestation.errors import AttestationError, RateLimited, UnwrapFailed
from attestation.extension import AuditEvent, Clock, Emit, RateLimit, Store, Tx
from attestation.keys import KEK
from attestation_extensions.disk_kms import sealing
from attestation_extensions.disk_kms.judging import (
    NOBODY,
    OF_ANYBODY,
    Asked,
    Case,
    Refusal,
    judge,
    network_of,
)
from attestation_extensions.disk_kms.messages import Request
from attestation_extensions.disk_kms.tables import DiskKeys, Key

RELEASED: Final = "kms.released"
REFUSED: Final = "kms.refused"
HELD: Final = "kms.held"

OF_ADDRESS: Final = RateLimit(requests=60, per_seconds=60)
OF_UUID: Final = RateLimit(requests=20, per_seconds=60)
"""Of one UUID from one network: a node with two volumes asks twice at each boot, and again while it waits."""
TOLD: Final = RateLimit(requests=1, per_seconds=60)
"""Refusals of one UUID from one network that are written down and told."""
TOLD_OF_ALL: Final = RateLimit(requests=100, per_seconds=600)
"""The same of all UUIDs, where nothing shows who asks."""
_AS_NOBODY: Final = "00000000-0000-0000-0000-000000000000"


class Refused(AttestationError):
    """Nothing is given; the audit log has the reason, and the caller is not told it."""

    code = "disk-key-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What answers requests, in one worker.

    Args:
        store: The database.
        clock: Whose time counts.
        keks: Those that keys may lie under, by name; `newest` wraps new ones.
        newest: Name of one of them.
        decoy: A key of no machine, used where there is none.
        fresh: How old a machine's quote may be.
        emit: Writes an event, in a unit.
    """

    store: Store
    clock: Clock
    keks: Mapping[str, KEK]
    newest: str
    decoy: Key
    fresh: timedelta
    emit: Emit

    async def seal(self, request: Request, address: str) -> bytes:
        """Return the blob of a disk key.

        Raises:
            Refused: The caller gets nothing.
            RateLimited: The address, or the UUID, asks too often.
            ValueError: The UUID is none.
        """
        asked = Asked(
            operation="seal",
            readings=sealing.readings_of(request.node_uuid),
            address=address,
            key_id=None,
        )
        return await self._decide(asked, request.data)

    async def unseal(self, request: Request, address: str) -> bytes:
        """Return the disk key of a blob.

        Raises:
            Refused, RateLimited, ValueError: As `seal`.
        """
        asked = Asked(
            operation="unseal",
            readings=sealing.readings_of(request.node_uuid),
            address=address,
            key_id=sealing.key_id_of(request.data),
        )
        return await self._decide(asked, request.data)

    async def _decide(self, asked: Asked, data: bytes) -> bytes:
        at = self.clock.now()
        case = await self.store.read(lambda tx: self._load(tx, asked, at))
        refusal = judge(asked, case, at, fresh=self.fresh)
        made: Key | None = None
        if refusal is None and case.key is None and case.machine is not None:
            made = await asyncio.to_thread(new_key, self.keks[self.newest], case.machine.machine_id, at)
            case = replace(case, key=made)
        # Who is refused by now gets the decoy's work: else the key of a machine whose KEK is away would tell of it.
        worked = case if refusal is None else replace(case, key=None)
        answer, failed = await asyncio.to_thread(self._work, asked, worked, data)
        refusal = refusal or failed

        def conclude(tx: Tx) -> Refusal | None:
            # Once more, in the unit that writes: what was changed meanwhile counts, and of two racers for one release
            # one is refused.
            now = self._load(tx, asked, at)
            for key, limit in _limits(asked):
                tx.rate_limits.take(key, at, limit)
            if made is not None and now.key is None:
                tx.of(DiskKeys).add(made)
            elif made is not None or (case.key is not None and now.key != case.key):
                return (
                    Refusal.NOT_ITS_KEY
                )  # another worker made one, or it was retired or wrapped anew: asked again
            found = refusal or judge(asked, now, at, fresh=self.fresh)
            if found is None and asked.operation == "unseal" and now.machine is not None:
                machine_id = now.machine.machine_id
                if now.held and not tx.of(DiskKeys).use(machine_id, at):
                    found = Refusal.HELD
                elif now.waiting is not None:
                    tx.of(DiskKeys).stop_waiting(machine_id, held=now.held)
            self._tell(tx, asked, now, found, at)
            return found

        if await self.store.write(conclude) is not None or answer is None:
            raise Refused("no disk key is given")
        return answer

    def _load(self, tx: Tx, asked: Asked, at: datetime) -> Case:
        """Look up what is known of *asked*; the same statements whether it is anybody's or not."""
        for key, limit in _limits(asked):
            seconds = tx.rate_limits.check(key, at, limit)
            if seconds is not None:
                raise RateLimited("too many requests for disk keys", retry_after_seconds=seconds)
        machines = tx.chip_marks.admitted_with_uuid(*asked.readings)
        machine = machines[0] if len(machines) == 1 else None
        machine_id = machine.machine_id if machine else NOBODY
        keys = tx.of(DiskKeys)
        return Case(
            machines=machines,
            key=keys.newest(machine_id)
            if asked.operation == "seal"
            else keys.key(asked.key_id or b"", machine_id),
            held=keys.is_held(machine_id, machine.cluster_id if machine else NOBODY),
            waiting=keys.waiting_of(machine_id),
        )

    def _work(self, asked: Asked, case: Case, data: bytes) -> tuple[bytes | None, Refusal | None]:
        """Unwrap a key and use it, the decoy where there is none; never on the event loop: a device may be asked."""
        wrapped, unusable = case.key or self.decoy, None
        if wrapped.kek_id not in self.keks:
            wrapped, unusable = self.decoy, Refusal.KEK_MISSING
        try:
            key = self.keks[wrapped.kek_id].unwrap(wrapped.wrapped, _wrapping(wrapped))
        except UnwrapFailed:
            return None, Refusal.ROW_CHANGED
        machine_id = case.machine.machine_id if case.machine else _AS_NOBODY
        bound_to = sealing.additional_data(machine_id, asked.readings[0])
        if asked.operation == "seal":
            if len(data) != sealing.KEY_BYTES:
                return None, Refusal.NOT_A_DISK_KEY
            return sealing.seal(data, key=key, key_id=wrapped.key_id, bound_to=bound_to), unusable
        try:
            return sealing.unseal(data, key=key, bound_to=bound_to), unusable
        except sealing.BlobRejected:
            return None, unusable or Refusal.NOT_ITS_KEY

    def _tell(self, tx: Tx, asked: Asked, case: Case, refusal: Refusal | None, at: datetime) -> None:
        """Write the audit entry and the event; of refusals, which anybody can cause, one a minute for each UUID."""
        machine_id = case.machine.machine_id if case.machine else None
        if refusal is Refusal.HELD and machine_id is not None:
            tx.of(DiskKeys).wait(machine_id, asked.address, at)
        if refusal is not None:
            window = (
                (f"kms:told:{asked.readings[0]}:{network_of(asked.address)}", TOLD),
                # What only a machine's own address can cause is told however many strangers ask meanwhile.
                *((("kms:told", TOLD_OF_ALL),) if refusal in OF_ANYBODY else ()),
            )
            if any(tx.rate_limits.check(key, at, limit) is not None for key, limit in window):
                return
            for key, limit in window:
                tx.rate_limits.take(key, at, limit)
        detail = {"operation": asked.operation, "node_uuid": asked.readings[0], "source_ip": asked.address}
        if refusal is not None:
            detail["reason"] = refusal.value
        tx.audit.append(
            AuditEvent(
                operator_cn="machine" if refusal is None else "unknown",
                action=f"kms_{asked.operation}" if refusal is None else "kms_refused",
                machine_id=machine_id,
                detail=", ".join(f"{name} {value}" for name, value in detail.items() if name != "source_ip"),
                source_ip=asked.address,
            ),
            at,
        )
        if refusal is None or refusal is Refusal.HELD:
            if refusal is not None or asked.operation == "unseal":
                self.emit(tx, HELD if refusal else RELEASED, at, machine_id=machine_id, meta=detail)
            return
        # Named, but not looked up: that would be one statement more than the UUID of no machine costs.
        self.emit(tx, REFUSED, at, meta=detail | ({"machine_id": machine_id} if machine_id else {}))


def new_key(kek: KEK, machine_id: str, at: datetime) -> Key:
    """Return a fresh key of a machine; blocks."""
    key = Key(
        key_id=sealing.new_key_id(), machine_id=machine_id, kek_id=kek.key_id, wrapped=b"", created_at=at
    )
    return replace(key, wrapped=kek.wrap(sealing.new_key(), _wrapping(key)))


def decoy(kek: KEK, at: datetime) -> Key:
    """Return a key of no machine; blocks."""
    return new_key(kek, _AS_NOBODY, at)


def rewrapped(key: Key, old: KEK, new: KEK) -> bytes:
    """Return *key* wrapped under another KEK; blocks."""
    return new.wrap(old.unwrap(key.wrapped, _wrapping(key)), _wrapping(key))


def _wrapping(key: Key) -> bytes:
    """Return what a wrapped key is bound to: its row, so that it opens nothing in the row of another machine."""
    return b"\0".join((b"itl-disk-kms-key/1", key.key_id, key.machine_id.encode("ascii")))


def _limits(asked: Asked) -> tuple[tuple[str, RateLimit], ...]:
    network = network_of(asked.address)
    return (f"kms:address:{network}", OF_ADDRESS), (f"kms:uuid:{asked.readings[0]}:{network}", OF_UUID)
