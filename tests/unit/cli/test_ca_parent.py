"""`attestation ca import-certificate`: what is wrong with the file is said before anybody is asked."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from attestation_cli.main import cli
from attestation_cli.session import Session


def test_a_file_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    """Exit code 2, as of anything that cannot be asked; a newcomer met a traceback."""
    said = CliRunner().invoke(
        cli,
        ["ca", "import-certificate", "3f6f0e1b", str(tmp_path / "chain.pem"), "-r", "r", "--yes"],
        obj=Session(),
        catch_exceptions=False,
    )
    assert said.exit_code == 2
    assert "chain.pem' does not exist" in said.stderr
