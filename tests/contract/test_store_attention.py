"""What operators should look at: each number counts what it says, and nothing beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from attestation.machines import Machine, Role, Status, Trust
from attestation.results import Verdict
from attestation.store import Issuance, MachineFilter, Store, Tx
from attestation.store.attention import MOST_VENDORS, Troubles
from tests.contract.store_samples import NOW, a_full_machine, a_machine

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
ISSUER = "aa" * 8


def _machine(number: int, **changes: Any) -> Machine:
    return a_machine(number, machine_id=f"00000000-0000-4000-8000-{number:012x}", **changes)


def _add(store: Store, *machines: Machine) -> None:
    def work(tx: Tx) -> None:
        for machine in machines:
            tx.machines.add(machine)

    store.write_sync(work)


def test_who_waits_is_counted_once_by_how_long(store: Store) -> None:
    """Up to an hour, a day, a week, and longer; the bounds belong to the younger; others do not wait."""
    ages = [timedelta(), HOUR, 2 * HOUR, DAY, 2 * DAY, 7 * DAY, 8 * DAY]
    _add(store, *(_machine(i, registered_at=NOW - age) for i, age in enumerate(ages, 1)))
    _add(
        store,
        _machine(20, status=Status.REGISTERED, role=Role.GENERIC, registered_at=NOW - 30 * DAY),
    )
    found = store.read_sync(lambda tx: tx.attention.waiting(NOW))
    assert (found.hour, found.day, found.week, found.longer, found.since) == (2, 2, 2, 1, NOW - 8 * DAY)


def test_troubles_are_those_of_machines_that_are_here(store: Store) -> None:
    """An alarm; a newest result that failed lately; no configuration; late. Neither rejected nor revoked ones count.

    Late ones are those of the list by that trust, whatever their status.
    """
    failed = {"last_verdict": Verdict.FAILED, "last_result_at": NOW - HOUR}
    _add(
        store,
        _machine(1, alarm="it came twice"),
        _machine(2, **failed),
        _machine(3, **failed | {"last_result_at": NOW - 2 * DAY}),
        _machine(4, **failed | {"last_verdict": Verdict.VERIFIED}),
        _machine(5, config_owed_since=NOW),
        _machine(6, status=Status.REJECTED, alarm="it came twice", config_owed_since=NOW, **failed),
        _machine(7, status=Status.REVOKED, alarm="it came twice", config_owed_since=NOW, **failed),
    )
    late = {"last_verdict": Verdict.VERIFIED, "last_result_at": NOW - DAY, "trust_expires_at": NOW}
    _add(store, _machine(8, **late), _machine(9, status=Status.REVOKED, **late))
    found = store.read_sync(lambda tx: tx.attention.troubles(NOW, NOW - DAY))
    listed = MachineFilter(trust=(Trust.STALE, NOW))
    stale = store.read_sync(lambda tx: tx.machines.page(listed, None, 100)).items
    assert found == Troubles(alarms=1, failed=1, undelivered=1, stale=len(stale))
    assert {8, 9} <= {int(m.machine_id[-12:], 16) for m in stale}


def test_the_oldest_result_is_an_attested_machine_s(store: Store) -> None:
    """Who waits, or is locked, attests no more: that says nothing."""
    assert store.read_sync(lambda tx: tx.attention.oldest_result()) is None
    attested = {"status": Status.ATTESTED, "role": Role.GENERIC, "last_verdict": Verdict.VERIFIED}
    _add(
        store,
        _machine(1, last_result_at=NOW - HOUR, hostname="app-1", **attested),
        _machine(2, last_result_at=NOW, **attested),
        _machine(3, **attested | {"last_result_at": NOW - 9 * DAY, "status": Status.LOCKED}),
        _machine(4, **attested | {"last_verdict": None}),
    )
    found = store.read_sync(lambda tx: tx.attention.oldest_result())
    assert found is not None
    assert (found.hostname, found.at) == ("app-1", NOW - HOUR)


def test_makers_are_counted_as_certificates_name_them(store: Store) -> None:
    """The most frequent first; the rest together; who has no certificate apart; who is gone not at all."""
    certificate = a_full_machine().anchor.ek_certificate
    assert certificate is not None

    def made(number: int, maker: str, **changes: Any) -> Machine:
        machine = _machine(number, **changes)
        named = replace(certificate, manufacturer=maker)
        return replace(machine, anchor=replace(machine.anchor, ek_certificate=named))

    many = [made(i, f"M{i:02}") for i in range(1, MOST_VENDORS + 3)]
    _add(store, *many, made(50, "IFX"), made(51, "IFX"), made(52, "STM", status=Status.REVOKED), _machine(53))
    found = store.read_sync(lambda tx: tx.attention.makers())
    assert list(found.named)[:2] == ["IFX", "M01"]
    assert (found.named["IFX"], len(found.named), found.more, found.without) == (2, MOST_VENDORS, 3, 1)


def _issued(number: int, *, left: timedelta, life: timedelta = 10 * DAY, **changed: Any) -> Issuance:
    row = Issuance(
        serial=f"{number:040x}",
        issuer_id=ISSUER,
        profile="node-client",
        state="reserved",
        machine_id=f"m-{number}",
        subject="CN=m",
        spki_sha256="dd" * 32,
        requester="m",
        key_tier=3,
        assurance="ek-chain",
        not_before=NOW + left - life,
        not_after=NOW + left,
        reserved_at=NOW - life,
        renews=None,
    )
    return replace(row, **changed)


@pytest.fixture
def ca(store: Store) -> Store:
    """A store with one CA key."""

    def work(tx: Tx) -> None:
        tx.issuers.reserve(
            ISSUER,
            purpose="machine",
            algorithm="ecdsa-p384",
            key_uri="file:/k.pem",
            owner="w1",
            at=NOW,
            until=NOW + HOUR,
        )
        tx.issuers.complete(
            ISSUER, "active", certificate=b"der", spki_sha256="cc" * 32, key_origin="file", at=NOW
        )

    store.write_sync(work)
    return store


def test_what_is_about_to_end_has_no_successor(ca: Store) -> None:
    """Good ones of machines, in the last fifth of their life; not what ended, is young, revoked, or was followed."""
    rows = [
        _issued(1, left=1 * DAY),
        _issued(2, left=1.5 * DAY),
        _issued(3, left=2 * DAY),
        _issued(4, left=-HOUR),
        _issued(5, left=1 * DAY, machine_id=None),
        _issued(6, left=1 * DAY),
        _issued(7, left=9 * DAY, machine_id="m-6"),
        _issued(8, left=1 * DAY),
        _issued(9, left=9 * DAY, machine_id="m-8", profile="node-server"),
        _issued(10, left=1 * DAY),
    ]

    def work(tx: Tx) -> None:
        for row in rows:
            tx.issuances.reserve(row)
            assert tx.issuances.issued(row.serial, b"der", NOW)
        tx.issuances.revoke_serial(f"{10:040x}", "superseded", "a test", NOW)

    ca.write_sync(work)
    found = ca.read_sync(lambda tx: tx.attention.expiring(NOW))
    assert (found.count, found.first) == (3, NOW + DAY)
