"""Which tests a change touches: those that import it, start it, use its fixtures or name it; in doubt, all."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.changed import EVERYTHING, ROOT, differs, touched

FILES = {
    "src/sdk/attestation/__init__.py": "",
    "src/sdk/attestation/wire.py": "",
    "src/sdk/attestation/clock.py": "",
    "src/sdk/attestation/envelope.py": "from attestation import wire",
    "src/cli/attestation_cli/commands/lock.py": "",
    "src/agent/pyproject.toml": '[project]\nscripts = {attestation-agent = "attestation_agent.main:main"}',
    "src/agent/attestation_agent/main.py": "import attestation.clock\nTEXT = 'attestation-agent'",
    "tests/conftest.py": "pytest_plugins = ['tests.fixtures.tpm']",
    "tests/fixtures/tpm.py": "import pytest\nimport attestation.clock\n@pytest.fixture\ndef tpm():\n    pass",
    "tests/unit/test_wire.py": "import attestation.wire",
    "tests/unit/test_envelope.py": "def test_it():\n    from attestation.envelope import seal",
    "tests/unit/test_tpm.py": "def test_it(tpm): ...",
    "tests/unit/cli/conftest.py": "",
    "tests/unit/cli/test_cli.py": "PAGE = 'install.md'",
    "tests/e2e/test_agent.py": "from pathlib import Path\nAGENT = Path('bin').with_name('attestation-agent')",
    "docs/install.md": "",
    "deploy/nginx.conf": "",
}
ALL = sorted(name for name in FILES if name.rpartition("/")[2].startswith("test_"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in small."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("src/sdk/attestation/wire.py", ["tests/unit/test_envelope.py", "tests/unit/test_wire.py"]),
        ("src/sdk/attestation/envelope.py", ["tests/unit/test_envelope.py"]),
        ("src/sdk/attestation/clock.py", ["tests/e2e/test_agent.py", "tests/unit/test_tpm.py"]),
        ("src/agent/attestation_agent/main.py", ["tests/e2e/test_agent.py"]),
        ("src/cli/attestation_cli/commands/lock.py", [EVERYTHING]),  # imported by a name in a string
        ("tests/fixtures/tpm.py", ["tests/unit/test_tpm.py"]),
        ("tests/unit/test_wire.py", ["tests/unit/test_wire.py"]),
        ("tests/unit/cli/conftest.py", ["tests/unit/cli/test_cli.py"]),
        ("tests/conftest.py", ALL),
        ("docs/install.md", ["tests/unit/cli/test_cli.py"]),  # and tests/docs, where there is one
        ("deploy/nginx.conf", [EVERYTHING]),
        ("tests/vectors/quote.bin", [EVERYTHING]),
        ("pyproject.toml", [EVERYTHING]),
    ],
)
def test_a_change_touches(root: Path, file: str, tests: list[str]) -> None:
    """Those that import it, directly or through others; that start it; that use its fixtures; that name it."""
    assert touched([file], root) == tests


def test_what_was_found_is_kept_until_the_file_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time, nothing is parsed; a file or a program that changed is read again."""
    (root / ".tools").mkdir()
    first = touched(["src/sdk/attestation/clock.py"], root)
    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", None)
        assert touched(["src/sdk/attestation/clock.py"], root) == first
    (root / "tests/unit/test_wire.py").write_text("import attestation.clock", encoding="utf-8")
    assert touched(["src/sdk/attestation/clock.py"], root) == sorted([*first, "tests/unit/test_wire.py"])
    (root / "src/agent/pyproject.toml").write_text("[project]\nscripts = {}", encoding="utf-8")
    assert touched(["src/agent/attestation_agent/main.py"], root) == [EVERYTHING]
    (root / ".tools/changed.json").write_text("{", encoding="utf-8")
    assert touched(["src/sdk/attestation/wire.py"], root) == ["tests/unit/test_envelope.py"]


def test_what_is_deleted_touches_who_imported_it(root: Path) -> None:
    """They will fail, which is what the run is for; a deleted test cannot be run."""
    (root / "src/sdk/attestation/wire.py").unlink()
    (root / "tests/unit/test_wire.py").unlink()
    deleted = ["src/sdk/attestation/wire.py", "tests/unit/test_wire.py"]
    assert touched(deleted, root) == ["tests/unit/test_envelope.py"]


def test_a_page_touches_the_tests_of_documentation(root: Path) -> None:
    """Whether or not a test names it."""
    (root / "tests/docs").mkdir()
    assert "tests/docs" in touched(["docs/install.md"], root)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed, and needed by --changed alone")
def test_the_change(root: Path) -> None:
    """On a branch since it left main, and what is not committed; on a clean main the last commit."""

    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True
        )

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    (root / "first").touch()
    git("add", ".")
    git("commit", "-qm", "two")
    assert differs(root) == {"first"}
    (root / "docs/install.md").write_text("text", encoding="utf-8")
    (root / "new").touch()
    assert differs(root) == {"docs/install.md", "new"}
    git("checkout", "-qb", "branch")
    git("mv", "deploy/nginx.conf", "deploy/caddy.conf")
    git("commit", "-qam", "three")
    assert differs(root) == {"docs/install.md", "new", "deploy/nginx.conf", "deploy/caddy.conf"}


@pytest.mark.parametrize(
    ("answer", "runs"),
    [("everything", "pytest --co -q"), ("tests/x.py", "pytest -q -n 2 --dist loadfile tests/x.py --co -q")],
)
def test_arguments_of_pytest_are_kept(tmp_path: Path, answer: str, runs: str) -> None:
    """`--changed --co -q` only names tests, also where the change touches all of them."""
    programs = tmp_path / ".tools/bin"
    programs.mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/bootstrap.sh").write_text("say() { :; }\n")
    script = (ROOT / "dev").read_text(encoding="utf-8")
    (tmp_path / "dev").write_text(re.sub(r"^ +ensure_.*\n", "", script, flags=re.MULTILINE))
    for name, does in (("python", f"echo {answer}"), ("pytest", 'echo pytest "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    told = subprocess.run(
        ["bash", tmp_path / "dev", "test", "--changed", "--co", "-q"],
        check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert told.stdout.strip() == runs
