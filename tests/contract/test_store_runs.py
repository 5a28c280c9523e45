"""Attestation runs: opened once, each challenge answered once, all of a run gone with it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from attestation.audit import AuditEvent
from attestation.errors import ChallengeExpired, ChallengeUsed
from attestation.store import Run, RunAttempt, RunBlob, Store, Tx
from tests.contract.store_samples import MINUTE, NOW

MICROSECOND = timedelta(microseconds=1)


def a_run(number: int = 1, **changes: Any) -> Run:
    """Return a run."""
    values: dict[str, Any] = {
        "run_id": f"{number:032x}",
        "cluster_id": "default",
        "run_uid": f"uid-{number}",
        "namespace": "seed",
        "name": f"check-{number}",
        "node_name": "w-1",
        "node_uid": "node-uid",
        "backend": "tpm",
        "nonce": "0123456789abcdef",
        "policy": '{"tpm":{}}',
        "policy_source": "ref",
        "policy_name": "workers",
        "policy_id": "ni:///sha-384;x",
        "content_sha256": "0" * 64,
        "opened_at": NOW,
        "deadline": NOW + 2 * MINUTE,
    }
    return Run(**(values | changes))


def an_attempt(number: int = 1, run: int = 1, **changes: Any) -> RunAttempt:
    """Return an attempt of a run."""
    values: dict[str, Any] = {
        "challenge_id": f"{run:016x}{number:016x}",
        "run_id": f"{run:032x}",
        "attempt": number,
        "random": bytes([number]) * 32,
        "issued_at": NOW,
        "expires_at": NOW + MINUTE,
    }
    return RunAttempt(**(values | changes))


def a_blob(run: int = 1, position: int = 0) -> RunBlob:
    """Return one item of evidence of the first attempt of a run."""
    return RunBlob(
        challenge_id=an_attempt(run=run).challenge_id,
        position=position,
        run_id=f"{run:032x}",
        media_type="application/vnd.itl.tpm-quote",
        sha256="a" * 64,
        content=b"\x00{}",
    )


def concluded(tx: Tx, at: Any = NOW, attempt: RunAttempt | None = None, **changes: Any) -> None:
    """Answer a challenge."""
    said: dict[str, Any] = {"verdict": "verified", "machine_id": "m", "result": "{}"}
    tx.runs.conclude((attempt or an_attempt()).challenge_id, at, **(said | changes))


def test_a_run_is_opened_once(store: Store) -> None:
    """The second one under a UID of a cluster changes nothing; another cluster has UIDs of its own."""
    other = a_run(2, run_uid="uid-1", nonce=None, policy=None, policy_source="none", policy_name=None)
    assert store.write_sync(lambda tx: tx.runs.add(a_run()))
    assert not store.write_sync(lambda tx: tx.runs.add(other))
    elsewhere = dataclasses.replace(other, cluster_id="edge")
    assert store.write_sync(lambda tx: tx.runs.add(elsewhere))
    assert store.read_sync(lambda tx: tx.runs.get("default", "uid-1")) == a_run()
    assert store.read_sync(lambda tx: tx.runs.get("edge", "uid-1")) == elsewhere
    assert store.read_sync(lambda tx: tx.runs.get("default", "uid-9")) is None


def test_an_attempt_has_one_challenge(store: Store) -> None:
    """Of two who begin the next one the second changes nothing; they stand in their order."""
    store.write_sync(lambda tx: tx.runs.add(a_run()))
    assert store.write_sync(lambda tx: tx.runs.issue(an_attempt(2)))
    assert store.write_sync(lambda tx: tx.runs.issue(an_attempt(1)))
    assert not store.write_sync(lambda tx: tx.runs.issue(an_attempt(2, challenge_id="f" * 32)))
    assert store.read_sync(lambda tx: tx.runs.attempts(a_run().run_id)) == [an_attempt(1), an_attempt(2)]
    assert store.read_sync(lambda tx: tx.runs.attempts("f" * 32)) == []


@pytest.mark.threat("T264")
def test_a_challenge_is_answered_once(store: Store) -> None:
    """In time; the result stands with it, the evidence beside it, and who comes second changes nothing."""
    blobs = [a_blob(position=0), a_blob(position=1)]

    def begin(tx: Tx) -> None:
        tx.runs.add(a_run())
        tx.runs.issue(an_attempt())

    store.write_sync(begin)
    with pytest.raises(ChallengeExpired):
        store.write_sync(lambda tx: concluded(tx, NOW + MINUTE, blobs=blobs))
    late = NOW + MINUTE - MICROSECOND
    store.write_sync(lambda tx: concluded(tx, late, blobs=blobs))
    again = partial(concluded, verdict="failed", blobs=[a_blob(position=2)])
    for at in (late, NOW + MINUTE):
        with pytest.raises(ChallengeUsed):
            store.write_sync(partial(again, at=at))
    assert store.read_sync(lambda tx: tx.runs.attempts(a_run().run_id)) == [
        an_attempt(used_at=late, verdict="verified", machine_id="m", result="{}")
    ]
    assert store.read_sync(lambda tx: tx.runs.blobs(an_attempt().challenge_id)) == blobs


def test_old_runs_go_with_all_that_hangs_on_them(store: Store) -> None:
    """The oldest first, in batches; the others stay whole."""

    def fill(tx: Tx) -> None:
        for number in (1, 2, 3):
            tx.runs.add(a_run(number, deadline=NOW + number * MINUTE))
            tx.runs.issue(an_attempt(run=number))
            concluded(tx, attempt=an_attempt(run=number), blobs=[a_blob(number)])

    store.write_sync(fill)
    before = NOW + 2 * MINUTE + MICROSECOND
    assert store.write_sync(lambda tx: tx.runs.purge(NOW + MINUTE, 9)) == 0
    assert store.write_sync(lambda tx: tx.runs.purge(before, 1)) == 1
    assert store.read_sync(lambda tx: tx.runs.get("default", "uid-1")) is None
    assert store.read_sync(lambda tx: tx.runs.get("default", "uid-2")) is not None
    assert store.write_sync(lambda tx: tx.runs.purge(before, 9)) == 1

    def left(tx: Tx) -> list[int]:
        return [
            len(tx.runs.attempts(f"{n:032x}")) + len(tx.runs.blobs(an_attempt(run=n).challenge_id))
            for n in (1, 2, 3)
        ]

    assert store.read_sync(left) == [0, 0, 2]


@pytest.mark.threat("T266")
def test_what_is_judged_of_a_node_is_told_by_the_audit(store: Store) -> None:
    """Each result is a row of authority, whatever it says: a failure can be hidden too. An open attempt is none."""

    def work(tx: Tx) -> None:
        for number, verdict in enumerate(("verified", "failed", "indeterminate", None), 1):
            tx.runs.add(a_run(number))
            tx.runs.issue(an_attempt(run=number))
            if verdict is not None:
                concluded(tx, attempt=an_attempt(run=number), verdict=verdict)
        tx.audit.append(AuditEvent(operator_cn="a", action="b"), NOW)

    store.write_sync(work)
    ((_, entry),) = store.read_sync(lambda tx: tx.audit.page(None, 9)).items
    assert entry.detail is not None
    told = [an_attempt(run=number).challenge_id in entry.detail for number in (1, 2, 3, 4)]
    assert told == [True, True, True, False]
