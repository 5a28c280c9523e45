"""`attestation ca backup-check` with a second token: the key must sign there, under the certificate of the CA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.keys.open import create_key
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.fixtures.softhsm import SoftHSM
from tests.fixtures.softhsm import softhsm as softhsm
from tests.unit.pki.certificate_kit import ca_of, ca_with

pytestmark = pytest.mark.softhsm


def check(*args: str) -> Result:
    """Type the command."""
    return CliRunner().invoke(cli, ["ca", "backup-check", *args], obj=Session(), catch_exceptions=False)


def test_a_key_in_a_token_is_proven(softhsm: SoftHSM, tmp_path: Path) -> None:
    """By its URI; the PIN comes from the file that the URI names, or the option; another CA's key is not there."""
    made = create_key(softhsm.uri(), "ecdsa-p384", softhsm.options)
    softhsm.opened.append(made)
    assert isinstance(made.private_key, ec.EllipticCurvePrivateKey)
    certificates = tmp_path / "bundle.pem"
    certificates.write_bytes(ca_with(made.private_key, "first").certificate)
    module = f"softhsm={softhsm.module}"
    made.close()
    good = check(softhsm.uri(), "--certificates", str(certificates), "--module", module, "-o", "json")
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["keys"][0]["found"].startswith("pkcs11:token=hsm;object=ca")
    bare = softhsm.uri().replace(f"&pin-source=file:{softhsm.pin_file}", "")
    pin = ("--passphrase-file", str(softhsm.pin_file))
    assert check(bare, *pin, "--certificates", str(certificates), "--module", module).exit_code == 0
    certificates.write_bytes(ca_of("ecdsa-p384").certificate)
    other = check(softhsm.uri(), "--certificates", str(certificates), "--module", module)
    assert other.exit_code == 1
    assert "none of the 1 keys" in other.stderr


def test_a_module_that_nobody_named_is_not_loaded(softhsm: SoftHSM, tmp_path: Path) -> None:
    """A URI never names a library."""
    certificates = tmp_path / "bundle.pem"
    certificates.write_bytes(ca_of("ecdsa-p384").certificate)
    done = check(softhsm.uri(), "--certificates", str(certificates))
    assert done.exit_code == 1
    assert "module" in done.stderr
