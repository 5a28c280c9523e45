"""Revocation lists and responders: the service says what is due, the token signs it (HSM-AND-KUBERNETES §8)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from attestation.api.hsm import HSMListEntry
from attestation.pki.crl import Reason
from attestation.wire import b64decode, b64encode
from attestation_operator.errors import AnswerInvalid
from attestation_operator.hsm.lists import crl_reason, keep_list, keep_responder
from tests.unit.operator.hsm.test_issuance import Thread, there
from tests.unit.operator.hsm.world import authority, ca_pem, known


def test_a_list_that_is_due_is_signed_with_what_the_service_says() -> None:
    """Number, times and entries are the service's; the signature is the CA's. Where nothing is due nothing is made."""
    log, thread = there(), Thread()
    log.revoked = [
        HSMListEntry(serial="11" * 20, at=datetime(2026, 11, 26, tzinfo=UTC), reason="keyCompromise")
    ]
    assert asyncio.run(keep_list(authority(), log, thread, newest=0, at=datetime.now(UTC))) == 1
    crl = x509.load_der_x509_crl(b64decode(log.lists[known().issuer_id], "it"))
    ca = x509.load_pem_x509_certificate(ca_pem().encode())
    assert crl.is_signature_valid(ca.public_key())  # type: ignore[arg-type]  # P-384
    [entry] = crl
    assert entry.serial_number == int("11" * 20, 16)
    assert entry.extensions.get_extension_for_class(x509.CRLReason).value.reason.name == "key_compromise"
    assert asyncio.run(keep_list(authority(), log, thread, newest=1, at=datetime.now(UTC))) is None
    assert log.asked.count("put_list") == 1


def test_the_responder_of_the_service_is_certified_once() -> None:
    """Its key signed the request; the certificate is for OCSP alone, and nobody asks whether it is revoked."""
    log, thread = there(), Thread()
    key = ec.generate_private_key(ec.SECP384R1())
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA384())
    log.responder_request = b64encode(request.public_bytes(Encoding.DER))
    for _ in range(2):
        asyncio.run(keep_responder(authority(), log, thread, at=datetime.now(UTC)))
    assert log.asked.count("put_responder") == 1
    made = x509.load_der_x509_certificate(b64decode(log.responders[known().issuer_id], "it"))
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem().encode()))
    assert made.public_key() == key.public_key()
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.OCSP_SIGNING]
    assert made.extensions.get_extension_for_class(x509.OCSPNoCheck).value == x509.OCSPNoCheck()


def test_a_list_that_is_not_newer_than_the_one_that_is_published_is_not_signed() -> None:
    """What was revoked since would be good again."""
    log, thread = there(), Thread()
    with pytest.raises(AnswerInvalid):
        asyncio.run(keep_list(authority(), log, thread, newest=1, at=datetime.now(UTC)))
    assert log.lists == {}


def test_reasons_are_those_of_the_list_and_no_word_is_guessed() -> None:
    """A key that was compromised would stand there as one that was given up."""
    assert crl_reason("keyCompromise") is Reason.KEY_COMPROMISE
    assert crl_reason("certificateHold") is Reason.CERTIFICATE_HOLD
    for word in ("key-compromise", "KEY_COMPROMISE", "whatever", ""):
        with pytest.raises(AnswerInvalid):
            crl_reason(word)
