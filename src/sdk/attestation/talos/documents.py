"""Streams of YAML documents, read so that everybody reads them alike, and written so that nothing gets lost.

YAML 1.2 round trip (ruamel.yaml): comments, document order and everything we do not know survive. Refused, because two
readers could understand it differently or it costs without bound: duplicate keys, aliases that expand more than
tenfold or refer to themselves, more than 1 MiB (DELIVERY-AND-OPERATORS §2.5), what ends a line for readers of YAML 1.1
alone, or brackets within brackets: for each that is open, ruamel looks at all others again, and a megabyte of them
would take hours.
"""

from __future__ import annotations

import io
import re
from copy import deepcopy
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from attestation.errors import BaseConfigInvalid

MAX_BYTES: Final = 1 << 20
MAX_ALIAS_EXPANSION: Final = 10
MAX_INTEGER_BITS: Final = 64
MAX_OPEN_BRACKETS: Final = 200
"""Also those in texts and comments count, where they are not closed: a file in a configuration has not as many."""

STUMBLES: Final = (
    YAMLError,
    RecursionError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
)
"""What ruamel raises over texts: beside its own errors, what YAML allows and Python does not, e.g. mappings as keys."""


_BRACKET: Final = re.compile(r"[\[\]{}]")
_BREAK_OF_SOME: Final = re.compile("[\x85\u2028\u2029]")
"""Ends a line in YAML 1.1 and for Talos' reader, not in YAML 1.2 (§5.4): a comment here would be a member there."""


def read_stream(text: bytes) -> list[CommentedMap]:
    """Return the documents of *text*, each a mapping; empty documents are left out.

    Raises:
        BaseConfigInvalid: Not YAML that everybody reads alike, too large, or a document that is no mapping.
    """
    if len(text) > MAX_BYTES:
        raise BaseConfigInvalid(f"configuration: more than {MAX_BYTES} bytes")
    try:
        decoded = text.decode("utf-8")
        demand_shallow(decoded)
        _demand_same_lines(decoded)
        _check_aliases(decoded)
        found = [each for each in _round_trip().load_all(decoded) if each is not None]
    except STUMBLES as e:
        raise unreadable(e) from None
    if not all(isinstance(each, CommentedMap) for each in found):
        raise BaseConfigInvalid("configuration: a document is not a mapping")
    return found


def demand_shallow(text: str) -> None:
    """Refuse *text* with more brackets open at once than any configuration has; before anything reads it.

    Raises:
        BaseConfigInvalid: It has.
    """
    depth = 0
    for each in _BRACKET.finditer(text):
        depth = depth + 1 if each[0] in "[{" else max(0, depth - 1)
        if depth > MAX_OPEN_BRACKETS:
            raise BaseConfigInvalid(
                f"configuration: more than {MAX_OPEN_BRACKETS} brackets within one another"
            )


def _demand_same_lines(text: str) -> None:
    found = _BREAK_OF_SOME.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise BaseConfigInvalid(
            f"configuration: line {line} has U+{ord(found[0]):04X}, which ends a line for some readers and not for "
            "others: write it as an escape within double quotes"
        )


def write_stream(documents: list[CommentedMap]) -> bytes:
    """Return *documents* as a stream, in UTF-8.

    Raises:
        BaseConfigInvalid: More than 1 MiB, or what YAML cannot say.
    """
    out = io.BytesIO()
    try:
        _round_trip().dump_all(documents, out)
    except STUMBLES as e:
        raise unreadable(e) from None
    if out.tell() > MAX_BYTES:
        raise BaseConfigInvalid(f"completed configuration: more than {MAX_BYTES} bytes")
    return out.getvalue()


def copied(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return a copy of what was read, in which aliases are aliases of copies.

    ruamel's own copies all comments of a list anew for each of its members: minutes for a few thousand.
    """
    seen = {} if seen is None else seen
    if (known := seen.get(id(value))) is not None:
        return known
    if isinstance(value, CommentedMap):
        mapping = seen[id(value)] = value.__class__()
        for key in value:
            mapping[key] = copied(value[key], seen)
        return value.copy_attributes(mapping, memo={})
    if isinstance(value, CommentedSeq):
        sequence = seen[id(value)] = value.__class__()
        for each in value:
            sequence.append(copied(each, seen))
        return value.copy_attributes(sequence, memo={})
    return deepcopy(value, seen)


def unreadable(error: Exception) -> BaseConfigInvalid:
    """Return what is told of *error*: the number of the line, never its text, which may hold secrets of the cluster."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}" if mark is not None else "it"
    return BaseConfigInvalid(f"configuration: {where} is not YAML that everybody reads alike")


def kind_of(document: CommentedMap) -> str:
    """Return the `kind` of a document, the empty word for a v1alpha1 one.

    Raises:
        BaseConfigInvalid: It is no text.
    """
    kind = document.get("kind", "")
    if not isinstance(kind, str) or ("kind" in document and not kind):
        raise BaseConfigInvalid("configuration: a document's kind is not a word")
    return str(kind)


def quoted(value: str) -> str:
    """Quote *value*: sixteen hex digits may look like a number, and readers of YAML 1.1 know more words."""
    found: str = DoubleQuotedScalarString(value)
    return found


def _round_trip() -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = MAX_BYTES  # never fold a line that the operator wrote as one
    yaml.allow_duplicate_keys = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    _silence(yaml)
    return yaml


def _silence(yaml: YAML) -> None:
    """Anchors may be used again (YAML 1.2, 7.1); the warning would quote lines, and those may hold secrets."""
    yaml.composer.warn_double_anchors = False


def _check_aliases(text: str) -> None:
    yaml = YAML(typ="rt", pure=True)
    _silence(yaml)
    for document in yaml.compose_all(text):
        sizes: dict[int, int] = {}
        expanded = _expanded(document, sizes, frozenset())
        if expanded > MAX_ALIAS_EXPANSION * max(1, len(sizes)):
            raise BaseConfigInvalid("configuration: aliases expand more than tenfold")


def _expanded(node: Node | None, sizes: dict[int, int], above: frozenset[int]) -> int:
    """Return how many nodes *node* has once its aliases are written out."""
    if node is None:
        return 0
    if id(node) in above:
        raise BaseConfigInvalid("configuration: an alias refers to itself")
    if (known := sizes.get(id(node))) is not None:
        return known
    inside = above | {id(node)}
    children: list[Node] = []
    if isinstance(node, MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, SequenceNode):
        children = list(node.value)
    size = 1 + sum(_expanded(child, sizes, inside) for child in children)
    sizes[id(node)] = size
    return size


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: no comments, anchors or tags; a date is its text.

    Raises:
        BaseConfigInvalid: A key is no word, or it is nested beyond what can be followed.
    """
    try:
        return _plain(value)
    except RecursionError as e:
        raise unreadable(e) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BaseConfigInvalid("configuration: a key is not a word")
        return {_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, ScalarBoolean):  # one with an anchor
        return bool(value)
    if isinstance(value, int):
        # Others keep 64 bits of it, and Python writes no number of many thousand digits.
        if value.bit_length() > MAX_INTEGER_BITS:
            raise BaseConfigInvalid("configuration: a number of more than 64 bits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    return _text(value)


def _text(value: Any) -> str:
    """Return *value* as text, which can be said in UTF-8: an escape may name half of a character."""
    text = str(value)
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise BaseConfigInvalid("configuration: a text with half of a character")
    return text
