"""Policy documents in files, and what names a stored one."""

from __future__ import annotations

import re
from typing import Any

import click

from attestation.client.policy_text import MAX_CHARACTERS, read_policy
from attestation.client.text import clean
from attestation.errors import RequestInvalid

REF = re.compile(r"[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}\Z")


def is_ref(text: str) -> bool:
    """True where *text* names a stored version; a file of the same name is called `./NAME@VERSION`."""
    return REF.match(text) is not None


def read_open(file: Any) -> dict[str, Any]:
    """Return the policy document in an open file.

    Raises:
        RequestInvalid: It cannot be read, or as `read_policy` says.
    """
    try:
        text = file.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise RequestInvalid(f"{file.name}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from e
    return read_policy(text, clean(file.name))


def read_path(path: str) -> dict[str, Any]:
    """Return the policy document in the file at *path*; `-` is stdin.

    Raises:
        RequestInvalid: It cannot be read, or as `read_policy` says.
    """
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return read_open(file)
    except OSError as e:
        raise RequestInvalid(f"{clean(path)}: {e.strerror}; a stored policy is named NAME@VERSION") from e
