"""Block `rules` of a policy: expressions of CEL over the claims of all evidence (CONFIDENTIAL.md §2.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attestation.reference.confidential import CelRule
from attestation.reference.members import Schema, refuse
from attestation.reference.rules import Stated

MAX_RULES: Final = 32
MAX_EXPRESSION: Final = 1024
"""Characters of an expression."""
MAX_MESSAGE: Final = 256
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class Rules:
    """The block: a list of `{name, expression, message}`; a narrower policy replaces a rule by its name."""

    references: frozenset[str] = frozenset()
    loosening: frozenset[str] = frozenset()
    defaults: Mapping[str, object] = {}

    def read(self, block: object) -> Mapping[str, tuple[object, object]]:
        """Judge every rule; return each, by its name, as read and as written."""
        if not isinstance(block, list) or not 0 < len(block) <= MAX_RULES:
            refuse(f"rules must list 1 to {MAX_RULES} rules")
        found: dict[str, tuple[object, object]] = {}
        for written in block:
            rule = self._rule(written)
            if rule.name in found:
                refuse(f"rules: {rule.name} stands twice")
            found[rule.name] = (rule, written)
        return found

    def _rule(self, written: object) -> CelRule:
        if not isinstance(written, Mapping) or not {"name", "expression"} <= written.keys() <= {
            "name",
            "expression",
            "message",
        }:
            refuse("rules: each is an object of name, expression and, for people, message")
        name, expression, message = written["name"], written["expression"], written.get("message", "")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            refuse("rules: name is not 1 to 63 lower-case letters, digits and hyphens")
        if not isinstance(expression, str) or not 0 < len(expression) <= MAX_EXPRESSION:
            refuse(f"rules: {name}: expression is not text of 1 to {MAX_EXPRESSION} characters")
        if "message" in written and (
            not isinstance(message, str) or not 0 < len(message) <= MAX_MESSAGE or not message.isprintable()
        ):
            refuse(f"rules: {name}: message is not text of 1 to {MAX_MESSAGE} printable characters")
        return CelRule(name=name, expression=expression, message=message, report=False)

    def build(self, members: Mapping[str, Stated], *, report: bool) -> tuple[CelRule, ...]:  # noqa: ARG002 -- no rule is a default
        """Return the rules, by name."""
        rules = []
        for _name, stated in sorted(members.items()):
            rule = stated.value
            assert isinstance(rule, CelRule)
            rules.append(
                CelRule(
                    name=rule.name,
                    expression=rule.expression,
                    message=rule.message,
                    report=stated.source.report,
                )
            )
        return tuple(rules)

    def schema(self) -> Schema:
        """Return the JSON Schema of the block."""
        text = {"type": "string", "minLength": 1}
        return {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_RULES,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                    "expression": text | {"maxLength": MAX_EXPRESSION},
                    "message": text | {"maxLength": MAX_MESSAGE},
                },
                "additionalProperties": False,
                "required": ["name", "expression"],
            },
        }


RULES: Final = Rules()
