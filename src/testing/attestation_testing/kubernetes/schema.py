"""Structural schemas of custom resources: what is pruned, filled in, refused, and merged in which way.

k8s.io/apiextensions-apiserver, pkg/apiserver/schema. Rules in CEL stand in expressions.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.resources import METADATA, AtomicMap, ListKeys, Path, SetList, Topology
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    duplicate,
    invalid,
    required,
    unsupported,
)

Schema = Mapping[str, Any]
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED: Final = "x-kubernetes-embedded-resource"
_EITHER: Final = "x-kubernetes-int-or-string"
LIST: Final = "x-kubernetes-list-type"
_OBJECT: Final = ("apiVersion", "kind", "metadata")
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def topology(schema: Schema) -> Topology:
    """Return how objects of a schema are merged."""
    found: dict[Path, ListKeys | SetList | AtomicMap] = dict(METADATA)
    _topology(schema, (), found)
    return found


def _topology(schema: Schema, at: Path, found: dict[Path, ListKeys | SetList | AtomicMap]) -> None:
    if schema.get("x-kubernetes-map-type") == "atomic":
        found[at] = AtomicMap()
    if schema.get(LIST) == "map":
        found[at] = ListKeys(tuple(schema.get("x-kubernetes-list-map-keys") or ()))
    elif schema.get(LIST) == "set":
        found[at] = SetList()
    for name, below in (schema.get("properties") or {}).items():
        _topology(below, (*at, name), found)
    if isinstance(schema.get("items"), dict):
        _topology(schema["items"], (*at, "[]"), found)


def prune(value: Any, schema: Schema, *, root: bool = True) -> None:
    """Take away the fields that *schema* does not know."""
    if isinstance(value, list):
        for each in value:
            prune(each, schema.get("items") or {}, root=False)
    if not isinstance(value, dict):
        return
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    kept = _OBJECT if root or schema.get(_EMBEDDED) else ()
    for name in list(value):
        if name in kept:
            continue
        if name in known:
            prune(value[name], known[name], root=False)
        elif isinstance(more, dict):
            prune(value[name], more, root=False)
        elif not more and not schema.get(_OPEN):
            del value[name]


def fill(value: Any, schema: Schema) -> None:
    """Write defaults where something is missing, or null where it may not be."""
    if isinstance(value, list):
        for each in value:
            fill(each, schema.get("items") or {})
    if not isinstance(value, dict):
        return
    for name, below in (schema.get("properties") or {}).items():
        if "default" in below and (name not in value or (value[name] is None and not below.get("nullable"))):
            value[name] = copied(below["default"])
        elif name in value and value[name] is None and not below.get("nullable"):
            del value[name]
        if name in value:
            fill(value[name], below)
    if isinstance(more := schema.get("additionalProperties"), dict):
        for name, each in value.items():
            if name not in (schema.get("properties") or {}):
                fill(each, more)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return True
    return isinstance(value, _KINDS[kind])


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(
        kind for kind in ("boolean", "integer", "number", "string", "array", "object") if _is(value, kind)
    )


_INTEGERS: Final = {"int32": 32, "int64": 64}


def _is_format(value: Any, name: str) -> bool:
    if name in _INTEGERS and isinstance(value, int):
        bits = _INTEGERS[name] - 1
        return -(1 << bits) <= value < 1 << bits
    if not isinstance(value, str):
        return True
    if name == "byte":
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            return False
    if name == "date-time":
        try:
            return datetime.fromisoformat(value).tzinfo is not None
        except ValueError:
            return False
    return True


def written(value: Any) -> str:
    """Return a value as field errors show it."""
    if isinstance(value, dict | list):
        return '"object"' if isinstance(value, dict) else '"array"'
    return json.dumps(value)


def check(value: Any, schema: Schema, at: str = "") -> Iterator[FieldError]:
    """Return what breaks the schema, CEL aside."""
    if value is None and (schema.get("nullable") or not schema.get("type")):
        return
    body = f"{at} in body"
    kind = schema.get("type")
    if schema.get(_EITHER):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield invalid(at, f'"{_kind_of(value)}"', f"{body} must be of type integer,string")
            return
    elif kind and not _is(value, kind):
        words = f'{body} must be of type {kind}: "{_kind_of(value)}"'
        yield invalid(at, f'"{_kind_of(value)}"', words)
        return
    if (allowed := schema.get("enum")) is not None and value not in allowed:
        yield unsupported(at, str(value), [str(each) for each in allowed])
    if (name := schema.get("format")) and not _is_format(value, name):
        yield invalid(at, written(value), f"{body} must be of type {name}: {written(value)}")
    if isinstance(value, str):
        yield from _check_text(value, schema, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, schema, at)
    elif isinstance(value, list):
        yield from _check_list(value, schema, at)
    elif isinstance(value, dict):
        yield from _check_object(value, schema, at)
    yield from _check_junctors(value, schema, at)


def _check_text(value: str, schema: Schema, at: str) -> Iterator[FieldError]:
    body = f"{at} in body"
    if (most := schema.get("maxLength")) is not None and len(value) > most:
        yield FieldError("FieldValueTooLong", at, f"Too long: may not be more than {most} bytes")
    if (least := schema.get("minLength")) is not None and len(value) < least:
        yield invalid(at, written(value), f"{body} should be at least {least} chars long")
    if (pattern := schema.get("pattern")) is not None and re.search(pattern, value) is None:
        yield invalid(at, written(value), f"{body} should match '{pattern}'")


def _check_number(value: float, schema: Schema, at: str) -> Iterator[FieldError]:
    body = f"{at} in body"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (value == least and schema.get("exclusiveMinimum"))):
        yield invalid(at, written(value), f"{body} should be greater than or equal to {least}")
    if most is not None and (value > most or (value == most and schema.get("exclusiveMaximum"))):
        yield invalid(at, written(value), f"{body} should be less than or equal to {most}")
    if (step := schema.get("multipleOf")) and not math.isclose(value / step, round(value / step)):
        yield invalid(at, written(value), f"{body} should be a multiple of {step}")


def _check_list(value: list[Any], schema: Schema, at: str) -> Iterator[FieldError]:
    if (most := schema.get("maxItems")) is not None and len(value) > most:
        yield FieldError("FieldValueTooMany", at, f"Too many: {len(value)}: must have at most {most} items")
    if (least := schema.get("minItems")) is not None and len(value) < least:
        yield invalid(at, str(len(value)), f"{at} in body should have at least {least} items")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for index, each in enumerate(value):
        yield from check(each, schema.get("items") or {}, f"{at}[{index}]")
        mine = each
        if schema.get(LIST) == "map" and isinstance(each, dict):
            mine = {key: each.get(key) for key in keys}
        elif schema.get(LIST) != "set" and not schema.get("uniqueItems"):
            continue
        if mine in seen:
            yield duplicate(f"{at}[{index}]", json.dumps(mine, separators=(",", ":")))
        seen.append(mine)


def _check_object(value: Object, schema: Schema, at: str) -> Iterator[FieldError]:
    dot = f"{at}." if at else ""
    for name in schema.get("required") or ():
        if name not in value:
            yield required(dot + name)
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    if (most := schema.get("maxProperties")) is not None and len(value) > most:
        yield FieldError("FieldValueTooMany", at, f"Too many: {len(value)}: must have at most {most} items")
    if (least := schema.get("minProperties")) is not None and len(value) < least:
        yield invalid(at, written(value), f"{at} in body should have at least {least} properties")
    for name, each in value.items():
        if name in known:
            if not at and name == "metadata":
                continue  # of every object, and checked as such
            yield from check(each, known[name], dot + name)
        elif isinstance(more, dict):
            yield from check(each, more, dot + name)


def _holds(value: Any, schema: Schema) -> bool:
    return next(check(value, schema), None) is None


def _check_junctors(value: Any, schema: Schema, at: str) -> Iterator[FieldError]:
    for each in schema.get("allOf") or ():
        yield from check(value, each, at)
    any_of, one_of = schema.get("anyOf"), schema.get("oneOf")
    if any_of and not schema.get(_EITHER) and not any(_holds(value, each) for each in any_of):
        yield invalid(at, written(value), f"{at} in body must validate at least one schema (anyOf)")
    if one_of and sum(_holds(value, each) for each in one_of) != 1:
        yield invalid(at, written(value), f"{at} in body must validate one and only one schema (oneOf)")
    if (none := schema.get("not")) is not None and _holds(value, none):
        yield invalid(at, written(value), f"{at} in body must not validate the schema (not)")
