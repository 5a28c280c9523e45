"""Codes of consoles, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from attestation.store import ConsoleCode, Store, Tx

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_code(number: int = 1, **changes: Any) -> ConsoleCode:
    """Return a code."""
    members: dict[str, Any] = {
        "user_code": f"code-{number}",
        "device_sha256": bytes([number]) * 32,
        "client_id": "talos",
        "hw_uuid": "u",
        "hw_mac": None,
        "hw_serial": f"s-{number}",
        "hostname": None,
        "source": "192.0.2.7",
        "asked_at": NOW,
        "expires_at": NOW + HOUR,
        "kept_until": NOW + 2 * HOUR,
    }
    return ConsoleCode(**(members | changes))


def test_one_outcome_and_one_token(store: Store) -> None:
    """The first who decides, before the end; then one token, before the end; what was stored is read again."""

    def decide(number: int, state: Any, at: datetime) -> bool:
        return store.write_sync(
            lambda tx: tx.console_codes.decide(
                f"code-{number}", state, by="anna", at=at, kept_until=at + HOUR
            )
        )

    def give(number: int, at: datetime, token: bytes) -> bool:
        return store.write_sync(
            lambda tx: tx.console_codes.give_token(
                bytes([number]) * 32, token * 32, until=at + HOUR, source="192.0.2.8", at=at
            )
        )

    def fill(tx: Tx) -> None:
        assert all(tx.console_codes.add(a_code(number)) for number in (1, 2, 3))
        assert not tx.console_codes.add(a_code(1, device_sha256=b"9" * 32))

    store.write_sync(fill)
    assert store.read_sync(lambda tx: tx.console_codes.count_open(NOW)) == 3
    assert not give(1, NOW, b"a")
    assert decide(1, "approved", NOW)
    assert not decide(1, "denied", NOW)
    assert not decide(2, "approved", NOW + HOUR)
    assert decide(3, "denied", NOW)
    assert not give(3, NOW, b"a")
    assert not give(1, NOW + HOUR, b"a")
    assert give(1, NOW, b"a")
    assert not give(1, NOW, b"b")
    approved = a_code(
        1,
        state="approved",
        decided_at=NOW,
        decided_by="anna",
        kept_until=NOW + HOUR,
        token_sha256=b"a" * 32,
        token_until=NOW + HOUR,
        token_source="192.0.2.8",
    )
    assert store.read_sync(lambda tx: tx.console_codes.get("code-1")) == approved
    assert store.read_sync(lambda tx: tx.console_codes.of_device(bytes([1]) * 32)) == approved
    assert store.read_sync(lambda tx: tx.console_codes.of_token(b"a" * 32, NOW)) == approved
    assert store.read_sync(lambda tx: tx.console_codes.of_token(b"a" * 32, NOW + HOUR)) is None
    assert store.read_sync(lambda tx: tx.console_codes.count_open(NOW)) == 1
    first = store.read_sync(lambda tx: tx.console_codes.page(None, 2))
    rest = store.read_sync(lambda tx: tx.console_codes.page(first.next_cursor, 2))
    assert [each.user_code for each in (*first.items, *rest.items)] == ["code-3", "code-2", "code-1"]


def test_who_says_the_same_is_found_and_what_is_over_goes(store: Store) -> None:
    """By any of the three that both say, of codes that wait; what nobody says is alike to nothing."""

    def fill(tx: Tx) -> None:
        for number in (1, 2):
            tx.console_codes.add(a_code(number))
        tx.console_codes.add(a_code(3, hw_uuid=None, hw_serial="s-1"))
        tx.console_codes.add(a_code(4, hw_uuid="other"))
        tx.console_codes.add(a_code(5, expires_at=NOW, kept_until=NOW))

    store.write_sync(fill)
    assert store.read_sync(lambda tx: tx.console_codes.alike(a_code(1), NOW)) == ([], ["code-2", "code-3"])
    assert store.read_sync(
        lambda tx: tx.console_codes.alike(a_code(4, hw_uuid=None, hw_serial=None), NOW)
    ) == ([], [])

    def of(uuid: str, mac: str, serial: str) -> list[str]:
        return store.read_sync(lambda tx: tx.console_codes.of_hardware(uuid, mac, serial, NOW))

    assert of("U", "unknown", "s-4") == ["code-1", "code-2", "code-4"]
    assert of("unknown", "", "s-5") == []
    assert store.write_sync(lambda tx: tx.console_codes.purge(NOW, 10)) == 0
    assert store.write_sync(lambda tx: tx.console_codes.purge(NOW + HOUR, 10)) == 1
    assert store.write_sync(lambda tx: tx.console_codes.purge(NOW + 3 * HOUR, 3)) == 3
    assert store.read_sync(lambda tx: tx.console_codes.get("code-5")) is None
