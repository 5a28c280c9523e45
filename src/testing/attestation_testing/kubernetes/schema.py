"""Structural schemas of custom resources: what is pruned, filled in, refused, and merged in which way.

k8s.io/apiextensions-apiserver, pkg/apiserver/schema; rules in CEL where `cel-expr-python` is installed.
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

try:
    from cel_expr_python import cel
    from cel_expr_python.ext.ext_optional import ExtOptional
    from cel_expr_python.ext.ext_strings import ExtStrings
except ImportError:  # no wheel for this system: rules are not evaluated, and `HAS_CEL` says so
    cel = None

HAS_CEL: Final = cel is not None
"""Rules in CEL are evaluated; otherwise they let everything through."""

Schema = Mapping[str, Any]
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED: Final = "x-kubernetes-embedded-resource"
_EITHER: Final = "x-kubernetes-int-or-string"
_LIST: Final = "x-kubernetes-list-type"
_RULES: Final = "x-kubernetes-validations"
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
    if schema.get(_LIST) == "map":
        found[at] = ListKeys(tuple(schema.get("x-kubernetes-list-map-keys") or ()))
    elif schema.get(_LIST) == "set":
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


def _shown(value: Any) -> str:
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
        yield invalid(at, _shown(value), f"{body} must be of type {name}: {_shown(value)}")
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
        yield invalid(at, _shown(value), f"{body} should be at least {least} chars long")
    if (pattern := schema.get("pattern")) is not None and re.search(pattern, value) is None:
        yield invalid(at, _shown(value), f"{body} should match '{pattern}'")


def _check_number(value: float, schema: Schema, at: str) -> Iterator[FieldError]:
    body = f"{at} in body"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (value == least and schema.get("exclusiveMinimum"))):
        yield invalid(at, _shown(value), f"{body} should be greater than or equal to {least}")
    if most is not None and (value > most or (value == most and schema.get("exclusiveMaximum"))):
        yield invalid(at, _shown(value), f"{body} should be less than or equal to {most}")
    if (step := schema.get("multipleOf")) and not math.isclose(value / step, round(value / step)):
        yield invalid(at, _shown(value), f"{body} should be a multiple of {step}")


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
        if schema.get(_LIST) == "map" and isinstance(each, dict):
            mine = {key: each.get(key) for key in keys}
        elif schema.get(_LIST) != "set" and not schema.get("uniqueItems"):
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
        yield invalid(at, _shown(value), f"{at} in body should have at least {least} properties")
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
        yield invalid(at, _shown(value), f"{at} in body must validate at least one schema (anyOf)")
    if one_of and sum(_holds(value, each) for each in one_of) != 1:
        yield invalid(at, _shown(value), f"{at} in body must validate one and only one schema (oneOf)")
    if (none := schema.get("not")) is not None and _holds(value, none):
        yield invalid(at, _shown(value), f"{at} in body must not validate the schema (not)")


# CEL

_REASONS: Final = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}


def environment(*names: str) -> Any:
    """Return what compiles expressions over *names*, each of any type."""
    variables = dict.fromkeys(names, cel.Type.DYN)
    return cel.NewEnv(variables=variables, extensions=[ExtStrings(), ExtOptional()])


class Rule:
    """One of `x-kubernetes-validations`.

    Args:
        said: As the schema has it.

    Raises:
        ValueError: It is no CEL.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.said = said
        self.compares = re.search(r"\boldSelf\b", said["rule"]) is not None
        try:
            self._rule = environment("self", "oldSelf").compile(said["rule"])
            words = said.get("messageExpression")
            self._words = environment("self", "oldSelf").compile(words) if words else None
        except RuntimeError as e:
            raise ValueError(str(e)) from e

    def broken(self, value: Any, old: Any, at: str) -> FieldError | None:
        """Return that *value* breaks the rule; a rule about the old value holds where there is none."""
        if self.compares and old is None:
            return None
        data = {"self": value, "oldSelf": old}
        found = self._rule.eval(data=data)
        if found.type().name() != "BOOL":
            said = f"rule evaluation error: {found.plain_value()}"
        elif found.plain_value():
            return None
        else:
            said = str(self.said.get("message") or f"failed rule: {self.said['rule']}").strip()
            if self._words is not None and (words := self._words.eval(data=data)).type().name() == "STRING":
                said = str(words.plain_value())
        reason = str(self.said.get("reason") or "FieldValueInvalid")
        field = at + str(self.said.get("fieldPath") or "")
        if reason == "FieldValueInvalid":
            return invalid(field, _shown(value), said)
        return FieldError(reason, field, f"{_REASONS.get(reason, reason)}: {said}")


class Rules:
    """The rules of a schema, compiled once.

    Args:
        schema: With rules anywhere.
        at: Where it stands, for refusals.

    Raises:
        ValueError: One is no CEL; the text says where.
    """

    def __init__(self, schema: Schema, at: str = "openAPIV3Schema") -> None:
        self._here: list[Rule] = []
        for index, said in enumerate(schema.get(_RULES) or () if HAS_CEL else ()):
            try:
                self._here.append(Rule(said))
            except ValueError as e:
                raise ValueError(f"{at}.{_RULES}[{index}].rule: {e}") from e
        self._properties = {
            name: rules
            for name, below in (schema.get("properties") or {}).items()
            if (rules := Rules(below, f"{at}.properties[{name}]"))
        }
        items, more = schema.get("items"), schema.get("additionalProperties")
        self._items = Rules(items, f"{at}.items") if isinstance(items, dict) else None
        self._more = Rules(more, f"{at}.additionalProperties") if isinstance(more, dict) else None
        self._keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        self._keyed = schema.get(_LIST) == "map"

    def __bool__(self) -> bool:
        return bool(self._here or self._properties or self._items or self._more)

    def check(self, value: Any, old: Any, at: str = "") -> Iterator[FieldError]:
        """Return what of *value* breaks rules, compared with what it was."""
        for rule in self._here:
            if error := rule.broken(value, old, at):
                yield error
        dot = f"{at}." if at else ""
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, each in value.items():
                below = self._properties.get(name, self._more)
                if below:
                    yield from below.check(each, before.get(name), dot + name)
        if isinstance(value, list) and self._items:
            for index, each in enumerate(value):
                yield from self._items.check(each, self._before(each, old), f"{at}[{index}]")

    def _before(self, each: Any, old: Any) -> Any:
        """Return the member of the old list that has the same keys; members of other lists are not followed."""
        if not self._keyed or not isinstance(old, list) or not isinstance(each, dict):
            return None
        same = (o for o in old if isinstance(o, dict) and all(o.get(k) == each.get(k) for k in self._keys))
        return next(same, None)
