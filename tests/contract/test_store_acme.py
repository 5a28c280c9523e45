"""Accounts, keys, orders and nonces of ACME, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.store import ACMEAccount, ACMEKey, ACMEOrder, Store, Tx

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def an_account(number: int = 1, **changes: Any) -> ACMEAccount:
    """Return an account."""
    members: dict[str, Any] = {
        "account_id": f"account-{number}",
        "thumbprint": f"thumbprint-{number}",
        "jwk": "{}",
        "contact": "[]",
        "status": "valid",
        "key_id": None,
        "machine_id": None,
        "created_at": NOW,
    }
    return ACMEAccount(**(members | changes))


def an_order(number: int = 1, **changes: Any) -> ACMEOrder:
    """Return an order of the first account."""
    members: dict[str, Any] = {
        "order_id": f"order-{number}",
        "account_id": "account-1",
        "kind": "permanent-identifier",
        "value": "m",
        "machine_id": "m",
        "status": "pending",
        "token": "t",
        "created_at": NOW,
        "expires_at": NOW + HOUR,
    }
    return ACMEOrder(**(members | changes))


def a_key(number: int = 1, **changes: Any) -> ACMEKey:
    """Return a key for an external account."""
    members: dict[str, Any] = {
        "key_id": f"key-{number}",
        "machine_id": None,
        "note": "",
        "created_at": NOW,
        "created_by": "anna",
        "expires_at": NOW + HOUR,
    }
    return ACMEKey(**(members | changes))


def answered(tx: Tx, at: datetime) -> None:
    """Let there be an order whose challenge was answered."""
    tx.acme.add_account(an_account())
    tx.acme.add_order(an_order(expires_at=at + HOUR))
    assert tx.acme.validated(
        "order-1", at, thumbprint="thumbprint-1", spki=b"spki", ak_name=b"ak", boot="1.0"
    )


def test_a_nonce_is_good_once(store: Store) -> None:
    """The second time it is there already."""
    assert store.write_sync(lambda tx: tx.acme.use("n", NOW + HOUR))
    assert not store.write_sync(lambda tx: tx.acme.use("n", NOW + HOUR))


def test_a_key_makes_one_account(store: Store) -> None:
    """In time, and unless it was taken back; what made its account cannot be taken back any more."""
    for number in (1, 2, 3):
        key = a_key(number)
        store.write_sync(lambda tx, key=key: tx.acme.add_key(key))  # type: ignore[misc]

    def spend(key: str, at: datetime = NOW) -> bool:
        return store.write_sync(lambda tx: tx.acme.spend_key(key, "account-1", at))

    assert spend("key-1")
    assert not spend("key-1")
    assert not store.write_sync(lambda tx: tx.acme.revoke_key("key-1", NOW))
    assert store.write_sync(lambda tx: tx.acme.revoke_key("key-2", NOW))
    assert not store.write_sync(lambda tx: tx.acme.revoke_key("key-2", NOW))
    assert not spend("key-2")
    assert not spend("key-3", NOW + HOUR)
    found = {each.key_id: each for each in store.read_sync(lambda tx: tx.acme.keys(None, 10)).items}
    assert found["key-1"] == a_key(1, account_id="account-1")
    assert found["key-2"] == a_key(2, revoked_at=NOW)
    assert list(found) == ["key-3", "key-2", "key-1"]


def test_an_account_ends_once_and_its_key_is_its_own(store: Store) -> None:
    """Two accounts have no key in common; a key is changed by who has the old one."""
    assert store.write_sync(lambda tx: tx.acme.add_account(an_account(1)))
    assert not store.write_sync(lambda tx: tx.acme.add_account(an_account(1)))
    assert store.write_sync(lambda tx: tx.acme.add_account(an_account(2, key_id="key-1", machine_id="m")))
    assert store.read_sync(lambda tx: tx.acme.count_unbound()) == 1
    assert store.write_sync(lambda tx: tx.acme.change_key(an_account(1), "new", "{1}"))
    assert not store.write_sync(lambda tx: tx.acme.change_key(an_account(1), "newer", "{2}"))
    store.write_sync(lambda tx: tx.acme.set_contact("account-1", "[1]"))
    assert store.write_sync(lambda tx: tx.acme.end_account("account-1", "revoked", NOW))
    assert not store.write_sync(lambda tx: tx.acme.end_account("account-1", "deactivated", NOW))
    now = an_account(1, thumbprint="new", jwk="{1}", contact="[1]", status="revoked", ended_at=NOW)
    assert store.read_sync(lambda tx: tx.acme.account_by_key("new")) == now
    assert not store.write_sync(lambda tx: tx.acme.change_key(now, "newest", "{3}"))
    first = store.read_sync(lambda tx: tx.acme.accounts(None, 1))
    assert [each.account_id for each in first.items] == ["account-2"]
    rest = store.read_sync(lambda tx: tx.acme.accounts(first.next_cursor, 1))
    assert (rest.items, rest.next_cursor) == ((now,), None)


def test_an_order_goes_one_way(store: Store) -> None:
    """Pending, ready, valid, each step once and in time; or it comes to nothing, and stays that."""
    store.write_sync(lambda tx: tx.acme.add_account(an_account()))
    for number in (1, 2, 3):
        order = an_order(number)
        store.write_sync(lambda tx, order=order: tx.acme.add_order(order))  # type: ignore[misc]
    late = NOW + HOUR

    def validate(order: str, at: datetime = NOW) -> bool:
        return store.write_sync(
            lambda tx: tx.acme.validated(order, at, thumbprint="t", spki=b"s", ak_name=b"a", boot="1.2")
        )

    def issue(order: str, at: datetime = NOW) -> bool:
        return store.write_sync(lambda tx: tx.acme.issued(order, "01 02", at))

    assert not issue("order-1")
    assert not validate("order-1", late)
    assert validate("order-1")
    assert not validate("order-1")
    assert not issue("order-1", late)
    assert issue("order-1")
    assert not issue("order-1")
    assert not store.write_sync(lambda tx: tx.acme.failed("order-1", "{}"))
    assert store.write_sync(lambda tx: tx.acme.failed("order-2", "{}"))
    assert not validate("order-2")
    assert store.read_sync(lambda tx: tx.acme.count_open("account-1", NOW)) == 1
    assert store.read_sync(lambda tx: tx.acme.count_open("account-1", late)) == 0
    proven: dict[str, Any] = {
        "thumbprint": "t",
        "spki": b"s",
        "ak_name": b"a",
        "boot": "1.2",
        "validated_at": NOW,
    }
    assert store.read_sync(lambda tx: tx.acme.orders_of("account-1", 10)) == [
        an_order(3),
        an_order(2, status="invalid", error="{}"),
        an_order(1, status="valid", serials="01 02", **proven),
    ]
    page = store.read_sync(lambda tx: tx.acme.orders(None, 2))
    assert [each.order_id for each in page.items] == ["order-3", "order-2"]


@pytest.mark.parametrize("batch", [1, 10])
def test_what_is_over_goes(store: Store, batch: int) -> None:
    """Nonces at their end, the rest later; an account only where it has ended and has no order left."""

    def fill(tx: Tx) -> None:
        for number in (1, 2):
            tx.acme.use(f"n{number}", NOW)
            tx.acme.add_key(a_key(number))
            tx.acme.add_account(an_account(number))
        tx.acme.add_order(an_order(1))
        tx.acme.end_account("account-1", "revoked", NOW)

    store.write_sync(fill)

    def purge(at: datetime, before: datetime) -> list[int]:
        found: list[int] = []
        while not found or found[-1]:
            found.append(store.write_sync(lambda tx: tx.acme.purge(at, before, batch)))
        return found

    assert sum(purge(NOW, NOW)) == 0
    purge(NOW + HOUR, NOW + HOUR)
    assert store.write_sync(lambda tx: tx.acme.use("n1", NOW))
    assert store.read_sync(lambda tx: tx.acme.key("key-2")) == a_key(2)
    assert store.read_sync(lambda tx: tx.acme.order("order-1")) is not None
    purge(NOW + HOUR, NOW + 2 * HOUR)
    assert store.read_sync(lambda tx: tx.acme.key("key-2")) is None
    assert store.read_sync(lambda tx: tx.acme.order("order-1")) is None
    assert store.read_sync(lambda tx: tx.acme.account("account-1")) is None
    assert store.read_sync(lambda tx: tx.acme.account("account-2")) == an_account(2)
