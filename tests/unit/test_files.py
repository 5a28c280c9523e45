"""The files of the project form no circle, and none is long without a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PLACES = [*sorted((ROOT / "src").iterdir()), ROOT]
"""Folders whose subfolders are packages: one for each installable, and the project for tests and tools."""

MOST_LINES = 500


def _modules(place: Path) -> dict[str, Path]:
    """Return dotted name -> file of what is imported from *place*."""
    names = ["tests", "tools"] if place == ROOT else ["."]
    found = {}
    for path in (path for name in names for path in (place / name).rglob("*.py")):
        parts = path.relative_to(place).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Return the modules that the file at *path* names in its imports, wherever they stand: also for types only."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # A name of a package may be a module of its own, or something that its __init__ has.
            for alias in node.names:
                found = f"{base}.{alias.name}"
                yield found if found in modules else base


def _circle(modules: Mapping[str, Path]) -> list[str]:
    """Return the modules of one circle of imports, the first one again at its end; nothing where there is none."""
    graph = {
        name: set(_imported(name, path, modules)) & modules.keys() - {name} for name, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_no_imports_form_a_circle() -> None:
    """Files that import one another can only be understood together, and start only in one order."""
    modules = {name: path for place in PLACES for name, path in _modules(place).items()}
    assert len(modules) > 500
    assert _circle(modules) == []


@pytest.mark.parametrize(
    "line",
    ["import p.a", "from p import a", "from p.a import x", "from . import a", "from .a import x"],
)
def test_a_circle_is_found(tmp_path: Path, line: str) -> None:
    """Whatever form the import has, and wherever it stands: for types only, or inside a function."""
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.b\n")
    (package / "b.py").write_text(f"def f():\n    {line}\n")
    assert sorted(set(_circle(_modules(tmp_path)))) == ["p.a", "p.b"]


def test_no_file_is_long_without_a_reason() -> None:
    """What is too long to be read at once says above its imports why it is one file."""
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        reasons = re.findall(
            "^# Longer than 500 lines: .{10}", text.partition("\nfrom __future__")[0], re.MULTILINE
        )
        assert len(reasons) == (lines > MOST_LINES), f"{path.relative_to(ROOT)}: {lines} lines"
