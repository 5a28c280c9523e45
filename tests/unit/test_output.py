"""Output that cannot be written ends each program in words, whatever it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attestation import __version__, output

BIN = Path(sys.executable).parent


def run(words: str, *, onto: int, place: Path, unbuffered: bool = False) -> tuple[int, str]:
    """Run a program whose output goes *onto* a descriptor; return its exit code and what it says of that."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "PYTHONUNBUFFERED"))} | {
        "ITL_SERVICE_URL": "http://127.0.0.1:8080",
        "ITL_DB_URL": f"sqlite:///{place}/machines.db",
        "HOME": str(place),
    }
    if words.startswith("attestation-agent"):
        environ = {k: v for k, v in environ.items() if not k.startswith("ITL_")}
    if unbuffered:
        environ["PYTHONUNBUFFERED"] = "1"
    name, *arguments = words.split()
    done = subprocess.run(
        [BIN / name, *arguments], env=environ, cwd=place, stdout=onto, stderr=subprocess.PIPE, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("status", "commands"),
    [
        (1, ["attestation-service --man", "attestation-service --help", "attestation-service --check"]),
        (64, ["attestation-agent --man", "attestation-agent --version", "attestation-agent cert"]),
        (2, ["attestation --help", "attestation machine list --help", "attestation version --client"]),
    ],
    ids=["service", "agent", "command line"],
)
def test_a_full_disk_is_told(tmp_path: Path, status: int, commands: list[str]) -> None:
    """Once, without a traceback, and the exit code is not that of success."""
    full = os.open("/dev/full", os.O_WRONLY)
    for words in commands:
        # argparse passes over a help that could not be written at once.
        for unbuffered in (False,) if words.endswith(("service --help", "--version")) else (False, True):
            code, told = run(words, onto=full, place=tmp_path, unbuffered=unbuffered)
            assert (code, told.count("cannot be written: No space left on device")) == (status, 1), told
            assert "Traceback" not in told
            assert "Exception" not in told
    os.close(full)


def test_a_reader_that_has_gone_is_told_nothing(tmp_path: Path) -> None:
    """`| head`: who reads has enough."""
    reads, writes = os.pipe()
    os.close(reads)
    for words in (
        "attestation-service --man",
        "attestation-agent --man",
        "attestation --help",
        "attestation-service doctor",
    ):
        code, told = run(words, onto=writes, place=tmp_path, unbuffered=words.endswith("doctor"))
        assert (code > 0, told) == (True, ""), words
    os.close(writes)


def test_who_closed_the_output_gets_none(tmp_path: Path) -> None:
    """`>&-` in the shell: there is no stream, and no traceback."""
    for words in ("attestation-service --man", "attestation-agent --man", "attestation --help"):
        shell = ["/bin/sh", "-c", f"{BIN}/{words} >&-"]
        done = subprocess.run(shell, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=120, check=True)
        assert done.stderr == "", words


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("attestation machine list --nope 2>/dev/full", 2),
        ("attestation machine list --nope 2>&-", 2),
        ("attestation --api-url http://127.0.0.1:9 --token-file t machine list 2>&-", 6),
        ("attestation --help >/dev/full 2>/dev/full", 2),
        ("attestation --help >/dev/full 2>&-", 2),
        ("attestation-agent --man >/dev/full 2>&-", 64),
    ],
)
def test_the_exit_code_is_the_same_where_nothing_can_be_told(tmp_path: Path, words: str, code: int) -> None:
    """Standard error closed, or full: 1 would be an answer, e.g. of `machine explain`."""
    (tmp_path / "t").write_text("x" * 43)
    (tmp_path / "t").chmod(0o600)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "PYTHON"))}
    shell = ["/bin/sh", "-c", f"{BIN}/{words}"]
    for buffered in ({}, {"PYTHONUNBUFFERED": "1"}):
        there = environ | buffered | {"HOME": str(tmp_path)}
        done = subprocess.run(shell, cwd=tmp_path, env=there, timeout=120, check=False)
        assert done.returncode == code, buffered


def test_what_is_no_matter_of_the_output_is_not_taken_for_it() -> None:
    """A full disk of another file, and a cause that is no full disk, go on as they are."""
    for error in (OSError(28, "No space left on device", "/other"), OSError(98, "Address already in use")):
        with pytest.raises(OSError, match=error.strerror), output.to_the_end("x", 2):
            raise error


def test_programs_tell_their_version() -> None:
    """In one line, each under its own name."""
    for name in ("attestation-service", "attestation-agent", "itl-tpm-register"):
        done = subprocess.run(
            [BIN / name, "--version"], capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout == f"{name} {__version__}\n"
