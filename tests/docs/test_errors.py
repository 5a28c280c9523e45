"""Each error code stands in docs/protocol/errors.md with the status that the service gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attestation.errors import AttestationError, DeviceError
from attestation_service.border import problems

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/protocol/errors.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\d{3}|any) \|", PAGE, flags=re.MULTILINE))


def _classes(kind: type[AttestationError]) -> Iterator[type[AttestationError]]:
    for sub in kind.__subclasses__():
        if sub.__module__ == "attestation.errors":
            yield sub
            yield from _classes(sub)


def test_every_error_of_ours_is_explained() -> None:
    """A leaf of the tree has a row with its status; a branch is at least named."""
    for kind in _classes(AttestationError):
        assert f"`{kind.code}`" in PAGE, kind
        if issubclass(kind, DeviceError) or (kind.__subclasses__() and kind.code not in ROWS):
            continue
        assert ROWS.get(kind.code) == str(problems.status_of(kind)), kind


def test_every_code_of_the_framework_is_explained() -> None:
    """What is found wrong before a handler runs has a row too."""
    for status, code in problems.FRAMEWORK_CODES.items():
        assert ROWS.get(code) == str(status), code


def test_no_code_is_invented() -> None:
    """Whoever reads the page for a client's `match` finds only codes that occur."""
    known = {kind.code for kind in _classes(AttestationError)} | set(problems.FRAMEWORK_CODES.values())
    assert set(ROWS) - known == {"http-error"}


def test_every_code_is_explained_once() -> None:
    """Two rows for one code would disagree sooner or later."""
    codes = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, flags=re.MULTILINE)
    assert len(codes) == len(set(codes))
