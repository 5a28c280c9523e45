"""Labels: what operators write on machines so that they find them again, `rack=4`.

They decide nothing. A `Machine` has none, so no rule of ours can come to rest on one: who may change a label need not
be trusted with more. Their syntax is that of Kubernetes (apimachinery, `validation.IsQualifiedName` and
`IsValidLabelValue`), because that is what people know and what other programs check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from attestation.errors import RequestInvalid

MAX_LABELS: Final = 32
"""On one machine, and in one selector."""
MAX_PREFIX: Final = 253
MAX_NAME: Final = 63
MAX_SELECTOR: Final = 2048
"""Characters: with each of them escaped it fits a request line, of which 8 KiB are read."""
RESERVED: Final = ("itl.io", "kubernetes.io", "k8s.io")
"""Prefixes, with all below them, that are ours or Kubernetes' own: read there, they are believed."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def checked_key(text: str) -> str:
    """Return *text* where it can be the key of a label: `rack`, or with a DNS name before it, `example.org/rack`.

    Raises:
        RequestInvalid: It cannot, or it is reserved.
    """
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= MAX_PREFIX and _PREFIX.fullmatch(prefix)):
        raise RequestInvalid(
            f"what stands before the / of a label's key is a DNS name in lower case, at most {MAX_PREFIX} characters"
        )
    if not _NAME.fullmatch(name):
        raise RequestInvalid(
            f"the key of a label has 1 to {MAX_NAME} letters, digits, hyphens, underscores or dots, and begins and "
            "ends with a letter or digit: rack, or example.org/rack"
        )
    if any(prefix == each or prefix.endswith(f".{each}") for each in RESERVED):
        raise RequestInvalid(f"labels below {prefix}/ are set by programs, not by hand")
    return text


def checked_value(text: str) -> str:
    """Return *text* where it can be the value of a label; it may be empty.

    Raises:
        RequestInvalid: It cannot.
    """
    if text and not _NAME.fullmatch(text):
        raise RequestInvalid(
            f"the value of a label is empty or has up to {MAX_NAME} letters, digits, hyphens, underscores or dots, and "
            "begins and ends with a letter or digit"
        )
    return text


def parse_selector(text: str) -> dict[str, str | None]:
    """Return what a selector demands: `rack=4,site` is the label `rack` with this value, and `site` with any.

    Returns:
        The value of each key; None where any will do.

    Raises:
        RequestInvalid: Not such a list, or one key twice.
    """
    if len(text) > MAX_SELECTOR:
        raise RequestInvalid(f"a selector of labels has at most {MAX_SELECTOR} characters")
    wanted: dict[str, str | None] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if checked_key(key) in wanted:
            raise RequestInvalid(f"the label {key} is asked for twice")
        wanted[key] = checked_value(value) if equals else None
    if len(wanted) > MAX_LABELS:
        raise RequestInvalid(f"a selector names at most {MAX_LABELS} labels")
    return wanted


def changed(before: Mapping[str, str], put: Mapping[str, str], remove: Iterable[str]) -> dict[str, str]:
    """Return the labels after *remove* went and *put* came.

    Raises:
        RequestInvalid: One is both, or there would be more than 32.
    """
    gone = frozenset(remove)
    if both := sorted(gone & put.keys()):
        raise RequestInvalid(f"the label {both[0]} is both set and removed")
    after = {key: value for key, value in before.items() if key not in gone} | dict(put)
    if len(after) > MAX_LABELS:
        raise RequestInvalid(f"a machine has at most {MAX_LABELS} labels; this would make {len(after)}")
    return after


def told(labels: Mapping[str, str]) -> str:
    """Return labels as people write them, in the order of their keys: `rack=4, site=ams`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
