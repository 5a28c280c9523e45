"""Who vouches for hardware: certificates of machines as they were judged, and what operators added or distrusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import bindparam, or_, select, update

from attestation.clock import to_micros
from attestation.endorsements import PathValidation
from attestation.errors import AlreadyExists, TrustCertificateUnknown
from attestation.machines import Status
from attestation.results import Assurance
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import (
    AKCertificateRow,
    EKCertificateRow,
    MachineRow,
    TrustCertificateRow,
    table_of,
)

_E = table_of(EKCertificateRow)
_EC = _E.c
_A = table_of(AKCertificateRow)
_AC = _A.c
_M = table_of(MachineRow).c
_T = table_of(TrustCertificateRow)
_TC = _T.c

TrustRole = Literal["anchor", "intermediate"]
TrustStatus = Literal["active", "distrusted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEKCertificate:
    """The EK certificate of a machine, and how its chain was judged last.

    Args:
        machine_id: Whose.
        certificate: DER, without wrapper and padding.
        chain: DER of the intermediates that the machine sent; untrusted.
        validation: The judgement with its path.
        judged_at: When.
    """

    machine_id: str
    certificate: bytes
    chain: tuple[bytes, ...]
    validation: PathValidation
    judged_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAKCertificate:
    """The certificate by which somebody vouches for the AK of a machine, and how its chain was judged last.

    Args:
        machine_id: Whose.
        ak_name: Name of the AK that it vouches for; for another one it says nothing.
        spki_sha256: SHA-256 of the certified key's SubjectPublicKeyInfo, 64 lower-case hex.
        certificate: DER, without padding.
        chain: DER of the intermediates that the machine sent; untrusted.
        validation: The judgement with its path; `bundle_sha256` names the set of anchors.
        judged_at: When.
    """

    machine_id: str
    ak_name: bytes
    spki_sha256: str
    certificate: bytes
    chain: tuple[bytes, ...]
    validation: PathValidation
    judged_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustCertificate:
    """A certificate that an operator added to the trust bundle, or distrusted in it.

    Args:
        sha256: Of its DER, 64 lower-case hex.
        certificate: DER.
        role: `anchor` or `intermediate`.
        vendor: Registered name of the vendor that it may vouch for.
        status: `active` or `distrusted`.
        reason: Why, in the operator's words.
        added_at: When it was added, or first distrusted.
        added_by: By whom.
        changed_at: When its status was changed last.
        changed_by: By whom.
    """

    sha256: str
    certificate: bytes
    role: TrustRole
    vendor: str
    status: TrustStatus
    reason: str | None
    added_at: datetime
    added_by: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unvouched:
    """A machine that waits with an EK certificate to which no path leads.

    Args:
        hw_serial: Serial number, as the machine says.
        manufacturer: What the certificate says of its maker.
        stored: The certificate, and why no path leads to it.
    """

    hw_serial: str | None
    manufacturer: str | None
    stored: StoredEKCertificate


_EK = codec(StoredEKCertificate, _EC)
_UNVOUCHED = Prepared(
    select(_M.id, _M.hw_serial, _M.ek_certificate_manufacturer, _E)
    .join(_E, _EC.machine_id == _M.machine_id)
    .where(_M.status == Status.PENDING_APPROVAL.value, _M.id < bindparam("before"), ~_EC.ok)
    .order_by(_M.id.desc())
    .limit(bindparam("rows"))
)
_ROW = codec(TrustCertificate, _TC)
_PUT_EK = Prepared(
    lambda insert: (
        insert(_E)
        .values(binds(_EC))
        .on_conflict_do_update(index_elements=[_EC.machine_id], set_=binds(_EC, "machine_id"))
    )
)
_GET_EK = Prepared(select(_E).where(_EC.machine_id == bindparam("machine_id")))
_OTHERS = Prepared(
    select(_E)
    .where(or_(_EC.bundle_sha256.is_(None), _EC.bundle_sha256 != bindparam("bundle_sha256")))
    .order_by(_EC.machine_id)
    .limit(bindparam("rows"))
)
_VOUCHED = select(_EC.machine_id).where(_EC.ok, _EC.path.like(bindparam("part")))
_LOWER = Prepared(
    update(table_of(MachineRow))
    .where(_M.machine_id.in_(_VOUCHED), _M.ek_chain_ok)
    .values(
        ek_chain_ok=False,
        assurance=bindparam("lowered"),
        trust_expires_at=None,
        version=_M.version + 1,
    )
)
_LOWER_LISTED = Prepared(
    update(table_of(MachineRow))
    .where(_M.machine_id.in_(_VOUCHED), _M.ek_chain_ok, _M.ek_allow_listed)
    .values(ek_chain_ok=False, version=_M.version + 1)
)
_VOID = Prepared(
    update(_E)
    .where(_EC.ok, _EC.path.like(bindparam("part")))
    .values(ok=False, reason="a certificate of its path is distrusted", bundle_sha256=None)
)
_AK = codec(StoredAKCertificate, _AC)
_PUT_AK = Prepared(
    lambda insert: (
        insert(_A)
        .values(binds(_AC))
        .on_conflict_do_update(index_elements=[_AC.machine_id], set_=binds(_AC, "machine_id"))
    )
)
_GET_AK = Prepared(select(_A).where(_AC.machine_id == bindparam("machine_id")))
_HOLDER = Prepared(select(_AC.machine_id).where(_AC.spki_sha256 == bindparam("spki_sha256")))
_AK_OTHERS = Prepared(
    select(_A)
    .where(or_(_AC.bundle_sha256.is_(None), _AC.bundle_sha256 != bindparam("bundle_sha256")))
    .order_by(_AC.machine_id)
    .limit(bindparam("rows"))
)
_AK_VOUCHED = select(_AC.machine_id).where(_AC.ok, _AC.anchor_sha256 == bindparam("anchor"))
_LOWER_AK = Prepared(
    update(table_of(MachineRow))
    .where(_M.machine_id.in_(_AK_VOUCHED), _M.assurance == Assurance.AK_CERTIFIED.value)
    .values(assurance=bindparam("lowered"), trust_expires_at=None, version=_M.version + 1)
)
_VOID_AK = Prepared(
    update(_A)
    .where(_AC.ok, _AC.anchor_sha256 == bindparam("anchor"))
    .values(ok=False, reason="the anchor of its path is distrusted", bundle_sha256=None)
)
_ADD = Prepared(lambda insert: insert(_T).values(binds(_TC)).on_conflict_do_nothing())
_ALL = Prepared(select(_T).order_by(_TC.vendor, _TC.role, _TC.sha256))
_GET = Prepared(select(_T).where(_TC.sha256 == bindparam("sha256")))
_STATE = Prepared(select(_TC.sha256, _TC.status).order_by(_TC.sha256))
_SET = Prepared(
    update(_T)
    .where(_TC.sha256 == bindparam("of_sha256"))
    .values({name: bindparam(name) for name in ("status", "reason", "changed_at", "changed_by")})
)


def _unvouched(row: Row) -> Unvouched:
    return Unvouched(hw_serial=row[1], manufacturer=row[2], stored=_EK.decode(row[3:]))


class EKCertificates:
    """The EK certificates of machines, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def put(self, stored: StoredEKCertificate) -> None:
        """Store the certificate of a machine, or its new judgement."""
        self._sql.do(_PUT_EK, **_EK.encode(stored))

    def get(self, machine_id: str) -> StoredEKCertificate | None:
        """Return the certificate of a machine; None where it has none."""
        return _EK.one(self._sql.row(_GET_EK, machine_id=machine_id))

    def unvouched(self, cursor: str | None, limit: int) -> Page[Unvouched]:
        """Return machines that wait and have a certificate to which no path leads, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        before, rows = before_id("unvouched", cursor), checked_limit(limit) + 1
        found = self._sql.rows(_UNVOUCHED, before=before, rows=rows)
        return page_of("unvouched", found, limit, _unvouched)

    def judged_by_others(self, bundle_sha256: str, limit: int) -> tuple[StoredEKCertificate, ...]:
        """Return up to *limit* certificates that another bundle than this judged."""
        rows = self._sql.rows(_OTHERS, bundle_sha256=bundle_sha256, rows=limit)
        return tuple(map(_EK.decode, rows))

    def lower(self, sha256: str) -> int:
        """Take the vendor's word from every machine whose path has the certificate *sha256*; return how many.

        What is on the allow-list keeps that level; the others have none but their possession, and no lease
        until they are judged again.
        """
        part = f"%{sha256}%"
        listed = self._sql.run(_LOWER_LISTED, part=part)
        lowered = self._sql.run(_LOWER, part=part, lowered=Assurance.TOFU.value)
        # Nobody's judgement any more: it is made again, also where the bundle becomes again what it was.
        self._sql.do(_VOID, part=part)
        return listed + lowered


class AKCertificates:
    """The certificates that vouch for AKs of machines, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def put(self, stored: StoredAKCertificate) -> None:
        """Store the certificate of a machine, or its new judgement; that its key is nobody else's was asked before."""
        self._sql.do(_PUT_AK, **_AK.encode(stored))

    def get(self, machine_id: str) -> StoredAKCertificate | None:
        """Return the certificate of a machine; None where it has none."""
        return _AK.one(self._sql.row(_GET_AK, machine_id=machine_id))

    def vouches(self, machine_id: str, ak_name: bytes | None) -> bool:
        """Say whether somebody vouches for this AK of this machine, as far as it was judged."""
        stored = self.get(machine_id)
        return stored is not None and stored.validation.ok and stored.ak_name == ak_name

    def holder(self, spki_sha256: str) -> str | None:
        """Return the machine that this certified key (SHA-256 of its SPKI, hex) vouches for, or None."""
        row = self._sql.row(_HOLDER, spki_sha256=spki_sha256)
        return None if row is None else row[0]

    def judged_by_others(self, anchors_sha256: str, limit: int) -> tuple[StoredAKCertificate, ...]:
        """Return up to *limit* certificates that another set of anchors than this judged."""
        rows = self._sql.rows(_AK_OTHERS, bundle_sha256=anchors_sha256, rows=limit)
        return tuple(map(_AK.decode, rows))

    def lower(self, sha256: str) -> int:
        """Take the word of the anchor *sha256* from every machine that has its level by it; return how many."""
        lowered = self._sql.run(_LOWER_AK, anchor=sha256, lowered=Assurance.TOFU.value)
        # Nobody's judgement any more: it is made again, also where the anchors become again what they were.
        self._sql.do(_VOID_AK, anchor=sha256)
        return lowered


class Trust:
    """What operators added to the trust bundle or distrusted in it, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def state(self) -> tuple[Row, ...]:
        """Return what decides: SHA-256 and status of each. Instants do not: two changes may have the same."""
        return tuple(self._sql.rows(_STATE))

    def all(self) -> tuple[TrustCertificate, ...]:
        """Return all of them, by vendor and role."""
        return tuple(map(_ROW.decode, self._sql.rows(_ALL)))

    def get(self, sha256: str) -> TrustCertificate | None:
        """Return the certificate with this SHA-256, or None."""
        return _ROW.one(self._sql.row(_GET, sha256=sha256))

    def add(self, added: TrustCertificate) -> None:
        """Store a certificate.

        Raises:
            AlreadyExists: It is stored, perhaps as distrusted.
        """
        if self._sql.run(_ADD, **_ROW.encode(added)) != 1:
            raise AlreadyExists(f"certificate {added.sha256} was added before")

    def set_status(self, sha256: str, status: TrustStatus, reason: str | None, by: str, at: datetime) -> None:
        """Trust or distrust a stored certificate from now on.

        Raises:
            TrustCertificateUnknown: It is not stored.
        """
        changed = self._sql.run(
            _SET, of_sha256=sha256, status=status, reason=reason, changed_at=to_micros(at), changed_by=by
        )
        if changed != 1:
            raise TrustCertificateUnknown(f"no certificate {sha256[:64]!r} was added")
