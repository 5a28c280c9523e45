"""What a machine's version of Talos would refuse, or warn of, in a configuration, told without its values (§2.2, R37).

Each document is judged alone, by the definition of its kind. What only an older schema knows is `deprecated`: the
loader still takes it, with a warning. What only a later schema knows is `unproven` for a version between two schemas:
one of them brought it. Everything else that does not fit is an `error`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator, ValidationError
from ruamel.yaml.comments import CommentedMap

from attestation.machines import Role
from attestation.talos.conflicts import conflicts
from attestation.talos.documents import kind_of, plain, read_stream, unreadable
from attestation.talos.versions import Generation, definitions, kinds
from attestation.text import clean

MAX_FINDINGS: Final = 100
"""So many are told of; what is wrong more often is wrong throughout."""

_CA_KEYS: Final = (
    ("", ("machine", "ca", "key")),
    ("", ("cluster", "ca", "key")),
    ("", ("cluster", "aggregatorCA", "key")),
    ("", ("cluster", "serviceAccount", "key")),
    ("", ("cluster", "etcd", "ca", "key")),
    ("KubeAPIServerCAConfig", ("issuingCA", "key")),
    ("KubeAggregatorCAConfig", ("issuingCA", "key")),
    ("KubeServiceAccountConfig", ("issuer", "privateKey")),
)
"""Keys that make whoever holds them the cluster: of control planes alone."""


class Level(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"
    DEPRECATED = "deprecated"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """Something that does not fit.

    Args:
        document: Which document of the stream, from 1.
        kind: Of that document; empty for v1alpha1.
        path: Where in it: `machine.network.interfaces[0]`, empty for the document itself.
        level: How much it weighs.
        words: What does not fit: never a value.
    """

    document: int
    kind: str
    path: str
    level: Level
    words: str


def lint(text: bytes, generation: Generation, role: Role | None = None) -> tuple[Finding, ...]:
    """Return what does not fit in the configuration *text*, in the order of its documents; at most `MAX_FINDINGS`.

    Args:
        text: A stream of YAML documents.
        generation: Whose schema judges.
        role: Of the machine; None judges by what the configuration says it is.

    Raises:
        BaseConfigInvalid: Not YAML that everybody reads alike.
    """
    return lint_documents(read_stream(text), generation, role)


def lint_documents(
    stream: Iterable[CommentedMap], generation: Generation, role: Role | None = None
) -> tuple[Finding, ...]:
    """Return what does not fit in documents that were read; else as `lint`."""
    documents = [(kind_of(each), plain(each)) for each in stream]
    try:
        found = [
            finding
            for number, (kind, value) in enumerate(documents, 1)
            for finding in _by_schema(number, kind, value, generation)
        ]
    except RecursionError as e:
        raise unreadable(e) from None
    found += _beyond_the_schema(documents, role)
    return tuple(sorted(set(found), key=lambda each: (each.document, each.path, each.words)))[:MAX_FINDINGS]


def told(finding: Finding) -> str:
    """Return one finding as people read it."""
    where = f"document {finding.document} ({finding.kind or 'v1alpha1'})"
    return f"{where}: {finding.path + ': ' if finding.path else ''}{finding.words}"


# ---------------------------------------------------------------- the schema


@cache
def _validator(generation: Generation, definition: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": definitions(generation)})


def _by_schema(number: int, kind: str, value: Any, generation: Generation) -> Iterator[Finding]:
    """Yield what does not fit; what an older schema knows is judged by that one, and is deprecated."""

    def finding(path: str, level: Level, words: str) -> Finding:
        return Finding(
            document=number, kind=clean(kind)[:64], path=clean(path)[:200], level=level, words=words
        )

    later = generation.later_schema
    if later is not None and kind not in kinds(later):
        later = None
    if kind not in kinds(generation):
        if later is not None:
            yield finding("", Level.UNPROVEN, _BETWEEN)
            for path, words in _faults(later, kind, value):
                yield finding(path, Level.ERROR, words)
            return
        yield finding("", Level.ERROR, "no kind of document that this version of Talos knows")
        return
    before: list[dict[str, str]] | None = None
    newer: dict[str, str] | None = None
    for path, words in _faults(generation, kind, value):
        if words == UNKNOWN and (kind, path) in IN_NO_SCHEMA:
            yield finding(path, Level.DEPRECATED, "in no schema, and taken all the same")
            continue
        if later is not None and newer is None:
            newer = dict(_faults(later, kind, value))
        if newer is not None and path not in newer:
            yield finding(path, Level.UNPROVEN, _BETWEEN)
            for below, below_words in newer.items():
                if _is_below(below, path):
                    yield finding(below, Level.ERROR, below_words)
            continue
        if words == UNKNOWN and before is None:
            older = [each for each in reversed(Generation) if not each.since(generation)]
            before = [dict(_faults(each, kind, value)) for each in older if kind in kinds(each)]
        for inner, inner_words in _settled(path, words, before or []):
            dropped = inner_words is None
            told_words = f"of Talos before 1.{generation.value.first_minor}" if dropped else str(inner_words)
            yield finding(inner, Level.DEPRECATED if dropped else Level.ERROR, told_words)


def _settled(path: str, words: str, older: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str | None]]:
    """Yield what is to be told of one fault, by path; None for a key that only an older schema knows.

    What stands below such a key is judged by the schema that knew it, and what that one does not know by those before.

    Args:
        path: Where the fault is.
        words: What it is.
        older: The faults that older schemas find in the same document, the newest first.
    """
    knew = next((i for i, faults in enumerate(older) if faults.get(path) != UNKNOWN), None)
    if words != UNKNOWN or knew is None:
        yield path, words
        return
    yield path, None
    for inner, inner_words in older[knew].items():
        if inner == path or _is_below(inner, path):
            yield from _settled(inner, inner_words, older[knew + 1 :])


def _is_below(inner: str, path: str) -> bool:
    return inner.startswith((f"{path}.", f"{path}["))


UNKNOWN: Final = "unknown key"
_BETWEEN: Final = "of a later schema than there is of this version: whether Talos takes it, Talos alone says"
IN_NO_SCHEMA: Final = frozenset({("", "persist")})
"""Members that Talos' loader takes, `talosctl gen config` writes, and its schemas leave out: kind and path."""


def _faults(generation: Generation, kind: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the words of each fault; a value is never quoted."""
    for error in _validator(generation, kinds(generation)[kind]).iter_errors(value):
        yield from _words(error)


def _words(error: ValidationError) -> Iterator[tuple[str, str]]:
    path = _path(error.absolute_path)
    wanted: Any = error.validator_value
    instance: Any = error.instance
    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
            for key in instance:
                if key not in known:
                    yield f"{path}.{key}" if path else str(key), UNKNOWN
        case "required":
            missing = [key for key in wanted if key not in instance]
            yield path, f"lacks {', '.join(missing)}"
        case "type":
            yield path, f"is not of type {wanted}"
        case "enum":
            yield path, f"is none of {', '.join(map(str, wanted))}"
        case "pattern":
            yield path, f"does not have the form {wanted}"
        case other:
            yield path, f"does not fit the schema ({other})"


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


# ---------------------------------------------------------------- what the schema does not say


def _beyond_the_schema(documents: list[tuple[str, Any]], role: Role | None) -> Iterator[Finding]:
    names = Counter((kind, str(value.get("name", ""))) for kind, value in documents)
    said = [_at(value, ("machine", "type")) for kind, value in documents if not kind]
    refused = {kind: path for each, value in documents if not each for kind, path in conflicts(value)}
    is_control_plane = role is Role.CONTROLPLANE if role is not None else "controlplane" in said
    for number, (kind, value) in enumerate(documents, 1):

        def error(path: str, words: str, number: int = number, kind: str = kind) -> Finding:
            return Finding(document=number, kind=clean(kind)[:64], path=path, level=Level.ERROR, words=words)

        if names[(kind, str(value.get("name", "")))] > 1:
            yield error(
                "name" if "name" in value else "", "more than one document of this kind has this name"
            )
        if not kind and role is not None and (type_ := _at(value, ("machine", "type"))) is not None:
            wanted = "controlplane" if role is Role.CONTROLPLANE else "worker"
            if type_ != wanted:
                yield error("machine.type", f"must be {wanted}, for the role of the machine")
        if not is_control_plane:
            for of, path in _CA_KEYS:
                if of == kind and _at(value, path):
                    yield error(".".join(path), "the key of a CA, which only control planes may have")
        if kind in refused:
            yield error("", f"stands beside {refused[kind]} of v1alpha1: Talos takes one of them")
        if kind == "UnattendedInstallConfig" and not _at(value, ("provisioning", "diskSelector", "match")):
            yield error("provisioning.diskSelector.match", "must say which disk is to be erased")
        if kind == "HostnameConfig" and value.get("hostname") and value.get("auto") not in (None, "off"):
            yield error("auto", "must be off where a hostname is given")


def _at(value: Any, path: Iterable[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
