"""EK certificates beside machines, and certificates that operators added or distrusted."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.endorsements import PathCertificate, PathValidation
from attestation.errors import AlreadyExists, TrustCertificateUnknown
from attestation.machines import Machine
from attestation.results import Assurance
from attestation.store import Store, StoredAKCertificate, StoredEKCertificate, TrustCertificate
from tests.contract.store_samples import a_machine

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ANCHOR, OTHER, LEAF, BUNDLE = "aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32


def chained(
    number: int, anchor: str = ANCHOR, *, listed: bool = False
) -> tuple[Machine, StoredEKCertificate]:
    """Return a machine that a vendor vouches for, and its certificate."""
    machine = a_machine(
        number,
        ek_chain_ok=True,
        ek_allow_listed=listed,
        assurance=Assurance.EK_ALLOWLIST if listed else Assurance.EK_CHAIN,
        trust_expires_at=NOW,
    )
    path = tuple(
        PathCertificate(sha256=sha256, subject="CN=x", role=role, ok=True, reason="signed")
        for sha256, role in ((LEAF, "leaf"), (anchor, "anchor"))
    )
    validation = PathValidation(
        ok=True,
        reason="chains to IFX",
        vendor="IFX",
        anchor_sha256=anchor,
        path=path,
        bundle_sha256=BUNDLE,
        revocation="unknown: no CRL",
    )
    return machine, StoredEKCertificate(
        machine_id=machine.machine_id,
        certificate=b"leaf",
        chain=(b"one", b"two"),
        validation=validation,
        judged_at=NOW,
    )


def add(store: Store, machine: Machine, certificate: StoredEKCertificate) -> None:
    store.write_sync(lambda tx: tx.machines.add(machine))
    store.write_sync(lambda tx: tx.ek_certificates.put(certificate))


def machine_of(store: Store, number: int) -> Machine:
    machine = store.read_sync(lambda tx: tx.machines.by_id(a_machine(number).machine_id))
    assert machine is not None
    return machine


def a_certificate(**changes: Any) -> TrustCertificate:
    return dataclasses.replace(
        TrustCertificate(
            sha256=ANCHOR,
            certificate=b"der",
            role="anchor",
            vendor="IFX",
            status="active",
            reason="read on the vendor's page",
            added_at=NOW,
            added_by="anna",
            changed_at=NOW,
            changed_by="anna",
        ),
        **changes,
    )


def test_an_ek_certificate_comes_back_as_it_went_in(store: Store) -> None:
    """Bytes, chain, path and validation survive; a new judgement replaces the old one; it goes with its machine."""
    machine, certificate = chained(1)
    add(store, machine, certificate)
    assert store.read_sync(lambda tx: tx.ek_certificates.get(machine.machine_id)) == certificate
    again = dataclasses.replace(certificate, validation=PathValidation(ok=False, reason="no anchor"))
    store.write_sync(lambda tx: tx.ek_certificates.put(again))
    assert store.read_sync(lambda tx: tx.ek_certificates.get(machine.machine_id)) == again
    store.write_sync(lambda tx: tx.machines.delete(machine.machine_id))
    assert store.read_sync(lambda tx: tx.ek_certificates.get(machine.machine_id)) is None


def test_what_another_bundle_judged_is_found(store: Store) -> None:
    """With another digest, or with none; not what this bundle judged."""
    machine, certificate = chained(1)
    add(store, machine, certificate)
    bare_machine, bare = chained(2)
    bare = dataclasses.replace(bare, validation=PathValidation(ok=False, reason="no bundle"))
    add(store, bare_machine, bare)
    assert store.read_sync(lambda tx: tx.ek_certificates.judged_by_others(BUNDLE, 9)) == (bare,)
    assert len(store.read_sync(lambda tx: tx.ek_certificates.judged_by_others("ee" * 32, 9))) == 2
    assert len(store.read_sync(lambda tx: tx.ek_certificates.judged_by_others("ee" * 32, 1))) == 1


def test_a_distrusted_certificate_lowers_whoever_it_vouched_for(store: Store) -> None:
    """At once, with the lease; the allow-list keeps its level; a stranger's machines keep theirs."""
    add(store, *chained(1))
    add(store, *chained(2, listed=True))
    add(store, *chained(3, OTHER))
    assert store.write_sync(lambda tx: tx.ek_certificates.lower(ANCHOR)) == 2
    one, two, three = (machine_of(store, number) for number in (1, 2, 3))
    assert (one.assurance, one.tpm.ek_chain_ok, one.trust_expires_at) == (Assurance.TOFU, False, None)
    assert one.version == a_machine(1).version + 1
    assert (two.assurance, two.tpm.ek_chain_ok, two.trust_expires_at) == (Assurance.EK_ALLOWLIST, False, NOW)
    assert (three.assurance, three.tpm.ek_chain_ok) == (Assurance.EK_CHAIN, True)
    assert store.write_sync(lambda tx: tx.ek_certificates.lower(ANCHOR)) == 0
    # They are judged again whatever bundle comes next, also the one that judged them first.
    due = store.read_sync(lambda tx: tx.ek_certificates.judged_by_others(BUNDLE, 9))
    assert [(each.machine_id, each.validation.ok) for each in due] == [
        (one.machine_id, False),
        (two.machine_id, False),
    ]


def test_a_certificate_of_an_operator_comes_back(store: Store) -> None:
    """Once; a second one of the same bytes is refused."""
    store.write_sync(lambda tx: tx.trust.add(a_certificate()))
    assert store.read_sync(lambda tx: tx.trust.get(ANCHOR)) == a_certificate()
    assert store.read_sync(lambda tx: tx.trust.get(OTHER)) is None
    assert store.read_sync(lambda tx: tx.trust.all()) == (a_certificate(),)
    with pytest.raises(AlreadyExists):
        store.write_sync(lambda tx: tx.trust.add(a_certificate(status="distrusted")))


def test_every_change_is_another_state(store: Store) -> None:
    """A worker that remembers a bundle notices each addition and each change of status."""
    states = [store.read_sync(lambda tx: tx.trust.state())]
    store.write_sync(lambda tx: tx.trust.add(a_certificate()))
    states.append(store.read_sync(lambda tx: tx.trust.state()))
    store.write_sync(lambda tx: tx.trust.add(a_certificate(sha256=OTHER)))
    states.append(store.read_sync(lambda tx: tx.trust.state()))
    later = NOW
    store.write_sync(lambda tx: tx.trust.set_status(OTHER, "distrusted", "stolen", "bob", later))
    states.append(store.read_sync(lambda tx: tx.trust.state()))
    assert len(set(states)) == 4
    changed = store.read_sync(lambda tx: tx.trust.get(OTHER))
    assert changed == a_certificate(
        sha256=OTHER, status="distrusted", reason="stolen", changed_at=later, changed_by="bob"
    )
    with pytest.raises(TrustCertificateUnknown):
        store.write_sync(lambda tx: tx.trust.set_status(LEAF, "active", None, "bob", NOW))


def vouched(
    number: int, spki: str = "ee" * 32, *, anchor: str = ANCHOR
) -> tuple[Machine, StoredAKCertificate]:
    """Return a machine with somebody who vouches for its AK."""
    machine = a_machine(number, assurance=Assurance.AK_CERTIFIED, trust_expires_at=NOW)
    path = (PathCertificate(sha256=anchor, subject="CN=x", role="anchor", ok=True, reason="signed"),)
    validation = PathValidation(
        ok=True, reason="chains to CN=x", anchor_sha256=anchor, path=path, bundle_sha256=BUNDLE
    )
    return machine, StoredAKCertificate(
        machine_id=machine.machine_id,
        ak_name=machine.tpm.ak_name or b"",
        spki_sha256=spki,
        certificate=b"leaf",
        chain=(b"one",),
        validation=validation,
        judged_at=NOW,
    )


def test_an_ak_certificate_comes_back_and_is_of_one_machine(store: Store) -> None:
    """As it went in; found by its key; of no other AK; it goes with its machine and sets its key free."""
    machine, stored = vouched(1)
    store.write_sync(lambda tx: tx.machines.add(machine))
    store.write_sync(lambda tx: tx.ak_certificates.put(stored))
    again = dataclasses.replace(stored, judged_at=NOW + timedelta(seconds=1))
    store.write_sync(lambda tx: tx.ak_certificates.put(again))
    assert store.read_sync(lambda tx: tx.ak_certificates.get(machine.machine_id)) == again
    assert store.read_sync(lambda tx: tx.ak_certificates.holder("ee" * 32)) == machine.machine_id
    assert store.read_sync(lambda tx: tx.ak_certificates.holder("ff" * 32)) is None
    for name, found in ((stored.ak_name, True), (b"\0\x0bother", False), (None, False)):
        assert store.read_sync(lambda tx, n=name: tx.ak_certificates.vouches(machine.machine_id, n)) is found  # type: ignore[misc]  # the name of this turn
    store.write_sync(lambda tx: tx.machines.delete(machine.machine_id))
    assert store.read_sync(lambda tx: tx.ak_certificates.get(machine.machine_id)) is None
    assert store.read_sync(lambda tx: tx.ak_certificates.holder("ee" * 32)) is None


def test_other_anchors_judge_again_and_a_distrusted_one_lowers(store: Store) -> None:
    """At once, with the lease; who is vouched for better keeps the level, but the word is gone too."""
    for number, spki, anchor in ((1, "a1", ANCHOR), (2, "a2", ANCHOR), (3, "a3", OTHER)):
        machine, stored = vouched(number, spki, anchor=anchor)
        if number == 2:
            machine = dataclasses.replace(machine, assurance=Assurance.EK_CHAIN)
        store.write_sync(lambda tx, m=machine: tx.machines.add(m))  # type: ignore[misc]  # of this turn
        store.write_sync(lambda tx, s=stored: tx.ak_certificates.put(s))  # type: ignore[misc]  # of this turn
    assert store.read_sync(lambda tx: tx.ak_certificates.judged_by_others(BUNDLE, 9)) == ()
    assert len(store.read_sync(lambda tx: tx.ak_certificates.judged_by_others("ab" * 32, 9))) == 3
    assert store.write_sync(lambda tx: tx.ak_certificates.lower(ANCHOR)) == 1
    one, two, three = (machine_of(store, number) for number in (1, 2, 3))
    assert (one.assurance, one.trust_expires_at) == (Assurance.TOFU, None)
    assert (two.assurance, three.assurance) == (Assurance.EK_CHAIN, Assurance.AK_CERTIFIED)
    due = store.read_sync(lambda tx: tx.ak_certificates.judged_by_others(BUNDLE, 9))
    assert [(each.machine_id, each.validation.ok) for each in due] == [
        (one.machine_id, False),
        (two.machine_id, False),
    ]
    assert store.write_sync(lambda tx: tx.ak_certificates.lower(ANCHOR)) == 0
