"""What `doctor` and `db check` found, on standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Final

from attestation_service.inspection import Finding, Level, as_json, as_text

WIDTH: Final = 100
"""Of what is told, in characters, where nobody says how wide the screen is."""


def tell(found: Sequence[Finding], form: str, *, good: str, bad: str) -> int:
    """Write *found* as `text`, and *good*, or *bad* where one failed, or as `json`; return the exit status."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    text = as_json(found) if form == "json" else as_text(found, width, good, bad)
    # Paths and names may have characters that a terminal of another encoding has not.
    sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
    return int(any(each.level is Level.FAILED for each in found))
