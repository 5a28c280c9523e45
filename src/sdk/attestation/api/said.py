"""What is wrong with a value, in words for whoever wrote it: never a regular expression, never the value itself.

Pydantic names the rule that a value broke; here is what each rule means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ONE_LINE: Final = "must be one line, without control characters"
_NAME: Final = "must be 1 to 63 lower-case letters, digits and hyphens, and begin with a letter or a digit"

PATTERNS: Final[Mapping[str, str]] = {
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$": (
        "must be a host name like cp-1: lower-case letters, digits and hyphens, with dots between its parts"
    ),
    r"^[a-z0-9][a-z0-9-]{0,62}$": _NAME,
    r"^[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}$": (
        "must name a policy with its version, NAME@VERSION, like workers@1; `attestation policy list` shows them"
    ),
    r"^[^\x00-\x1f\x7f]*$": _ONE_LINE,
    r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$": f"{_ONE_LINE} or a space at either end",
    r"^v?1\.[0-9]{1,3}(\.[0-9]{1,3})?(-[0-9A-Za-z.-]{1,32})?$": "must be a version of Talos, like v1.13.9",
    r"^[0-9a-fA-F]{64}([0-9a-fA-F]{32})?$": "must be 64 or 96 hex digits",
    r"^[0-9a-fA-F]{96}$": "must be 96 hex digits, a SHA-384",
    r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$": (
        "must be the whole id of a machine, in lower case; `attestation machine list -o wide` shows it"
    ),
    r"^[0-9a-f-]{36}(,[0-9a-f-]{36}){0,49}$": (
        "must be whole ids of machines, in lower case, 50 at most with commas between"
    ),
    r"^[0-9a-f]*$": "must be hex digits, in lower case",
    r"^[0-9a-f]{2,128}$": "must be 2 to 128 hex digits, in lower case",
    r"^sha256:[0-9a-f]{64}$": "must be sha256: and 64 lower-case hex digits",
    r"^sha(1|256|384|512)$": "must be the name of a PCR bank, like sha256",
    r"^[0-9]{1,2}$": "must be the number of a PCR, 0 to 23",
    r"^[a-z0-9_]{1,16}$": "must be the name of a PCR bank, like sha256",
    r"^[A-Z]{2,4}$": "must be 2 to 4 capital letters, as the TCG names the vendor, like IFX",
    r"^([A-Z]{2})?$": "must be two capital letters, the code of a country",
    r"^[a-z_]{1,64}$": "must be an action of the audit, like approve: lower-case letters and underscores",
    r"^[A-Za-z0-9*_.-]+$": "must be letters, digits and any of * _ . -",
    r"^[A-Za-z0-9_-]+$": "must be what an earlier answer gave as next_cursor",
    r"^[A-Za-z0-9+/=]+$": "must be base64",
    r"^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$": "must be 32 bytes in base64, 44 characters",
    r"^[A-Za-z0-9._-]+$": "must be letters, digits and any of . _ -",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": "must be 1 to 63 letters, digits and any of . _ -, a letter or digit first",
    r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$": "must be lower-case letters, digits, dots and hyphens",
    r"^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$": (
        "must be a code as the console shows it: eight letters with a hyphen after the fourth, in capitals"
    ),
    r"^[A-Za-z0-9-]+$": "must be letters, digits and hyphens",
    r"^[!-~]+$": "must be visible ASCII without spaces",
    r"^[^\s+]*$": "must have no space and no plus sign",
    r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "must be a domain in lower case, "
    "like nodes.example.com",
    r"^[0-2](\.(0|[1-9]\d{0,8}))+$": "must be an object identifier, numbers with dots between, like 1.3.6.1",
    r"^([0-2](\.(0|[1-9]\d{0,8}))+)?$": "must be an object identifier, numbers with dots between, like 1.3.6.1",
}
"""Every pattern of a value that is checked, and what it asks for; a test finds those that are missing here."""

_HEX: Final = re.compile(r"\^\[0-9a-f\]\{([0-9]+)\}\$")
_INPUT: Final = re.compile(r"^(Input|Value|String|List|Field) (should|must) ")


def said(error: Mapping[str, Any]) -> str:
    """Return in words what *error*, one of `ValidationError.errors()`, found."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return pattern_words(context["pattern"])
    if kind == "extra_forbidden":
        return "is not known here"
    if kind == "missing":
        return "is missing"
    if kind.startswith("bool_"):
        return "must be true or false"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "must be an object with members"
    words: str = error["msg"]
    return _INPUT.sub("must ", words.removeprefix("Value error, "))


def pattern_words(pattern: str) -> str:
    """Return what *pattern* asks for."""
    if (digits := _HEX.fullmatch(pattern)) is not None:
        return f"must be {digits[1]} hex digits, in lower case"
    return PATTERNS.get(pattern, "has characters that are not allowed")
