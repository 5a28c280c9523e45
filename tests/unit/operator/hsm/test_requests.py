"""CertificateRequests: the contract of cert-manager's issuer-lib, row by row (HSM-AND-KUBERNETES §16)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    CertificateNotConformant,
    Forbidden,
    HSMDiffers,
    IssuerUnknown,
    KeyNotFound,
    RequestRefused,
    SignerUnavailable,
)
from attestation_operator.actions import EmitEvent, SetStatus
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm.requests import Issued, Looked, Step, read_request, reconcile
from attestation_operator.objects import HSM_CLUSTER_ISSUER, HSM_ISSUER, Key
from tests.unit.operator.hsm.world import AT, csr, issuer_raw, ready, request_raw

APPROVED = ("Approved", "True", "cert-manager.io")
DENIED = ("Denied", "True", "policy")
INITIALIZING = ("Ready", "Unknown", "Initializing")
PENDING = ("Ready", "False", "Pending")
GOOD = issuer_raw({"conditions": ready()})


def look(*conditions: tuple[str, str, str], issuer: Any = GOOD, outcome: Any = None, **more: Any) -> Looked:
    """Return what follows for a request."""
    return reconcile(read_request(request_raw(*conditions, **more)), issuer, at=AT, outcome=outcome)


def said(looked: Looked) -> dict[str, tuple[str, str]]:
    """Return the conditions that are applied: type -> status, reason."""
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    assert status.manager == "attestation-operator-hsm"
    assert not {"Approved", "Denied"} & {each["type"] for each in status.status["conditions"]}
    return {each["type"]: (each["status"], each["reason"]) for each in status.status["conditions"]}


def members(looked: Looked) -> dict[str, Any]:
    """Return what is applied beside conditions."""
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    return {name: value for name, value in status.status.items() if name != "conditions"}


@pytest.mark.parametrize(
    ("conditions", "ref"),
    [
        ((APPROVED,), {"name": "payments"}),
        ((APPROVED,), {"name": "payments", "kind": "HsmIssuer"}),
        ((APPROVED,), {"name": "payments", "group": "attestation.itl.io"}),
        ((APPROVED,), {"name": "payments", "kind": "Issuer", "group": "attestation.itl.io"}),
        ((APPROVED,), {"name": "payments", "kind": "HsmIssuer", "group": "cert-manager.io"}),
        ((APPROVED, ("Ready", "True", "Issued")), None),
        ((APPROVED, ("Ready", "False", "Failed")), None),
        ((DENIED, ("Ready", "False", "Denied")), None),
        ((), None),
        ((INITIALIZING,), None),
        ((("Approved", "False", "no"),), None),
    ],
)
def test_1_what_is_foreign_answered_or_undecided_is_left_alone(conditions: Any, ref: Any) -> None:
    """No write, no look at the issuer, no second answer."""
    spec = {} if ref is None else {"issuerRef": ref}
    looked = look(*conditions, **spec)
    assert looked == Looked(step=Step.IGNORED)


def test_2_a_denied_request_ends_and_says_when() -> None:
    """Even where nobody has initialized it, and whatever became of its issuer."""
    looked = look(DENIED, issuer=None)
    assert said(looked) == {"Ready": ("False", "Denied")}
    assert members(looked) == {"failureTime": rfc3339(AT)}
    assert looked.step is Step.DENIED


def test_2_denied_wins_over_approved() -> None:
    """An API server lets only one of the two be; were there both, nothing is issued."""
    assert look(APPROVED, DENIED, INITIALIZING).step is Step.DENIED


def test_a_step_takes_the_place_of_no_end_that_was_said_meanwhile() -> None:
    """A watch may show an old state: what is only a step is written if the request is as it was shown, an end always.

    An end that is said twice is the same: the log gives the same certificate.
    """
    issued = Issued(certificate="leaf", ca="ca")
    looks = [
        look(APPROVED),
        look(APPROVED, INITIALIZING, issuer=None),
        look(APPROVED, PENDING, outcome=issued),
        look(DENIED),
    ]
    assert [each.actions[0].exact for each in looks] == [True, True, False, False]  # type: ignore[union-attr]  # each is a SetStatus


def test_3_it_is_told_that_somebody_works_on_it_and_nothing_else() -> None:
    """The next look is that of its own change."""
    looked = look(APPROVED)
    assert said(looked) == {"Ready": ("Unknown", "Initializing")}
    assert (members(looked), looked.after, looked.step) == ({}, None, Step.INITIALIZED)


@pytest.mark.parametrize(
    "issuer",
    [
        None,
        issuer_raw({}),
        issuer_raw({"conditions": ready(generation=0)}),
        issuer_raw({"conditions": ready("False", "KeyUnavailable")}),
        issuer_raw({"conditions": ready("Unknown", "Initializing")}),
        issuer_raw({"conditions": ready()}, deleting=True),
    ],
    ids=["absent", "not-seen", "changed", "not-ready", "unknown", "deleted"],
)
def test_4_it_waits_for_its_issuer(issuer: Any) -> None:
    """Pending, and looked at again; told once, and for ever: an issuer may be created later."""
    looked = look(APPROVED, INITIALIZING, issuer=issuer, age=timedelta(days=2))
    assert (said(looked), looked.after) == ({"Ready": ("False", "Pending")}, 1.0)
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    message = status.status["conditions"][0]["message"]
    raw = request_raw(APPROVED, PENDING)
    raw["status"]["conditions"][1]["message"] = message
    again = reconcile(read_request(raw), issuer, at=AT)
    assert (again.actions, again.after) == ((), 30.0), "Pending for an hour"


@pytest.mark.parametrize(("waited", "after"), [(0, 1.0), (0.5, 1.0), (7, 7.0), (40, 30.0)])
def test_4_who_waits_long_is_looked_at_less_often(waited: float, after: float) -> None:
    """A thousand requests of a token that is away must not be the whole work of controller and API server."""
    raw = request_raw(APPROVED, PENDING, age=timedelta(days=2))
    raw["status"]["conditions"][1]["lastTransitionTime"] = (AT - timedelta(seconds=waited)).isoformat()
    assert reconcile(read_request(raw), None, at=AT).after == after


def test_5_it_is_signed_once_everything_holds() -> None:
    """Then only, and nothing is written before."""
    for before in (INITIALIZING, PENDING):
        assert look(APPROVED, before) == Looked(step=Step.SIGN)


def test_5_certificate_and_ca_are_told_with_the_condition() -> None:
    """In one write: nobody sees Ready without the certificate."""
    looked = look(APPROVED, PENDING, outcome=Issued(certificate="leaf", ca="ca"))
    assert said(looked) == {"Ready": ("True", "Issued")}
    assert members(looked) == {
        "certificate": base64.b64encode(b"leaf").decode(),
        "ca": base64.b64encode(b"ca").decode(),
    }


@pytest.mark.parametrize(
    ("error", "invalid"),
    [
        (RequestRefused("malformed", "no request"), True),
        (RequestRefused("usage-mismatch", "they differ"), True),
        (RequestRefused("duration-forbidden", "too long"), False),
        (RequestRefused("name-forbidden", "not here"), False),
        (CertificateNotConformant("a rule"), False),
    ],
)
def test_permanent_failed_with_its_time_and_invalid_where_no_issuer_could(error: Any, invalid: bool) -> None:
    """At the first try, however young the request is."""
    looked = look(APPROVED, PENDING, outcome=error)
    expected = {"Ready": ("False", "Failed")} | ({"InvalidRequest": ("True", "Failed")} if invalid else {})
    assert said(looked) == expected
    assert members(looked) == {"failureTime": rfc3339(AT)}
    assert looked.after is None
    assert [each.reason for each in looked.actions if isinstance(each, EmitEvent)] == ["Failed"]


def test_retryable_waits_longer_and_fails_after_its_time() -> None:
    """What nobody knows the reason of is tried again for a minute after the creation, and no longer."""
    error = HSMDiffers("something else stands there")
    young = look(APPROVED, PENDING, outcome=error)
    older = look(APPROVED, PENDING, outcome=error, age=timedelta(seconds=20))
    nearly = look(APPROVED, PENDING, outcome=error, age=timedelta(seconds=55))
    assert said(young) == said(older) == {"Ready": ("False", "Pending")}
    assert (young.after, older.after, nearly.after) == (1.0, 20.0, 5.0)
    ended = look(APPROVED, PENDING, outcome=error, age=timedelta(seconds=60))
    assert said(ended) == {"Ready": ("False", "Failed")}
    assert "failureTime" in members(ended)


@pytest.mark.parametrize("error", [SignerUnavailable("away"), KeyNotFound("gone"), IssuerUnknown("restored")])
def test_issuer_its_key_does_not_sign_and_the_request_waits(error: Any) -> None:
    """The issuer is looked at, and says so of itself; its requests stay Pending, for days if it must be."""
    looked = look(APPROVED, PENDING, outcome=error, age=timedelta(days=2))
    assert (said(looked), looked.after) == ({"Ready": ("False", "Pending")}, 30.0)
    assert looked.issuer_fails


@pytest.mark.parametrize("error", [ServiceAway("away"), Forbidden("the controller has not this duty")])
def test_where_nothing_was_decided_it_waits(error: AttestationError) -> None:
    """A service that is away for an hour, or set up wrongly, fails no request, and accuses no issuer."""
    looked = look(APPROVED, PENDING, outcome=error, age=timedelta(hours=1))
    assert said(looked) == {"Ready": ("False", "Pending")}
    assert not looked.issuer_fails


def test_the_issuer_is_that_of_its_namespace_or_of_the_cluster() -> None:
    """A request reaches no issuer of another namespace."""
    assert read_request(request_raw()).issuer == Key(kind=HSM_ISSUER, name="payments", namespace="default")
    ref = {"name": "payments", "kind": "HsmClusterIssuer", "group": "attestation.itl.io"}
    assert read_request(request_raw(issuerRef=ref)).issuer == Key(kind=HSM_CLUSTER_ISSUER, name="payments")


def test_what_is_asked_is_what_stands_there() -> None:
    """Request, usages, isCA and duration; annotations are never read."""
    raw = request_raw(isCA=True)
    raw["metadata"]["annotations"] = {"experimental.cert-manager.io/request-duration": "9000h"}
    asked = read_request(raw).asked
    assert asked.request == csr("a.example")
    assert (asked.usages, asked.is_ca, asked.duration) == (
        ("digital signature", "server auth"),
        True,
        timedelta(hours=1),
    )
    assert read_request(request_raw(duration=None)).asked.duration is None
    with pytest.raises(RequestRefused):
        _ = read_request(request_raw(duration="a while")).asked
