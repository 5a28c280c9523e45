"""Only modules of the deployment's list are ever loaded, whatever a URI says.

The spy is the loader of glibc itself: with LD_DEBUG=files it writes down every file that it opens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.softhsm import SoftHSM

pytestmark = pytest.mark.softhsm

PROGRAM = """
import sys
from pathlib import Path
from attestation.errors import KeyUnusable
from attestation.keys.open import KeyOptions, create_key, open_key
module, evil, uris = sys.argv[1], sys.argv[2], sys.argv[3:]
options = KeyOptions(modules={"softhsm": Path(module)} if module else {})
for uri in uris:
    for ask in (lambda: open_key(uri, options), lambda: create_key(uri, "ecdsa-p384", options)):
        try:
            ask().close()
            print("opened", uri)
        except KeyUnusable as e:
            print(e.code, uri)
"""


def loaded(hsm: SoftHSM, module: str, evil: Path, *uris: str) -> tuple[str, str]:
    """Run the program; return what it said, and what the loader opened."""
    log = hsm.folder / "loader"
    environment = {**os.environ, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log)}
    command = [sys.executable, "-c", PROGRAM, module, str(evil), *uris]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    opened = "".join(file.read_text() for file in hsm.folder.glob("loader.*"))
    for file in hsm.folder.glob("loader.*"):
        file.unlink()
    return done.stdout, opened


@pytest.mark.threat("T90")
def test_only_what_is_listed_is_loaded(softhsm: SoftHSM) -> None:
    """Paths and unknown names in a URI, and one that is spelled like a path, load nothing; a listed name does."""
    evil = softhsm.folder / "evil.so"
    shutil.copy(softhsm.module, evil)  # a perfect PKCS#11 module, only not listed
    named = "pkcs11:token=hsm;object=ca"
    pin = f"pin-source=file:{softhsm.pin_file}"
    uris = [
        f"{named}?module-path={evil}&{pin}",
        f"{named}?module-name={evil}&{pin}",
        f"{named}?module-name=..%2fevil.so&{pin}",
        f"{named}?module-name=evil&{pin}",
        f"{named}?module-name=evil.so&{pin}",
        f"{named}?module-name=softhsm&module-name=evil&{pin}",
        f"{named}?module-name=softhsm&pin-source=|{evil}",
    ]
    said, opened = loaded(softhsm, str(softhsm.module), evil, *uris)
    assert said.count("\n") == 2 * len(uris)
    assert "opened" not in said
    assert "evil.so" not in opened
    assert "libsofthsm2.so" not in opened
    said, opened = loaded(softhsm, str(softhsm.module), evil, softhsm.uri())
    assert said.count("opened") == 1  # the first time there was none yet
    assert "libsofthsm2.so" in opened
    assert "evil.so" not in opened


@pytest.mark.threat("T90")
def test_without_a_list_nothing_is_loaded(softhsm: SoftHSM) -> None:
    """The default is no module at all, and with keys in files none is loaded even if listed."""
    uris = [softhsm.uri(), "pkcs11:token=hsm;object=ca"]
    said, opened = loaded(softhsm, "", softhsm.folder, *uris)
    assert said.count("module-not-listed") == 4
    assert "softhsm" not in opened
    said, opened = loaded(softhsm, str(softhsm.module), softhsm.folder, f"file:{softhsm.folder}/none.pem")
    assert "opened" not in said
    assert "softhsm" not in opened
    assert "_pkcs11" not in opened


def test_the_extra_is_not_installed(softhsm: SoftHSM) -> None:
    """Without python-pkcs11 the error says what to install; everything else works."""
    program = "import sys; sys.modules['pkcs11'] = None\n" + PROGRAM.replace("print(e.code, uri)", "print(e)")
    command = [sys.executable, "-c", program, str(softhsm.module), "", softhsm.uri()]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert said.count("pip install 'itl-attestation-sdk[pkcs11]'") == 2


def test_the_binding_is_imported_late() -> None:
    """A service with keys in files imports no PKCS#11."""
    program = (
        "import sys, attestation.keys, attestation.keys.open, attestation.keys.file, attestation.keys.pkcs11;"
        "assert not [m for m in sys.modules if m == 'pkcs11' or m.startswith('pkcs11.')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
