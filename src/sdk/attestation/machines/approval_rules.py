"""What a rule of approval calls the machines that it lets in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attestation.errors import RequestInvalid
from attestation.machines.names import canonical_hostname

PLACES: Final = ("serial", "uuid", "mac")
"""What of a machine may stand in its host name; all of it is its own word."""

_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_STRANGE: Final = re.compile(r"[^a-z0-9]+")


def checked_pattern(pattern: str) -> str:
    """Return *pattern*, in small letters.

    Raises:
        RequestInvalid: It names something else than `PLACES`, none of them, begins with one, or makes no host name.
    """
    named = _PLACE.findall(pattern)
    if not named or set(named) - set(PLACES):
        raise RequestInvalid(
            "a host name of a rule has {serial}, {uuid} or {mac} in it, and nothing else in braces"
        )
    if pattern.startswith("{"):
        # Certificates say what a machine is called: it would choose the whole of its name, cp-1 as well.
        raise RequestInvalid("a host name of a rule begins with what no machine chooses, as w-{serial} does")
    found = hostname_of(pattern, dict.fromkeys(PLACES, "0a1"))
    assert found is not None
    return pattern.lower()


def hostname_of(pattern: str, known: Mapping[str, str]) -> str | None:
    """Return the host name that *pattern* makes of what is known; None where that is empty or makes none.

    Raises:
        RequestInvalid: What it makes is no host name.
    """
    values = {place: _STRANGE.sub("-", known[place].lower()).strip("-") for place in PLACES}
    if not all(values[place] for place in _PLACE.findall(pattern.lower())):
        return None
    return canonical_hostname(_PLACE.sub(lambda place: values[place[1]], pattern.lower()))
