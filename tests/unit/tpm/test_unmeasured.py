"""PCR values that hold no measurement, in every bank; and that a measurement is none of them."""

from __future__ import annotations

import hashlib

import pytest

from attestation.errors import MalformedEvidence
from attestation.tpm import Alg
from attestation.tpm.unmeasured import measured, unmeasured_values
from attestation_testing import BootOptions, boot_log

HASHES = {Alg.SHA1: "sha1", Alg.SHA256: "sha256", Alg.SHA384: "sha384", Alg.SHA512: "sha512"}


def extended(alg: str, *texts: bytes, start: bytes | None = None) -> bytes:
    value = bytes(hashlib.new(alg).digest_size) if start is None else start
    for text in texts:
        value = hashlib.new(alg, value + hashlib.new(alg, text).digest()).digest()
    return value


@pytest.mark.parametrize(("bank", "alg"), HASHES.items())
def test_resets_and_lone_separators(bank: Alg, alg: str) -> None:
    """All zero, all FF, a locality, one separator of each kind, the operating system's own; nothing beyond."""
    size = hashlib.new(alg).digest_size
    found = unmeasured_values(bank)
    for value in (
        bytes(size),
        b"\xff" * size,
        bytes(size - 1) + b"\x03",
        extended(alg, bytes(4)),
        extended(alg, b"\xff" * 4),
        extended(alg, b"\x01\0\0\0"),
        extended(alg, b"WBCL"),
        extended(alg, bytes(4), b"os-separator"),
        extended(alg, bytes(4), start=bytes(size - 1) + b"\x04"),
        extended(alg, bytes(4), start=b"\xff" * size),
    ):
        assert value in found
    for value in (
        extended(alg, bytes(4), bytes(4)),
        extended(alg, b"something"),
        extended(alg, b"something", bytes(4)),
        bytes(size - 1) + b"\x01",
        b"",
    ):
        assert value not in found


def test_the_values_that_the_specification_names() -> None:
    """TPM.md §4.4: a separator alone, and the same in PCR 0 after StartupLocality 3."""
    for known in (
        "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
        "50bd7d88f0414b40608f8ffc56fd4f3201b5ed0644e36b8128d33624ebe0f053",
    ):
        assert bytes.fromhex(known) in unmeasured_values(Alg.SHA256)


def test_what_a_machine_measures() -> None:
    """Behind GRUB PCR 11 and 12 are as the TPM reset them; 2, 3 and 6 have a separator alone."""
    log = boot_log(BootOptions())
    assert set(measured(log.pcrs(), Alg.SHA256)) == {0, 1, 4, 5, 7, 8, 9, 14}


def test_a_hash_that_we_do_not_compute() -> None:
    """SM3 has values like these, too; nobody here can tell them."""
    with pytest.raises(MalformedEvidence):
        unmeasured_values(Alg.SM3_256)
