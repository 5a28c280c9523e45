"""Issuers: from an object to a CA that signs, one question at a time (HSM-AND-KUBERNETES §14)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.errors import (
    KeyAmbiguous,
    KeyNotFound,
    KeyUnsupported,
    SignerUnavailable,
)
from attestation.keys.open import OpenKey
from attestation_operator.actions import EmitEvent, MergeStatus, SetFinalizers, SetStatus
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm.authority import pem_of, self_signed, subject_of
from attestation_operator.hsm.issuers import Ask, Case, Looked, reconcile
from attestation_operator.hsm.objects import older, read_issuer
from attestation_operator.objects import FINALIZER, HSM_ISSUER
from tests.fixtures.hsm_kinds import GOOD
from tests.unit.operator.hsm.world import (
    AT,
    SPEC,
    ca_pem,
    ca_pem_by_another,
    cluster_issuer,
    issuer,
    issuer_raw,
    key,
    known,
    module,
    ready,
)

MADE = {"conditions": ready("Unknown", "Initializing"), "caCertificate": ca_pem()}


def look(
    status: Any = None,
    *,
    hsm: Any = None,
    answers: Any = None,
    at: Any = AT,
    listed: int | None = None,
    **more: Any,
) -> Looked:
    """Return what follows for an issuer."""
    token = module() if hsm is None else hsm
    found = cluster_issuer(status, **more) if "keyRef" in more else issuer(status, **more)
    return reconcile(
        Case(issuer=found, module=token or None, at=at, answers=answers or {}, crl_number=listed)
    )


def state(looked: Looked) -> tuple[str, str]:
    """Return status and reason of Ready that is applied."""
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    [condition] = [each for each in status.status["conditions"] if each["type"] == "Ready"]
    assert condition["observedGeneration"] == 1
    return condition["status"], condition["reason"]


def ending(looked: Looked) -> list[tuple[str, str]]:
    """Return what is said of the end of the CA."""
    said = status_of(looked)["conditions"]
    return [(each["status"], each["reason"]) for each in said if each["type"] == "CAExpires"]


def status_of(looked: Looked) -> Any:
    """Return the status that is applied."""
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    return status.status


def test_it_waits_for_us_before_a_key_can_be() -> None:
    """The finalizer is there before the first question to the token."""
    looked = look(held=False)
    assert looked.actions == (SetFinalizers(target=issuer().target, finalizers=(FINALIZER,)),)
    assert looked.again
    assert looked.ask is None


def test_it_is_told_that_it_was_seen() -> None:
    """Ready Unknown, before anything else (§14)."""
    looked = look({})
    assert state(looked) == ("Unknown", "Initializing")
    assert looked.again


def test_a_spec_that_cannot_be_followed_says_what_is_wrong() -> None:
    """By a server without rules in CEL it came this far."""
    looked = look(subject=None)
    assert state(looked) == ("False", "Failed")
    assert "subject" in status_of(looked)["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("hsm", "reason"),
    [
        (False, "Pending"),
        (module(allowedNamespaces=["other"]), "Pending"),
        (module("False"), "KeyUnavailable"),
        (module(generation=2), "KeyUnavailable"),
    ],
    ids=["absent", "not-for-it", "not-ready", "changed"],
)
def test_without_a_token_that_it_may_use_nothing_is_asked(hsm: Any, reason: str) -> None:
    """A token of others tells an issuer of a namespace as much as one that is not there."""
    looked = look(hsm=hsm)
    assert state(looked) == ("False", reason)
    if reason == "Pending":
        assert status_of(looked)["conditions"][0]["message"] == (
            "no HardwareSecurityModule softhsm that this issuer may use"
        )


def test_a_key_is_looked_for_before_one_is_made() -> None:
    """Whatever line the process before ended at: a second key would be a second CA."""
    assert look().ask is Ask.FIND
    assert look(answers={Ask.FIND: KeyNotFound("none"), Ask.COUNT: 0}).ask is Ask.MAKE


def test_a_key_that_was_there_is_not_made_again() -> None:
    """Its token may come back; another key would be another CA, of which nobody was told."""
    looked = look({**MADE, "keyFingerprint": "0f" * 32}, answers={Ask.FIND: KeyNotFound("none")})
    assert state(looked) == ("False", "KeyUnavailable")


def test_issuers_of_a_namespace_have_so_many_keys_and_no_more() -> None:
    """Who may create issuers would fill the token of all; the oldest have keys, those of the cluster do not count."""
    hsm = module(maxIssuersPerNamespace=2)
    none: dict[Ask, Any] = {Ask.FIND: KeyNotFound("none")}
    assert look(hsm=hsm, answers=none).ask is Ask.COUNT
    assert look(hsm=hsm, answers=none | {Ask.COUNT: 1}).ask is Ask.MAKE
    full = look(hsm=hsm, answers=none | {Ask.COUNT: 2})
    assert state(full) == ("False", "QuotaExceeded")
    assert "2 HsmIssuers of namespace default" in status_of(full)["conditions"][0]["message"]
    assert full.after, "one of the others may go"
    away = look(hsm=hsm, answers=none | {Ask.COUNT: ServiceAway("away")})
    assert state(away) == ("False", "KeyUnavailable")
    of_all = reconcile(Case(issuer=cluster_issuer(), module=hsm, at=AT, answers=none))
    assert of_all.ask is Ask.MAKE
    # One that has its key keeps it, whatever the number becomes.
    assert look(MADE, hsm=module(maxIssuersPerNamespace=1), answers={Ask.FIND: key()}).ask is Ask.TEST


def test_which_issuers_are_older() -> None:
    """Of the same namespace and token; of two of one second the UID decides: two are never before each other."""

    def raw(uid: str, born: str, **change: Any) -> dict[str, Any]:
        found = issuer_raw()
        found["metadata"] |= {"uid": uid, "creationTimestamp": born} | change
        return found

    early, late = "2026-11-26T11:00:00Z", "2026-11-26T11:00:01Z"
    ours = read_issuer(HSM_ISSUER, raw("m", late))
    elsewhere = raw("c", early)
    elsewhere["spec"] = elsewhere["spec"] | {"hsmRef": {"name": "other"}}
    others = [
        raw("m", late),
        raw("z", late),
        raw("a", late),
        raw("b", early),
        raw("d", early, namespace="other"),
        elsewhere,
        raw("e", early) | {"spec": None},
    ]
    assert older(ours, others) == 2


def test_p_256_is_for_tpms_alone() -> None:
    """What a PKCS#11 token has of it is not used, and none is made there."""
    found = OpenKey(
        ec.generate_private_key(ec.SECP256R1()), ref=key().ref, origin="generated", backend="pkcs11"
    )
    refused = look(answers={Ask.FIND: found}, keyType="ecdsa-p256")
    assert state(refused) == ("False", "KeyUnsupported")
    found.backend = "tpm2"
    assert look(answers={Ask.FIND: found}, keyType="ecdsa-p256").ask is Ask.SELF_SIGN


def test_an_issuer_of_a_namespace_has_a_key_of_its_own() -> None:
    """Who may use a token would sign with the key of another issuer there."""
    looked = reconcile(Case(issuer=issuer(keyRef={"label": "another"}), module=module(), at=AT))
    assert state(looked) == ("False", "Failed")
    assert "keyRef" in status_of(looked)["conditions"][0]["message"]
    assert looked.ask is None


def test_a_key_of_a_name_is_not_made() -> None:
    """`keyRef` says that there is one."""
    looked = look(answers={Ask.FIND: KeyNotFound("none")}, keyRef={"label": "mine"})
    assert state(looked) == ("False", "KeyUnavailable")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyAmbiguous("two"), "KeyAmbiguous"),
        (KeyUnsupported("no"), "KeyUnsupported"),
        (SignerUnavailable("away"), "KeyUnavailable"),
    ],
)
@pytest.mark.parametrize("ask", [Ask.FIND, Ask.MAKE])
def test_what_is_wrong_with_a_key_is_its_reason(error: Any, reason: str, ask: Ask) -> None:
    """And it is looked for again by itself."""
    looked = look(answers={Ask.FIND: KeyNotFound("none"), ask: error})
    assert state(looked) == ("False", reason)
    assert looked.after


def test_a_key_of_another_algorithm_is_not_used() -> None:
    """Whoever chose P-384 does not find another CA."""
    assert state(look(answers={Ask.FIND: key()}, keyType="rsa-4096")) == ("False", "KeyUnsupported")


def test_the_certificate_is_written_down_before_anything_is_signed() -> None:
    """Two processes that each made one would be two CAs of one key, with leaves of both."""
    assert look(answers={Ask.FIND: key()}).ask is Ask.SELF_SIGN
    from attestation_operator.crds.hsm import IssuerSpec
    from attestation_operator.hsm.authority import pem_of, self_signed
    from tests.unit.operator.hsm.world import SPEC

    made = self_signed(IssuerSpec.model_validate(SPEC), key(), at=AT)
    looked = look(answers={Ask.FIND: key(), Ask.SELF_SIGN: made})
    [written] = looked.actions
    assert isinstance(written, MergeStatus), "with the resourceVersion: of two who do it, one is refused"
    assert written.status["caCertificate"] == pem_of(made)
    assert looked.again
    assert looked.authority is None


@pytest.mark.parametrize(
    "pem",
    [ca_pem("other"), ca_pem_by_another(), "no certificate"],
    ids=["of-another-key", "by-another-key", "none"],
)
def test_a_certificate_that_the_key_does_not_prove_is_not_used(pem: str) -> None:
    """A status can be written by others: it would be their CA that leaves name."""
    looked = look({**MADE, "caCertificate": pem}, answers={Ask.FIND: key()})
    assert state(looked) == ("False", "CertificateMismatch")


def test_an_expired_ca_signs_nothing() -> None:
    """Each leaf would be refused; what came from elsewhere nobody here makes anew."""
    handed = {"mode": "Provisioned", "provisioning": GOOD[HSM_ISSUER][0]["provisioning"]}
    assert state(look(MADE, answers={Ask.FIND: key()}, at=AT + timedelta(days=4000), **handed)) == (
        "False",
        "CAInvalid",
    )


@pytest.mark.parametrize(
    "days", [3531, 4000, -1], ids=["before-its-end", "after-its-end", "before-its-begin"]
)
def test_a_ca_by_itself_is_made_anew_under_the_same_key(days: int) -> None:
    """So early that no certificate is cut short by it, or late; or where a clock that was ahead made it.

    It is written down before anything is signed.
    """
    at, answers = AT + timedelta(days=days), {Ask.FIND: key()}
    assert look(MADE, answers=answers, at=AT + timedelta(days=3529)).ask is Ask.TEST
    assert look(MADE, answers=answers, at=at).ask is Ask.SELF_SIGN
    renewed = self_signed(IssuerSpec.model_validate(SPEC), key(), at=at, subject=subject_of(ca_pem()))
    looked = look(MADE, answers=answers | {Ask.SELF_SIGN: renewed}, at=at)
    [written] = looked.actions
    assert isinstance(written, MergeStatus)
    assert written.status["caCertificate"] == pem_of(renewed)
    assert looked.again
    failed = look(MADE, answers=answers | {Ask.SELF_SIGN: SignerUnavailable("away")}, at=at)
    assert state(failed) == ("False", "KeyUnavailable")


def test_it_signs_and_the_service_knows_it_before_it_is_ready() -> None:
    """In this order: a CA whose revocation nobody keeps issues nothing."""
    answers: dict[Ask, Any] = {Ask.FIND: key()}
    assert look(MADE, answers=answers).ask is Ask.TEST
    assert state(look(MADE, answers=answers | {Ask.TEST: SignerUnavailable("away")})) == (
        "False",
        "KeyUnavailable",
    )
    answers[Ask.TEST] = True
    assert look(MADE, answers=answers).ask is Ask.REGISTER
    away = look(MADE, answers=answers | {Ask.REGISTER: ServiceAway("away")})
    assert state(away) == ("False", "Pending")
    assert away.authority is None
    # 8 was begun, and may never be published: the status names what is.
    looked = look(MADE, answers=answers | {Ask.REGISTER: known(8)}, listed=7)
    assert state(looked) == ("True", "Checked")
    status = status_of(looked)
    assert (status["issuerID"], status["crlNumber"], status["keyOrigin"]) == ("ab" * 8, 7, "generated")
    assert looked.authority is not None
    assert looked.authority.issuer_id == "ab" * 8
    assert looked.after == 15.0


def test_nothing_is_written_where_it_stands_there() -> None:
    """Each look would be a write, and each write a look."""
    answers: dict[Ask, Any] = {Ask.FIND: key(), Ask.TEST: True, Ask.REGISTER: known(7)}
    status = status_of(look(MADE, answers=answers))
    again = look(status, answers=answers)
    assert again.actions == ()
    assert again.authority is not None


def test_the_end_of_the_ca_is_told_a_month_before() -> None:
    """By condition, and once by an event."""
    answers: dict[Ask, Any] = {Ask.FIND: key(), Ask.TEST: True, Ask.REGISTER: known()}
    at = AT + timedelta(days=3630)
    looked = look(MADE, answers=answers, at=at, rotation={"renewBefore": "10m"})
    assert [each.reason for each in looked.actions if isinstance(each, EmitEvent)] == ["CAExpires"]
    assert looked.authority is not None
    early = look(MADE, answers=answers, at=AT + timedelta(days=3600), rotation={"renewBefore": "10m"})
    assert not [each for each in early.actions if isinstance(each, EmitEvent)]
    assert ending(early) == []
    assert ending(looked) == [("True", "Soon")]
    renewed = look(
        status_of(looked), answers=answers, at=AT + timedelta(days=3600), rotation={"renewBefore": "10m"}
    )
    assert ending(renewed) == [("False", "NotSoon")]
    again = look(status_of(looked), answers=answers, at=at, rotation={"renewBefore": "10m"})
    assert again.actions == ()
    # What is wrong with its key says nothing of its end, which stands there as it was.
    failing = answers | {Ask.TEST: SignerUnavailable("away")}
    away = look(status_of(looked), answers=failing, at=at, rotation={"renewBefore": "10m"})
    assert ending(away) == [("True", "Soon")]


def test_k12_retain_keeps_the_key_and_destroy_destroys_it_first() -> None:
    """The object goes when its key is dealt with; also while it is pending."""
    freed = (SetFinalizers(target=issuer().target, finalizers=()),)
    assert look(deleting=True) == Looked(actions=freed)
    assert look(deleting=True, deletionPolicy="Destroy").ask is Ask.DESTROY
    done = look(deleting=True, deletionPolicy="Destroy", answers={Ask.DESTROY: True})
    assert done == Looked(actions=freed)
    away = look(deleting=True, deletionPolicy="Destroy", answers={Ask.DESTROY: SignerUnavailable("away")})
    assert state(away) == ("False", "KeyUnavailable")
    assert away.after
    assert state(look(deleting=True, deletionPolicy="Destroy", hsm=False)) == ("False", "KeyUnavailable")
    assert look(deleting=True, deletionPolicy="Destroy", hsm=False).authority is None


def test_a_spec_that_cannot_be_followed_any_more_still_says_what_becomes_of_the_key() -> None:
    """Somebody changed another member of it, or a new version of ours refuses one: the key would stay for ever."""
    broken: dict[str, Any] = {"keyType": "dsa", "deletionPolicy": "Destroy"}
    assert issuer(deleting=True, **broken).spec is None
    assert look(deleting=True, **broken).ask is Ask.DESTROY
    kept = look(deleting=True, keyType="dsa")
    assert [type(each) for each in kept.actions] == [SetFinalizers]
    mine = look(deleting=True, keyRef={"label": "mine"}, **broken)
    assert [type(each) for each in mine.actions] == [SetFinalizers]
    # Which token it is on nobody knows: it waits for somebody to say it.
    lost = look(deleting=True, hsm=False, hsmRef="softhsm", deletionPolicy="Destroy")
    assert state(lost) == ("False", "KeyUnavailable")
    assert issuer(hsmRef="softhsm").hsm is None
    assert issuer(hsmRef={}).hsm is None


def test_a_key_that_somebody_brought_is_never_destroyed() -> None:
    """Under `keyRef` it may be another's, too."""
    looked = look(deleting=True, deletionPolicy="Destroy", keyRef={"label": "mine"})
    assert [type(each) for each in looked.actions] == [SetFinalizers]


def test_others_finalizers_stay() -> None:
    """They are not ours to take away."""
    found = replace(issuer(deleting=True), finalizers=("other", FINALIZER))
    looked = reconcile(Case(issuer=found, module=module(), at=AT))
    assert looked.actions == (SetFinalizers(target=found.target, finalizers=("other",)),)
