"""Delete each control of SECURITY.md on trial and see its tests fail: `python -m tools.controls [T24 …]`.

A test names the threats that it holds: `@pytest.mark.threat("T24")`. `--table` shows the tests of each threat.

A control is deleted by a change of its source, written down in `tools/controls/*.toml`:

    [[T24]]
    file = "src/sdk/attestation/machines/lifecycle.py"
    old = "text that stands there exactly once"
    new = "what stands there without the control"
    tests = ["tests/unit/machines/test_lifecycle.py::test_every_pair"]     # marked with the threat; each must fail

A control that stands in more places than one has the others in `also = [{ file = …, old = …, new = … }]`.

Everything happens in a copy of the tree, so the one at hand is never without a control. The tests of one deletion run
in one process; what each of them said without the control is shown with `-v`: read it once, for a test must miss the
control, not stumble over the way it was taken out. `--intact` runs them first with every control in place. `--list`
names the threats, and the tests of threats, that no deletion makes fail yet.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
COPIED: Final = (
    "src",
    "tests",
    "tools",
    "docs",
    "deploy",
    "pyproject.toml",
    "requirements.lock",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "README.md",
    "dev",
)
MEMBERS: Final = ("sdk", "agent", "service", "operator", "web", "cli", "extensions", "testing")
PRELOADED: Final = (
    "hypothesis.stateful",
    "schemathesis",
    "sqlalchemy.orm",
    "fastapi",
    "httpx",
    "uvicorn",
    "joserfc.jwt",
    "pkcs11",
)
"""What costs seconds to import and is not ours: imported once, before the processes of the deletions are forked."""
SECONDS_PER_TEST: Final = 300
SECONDS: Final = 1800
MARK: Final = "pytest.mark.threat"
ROW: Final = re.compile(r"^\| (T\d+(?:, T\d+)*) \| .+ \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one file.

    Args:
        file: A path from the root of the project.
        old: Text that stands there exactly once.
        new: What stands there afterwards.
    """

    file: str
    old: str
    new: str

    def wrong(self, root: Path) -> str | None:
        """Say what does not fit the tree; None where it fits."""
        source = root / self.file
        if not source.is_file():
            return f"{self.file}: no such file"
        if (found := source.read_text(encoding="utf-8").count(self.old)) != 1:
            return f"{self.file}: the text to delete stands there {found} times"
        return "it deletes nothing" if self.old == self.new else None


@dataclass(frozen=True, slots=True)
class Deletion:
    """One control, taken out.

    Args:
        threat: The threat that it answers, such as `T24`.
        edits: What takes it out.
        tests: Those marked with the threat that must fail then.
        chapter: The file of `tools/controls` that says so, without its ending.
    """

    threat: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    chapter: str

    @property
    def file(self) -> str:
        """Where the control stands."""
        return self.edits[0].file

    def wrong(self, known: dict[str, tuple[str, ...]], root: Path = ROOT) -> str | None:
        """Say what does not fit the tree or the marked tests; None where it fits."""
        if self.threat not in known:
            return "no such threat"
        if not self.tests or set(self.tests) - set(known[self.threat]):
            return "it names no test, or one that is not marked with the threat"
        return next((wrong for edit in self.edits if (wrong := edit.wrong(root))), None)


def threats(page: str) -> list[str]:
    """Return the ids that stand in the tables of SECURITY.md, as often as they stand there."""
    return [threat for ids in ROW.findall(page) for threat in ids.split(", ")]


def _number(threat: str) -> int:
    return int(threat[1:])


def marked(folder: Path = ROOT / "tests") -> dict[str, tuple[str, ...]]:
    """Return the tests that are marked with each threat.

    Raises:
        ValueError: A marker stands elsewhere than above a function of a module, or names no literal.
    """
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if MARK not in source:
            continue
        module, seen = ast.parse(source), 0
        for test in module.body:
            if isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for mark in test.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                        seen += 1
                        for threat in mark.args:
                            name = f"{file.relative_to(folder.parent)}::{test.name}"
                            found.setdefault(ast.literal_eval(threat), []).append(name)
        written = [n for n in ast.walk(module) if isinstance(n, ast.Attribute) and ast.unparse(n) == MARK]
        if len(written) != seen:
            raise ValueError(f"{file}: {MARK} belongs above a function of the module")
    return {threat: tuple(found[threat]) for threat in sorted(found, key=_number)}


def deletions(folder: Path = HERE) -> Iterator[Deletion]:
    """Read every deletion that is written down."""
    for file in sorted(folder.glob("*.toml")):
        document: dict[str, list[dict[str, Any]]] = tomllib.loads(file.read_text(encoding="utf-8"))
        for threat, entries in document.items():
            for entry in entries:
                edits = tuple(Edit(e["file"], e["old"], e["new"]) for e in (entry, *entry.get("also", ())))
                yield Deletion(threat, edits, tuple(entry["tests"]), file.stem)


def copy_of(tree: Path, place: Path) -> Path:
    """Copy what tests need of *tree* to *place*, with what Python has compiled of it."""
    for name in COPIED:
        source = tree / name
        if source.is_dir():
            shutil.copytree(source, place / name)
        elif source.exists():
            shutil.copy2(source, place / name)
    (place / ".tools").symlink_to(tree / ".tools")
    _environment_of(tree, place)
    return place


def _environment_of(tree: Path, place: Path) -> None:
    """Make `.venv` of the copy: what is installed in that of *tree*, but ours from the copy.

    Otherwise a process that a test starts would run what nobody changed.
    """
    source, made = tree / ".venv", place / ".venv"
    (made / "bin").mkdir(parents=True)
    shutil.copy(source / "pyvenv.cfg", made)
    for each in (source / "bin").iterdir():
        is_script = not each.is_symlink() and each.read_bytes()[:2] == b"#!"
        if is_script:
            script = made / "bin" / each.name
            script.write_bytes(each.read_bytes().replace(bytes(source), bytes(made)))
            script.chmod(0o755)
        else:
            (made / "bin" / each.name).symlink_to(each)
    (packages,) = source.glob("lib/python*/site-packages")
    (made / packages.relative_to(source)).mkdir(parents=True)
    for each in packages.iterdir():
        linked = made / each.relative_to(source)
        if each.suffix == ".pth":
            linked.write_text(each.read_text("utf-8").replace(str(tree), str(place)), encoding="utf-8")
        else:
            linked.symlink_to(each)


def _child(tests: tuple[str, ...], place: Path) -> None:
    """Run *tests* in the copy at *place*, in a process that has imported nothing of ours yet."""
    with (place / "said").open("wb") as said:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
    os.chdir(place)
    for name in [name for name in sys.modules if name.split(".")[0] in {"tools", "tests"}]:
        del sys.modules[name]
    first = [str(place), *(str(place / "src" / member) for member in MEMBERS)]
    sys.path[:] = [*first, *(each for each in sys.path if each not in {"", str(ROOT)})]
    sys.executable = str(place / ".venv" / "bin" / "python")
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(first),
        "CONTROLS_OUTCOMES": str(place / "outcomes.json"),
    }
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tools.controls.outcomes"]
    quiet = [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]  # what is imported already cannot be rewritten
    code = pytest.main([*options, *quiet, f"--timeout={SECONDS_PER_TEST}", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def run(tests: Iterable[str], place: Path) -> dict[str, tuple[str, str]]:
    """Run *tests* in the copy at *place*; return for each what became of it, and what it said."""
    tests, seen = tuple(tests), place / "outcomes.json"
    seen.unlink(missing_ok=True)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(tests, place))
    child.start()
    child.join(SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
    said = (place / "said").read_text(encoding="utf-8", errors="replace").strip()[-1000:]
    found: dict[str, list[str]] = json.loads(seen.read_text(encoding="utf-8")) if seen.is_file() else {}
    return {test: (found[test][0], found[test][1]) if test in found else ("not run", said) for test in tests}


def try_out(
    edits: Iterable[Edit], tests: Iterable[str], place: Path, instant: int
) -> dict[str, tuple[str, str]]:
    """Delete a control in the copy at *place*, run *tests*, put it back; return what became of each.

    Args:
        edits: What takes it out.
        tests: Those that must miss it.
        place: A copy of the tree.
        instant: When the changed files were written, as their dates say: another for each deletion, for Python tells
            by size and date alone whether it has compiled a file.
    """
    whole = {
        name: ((place / name).read_text("utf-8"), (place / name).stat()) for name in {e.file for e in edits}
    }
    try:
        for edit in edits:
            source = place / edit.file
            source.write_text(source.read_text("utf-8").replace(edit.old, edit.new), encoding="utf-8")
            os.utime(source, (instant, instant))
        return run(tests, place)
    finally:
        for name, (text, stat) in whole.items():
            (place / name).write_text(text, encoding="utf-8")
            os.utime(place / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def show(test: str, outcome: tuple[str, str], *, lines: int) -> None:
    """Print what became of *test*."""
    print(f"    {outcome[0]:8} {test}")
    for line in outcome[1].splitlines()[:lines]:
        print(f"             {line[:200]}")


def missing(known: dict[str, tuple[str, ...]], written: list[Deletion]) -> Iterator[str]:
    """Yield the threats without a deletion, then the tests that no deletion of their threat makes fail."""
    covered = {(d.threat, test) for d in written for test in d.tests}
    yield from (f"{threat} has no deletion" for threat in known if threat not in {d.threat for d in written})
    for threat, tests in known.items():
        yield from (f"{threat} {test}" for test in tests if (threat, test) not in covered)


def main() -> int:
    """Try the deletions that were asked for; return 1 where a test survived one."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument(
        "threats",
        nargs="*",
        help="threats such as T24 or T24-T33, or chapters such as quotes; all without any",
    )
    asked.add_argument("--table", action="store_true", help="show the tests of each threat")
    asked.add_argument(
        "--list", action="store_true", help="name the threats and tests that no deletion makes fail yet"
    )
    asked.add_argument(
        "--intact", action="store_true", help="first run the tests with every control in place"
    )
    asked.add_argument(
        "-v", "--verbose", action="store_true", help="show what each test said without the control"
    )
    flags = asked.parse_args()
    # What is compiled is kept, whatever the caller's shell says: every process of every test needs it.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    known, written = marked(), list(deletions())
    if flags.table:
        print(*(f"{threat} {test}" for threat, tests in known.items() for test in tests), sep="\n")
        return 0
    if flags.list:
        print(*missing(known, written), sep="\n")
        return 0
    wanted = set()
    for word in flags.threats:
        first, _, last = word.partition("-")
        wanted |= {f"T{i}" for i in range(int(first[1:]), int(last[1:]) + 1)} if last else {word}
    if unknown := wanted - known.keys() - {d.chapter for d in written}:
        asked.error(f"no such threat or chapter: {', '.join(sorted(unknown))}")
    chosen = [d for d in written if not wanted or d.threat in wanted or d.chapter in wanted]
    bad = 0
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        place = copy_of(ROOT, Path(folder))
        if flags.intact:
            for test, outcome in run(dict.fromkeys(t for d in chosen for t in d.tests), place).items():
                if outcome[0] != "passed":
                    bad += 1
                    show(test, outcome, lines=20)
        # What several threats rest on is deleted once, for the tests of all of them.
        together: dict[tuple[Edit, ...], list[Deletion]] = {}
        for deletion in chosen:
            if wrong := deletion.wrong(known):
                print(f"{deletion.threat} {deletion.file}: {wrong}")
                bad += 1
            else:
                together.setdefault(deletion.edits, []).append(deletion)
        for instant, (edits, rested) in enumerate(together.items(), start=1):
            began = time.monotonic()
            tests = tuple(dict.fromkeys(test for d in rested for test in d.tests))
            outcomes = try_out(edits, tests, place, instant)
            survived = [test for test, (became, _) in outcomes.items() if became != "failed"]
            bad += len(survived)
            verdict = f"{len(survived)} SURVIVED" if survived else "seen"
            named = ", ".join(dict.fromkeys(d.threat for d in rested))
            print(f"{named} {edits[0].file}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
            for test, outcome in outcomes.items():
                if flags.verbose or test in survived:
                    show(test, outcome, lines=6 if flags.verbose else 2)
    covered = {(d.threat, test) for d in chosen for test in d.tests}
    print(
        f"{len(chosen)} deletions, {len({d.threat for d in chosen})} threats, {len(covered)} tests; {bad} to look at"
    )
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
