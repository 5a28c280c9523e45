"""What an archive is to those who keep something in it (docs/adr/0175)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

_NAME: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,254}){0,8}", re.ASCII
)


class Fault(StrEnum):
    """Why something could not be kept or read; `reason` of a failure of a bundle."""

    OTHER_CONTENT = "OtherContent"
    """Something else is kept under the name. Waiting does not change that."""
    NOT_LOCKED = "NotLocked"
    """It could be deleted or changed before its time."""
    FULL = "StorageFull"
    DENIED = "AccessDenied"
    UNREACHABLE = "Unreachable"
    MISSING = "NotFound"
    FAILED = "StorageFailed"


class ArchiveFault(Exception):
    """Something was not kept, or cannot be read.

    Args:
        fault: What kind.
        detail: For people.
    """

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where something is kept.

    Args:
        url: Of just these bytes: in a bucket with the version.
    """

    url: str


class Archive(Protocol):
    """Keeps bytes under a name, once. Its methods block: never on an event loop."""

    def put(self, name: str, data: bytes, media_type: str) -> Stored:
        """Keep *data* under *name*, durably; where just that is kept already, that is success.

        Raises:
            ArchiveFault: It is not kept.
        """
        ...

    def get(self, url: str) -> bytes:
        """Return what `put` kept.

        Raises:
            ArchiveFault: It cannot be read.
        """
        ...


def demand_name(name: str) -> None:
    """Refuse a name that could lead elsewhere.

    Raises:
        ValueError: It is none of ours: parts of letters, digits, dots, `_` and `-`, none of which begins with a dot.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("no name of an archive")
