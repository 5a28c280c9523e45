"""K3, K4, K8, K13 of HSM-AND-KUBERNETES §15 for keys that are handed over.

Of keys that are made on a token: test_hsm_acceptance.py; K1, K2, K5, K10, K12: test_hsm_acceptance_provisioning.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pkcs11
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key
from pkcs11 import Attribute, ObjectClass

from attestation.keys.wrapping import wrap_key
from attestation.wire import b64decode
from attestation_operator.objects import HSM, HSM_ISSUER, QUOTE_ATTESTATION, SECRET
from tests.fixtures.hsm_desk import Desk, desk, fake, softhsm
from tests.fixtures.hsm_quotes import DEBUG, SGX, bundle_for, ca_certificate, ca_key
from tests.fixtures.softhsm import PIN
from tests.integration.kubernetes.test_hsm_acceptance import spellings

__all__ = ["desk", "fake", "softhsm"]

pytestmark = pytest.mark.softhsm
READY, WAITING = ("True", "Checked"), ("False", "AwaitingKey")
SECRETS = (Attribute.VALUE, Attribute.PRIVATE_EXPONENT)
FLAGS = (
    Attribute.SENSITIVE,
    Attribute.EXTRACTABLE,
    Attribute.ALWAYS_SENSITIVE,
    Attribute.NEVER_EXTRACTABLE,
    Attribute.LOCAL,
    Attribute.SIGN,
    Attribute.DECRYPT,
    Attribute.UNWRAP,
)


def on_token(desk: Desk, work: Callable[[Any], Any]) -> Any:
    """Return what *work* finds in a session of another client's, on a thread that ends with it."""

    def ask() -> Any:
        library = pkcs11.lib(str(desk.hsm.module))
        try:
            with library.get_token(token_label="hsm").open(user_pin=PIN) as session:
                return work(session)
        finally:
            library.finalize()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


def private_keys(session: Any) -> dict[str, tuple[tuple[bool, ...], list[str]]]:
    """Return each private key: what it may, and what comes of asking for its secret."""
    found = {}
    for key in session.get_objects({Attribute.CLASS: ObjectClass.PRIVATE_KEY}):
        answers = []
        for secret in SECRETS:
            try:
                answers.append(f"{len(key[secret])} bytes")
            except pkcs11.PKCS11Error as e:
                answers.append(type(e).__name__)
        found[key[Attribute.LABEL]] = tuple(bool(key[flag]) for flag in FLAGS), answers
    return found


def secret_keys(session: Any) -> int:
    """Return how many symmetric keys are there."""
    return len(list(session.get_objects({Attribute.CLASS: ObjectClass.SECRET_KEY})))


def handed_over(desk: Desk, **more: Any) -> str:
    """Have a key handed over; return the UID of its issuer."""
    uid: str = desk.issuer(**more)["metadata"]["uid"]
    desk.settle()
    desk.hand_over(bundle_for(desk.quote(), algorithm=more.get("keyType", "ecdsa-p384")))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == READY
    return uid


def test_k3_neither_wrapping_key_nor_ca_key_leaves_the_token(desk: Desk) -> None:
    """Read back by another client, before and after: no secret is told; what wrapped it is gone; no object has it."""
    uid = desk.issuer()["metadata"]["uid"]
    desk.settle()
    flags, answers = on_token(desk, private_keys)[f"kek-{uid}-1"]
    assert dict(zip(FLAGS, flags, strict=True)) == dict.fromkeys(FLAGS, True) | dict.fromkeys(
        (Attribute.EXTRACTABLE, Attribute.SIGN, Attribute.DECRYPT), False
    )
    assert "AttributeSensitive" in answers
    assert not any("bytes" in each for each in answers)
    desk.hand_over()
    desk.settle()
    [(label, (flags, answers))] = on_token(desk, private_keys).items()
    assert label == uid
    # Brought in, and so not always there: that is what `keyOrigin: provisioned` says.
    assert dict(zip(FLAGS, flags, strict=True)) == dict.fromkeys(FLAGS, False) | dict.fromkeys(
        (Attribute.SENSITIVE, Attribute.SIGN), True
    )
    assert "AttributeSensitive" in answers
    assert not any("bytes" in each for each in answers)
    assert on_token(desk, secret_keys) == 0
    wanted = spellings(ca_key().private_numbers().private_value, 48)
    for kind in (HSM, HSM_ISSUER, QUOTE_ATTESTATION, SECRET):
        told = desk.http.get(desk.place(kind)).content
        assert not [each for each in wanted if each in told], kind.kind


def test_k3_another_hash_of_oaep_than_the_issuers_is_refused(desk: Desk) -> None:
    """Said in the bundle, or only done to the blob: nothing comes in."""
    desk.issuer()
    desk.settle()
    good = bundle_for(desk.quote())
    desk.hand_over(replace(good, oaep_hash="sha256"))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected")
    kek: Any = load_der_public_key(b64decode(desk.quote()["spec"]["publicKey"], "the key"))
    desk.hand_over(replace(good, blob=wrap_key(ca_key(), kek, oaep_hash="sha256")))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "UnwrapFailed")
    assert desk.keys() == []


def test_k4_a_ca_without_key_cert_sign_is_never_ready(desk: Desk) -> None:
    """Its key is good and its bundle signed by who may: it certifies nothing all the same."""
    desk.issuer()
    desk.settle()
    quote = desk.quote()
    desk.hand_over(replace(bundle_for(quote), chain=(ca_certificate(signs_certificates=False),)))
    desk.settle()
    status, reason = desk.condition(HSM_ISSUER, "ca")
    assert (status, reason) != READY
    assert status == "False"
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == (status, reason)
    assert desk.condition(QUOTE_ATTESTATION, quote["metadata"]["name"])[0] == "False"


@pytest.mark.parametrize("key_type", ["ecdsa-p384", "rsa-4096"])
def test_k8_a_key_that_was_handed_over_signs(desk: Desk, key_type: str) -> None:
    """P-384 and RSA-4096: the certificate is that of the bundle, and the token signs under it."""
    uid = handed_over(desk, keyType=key_type)
    status = desk.get(HSM_ISSUER, "ca")["status"]
    ca = x509.load_pem_x509_certificate(status["caCertificate"].encode())
    assert ca == x509.load_der_x509_certificate(ca_certificate(algorithm=key_type))
    assert status["keyOrigin"] == "provisioned"
    key: Any = desk.hsm.open(uid).private_key
    signed, public = datetime.now(UTC).isoformat().encode(), ca.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(key.sign(signed, ec.ECDSA(hashes.SHA384())), signed, ec.ECDSA(hashes.SHA384()))
    else:
        assert isinstance(public, rsa.RSAPublicKey)
        way = padding.PKCS1v15(), hashes.SHA384()
        public.verify(key.sign(signed, *way), signed, *way)


def test_k13_evidence_refused(desk: Desk) -> None:
    """An enclave that anybody may look into: no bundle is waited for."""
    desk.evidence = SGX(at_48=DEBUG)
    desk.issuer()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "EvidenceFailed")
    assert desk.keys() == []


def test_k13_missing_secret_certificate_and_key(desk: Desk) -> None:
    """Without a Secret it waits; with one that lacks a part it says so, and waits for a better one."""
    desk.issuer()
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == WAITING
    good = bundle_for(desk.quote())
    lacking: tuple[tuple[str, Callable[[], None]], ...] = (
        ("certificate", lambda: desk.hand_over(replace(good, chain=()))),
        ("bundle", lambda: desk.hand_over(good, data={"bundle.jws": base64.b64encode(b"x").decode()})),
        ("signatures", lambda: desk.hand_over(good, data={"bundle.json": base64.b64encode(b"{}").decode()})),
        ("both", lambda: desk.hand_over(good, data={})),
    )
    for what, put in lacking:
        put()
        desk.settle()
        assert desk.condition(HSM_ISSUER, "ca") == ("False", "BundleRejected"), what
    # A key that is not there was signed for all the same: as any other blob that is none, it ends the question.
    desk.hand_over(replace(good, blob=b""))
    desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "UnwrapFailed")
    assert desk.keys() == []


def test_k13_labels_reach_the_question(desk: Desk) -> None:
    """Those of the issuer, so that who looks for a team's objects finds it; its own are not to be taken over."""
    uid = desk.issuer(labels={"team": "payments", "attestation.itl.io/issuer-uid": "another"})["metadata"][
        "uid"
    ]
    desk.settle()
    labels = desk.quote()["metadata"]["labels"]
    assert labels["team"] == "payments"
    assert uid in labels.values()
    assert "another" not in labels.values()
