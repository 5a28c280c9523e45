"""The vectors carried by the project are what their script says."""

from __future__ import annotations

import json

from tests.vectors import OWN
from tests.vectors.tpm.own import regenerate


def test_every_file_is_what_the_script_writes() -> None:
    """No vector was edited by hand, none is left over, none is missing."""
    found = {
        path.relative_to(OWN).as_posix(): path.read_bytes()
        for path in OWN.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".md", ".pyc") and path.name != "keys.json"
    }
    assert found == regenerate.contents()


def test_keys_are_of_their_sizes() -> None:
    """Each RSA key has two primes of half its size: the seeded generator is too slow to run in every test."""
    for label, primes in json.loads((OWN / "keys.json").read_text()).items():
        p, q = (int(text, 16) for text in primes)
        assert (p * q).bit_length() == int(label.rpartition("rsa")[2])
        assert pow(2, p - 1, p) == 1
        assert pow(2, q - 1, q) == 1
