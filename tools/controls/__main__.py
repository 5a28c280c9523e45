"""Delete each control of SECURITY.md on trial and see the named tests fail: `python -m tools.controls [T24 …]`.

A control is deleted by a change of its source, written down in `tools/controls/*.toml`:

    [[T24]]
    file = "src/sdk/attestation/machines/lifecycle.py"
    old = "text that stands there exactly once"
    new = "what stands there without the control"
    tests = ["tests/unit/machines/test_lifecycle.py::test_every_pair"]     # named in the row; each must fail

Everything happens in a copy of the tree, so the one at hand is never without a control. `--list` names the tests of
rows that no deletion makes fail yet.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
COPIED: Final = (
    "src",
    "tests",
    "tools",
    "docs",
    "deploy",
    "pyproject.toml",
    "SECURITY.md",
    "README.md",
    "dev",
)
MEMBERS: Final = ("sdk", "agent", "service", "cli")
SECONDS: Final = 600
ROW: Final = re.compile(r"^\| \*\*(T\d+)\*\* (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
TEST: Final = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


@dataclass(frozen=True, slots=True)
class Deletion:
    """One control, taken out.

    Args:
        row: The threat that it answers, such as `T24`.
        file: Its source, from the root of the project.
        old: Text that stands there exactly once.
        new: What stands there without the control.
        tests: Those of the row that must fail then.
    """

    row: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def wrong(self, rows: dict[str, tuple[str, ...]], root: Path = ROOT) -> str | None:
        """Say what does not fit the tree or the row; None where it fits."""
        source = root / self.file
        if self.row not in rows:
            return "no such row"
        if not source.is_file():
            return f"{self.file}: no such file"
        if (found := source.read_text(encoding="utf-8").count(self.old)) != 1:
            return f"{self.file}: the text to delete stands there {found} times"
        if self.old == self.new:
            return "it deletes nothing"
        if not self.tests or set(self.tests) - set(rows[self.row]):
            return "it names no test, or one that the row does not name"
        return None


def rows_of(page: str) -> dict[str, tuple[str, ...]]:
    """Return the tests that each row of SECURITY.md names."""
    return {row: tuple(TEST.findall(tests)) for row, _, _, tests in ROW.findall(page)}


def rows() -> dict[str, tuple[str, ...]]:
    """Return the rows of SECURITY.md."""
    return rows_of((ROOT / "SECURITY.md").read_text(encoding="utf-8"))


def deletions(folder: Path = HERE) -> Iterator[Deletion]:
    """Read every deletion that is written down."""
    for file in sorted(folder.glob("*.toml")):
        document: dict[str, list[dict[str, Any]]] = tomllib.loads(file.read_text(encoding="utf-8"))
        for row, entries in document.items():
            for entry in entries:
                yield Deletion(row, entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))


def copy_of(tree: Path, place: Path) -> Path:
    """Copy what tests need of *tree* to *place*."""
    for name in COPIED:
        source = tree / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, place / name)
    for shared in (".tools", ".venv"):
        (place / shared).symlink_to(tree / shared)
    return place


def try_out(deletion: Deletion, place: Path) -> list[str]:
    """Delete a control in the copy at *place*, run its tests, put it back; return those that passed all the same."""
    source = place / deletion.file
    whole = source.read_text(encoding="utf-8")
    source.write_text(whole.replace(deletion.old, deletion.new), encoding="utf-8")
    paths = [str(place / "src" / member) for member in MEMBERS]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, str(place)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    survived = []
    try:
        for test in deletion.tests:
            run = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:randomly",
                "-p",
                "no:cacheprovider",
                test,
            ]
            done = subprocess.run(
                run, cwd=place, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            # 1: tests ran and one failed. Whatever else happened is no proof that the test looks at the control.
            if done.returncode != 1 or " failed" not in done.stdout:
                survived.append(f"{test} (exit {done.returncode}: {done.stdout.strip().splitlines()[-1:]})")
    finally:
        source.write_text(whole, encoding="utf-8")
    return survived


def main() -> int:
    """Try the deletions that were asked for; return 1 where a test survived one."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("rows", nargs="*", help="rows such as T24; all without any")
    asked.add_argument("--list", action="store_true", help="name the tests that no deletion makes fail yet")
    flags = asked.parse_args()
    known, written = rows(), list(deletions())
    if flags.list:
        covered = {(d.row, test) for d in written for test in d.tests}
        for row, tests in known.items():
            for test in tests:
                if (row, test) not in covered:
                    print(row, test)
        return 0
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        place = copy_of(ROOT, Path(folder))
        for deletion in written:
            if flags.rows and deletion.row not in flags.rows:
                continue
            if wrong := deletion.wrong(known):
                print(f"{deletion.row} {deletion.file}: {wrong}")
                status = 1
                continue
            survived = try_out(deletion, place)
            status = status or int(bool(survived))
            print(
                f"{deletion.row} {deletion.file}: {'SURVIVED by ' + ', '.join(survived) if survived else 'seen'}",
                flush=True,
            )
    return status


if __name__ == "__main__":
    sys.exit(main())
