"""Codes that a machine shows on its console, and what an operator who stands there said of them (RFC 8628).

Nothing is released on a row: it says that somebody was at a console which showed this code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, bindparam, delete, func, or_, select, update

from attestation.clock import to_micros
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ConsoleCodeRow, MachineRow, table_of

_T = table_of(ConsoleCodeRow)
_C = _T.c
_M = table_of(MachineRow).c


ConsoleState = Literal["pending", "approved", "denied"]
"""What was said of a code. Whether it has expired, its end says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleCode:
    """A code on a console. What it is about never changes; what was said of it changes once.

    Args:
        user_code: The code, eight letters with a hyphen.
        device_sha256: SHA-256 of the secret that the machine polls with, 32 bytes.
        client_id: What it calls itself.
        hw_uuid: What it says of its hardware, or None where it says nothing; proves nothing.
        hw_mac: Likewise.
        hw_serial: Likewise.
        hostname: Likewise.
        source: Address that asked.
        asked_at: When.
        expires_at: From this instant on nothing can be said of it, and no token is given for it.
        state: What was said.
        decided_at: When, or None.
        decided_by: By whom, or None.
        token_sha256: SHA-256 of the token that the machine got, 32 bytes, or None.
        token_until: The end of that token, or None.
        token_source: Address that the token went to, or None.
        kept_until: From then on the row may go.
    """

    user_code: str
    device_sha256: bytes = field(repr=False)
    client_id: str
    hw_uuid: str | None
    hw_mac: str | None
    hw_serial: str | None
    hostname: str | None
    source: str
    asked_at: datetime
    expires_at: datetime
    state: ConsoleState = "pending"
    decided_at: datetime | None = None
    decided_by: str | None = None
    token_sha256: bytes | None = field(default=None, repr=False)
    token_until: datetime | None = None
    token_source: str | None = None
    kept_until: datetime


def _says(columns: Any) -> ColumnElement[bool]:
    """Return what is true of a row that says any of what `_compared` looks for."""
    return or_(*(func.lower(columns[f"hw_{name}"]) == bindparam(name) for name in ("uuid", "mac", "serial")))


_ROW = codec(ConsoleCode, _C, besides=("id",))
_OPEN = (_C.state == "pending", _C.expires_at > bindparam("at"))
_ADD = Prepared(
    lambda insert: insert(_T).values(binds(_C, "id")).on_conflict_do_nothing(index_elements=["user_code"])
)
_BY_CODE = Prepared(select(_T).where(_C.user_code == bindparam("of_code")))
_BY_DEVICE = Prepared(select(_T).where(_C.device_sha256 == bindparam("of_device")))
_BY_TOKEN = Prepared(
    select(_T).where(_C.token_sha256 == bindparam("of_token"), _C.token_until > bindparam("at"))
)
_COUNT_OPEN = Prepared(select(func.count()).select_from(_T).where(*_OPEN))
_DECIDE = Prepared(
    update(_T)
    .where(_C.user_code == bindparam("of_code"), *_OPEN)
    .values(
        state=bindparam("to"),
        decided_at=bindparam("at"),
        decided_by=bindparam("by"),
        kept_until=bindparam("until"),
    )
)
_GIVE = Prepared(
    update(_T)
    .where(
        _C.device_sha256 == bindparam("of_device"),
        _C.state == "approved",
        _C.token_sha256.is_(None),
        _C.expires_at > bindparam("at"),
    )
    .values(
        token_sha256=bindparam("token"), token_until=bindparam("until"), token_source=bindparam("to_address")
    )
)
_PAGE = Prepared(
    select(_T).where(_C.id < bindparam("before")).order_by(_C.id.desc()).limit(bindparam("rows"))
)
_RIVALS = Prepared(
    select(_C.user_code)
    .where(
        _C.user_code != bindparam("of_code"),
        *_OPEN,
        _says(_C),
    )
    .order_by(_C.id)
    .limit(bindparam("rows"))
)
_MACHINES = Prepared(
    select(_M.machine_id)
    .where(_says(_M))
    # Anybody registers eight that say it too: who was admitted is told of first.
    .order_by(_M.role.is_(None), _M.machine_id)
    .limit(bindparam("rows"))
)
_OF_HARDWARE = Prepared(
    select(_C.user_code)
    .where(
        *_OPEN,
        _says(_C),
    )
    .order_by(_C.id)
    .limit(bindparam("rows"))
)
_PURGE = Prepared(
    delete(_T).where(
        _C.id.in_(select(_C.id).where(_C.kept_until < bindparam("before")).limit(bindparam("rows")))
    )
)
_ALIKE = 8
UNSAID = frozenset({"", "unknown"})
"""What a machine is recorded with that says nothing of its hardware."""


def _compared(uuid: str | None, mac: str | None, serial: str | None) -> dict[str, str | None]:
    """Return what is looked for: in either case of letters, and None, which is like nothing, where nothing is said."""
    said = {"uuid": uuid, "mac": mac, "serial": serial}
    lower = {name: (text or "").lower() for name, text in said.items()}
    return {name: None if text in UNSAID else text for name, text in lower.items()}


class ConsoleCodes:
    """The codes, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, code: ConsoleCode) -> bool:
        """Store a new code; False where another one is called so."""
        return self._sql.run(_ADD, **_ROW.encode(code)) > 0

    def get(self, user_code: str) -> ConsoleCode | None:
        """Return the code, in whatever state, or None."""
        return _ROW.one(self._sql.row(_BY_CODE, of_code=user_code))

    def of_device(self, device_sha256: bytes) -> ConsoleCode | None:
        """Return the code of the machine whose secret has this SHA-256, in whatever state, or None."""
        return _ROW.one(self._sql.row(_BY_DEVICE, of_device=device_sha256))

    def of_token(self, token_sha256: bytes, at: datetime) -> ConsoleCode | None:
        """Return the code for which a token was given that is good at *at*, or None."""
        return _ROW.one(self._sql.row(_BY_TOKEN, of_token=token_sha256, at=to_micros(at)))

    def count_open(self, at: datetime) -> int:
        """Return how many codes wait for somebody."""
        row = self._sql.row(_COUNT_OPEN, at=to_micros(at))
        assert row is not None
        count: int = row[0]
        return count

    def decide(
        self, user_code: str, state: ConsoleState, *, by: str, at: datetime, kept_until: datetime
    ) -> bool:
        """Say what is to become of a code; of any number of racers exactly one gets True, and none after its end."""
        changed = self._sql.run(
            _DECIDE, of_code=user_code, to=state, by=by, at=to_micros(at), until=to_micros(kept_until)
        )
        return changed > 0

    def give_token(
        self, device_sha256: bytes, token_sha256: bytes, *, until: datetime, source: str, at: datetime
    ) -> bool:
        """Note the one token that is given for an approved code; False where there was one, or it is too late."""
        given = self._sql.run(
            _GIVE,
            of_device=device_sha256,
            token=token_sha256,
            until=to_micros(until),
            to_address=source,
            at=to_micros(at),
        )
        return given > 0

    def page(self, cursor: str | None, limit: int) -> Page[ConsoleCode]:
        """Return codes, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "console-codes"
        rows = self._sql.rows(_PAGE, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ROW.decode)

    def alike(self, code: ConsoleCode, at: datetime) -> tuple[list[str], list[str]]:
        """Return machines that say the same of their hardware, by id, and other codes that wait; the first eight."""
        said = _compared(code.hw_uuid, code.hw_mac, code.hw_serial)
        machines = self._sql.rows(_MACHINES, **said, rows=_ALIKE)
        codes = self._sql.rows(_RIVALS, **said, of_code=code.user_code, at=to_micros(at), rows=_ALIKE)
        return [row[0] for row in machines], [row[0] for row in codes]

    def of_hardware(self, uuid: str, mac: str, serial: str, at: datetime) -> list[str]:
        """Return codes that wait, of consoles that say any of this of their hardware; the first eight."""
        said = _compared(uuid, mac, serial)
        return [row[0] for row in self._sql.rows(_OF_HARDWARE, **said, at=to_micros(at), rows=_ALIKE)]

    def purge(self, before: datetime, batch: int) -> int:
        """Delete up to *batch* codes whose time to be kept is over; return how many."""
        return self._sql.run(_PURGE, before=to_micros(before), rows=batch)
