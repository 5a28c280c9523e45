"""Measurement logs: kept once, unpacked within bounds, purged when nothing refers to them."""

from __future__ import annotations

import dataclasses
import hashlib
import tracemalloc
import zlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import ResultUnknown, StoreUnavailable
from attestation.results import AttestationResult, Verdict
from attestation.store import MAX_LOG_BYTES, PackedLog, Store, StoredEvidence, Tx, pack
from attestation.store.logs import unpack
from tests.contract.store_samples import a_machine, by_hand

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def a_result(verdict: Verdict = Verdict.VERIFIED) -> AttestationResult:
    """Return a result without a check."""
    return AttestationResult(
        verdict=verdict, at=NOW, policy=None, outcomes=(), boot_state_appraised=(), pcr_digest=None
    )


def test_a_log_is_kept_once_and_comes_back(store: Store) -> None:
    """Whoever sends it again, there is one row; what is not kept is None."""
    log = pack("tcg", b"event " * 1000)
    assert log.sha256 == hashlib.sha256(b"event " * 1000).hexdigest()
    assert len(log.content) < log.size_bytes == 6000
    for _ in range(2):
        store.write_sync(lambda tx: tx.logs.put(log, NOW))
    assert store.read_sync(lambda tx: tx.logs.get(log.sha256)) == b"event " * 1000
    assert store.read_sync(lambda tx: tx.logs.get("0" * 64)) is None


def test_use_is_noted_at_most_once_an_hour(store: Store, store_url: str) -> None:
    """A thousand machines with one log do not write its row a thousand times."""
    log = pack("tcg", b"log")

    def used() -> list[tuple[int, int]]:
        return by_hand(store_url, "SELECT first_seen_at, last_used_at FROM measurement_logs")

    begin = int(NOW.timestamp() * 1e6)
    for minutes, expected in ((0, 0), (59, 0), (61, 61), (90, 61)):
        at = NOW + timedelta(minutes=minutes)
        store.write_sync(lambda tx, at=at: tx.logs.put(log, at))  # type: ignore[misc]
        assert used() == [(begin, begin + expected * 60_000_000)]


@given(st.binary(max_size=4096))
def test_what_is_packed_is_unpacked(data: bytes) -> None:
    """Any bytes, empty ones too, come back as they were."""
    log = pack("ima", data)
    assert unpack(log.sha256, log.size_bytes, log.content) == data


def test_nothing_too_long_is_packed() -> None:
    """The bound that unpacking keeps is kept when packing."""
    with pytest.raises(ValueError, match="more than"):
        pack("tcg", bytes(MAX_LOG_BYTES + 1))


BOMB = zlib.compress(bytes(64 << 20), level=9)


@pytest.mark.threat("T74")
@pytest.mark.parametrize(
    ("size_bytes", "content"),
    [
        (10, BOMB),
        (64 << 20, BOMB),
        (3, zlib.compress(b"log!")),
        (5, zlib.compress(b"log!")),
        (4, zlib.compress(b"gol!")),
        (4, b"not zlib"),
        (4, zlib.compress(b"log!")[:-6]),
    ],
)
def test_a_row_that_we_did_not_write_is_no_log(size_bytes: int, content: bytes) -> None:
    """A bomb is not unpacked, another length or another content is refused."""
    with pytest.raises(StoreUnavailable):
        unpack(hashlib.sha256(b"log!").hexdigest(), size_bytes, content)


@pytest.mark.threat("T74")
def test_a_bomb_is_not_unpacked() -> None:
    """Of a row that says four bytes, five are unpacked: 64 MiB behind them cost nothing."""
    bomb = zlib.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(StoreUnavailable):
            unpack(hashlib.sha256(b"log!").hexdigest(), 4, bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_a_changed_row_is_refused(store: Store) -> None:
    """What comes from the database is what its name says, or nothing."""
    log = pack("tcg", b"one log")
    other = dataclasses.replace(pack("tcg", b"two log"), sha256=log.sha256)
    store.write_sync(lambda tx: tx.logs.put(other, NOW))
    with pytest.raises(StoreUnavailable):
        store.read_sync(lambda tx: tx.logs.get(log.sha256))


@pytest.mark.threat("T74")
def test_logs_go_when_nothing_refers_to_them(store: Store) -> None:
    """A result, an IMA reference and a machine each hold theirs; what nobody holds goes after a day."""
    of_result, of_ima, of_machine, of_nobody = (
        pack("ima" if n == 1 else "tcg", bytes([n]) * 100) for n in range(4)
    )
    machine = dataclasses.replace(a_machine(), event_log_sha256=of_machine.sha256)

    def begin(tx: Tx) -> None:
        for log in (of_result, of_ima, of_machine, of_nobody):
            tx.logs.put(log, NOW)
        tx.machines.add(machine)
        evidence = StoredEvidence(event_log_sha256=of_result.sha256, ima_log_sha256=of_ima.sha256)
        tx.results.add(machine.machine_id, a_result(), evidence)

    store.write_sync(begin)

    def kept() -> list[PackedLog]:
        def work(tx: Tx) -> list[PackedLog]:
            return [log for log in (of_result, of_ima, of_machine, of_nobody) if tx.logs.get(log.sha256)]

        return store.read_sync(work)

    assert store.write_sync(lambda tx: tx.purge(NOW + DAY)).logs == 0
    assert store.write_sync(lambda tx: tx.purge(NOW + DAY + HOUR)).logs == 1
    assert kept() == [of_result, of_ima, of_machine]
    # The ring moves on: five newer results, and the machine booted something else.
    for _ in range(5):
        store.write_sync(lambda tx: tx.results.add(machine.machine_id, a_result()))
    found = store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id))
    assert found is not None
    store.write_sync(lambda tx: tx.machines.update(found, event_log_sha256=None))
    assert store.write_sync(lambda tx: tx.purge(NOW + 2 * DAY)).logs == 0, "looked at an hour ago"
    assert store.write_sync(lambda tx: tx.purge(NOW + 2 * DAY + 2 * HOUR, batch=2)).logs == 2
    assert store.write_sync(lambda tx: tx.purge(NOW + 2 * DAY + 2 * HOUR, batch=2)).logs == 1
    assert kept() == []


def test_what_is_in_use_does_not_keep_others_from_going(store: Store) -> None:
    """A batch that is full of logs in use makes room for the next."""
    machine = a_machine()
    logs = [pack("tcg", bytes([n])) for n in range(6)]

    def begin(tx: Tx) -> None:
        tx.machines.add(machine)
        for number, log in enumerate(logs):
            tx.logs.put(log, NOW + timedelta(seconds=number))
            if number < 4:
                tx.results.add(machine.machine_id, a_result(), StoredEvidence(event_log_sha256=log.sha256))

    store.write_sync(begin)
    later = NOW + DAY + HOUR
    assert [store.write_sync(lambda tx: tx.purge(later, batch=2)).logs for _ in range(4)] == [0, 2, 0, 0]


def test_one_result_is_found_by_its_number(store: Store) -> None:
    """A machine's result, and the last good one before it; another machine's is unknown."""
    machine = a_machine()

    def begin(tx: Tx) -> None:
        tx.machines.add(machine)
        for verdict in (Verdict.VERIFIED, Verdict.VERIFIED, Verdict.FAILED, Verdict.FAILED):
            tx.results.add(machine.machine_id, a_result(verdict))

    store.write_sync(begin)
    newest, *_, good, first = store.read_sync(lambda tx: tx.results.page(machine.machine_id, None, 10)).items

    def get(tx: Tx, machine_id: str, result_id: int) -> object:
        return tx.results.get(machine_id, result_id)

    assert store.read_sync(lambda tx: get(tx, machine.machine_id, newest.result_id)) == newest
    for machine_id, result_id in ((machine.machine_id, 99), ("m", newest.result_id)):
        with pytest.raises(ResultUnknown):
            store.read_sync(lambda tx, m=machine_id, r=result_id: get(tx, m, r))  # type: ignore[misc]

    def before(result_id: int) -> object:
        return store.read_sync(lambda tx: tx.results.verified_before(machine.machine_id, result_id))

    assert before(newest.result_id) == good
    assert before(good.result_id) == first
    assert before(first.result_id) is None
