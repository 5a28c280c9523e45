"""Checkpoints in a Git work tree that others commit to as well."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from attestation.errors import RequestInvalid
from attestation_cli import audit_git

ORIGIN = "log.example/1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree."""
    made = tmp_path / "evidence"
    subprocess.run(["git", "init", "--quiet", str(made)], check=True)
    for name in ("email", "name"):
        subprocess.run(["git", "-C", str(made), "config", f"user.{name}", "a@example.test"], check=True)
    return made


@pytest.mark.parametrize("name", [".latest.new", "latest"])
def test_a_link_of_another_is_not_written_through(tree: Path, name: str) -> None:
    """Who may push to the tree chooses no file of who publishes."""
    mine = tree.parent / "mine"
    mine.write_text("mine")
    folder = audit_git.folder_of(tree, ORIGIN)
    folder.mkdir(parents=True)
    (folder / name).symlink_to(mine)
    audit_git.publish(tree, folder, b"note", size=1, origin=ORIGIN)
    assert mine.read_text() == "mine"
    assert ((folder / "latest").is_symlink(), (folder / "latest").read_bytes()) == (False, b"note")


def test_a_link_out_of_the_tree_is_refused(tree: Path) -> None:
    """Nothing is written behind it."""
    outside = tree.parent / "outside"
    outside.mkdir()
    folder = audit_git.folder_of(tree, ORIGIN)
    (tree / "checkpoints").symlink_to(outside)
    with pytest.raises(RequestInvalid, match="leads out of the work tree"):
        audit_git.publish(tree, folder, b"note", size=1, origin=ORIGIN)
    assert list(outside.iterdir()) == []
