"""Expressions in CEL (cel.dev), where `cel-expr-python` is installed: rules of schemas, and of admission.

Values have the types that JSON has; the real API server knows those of the schema too, and refuses more of what it
compiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attestation_testing.kubernetes.schema import LIST, Schema, written
from attestation_testing.kubernetes.status import FieldError, invalid

try:
    from cel_expr_python import cel
    from cel_expr_python.ext.ext_optional import ExtOptional
    from cel_expr_python.ext.ext_strings import ExtStrings
except ImportError:  # no wheel for this system: rules of schemas are not evaluated, and `HAS_CEL` says so
    cel = None

HAS_CEL: Final = cel is not None
"""Expressions are evaluated; otherwise rules of schemas let everything through, and no admission policy is taken."""

_RULES: Final = "x-kubernetes-validations"
_RESERVED: Final = (
    *(
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "namespace",
    ),
    *("package", "return", "var", "void", "while"),
)
_ESCAPED: Final = re.compile(rf"(?<=\.)__({'|'.join(_RESERVED)})__\b")
"""How a rule names a property that is a reserved word; policies of admission name it as it is."""
_REASONS: Final = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}


class EvaluationError(ValueError):
    """An expression has no value, or one of another type."""


class Expression:
    """An expression, compiled once.

    Args:
        said: The expression.
        names: What it may name, each of any type.

    Raises:
        ValueError: It is no CEL, or names something else.
    """

    def __init__(self, said: str, *names: str) -> None:
        self.said = said
        try:
            self._compiled = cel.NewEnv(
                variables=dict.fromkeys(names, cel.Type.DYN), extensions=[ExtStrings(), ExtOptional()]
            ).compile(said)
        except RuntimeError as e:
            raise ValueError(str(e)) from e

    def value(self, data: Mapping[str, Any], type_: str | None = None) -> Any:
        """Return its value, of a type of CEL.

        Raises:
            EvaluationError: It has none, or one of another type.
        """
        # An object from the store is a dict of another class, which the library does not know.
        plain = {name: dict(each) if isinstance(each, dict) else each for name, each in data.items()}
        found = self._compiled.eval(data=plain)
        name = found.type().name()
        if name == "ERROR" or name != (type_ or name):
            raise EvaluationError(str(found.plain_value()))
        return found.plain_value()

    def holds(self, data: Mapping[str, Any]) -> bool:
        """Say whether it is true; no other type is."""
        return bool(self.value(data, "BOOL"))

    def text(self, data: Mapping[str, Any]) -> str:
        """Return the text that it makes; empty where it makes none."""
        try:
            return str(self.value(data, "STRING"))
        except EvaluationError:
            return ""


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
        self._rule = Expression(_ESCAPED.sub(r"\1", said["rule"]), "self", "oldSelf")
        words = said.get("messageExpression")
        self._words = Expression(_ESCAPED.sub(r"\1", words), "self", "oldSelf") if words else None

    def broken(self, value: Any, old: Any, at: str) -> FieldError | None:
        """Return that *value* breaks the rule; a rule about the old value holds where there is none."""
        if self.compares and old is None:
            return None
        data = {"self": value, "oldSelf": old}
        try:
            if self._rule.holds(data):
                return None
            said = str(self.said.get("message") or f"failed rule: {self.said['rule']}").strip()
            if self._words is not None:
                said = self._words.text(data) or said
        except EvaluationError as e:
            said = f"rule evaluation error: {e}"
        reason = str(self.said.get("reason") or "FieldValueInvalid")
        field = at + str(self.said.get("fieldPath") or "")
        if reason == "FieldValueInvalid":
            return invalid(field, written(value), said)
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
        self._keyed = schema.get(LIST) == "map"

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
