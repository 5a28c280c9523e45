"""Manual pages: complete, from the same source as `--help`, and texts that never become requests of troff."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from attestation.manual import Block, Page, Terms, Verbatim, roff
from attestation_cli.commands.man import pages
from attestation_cli.main import cli
from tests.unit.cli.test_help import TREE

REQUEST = re.compile(r"\.(TH|nh|ad|SH|PP|TP|B|nf|fi)( |$)")


def page(text: str) -> Page:
    """Return a page that says *text* wherever it can."""
    blocks: list[Block] = [text, Terms([(text, text)]), Verbatim([text.replace("\n", " ")])]
    return Page(
        name="a b", summary=text, synopsis=[text], sections=[("x", blocks), ("empty", ["", Terms([])])]
    )


@given(st.text())
def test_no_text_becomes_a_request(text: str) -> None:
    """Neither by a dot or an apostrophe at the beginning of a line, nor by a backslash anywhere."""
    lines = roff(page(text), "1").split("\n")
    for line in lines:
        assert not line.startswith("'")
        assert not line.startswith(".") or REQUEST.match(line), line
        # What remains after what we write ourselves is no backslash.
        assert "\\" not in re.sub(r"\\(e|-|&|\((aq|ga|ha|ti)|f[BR])", "", line)
    assert "EMPTY" not in lines


def plain(source: str) -> str:
    """Return what a page says, without troff's spelling."""
    for spelled, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\(ha", "^"), (r"\(ti", "~")):
        source = source.replace(spelled, character)
    return " ".join(source.replace(r"\&", "").replace(r"\e", "\\").split())


PAGES = {page.file: page for page in pages(cli)}


def test_each_command_has_a_page_with_all_of_its_options() -> None:
    """And its first sentence, and its examples: what the help says."""
    assert set(PAGES) == {f"{'-'.join(('attestation', *words))}.1" for words in TREE}
    for words, command in TREE.items():
        said = plain(roff(PAGES[f"{'-'.join(('attestation', *words))}.1"], "1"))
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert all(name in said for name in option.opts), (words, option.opts)
        paragraphs = (command.help or "").split("\b")
        for paragraph in paragraphs[0].split("\n\n"):
            assert " ".join(paragraph.split()) in said, words
        for example in paragraphs[-1].splitlines()[2:]:
            assert " ".join(example.split()) in said, words
        assert "-h, --help" in said
        assert "EXIT STATUS" in said


def programs() -> list[str]:
    """Return the pages of the programs that read their words with argparse."""
    return [
        subprocess.run(
            [sys.executable, "-c", f"from {entry} as main; main(['--man'])"],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for entry in (
            "attestation_service.main import main",
            "attestation_agent.main import main",
            "attestation_agent.main import register",
            "attestation_agent.kiosk.main import main",
        )
    ]  # fmt: skip


def test_pages_are_written_and_rendered_without_a_warning(tmp_path: Path) -> None:
    """Those of service and agent too; where groff is, it has nothing to say against any of them."""
    service, agent, register, kiosk = programs()
    assert "--workers" in plain(service)
    for words in ("attestation-agent identify", "--server-url", "ITL_LOG_FORMAT", "Exit codes: 0 attested"):
        assert words.lower() in plain(agent).lower()
    (tmp_path / "attestation-service.1").write_text(service, encoding="utf-8")
    (tmp_path / "attestation-agent.1").write_text(agent, encoding="utf-8")
    (tmp_path / "itl-tpm-register.1").write_text(register, encoding="utf-8")
    (tmp_path / "attestation-kiosk.1").write_text(kiosk, encoding="utf-8")
    done = CliRunner().invoke(cli, ["man", "--to", str(tmp_path)], catch_exceptions=False)
    assert done.stdout == f"{len(PAGES)} pages written to {tmp_path}\n"
    files = sorted(map(str, tmp_path.glob("*.1")))
    assert len(files) == len(PAGES) + 4
    if groff := shutil.which("groff"):
        # A path that is longer than a line cannot be broken: that is said of the terminal, not of the page.
        command = [groff, "-man", "-ww", "-Wbreak", "-Tutf8", "-k", "-z", *files]
        told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert told.stderr == ""
    if mandoc := shutil.which("mandoc"):
        subprocess.run([mandoc, "-T", "lint", "-W", "error", *files], check=True, timeout=300)


def test_one_page_is_printed() -> None:
    """By the words of the command; another word is told."""
    done = CliRunner().invoke(cli, ["man", "machine", "list"], catch_exceptions=False)
    assert done.stdout.startswith(r".TH ATTESTATION\-MACHINE\-LIST 1")
    wrong = CliRunner().invoke(cli, ["man", "machine", "lst"])
    assert (wrong.exit_code, "there is no command" in wrong.stderr) == (2, True)
    assert CliRunner().invoke(cli, ["man", "machine", "--to", "x"]).exit_code == 2


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nothing"])
def test_a_folder_that_cannot_be_written_is_told(place: str) -> None:
    """In words, not by a traceback."""
    done = CliRunner().invoke(cli, ["man", "--to", place])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
