"""Attestation objects of ACME clients: taken apart strictly, and bound to a key authorization."""

from __future__ import annotations

import contextlib
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import KeyCertificationRejected, MalformedEvidence
from attestation.evidence import webauthn_tpm
from attestation.tpm import Alg
from attestation.wire import sized, u16
from tests.fixtures.acme_client import attestation_object, cbor

PUBLIC, INFO = b"public", b"info"


def signature(scheme: int = Alg.ECDSA, hash_alg: int = Alg.SHA256) -> bytes:
    """Return a TPMT_SIGNATURE of that kind."""
    values = (b"r" * 32, b"s" * 32) if scheme == Alg.ECDSA else (b"x" * 256,)
    return u16(scheme) + u16(hash_alg) + b"".join(map(sized, values))


def sent(**changes: Any) -> bytes:
    """Return an object with *changes* in its statement; None leaves a member out."""
    statement = {"alg": -7, "sig": signature(), "certInfo": INFO, "pubArea": PUBLIC} | changes
    return attestation_object({k: v for k, v in statement.items() if v is not None})


def certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate of *key* by itself, DER."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ak")])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, at, at + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("alg", "scheme", "hash_alg", "name"),
    [
        (-7, Alg.ECDSA, Alg.SHA256, "sha256"),
        (-35, Alg.ECDSA, Alg.SHA384, "sha384"),
        (-36, Alg.ECDSA, Alg.SHA512, "sha512"),
        (-257, Alg.RSASSA, Alg.SHA256, "sha256"),
        (-258, Alg.RSASSA, Alg.SHA384, "sha384"),
        (-259, Alg.RSASSA, Alg.SHA512, "sha512"),
        (-37, Alg.RSAPSS, Alg.SHA256, "sha256"),
        (-38, Alg.RSAPSS, Alg.SHA384, "sha384"),
        (-39, Alg.RSAPSS, Alg.SHA512, "sha512"),
    ],
)
def test_an_object_is_taken_apart(alg: int, scheme: int, hash_alg: int, name: str) -> None:
    """Its parts are those of a certification; what is signed over is hashed as the COSE algorithm says."""
    found = webauthn_tpm.parse(sent(alg=alg, sig=signature(scheme, hash_alg)))
    assert (found.public, found.certify_info, found.hash_name) == (sized(PUBLIC), INFO, name)
    assert found.signature == signature(scheme, hash_alg)
    assert webauthn_tpm.binding(found, "token.thumbprint") == hashlib.new(name, b"token.thumbprint").digest()


def test_what_a_browser_would_add_is_passed_over() -> None:
    """The draft recommends to leave `authData` out; some clients do not."""
    plain = webauthn_tpm.parse(sent())
    statement = {"alg": -7, "sig": signature(), "certInfo": INFO, "pubArea": PUBLIC}
    assert webauthn_tpm.parse(attestation_object(statement, authData=b"x" * 37)) == plain


def test_a_certificate_may_repeat_whose_key_it_is() -> None:
    """Without one nothing is compared; with one, the first is about the AK."""
    key, other = (ec.derive_private_key(n, ec.SECP256R1()) for n in (5, 6))
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    webauthn_tpm.demand_ak(webauthn_tpm.parse(sent()), spki)
    found = webauthn_tpm.parse(sent(x5c=[certificate(key), certificate(other)]))
    webauthn_tpm.demand_ak(found, spki)
    with pytest.raises(KeyCertificationRejected):
        webauthn_tpm.demand_ak(webauthn_tpm.parse(sent(x5c=[certificate(other)])), spki)


STATEMENT = {"ver": "2.0", "alg": -7, "sig": signature(), "certInfo": INFO, "pubArea": PUBLIC}
WHOLE = {"fmt": "tpm", "attStmt": STATEMENT}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        cbor([]),
        cbor({"fmt": "tpm"}),
        cbor(WHOLE | {"more": 1}),
        cbor(WHOLE | {"fmt": "packed"}),
        cbor(WHOLE | {"fmt": ["tpm"]}),
        cbor(WHOLE | {"attStmt": []}),
        cbor(WHOLE | {"attStmt": STATEMENT | {"ecdaaKeyId": b""}}),
        sent(sig=None),
        sent(ver="1.2"),
        sent(alg=-65535),
        sent(alg="ES256"),
        sent(alg=[-7]),
        sent(alg=-35),
        sent(alg=-257),
        sent(sig=signature(hash_alg=Alg.SHA384)),
        sent(sig="text"),
        sent(sig=b""),
        sent(certInfo=1),
        sent(pubArea=b"x" * 4097),
        sent(x5c=b"der"),
        sent(x5c=[]),
        sent(x5c=[b""] * 5),
        sent(x5c=["der"]),
        sent(x5c=[b"not der"]),
        sent() + b"\0",
        sent() + bytes(webauthn_tpm.MAX_OBJECT_BYTES),
        cbor(WHOLE)[:-1],
        # A member twice; a length that could be shorter; without a length.
        b"\xa3" + cbor(WHOLE)[1:] + cbor("fmt") + cbor("tpm"),
        b"\xb8\x02" + cbor(WHOLE)[1:],
        b"\xbf" + cbor(WHOLE)[1:] + b"\xff",
        b"\x81" * 12000 + b"\0",
        b"\xd8\x1d\x00",
    ],
    ids=lambda data: data[:12].hex(),
)
def test_anything_else_is_malformed(data: bytes) -> None:
    """One error, whatever is wrong."""
    with pytest.raises(MalformedEvidence):
        webauthn_tpm.parse(data)


def test_no_value_is_made_that_stands_in_many_places() -> None:
    """Each list names the one before it twice: two hundred bytes, a million times as many once written again."""
    lists = [b"\xd8\x1c\x80", *(b"\xd8\x1c\x82" + 2 * (b"\xd8\x1d" + bytes([n])) for n in range(20))]
    shared = bytes([0x80 + 21]) + b"".join(lists)
    with pytest.raises(MalformedEvidence, match="a tag"):
        webauthn_tpm.parse(b"\xa3" + cbor(WHOLE)[1:] + cbor("authData") + shared)


VALUES = st.recursive(
    st.integers(-(2**32), 2**32 - 1) | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["fmt", "attStmt", *STATEMENT, "x5c"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(member=st.sampled_from([*STATEMENT, "x5c"]), value=VALUES)
def test_no_value_in_a_member_is_anything_but_good_or_malformed(member: str, value: Any) -> None:
    """What a stranger writes there ends as one error, or is what was written."""
    with contextlib.suppress(MalformedEvidence):
        found = webauthn_tpm.parse(cbor(WHOLE | {"attStmt": STATEMENT | {member: value}}))
        assert found.public == sized(value if member == "pubArea" else PUBLIC)


@given(data=st.binary(max_size=64) | VALUES.map(cbor))
def test_no_bytes_are_anything_but_malformed(data: bytes) -> None:
    """Nothing that short is an object."""
    with pytest.raises(MalformedEvidence):
        webauthn_tpm.parse(data)
