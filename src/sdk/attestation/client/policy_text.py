"""Policy documents as text: JSON, or YAML in which nothing is guessed.

YAML is read event by event and made into what JSON is made of. Every key is a text, so `7:` and `"7":` are the
same PCR. A value without quotes is a text unless it is `true`, `false` or a whole number of at most nine digits:
a digest that happens to have no letter, or to look like `12e456…`, stays a digest. What makes a small file large
or strange (anchors and aliases, merge keys, tags, several documents, a member named twice) is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from attestation.client.text import clean
from attestation.client.yaml_text import yaml_text
from attestation.errors import RequestInvalid

if TYPE_CHECKING:
    from ruamel.yaml.events import Event

    from attestation.api import LearnedPolicy

MAX_CHARACTERS = 1 << 18
MAX_DEPTH = 16
MOST_NAMED = 3

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None}


def read_policy(text: str, name: str) -> dict[str, Any]:
    """Return the policy document in *text*; whether it breaks a rule of the format is not judged here.

    Args:
        text: JSON or YAML.
        name: The file, for messages.

    Raises:
        RequestInvalid: Neither, or no object; the message names file and line.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestInvalid(f"{name}: longer than {MAX_CHARACTERS} characters")
    as_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    document = _json(text, name) if as_json else _yaml(text, name)
    if not isinstance(document, dict):
        raise RequestInvalid(f"{name}: a policy is an object with members, like `name: workers`")
    return document


def commented(learned: LearnedPolicy) -> str:
    """Return a proposal as YAML: what it was learned from as comments, each value with the machines that have it."""
    many = "one machine" if learned.machines == 1 else f"{learned.machines} machines"
    lines = [f"# Proposed from what {many} proved last. Read it before you store it."]
    lines += [f"# {clean(note)}" for note in learned.notes]
    lines += [f"# left out: {clean(each.machine)}: {clean(each.reason)}" for each in learned.outliers]
    who = {group.value: group.machines for group in learned.groups}
    for line in yaml_text(learned.document).splitlines():
        item = line.lstrip()
        machines = who.get(item.removeprefix("- ").strip("'\"")) if item.startswith("- ") else None
        if machines is not None:
            lines.append(f"{line[: len(line) - len(item)]}# {_machines(machines)}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _machines(names: list[str]) -> str:
    shown = ", ".join(clean(name) for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{len(names)}: {shown}{more}"


def _json(text: str, name: str) -> object:
    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise RequestInvalid(f"{name}: {twice[:40]!r} is named twice in one object")
        return found

    try:
        return json.loads(text.lstrip("\ufeff"), object_pairs_hook=members)
    except (ValueError, RecursionError) as e:
        raise RequestInvalid(f"{name}: not JSON: {e}") from e


def _yaml(text: str, name: str) -> object:
    # Imported here: ruamel.yaml takes longer to load than most commands take.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _Builder(iter(YAML(typ="safe", pure=True).parse(text)), name).document()
    except MarkedYAMLError as e:
        line = f" line {e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise RequestInvalid(f"{name}{line}: not YAML: {e.problem or e.context}") from e
    except (YAMLError, ValueError, RecursionError) as e:
        raise RequestInvalid(f"{name}: not YAML: {str(e).splitlines()[0]}") from e


class _Builder:
    """Makes values of YAML events, and refuses the events that no policy needs.

    Args:
        events: As the parser yields them.
        name: The file, for messages.
    """

    def __init__(self, events: Iterator[Event], name: str) -> None:
        self._events, self._name = events, name

    def document(self) -> object:
        from ruamel.yaml import events as kinds

        self._next()  # the stream begins
        start = self._next()
        if isinstance(start, kinds.StreamEndEvent):
            return None
        if getattr(start, "tags", None):
            self._refuse(start, "tags are not allowed")
        found = self._value(self._next(), 0)
        self._next()  # the document ends
        if not isinstance(self._next(), kinds.StreamEndEvent):
            raise RequestInvalid(f"{self._name}: more than one document")
        return found

    def _next(self) -> Event:
        return next(self._events)

    def _value(self, event: Event, depth: int) -> object:
        from ruamel.yaml import events as kinds

        if isinstance(event, kinds.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors and aliases are not allowed; write the value out")
        if getattr(event, "tag", None):
            self._refuse(event, "tags are not allowed")
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH}")
        if isinstance(event, kinds.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, kinds.SequenceStartEvent):
            return list(self._until(kinds.SequenceEndEvent, lambda item: self._value(item, depth + 1)))
        assert isinstance(event, kinds.ScalarEvent)
        return _plain(event.value) if event.style is None else event.value

    def _mapping(self, depth: int) -> dict[str, object]:
        from ruamel.yaml import events as kinds

        found: dict[str, object] = {}
        for key in self._until(kinds.MappingEndEvent, lambda event: event):
            if not isinstance(key, kinds.ScalarEvent):
                self._refuse(key, "a name of a member is a text")
            self._value(key, depth)  # no anchor, no tag
            if key.value == "<<" and key.style is None:
                self._refuse(key, "merge keys are not allowed; write the members out")
            if key.value in found:
                self._refuse(key, f"{key.value[:40]!r} is named twice in one object")
            found[key.value] = self._value(self._next(), depth + 1)
        return found

    def _until(self, end: type[Event], make: Callable[[Event], Any]) -> Iterator[Any]:
        while not isinstance(event := self._next(), end):
            yield make(event)

    def _refuse(self, event: Event, why: str) -> NoReturn:
        raise RequestInvalid(f"{self._name} line {event.start_mark.line + 1}: {why}")


def _plain(text: str) -> object:
    """Return the value of a scalar without quotes."""
    if text == "":
        return None
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _NUMBER.match(text) else text
