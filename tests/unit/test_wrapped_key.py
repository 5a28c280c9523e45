"""A private key wrapped to a TPM's RSA key (compatibility, R10): what opens, and what never does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from attestation.envelope import EnvelopeNotForUs, WrappedKey, unwrap_key, wrap_key
from attestation.errors import MalformedEvidence

MACHINE = "7a0e3c1e-6a43-4c5b-9d0a-000000000001"
SERIAL = "3f" * 20
OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


@cache
def recipient() -> rsa.RSAPrivateKey:
    """The TPM's key, of the smallest size that there is."""
    return rsa.generate_private_key(65537, 2048)


@cache
def made() -> bytes:
    """The key on its way."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


@cache
def wrapped() -> WrappedKey:
    """The key, wrapped."""
    return wrap_key(made(), to=recipient().public_key(), machine_id=MACHINE, serial=SERIAL)


def opened() -> bytes:
    """The AES key, as TPM2_RSA_Decrypt yields it."""
    return recipient().decrypt(wrapped().wrapped_key, OAEP)


def test_a_p384_key_goes_through_an_rsa_2048_key() -> None:
    """Whatever its size: OAEP carries the AES key only."""
    assert unwrap_key(wrapped(), opened(), machine_id=MACHINE, serial=SERIAL) == made()
    assert len(wrapped().wrapped_key) == 256
    assert made() not in wrapped().ciphertext


def test_the_additional_data_is_written_down() -> None:
    """Who reads the protocol page alone can open it: format, machine and serial, a line each."""
    data = f"itl-server-key-v1\n{MACHINE}\n{SERIAL}\n".encode()
    assert AESGCM(opened()).decrypt(wrapped().iv, wrapped().ciphertext, data) == made()


def test_longer_keys_go_too() -> None:
    """The seed wrapped the PEM itself, and 288 bytes do not fit into 190."""
    long = bytes(2400)
    sent = wrap_key(long, to=recipient().public_key(), machine_id=MACHINE, serial=SERIAL)
    key = recipient().decrypt(sent.wrapped_key, OAEP)
    assert unwrap_key(sent, key, machine_id=MACHINE, serial=SERIAL) == long


def test_every_wrapping_is_fresh() -> None:
    """Key and IV are never used twice."""
    again = wrap_key(made(), to=recipient().public_key(), machine_id=MACHINE, serial=SERIAL)
    assert again.iv != wrapped().iv
    assert recipient().decrypt(again.wrapped_key, OAEP) != opened()


@pytest.mark.parametrize(
    ("machine", "serial"), [(MACHINE[:-1] + "2", SERIAL), (MACHINE, "3e" + SERIAL[2:]), (SERIAL, MACHINE)]
)
def test_it_is_for_one_machine_and_certificate(machine: str, serial: str) -> None:
    """It cannot pass for the key of another certificate."""
    with pytest.raises(EnvelopeNotForUs):
        unwrap_key(wrapped(), opened(), machine_id=machine, serial=serial)


@pytest.mark.threat("T109")
@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from(["iv", "ciphertext", "key"]))
def test_no_flipped_bit_opens(where: int, bit: int, part: str) -> None:
    """Whatever was changed, nothing comes out."""
    data = bytearray({"iv": wrapped().iv, "ciphertext": wrapped().ciphertext, "key": opened()}[part])
    data[where % len(data)] ^= 1 << bit
    key = bytes(data) if part == "key" else opened()
    changed = wrapped() if part == "key" else replace(wrapped(), **{part: bytes(data)})
    with pytest.raises(EnvelopeNotForUs):
        unwrap_key(changed, key, machine_id=MACHINE, serial=SERIAL)


@pytest.mark.parametrize(
    ("key_bytes", "iv_bytes", "ciphertext_bytes"), [(16, 12, 16), (32, 11, 16), (32, 12, 15)]
)
def test_lengths(key_bytes: int, iv_bytes: int, ciphertext_bytes: int) -> None:
    """Other lengths are malformed, never tried."""
    wrong = WrappedKey(wrapped_key=b"", iv=bytes(iv_bytes), ciphertext=bytes(ciphertext_bytes))
    with pytest.raises(MalformedEvidence, match="wrong length"):
        unwrap_key(wrong, bytes(key_bytes), machine_id=MACHINE, serial=SERIAL)
