"""Where settings stand beside the environment: kernel arguments and files of `KEY=VALUE`. Pure; all of it is untrusted.

An unknown name stops the start, as an unknown variable does: a typo must not switch a control off. A name said twice
with two values does, too: nobody knows which one was meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attestation_agent.exits import UsageError

MAX_CMDLINE_BYTES: Final = 65_536
MAX_CONF_BYTES: Final = 65_536
MAX_VALUE_CHARACTERS: Final = 4096

KERNEL_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"itl.{name.removeprefix('ITL_').lower()}": name
        for name in (
            "ITL_REG_URL",
            "ITL_OFFLINE",
            "ITL_ROLE",
            "ITL_CLUSTER_ID",
            "ITL_AUTO_CONFIRM",
            "ITL_REINSTALL",
            "ITL_TARGET_DISK",
            "ITL_IMAGE_URL",
            "ITL_IMAGE_SUMS",
            "ITL_IMAGE_KEYS",
            "ITL_WAIT_SECONDS",
        )
    }
)
"""What the kernel's command line may say. Every program of the machine reads it, and the event log does: no token."""

_NAME = re.compile(r"ITL_[A-Z0-9_]{1,60}\Z")
_SECRET = re.compile(r"token|secret|password")


def parse_cmdline(data: bytes) -> dict[str, str]:
    """Return the variables that `itl.*` arguments of /proc/cmdline mean.

    Double quotes keep spaces together, as for the kernel (Documentation/admin-guide/kernel-parameters.rst).

    Raises:
        UsageError: Unknown, said twice in two ways, a secret, or not text.
    """
    if len(data) > MAX_CMDLINE_BYTES:
        raise UsageError(f"kernel arguments of more than {MAX_CMDLINE_BYTES} bytes")
    found: dict[str, str] = {}
    for word in _words(data.decode("utf-8", "replace")):
        name, equals, value = word.partition("=")
        if not name.startswith("itl."):
            continue
        variable = KERNEL_ARGUMENTS.get(name)
        if variable is None and _SECRET.search(name):
            raise UsageError(
                f"kernel argument {name[:64]}: every program of the machine can read it; "
                "give a secret in a file on the medium"
            )
        if variable is None or not equals:
            raise UsageError(f"unknown kernel argument {name[:64]!r}")
        _add(found, variable, value, f"kernel argument {name}")
    return found


def parse_conf(data: bytes, where: str) -> dict[str, str]:
    """Return the variables of a file with a `KEY=VALUE` a line, `#` before remarks, quotes around a value or none.

    Raises:
        UsageError: A line is none of these; it is named by *where* and its number.
    """
    if len(data) > MAX_CONF_BYTES:
        raise UsageError(f"{where}: more than {MAX_CONF_BYTES} bytes")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as e:
        raise UsageError(f"{where}: not UTF-8") from e
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not _NAME.match(name):
            raise UsageError(f"{where}:{number}: not ITL_…=VALUE")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        _add(found, name, value, f"{where}:{number}")
    return found


def _add(found: dict[str, str], name: str, value: str, where: str) -> None:
    if len(value) > MAX_VALUE_CHARACTERS or not value.isprintable():
        raise UsageError(f"{where}: too long, or not printable")
    if found.setdefault(name, value) != value:
        raise UsageError(f"{where}: {name} is said twice, in two ways")


def _words(text: str) -> list[str]:
    """Return the words of a command line; the quotes that kept one together are gone."""
    words, word, quoted, begun = [], "", False, False
    for character in text:
        if character == '"':
            quoted, begun = not quoted, True
        elif character in " \t\n\0" and not quoted:
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + character, True
    return [*words, word] if begun else words
