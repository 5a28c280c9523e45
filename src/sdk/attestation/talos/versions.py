"""Versions of Talos, and which schema judges a configuration of each (DELIVERY-AND-OPERATORS §2.1)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, Final

from attestation.errors import RequestInvalid

_VERSION: Final = re.compile(r"v?1\.(\d{1,3})(?:\.\d{1,3})?(?:-[0-9A-Za-z.-]{1,32})?")
OLDEST_MINOR: Final = 9
"""Of the oldest version whose schema there is; older ones knew less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    first_minor: int
    schema: str
    next_schema: str | None = None


MISNAMED: Final = {"UnattendedInstall": "UnattendedInstallConfig"}
"""Kinds that a schema has another word for than Talos itself, by the schema's (ADR 213): only Talos' word is taken."""


class Generation(Enum):
    """Versions that say the same things in the same documents, oldest first."""

    CLASSIC = _Span(first_minor=OLDEST_MINOR, schema="v1.9.5")
    """1.9: everything stands in the v1alpha1 document."""
    CLASSIC_WITH_MORE = _Span(first_minor=10, schema="v1.9.5", next_schema="v1.13.9")
    """1.10 and 1.11: the same, and documents beside it that a later schema alone knows. There is none of their own."""
    NETWORK_DOCUMENTS = _Span(first_minor=12, schema="v1.13.9")
    """1.12 and 1.13: hostname, links and addresses are documents."""
    ALL_DOCUMENTS = _Span(first_minor=14, schema="v1.14")
    """From 1.14 on: labels, installer and files are documents too."""

    @property
    def schema_version(self) -> str:
        """Return the version whose schema judges this generation."""
        return self.value.schema

    @property
    def later_schema(self) -> Generation | None:
        """Return whose schema may know what this generation's own does not; None where its own is enough."""
        return next((each for each in Generation if each.schema_version == self.value.next_schema), None)

    def since(self, other: Generation) -> bool:
        """Return True if this generation is *other* or a later one."""
        return self.value.first_minor >= other.value.first_minor


def generation_of(version: str) -> Generation:
    """Return the generation that *version* (`v1.13.9`, `1.14`) belongs to.

    A version that is newer than every schema here belongs to the last one.

    Raises:
        RequestInvalid: No version of Talos, or one before 1.9.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        raise RequestInvalid("not a version of Talos, such as v1.13.9")
    minor = int(found[1])
    fitting = [each for each in Generation if each.value.first_minor <= minor]
    if not fitting:
        raise RequestInvalid(f"Talos 1.{minor} is older than 1.{OLDEST_MINOR}, the first that is known here")
    return fitting[-1]


@cache
def definitions(generation: Generation) -> dict[str, Any]:
    """Return the definitions (`$defs`) of the schema of *generation*; nobody may change them."""
    text = files(__package__).joinpath("schemas", f"{generation.schema_version}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)["$defs"]
    for definition in found.values():
        kind = definition.get("properties", {}).get("kind", {})
        if "enum" in kind:
            kind["enum"] = [MISNAMED.get(word, word) for word in kind["enum"]]
    return found


@cache
def kinds(generation: Generation) -> dict[str, str]:
    """Return the definition of each document, by its `kind`; that of v1alpha1 under the empty word."""
    found = {"": "v1alpha1.Config"}
    for name, definition in definitions(generation).items():
        for kind in definition.get("properties", {}).get("kind", {}).get("enum", ()):
            found[kind] = name
    return found
