"""The pages about handing a CA key over and about objects of others: each command prints what stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from attestation_cli.session import Session
from attestation_operator.commands import hsm_judging
from attestation_operator.commands.hsm import group
from tests.docs.pages import ROOT
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.operator.hsm.test_wrap_command import folder as folder

PAGE = ROOT / "docs/kubernetes/hsm-handing-over.md"
OTHERS = ROOT / "docs/kubernetes/hsm-convert.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RANDOM = re.compile(r"\b[0-9a-f]{64,}\b")
"""Digests: the wrapping key of the test is another one each time."""


def test_each_command_prints_what_the_page_shows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page, in one folder; digests apart."""
    for file in folder.iterdir():
        (tmp_path / file.name).touch(0o600)
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hsm_judging, "now", lambda: AT)
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 3
    for block in blocks:
        command, _, shown = block.replace("\\\n", "").partition("\n")
        arguments = shlex.split(command.removeprefix("$ attestation hsm "))
        done = CliRunner().invoke(group, arguments, obj=Session())
        assert done.exit_code == 0, done.output
        assert _RANDOM.sub("…", done.output) == _RANDOM.sub("…", shown), block


def test_objects_of_others_become_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the page, converted by its command; what is left out ends it with 1."""
    theirs, converted = _BLOCK.findall(OTHERS.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(theirs.partition("\n")[2])
    command, _, shown = converted.replace("\\\n", "").partition("\n")
    done = CliRunner().invoke(group, shlex.split(command.removeprefix("$ attestation hsm ")), obj=Session())
    assert (done.exit_code, done.output) == (1, shown)
