"""Passphrases and PINs: read when they are needed, from a file, a descriptor or a callback, and not kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attestation.errors import KeyUnusable, KeyURIInvalid

SecretSource = Callable[[], bytes]
"""Returns the secret, 1 to 1024 bytes. Called at each login or opening, so a changed file is seen."""

MAX_SECRET_BYTES: Final = 1024


def secret_source(text: str) -> SecretSource:
    """Return the source that *text* names: `file:/absolute/path` or `fd:N`.

    Raises:
        KeyURIInvalid: It has neither form. When called, the source raises KeyUnusable where nothing can be read.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "file" and rest.startswith("/"):
        return lambda: from_file(Path(rest))
    if scheme == "fd" and rest.isascii() and rest.isdecimal():
        return lambda: from_descriptor(int(rest))
    raise KeyURIInvalid("a secret is named by file:/absolute/path or fd:N")


def from_file(path: Path) -> bytes:
    """Return the content of *path* without one newline at its end.

    Raises:
        KeyUnusable: It cannot be read, is empty or too long.
    """
    try:
        with path.open("rb") as file:
            return _checked(file.read(MAX_SECRET_BYTES + 3), f"{path}")
    except OSError as e:
        raise KeyUnusable(f"the secret file {path} cannot be read: {e.strerror}") from e


def from_descriptor(number: int) -> bytes:
    """Return what can be read from the open descriptor *number*, without one newline at its end.

    A file is read from its beginning each time. A pipe gives its content once; after that it is refused.

    Raises:
        KeyUnusable: It is not open, empty (again) or too long.
    """
    most = MAX_SECRET_BYTES + 3
    try:
        try:
            return _checked(os.pread(number, most, 0), f"descriptor {number}")
        except OSError:  # ESPIPE: a pipe or socket has no beginning
            found = b""
            while len(found) < most and (part := os.read(number, most - len(found))):
                found += part
            return _checked(found, f"descriptor {number}")
    except OSError as e:
        raise KeyUnusable(f"the secret on descriptor {number} cannot be read: {e.strerror}") from e


def _checked(found: bytes, where: str) -> bytes:
    secret = found.removesuffix(b"\n")
    secret = secret.removesuffix(b"\r") if secret != found else secret
    if not secret:
        raise KeyUnusable(f"the secret of {where} is empty")
    if len(secret) > MAX_SECRET_BYTES:
        raise KeyUnusable(f"the secret of {where} has more than {MAX_SECRET_BYTES} bytes")
    return secret
