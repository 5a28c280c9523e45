"""Tokens as issuers know them: what is wrong with one key, or one token, is nobody else's trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import (
    AttestationError,
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    SignerUnavailable,
)
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm import tokens as module
from attestation_operator.hsm.tokens import KeyName, Tokens

CA, OTHER = KeyName(label="ca"), KeyName(label="other")


class Key:
    """An open key that signs until it is told otherwise."""

    public_key = None

    def __init__(self, uri: str, test_key: str | None) -> None:
        self.uri, self.test_key = uri, test_key
        self.error: AttestationError | None = None
        self.closed = 0

    def self_test(self, public_key: Any) -> None:
        """Sign, or not."""
        del public_key
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Count it."""
        self.closed += 1


class There:
    """What the back-end does; each key that it opened is remembered."""

    def __init__(self) -> None:
        self.opened: list[Key] = []
        self.looks: AttestationError | None = None
        self.before: Callable[[str], None] = lambda uri: None

    def open(self, uri: str, options: Any) -> Key:
        """Open a key."""
        self.before(uri)
        key = Key(uri, options.test_key)
        self.opened.append(key)
        return key

    def look(self, uri: str, options: Any) -> None:
        """Look for it again."""
        del uri, options
        if self.looks is not None:
            raise self.looks


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    """A back-end in place of that of a token."""
    there = There()
    monkeypatch.setattr(module, "open_key", there.open)
    monkeypatch.setattr(module, "look", there.look)
    monkeypatch.setattr(module, "create_key", lambda uri, algorithm, options: there.open(uri, options))
    return there


def tokens() -> Tokens:
    """Return the tokens of a controller with one module."""
    return Tokens(modules={"m": Path("/m.so")}, tpms={}, pin_dir=Path("/pins"), tpm_keys_dir=Path("/keys"))


def spec(label: str = "a", *, test_key: str | None = None) -> HardwareSecurityModuleSpec:
    """Return a token."""
    health = {"testKey": test_key} if test_key else {}
    return HardwareSecurityModuleSpec.model_validate(
        {"module": "m", "tokenLabel": label, "healthCheck": health}
    )


@pytest.mark.parametrize("error", [KeyNotFound("gone"), KeyMismatch("another"), KeyAmbiguous("two")])
def test_a_key_that_is_gone_says_nothing_of_its_token(there: There, error: AttestationError) -> None:
    """It is let go of: the next look finds what is there by then, without a restart."""
    held = tokens()
    held.open(spec(), CA)
    held.open(spec(), OTHER)
    there.opened[0].error = error
    assert held.test(spec()) is True
    assert [key.closed for key in there.opened] == [1, 0]
    held.open(spec(), CA)
    assert len(there.opened) == 3
    there.opened[1].error = error
    there.opened[2].error = error
    assert held.test(spec()) is False, "and where none is left, nothing signed"


def test_a_token_that_does_not_sign_keeps_its_keys(there: There) -> None:
    """It may sign again: what is open finds its way back by itself."""
    held = tokens()
    held.open(spec(), CA)
    there.opened[0].error = SignerUnavailable("away")
    with pytest.raises(SignerUnavailable):
        held.test(spec())
    there.opened[0].error = None
    assert held.test(spec()) is True
    assert there.opened[0].closed == 0


def test_a_key_that_was_destroyed_is_opened_anew_when_it_is_there_again(there: There) -> None:
    """E.g. from a backup: under its label is another object by now."""
    held = tokens()
    first = held.open(spec(), CA)
    there.looks = KeyNotFound("gone")
    with pytest.raises(KeyNotFound):
        held.open(spec(), CA)
    there.looks = None
    assert held.open(spec(), CA) is not first
    assert there.opened[0].closed == 1


def test_a_key_that_stays_is_opened_once(there: There) -> None:
    """Each look would open a session else."""
    held = tokens()
    assert held.open(spec(), CA) is held.open(spec(), CA)
    assert len(there.opened) == 1


def test_another_test_key_is_used_from_the_next_look_on(there: There) -> None:
    """Without a restart; the key is open all the time."""
    held = tokens()
    held.open(spec(), CA)
    held.open(spec(test_key="probe"), CA)
    assert [(key.test_key, key.closed) for key in there.opened] == [(None, 1), ("probe", 0)]
    held.close()
    assert [key.closed for key in there.opened] == [1, 1]


def test_a_slow_token_holds_up_no_other(there: There) -> None:
    """One may make an RSA key for a minute."""
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def before(uri: str) -> None:
        if "token=slow" in uri:
            begun.set()
            go_on.wait(60)

    there.before = before
    held = tokens()

    def other() -> None:
        held.open(spec("quick"), CA)
        held.test(spec("quick"))
        done.set()

    slow = threading.Thread(target=lambda: held.make(spec("slow"), "ca", "rsa-4096"))
    slow.start()
    assert begun.wait(60)
    quick = threading.Thread(target=other, daemon=True)
    quick.start()
    try:
        assert done.wait(30), "it waited for the slow one"
    finally:
        go_on.set()
        slow.join()


def test_a_ca_of_p_256_is_made_in_a_tpm_alone(there: There) -> None:
    """A leaf key of it is made on any token."""
    held = tokens()
    with pytest.raises(KeyUnsupported):
        held.make_ca(spec(), "ca", "ecdsa-p256")
    assert there.opened == []
    held.make(spec(), "leaf", "ecdsa-p256")
    held.make_ca(spec(), "ca", "ecdsa-p384")
    assert len(there.opened) == 2
