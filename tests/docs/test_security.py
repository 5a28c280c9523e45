"""Each threat of SECURITY.md names a control and tests that exist."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, text
from tools.controls.__main__ import deletions, rows

PAGE = text("SECURITY.md")
ROWS = re.findall(r"^\| \*\*(T\d+)\*\* (.+?) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_named_tests_exist() -> None:
    """A control whose test was removed or renamed is noticed."""
    there = {
        (path, function or value)
        for path in {path for path, _ in TESTS}
        if (ROOT / path).is_file()
        for function, value in re.findall(
            r"^(?:async )?def (\w+)\(|^(\w+) = ", text(path), flags=re.MULTILINE
        )
    }
    assert len(TESTS) > 500
    missing = [f"{path}::{name}" for path, name in TESTS if (path, name) not in there]
    assert not missing, "\n".join(missing)


def test_every_threat_has_a_test() -> None:
    """Threats are numbered without gaps, and each row names at least one test."""
    assert [row[0] for row in ROWS] == [f"T{i}" for i in range(1, len(ROWS) + 1)]
    for _, _, _, tests in ROWS:
        assert "::test_" in tests


def test_what_the_exercise_deletes_stands_there() -> None:
    """Each control that `tools/controls` takes out on trial is where it is looked for, and its tests are the row's."""
    known, written = rows(), list(deletions())
    assert written
    assert [(d.row, d.file, wrong) for d in written if (wrong := d.wrong(known))] == []
