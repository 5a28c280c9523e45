"""The sealed envelope: what opens, and what never does (N97, N98 at the level of bytes)."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from attestation.envelope import (
    FORMAT,
    Envelope,
    EnvelopeNotForUs,
    SubjectEnvelope,
    open_envelope,
    open_with_subject,
    seal,
    seal_to_subject,
    subject_key,
    subject_name,
)
from attestation.errors import MalformedEvidence
from attestation.tpm import Public, parse_public
from attestation.tpm.credential import unwrap_identity
from attestation.wire import Reader
from tests.vectors import forge

MACHINE = "7a0e3c1e-6a43-4c5b-9d0a-000000000001"
TOKEN = "0011223344556677"
CONFIG = b"version: v1alpha1\nmachine:\n  token: secret\n"
NAME = forge.AKS["p256"].name


def sealed(template: str = "L-2", *, name: bytes = NAME, config: bytes = CONFIG) -> Envelope:
    ek = parse_public(forge.ek_public(template))
    return seal(config, ek=ek, ak_name=name, machine_id=MACHINE, token_id=TOKEN)


def activate(envelope: Envelope, template: str = "L-2", name: bytes = NAME, key: object = None) -> bytes:
    """Do what TPM2_ActivateCredential does, with the private half of our EK."""
    ek = parse_public(forge.ek_public(template))
    key = key or forge.private(forge.EK_TEMPLATE_FIELDS[template][0])
    reader = Reader(envelope.encrypted_secret, "secret")
    return unwrap_identity(ek, _seed(ek, key, reader.sized()), name, envelope.credential_blob)


def _seed(ek: Public, key: object, body: bytes) -> bytes:
    hashed = forge.crypto(ek.name_alg)
    if isinstance(key, rsa.RSAPrivateKey):
        return key.decrypt(body, padding.OAEP(padding.MGF1(hashed), hashed, b"IDENTITY\0"))
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    point = Reader(body, "point")
    x, y = point.sized(), point.sized()
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, b"\4" + x + y)
    info = b"IDENTITY\0" + x + ek.x
    return ConcatKDFHash(hashed, hashed.digest_size, info).derive(key.exchange(ec.ECDH(), theirs))


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_the_right_tpm_opens_it(template: str) -> None:
    """Seal to every template, activate, open: the plaintext."""
    envelope = sealed(template)
    assert open_envelope(envelope, activate(envelope, template), machine_id=MACHINE) == CONFIG
    assert envelope.config_sha256 == hashlib.sha256(CONFIG).hexdigest()
    assert CONFIG not in envelope.ciphertext


def test_the_additional_data_is_the_protocols() -> None:
    """Format, machine, token and digest, each with a line end: opened by the text of PROTOCOL §5."""
    envelope = sealed()
    data = f"ek-aes256gcm-v2\n{MACHINE}\n{TOKEN}\n{envelope.config_sha256}\n".encode()
    assert AESGCM(activate(envelope)).decrypt(envelope.iv, envelope.ciphertext, data) == CONFIG
    assert FORMAT == "ek-aes256gcm-v2"


def test_nothing_is_used_twice() -> None:
    """Key, IV and seed are fresh for every envelope."""
    first, second = sealed(), sealed()
    assert activate(first) != activate(second)
    assert first.iv != second.iv
    assert first.ciphertext != second.ciphertext
    assert len(first.iv) == 12
    assert len(activate(first)) == 32


@pytest.mark.parametrize("config", [b"", b"x", bytes(1 << 20)])
def test_any_size(config: bytes) -> None:
    """The tag of 16 bytes is appended."""
    envelope = sealed(config=config)
    assert len(envelope.ciphertext) == len(config) + 16
    assert open_envelope(envelope, activate(envelope), machine_id=MACHINE) == config


def test_n97_another_ak_or_another_tpm() -> None:
    """The credential opens for neither: the key is never recovered."""
    envelope = sealed()
    for name in (forge.AKS["p384"].name, NAME[:-1] + bytes([NAME[-1] ^ 1])):
        with pytest.raises(MalformedEvidence, match="integrity"):
            activate(envelope, name=name)
    with pytest.raises(MalformedEvidence, match="integrity"):
        activate(envelope, key=forge.private("other-ek-p256"))


def test_n97_another_key() -> None:
    """A key of another envelope, or one bit beside: refused."""
    envelope = sealed()
    key = activate(envelope)
    for wrong in (activate(sealed()), bytes(32), bytes([key[0] ^ 1]) + key[1:]):
        with pytest.raises(EnvelopeNotForUs):
            open_envelope(envelope, wrong, machine_id=MACHINE)


def test_n97_another_machine() -> None:
    """An envelope for another machine is refused before its key is tried, and so is one relabelled to us."""
    envelope = sealed()
    key = activate(envelope)
    other = MACHINE[:-1] + "2"
    with pytest.raises(EnvelopeNotForUs, match="another machine"):
        open_envelope(envelope, key, machine_id=other)
    with pytest.raises(EnvelopeNotForUs, match="does not open"):
        open_envelope(replace(envelope, machine_id=other), key, machine_id=other)


@pytest.mark.parametrize("field", ["iv", "ciphertext"])
def test_n98_no_flipped_bit(field: str) -> None:
    """Every single bit of IV, ciphertext and tag, exhaustively."""
    envelope = sealed()
    key = activate(envelope)
    good: bytes = getattr(envelope, field)
    for at in range(8 * len(good)):
        changed = bytearray(good)
        changed[at // 8] ^= 1 << at % 8
        wrong = (
            replace(envelope, iv=bytes(changed))
            if field == "iv"
            else replace(envelope, ciphertext=bytes(changed))
        )
        with pytest.raises(EnvelopeNotForUs):
            open_envelope(wrong, key, machine_id=MACHINE)


@pytest.mark.parametrize(
    ("token", "digest"),
    [
        (TOKEN[:-1] + "8", None),
        ("", None),
        (TOKEN + "\n", None),
        (TOKEN, "0" * 64),
        (TOKEN, ""),
        (TOKEN, "\ud800"),
        ("\ud800", None),
        (f"{TOKEN}\n{hashlib.sha256(CONFIG).hexdigest()}", ""),
    ],
)
def test_n98_fields_of_the_additional_data(token: str, digest: str | None) -> None:
    """Token id and digest are bound, and text that has no bytes is a refusal like any other."""
    envelope = sealed()
    wrong = replace(
        envelope, token_id=token, config_sha256=envelope.config_sha256 if digest is None else digest
    )
    with pytest.raises(EnvelopeNotForUs):
        open_envelope(wrong, activate(envelope), machine_id=MACHINE)


def test_n98_a_digest_that_was_sealed_wrongly() -> None:
    """The tag holds, the announced digest does not: nothing leaves."""
    envelope = sealed()
    key = activate(envelope)
    lie = "0" * 64
    data = f"{FORMAT}\n{MACHINE}\n{TOKEN}\n{lie}\n".encode()
    forged = replace(envelope, config_sha256=lie, ciphertext=AESGCM(key).encrypt(envelope.iv, CONFIG, data))
    with pytest.raises(EnvelopeNotForUs, match="announced"):
        open_envelope(forged, key, machine_id=MACHINE)


@pytest.mark.parametrize(
    ("key_bytes", "iv_bytes", "ciphertext_bytes"),
    [
        (16, 12, 16),
        (0, 12, 16),
        (33, 12, 16),
        (32, 11, 16),
        (32, 0, 16),
        (32, 13, 16),
        (32, 12, 15),
        (32, 12, 0),
    ],
)
def test_lengths(key_bytes: int, iv_bytes: int, ciphertext_bytes: int) -> None:
    """AES-128 keys, other IVs and cut tags are malformed, never tried."""
    wrong = replace(sealed(), iv=bytes(iv_bytes), ciphertext=bytes(ciphertext_bytes))
    with pytest.raises(MalformedEvidence, match="wrong length"):
        open_envelope(wrong, bytes(key_bytes), machine_id=MACHINE)


@pytest.mark.parametrize("symmetric", [b"\x00\x10", b"\x00\x13\x00\x80\x00\x43"])
def test_what_cannot_be_sealed_to_gets_nothing(symmetric: bytes) -> None:
    """An error, never plaintext."""
    ek = parse_public(forge.ek_public("L-2", symmetric=symmetric))
    with pytest.raises(MalformedEvidence):
        seal(CONFIG, ek=ek, ak_name=NAME, machine_id=MACHINE, token_id=TOKEN)


# To a subject key, without a TPM (PROTOCOL §9)


def _subject() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    return key, key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_to_a_subject_key_and_back() -> None:
    """By the key alone that it was sealed to, and each time anew."""
    key, spki = _subject()
    sealed = seal_to_subject(b"secret", spki=spki, machine_id="m", token_id="t")
    assert open_with_subject(sealed, key, machine_id="m") == b"secret"
    assert seal_to_subject(b"secret", spki=spki, machine_id="m", token_id="t").epk != sealed.epk
    with pytest.raises(EnvelopeNotForUs):
        open_with_subject(sealed, _subject()[0], machine_id="m")
    with pytest.raises(EnvelopeNotForUs):
        open_with_subject(sealed, key, machine_id="other")
    assert len(subject_name(spki)) == 48


def test_it_is_made_as_the_protocol_says() -> None:
    """Opened by the words of PROTOCOL §9, step by step."""
    key, spki = _subject()
    sealed = seal_to_subject(b"secret", spki=spki, machine_id="m", token_id="t")
    aad = f"tee-p384-aes256gcm-v1\nm\nt\n{sealed.config_sha256}\n".encode()
    epk = load_der_public_key(sealed.epk)
    assert isinstance(epk, ec.EllipticCurvePublicKey)
    shared = key.exchange(ec.ECDH(), epk)
    extracted = hmac.digest(b"", shared, "sha384")
    agreed = hmac.digest(extracted, aad + b"\x01", "sha384")[:32]
    assert AESGCM(agreed).decrypt(sealed.iv, sealed.ciphertext, aad) == b"secret"


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"token_id": "u"}, EnvelopeNotForUs),
        ({"config_sha256": "00" * 32}, EnvelopeNotForUs),
        ({"ciphertext": bytes(22)}, EnvelopeNotForUs),
        ({"iv": bytes(12)}, EnvelopeNotForUs),
        ({"iv": bytes(11)}, MalformedEvidence),
        ({"ciphertext": bytes(15)}, MalformedEvidence),
        ({"epk": b"x"}, MalformedEvidence),
        ({"epk": _subject()[1]}, EnvelopeNotForUs),
    ],
)
def test_what_was_changed_does_not_open(changed: dict[str, Any], error: type[Exception]) -> None:
    """Any member; what has no form is malformed."""
    key, spki = _subject()
    sealed = seal_to_subject(b"secret", spki=spki, machine_id="m", token_id="t")
    with pytest.raises(error):
        open_with_subject(replace(sealed, **changed), key, machine_id="m")


def test_what_was_announced_otherwise_does_not_leave() -> None:
    """Good under the key, but of another digest than the additional data name."""
    key, spki = _subject()
    ephemeral, epk = _subject()
    aad = b"tee-p384-aes256gcm-v1\nm\nt\nother\n"
    peer = load_der_public_key(spki)
    assert isinstance(peer, ec.EllipticCurvePublicKey)
    extracted = hmac.digest(b"", ephemeral.exchange(ec.ECDH(), peer), "sha384")
    agreed = hmac.digest(extracted, aad + b"\x01", "sha384")[:32]
    sealed = SubjectEnvelope(
        machine_id="m",
        token_id="t",
        epk=epk,
        iv=bytes(12),
        ciphertext=AESGCM(agreed).encrypt(bytes(12), b"secret", aad),
        config_sha256="other",
    )
    with pytest.raises(EnvelopeNotForUs, match="announced"):
        open_with_subject(sealed, key, machine_id="m")


@pytest.mark.parametrize("how", ["no key", "RSA", "P-256", "trailing", "compressed"])
def test_what_is_no_subject_key(how: str) -> None:
    """P-384, in the one form that names it: another spelling would have another name."""
    key, spki = _subject()
    x_y = key.public_key().public_numbers()
    compressed = bytes.fromhex("3046301006072a8648ce3d020106052b81040022033200") + bytes([2 + x_y.y % 2])
    rsa_key = rsa.generate_private_key(65537, 2048).public_key()
    given = {
        "no key": b"x",
        "RSA": rsa_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "P-256": ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "trailing": spki + b"\0",
        "compressed": compressed + x_y.x.to_bytes(48),
    }[how]
    with pytest.raises(MalformedEvidence):
        subject_key(given)
