"""PKCS#11 tokens in software, in a folder: SoftHSM, installed or unpacked into `.tools/`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MODULE: Final = "softhsm/libsofthsm2.so"


class SoftHSMFails(Exception):
    """It refuses what was asked of it; the text is its own."""


def library(relative: str) -> Path:
    """Return a shared library by its path below `/usr/lib`, installed or unpacked.

    Raises:
        FileNotFoundError: It is nowhere; `./dev` brings it.
    """
    for folder in (Path("/usr/lib"), ROOT / ".tools/apt/usr/lib"):
        for found in (folder / relative, *folder.glob(f"*-linux-gnu/{relative}")):
            if found.exists():
                return found
    raise FileNotFoundError(f"{relative} is not installed; ./dev brings it")


def configure(configuration: Path, tokens: Path) -> None:
    """Write a configuration, to be named by SOFTHSM2_CONF, with the folder of the tokens."""
    configuration.write_text(
        f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n", encoding="utf-8"
    )


def new_token(label: str, *, pin: str, so_pin: str, environment: dict[str, str] | None = None) -> None:
    """Initialize a token in what SOFTHSM2_CONF of *environment* names; of this process without.

    Raises:
        SoftHSMFails: It was not made.
    """
    command = ("softhsm2-util", "--module", str(library(MODULE)), "--init-token", "--free")
    done = subprocess.run(
        [*command, "--label", label, "--so-pin", so_pin, "--pin", pin],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SoftHSMFails(done.stdout + done.stderr)
