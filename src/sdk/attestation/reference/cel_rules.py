"""Block `rules` of a policy: expressions of CEL over what all evidence shows (CONFIDENTIAL.md §2.3).

Operators write them, yet none may hold up a judgement. So an expression is short and goes through a list inside a list
at most; it has no `+`, which makes longer lists and texts of short ones, and no regular expression. What it names must
be there: a name that no evidence has is refused when the policy is written. All that together bounds its time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from attestation.errors import PolicyInvalid
from attestation.reference.confidential import CelRule
from attestation.reference.members import Schema, refuse
from attestation.reference.rules import Stated

if TYPE_CHECKING:
    from cel import Program

MAX_RULES: Final = 16
MAX_EXPRESSION: Final = 512
"""Characters of an expression."""
MAX_MESSAGE: Final = 256
MAX_LOOPS: Final = 2
"""Words of an expression that go through a list."""
NAMES: Final = ("machine", "tpm", "sev_snp", "tdx", "sgx", "azure_hcl", "svsm", "gpu", "key")
"""What an expression can name: the machine, what evidence of each kind shows, the key of a QuoteAttestation; {} where
none came."""
_FUNCTIONS: Final = frozenset(
    {
        *("size", "contains", "startsWith", "endsWith"),
        *("int", "uint", "double", "string", "bytes", "timestamp", "duration", "type"),
    }
)
_TYPES: Final = frozenset({"int", "uint", "double", "string", "bytes", "bool", "list", "map"})
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LOOP: Final = re.compile(r"\b(?:all|exists|exists_one|existsOne|map|filter)\b")
_BOUND: Final = re.compile(_LOOP.pattern + r"\s*\(\s*([A-Za-z_]\w*)\s*,")
_MEMBERS: Final = frozenset({"name", "expression", "message"})
_SHOWN: Final = 120


@lru_cache(maxsize=1024)
def compiled(expression: str, names: tuple[str, ...] = NAMES) -> Program:
    """Return *expression* over *names* ready to be evaluated.

    Raises:
        PolicyInvalid: It is no CEL, or more than this module allows; in words.
    """
    # Only who writes or judges such a rule loads the library; it is in the extra `tee`.
    try:
        import cel
    except ImportError:
        refuse("rules need the extra `tee`: pip install 'itl-attestation-sdk[tee]'")
    if not 0 < len(expression) <= MAX_EXPRESSION or not expression.isprintable():
        refuse(f"expression is not text of 1 to {MAX_EXPRESSION} printable characters")
    if "+" in expression:
        refuse("an expression has no +, not even in text")
    if len(_LOOP.findall(expression)) > MAX_LOOPS:
        refuse(f"an expression says all, exists, exists_one, map or filter {MAX_LOOPS} times at most")
    try:
        program = cel.compile(expression)
    except Exception as error:  # noqa: BLE001 -- the library names no class of its own errors
        refuse(f"expression is no CEL: {_line(error)}")
    unknown = {name for name in program.functions() if name[0].isalpha()} - _FUNCTIONS
    if unknown:
        refuse(f"an expression has no function {min(unknown)}; it has {', '.join(sorted(_FUNCTIONS))}")
    unknown = set(program.variables()) - {*names, *_TYPES, *_BOUND.findall(expression)}
    if unknown:
        refuse(f"nothing is named {min(unknown)}; expressions read {', '.join(names)}")
    return program


def broken(
    rule: CelRule | str, activation: Mapping[str, object], names: tuple[str, ...] = NAMES
) -> str | None:
    """Return why *rule* does not hold over *activation*, name -> what it has; None where it does.

    A key that is missing, or any other error, is a rule that does not hold; so is a value that is not true.
    """
    expression = rule if isinstance(rule, str) else rule.expression
    try:
        value = compiled(expression, names).execute({**{name: {} for name in names}, **activation})
    except Exception as error:  # noqa: BLE001 -- whatever the library meets in the evidence
        return f"cannot be told: {type(error).__name__} {_line(error)}"
    if value is True or value is False:
        return None if value else "false"
    # Not the value itself: a map has no order in which it would be told the same each time.
    return f"no truth value: {type(value).__name__}"


def _line(error: Exception) -> str:
    """Return what the library says in one line, without the expression."""
    text = " ".join(str(error).split())
    return text[text.find("ERROR:") + 1 and text.find("ERROR:") :][:_SHOWN]


class Rules:
    """The block: a list of `{name, expression, message}`; a narrower policy replaces a rule by its name."""

    references: Final[frozenset[str]] = frozenset()
    loosening: Final[frozenset[str]] = frozenset()
    defaults: Final[Mapping[str, object]] = {}

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
        if not isinstance(written, Mapping) or not _MEMBERS - {"message"} <= written.keys() <= _MEMBERS:
            refuse("rules: each is an object of name, expression and, for people, message")
        name, expression, message = written["name"], written["expression"], written.get("message", "")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            refuse("rules: name is not 1 to 63 lower-case letters, digits and hyphens")
        if not isinstance(expression, str):
            refuse(f"rules: {name}: expression is not text")
        try:
            compiled(expression)
        except PolicyInvalid as error:
            raise PolicyInvalid(f"rules: {name}: {error}") from error
        if "message" in written and (
            not isinstance(message, str) or not 0 < len(message) <= MAX_MESSAGE or not message.isprintable()
        ):
            refuse(f"rules: {name}: message is not text of 1 to {MAX_MESSAGE} printable characters")
        return CelRule(name=name, expression=expression, message=message, report=False)

    def build(self, members: Mapping[str, Stated], *, report: bool) -> Any:  # noqa: ARG002 -- no rule holds by default
        """Return the rules, by name."""
        found: list[CelRule] = []
        for _, stated in sorted(members.items()):
            assert isinstance(stated.value, CelRule)
            found.append(replace(stated.value, report=stated.source.report))
        return tuple(found)

    def schema(self) -> Schema:
        """Return the JSON Schema of the block."""
        text: Schema = {"type": "string", "minLength": 1}
        return {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_RULES,
            "items": {
                "type": "object",
                "properties": {
                    "name": {
                        "description": "Of the rule",
                        "type": "string",
                        "maxLength": 63,
                        "pattern": f"^{_NAME.pattern}$",
                    },
                    "expression": {"description": "CEL that must be true"}
                    | text
                    | {"maxLength": MAX_EXPRESSION},
                    "message": {"description": "For people, where it is not"}
                    | text
                    | {"maxLength": MAX_MESSAGE},
                },
                "additionalProperties": False,
                "required": ["name", "expression"],
            },
        }


RULES: Final = Rules()
