"""Extensions by which Intel's issuer carries evidence in requests: they come into no certificate (§12)."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509 import ObjectIdentifier

from attestation.errors import RequestRefused
from tests.unit.pki.leaf_kit import csr, judged


@pytest.mark.parametrize("last", [1283, 1284, 1547])
def test_a_request_with_evidence_is_refused(last: int) -> None:
    """Quote, public key, nonce: a reader of the certificate would take them for what the CA says."""
    oid = f"1.3.6.1.4.1.54392.5.{last}"
    with pytest.raises(RequestRefused, match=oid):
        judged(csr(x509.UnrecognizedExtension(ObjectIdentifier(oid), b"\x0c\x04AAAA")))
