"""The URL of an archive: `file:///directory`, or `s3://bucket[/prefix]?endpoint=https://…&region=…`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

DEFAULT_REGION: Final = "us-east-1"
"""What servers that have no regions call theirs."""

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/)*", re.ASCII)
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)


class LocationInvalid(ValueError):
    """The text names no archive; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory of this computer, or one that several share."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket of an object store that speaks S3.

    Args:
        name: Of the bucket.
        prefix: Before each name in it; empty, or ends in `/`.
        endpoint: URL of the server; None for AWS.
        region: Its region.
    """

    name: str
    prefix: str
    endpoint: str | None
    region: str


def parse_location(url: str) -> Directory | Bucket:
    """Read the URL of an archive.

    Raises:
        LocationInvalid: It is none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise LocationInvalid("cannot be read as a URL") from e
    if parts.username is not None or parts.password is not None:
        raise LocationInvalid("holds a name or password: credentials are no part of it")
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or ".." in path.parts:
            raise LocationInvalid("is not file:///directory")
        return Directory(path=path)
    if parts.scheme != "s3":
        raise LocationInvalid("begins neither with file:// nor with s3://")
    prefix = parts.path.removeprefix("/")
    prefix += "/" if prefix and not prefix.endswith("/") else ""
    if port or parts.fragment or not _BUCKET.fullmatch(parts.netloc) or not _PREFIX.fullmatch(prefix):
        raise LocationInvalid("is not s3://bucket or s3://bucket/prefix")
    options = parse_qsl(parts.query, keep_blank_values=True)
    found = dict(options)
    if len(found) != len(options) or not found.keys() <= {"endpoint", "region"}:
        raise LocationInvalid("has other options than one `endpoint` and one `region`")
    region = found.get("region", DEFAULT_REGION)
    if not _REGION.fullmatch(region):
        raise LocationInvalid("`region` is no name of one")
    return Bucket(name=parts.netloc, prefix=prefix, endpoint=_endpoint(found.get("endpoint")), region=region)


def _endpoint(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as e:
        raise LocationInvalid("`endpoint` cannot be read as a URL") from e
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise LocationInvalid("`endpoint` is not https://host[:port]")
    # Evidence names serial numbers and event logs, and what is read back is shown to operators.
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise LocationInvalid("`endpoint` is not https, and not on this computer")
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
