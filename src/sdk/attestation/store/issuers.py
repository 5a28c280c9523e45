"""The keys of our CAs: which signs, which will, which only answers for what it signed; and their newest lists."""

# Algorithms for: ca-key
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from sqlalchemy import BindParameter, and_, bindparam, case, delete, null, or_, select, text, update

from attestation.clock import to_micros
from attestation.errors import IssuerUnknown
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import (
    ACTIVE_ISSUER,
    COMING_ISSUER,
    CAChainRow,
    CRLRow,
    IssuerRow,
    OCSPDelegateRow,
    table_of,
)

_T = table_of(IssuerRow)
_C = _T.c
_H = table_of(CAChainRow)
_HC = _H.c
_L = table_of(CRLRow)
_LC = _L.c
_D = table_of(OCSPDelegateRow)
_DC = _D.c

IssuerPurpose = Literal["machine", "operator"]
IssuerAlgorithm = Literal["ecdsa-p384", "rsa-4096", "ml-dsa-87"]
IssuerState = Literal["reserved", "next", "active", "retiring", "retired", "abandoned"]

PUBLISHED: frozenset[IssuerState] = frozenset({"next", "active", "retiring"})
"""States of a key that relying parties should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """A CA key and its certificate.

    Args:
        issuer_id: 8 random bytes, 16 lower-case hex.
        purpose: Whom it certifies.
        algorithm: Of its key.
        state: `reserved` until it has a certificate; `next` may be published, `active` signs, `retiring` signs
            only revocation lists and answers, `retired` nothing; `abandoned` never signed.
        key_uri: Where its key is; carries no secret.
        key_origin: Where the key was made, as its back-end says: `file`, `generated`, `provisioned`, `tpm`.
        spki_sha256: Of its SubjectPublicKeyInfo, 64 lower-case hex.
        certificate: By itself, DER; None while reserved. See `path` for what relying parties have.
        cross_certificates: DER: this key under the same name, certified by other keys of ours.
        revision: Grows with everything that is revoked, held, released or given up under it.
        crl_number: Of the newest list that was begun; 0 before the first.
        lease_owner: Which process is making it.
        lease_until: Until when others leave it to that one.
        reserved_at: When it was planned.
        created_at: When it got its certificate.
        activated_at: When it began to sign, last.
        retiring_at: When it ceased to, last.
        retired_at: When its last list was made.
        demanded: The revision that a list must know to be served: what was given up since, nobody got.
        chain: DER: what a parent certified of this key under the same name, who certified that, and on; the root
            last. None where nobody stands above it.
    """

    issuer_id: str
    purpose: IssuerPurpose
    algorithm: IssuerAlgorithm
    state: IssuerState
    key_uri: str
    key_origin: str | None = None
    spki_sha256: str | None = None
    certificate: bytes | None = None
    cross_certificates: tuple[bytes, ...] = ()
    revision: int = 0
    crl_number: int = 0
    lease_owner: str | None
    lease_until: datetime | None
    reserved_at: datetime
    created_at: datetime | None = None
    activated_at: datetime | None = None
    retiring_at: datetime | None = None
    retired_at: datetime | None = None
    demanded: int = 0
    chain: tuple[bytes, ...] | None = None

    @property
    def path(self) -> tuple[bytes, ...]:
        """From its certificate to what relying parties believe, DER: that one alone where it vouches for itself."""
        if self.chain is not None:
            return self.chain
        return () if self.certificate is None else (self.certificate,)

    @property
    def sent(self) -> tuple[bytes, ...]:
        """What holders of certificates send after them, DER: without what verifiers must find at home.

        One way only: of two certificates of an issuer, many programs follow the first and never look back.
        """
        return self.cross_certificates if self.chain is None else self.chain[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCRL:
    """A revocation list.

    Args:
        issuer_id: Who signed it.
        number: CRLNumber.
        revision: What its issuer's revision was when its entries were read.
        entries: How many certificates it names.
        this_update: When it was made.
        next_update: Until when it may be used.
        crl: DER.
    """

    issuer_id: str
    number: int
    revision: int
    entries: int
    this_update: datetime
    next_update: datetime
    crl: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDelegate:
    """A key that answers OCSP for a CA key.

    Args:
        issuer_id: For which.
        certificate: What that key says of it, DER.
        sealed_key: The private key; who may open it is the caller's business.
        made_at: When it was certified.
        not_after: Until when it may answer.
    """

    issuer_id: str
    certificate: bytes
    sealed_key: bytes = field(repr=False)
    made_at: datetime
    not_after: datetime


_COLUMNS = (*_C, _HC.chain)
_ROW = codec(Issuer, _COLUMNS)
_SELECT = select(*_COLUMNS).select_from(_T.outerjoin(_H))
_CRL = codec(StoredCRL, _LC)
_DELEGATE = codec(StoredDelegate, _DC)
_OF: BindParameter[str] = bindparam("of_issuer")
_RESERVE = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_GET = Prepared(_SELECT.where(_C.issuer_id == _OF))
_ACTIVE = Prepared(
    _SELECT.where(
        _C.purpose == bindparam("purpose"), _C.algorithm == bindparam("algorithm"), text(ACTIVE_ISSUER)
    )
)
_COMING = Prepared(
    _SELECT.where(
        _C.purpose == bindparam("purpose"),
        _C.algorithm == bindparam("algorithm"),
        text(COMING_ISSUER),
    )
)
_ALL = Prepared(_SELECT.order_by(_C.reserved_at, _C.issuer_id))
_REVISIONS = Prepared(select(_C.issuer_id, _C.demanded).where(_C.certificate.is_not(None)))
_LEASE = Prepared(
    update(_T)
    .where(
        _C.issuer_id == _OF,
        _C.state == "reserved",
        or_(
            _C.lease_until.is_(None), _C.lease_until <= bindparam("at"), _C.lease_owner == bindparam("owner")
        ),
    )
    .values(lease_owner=bindparam("owner"), lease_until=bindparam("until"))
)
_COMPLETE = Prepared(
    update(_T)
    .where(_C.issuer_id == _OF, _C.state == "reserved")
    .values(
        state=bindparam("new_state"),
        certificate=bindparam("certificate"),
        spki_sha256=bindparam("spki_sha256"),
        key_origin=bindparam("key_origin"),
        created_at=bindparam("at"),
        activated_at=case((bindparam("new_state") == "active", bindparam("at")), else_=null()),
        lease_owner=None,
        lease_until=None,
    )
)
_MOVE = Prepared(
    update(_T)
    .where(_C.issuer_id == _OF, _C.state == bindparam("old_state"))
    .values(
        state=bindparam("new_state"),
        activated_at=case((bindparam("new_state") == "active", bindparam("at")), else_=_C.activated_at),
        retiring_at=case(
            (bindparam("new_state") == "retiring", bindparam("at")),
            (bindparam("new_state") == "active", null()),
            else_=_C.retiring_at,
        ),
        retired_at=case((bindparam("new_state") == "retired", bindparam("at")), else_=_C.retired_at),
        lease_owner=None,
        lease_until=None,
    )
)
_PUT_CHAIN = Prepared(
    lambda insert: (
        insert(_H)
        .values(binds(_HC))
        .on_conflict_do_update(index_elements=[_HC.issuer_id], set_=binds(_HC, "issuer_id"))
    )
)
_CROSS = Prepared(
    update(_T).where(_C.issuer_id == _OF).values(cross_certificates=bindparam("cross_certificates"))
)
_BUMP = Prepared(update(_T).where(_C.issuer_id == _OF).values(revision=_C.revision + 1))
_DEMAND = Prepared(
    update(_T).where(_C.issuer_id == _OF).values(revision=_C.revision + 1, demanded=_C.revision + 1)
)
_DELEGATES = Prepared(select(_D))
_PUT_DELEGATE = Prepared(
    lambda insert: (
        insert(_D)
        .values(binds(_DC))
        .on_conflict_do_update(index_elements=[_DC.issuer_id], set_=binds(_DC, "issuer_id"))
    )
)
_DROP_DELEGATE = Prepared(delete(_D).where(_DC.issuer_id == _OF))
_LIST_MAKERS = or_(_C.state == "next", _C.state == "active", _C.state == "retiring")
_BEGIN_CRL = Prepared(
    update(_T)
    .where(
        _C.issuer_id == _OF,
        _LIST_MAKERS,
        or_(
            _C.lease_until.is_(None), _C.lease_until <= bindparam("at"), _C.lease_owner == bindparam("owner")
        ),
    )
    .values(
        crl_number=_C.crl_number + 1,
        lease_owner=bindparam("owner"),
        lease_until=bindparam("until"),
    )
    .returning(_C.crl_number)
)
_END_CRL = Prepared(
    update(_T)
    .where(_C.issuer_id == _OF, _LIST_MAKERS, _C.lease_owner == bindparam("owner"))
    .values(lease_owner=None, lease_until=None)
)
_PUT_CRL = Prepared(
    lambda insert: (
        insert(_L)
        .values(binds(_LC))
        .on_conflict_do_update(
            index_elements=[_LC.issuer_id],
            set_=binds(_LC, "issuer_id"),
            # A list that was begun later may have been read earlier: it shall not hide what the other names.
            where=and_(_LC.number < bindparam("number"), _LC.revision <= bindparam("revision")),
        )
    )
)
_GET_CRL = Prepared(select(_L).where(_LC.issuer_id == _OF))
_CRL_NUMBER = Prepared(select(_LC.number).where(_LC.issuer_id == _OF))


class Issuers:
    """The keys of our CAs, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def reserve(
        self,
        issuer_id: str,
        purpose: IssuerPurpose,
        algorithm: IssuerAlgorithm,
        key_uri: str,
        *,
        owner: str,
        at: datetime,
        until: datetime,
    ) -> bool:
        """Plan a key; False where one of this kind is already planned or waiting."""
        planned = Issuer(
            issuer_id=issuer_id,
            purpose=purpose,
            algorithm=algorithm,
            state="reserved",
            key_uri=key_uri,
            lease_owner=owner,
            lease_until=until,
            reserved_at=at,
        )
        columns = _ROW.encode(planned)
        del columns[_HC.chain.name]
        return self._sql.run(_RESERVE, **columns) == 1

    def get(self, issuer_id: str) -> Issuer | None:
        """Return the key called *issuer_id*, in whatever state, or None."""
        return _ROW.one(self._sql.row(_GET, of_issuer=issuer_id))

    def active(self, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> Issuer | None:
        """Return the key that signs, or None before there is one."""
        return _ROW.one(self._sql.row(_ACTIVE, purpose=purpose, algorithm=algorithm))

    def coming(self, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> Issuer | None:
        """Return the key that is reserved or next, or None."""
        return _ROW.one(self._sql.row(_COMING, purpose=purpose, algorithm=algorithm))

    def all(self) -> tuple[Issuer, ...]:
        """Return every key, oldest first; they are few."""
        return tuple(map(_ROW.decode, self._sql.rows(_ALL)))

    def revisions(self) -> Mapping[str, int]:
        """Return the demanded revision of every key that has a certificate: what caches of answers compare."""
        return dict(map(tuple, self._sql.rows(_REVISIONS)))

    def lease(self, issuer_id: str, *, owner: str, at: datetime, until: datetime) -> bool:
        """Take or keep the work on a reserved key; False where somebody else has it, or it is made."""
        return (
            self._sql.run(_LEASE, of_issuer=issuer_id, owner=owner, at=to_micros(at), until=to_micros(until))
            == 1
        )

    def complete(
        self,
        issuer_id: str,
        state: Literal["active", "next"],
        *,
        certificate: bytes,
        spki_sha256: str,
        key_origin: str,
        at: datetime,
    ) -> bool:
        """Give a reserved key its certificate; False where somebody else did."""
        changed = self._sql.run(
            _COMPLETE,
            of_issuer=issuer_id,
            new_state=state,
            certificate=certificate,
            spki_sha256=spki_sha256,
            key_origin=key_origin,
            at=to_micros(at),
        )
        return changed == 1

    def move(self, issuer_id: str, old: IssuerState, new: IssuerState, at: datetime) -> bool:
        """Change the state of a key; False where it is not in *old*. Which moves there are is the caller's rule."""
        return self._sql.run(_MOVE, of_issuer=issuer_id, old_state=old, new_state=new, at=to_micros(at)) == 1

    def set_cross_certificates(self, issuer_id: str, certificates: Iterable[bytes]) -> None:
        """Replace the cross certificates of a key.

        Raises:
            IssuerUnknown: No such key.
        """
        held = _ROW.stored({"cross_certificates": certificates})
        if self._sql.run(_CROSS, of_issuer=issuer_id, **held) != 1:
            raise IssuerUnknown(f"no CA key {issuer_id!r}")

    def put_chain(self, issuer_id: str, chain: tuple[bytes, ...], at: datetime) -> None:
        """Let a parent vouch for a key from now on; whether it does is the caller's rule."""
        held = _ROW.stored({"chain": chain})
        self._sql.do(_PUT_CHAIN, issuer_id=issuer_id, imported_at=to_micros(at), **held)

    def bump(self, issuer_ids: Iterable[str], *, held_by_somebody: bool) -> None:
        """Say that something was revoked, held, released or given up under these keys: a newer list is due.

        Args:
            issuer_ids: Which keys.
            held_by_somebody: It concerns certificates that somebody has. Lists that do not know it are not served any
                more; where nobody got anything, they mislead nobody.
        """
        for issuer_id in sorted(set(issuer_ids)):
            self._sql.do(_DEMAND if held_by_somebody else _BUMP, of_issuer=issuer_id)

    def delegates(self) -> tuple[StoredDelegate, ...]:
        """Return the keys that answer OCSP, one at most for each CA key."""
        return tuple(map(_DELEGATE.decode, self._sql.rows(_DELEGATES)))

    def put_delegate(self, made: StoredDelegate) -> None:
        """Keep a key that answers OCSP, in place of the one before."""
        self._sql.do(_PUT_DELEGATE, **_DELEGATE.encode(made))

    def drop_delegate(self, issuer_id: str) -> None:
        """Forget the key that answered for a CA key."""
        self._sql.do(_DROP_DELEGATE, of_issuer=issuer_id)

    def begin_crl(self, issuer_id: str, *, owner: str, at: datetime, until: datetime) -> int | None:
        """Begin a list of a key: return its CRLNumber, or None where somebody else is making one.

        No other list ever gets the number, also where this one is never made. Until *until* others leave the
        work to *owner*.
        """
        row = self._sql.row(
            _BEGIN_CRL, of_issuer=issuer_id, owner=owner, at=to_micros(at), until=to_micros(until)
        )
        return None if row is None else int(row[0])

    def end_crl(self, issuer_id: str, *, owner: str) -> None:
        """Let others make lists of a key again."""
        self._sql.do(_END_CRL, of_issuer=issuer_id, owner=owner)

    def put_crl(self, made: StoredCRL) -> bool:
        """Keep a list as the newest; False where one with a higher number, or that knows more, is kept."""
        return self._sql.run(_PUT_CRL, **_CRL.encode(made)) == 1

    def kept_crl_number(self, issuer_id: str) -> int | None:
        """Return the CRLNumber of the newest list of a key, or None."""
        row = self._sql.row(_CRL_NUMBER, of_issuer=issuer_id)
        return None if row is None else int(row[0])

    def crl(self, issuer_id: str) -> StoredCRL | None:
        """Return the newest list of a key, or None."""
        return _CRL.one(self._sql.row(_GET_CRL, of_issuer=issuer_id))
