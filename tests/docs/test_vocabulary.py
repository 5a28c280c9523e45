"""docs/vocabulary.md names what exists, and each word once."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.pages import text

PAGE = text("docs/vocabulary.md")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(attestation[\w.]*)`", PAGE))))
def test_what_it_names_exists(name: str) -> None:
    """Each package, module and class."""
    module, _, last = name.rpartition(".")
    if last[:1].isupper():
        assert isinstance(getattr(importlib.import_module(module), last), type)
    else:
        importlib.import_module(name)


def test_a_word_has_one_meaning() -> None:
    """No word has two rows, and no class has two words."""
    rows = [
        line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "`attestation" in line
    ]
    words = [word for row in rows for word in row[0].removeprefix("| ").split(", ")]
    classes = re.findall(r"`(attestation[\w.]*)`", PAGE)
    assert len(words) == len(set(words)) >= len(rows)
    assert len(classes) == len(set(classes))
