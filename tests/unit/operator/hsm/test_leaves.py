"""HsmCertificates: what is done about one, row by row."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    SignerUnavailable,
)
from attestation_operator.actions import Create, Delete, Replace, SetFinalizers
from attestation_operator.crds.leaves import HsmCertificateSpec
from attestation_operator.errors import ClusterForbidden
from attestation_operator.hsm.leaf_objects import Ask, Case, Looked, keys_to_destroy, keys_to_retire
from attestation_operator.hsm.leaf_request import asked_spki, wanted_of
from attestation_operator.hsm.leaves import forbidden, pause
from attestation_operator.hsm.objects import Absent, Module
from attestation_operator.objects import CERTIFICATE_REQUEST, SECRET
from tests.unit.operator.hsm import leaf_world as world
from tests.unit.operator.hsm.leaf_world import (
    OPEN,
    SPEC,
    UID,
    certificate,
    encoded,
    events,
    issued,
    key,
    leaf,
    look,
    request,
    said,
    secret,
    spki,
    status_of,
)
from tests.unit.operator.hsm.world import AT, module

GOOD = {Ask.TLS: secret(), Ask.KEY: key()}


def made(looked: Looked, kind: Any) -> Any:
    """Return what is created of a kind."""
    [found] = [each for each in looked.actions if isinstance(each, Create) and each.kind is kind]
    return found.raw


def test_nothing_is_made_before_it_waits_for_us_and_was_seen() -> None:
    """A key may be made from then on, and somebody must deal with it."""
    looked = look(held=False)
    [action] = looked.actions
    assert isinstance(action, SetFinalizers)
    assert looked.again
    assert said(look({})) == {"Ready": ("Unknown", "Initializing")}


@pytest.mark.parametrize(
    ("spec", "token", "reason"),
    [
        ({"secretName": ""}, "good", "Failed"),
        ({"ipAddresses": ["10.0.0.256"]}, "good", "Failed"),
        ({"uriSANs": ["spiffe://é/a"], "subject": None}, "good", "Failed"),
        (
            dict.fromkeys(("subject", "dnsNames", "ipAddresses", "uriSANs", "emailAddresses")),
            "good",
            "Failed",
        ),
        ({}, None, "Pending"),
        ({}, module(allowedNamespaces=["other"]), "Pending"),
        ({}, module("False"), "KeyUnavailable"),
    ],
    ids=["no-spec", "no-address", "no-uri", "no-name", "no-token", "not-for-it", "not-ready"],
)
def test_without_a_spec_or_a_token_nothing_is_asked(spec: Any, token: Module | None, reason: str) -> None:
    """A token that is not for its namespace is none."""
    looked = look(token=token, **spec)
    assert said(looked)["Ready"] == ("False", reason)
    assert looked.ask is None


def test_a_secret_of_somebody_else_stops_it_before_a_key_is_made() -> None:
    """Another owner, none, or another type: none is overwritten, at no stage."""
    foreign = [
        secret(uid="u-other"),
        secret(type="kubernetes.io/tls"),
        secret(metadata={"name": "pay-tls", "uid": "u", "resourceVersion": "1"}),
    ]
    stages: list[Any] = [{"conditions": world.SEEN}, OPEN, issued()]
    for there in foreign:
        for status in stages:
            looked = look(status, {Ask.TLS: there})
            assert said(looked)["Ready"] == ("False", "SecretForeign")
            assert (looked.ask, events(looked)) == (None, ["SecretForeign"])
    assert world.without_answer(None, Ask.TLS).ask is Ask.TLS


def test_the_number_of_a_request_is_written_down_before_it_is_made() -> None:
    """Its name and its key follow from it: who comes after a crash, or at the same time, makes the same."""
    looked = look()
    status = status_of(looked)
    assert (status["requestNumber"], status["keyRevision"]) == (1, 1)
    assert status["requestName"] == f"pay-{UID[:8]}-1"
    assert said(looked) == {"Ready": ("False", "Issuing"), "Issuing": ("True", "Requested")}
    assert (len(looked.actions), looked.again) == (1, True)


def test_a_request_is_made_with_its_key_and_says_whose_it_is() -> None:
    """By way of cert-manager, of any issuer; nobody of us approves it."""
    assert look(OPEN).ask is Ask.REQUEST
    assert look(OPEN, {Ask.REQUEST: Absent()}).ask is Ask.MAKE
    ref = {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    raw = made(look(OPEN, {Ask.REQUEST: Absent(), Ask.MAKE: key()}, issuerRef=ref), CERTIFICATE_REQUEST)
    assert raw["metadata"]["name"] == f"pay-{UID[:8]}-1"
    [owner] = raw["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("HsmCertificate", UID, True)
    assert raw["spec"]["issuerRef"] == ref
    wanted = wanted_of(HsmCertificateSpec.model_validate(SPEC))
    assert asked_spki(wanted, base64.b64decode(raw["spec"]["request"])) == spki()
    assert (raw["spec"]["isCA"], raw["spec"]["duration"]) == (False, "24h")
    assert "status" not in raw


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyAmbiguous("two"), "KeyAmbiguous"),
        (KeyUnsupported("no ML-DSA"), "KeyUnsupported"),
        (SignerUnavailable("away"), "KeyUnavailable"),
    ],
)
def test_a_key_that_is_not_one_is_not_used(error: AttestationError, reason: str) -> None:
    """Not for a request, not for a certificate that came, and not where all is there."""
    answered = request(("True", "Issued"), pem=certificate())
    for status, answers in (
        (OPEN, {Ask.REQUEST: Absent(), Ask.MAKE: error}),
        (OPEN, {Ask.REQUEST: answered, Ask.KEY: error}),
        (issued(), {Ask.TLS: secret(), Ask.KEY: error}),
    ):
        looked = look(status, answers)
        assert said(looked)["Ready"] == ("False", reason)
        assert looked.after == 10.0


def test_a_key_of_another_algorithm_is_left_for_one_of_its_own() -> None:
    """`keyType` was changed: the next key has another number."""
    looked = look(OPEN, {Ask.REQUEST: Absent(), Ask.MAKE: KeyMismatch("it is P-384")})
    assert status_of(looked)["keyRevision"] == 2
    looked = look(issued(), GOOD, keyType="ecdsa-p384", keyRotation="Never")
    assert status_of(looked)["keyRevision"] == 2


def test_an_open_request_is_waited_for() -> None:
    """What its issuer says of it is told, and the certificate before it stays good."""
    looked = look(OPEN, {Ask.REQUEST: request(("False", "Pending"))})
    assert said(looked) == {"Ready": ("False", "Issuing"), "Issuing": ("True", "Pending")}
    renewing = issued(requestNumber=2)
    looked = look(renewing, {Ask.TLS: secret(), Ask.REQUEST: request()})
    assert said(looked) == {"Ready": ("True", "Issued"), "Issuing": ("True", "Pending")}
    looked = look(renewing, {Ask.TLS: secret(), Ask.REQUEST: request()}, at=AT + timedelta(days=2))
    assert said(looked)["Ready"] == ("False", "Expired")


def test_a_certificate_goes_into_the_secret_with_the_uri_of_its_key_and_no_key() -> None:
    """Secret first, then the status, then an Event; ca as far as it is known."""
    pem = certificate()
    looked = look(OPEN, {Ask.REQUEST: request(("True", "Issued"), pem=pem), Ask.KEY: key()})
    raw = made(looked, SECRET)
    assert raw["data"] == {"tls.crt": encoded(pem), "ca.crt": encoded(pem), "key-uri": encoded(key().uri)}
    assert raw["metadata"]["ownerReferences"][0]["uid"] == UID
    assert "PRIVATE KEY" not in "".join(base64.b64decode(each).decode() for each in raw["data"].values())
    assert [type(each).__name__ for each in looked.actions] == ["Create", "SetStatus", "EmitEvent"]
    status = status_of(looked)
    assert (status["revision"], status["serialNumber"], status["failures"]) == (1, "a", 0)
    assert status["notAfter"] == rfc3339(AT + timedelta(hours=24))
    assert status["renewalTime"] == "2026-11-27T03:58:20.000000Z", "a third of its life before its end"
    assert said(looked) == {"Ready": ("True", "Issued"), "Issuing": ("False", "Issued")}


def test_what_others_put_on_the_secret_stays_and_a_key_in_it_does_not() -> None:
    """Ours is the data, all of it."""
    there = secret()
    there["data"]["tls.key"] = encoded("theirs")
    answers = {Ask.TLS: there, Ask.REQUEST: request(("True", "Issued"), pem=certificate()), Ask.KEY: key()}
    for status in (OPEN, issued()):
        [replaced] = [each for each in look(status, answers).actions if isinstance(each, Replace)]
        assert replaced.raw["metadata"]["labels"] == {"theirs": "stays"}
        assert replaced.raw["data"].keys() == {"tls.crt", "ca.crt", "key-uri"}
        assert replaced.target.resource_version == "8"


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (request(("False", "Failed")), "Failed"),
        (request(("False", "Denied"), denied=True), "Denied"),
        (request(denied=True), "Denied"),
        (request(invalid=True), "InvalidRequest"),
        (request(uid="u-other"), "RequestForeign"),
        (request(("True", "Issued")), "CertificateMismatch"),
        (request(("True", "Issued"), pem=certificate("other")), "CertificateMismatch"),
        (request(("True", "Issued"), pem=certificate(at=AT - timedelta(days=3))), "CertificateMismatch"),
        (request(("True", "Issued"), pem=certificate(at=AT + timedelta(days=3))), "CertificateMismatch"),
    ],
)
def test_a_request_that_brings_nothing_is_an_end_for_a_while(answered: Any, reason: str) -> None:
    """Nothing is in the Secret, and the next is asked for later, and later still; at once where the spec changed."""
    looked = look(OPEN, {Ask.REQUEST: answered, Ask.KEY: key()})
    assert said(looked)["Issuing"] == ("False", reason)
    assert not [each for each in looked.actions if isinstance(each, Create | Replace)]
    status = status_of(looked)
    assert (status["failures"], status["lastFailureTime"], status["requestNumber"]) == (1, rfc3339(AT), 1)
    assert events(looked) == [reason]
    waiting = look(status, at=AT + timedelta(minutes=1))
    assert (waiting.actions, waiting.after) == ((), 240.0)
    for later, generation in ((timedelta(minutes=5), 1), (timedelta(seconds=1), 2)):
        again = status_of(look(status, at=AT + later, generation=generation))
        assert (again["requestNumber"], again["keyRevision"], again["failures"]) == (2, 1, 1)
        assert "lastFailureTime" not in again


def test_the_pause_grows_and_ends() -> None:
    """From five minutes to eight hours, whatever the number."""
    assert [pause(each) / timedelta(minutes=1) for each in (1, 2, 3, 8, 10**6)] == [5, 10, 20, 480, 480]


@pytest.mark.parametrize(
    "change",
    [
        {"dnsNames": ["other.example.org"]},
        {"usages": ["digital signature", "client auth"]},
        {"duration": "12h"},
        {"issuerRef": {"name": "other"}},
        {"issuerRef": {"name": "payments", "kind": "HsmClusterIssuer"}},
    ],
    ids=str,
)
def test_another_spec_is_another_request(change: Any) -> None:
    """One that is open is given up; a certificate that is there stays until the next."""
    assert status_of(look(OPEN, {Ask.REQUEST: request()}, **change))["requestNumber"] == 2
    answers = GOOD | {Ask.REQUEST: request(("True", "Issued"), pem=certificate())}
    status = status_of(look(issued(), answers, **change))
    assert (status["requestNumber"], status["revision"]) == (2, 1)


def test_all_is_well_until_it_is_time() -> None:
    """Then another is asked for, with a key of its own or the same; the certificate stays good meanwhile."""
    soon, due = AT + timedelta(hours=15), AT + timedelta(hours=16)
    for at in (AT, soon):
        looked = look(issued(), GOOD, at=at)
        assert said(looked) == {"Ready": ("True", "Issued"), "Issuing": ("False", "Issued")}
        assert (looked.after, looked.again) == (300.0, False)
    for rotation, revision in (("Always", 2), ("Never", 1)):
        status = status_of(look(issued(), GOOD, at=due, keyRotation=rotation))
        assert (status["requestNumber"], status["keyRevision"]) == (2, revision)
    assert look(issued(), GOOD, at=soon, renewBefore="10h").again
    assert not look(issued(), GOOD, at=soon, renewBefore="30h").again, "longer than its life: a third"


def test_a_secret_that_is_not_what_it_should_be_is_written_again_or_asked_for_again() -> None:
    """From the newest request where it is there; with a key that nobody has, nothing is as it should be."""
    answered = request(("True", "Issued"), pem=certificate())
    for there in (Absent(), secret(certificate("other")), secret("none")):
        assert look(issued(), {Ask.TLS: there, Ask.KEY: key()}).ask is Ask.REQUEST
        looked = look(issued(), {Ask.TLS: there, Ask.KEY: key(), Ask.REQUEST: answered})
        assert [type(each) for each in looked.actions] == [Create if there == Absent() else Replace]
        for gone in (Absent(), request(("True", "Issued")), request(uid="u-other", pem=certificate())):
            looked = look(issued(), {Ask.TLS: there, Ask.KEY: key(), Ask.REQUEST: gone})
            assert status_of(looked)["requestNumber"] == 2
    looked = look(issued(), {Ask.TLS: secret(), Ask.KEY: KeyNotFound("gone")}, keyRotation="Never")
    assert (status_of(looked)["keyRevision"], events(looked)) == (2, ["KeyGone"])


def test_a_certificate_for_a_key_that_is_there_no_more_is_not_taken() -> None:
    """K11: of two controllers that raced one made a key that was destroyed: its request is given up, at once."""
    answered = request(("True", "Issued"), pem=certificate("other"), made=key("other"))
    looked = look(OPEN, {Ask.REQUEST: answered, Ask.KEY: key()})
    status = status_of(looked)
    assert (status["requestNumber"], status["keyRevision"], status.get("failures")) == (2, 1, None)
    looked = look(OPEN, {Ask.REQUEST: answered, Ask.KEY: KeyNotFound("gone")})
    assert status_of(looked)["keyRevision"] == 2


def test_old_requests_and_old_keys_go() -> None:
    """The request before the newest, ours alone; the key before the one before, where they are to be destroyed."""
    third = issued(requestNumber=2, revision=2, keyRevision=3)
    due = AT + timedelta(hours=16)
    assert look(third, GOOD, at=due).ask is Ask.OLD_REQUEST
    deleted = look(third, GOOD | {Ask.OLD_REQUEST: request()}, at=due)
    assert [each.target.name for each in deleted.actions if isinstance(each, Delete)] == [f"pay-{UID[:8]}-1"]
    for other in (Absent(), request(uid="u-other")):
        looked = look(third, GOOD | {Ask.OLD_REQUEST: other}, at=due)
        assert not [each for each in looked.actions if isinstance(each, Delete)]
    fresh = OPEN | {"keyRevision": 3}
    answers = {Ask.REQUEST: request(("True", "Issued"), pem=certificate()), Ask.KEY: key()}
    assert look(fresh, answers).ask is Ask.RETIRE
    assert status_of(look(fresh, answers | {Ask.RETIRE: True}))["revision"] == 1
    assert look(fresh, answers | {Ask.RETIRE: SignerUnavailable("away")}).after == 10.0
    kept: list[dict[str, Any]] = [{"deletionPolicy": "Retain"}, {"keyRotation": "Never"}]
    for spec in kept:
        assert status_of(look(fresh, answers, **spec))["revision"] == 1
    assert list(keys_to_retire(leaf(fresh))) == [1]
    assert list(keys_to_retire(leaf(OPEN | {"keyRevision": 9}))) == [4, 5, 6, 7]
    assert list(keys_to_destroy(leaf(OPEN | {"keyRevision": 9}))) == [4, 5, 6, 7, 8, 9]
    assert list(keys_to_destroy(leaf(OPEN))) == [1]


@pytest.mark.parametrize(
    ("status", "spec"),
    [(OPEN, {"deletionPolicy": "Retain"}), (None, {}), (OPEN, {"secretName": ""})],
    ids=["retain", "no-key", "never-followed"],
)
def test_an_object_goes_at_once_where_no_key_goes_with_it(status: Any, spec: Any) -> None:
    """Its keys stay where that is wanted."""
    looked = look(status, deleting=True, **spec)
    [action] = looked.actions
    assert isinstance(action, SetFinalizers)
    assert action.finalizers == ()


def test_an_object_goes_after_its_keys() -> None:
    """Not before the token has destroyed them; a token that is not there is waited for."""
    assert look(OPEN, deleting=True).ask is Ask.DESTROY
    [action] = look(OPEN, {Ask.DESTROY: True}, deleting=True).actions
    assert isinstance(action, SetFinalizers)
    looked = look(OPEN, {Ask.DESTROY: SignerUnavailable("away")}, deleting=True)
    assert said(looked)["Ready"] == ("False", "KeyUnavailable")
    assert said(look(OPEN, deleting=True, token=None))["Ready"] == ("False", "KeyUnavailable")
    assert look(OPEN, deleting=True, held=False) == Looked()


def test_a_right_that_is_missing_is_told() -> None:
    """Secrets are granted by name: whoever made the object must learn that this one was not."""
    error = ClusterForbidden("secrets default/pay-tls: the API server answered 403: no")
    looked = look(answers={Ask.TLS: error})
    assert said(looked)["Ready"] == ("False", "Forbidden")
    assert events(looked) == ["Forbidden"]
    assert said(look(OPEN, {Ask.REQUEST: error}))["Ready"] == ("False", "Forbidden")
    answers = {Ask.TLS: Absent(), Ask.KEY: key(), Ask.REQUEST: error}
    assert said(look(issued(), answers))["Ready"] == ("False", "Forbidden")
    case = Case(leaf=leaf(OPEN), module=module(), at=AT)
    assert said(forbidden(case, error))["Ready"] == ("False", "Forbidden"), (
        "found out when it was to be written"
    )


def test_what_is_said_already_is_not_written_again() -> None:
    """A look that finds nothing new writes nothing."""
    again = look(status_of(look(issued(), GOOD)), GOOD)
    assert (again.actions, again.after) == ((), 300.0)
