"""A bundle that is signed by a key on an administrator's token."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation.keys.provisioning import fingerprint, read_bundle
from attestation_operator.commands import hsm_judging
from attestation_operator.commands.hsm_wrap import sign_bundle_too, wrap
from tests.fixtures.softhsm import PIN, SoftHSM
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.operator.hsm.test_wrap_command import ADA, run, signing, wrapping
from tests.unit.operator.hsm.test_wrap_command import folder as folder

pytestmark = pytest.mark.softhsm


def test_a_key_on_a_token_signs(
    softhsm: SoftHSM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first signer, and as the second one after a key in a file; the PIN is read from its file, never told."""
    monkeypatch.setattr(hsm_judging, "now", lambda: AT)
    mine = fingerprint(softhsm.create("admin").public_key)  # type: ignore[arg-type]  # of P-384
    module = ("--pkcs11-module", f"softhsm={softhsm.module}")

    first = tmp_path / "first.json"
    options = wrapping(folder, first)
    options[options.index("--sign-with") + 1] = softhsm.uri("admin")
    told = run(wrap, folder, *module, *options)
    assert told.exit_code == 0, told.output
    lines = first.with_suffix(".jws").read_text().split()
    assert read_bundle(first.read_bytes(), lines, signers={mine}, required=1).signers == (mine,)

    second = tmp_path / "second.json"
    assert run(wrap, folder, *wrapping(folder, second)).exit_code == 0
    options = signing(folder, second)
    options[options.index("--sign-with") + 1] = softhsm.uri("admin")
    too = run(sign_bundle_too, folder, *module, *options)
    assert too.exit_code == 0, too.output
    lines = second.with_suffix(".jws").read_text().split()
    both = (fingerprint(ADA.public_key()), mine)
    assert read_bundle(second.read_bytes(), lines, signers={*both}, required=2).signers == both
    assert PIN not in told.output + too.output
