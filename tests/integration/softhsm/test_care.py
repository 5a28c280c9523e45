"""What is asked of a token beside signatures, and the tokens of the operator, on SoftHSM (HSM-AND-KUBERNETES §3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attestation.errors import (
    KeyAmbiguous,
    KeyNotFound,
    KeyURIInvalid,
    ModuleNotListed,
    PINRejected,
    TokenAbsent,
)
from attestation.keys.care import destroy_key, look, token_facts
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm.tokens import KeyName, Tokens
from tests.fixtures.softhsm import PIN, SoftHSM

pytestmark = pytest.mark.softhsm


def test_a_token_says_what_it_is_after_a_login(softhsm: SoftHSM) -> None:
    """A wrong PIN and a token that is not there are two things."""
    facts = token_facts(softhsm.uri(), softhsm.options)
    assert (facts.label, facts.manufacturer) == ("hsm", "SoftHSM project")
    assert "ECDSA" in facts.mechanisms
    assert facts.serial
    with pytest.raises(TokenAbsent):
        token_facts(softhsm.uri(token="other"), softhsm.options)
    softhsm.pin_file.write_text("0000-wrong")
    with pytest.raises(PINRejected) as caught:
        token_facts(softhsm.uri(), softhsm.options)
    assert "0000-wrong" not in str(caught.value)


def test_a_key_is_there_once_or_it_is_said(softhsm: SoftHSM) -> None:
    """A second private key of the label makes it nobody's."""
    with pytest.raises(KeyNotFound):
        look(softhsm.uri(), softhsm.options)
    softhsm.create()
    look(softhsm.uri(), softhsm.options)
    softhsm.tool("--keypairgen", "--key-type", "EC:secp384r1", "--label", "ca", "--id", "77")
    with pytest.raises(KeyAmbiguous):
        look(softhsm.uri(), softhsm.options)
    with pytest.raises(KeyAmbiguous):
        destroy_key(softhsm.uri(), softhsm.options)


def test_a_destroyed_key_leaves_nothing_and_no_other_goes(softhsm: SoftHSM) -> None:
    """Private key and public key go; those of other labels stay; once more there is nothing to do."""
    softhsm.create("ca")
    softhsm.create("other")
    assert destroy_key(softhsm.uri("ca"), softhsm.options)
    assert not destroy_key(softhsm.uri("ca"), softhsm.options)
    softhsm.close()
    listed = softhsm.tool("--list-objects")
    labels = [line.split(":")[1].strip() for line in listed.splitlines() if "label:" in line]
    assert labels == ["other", "other"]


def test_a_key_of_a_tpm_is_destroyed_with_its_file_alone(tmp_path: Path, softhsm: SoftHSM) -> None:
    """Keys by number were made by somebody else."""
    file = tmp_path / "key.tss2"
    file.write_text("wrapped")
    assert destroy_key(f"tpm2:path={file}", softhsm.options)
    assert not file.exists()
    assert not destroy_key(f"tpm2:path={file}", softhsm.options)
    with pytest.raises(KeyURIInvalid):
        destroy_key("tpm2:handle=0x81000001", softhsm.options)


def tokens(softhsm: SoftHSM, folder: Path) -> Tokens:
    """Return the tokens of a controller."""
    (folder / "pins/hsm-pin").mkdir(parents=True)
    (folder / "pins/hsm-pin/pin").write_text(PIN)
    return Tokens(
        modules={"softhsm": softhsm.module},
        tpms={"tpm0": "device:/dev/tpmrm0"},
        pin_dir=folder / "pins",
        tpm_keys_dir=folder / "tpm",
    )


def spec(**members: Any) -> HardwareSecurityModuleSpec:
    """Return which token."""
    said = {"module": "softhsm", "tokenLabel": "hsm", "pinSecretRef": {"name": "hsm-pin"}}
    return HardwareSecurityModuleSpec.model_validate(said | members)


def test_keys_are_made_found_tested_and_destroyed_by_label(softhsm: SoftHSM, tmp_path: Path) -> None:
    """A key that was destroyed by somebody else, or doubled, is not signed with."""
    ours = tokens(softhsm, tmp_path)
    try:
        name = KeyName(label="uid-1")
        with pytest.raises(KeyNotFound):
            ours.open(spec(), name)
        assert ours.test(spec()) is False
        made = ours.make(spec(), "uid-1", "ecdsa-p384")
        assert made.origin == "generated"
        assert ours.open(spec(), name) is made
        assert ours.test(spec()) is True
        softhsm.tool("--keypairgen", "--key-type", "EC:secp384r1", "--label", "uid-1", "--id", "77")
        with pytest.raises(KeyAmbiguous):
            ours.open(spec(), name)
        softhsm.tool("--delete-object", "--type", "privkey", "--id", "77")
        assert ours.open(spec(), name) is made
        assert ours.destroy(spec(), "uid-1")
        with pytest.raises(KeyNotFound):
            ours.open(spec(), name)
    finally:
        ours.close()


def test_objects_name_modules_and_files_of_the_deployment_alone(softhsm: SoftHSM, tmp_path: Path) -> None:
    """The URI holds the place of the PIN, never the PIN, and labels cannot leave their place."""
    ours = tokens(softhsm, tmp_path)
    uri = ours.uri(spec(), KeyName(label="a;type=public?pin-value=1"))
    assert PIN not in uri
    assert uri.startswith("pkcs11:token=hsm;object=a%3Btype%3Dpublic%3Fpin-value%3D1;type=private?")
    with pytest.raises(ModuleNotListed):
        ours.uri(spec(module="luna"), KeyName(label="ca"))
    tpm = ours.uri(spec(module="tpm0"), KeyName(label="../../etc/x"))
    assert tpm.startswith(f"tpm2:path={tmp_path}/tpm/%252E%252E%252F")
