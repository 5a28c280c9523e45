"""The PIN is nowhere but in its file and on its way to the token."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from attestation.errors import AttestationError
from attestation.keys.open import KeyOptions, open_key
from attestation.keys.pkcs11.tokens import TokenName
from tests.fixtures.softhsm import PIN, SoftHSM

pytestmark = pytest.mark.softhsm

WRONG = "wrong-canary-9038"

PROGRAM = """
import logging, os, sys, traceback
from pathlib import Path
logging.basicConfig(level=0)
from attestation.errors import AttestationError
from attestation.keys.open import KeyOptions, create_key, open_key
uri, module, way = sys.argv[1:4]
options = KeyOptions(modules={"softhsm": Path(module)})
opening = lambda: open_key(uri, options)
for ask in (lambda: create_key(uri, "ecdsa-p384", options), opening, opening):
    try:
        key = ask()
        key.self_test(key.public_key)
        print(repr(key), vars(key), repr(key.private_key), vars(key.private_key), key.private_key._raw.__dict__)
        key.close()
    except AttestationError:
        traceback.print_exc()
for path in ("/proc/self/cmdline", "/proc/self/environ"):
    print(Path(path).read_bytes())
"""


def outcome(hsm: SoftHSM, uri: str, **more: object) -> str:
    """Open a key in another process and return everything that it said."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM, uri, str(hsm.module), ""],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        **more,  # type: ignore[call-overload]
    )
    return str(done.stdout + done.stderr)


@pytest.mark.threat("T89")
def test_the_canary_is_nowhere(softhsm: SoftHSM) -> None:
    """Right and wrong PIN: not in argv, environment, logs, errors, reprs and attributes of what is handed out."""
    said = outcome(softhsm, softhsm.uri())
    assert said.count("<OpenKey pkcs11:token=hsm;object=ca") == 3
    assert PIN not in said
    softhsm.pin_file.write_text(WRONG)
    said = outcome(softhsm, softhsm.uri())
    assert said.count("PINRejected") >= 3
    assert WRONG not in said


@pytest.mark.parametrize("uri", [f"?pin-value={WRONG}", f";pin-value={WRONG}", f"?pin-source=|cat%20{WRONG}"])
def test_a_uri_with_the_pin_in_it(softhsm: SoftHSM, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused without being repeated."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AttestationError) as refused:
        open_key("pkcs11:token=hsm;object=ca" + uri, softhsm.options)
    assert WRONG not in "".join(traceback.format_exception(refused.value))
    assert WRONG not in caplog.text


def test_by_descriptor_and_by_callback(softhsm: SoftHSM) -> None:
    """A descriptor that the parent opened, and a function of the program that embeds us."""
    made = softhsm.create()
    made.self_test(made.public_key)
    named = softhsm.uri().partition("&")[0]
    asked: list[int] = []

    def pin() -> bytes:
        asked.append(1)
        return PIN.encode()

    key = open_key(named, KeyOptions(modules=softhsm.options.modules, passphrase=pin))
    key.self_test(key.public_key)
    key.close()
    softhsm.close()
    assert asked == []  # the token was logged in to already
    key = open_key(named, KeyOptions(modules=softhsm.options.modules, passphrase=pin))
    softhsm.opened.append(key)
    assert asked == [1]
    softhsm.close()
    descriptor = os.open(softhsm.pin_file, os.O_RDONLY)
    said = outcome(softhsm, f"{named}&pin-source=fd:{descriptor}", pass_fds=(descriptor,))
    os.close(descriptor)
    assert said.count("<OpenKey") == 3
    assert PIN not in said


@pytest.mark.threat("T89")
def test_names_of_tokens_hide_their_pin() -> None:
    """What says which token is meant holds where its PIN is from, and does not show it."""
    name = TokenName(label="hsm", serial=None, pin=lambda: PIN.encode())
    assert repr(name) == "TokenName(label='hsm', serial=None)"
    assert str(name) == "token=hsm"


def test_no_core_of_it_in_files(softhsm: SoftHSM, tmp_path: Path) -> None:
    """Nothing below the test's folder has the PIN but its file."""
    softhsm.create()
    softhsm.close()
    holders = [file for file in tmp_path.rglob("*") if file.is_file() and PIN.encode() in file.read_bytes()]
    assert holders == [softhsm.pin_file]
