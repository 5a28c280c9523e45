"""Keys in an HSM, by the certificate of the device: each step, what is malformed, and what proves nothing."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.path import CertificateIndex
from attestation.errors import (
    AttestationError,
    KeyCertificationRejected,
    KeyNotResident,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.evidence import hsm_key
from attestation.evidence.hsm_key import PROOF, HSMKeyClaims
from attestation.wire import tlv, u32
from attestation_testing import yubihsm
from attestation_testing.yubihsm import DECRYPT_OAEP, ECDSA_SHA384, EXPORTABLE, SIGN_ECDSA, Device, statement

AT = datetime(2026, 11, 21, tzinfo=UTC)
DEVICE = Device()
ROOTS = CertificateIndex([parse_certificate(DEVICE.root)])
KEY = ec.derive_private_key(77, ec.SECP384R1())
OTHER = ec.derive_private_key(78, ec.SECP384R1())
BINDING = b"b" * 64


def evidence(*, key: Any = KEY, signer: Any = None, signed: bytes = PROOF + BINDING, **said: Any) -> bytes:
    """Return good evidence, but for what is said."""
    return statement(DEVICE.certificate(key.public_key(), **said), signer or key, signed)


GOOD = evidence()


def verified(data: bytes = GOOD, **changes: Any) -> HSMKeyClaims:
    """Verify evidence, with *changes* of what is expected."""
    good: dict[str, Any] = {
        "anchors": ROOTS,
        "chain": DEVICE.chain,
        "binding": BINDING,
        "spki": yubihsm.spki(KEY),
        "at": AT,
    }
    return hsm_key.verify(hsm_key.parse(data), **(good | changes))


def test_what_a_device_says_of_a_key() -> None:
    """Who made the device, which it is, and that the key was made there and stays."""
    assert verified().shown == {
        "vendor": "Common Name: Maker YubiHSM Root CA",
        "hwserial": "7150001",
        "fwversion": "2.4.1",
        "identifier": "0x0024",
        "label": "itl-ca",
        "domains": [1, 3],
        "extractable": False,
        "sensitive": True,
        "never_extractable": True,
        "local": True,
        "purpose": ["sign"],
    }
    assert verified().spki == yubihsm.spki(KEY)


def test_1_a_certificate_of_a_ca() -> None:
    """It is no key object's: whoever has such a key certifies others."""
    with pytest.raises(KeyCertificationRejected, match="not one that a device makes"):
        verified(evidence(ca=True))


def test_2_no_path_to_the_maker() -> None:
    """Another maker, no chain, no root, a certificate that ended; and one by a key that may certify nothing."""
    stranger = Device(maker="Somebody", seed=900)
    for changes in (
        {"anchors": CertificateIndex([parse_certificate(stranger.root)])},
        {"anchors": CertificateIndex([])},
        {"chain": ()},
        {"at": yubihsm.END + timedelta(days=1)},
    ):
        with pytest.raises(KeyCertificationRejected, match="no root of the maker"):
            verified(**changes)
    forged = statement(stranger.certificate(KEY.public_key()), KEY, PROOF + BINDING)
    with pytest.raises(KeyCertificationRejected, match="no root of the maker"):
        verified(forged, chain=(*DEVICE.chain, *stranger.chain))


def test_2_an_extension_that_nobody_knows() -> None:
    """One that must be understood may mean anything: that the key is revoked, or for something else."""
    with pytest.raises(KeyCertificationRejected, match="unknown critical extension"):
        verified(evidence(e99=tlv(5, b"")))


def test_2_a_certified_key_certifies_nothing() -> None:
    """A key object whose private half is elsewhere signs certificates that nobody believes."""
    middle = DEVICE.certificate(OTHER.public_key())
    below = DEVICE._certified(
        "YubiHSM Attestation id:0x0025",
        KEY.public_key(),
        "YubiHSM Attestation id:0x0024",
        OTHER,
        ca=False,
        more=yubihsm.extensions(),
    )
    with pytest.raises(KeyCertificationRejected, match="no root of the maker"):
        verified(statement(below, KEY, PROOF + BINDING), chain=(middle, *DEVICE.chain))


def test_3_another_key() -> None:
    """The certificate is good, and about another key than is asked about."""
    with pytest.raises(KeyCertificationRejected, match="not the key"):
        verified(spki=yubihsm.spki(OTHER))


def test_4_the_key_says_so_now() -> None:
    """By itself, for this question, under the words that mean it; an empty binding is none."""
    for data in (
        evidence(signer=OTHER),
        evidence(signed=BINDING),
        evidence(signed=PROOF + b"c" * 64),
    ):
        with pytest.raises(SignatureInvalid):
            verified(data)
    with pytest.raises(SignatureInvalid, match="nothing is bound"):
        verified(evidence(signed=PROOF), binding=b"")


def test_4_a_key_that_is_weak() -> None:
    """No key that we would certify vouches for anything."""
    weak = rsa.generate_private_key(3, 2048)
    certificate = DEVICE.certificate(weak.public_key())
    data = b"".join(u32(len(part)) + part for part in (certificate, ECDSA_SHA384, b"s"))
    with pytest.raises(KeyCertificationRejected, match="the key: RSA exponent"):
        verified(data, spki=yubihsm.spki(weak))


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"origin": yubihsm.IMPORTED}, "imported"),
        ({"origin": yubihsm.IMPORTED_WRAPPED}, "imported under wrap"),
        ({"origin": yubihsm.GENERATED | yubihsm.IMPORTED_WRAPPED}, "of origin 0x11"),
        ({"origin": 0}, "of origin 0x00"),
        ({"capabilities": SIGN_ECDSA | EXPORTABLE}, "exportable"),
    ],
)
def test_5_a_key_that_has_been_elsewhere_or_may_leave(said: dict[str, Any], word: str) -> None:
    """It is refused, and how it stands is said in a word."""
    with pytest.raises(KeyNotResident) as refused:
        verified(evidence(**said))
    assert refused.value.computed == word


def test_what_a_key_may_do() -> None:
    """In the words of PKCS#11, by the device's bits."""
    several = hsm_key.parse(evidence(capabilities=DECRYPT_OAEP | 1 << 11 | EXPORTABLE)).said
    assert (several.purposes, several.extractable) == (("decrypt", "derive"), True)
    assert hsm_key.parse(evidence(capabilities=0)).said.purposes == ()


@pytest.mark.parametrize(
    "changed",
    [{f"e{number}": None} for number in (1, 2, 3, 4, 5, 6, 9)]
    + [
        {"e1": tlv(4, b"\x02\x04")},
        {"e1": tlv(2, b"\x02\x04\x01")},
        {"e2": tlv(2, b"")},
        {"e2": tlv(2, b"\xff")},
        {"e2": tlv(2, b"\x01" + bytes(8))},
        {"e2": tlv(2, bytes(10))},
        {"e3": tlv(3, b"\0\1\0")},
        {"e3": tlv(3, b"")},
        {"e4": tlv(3, b"\0\1")},
        {"e5": tlv(3, b"\1" + bytes(8))},
        {"e5": tlv(3, b"\0" + bytes(8)) + b"\0"},
        {"e6": tlv(2, b"\1\0\0")},
        {"e9": tlv(12, b"l" * 41)},
        {"e9": tlv(12, b"\xff")},
    ],
)
def test_a_certificate_that_says_too_little_or_something_else(changed: dict[str, Any]) -> None:
    """Each of the seven extensions is there, in its form: one that is missing is no zero."""
    with pytest.raises(MalformedEvidence):
        hsm_key.parse(evidence(**changed))


def test_what_is_no_evidence() -> None:
    """Other lengths, something behind, no certificate, no signature, no algorithm."""
    certificate = DEVICE.certificate(KEY.public_key())

    def parts(*each: bytes) -> bytes:
        return b"".join(u32(len(part)) + part for part in each)

    for data in (
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        parts(certificate + b"\0", ECDSA_SHA384, b"s"),
        parts(certificate, ECDSA_SHA384, b""),
        parts(certificate, ECDSA_SHA384, b"s" * 8193),
        parts(certificate, b"", b"s"),
        parts(b"", ECDSA_SHA384, b"s"),
    ):
        with pytest.raises(MalformedEvidence):
            hsm_key.parse(data)


@given(st.binary(max_size=600))
def test_parsing_fails_in_one_way_only(data: bytes) -> None:
    """Whatever arrives: a statement, or MalformedEvidence."""
    with contextlib.suppress(MalformedEvidence):
        hsm_key.parse(data)


@given(st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_is_accepted(where: int, bit: int) -> None:
    """Evidence with any bit changed proves nothing: of the certificate, of the algorithm, of the signature."""
    data = bytearray(GOOD)
    data[where % len(data)] ^= 1 << bit
    with pytest.raises(AttestationError):
        verified(bytes(data))
