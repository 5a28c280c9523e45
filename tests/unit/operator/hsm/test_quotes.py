"""QuoteAttestations: from an offer to a key on the token, one question at a time (HSM-AND-KUBERNETES §14)."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.api.hsm import QuoteVerdict, QuoteVerifier
from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    CAInvalid,
    ChallengeExpired,
    ChallengeUsed,
    HSMDiffers,
    HSMQuoteUnknown,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    SignerUnavailable,
    UnwrapFailed,
)
from attestation.keys.provisioning import Bundle, sign_bundle
from attestation.quote import evidence_digest, key_fingerprint, parse_envelope
from attestation.wire import b64encode
from attestation_operator.actions import Action, Delete, MergeStatus, SetFinalizers, SetStatus
from attestation_operator.errors import ClusterForbidden, ServiceAway
from attestation_operator.hsm.objects import Absent, Issuer, read_issuer
from attestation_operator.hsm.offers import generation_of, quote_key, read_quote
from attestation_operator.hsm.quote_cases import Ask, Case, Done, Looked
from attestation_operator.hsm.quote_controller import turn_of
from attestation_operator.hsm.quotes import reconcile
from attestation_operator.objects import FINALIZER, HSM_ISSUER
from tests.fixtures.hsm_quotes import admin_key, provisioning
from tests.unit.operator.hsm.world import AT, UID, issuer_raw, module

NAME = f"payments-{UID[:8]}-1"
KEK = rsa.generate_private_key(65537, 3072).public_key()
SPKI = KEK.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
NONCE = bytes(range(32))
UNTIL = AT + timedelta(hours=24)
SPEC: dict[str, Any] = {
    "purpose": "KeyProvisioning",
    "evidence": {"type": "sgx", "format": "sgx-dcap-v3", "data": b64encode(b"quote"), "certChain": []},
    "binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": b64encode(NONCE)},
    "publicKey": b64encode(SPKI),
    "signerRef": {
        "group": "attestation.itl.io",
        "kind": "HsmIssuer",
        "namespace": "default",
        "name": "payments",
        "uid": UID,
    },
    "policyRef": {"name": "enclaves"},
    "wrap": {"kekAlg": "rsa-3072", "oaepHash": "sha1", "keyWrap": "aes-kwp"},
    "secretRef": {"name": "payments-cacert"},
    "expiresAt": rfc3339(UNTIL),
}
Status = dict[str, Any]


def said(**conditions: str) -> Status:
    """Return a status with these conditions, `Ready="Unknown/AwaitingKey"`."""
    found = []
    for type_, told in conditions.items():
        status, _, reason = told.partition("/")
        found.append(
            {
                "type": type_,
                "status": status,
                "reason": reason or type_,
                "message": "said",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-11-26T11:00:00Z",
            }
        )
    return {"observedGeneration": 1, "conditions": found}


NEW: Status = {}
ACCEPTED = said(Accepted="True", Ready="Unknown/AwaitingVerdict")
VERIFIED = said(
    Accepted="True", Verified="True", KeyDelivered="False/AwaitingKey", Ready="Unknown/AwaitingKey"
)
LOADED = said(Accepted="True", Verified="True", KeyDelivered="True", KeyLoaded="True", Ready="Unknown/Loaded")
ENDING = said(Accepted="True", Verified="True", KeyLoaded="False/UnwrapFailed", Ready="Unknown/UnwrapFailed")


def issuer_of(*, generation: int = 1, **more: Any) -> Issuer:
    """Return the issuer that asks."""
    raw = issuer_raw(
        {},
        mode="Provisioned",
        subject=None,
        provisioning=provisioning(admin_key(), **more.pop("asks", {})),
        **more,
    )
    raw["metadata"]["generation"] = generation
    return read_issuer(HSM_ISSUER, raw)


def case(status: Status, answers: Any = None, **more: Any) -> Case:
    """Return what is known."""
    metadata: dict[str, Any] = {
        "name": more.pop("name", NAME),
        "namespace": "default",
        "uid": "u-qa",
        "resourceVersion": "7",
        "generation": 1,
        "finalizers": [FINALIZER] if more.pop("held", True) else [],
    }
    if more.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-11-26T11:59:00Z"
    raw = {"metadata": metadata, "spec": SPEC | more.pop("spec", {}), "status": status}
    known: dict[str, Any] = {
        "quote": read_quote(raw),
        "issuer": issuer_of(),
        "module": module(),
        "own_namespace": "attestation",
        "at": AT,
        "answers": answers or {},
    }
    return Case(**(known | more))


def look(status: Status, answers: Any = None, **more: Any) -> Looked:
    """Return what follows."""
    return reconcile(case(status, answers, **more))


def told(looked: Looked) -> dict[str, str]:
    """Return the conditions that are applied, as `said` takes them."""
    [status] = [each for each in looked.actions if isinstance(each, SetStatus)]
    assert status.exact, "no step is taken from a state that is not there any more"
    return {each["type"]: f"{each['status']}/{each['reason']}" for each in status.status["conditions"]}


def verdict(word: str) -> QuoteVerdict:
    """Return what the service says."""
    return QuoteVerdict(
        verdict=word,  # type: ignore[arg-type]  # one of three words
        reason={"failed": "EvidenceFailed", "indeterminate": "Indeterminate"}.get(word, "Verified"),
        message="said",
        checks=[],
        claims={"mrenclave": "e1" * 32, "none": None},
        tier="hardware",
        verifier=QuoteVerifier(name="tests", version="1", at=AT),
        evidence_digest="0f" * 48,
        bound_key_fingerprint="1f" * 48,
        audit_entry_hash="2f" * 32,
    )


def bundle(**changed: Any) -> Bundle:
    """Return a bundle for the question."""
    envelope = parse_envelope(SPEC)
    good = Bundle(
        blob=bytes(584),
        chain=(b"certificate",),
        evidence_digest=evidence_digest(envelope),
        bound_key_fingerprint=key_fingerprint(SPKI),
        signer_uid=UID,
        qa_uid="u-qa",
        nonce=NONCE,
        not_before=AT,
        not_after=UNTIL,
        oaep_hash="sha1",
    )
    return replace(good, **changed)


def secret(made: Bundle | None = None, **changed: Any) -> dict[str, Any]:
    """Return the Secret."""
    text = (made or bundle()).serialise()
    found = {
        "metadata": {"name": "payments-cacert", "namespace": "default", "uid": "u-s", "resourceVersion": "3"},
        "type": "attestation.itl.io/hsm-bundle",
        "data": {
            "bundle.json": base64.b64encode(text).decode(),
            "bundle.jws": base64.b64encode(sign_bundle(text, admin_key()).encode()).decode(),
        },
    }
    return found | changed


# ------------------------------------------------------------ Accepted


def test_it_is_about_the_key_on_the_token() -> None:
    """Else it could name any key, and whoever has that one would be given the CA's."""
    assert look(NEW).ask is Ask.KEK
    assert told(look(NEW, {Ask.KEK: SPKI})) == {
        "Accepted": "True/Accepted",
        "Ready": "Unknown/AwaitingVerdict",
    }
    for answer in (b"another", KeyNotFound("none")):
        looked = look(NEW, {Ask.KEK: answer})
        assert told(looked) == {"Accepted": "False/KeyMismatch", "Ready": "Unknown/KeyMismatch"}
        assert looked.again


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"issuer": None}, "SignerUnknown"),
        ({"issuer": issuer_of(deleting=True)}, "SignerUnknown"),
        ({"name": "payments"}, "SignerUnknown"),
        ({"name": f"payments-{UID[:8]}-0"}, "SignerUnknown"),
        ({"name": f"other-{UID[:8]}-1"}, "SignerUnknown"),
        ({"issuer": issuer_of(generation=2)}, "Superseded"),
        ({"issuer": issuer_of(asks={"oaepHash": "sha256"})}, "Superseded"),
        ({"issuer": issuer_of(asks={"evidence": {"type": "tdx"}})}, "Superseded"),
        ({"issuer": issuer_of(asks={"secretRef": {"name": "elsewhere"}})}, "Superseded"),
        ({"issuer": issuer_of(asks={"evidencePolicyRef": {"name": "others"}})}, "Superseded"),
        ({"at": UNTIL}, "Expired"),
        ({"spec": {"publicKey": "!"}}, "SpecInvalid"),
        ({"spec": {"binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": "AAAA"}}}, "SpecInvalid"),
    ],
)
def test_what_is_none_of_ours_ends(changed: dict[str, Any], reason: str) -> None:
    """Nothing is asked of the token for it."""
    assert told(look(NEW, **changed)) == {"Accepted": f"False/{reason}", "Ready": f"Unknown/{reason}"}


@pytest.mark.parametrize("what", [{"module": None}, {"module": module("False")}])
def test_without_a_token_it_waits(what: dict[str, Any]) -> None:
    """It may come back."""
    looked = look(NEW, **what)
    assert told(looked) == {"Ready": "Unknown/AwaitingVerdict"}
    assert looked.after
    assert told(look(NEW, {Ask.KEK: SignerUnavailable("away")})) == {"Ready": "Unknown/AwaitingVerdict"}


def test_a_strangers_name_has_no_generation() -> None:
    """So no key of ours is destroyed for it."""
    quote, issuer = case(NEW).quote, issuer_of()
    assert generation_of(quote, issuer, "attestation") == 1
    for name in ("payments", f"payments-{UID[:8]}-x", f"payments-{UID[:8]}-{'9' * 19}", f"pay-{UID[:8]}-1"):
        assert generation_of(case(NEW, name=name).quote, issuer, "attestation") is None
    long = replace(issuer, target=replace(issuer.target, name="a" * 253))
    assert len(quote_key(long, "attestation").name) == 253


# ------------------------------------------------------------ Verified


def test_only_what_the_service_verified_goes_on() -> None:
    """Failed is an end, what is open is asked again, and says so."""
    assert look(ACCEPTED).ask is Ask.JUDGE
    good = {Ask.JUDGE: verdict("verified")}
    assert look(ACCEPTED, good).ask is Ask.TELL_ACCEPTED
    looked = look(ACCEPTED, good | {Ask.TELL_ACCEPTED: Done()})
    assert told(looked) == {
        "Accepted": "True/Accepted",
        "Verified": "True/Verified",
        "KeyDelivered": "False/AwaitingKey",
        "Ready": "Unknown/AwaitingKey",
    }
    [status] = looked.actions
    assert isinstance(status, SetStatus)
    assert status.status["claims"] == {"mrenclave": "e1" * 32}
    assert (status.status["verdict"], status.status["auditEntryHash"]) == ("verified", "2f" * 32)
    failed = told(look(ACCEPTED, {Ask.JUDGE: verdict("failed")}))
    assert (failed["Verified"], failed["Ready"]) == ("False/EvidenceFailed", "Unknown/EvidenceFailed")
    undecided = look(ACCEPTED, {Ask.JUDGE: verdict("indeterminate")})
    assert told(undecided)["Verified"] == "Unknown/Indeterminate"
    assert undecided.after == 60


def test_a_service_that_is_away_decides_nothing() -> None:
    """One that refuses does."""
    away = look(ACCEPTED, {Ask.JUDGE: ServiceAway("away")})
    assert told(away)["Verified"] == "Unknown/Pending"
    for refusal in (ChallengeExpired("over"), HSMDiffers("another"), ChallengeUsed("used")):
        assert told(look(ACCEPTED, {Ask.JUDGE: refusal}))["Ready"] == "Unknown/EvidenceFailed"


def test_evidence_of_a_request_ends_with_its_verdict() -> None:
    """CsrAttestation: no key is asked for."""
    spec = {"purpose": "CsrAttestation", "wrap": None, "secretRef": None}
    spec = {name: value for name, value in (SPEC | spec).items() if value is not None}
    raw = {
        "metadata": {"name": "r", "namespace": "default", "uid": "u", "resourceVersion": "1"},
        "spec": spec,
    }
    first = replace(case(NEW), quote=read_quote(raw), issuer=None)
    assert told(reconcile(first))["Accepted"] == "True/Accepted"
    judged = replace(
        first,
        quote=read_quote(raw | {"status": ACCEPTED}),
        answers={Ask.JUDGE: verdict("verified"), Ask.TELL_ACCEPTED: Done()},
    )
    assert told(reconcile(judged))["Ready"] == "True/Verified"


def test_evidence_of_a_request_touches_no_token() -> None:
    """Whatever it is called: there is no key that would go with it."""
    request = {"purpose": "CsrAttestation"}
    assert look(VERIFIED, deleting=True).ask is Ask.CLEAN
    assert look(VERIFIED, deleting=True, spec=request).ask is Ask.TELL_END


def test_who_names_an_issuer_keeps_it_from_nothing() -> None:
    """Those of an issuer come one after the other; what is said of it elsewhere, or of requests, waits for itself."""

    def turn(uid: str, namespace: str = "default", **change: str) -> tuple[str, str]:
        return turn_of({"metadata": {"namespace": namespace, "uid": uid}, "spec": SPEC | change})

    assert turn("a") == turn("b")
    assert turn("a") != turn("b", "theirs")
    assert turn("a", purpose="CsrAttestation") not in (turn("b", purpose="CsrAttestation"), turn("b"))


# ------------------------------------------------------------ KeyDelivered, KeyLoaded


def test_the_checks_come_in_the_order_of_the_specification() -> None:
    """Secret, signatures and fields, nonce, certificate, token: each only after the one before."""
    answers: dict[Ask, Any] = {}
    assert look(VERIFIED, answers).ask is Ask.SECRET
    answers[Ask.SECRET] = secret()
    spend = look(VERIFIED, answers)
    assert spend.ask is Ask.SPEND
    assert spend.step is not None
    assert (spend.step.step, len(spend.step.signers)) == ("bundle-accepted", 1)
    answers[Ask.SPEND] = Done()
    load = look(VERIFIED, answers)
    assert load.ask is Ask.LOAD
    assert load.bundle is not None
    promised = issuer_of(asks={"caCertSHA256": "0f" * 32})
    ended = told(look(VERIFIED, answers, issuer=promised))
    assert (ended["KeyLoaded"], ended["Ready"]) == ("False/BundleRejected", "Unknown/BundleRejected")


def test_the_certificate_is_in_the_issuers_status_before_the_key_is_said_to_be_there() -> None:
    """Whatever line a process ends at, the issuer finds both."""
    from tests.fixtures.hsm_quotes import ca_certificate

    made = bundle(chain=(ca_certificate(),))
    looked = look(VERIFIED, {Ask.SECRET: secret(made), Ask.SPEND: Done(), Ask.LOAD: Done()})
    first, second = looked.actions
    assert isinstance(first, MergeStatus)
    assert first.target.name == "payments"
    assert first.status["caCertificate"].startswith("-----BEGIN CERTIFICATE-----")
    assert isinstance(second, SetStatus)
    assert told(looked)["KeyLoaded"] == "True/Loaded"
    again = replace(issuer_of(), status={"caCertificate": first.status["caCertificate"]})
    answers = {Ask.SECRET: secret(made), Ask.SPEND: Done(), Ask.LOAD: Done()}
    assert len(look(VERIFIED, answers, issuer=again).actions) == 1


@pytest.mark.parametrize(
    "there",
    [
        secret(type="Opaque"),
        secret(data={}),
        secret(data={"bundle.json": "!", "bundle.jws": ""}),
        secret(data={"bundle.json": "A" * 400_000, "bundle.jws": ""}),
        secret(data={"bundle.json": "e30=", "bundle.jws": base64.b64encode("é".encode()).decode()}),
        secret(bundle(signer_uid="another")),
        secret(bundle(qa_uid="another")),
        secret(bundle(nonce=bytes(32))),
        secret(bundle(oaep_hash="sha256")),
        secret(bundle(not_after=UNTIL + timedelta(hours=1))),
        secret(bundle(not_before=AT + timedelta(hours=1))),
    ],
)
def test_k1_what_is_rejected_spends_nothing_and_ends_nothing(there: dict[str, Any]) -> None:
    """It is told once; another bundle may come."""
    looked = look(VERIFIED, {Ask.SECRET: there})
    assert looked.ask is Ask.TELL_REJECTED
    assert looked.step is not None
    assert looked.step.step == "bundle-rejected"
    rejected = look(VERIFIED, {Ask.SECRET: there, Ask.TELL_REJECTED: Done()})
    found = told(rejected)
    assert (found["KeyLoaded"], found["Ready"]) == ("False/BundleRejected", "Unknown/AwaitingKey")
    [status] = rejected.actions
    assert isinstance(status, SetStatus)
    again = look(dict(status.status), {Ask.SECRET: there})
    assert (again.ask, again.actions) == (None, ())
    assert look(dict(status.status), {Ask.SECRET: secret()}).ask is Ask.SPEND


def test_a_nonce_that_another_bundle_spent() -> None:
    """The bundle that spent it may still come."""
    looked = look(VERIFIED, {Ask.SECRET: secret(), Ask.SPEND: ChallengeUsed("another")})
    assert looked.ask is Ask.TELL_REJECTED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnwrapFailed("refused"), "UnwrapFailed"),
        (KeyMismatch("another"), "CertificateMismatch"),
        (KeyUnsupported("sha256"), "KeyUnsupported"),
        (CAInvalid("no CA"), "CAInvalid"),
        (KeyNotFound("no KEK"), "KeyUnavailable"),
    ],
)
def test_what_the_token_refuses_is_an_end(error: AttestationError, reason: str) -> None:
    """Its nonce is spent. A token that is away refuses nothing."""
    answers = {Ask.SECRET: secret(), Ask.SPEND: Done()}
    found = told(look(VERIFIED, answers | {Ask.LOAD: error}))
    assert (found["KeyDelivered"], found["KeyLoaded"]) == ("True/BundleFound", f"False/{reason}")
    assert found["Ready"] == f"Unknown/{reason}"
    away = look(VERIFIED, answers | {Ask.LOAD: SignerUnavailable("away")})
    assert told(away)["Ready"] == "Unknown/AwaitingKey"


@pytest.mark.parametrize("error", [ClusterForbidden("403"), ServiceAway("away")])
def test_a_secret_that_cannot_be_read_is_waited_for(error: AttestationError) -> None:
    """And the issuer says why."""
    looked = look(VERIFIED, {Ask.SECRET: error})
    assert looked.after
    assert told(looked)["Ready"] == "Unknown/AwaitingKey"


def test_no_secret_yet() -> None:
    """It is looked for again, and what was said of another bundle is over."""
    rejected = said(
        Accepted="True",
        Verified="True",
        KeyDelivered="True",
        KeyLoaded="False/BundleRejected",
        Ready="Unknown/AwaitingKey",
    )
    looked = look(rejected, {Ask.SECRET: Absent()})
    assert looked.after == 10
    assert told(looked) == {
        "Accepted": "True/Accepted",
        "Verified": "True/Verified",
        "KeyDelivered": "False/AwaitingKey",
        "Ready": "Unknown/AwaitingKey",
    }


@pytest.mark.parametrize("status", [ACCEPTED, VERIFIED])
def test_after_its_time_nothing_is_taken(status: Status) -> None:
    """Not even a bundle that lies there; but what is loaded stays loaded."""
    assert told(look(status, at=UNTIL))["Ready"] == "Unknown/Expired"
    assert told(look(status, issuer=issuer_of(generation=2)))["Ready"] == "Unknown/Superseded"
    assert look(LOADED, at=UNTIL).ask is Ask.TEST


# ------------------------------------------------------------ ends


def test_the_key_signs_before_what_wrapped_it_is_destroyed() -> None:
    """Then the service is told, and the Secret taken away; Ready is said last."""
    answers: dict[Ask, Any] = {}
    for ask in (Ask.TEST, Ask.CLEAN, Ask.TELL_END, Ask.SECRET):
        looked = look(LOADED, answers)
        assert looked.ask is ask
        answers[ask] = secret() if ask is Ask.SECRET else Done()
    deleted, status = look(LOADED, answers).actions
    assert isinstance(deleted, Delete)
    assert (deleted.target.uid, deleted.target.resource_version) == ("u-s", "3")
    assert isinstance(status, SetStatus)
    assert told(look(LOADED, answers))["Ready"] == "True/Loaded"
    # A Secret that is none of ours is not deleted.
    assert len(look(LOADED, answers | {Ask.SECRET: secret(type="Opaque")}).actions) == 1
    assert look(LOADED, {Ask.TEST: SignerUnavailable("away")}).after


def test_an_end_cleans_up_before_it_is_said() -> None:
    """The key that wraps goes first, then the service is told; each may be repeated."""
    assert look(ENDING).ask is Ask.CLEAN
    tell = look(ENDING, {Ask.CLEAN: Done()})
    assert tell.ask is Ask.TELL_END
    assert tell.step is not None
    assert (tell.step.step, tell.step.detail) == ("failed", "UnwrapFailed: said")
    for answer in (Done(), HSMQuoteUnknown("never told"), HSMDiffers("told of another end")):
        assert told(look(ENDING, {Ask.CLEAN: Done(), Ask.TELL_END: answer}))["Ready"] == "False/UnwrapFailed"
    for answers in (
        {Ask.CLEAN: SignerUnavailable("away")},
        {Ask.CLEAN: Done(), Ask.TELL_END: ServiceAway("away")},
    ):
        looked = look(ENDING, answers)
        assert (looked.actions, looked.after) == ((), 10)
    expired = look(said(Accepted="True", Ready="Unknown/Expired"), {Ask.CLEAN: Done()})
    assert expired.step is not None
    assert expired.step.step == "expired"
    # What is none of ours has no key here.
    assert look(ENDING, issuer=None).ask is Ask.TELL_END


@pytest.mark.parametrize("end", ["True/Loaded", "False/UnwrapFailed"])
def test_what_ended_is_kept_for_a_month(end: str) -> None:
    """Its finalizer goes at once, when its key is destroyed."""
    status = said(Ready=end)
    assert look(status).ask is Ask.CLEAN
    assert look(status, {Ask.CLEAN: Done()}).actions == (
        SetFinalizers(target=case(status).quote.target, finalizers=()),
    )
    free = look(status, held=False)
    assert (free.actions, free.after) == ((), 86_400.0)
    [action] = look(status, held=False, at=AT + timedelta(days=30)).actions
    assert isinstance(action, Delete)


def test_one_that_is_deleted_takes_its_key_along() -> None:
    """The service is told as far as that is possible."""
    assert look(VERIFIED, deleting=True, held=False) == Looked()
    assert look(VERIFIED, deleting=True).ask is Ask.CLEAN
    tell = look(VERIFIED, {Ask.CLEAN: Done()}, deleting=True)
    assert tell.step is not None
    assert (tell.step.step, tell.step.detail) == ("failed", "Deleted")
    freed: tuple[Action, ...] = (SetFinalizers(target=case(VERIFIED).quote.target, finalizers=()),)
    assert (
        look(VERIFIED, {Ask.CLEAN: Done(), Ask.TELL_END: ServiceAway("away")}, deleting=True).actions == freed
    )
    assert look(said(Ready="True/Loaded"), {Ask.CLEAN: Done()}, deleting=True).actions == freed
    waits = look(VERIFIED, {Ask.CLEAN: SignerUnavailable("away")}, deleting=True)
    assert (waits.actions, waits.after) == ((), 10)


def test_nothing_is_written_where_it_stands_there() -> None:
    """Each look would be a write, and each write a look."""
    looked = look(VERIFIED, {Ask.SECRET: Absent()})
    [status] = looked.actions
    assert isinstance(status, SetStatus)
    assert look(dict(status.status), {Ask.SECRET: Absent()}).actions == ()
