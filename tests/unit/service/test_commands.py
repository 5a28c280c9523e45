"""The command line of the service: a command by its word, and the service where there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from attestation_service.commands import backup, doctor
from attestation_service.commands.parser import parser
from attestation_service.main import main


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every command asks for."""
    monkeypatch.setenv("ITL_SERVICE_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("ITL_ENROLLMENT_CA_UNENCRYPTED", "true")


WORDS = ["--host", "::1", "--port", "9", "--uds", "x", "--workers", "2", "--check", "-o", "json", "--prepare"]


@pytest.mark.parametrize("words", [WORDS, [*WORDS, "--accept-restored-database"], []])
def test_without_a_command_the_service_runs(words: list[str]) -> None:
    """With each option of `run`, before the word, after it, or without it."""
    told = vars(parser().parse_args(words))
    assert told["command"] is None
    assert vars(parser().parse_args(["run", *words])) == told
    assert vars(parser().parse_args([*words, "run"])) == told


@pytest.mark.threat("T29")
@pytest.mark.parametrize(
    "words",
    [("db", "status", "--url"), ("db", "copy", "--to"), ("db", "copy", "--to", "sqlite:///x.db", "--from")],
)
def test_no_password_stands_on_a_command_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process of the computer could read it."""
    for url in ("postgresql+psycopg://itl:hunter2@h/d", "postgresql+psycopg://itl@h/d?password=hunter2"):
        assert main([*words, url]) == 2
        told = capsys.readouterr().err
        assert "password_file" in told
        assert "hunter2" not in told


def test_a_mistyped_command_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """And `db` alone is none."""
    for words, told in ((["rnu"], "'run'"), (["db"], "required"), (["db", "upgarde"], "'upgrade'")):
        with pytest.raises(SystemExit, match="2"):
            parser().parse_args(words)
        assert told in capsys.readouterr().err


def test_who_ends_a_command_sees_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """^C, at any moment: the exit code is that of a shell."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    monkeypatch.setenv("ITL_DB_URL", f"sqlite:///{tmp_path}/x.db")
    monkeypatch.setenv("ITL_SERVICE_URL", "http://127.0.0.1:8080")
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "attestation-service: interrupted\n"


def test_half_a_key_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The disk is full in the middle: the file is told, and gone."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("attestation_service.commands.backup.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        backup.write_new(tmp_path / "ca/key.pem", b"k")
    assert list((tmp_path / "ca").iterdir()) == []
