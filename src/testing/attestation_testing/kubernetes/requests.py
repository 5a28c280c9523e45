"""A request, what its path names, and what is answered: a status with JSON, or a watch that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from attestation_testing.kubernetes.access import ANONYMOUS, User
from attestation_testing.kubernetes.resources import Resource, Version
from attestation_testing.kubernetes.status import Object, StatusError, bad_request
from attestation_testing.kubernetes.store import Change, encode

MOST_BODY_BYTES: Final = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked.

    Args:
        method: Of HTTP.
        path: Decoded, without the query.
        query: The last value of each name.
        content_type: Without parameters.
        body: Up to 3 MiB.
        user: Who asks.
        agent: `User-Agent`, for the name of a manager who does not say one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str = ""
    body: bytes = b""
    user: User = ANONYMOUS
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a status of HTTP and JSON."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: int | None = None


NOTHING: Final = Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
"""No part of the server knows the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """A watch that was let through; the server follows it.

    Args:
        resource: What is watched.
        version: In which version its objects are told.
        first: Lines to send at once.
        shows: Turns a change into a line, or None where the watch does not see it.
        bookmarks: Bookmarks are wanted.
        seconds: How long; None for the server's own.
        ends: Nothing comes after *first*.
    """

    resource: Resource
    version: str
    first: tuple[bytes, ...]
    shows: Callable[[Change], bytes | None]
    bookmarks: bool
    seconds: int | None
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path names."""

    resource: Resource
    version: Version
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def api_version(self) -> str:
        """As objects say it."""
        return self.resource.api_version(self.version.name)


def shown(value: Object, api_version: str) -> Object:
    """Return an object as a version of the API tells it."""
    if value.get("apiVersion") == api_version:
        return value
    return {**value, "apiVersion": api_version}


def event_line(kind: str, value: Object) -> bytes:
    """Return one event of a watch."""
    return b'{"type":"' + kind.encode() + b'","object":' + encode(value) + b"}\n"


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of the query, not negative; None where it is not said."""
    said = query.get(name, "")
    if not said:
        return None
    if not said.isascii() or not said.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{said}": invalid syntax')
    return int(said)


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Say whether the query says yes."""
    return query.get(name, "").lower() in ("true", "1")


def parsed(request: Request) -> Any:
    """Return the body, JSON or YAML."""
    if len(request.body) > MOST_BODY_BYTES:
        raise StatusError(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {MOST_BODY_BYTES}"
        )
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        pass
    if "yaml" in request.content_type:
        return _yaml(request.body)
    raise bad_request("couldn't get version/kind; json parse error: invalid JSON")


def _yaml(body: bytes) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(body)
    except (YAMLError, UnicodeDecodeError) as e:
        raise bad_request(f"error converting YAML to JSON: {e}") from e


def is_dry(request: Request) -> bool:
    """Say whether nothing is to be kept of a write."""
    said = request.query.get("dryRun")
    if said not in (None, "", "All"):
        raise StatusError(
            422, "Invalid", f'Invalid value: dryRun: Unsupported value: "{said}": supported values: "All"'
        )
    return said == "All"
