"""A configuration in a file, and what is told of any: findings and differences, never a value that is hidden."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attestation.client.text import clean
from attestation.errors import BaseConfigInvalid, RequestInvalid
from attestation_cli.render import Column
from attestation_cli.session import Session


def emit_findings(session: Session, found: Sequence[Any], nothing: str) -> None:
    """Print findings, as the SDK or the API tells of them."""
    if session.json:
        members = ("document", "path", "words")
        session.emit_json(
            {
                "findings": [
                    {name: getattr(each, name) for name in members}
                    | {"kind": each.kind or "v1alpha1", "level": str(each.level)}
                    for each in found
                ]
            }
        )
        return
    session.emit_rows(
        found,
        {
            Column("LEVEL"): lambda f: str(f.level),
            Column("DOC"): lambda f: str(f.document),
            Column("KIND", shrink_to=12): lambda f: f.kind or "v1alpha1",
            Column("PATH", shrink_to=16): lambda f: f.path,
            Column("WHAT", shrink_to=16): lambda f: f.words,
        },
        nothing,
    )


def emit_changes(session: Session, found: Sequence[Any]) -> None:
    """Print differences, likewise."""
    if session.json:
        session.emit_json(
            {
                "changes": [
                    {"document": e.document, "path": e.path, "before": e.before, "after": e.after}
                    for e in found
                ]
            }
        )
        return
    session.emit_rows(
        found,
        {
            Column("DOCUMENT", shrink_to=12): lambda c: c.document,
            Column("PATH", shrink_to=16): lambda c: c.path,
            Column("BEFORE", shrink_to=12): lambda c: c.before,
            Column("AFTER", shrink_to=12): lambda c: c.after,
        },
        "No differences.",
    )


@contextlib.contextmanager
def of_a_file() -> Iterator[None]:
    """Tell of a file what a service would tell of its own: here it is what was given that is at fault."""
    try:
        yield
    except BaseConfigInvalid as e:
        raise RequestInvalid(str(e)) from None


def read(path: Path) -> bytes:
    """Return the text of a file.

    Raises:
        RequestInvalid: It cannot be read, or is larger than any configuration.
    """
    from attestation.talos.documents import MAX_BYTES

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{clean(str(path))}: {e.strerror}") from e
    if len(text) > MAX_BYTES:
        raise RequestInvalid(f"{clean(str(path))}: more than {MAX_BYTES} bytes")
    return text
