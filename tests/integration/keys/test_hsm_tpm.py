"""A TPM as the token of an issuer (swtpm): keys by label in files that only this TPM loads (§4)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from attestation.errors import KeyNotFound, KeyUnsupported, SignerUnavailable
from attestation.keys.care import TokenFacts
from attestation.pki.request import parse_csr
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec, IssuerSpec
from attestation_operator.hsm.authority import pem_of, proven_ca, self_signed
from attestation_operator.hsm.leaf_controller import of_token
from attestation_operator.hsm.leaf_objects import Ask, Seen
from attestation_operator.hsm.tokens import KeyName, Tokens
from attestation_testing import SoftwareTPM
from tests.unit.operator.hsm.leaf_world import OPEN, leaf
from tests.unit.operator.hsm.world import AT, SPEC

pytestmark = pytest.mark.swtpm
TOKEN = HardwareSecurityModuleSpec.model_validate({"module": "tpm0"})


def tokens(tpm: SoftwareTPM, folder: Path) -> Tokens:
    """Return the tokens of a controller."""
    return Tokens(modules={}, tpms={"tpm0": tpm.uri}, pin_dir=folder / "pins", tpm_keys_dir=folder / "keys")


def test_a_tpm_has_a_ca_key_of_p_384_and_no_other_kind(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """Made once, found again by a process that knows nothing of before, destroyed with its file."""
    with contextlib.closing(tokens(blank_tpm, tmp_path)) as first:
        facts = first.facts(TOKEN)
        assert isinstance(facts, TokenFacts)
        with pytest.raises(KeyNotFound):
            first.open(TOKEN, KeyName(label="uid-1"))
        for algorithm in ("rsa-4096", "ml-dsa-87"):
            with pytest.raises(KeyUnsupported):
                first.make(TOKEN, "uid-1", algorithm)
        made = first.make(TOKEN, "uid-1", "ecdsa-p384")
        assert made.origin == "tpm"
        assert first.test(TOKEN) is True
        pem = pem_of(self_signed(IssuerSpec.model_validate(SPEC), made, at=AT))
    with contextlib.closing(tokens(blank_tpm, tmp_path)) as second:
        found = second.open(TOKEN, KeyName(label="uid-1"))
        assert proven_ca(pem, found, at=AT, by_itself=True) is not None
        assert second.destroy(TOKEN, "uid-1")
        with pytest.raises(KeyNotFound):
            second.open(TOKEN, KeyName(label="uid-1"))


def test_a_tpm_has_leaf_keys(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """Made with a request, found again, and gone with the object: its URI names the file that only this TPM loads."""
    with contextlib.closing(tokens(blank_tpm, tmp_path)) as ours:
        pay = leaf(OPEN)
        made = of_token(ours, Ask.MAKE, pay, TOKEN)
        assert isinstance(made, Seen)
        assert made.algorithm == "ecdsa-p256"
        assert parse_csr(made.request).spki == made.spki
        assert made.uri.startswith("tpm2:path=")
        found = of_token(ours, Ask.KEY, pay, TOKEN)
        assert isinstance(found, Seen)
        assert (found.spki, found.uri) == (made.spki, made.uri)
        assert of_token(ours, Ask.DESTROY, pay, TOKEN) is True
        with pytest.raises(KeyNotFound):
            of_token(ours, Ask.KEY, pay, TOKEN)


def test_a_tpm_that_is_away_is_away(tmp_path: Path) -> None:
    """Its object is not ready, and nothing else happens."""
    gone = Tokens(
        modules={},
        tpms={"tpm0": f"unix:{tmp_path}/none"},
        pin_dir=tmp_path,
        tpm_keys_dir=tmp_path / "keys",
    )
    with pytest.raises(SignerUnavailable):
        gone.facts(TOKEN)
