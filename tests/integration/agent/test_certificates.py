"""The agent's certificates with the real service: got, kept, renewed, followed, and what is not believed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import ocsp
from cryptography.x509.verification import PolicyBuilder, Store

from attestation.api import CertResponse
from attestation.client import ServiceUnreachable
from attestation.clock import parse_rfc3339
from attestation.device import KeyType, NodeTPM, TPMKey
from attestation.errors import RateLimited, TPMResponseError
from attestation.evidence import key_certification
from attestation.keys import TRUST_BUNDLE_TYP
from attestation.tpm import commands, parse_public
from attestation.tpm.constants import Hierarchy
from attestation.tpm.key_file import encode_key_file, parse_key_file
from attestation.tpm.sessions import Password
from attestation.wire import b64decode, b64encode
from attestation_agent.commands import Outcome
from attestation_agent.offered import ALL, BUNDLE, CERTIFICATE, CHAIN, FULL_CHAIN, KEY
from attestation_testing import SoftwareTPM
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.operator_pki import OperatorCA
from tests.integration.agent.certificate_rig import GOOD, Keeper


@pytest.fixture
def local(tmp_path: Path) -> Iterator[InProcessService]:
    """A service with a CA."""
    with in_process_service(tmp_path / "service", enrollment_ca_unencrypted=True) as found:
        yield found


@pytest.fixture
def keeper(local: InProcessService, tmp_path: Path) -> Keeper:
    """An admitted machine without a certificate."""
    made = Keeper(local, tmp_path)
    made.rig.admitted()
    return made


@pytest.fixture
def kept(keeper: Keeper) -> Keeper:
    """An admitted machine with a certificate."""
    keeper.visit()
    assert keeper.error() is None
    keeper.between.asked.clear()
    return keeper


def public_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


# Getting one, keeping it


def test_nothing_is_asked_for_before_the_machine_is_admitted(local: InProcessService, tmp_path: Path) -> None:
    """Not known, waiting for approval: no request, no key, no note."""
    keeper = Keeper(local, tmp_path)
    keeper.visit()
    keeper.rig.once()
    keeper.visit()
    assert keeper.between.asked == []
    assert keeper.offered.current("client") is None
    assert keeper.offered.notes("client") == {}


def test_a_certificate_for_a_key_of_the_tpm(kept: Keeper) -> None:
    """It names machine and TPM, verifies up to the bundle, and all files are about the same key."""
    leaf, files = kept.leaf, kept.file
    assert set(files) == {KEY, CERTIFICATE, CHAIN, FULL_CHAIN, BUNDLE, ALL}
    assert files[ALL] == files[KEY] + files[CERTIFICATE] + files[CHAIN]
    key = parse_public(parse_key_file(files[KEY]).public)
    assert key.spki_der() == public_bytes(leaf)
    known = kept.rig.state.known_as()
    assert known is not None
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"urn:itl:ek:{known.ek_fingerprint}"]
    assert known.machine_id in leaf.subject.rfc4514_string()
    verifier = PolicyBuilder().store(Store(x509.load_pem_x509_certificates(files[BUNDLE])))
    verified = verifier.time(kept.now()).build_client_verifier().verify(leaf, [])
    assert verified.chain[0] == leaf
    (issued,) = kept.issued()
    assert (issued["state"], issued["key_tier"]) == ("issued", 4)
    assert "certificate.issued" in kept.rig.events.names()


def test_the_request_is_bound_to_its_challenge(kept: Keeper) -> None:
    """The AK certified the key for this very request (HSM-AND-KUBERNETES §18)."""
    (sent,) = kept.between.requests
    assert sent.csr_pem is not None
    request = x509.load_pem_x509_csr(sent.csr_pem.encode())
    parsed = key_certification.parse(
        b64decode(sent.key_public, "k"),
        b64decode(sent.certify_info, "i"),
        b64decode(sent.certify_signature, "s"),
    )
    assert request.is_signature_valid
    assert request.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == parsed.spki
    assert len(parsed.attest.extra_data) == 32


def test_it_is_kept_until_two_thirds_of_its_life(kept: Keeper) -> None:
    """Over restarts, attestations and hours; asked for anew then, for the same key."""
    first = kept.leaf
    for _ in range(3):
        kept.restart()
        kept.visit(hours=5)
    assert "request" not in kept.between.asked
    kept.visit(hours=1)
    second = kept.leaf
    assert second.serial_number != first.serial_number
    assert second.public_key() == first.public_key()
    newest, oldest = kept.issued()
    assert newest["renews"] == oldest["serial"] == f"{first.serial_number:040x}"


def test_a_fleet_does_not_come_at_once(kept: Keeper) -> None:
    """60 % to 73 % of the lifetime; drawn once, so restarts do not draw nearer."""
    life = kept.leaf.not_valid_after_utc - kept.leaf.not_valid_before_utc
    found = []
    for extreme in (min, max):
        kept.uniform = extreme
        kept.offered.ask("client")
        kept.visit()
        current = kept.offered.current("client")
        assert current is not None
        at = parse_rfc3339(current.about["renew_at"]) - kept.leaf.not_valid_before_utc
        found.append(at / life)
    assert found == pytest.approx([0.6, 2 / 3 * 1.1])


def test_an_expired_certificate_is_replaced(kept: Keeper) -> None:
    """Also long after its end."""
    kept.visit(days=40)
    assert kept.leaf.not_valid_after_utc > kept.now()


def test_a_new_key_at_each_renewal_where_that_is_wanted(local: InProcessService, tmp_path: Path) -> None:
    """The set is changed as a whole, and the one before stays for whoever is reading it."""
    keeper = Keeper(local, tmp_path, certificate_new_key="yes")
    keeper.rig.admitted()
    keeper.visit()
    first, directory = keeper.leaf, keeper.offered.path("client").resolve()
    keeper.visit(hours=17)
    assert keeper.leaf.public_key() != first.public_key()
    assert parse_public(parse_key_file(keeper.file[KEY]).public).spki_der() == public_bytes(keeper.leaf)
    assert x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes()) == first
    assert keeper.offered.pending_key("client") is None


@pytest.mark.parametrize("kind", ["ecc-p256", "ecc-p384", "rsa-2048"])
def test_every_kind_of_key(local: InProcessService, tmp_path: Path, kind: str) -> None:
    """The request is signed by it, and the certificate is for it."""
    keeper = Keeper(local, tmp_path, certificate_key=kind)
    keeper.rig.admitted()
    keeper.visit()
    key = keeper.leaf.public_key()
    assert isinstance(key, rsa.RSAPublicKey if kind.startswith("rsa") else ec.EllipticCurvePublicKey)
    assert key.key_size == int(kind[-4:].lstrip("ap-")) or f"p{key.key_size}" in kind
    current = keeper.offered.current("client")
    assert current is not None
    assert current.about["key"] == kind


def test_server_and_client_have_their_own(local: InProcessService, tmp_path: Path) -> None:
    """Own keys, own directories; the server's names hostname and address."""
    keeper = Keeper(local, tmp_path, certificates="client,server")
    keeper.rig.once()
    local.operator().approve(keeper.rig.machine_id, hostname="w-7", assigned_ip="192.0.2.7/24")
    keeper.rig.once()
    keeper.visit()
    server = keeper.offered.current("server")
    assert server is not None, keeper.offered.notes("server")
    names = server.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["w-7"]
    assert public_bytes(server.certificate) != public_bytes(keeper.leaf)


def test_hybrid_certificates_stand_beside_each_other(tmp_path: Path) -> None:
    """A CA of two algorithms certifies the key twice; programs of today find the one they can read."""
    with in_process_service(
        tmp_path / "service", enrollment_ca_unencrypted=True, enrollment_ca_algorithm="hybrid"
    ) as local:
        keeper = Keeper(local, tmp_path)
        keeper.rig.admitted()
        keeper.visit()
        assert keeper.error() is None, keeper.offered.notes("client")
        other = x509.load_pem_x509_certificate(keeper.file["extra-ml-dsa-87.pem"])
        assert public_bytes(other) == public_bytes(keeper.leaf)
        assert keeper.leaf.signature_algorithm_oid != other.signature_algorithm_oid
        kept = keeper.leaf
        keeper.visit(hours=1)
        assert keeper.leaf == kept


# What goes wrong


def unreachable(what: str) -> None:
    raise ServiceUnreachable(f"no {what}")


@pytest.mark.threat("T143")
def test_a_key_that_is_refused_is_asked_for_once(keeper: Keeper) -> None:
    """One that waits for its certificate, and one that has one: the refusal is told, then another key is made."""
    operator = keeper.service.operator()

    def refuse(spki: bytes) -> None:
        body = {"spki_sha256": hashlib.sha256(spki).hexdigest(), "reason": "others have it"}
        operator.call("POST", "/ca/refused-keys", json=body)

    def away(*names: str) -> Callable[[str], None]:
        return lambda what: unreachable(what) if what in names else None

    # Nobody tells that its certificate was revoked with it.
    keeper.between.fail = away("status", "request")
    keeper.visit()
    waiting = keeper.offered.pending_key("client")
    assert waiting is not None
    first = parse_public(parse_key_file(waiting).public).spki_der()
    refuse(first)
    keeper.between.fail = away("status")
    keeper.visit(minutes=20)
    assert (keeper.error(), keeper.offered.current("client")) == ("key-refused", None)
    keeper.visit(minutes=20)
    second, before = public_bytes(keeper.leaf), keeper.file
    assert second != first
    refuse(second)
    keeper.offered.ask("client")
    keeper.visit(minutes=20)
    assert (keeper.error(), keeper.file) == ("key-refused", before)
    keeper.visit(minutes=20)
    assert public_bytes(keeper.leaf) not in (first, second)
    assert keeper.error() is None


@pytest.mark.threat("T111")
def test_failures_wait_longer_and_longer_and_drop_nothing(kept: Keeper) -> None:
    """The old certificate stays; pauses double to ten minutes; a restart does not begin anew; then it works."""
    before = kept.file
    kept.between.fail = unreachable
    kept.uniform = max
    kept.visit(hours=17)
    attempts = []
    for minute in range(60):
        kept.visit(minutes=1)
        attempts.append(kept.between.asked.count("challenge"))
        if minute == 30:
            kept.restart()
    assert attempts[-1] < 15, "less often than once a minute"
    assert attempts[-1] > 4
    assert kept.file == before
    assert kept.error() == "service-unreachable"
    kept.between.fail = lambda what: None
    kept.visit(minutes=11)
    assert kept.file != before
    assert kept.offered.notes("client").keys() == {"told"}, "nothing is left of the failures"


def test_retry_after_is_heeded(keeper: Keeper) -> None:
    """Where the service says when."""

    def slow_down(what: str) -> None:
        raise RateLimited("not so fast", retry_after_seconds=3000)

    keeper.between.fail = slow_down
    keeper.visit()
    keeper.between.fail = lambda what: None
    keeper.visit(minutes=40)
    assert keeper.offered.current("client") is None
    keeper.visit(minutes=30)
    assert keeper.offered.current("client") is not None


def test_a_key_is_made_once_for_many_attempts(keeper: Keeper) -> None:
    """A TPM takes its time for a key: the one that waits for its certificate is used again, over restarts."""
    keeper.between.fail = lambda what: unreachable(what) if what == "request" else None
    for _ in range(3):
        keeper.visit(minutes=20)
        keeper.restart()
    keeper.between.fail = lambda what: None
    keeper.visit(minutes=20)
    assert keeper.rig.events.names().count("certificate.key_made") == 1
    assert keeper.offered.current("client") is not None


def test_rubbish_in_the_place_of_the_waiting_key_is_replaced(keeper: Keeper) -> None:
    """Or the file of another TPM."""
    keeper.offered.set_pending_key("client", b"rubbish")
    keeper.visit()
    assert keeper.offered.current("client") is not None


def test_a_waiting_key_of_another_kind_is_replaced(keeper: Keeper) -> None:
    """The administrator chose another kind meanwhile; what the TPM does not know is replaced too."""
    other = keeper.rig.tpm.create_signing_key(KeyType.RSA_2048)
    keeper.offered.set_pending_key("client", encode_key_file(other))
    keeper.restart(certificate_key="ecc-p384")
    keeper.visit()
    assert keeper.leaf.public_key().key_size == 384  # type: ignore[union-attr]


def test_a_waiting_key_that_the_tpm_does_not_know(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost: a new one. Not now: later, and the same."""
    waiting = keeper.rig.tpm.create_signing_key()
    keeper.offered.set_pending_key("client", encode_key_file(waiting))
    for code, made in ((0x922, 0), (0x1DF, 1)):
        with monkeypatch.context() as patched:
            refusing(keeper, code, patched, encode_key_file(waiting))
            keeper.visit(minutes=20)
        assert keeper.rig.events.names().count("certificate.key_made") == made
    assert parse_public(parse_key_file(keeper.file[KEY]).public) != parse_public(waiting.public)


def test_a_key_file_that_was_exchanged_is_noticed(kept: Keeper) -> None:
    """Another key of the same TPM, or rubbish, beside our certificate: both are replaced at the next start."""
    for data in (encode_key_file(kept.rig.tpm.create_signing_key()), b"rubbish"):
        before = kept.leaf
        (kept.offered.path("client") / KEY).write_bytes(data)
        kept.restart()
        kept.visit(minutes=1)
        assert kept.leaf.public_key() != before.public_key()
        assert parse_public(parse_key_file(kept.file[KEY]).public).spki_der() == public_bytes(kept.leaf)


def test_without_pinned_keys_nobody_is_believed(kept: Keeper) -> None:
    """Somebody removed them: until the next activation no CA is authentic."""
    before = kept.file
    (kept.rig.state.directory / "service-keys.json").unlink()
    kept.offered.ask("client")
    kept.visit()
    assert (kept.file, kept.error()) == (before, "directive-rejected")


def test_notes_that_cannot_be_written_are_logged(kept: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else happens."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    kept.between.fail = unreachable
    kept.offered.ask("client")
    monkeypatch.setattr(type(kept.offered), "set_notes", full)
    kept.visit()
    assert kept.rig.events.names()[-1] == "certificate.notes_failed"


def test_a_locked_machine_keeps_what_it_has_and_asks_for_nothing(kept: Keeper) -> None:
    """Until it is unlocked; then what is due is done."""
    before = kept.file
    kept.service.operator().act(kept.rig.machine_id, "lock", reason="seen elsewhere")
    kept.visit(hours=17)
    kept.visit(hours=17)
    assert kept.between.asked == []
    assert kept.file == before
    kept.service.operator().act(kept.rig.machine_id, "unlock")
    kept.visit(minutes=1)
    kept.visit(minutes=1)
    assert kept.file != before


def test_a_clock_that_jumps_back_does_not_stop_renewals(kept: Keeper) -> None:
    """A time to try again that lies days ahead was written by another clock."""
    kept.offered.set_notes("client", {"next_try_at": "2039-01-01T00:00:00.000000Z"})
    kept.visit(hours=17)
    assert "request" in kept.between.asked


@pytest.mark.parametrize(
    "rubbish", [b"", b"{}", b"[]", b'{"next_try_at": 7, "error": 3, "tell_failures": "x"}']
)
def test_rubbish_in_the_notes_does_no_harm(kept: Keeper, rubbish: bytes) -> None:
    """They are for people."""
    (kept.offered.directory / ".client.notes.json").write_bytes(rubbish)
    kept.visit(hours=17)
    assert "request" in kept.between.asked
    assert kept.error() is None


def test_another_record_of_this_machine_needs_another_certificate(kept: Keeper) -> None:
    """Wiped, deleted and introduced again, it is another machine to the service."""
    first = kept.leaf
    kept.between.fail = lambda what: unreachable(what) if what == "status" else None
    operator = kept.service.operator()
    operator.act(kept.rig.machine_id, "revoke", wipe=True, reason="retired")
    kept.rig.flags["wipe_command"] = "wipe"
    kept.rig.once()
    operator.call("DELETE", f"/machines/{kept.rig.machine_id}")
    kept.rig.admitted()
    kept.visit()
    assert kept.rig.machine_id in kept.leaf.subject.rfc4514_string()
    assert kept.leaf.public_key() != first.public_key()


def test_after_a_reset_of_the_ak_there_is_a_new_certificate(kept: Keeper) -> None:
    """The reset revoked what the AK had vouched for, as compromised: the next one is for another key."""
    first = kept.leaf
    # Nobody has to ask whether it was revoked.
    kept.between.fail = lambda what: unreachable(what) if what == "status" else None
    kept.service.operator().act(kept.rig.machine_id, "ak-reset", reason="suspicion")
    kept.visit(minutes=1)
    kept.visit(minutes=1)
    assert kept.leaf.public_key() != first.public_key(), kept.offered.notes("client")
    kept.visit(minutes=1)
    assert [found["state"] for found in kept.issued()] == ["issued", "revoked"]


def test_a_certificate_that_was_revoked_is_replaced(kept: Keeper) -> None:
    """Because the machine has another role, or an operator wants so: within ten minutes, for another key."""
    first, operator = kept.leaf, kept.service.operator()
    operator.act(kept.rig.machine_id, "role", role="worker-infra", reason="moved")
    kept.visit(minutes=10)
    second = kept.leaf
    assert second.public_key() != first.public_key(), kept.offered.notes("client")
    assert "OU=worker-infra" in second.subject.rfc4514_string()
    operator.call(
        "POST", f"/ca/certificates/{second.serial_number:040x}/revoke", json={"reason": "keyCompromise"}
    )
    kept.visit(minutes=10)
    assert kept.leaf.public_key() not in (first.public_key(), second.public_key())
    assert kept.rig.events.names().count("certificate.revoked") == 2


def test_what_is_only_held_is_not_replaced(kept: Keeper) -> None:
    """A lock ends with an unlock. Nor is what nobody can answer about."""
    first = kept.leaf
    kept.service.operator().act(kept.rig.machine_id, "lock", reason="seen elsewhere")
    held = kept.service.client().get(f"/pki/ocsp/{status_request(kept)}").content
    kept.service.operator().act(kept.rig.machine_id, "unlock")
    for answer in (held, b"rubbish", b"\x30\x03\x0a\x01\x06"):
        kept.between.alter_status = lambda _, answer=answer: answer  # type: ignore[misc]
        kept.visit(minutes=11)
        assert kept.between.asked[-1] == "status"
    assert (kept.leaf, kept.error()) == (first, None)
    assert "certificate.status_failed" in kept.rig.events.names()


def status_request(keeper: Keeper) -> str:
    """Return the OCSP request for the certificate, as it stands in an address."""
    (ca,) = x509.load_pem_x509_certificates(keeper.file[BUNDLE])
    made = ocsp.OCSPRequestBuilder().add_certificate(keeper.leaf, ca, hashes.SHA256()).build()
    return quote(b64encode(made.public_bytes(Encoding.DER)), safe="")


def refusing(keeper: Keeper, code: int, monkeypatch: pytest.MonkeyPatch, file: bytes | None = None) -> None:
    """Let the TPM refuse the key in *file*, or the one that is offered."""
    lost, sign = file or keeper.file[KEY], keeper.rig.tpm.sign

    def refuse(key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        if encode_key_file(key) == lost:
            raise TPMResponseError("TPM2_Load", code, "refused")
        return sign(key, digest, pss=pss)

    monkeypatch.setattr(keeper.rig.tpm, "sign", refuse)


def test_a_key_that_is_lost_while_the_agent_runs(kept: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows at the renewal at the latest: that one fails, and the next is for a new key."""
    first = kept.leaf
    refusing(kept, 0x1DF, monkeypatch)
    kept.visit(hours=17)
    assert (kept.leaf, kept.error()) == (first, "tpm-response-error")
    kept.visit(minutes=1)
    assert kept.leaf.public_key() != first.public_key()


def test_a_tpm_that_is_busy_has_not_lost_a_key(kept: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, busy, locked out: warnings of the TPM (Part 2, 6.6.2) cost nobody a key."""
    first = kept.leaf
    kept.restart()
    for code in (0x902, 0x921, 0x922):
        with monkeypatch.context() as patched:
            refusing(kept, code, patched)
            kept.visit(minutes=20)
            assert (kept.leaf, kept.error()) == (first, "tpm-response-error")
    kept.visit(minutes=20)
    kept.visit(hours=17)
    assert kept.leaf.public_key() == first.public_key()
    assert "certificate.key_lost" not in kept.rig.events.names()


def test_an_error_that_nobody_thought_of_is_a_failure_like_any(kept: Keeper) -> None:
    """Attesting goes on whatever happens here."""

    def odd(what: str) -> None:
        raise ZeroDivisionError("odd")

    kept.between.fail = odd
    kept.visit(hours=17)
    assert kept.error() == "ZeroDivisionError"


def test_a_full_disk_is_a_failure_like_any(kept: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was offered before still is."""
    before = kept.file

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(kept.offered), "_write", full)
    kept.visit(hours=17)
    assert (kept.file, kept.error()) == (before, "OSError")
    assert [p.name for p in kept.offered.directory.glob(".client-*")] == [
        kept.offered.path("client").readlink().name
    ]


# What is not believed


def other_ca(answer: CertResponse, keeper: Keeper, **changes: Any) -> CertResponse:
    """Return the same certificate from another CA of the same name."""
    leaf = x509.load_pem_x509_certificate(answer.certificates[0].cert_pem.encode())
    ca = OperatorCA(keeper.now().replace(microsecond=0))
    names = changes.get("names", leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    made = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject)
        .issuer_name(leaf.issuer)
        .public_key(changes.get("key", leaf.public_key()))
        .serial_number(leaf.serial_number)
        .not_valid_before(leaf.not_valid_before_utc)
        .not_valid_after(leaf.not_valid_after_utc)
        .add_extension(names, critical=False)
        .sign(ca.key, leaf.signature_hash_algorithm)  # type: ignore[arg-type]
    )
    return with_certificate(answer, made.public_bytes(Encoding.PEM).decode())


def with_certificate(answer: CertResponse, pem: str, chain: str = "") -> CertResponse:
    changed = answer.certificates[0].model_copy(update={"cert_pem": pem, "chain_pem": chain})
    return answer.model_copy(update={"certificates": [changed]})


def of_another_key(answer: CertResponse, keeper: Keeper) -> CertResponse:
    return other_ca(answer, keeper, key=ec.generate_private_key(ec.SECP256R1()).public_key())


def with_a_foreign_chain(answer: CertResponse, keeper: Keeper) -> CertResponse:
    foreign = OperatorCA(keeper.now().replace(microsecond=0)).pem.decode()
    return with_certificate(answer, answer.certificates[0].cert_pem, foreign)


ANSWERS: dict[str, Callable[[CertResponse, Keeper], CertResponse]] = {
    "another CA of the same name": other_ca,
    "another key": of_another_key,
    "a foreign chain": with_a_foreign_chain,
    "another machine": lambda a, k: a.model_copy(update={"machine_id": "0" * 8 + a.machine_id[8:]}),
    "another profile": lambda a, k: a.model_copy(update={"profile": "node-server"}),
    "no certificate": lambda a, k: a.model_copy(update={"certificates": []}),
    "rubbish": lambda a, k: with_certificate(a, "rubbish"),
    "two certificates": lambda a, k: with_certificate(a, 2 * a.certificates[0].cert_pem),
    "a rubbish chain": lambda a, k: with_certificate(a, a.certificates[0].cert_pem, "rubbish"),
}


@pytest.mark.threat("T110")
@pytest.mark.parametrize("how", ANSWERS)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(kept: Keeper, how: str) -> None:
    """Whoever stands between, or a service gone mad, cannot make us offer something else."""
    before = kept.file
    kept.between.alter = lambda answer: ANSWERS[how](answer, kept)
    kept.visit(hours=17)
    assert "request" in kept.between.asked
    assert (kept.file, kept.error()) == (before, "answer-refused")


@pytest.mark.threat("T110")
def test_a_certificate_of_another_tpm_is_refused(kept: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of our CA, for our key, that names another EK."""
    before = kept.file
    known = kept.rig.state.known_as()
    assert known is not None
    kept.offered.ask("client")
    other = dataclasses.replace(known, ek_fingerprint="0" * 96)
    monkeypatch.setattr(kept.rig.state, "known_as", lambda: other)
    kept.certificates.visit()
    assert (kept.file, kept.error()) == (before, "answer-refused")


@pytest.mark.threat("T110")
def test_a_certificate_that_is_not_valid_now_is_refused(
    kept: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose clock is wrong keeps what it has, and says why."""
    before = kept.file
    real = kept.service.clock.now

    def late(_: object) -> Any:
        return real() + timedelta(days=3)

    kept.visit(hours=17)
    before = kept.file
    kept.offered.ask("client")
    monkeypatch.setattr(kept.certificates, "_clock", type("Late", (), {"now": late})())
    # Beside the certificate the signature over the bundle is out of its time, too: only the first is looked at.
    monkeypatch.setattr(
        "attestation_agent.certificates.directives.verify_trust_bundle", lambda *_, **__: None
    )
    kept.certificates.visit()
    assert kept.file == before
    assert "clock" in kept.offered.notes("client")["error"]["reason"]


@pytest.mark.threat("T110")
def test_a_certificate_for_a_key_of_before_is_refused(local: InProcessService, tmp_path: Path) -> None:
    """One of our CA, for this machine: but not for the key that was asked for, which may be anybody's."""
    keeper = Keeper(local, tmp_path, certificate_new_key="yes")
    keeper.rig.admitted()
    answers: list[CertResponse] = []

    def first(answer: CertResponse) -> CertResponse:
        answers.append(answer)
        return answers[0]

    keeper.between.alter = first
    keeper.visit()
    before = keeper.file
    keeper.offered.ask("client")
    keeper.visit()
    assert len(answers) == 2
    assert (keeper.file, keeper.error()) == (before, "answer-refused")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_nonce_of_another_length_is_not_answered(keeper: Keeper, size: int) -> None:
    """It never reaches the TPM."""
    keeper.between.alter_challenge = lambda given: given.model_copy(update={"nonce": b64encode(bytes(size))})
    keeper.visit()
    assert "request" not in keeper.between.asked
    assert keeper.offered.current("client") is None


@pytest.mark.threat("T110")
def test_a_bundle_of_somebody_else_is_refused(kept: Keeper) -> None:
    """One more CA, no signature, another's signature, an old one, one for operators: nothing is taken from it."""
    before = kept.file
    mine = kept.service.app.state.resources.signer
    extra = OperatorCA(kept.now().replace(microsecond=0)).pem
    now = int(kept.now().timestamp())

    def signed(pem: bytes, **claims: Any) -> str:
        digest = hashlib.sha256(pem).hexdigest()
        good = {"bundle_sha256": digest, "purpose": "machine", "iat": now, "exp": now + 10**6}
        token: str = mine.sign_jwt(good | claims, typ=TRUST_BUNDLE_TYP)
        return token

    for alter in (
        lambda b: dataclasses.replace(b, pem=b.pem + extra),
        lambda b: dataclasses.replace(b, signature=None),
        lambda b: dataclasses.replace(b, signature="a.b.c"),
        lambda b: dataclasses.replace(b, signature=signed(b.pem, purpose="operator")),
        lambda b: dataclasses.replace(b, signature=signed(b.pem, exp=now - 3600)),
        lambda b: dataclasses.replace(b, signature=signed(b.pem + extra)),
        lambda b: dataclasses.replace(b, signature=signed(b.pem, bundle_sha256=7)),
        lambda b: dataclasses.replace(b, pem=b"", signature=signed(b"")),
    ):
        kept.between.alter_bundle = alter
        # As it is fetched from time to time, and as it comes with a renewal.
        kept.visit(hours=2)
        kept.offered.ask("client")
        kept.visit(minutes=20)
        assert kept.file == before
        assert kept.error() in ("directive-rejected", "answer-refused")
    kept.between.alter_bundle = lambda b: b
    kept.offered.ask("client")
    kept.visit(hours=1)
    assert kept.file[BUNDLE] == before[BUNDLE]
    assert kept.file[CERTIFICATE] != before[CERTIFICATE]
    assert not kept.offered.asked("client"), "asked once, answered once"


# Rotation of the CA


def rotate(keeper: Keeper, step: str) -> None:
    keeper.service.operator().call(
        "POST", "/ca/rotation", json={"step": step, "reason": "yearly", "force": True}
    )


def test_a_rotation_is_followed(kept: Keeper) -> None:
    """The next CA is trusted within the hour, long before it signs; the renewal is by it; old leaves verify on."""
    first, old_bundle = kept.leaf, kept.file[BUNDLE]
    rotate(kept, "prepare")
    kept.visit(minutes=61)
    prepared = kept.file
    assert prepared[BUNDLE] != old_bundle
    assert prepared[CERTIFICATE] == first.public_bytes(Encoding.PEM), "nothing was asked for"
    assert "certificate.bundle_changed" in kept.rig.events.names()
    rotate(kept, "activate")
    kept.visit(minutes=61)
    kept.visit(hours=16)
    second = kept.leaf
    assert second.issuer != first.issuer
    for leaf in (first, second):
        for bundle in (prepared[BUNDLE], kept.file[BUNDLE]):
            verifier = PolicyBuilder().store(Store(x509.load_pem_x509_certificates(bundle)))
            built = verifier.time(first.not_valid_before_utc + timedelta(minutes=10)).build_client_verifier()
            if leaf is first:
                built.verify(leaf, [])
    trusted = x509.load_pem_x509_certificates(prepared[BUNDLE])
    assert any(second.issuer == ca.subject for ca in trusted), (
        "whoever read the bundle before trusts it already"
    )


def test_a_bundle_that_cannot_be_fetched_takes_nothing_away(kept: Keeper) -> None:
    """It is tried again sooner than in an hour, and is no failure of the certificate."""
    before = kept.file
    kept.between.fail = unreachable
    kept.visit(minutes=61)
    assert (kept.file, kept.error()) == (before, None)
    assert "certificate.bundle_failed" in kept.rig.events.names()
    kept.between.fail = lambda what: None
    asked = len(kept.between.asked)
    kept.visit(minutes=1)
    assert kept.between.asked[asked:] == ["bundle"]


# Telling


def test_programs_are_told_of_every_change_once(local: InProcessService, tmp_path: Path) -> None:
    """With the directory; again where the command failed, and after a crash between the change and the telling."""
    keeper = Keeper(local, tmp_path, certificate_command="reload it")
    keeper.rig.admitted()
    keeper.outcome = Outcome(ok=False, text="exit status 1")
    keeper.visit()
    wanted = ("reload", "it", str(keeper.offered.path("client")))
    assert keeper.commands == [wanted]
    assert keeper.offered.notes("client")["tell_error"] == "exit status 1"
    keeper.visit(seconds=5)
    assert keeper.commands == [wanted], "not at once"
    keeper.outcome = GOOD
    keeper.restart()
    keeper.visit(minutes=1)
    assert keeper.commands == [wanted] * 2
    keeper.visit(minutes=1)
    assert keeper.commands == [wanted] * 2
    # The power failed after the files were changed.
    keeper.offered.set_notes("client", {})
    keeper.visit()
    assert keeper.commands == [wanted] * 3
    keeper.visit(hours=17)
    assert keeper.commands == [wanted] * 4


# A TPM with all its rules


@pytest.mark.swtpm
def test_a_cleared_tpm_gets_a_new_key(
    local: InProcessService, tmp_path: Path, blank_tpm: SoftwareTPM
) -> None:
    """TPM2_Clear: the key is gone; what was offered stays until a new key has a certificate.

    The AK comes back, but with a clock that went back: an operator must reset it before anything is issued.
    """

    def open_tpm() -> NodeTPM:
        return NodeTPM.open(blank_tpm.uri)

    keeper = Keeper(local, tmp_path, open_tpm=open_tpm)
    keeper.rig.admitted()
    keeper.visit()
    assert keeper.error() is None, keeper.offered.notes("client")
    first = keeper.leaf
    keeper.tpm.close()
    clear(blank_tpm)
    keeper.restart()
    keeper.between.fail = unreachable
    keeper.visit(minutes=1)
    assert keeper.leaf == first
    keeper.between.fail = lambda what: None
    keeper.visit(minutes=20)
    assert keeper.error() == "machine-not-admitted"
    assert keeper.leaf == first
    local.operator().act(keeper.rig.machine_id, "ak-reset", reason="TPM cleared")
    keeper.visit(minutes=20)
    assert keeper.leaf.public_key() != first.public_key(), keeper.offered.notes("client")
    assert "certificate.key_lost" in keeper.rig.events.names()
    assert keeper.rig.events.names().count("certificate.key_made") == 2, "one key for all attempts"
    keeper.restart()
    keeper.visit(minutes=1)
    assert len(keeper.issued()) == 2
    keeper.tpm.close()


def clear(tpm: SoftwareTPM) -> None:
    """TPM2_Clear by the platform."""
    with tpm.client() as client:
        client.execute(commands.clear(Hierarchy.PLATFORM), Password())
