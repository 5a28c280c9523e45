"""K1, K2, K5, K10, K12 of HSM-AND-KUBERNETES §15: a CA key is handed to attested hardware, or is not."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.api.hsm import HSMNonceRequest
from attestation.keys.provisioning import Bundle, sign_bundle
from attestation.quote import Purpose, evidence_digest, parse_envelope
from attestation.report_data import quote_binding
from attestation.wire import b64decode, b64encode
from attestation_operator.errors import EvidenceUnavailable
from attestation_operator.hsm.evidence import Collectors
from attestation_operator.objects import HSM_CLUSTER_ISSUER, HSM_ISSUER, QUOTE_ATTESTATION, SECRET
from tests.fixtures.hsm_desk import Desk, desk, fake, softhsm
from tests.fixtures.hsm_quotes import SGX, admin_key, bundle_for, ca_certificate, provisioning
from tests.unit.evidence.dcap_zoo import PLATFORM, enclave

__all__ = ["desk", "fake", "softhsm"]

pytestmark = pytest.mark.softhsm

WAITING = ("False", "AwaitingKey")


def digest_of(certificate: bytes) -> str:
    """Return how an issuer names a certificate."""
    return hashlib.sha256(certificate).hexdigest()


def test_a_key_is_handed_over(desk: Desk) -> None:
    """From an issuer to a CA that signs; nothing of how it came is left but the QuoteAttestation and the log."""
    uid = desk.issuer(labels={"team": "payments"})["metadata"]["uid"]
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == WAITING
    quote = desk.quote()
    assert quote["metadata"]["labels"]["team"] == "payments"
    assert desk.get(HSM_ISSUER, "ca")["status"]["qaRef"]["name"] == quote["metadata"]["name"]
    assert desk.keys() == [f"kek-{uid}-1"]
    desk.hand_over()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    assert desk.get(HSM_ISSUER, "ca")["status"]["keyOrigin"] == "provisioned"
    assert desk.keys() == [uid]
    assert not desk.is_there(SECRET, "ca-cacert")
    told = {each["type"]: each["status"] for each in desk.quote()["status"]["conditions"]}
    assert told == dict.fromkeys(("Accepted", "Verified", "KeyDelivered", "KeyLoaded", "Ready"), "True")
    assert desk.log.steps(quote["metadata"]["uid"]) == ["accepted", "bundle-accepted", "loaded"]


def test_k1_what_is_not_by_those_who_may_is_not_loaded(desk: Desk) -> None:
    """Unsigned, by an unlisted signer, for another issuer, of an old nonce, a swapped blob, one of two signatures."""
    ada, bob, eve = admin_key("ada"), admin_key("bob"), admin_key("eve")
    uid = desk.issuer(signers=provisioning(ada, bob)["signers"], requiredSignatures=2)["metadata"]["uid"]
    desk.settle()
    quote = desk.quote()
    good = bundle_for(quote)

    def swapped() -> dict[str, str]:
        other = replace(good, blob=bundle_for(quote).blob).serialise()
        lines = "".join(f"{sign_bundle(good.serialise(), each)}\n" for each in (ada, bob))
        return {
            "bundle.json": base64.b64encode(other).decode(),
            "bundle.jws": base64.b64encode(lines.encode()).decode(),
        }

    unsigned = {"bundle.json": base64.b64encode(good.serialise()).decode(), "bundle.jws": ""}
    cases: list[Callable[[], None]] = [
        lambda: desk.hand_over(good, data=unsigned),
        lambda: desk.hand_over(good, [ada, eve]),
        lambda: desk.hand_over(good, [ada, ada]),
        lambda: desk.hand_over(replace(good, signer_uid="another"), [ada, bob]),
        lambda: desk.hand_over(replace(good, nonce=bytes(32)), [ada, bob]),
        lambda: desk.hand_over(replace(good, oaep_hash="sha256"), [ada, bob]),
        lambda: desk.hand_over(good, data=swapped()),
        lambda: desk.hand_over(good, [ada, bob], type="Opaque"),
    ]
    for number, put in enumerate(cases, 1):
        put()
        desk.settle()
        assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected"), number
        assert desk.condition(QUOTE_ATTESTATION, quote["metadata"]["name"])[0] == "Unknown", "no end"
        assert desk.keys() == [f"kek-{uid}-1"], number
        assert desk.log.steps(quote["metadata"]["uid"]) == ["accepted", *["bundle-rejected"] * number]
        desk.settle()
        assert len(desk.log.steps(quote["metadata"]["uid"])) == number + 1, "told once"
    # None of them spent the nonce: who may, still can.
    desk.hand_over(good, [ada, bob])
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    assert desk.keys() == [uid]


def test_k1_another_certificate_ends_the_question(desk: Desk) -> None:
    """After the nonce is spent, as §13 has it; a second bundle, and one for the first, find nothing."""
    desk.issuer(caCertSHA256=digest_of(ca_certificate("promised")))
    desk.settle()
    name = desk.quote()["metadata"]["name"]
    desk.hand_over()
    desk.settle()
    assert desk.condition(QUOTE_ATTESTATION, name) == ("False", "BundleRejected")
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected")
    assert desk.keys() == []
    uid = desk.quote()["metadata"]["uid"]
    assert desk.log.steps(uid) == ["accepted", "bundle-accepted", "failed"]
    # Whoever deletes the question may ask anew.
    desk.delete(QUOTE_ATTESTATION, name)
    desk.settle()
    assert desk.quote()["metadata"]["uid"] != uid
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected"), (
        "what lies there is for the one before"
    )
    desk.hand_over(bundle_for(desk.quote(), name="promised"))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")


@pytest.mark.parametrize("good", [True, False], ids=["good", "refused"])
def test_k2_killed_after_each_arrow_it_comes_to_the_same_end(desk: Desk, good: bool) -> None:
    """One key, one QuoteAttestation, Ready; of a blob that is refused none."""
    uid = desk.issuer()["metadata"]["uid"]
    desk.settle_killed()
    assert desk.condition(HSM_ISSUER, "ca") == WAITING
    assert desk.keys() == [f"kek-{uid}-1"]
    bundle = bundle_for(desk.quote())
    desk.hand_over(bundle if good else replace(bundle, blob=bundle.blob[:-1] + b"\0"))
    desk.settle_killed()
    [quote] = desk.all_of(QUOTE_ATTESTATION)
    steps = desk.log.steps(quote["metadata"]["uid"])
    name = quote["metadata"]["name"]
    if good:
        assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
        assert desk.condition(QUOTE_ATTESTATION, name) == ("True", "Loaded")
        assert (desk.keys(), steps) == ([uid], ["accepted", "bundle-accepted", "loaded"])
        assert not desk.is_there(SECRET, "ca-cacert")
    else:
        assert desk.condition(HSM_ISSUER, "ca") == ("False", "UnwrapFailed")
        assert desk.condition(QUOTE_ATTESTATION, name) == ("False", "UnwrapFailed")
        assert (desk.keys(), steps) == ([], ["accepted", "bundle-accepted", "failed"])
    kinds = {each.split()[0] for each in desk.killed}
    assert {"token", "nonce", "collect", "Create", "judge", "tell", "SetStatus", "SetFinalizers"} <= kinds
    assert {f"tell {each}" for each in steps} <= set(desk.killed)


def test_k5_evidence_is_kept_and_collides_with_nobodys(desk: Desk) -> None:
    """An issuer, one of the cluster and a request of the same name: each its own; what proves one proves no other."""
    first = desk.issuer()["metadata"]["uid"]
    spec = desk.get(HSM_ISSUER, "ca")["spec"]
    desk.create(HSM_CLUSTER_ISSUER, "ca", spec)
    # A request's evidence, of the same name, by whoever attests its key.
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    asked = HSMNonceRequest(
        purpose="CsrAttestation",
        signer_uid=first,
        evidence_type="sgx",
        policy="enclaves",
        valid_for_seconds=3600,
    )
    nonce = desk.log.give_nonce(asked)
    quote = PLATFORM.quote(
        enclave(
            at_320=quote_binding("sgx", Purpose.CSR_ATTESTATION, first, b64decode(nonce.nonce, "n"), spki)
        ),
        version=3,
        tee="SGX",
    )
    desk.settle()
    ours = desk.quote()["spec"]
    request: dict[str, Any] = {
        "purpose": "CsrAttestation",
        "evidence": {"type": "sgx", "format": "sgx-dcap-v3", "data": b64encode(quote), "certChain": []},
        "binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": nonce.nonce},
        "publicKey": b64encode(spki),
        "signerRef": ours["signerRef"],
        "requestRef": {"group": "cert-manager.io", "kind": "CertificateRequest", "name": "ca", "uid": "u"},
        "policyRef": {"name": "enclaves"},
        "expiresAt": ours["expiresAt"],
    }
    desk.create(QUOTE_ATTESTATION, "ca", request)
    desk.create(
        QUOTE_ATTESTATION,
        "ca-replayed",
        {**request, **{n: ours[n] for n in ("evidence", "binding", "publicKey")}},
    )
    desk.settle()
    assert desk.condition(QUOTE_ATTESTATION, "ca") == ("True", "Verified")
    assert desk.condition(QUOTE_ATTESTATION, "ca-replayed") == ("False", "EvidenceFailed")
    made = [each for each in desk.all_of(QUOTE_ATTESTATION) if each["spec"]["purpose"] == "KeyProvisioning"]
    assert len({each["metadata"]["name"] for each in made}) == 2
    assert {each["spec"]["signerRef"]["kind"] for each in made} == {"HsmIssuer", "HsmClusterIssuer"}
    for each in made:
        assert each["status"]["evidenceDigest"] == evidence_digest(parse_envelope(each["spec"])).hex()
        # Nobody writes another evidence over it.
        change = {"spec": {"publicKey": request["publicKey"]}}
        place = desk.place(QUOTE_ATTESTATION, each["metadata"]["name"])
        assert desk.http.patch(
            place, json=change, headers={"Content-Type": "application/merge-patch+json"}
        ).is_error
    # They are kept for a month after their end, and no longer.
    desk.delete(HSM_CLUSTER_ISSUER, "ca")
    desk.hand_over(bundle_for(next(each for each in made if each["spec"]["signerRef"]["uid"] == first)))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    desk.clock.later = timedelta(days=29)
    desk.settle()
    assert len(desk.all_of(QUOTE_ATTESTATION)) == 3
    desk.clock.later = timedelta(days=31)
    desk.settle()
    assert desk.all_of(QUOTE_ATTESTATION) == []
    assert desk.keys() == [first]


def test_k10_a_certificate_of_another_key(desk: Desk) -> None:
    """Nothing is loaded: the words are those of any blob that is refused."""
    desk.issuer()
    desk.settle()
    desk.hand_over(replace(bundle_for(desk.quote()), chain=(ca_certificate("another"),)))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "UnwrapFailed")
    assert desk.keys() == []


def test_k10_a_label_that_is_taken(desk: Desk) -> None:
    """The key that is there stays, and is not taken for that of the bundle."""
    uid = desk.issuer()["metadata"]["uid"]
    desk.settle()
    bundle = bundle_for(desk.quote())
    desk.hsm.create(uid)
    desk.hsm.close()
    desk.hand_over(bundle)
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "CertificateMismatch")
    assert desk.keys() == [uid]
    assert "caCertificate" not in desk.get(HSM_ISSUER, "ca")["status"]


@pytest.mark.parametrize(
    "evidence", [{"type": "null"}, {"type": "sgx", "collector": "none"}], ids=["null", "none"]
)
def test_k10_no_evidence(desk: Desk, evidence: dict[str, str]) -> None:
    """Of type null, or that nobody makes: no key that wraps, no question."""
    nowhere: Any = None
    desk.evidence = Collectors(programs={}, on_thread=nowhere)
    desk.issuer(evidence=evidence)
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "EvidenceUnavailable")
    assert (desk.all_of(QUOTE_ATTESTATION), desk.keys(), desk.log.nonces) == ([], [], {})


@pytest.mark.parametrize("evidence", ["undecided", "debug"])
def test_k10_evidence_that_is_not_verified(desk: Desk, evidence: str) -> None:
    """A bundle that lies there is not looked at; what could not be decided is asked again, until it ends."""
    if evidence == "debug":
        desk.evidence = SGX(at_48=b"\x07")
    desk.log.undecided = 99
    uid = desk.issuer()["metadata"]["uid"]
    desk.settle()
    quote = desk.quote()
    name = quote["metadata"]["name"]
    forged = Bundle(
        blob=bytes(584),
        chain=(ca_certificate(),),
        evidence_digest=evidence_digest(parse_envelope(quote["spec"])),
        bound_key_fingerprint=bytes(48),
        signer_uid=uid,
        qa_uid=quote["metadata"]["uid"],
        nonce=b64decode(quote["spec"]["binding"]["nonce"], "nonce"),
        not_before=desk.clock.now().replace(microsecond=0),
        not_after=desk.clock.now().replace(microsecond=0) + timedelta(hours=1),
        oaep_hash="sha1",
    )
    desk.hand_over(forged)
    desk.settle()
    if evidence == "debug":
        assert desk.condition(HSM_ISSUER, "ca") == ("False", "EvidenceFailed")
        assert desk.condition(QUOTE_ATTESTATION, name, "Verified") == ("False", "EvidenceFailed")
    else:
        assert desk.condition(HSM_ISSUER, "ca") == WAITING
        assert desk.condition(QUOTE_ATTESTATION, name, "Verified") == ("Unknown", "Indeterminate")
        assert desk.keys() == [f"kek-{uid}-1"]
        desk.clock.later = timedelta(hours=25)
        desk.settle()
        assert desk.condition(HSM_ISSUER, "ca") == ("False", "Expired")
    assert desk.keys() == []
    assert "bundle-accepted" not in desk.log.steps(quote["metadata"]["uid"])


def test_k12_deleted_while_pending(desk: Desk) -> None:
    """Question and key that wraps go, and the service is told; also where the question was not asked yet."""
    desk.issuer()
    desk.settle()
    uid = desk.quote()["metadata"]["uid"]
    desk.delete(HSM_ISSUER, "ca")
    desk.settle()
    assert not desk.is_there(HSM_ISSUER, "ca")
    assert (desk.all_of(QUOTE_ATTESTATION), desk.keys()) == ([], [])
    assert desk.log.steps(uid) == ["accepted", "failed"]
    desk.evidence = SGX()
    desk.evidence.failing = [EvidenceUnavailable("not now")] * 4
    desk.issuer("early")
    desk.settle()
    assert desk.keys() != []
    desk.delete(HSM_ISSUER, "early")
    desk.settle()
    assert not desk.is_there(HSM_ISSUER, "early")
    assert desk.keys() == []


@pytest.mark.parametrize("policy", ["Retain", "Destroy"])
def test_k12_deleted_when_it_has_its_key(desk: Desk, policy: str) -> None:
    """Retain keeps the key, Destroy does not."""
    uid = desk.issuer(deletionPolicy=policy)["metadata"]["uid"]
    desk.settle()
    desk.hand_over()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    desk.delete(HSM_ISSUER, "ca")
    desk.settle()
    assert not desk.is_there(HSM_ISSUER, "ca")
    assert desk.all_of(QUOTE_ATTESTATION) == []
    assert desk.keys() == ([uid] if policy == "Retain" else [])


def test_a_hash_that_the_token_has_not_is_found_out_before_anything_is_asked(desk: Desk) -> None:
    """SoftHSM has SHA-1 alone: the default of the kind would cost a nonce, and an administrator's work."""
    uid = desk.issuer(oaepHash="sha256")["metadata"]["uid"]
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "KeyUnsupported")
    assert (desk.all_of(QUOTE_ATTESTATION), desk.log.nonces) == ([], {})
    spec = desk.get(HSM_ISSUER, "ca")["spec"]
    desk.change(HSM_ISSUER, "ca", {"spec": {"provisioning": spec["provisioning"] | {"oaepHash": "sha1"}}})
    desk.settle()
    desk.hand_over()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    assert desk.keys() == [uid], "the key that wraps of the edition before is gone too"


def test_a_changed_issuer_asks_anew(desk: Desk) -> None:
    """The question before is over, with its key; a bundle for it is none for the next."""
    uid = desk.issuer()["metadata"]["uid"]
    desk.settle()
    before = desk.quote()
    old = bundle_for(before)
    desk.change(HSM_ISSUER, "ca", {"spec": {"policy": {"maxDuration": "24h"}}})
    desk.settle()
    assert desk.condition(QUOTE_ATTESTATION, before["metadata"]["name"]) == ("False", "Superseded")
    assert desk.keys() == [f"kek-{uid}-2"]
    desk.hand_over(old)
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected")
    desk.hand_over()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    assert desk.keys() == [uid]
