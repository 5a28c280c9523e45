"""Requests of Kubernetes nodes: challenges are spent once, a request is decided once, strangers' rows go."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from attestation.audit import AuditEvent
from attestation.audit.authority import words_of
from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed, RequestInvalid
from attestation.store import NodeChallenge, NodeCSR, Store
from tests.contract.store_samples import MINUTE, NOW, a_machine

MACHINE = a_machine()
MICROSECOND = timedelta(microseconds=1)


def asked(number: int = 1, **changes: Any) -> NodeChallenge:
    """Return a challenge."""
    values: dict[str, Any] = {
        "challenge_id": f"{number:032x}",
        "machine_id": MACHINE.machine_id,
        "ek_fingerprint": MACHINE.tpm.ek_fingerprint,
        "nonce": bytes([number]) * 32,
        "pcr_selection": '{"sha256": [0, 7]}',
        "event_log": "required",
        "quote": "accepted",
        "policy_ref": "workers@1",
        "issued_at": NOW,
        "expires_at": NOW + MINUTE,
    }
    return NodeChallenge(**(values | changes))


def decided(number: int = 1, **changes: Any) -> NodeCSR:
    """Return a decision."""
    values: dict[str, Any] = {
        "result_id": f"{number:032x}",
        "cluster_id": "default",
        "csr_uid": f"uid-{number}",
        "csr_name": "node-csr-x",
        "signer_name": "attestation.itl.io/node-client",
        "content_sha256": "0" * 64,
        "decision": "approve",
        "reason": "TpmAttested",
        "message": "attested",
        "tier": 4,
        "machine_id": MACHINE.machine_id,
        "node_name": "w-1",
        "assurance": "ek-verified",
        "ak_name": b"\x00\x0bak",
        "at": NOW,
    }
    return NodeCSR(**(values | changes))


def test_a_challenge_is_redeemed_once(store: Store) -> None:
    """By its machine, in time; every field survives."""
    store.write_sync(lambda tx: tx.node_csrs.issue(asked()))
    assert store.read_sync(lambda tx: tx.node_csrs.challenge(asked().challenge_id)) == asked()
    for machine_id, at, error in (
        ("another", NOW, ChallengeUnknown),
        (MACHINE.machine_id, NOW + MINUTE, ChallengeExpired),
    ):
        with pytest.raises(error):
            store.write_sync(
                lambda tx, m=machine_id, at=at: tx.node_csrs.redeem(asked().challenge_id, m, at)  # type: ignore[misc]  # mypy infers no type for defaults
            )
    store.write_sync(lambda tx: tx.node_csrs.redeem(asked().challenge_id, MACHINE.machine_id, NOW))
    with pytest.raises(ChallengeUsed):
        store.write_sync(lambda tx: tx.node_csrs.redeem(asked().challenge_id, MACHINE.machine_id, NOW))
    with pytest.raises(ChallengeUnknown):
        store.write_sync(lambda tx: tx.node_csrs.redeem("f" * 32, MACHINE.machine_id, NOW))


def test_a_request_is_decided_once(store: Store) -> None:
    """The second decision under a UID of a cluster changes nothing; another cluster has UIDs of its own."""
    other = decided(2, csr_uid="uid-1", decision="deny", reason="PolicyFailed")
    assert store.write_sync(lambda tx: tx.node_csrs.add(decided()))
    assert not store.write_sync(lambda tx: tx.node_csrs.add(other))
    assert store.write_sync(lambda tx: tx.node_csrs.add(dataclasses.replace(other, cluster_id="edge")))
    assert store.read_sync(lambda tx: tx.node_csrs.get("default", "uid-1")) == decided()
    assert store.read_sync(lambda tx: tx.node_csrs.get("edge", "uid-1")) != decided()
    assert store.read_sync(lambda tx: tx.node_csrs.get("default", "uid-9")) is None


def test_a_request_has_one_certificate(store: Store) -> None:
    """Who signs second learns it."""
    store.write_sync(lambda tx: tx.node_csrs.add(decided()))
    assert store.write_sync(lambda tx: tx.node_csrs.signed(decided().result_id, "a" * 40))
    assert not store.write_sync(lambda tx: tx.node_csrs.signed(decided().result_id, "b" * 40))
    found = store.read_sync(lambda tx: tx.node_csrs.get("default", "uid-1"))
    assert found is not None
    assert found.serial == "a" * 40


def test_what_was_approved_is_told_by_the_audit(store: Store) -> None:
    """A row that lets a certificate be signed is one of authority; one that denies is none."""

    def work(tx: Any) -> None:
        tx.node_csrs.add(decided())
        tx.node_csrs.add(decided(2, decision="deny"))
        tx.audit.append(AuditEvent(operator_cn="a", action="b"), NOW)

    store.write_sync(work)
    ((_, entry),) = store.read_sync(lambda tx: tx.audit.page(None, 9)).items
    assert entry.detail is not None
    assert words_of(entry.detail) != entry.detail
    assert "node-request" in entry.detail
    assert "uid-1" in entry.detail
    assert "uid-2" not in entry.detail


def test_lists_and_first_approvals(store: Store) -> None:
    """Newest first, of one machine or all; what was first approved of each machine of a cluster."""

    def fill(tx: Any) -> None:
        tx.node_csrs.add(decided(1, at=NOW + MINUTE))
        tx.node_csrs.add(decided(2, at=NOW))
        tx.node_csrs.add(decided(3, at=NOW - MINUTE, decision="deny"))
        tx.node_csrs.add(decided(4, machine_id="other"))
        tx.node_csrs.add(decided(5, cluster_id="edge"))
        tx.node_csrs.add(decided(6, decision="deny", machine_id=None))

    store.write_sync(fill)
    first = store.read_sync(lambda tx: tx.node_csrs.page(None, None, 4))
    second = store.read_sync(lambda tx: tx.node_csrs.page(None, first.next_cursor, 4))
    assert [int(each.result_id, 16) for each in (*first.items, *second.items)] == [6, 5, 4, 3, 2, 1]
    mine = store.read_sync(lambda tx: tx.node_csrs.page("other", None, 4))
    assert [int(each.result_id, 16) for each in mine.items] == [4]
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.node_csrs.page(None, "x", 4))
    for machine_id, at in ((MACHINE.machine_id, NOW), ("nobody", None)):
        assert store.read_sync(lambda tx, m=machine_id: tx.node_csrs.first_approved("default", m)) == at  # type: ignore[misc]  # mypy infers no type for defaults
    assert store.read_sync(lambda tx: tx.node_csrs.was_approved(MACHINE.machine_id, NOW))
    assert not store.read_sync(lambda tx: tx.node_csrs.was_approved(MACHINE.machine_id, NOW + 2 * MINUTE))
    assert not store.read_sync(lambda tx: tx.node_csrs.was_approved("nobody", NOW))
    signer = decided().signer_name
    assert not store.read_sync(lambda tx: tx.node_csrs.was_approved(MACHINE.machine_id, NOW, besides=signer))


def test_what_was_refused_goes_first(store: Store) -> None:
    """Refusals by one age, all else by another, in batches; spent challenges too."""

    def fill(tx: Any) -> None:
        for number in range(3):
            tx.node_csrs.add(decided(number, decision="deny", at=NOW - MINUTE))
        tx.node_csrs.add(decided(7, at=NOW - MINUTE))
        tx.node_csrs.add(decided(8))
        tx.node_csrs.issue(asked(expires_at=NOW - timedelta(minutes=10) - MICROSECOND))
        tx.node_csrs.issue(asked(2, expires_at=NOW - timedelta(minutes=10)))

    store.write_sync(fill)
    long_ago = NOW - timedelta(days=1)
    assert store.write_sync(lambda tx: tx.node_csrs.purge(NOW, long_ago, 2)) == 2
    assert store.write_sync(lambda tx: tx.node_csrs.purge(NOW, long_ago, 2)) == 1
    assert store.write_sync(lambda tx: tx.node_csrs.purge(NOW, NOW, 2)) == 1
    assert store.read_sync(lambda tx: tx.node_csrs.get("default", "uid-8")) is not None
    assert store.write_sync(lambda tx: tx.purge(NOW)).node_challenges == 1
    assert store.read_sync(lambda tx: tx.node_csrs.challenge(asked(2).challenge_id)) is not None
