"""The issuance log, the CA keys and their lists: what no race and no crash may break."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.errors import CertificateUnknown, IssuerUnknown, RequestInvalid
from attestation.store import Issuance, IssuanceFilter, Issuer, Store, StoredCRL, Tx

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=30)
DAY = timedelta(days=1)
ISSUER, OTHER = "aa" * 8, "bb" * 8
MACHINE, NEIGHBOUR = "m-1", "m-2"


def reserve_issuer(store: Store, issuer_id: str = ISSUER, **changed: Any) -> bool:
    values: dict[str, Any] = {"purpose": "machine", "algorithm": "ecdsa-p384", "key_uri": "file:/k.pem"}
    values |= {"owner": "w1", "at": NOW, "until": SOON} | changed
    return store.write_sync(lambda tx: tx.issuers.reserve(issuer_id, **values))


def complete(store: Store, issuer_id: str = ISSUER, state: Any = "active") -> bool:
    return store.write_sync(
        lambda tx: tx.issuers.complete(
            issuer_id, state, certificate=b"der", spki_sha256="cc" * 32, key_origin="file", at=NOW
        )
    )


@pytest.fixture
def ca(store: Store) -> Store:
    """A store with one active CA key."""
    assert reserve_issuer(store)
    assert complete(store)
    return store


def issuer(store: Store, issuer_id: str = ISSUER) -> Issuer:
    found = store.read_sync(lambda tx: tx.issuers.get(issuer_id))
    assert found is not None
    return found


def planned(number: int, **changed: Any) -> Issuance:
    row = Issuance(
        serial=f"{number:040x}",
        issuer_id=ISSUER,
        profile="node-client",
        state="reserved",
        machine_id=MACHINE,
        subject="CN=m-1",
        spki_sha256="dd" * 32,
        requester=MACHINE,
        key_tier=3,
        assurance="ek-chain",
        renews=None,
        not_before=NOW,
        not_after=NOW + DAY,
        reserved_at=NOW,
    )
    return replace(row, **changed)


def reserve(store: Store, *rows: Issuance) -> None:
    def work(tx: Tx) -> None:
        for row in rows:
            tx.issuances.reserve(row)

    store.write_sync(work)


def issue(store: Store, *rows: Issuance) -> None:
    reserve(store, *rows)
    store.write_sync(lambda tx: [tx.issuances.issued(row.serial, b"cert", NOW) for row in rows])


def state(store: Store, number: int) -> str:
    found = store.read_sync(lambda tx: tx.issuances.get(f"{number:040x}"))
    assert found is not None
    return found.state


def listed(store: Store) -> list[str]:
    return [row.serial for row in store.read_sync(lambda tx: tx.issuances.listed(ISSUER, NOW))]


# ---------------------------------------------------------------- CA keys


def test_one_key_of_a_kind_is_coming_and_one_signs(store: Store) -> None:
    """However many starters reserve, one row is made; another purpose or algorithm is another matter."""
    assert reserve_issuer(store)
    assert not reserve_issuer(store, OTHER)
    assert reserve_issuer(store, OTHER, algorithm="ml-dsa-87")
    assert reserve_issuer(store, "cc" * 8, purpose="operator")
    assert complete(store)
    # A second active one of the kind is refused by the database itself.
    assert reserve_issuer(store, "dd" * 8)
    assert complete(store, "dd" * 8, "next")
    with pytest.raises(Exception, match=r"(?i)unique constraint"):
        store.write_sync(lambda tx: tx.issuers.move("dd" * 8, "next", "active", NOW))
    assert [each.issuer_id for each in store.read_sync(lambda tx: tx.issuers.all())] == sorted(
        [ISSUER, OTHER, "cc" * 8, "dd" * 8]
    )


def test_a_reserved_key_is_worked_on_by_one(store: Store) -> None:
    """A lease is kept by its owner, taken over when it has run out, and means nothing once the key is made."""
    reserve_issuer(store)

    def lease(owner: str, at: datetime) -> bool:
        return store.write_sync(lambda tx: tx.issuers.lease(ISSUER, owner=owner, at=at, until=at + DAY))

    assert not lease("w2", NOW)
    assert lease("w1", NOW)
    assert not lease("w2", SOON)
    assert lease("w2", NOW + DAY)
    assert not lease("w1", NOW + DAY)
    assert complete(store)
    assert not complete(store)
    assert not lease("w2", NOW + DAY)
    made = issuer(store)
    assert (made.state, made.certificate, made.activated_at, made.lease_owner) == (
        "active",
        b"der",
        NOW,
        None,
    )


def test_states_move_from_what_they_are(ca: Store) -> None:
    """A move from another state than assumed changes nothing; instants tell when."""
    reserve_issuer(ca, OTHER)
    complete(ca, OTHER, "next")
    assert issuer(ca, OTHER).activated_at is None

    def swap(tx: Tx) -> tuple[bool, bool]:
        return tx.issuers.move(ISSUER, "active", "retiring", SOON), tx.issuers.move(
            OTHER, "next", "active", SOON
        )

    assert ca.write_sync(swap) == (True, True)
    assert not ca.write_sync(lambda tx: tx.issuers.move(ISSUER, "active", "retiring", SOON))
    assert (issuer(ca).state, issuer(ca).retiring_at) == ("retiring", SOON)
    assert issuer(ca, OTHER).activated_at == SOON
    active = ca.read_sync(lambda tx: tx.issuers.active("machine", "ecdsa-p384"))
    assert active is not None
    assert active.issuer_id == OTHER
    assert ca.read_sync(lambda tx: tx.issuers.coming("machine", "ecdsa-p384")) is None
    # Back again: it is as if it had never retired.
    ca.write_sync(lambda tx: tx.issuers.move(OTHER, "active", "next", SOON))
    ca.write_sync(lambda tx: tx.issuers.move(ISSUER, "retiring", "active", SOON))
    assert (issuer(ca).retiring_at, issuer(ca).activated_at) == (None, SOON)
    ca.write_sync(lambda tx: tx.issuers.move(ISSUER, "active", "retiring", SOON))
    ca.write_sync(lambda tx: tx.issuers.move(ISSUER, "retiring", "retired", NOW + DAY))
    assert issuer(ca).retired_at == NOW + DAY


def test_cross_certificates_are_kept(ca: Store) -> None:
    """In their order; an unknown key is an error."""
    ca.write_sync(lambda tx: tx.issuers.set_cross_certificates(ISSUER, [b"one", b"two"]))
    assert issuer(ca).cross_certificates == (b"one", b"two")
    with pytest.raises(IssuerUnknown):
        ca.write_sync(lambda tx: tx.issuers.set_cross_certificates(OTHER, []))


def begin(store: Store, owner: str = "w1", at: datetime = NOW, issuer_id: str = ISSUER) -> int | None:
    return store.write_sync(
        lambda tx: tx.issuers.begin_crl(issuer_id, owner=owner, at=at, until=at + timedelta(seconds=30))
    )


def put_list(store: Store, number: int, revision: int) -> bool:
    made = StoredCRL(
        issuer_id=ISSUER,
        number=number,
        revision=revision,
        entries=0,
        this_update=NOW,
        next_update=NOW + DAY,
        crl=b"list%d" % number,
    )
    return store.write_sync(lambda tx: tx.issuers.put_crl(made))


def test_one_makes_lists_at_a_time(ca: Store) -> None:
    """Whoever begins has it until it ends or its time is up; each beginning takes a number, used or not."""
    assert begin(ca) == 1
    assert begin(ca, "w2") is None
    assert begin(ca) == 2
    ca.write_sync(lambda tx: tx.issuers.end_crl(ISSUER, owner="w2"))
    assert begin(ca, "w2") is None
    ca.write_sync(lambda tx: tx.issuers.end_crl(ISSUER, owner="w1"))
    assert begin(ca, "w2") == 3
    assert begin(ca, "w1", NOW + timedelta(seconds=29)) is None
    assert begin(ca, "w1", NOW + timedelta(seconds=30)) == 4
    assert begin(ca, issuer_id=OTHER) is None


@pytest.mark.parametrize(("state", "makes"), [("next", True), ("retiring", True), ("retired", False)])
def test_which_keys_make_lists(ca: Store, state: Any, makes: bool) -> None:
    """A key that is not published any more, or not yet, signs none."""
    ca.write_sync(lambda tx: tx.issuers.move(ISSUER, "active", state, NOW))
    assert (begin(ca) is not None) is makes
    assert reserve_issuer(ca, OTHER, algorithm="rsa-4096")
    assert begin(ca, "w1", issuer_id=OTHER) is None


@pytest.mark.threat("T114")
def test_numbers_of_lists_only_rise(ca: Store) -> None:
    """An older list never replaces a newer one, and none that knows less one that knows more."""
    assert ca.read_sync(lambda tx: tx.issuers.crl(ISSUER)) is None
    assert ca.read_sync(lambda tx: tx.issuers.kept_crl_number(ISSUER)) is None
    assert put_list(ca, 2, 2)
    assert not put_list(ca, 1, 3)
    assert not put_list(ca, 2, 3)
    assert not put_list(ca, 3, 1)
    assert put_list(ca, 4, 2)
    kept = ca.read_sync(lambda tx: tx.issuers.crl(ISSUER))
    assert kept is not None
    assert (kept.number, kept.crl, kept.next_update) == (4, b"list4", NOW + DAY)
    assert ca.read_sync(lambda tx: tx.issuers.kept_crl_number(ISSUER)) == 4


# ---------------------------------------------------------------- the issuance log


def test_a_serial_is_taken_once(ca: Store) -> None:
    """The same serial twice is refused by the database, and undoes the unit."""
    reserve(ca, planned(1))
    with pytest.raises(Exception, match=r"(?i)unique constraint"):
        reserve(ca, planned(2), planned(1))
    assert ca.read_sync(lambda tx: tx.issuances.get(planned(2).serial)) is None


def test_what_is_given_up_meanwhile_is_not_issued(ca: Store) -> None:
    """Whoever signs while a machine is locked finds out when it writes down; the list names the serial."""
    reserve(ca, planned(1), planned(2, machine_id=NEIGHBOUR))
    given_up = ca.write_sync(lambda tx: tx.issuances.void_machine(MACHINE, "lock", NOW))
    assert given_up == (planned(1).serial,)
    assert not ca.write_sync(lambda tx: tx.issuances.issued(planned(1).serial, b"cert", NOW))
    assert ca.write_sync(lambda tx: tx.issuances.issued(planned(2).serial, b"cert", NOW))
    assert not ca.write_sync(lambda tx: tx.issuances.issued(planned(2).serial, b"other", NOW))
    assert (state(ca, 1), state(ca, 2)) == ("void", "issued")
    assert listed(ca) == [planned(1).serial]
    assert not ca.write_sync(lambda tx: tx.issuances.void(planned(2).serial, "late", NOW))


def test_hold_release_revoke(ca: Store) -> None:
    """Each changes the good certificates of one machine, says which, and counts up the issuer's revision."""
    issue(ca, planned(1), planned(2), planned(3, machine_id=NEIGHBOUR))
    serials = (planned(1).serial, planned(2).serial)
    before = issuer(ca).revision
    assert ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW)) == serials
    assert listed(ca) == list(serials)
    assert ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW)) == ()
    assert issuer(ca).revision == before + 1
    assert ca.write_sync(lambda tx: tx.issuances.release(MACHINE, "unlock")) == serials
    assert ca.write_sync(lambda tx: tx.issuances.release(MACHINE, "unlock")) == ()
    assert listed(ca) == []
    ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW))
    revoked = ca.write_sync(lambda tx: tx.issuances.revoke(MACHINE, "cessationOfOperation", "revoke", SOON))
    assert revoked == serials
    assert state(ca, 3) == "issued"
    assert issuer(ca).revision == before + 4
    kept = ca.read_sync(lambda tx: tx.issuances.get(serials[0]))
    assert kept is not None
    # It was not good since the hold.
    assert (kept.state, kept.reason, kept.ended_at) == ("revoked", "cessationOfOperation", NOW)
    # Terminal: nothing brings it back.
    assert ca.write_sync(lambda tx: tx.issuances.release(MACHINE, "unlock")) == ()
    assert ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW)) == ()
    assert ca.read_sync(lambda tx: tx.issuers.revisions()) == {ISSUER: before + 4}


def test_what_nobody_got_makes_no_list_wrong(ca: Store) -> None:
    """A serial that is given up asks for a newer list; only what somebody has is demanded of the one that is served."""
    reserve(ca, planned(1))
    reserve(ca, planned(2))
    issue(ca, planned(3))
    before = issuer(ca)
    ca.write_sync(lambda tx: tx.issuances.void(planned(1).serial, "x", NOW))
    ca.write_sync(lambda tx: tx.issuances.void_machine(MACHINE, "x", NOW))
    after = issuer(ca)
    assert (after.revision, after.demanded) == (before.revision + 2, before.demanded)
    ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW))
    assert issuer(ca).demanded == issuer(ca).revision == after.revision + 1


def test_one_serial_is_revoked_once(ca: Store) -> None:
    """Revoking again says so; a reserved one is given up; an unknown one is an error."""

    def revoke(number: int) -> bool:
        serial = planned(number).serial
        return ca.write_sync(lambda tx: tx.issuances.revoke_serial(serial, "keyCompromise", "lost", SOON))

    issue(ca, planned(1))
    reserve(ca, planned(2))
    assert (revoke(1), revoke(1), state(ca, 1)) == (True, False, "revoked")
    assert (revoke(2), revoke(2), state(ca, 2)) == (True, False, "void")
    with pytest.raises(CertificateUnknown):
        revoke(9)


def test_lists_forget_what_has_ended(ca: Store) -> None:
    """Entries go when their certificate ended before the instant that the maker chose; order is by serial."""
    issue(ca, planned(2), planned(1), planned(3, not_after=NOW + timedelta(hours=1)))
    ca.write_sync(lambda tx: tx.issuances.revoke(MACHINE, "superseded", "x", NOW))
    assert listed(ca) == [planned(n).serial for n in (1, 2, 3)]
    later = ca.read_sync(lambda tx: tx.issuances.listed(ISSUER, NOW + timedelta(hours=1)))
    assert [(row.serial, row.ended_at, row.reason) for row in later] == [
        (planned(n).serial, NOW, "superseded") for n in (1, 2)
    ]


def test_what_has_expired_is_neither_held_nor_revoked(ca: Store) -> None:
    """Its end is its end: a list need not grow by it."""
    issue(ca, planned(1, not_after=NOW))
    assert ca.write_sync(lambda tx: tx.issuances.hold(MACHINE, "lock", NOW)) == ()
    assert ca.write_sync(lambda tx: tx.issuances.revoke(MACHINE, "superseded", "x", NOW)) == ()


def test_undecided_serials_are_found(ca: Store) -> None:
    """Those reserved before an instant and neither issued nor given up, oldest first."""
    reserve(ca, planned(1), planned(2, reserved_at=SOON), planned(3))
    ca.write_sync(lambda tx: tx.issuances.void(planned(3).serial, "x", NOW))
    stale = ca.read_sync(lambda tx: tx.issuances.stale(SOON, 10))
    assert [row.serial for row in stale] == [planned(1).serial]


def test_live_ones_and_the_last_end(ca: Store) -> None:
    """Quotas count what is reserved, good or held of one profile; rotation asks for the last end."""
    issue(ca, planned(1), planned(2, profile="node-server", not_after=NOW + 3 * DAY))
    reserve(ca, planned(3))
    live = ca.read_sync(lambda tx: tx.issuances.live(MACHINE, "node-client", NOW, 10))
    assert [row.serial for row in live] == [planned(3).serial, planned(1).serial]
    assert ca.read_sync(lambda tx: tx.issuances.live(MACHINE, "node-client", NOW + DAY, 10)) == ()
    issue(ca, planned(4, profile="ca-cross", not_after=NOW + 99 * DAY))
    issue(ca, planned(5, profile="ocsp-signing", not_after=NOW + 9 * DAY))
    assert ca.read_sync(lambda tx: tx.issuances.last_end(ISSUER)) == NOW + 3 * DAY
    assert ca.read_sync(lambda tx: tx.issuances.last_end(OTHER)) is None


def test_pages_newest_first(ca: Store) -> None:
    """Filters combine, cursors go on where a page ended, foreign cursors are refused."""
    issue(ca, *(planned(n) for n in range(1, 6)))
    issue(ca, planned(6, machine_id=NEIGHBOUR, profile="node-server"))

    def page(cursor: str | None = None, **wanted: Any) -> tuple[list[int], str | None]:
        found = ca.read_sync(lambda tx: tx.issuances.page(IssuanceFilter(**wanted), cursor, 2))
        return [int(row.serial, 16) for row in found.items], found.next_cursor

    numbers, cursor = page(machine_id=MACHINE, state="issued")
    assert numbers == [5, 4]
    assert page(cursor, machine_id=MACHINE, state="issued")[0] == [3, 2]
    assert page(profile="node-server") == ([6], None)
    assert page(issuer_id=OTHER) == ([], None)
    assert page(state="held") == ([], None)
    with pytest.raises(RequestInvalid):
        page("nonsense")


def test_pages_in_the_order_of_ends(ca: Store) -> None:
    """Each certificate once, also where several end together; between two ends; each order has its own cursors."""
    days = {1: 3, 2: 1, 3: 2, 4: 2, 5: 2, 6: 9}
    issue(ca, *(planned(n, not_after=NOW + end * DAY) for n, end in days.items()))
    reserve(ca, planned(7, not_after=NOW + DAY))

    def pages(**wanted: Any) -> list[list[int]]:
        found: list[list[int]] = []
        cursor: str | None = None
        chosen = IssuanceFilter(state="issued", **wanted)
        while True:
            page = ca.read_sync(lambda tx, at=cursor: tx.issuances.page(chosen, at, 2, by_end=True))  # type: ignore[misc]
            found.append([int(row.serial, 16) for row in page.items])
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert pages() == [[2, 3], [4, 5], [1, 6]]
    assert pages(ends_from=NOW + 2 * DAY, ends_before=NOW + 3 * DAY) == [[3, 4], [5]]
    assert pages(ends_from=NOW + 10 * DAY) == [[]]
    newest = ca.read_sync(lambda tx: tx.issuances.page(IssuanceFilter(), None, 2))
    for cursor in (newest.next_cursor, "nonsense"):
        with pytest.raises(RequestInvalid):
            ca.read_sync(lambda tx, at=cursor: tx.issuances.page(IssuanceFilter(), at, 2, by_end=True))  # type: ignore[misc]


def test_purge_keeps_what_is_undecided(ca: Store) -> None:
    """Rows of certificates that ended long ago go, a batch at a time; a reserved one is decided first."""
    issue(ca, planned(1), planned(2))
    reserve(ca, planned(3))
    assert ca.write_sync(lambda tx: tx.issuances.purge(NOW + DAY, 10)) == 0
    assert ca.write_sync(lambda tx: tx.issuances.purge(NOW + 2 * DAY, 1)) == 1
    assert ca.write_sync(lambda tx: tx.issuances.purge(NOW + 2 * DAY, 10)) == 1
    assert state(ca, 3) == "reserved"
