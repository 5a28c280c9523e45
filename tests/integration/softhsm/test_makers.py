"""Two machines that share a token make a key at the same moment: no lock keeps them apart, and one key is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import KeyAmbiguous, KeyMismatch, KeyNotFound, SignerUnavailable
from attestation.keys.open import create_key, open_key
from attestation.keys.pkcs11 import objects, provision
from attestation.keys.wrapping import wrap_key
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm.keks import KEKs
from attestation_operator.hsm.tokens import Tokens
from tests.fixtures.hsm_quotes import ca_certificate, ca_key
from tests.fixtures.softhsm import PIN, SoftHSM, softhsm

__all__ = ["softhsm"]

pytestmark = pytest.mark.softhsm


class Rival:
    """Makes a key of the same label before *ours* is made, once, after ours was looked for."""

    def __init__(self, ours: Callable[..., Any]) -> None:
        self._ours = ours
        self.made = 0

    def __call__(self, *args: Any) -> Any:
        """Make both."""
        self.made += 1
        if self.made == 1:
            self._ours(*args)
        return self._ours(*args)


def private_keys(softhsm: SoftHSM) -> int:
    """Return how many there are, as another program sees them."""
    return softhsm.tool("--list-objects", "--type", "privkey").count("Private Key Object")


def test_k11_who_finds_a_second_key_after_making_one_destroys_its_own(
    softhsm: SoftHSM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it was used: the other's is found at the next look, and is one."""
    monkeypatch.setattr(objects, "generate", Rival(objects.generate))
    with pytest.raises(SignerUnavailable, match="at the same moment"):
        create_key(softhsm.uri(), "ecdsa-p384", softhsm.options)
    assert private_keys(softhsm) == 1
    found = create_key(softhsm.uri(), "ecdsa-p384", softhsm.options)
    again = open_key(softhsm.uri(), softhsm.options)
    try:
        assert found.public_key == again.public_key
    finally:
        found.close()
        again.close()
    assert private_keys(softhsm) == 1


def test_k11_likewise_of_a_key_that_wraps(softhsm: SoftHSM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a blob for one could not be opened: which key it was wrapped for would be chance."""
    monkeypatch.setattr(provision, "_generate_kek", Rival(provision._generate_kek))
    with pytest.raises(SignerUnavailable, match="at the same moment"):
        provision.create_kek(softhsm.uri("kek"), softhsm.options)
    assert private_keys(softhsm) == 1
    made = provision.create_kek(softhsm.uri("kek"), softhsm.options)
    assert provision.kek_of(softhsm.uri("kek"), softhsm.options) == made


TOKEN = HardwareSecurityModuleSpec.model_validate(
    {"module": "softhsm", "tokenLabel": "hsm", "pinSecretRef": {"name": "hsm-pin"}}
)


def loaded(
    softhsm: SoftHSM, folder: Path, monkeypatch: pytest.MonkeyPatch, rival: Callable[..., Any]
) -> None:
    """Load a CA key that *rival* loads, too, after it was looked for and before it is unwrapped."""
    (folder / "pins/hsm-pin").mkdir(parents=True)
    (folder / "pins/hsm-pin/pin").write_text(PIN)
    tokens = Tokens(
        modules={"softhsm": softhsm.module},
        tpms={},
        pin_dir=folder / "pins",
        tpm_keys_dir=folder / "tpm",
    )
    keks, unwrap = KEKs(tokens), provision.unwrap_key
    kek = provision.create_kek(softhsm.uri("kek"), softhsm.options)

    def both(*args: Any, **more: Any) -> Any:
        rival(unwrap, kek, args, more)
        return unwrap(*args, **more)

    monkeypatch.setattr(provision, "unwrap_key", both)
    try:
        keks.load(
            TOKEN,
            "uid-1",
            "kek",
            wrap_key(ca_key("ca", "ecdsa-p384"), kek, oaep_hash="sha1"),
            oaep_hash="sha1",
            chain=[ca_certificate()],
            at=datetime.now(UTC),
        )
    finally:
        tokens.close()


def test_k11_a_ca_key_that_two_controllers_load_is_loaded(
    softhsm: SoftHSM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who comes second finds what it wanted: its QuoteAttestation is not lost."""
    loaded(softhsm, tmp_path, monkeypatch, lambda unwrap, _, args, more: unwrap(*args, **more).close())
    assert private_keys(softhsm) == 2, "the key that wraps, and one CA key"


def test_k11_a_key_of_another_certificate_is_not_taken_for_it(
    softhsm: SoftHSM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came meanwhile is compared, as what was there before."""

    def another(unwrap: Any, kek: Any, args: Any, more: Any) -> None:
        key = ca_key("other")
        blob = wrap_key(key, kek, oaep_hash="sha1")
        mine = more | {"certificate_or_public_key": key.public_key()}
        unwrap(args[0], blob, *args[2:], **mine).close()

    with pytest.raises(KeyMismatch):
        loaded(softhsm, tmp_path, monkeypatch, another)


def test_k11_where_both_gave_theirs_up_it_is_tried_again(
    softhsm: SoftHSM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No verdict on the bundle, which is as good as before."""

    def gave_up(*_: Any) -> None:
        raise KeyAmbiguous("two")

    with pytest.raises(SignerUnavailable):
        loaded(softhsm, tmp_path, monkeypatch, gave_up)
    with pytest.raises(KeyNotFound):
        open_key(softhsm.uri("uid-1"), softhsm.options)
