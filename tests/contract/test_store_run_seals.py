"""Seals of attestation runs, on each database: one of a run, one of a bundle, on from the phase that was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from attestation.store import Run, RunSeal, Store, Tx

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)


def seal(run_id: str = "a", **changes: object) -> RunSeal:
    """Return the seal of a run."""
    made = RunSeal(
        run_id=run_id,
        cluster_id="default",
        run_uid=f"uid-{run_id}",
        bundle_uid=f"bundle-{run_id}",
        challenge_id="c",
        content_sha256="00" * 32,
        request="{}",
        asked_by="default/itl:runs",
        asked_sub=None,
        phase="Pending",
        next_at=AT,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of it


def run(run_id: str) -> Run:
    """Return a run that ended."""
    return Run(
        run_id=run_id,
        cluster_id="default",
        run_uid=f"uid-{run_id}",
        namespace="seed",
        name=run_id,
        node_name="w-1",
        node_uid="n",
        backend="tpm",
        nonce=None,
        policy=None,
        policy_source="none",
        policy_name=None,
        policy_id="ni:///sha-384;x",
        content_sha256="00" * 32,
        opened_at=AT,
        deadline=AT,
    )


def test_a_run_has_one_seal_and_a_bundle_one_run(store: Store) -> None:
    """Whoever comes second changes nothing."""

    def work(tx: Tx) -> list[bool]:
        return [
            tx.run_seals.add(seal()),
            tx.run_seals.add(seal(bundle_uid="other")),
            tx.run_seals.add(seal("b", bundle_uid="bundle-a")),
            tx.run_seals.add(seal("b", bundle_uid="bundle-a", cluster_id="other")),
        ]

    assert store.write_sync(work) == [True, False, False, True]
    found = store.read_sync(lambda tx: (tx.run_seals.get("a"), tx.run_seals.of_uid("uid-b")))
    assert found == (seal(), [seal("b", bundle_uid="bundle-a", cluster_id="other")])


def test_it_goes_on_from_the_phase_that_was_seen(store: Store) -> None:
    """Of two who go on from one phase the second finds another."""
    signed = seal(
        phase="Signed", statement=b"\0s", signature=b"\xff", signed_at=AT, entry=b"{}", entry_index=7
    )

    def work(tx: Tx) -> tuple[bool, bool, RunSeal | None]:
        tx.run_seals.add(seal())
        return (
            tx.run_seals.go_on(signed, was="Pending"),
            tx.run_seals.go_on(seal(phase="Signed", statement=b"other"), was="Pending"),
            tx.run_seals.get("a"),
        )

    assert store.write_sync(work) == (True, False, signed)


def test_what_is_due(store: Store) -> None:
    """Not before its time, nor what is done; what is signed only when a checkpoint covers its entry."""
    later = AT + timedelta(seconds=1)

    def work(tx: Tx) -> None:
        tx.run_seals.add(seal("a"))
        tx.run_seals.add(seal("b", next_at=later))
        tx.run_seals.add(seal("c", phase="Sealed", next_at=None))
        tx.run_seals.add(seal("d", phase="Signed", entry_index=7))

    store.write_sync(work)

    def due(at: datetime, covered: int, limit: int = 9) -> list[str]:
        return store.read_sync(lambda tx: tx.run_seals.due(at, covered, limit))

    assert due(AT, 7) == ["a"]
    assert due(AT, 8) == ["a", "d"]
    assert due(later, 8) == ["a", "d", "b"]
    assert due(later, 8, 1) == ["a"]


def test_a_run_goes_with_its_seal_and_not_before(store: Store) -> None:
    """What is still to be archived keeps its evidence."""

    def work(tx: Tx) -> tuple[int, list[bool]]:
        for run_id, next_at in (("a", AT), ("b", None), ("c", None)):
            tx.runs.add(run(run_id))
            if run_id != "c":
                tx.run_seals.add(seal(run_id, next_at=next_at))
        gone = tx.runs.purge(AT + timedelta(days=8), 9)
        there = [tx.runs.get("default", f"uid-{each}") is not None for each in "abc"]
        return gone, [*there, tx.run_seals.get("b") is not None]

    assert store.write_sync(work) == (2, [True, False, False, False])
