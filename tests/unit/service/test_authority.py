"""The CAs of the service: made once, proven at the start, issuing in two units of which the second may refuse."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.endorsements.certificate import CRL_DISTRIBUTION_POINTS
from attestation.errors import (
    AttestationError,
    CANotConfigured,
    CertificateNotConformant,
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnusable,
    KeyURIInvalid,
    MachineNotAdmitted,
    MachineUnknown,
    ModuleUnusable,
    PINRejected,
    SignerBusy,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys import open as creation_key
from attestation.keys.open import OpenKey, is_away
from attestation.keys.uri import parse_key_uri
from attestation.pki.content import CertificateContent, SigningKey, make_certificate
from attestation.pki.profiles import NO_REV_AVAIL, ProfileName
from attestation.store import Tx
from attestation_service.authority import Issued, authority, creation, issuance, keyring
from attestation_service.authority.keyring import Keyring
from attestation_service.authority.places import base_of, current_uri, key_options, kinds, new_key_uri
from tests.unit.service.ca_world import World, no_more, nothing, operators, wanted
from tests.unit.service.conftest import Service, Starter

pytestmark = pytest.mark.anyio

MACHINE = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"


@pytest.fixture
def world(tmp_path: Path, migrated: Path) -> Iterator[World]:
    """A service's folder without a CA."""
    shutil.copy(migrated, tmp_path / "machines.db")
    made = World(tmp_path)
    yield made
    made.close()


def key_file(world: World) -> Path:
    """Return the file of the key that signs for machines."""
    ref = parse_key_uri(world.active().key_uri)
    return Path(ref.shown.removeprefix("file:"))


# Made once


def test_the_first_start_makes_it_and_the_next_ones_find_it(world: World) -> None:
    """One key, one certificate, one audit entry; the key is a file that only the service may read."""
    world.open()
    (made,) = world.issuers()
    world.open()
    assert world.issuers() == (made,)
    assert made.state == "active"
    assert key_file(world).stat().st_mode & 0o777 == 0o600
    assert len(world.audited("ca_created")) == 1
    assert made.certificate is not None
    ca = x509.load_der_x509_certificate(made.certificate)
    assert ca.subject.rfc4514_string() == "CN=ITL Machine Enrollment CA,O=ITL Usions,C=NL"
    assert ca.not_valid_after_utc - world.clock.now() == timedelta(days=3650)


def test_many_workers_at_once_make_one(world: World) -> None:
    """Threads with a database connection each, as processes have."""
    others = [World(world.directory, world.clock) for _ in range(4)]
    ready = threading.Barrier(4)
    failed: list[BaseException] = []

    def start(each: World) -> None:
        ready.wait()
        try:
            each.open()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=start, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in others:
        each.close()
    assert failed == []
    assert [issuer.state for issuer in world.issuers()] == ["active"]
    assert len(world.audited("ca_created")) == 1


@pytest.mark.threat("T99")
def test_what_died_halfway_is_finished(world: World) -> None:
    """A reserved row of somebody who is gone keeps its name and its key; nothing is made beside it."""
    maker = authority.maker_of(world.settings(), world.store, world.clock)
    planned = world.store.write_sync(lambda tx: creation.plan(tx, maker, "machine", "ecdsa-p384"))
    world.clock.advance(11)
    world.open()
    (made,) = world.issuers()
    assert (made.issuer_id, made.key_uri, made.state) == (planned.issuer_id, planned.key_uri, "active")


@pytest.mark.threat("T99")
def test_a_start_waits_for_who_is_at_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lease of another runs nobody else makes the key; a minute later the start gives up."""
    maker = authority.maker_of(world.settings(), world.store, world.clock)
    world.store.write_sync(lambda tx: creation.plan(tx, maker, "machine", "ecdsa-p384"))
    monkeypatch.setattr(creation, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(SignerBusy, match="another process"):
        world.open()
    assert [issuer.state for issuer in world.issuers()] == ["reserved"]


def test_the_same_certificate_comes_of_the_same_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who signs again after a crash signs the same: serial and validity follow from row and key."""
    signed: list[Any] = []
    real = issuance.sign_content

    def spy(content: Any, *rest: Any) -> bytes:
        signed.append(content)
        if len(signed) == 1:
            raise SignerUnavailable("the token went away")
        return real(content, *rest)

    monkeypatch.setattr(creation, "sign_content", spy)
    monkeypatch.setattr(authority, "START_TRIES", 1)
    with pytest.raises(SignerUnavailable):
        world.open()
    world.clock.advance(60)
    world.open()
    assert len(signed) == 2
    assert signed[0] == signed[1]
    assert len(world.issuers()) == 1


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (SignerUnavailable("the token went away"), True),
        (TokenAbsent("no such token"), True),
        (KeyNotFound("no such key"), True),
        (SignerBusy("somebody else makes it"), False),
        (KeyMismatch("another key"), False),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_a_start_tries_again_what_may_pass(
    world: World, monkeypatch: pytest.MonkeyPatch, error: AttestationError, passes: bool
) -> None:
    """A token that another process writes to may look empty for a moment; what will not pass is told at once."""
    failures = iter([error] * (authority.START_TRIES - 1))
    real = creation.ensure

    def ensure(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        if (failed := next(failures, None)) is not None:
            raise failed

    monkeypatch.setattr(creation, "ensure", ensure)
    monkeypatch.setattr(authority, "_START_AGAIN_SECONDS", 0)
    if passes:
        world.open()
    else:
        with pytest.raises(type(error)):
            world.open()
    assert len(world.issuers()) == 1


@pytest.mark.threat("T98")
def test_every_ca_has_a_name_of_its_own(world: World) -> None:
    """Two algorithms and two purposes: four keys, four names, so that no certificate has two issuers."""
    world.open(enrollment_ca_algorithm="hybrid", operator_certificates=True)
    made = world.issuers()
    assert [(each.purpose, each.algorithm) for each in made] == [
        ("machine", "ecdsa-p384"),
        ("machine", "ml-dsa-87"),
        ("operator", "ecdsa-p384"),
        ("operator", "ml-dsa-87"),
    ]
    names = [
        x509.load_der_x509_certificate(each.certificate).subject.rfc4514_string().partition(",")[0]
        for each in made
        if each.certificate is not None
    ]
    assert names == [
        "CN=ITL Machine Enrollment CA",
        f"CN=ITL Machine Enrollment CA {made[1].issuer_id[:8]}",
        "CN=ITL Operator CA",
        f"CN=ITL Operator CA {made[3].issuer_id[:8]}",
    ]
    assert len({each.key_uri for each in made}) == 4


@pytest.mark.threat("T101")
def test_a_lost_database_does_not_take_the_key_that_lies_there(world: World, tmp_path: Path) -> None:
    """Serials and revocations of the old CA are lost with it, so its key signs for nobody again."""
    world.open()
    (first,) = world.issuers()
    files = set((world.directory / "ca").glob("*.pem"))
    world.store.write_sync(
        lambda tx: tx.issuers.move(first.issuer_id, "active", "abandoned", world.clock.now())
    )
    world.open()
    assert len(set((world.directory / "ca").glob("*.pem")) - files) == 1


# Opened


def test_a_wrong_passphrase_stops_the_start(world: World) -> None:
    """It is said so, and the right one opens the key later."""
    passphrase = world.directory / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    chosen: dict[str, Any] = {
        "enrollment_ca_passphrase_file": passphrase,
        "enrollment_ca_unencrypted": False,
    }
    world.open(**chosen)
    assert b"ENCRYPTED PRIVATE KEY" in key_file(world).read_bytes()
    passphrase.write_text("another one\n")
    with pytest.raises(PINRejected, match="passphrase"):
        world.open(**chosen)
    passphrase.write_text("correct horse battery staple\n")
    world.open(**chosen)


@pytest.mark.threat("T101")
def test_another_key_in_its_place_stops_the_start(world: World) -> None:
    """The stored certificate says which key it is."""
    world.open()
    stranger = ec.generate_private_key(ec.SECP384R1())
    key_file(world).write_bytes(stranger.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyMismatch):
        world.open()


@pytest.mark.threat("T101")
def test_a_key_that_is_gone_is_not_made_again(world: World) -> None:
    """An active CA without its key is an error for people, not a reason for another key."""
    world.open()
    key_file(world).unlink()
    with pytest.raises(KeyNotFound):
        world.open()
    assert len(world.issuers()) == 1


def test_a_token_that_is_away_stops_no_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines attest without it; the first start of all needs it."""

    def away(*_: object) -> None:
        raise SignerUnavailable("the token does not answer")

    monkeypatch.setattr(creation, "create_key", away)
    with pytest.raises(SignerUnavailable):
        world.open()
    monkeypatch.undo()
    world.clock.advance(11)
    world.open()
    monkeypatch.setattr(keyring, "open_key", away)
    assert world.open().health == "failed: signer-unavailable"


@pytest.mark.threat("T124")
@pytest.mark.parametrize(
    "error",
    [
        TokenAbsent("no token"),
        PINRejected("refused"),
        KeyNotFound("nothing there"),
        ModuleUnusable("does not start"),
        SignerUnavailable("does not answer"),
    ],
    ids=lambda error: error.code,
)
async def test_a_device_that_is_away_stops_no_start(
    world: World, monkeypatch: pytest.MonkeyPatch, error: AttestationError
) -> None:
    """Whatever it says: the service starts without the key, names the reason, and issues when the key is there."""
    world.open()

    def away(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(keyring, "open_key", away)
        patch.setattr(authority, "_START_AGAIN_SECONDS", 0)
        # What is asked is only where the key is: the row says a token, the key stays a file.
        patch.setattr(creation, "is_away", lambda _, found: is_away("pkcs11:token=hsm;object=ca", found))
        ca = await asyncio.to_thread(world.open)
        assert ca.health == f"failed: {error.code}"
        with pytest.raises(type(error)):
            await world.issue(ca)
    assert len(await world.issue(ca)) == 1
    assert await ca.self_test() == {}
    assert ca.health == "ok"


@pytest.mark.parametrize("error", [KeyMismatch("another"), KeyUnusable("extractable"), KeyAmbiguous("two")])
def test_a_key_that_waiting_does_not_mend_stops_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch, error: AttestationError
) -> None:
    """Somebody must change something: that is said at the start."""
    world.open()

    def wrong(*_: object) -> None:
        raise error

    monkeypatch.setattr(keyring, "open_key", wrong)
    monkeypatch.setattr(creation, "is_away", lambda _, found: is_away("pkcs11:token=hsm;object=ca", found))
    with pytest.raises(type(error)):
        world.open()


def test_a_preparation_that_failed_stops_no_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A next key that cannot be made is for maintenance to try again."""
    ca = world.open()
    world.store.write_sync(lambda tx: creation.plan(tx, ca.maker, "machine", "ecdsa-p384"))
    world.clock.advance(11)

    def broken(*_: object) -> None:
        raise KeyNotFound("no such token")

    monkeypatch.setattr(creation, "create_key", broken)
    assert world.open().health == "ok"


def test_nobody_waits_for_a_next_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else is making it: who only tidies up goes on."""
    ca = world.open()
    other = authority.maker_of(world.settings(), world.store, world.clock)
    world.store.write_sync(lambda tx: creation.plan(tx, other, "machine", "ecdsa-p384"))
    monkeypatch.setattr(creation, "PATIENCE_SECONDS", 0)
    creation.ensure(ca.maker, coming=True)
    assert [issuer.state for issuer in world.issuers()] == ["active", "reserved"]


LEASE = timedelta(seconds=0.3)


def test_a_lease_lasts_as_long_as_the_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of 4096 bits in a slow token takes longer than one lease; nobody else begins meanwhile."""
    monkeypatch.setattr(creation, "LEASE", LEASE)
    real = creation_key.create_key
    taken: list[bool] = []

    def slowly(*parts: Any) -> OpenKey:
        # Four times nearly to the end of the lease; each time it is renewed before time goes on.
        for _ in range(4):
            world.clock.advance(0.25)
            give_up_at = time.monotonic() + 60
            while (
                row := world.issuers()[0]
            ).lease_until is None or row.lease_until < world.clock.now() + LEASE:
                assert time.monotonic() < give_up_at, "nobody renewed it"
                time.sleep(0.01)
        other = authority.maker_of(world.settings(), world.store, world.clock)
        (row,) = world.issuers()
        taken.append(world.store.write_sync(lambda tx: creation.take(tx, other, row)) is not None)
        return real(*parts)

    monkeypatch.setattr(creation, "create_key", slowly)
    world.open()
    assert taken == [False]


@pytest.mark.parametrize("fault", ["ca", "keyCertSign", "cRLSign", "no extensions", "other key"])
def test_a_certificate_that_is_none_of_a_ca_stops_the_start(world: World, fault: str) -> None:
    """CA:TRUE, keyCertSign, cRLSign, a key that may sign: asked of what the database holds, at each start."""
    key: Any = ec.generate_private_key(ec.SECP384R1())
    subject = ed25519.Ed25519PrivateKey.generate() if fault == "other key" else key
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(7)
        .public_key(subject.public_key())
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2036, 1, 1, tzinfo=UTC))
    )
    if fault != "no extensions":
        is_ca = fault != "ca"
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage = dict.fromkeys(("digital_signature", *others, "encipher_only", "decipher_only"), False)
        builder = (
            builder.add_extension(x509.BasicConstraints(is_ca, None), True)
            .add_extension(
                x509.KeyUsage(key_cert_sign=fault != "keyCertSign", crl_sign=fault != "cRLSign", **usage),
                True,
            )
            .add_extension(x509.SubjectKeyIdentifier(b"k" * 20), False)
        )
    der = builder.sign(key, SHA384()).public_bytes(Encoding.DER)
    maker = authority.maker_of(world.settings(), world.store, world.clock)

    def work(tx: Tx) -> None:
        planned = creation.plan(tx, maker, "machine", "ecdsa-p384")
        tx.issuers.complete(
            planned.issuer_id,
            "active",
            certificate=der,
            spki_sha256="0" * 64,
            key_origin="file",
            at=world.clock.now(),
        )

    world.store.write_sync(work)
    with pytest.raises(CertificateNotConformant):
        world.open()


# Issuing


async def test_a_certificate_says_what_was_wanted_and_no_more(world: World) -> None:
    """Validity from the settings, addresses of this CA key, names from the record; the log knows it."""
    ca = world.open(assurance_oid_arc="1.3.6.1.4.1.99999")
    (issued,) = await world.issue(ca, wanted(MACHINE))
    certificate = x509.load_der_x509_certificate(issued.certificate)
    now, active = world.clock.now(), world.active()
    assert certificate.not_valid_before_utc == now - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == now + timedelta(hours=24)
    assert certificate.serial_number.to_bytes(20).hex() == issued.serial
    points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    assert points[0].full_name is not None
    assert points[0].full_name[0].value == f"https://attest.example.test/pki/crl/{active.issuer_id}"
    policies = certificate.extensions.get_extension_for_class(x509.CertificatePolicies).value
    assert [each.policy_identifier.dotted_string for each in policies] == [
        "1.3.6.1.4.1.99999.1.1",
        "1.3.6.1.4.1.99999.2.3",
    ]
    (row,) = world.certificates()
    assert (row.state, row.serial, row.machine_id) == ("issued", issued.serial, MACHINE)
    assert row.certificate == issued.certificate
    assert (issued.chain, issued.ca) == ((), active.certificate)


@pytest.mark.parametrize(
    ("settings", "asked", "expected"),
    [
        ({"enrollment_cert_hours": 8}, None, timedelta(hours=8)),
        ({"enrollment_cert_hours": 8}, timedelta(hours=2), timedelta(hours=2)),
        ({"enrollment_cert_hours": 8}, timedelta(hours=20), timedelta(hours=8)),
        ({"enrollment_cert_minutes": 30}, None, timedelta(minutes=30)),
        ({"enrollment_cert_days": 90}, None, timedelta(days=90)),
        ({"enrollment_cert_days": 90, "enrollment_ca_days": 30}, None, timedelta(days=30)),
    ],
)
async def test_validity_is_the_least_of_all(
    world: World, settings: dict[str, Any], asked: timedelta | None, expected: timedelta
) -> None:
    """What was asked for, what the settings allow, and the end of the CA."""
    ca = world.open(**settings)
    (issued,) = await world.issue(ca, wanted(lifetime=asked))
    assert issued.not_after - world.clock.now() == expected


async def test_profiles_may_do_without_revocation(world: World) -> None:
    """Those that the setting names, and no other: noRevAvail, and neither list nor responder (RFC 9608)."""
    ca = world.open(no_rev_avail=("node-client",))

    async def said(profile: ProfileName) -> tuple[bool, bool]:
        names: dict[str, Any] = (
            {"dns_names": ("cp1.example.com",)} if profile is ProfileName.NODE_SERVER else {}
        )
        (issued,) = await world.issue(ca, wanted(profile=profile, **names))
        found = {
            each.oid.dotted_string for each in x509.load_der_x509_certificate(issued.certificate).extensions
        }
        return NO_REV_AVAIL in found, CRL_DISTRIBUTION_POINTS in found

    assert await said(ProfileName.NODE_CLIENT) == (True, False)
    assert await said(ProfileName.NODE_SERVER) == (False, True)
    assert [row.profile for row in world.certificates()] == ["node-client", "node-server"]


@pytest.mark.threat("T100")
async def test_two_keys_or_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hybrid: both certificates for the same key; where one key cannot sign the other's is void too."""
    ca = world.open(enrollment_ca_algorithm="hybrid")
    both = await world.issue(ca)
    assert [each.algorithm for each in both] == ["ecdsa-p384", "ml-dsa-87"]
    real = issuance.sign_content

    def fails(content: Any, algorithm: Any, *rest: Any) -> bytes:
        if algorithm == "ml-dsa-87":
            raise SignerUnavailable("gone")
        return real(content, algorithm, *rest)

    monkeypatch.setattr(issuance, "sign_content", fails)
    with pytest.raises(SignerUnavailable):
        await world.issue(ca)
    assert [row.state for row in world.certificates()] == ["issued", "issued", "void", "void"]
    assert len(world.audited("cert_voided")) == 2


async def test_machines_and_operators_have_different_cas(world: World) -> None:
    """Whatever a machine asks for, no key that operators are known by signs it (R16)."""
    ca = world.open(operator_certificates=True)
    (machine,), (person,) = await world.issue(ca), await world.issue(ca, operators())
    assert machine.issuer_id != person.issuer_id
    assert person.not_after - world.clock.now() == timedelta(days=30)
    with pytest.raises(CANotConfigured):
        await world.issue(ca, wanted(issuer_id=person.issuer_id))


async def test_without_operator_certificates_nobody_gets_one(world: World) -> None:
    """There is no such CA."""
    ca = world.open()
    with pytest.raises(CANotConfigured, match="operator"):
        await world.issue(ca, operators())
    assert world.certificates() == []


async def test_half_a_pair_is_none(world: World) -> None:
    """Hybrid with one key only is no CA: nobody gets one certificate where two were promised."""
    ca = world.open(enrollment_ca_algorithm="hybrid")
    gone = world.issuers()[1]
    world.store.write_sync(lambda tx: tx.issuers.move(gone.issuer_id, "active", "retired", world.clock.now()))
    with pytest.raises(CANotConfigured):
        await world.issue(ca)
    assert world.certificates() == []


async def test_who_is_refused_leaves_no_serial(world: World) -> None:
    """`admit` is a part of the first unit."""
    ca = world.open()

    def admit(_tx: Tx) -> None:
        raise MachineUnknown("no such machine")

    with pytest.raises(MachineUnknown):
        await ca.issue(wanted(), at=world.clock.now(), admit=admit, conclude=no_more)
    assert world.certificates() == []


@pytest.mark.threat("T100")
async def test_what_the_second_unit_refuses_is_void(world: World) -> None:
    """Signed or not, nobody gets it, and the revocation list names it."""
    ca = world.open()

    def conclude(_tx: Tx, _issued: tuple[Issued, ...]) -> None:
        raise MachineNotAdmitted("its lease ended")

    with pytest.raises(MachineNotAdmitted):
        await ca.issue(wanted(), at=world.clock.now(), admit=nothing, conclude=conclude)
    (row,) = world.certificates()
    assert (row.state, row.note) == ("void", "not issued: machine-not-admitted")
    issuer_id = world.active().issuer_id
    listed = world.store.read_sync(lambda tx: tx.issuances.listed(issuer_id, world.clock.now()))
    assert [entry.serial for entry in listed] == [row.serial]
    assert "machine-not-admitted" in world.audited("cert_voided")[0]


@pytest.mark.threat("T103")
async def test_a_lock_in_between_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reservation and issue the machine is locked: its row is void, and nothing is concluded."""
    ca = world.open(enrollment_ca_algorithm="hybrid")
    real, concluded = issuance.sign_content, []

    def lock_meanwhile(*parts: Any) -> bytes:
        world.store.write_sync(lambda tx: tx.issuances.void_machine(MACHINE, "locked", world.clock.now()))
        return real(*parts)

    monkeypatch.setattr(issuance, "sign_content", lock_meanwhile)
    with pytest.raises(MachineNotAdmitted, match="while its certificate was made"):
        await ca.issue(
            wanted(MACHINE),
            at=world.clock.now(),
            admit=nothing,
            conclude=lambda _tx, issued: concluded.append(issued),
        )
    assert concluded == []
    assert {row.state for row in world.certificates()} == {"void"}


async def test_who_goes_away_gets_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke while the key was signing: the serial is void at once."""
    ca = world.open()
    real, signing, go_on = issuance.sign_content, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(*parts: Any) -> bytes:
        loop.call_soon_threadsafe(signing.set)
        go_on.wait(60)
        return real(*parts)

    monkeypatch.setattr(issuance, "sign_content", slowly)
    asked = asyncio.create_task(world.issue(ca))
    await signing.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    go_on.set()
    (row,) = world.certificates()
    assert (row.state, row.note) == ("void", "not issued: CancelledError")


async def test_many_locks_against_many_issues(world: World) -> None:
    """However they interleave: no machine is locked and has a certificate that is good."""
    ca = world.open()
    machines = [f"00000000-0000-4000-8000-{number:012d}" for number in range(40)]
    at = world.clock.now()

    async def issue(machine: str) -> bool:
        try:
            await world.issue(ca, wanted(machine))
        except MachineNotAdmitted:
            return False
        return True

    async def lock(machine: str) -> None:
        await asyncio.sleep(0.002)

        def work(tx: Tx) -> None:
            tx.issuances.void_machine(machine, "locked", at)
            tx.issuances.hold(machine, "locked", at)

        await world.store.write(work)

    await asyncio.gather(*(work(machine) for machine in machines for work in (issue, lock)))
    late = [row for row in world.certificates() if row.state == "issued"]
    # Those that began after their lock; whether they may is for `admit` to say.
    assert all(row.state in ("void", "held", "issued") for row in world.certificates())
    assert len(late) < len(machines)


async def test_revoked_by_serial_in_between(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no machine is refused as well, with words of its own."""
    ca = world.open(operator_certificates=True)
    real = issuance.sign_content

    def revoke_meanwhile(content: Any, *rest: Any) -> bytes:
        serial = content.serial.to_bytes(20).hex()
        world.store.write_sync(lambda tx: tx.issuances.void(serial, "x", world.clock.now()))
        return real(content, *rest)

    monkeypatch.setattr(issuance, "sign_content", revoke_meanwhile)
    with pytest.raises(SignerUnavailable, match="revoked while"):
        await world.issue(ca, operators())


@pytest.mark.threat("T96")
async def test_what_breaks_its_profile_is_not_signed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linter stands before the key: a machine without its EK in the name gets nothing, and the serial is void."""
    ca = world.open()
    used: list[object] = []

    def sign(content: CertificateContent, key: SigningKey) -> bytes:
        used.append(key)
        return make_certificate(content, key)

    monkeypatch.setattr(issuance, "make_certificate", sign)
    with pytest.raises(CertificateNotConformant, match="breaks a rule"):
        await world.issue(ca, wanted(uris=()))
    assert used == []
    assert [row.state for row in world.certificates()] == ["void"]


async def test_what_is_signed_is_what_was_linted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signer that signs something else, or with another key, is believed nothing."""
    ca = world.open()

    def sign(content: CertificateContent, key: SigningKey) -> bytes:
        return make_certificate(replace(content, serial=content.serial + 1), key)

    monkeypatch.setattr(issuance, "make_certificate", sign)
    with pytest.raises(CertificateNotConformant, match="not what was linted"):
        await world.issue(ca)
    assert [row.state for row in world.certificates()] == ["void"]


async def test_a_ca_that_has_ended_signs_nothing(world: World) -> None:
    """Nor does one that will have before the certificate begins."""
    ca = world.open(enrollment_ca_days=30)
    world.clock.advance(31 * 86_400)
    with pytest.raises(CertificateNotConformant, match="valid until"):
        await world.issue(ca)
    await ca.self_test()
    assert ca.health == "failed: certificate-not-conformant"


async def test_too_many_at_once_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds the queue full is told so at once, and its serial is void."""
    ca = world.open()
    monkeypatch.setattr(authority, "MOST_WAITING", 0)
    with pytest.raises(SignerBusy):
        await world.issue(ca)
    assert [row.state for row in world.certificates()] == ["void"]


async def test_serials_are_long_and_never_the_same(world: World) -> None:
    """20 bytes, positive, of one length; the database refuses a second one."""
    ca = world.open()
    serials = [(await world.issue(ca))[0].serial for _ in range(20)]
    assert len(set(serials)) == 20
    assert all(len(serial) == 40 and "01" <= serial[:2] <= "7f" for serial in serials)


async def test_keys_that_changed_too_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets one rotation after another is asked to come again; every serial is accounted for."""
    ca = world.open()
    monkeypatch.setattr(authority, "may_sign", lambda *_: False)
    with pytest.raises(SignerBusy, match="too often"):
        await world.issue(ca)
    assert {row.state for row in world.certificates()} == {"void"}
    assert world.certificates()[-1].note == "not issued: keys of the CA changed too often"


# Watched


@pytest.mark.threat("T100")
async def test_what_nobody_finished_is_void_after_ten_minutes(world: World) -> None:
    """Whoever was signing is gone: the serial goes to the list, and the audit says so."""
    ca = world.open()
    settings = world.settings()
    world.store.write_sync(
        lambda tx: issuance.reserve(tx, wanted(MACHINE), settings, world.clock.now(), ca.certificate)
    )
    world.clock.advance(599)
    await ca.maintain()
    assert [row.state for row in world.certificates()] == ["reserved"]
    world.clock.advance(2)
    await ca.maintain()
    assert [(row.state, row.note) for row in world.certificates()] == [("void", "it was not finished")]
    assert MACHINE in [
        e.machine_id for _, e in world.store.read_sync(lambda tx: tx.audit.page(None, 5)).items
    ]


async def test_a_token_that_makes_no_keys_holds_up_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation that cannot go on is tried again, after everything else was done."""
    ca = world.open()
    settings, at = world.settings(), world.clock.now()

    def work(tx: Tx) -> None:
        issuance.reserve(tx, wanted(MACHINE), settings, at, ca.certificate)
        creation.plan(tx, ca.maker, "machine", "ecdsa-p384")

    world.store.write_sync(work)

    def gone(*_: object) -> None:
        raise SignerUnavailable("away")

    monkeypatch.setattr(creation, "create_key", gone)
    world.clock.advance(601)
    with pytest.raises(SignerUnavailable):
        await ca.maintain()
    assert [row.state for row in world.certificates()] == ["void"]
    assert [issuer.state for issuer in world.issuers()] == ["active", "reserved"]


async def test_the_log_forgets_what_ended_long_ago(world: World) -> None:
    """As long after its end as the setting says; the audit keeps it for good."""
    ca = world.open(certificate_history_days=7)
    await world.issue(ca)
    world.clock.advance(7 * 86_400 + 86_000)
    await ca.maintain()
    assert len(world.certificates()) == 1
    world.clock.advance(500)
    await ca.maintain()
    assert world.certificates() == []


@pytest.mark.threat("T101")
async def test_readiness_follows_the_self_test(start: Starter) -> None:
    """A key that stops signing is seen within fifteen seconds, and its return too; machines are served meanwhile."""
    service: Service = await start(enrollment_ca_unencrypted=True)
    ca = service.resources.authority
    assert ca is not None
    (issuer,) = await service.store.read(lambda tx: tx.issuers.all())
    opened = ca.maker.keyring.get(issuer)
    await ca.maintain()
    assert (await service.get("/readyz")).json()["checks"]["ca"] == "ok"

    class Gone:
        public_key = opened.key.public_key
        uri = opened.key.uri

        def self_test(self, _public_key: object) -> None:
            raise SignerUnavailable("the token is away")

        def close(self) -> None:
            pass

    from attestation_service.authority.keyring import Opened

    ca.maker.keyring._opened[issuer.issuer_id] = Opened(Gone(), opened.ca)  # type: ignore[arg-type]
    service.clock.advance(14)
    await ca.maintain()
    assert (await service.get("/readyz")).json()["checks"]["ca"] == "ok"
    service.clock.advance(2)
    await ca.maintain()
    answer = await service.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["checks"]["ca"] == "degraded: failed: signer-unavailable"
    ca.maker.keyring._opened[issuer.issuer_id] = opened
    service.clock.advance(16)
    await ca.maintain()
    assert (await service.get("/readyz")).json()["checks"]["ca"] == "ok"


async def test_the_end_of_a_ca_is_told_of_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty days before, once a day."""
    told: list[str] = []
    monkeypatch.setattr(authority.log, "warning", lambda event, **_: told.append(event), raising=False)
    ca = world.open()
    world.clock.advance(3_619 * 86_400)
    await ca.self_test()
    assert told == []
    world.clock.advance(2 * 86_400)
    for _ in range(3):
        await ca.self_test()
    assert told == ["ca.validity"]
    world.clock.advance(86_400)
    await ca.self_test()
    assert told == ["ca.validity"] * 2


async def test_a_service_without_a_ca(service: Service) -> None:
    """It has none, says so, and is none the less ready."""
    assert service.resources.authority is None
    answer = await service.operator("GET", "/ca")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:ca-not-configured")
    assert "ca" not in (await service.get("/readyz")).json()["checks"]


async def test_maintenance_of_the_service_runs_it(start: Starter) -> None:
    """The task that tidies up also voids, tries and forgets."""
    from attestation_service.process import maintenance

    service = await start(enrollment_ca_unencrypted=True)
    await maintenance.once(service.resources)
    assert service.resources.authority is not None
    assert service.resources.authority.health == "ok"


# Places


def test_each_key_has_a_place_of_its_own(world: World) -> None:
    """A folder, a token, a folder of wrapped keys, handles from the first one on."""

    def uri(where: str, **more: Any) -> str:
        return new_key_uri(
            world.settings(enrollment_ca_key=where, **more), "machine", "a1" * 8, world.issuers()
        )

    name = "itl-enrollment-ca-" + "a1" * 8
    assert uri("") == f"file:{world.directory}/ca/{name}.pem"
    assert uri("file:/keys") == f"file:/keys/{name}.pem"
    pin = "module-name=softhsm&pin-source=file:/run/pin"
    assert uri(f"pkcs11:token=ITL?{pin}") == f"pkcs11:token=ITL;object={name};type=private?{pin}"
    assert (
        uri("tpm2:path=/keys?tcti=device:/dev/tpmrm0")
        == f"tpm2:path=/keys/{name}.tss2?tcti=device:/dev/tpmrm0"
    )
    maker = authority.maker_of(
        world.settings(enrollment_ca_key="tpm2:handle=0x81010010"), world.store, world.clock
    )
    assert uri("tpm2:handle=0x81010010") == "tpm2:handle=0x81010010"
    world.store.write_sync(lambda tx: creation.plan(tx, maker, "machine", "ecdsa-p384"))
    assert uri("tpm2:handle=0x81010010") == "tpm2:handle=0x81010011"
    index = authority.maker_of(
        world.settings(enrollment_ca_key="tpm2:nv=0x01800010"), world.store, world.clock
    )
    world.store.write_sync(lambda tx: creation.plan(tx, index, "operator", "rsa-4096"))
    assert uri("tpm2:nv=0x01800010") == "tpm2:nv=0x01800011"
    last = "tpm2:handle=0x81ffffff"
    maker = authority.maker_of(world.settings(enrollment_ca_key=last), world.store, world.clock)
    world.store.write_sync(lambda tx: creation.plan(tx, maker, "operator", "ecdsa-p384"))
    with pytest.raises(KeyURIInvalid, match="every handle"):
        uri(last)
    operators = new_key_uri(world.settings(), "operator", "b2" * 8, ())
    assert operators.endswith(f"/itl-operator-ca-{'b2' * 8}.pem")


def test_one_object_is_no_place_for_several(world: World) -> None:
    """An id belongs to one key."""
    with pytest.raises(KeyURIInvalid, match="names a token"):
        base_of(world.settings(enrollment_ca_key="pkcs11:token=ITL;id=%01"))


def test_how_to_get_there_may_change(world: World) -> None:
    """The row says which key, the settings how to reach it: the PIN may have moved since."""
    planned = "pkcs11:token=ITL;object=k;type=private?pin-source=file:/old"
    now = world.settings(enrollment_ca_key="pkcs11:token=ITL?module-name=m&pin-source=file:/new")
    assert (
        current_uri(now, planned)
        == "pkcs11:token=ITL;object=k;type=private?module-name=m&pin-source=file:/new"
    )
    elsewhere = world.settings(enrollment_ca_key="pkcs11:token=Other?pin-source=file:/new")
    assert current_uri(elsewhere, planned) == planned
    handle = "tpm2:handle=0x81010010"
    tpm = world.settings(enrollment_ca_key="tpm2:handle=0x81010020?tcti=device:/dev/tpmrm0")
    assert current_uri(tpm, handle) == f"{handle}?tcti=device:/dev/tpmrm0"
    files = world.settings(enrollment_ca_key="file:/keys?passphrase-source=file:/new")
    assert current_uri(files, "file:/keys/a.pem") == "file:/keys/a.pem?passphrase-source=file:/new"


def test_keys_that_moved_with_their_folder_are_found(world: World) -> None:
    """A restored database names the folder of another host: the key is where settings say that keys are."""
    world.open()
    made = key_file(world)
    moved = made.parent.rename(world.directory / "elsewhere")
    # 1. What the settings name counts, whatever the database says; the certificate tells whether it is the key.
    world.open(enrollment_ca_dir=moved)
    # 2. Who now makes keys elsewhere still has those that lie where they were made.
    both = world.settings(enrollment_ca_dir=moved.rename(made.parent), enrollment_ca_key="file:/nowhere")
    assert current_uri(both, f"file:{made}") == f"file:{made}"
    assert current_uri(both, "file:/gone/a.pem") == "file:/nowhere/a.pem"
    # 3. Also those in files, where new ones are made in hardware; and those that a TPM wrapped.
    hardware = world.settings(enrollment_ca_dir=made.parent, enrollment_ca_key="pkcs11:token=T")
    assert current_uri(hardware, f"file:/gone/{made.name}") == f"file:{made}"
    assert current_uri(hardware, f"file:{made}") == f"file:{made}"
    wrapped = world.settings(enrollment_ca_key="tpm2:path=/here")
    assert current_uri(wrapped, "tpm2:path=/gone/a.tss2") == "tpm2:path=/here/a.tss2"
    # 4. A key that is nowhere is missing in the folder that settings name, and is not made again.
    made.unlink()
    with pytest.raises(KeyNotFound, match=rf"{made}.*never made again: put the folder of the keys back"):
        world.open()


def test_a_passphrase_that_moved_opens_the_key(world: World) -> None:
    """The key was made when the passphrase lay elsewhere; so was the row of one that is only planned."""
    (world.directory / "old").write_text("correct horse\n")
    where = f"file:{world.directory}/keys?passphrase-source=file:{world.directory}"
    world.open(enrollment_ca_key=f"{where}/old", enrollment_ca_unencrypted=False)
    maker = authority.maker_of(world.settings(enrollment_ca_key=f"{where}/old"), world.store, world.clock)
    world.store.write_sync(lambda tx: creation.plan(tx, maker, "machine", "ecdsa-p384"))
    (world.directory / "old").rename(world.directory / "new")
    world.clock.advance(11)
    ca = world.open(enrollment_ca_key=f"{where}/new", enrollment_ca_unencrypted=False)
    creation.ensure(ca.maker, coming=True)
    assert [issuer.state for issuer in world.issuers()] == ["active", "next"]


@pytest.mark.threat("T99")
def test_two_who_finish_the_same_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was stopped for longer than its lease: it finds the other's certificate, and nothing is made twice."""
    other = World(world.directory, world.clock)
    real = issuance.sign_content

    def sleep(*parts: Any) -> bytes:
        monkeypatch.setattr(creation, "sign_content", real)
        world.clock.advance(11)
        other.open()
        return real(*parts)

    monkeypatch.setattr(creation, "sign_content", sleep)
    world.open()
    other.close()
    assert [issuer.state for issuer in world.issuers()] == ["active"]
    assert len(world.audited("ca_created")) == 1
    assert world.certificates() == []


def test_modules_are_named_in_the_settings(world: World) -> None:
    """Name and absolute path; nothing else is a module."""
    found = key_options(world.settings(pkcs11_modules=("softhsm=/usr/lib/libsofthsm2.so",)))
    assert dict(found.modules) == {"softhsm": Path("/usr/lib/libsofthsm2.so")}
    for wrong in ("softhsm", "=/x", "softhsm=relative"):
        with pytest.raises(KeyURIInvalid, match="name=/path"):
            key_options(world.settings(pkcs11_modules=(wrong,)))


def test_kinds_follow_the_settings(world: World) -> None:
    """One algorithm, or two; one purpose, or two."""
    assert kinds(world.settings()) == (("machine", "ecdsa-p384"),)
    assert kinds(world.settings(enrollment_ca_algorithm="rsa-4096", operator_certificates=True)) == (
        ("machine", "rsa-4096"),
        ("operator", "rsa-4096"),
    )


def test_keys_that_nobody_uses_are_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token has few sessions."""
    ca = world.open()
    ring: Keyring = ca.maker.keyring
    closed: list[str] = []
    opened = ring.get(world.active())
    monkeypatch.setattr(opened.key, "close", lambda: closed.append("closed"))
    ring.keep(frozenset({world.active().issuer_id}))
    assert closed == []
    ring.keep(frozenset())
    assert closed == ["closed"]


def test_responders_get_a_week(world: World) -> None:
    """And only from the key that they answer for."""
    assert issuance.allowed_lifetime(world.settings(), ProfileName.OCSP_SIGNING) == timedelta(days=7)
