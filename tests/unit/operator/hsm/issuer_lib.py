"""cert-manager's expectations of an external issuer: the cases of issuer-lib's tests, and what becomes of each here.

The cases, their names and outcomes are those of github.com/cert-manager/issuer-lib, controllers/*_test.go. `ours` runs
our code; where it differs from `theirs`, `because` says why. docs/kubernetes/cert-manager-conformance.md is written
from this table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

from attestation.errors import AttestationError, HSMDiffers, RequestRefused, SignerUnavailable
from attestation_operator.actions import SetStatus
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm import controllers, issuers, requests, signing
from attestation_operator.hsm.gauges import Gauges
from attestation_operator.hsm.issuers import Ask
from attestation_operator.hsm.request_controller import Requests, SigningRequests
from attestation_operator.hsm.requests import INVALID_REQUEST, Issued
from attestation_operator.nodes.objects import read_csr
from attestation_operator.objects import CERTIFICATE_REQUEST, CSR, HSM_ISSUER, Key
from tests.unit.operator.hsm.test_signing import csr_raw
from tests.unit.operator.hsm.world import (
    AT,
    ca_pem,
    issuer,
    issuer_raw,
    key,
    known,
    module,
    ready,
    request_raw,
)

OURS: Final = {"name": "payments", "kind": "HsmIssuer", "group": "attestation.itl.io"}
APPROVED: Final = ("Approved", "True", "ApprovedReason")
DENIED: Final = ("Denied", "True", "")
INITIALIZING: Final = ("Ready", "Unknown", "Initializing")
READY: Final = issuer_raw({"conditions": ready()})
LATE: Final = timedelta(minutes=2)
"""Older than a request for which anything else than a certificate is an end."""
SIGNED: Final = Issued(certificate="a-signed-certificate", ca="ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What stands in the object after one look, as far as this look says it.

    Args:
        says: Conditions: type to (status, reason); empty where nothing is written.
        failure_time: Whether `status.failureTime` is written.
        certificate: Whether `status.certificate` is written.
        again: Whether the object is looked at again although it does not change itself.
        since: Types of conditions whose time stays that of before.
    """

    says: tuple[tuple[str, str, str], ...] = ()
    failure_time: bool = False
    certificate: bool = False
    again: bool = False
    since: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"{type_} {status} `{reason}`" for type_, status, reason in self.says]
        said += ["certificate"] * self.certificate + ["failureTime"] * self.failure_time
        said += [f"the time of {each} stays" for each in self.since]
        said += ["again by itself"] * self.again
        return ", ".join(said) or "nothing is written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One of their cases.

    Args:
        name: Of the case, as its test calls it.
        given: What it is about, in our words.
        theirs: What the test expects.
        ours: What our code does.
        because: Why that differs; None where it does not.
    """

    name: str
    given: str
    theirs: Outcome
    ours: Callable[[], Outcome]
    because: str | None = None


NOTHING: Final = Outcome()
INITIALIZED: Final = Outcome(says=(("Ready", "Unknown", "Initializing"),))
PENDING: Final = Outcome(says=(("Ready", "False", "Pending"),), again=True)
FAILED: Final = Outcome(says=(("Ready", "False", "Failed"),), failure_time=True)
ISSUED: Final = Outcome(says=(("Ready", "True", "Issued"),), certificate=True)


def _outcome(actions: Any, *, again: bool, before: Any) -> Outcome:
    written = [each for each in actions if isinstance(each, SetStatus)]
    if not written:
        return Outcome(again=again)
    [status] = written
    times = {each["type"]: each["lastTransitionTime"] for each in before}
    said = list(status.status["conditions"])
    return Outcome(
        says=tuple(sorted((each["type"], each["status"], each["reason"]) for each in said)),
        failure_time="failureTime" in status.status,
        certificate="certificate" in status.status,
        again=again,
        since=tuple(each["type"] for each in said if times.get(each["type"]) == each["lastTransitionTime"]),
    )


def _request(
    *conditions: tuple[str, str, str],
    issuer: Any = READY,
    came: Issued | AttestationError | None = None,
    age: timedelta = timedelta(),
    **spec: Any,
) -> Callable[[], Outcome]:
    def look() -> Outcome:
        raw = request_raw(*conditions, age=age, **spec)
        looked = requests.reconcile(requests.read_request(raw), issuer, at=AT, outcome=came)
        return _outcome(looked.actions, again=looked.after is not None, before=raw["status"]["conditions"])

    return look


def _waiting(issuer: Any) -> Callable[[], Outcome]:
    return _request(APPROVED, INITIALIZING, issuer=issuer)


def _signs(came: Issued | AttestationError, **more: Any) -> Callable[[], Outcome]:
    return _request(APPROVED, INITIALIZING, came=came, **more)


def _ref(**ref: str) -> Callable[[], Outcome]:
    return _request(APPROVED, issuerRef=ref)


def _absent(kind: Any) -> Callable[[], Outcome]:
    """Have a controller look at what is not there."""

    async def read(_: Key) -> None:
        return None

    def look() -> Outcome:
        around: Any = SimpleNamespace(cluster=SimpleNamespace(read=read))
        nothing: Any = None
        if kind is HSM_ISSUER:
            made: Any = controllers.Issuers(
                around,
                nothing,
                nothing,
                controllers.Standing(),
                nothing,
                nothing,
                Gauges(CollectorRegistry()),
            )
        else:
            of: Any = Requests if kind is CERTIFICATE_REQUEST else SigningRequests
            made = of.__new__(of)
            made._around = around  # nothing else of it is reached: that is what is shown
        key = Key(kind=kind, name="payments", namespace="default" if kind.namespaced else None)
        again = asyncio.run(made.handle(key, None))
        return Outcome(again=again is not None)

    return look


def _csr(
    *said: str,
    issuer: Any = READY,
    came: Issued | AttestationError | None = None,
    age: timedelta = timedelta(),
    certificate: str | None = None,
    **spec: Any,
) -> Callable[[], Outcome]:
    def look() -> Outcome:
        raw = csr_raw(*said, approved_for=age, certificate=certificate, **spec)
        looked = signing.reconcile(read_csr(raw), issuer, at=AT, outcome=came)
        written = [each for each in looked.actions if isinstance(each, SetStatus)]
        status = written[0].status if written else {}
        return Outcome(
            says=tuple(
                (each["type"], each["status"], each["reason"]) for each in status.get("conditions", ())
            ),
            certificate="certificate" in status,
            again=looked.after is not None,
        )

    return look


def _csr_of(signer: str) -> Callable[[], Outcome]:
    """Have a request looked at whose issuer is not there: one of ours waits."""
    return _csr("Approved", issuer=None, signerName=signer)


def _issuer(
    reason: str | None, status: str, *, generation: int = 80, seen: int = 80, test: Any = True
) -> Callable[[], Outcome]:
    def look() -> Outcome:
        conditions = [] if reason is None else ready(status, reason, generation=seen)
        said = {"conditions": conditions, "caCertificate": ca_pem()} if reason is not None else {}
        found = replace(issuer(said), generation=generation)
        answers = {Ask.FIND: key(), Ask.TEST: test, Ask.REGISTER: known()}
        case = issuers.Case(issuer=found, module=module(), at=AT, answers=answers)
        looked = issuers.reconcile(case)
        assert looked.ask is None
        for each in looked.actions:
            assert isinstance(each, SetStatus)
            assert {c["observedGeneration"] for c in each.status["conditions"]} == {generation}
        again = looked.after is not None or looked.again
        return _outcome(looked.actions, again=again, before=conditions)

    return look


INVALID: Final = (INVALID_REQUEST, "True", "Failed")
_KIND: Final = (
    "An empty kind is cert-manager's `Issuer` by its own defaults; which of our two it means is not guessed."
)
_CONDITION_LATE: Final = (
    "Nothing of ours adds a condition to a failure that may pass: `InvalidRequest` is an end."
)

REQUESTS: Final = (
    Row(
        name="ignore-certificaterequest-not-found",
        given="there is none",
        theirs=NOTHING,
        ours=_absent(CERTIFICATE_REQUEST),
    ),
    Row(
        name="ignore-unless-approved-or-denied",
        given="nobody decided",
        theirs=NOTHING,
        ours=_request(),
    ),
    Row(
        name="issuer-ref-unknown-group",
        given="it names another group",
        theirs=NOTHING,
        ours=_ref(**OURS | {"group": "unknown-group"}),
    ),
    Row(
        name="issuer-ref-unknown-kind",
        given="it names another kind of our group",
        theirs=NOTHING,
        ours=_ref(**OURS | {"kind": "unknown-kind"}),
    ),
    Row(
        name="already-ready",
        given="Ready True `Issued`",
        theirs=NOTHING,
        ours=_request(APPROVED, ("Ready", "True", "Issued")),
    ),
    Row(
        name="already-failed",
        given="Ready False `Failed`",
        theirs=NOTHING,
        ours=_request(APPROVED, ("Ready", "False", "Failed")),
    ),
    Row(
        name="already-denied",
        given="Ready False `Denied`",
        theirs=NOTHING,
        ours=_request(APPROVED, ("Ready", "False", "Denied")),
    ),
    Row(
        name="initialize-ready-condition",
        given="approved, without Ready",
        theirs=INITIALIZED,
        ours=_request(APPROVED),
    ),
    Row(
        name="set-ready-denied",
        given="denied",
        theirs=Outcome(says=(("Ready", "False", "Denied"),), failure_time=True),
        ours=_request(DENIED, INITIALIZING),
    ),
    Row(
        name="set-ready-pending-missing-issuer",
        given="its issuer is not there",
        theirs=PENDING,
        ours=_waiting(None),
    ),
    Row(
        name="set-ready-pending-issuer-has-no-ready-condition",
        given="nobody looked at its issuer",
        theirs=PENDING,
        ours=_waiting(issuer_raw({})),
    ),
    Row(
        name="set-ready-pending-issuer-is-not-ready",
        given="its issuer is not ready",
        theirs=PENDING,
        ours=_waiting(issuer_raw({"conditions": ready("False", "[REASON]")})),
    ),
    Row(
        name="set-ready-pending-issuer-ready-outdated",
        given="its issuer was changed since it was looked at",
        theirs=PENDING,
        ours=_waiting(issuer_raw({"conditions": ready(generation=0)})),
    ),
    Row(
        name="timeout-permanent-error",
        given="any failure, two minutes after its creation",
        theirs=FAILED,
        ours=_signs(HSMDiffers("a specific error"), age=LATE),
    ),
    Row(
        name="retry-on-pending-error",
        given="nothing was decided, two minutes after its creation",
        theirs=PENDING,
        ours=_signs(ServiceAway("reason for being pending"), age=LATE),
    ),
    Row(
        name="retry-on-pending-error-custom",
        given="likewise, and the signer says when to ask again",
        theirs=PENDING,
        ours=_signs(SignerUnavailable("reason for being pending"), age=LATE),
    ),
    Row(
        name="error-set-certificate-request-condition-should-add-new-condition-and-retry",
        given="a failure with a condition, in time",
        theirs=Outcome(
            says=(("Ready", "False", "Pending"), ("[condition type]", "True", "[condition reason]")),
            again=True,
        ),
        ours=_signs(HSMDiffers("test error")),
        because=_CONDITION_LATE,
    ),
    Row(
        name="error-set-certificate-request-condition-should-update-existing-condition-and-retry",
        given="likewise, and the condition is there",
        theirs=Outcome(
            says=(("Ready", "False", "Pending"), ("[condition type]", "True", "[condition reason2]")),
            again=True,
            since=("[condition type]",),
        ),
        ours=_signs(HSMDiffers("test error2")),
        because=_CONDITION_LATE,
    ),
    Row(
        name="error-set-certificate-request-condition-should-add-new-condition-and-timeout",
        given="a failure with a condition, too late",
        theirs=Outcome(
            says=(("Ready", "False", "Failed"), ("[condition type]", "True", "[condition reason]")),
            failure_time=True,
        ),
        ours=_signs(HSMDiffers("test error"), age=LATE),
        because=_CONDITION_LATE,
    ),
    Row(
        name="error-set-certificate-request-condition-should-update-existing-condition-and-timeout",
        given="an end with a condition that is there",
        theirs=Outcome(
            says=(INVALID, ("Ready", "False", "Failed")), failure_time=True, since=(INVALID_REQUEST,)
        ),
        ours=_request(
            APPROVED,
            INITIALIZING,
            (INVALID_REQUEST, "True", "before"),
            came=RequestRefused("malformed", "test error2"),
            age=LATE,
        ),
    ),
    Row(
        name="error-set-certificate-request-condition-should-not-timeout-if-pending",
        given="nothing was decided, with a condition, too late",
        theirs=Outcome(
            says=(("Ready", "False", "Pending"), ("[condition type]", "True", "[condition reason]")),
            again=True,
        ),
        ours=_signs(ServiceAway("test error"), age=LATE),
        because=_CONDITION_LATE,
    ),
    Row(
        name="error-set-certificate-request-condition-should-not-retry-on-permanent-error",
        given="refused for good, with a condition, at the first look",
        theirs=Outcome(says=(INVALID, ("Ready", "False", "Failed")), failure_time=True),
        ours=_signs(RequestRefused("malformed", "test error")),
    ),
    Row(
        name="fail-on-permanent-error",
        given="refused for good, at the first look",
        theirs=FAILED,
        ours=_signs(RequestRefused("name-forbidden", "a specific error")),
    ),
    Row(
        name="retry-on-error",
        given="any failure, in time",
        theirs=PENDING,
        ours=_signs(HSMDiffers("waiting for approval")),
    ),
    Row(
        name="success-issuer",
        given="signed, by an issuer of the namespace",
        theirs=ISSUED,
        ours=_signs(SIGNED),
    ),
    Row(
        name="success-clusterissuer",
        given="signed, by an issuer of the cluster",
        theirs=ISSUED,
        ours=_signs(SIGNED, issuerRef=OURS | {"kind": "HsmClusterIssuer"}),
    ),
    Row(
        name="match issuer",
        given="kind and group of an issuer of a namespace",
        theirs=INITIALIZED,
        ours=_ref(**OURS),
    ),
    Row(
        name="match cluster issuer",
        given="kind and group of an issuer of the cluster",
        theirs=INITIALIZED,
        ours=_ref(**OURS | {"kind": "HsmClusterIssuer"}),
    ),
    Row(
        name="no issuers",
        given="a group without an issuer of ours",
        theirs=NOTHING,
        ours=_ref(name="name", group="test"),
    ),
    Row(
        name="select kind if empty",
        given="our group without a kind",
        theirs=INITIALIZED,
        ours=_ref(name="payments", group="attestation.itl.io"),
        because=_KIND,
    ),
    Row(
        name="prefer issuer over cluster issuer (v1)",
        given="likewise, and there are both kinds",
        theirs=INITIALIZED,
        ours=_ref(name="payments", group="attestation.itl.io"),
        because=_KIND,
    ),
)
"""certificaterequest_controller_test.go."""

_CHECKED: Final = Outcome(says=(("Ready", "True", "Checked"),), again=True)
_AGAIN: Final = "An issuer that failed is looked at again: what refused its CA may take it by now."
_PART: Final = "The reason says which part is away; requests wait as for `Pending`."

ISSUERS: Final = (
    Row(
        name="ignore-issuer-not-found",
        given="there is none",
        theirs=NOTHING,
        ours=_absent(HSM_ISSUER),
    ),
    Row(
        name="trigger-when-ready",
        given="it is ready, and looked at again",
        theirs=replace(_CHECKED, since=("Ready",)),
        ours=_issuer("Checked", "True"),
    ),
    Row(
        name="ignore-failed",
        given="Ready False `Failed` of this generation",
        theirs=NOTHING,
        ours=_issuer("Failed", "False"),
        because=_AGAIN,
    ),
    Row(
        name="failed-ignore-reported-error",
        given="likewise, and a request says that it does not sign",
        theirs=NOTHING,
        ours=_issuer("Failed", "False", test=SignerUnavailable("[specific error]")),
        because=_AGAIN,
    ),
    Row(
        name="ready-reported-error",
        given="it is ready, and a request says that it does not sign",
        theirs=PENDING,
        ours=_issuer("Checked", "True", test=SignerUnavailable("[specific error]")),
        because=_PART,
    ),
    Row(
        name="recheck-outdated-ready",
        given="it was changed since",
        theirs=replace(_CHECKED, since=("Ready",)),
        ours=_issuer("Checked", "True", generation=81),
    ),
    Row(
        name="initialize-ready-condition",
        given="nobody looked at it",
        theirs=INITIALIZED,
        ours=_issuer(None, ""),
        because="It is looked at again at once, without waiting for its own change to come back.",
    ),
    Row(
        name="retry-on-error",
        given="its key does not sign at the first look",
        theirs=PENDING,
        ours=_issuer("Initializing", "Unknown", test=SignerUnavailable("a specific error")),
        because=_PART,
    ),
    Row(
        name="success-issuer",
        given="its key signs",
        theirs=_CHECKED,
        ours=_issuer("Initializing", "Unknown"),
    ),
    Row(
        name="success-recover",
        given="it failed before it was changed",
        theirs=_CHECKED,
        ours=_issuer("Initializing", "False", generation=81),
    ),
)
"""issuer_controller_test.go."""

_SIGNER: Final = "hsmclusterissuers.attestation.itl.io/payments"
_WAITS: Final = Outcome(again=True)
_ENDED: Final = Outcome(says=(("Failed", "True", "Failed"),))
_CUSTOM: Final = ("[condition type]", "True", "[condition reason]")
_CUSTOM_2: Final = ("[condition type]", "True", "[condition reason2]")
_REASON: Final = (
    "The reason says what ended it: `SignerValidationFailure` the request, `IssuanceFailed` anything else."
)
_NO_CONDITION: Final = "Nothing of ours adds a condition to a failure: what somebody else said stays."

SIGNING_REQUESTS: Final = (
    Row(
        name="ignore-certificatesigningrequest-not-found",
        given="there is none",
        theirs=NOTHING,
        ours=_absent(CSR),
    ),
    Row(name="ignore-unless-approved-or-denied", given="nobody decided", theirs=NOTHING, ours=_csr()),
    Row(
        name="issuer-ref-unknown-group",
        given="it names another group",
        theirs=NOTHING,
        ours=_csr_of("hsmclusterissuers.unknown-group/name"),
    ),
    Row(
        name="issuer-ref-unknown-kind",
        given="it names another kind of our group",
        theirs=NOTHING,
        ours=_csr_of("unknown-kind.attestation.itl.io/name"),
    ),
    Row(
        name="already-ready",
        given="it has a certificate",
        theirs=NOTHING,
        ours=_csr("Approved", certificate="certificate"),
    ),
    Row(name="already-failed", given="Failed", theirs=NOTHING, ours=_csr("Approved", "Failed")),
    Row(name="already-denied", given="Denied", theirs=NOTHING, ours=_csr("Approved", "Denied")),
    Row(
        name="set-ready-pending-missing-issuer",
        given="its issuer is not there",
        theirs=_WAITS,
        ours=_csr("Approved", issuer=None),
    ),
    Row(
        name="set-ready-pending-issuer-has-no-ready-condition",
        given="nobody looked at its issuer",
        theirs=_WAITS,
        ours=_csr("Approved", issuer=issuer_raw({})),
    ),
    Row(
        name="set-ready-pending-issuer-is-not-ready",
        given="its issuer is not ready",
        theirs=_WAITS,
        ours=_csr("Approved", issuer=issuer_raw({"conditions": ready("False", "[REASON]")})),
    ),
    Row(
        name="set-ready-pending-issuer-ready-outdated",
        given="its issuer was changed since it was looked at",
        theirs=_WAITS,
        ours=_csr("Approved", issuer=issuer_raw({"conditions": ready(generation=0)})),
    ),
    Row(
        name="timeout-permanent-error",
        given="any failure, two minutes after its approval",
        theirs=_ENDED,
        ours=_csr("Approved", came=HSMDiffers("a specific error"), age=LATE),
        because=_REASON,
    ),
    Row(
        name="retry-on-pending-error",
        given="nothing was decided, two minutes after its approval",
        theirs=_WAITS,
        ours=_csr("Approved", came=ServiceAway("pending error"), age=LATE),
    ),
    Row(
        name="error-set-certificate-request-condition-should-add-new-condition-and-retry",
        given="a failure with a condition, in time",
        theirs=Outcome(says=(_CUSTOM,), again=True),
        ours=_csr("Approved", came=HSMDiffers("test error")),
        because=_NO_CONDITION,
    ),
    Row(
        name="error-set-certificate-request-condition-should-update-existing-condition-and-retry",
        given="likewise, and the condition is there",
        theirs=Outcome(says=(_CUSTOM_2,), again=True),
        ours=_csr("Approved", "[condition type]", came=HSMDiffers("test error2")),
        because=_NO_CONDITION,
    ),
    Row(
        name="error-set-certificate-request-condition-should-add-new-condition-and-timeout",
        given="a failure with a condition, too late",
        theirs=Outcome(says=(_CUSTOM, ("Failed", "True", "Failed"))),
        ours=_csr("Approved", came=HSMDiffers("test error"), age=LATE),
        because=_NO_CONDITION,
    ),
    Row(
        name="error-set-certificate-request-condition-should-update-existing-condition-and-timeout",
        given="likewise, and the condition is there",
        theirs=Outcome(says=(_CUSTOM_2, ("Failed", "True", "Failed"))),
        ours=_csr("Approved", "[condition type]", came=HSMDiffers("test error2"), age=LATE),
        because=_NO_CONDITION,
    ),
    Row(
        name="error-set-certificate-request-condition-should-not-timeout-if-pending",
        given="nothing was decided, with a condition, too late",
        theirs=Outcome(says=(_CUSTOM,), again=True),
        ours=_csr("Approved", came=ServiceAway("test error"), age=LATE),
        because=_NO_CONDITION,
    ),
    Row(
        name="error-set-certificate-request-condition-should-not-retry-on-permanent-error",
        given="refused for good, with a condition, at the first look",
        theirs=Outcome(says=(_CUSTOM, ("Failed", "True", "Failed"))),
        ours=_csr("Approved", came=RequestRefused("malformed", "test error")),
        because=_NO_CONDITION,
    ),
    Row(
        name="fail-on-permanent-error",
        given="refused for good, at the first look",
        theirs=_ENDED,
        ours=_csr("Approved", came=RequestRefused("name-forbidden", "a specific error")),
        because=_REASON,
    ),
    Row(
        name="retry-on-error",
        given="any failure, in time",
        theirs=_WAITS,
        ours=_csr("Approved", came=HSMDiffers("waiting for approval")),
    ),
    Row(
        name="success-issuer",
        given="it names an issuer of a namespace",
        theirs=NOTHING,
        ours=_csr_of("hsmissuers.attestation.itl.io/ns1.issuer-1"),
    ),
    Row(
        name="success-clusterissuer",
        given="signed",
        theirs=Outcome(certificate=True),
        ours=_csr("Approved", came=SIGNED),
    ),
    Row(name="empty", given="a signer without a name", theirs=NOTHING, ours=_csr_of("")),
    Row(name="invalid signer name format", given="no signer's name", theirs=NOTHING, ours=_csr_of("aaaaaa")),
    Row(
        name="unknown issuer type identifier",
        given="another kind of our group, and two names",
        theirs=NOTHING,
        ours=_csr_of("aaaaa.attestation.itl.io/namespace.name"),
    ),
    Row(
        name="match issuer",
        given="the kind of issuers of namespaces",
        theirs=NOTHING,
        ours=_csr_of("hsmissuers.attestation.itl.io/namespace.name"),
    ),
    Row(
        name="match cluster issuer",
        given="the kind of issuers of the cluster",
        theirs=_WAITS,
        ours=_csr_of(_SIGNER),
    ),
    Row(
        name="cluster issuer with dot in name",
        given="likewise, with a dot in its name",
        theirs=_WAITS,
        ours=_csr_of("hsmclusterissuers.attestation.itl.io/name.test"),
    ),
    Row(
        name="cluster issuer with empty name",
        given="likewise, without a name",
        theirs=_WAITS,
        ours=_csr_of("hsmclusterissuers.attestation.itl.io/"),
        because="No object has an empty name: nobody waits for one.",
    ),
)
"""certificatesigningrequest_controller_test.go."""

TABLES: Final = (
    ("CertificateRequests", "certificaterequest_controller_test.go", REQUESTS),
    ("CertificateSigningRequests", "certificatesigningrequest_controller_test.go", SIGNING_REQUESTS),
    ("Issuers", "issuer_controller_test.go", ISSUERS),
)
"""Title, file, rows."""
