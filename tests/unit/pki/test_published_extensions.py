"""Extensions by which Intel's issuer carries evidence in requests: they come into no certificate (§12)."""

from __future__ import annotations

from cryptography import x509
from cryptography.x509 import ObjectIdentifier

from attestation.pki.leaf import make_leaf
from tests.unit.pki.leaf_kit import SERIAL, csr, hsm_ca, judged

ARC = "1.3.6.1.4.1.54392.5"


def test_evidence_in_a_request_is_not_copied() -> None:
    """Quote, public key and nonce: whoever reads the certificate would take them for what the CA says."""
    theirs = [
        x509.UnrecognizedExtension(ObjectIdentifier(f"{ARC}.{last}"), b"\x0c\x04AAAA")
        for last in (1283, 1284, 1547)
    ]
    ca, key = hsm_ca()
    made = x509.load_der_x509_certificate(make_leaf(judged(csr(*theirs)), serial=SERIAL, ca=ca, key=key))
    assert not [each.oid for each in made.extensions if each.oid.dotted_string.startswith(ARC)]
