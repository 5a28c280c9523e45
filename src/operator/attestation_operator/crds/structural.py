"""JSON Schema of a pydantic model as the structural schema of a CustomResourceDefinition.

Structural (apiextensions.k8s.io/v1): each place has a type; no `$ref`, no `anyOf` that gives types, no
`additionalProperties: false`, which an API server replaces by leaving out what is not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

_LEFT_OUT: Final = frozenset({"title", "$defs", "const"})
_ROOT: Final = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object"},
}
_LIST: Final = "x-kubernetes-list-type"


class NotStructural(Exception):
    """A model has a field for which a structural schema has no words."""


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Return the structural schema of objects whose members beside apiVersion, kind and metadata *model* describes.

    Raises:
        NotStructural: It has a field of several types, or of none.
    """
    whole = model.model_json_schema(by_alias=True)
    found = _plain(whole, whole.get("$defs", {}), model.__name__)
    found["properties"] = {**_ROOT, **found["properties"]}
    return found


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        # What a field says stands before what its model says of itself.
        return _plain({**definitions[schema["$ref"].rpartition("/")[2]], **rest}, definitions, where)
    if "anyOf" in schema:
        some = [each for each in schema["anyOf"] if each != {"type": "null"}]
        if len(some) != 1:
            raise NotStructural(f"{where}: a field of several types")
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        # An old API server (1.20) leaves null where server-side apply takes an object away.
        return {**_plain({**some[0], **rest}, definitions, where), "nullable": True}
    found = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    if found.get("type") not in ("object", "array", "string", "integer", "number", "boolean"):
        raise NotStructural(f"{where}: a field without a type")
    if found.get("default") == []:
        del found["default"]
    elif isinstance(found.get("default"), dict):
        found["default"] = {}  # each member has its own
    if "description" in found:
        found["description"] = " ".join(found["description"].split())
    if "properties" in found:
        found["properties"] = {
            name: _plain(each, definitions, f"{where}.{name}") for name, each in found["properties"].items()
        }
    if isinstance(more := found.pop("additionalProperties", None), dict):
        # Names that its author chooses, each with a value of the same form.
        found["additionalProperties"] = _plain(more, definitions, f"{where}.*")
    if "items" in found:
        found["items"] = _plain(found["items"], definitions, f"{where}[]")
        # Who applies a list that says nothing owns all of it.
        found.setdefault(_LIST, "atomic")
    return found
