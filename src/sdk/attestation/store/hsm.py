"""CA keys on tokens of a cluster: what they signed and revoked, their lists, and who answers for them.

    reserved ──► issued ──► revoked
        └──────► void

A serial number is taken, durably, before anything is signed. `void` is what was taken and may or may not have been
signed: nobody got it, and lists name it. Whatever changes what a list says also raises the revision of its issuer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, and_, bindparam, delete, exists, func, literal, or_, select, text, update

from attestation.clock import from_micros, to_micros
from attestation.hsm import CertificateState, DelegateState
from attestation.store.codec import binds, codec
from attestation.store.hsm_look import HSMState, hsm_states
from attestation.store.hsm_records import (
    HSMBegunCRL,
    HSMCertificate,
    HSMDelegate,
    HSMIssuer,
)
from attestation.store.issuances import ListedCertificate, RevocationReason
from attestation.store.issuers import StoredCRL
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import (
    LISTED_HSM_CERTIFICATE,
    LIVE_HSM_CERTIFICATE,
    RESERVED_CERTIFICATE,
    UNFINISHED_HSM_CERTIFICATE,
    HSMCertificateRow,
    HSMCRLRow,
    HSMDelegateRow,
    HSMIssuerRow,
    table_of,
)

_I = table_of(HSMIssuerRow)
_T = table_of(HSMCertificateRow)
_L = table_of(HSMCRLRow)
_D = table_of(HSMDelegateRow)

_ISSUER = codec(HSMIssuer, _I.c, besides=("id",))
_CERTIFICATE = codec(HSMCertificate, _T.c, besides=("id",))
_CRL = codec(StoredCRL, _L.c)
_DELEGATE = codec(HSMDelegate, _D.c)

_REGISTER = Prepared(lambda insert: insert(_I).values(binds(_I.c, "id")).on_conflict_do_nothing())
_ISSUER_OF = Prepared(select(_I).where(_I.c.issuer_id == bindparam("of_issuer")))
_BY_KEY = Prepared(
    select(_I).where(_I.c.cluster_id == bindparam("of_cluster"), _I.c.spki_sha256 == bindparam("of_key"))
)
_RENAMED = ("uid", "kind", "namespace", "name", "certificate", "chain", "key_origin", "module", "token_label",
            "subject", "not_before", "not_after")  # fmt: skip
_RENAME = Prepared(
    update(_I)
    .where(_I.c.issuer_id == bindparam("of_issuer"))
    .values(superseded_at=None, **{name: bindparam(name) for name in _RENAMED})
)
_SUPERSEDE = Prepared(
    update(_I)
    .where(
        _I.c.cluster_id == bindparam("of_cluster"),
        _I.c.uid == bindparam("of_uid"),
        _I.c.issuer_id != bindparam("by_issuer"),
        _I.c.superseded_at.is_(None),
    )
    .values(superseded_at=bindparam("at"))
)
_ISSUERS = Prepared(
    select(_I).where(_I.c.id < bindparam("before")).order_by(_I.c.id.desc()).limit(bindparam("rows"))
)


def _counted(wanted: Select[Any]) -> Prepared:
    """Return the statement that counts rows, and no more of them than it is told to."""
    return Prepared(select(func.count()).select_from(wanted.limit(bindparam("rows")).subquery()))


_KEYS_OF = _counted(select(literal(1)).select_from(_I).where(_I.c.cluster_id == bindparam("of_cluster")))
_OPEN = _counted(
    select(literal(1)).where(
        _T.c.issuer_id.in_(select(_I.c.issuer_id).where(_I.c.cluster_id == bindparam("of_cluster"))),
        _T.c.state == "reserved",
        text(UNFINISHED_HSM_CERTIFICATE),
    )
)
_GIVEN_UP = _counted(
    select(literal(1)).where(
        _T.c.issuer_id == bindparam("of_issuer"),
        _T.c.state == "void",
        _T.c.not_after > bindparam("after"),
        text(UNFINISHED_HSM_CERTIFICATE),
    )
)
_ENDED_KEYS = Prepared(
    select(_I.c.issuer_id)
    .where(
        or_(_I.c.not_after < bindparam("before"), _I.c.superseded_at < bindparam("before")),
        ~exists(select(literal(1)).where(_T.c.issuer_id == _I.c.issuer_id)),
    )
    .limit(bindparam("rows"))
)
_FORGET_KEY = [
    Prepared(delete(each).where(each.c.issuer_id == bindparam("of_issuer"))) for each in (_L, _D, _I)
]
_BUMP = Prepared(
    update(_I).where(_I.c.issuer_id == bindparam("of_issuer")).values(revision=_I.c.revision + 1)
)
_BEGIN_CRL = Prepared(
    update(_I)
    .where(_I.c.issuer_id == bindparam("of_issuer"), _I.c.crl_number == bindparam("number") - 1)
    .values(
        crl_number=bindparam("number"),
        begun_revision=bindparam("revision"),
        begun_entries=bindparam("entries"),
        begun_digest=bindparam("digest"),
        begun_at=bindparam("at"),
    )
)
_END_CRL = Prepared(
    update(_I)
    .where(_I.c.issuer_id == bindparam("of_issuer"), _I.c.crl_number == bindparam("of_number"))
    .values(begun_revision=None, begun_entries=None, begun_digest=None, begun_at=None)
)
_PUT_CRL = Prepared(
    lambda insert: (
        insert(_L)
        .values(binds(_L.c))
        .on_conflict_do_update(
            index_elements=[_L.c.issuer_id],
            set_=binds(_L.c, "issuer_id"),
            where=and_(_L.c.number < bindparam("number"), _L.c.revision <= bindparam("revision")),
        )
    )
)
_GET_CRL = Prepared(select(_L).where(_L.c.issuer_id == bindparam("of_issuer")))
_CRL_STATE = Prepared(
    select(_L.c.number, _L.c.revision, _L.c.this_update, _L.c.next_update).where(
        _L.c.issuer_id == bindparam("of_issuer")
    )
)

_RESERVE = Prepared(lambda insert: insert(_T).values(binds(_T.c, "id")).on_conflict_do_nothing())
_LIVE = Prepared(
    select(_T).where(
        _T.c.issuer_id == bindparam("of_issuer"),
        _T.c.request_uid == bindparam("of_request"),
        text(LIVE_HSM_CERTIFICATE),
    )
)
_BY_SERIAL = Prepared(select(_T).where(_T.c.serial == bindparam("of_serial")))
_RESERVE_AGAIN = Prepared(
    update(_T)
    .where(_T.c.serial == bindparam("of_serial"), text(RESERVED_CERTIFICATE))
    .values(not_before=bindparam("not_before"), not_after=bindparam("not_after"), reserved_at=bindparam("at"))
)
_ISSUED = Prepared(
    update(_T)
    .where(_T.c.serial == bindparam("of_serial"), text(RESERVED_CERTIFICATE))
    .values(
        state="issued", certificate=bindparam("der"), issued_at=bindparam("at"),
        audit_entry_hash=bindparam("entry_hash"), names=bindparam("with_names"),
    )
)  # fmt: skip
_REVOKE = Prepared(
    update(_T)
    .where(_T.c.serial == bindparam("of_serial"), _T.c.state == "issued")
    .values(
        state="revoked", ended_at=bindparam("at"), reason=bindparam("because"), note=bindparam("why")
    )
)  # fmt: skip
_VOID = Prepared(
    update(_T)
    .where(_T.c.serial == bindparam("of_serial"), text(RESERVED_CERTIFICATE))
    .values(state="void", ended_at=bindparam("at"), note=bindparam("why"))
)
_STALE = Prepared(
    select(_T)
    .where(text(RESERVED_CERTIFICATE), _T.c.reserved_at < bindparam("before"))
    .order_by(_T.c.reserved_at)
    .limit(bindparam("rows"))
)
_LISTED = Prepared(
    select(_T.c.serial, _T.c.ended_at, _T.c.reason)
    .where(
        _T.c.issuer_id == bindparam("of_issuer"),
        text(LISTED_HSM_CERTIFICATE),
        _T.c.not_after > bindparam("after"),
    )
    .order_by(_T.c.serial)
    .limit(bindparam("rows"))
)
_LAST_END = Prepared(
    select(func.max(_T.c.not_after)).where(
        _T.c.issuer_id == bindparam("of_issuer"), text(LIVE_HSM_CERTIFICATE)
    )
)
_PURGE_CERTIFICATES = Prepared(
    delete(_T).where(
        _T.c.id.in_(
            select(_T.c.id)
            .where(_T.c.not_after < bindparam("before"), _T.c.state != "reserved")
            .limit(bindparam("rows"))
        )
    )
)

_REVISIONS = Prepared(
    select(_I.c.issuer_id, _I.c.revision, _D.c.serial).join(
        _D, and_(_D.c.issuer_id == _I.c.issuer_id, _D.c.state == "active")
    )
)
_DELEGATE_OF = Prepared(
    select(_D).where(_D.c.issuer_id == bindparam("of_issuer"), _D.c.state == bindparam("of_state"))
)
_PUT_DELEGATE = Prepared(
    lambda insert: (
        insert(_D)
        .values(binds(_D.c))
        .on_conflict_do_update(
            index_elements=[_D.c.issuer_id, _D.c.state], set_=binds(_D.c, "issuer_id", "state")
        )
    )
)
_DROP_DELEGATE = Prepared(
    delete(_D).where(_D.c.issuer_id == bindparam("of_issuer"), _D.c.state == bindparam("of_state"))
)


@lru_cache(maxsize=2)
def _page_of_certificates(*, of_state: bool) -> Prepared:
    wanted = [_T.c.issuer_id == bindparam("of_issuer"), _T.c.id < bindparam("before")]
    if of_state:
        wanted.append(_T.c.state == bindparam("of_state"))
    return Prepared(select(_T).where(*wanted).order_by(_T.c.id.desc()).limit(bindparam("rows")))


class HSM:
    """What is known of CA keys on tokens, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Issuers

    def register(self, issuer: HSMIssuer) -> bool:
        """Write down a key; False where the cluster has one like it, which then stays."""
        return self._sql.run(_REGISTER, **_ISSUER.encode(issuer)) == 1

    def rename(self, issuer: HSMIssuer) -> None:
        """Write down what is said of a known key now: another certificate, another issuer."""
        said = {name: value for name, value in _ISSUER.encode(issuer).items() if name in _RENAMED}
        self._sql.do(_RENAME, of_issuer=issuer.issuer_id, **said)

    def supersede(self, cluster_id: str, uid: str, by: str, at: datetime) -> int:
        """Say that the other keys of an issuer are followed by *by*; return how many were not yet."""
        return self._sql.run(_SUPERSEDE, of_cluster=cluster_id, of_uid=uid, by_issuer=by, at=to_micros(at))

    def issuer(self, issuer_id: str) -> HSMIssuer | None:
        """Return a key, or None."""
        return _ISSUER.one(self._sql.row(_ISSUER_OF, of_issuer=issuer_id))

    def issuer_by_key(self, cluster_id: str, spki_sha256: str) -> HSMIssuer | None:
        """Return the key of a cluster that has this SubjectPublicKeyInfo, or None."""
        return _ISSUER.one(self._sql.row(_BY_KEY, of_cluster=cluster_id, of_key=spki_sha256))

    def issuers(self, cursor: str | None, limit: int) -> Page[HSMIssuer]:
        """Return keys of all clusters, newest first.

        Raises:
            RequestInvalid: A cursor or limit that cannot be.
        """
        kind = "hsm-issuers"
        rows = self._sql.rows(_ISSUERS, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ISSUER.decode)

    def keys_of(self, cluster_id: str, most: int) -> int:
        """Return how many keys a cluster has, counted up to *most*."""
        return self._count(_KEYS_OF, of_cluster=cluster_id, rows=most)

    def _count(self, statement: Prepared, **asked: object) -> int:
        row = self._sql.row(statement, **asked)
        return int(row[0]) if row is not None else 0

    def states(self, at: datetime) -> Mapping[str, HSMState]:
        """Return how the CA keys of each cluster are that has any in use at *at*."""
        return hsm_states(self._sql, at)

    # Certificates

    def open(self, cluster_id: str, most: int) -> int:
        """Return how many serial numbers of a cluster are reserved, counted up to *most*."""
        return self._count(_OPEN, of_cluster=cluster_id, rows=most)

    def given_up(self, issuer_id: str, at: datetime, most: int) -> int:
        """Return how many serial numbers of a key that its lists name were never finished, counted up to *most*."""
        return self._count(_GIVEN_UP, of_issuer=issuer_id, after=to_micros(at), rows=most)

    def reserve(self, planned: HSMCertificate) -> bool:
        """Take a serial number; False where the request has one."""
        return self._sql.run(_RESERVE, **_CERTIFICATE.encode(planned)) == 1

    def reserve_again(self, serial: str, not_before: datetime, not_after: datetime, at: datetime) -> bool:
        """Plan a reserved certificate for another time; False where it is reserved no more."""
        changed = self._sql.run(
            _RESERVE_AGAIN,
            of_serial=serial,
            not_before=to_micros(not_before),
            not_after=to_micros(not_after),
            at=to_micros(at),
        )
        return changed == 1

    def live(self, issuer_id: str, request_uid: str) -> HSMCertificate | None:
        """Return the serial number of a request that was not given up, or None."""
        return _CERTIFICATE.one(self._sql.row(_LIVE, of_issuer=issuer_id, of_request=request_uid))

    def certificate(self, serial: str) -> HSMCertificate | None:
        """Return what is known of a serial number, or None."""
        return _CERTIFICATE.one(self._sql.row(_BY_SERIAL, of_serial=serial))

    def issued(self, serial: str, certificate: bytes, names: str, entry_hash: str, at: datetime) -> bool:
        """Write down a signed certificate; False where its serial number is reserved no more."""
        changed = self._sql.run(
            _ISSUED,
            of_serial=serial,
            der=certificate,
            with_names=names,
            entry_hash=entry_hash,
            at=to_micros(at),
        )
        return changed == 1

    def revoke(self, found: HSMCertificate, reason: RevocationReason, why: str | None, at: datetime) -> bool:
        """Revoke an issued certificate for good; False where it is none, or ended before."""
        if not self._sql.run(_REVOKE, of_serial=found.serial, because=reason, why=why, at=to_micros(at)):
            return False
        self._sql.do(_BUMP, of_issuer=found.issuer_id)
        return True

    def void(self, found: HSMCertificate, why: str, at: datetime) -> bool:
        """Give up a reserved serial number; False where it is reserved no more."""
        if not self._sql.run(_VOID, of_serial=found.serial, why=why, at=to_micros(at)):
            return False
        self._sql.do(_BUMP, of_issuer=found.issuer_id)
        return True

    def stale(self, before: datetime, limit: int) -> tuple[HSMCertificate, ...]:
        """Return up to *limit* serial numbers that were taken before *before* and never decided."""
        rows = self._sql.rows(_STALE, before=to_micros(before), rows=limit)
        return tuple(map(_CERTIFICATE.decode, rows))

    def certificates(
        self, issuer_id: str, state: CertificateState | None, cursor: str | None, limit: int
    ) -> Page[HSMCertificate]:
        """Return the serial numbers of a key, newest first; all, or those in one state.

        Raises:
            RequestInvalid: A cursor or limit that cannot be.
        """
        kind = "hsm-certificates"
        asked: dict[str, object] = {"of_issuer": issuer_id, "before": before_id(kind, cursor)}
        if state is not None:
            asked["of_state"] = state
        statement = _page_of_certificates(of_state=state is not None)
        rows = self._sql.rows(statement, **asked, rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _CERTIFICATE.decode)

    # Lists

    def listed(self, issuer_id: str, ends_after: datetime, most: int) -> Sequence[ListedCertificate]:
        """Return what a list of this key names: revoked and void, and ending after *ends_after*.

        In the order of the serial numbers, and the first *most* of them.
        """
        rows = self._sql.rows(_LISTED, of_issuer=issuer_id, after=to_micros(ends_after), rows=most)
        return [ListedCertificate(row[0], from_micros(row[1]), row[2]) for row in rows]

    def last_end(self, issuer_id: str) -> datetime | None:
        """Return when the last certificate ends that a key signed, or may be signing; None where there is none."""
        (row,) = self._sql.rows(_LAST_END, of_issuer=issuer_id)
        return None if row[0] is None else from_micros(row[0])

    def begin_crl(self, begun: HSMBegunCRL, at: datetime) -> bool:
        """Begin the next list of a key; False where its number is another one's."""
        changed = self._sql.run(
            _BEGIN_CRL,
            of_issuer=begun.issuer_id,
            number=begun.number,
            revision=begun.revision,
            entries=begun.entries,
            digest=begun.digest,
            at=to_micros(at),
        )
        return changed == 1

    def put_crl(self, made: StoredCRL) -> bool:
        """Keep a list as the newest; False where one with a higher number, or that knows more, is kept."""
        kept = self._sql.run(_PUT_CRL, **_CRL.encode(made)) == 1
        self._sql.do(_END_CRL, of_issuer=made.issuer_id, of_number=made.number)
        return kept

    def crl(self, issuer_id: str) -> StoredCRL | None:
        """Return the newest list of a key, or None."""
        return _CRL.one(self._sql.row(_GET_CRL, of_issuer=issuer_id))

    def crl_state(self, issuer_id: str) -> tuple[int, int, datetime, datetime] | None:
        """Return number, revision, beginning and end of the newest list, without the list; None where there is none."""
        row = self._sql.row(_CRL_STATE, of_issuer=issuer_id)
        return None if row is None else (row[0], row[1], from_micros(row[2]), from_micros(row[3]))

    # OCSP

    def delegate(self, issuer_id: str, state: DelegateState) -> HSMDelegate | None:
        """Return the key that answers for *issuer_id*, or the one that is to be certified; or None."""
        return _DELEGATE.one(self._sql.row(_DELEGATE_OF, of_issuer=issuer_id, of_state=state))

    def revisions(self) -> Mapping[str, tuple[int, str]]:
        """Return revision, and serial of who answers, of each key for which somebody does."""
        return {row[0]: (row[1], row[2]) for row in self._sql.rows(_REVISIONS)}

    def put_delegate(self, made: HSMDelegate) -> None:
        """Keep a key in place of the one before; one that is certified is pending no more."""
        self._sql.do(_PUT_DELEGATE, **_DELEGATE.encode(made))
        if made.state == "active":
            self._sql.do(_DROP_DELEGATE, of_issuer=made.issuer_id, of_state="pending")

    def purge(self, before: datetime, limit: int) -> int:
        """Delete up to *limit* certificates that ended before *before*; return how many.

        And as many keys that ended before it, or were followed by others, once nothing is kept that they issued.
        """
        gone = self._sql.run(_PURGE_CERTIFICATES, before=to_micros(before), rows=limit)
        ended = self._sql.rows(_ENDED_KEYS, before=to_micros(before), rows=limit)
        for (issuer_id,) in ended:
            for forget in _FORGET_KEY:
                self._sql.do(forget, of_issuer=issuer_id)
        return max(gone, len(ended))
