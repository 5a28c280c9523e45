"""The exercise itself: what it calls seen is a test that failed because of what was deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.controls.__main__ import Deletion, Edit, missing, run, try_out

CODE = "def allowed(age: int) -> bool:\n    return age >= 18\n"
TESTS = """
import pytest, rule

@pytest.mark.parametrize("age", [17, 18])
def test_looks(age):
    assert rule.allowed(age) == (age == 18)

def test_looks_away():
    assert rule.allowed(18)

@pytest.fixture
def broken():
    raise RuntimeError

def test_cannot(broken):
    assert not rule.allowed(17)
"""
NAMES = ("looks", "looks_away", "cannot", "none")
DELETION = Deletion(
    "T1",
    (Edit("src/sdk/rule.py", "age >= 18", "age or 18"),),
    tuple(f"tests/test_rule.py::test_{name}" for name in NAMES),
    "rules",
)
ROWS = {"T1": DELETION.tests, "T2": ("tests/test_rule.py::test_looks",)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of one rule, with what the exercise needs of ours."""
    here = Path(__file__).resolve().parents[3]
    for name, content in {
        "src/sdk/rule.py": CODE,
        "tests/test_rule.py": TESTS,
        "tests/conftest.py": "import hypothesis\nhypothesis.settings.register_profile('ci')\n",
        "tools/controls/outcomes.py": (here / "tools/controls/outcomes.py").read_text(encoding="utf-8"),
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_what_counts_as_seen(tree: Path) -> None:
    """Only a test that fails itself has seen it: none that passes, cannot be set up, or does not exist."""
    became = [outcome for outcome, _ in try_out(DELETION.edits, DELETION.tests, tree, 1).values()]
    # One unknown name and pytest runs nothing: no test may be said to have seen anything.
    assert became == ["not run"] * 4
    known = replace(DELETION, tests=DELETION.tests[:3])
    assert [outcome for outcome, _ in try_out(known.edits, known.tests, tree, 2).values()] == [
        "failed",
        "passed",
        "error",
    ]


def test_the_control_is_put_back(tree: Path) -> None:
    """After a deletion the copy is what it was, and Python does not run what it compiled without the control."""
    known = replace(DELETION, tests=DELETION.tests[:1])
    try_out(known.edits, known.tests, tree, 1)
    assert (tree / "src/sdk/rule.py").read_text(encoding="utf-8") == CODE
    assert [outcome for outcome, _ in run(known.tests, tree).values()] == ["passed"]


@pytest.mark.parametrize(
    ("deletion", "why"),
    [
        (DELETION, None),
        (replace(DELETION, row="T3"), "no such row"),
        (replace(DELETION, tests=()), "names no test"),
        (replace(DELETION, tests=("tests/test_rule.py::test_other",)), "names no test"),
        (replace(DELETION, edits=(Edit("src/gone.py", "a", "b"),)), "no such file"),
        (replace(DELETION, edits=(Edit("src/sdk/rule.py", "a", "b"),)), "times"),
        (replace(DELETION, edits=(*DELETION.edits, Edit("src/sdk/rule.py", "18", "18"))), "deletes nothing"),
    ],
)
def test_what_does_not_fit(tree: Path, deletion: Deletion, why: str | None) -> None:
    """A deletion that no longer fits the tree or its row is named, in each of its places."""
    wrong = deletion.wrong(ROWS, tree)
    assert (wrong is None) if why is None else (wrong is not None and why in wrong)


def test_what_is_missing() -> None:
    """Rows without a deletion are named, and tests that none of their row makes fail."""
    assert list(missing(ROWS, [replace(DELETION, tests=DELETION.tests[1:])])) == [
        "T2 has no deletion",
        "T1 tests/test_rule.py::test_looks",
        "T2 tests/test_rule.py::test_looks",
    ]
