"""docs/operate/dashboard.md and docs/extend/dashboard-pages.md say what the dashboard does."""

from __future__ import annotations

import re

from attestation.errors import AttestationError
from attestation_web import page
from attestation_web import settings as web_settings
from attestation_web.login import errors
from attestation_web.settings import PREFIX, Settings
from tests.docs.pages import ROOT, text

OPERATE = text("docs/operate/dashboard.md")
EXTEND = text("docs/extend/dashboard-pages.md")
WEB = ROOT / "src/web/attestation_web"


def test_every_setting_has_its_row_and_its_default() -> None:
    """One that the page does not name cannot be found; one that it invents stops the start."""
    rows = dict(re.findall(r"^\| `(ITL_WEB_\w+)` \| ([^|]+) \|", OPERATE, flags=re.MULTILINE))
    assert rows.keys() == {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        said = rows[f"{PREFIX}{name.upper()}"].strip().strip("`")
        expected = "must be set" if field.is_required() else field.default
        assert said == _written(expected), name


def _written(default: object) -> str:
    """Return a default as it is written in the environment."""
    if default is None:
        return "unset"
    return str(default).lower() if isinstance(default, bool) else "" if default == () else str(default)


def test_every_code_and_every_event_is_explained() -> None:
    """What stands in the log can be looked up."""
    ours = {
        found.code
        for module in (errors, web_settings)
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, AttestationError)
        and found.__module__ == module.__name__
    }
    sources = "\n".join(path.read_text(encoding="utf-8") for path in WEB.rglob("*.py"))
    ours |= set(re.findall(r'log\(\)\.\w+\(\s*"([a-z_.]+)"', sources))
    assert len(ours) > 10
    assert not [code for code in ours if f"`{code}`" not in OPERATE]


def test_every_macro_is_named_and_none_is_invented() -> None:
    """Who writes a page looks there first."""
    macros = set(re.findall(r"{% macro (\w+)\(", (WEB / "templates/components/ui.html").read_text()))
    table = EXTEND.partition("## Macros")[2].partition("\n## ")[0]
    cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    named = set(re.findall(r"`(\w+)\(", cells))
    assert named == macros


def test_every_name_for_views_is_told() -> None:
    """All of `attestation_web.page`, and no other."""
    table = EXTEND.partition("## What a view has")[2].partition("\n## ")[0]
    cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    named = set(re.findall(r"`(\w+)(?:\([^)`]*\))?`", cells))
    assert named == set(page.__all__) - {"Page"}


def test_the_settings_that_are_copied_start_it() -> None:
    """Those of the unit, and those of the first lines: nothing is missing, nothing is unknown."""
    blocks = re.findall(r"((?:^ *ITL_WEB_\w+=\S+\n)+)", OPERATE, flags=re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        Settings.load(dict(line.strip().split("=", 1) for line in block.splitlines()))
