"""tpm2-tools as an independent judge of what our client gets from a TPM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.device import AKType
from attestation.tpm import PCRSelection, parse_public
from attestation.wire import Reader, sized
from attestation_testing import SoftwareTPM

pytestmark = [pytest.mark.swtpm, pytest.mark.tpm2_tools]

SELECTION = PCRSelection.from_names({"sha256": [0, 1, 2, 3, 4, 5, 6, 7, 11]})
NONCE = bytes(range(32))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one tool; its absence is a failure with a reason."""
    if shutil.which(str(arguments[0])) is None:
        pytest.fail(f"{arguments[0]} is not installed (package tpm2-tools)")
    return subprocess.run(
        [str(a) for a in arguments], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("ak", AKType)
@pytest.mark.parametrize("changed", [False, True])
def test_checkquote_agrees_about_our_quotes(
    software_tpm: SoftwareTPM, tmp_path: Path, ak: AKType, *, changed: bool
) -> None:
    """tpm2_checkquote accepts our quote under our nonce, and refuses it under another."""
    with software_tpm.node(ak=ak) as node:
        quote = node.quote(NONCE, SELECTION)
        key = parse_public(node.ak_public()).key()
    (tmp_path / "ak.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "quote.msg").write_bytes(quote.attest)
    (tmp_path / "quote.sig").write_bytes(quote.signature)
    nonce = NONCE[::-1] if changed else NONCE
    judged = run(
        "tpm2_checkquote",
        *("-u", tmp_path / "ak.pem", "-m", tmp_path / "quote.msg", "-s", tmp_path / "quote.sig"),
        *("-g", "sha256", "-q", nonce.hex()),
    )
    assert (judged.returncode == 0) != changed, judged.stderr


@pytest.mark.threat("T14")
@pytest.mark.parametrize("template", ["L-1", "L-2", "H-2"])
def test_credentials_of_makecredential_are_opened(
    blank_tpm: SoftwareTPM, tmp_path: Path, template: str
) -> None:
    """What tpm2_makecredential seals to our EK and AK, our node opens."""
    with blank_tpm.node(ek_templates=(template,)) as node:
        (tmp_path / "ek.pub").write_bytes(node.identify().ek_public)
        name = parse_public(node.ak_public()).name
        (tmp_path / "secret").write_bytes(b"s" * 32)
        made = run(
            "tpm2_makecredential",
            *("-T", "none", "-u", tmp_path / "ek.pub", "-s", tmp_path / "secret"),
            *("-n", name.hex(), "-o", tmp_path / "credential"),
        )
        assert made.returncode == 0, made.stderr
        # BADCC0DE 00000001 ‖ TPM2B_ID_OBJECT ‖ TPM2B_ENCRYPTED_SECRET
        reader = Reader((tmp_path / "credential").read_bytes(), "credential file")
        assert reader.take(8).hex() == "badcc0de00000001"
        blob, secret = sized(reader.sized()), sized(reader.sized())
        reader.end()
        assert node.activate(blob, secret) == b"s" * 32
