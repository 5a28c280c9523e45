"""How a node gets its certificate, keeps it, and gets the next one: whatever fails in between."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import DeviceError, MachineNotAdmitted
from attestation.evidence import key_certification, node_csr
from attestation.evidence.key_certification import KeyMode, csr_binding
from attestation.tpm import parse_attest
from attestation.tpm.attest import CertifyInfo
from attestation_agent.exits import AnswerRefused, NoNodeCertificate
from attestation_agent.kubelet.flow import (
    LONGEST_REQUEST,
    PATIENCE_WITH_CERTIFICATE_SECONDS,
    USAGES,
    Held,
    due_at,
    ensure,
)
from attestation_agent.kubelet.kept import BUNDLE, NOTES, PENDING
from attestation_agent.kubelet.keys import subject_of
from tests.unit.agent.kubelet.cluster import CA, DAY, HOUR, START, Cluster, Request

PATIENCE = 3600.0


@pytest.fixture(params=["external", "resident"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    """A cluster, with either kind of key."""
    return Cluster(directory=tmp_path / "node", resident=request.param == "resident")


def get(cluster: Cluster, *, patience: float = PATIENCE, **wanted: Any) -> Held:
    """Go through the flow."""
    return ensure(cluster.surroundings(), cluster.wanted(**wanted), patience_seconds=patience)


def spki(request: Request) -> bytes:
    return request.csr.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_the_first_certificate(cluster: Cluster) -> None:
    """What is asked for, and that what comes back is kept with its key in one file of mode 0600."""
    held = get(cluster)
    (request,) = cluster.requests.values()
    assert request.spec["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert (request.spec["usages"], request.spec["expirationSeconds"]) == (list(USAGES), 86_400)
    assert request.csr.is_signature_valid
    assert request.csr.subject == subject_of("w-1")
    assert list(request.csr.extensions) == []
    bundle = cluster.directory / BUNDLE
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert bundle.read_bytes() == held.current.key_pem + held.current.issued.pem
    assert held.failure is None
    assert not (cluster.directory / PENDING).exists()
    assert {path.stat().st_mode & 0o777 for path in cluster.directory.iterdir()} == {0o600}


def test_the_name_is_a_digest_of_key_and_challenge(cluster: Cluster) -> None:
    """HSM-AND-KUBERNETES §25.4: `node-csr-` and 20 bytes of SHA-256(SPKI ‖ nonce_id), hex."""
    import hashlib

    get(cluster)
    (request,) = cluster.requests.values()
    nonce_id = f"{1:032x}"
    assert request.name == f"node-csr-{hashlib.sha256(spki(request) + nonce_id.encode()).hexdigest()[:40]}"


def test_the_evidence(cluster: Cluster) -> None:
    """The AK certifies this key for this request and this challenge; the mode is what the key is."""
    get(cluster)
    (request,) = cluster.requests.values()
    container = node_csr.parse(request.content)
    assert (container.machine_id, container.nonce_id) == (cluster.machine_id, f"{1:032x}")
    assert container.quote is None
    assert container.event_log is None
    assert container.public is not None
    assert container.attest is not None
    parsed = key_certification.parse(container.public, container.attest, container.signature)
    assert parsed.spki == spki(request)
    binding = csr_binding(bytes([1]) * 32, request.csr.tbs_certrequest_bytes)
    attest = parse_attest(container.attest)
    assert attest.extra_data == binding
    assert isinstance(attest.attested, CertifyInfo)
    mode = key_certification.compute_mode(parsed.public, attest.attested.qualified_name)
    assert mode is (KeyMode.RESIDENT if cluster.resident else KeyMode.EXTERNAL)


def test_a_quote_where_the_challenge_names_pcrs(cluster: Cluster) -> None:
    """Over the same nonce; with the event log only where it is demanded."""
    cluster.selection = {"sha256": [0, 7]}
    cluster.event_log = b"log" * 100
    get(cluster)
    container = node_csr.parse(cluster.newest.content)
    assert container.quote is not None
    assert parse_attest(container.quote).extra_data == bytes([1]) * 32
    assert container.pcr_values is not None
    assert set(container.pcr_values["sha256"]) == {"0", "7"}
    assert container.event_log is None
    cluster.event_log_wanted = "required"
    cluster.clock.at += DAY
    get(cluster)
    assert node_csr.parse(cluster.newest.content).event_log == cluster.event_log


def test_an_event_log_that_no_request_can_hold(cluster: Cluster) -> None:
    """Said here, before the API server refuses the whole."""
    cluster.selection, cluster.event_log_wanted = {"sha256": [0]}, "required"
    cluster.event_log = bytes((512 << 10) + 1)
    with pytest.raises(AnswerRefused, match="event log"):
        get(cluster)
    assert cluster.requests == {}


def test_without_evidence(tmp_path: Path) -> None:
    """`--attestation none`: a plain request; neither service nor TPM is asked."""
    cluster = Cluster(directory=tmp_path / "node", machine_id=None)
    get(cluster, attested=False)
    assert cluster.challenges == 0
    assert cluster.newest.content.count(b"-----BEGIN") == 1


def test_a_machine_that_nobody_knows(cluster: Cluster) -> None:
    """The agent introduces it; this flow does not."""
    cluster.machine_id = None
    with pytest.raises(NoNodeCertificate, match="introduces"):
        get(cluster)


# What comes back


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda c, r: c.ca.issue(ec.generate_private_key(ec.SECP256R1()).public_key()), "another key"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), subject=subject_of("w-2")), "not for this node"),
        (lambda c, r: CA("other").issue(r.csr.public_key()), "none of the CAs"),
        (lambda c, r: CA().issue(r.csr.public_key()), "none of the CAs"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), ca=True), "not one of a client"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), clients=False), "not one of a client"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), clients=False, servers=True), "not one of a client"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), begins=START + HOUR), "not valid now"),
        (lambda c, r: c.ca.issue(r.csr.public_key(), begins=START - 2 * DAY), "not valid now"),
        (lambda c, r: b"", "cannot be read"),
        (lambda c, r: c.ca.issue(r.csr.public_key()) * 9, "9 certificates"),
        (lambda c, r: c.ca.issue(r.csr.public_key()) + CA().pem + c.ca.pem, ""),
    ],
)
def test_a_certificate_that_was_not_asked_for(
    cluster: Cluster, make: Callable[[Cluster, Request], bytes], said: str
) -> None:
    """It is not kept; the next attempt is a new request with the same key."""

    def decide(request: Request) -> None:
        request.verdict, request.certificate = "Approved", make(cluster, request)

    cluster.decide = decide
    if not said:
        # The leaf is ours and from a CA that is trusted: what stands behind it does not matter.
        get(cluster)
        return
    with pytest.raises(NoNodeCertificate, match=said):
        get(cluster)
    assert not (cluster.directory / BUNDLE).exists()
    cluster.decide = cluster.approve
    get(cluster)
    first, second = cluster.requests.values()
    assert spki(first) == spki(second)


def test_an_intermediate_ca(cluster: Cluster) -> None:
    """The chain that came leads to a CA that is trusted."""
    between = CA("between")
    cross = cluster.ca.issue(between.key.public_key(), subject=between.name, ca=True, clients=False)

    def decide(request: Request) -> None:
        request.verdict = "Approved"
        request.certificate = b"text around\n" + between.issue(request.csr.public_key()) + cross

    cluster.decide = decide
    held = get(cluster)
    assert held.current.issued.pem.count(b"BEGIN CERTIFICATE") == 2
    assert b"text around" not in held.current.issued.pem


def test_an_intermediate_that_may_not_issue(cluster: Cluster) -> None:
    """Another client's certificate signed ours: refused."""
    between = CA("between")
    cross = cluster.ca.issue(between.key.public_key(), subject=between.name)

    def decide(request: Request) -> None:
        request.verdict, request.certificate = "Approved", between.issue(request.csr.public_key()) + cross

    cluster.decide = decide
    with pytest.raises(NoNodeCertificate, match="none of the CAs"):
        get(cluster)


def test_an_intermediate_that_issued_another(cluster: Cluster) -> None:
    """It is a CA under ours and has the name of the issuer, but not its key: refused."""
    stranger, between = CA("between"), CA("between")
    cross = cluster.ca.issue(between.key.public_key(), subject=between.name, ca=True, clients=False)

    def decide(request: Request) -> None:
        request.verdict, request.certificate = "Approved", stranger.issue(request.csr.public_key()) + cross

    cluster.decide = decide
    with pytest.raises(NoNodeCertificate, match="none of the CAs"):
        get(cluster)


def test_a_certificate_without_approval_is_not_taken(cluster: Cluster) -> None:
    """The API server accepts one on a request that nobody approved (§21)."""

    def decide(request: Request) -> None:
        cluster.approve(request)
        request.verdict = None

    cluster.decide = decide
    with pytest.raises(NoNodeCertificate, match="not decided"):
        get(cluster, patience=20)


@pytest.mark.parametrize("verdict", ["Denied", "Failed"])
def test_denied(cluster: Cluster, verdict: str) -> None:
    """The reason reaches the log of the node; the next attempt is another request with the same key."""

    def decide(request: Request) -> None:
        request.verdict, request.reason, request.message = verdict, "MachineNotAdmitted", "step 3 of 00ff"

    cluster.decide = decide
    with pytest.raises(NoNodeCertificate, match=r"(denied|failed): MachineNotAdmitted: step 3 of 00ff"):
        get(cluster)
    cluster.decide = cluster.approve
    get(cluster)
    first, second = cluster.requests.values()
    assert spki(first) == spki(second)
    assert first.name != second.name


def test_nobody_decides(cluster: Cluster) -> None:
    """It waits as long as it was told, without the TPM in hand, and goes on with the same request the next time."""
    cluster.decide = lambda request: None
    with pytest.raises(NoNodeCertificate, match="not decided"):
        get(cluster, patience=100)
    assert 99 < sum(cluster.waited) <= 100.5
    assert max(cluster.waited) <= 10
    cluster.decide = cluster.approve
    get(cluster)
    assert len(cluster.requests) == 1


def test_an_old_request_is_given_up(cluster: Cluster) -> None:
    """After an hour its name is forgotten, the key is not."""
    cluster.decide = lambda request: None
    with pytest.raises(NoNodeCertificate):
        get(cluster, patience=1)
    cluster.decide = cluster.approve
    cluster.clock.at += LONGEST_REQUEST
    get(cluster)
    first, second = cluster.requests.values()
    assert spki(first) == spki(second)


def test_a_request_that_is_gone(cluster: Cluster) -> None:
    """Somebody deleted it: another one."""

    def decide(request: Request) -> None:
        cluster.requests.clear()

    cluster.decide = decide
    with pytest.raises(NoNodeCertificate, match="not decided"):
        get(cluster, patience=0.5)
    with pytest.raises(NoNodeCertificate, match="is gone"):
        get(cluster, patience=30)
    cluster.decide = cluster.approve
    get(cluster)


def test_told_to_stop(cluster: Cluster) -> None:
    """While it waits: it ends at once."""
    cluster.decide, cluster.stop = lambda request: None, True
    with pytest.raises(NoNodeCertificate):
        get(cluster)
    assert len(cluster.waited) == 1


# Renewal


def test_nothing_is_asked_for_before_it_is_due(cluster: Cluster) -> None:
    """Two thirds of the lifetime: not a request, not a challenge, not the TPM."""
    first = get(cluster)
    cluster.clock.at = START + 15 * HOUR

    def fail(what: str) -> None:
        raise AssertionError(what)

    cluster.fail = fail
    assert get(cluster).current == first.current


def test_renewed_by_the_whole_flow_with_a_new_key(cluster: Cluster) -> None:
    """At two thirds: a fresh challenge, a new key, a new certificate."""
    first = get(cluster)
    cluster.clock.at = START + 16 * HOUR
    second = get(cluster)
    assert (cluster.challenges, second.failure) == (2, None)
    a, b = cluster.requests.values()
    assert spki(a) != spki(b)
    assert second.current.issued.serial != first.current.issued.serial


def test_the_instant_of_renewal_is_drawn_once_within_a_tenth(tmp_path: Path) -> None:
    """0.6 to 0.733 of the lifetime; kept across restarts, and ignored for any other certificate."""
    drawn = []
    for seed in range(20):
        cluster = Cluster(directory=tmp_path / str(seed))
        around = replace(cluster.surroundings(), uniform=random.Random(seed).uniform)
        held = ensure(around, cluster.wanted(), patience_seconds=0.0 + PATIENCE)
        drawn.append((due_at(held.current) - START) / DAY)
        assert due_at(held.current) == due_at(cluster.kept.current())  # type: ignore[arg-type]  # there is one
    assert all(0.6 <= each <= 0.7334 for each in drawn)
    assert len(set(drawn)) == 20
    cluster = Cluster(directory=tmp_path / "0")
    (cluster.directory / NOTES).write_text(json.dumps({"serial": "0", "renew_at": "2099-01-01T00:00:00Z"}))
    present = cluster.kept.current()
    assert present is not None
    assert due_at(present) == START + 16 * HOUR


@pytest.mark.parametrize("noted", ["2099-01-01T00:00:00Z", "never", 5, None])
def test_notes_never_delay_beyond_the_end(cluster: Cluster, noted: object) -> None:
    """Whatever stands in the file, another certificate is asked for five minutes before the end."""
    held = get(cluster)
    (cluster.directory / NOTES).write_text(
        json.dumps({"serial": held.current.issued.serial, "renew_at": noted})
    )
    cluster.clock.at = START + DAY - timedelta(minutes=5)
    assert get(cluster).current.issued.serial != held.current.issued.serial


def test_a_valid_certificate_is_kept_while_renewing_fails(cluster: Cluster) -> None:
    """Denied, unreachable, no TPM: it goes on being used, and says why it is not a newer one."""
    first = get(cluster)
    cluster.clock.at = START + 20 * HOUR
    for what, error in (
        ("challenge", MachineNotAdmitted("locked")),
        ("tpm", DeviceError("gone")),
        ("create", OSError("unreachable")),
    ):

        def fail(step: str, what: str = what, error: Exception = error) -> None:
            if step == what:
                raise error

        cluster.fail = fail
        held = get(cluster)
        assert held.current == first.current
        assert held.failure is error
    cluster.fail = lambda what: None
    cluster.decide = lambda request: None
    cluster.waited.clear()
    assert get(cluster).current == first.current
    assert sum(cluster.waited) <= PATIENCE_WITH_CERTIFICATE_SECONDS + 1


def test_after_a_partition_the_node_comes_back_by_itself(cluster: Cluster) -> None:
    """The certificate ended long ago: the same flow, no operator."""
    get(cluster)
    cluster.clock.at = START + 40 * DAY
    held = get(cluster)
    assert held.failure is None
    assert held.current.issued.not_after == START + 41 * DAY


def test_an_ended_certificate_is_not_kept_for_want_of_another(cluster: Cluster) -> None:
    """Nobody would accept it."""
    get(cluster)
    cluster.clock.at = START + DAY
    cluster.fail = lambda what: (_ for _ in ()).throw(DeviceError("gone"))
    with pytest.raises(DeviceError):
        get(cluster)


@pytest.mark.parametrize("step", ["challenge", "create", "look"])
def test_a_key_is_used_again_after_a_failure(cluster: Cluster, step: str) -> None:
    """Ten failures cost one key, wherever they strike."""

    def fail(what: str) -> None:
        if what == step:
            raise DeviceError("struck")

    cluster.fail = fail
    for _ in range(10):
        with pytest.raises(DeviceError):
            get(cluster)
        cluster.clock.at += timedelta(minutes=30)
    cluster.fail = lambda what: None
    get(cluster)
    assert len({spki(request) for request in cluster.requests.values()}) == 1


def test_an_answer_that_was_lost_is_found_again(cluster: Cluster) -> None:
    """The request was made and the node never heard of it: the next attempt finds it by its name."""

    def fail(what: str) -> None:
        if what == "created":
            raise OSError("cut off")

    cluster.fail = fail
    with pytest.raises(OSError, match="cut off"):
        get(cluster)
    cluster.fail = lambda what: None
    get(cluster)
    assert len(cluster.requests) == 1


@pytest.mark.parametrize(
    "other", [{"node_name": "w-2"}, {"trusted": [CA().certificate]}], ids=["name", "authorities"]
)
def test_another_wish_needs_another_certificate(cluster: Cluster, other: dict[str, Any]) -> None:
    """What is kept for another name or from a CA that is not trusted any more is not used."""
    get(cluster)
    cluster.decide = lambda request: None
    with pytest.raises(NoNodeCertificate):
        get(cluster, patience=1, **other)


def test_a_key_that_is_not_the_certificate_s(cluster: Cluster) -> None:
    """Files of two certificates mixed up, or damaged: another one is got."""
    get(cluster)
    first = (cluster.directory / BUNDLE).read_bytes()
    cluster.clock.at = START + 16 * HOUR
    get(cluster)
    second = (cluster.directory / BUNDLE).read_bytes()
    at = second.index(b"-----BEGIN CERTIFICATE")
    for mixed in (first[: first.index(b"-----BEGIN CERTIFICATE")] + second[at:], second[at:], b"", b"\xff"):
        (cluster.directory / BUNDLE).write_bytes(mixed)
        before = len(cluster.requests)
        assert get(cluster).failure is None
        assert len(cluster.requests) == before + 1


def test_of_two_processes_one_gets_it(cluster: Cluster) -> None:
    """The other waits, and finds what the first got."""
    with cluster.kept.alone(0, lambda _: False), pytest.raises(NoNodeCertificate, match="another process"):
        get(cluster, patience=1)
    assert cluster.challenges == 0

    def wait(_: float) -> bool:
        stack.close()
        get(cluster)
        return False

    import contextlib

    stack = contextlib.ExitStack()
    stack.enter_context(cluster.kept.alone(0, lambda _: False))
    ensure(replace(cluster.surroundings(), wait=wait), cluster.wanted(), patience_seconds=PATIENCE)
    assert cluster.challenges == 1
