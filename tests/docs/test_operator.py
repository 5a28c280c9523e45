"""docs/kubernetes/controllers.md and the files of the controllers say what the program does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attestation.errors import AttestationError
from attestation_operator import crds, errors
from attestation_operator import settings as operator_settings
from attestation_operator.main import COMMANDS, PAGES, _named, parser
from attestation_operator.metrics import Metrics
from attestation_operator.nodes.approver import Outcome
from attestation_operator.nodes.labels import Standing
from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    CORDONED_LABEL,
    MACHINE_ID_LABEL,
    OWNER_LABEL,
    TAINT_KEY,
)
from attestation_operator.nodes.policy import PolicyUnreadable
from attestation_operator.nodes.signer import Signed
from attestation_operator.objects import NODE_ATTESTATION
from attestation_operator.settings import PREFIX
from tests.docs.pages import ROOT, text

PAGE = text("docs/kubernetes/controllers.md")
CRDS = ROOT / "deploy/helm/attestation-operator/crds"


def test_every_setting_has_its_row_and_its_default() -> None:
    """One that no page names cannot be found; one that a page invents stops the start."""
    pages = "".join(
        page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs/kubernetes").glob("*.md"))
    )
    rows: dict[str, set[str]] = {}
    for name, default in re.findall(r"^\| `(ITL_OPERATOR_\w+)` \| ([^|]+) \|", pages, flags=re.MULTILINE):
        rows.setdefault(name, set()).add(default.strip().strip("`"))
    classes = {_named(command.settings) for command in COMMANDS.values()}
    assert rows.keys() == {f"{PREFIX}{name.upper()}" for each in classes for name in each.model_fields}
    for settings in classes:
        for name, field in settings.model_fields.items():
            said = rows[f"{PREFIX}{name.upper()}"]
            if field.is_required():
                assert "must be set" in said, name
            elif field.default_factory is None:
                assert ("unset" if field.default is None else str(field.default)) in said, name


def test_every_code_is_explained() -> None:
    """What stands in the log can be looked up."""
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, flags=re.MULTILINE))
    ours = {
        found.code
        for module in (errors, operator_settings)
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, AttestationError)
        and found.__module__ == module.__name__
    }
    assert len(ours) > 5
    assert ours <= rows


def test_every_metric_is_explained() -> None:
    """Those of the program itself; a controller's stand with it."""
    names = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in Metrics().registry.collect()
    }
    assert names <= set(re.findall(r"^\| `(itl_operator_\w+)` \|", PAGE, flags=re.MULTILINE))


def test_what_controllers_of_nodes_say_is_explained() -> None:
    """Each outcome that is counted, each standing that an Event names, each label, and the code."""
    told = set(re.findall(r"`([\w./-]+)`", PAGE))
    assert {outcome.value for outcome in Outcome if outcome is not Outcome.ASKED} <= told
    assert {outcome.value for outcome in Signed if outcome is not Signed.ASKED} <= told
    assert {standing.value for standing in Standing if standing is not Standing.NOT_KNOWN} <= told
    assert {OWNER_LABEL, ATTESTED_LABEL, CORDONED_LABEL, MACHINE_ID_LABEL, TAINT_KEY} <= told
    assert PolicyUnreadable.code in told


def test_every_command_is_named() -> None:
    """The page begins with them, and the help leads to the page."""
    for name in (*COMMANDS, "crds"):
        assert f"| `attestation-operator {name}` |" in PAGE
    assert str(PAGES / "kubernetes/controllers.md") in parser().format_help()


def _fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, each in schema.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place
        yield from _fields(each, place)
        if each.get("items", {}).get("type") == "object":
            yield from _fields(each["items"], f"{place}[]")


def test_every_field_of_the_kind_has_its_heading() -> None:
    """And no heading speaks of a field that is none. A condition has the fields that conditions have."""
    schema = crds.definition(NODE_ATTESTATION)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = {
        place
        for top in ("spec", "status")
        for place in _fields(schema["properties"][top], top)
        if not place.startswith("status.conditions[]")
    }
    headings = set(re.findall(r"^### `([\w.\[\]]+)`$", PAGE, flags=re.MULTILINE))
    assert headings == fields


def test_the_definitions_of_the_chart_are_those_of_the_models() -> None:
    """`attestation-operator crds` writes them; who changes a model writes them anew, each group into its file."""
    assert {path.stem: path.read_text(encoding="utf-8") for path in CRDS.iterdir()} == {
        group: crds.manifest(group) for group in crds.groups()
    }
