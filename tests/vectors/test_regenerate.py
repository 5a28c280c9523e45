"""The vectors carried by the project are what their script says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attestation.node_csr import verify_csr
from tests.unit.appraisal.node_csr_kit import AT
from tests.vectors import OWN, node_csr
from tests.vectors.node_csr.swtpm import regenerate as make_requests
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


@pytest.mark.swtpm
def test_a_tpm_makes_the_requests_of_nodes_anew(tmp_path: Path) -> None:
    """Another TPM makes other bytes, under the same names, and the same is said of each."""
    made = make_requests.contents(tmp_path / "tpm")
    kept = {path.name for path in node_csr.FOLDER.iterdir() if path.suffix in (".pem", ".json")}
    assert made.keys() == kept
    index = json.loads(made["index.json"])
    assert index["fixtures"] == node_csr.index()["fixtures"]
    for name, facts in index["fixtures"].items():
        data = made[facts.get("file", f"{name}.pem")]
        result = verify_csr(data, node_csr.case_of(name, index), AT)
        assert result.reason == facts["reason"], (name, result.outcomes[-1])
