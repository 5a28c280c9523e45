"""Each threat of SECURITY.md names a control and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, text
from tools.controls.__main__ import deletions, rows

PAGE = text("SECURITY.md")
ROWS = re.findall(r"^\| \*\*(T\d+)\*\* (.+?) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("path", "name"), TESTS, ids=lambda value: value.rsplit("/", 1)[-1])
def test_a_named_test_exists(path: str, name: str) -> None:
    """A control whose test was removed or renamed is noticed."""
    source = ROOT / path
    assert source.is_file()
    body = source.read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(|^{name} = ", body, flags=re.MULTILINE)


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
