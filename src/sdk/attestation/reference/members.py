"""A block of a policy as one table of its members: reader, builder and JSON Schema follow from it.

Each member has a type: what it accepts, and the schema that says the same. A member of an inner object stands by its
path, `id_block.require`. What a member means is said where its value is kept (`attestation.reference.confidential`),
and so is its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from attestation.errors import MalformedEvidence, PolicyInvalid
from attestation.reference.rules import Demand, Stated
from attestation.wire import hexdecode

MAX_VALUES: Final = 1024
"""Values of one list."""
MAX_SAFE: Final = (1 << 53) - 1
"""The largest whole number that every reader of JSON keeps."""
_MAX_WORD: Final = 128
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")

Schema = dict[str, object]


@dataclass(frozen=True, slots=True)
class Type:
    """What a member may hold.

    Args:
        read: Path, and value as JSON has it -> the value as rules keep it; raises `PolicyInvalid`.
        schema: The same, as JSON Schema.
        whole: A value that was read, as JSON has it -> the same with what it leaves out, where that is written out.
    """

    read: Callable[[str, object], object]
    schema: Schema
    whole: Callable[[Any], object] = lambda value: value


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a block.

    Args:
        about: What it says, for people; the schema has it.
        type: What it may hold.
        field: Of the rules; empty where it is the member's path.
        reference: It is a reference value: what is expected to run.
        loosens: A value other than the default, or any where there is none, accepts more than without it.
        plain: It decides nothing by itself, and the rules keep the bare value.
        idle: The value that asks nothing, where there is no default; None: each value asks something.
    """

    about: str
    type: Type
    field: str = ""
    reference: bool = False
    loosens: bool = False
    plain: bool = False
    idle: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One block that is an object; a `Block` of `attestation.reference.blocks`.

    Args:
        name: Of the block.
        rules: Makes what the block states; it has the defaults.
        members: Path -> member.
        assemble: Puts values of members into the fields that hold several; by field, in place.
        inner: Path of each inner object -> what it is, for people.
    """

    name: str
    rules: Callable[..., Any]
    members: Mapping[str, Member]
    assemble: Callable[[dict[str, Any]], None] = lambda _values: None
    inner: Mapping[str, str] = field(default_factory=dict)

    @property
    def references(self) -> frozenset[str]:
        """Paths of the members that are reference values."""
        return frozenset(path for path, member in self.members.items() if member.reference)

    @property
    def loosening(self) -> frozenset[str]:
        """Paths of the members that accept more than where nothing is stated."""
        return frozenset(path for path, member in self.members.items() if member.loosens)

    def read(self, block: object) -> Mapping[str, tuple[object, object]]:
        """Judge every member; return each, by its path, as read and as written.

        Raises:
            PolicyInvalid: With the member and the rule of the format that it breaks.
        """
        return {
            path: (self.members[path].type.read(f"{self.name}.{path}", value), value)
            for path, value in self._leaves(block, "")
        }

    def _leaves(self, block: object, above: str) -> Iterable[tuple[str, object]]:
        if not isinstance(block, Mapping) or not block:
            refuse(f"{f'{self.name}.{above}'.rstrip('.')} is not an object that states something")
        for name, value in block.items():
            path = f"{above}{name}"
            if "." not in name and path in self.members:
                yield path, value
            elif "." not in name and any(known.startswith(f"{path}.") for known in self.members):
                yield from self._leaves(value, f"{path}.")
            else:
                refuse(f"{self.name}: unknown member {path[:40]!r}")

    def build(self, members: Mapping[str, Stated], *, report: bool) -> Any:
        """Return the rules that *members* state, by path; defaults are only reported where *report*."""
        rules = self.rules()
        values: dict[str, Any] = {}
        for each in fields(rules):
            default = getattr(rules, each.name)
            if isinstance(default, Demand):
                values[each.name] = Demand(default.value, report)
        for path, stated in members.items():
            member = self.members[path]
            values[member.field or path] = (
                stated.value if member.plain else Demand(stated.value, stated.source.report)
            )
        self.assemble(values)
        return self.rules(**values)

    @property
    def defaults(self) -> Mapping[str, object]:
        """Return what holds where nothing is stated, by path and as it would be written."""
        rules = self.rules()
        found: dict[str, object] = {}
        for path, member in self.members.items():
            value = getattr(rules, member.field or path, None)
            if value is not None:
                bare = value.value if isinstance(value, Demand) else value
                found[path] = sorted(bare) if isinstance(bare, frozenset) else bare
        return found

    def schema(self) -> Schema:
        """Return the JSON Schema of the block."""
        root: dict[str, Any] = stating()
        for path, member in self.members.items():
            *above, last = path.split(".")
            place = root
            for depth, name in enumerate(above, 1):
                words = {"description": self.inner[".".join(above[:depth])]}
                place = place["properties"].setdefault(name, words | stating())
            default = {"default": self.defaults[path]} if path in self.defaults else {}
            place["properties"][last] = {"description": member.about} | member.type.schema | default
        return root


def stating() -> Schema:
    """Return the schema of an object that states something, no member of it yet."""
    return {"type": "object", "properties": {}, "additionalProperties": False, "minProperties": 1}


def refuse(message: str) -> NoReturn:
    """Raise `PolicyInvalid`."""
    raise PolicyInvalid(message)


# ---------------------------------------------------------------- types


def _bool(path: str, value: object) -> object:
    return value if isinstance(value, bool) else refuse(f"{path} is not true or false")


FLAG: Final = Type(_bool, {"type": "boolean"})


def number(low: int, high: int) -> Type:
    """Return the type of whole numbers from *low* to *high*."""

    def read(path: str, value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            refuse(f"{path} is not a whole number from {low} to {high}")
        return value

    return Type(read, {"type": "integer", "minimum": low, "maximum": high})


def one_of(*words: str) -> Type:
    """Return the type of one of *words*."""

    def read(path: str, value: object) -> object:
        return value if value in words else refuse(f"{path} is not {' or '.join(words)}")

    return Type(read, {"type": "string", "enum": list(words)})


def hexes(*sizes: int) -> Type:
    """Return the type of lists of values of one of *sizes* bytes each, lower-case hex; kept as a set of bytes."""

    def read(path: str, value: object) -> object:
        return frozenset(_hex(path, text, sizes) for text in _list(path, value))

    pattern = "|".join(f"[0-9a-f]{{{2 * size}}}" for size in sizes)
    return Type(read, _list_of({"type": "string", "maxLength": 2 * max(sizes), "pattern": f"^({pattern})$"}))


def words(*known: str, pattern: str = "") -> Type:
    """Return the type of lists of text, kept as a set: of *known* words, or of what *pattern* matches, or any."""
    matches = re.compile(pattern or r"[ -~]+")
    what = f"one of {', '.join(known)}" if known else f"like {pattern}" if pattern else "printable ASCII"

    def read(path: str, value: object) -> object:
        for text in (texts := _list(path, value)):
            good = text in known if known else len(text) <= _MAX_WORD and matches.fullmatch(text)
            if not good:
                refuse(f"{path} lists {text[:40]!r}, which is not {what}")
        return frozenset(texts)

    if known:
        return Type(read, _list_of({"type": "string", "enum": list(known)}))
    item = {"type": "string", "maxLength": _MAX_WORD, "pattern": f"^{matches.pattern}$"}
    return Type(read, _list_of(item))


def masked(size: int, make: Callable[..., object]) -> Type:
    """Return the type of `{value, mask}`, each *size* bytes of lower-case hex as evidence shows them.

    *make* gets both as integers, read little-endian.
    """

    def read(path: str, value: object) -> object:
        if not isinstance(value, Mapping) or value.keys() != {"value", "mask"}:
            refuse(f"{path} is not an object of value and mask")
        found = {
            name: int.from_bytes(_hex(f"{path}.{name}", text, (size,)), "little")
            for name, text in value.items()
        }
        if found["value"] & ~found["mask"]:
            refuse(f"{path}: value has bits that mask leaves out, so nothing could match")
        return make(**found)

    item = {"type": "string", "maxLength": 2 * size, "pattern": f"^[0-9a-f]{{{2 * size}}}$"}
    return Type(
        read,
        {
            "type": "object",
            "properties": {
                "value": {"description": "What the bits are"} | item,
                "mask": {"description": "Which bits are compared"} | item,
            },
            "additionalProperties": False,
            "required": ["value", "mask"],
        },
    )


def minima(components: Mapping[str, tuple[str, ...]]) -> Type:
    """Return the type of `{line: {component: 0-255}}` over *components*, line -> names; each states something."""

    def read(path: str, value: object) -> object:
        if not isinstance(value, Mapping) or not value:
            refuse(f"{path} is not an object that states something")
        found = {}
        for line, levels in value.items():
            if line not in components:
                refuse(f"{path}: unknown member {str(line)[:40]!r}")
            if not isinstance(levels, Mapping) or not levels:
                refuse(f"{path}.{line} is not an object that states something")
            for name, level in levels.items():
                if name not in components[line]:
                    refuse(f"{path}.{line}: unknown member {str(name)[:40]!r}")
                level_type.read(f"{path}.{line}.{name}", level)
            found[line] = dict(levels)
        return found

    level_type = number(0, 255)
    lines = {
        line: {"description": f"Of the line {line.capitalize()}"}
        | stating()
        | {"properties": {name: {"description": f"Lowest {name}"} | level_type.schema for name in names}}
        for line, names in components.items()
    }

    def whole(value: Mapping[str, Mapping[str, int]]) -> object:
        # A component that is not named may be anything; its line is named all the same, and no other is accepted.
        return {line: {**dict.fromkeys(components[line], 0), **levels} for line, levels in value.items()}

    return Type(read, stating() | {"properties": lines}, whole)


def _date(path: str, value: object) -> object:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            pass
    refuse(f"{path} is not an instant like 2026-01-31T00:00:00Z")


DATE: Final = Type(_date, {"type": "string", "maxLength": 20, "pattern": f"^{_DATE.pattern}$"})


def _list(path: str, value: object) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_VALUES:
        refuse(f"{path} must list 1 to {MAX_VALUES} values")
    if not all(isinstance(text, str) for text in value):
        refuse(f"{path} lists something that is not text")
    return value


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "maxItems": MAX_VALUES, "items": item}


def _hex(path: str, text: object, sizes: tuple[int, ...]) -> bytes:
    if not isinstance(text, str):
        refuse(f"{path} is not text")
    # A text of none of the lengths is told the first of them.
    fitting = [size for size in sizes if len(text) == 2 * size]
    try:
        return hexdecode(text, path, size_bytes=(fitting or sizes)[0])
    except MalformedEvidence as e:
        raise PolicyInvalid(str(e)) from e
