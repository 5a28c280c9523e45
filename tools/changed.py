"""Name the tests that a change touches, one a line: what `./dev test --changed` runs.

The change is what differs from where this branch left `main`, with what is not committed; on `main` itself what is not
committed, else the last commit. A Python file touches the tests that import it, directly or through others. A string
that is the name of a module or begins with a program of ours counts as an import: tests start processes. So does the
name of a fixture, of the file that has it; a `conftest.py` touches every test below it. A page touches `tests/docs`.
Any other file touches the tests that name it; where none does, and for what all tests rest on, the answer is
`everything`. What the files say is kept in `.tools/changed.json`, each under the hash of the file.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FIXTURE: Final = "fixture "
EVERYTHING: Final = "everything"
ALL_REST_ON: Final = frozenset(("dev", "pyproject.toml", "requirements.lock", "tools/bootstrap.sh"))


def module_of(path: str) -> str:
    """Return the name that the file at *path*, from the root, is imported by."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    parts = parts[2:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, programs: Mapping[str, str], *, strings: bool) -> Iterator[str]:
    """Give the modules that a file imports, the packages above them, what its strings name, and its parameters."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            strings and isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split()
        ):
            word = node.value.split(maxsplit=1)[0].rpartition("/")[2]
            yield FIXTURE + word
            # Plugins, which every test has, are known by their fixtures.
            names = [] if word.startswith("tests.") else [programs.get(word, word)]
        elif isinstance(node, ast.arg):
            yield FIXTURE + node.arg
        for name in names:
            parts = name.partition(":")[0].split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def fixtures(file: str, tree: ast.Module) -> list[str]:
    """Return the names of the fixtures that a file defines for other files."""
    if not file.startswith("tests/") or PurePosixPath(file).name.startswith("test_"):
        return []
    made = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in made if any("fixture" in ast.unparse(each) for each in node.decorator_list)]


def said(sources: Mapping[str, str], programs: Mapping[str, str], kept: Path) -> dict[str, list[list[str]]]:
    """Return what `imports` and `fixtures` find in each file, from *kept* where the file is as it was then."""
    try:
        known = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    rules = hashlib.sha256(f"{Path(__file__).read_text(encoding='utf-8')}{sorted(programs.items())}".encode())
    found = {}
    for file, source in sources.items():
        digest = rules.copy()
        digest.update(source.encode())
        found[file] = known.get(file)
        if found[file] is None or found[file][0] != digest.hexdigest():
            tree = ast.parse(source)
            # What is shipped names modules in strings too (commands, lazy members, entry points): see `touched`.
            names = sorted(set(imports(tree, programs, strings=not file.startswith("src/"))))
            found[file] = [digest.hexdigest(), names, fixtures(file, tree)]
    if found != known and kept.parent.is_dir():
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(found), encoding="utf-8")
        new.replace(kept)
    return {file: facts[1:] for file, facts in found.items()}


def touched(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files that a change of the files *changed* touches, sorted; or `everything`."""
    programs: dict[str, str] = {}
    for project in root.glob("src/*/pyproject.toml"):
        programs |= tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("scripts", {})
    paths = (path for folder in ("src", "tests", "tools") for path in sorted((root / folder).rglob("*.py")))
    files = [str(path.relative_to(root)) for path in paths]
    sources = {file: (root / file).read_text(encoding="utf-8") for file in files}
    tests = [file for file in files if PurePosixPath(file).name.startswith("test_")]
    facts = said(sources, programs, root / ".tools/changed.json")
    users: dict[str, set[str]] = {}
    for file, (names, _) in facts.items():
        for name in names:
            users.setdefault(name, set()).add(file)

    def reached(due: list[str]) -> set[str]:
        seen: set[str] = set()
        while due:
            file = due.pop()
            if file in seen:
                continue
            seen.add(file)
            due += users.get(module_of(file), ())
            below = PurePosixPath(file).parent if file.endswith("conftest.py") else PurePosixPath("tests")
            for name in facts[file][1] if file in facts else ():
                due += (
                    each for each in users.get(FIXTURE + name, ()) if below in PurePosixPath(each).parents
                )
        return seen.intersection(tests)

    found: set[str] = set()
    for file in changed:
        path = PurePosixPath(file)
        if path.suffix == ".py":
            beside = path.parent if path.name == "conftest.py" else None
            named = [*reached([file]), *(test for test in tests if beside in PurePosixPath(test).parents)]
        else:
            named = [test for test in tests if path.name in sources[test]]
            named += ["tests/docs"] if path.suffix == ".md" else []
        # What is shipped and reached by no test is imported by a name in a string: a command, a migration.
        ours = path.suffix == ".py" and not file.startswith("src/")
        if file in ALL_REST_ON or not (named or ours):
            return [EVERYTHING]
        found.update(named)
    return sorted(file for file in found if (root / file).exists())


def differs(root: Path = ROOT) -> set[str]:
    """Return the files of the change."""

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    new = git("ls-files", "--others", "--exclude-standard", "--full-name")
    since = git("merge-base", "HEAD", "main")[0]
    if since == git("rev-parse", "HEAD")[0] and not git("status", "--porcelain"):
        since = "HEAD~"
    return {*git("diff", "--name-only", "--no-renames", since), *new}


if __name__ == "__main__":
    print("\n".join(touched(sys.argv[1:] or differs())))
