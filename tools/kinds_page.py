"""Writes the references of kinds, of attestation runs and of HSM issuers, into docs/kubernetes/, from their models.

    python -m tools.kinds_page           # the pages anew
    python -m tools.kinds_page --crds    # the definitions in deploy/helm too

What stands before the mark is written by hand; a test compares all that stands behind it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attestation.reference.attestation_policy import references
from attestation_operator import crds
from attestation_operator.objects import HSM_KINDS, POLICY, RUNS_GROUP, Kind

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs/kubernetes"
PAGES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "confidential-kinds.md": tuple(each.kind for each in crds.DEFINITIONS if each.kind.group == RUNS_GROUP),
    "hsm-kinds.md": HSM_KINDS,
}
"""Which kinds a page tells of."""
CRDS: Final = ROOT / "deploy/helm/attestation-operator/crds"
MARK: Final = "<!-- kinds: written by `python -m tools.kinds_page` -->\n\n"


def reference(page: str) -> str:
    """Return what stands behind the mark of a page."""
    kinds = [each for each in crds.DEFINITIONS if each.kind in PAGES[page]]
    return "\n".join(line for each in kinds for line in _kind(each))


def _kind(said: crds.Definition) -> Iterator[str]:
    made = crds.definition(said.kind)["spec"]
    [version] = made["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    place = "in a namespace" if said.kind.namespaced else "of the cluster"
    short = ", ".join(f"`{each}`" for each in made["names"]["shortNames"])
    columns = ", ".join(each["name"] for each in version["additionalPrinterColumns"])
    yield f"## {said.kind.kind}\n"
    yield f"{schema['description']}\n"
    selected = [f"`{each['jsonPath'].lstrip('.')}`" for each in version.get("selectableFields", ())]
    selectable = f" Lists and watches can be narrowed by {', '.join(selected)}." if selected else ""
    yield f"`{made['names']['plural']}`, short {short}; {place}. Columns: {columns}.{selectable}\n"
    expected = {f"{block}.{path}" for block, paths in references().items() for path in paths}
    for top in ("spec", "status"):
        inner = schema["properties"][top]
        yield f"### {said.kind.kind}: {top}\n"
        yield f"{inner['description']}\n"
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        for path, each, needed in _fields(inner, ""):
            marks = (" *" if needed else "") + (" ®" if path in expected else "")
            yield f"| `{path}`{marks} | {_type(each)} | {_meaning(each)} |"
        yield ""
        rules = list(_rules(inner, top))
        if rules:
            yield "Rules in CEL:\n"
            yield from (f"- `{path}`: {message}" for path, message in rules)
            yield ""


def _fields(schema: Mapping[str, Any], above: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for name, each in schema.get("properties", {}).items():
        path = f"{above}{name}"
        yield path, each, name in schema.get("required", ())
        # An inline policy is told once; conditions are those of every kind of Kubernetes.
        if name not in ("policy", "conditions"):
            yield from _fields(each, f"{path}.")
            yield from _fields(each.get("items", {}), f"{path}[].")


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema["type"]
    if kind == "array":
        return f"list of {_count(schema, 'Items')}{_type(schema['items'])}"
    if kind == "object":
        if "additionalProperties" not in schema:
            return "object"
        return f"map of {_count(schema, 'Properties')}{_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return " \\| ".join(f"`{each}`" if each else "empty" for each in schema["enum"])
    if schema.get("format") in ("byte", "date-time"):
        return {"byte": "base64", "date-time": "RFC 3339"}[schema["format"]]
    if kind == "string":
        pattern = schema.get("pattern", "")
        if (digits := re.findall(r"\[0-9a-f\]\{(\d+)\}", pattern)) and ")+" not in pattern:
            return f"{' or '.join(digits)} hex digits"
        return f"string{_bounds(schema, 'minLength', 'maxLength')}"
    return f"{kind}{_bounds(schema, 'minimum', 'maximum')}"


def _bounds(schema: Mapping[str, Any], least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if high is None:
        return "" if low is None else f", {low} or more"
    return f", at most {high}" if low is None else f", {low} to {high}"


def _count(schema: Mapping[str, Any], of: str) -> str:
    low, high = schema.get(f"min{of}"), schema.get(f"max{of}")
    return f"at most {high} × " if low is None else f"{low} to {high} × "


def _meaning(schema: Mapping[str, Any]) -> str:
    words = str(schema.get("description", "")).replace("|", "\\|").rstrip(".")
    default = schema.get("default")
    if default in (None, {}, []):
        return words
    shown = (
        ", ".join(default)
        if isinstance(default, list)
        else str(default).lower()
        if isinstance(default, bool)
        else default
    )
    return f"{words} (default `{shown}`)"


def _rules(schema: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    for each in schema.get("x-kubernetes-validations", ()):
        yield at, each["message"]
    for name, below in schema.get("properties", {}).items():
        if name != "policy":
            yield from _rules(below, f"{at}.{name}")
        else:
            yield f"{at}.{name}", f"as `spec` of {POLICY.kind}"


def main(arguments: list[str]) -> int:
    """Write the pages, and the definitions where that is asked."""
    for page in PAGES:
        before, mark, _ = (DOCS / page).read_text(encoding="utf-8").partition(MARK)
        (DOCS / page).write_text(f"{before}{mark}{reference(page)}", encoding="utf-8")
    if "--crds" in arguments:
        for group in crds.groups():
            (CRDS / f"{group}.yaml").write_text(crds.manifest(group), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
