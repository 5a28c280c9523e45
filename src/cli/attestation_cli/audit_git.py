"""Checkpoints in a Git work tree: evidence outside the service, for those who want it without witnesses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation_cli.audit_proof import put

LATEST: Final = "latest"
GIT_SECONDS: Final = 120
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def folder_of(tree: Path, origin: str) -> Path:
    """Return where the checkpoints of the log *origin* are in *tree*.

    Raises:
        RequestInvalid: *tree* is no Git work tree.
    """
    if git(tree, "rev-parse", "--is-inside-work-tree") != "true":
        raise RequestInvalid(f"{tree}: not a Git work tree")
    return tree / "checkpoints" / name_of(origin)


def name_of(origin: str) -> str:
    """Return what the directory of the log *origin* is called."""
    return _UNSAFE.sub("-", origin).strip(".-") or "log"


def is_published(tree: Path, folder: Path, *, size: int) -> bool:
    """Return True where a commit has the checkpoint of *size*: a file alone may be of a commit that failed."""
    path = _path_of(folder, size)
    name = str(path.relative_to(tree))
    # What is ignored counts too: `git add` then refuses in words.
    return path.exists() and not git(tree, "status", "--porcelain", "--ignored", "--", name)


def publish(tree: Path, folder: Path, note: bytes, *, size: int, origin: str) -> list[Path]:
    """Write *note* into *folder* under its size and as the latest, and commit both; return their paths.

    Raises:
        RequestInvalid: It cannot be written, or Git refuses.
    """
    paths = [_path_of(folder, size), folder / LATEST]
    try:
        # Others commit to this tree too: a link of theirs must not lead out of it.
        if not folder.resolve().is_relative_to(tree.resolve()):
            raise RequestInvalid(f"{folder}: a link leads out of the work tree")
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            put(path, note)
    except OSError as e:
        raise RequestInvalid(f"{folder}: {e.strerror}") from e
    names = [str(path.relative_to(tree)) for path in paths]
    git(tree, "add", "--", *names)
    # Of what else is staged nothing goes in.
    git(tree, "commit", "--quiet", "-m", f"checkpoint of {origin}: {size} entries", "--", *names)
    return paths


def _path_of(folder: Path, size: int) -> Path:
    return folder / f"{size:012d}.checkpoint"


def git(tree: Path, *words: str) -> str:
    """Run git in *tree*; return what it printed.

    Raises:
        RequestInvalid: It is not installed, or refuses, in its words.
    """
    try:
        done = subprocess.run(  # noqa: S603 -- words of ours, and paths behind --
            ["git", "-C", str(tree), *words],  # noqa: S607 -- the operator's own git
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except FileNotFoundError:
        raise RequestInvalid("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise RequestInvalid(f"git {words[0]}: no end within {GIT_SECONDS} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RequestInvalid(f"git {words[0]}: {clean(said[-1] if said else str(done.returncode))}")
    return done.stdout.strip()
