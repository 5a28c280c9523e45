"""`attestation hsm verify|wrap`: nothing leaves the administrator's hands for evidence that is not verified here."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import load_der_x509_certificate

from attestation.clock import rfc3339
from attestation.errors import KeyUnsupported, RequestInvalid
from attestation.keys.provisioning import fingerprint, read_bundle
from attestation.pki.external import make_ca
from attestation.quote import evidence_digest, parse_envelope
from attestation.wire import b64encode
from attestation_cli.session import Session
from attestation_operator.commands import hsm_wrap
from attestation_operator.commands.hsm_wrap import verify, wrap
from attestation_testing.tee.intel import collateral_json
from tests.unit.evidence.dcap_zoo import AT, PLATFORM
from tests.unit.pki.leaf_kit import CA_NAME, SERIAL
from tests.unit.quote.quote_kit import UID, binding, evidence, spec
from tests.unit.quote.test_handing import spki

ADA = ec.derive_private_key(31, ec.SECP384R1())
CA_KEY = ec.derive_private_key(32, ec.SECP384R1())


def pem(key: Any) -> bytes:
    """Return a private key in PEM."""
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that an administrator has."""
    made: Path = tmp_path_factory.mktemp("wrap")
    kek = spki(rsa.generate_private_key(65537, 3072))
    said = spec(
        data=evidence("sgx", binding("sgx", subject_spki=kek)),
        publicKey=b64encode(kek),
        expiresAt=rfc3339(AT + timedelta(days=1)),
    )
    (made / "qa.json").write_text(json.dumps({"metadata": {"uid": "qa-uid"}, "spec": said}))
    (made / "collateral.json").write_bytes(collateral_json(PLATFORM.collateral("SGX")))
    (made / "root.der").write_bytes(PLATFORM.pki.root)
    policy = {
        "format": "itl-policy/2",
        "name": "enclaves",
        "version": 1,
        "sgx": {"mrenclave": [(b"\xe1" * 32).hex()]},
    }
    (made / "policy.json").write_text(json.dumps(policy))
    certificate = make_ca(
        subject=CA_NAME,
        spki=spki(CA_KEY),
        key=CA_KEY,
        serial=SERIAL,
        at=AT,
        duration=timedelta(days=9),
        path_length=0,
    )
    (made / "ca.pem").write_bytes(load_der_x509_certificate(certificate).public_bytes(Encoding.PEM))
    (made / "ca.key").write_bytes(pem(CA_KEY))
    (made / "ada.key").write_bytes(pem(ADA))
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the clock of the administrator's computer."""
    monkeypatch.setattr(hsm_wrap, "now", lambda: AT)


def run(command: Any, folder: Path, *more: str, uid: str = UID, qa: str = "qa.json") -> Result:
    """Run a command in the folder."""
    named = {"policy": "policy.json", "collateral": "collateral.json", "intel-root": "root.der"}
    options = [part for name, file in named.items() for part in (f"--{name}", str(folder / file))]
    return CliRunner().invoke(
        command,
        [str(folder / qa), "--signer-uid", uid, *options, *more],
        obj=Session(),
        catch_exceptions=True,
    )


def wrapping(folder: Path, out: Path, **files: str) -> list[str]:
    """Return the options of `wrap`."""
    named = {"key": "ca.key", "chain": "ca.pem", "sign-with": "ada.key"} | files
    return [
        *(part for name, file in named.items() for part in (f"--{name}", str(folder / file))),
        "--bundle",
        str(out),
    ]


def test_verify_tells_and_ends_with_the_verdict(folder: Path) -> None:
    """Verified ends with 0; another issuer than the administrator's with 1."""
    good = run(verify, folder)
    assert (good.exit_code, "verified" in good.stdout) == (0, True), good.output
    assert "another one" in good.stderr
    bad = run(verify, folder, "-o", "json", uid="another")
    told = json.loads(bad.stdout)
    assert (bad.exit_code, told["verdict"]) == (1, "failed")
    assert {"outcome": "failed", "check": "quote-question", "found": UID} in told["checks"]


def test_wrap_writes_what_a_controller_reads(folder: Path, tmp_path: Path) -> None:
    """A bundle for this question, by this administrator."""
    out = tmp_path / "bundle.json"
    done = run(wrap, folder, *wrapping(folder, out))
    assert done.exit_code == 0, done.output
    signer = fingerprint(ADA.public_key())
    signatures = out.with_suffix(".jws").read_text().splitlines()
    found = read_bundle(out.read_bytes(), signatures, signers={signer}, required=1).bundle
    asked = parse_envelope(json.loads((folder / "qa.json").read_text())["spec"])
    assert (found.qa_uid, found.signer_uid, found.nonce) == ("qa-uid", UID, asked.nonce)
    assert found.evidence_digest == evidence_digest(asked)
    again = run(wrap, folder, *wrapping(folder, out))
    assert isinstance(again.exception, RequestInvalid)


def test_wrap_writes_nothing_otherwise(folder: Path, tmp_path: Path) -> None:
    """For another issuer; with files that hold something else."""
    out = tmp_path / "bundle.json"
    assert run(wrap, folder, *wrapping(folder, out), uid="another").exit_code == 1
    refusals: list[tuple[dict[str, str], type[Exception]]] = [
        ({"chain": "ca.key"}, RequestInvalid),
        ({"key": "ca.pem"}, KeyUnsupported),
        ({"sign-with": "policy.json"}, KeyUnsupported),
    ]
    for files, error in refusals:
        assert isinstance(run(wrap, folder, *wrapping(folder, out, **files)).exception, error)
    for qa in ("ca.pem", "policy.json"):
        assert isinstance(run(verify, folder, qa=qa).exception, RequestInvalid)
    assert not list(tmp_path.iterdir())
