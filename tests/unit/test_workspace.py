"""The workspace holds together: one version, one set of dependencies, one lock, nothing of anybody's machine."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tools import locks

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = sorted(path.parent.name for path in ROOT.glob("src/*/pyproject.toml"))
SPDX = "Apache-2.0"


def _toml(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


WORKSPACE = _toml("pyproject.toml")
PROJECTS: dict[str, dict[str, Any]] = {
    name: _toml(f"src/{name}/pyproject.toml")["project"] for name in MEMBERS
}


def _requirements(project: dict[str, Any]) -> list[Requirement]:
    lines = list(project["dependencies"])
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra
    return [Requirement(line) for line in lines]


def _tracked() -> list[str]:
    """Return the files under version control, or skip where there is none (an unpacked archive)."""
    git = shutil.which("git")
    listed = git and subprocess.run(
        [git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not listed or listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_workspace_repeats_exactly_what_its_members_need() -> None:
    """The lock is made from the workspace: a need that only a member names would not be locked."""
    needed = {
        str(requirement)
        for project in PROJECTS.values()
        for requirement in _requirements(project)
        if not requirement.name.startswith("itl-attestation-")
    }
    assert {str(Requirement(line)) for line in WORKSPACE["project"]["dependencies"]} == needed


def test_members_are_released_together() -> None:
    """Every member has the workspace's version and asks for exactly that version of the others."""
    version = WORKSPACE["project"]["version"]
    for project in PROJECTS.values():
        assert project["version"] == version
        for requirement in _requirements(project):
            if requirement.name.startswith("itl-attestation-"):
                assert str(requirement.specifier) in ("", f"=={version}"), requirement


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_says_what_it_is(member: str) -> None:
    """Each member has a licence, a readme of its own, and ships one typed import package."""
    project = PROJECTS[member]
    assert project["license"] == SPDX
    readme = (ROOT / "src" / member / project["readme"]).read_text(encoding="utf-8")
    assert readme.startswith(f"# {project['name']}\n")
    assert len(readme.split()) > 30
    packages = _toml(f"src/{member}/pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert len(packages) == 1
    assert (ROOT / "src" / member / packages[0] / "py.typed").is_file()


@pytest.mark.threat("T33")
def test_the_lock_pins_everything_with_hashes_and_no_address() -> None:
    """Whoever serves the packages, only the bytes that were locked are installed."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50
    for block in blocks:
        assert re.match(r"[a-z0-9._-]+(\[[a-z0-9,-]+\])?==[^ ]+", block), block.splitlines()[0]
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_lock_holds_every_need() -> None:
    """Nothing that the workspace names is missing from the lock, and what is locked satisfies it."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", lock, flags=re.MULTILINE):
        locked.setdefault(name.replace("_", "-").replace(".", "-"), []).append(version)
    lines = WORKSPACE["project"]["dependencies"] + WORKSPACE["dependency-groups"]["dev"]
    for requirement in map(Requirement, lines):
        versions = locked.get(requirement.name.lower().replace("_", "-").replace(".", "-"), [])
        assert versions, f"{requirement} is not locked"
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def _closure(names: set[tuple[str, str]]) -> set[str]:
    """Return what is installed for distributions with their extras, as their own metadata say; ours stay out."""
    found, todo = set[tuple[str, str]](), set(names)
    while todo:
        name, extra = todo.pop()
        found.add((name, extra))
        for line in importlib.metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo |= {(locks.normal(need.name), e) for e in ("", *need.extras)} - found
    return {name for name, _ in found if not name.startswith("itl-attestation-")}


def _applying(lock: str) -> set[str]:
    """Return the names of a lock whose markers hold here."""
    pins = [Requirement(line.rstrip(" \\")) for line in lock.splitlines() if re.match("[a-z0-9]", line)]
    return {locks.normal(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate()}


@pytest.mark.threat("T167")
def test_the_locks_of_the_installables_are_cut_from_the_one() -> None:
    """The files are what `./dev lock` writes: the same versions with the same hashes, and no other file lies there."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    written = {path.name: path.read_text(encoding="utf-8") for path in locks.LOCKS.iterdir()}
    assert written == locks.locks(lock), "run ./dev lock"
    for name, text in written.items():
        for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block, name
            assert block in re.sub(r"^ +#.*\n", "", lock, flags=re.MULTILINE), f"{name}: {block.split()[0]}"


@pytest.mark.threat("T167")
@pytest.mark.parametrize("member", locks.INSTALLABLES)
def test_a_lock_is_complete_for_its_wheel_and_holds_nothing_else(member: str) -> None:
    """Judged by the metadata of what is installed here, not by the comments that the lock is cut along."""
    name = f"itl-attestation-{member}"
    lock = (locks.LOCKS / f"{member}.lock").read_text(encoding="utf-8")
    assert _applying(lock) == _closure({(name, "")})
    assert not {"pytest", "atheris", "hypothesis", "mypy"} & set(locks.blocks_of(lock))
    for extra in PROJECTS[member].get("optional-dependencies", {}):
        more = (locks.LOCKS / f"{member}-{extra}.lock").read_text(encoding="utf-8")
        assert _applying(lock) | _applying(more) == _closure({(name, ""), (name, extra)})
        assert not set(locks.blocks_of(lock)) & set(locks.blocks_of(more))


@pytest.mark.threat("T167")
def test_what_builds_the_wheels_is_locked_too() -> None:
    """Otherwise the newest hatchling of the day would run as whoever installs."""
    needs = {
        need
        for member in MEMBERS
        for need in _toml(f"src/{member}/pyproject.toml")["build-system"]["requires"]
    }
    lock = (locks.LOCKS / "build.lock").read_text(encoding="utf-8")
    assert _applying(lock) == _closure({(locks.normal(Requirement(need).name), "") for need in needs})


def test_the_script_installs_every_member() -> None:
    """They are listed by name; a new one must be added there."""
    script = (ROOT / "tools/bootstrap.sh").read_text(encoding="utf-8")
    listed = re.search(r"^members=\(([a-z ]+)\)$", script, flags=re.MULTILINE)
    assert listed is not None
    assert sorted(listed[1].split()) == MEMBERS


def test_there_is_one_lock() -> None:
    """A `uv.lock` would carry the addresses of an index."""
    assert not (ROOT / "uv.lock").exists()
    assert "uv.lock" not in _tracked()


def test_the_scripts_can_be_run() -> None:
    """`./dev` and `.ci/run` keep their run bit."""
    for name in ("dev", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name


def test_no_path_of_a_machine_is_tracked() -> None:
    """Nothing in the project knows where it was written."""
    # A checkout at /src or a home at / says nothing: such a path is part of many others.
    places = [str(place) for place in (ROOT, Path.home()) if len(place.parts) > 2 or str(place) == "/root"]
    if not places:
        pytest.skip("the checkout's place is not distinctive")
    pattern = re.compile(rb"(?<![\w.~-])(?:" + b"|".join(re.escape(p.encode()) for p in places) + rb")/")
    for name in _tracked():
        assert not pattern.findall((ROOT / name).read_bytes()), name


def test_what_is_shipped_needs_nothing_beside_the_project() -> None:
    """Test vectors may lie beside the project; the members never look there."""
    for path in (ROOT / "src").rglob("*.py"):
        assert "../shared" not in path.read_text(encoding="utf-8"), path


def test_nothing_generated_is_tracked() -> None:
    """Environments, caches, keys and databases stay out of the history."""
    for name in _tracked():
        path = Path(name)
        assert not {".venv", ".tools", ".run", "__pycache__", ".hypothesis"} & set(path.parts), name
        assert path.suffix not in {".pyc", ".db", ".sqlite", ".sqlite3", ".swtpm", ".log"}, name
        assert path.stat().st_size < 2_000_000, name
