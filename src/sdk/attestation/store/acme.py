"""ACME: accounts, the keys that let somebody make one, orders, and nonces that were used.

An order has one identifier, so its authorization and challenge are the same row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from sqlalchemy import bindparam, delete, func, insert, or_, select, update

from attestation.clock import to_micros
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ACMEAccountRow, ACMEKeyRow, ACMENonceRow, ACMEOrderRow, table_of

_K = table_of(ACMEKeyRow)
_A = table_of(ACMEAccountRow)
_O = table_of(ACMEOrderRow)
_N = table_of(ACMENonceRow)

ACMEAccountStatus = Literal["valid", "deactivated", "revoked"]
ACMEIdentifierKind = Literal["permanent-identifier", "dns"]
ACMEOrderStatus = Literal["pending", "ready", "valid", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ACMEKey:
    """A key with which somebody may make one account (RFC 8555, 7.3.4). The key itself is derived, and kept nowhere.

    Args:
        key_id: Its name.
        machine_id: The account asks for this machine alone; None: for any.
        note: Whom it is for, in an operator's words.
        created_at: When.
        created_by: By whom.
        expires_at: From this instant on it makes no account.
        account_id: The account that was made with it, or None.
        revoked_at: When an operator took it back, or None.
    """

    key_id: str
    machine_id: str | None
    note: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    account_id: str | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ACMEAccount:
    """An account.

    Args:
        account_id: Its name, in its URL.
        thumbprint: Of its key, SHA-256, base64url (RFC 7638).
        jwk: Its public key, JSON.
        contact: URLs, a JSON list.
        status: Whether it may ask.
        key_id: Of the key that it was made with, or None.
        machine_id: It asks for this machine alone; None: for any.
        created_at: When.
        ended_at: When it was deactivated or revoked, or None.
    """

    account_id: str
    thumbprint: str
    jwk: str
    contact: str
    status: ACMEAccountStatus
    key_id: str | None
    machine_id: str | None
    created_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ACMEOrder:
    """An order, with its authorization and challenge.

    Args:
        order_id: Its name, in the URLs.
        account_id: Whose.
        kind: Type of the identifier.
        value: The identifier.
        machine_id: The machine that it means.
        status: Of the order; `ready` from when its challenge is valid.
        token: Of the challenge.
        error: A problem, JSON: why it is invalid; or None.
        thumbprint: Of the account's key that answered the challenge; only that key may finalize it.
        spki: The key that the machine's TPM certified, SubjectPublicKeyInfo DER; None of what is no attestation.
        ak_name: Name of the AK that did, or None.
        boot: Reset and restart counts of the TPM then, or None.
        created_at: When.
        expires_at: From this instant on nothing follows from it.
        validated_at: When its challenge was answered, or None.
        serials: Serial numbers of what was issued, by spaces.
    """

    order_id: str
    account_id: str
    kind: ACMEIdentifierKind
    value: str
    machine_id: str
    status: ACMEOrderStatus
    token: str
    error: str | None = None
    thumbprint: str | None = None
    spki: bytes | None = field(default=None, repr=False)
    ak_name: bytes | None = None
    boot: str | None = None
    created_at: datetime
    expires_at: datetime
    validated_at: datetime | None = None
    serials: str = ""


_OPEN = or_(_O.c.status == "pending", _O.c.status == "ready")

_KEY = codec(ACMEKey, _K.c, besides=("id",))
_ACCOUNT = codec(ACMEAccount, _A.c, besides=("id",))
_ORDER = codec(ACMEOrder, _O.c, besides=("id",))

_ADD_KEY = Prepared(insert(_K).values(binds(_K.c, "id")))
_KEY_OF = Prepared(select(_K).where(_K.c.key_id == bindparam("of_key")))
_KEYS = Prepared(
    select(_K).where(_K.c.id < bindparam("before")).order_by(_K.c.id.desc()).limit(bindparam("rows"))
)
_SPEND_KEY = Prepared(
    update(_K)
    .where(
        _K.c.key_id == bindparam("of_key"),
        _K.c.account_id.is_(None),
        _K.c.revoked_at.is_(None),
        _K.c.expires_at > bindparam("at"),
    )
    .values(account_id=bindparam("of_account"))
)
_REVOKE_KEY = Prepared(
    update(_K)
    .where(_K.c.key_id == bindparam("of_key"), _K.c.revoked_at.is_(None), _K.c.account_id.is_(None))
    .values(revoked_at=bindparam("at"))
)
_PURGE_KEYS = Prepared(
    delete(_K).where(
        _K.c.key_id.in_(
            select(_K.c.key_id).where(_K.c.expires_at < bindparam("before")).limit(bindparam("rows"))
        )
    )
)

_ADD_ACCOUNT = Prepared(lambda insert: insert(_A).values(binds(_A.c, "id")).on_conflict_do_nothing())
_ACCOUNT_OF = Prepared(select(_A).where(_A.c.account_id == bindparam("of_account")))
_ACCOUNT_BY_KEY = Prepared(select(_A).where(_A.c.thumbprint == bindparam("of_thumbprint")))
_ACCOUNTS = Prepared(
    select(_A).where(_A.c.id < bindparam("before")).order_by(_A.c.id.desc()).limit(bindparam("rows"))
)
_COUNT_UNBOUND = Prepared(select(func.count()).select_from(_A).where(_A.c.key_id.is_(None)))
_CONTACT = Prepared(
    update(_A).where(_A.c.account_id == bindparam("of_account")).values(contact=bindparam("all_contacts"))
)
_END_ACCOUNT = Prepared(
    update(_A)
    .where(_A.c.account_id == bindparam("of_account"), _A.c.status == "valid")
    .values(status=bindparam("as_status"), ended_at=bindparam("at"))
)
_NEW_KEY = Prepared(
    update(_A)
    .where(
        _A.c.account_id == bindparam("of_account"),
        _A.c.thumbprint == bindparam("old_thumbprint"),
        _A.c.status == "valid",
    )
    .values(thumbprint=bindparam("new_thumbprint"), jwk=bindparam("new_jwk"))
)
_PURGE_ACCOUNTS = Prepared(
    delete(_A).where(
        _A.c.id.in_(
            select(_A.c.id)
            .where(
                _A.c.ended_at < bindparam("before"),
                _A.c.account_id.not_in(select(_O.c.account_id)),
            )
            .limit(bindparam("rows"))
        )
    )
)

_ADD_ORDER = Prepared(insert(_O).values(binds(_O.c, "id")))
_ORDER_OF = Prepared(select(_O).where(_O.c.order_id == bindparam("of_order")))
_ORDERS_OF = Prepared(
    select(_O)
    .where(_O.c.account_id == bindparam("of_account"))
    .order_by(_O.c.id.desc())
    .limit(bindparam("rows"))
)
_COUNT_OPEN = Prepared(
    select(func.count())
    .select_from(_O)
    .where(
        _O.c.account_id == bindparam("of_account"),
        _OPEN,
        _O.c.expires_at > bindparam("at"),
    )
)
_ORDERS = Prepared(
    select(_O).where(_O.c.id < bindparam("before")).order_by(_O.c.id.desc()).limit(bindparam("rows"))
)
_VALIDATED = Prepared(
    update(_O)
    .where(
        _O.c.order_id == bindparam("of_order"),
        _O.c.status == "pending",
        _O.c.expires_at > bindparam("at"),
    )
    .values(
        status="ready",
        validated_at=bindparam("at"),
        thumbprint=bindparam("by_thumbprint"),
        spki=bindparam("with_spki"),
        ak_name=bindparam("by_ak"),
        boot=bindparam("in_boot"),
    )
)
_FAILED = Prepared(
    update(_O)
    .where(_O.c.order_id == bindparam("of_order"), _OPEN)
    .values(status="invalid", error=bindparam("because"))
)
_ISSUED = Prepared(
    update(_O)
    .where(_O.c.order_id == bindparam("of_order"), _O.c.status == "ready", _O.c.expires_at > bindparam("at"))
    .values(status="valid", serials=bindparam("all_serials"))
)
_PURGE_ORDERS = Prepared(
    delete(_O).where(
        _O.c.id.in_(select(_O.c.id).where(_O.c.expires_at < bindparam("before")).limit(bindparam("rows")))
    )
)

_USE_NONCE = Prepared(lambda insert: insert(_N).values(binds(_N.c)).on_conflict_do_nothing())
_PURGE_NONCES = Prepared(
    delete(_N).where(
        _N.c.nonce.in_(
            select(_N.c.nonce).where(_N.c.expires_at < bindparam("before")).limit(bindparam("rows"))
        )
    )
)


class ACME:
    """Keys, accounts, orders and nonces, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Nonces

    def use(self, nonce: str, expires_at: datetime) -> bool:
        """Use a nonce up; of any number of racers exactly one gets True."""
        return self._sql.run(_USE_NONCE, nonce=nonce, expires_at=to_micros(expires_at)) > 0

    # Keys for external accounts

    def add_key(self, key: ACMEKey) -> None:
        """Store a new key."""
        self._sql.do(_ADD_KEY, **_KEY.encode(key))

    def key(self, key_id: str) -> ACMEKey | None:
        """Return a key, or None."""
        return _KEY.one(self._sql.row(_KEY_OF, of_key=key_id))

    def keys(self, cursor: str | None, limit: int) -> Page[ACMEKey]:
        """Return a page of keys, newest first.

        Raises:
            RequestInvalid: A cursor that is none, or a limit out of bounds.
        """
        kind = "acme-keys"
        rows = self._sql.rows(_KEYS, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _KEY.decode)

    def spend_key(self, key_id: str, account_id: str, at: datetime) -> bool:
        """Let an account be the one of a key; False where the key makes none any more."""
        return self._sql.run(_SPEND_KEY, of_key=key_id, of_account=account_id, at=to_micros(at)) > 0

    def revoke_key(self, key_id: str, at: datetime) -> bool:
        """Take a key back; False where it made its account, or was taken back before."""
        return self._sql.run(_REVOKE_KEY, of_key=key_id, at=to_micros(at)) > 0

    # Accounts

    def add_account(self, account: ACMEAccount) -> bool:
        """Store a new account; False where its key has one."""
        return self._sql.run(_ADD_ACCOUNT, **_ACCOUNT.encode(account)) > 0

    def account(self, account_id: str) -> ACMEAccount | None:
        """Return an account, or None."""
        return _ACCOUNT.one(self._sql.row(_ACCOUNT_OF, of_account=account_id))

    def account_by_key(self, thumbprint: str) -> ACMEAccount | None:
        """Return the account of a key, or None."""
        return _ACCOUNT.one(self._sql.row(_ACCOUNT_BY_KEY, of_thumbprint=thumbprint))

    def accounts(self, cursor: str | None, limit: int) -> Page[ACMEAccount]:
        """Return a page of accounts, newest first.

        Raises:
            RequestInvalid: A cursor that is none, or a limit out of bounds.
        """
        kind = "acme-accounts"
        rows = self._sql.rows(_ACCOUNTS, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ACCOUNT.decode)

    def count_unbound(self) -> int:
        """Return how many accounts were made without a key of ours."""
        return self._count(_COUNT_UNBOUND)

    def set_contact(self, account_id: str, contact: str) -> None:
        """Write the contacts of an account."""
        self._sql.do(_CONTACT, of_account=account_id, all_contacts=contact)

    def end_account(self, account_id: str, status: ACMEAccountStatus, at: datetime) -> bool:
        """End an account for good; False where it has ended before."""
        return self._sql.run(_END_ACCOUNT, of_account=account_id, as_status=status, at=to_micros(at)) > 0

    def change_key(self, account: ACMEAccount, thumbprint: str, jwk: str) -> bool:
        """Give an account another key, which no other has; False where it was changed meanwhile."""
        return (
            self._sql.run(
                _NEW_KEY,
                of_account=account.account_id,
                old_thumbprint=account.thumbprint,
                new_thumbprint=thumbprint,
                new_jwk=jwk,
            )
            > 0
        )

    # Orders

    def add_order(self, order: ACMEOrder) -> None:
        """Store a new order."""
        self._sql.do(_ADD_ORDER, **_ORDER.encode(order))

    def order(self, order_id: str) -> ACMEOrder | None:
        """Return an order, or None."""
        return _ORDER.one(self._sql.row(_ORDER_OF, of_order=order_id))

    def orders_of(self, account_id: str, limit: int) -> list[ACMEOrder]:
        """Return the newest orders of an account."""
        return [_ORDER.decode(row) for row in self._sql.rows(_ORDERS_OF, of_account=account_id, rows=limit)]

    def orders(self, cursor: str | None, limit: int) -> Page[ACMEOrder]:
        """Return a page of orders, newest first.

        Raises:
            RequestInvalid: A cursor that is none, or a limit out of bounds.
        """
        kind = "acme-orders"
        rows = self._sql.rows(_ORDERS, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ORDER.decode)

    def count_open(self, account_id: str, at: datetime) -> int:
        """Return how many orders of an account wait for something."""
        return self._count(_COUNT_OPEN, of_account=account_id, at=to_micros(at))

    def validated(
        self,
        order_id: str,
        at: datetime,
        *,
        thumbprint: str,
        spki: bytes | None = None,
        ak_name: bytes | None = None,
        boot: str | None = None,
    ) -> bool:
        """Say that the challenge of an order was answered; False where it is not pending any more."""
        changed = self._sql.run(
            _VALIDATED,
            of_order=order_id,
            at=to_micros(at),
            by_thumbprint=thumbprint,
            with_spki=spki,
            by_ak=ak_name,
            in_boot=boot,
        )
        return changed > 0

    def failed(self, order_id: str, problem: str) -> bool:
        """Say that an order comes to nothing; False where it is neither pending nor ready."""
        return self._sql.run(_FAILED, of_order=order_id, because=problem) > 0

    def issued(self, order_id: str, serials: str, at: datetime) -> bool:
        """Say what was issued for an order; of any number of racers exactly one gets True."""
        return self._sql.run(_ISSUED, of_order=order_id, all_serials=serials, at=to_micros(at)) > 0

    def purge(self, at: datetime, orders_before: datetime, batch: int) -> int:
        """Delete up to *batch* rows of each kind that nothing needs; return how many of the kind with the most.

        Args:
            at: Now: nonces and keys for accounts go after their end.
            orders_before: Orders that ended before, and accounts that did and have none.
            batch: At most so many.
        """
        now, ended = to_micros(at), to_micros(orders_before)
        return max(
            self._sql.run(_PURGE_NONCES, before=now, rows=batch),
            self._sql.run(_PURGE_KEYS, before=ended, rows=batch),
            self._sql.run(_PURGE_ORDERS, before=ended, rows=batch),
            self._sql.run(_PURGE_ACCOUNTS, before=ended, rows=batch),
        )

    def _count(self, statement: Prepared, **values: object) -> int:
        row = self._sql.row(statement, **values)
        assert row is not None
        count: int = row[0]
        return count
