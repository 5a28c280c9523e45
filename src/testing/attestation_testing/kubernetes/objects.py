"""Reading objects: parts of them, selectors, instants."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from attestation_testing.kubernetes.status import Object, bad_request

_LABEL: Final = re.compile(r"^(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_KEY: Final = re.compile(
    r"^(?:[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
_SET: Final = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^()]*)\)$")

Matches = Callable[[Object], bool]


def copied(value: Any) -> Any:
    """Return a copy of JSON that shares nothing with *value*."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


def text(at: datetime) -> str:
    """Return an instant in whole seconds, as `metadata.creationTimestamp` has it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def part(value: Object, path: str) -> Any:
    """Return what stands at a dotted path; None where nothing does."""
    found: Any = value
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def word(value: Any) -> str:
    """Return a scalar as field selectors compare it: absent is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def label_errors(labels: object) -> list[tuple[str, str]]:
    """Return the keys and values of labels that the API refuses."""
    if labels is None:
        return []
    if not isinstance(labels, dict):
        return [("labels", "")]
    return [
        (str(key), str(value))
        for key, value in labels.items()
        if not _KEY.match(str(key)) or not isinstance(value, str) or not _LABEL.match(value)
    ]


def _requirements(selector: str) -> list[str]:
    """Split at commas outside parentheses."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(selector):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            found.append(selector[start:at])
            start = at + 1
    return [each.strip() for each in [*found, selector[start:]]]


def _label_requirement(said: str) -> Matches:
    if match := _SET.match(said):
        key, word_, values = match[1], match[2], {each.strip() for each in match[3].split(",")}
        if word_ == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for sign in ("!=", "==", "="):
        if sign in said:
            key, _, value = (each.strip() for each in said.partition(sign))
            if not _KEY.match(key) or not _LABEL.match(value):
                break
            if sign == "!=":
                return lambda labels: labels.get(key) != value
            return lambda labels: labels.get(key) == value
    else:
        absent, key = said.startswith("!"), said.lstrip("!").strip()
        if _KEY.match(key):
            return lambda labels: (key in labels) is not absent
    raise bad_request(f"unable to parse requirement: {said!r}")


def label_selector(said: str) -> Matches | None:
    """Return what `labelSelector` lets through; None for all."""
    if not said.strip():
        return None
    all_of = [_label_requirement(each) for each in _requirements(said)]

    def matches(value: Object) -> bool:
        labels = value["metadata"].get("labels") or {}
        return all(each(labels) for each in all_of)

    return matches


def field_selector(said: str, known: tuple[str, ...] | None) -> Matches | None:
    """Return what `fieldSelector` lets through; None for all.

    Args:
        said: As `spec.signerName=a/b,metadata.name!=c`.
        known: What may be selected by, beside name and namespace; None where nothing ever is.

    Raises:
        StatusError: Something else is asked for.
    """
    if not said.strip():
        return None
    all_of: list[tuple[str, bool, str]] = []
    for each in said.split(","):
        sign = "!=" if "!=" in each else "==" if "==" in each else "="
        field, found, value = each.partition(sign)
        if not found:
            raise bad_request(f"invalid selector: {each!r}; can't understand {each!r}")
        if field not in ("metadata.name", "metadata.namespace", *(known or ())):
            raise bad_request(
                f"field label not supported: {field}"
                if known is not None
                else f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
        all_of.append((field, sign != "!=", value))
    return lambda value: all((word(part(value, field)) == want) is is_ for field, is_, want in all_of)
