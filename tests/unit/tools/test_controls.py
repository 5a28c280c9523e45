"""The exercise itself: what it calls seen is a test that failed because of what was deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.controls.__main__ import MARK, Deletion, Edit, marked, missing, run, threats, try_out

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
KNOWN = {"T1": DELETION.tests, "T2": ("tests/test_rule.py::test_looks",)}


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
        (replace(DELETION, threat="T3"), "no such threat"),
        (replace(DELETION, tests=()), "names no test"),
        (replace(DELETION, tests=("tests/test_rule.py::test_other",)), "names no test"),
        (replace(DELETION, edits=(Edit("src/gone.py", "a", "b"),)), "no such file"),
        (replace(DELETION, edits=(Edit("src/sdk/rule.py", "a", "b"),)), "times"),
        (replace(DELETION, edits=(*DELETION.edits, Edit("src/sdk/rule.py", "18", "18"))), "deletes nothing"),
    ],
)
def test_what_does_not_fit(tree: Path, deletion: Deletion, why: str | None) -> None:
    """A deletion that no longer fits the tree or the marked tests is named, in each of its places."""
    wrong = deletion.wrong(KNOWN, tree)
    assert (wrong is None) if why is None else (wrong is not None and why in wrong)


def test_what_is_missing() -> None:
    """Threats without a deletion are named, and tests that none of their threat makes fail."""
    assert list(missing(KNOWN, [replace(DELETION, tests=DELETION.tests[1:])])) == [
        "T2 has no deletion",
        "T1 tests/test_rule.py::test_looks",
        "T2 tests/test_rule.py::test_looks",
    ]


def test_which_tests_hold_a_threat(tmp_path: Path) -> None:
    """Markers are read from the source, by number of the threat; the ids of the page from its tables."""
    file = tmp_path / "tests" / "test_rule.py"
    file.parent.mkdir()
    file.write_text(f'@{MARK}("T10", "T2")\ndef test_a(): ...\n@{MARK}("T2")\nasync def test_b(): ...\n')
    a, b = "tests/test_rule.py::test_a", "tests/test_rule.py::test_b"
    assert list(marked(file.parent).items()) == [("T2", (a, b)), ("T10", (a,))]
    assert threats("| id | threat |\n| T2, T3 | one |\n| T10 | another, as T4 |\nT5\n") == ["T2", "T3", "T10"]


@pytest.mark.parametrize(
    "source",
    [f'class TestA:\n    @{MARK}("T1")\n    def test_a(self): ...\n', f'pytestmark = {MARK}("T1")\n'],
)
def test_a_marker_that_would_be_overlooked(tmp_path: Path, source: str) -> None:
    """A marker in a place that is not read is an error: its test would hold nothing that the table shows."""
    (tmp_path / "test_rule.py").write_text(source)
    with pytest.raises(ValueError, match="above a function"):
        marked(tmp_path)
