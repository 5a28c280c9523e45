"""The issuance log: every serial number that was ever reserved, what became of it, and what ended it.

    reserved ──► issued ⇄ held ──► revoked
        └──────► void                 issued ──► revoked

A row is reserved, durably, before anything is signed. `void` is what was reserved and may or may not have been
signed: nobody got it, and revocation lists name it. Whatever changes what a list says also bumps the revision of
its issuer, in the same unit; only what concerns a certificate that somebody has makes older lists useless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal

from sqlalchemy import BindParameter, bindparam, case, delete, func, insert, or_, select, text, update

from attestation.clock import from_micros, to_micros
from attestation.errors import CertificateUnknown, RequestInvalid
from attestation.store.codec import binds, codec
from attestation.store.issuers import Issuers
from attestation.store.pages import (
    Page,
    before_id,
    checked_limit,
    decode_cursor,
    encode_cursor,
    page_of,
)
from attestation.store.refused_keys import RefusedKey, RefusedKeys
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import LISTED_CERTIFICATE, RESERVED_CERTIFICATE, IssuanceRow, table_of

_T = table_of(IssuanceRow)
_C = _T.c

IssuanceState = Literal["reserved", "issued", "held", "revoked", "void"]
RevocationReason = Literal[
    "unspecified",
    "keyCompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "certificateHold",
    "privilegeWithdrawn",
]
"""Words of RFC 5280 §5.3.1."""

VOID_REASON: RevocationReason = "cessationOfOperation"
"""What lists say of a serial number that nothing came of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuance:
    """One serial number.

    Args:
        serial: 20 bytes, 40 lower-case hex.
        issuer_id: Under which CA key.
        profile: Name of its profile.
        state: What became of it.
        machine_id: Whose, or None.
        subject: Distinguished name, RFC 4514.
        spki_sha256: Of the certified key's SubjectPublicKeyInfo, 64 lower-case hex.
        requester: Machine id, operator's name or `SYSTEM`.
        key_tier: 1 to 4 (TPM.md §6), or None.
        assurance: Word of the machine's assurance then, or None.
        renews: Serial that it follows, or None.
        not_before: Beginning of its validity.
        not_after: End of it.
        reserved_at: When the serial was taken.
        issued_at: When the signed certificate was written down.
        certificate: DER, or None.
        ended_at: When it was held, revoked or given up.
        reason: Why, in the words of RFC 5280.
        note: Why, in words for people.
    """

    serial: str
    issuer_id: str
    profile: str
    state: IssuanceState
    machine_id: str | None
    subject: str
    spki_sha256: str
    requester: str
    key_tier: int | None
    assurance: str | None
    renews: str | None
    not_before: datetime
    not_after: datetime
    reserved_at: datetime
    issued_at: datetime | None = None
    certificate: bytes | None = None
    ended_at: datetime | None = None
    reason: RevocationReason | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuanceFilter:
    """Which certificates a list shows; None means any. Of ends, the first instant counts and the second does not."""

    machine_id: str | None = None
    issuer_id: str | None = None
    state: IssuanceState | None = None
    profile: str | None = None
    ends_from: datetime | None = None
    ends_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class ListedCertificate:
    """An entry of a revocation list."""

    serial: str
    ended_at: datetime
    reason: RevocationReason | None


_ROW = codec(Issuance, _C, besides=("id",))
_RESERVE = Prepared(insert(_T).values(binds(_C, "id")))
_GET = Prepared(select(_T).where(_C.serial == bindparam("of_serial")))
_ISSUED = Prepared(
    update(_T)
    .where(_C.serial == bindparam("of_serial"), _C.state == "reserved")
    .values(state="issued", certificate=bindparam("der"), issued_at=bindparam("at"))
)
_ENDED: dict[str, BindParameter[object]] = {"ended_at": bindparam("at"), "note": bindparam("why")}
_VOID = Prepared(
    update(_T)
    .where(_C.serial == bindparam("of_serial"), _C.state == "reserved")
    .values(state="void", reason=VOID_REASON, **_ENDED)
    .returning(_C.serial, _C.issuer_id)
)
_VOID_MACHINE = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _C.state == "reserved")
    .values(state="void", reason=VOID_REASON, **_ENDED)
    .returning(_C.serial, _C.issuer_id)
)
_HOLD = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _C.state == "issued", _C.not_after > bindparam("at"))
    .values(state="held", reason="certificateHold", **_ENDED)
    .returning(_C.serial, _C.issuer_id)
)
_RELEASE = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _C.state == "held")
    .values(state="issued", reason=None, ended_at=None, note=bindparam("why"))
    .returning(_C.serial, _C.issuer_id)
)
_UNENDED = or_(_C.state == "reserved", _C.state == "issued", _C.state == "held")
_LIVE = or_(_C.state == "issued", _C.state == "held")
_REVOKED = {
    "state": "revoked",
    "reason": bindparam("because"),
    "note": bindparam("why"),
    # On hold since: it was never good in between (RFC 5280 §5.3.2 leaves the date of the hold).
    "ended_at": case((_C.state == "held", _C.ended_at), else_=bindparam("at")),
}
_REVOKE_MACHINE = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _LIVE, _C.not_after > bindparam("at"))
    .values(**_REVOKED)
    .returning(_C.serial, _C.issuer_id)
)
_REVOKE_SERIAL = Prepared(
    update(_T)
    .where(_C.serial == bindparam("of_serial"), _LIVE)
    .values(**_REVOKED)
    .returning(_C.serial, _C.issuer_id)
)
_KEYS_OF = Prepared(select(_C.spki_sha256).where(_C.machine_id == bindparam("of_machine")).distinct())
_WITH_KEY = Prepared(
    select(_C.serial).where(_C.spki_sha256 == bindparam("of_key"), _LIVE).order_by(_C.id.desc())
)
_STALE = Prepared(
    select(_T)
    .where(text(RESERVED_CERTIFICATE), _C.reserved_at < bindparam("before"))
    .order_by(_C.reserved_at)
    .limit(bindparam("rows"))
)
_LISTED = Prepared(
    select(_C.serial, _C.ended_at, _C.reason)
    .where(
        _C.issuer_id == bindparam("of_issuer"),
        text(LISTED_CERTIFICATE),
        _C.not_after > bindparam("after"),
    )
    .order_by(_C.serial)
)
_LIVE_OF = Prepared(
    select(_T)
    .where(
        _C.machine_id == bindparam("of_machine"),
        _C.profile == bindparam("of_profile"),
        _UNENDED,
        _C.not_after > bindparam("at"),
    )
    .order_by(_C.id.desc())
    .limit(bindparam("rows"))
)
_LAST_END = Prepared(
    select(func.max(_C.not_after)).where(
        _C.issuer_id == bindparam("of_issuer"),
        _UNENDED,
        _C.profile != "ca-cross",
        _C.profile != "ocsp-signing",
    )
)
_PURGE = Prepared(
    delete(_T).where(
        _C.id.in_(
            select(_C.id)
            .where(_C.not_after < bindparam("before"), _C.state != "reserved")
            .limit(bindparam("rows"))
        )
    )
)


_EXACT = ("machine_id", "issuer_id", "state", "profile")
_ENDS = {
    "ends_from": _C.not_after >= bindparam("of_ends_from"),
    "ends_before": _C.not_after < bindparam("of_ends_before"),
}


@lru_cache(maxsize=32)
def _page_statement(names: tuple[str, ...], *, by_end: bool) -> Prepared:
    wanted = [_ENDS[name] if name in _ENDS else _C[name] == bindparam(f"of_{name}") for name in names]
    if not by_end:
        newest = select(_T).where(_C.id < bindparam("before"), *wanted).order_by(_C.id.desc())
        return Prepared(newest.limit(bindparam("rows")))
    end: BindParameter[int] = bindparam("after_end")
    further = or_(_C.not_after > end, _C.id > bindparam("after_id"))
    # Also by itself that it is not before: so the index knows where to begin.
    ordered = select(_T).where(_C.not_after >= end, further, *wanted).order_by(_C.not_after, _C.id)
    return Prepared(ordered.limit(bindparam("rows")))


_BY_END = "certificates by their end"


def _after(cursor: str | None) -> dict[str, int]:
    """Return the end and the id after which a page begins.

    Raises:
        RequestInvalid: Not a cursor of this order.
    """
    if cursor is None:
        return {"after_end": 0, "after_id": 0}
    texts = decode_cursor(_BY_END, cursor).split(":")
    if len(texts) != 2 or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in texts):
        raise RequestInvalid("cursor: not one that this list gave out")
    return {"after_end": int(texts[0]), "after_id": int(texts[1])}


class Issuances:
    """The issuance log, inside one unit of work."""

    __slots__ = ("_issuers", "_refused", "_sql")

    def __init__(self, sql: Executor, issuers: Issuers, refused: RefusedKeys) -> None:
        self._sql = sql
        self._issuers = issuers
        self._refused = refused

    def reserve(self, planned: Issuance) -> None:
        """Take a serial number: from now on it is accounted for, whatever happens."""
        self._sql.do(_RESERVE, **_ROW.encode(planned) | {"state": "reserved"})

    def get(self, serial: str) -> Issuance | None:
        """Return what is known of a serial number, or None."""
        return _ROW.one(self._sql.row(_GET, of_serial=serial))

    def issued(self, serial: str, certificate: bytes, at: datetime) -> bool:
        """Write down the signed certificate; False where the serial is not reserved any more: nobody may get it."""
        return self._sql.run(_ISSUED, of_serial=serial, der=certificate, at=to_micros(at)) == 1

    def void(self, serial: str, why: str, at: datetime) -> bool:
        """Give up a reserved serial number; False where it is not reserved any more."""
        return bool(self._end(_VOID, given_up=True, of_serial=serial, why=why, at=to_micros(at)))

    def void_machine(self, machine_id: str, why: str, at: datetime) -> tuple[str, ...]:
        """Give up what is reserved for a machine: whoever is signing it now will find that nobody may get it."""
        return self._end(_VOID_MACHINE, given_up=True, of_machine=machine_id, why=why, at=to_micros(at))

    def hold(self, machine_id: str, why: str, at: datetime) -> tuple[str, ...]:
        """Suspend every certificate of a machine that is good now; return their serials."""
        return self._end(_HOLD, of_machine=machine_id, why=why, at=to_micros(at))

    def release(self, machine_id: str, why: str) -> tuple[str, ...]:
        """End the suspension of a machine's certificates; return their serials."""
        return self._end(_RELEASE, of_machine=machine_id, why=why)

    def revoke(self, machine_id: str, reason: RevocationReason, why: str, at: datetime) -> tuple[str, ...]:
        """Revoke every certificate of a machine that is good or held now; return their serials.

        Where that is because of its keys, no key that it ever had a certificate for gets another one.
        """
        if reason == "keyCompromise":
            for (spki_sha256,) in self._sql.rows(_KEYS_OF, of_machine=machine_id):
                self._refuse(spki_sha256, f"{reason} of machine {machine_id}", at)
        return self._end(_REVOKE_MACHINE, of_machine=machine_id, because=reason, why=why, at=to_micros(at))

    def with_key(self, spki_sha256: str) -> tuple[str, ...]:
        """Return the serials of certificates of a key that are good or held, newest first."""
        return tuple(row[0] for row in self._sql.rows(_WITH_KEY, of_key=spki_sha256))

    def _refuse(self, spki_sha256: str, why: str, at: datetime) -> None:
        self._refused.put(RefusedKey(spki_sha256=spki_sha256, why=why, added_at=at, added_by="service"))

    def revoke_serial(self, serial: str, reason: RevocationReason, why: str, at: datetime) -> bool:
        """Revoke one certificate; False where it is already revoked or void.

        Where that is because of its key, the key never gets another one.

        Raises:
            CertificateUnknown: We never reserved this serial.
        """
        found = self.get(serial)
        if found is None:
            raise CertificateUnknown(f"no certificate {serial[:40]!r}")
        if reason == "keyCompromise":
            self._refuse(found.spki_sha256, f"{reason} of certificate {serial}", at)
        if self._end(_REVOKE_SERIAL, of_serial=serial, because=reason, why=why, at=to_micros(at)):
            return True
        return found.state == "reserved" and self.void(serial, why, at)

    def stale(self, before: datetime, limit: int) -> tuple[Issuance, ...]:
        """Return up to *limit* serials that were reserved before *before* and never decided."""
        return tuple(map(_ROW.decode, self._sql.rows(_STALE, before=to_micros(before), rows=limit)))

    def listed(self, issuer_id: str, ends_after: datetime) -> Sequence[ListedCertificate]:
        """Return what a list of this key names, by serial: held, revoked and void, and ending after *ends_after*."""
        rows = self._sql.rows(_LISTED, of_issuer=issuer_id, after=to_micros(ends_after))
        return [ListedCertificate(row[0], from_micros(row[1]), row[2]) for row in rows]

    def live(self, machine_id: str, profile: str, at: datetime, limit: int) -> tuple[Issuance, ...]:
        """Return up to *limit* certificates of a machine that are reserved, good or held now, newest first."""
        rows = self._sql.rows(
            _LIVE_OF, of_machine=machine_id, of_profile=profile, at=to_micros(at), rows=limit
        )
        return tuple(map(_ROW.decode, rows))

    def last_end(self, issuer_id: str) -> datetime | None:
        """Return when the last certificate of this key ends that is not revoked; None where there is none.

        Those of CA keys and of keys that answer OCSP do not count: they last while the key is watched.
        """
        row = self._sql.row(_LAST_END, of_issuer=issuer_id)
        return None if row is None or row[0] is None else from_micros(row[0])

    def page(
        self, wanted: IssuanceFilter, cursor: str | None, limit: int, *, by_end: bool = False
    ) -> Page[Issuance]:
        """Return certificates, newest first; *by_end* those that end first before others.

        Raises:
            RequestInvalid: A cursor or limit that cannot be.
        """
        chosen = {name: value for name in _EXACT if (value := getattr(wanted, name)) is not None}
        chosen |= {name: to_micros(end) for name in _ENDS if (end := getattr(wanted, name)) is not None}
        values: dict[str, object] = {f"of_{name}": value for name, value in chosen.items()}
        values["rows"] = checked_limit(limit) + 1
        values |= _after(cursor) if by_end else {"before": before_id("certificates", cursor)}
        rows = self._sql.rows(_page_statement(tuple(chosen), by_end=by_end), **values)
        if not by_end:
            return page_of("certificates", rows, limit, _ROW.decode)
        items = tuple(_ROW.decode(row) for row in rows[:limit])
        more = len(rows) > limit
        return Page(
            items=items,
            next_cursor=encode_cursor(_BY_END, f"{to_micros(items[-1].not_after)}:{rows[limit - 1][0]}")
            if more
            else None,
        )

    def purge(self, before: datetime, limit: int) -> int:
        """Delete up to *limit* rows of certificates that ended before *before*; return how many."""
        return self._sql.run(_PURGE, before=to_micros(before), rows=limit)

    def _end(self, statement: Prepared, *, given_up: bool = False, **values: object) -> tuple[str, ...]:
        rows: Iterable[Row] = self._sql.rows(statement, **values)
        ended = sorted((row[0], row[1]) for row in rows)
        self._issuers.bump((issuer for _, issuer in ended), held_by_somebody=not given_up)
        return tuple(serial for serial, _ in ended)
